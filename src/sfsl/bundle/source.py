"""The text of ``model.py``, with which a bundle is loaded where sfsl is not installed."""

import ast
import inspect
import sys
from threading import Lock
from types import ModuleType

from torch import nn

from sfsl import __version__
from sfsl.bundle import scorer

_HEAD = '''"""The model of this bundle in plain torch; written by sfsl {version}.

::

    import model                                   # with the unpacked bundle's folder on the path
    films = model.load()
    films.score(["12", "7"], history=["3", "5"])   # the chance of each, after these two
    films.top(history=["3", "5"], count=10)        # the best others
    films.scorer                                   # a torch.nn.Module on row numbers
"""
'''
_ONE_AT_A_TIME = Lock()  # two threads in ast.parse are a SystemError in Python 3.11
_TAIL = '''

_load = load


def load(folder=Path(__file__).parent):
    """Load the bundle in a folder, that of this file unless another is named."""
    return _load(folder, {name})
'''


def model_source(net: type[nn.Module]) -> str:
    """Join the scorer and the network's classes to one text that needs nothing of ours."""
    modules = [sys.modules[one.__module__] for one in reversed(net.__mro__) if one.__module__[:5] == "sfsl."]
    text, imports = "", list[str]()
    for module in [scorer, *dict.fromkeys(modules)]:
        parts, own = _parts(module)
        imports += own
        text += "\n\n" + "\n\n".join(parts)
    head = _HEAD.format(version=__version__)
    return head + "\n" + "\n".join(dict.fromkeys(imports)) + text + _TAIL.format(name=net.__name__)


def _parts(module: ModuleType) -> tuple[list[str], list[str]]:
    """Return the constants, classes and, of the scorer, functions of a module, and its imports of others."""
    source = inspect.getsource(module)
    with _ONE_AT_A_TIME:
        nodes = ast.parse(source).body
    parts, imports = [], []
    for node in nodes:
        segment = ast.get_source_segment(source, node) or ""
        if isinstance(node, ast.Import | ast.ImportFrom):
            if "sfsl" not in segment:
                imports.append(segment)
        elif isinstance(node, ast.ClassDef | ast.Assign) or (
            isinstance(node, ast.FunctionDef) and module is scorer
        ):
            parts.append(segment)
    return parts, imports
