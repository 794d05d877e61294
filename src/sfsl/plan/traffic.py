"""What travels in a round, on average: rows of each table that are united, asked for, uploaded, left out and
opened alone, and bytes of every message.

Bytes are those of the messages themselves, made with blank contents and encoded. So the sizes are those of
secure-aggregation.md 4.3 and of whatever the codec does. Only long contents are not made: their length is
added.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sfsl.arrays import Reals
from sfsl.codec import Message, packed_size
from sfsl.crypto.ring import ring_named
from sfsl.crypto.secret import SHARE_BYTES
from sfsl.errors import ParameterError
from sfsl.plan.settings import COUNTED, DerivedLoad, PlanSettings, SharedLoad, bisect
from sfsl.rounds import IndexSpace, RoundParams, ScoreBins
from sfsl.rounds.exchanges import CODEC, SUMS, Exchange, Invitation, Request, Submodel
from sfsl.secagg import SessionParams, messages
from sfsl.secagg.graph import opened_alone
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
class TableRows:
    """Expected figures of one table in one round; ``asked`` and ``uploaded`` are per client.

    ``common`` is per client too: rows that another client asks for as well, counted once for each other
    one; ``masked`` those of them that are uploaded.
    ``left_out`` rows of the union are asked for by someone, but by fewer than ``min_contributors``.
    """

    union: float
    real: float
    asked: float
    uploaded: float
    common: float
    masked: float
    left_out: float
    opened_alone: float


@dataclass(frozen=True)
class RoundRows:
    min_contributors: int
    tables: dict[str, TableRows]


def expected_rows(settings: PlanSettings, heard: Mapping[str, int]) -> RoundRows:
    """Predict the rows of a round in which so many clients answer each exchange."""
    requesters = {}
    for table in settings.model.summed:
        load = settings.loads[table.name]
        if isinstance(load, DerivedLoad):
            source = settings.shared(str(table.source))
            requesters[table.name] = _of_derived(load, source, settings, heard)
        else:
            requesters[table.name] = _of_shared(load, settings, heard)
    least = settings.min_contributors or _default(settings, requesters)
    vanish, asking = settings.dropout.get(Exchange.SUBMODEL, 0.0), heard[Exchange.UNION]
    tables = {
        name: _figures(rows, settings.loads[name].per_client, least, vanish, asking)
        for name, rows in requesters.items()
    }
    return RoundRows(least, tables)


def _figures(rows: Reals, real: float, least: int, vanish: float, participants: int) -> TableRows:
    count = np.arange(len(rows))
    kept, pairs = count >= least, count * (count - 1)
    return TableRows(
        union=float(rows.sum()),
        real=real,
        asked=float(rows @ count) / participants,
        uploaded=float(rows[kept] @ count[kept]) / participants,
        common=float(rows @ pairs) / participants,
        masked=float(rows[kept] @ pairs[kept]) / participants,
        left_out=float(rows[(count > 0) & ~kept].sum()),
        opened_alone=float(rows[kept] @ opened_alone(count[kept], vanish)),
    )


def _default(settings: PlanSettings, requesters: Mapping[str, Reals]) -> int:
    """Apply spec 5.3 to the numbers of rows that are expected by number of requesters."""
    rows = np.sum(list(requesters.values()), axis=0) if requesters else np.zeros(1)
    alone = rows * opened_alone(np.arange(len(rows)), settings.tolerated)
    expected = np.append(np.cumsum(alone[::-1])[::-1], 0.0)
    return max(2, int(np.flatnonzero(expected <= settings.bound)[0]))


def _of_shared(load: SharedLoad, settings: PlanSettings, heard: Mapping[str, int]) -> Reals:
    """Count rows of the union by number of requesters among those who take part in the update."""
    uniting, asking, privacy = heard[Exchange.INBOUND], heard[Exchange.UNION], settings.privacy
    united = _thinned(load.owners, uniting / settings.clients)
    united[0] = 0  # a row whose owners all vanished before is not in the union
    rows = np.zeros(asking + 1)
    for owners, number in enumerate(_thinned(united, asking / uniting)):
        if number > 0:
            present = min(owners, asking)
            own, others = binomial(present, privacy.p5), binomial(asking - present, privacy.p6)
            rows += number * np.convolve(own, others)
    return rows


def _of_derived(
    load: DerivedLoad, source: SharedLoad, settings: PlanSettings, heard: Mapping[str, int]
) -> Reals:
    """Count derived rows by number of requesters: one is asked for where one of its source rows is."""
    p5, p6, asking = settings.privacy.p5, settings.privacy.p6, heard[Exchange.UNION]
    united = _thinned(source.owners, heard[Exchange.INBOUND] / settings.clients)[1:].sum() / source.union
    sources = load.sources.astype(np.float64)
    present = 1 - (1 - united) ** sources
    # A client has a derived row more likely where more sources lead to it.
    each = bisect(0, 1, 60, lambda one: bool(load.rows @ (1 - (1 - one) ** load.sources) < load.per_client))[
        1
    ]
    has = 1 - (1 - each) ** load.sources
    # A client that has the row has a geometric number of its sources; the others it asks for by chance.
    mean = max(1.0, source.per_client / load.per_client)
    silent = (1 - p5) / mean / (1 - (1 - p5) * (1 - 1 / mean))
    others = (1 - united * p6) ** np.maximum(sources - mean, 0)
    asks = has * (1 - silent * others) + (1 - has) * (1 - (1 - united * p6) ** sources)
    chance = np.clip(asks / np.maximum(present, 1e-300), 0, 1)
    rows = np.zeros(asking + 1)
    for number, one in zip(load.rows * present, chance, strict=True):
        rows += number * binomial(asking, float(one))
    return rows


def _thinned(rows: Reals, share: float) -> Reals:
    """Count rows by number of owners, once each owner is still there with probability ``share``."""
    left = np.zeros_like(rows)
    for owners in np.flatnonzero(rows):
        left[: owners + 1] += rows[owners] * binomial(int(owners), share)
    return left


def binomial(count: int, chance: float) -> Reals:
    """Return the distribution of successes in ``count`` trials."""
    wins = np.arange(count + 1)
    shares: Reals = (wins == (count if chance >= 1 else 0)).astype(np.float64)
    if 0 < chance < 1:
        factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, count + 1)))])
        choose = factorials[-1] - factorials - factorials[::-1]
        shares = np.exp(choose + wins * np.log(chance) + wins[::-1] * np.log1p(-chance))
    return shares


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
            Submodel(_ROUND, places(asking), (b"",) * len(summed), b"", b"", (), bytes(20), b""),
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
    return RoundParams(
        number=1,
        model=settings.model,
        union=UnionParams.plan(encoding.name, encoding.domain, encoding.capacity, _SEED),
        update=UpdateParams(rows=rows, dense=dense),
        min_contributors=min_contributors,
        training=dict.fromkeys(("rate", "batch_size", "epochs", "clip"), 1.0),
        precision=settings.precision,
        scores=ScoreBins(bins=settings.bins) if settings.bins else None,
    )
