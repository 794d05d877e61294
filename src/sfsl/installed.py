"""How this copy of the package is installed, and the command that adds to it from where its user is.

No message says to install sfsl by its name alone: no index has to know it, and one that does may mean
somebody else's (decision 20).
"""

import re
import shlex
import shutil
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

_EXTRA = re.compile(r"""\s*;\s*extra\s*==\s*['"]([^'"]+)['"]\s*$""")


def clone() -> Path | None:
    """Return the root of the clone that this package runs from; None where it was installed from a wheel."""
    root = Path(__file__).resolve().parents[2]
    whole = (root / "pyproject.toml").is_file() and (root / "src/sfsl").is_dir()
    return root if whole and (root / "research/pyproject.toml").is_file() else None


def install_command(extras: str) -> str:
    """Return the command that installs these extras (``train,store``): in a clone the clone with them, else
    the packages that they stand for."""
    if (root := clone()) is not None:
        return f"{_pip()} install -e {shlex.quote(f'{root}[{extras}]')}"
    try:
        known = requires("sfsl") or []
    except PackageNotFoundError:
        known = []
    wanted = extras.split(",")
    found = [_EXTRA.sub("", one) for one in known if (of := _EXTRA.search(one)) and of[1] in wanted]
    return f"{_pip()} install {shlex.join(found) if found else f'SFSL_WHEEL[{extras}]'}"


def install_research(extra: str = "") -> str:
    """Return the command that installs sfsl-research, which a clone has in a folder of its own."""
    more = f"[{extra}]" if extra else ""
    if (root := clone()) is not None:
        return f"{_pip()} install -e {shlex.quote(f'{root}/research{more}')}"
    try:
        release = version("sfsl")
    except PackageNotFoundError:
        release = "VERSION"
    wheel = f"sfsl_research-{release}-py3-none-any.whl{more}"
    return f"{_pip()} install {shlex.quote(wheel)}, a file from where that of sfsl came"


def _pip() -> str:
    """Return the pip of this Python, which is not always the first on the path."""
    beside = Path(sys.executable).with_name("pip")
    first = shutil.which("pip")
    if first is not None and beside.exists() and Path(first).samefile(beside):
        return "pip"
    return f"{shlex.quote(sys.executable)} -m pip"
