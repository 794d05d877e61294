"""A client's own samples, as it is given them and as a period freezes them."""

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import numpy as np

from sfsl.client.device import Device
from sfsl.client.following import ServedModel
from sfsl.client.home import require_readable
from sfsl.data import NO_ROW, Samples, hold_out_last
from sfsl.data.catalogue import ITEM, WORD
from sfsl.data.lines import LoadReport
from sfsl.data.own import load_own, load_own_words
from sfsl.errors import InputError, SfslError, StateError
from sfsl.training import score_samples
from sfsl.training.task import Task

Given = str | Path | Samples
Data = Given | Callable[[], Given]

_MAGIC = b"sfsl samples 1\n\0"


class _Column(msgspec.Struct, frozen=True):
    kind: str
    shape: tuple[int, ...]
    values: bytes


class _Frozen(msgspec.Struct, frozen=True):
    columns: dict[str, _Column]
    tables: dict[str, str]
    follows: dict[str, str]


def source_of(data: Data) -> Path | bytes:
    """Return what a period freezes of ``data``: a file, which is looked for here, or the samples as bytes."""
    given = data() if callable(data) else data
    if isinstance(given, Samples):
        return _encoded(given)
    if not isinstance(given, str | Path):
        raise InputError(
            f"data is a {type(given).__name__}; it should be the path of a CSV file or sfsl.Samples"
        )
    require_readable(Path(given))
    return Path(given)


def build_device(
    served: ServedModel, rows: Mapping[str, int], frozen: Path, source: Path | bytes, held_out: float
) -> tuple[Device, LoadReport | None]:
    """Build the device that trains on what was frozen; also say what a file held that could not be used.
    ``rows``: how many of each shared table count (``KnownModel.settle``). The last share ``held_out`` of the
    samples, those of a file in its order or in time, is for testing only."""
    task, content = served.task, frozen.read_bytes()
    if content.startswith(_MAGIC):
        samples = _without_rows_beyond(rows, _decoded(content))
        _require_fits(task, samples)
        cut = len(samples) - int(held_out * len(samples) + 1e-9)
        first, last = np.split(np.arange(len(samples)), [cut])
        return Device(task, samples.at(first), samples.at(last)), None
    catalogue, name = served.catalogue, source if isinstance(source, Path) else None
    # Newer rows are left out before samples are held out, so that these do not depend on them.
    if WORD in rows:
        speech, report = load_own_words(frozen, catalogue, known=rows[WORD], name=name)
        said, tested = speech.windows(held_out)
        return Device(task, said.client(0), tested.client(0)), report
    own, report = load_own(frozen, catalogue, known=rows[ITEM], name=name)
    train, test = hold_out_last(own, held_out)
    return Device(task, train.client(0), test.client(0)), report


def _without_rows_beyond(rows: Mapping[str, int], samples: Samples) -> Samples:
    """Leave out rows from these numbers on, as if samples did not have them."""
    columns = dict(samples.columns)
    for name, table in samples.tables.items():
        if table in rows:
            columns[name] = np.where(columns[name] < rows[table], columns[name], NO_ROW)
    return Samples(columns, samples.tables, samples.follows)


def _require_fits(task: Task, samples: Samples) -> None:
    """Score one sample: what the model misses in it shows here, and not once a round was entered."""
    held = set(samples.tables.values())
    for table in task.tables:
        if table.kind != "derived" and table.name not in held:
            raise InputError(
                f"no column of these samples holds rows of table {table.name!r}, which the model has; "
                "name it in Samples(..., tables=...)"
            )
    if not len(samples):
        raise InputError("there are no samples to take part with")
    kept = samples.keep(task.needed_rows(samples)[0])  # a first sample may have newer rows only
    if not len(kept):
        raise InputError("no sample has rows that the model has; they are numbered from 0 as in the model")
    one = kept.at(np.zeros(1, np.int64))
    rows = task.needed_rows(one)[0]
    zeros = {table.name: np.zeros((len(rows[table.name]), table.width), np.float32) for table in task.tables}
    try:
        score_samples(task, task.initial_dense(), rows, zeros, one)
        _ = one.columns["label"]
    except SfslError:
        raise
    except (KeyError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"the model cannot read these samples ({type(error).__name__}: {error}); they have the columns "
            f"{', '.join(samples.columns)}"
        ) from None


def _encoded(samples: Samples) -> bytes:
    columns = {}
    for name, column in samples.columns.items():
        if column.dtype.kind not in "biuf":
            raise InputError(f"column {name!r} holds {column.dtype}; samples are numbers")
        little = np.ascontiguousarray(column, column.dtype.newbyteorder("<"))
        columns[name] = _Column(little.dtype.str, little.shape, little.tobytes())
    return _MAGIC + msgspec.msgpack.encode(_Frozen(columns, dict(samples.tables), dict(samples.follows)))


def _decoded(content: bytes) -> Samples:
    try:
        read = msgspec.msgpack.decode(memoryview(content)[len(_MAGIC) :], type=_Frozen)
        columns = {
            name: np.frombuffer(one.values, one.kind).reshape(one.shape) for name, one in read.columns.items()
        }
        return Samples(columns, read.tables, read.follows)
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise StateError(f"the samples that this period froze cannot be read: {error}") from None
