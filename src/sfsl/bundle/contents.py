"""What the files of a bundle hold: its manifest ``bundle.json``, and tensors as safetensors."""

import struct
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from sfsl.errors import BundleError

FORMAT = "sfsl bundle 1"
MANIFEST, WEIGHTS, CATALOGUE, SOURCE, ONNX = (
    "bundle.json",
    "weights.safetensors",
    "catalogue.json",
    "model.py",
    "model.onnx",
)
LINES, SUMMARY = "metrics.jsonl", "summary.json"  # as the folder had them
OWN = "own"
_KINDS: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "I64": np.dtype("<i8")}
_MOST_HEADER = 1 << 24

Tensors = Mapping[str, NDArray[Any]]
Count = Annotated[int, Meta(ge=0)]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class StoredTable(Struct, frozen=True):
    """``stored``: "whole", every row; "touched", those that some round moved, while the others follow from
    ``key``, or are not known where that is empty; "none", as of people, whose rows are in no bundle."""

    name: str
    rows: Annotated[int, Meta(ge=1)]
    width: Annotated[int, Meta(ge=1, le=2**20)]
    kind: Literal["shared", "derived", "personal"]
    source: str | None
    initial: float
    stored: Literal["whole", "touched", "none"]
    key: str = ""


class Architecture(Struct, frozen=True):
    """``kind`` is one of ours, or "own"; ``arguments`` are those of its ``network``, a class in ``model.py``.
    ``person`` is the width of a personal row, 0 where there are none; ``history`` how many clicks or
    words before a sample the model was trained with at most. ``dense``: parameters outside the tables. The
    log-odds of a click count times ``scale`` and plus ``shift``, by which validation devices correct them;
    with ``parts``, each part of the log-odds counts times its number before that."""

    kind: str
    network: str
    arguments: dict[str, int | str | None]
    history: Annotated[int, Meta(ge=1, le=10**6)]
    person: Count
    tables: tuple[StoredTable, ...]
    dense: tuple[tuple[str, tuple[int, ...]], ...]
    scale: float = 1.0
    shift: float = 0.0
    parts: dict[str, float] = {}


class Provenance(Struct, frozen=True):
    """``trained``: by a simulated "run", over "https" or by "flower". ``settings`` is the text of a
    run file, which also says what columns of tables mean. ``fingerprint`` names the shape of the model."""

    trained: Literal["run", "https", "flower"]
    round: Count
    which: Literal["best", "last"]
    seed: int
    settings: str
    versions: dict[str, str]
    fingerprint: Digest
    catalogue: Digest | None


class StoredFile(Struct, frozen=True):
    bytes: Annotated[int, Meta(ge=0, lt=2**50)]
    sha256: Digest


class Manifest(Struct, frozen=True):
    """``metrics`` are what is known of this model's worth, ``privacy`` what was hidden from whom."""

    format: str
    architecture: Architecture
    metrics: dict[str, Any]
    privacy: dict[str, Any]
    provenance: Provenance
    files: dict[str, StoredFile]


def encode_tensors(tensors: Tensors) -> bytes:
    """Write a safetensors file, the same bytes for the same tensors."""
    names = {kind: name for name, kind in _KINDS.items()}
    header, parts, offset = dict[str, Any](), [], 0
    for name, values in sorted(tensors.items()):
        little = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
        stop = offset + little.nbytes
        header[name] = {
            "dtype": names[little.dtype], "shape": little.shape, "data_offsets": (offset, stop)
        }  # fmt: skip
        parts.append(little.tobytes())
        offset = stop
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(parts)


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: Literal["F32", "I64"]
    shape: list[Count]
    data_offsets: tuple[Count, Count]


def decode_tensors(data: bytes, where: str) -> dict[str, NDArray[Any]]:
    """Read a safetensors file of ours; what is not exactly that is a ``BundleError``."""
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > min(_MOST_HEADER, len(data) - 8):
        raise BundleError(f"{where} is no safetensors file: its header is cut short")
    try:
        header = msgspec.json.decode(data[8 : 8 + size], type=dict[str, _Header])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BundleError(f"{where} is no safetensors file of ours: {error}") from None
    found, end = dict[str, NDArray[Any]](), 0
    body = memoryview(data)[8 + size :]
    for name, one in header.items():
        (start, stop), kind = one.data_offsets, _KINDS[one.dtype]
        count = int(np.prod([1, *one.shape], dtype=object))
        if start != end or stop - start != count * kind.itemsize or stop > len(body):
            raise BundleError(f"{where}: the tensor {name[:80]!r} does not lie where its header says")
        found[name] = np.frombuffer(body[start:stop], kind).reshape(one.shape)
        end = stop
    if end != len(body):
        raise BundleError(f"{where} has {len(body) - end} bytes beyond its last tensor")
    return found
