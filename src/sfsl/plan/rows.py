"""How many rows of each table are united, asked for, uploaded, left out, and opened alone, on average."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sfsl.arrays import Reals
from sfsl.plan.settings import DerivedLoad, PlanSettings, SharedLoad, bisect
from sfsl.rounds.exchanges import Exchange
from sfsl.secagg.graph import opened_alone


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
