"""Bytes of every message of a round: the messages themselves, made with blank contents and encoded.

So the sizes are those of secure-aggregation.md 4.3 and of whatever the codec does. Only long contents are
not made: their length is added.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sfsl.codec import Message, packed_size
from sfsl.crypto.ring import ring_named
from sfsl.crypto.secret import SHARE_BYTES
from sfsl.errors import ParameterError
from sfsl.plan.rows import RoundRows
from sfsl.plan.settings import COUNTED, PlanSettings
from sfsl.rounds import IndexSpace, RoundParams, ScoreBins
from sfsl.rounds.exchanges import CODEC, SUMS, Exchange, Invitation, Request, Submodel
from sfsl.secagg import SessionParams, messages
from sfsl.secagg.masking import requesters_size
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
    """Predict the bytes of a round in which so many clients answer each exchange."""
    model, clients, place = settings.model, settings.clients, settings.clients // 2
    summed = [(table, rows.tables[table.name]) for table in model.summed]
    encoding = _encoding(settings)
    shared, uniting, asking, updating = (heard[one] for one in COUNTED)
    asked, common = (sum(getattr(one, name) for _, one in summed) for name in ("asked", "common"))
    uploaded = sum(one.uploaded * table.words for table, one in summed)
    update_words = round(model.dense_words + 2 * settings.bins + uploaded)
    shared_rows = round(sum(one.union for table, one in summed if table.kind == "shared"))
    number = np.dtype(settings.precision).itemsize
    keys = messages.Keys("i" * settings.id_length, _KEY, (_KEY,) * SUMS, (_KEY,) * SUMS, None)
    members = tuple(messages.Member(position, keys) for position in range(clients))
    params = _round_params(settings, encoding, rows.min_contributors)
    session = SessionParams(
        _ROUND, clients, settings.needed, neighbours=None, active=False, sums=params.sums()
    )

    def places(count: int) -> tuple[int, ...]:
        """Spread so many positions over the roster."""
        return tuple(number * clients // max(count, 1) for number in range(count))

    def unmask(participants: int, survivors: int) -> messages.UnmaskRequest:
        spread = places(participants)
        return messages.UnmaskRequest(_ROUND, 0, spread[:survivors], spread[survivors:], ())

    down: dict[str, float] = {
        Exchange.CHECK_IN: 0,
        Exchange.INVITATION: _size(Invitation(messages.Roster(session, members), params)),
        Exchange.INBOUND: _size(
            messages.InboundShares(_ROUND, places(shared - 1), (_BOX,) * (shared - 1), b"", ())
        ),
        Exchange.UNMASK_UNION: _size(unmask(shared, uniting)),
        Exchange.UNION: _size(Union(_ROUND, shared_rows, b""), packed_size(shared_rows, encoding.domain)),
        Exchange.SUBMODEL: _size(
            Submodel(_ROUND, places(asking), (b"",) * len(summed), b"", b"", ()),
            *(one.asked * table.width * number for table, one in summed),
            4 * model.dense,
            requesters_size(round(common), round((asking - 1) * asked)),
        ),
        Exchange.UNMASK_UPDATE: _size(unmask(asking, updating)),
    }
    share = (bytes(SHARE_BYTES),)
    union_bytes = encoding.length * encoding.ring.word_bytes
    update_bytes = update_words * ring_named(settings.ring).word_bytes
    request = Request(_ROUND, place, (b"",) * len(summed), None)
    up: dict[str, float] = {
        Exchange.CHECK_IN: _size(keys),
        Exchange.INVITATION: _size(messages.SealedShares(_ROUND, place, (_BOX,) * (clients - 1), (), None)),
        Exchange.INBOUND: _size(messages.MaskedVector(_ROUND, 0, place, b""), union_bytes),
        Exchange.UNMASK_UNION: _size(messages.UnmaskShares(_ROUND, 0, place, share * shared)),
        Exchange.UNION: _size(request, *(one.union / 8 for _, one in summed)),
        Exchange.SUBMODEL: _size(messages.MaskedVector(_ROUND, 1, place, b""), update_bytes),
        Exchange.UNMASK_UPDATE: _size(messages.UnmaskShares(_ROUND, 1, place, share * asking)),
    }
    return Traffic(up, down, encoding, encoding.length, update_words)


def _size(message: Message, *contents: float) -> float:
    """Return the bytes of the message with so many in each of the byte strings that were left empty."""
    lengths = (length + (0 if length < 256 else 1 if length < 65_536 else 3) for length in contents)
    return sum(lengths, float(len(CODEC.encode(message))))


def _encoding(settings: PlanSettings) -> Encoding:
    domain = IndexSpace(settings.model).domain
    largest = settings.largest_set or max(1, round(settings.set_size))
    if largest < int(settings.set_size):
        raise ParameterError(f"a largest set of {largest} rows is below the mean of {settings.set_size:g}")
    capacity = settings.capacity or planned_capacity(domain, settings.clients, largest)
    return choose(settings.encoding, domain, capacity, _SEED)


def _round_params(settings: PlanSettings, encoding: Encoding, min_contributors: int) -> RoundParams:
    rows, dense = (
        Quantization.finest(settings.ring, cohort=settings.clients, clip=1, max_weight=weight)
        for weight in (1, _MAX_SAMPLES)
    )
    name: Any = encoding.name
    return RoundParams(
        number=1,
        model=settings.model,
        union=UnionParams(domain=encoding.domain, encoding=name, capacity=encoding.capacity, seed=_SEED),
        update=UpdateParams(rows=rows, dense=dense),
        min_contributors=min_contributors,
        training=dict.fromkeys(("rate", "batch_size", "epochs", "clip"), 1.0),
        precision=settings.precision,
        scores=ScoreBins(bins=settings.bins) if settings.bins else None,
    )
