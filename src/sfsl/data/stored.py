"""Interactions in a folder of flat files: made once, checked when opened, and mapped into memory.

Millions of samples are at hand at once, and take memory only as far as they are looked at.
"""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sfsl.checksums import sha256_of, with_json_sum, without_json_sum
from sfsl.data.interactions import Interactions
from sfsl.durable import folder_made_whole, write_new, written_whole
from sfsl.errors import InputError

MANIFEST = "manifest.json"
_FORMAT = "sfsl interactions 1"


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    sha256: str


class _Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: str
    about: str
    arrays: dict[str, _File]


def store_interactions(data: Interactions, folder: str | Path, *, about: str) -> None:
    """Write a folder, whole or not at all. ``about`` says in words what it holds."""
    folder = Path(folder)
    if folder.exists():
        raise InputError(f"{folder} exists already; choose another folder, or remove it")
    try:
        with folder_made_whole(folder) as aside:
            files = {}
            for name in Interactions.__dataclass_fields__:
                array = getattr(data, name)
                if array is not None:
                    with written_whole(aside / f"{name}.npy") as file:
                        np.save(file, array, allow_pickle=False)
                    files[name] = _File(array.dtype.str, array.shape, sha256_of(aside / f"{name}.npy"))
            manifest = _Manifest(_FORMAT, about, files)
            content = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
            write_new(aside / MANIFEST, with_json_sum(content))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write {folder}: {error}") from None


def load_stored(folder: str | Path, *, about: str | None = None) -> Interactions:
    """Open a folder that ``store_interactions`` made. Every byte is checked against its manifest, and what it
    holds against ``about``, if one is given."""
    folder = Path(folder)
    manifest = _manifest(folder)
    if about is not None and manifest.about != about:
        raise InputError(
            f"{folder} holds other data ({manifest.about}) than is wanted ({about}); choose another folder, "
            "or remove this one"
        )
    unknown = manifest.arrays.keys() - Interactions.__dataclass_fields__.keys()
    if unknown:
        raise InputError(f"{folder / MANIFEST} names {', '.join(sorted(unknown))}, which are no interactions")
    arrays = {name: _mapped(folder / f"{name}.npy", known) for name, known in manifest.arrays.items()}
    try:
        return Interactions(**arrays)
    except TypeError:
        raise InputError(f"{folder} lacks arrays; store it again") from None


def _manifest(folder: Path) -> _Manifest:
    path = folder / MANIFEST
    try:
        content = without_json_sum(path.read_bytes(), str(path), "store it again")
        manifest = msgspec.json.decode(content, type=_Manifest)
    except OSError as error:
        raise InputError(f"{folder} holds no stored interactions: {error.strerror}: {path}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is damaged: {error}") from None
    if manifest.format != _FORMAT:
        raise InputError(f"{path} is in the format {manifest.format!r}; this version reads {_FORMAT!r}")
    return manifest


def _mapped(path: Path, known: _File) -> NDArray[Any]:
    try:
        if sha256_of(path) != known.sha256:
            raise InputError(f"{path} is damaged: its checksum is not that of the manifest; store it again")
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
    if (array.dtype.str, array.shape) != (known.dtype, known.shape):
        raise InputError(f"{path} holds {array.dtype} of shape {array.shape}; its manifest says otherwise")
    return array
