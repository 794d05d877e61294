"""What a client trains: the server's model, whose catalogue grows, and samples of its own, as a period
freezes both.

What a server says is checked, and never less than it said before. Within a period a client goes on with the
rows that the catalogue had when the period began. A client that answered for a new row at once, or sat out
because it has one, would betray that it has it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta

from sfsl.arrays import Bits, Indices
from sfsl.checksums import with_json_sum, without_json_sum
from sfsl.client.device import Device
from sfsl.client.events import About, Hex32
from sfsl.client.home import replace_file, require_readable
from sfsl.client.link import Link
from sfsl.client.round import ClientModel
from sfsl.data import NO_ROW, Samples, hold_out_last
from sfsl.data.catalogue import ITEM, WORD, Catalogue, catalogue_digest
from sfsl.data.catalogue_file import MOST_SERVED, decode_catalogue
from sfsl.data.lines import LoadReport
from sfsl.data.own import Fresh, Layout, load_own, load_own_words
from sfsl.errors import InputError, InvalidMessage, SfslError, StateError, WrongModel
from sfsl.models import package
from sfsl.submodel import ModelSpec
from sfsl.training import score_samples
from sfsl.training.task import ClientData, Task

_LARGEST = 1 << 20
_TRIES = 3  # a server that is started again meanwhile needs one more; a liar gets no more
Given = str | Path | Samples
Data = Given | Callable[[], Given]
_MAGIC = b"sfsl samples 1\n\0"


@dataclass(frozen=True)
class ServedModel:
    """What a server trains, as it says and as far as that can be checked. Where the server does not say what
    rows are called, the catalogue has their numbers."""

    digest: bytes
    task: Task
    catalogue: Catalogue
    named: bool = False

    @property
    def client_model(self) -> ClientModel:
        names = self.catalogue.contents if self.named else b""
        return ClientModel(self.digest, self.task.spec, self.task.row_maps, names, bound=True)

    @property
    def shared_rows(self) -> dict[str, int]:
        return {table.name: table.rows for table in self.task.tables if table.kind == "shared"}


async def fetch_model(link: Link, about: About) -> ServedModel:
    """Fetch the model that ``about`` announces, or that which the server announces by now."""
    for _ in range(_TRIES):
        try:
            return await _fetched(link, about)
        except InvalidMessage:
            fresh = await link.about()
            if (fresh.model, fresh.catalogue) == (about.model, about.catalogue):
                raise
            about = fresh  # the server started again in between, with another catalogue
    raise InvalidMessage(f"the server announced another model {_TRIES} times in a row; try again later")


async def _fetched(link: Link, about: About) -> ServedModel:
    data = await link.model()
    digest = package.package_digest(data)
    if digest.hex() != about.model:
        raise InvalidMessage("the server's model is not the one that it announces")
    task = package.build(data)
    sizes = package.read_package(data).catalogue
    if about.catalogue is None:
        return ServedModel(digest, task, sizes)
    public = await link.catalogue()
    if catalogue_digest(public).hex() != about.catalogue:
        raise InvalidMessage("the server's catalogue is not the one that it announces")
    try:
        catalogue = decode_catalogue(public, "the server's catalogue", MOST_SERVED)
    except InputError as error:
        raise InvalidMessage(str(error)) from None
    _require_one_model(sizes, catalogue)
    return ServedModel(digest, task, catalogue, named=True)


def _require_one_model(sizes: Catalogue, catalogue: Catalogue) -> None:
    """Refuse a package and a catalogue that speak of different tables."""
    told, packed = ([(one.name, one.rows, one.source) for one in of.tables] for of in (catalogue, sizes))
    if told != packed or catalogue.users != sizes.users:
        raise InvalidMessage("the server's catalogue has other tables than its model")
    for one, other in zip(sizes.tables, catalogue.tables, strict=True):
        if one.map is not None and not np.array_equal(one.map, np.asarray(other.map)):
            raise InvalidMessage(f"the server's catalogue has another map of {one.name!r} than its model")


class _Known(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The model and the contents of the catalogue that this client knew last. ``period``: by shared table,
    the rows that count in the period under way."""

    format: Literal["sfsl known model 1"]
    spec: ModelSpec
    contents: Hex32
    period: dict[str, Annotated[int, Meta(ge=1)]]


@dataclass(frozen=True)
class KnownModel:
    """What a client remembers of the model, in a file of its own: so much is still so, whoever says what."""

    path: Path

    def require_extends(self, served: ServedModel) -> None:
        """Raise ``WrongModel`` unless all that was known still holds: tables, widths and kinds are the same,
        no row is gone, and rows that were there have their ids and maps."""
        known = self._read()
        if known is not None and (why := _difference(known, served)):
            raise WrongModel(
                f"the server's model does not continue the one that this client knows ({self.path}): {why}. "
                "A model only grows; ask who runs the server. For another model take another folder"
            )

    def settle(self, served: ServedModel, *, going_on: bool) -> dict[str, int]:
        """Settle how many rows of each shared table count now, durably, before anything is answered for them.
        ``going_on``: the client's period began before, so that its rows are those of then."""
        known, rows = self._read(), served.shared_rows
        if known is not None and going_on:
            rows = {name: min(known.period.get(name, count), count) for name, count in rows.items()}
        settled = _Known("sfsl known model 1", served.task.spec, served.catalogue.contents.hex(), rows)
        if settled != known:
            replace_file(self.path, with_json_sum(msgspec.json.encode(settled)))
        return rows

    def _read(self) -> _Known | None:
        try:
            with self.path.open("rb") as file:
                return msgspec.json.decode(without_json_sum(file.read(_LARGEST), "it"), type=_Known)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, ValueError) as error:
            raise StateError(
                f"{self.path} does not hold what this client knows of its model: {error}"
            ) from None


def _difference(known: _Known, served: ServedModel) -> str:
    """Say in words what no longer holds; empty where everything that was known does."""
    now, then = served.task.spec, known.spec
    if [one.name for one in now.tables] != [one.name for one in then.tables] or now.dense != then.dense:
        return "it has other tables, or another dense part"
    for new, old in zip(now.tables, then.tables, strict=True):
        if msgspec.structs.replace(new, rows=old.rows) != old:
            return f"table {old.name!r} has another width, kind, source or start"
        if new.rows < old.rows:
            return f"table {old.name!r} had {old.rows} rows and has {new.rows}"
    try:
        first = served.catalogue.first({table.name: table.rows for table in then.tables})
    except InputError as error:
        return str(error)
    return "" if first.contents.hex() == known.contents else "rows that were there have other ids or maps"


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
    served: ServedModel,
    rows: Mapping[str, int],
    frozen: Path,
    source: Path | bytes,
    held_out: float,
    layout: Layout | None = None,
    fresh: Fresh | None = None,
) -> tuple[Device, LoadReport | None]:
    """Build the device that trains on what was frozen; also say what a file held that could not be used.
    ``rows``: how many of each shared table count (``KnownModel.settle``); ``layout``: what the columns of a
    file mean; ``fresh``: which samples are new, where old ones are left out. A client without new ones, or
    without any that the model has rows for, trains on none: staying away would tell. The last share
    ``held_out`` of the samples, those of a file in its order or in time, is for testing only."""
    news = _News(fresh)
    train, test, report = _parted(
        served, rows, frozen, source, held_out, layout or Layout(), None if fresh is None else news.found
    )
    if not news.any:
        return Device(
            served.task, train.keep(dict.fromkeys(served.shared_rows, np.zeros(0, np.int64)))
        ), report
    return Device(served.task, train, test), report


@dataclass
class _News:
    """Asks which samples are new. Where none is, all are read, so that the file is still seen to be sound."""

    fresh: Fresh | None
    any: bool = True

    def found(self, names: Sequence[bytes]) -> Bits:
        assert self.fresh is not None  # noqa: S101 -- it is not asked otherwise
        new = self.fresh(names)
        self.any = bool(new.any())
        return new if self.any else np.ones(len(new), np.bool_)


def _parted(
    served: ServedModel,
    rows: Mapping[str, int],
    frozen: Path,
    source: Path | bytes,
    held_out: float,
    layout: Layout,
    fresh: Fresh | None,
) -> tuple[ClientData, ClientData, LoadReport | None]:
    """Return the samples to train on and those to test with."""
    task, content = served.task, frozen.read_bytes()
    if content.startswith(_MAGIC):
        given = _decoded(content)
        samples = _without_rows_beyond(rows, given)
        _require_fits(task, samples)
        if fresh is not None:
            # Called as they were given: one whose history gains a row when the model grows is not new.
            usable = _usable(task, samples)
            samples = samples.at(usable[fresh(_named(given.at(usable)))])
        cut = len(samples) - int(held_out * len(samples) + 1e-9)
        first, last = np.split(np.arange(len(samples)), [cut])
        return samples.at(first), samples.at(last), None
    catalogue, name = served.catalogue, source if isinstance(source, Path) else None
    # Newer rows are left out before samples are held out, so that these do not depend on them.
    if WORD in rows:
        speech, report = load_own_words(frozen, catalogue, known=rows[WORD], name=name, fresh=fresh)
        said, tested = speech.windows(held_out)
        return said.client(0), tested.client(0), report
    own, report = load_own(frozen, catalogue, known=rows[ITEM], name=name, layout=layout, fresh=fresh)
    train, test = hold_out_last(own, held_out)
    return train.client(0), test.client(0), report


def _usable(task: Task, samples: Samples) -> Indices:
    """Return the places of the samples that can be trained with the rows that the model has."""
    place = "place of a sample"
    placed = replace(samples, columns={**samples.columns, place: np.arange(len(samples))})
    return placed.keep(task.needed_rows(samples)[0]).columns[place]


def _named(samples: Samples) -> list[bytes]:
    """Return what tells each sample from others: all that its columns hold."""
    columns = [samples.columns[name] for name in sorted(samples.columns)]
    return [
        b"".join(np.ascontiguousarray(column[at]).tobytes() for column in columns)
        for at in range(len(samples))
    ]


def _without_rows_beyond(rows: Mapping[str, int], samples: Samples) -> Samples:
    """Leave out rows from these numbers on, as if samples did not have them."""
    columns = dict(samples.columns)
    for name, table in samples.tables.items():
        if table in rows:
            columns[name] = np.where(columns[name] < rows[table], columns[name], NO_ROW)
    return Samples(columns, samples.tables, samples.follows)


def _require_fits(task: Task, samples: Samples) -> None:
    """Score one sample: what the model misses in it shows here, and not once a round was entered. That none
    has a row of the model is no reason to stay away: which rows there are is the server's choice."""
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
        return
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
