"""Bundles on disk: a folder, or a zip of it. Written whole, and read only if every byte is as written."""

import hashlib
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from sfsl.bundle.contents import FORMAT, MANIFEST, WEIGHTS, Manifest, StoredFile
from sfsl.checksums import with_json_sum, without_json_sum
from sfsl.durable import folder_made_whole, write_new, written_whole
from sfsl.errors import BundleError, InputError

ZIP = ".zip"
_MOST_MANIFEST = 1 << 26
_LONG_AGO = (1980, 1, 1, 0, 0, 0)  # the same files make the same zip


def is_bundle(path: Path) -> bool:
    """Say whether a path is meant for a bundle: a zip, or a folder with a manifest."""
    return (path / MANIFEST).is_file() or (path.is_file() and path.suffix != ".pt")


def require_free(path: Path) -> None:
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise InputError(f"{path} exists already; choose another name or remove it")


def write_bundle(path: Path, manifest: Manifest, files: Mapping[str, bytes], *, anew: bool = False) -> None:
    """Write a zip if the name says so, else a folder. ``manifest.files`` is filled in here. ``anew``: in the
    place of a zip that may be there."""
    if not anew:
        require_free(path)
    digests = {
        name: StoredFile(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        for name, data in files.items()
    }
    text = msgspec.json.encode(msgspec.structs.replace(manifest, files=digests))
    every = {MANIFEST: with_json_sum(msgspec.json.format(text, indent=1) + b"\n"), **files}
    try:
        if path.suffix == ZIP:
            with written_whole(path) as opened, zipfile.ZipFile(opened, "w") as packed:
                for name, data in every.items():
                    entry = zipfile.ZipInfo(name, _LONG_AGO)
                    entry.external_attr = 0o644 << 16
                    # Numbers of a model hardly get smaller.
                    kind = zipfile.ZIP_STORED if name == WEIGHTS else zipfile.ZIP_DEFLATED
                    packed.writestr(entry, data, kind)
        else:
            with folder_made_whole(path) as aside:
                for name, data in every.items():
                    write_new(aside / name, data)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None


def read_bundle(path: Path) -> tuple[Manifest, dict[str, bytes]]:
    """Read a bundle. Where a file is missing, cut short or altered, nothing is returned."""
    try:
        if path.is_dir():
            return _read(_FolderFiles(path), path)
        with zipfile.ZipFile(path) as packed:
            return _read(_ZipFiles(packed), path)
    except FileNotFoundError as error:
        missing = Path(error.filename).name
        what = "no bundle" if missing in (MANIFEST, path.name) else f"no whole bundle: {missing} is missing"
        raise BundleError(f"{path} is {what}; sfsl export writes one") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise BundleError(f"{path} is no bundle, or is damaged: {error}; export it again") from None
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror or error}") from None


class _FolderFiles:
    """The files of a folder. Others may lie beside them, such as what Python makes of ``model.py``."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, name: str, most: int) -> bytes:
        with (self._path / name).open("rb") as file:
            return file.read(most + 1)

    def require_only(self, names: set[str]) -> None:
        pass


class _ZipFiles:
    def __init__(self, packed: zipfile.ZipFile) -> None:
        self._packed = packed

    def read(self, name: str, most: int) -> bytes:
        try:
            with self._packed.open(name) as file:
                return file.read(most + 1)
        except KeyError:
            raise FileNotFoundError(2, "not in the zip", name) from None

    def require_only(self, names: set[str]) -> None:
        found = self._packed.namelist()
        if sorted(found) != sorted(names):
            raise BundleError(f"{self._packed.filename} has other files than a bundle's: {sorted(found)[:8]}")


def _read(files: _FolderFiles | _ZipFiles, path: Path) -> tuple[Manifest, dict[str, bytes]]:
    manifest = decode_manifest(files.read(MANIFEST, _MOST_MANIFEST), f"{path}, {MANIFEST}")
    files.require_only({MANIFEST, *manifest.files})
    found = {}
    for name, about in manifest.files.items():
        if Path(name).name != name:
            raise BundleError(f"{path}: {name[:80]!r} is no name of a file in a bundle")
        data = files.read(name, about.bytes)
        if len(data) != about.bytes or hashlib.sha256(data).hexdigest() != about.sha256:
            raise BundleError(f"{path}: {name} is not as it was written; export the bundle again")
        found[name] = data
    return manifest, found


def decode_manifest(data: bytes, where: str) -> Manifest:
    if len(data) > _MOST_MANIFEST:
        raise BundleError(f"{where} has more than {_MOST_MANIFEST:,} bytes")
    try:
        text = without_json_sum(data, where, "export the bundle again")
        stated = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        form = msgspec.json.decode(stated.get("format", b'""'), type=str)
        if form != FORMAT:
            raise BundleError(f"{where} has the format {form[:40]!r}; this version reads {FORMAT!r}")
        return msgspec.json.decode(text, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BundleError(f"{where} is no manifest of a bundle: {error}") from None
    except InputError as error:
        raise BundleError(str(error)) from None
