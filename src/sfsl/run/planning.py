"""How many clients must ask for a row, planned from what cohorts of this fleet look like."""

from collections.abc import Mapping, Sequence

import numpy as np

from sfsl.arrays import Indices
from sfsl.privacy import IndexPrivacy
from sfsl.rounds.exchanges import Exchange
from sfsl.run.fleet import Fleet, client_privacy
from sfsl.run.selection import choose_cohort
from sfsl.secagg.graph import DEFAULT_DROPOUT, default_min_contributors
from sfsl.settings.run import RunConfig
from sfsl.training.task import Task

# Cohorts to look at: those of the first rounds are as good a sample as any.
ROUNDS = 3
_MOST_DROPOUT = 0.9


def plan_min_contributors(config: RunConfig, fleet: Fleet) -> int:
    """The least that keeps rows opened alone below the bound in each cohort looked at."""
    seed, rng = config.run.seed, np.random.default_rng(config.run.seed)
    clients = sorted(fleet.devices)
    privacy = client_privacy(config, clients)
    found = []
    for number in range(1, ROUNDS + 1):
        cohort = choose_cohort(clients, config.round.clients, seed, number)
        needed = [fleet.devices[name].needed for name in cohort]
        chosen = [privacy[name] for name in cohort]
        requesters = planned_requesters(fleet.task, needed, chosen, rng)
        found.append(default_min_contributors(requesters, dropout=planned_dropout(config)))
    return max(found)


def planned_dropout(config: RunConfig) -> float:
    """A row is opened alone when the others that asked for it vanish before they upload."""
    lost = config.faults.lost.get(Exchange.SUBMODEL, 0.0)
    return min(max(DEFAULT_DROPOUT, lost), _MOST_DROPOUT)


def planned_requesters(
    task: Task,
    needed: Sequence[Mapping[str, Indices]],
    privacy: Sequence[IndexPrivacy],
    rng: np.random.Generator,
) -> Indices:
    """How many of a cohort ask for each row of its union, drawn as the clients would answer.

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
