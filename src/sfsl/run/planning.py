"""What a simulation plans from what its cohorts look like: who is in a round, how many must ask for a row."""

from collections.abc import Mapping, Sequence

import numpy as np

from sfsl.arrays import Indices
from sfsl.data.catalogue import Catalogue, CatalogueStatistics
from sfsl.errors import ParameterError
from sfsl.plan import PlanSettings, measured_loads
from sfsl.plan.hot import hot_bytes, shape
from sfsl.plan.traffic import expected_rows, traffic
from sfsl.privacy import IndexPrivacy, PeriodSelection, choose_uniformly
from sfsl.rounds.exchanges import Exchange
from sfsl.run.fleet import Fleet, client_privacy, scheme_privacy
from sfsl.run.summary import MODEL_EXCHANGE, WORD_BYTES, Predicted
from sfsl.secagg.graph import DEFAULT_DROPOUT, default_min_contributors
from sfsl.settings.run import RunConfig
from sfsl.simulate.chance import SeededRandomness
from sfsl.training.task import Task

# Streams of random numbers from the run's seed, told apart by their first word.
_COHORT = 1001


def choose_cohort(clients: Sequence[str], count: int, seed: int, number: int) -> tuple[str, ...]:
    """Choose ``count`` of the clients, each set of that size equally likely."""
    return choose_uniformly(clients, count, SeededRandomness(_COHORT, seed, number))


def choose_in_turn(
    turns: Mapping[str, int], clients: Sequence[str], count: int, seed: int, number: int
) -> tuple[str, ...]:
    """Choose ``count`` of the clients that had the fewest ``turns``, uniformly where that leaves a choice."""
    chosen: list[str] = []
    for had in sorted({turns.get(name, 0) for name in clients}):
        these = [name for name in clients if turns.get(name, 0) == had]
        wanted = min(count - len(chosen), len(these))
        chosen += choose_uniformly(these, wanted, SeededRandomness(_COHORT, seed, number, had))
    return tuple(sorted(chosen))


def choose_in_period(
    selection: PeriodSelection, clients: Sequence[str], count: int, period: int, seed: int, number: int
) -> tuple[tuple[str, ...], PeriodSelection]:
    """Choose ``count`` of those that were not invited in this period yet."""
    return selection.choose(clients, count, period, SeededRandomness(_COHORT, seed, number))


# Cohorts to look at: those of the first rounds are as good a sample as any.
ROUNDS = 3
_MOST_DROPOUT = 0.9


def plan_min_contributors(config: RunConfig, fleet: Fleet) -> int:
    """Plan the least that keeps rows opened alone below the bound in each cohort looked at."""
    seed, rng, clients = config.run.seed, np.random.default_rng(config.run.seed), sorted(fleet.devices)
    privacy, found = client_privacy(config, clients), []
    for number in range(1, ROUNDS + 1):
        cohort = choose_cohort(clients, config.round.clients, seed, number)
        needed = [fleet.devices[name].needed for name in cohort]
        requesters = planned_requesters(fleet.task, needed, [privacy[name] for name in cohort], rng)
        found.append(default_min_contributors(requesters, dropout=planned_dropout(config)))
    return max(found)


def planned_dropout(config: RunConfig) -> float:
    """Return who vanishes before uploading: a row is opened alone when all others that asked for it do."""
    lost = config.faults.lost.get(Exchange.SUBMODEL, 0.0)
    return min(max(DEFAULT_DROPOUT, lost), _MOST_DROPOUT)


def planned_requesters(
    task: Task,
    needed: Sequence[Mapping[str, Indices]],
    privacy: Sequence[IndexPrivacy],
    rng: np.random.Generator,
) -> Indices:
    """Draw how many of a cohort ask for each row of its union, as the clients would answer.

    ``needed``: each client's real rows, by table; ``privacy``: its choice.
    """
    counts = []
    for shared in (table.name for table in task.tables if table.kind == "shared"):
        union = np.unique(np.concatenate([own[shared] for own in needed]))
        # For the table itself, and those that follow from it: the place of each row of the union there.
        places = [np.arange(len(union))]
        for table in task.tables:
            if table.source == shared:
                rows = task.row_maps.rows_of(table.name, union)
                places.append(np.unique(rows, return_inverse=True)[1])
        asked_by = [np.zeros(int(place.max(initial=-1)) + 1, np.int64) for place in places]
        for own, choice in zip(needed, privacy, strict=True):
            chance = np.full(len(union), choice.p6)
            chance[np.searchsorted(union, own[shared])] = choice.p5
            asked = rng.random(len(union)) < chance
            for count, place in zip(asked_by, places, strict=True):
                count[np.unique(place[asked])] += 1
        counts += asked_by
    return np.concatenate([np.zeros(0, np.int64), *counts])


def plan_settings(config: RunConfig, fleet: Fleet, capacity: int | None = None) -> PlanSettings:
    """Return what a plan of a run's rounds is made from: its settings, and what clients need in its first
    cohort."""
    cohort = choose_cohort(sorted(fleet.devices), config.round.clients, config.run.seed, 1)
    spec, least = fleet.task.spec, config.round.min_contributors
    shared = [one.name for one in spec.tables if one.kind == "shared"]
    sets = [{name: fleet.devices[client].needed[name] for name in shared} for client in cohort]
    return PlanSettings(
        clients=config.round.clients,
        model=spec,
        loads=measured_loads(spec, fleet.task.row_maps, sets),
        privacy=config.privacy.index_privacy,
        dropout=config.faults.lost,
        min_contributors=plan_min_contributors(config, fleet) if least == "auto" else least,
        threshold=config.round.threshold_clients,
        largest_set=max(sum(map(len, one.values())) for one in sets),
        capacity=capacity,
        encoding=config.round.encoding,
        bins=config.round.bins,
        precision=config.round.precision,
        ring=config.round.ring,
        id_length=max(map(len, cohort)),
    )


def predict_bytes(config: RunConfig, fleet: Fleet, hot_rows: Mapping[str, int]) -> Predicted | None:
    """Predict what a client would send and receive in a round with masked sums, for a run whose plain ones
    stand in for them; None where no plan is made for such rounds. ``hot_rows``: those of each table."""
    model, one = fleet.task.spec, config.round
    if one.scheme == "sfl":
        words = float(WORD_BYTES * (model.dense + sum(table.rows * table.width for table in model.tables)))
        return Predicted({MODEL_EXCHANGE: words}, {MODEL_EXCHANGE: words})
    if one.scheme == "hot":
        words = sum(hot_rows.get(table.name, 0) * table.width for table in model.summed)
        neighbours = shape(one.clients)[1]
        up, down = hot_bytes(model, int(words), one.bins, one.precision, neighbours)
        return Predicted({Exchange.INBOUND: up}, {MODEL_EXCHANGE: down})
    if one.scheme != "sfsl" or config.privacy.mix:
        return None
    try:
        settings = plan_settings(config, fleet)
        heard = settings.heard()
        sent = traffic(settings, heard, expected_rows(settings, heard))
    except ParameterError:
        return None
    return Predicted(sent.up, sent.down)


def plan_from_statistics(config: RunConfig, catalogue: Catalogue) -> int:
    """Plan the least that keeps rows opened alone below the bound in each of a few cohorts drawn."""
    known = _statistics(catalogue, "round.min_contributors")
    rng, dropout = np.random.default_rng(config.run.seed), planned_dropout(config)
    privacy, clients = scheme_privacy(config), config.round.clients
    return max(
        default_min_contributors(drawn_requesters(known, clients, privacy, rng), dropout=dropout)
        for _ in range(ROUNDS)
    )


def largest_set(catalogue: Catalogue) -> int:
    """Return the most rows that any client had."""
    return max(1, _statistics(catalogue, "serve.largest_set").rows["most"])


def drawn_requesters(
    known: CatalogueStatistics, clients: int, privacy: IndexPrivacy, rng: np.random.Generator
) -> Indices:
    """Draw how many of a cohort ask for each row of its union, for rows with as many owners as are known.

    A row that follows from others counts as if one row of the union led to it. More would only add to those
    who ask for it, and so make it less likely that a row is opened alone.
    """
    counts = []
    for table in known.owners.values():
        owners = np.repeat(*np.array(table, np.int64).reshape(-1, 2).T)
        if clients <= known.clients:
            here = rng.hypergeometric(owners, known.clients - owners, clients)
        else:
            here = rng.binomial(clients, owners / known.clients)
        here = here[here > 0]
        counts.append(rng.binomial(here, privacy.p5) + rng.binomial(clients - here, privacy.p6))
    return np.concatenate([np.zeros(0, np.int64), *counts])


def _statistics(catalogue: Catalogue, key: str) -> CatalogueStatistics:
    if catalogue.statistics is None:
        raise ParameterError(
            f'{key} = "auto" is computed from the statistics of the catalogue, and this one has none. Write '
            "a number, or make the catalogue from data with samples (sfsl catalogue make)"
        )
    return catalogue.statistics
