"""How many rows of each table are united, asked for, uploaded, left out, and opened alone, on average."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sfsl.arrays import Reals
from sfsl.plan.loads import DerivedLoad, SharedLoad
from sfsl.plan.settings import PlanSettings
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
    """``heard``: how many clients answer each exchange."""
    requesters = {}
    for table in settings.model.summed:
        load = settings.loads[table.name]
        if isinstance(load, DerivedLoad):
            source = settings.shared(str(table.source))
            requesters[table.name] = _of_derived(load, source, settings, heard)
        else:
            requesters[table.name] = _of_shared(load, settings, heard)
    least = settings.min_contributors or _default(settings, requesters)
    vanish = settings.dropout.get(Exchange.SUBMODEL, 0.0)
    return RoundRows(
        least,
        {
            name: _figures(rows, settings.loads[name].per_client, least, vanish, heard[Exchange.UNION])
            for name, rows in requesters.items()
        },
    )


def _figures(rows: Reals, real: float, least: int, vanish: float, participants: int) -> TableRows:
    count = np.arange(len(rows))
    kept = count >= least
    return TableRows(
        union=float(rows.sum()),
        real=real,
        asked=float(rows @ count) / participants,
        uploaded=float(rows[kept] @ count[kept]) / participants,
        common=float(rows @ (count * (count - 1))) / participants,
        masked=float(rows[kept] @ (count * (count - 1))[kept]) / participants,
        left_out=float(rows[(count > 0) & ~kept].sum()),
        opened_alone=float(rows[kept] @ opened_alone(count[kept], vanish)),
    )


def _default(settings: PlanSettings, requesters: Mapping[str, Reals]) -> int:
    """Spec 5.3, on the numbers of rows that are expected by number of requesters."""
    rows = np.sum(list(requesters.values()), axis=0) if requesters else np.zeros(1)
    alone = rows * opened_alone(np.arange(len(rows)), settings.tolerated)
    expected = np.append(np.cumsum(alone[::-1])[::-1], 0.0)
    return max(2, int(np.flatnonzero(expected <= settings.bound)[0]))


def _of_shared(load: SharedLoad, settings: PlanSettings, heard: Mapping[str, int]) -> Reals:
    """Rows of the union by number of requesters among those who take part in the update."""
    uniting, asking = heard[Exchange.INBOUND], heard[Exchange.UNION]
    united = _thinned(load.owners, uniting / settings.clients)
    united[0] = 0  # a row whose owners all vanished before is not in the union
    rows = np.zeros(asking + 1)
    privacy = settings.privacy
    for owners, number in enumerate(_thinned(united, asking / uniting)):
        if number > 0:
            present = min(owners, asking)
            own = binomial(present, privacy.p5)
            rows += number * np.convolve(own, binomial(asking - present, privacy.p6))
    return rows


def _of_derived(
    load: DerivedLoad, source: SharedLoad, settings: PlanSettings, heard: Mapping[str, int]
) -> Reals:
    """A derived row is asked for where one of its source rows is."""
    p5, p6 = settings.privacy.p5, settings.privacy.p6
    survive = heard[Exchange.INBOUND] / settings.clients
    united = _thinned(source.owners, survive)[1:].sum() / source.union
    sources = load.sources.astype(np.float64)
    present = 1 - (1 - united) ** sources
    has = _chance_to_have(load)
    # A client that has the row has a geometric number of its sources; the others it asks for by chance.
    mean = max(1.0, source.per_client / load.per_client)
    silent = (1 - p5) / mean / (1 - (1 - p5) * (1 - 1 / mean))
    others = (1 - united * p6) ** np.maximum(sources - mean, 0)
    asks = has * (1 - silent * others) + (1 - has) * (1 - (1 - united * p6) ** sources)
    chance = np.clip(asks / np.maximum(present, 1e-300), 0, 1)
    rows = np.zeros(heard[Exchange.UNION] + 1)
    for number, one in zip(load.rows * present, chance, strict=True):
        rows += number * binomial(heard[Exchange.UNION], float(one))
    return rows


def _chance_to_have(load: DerivedLoad) -> Reals:
    """Per derived row the chance that a client has it: larger where more sources lead to it."""
    low, high = 0.0, 1.0
    for _ in range(60):
        each = (low + high) / 2
        if load.rows @ (1 - (1 - each) ** load.sources) < load.per_client:
            low = each
        else:
            high = each
    has: Reals = np.asarray(1 - (1 - high) ** load.sources, np.float64)
    return has


def _thinned(rows: Reals, share: float) -> Reals:
    """Rows by number of owners, once each owner is still there with probability ``share``."""
    left = np.zeros_like(rows)
    for owners in np.flatnonzero(rows):
        left[: owners + 1] += rows[owners] * binomial(int(owners), share)
    return left


def binomial(count: int, chance: float) -> Reals:
    """The distribution of successes in ``count`` trials."""
    wins = np.arange(count + 1)
    if chance <= 0 or chance >= 1:
        certain: Reals = (wins == (count if chance >= 1 else 0)).astype(np.float64)
        return certain
    factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, count + 1)))])
    choose = factorials[-1] - factorials - factorials[::-1]
    shares: Reals = np.exp(choose + wins * np.log(chance) + wins[::-1] * np.log1p(-chance))
    return shares
