"""The versions of what a model's numbers may depend on."""

import platform
from importlib.metadata import PackageNotFoundError, version

from sfsl import __version__

_PACKAGES = ("torch", "numpy", "cryptography", "msgspec", "lmdb")


def versions() -> dict[str, str]:
    """Return them by name, for whoever asks later what a model was made with."""
    found = {"sfsl": __version__, "python": platform.python_version(), "platform": platform.platform()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
