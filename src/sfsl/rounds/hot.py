"""Rounds over hot rows (spec hot): public parameters, the set of hot rows, and what the server keeps of them.

Rows that many clients have are hot, and which ones they are is public. Everybody downloads the same blob and
uploads a vector of the same length: zero where it has nothing, of bounded norm, with noise of its own. A
survey, now and then, finds out which rows are hot, by a vector of the same kind.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Self

import msgspec
import numpy as np
from msgspec import Meta, field

from sfsl.arrays import Indices, Reals
from sfsl.codec import Checked, Codec, Message
from sfsl.crypto.secret import digest
from sfsl.errors import Deceived, InputError, InvalidMessage, ParameterError, RemoteError, StoreCorrupt
from sfsl.privacy.accounting import rho_of
from sfsl.rounds.params import IndexSpace, ScoreBins
from sfsl.secagg.messages import Layout, SumParams
from sfsl.submodel import ModelSpec, RowMaps, RowSet
from sfsl.submodel.store import SEED_BYTES
from sfsl.submodel.tables import MAX_TABLES, TableName

Digest = Annotated[bytes, Meta(max_length=32)]
# Shares of the clip that histograms and the word about clipping may have; the update has the rest of it.
SCORES_SHARE, CUT_SHARE = 0.1, 0.05
UPDATE_SHARE = math.sqrt(1 - SCORES_SHARE**2 - CUT_SHARE**2)
# What one held-out sample is in the vector, as a share of the clip: five in one bin are all that count.
SAMPLE_SHARE = 0.02
_LARGEST = 1 << 28
# What is seen under noise is so many standard errors beyond it; how much of it the next round still knows.
_SEEN, _RECALL = 3.0, 0.95
_BLOCK = 64
LONGEST = 1 << 40  # words of a vector, as a layout may have them
# Rows whose counts may well be noise alone are not hot.
LEAST_DEVIATIONS = 3.0


class HotParams(Checked, frozen=True):
    """What a round over hot rows is about; all of it is bound into the masks.

    A ``survey`` counts the owners of rows: each client marks at most ``marks`` of its own, a mark being
    ``levels`` words. In a round that trains, ``hot`` is the digest of the hot rows, ``rows`` how many each
    table has of them, and ``blob`` the digest of the model that everyone downloads; rows that are not hot
    begin as ``seed`` says. A vector has a norm of at most ``clip``, which is ``levels`` words. To each word a
    client adds a discrete Gaussian of ``deviation`` words; 0 is no noise.
    """

    number: Annotated[int, Meta(ge=1)]
    kind: Literal["survey", "train"]
    model: ModelSpec
    deviation: Annotated[float, Meta(ge=0, le=2**30)]
    levels: Annotated[int, Meta(ge=1, le=2**30)] = 1
    clip: Annotated[float, Meta(gt=0, le=1e6)] = 1.0
    marks: Annotated[int, Meta(ge=1, le=2**24)] = 1
    rows: Annotated[dict[TableName, Annotated[int, Meta(ge=0, le=2**40)]], Meta(max_length=MAX_TABLES)] = (
        field(default_factory=dict)
    )
    hot: Digest = b""
    blob: Digest = b""
    seed: Annotated[bytes, Meta(min_length=SEED_BYTES, max_length=SEED_BYTES)] = bytes(SEED_BYTES)
    training: Annotated[dict[Annotated[str, Meta(max_length=64)], float], Meta(max_length=64)] = field(
        default_factory=dict
    )
    precision: Literal["float32", "float16"] = "float16"
    scores: ScoreBins | None = None

    def require_sound(self) -> None:
        trains = self.kind == "train"
        if len(self.rows) > MAX_TABLES:
            raise ParameterError(f"rows of {len(self.rows)} tables; {MAX_TABLES} are possible")
        if trains and self.rows.keys() != {table.name for table in self.model.summed}:
            raise ParameterError("hot rows are counted for each table that is summed, and for no other")
        if {len(self.hot), len(self.blob)} != {32 if trains else 0} or (self.rows and not trains):
            raise ParameterError("a round that trains, and no other, names its hot rows and its model")
        if self.length > LONGEST:
            raise ParameterError(f"a vector of {self.length:,} words; 2^40 are possible")

    @property
    def bins(self) -> int:
        return 0 if self.scores is None else self.scores.bins

    @property
    def length(self) -> int:
        """The words of every client's vector."""
        if self.kind == "survey":
            return IndexSpace(self.model).domain
        rows = sum(self.rows[table.name] * table.width for table in self.model.summed)
        return self.model.dense + rows + 2 * self.bins + 1

    @property
    def sensitivity(self) -> float:
        """The largest Euclidean norm of a client's words before noise; rounding is in it."""
        if self.kind == "survey":
            return self.levels * math.sqrt(self.marks)
        return self.levels + math.sqrt(self.length)

    def hides_samples(self, rho: float) -> bool:
        """Whether noise that costs ``rho`` is at least one sample in each count of a histogram. Under less,
        histograms are exact sums, whatever the round is called."""
        return self.sensitivity >= SAMPLE_SHARE * self.levels * math.sqrt(2 * rho)

    def rho(self, honest: int) -> float:
        """What taking part costs, as zero-concentrated differential privacy, if ``honest`` survivors at the
        least add their noise."""
        return rho_of(self.sensitivity, self.deviation, honest) if honest > 0 else math.inf

    def sums(self) -> tuple[SumParams]:
        """Return the only sum of the session."""
        layout = Layout(dense=self.length)
        return (SumParams(label=f"hot-{self.kind}", ring="z32", min_contributors=1, layout=layout),)

    def context(self, names: bytes = b"") -> bytes:
        """Digest everything a client was told; it is bound into the masks."""
        return digest("hot round", msgspec.msgpack.encode(self), *([names] if names else []))


class HotSet(Message, frozen=True, tag="hot-set"):
    """The published set of hot rows: per table their numbers, ascending, and how many of the ``surveyed``
    clients have each, as the noisy survey has it."""

    version: Annotated[int, Meta(ge=1)]
    surveyed: Annotated[int, Meta(ge=1)]
    rows: Annotated[dict[TableName, bytes], Meta(max_length=MAX_TABLES)]
    owners: Annotated[dict[TableName, bytes], Meta(max_length=MAX_TABLES)]

    @classmethod
    def of(
        cls, version: int, surveyed: int, rows: Mapping[str, Indices], owners: Mapping[str, Reals]
    ) -> Self:
        return cls(
            version,
            surveyed,
            {name: one.astype("<i8").tobytes() for name, one in rows.items()},
            {name: one.astype("<f4").tobytes() for name, one in owners.items()},
        )

    def encode(self) -> bytes:
        return _CODEC.encode(self)

    def digest(self) -> bytes:
        return digest("hot set", self.encode())

    def sets(self, model: ModelSpec) -> dict[str, RowSet]:
        """Return the rows by table that is summed; refuse those that the model does not have."""
        found = {}
        for table in model.summed:
            data, counts = self.rows.get(table.name, b""), self.owners.get(table.name, b"")
            if len(data) % 8 or len(counts) * 2 != len(data):
                raise InvalidMessage(f"hot rows of table {table.name!r} and their owners do not fit")
            try:
                found[table.name] = RowSet(np.frombuffer(data, "<i8"))
            except InputError as error:
                raise InvalidMessage(f"hot rows of table {table.name!r}: {error}") from None
            if len(data) and found[table.name].rows[-1] >= table.rows:
                raise InvalidMessage(f"a hot row of table {table.name!r} that the model does not have")
        return found

    def shares(self, table: str) -> Reals:
        """Return which share of clients has each row, about."""
        return np.frombuffer(self.owners[table], "<f4").astype(np.float64) / self.surveyed


_CODEC = Codec(HotSet)


def decode_hot_set(data: bytes, due: bytes | None = None) -> HotSet:
    """Read a published set; ``due`` is the digest that it must have."""
    if due is not None and digest("hot set", data) != due:
        raise Deceived("these are not the hot rows that the round was announced with")
    found = _CODEC.decode(data, limit=_LARGEST)
    assert isinstance(found, HotSet)  # noqa: S101 -- the codec knows no other type
    return found


class Said(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What owners of one table's rows said in the last rounds, so much of it as noise leaves to be seen.

    Later rounds count more. ``squares``: by place in a row, the sum of squares of sums, less those of their
    noise, in squares of the clip; ``owners`` and ``rows``: of how many, the second for the error of that."""

    squares: tuple[float, ...]
    owners: float
    rows: float

    def seen(self, noise: float) -> Reals:
        """Return the square of one owner's move at each place, in squares of the clip; 0 where it may well be
        noise alone. ``noise``: its deviation in a sum, in clips."""
        beyond = np.array(self.squares) - _SEEN * noise**2 * math.sqrt(2 * self.rows)
        return np.maximum(0.0, beyond) / max(1.0, self.owners)


def listen(before: Said | None, sums: Reals, owners: Indices, noise: float) -> Said:
    """Take in the sums of one more round, in clips. All rows together tell how much the numbers at one place
    of a row say, far better than a row by itself."""
    squares = np.square(sums).sum(axis=0) - noise**2 * len(sums)
    if before is None:
        return Said(tuple(squares.tolist()), float(owners.sum()), float(len(sums)))
    return Said(
        tuple((_RECALL * np.array(before.squares) + squares).tolist()),
        _RECALL * before.owners + float(owners.sum()),
        _RECALL**2 * before.rows + len(sums),
    )


def blocks_of(width: int) -> Indices:
    """Return the dense part's places [one of a block, block]: neighbours, mostly of one unit, are believed or
    not together. The last block may have some of the one before."""
    size = min(width, _BLOCK)
    starts = np.minimum(np.arange(0, width, max(1, size)), width - size)
    return np.asarray(np.arange(size)[:, None] + starts)


class HotState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What goes from round to round: the counts of surveys so far, of how many clients and with how much
    noise in all (its variance), the hot rows once they are known, the clip, which follows the clients, and
    under noise what owners ``said`` by table."""

    surveys: int = 0
    surveyed: int = 0
    variance: float = 0.0
    counts: bytes = b""
    hot: bytes = b""
    clip: float = 0.0
    said: dict[str, Said] = field(default_factory=dict)

    def hot_set(self) -> HotSet | None:
        try:
            return decode_hot_set(self.hot) if self.hot else None
        except RemoteError as error:
            raise StoreCorrupt(f"the hot rows that the store keeps cannot be read: {error}") from None


# -- the blob ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Published:
    """What everybody downloads, the same for all: the hot rows, and the model over them."""

    hot: HotSet
    blob: bytes


def blob_digest(blob: bytes) -> bytes:
    return digest("hot model", blob)


def blob_bytes(params: HotParams) -> int:
    size = np.dtype(params.precision).itemsize
    return 4 * params.model.dense + size * sum(
        params.rows[table.name] * table.width for table in params.model.summed
    )


def choose_hot(
    model: ModelSpec,
    maps: RowMaps,
    counts: Reals,
    surveyed: int,
    deviation: float,
    words: int,
    *,
    version: int = 1,
) -> HotSet:
    """Choose the rows with the largest noisy counts: those that are not likely to be noise alone, and fit.

    A derived row has about as many owners as the rows that lead to it have together, and no more than there
    are clients. Derived rows come first: they are few, and what is known of cold rows is in them; under noise
    it is not asked whether they are hot.
    """
    space, least = IndexSpace(model), max(1.0, LEAST_DEVIATIONS * deviation)
    all_rows = space.rows(np.arange(space.domain))
    start, by_table = 0, dict[str, Reals]()
    for table in (one for one in model.tables if one.kind == "shared"):
        by_table[table.name] = counts[start : start + table.rows]
        start += table.rows
    rows, owners, left = dict[str, Indices](), dict[str, Reals](), words
    for table in sorted(model.summed, key=lambda one: one.kind):  # derived, then shared
        if table.source is None:
            total, leading = by_table[table.name], np.ones(table.rows)
            found, room = np.flatnonzero(total >= least), left // table.width
        else:
            led = maps.rows_of(table.name, all_rows[table.source].rows)
            total = np.bincount(led, by_table[table.source], table.rows).astype(np.float64)
            leading = np.bincount(led, minlength=table.rows).astype(np.float64)
            found = np.flatnonzero(leading if deviation else total >= least)
            room = min(left, words // 2) // table.width
        about = _shrunk(total, leading, deviation) if deviation else total
        found = np.sort(found[np.argsort(-about[found], kind="stable")[:room]])
        rows[table.name], owners[table.name] = found, np.clip(about[found], 1, surveyed)
        left -= len(found) * table.width
    return HotSet.of(version, max(1, surveyed), rows, owners)


def _shrunk(total: Reals, leading: Reals, deviation: float) -> Reals:
    """Return noisy totals, each of ``leading`` counts, drawn towards what so many have on average: the more,
    the less totals differ beyond their noise."""
    usual = leading * max(0.0, float(total.sum() / max(1.0, leading.sum())))
    variance = deviation**2 * leading
    spread = max(0.0, float(np.mean(np.square(total - usual) - variance)))
    shrunk: Reals = usual + (total - usual) * (spread / np.maximum(spread + variance, 1e-30))
    return shrunk
