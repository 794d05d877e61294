"""``import sfsl``: every name has an example that runs, and importing it needs nothing heavy."""

import doctest
import pydoc
import subprocess
import sys
from pathlib import Path

import pytest

import sfsl

NAMES = [name for name in sfsl.__all__ if name != "__version__"]


@pytest.mark.parametrize("name", NAMES)
def test_every_name_has_an_example_that_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("torch", "httpx", "lmdb"):
        pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    found = doctest.DocTestFinder(recurse=False).find(getattr(sfsl, name), name, globs={})
    assert sum(len(one.examples) for one in found) > 0
    for one in found:
        runner = doctest.DocTestRunner()
        assert runner.run(one).failed == 0, f"the example of sfsl.{name}"


def run(code: str) -> str:
    """In a process of its own: another test may have imported torch here."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)  # noqa: S603
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_it_loads_nothing_but_itself() -> None:
    code = (
        "import sys; before = set(sys.modules); import sfsl\n"
        "print(sorted(name for name in set(sys.modules) - before if name.startswith('sfsl.')))\n"
        "print(sorted({'numpy', 'torch', 'httpx', 'lmdb', 'msgspec'} & set(sys.modules)))"
    )
    assert run(code).split() == ["[]", "[]"]


def test_without_extras_the_rest_works_and_says_what_is_missing() -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'httpx', 'lmdb', 'uvicorn', 'starlette'): sys.modules[name] = None\n"
        "import pydoc, sfsl\n"
        "assert sfsl.secure_mean({'a': [1.0], 'b': [0.0]}, clip=1.0).mean.round(3).tolist() == [0.5]\n"
        "assert sfsl.aggregate({'a': [1], 'b': [2]}).total.tolist() == [3]\n"
        "assert sfsl.private_set_union({'a': [1], 'b': [2]}, 9).indices.tolist() == [1, 2]\n"
        "assert 'train' not in dir(sfsl) and 'aggregate' in dir(sfsl)\n"
        "assert 'sum vectors' in pydoc.plain(pydoc.render_doc(sfsl))\n"
        "sfsl.Terms(), sfsl.Table, sfsl.Samples\n"
        "for name in ('train', 'join', 'serve', 'Task', 'Fleet', 'Attempt'):\n"
        "    try: getattr(sfsl, name)\n"
        "    except ImportError as error: said = str(error)\n"
        "    else: raise AssertionError(name)\n"
        "    assert f'sfsl.{name} needs' in said and 'pip install' in said\n"
    )
    run(code)


def test_a_name_stays_what_it_is_once_everything_is_imported() -> None:
    """A package of the same name would take its place."""
    pytest.importorskip("torch")
    code = (
        "import importlib, pkgutil, sfsl\n"
        "rooms = {one.name for one in pkgutil.iter_modules(sfsl.__path__)}\n"
        "assert not rooms & set(sfsl.__all__), rooms & set(sfsl.__all__)\n"
        "for room in ('cli', 'deploy', 'run.train', 'client.join'):\n"
        "    importlib.import_module('sfsl.' + room)\n"
        "assert callable(sfsl.serve) and callable(sfsl.join) and callable(sfsl.load)"
    )
    run(code)


def test_help_begins_with_a_tour_of_every_name() -> None:
    tour = pydoc.plain(pydoc.render_doc(sfsl)).split("PACKAGE CONTENTS")[0]
    assert all(name in tour for name in NAMES)
    assert max(map(len, (sfsl.__doc__ or "").splitlines())) <= 110


def test_what_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = sfsl.nothing  # type: ignore[attr-defined]
    assert set(sfsl.__all__) <= set(dir(sfsl))
