"""Bytes of every message of a round: the messages themselves, made with blank contents and encoded.

So the sizes are those of secure-aggregation.md 4.3 and of whatever the codec does. Only long contents are
not made: their length is added.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sfsl.codec import Message
from sfsl.crypto.ring import ring_named
from sfsl.crypto.shamir import SHARE_BYTES
from sfsl.errors import ParameterError
from sfsl.packing import packed_size
from sfsl.plan.rows import RoundRows
from sfsl.plan.settings import COUNTED, PlanSettings
from sfsl.rounds import IndexSpace, RoundParams, ScoreBins
from sfsl.rounds.exchanges import SUMS, Exchange
from sfsl.rounds.messages import CODEC, Invitation, Request, Submodel
from sfsl.secagg import SessionParams
from sfsl.secagg.masking import requesters_size
from sfsl.secagg.messages import (
    InboundShares,
    Keys,
    MaskedVector,
    Member,
    Roster,
    SealedShares,
    UnmaskRequest,
    UnmaskShares,
)
from sfsl.submodel import Quantization, UpdateParams
from sfsl.union import Encoding, UnionParams, choose, planned_capacity
from sfsl.union.protocol import Union

_ROUND = bytes(16)
_KEY = bytes(32)
_BOX = bytes(16 + 2 * SHARE_BYTES * SUMS)
_SEED = bytes(32)
# Samples of a client that count in the dense part; it changes the size of one integer.
_MAX_SAMPLES = 1000


@dataclass(frozen=True)
class Traffic:
    """Bytes per client by exchange, and the lengths behind them."""

    up: dict[str, float]
    down: dict[str, float]
    encoding: Encoding
    union_words: int
    update_words: int


def traffic(settings: PlanSettings, heard: Mapping[str, int], rows: RoundRows) -> Traffic:
    summed = settings.model.summed
    tables = [rows.tables[table.name] for table in summed]
    encoding = _encoding(settings)
    union = _union(encoding)
    params = _round_params(settings, union, rows.min_contributors)
    place = settings.clients // 2
    keys = Keys("i" * settings.id_length, _KEY, (_KEY,) * SUMS, (_KEY,) * SUMS, None)
    shared, uniting, asking, updating = (heard[one] for one in COUNTED)
    union_words = encoding.length
    asked = sum(table.asked for table in tables)
    common = sum(table.common for table in tables)
    update_words = round(
        settings.model.dense_words
        + 2 * settings.bins
        + sum(figures.uploaded * table.words for figures, table in zip(tables, summed, strict=True))
    )
    shared_rows = round(sum(rows.tables[table.name].union for table in summed if table.kind == "shared"))
    number = np.dtype(settings.precision).itemsize
    down: dict[str, float] = {
        Exchange.CHECK_IN: 0,
        Exchange.INVITATION: _size(_invitation(settings, params, keys)),
        Exchange.INBOUND: _size(
            InboundShares(_ROUND, _places(settings, shared - 1), (_BOX,) * (shared - 1), b"", ())
        ),
        Exchange.UNMASK_UNION: _size(_unmask(settings, shared, uniting)),
        Exchange.UNION: _size(Union(_ROUND, shared_rows, b""), packed_size(shared_rows, union.domain)),
        Exchange.SUBMODEL: _size(
            Submodel(_ROUND, _places(settings, asking), (b"",) * len(summed), b"", b"", ()),
            *(figures.asked * table.width * number for figures, table in zip(tables, summed, strict=True)),
            4 * settings.model.dense,
            requesters_size(round(common), round((asking - 1) * asked)),
        ),
        Exchange.UNMASK_UPDATE: _size(_unmask(settings, asking, updating)),
    }
    shares = (bytes(SHARE_BYTES),)
    up: dict[str, float] = {
        Exchange.CHECK_IN: _size(keys),
        Exchange.INVITATION: _size(SealedShares(_ROUND, place, (_BOX,) * (settings.clients - 1), (), None)),
        Exchange.INBOUND: _size(MaskedVector(_ROUND, 0, place, b""), union_words * encoding.ring.word_bytes),
        Exchange.UNMASK_UNION: _size(UnmaskShares(_ROUND, 0, place, shares * shared)),
        Exchange.UNION: _size(
            Request(_ROUND, place, (b"",) * len(summed), None), *(one.union / 8 for one in tables)
        ),
        Exchange.SUBMODEL: _size(
            MaskedVector(_ROUND, 1, place, b""), update_words * ring_named(settings.ring).word_bytes
        ),
        Exchange.UNMASK_UPDATE: _size(UnmaskShares(_ROUND, 1, place, shares * asking)),
    }
    return Traffic(dict(up), dict(down), encoding, union_words, update_words)


def _size(message: Message, *contents: float) -> float:
    """Of the message with so many bytes in the byte strings that were left empty."""
    total = float(len(CODEC.encode(message)))
    for length in contents:
        total += length + (0 if length < 256 else 1 if length < 65_536 else 3)
    return total


def _places(settings: PlanSettings, count: int) -> tuple[int, ...]:
    """So many positions, spread over the roster."""
    return tuple(place * settings.clients // max(count, 1) for place in range(count))


def _unmask(settings: PlanSettings, participants: int, survivors: int) -> UnmaskRequest:
    places = _places(settings, participants)
    return UnmaskRequest(_ROUND, 0, places[:survivors], places[survivors:], ())


def _encoding(settings: PlanSettings) -> Encoding:
    domain = IndexSpace(settings.model).domain
    largest = settings.largest_set or max(1, round(settings.set_size))
    if largest < int(settings.set_size):
        raise ParameterError(f"a largest set of {largest} rows is below the mean of {settings.set_size:g}")
    capacity = settings.capacity or planned_capacity(domain, settings.clients, largest)
    return choose(settings.encoding, domain, capacity, _SEED)


def _union(encoding: Encoding) -> UnionParams:
    return UnionParams(
        domain=encoding.domain,
        encoding=encoding.name,  # type: ignore[arg-type]
        capacity=encoding.capacity,
        seed=_SEED,
    )


def _round_params(settings: PlanSettings, union: UnionParams, min_contributors: int) -> RoundParams:
    rows, dense = (
        Quantization.finest(settings.ring, cohort=settings.clients, clip=1, max_weight=weight)
        for weight in (1, _MAX_SAMPLES)
    )
    return RoundParams(
        number=1,
        model=settings.model,
        union=union,
        update=UpdateParams(rows=rows, dense=dense),
        min_contributors=min_contributors,
        training=dict.fromkeys(("rate", "batch_size", "epochs", "clip"), 1.0),
        precision=settings.precision,
        scores=ScoreBins(bins=settings.bins) if settings.bins else None,
    )


def _invitation(settings: PlanSettings, params: RoundParams, keys: Keys) -> Invitation:
    session = SessionParams(
        round_id=_ROUND,
        clients=settings.clients,
        threshold=settings.needed,
        neighbours=None,
        active=False,
        sums=params.sums(),
    )
    members = tuple(Member(place, keys) for place in range(settings.clients))
    return Invitation(Roster(session, members), params)
