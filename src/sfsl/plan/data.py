"""What data allow, before anything is trained on them: who can learn, and what privacy costs at this size."""

import math
from dataclasses import dataclass

import numpy as np

from sfsl.arrays import Indices
from sfsl.data.catalogue import Catalogue
from sfsl.data.interactions import Interactions
from sfsl.data.statistics import items_of
from sfsl.plan.hot import HotPlan, owners_known, plan_hot_rounds
from sfsl.plan.settings import PlanSettings, measured_loads
from sfsl.plan.traffic import expected_rows
from sfsl.privacy import PRESETS
from sfsl.rounds.params import HotRules
from sfsl.settings.run import SMALL_COHORT, ModelSettings, PrivacySettings, RoundSettings

_ROUNDS = 50  # of a first run


@dataclass(frozen=True)
class Spread:
    """How a number spreads over many: a tenth have at most ``low``, half ``middle``, a tenth more than
    ``high``."""

    low: int
    middle: int
    high: int
    most: int

    @classmethod
    def of(cls, counts: Indices) -> "Spread":
        return cls(*np.quantile(counts, (0.1, 0.5, 0.9, 1.0), method="lower").astype(int).tolist())


@dataclass(frozen=True)
class DataFigures:
    """``learning``: users with a sample that has a click before it; ``tested``: users with a sample to hold
    out. ``lonely``: the share of items that one user has."""

    samples: int
    users: int
    items: int
    clicks: float
    learning: int
    tested: int
    per_user: Spread
    owners: Spread
    lonely: float


@dataclass(frozen=True)
class DataPlan:
    """Rounds of ``clients`` with the default model. The paper's scheme: the ``union`` of their items, how
    many must ask for a row before it is opened (``min_contributors``), the share of the union that then is
    (``opened``), and epsilon of one client's answers for each row over all its rounds. ``hot``: rounds under
    differential privacy, with the reasons for which this fleet is too small, if it is."""

    clients: int
    preset: str
    union: float
    min_contributors: int
    opened: float
    epsilon: float
    hot: HotPlan


def count_data(data: Interactions, held_out: float = 0.2) -> DataFigures:
    """Count users and items, and what they have of each other."""
    sizes, items = np.diff(data.offsets), len(data.items)
    pairs = np.unique(data.user * np.int64(items) + data.item)
    owners = np.bincount(pairs % items, minlength=items)
    return DataFigures(
        samples=len(data),
        users=len(data.users),
        items=items,
        clicks=float((data.label == 1).mean()),
        learning=len(np.unique(data.user[data.history_stop > data.history_start])),
        tested=int((np.floor(held_out * sizes + 1e-9) > 0).sum()),
        per_user=Spread.of(sizes),
        owners=Spread.of(owners),
        lonely=float((owners == 1).mean()),
    )


def plan_data(data: Interactions, *, seed: int = 0) -> DataPlan | None:
    """Plan rounds with these users and the settings that a run has by default; None where there are too few
    of them for any. Needs torch, for the size of the model."""
    from sfsl.models.kinds import build_task

    catalogue = Catalogue.of(data, statistics=True)
    known, users = catalogue.statistics, data.clients
    clients = min(RoundSettings().clients, len(users))
    if clients < 2 or known is None:
        return None
    task = build_task(catalogue, ModelSettings(), seed)
    cohort = np.random.default_rng(seed).choice(users, clients, replace=False)
    sets = [{"item": items_of(data, int(user))} for user in cohort]
    preset = "cpp5" if clients < SMALL_COHORT else "cpp2"
    loads = measured_loads(task.spec, task.row_maps, sets)
    settings = PlanSettings(clients, task.spec, loads, PRESETS[preset])
    rows = expected_rows(settings, settings.heard())
    item, turns = rows.tables["item"], math.ceil(_ROUNDS * clients / len(users))
    privacy = PrivacySettings()
    hot = plan_hot_rounds(
        task.spec,
        owners_known(known),
        fleet=len(users),
        clients=clients,
        per_client=float(np.mean([len(one["item"]) for one in sets])),
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        participations=turns,
        rules=HotRules(rho=math.inf, survey_rho=math.inf, surveys=math.ceil(len(users) / clients)),
    )
    return DataPlan(
        clients,
        preset,
        item.union,
        rows.min_contributors,
        max(0.0, 1 - item.left_out / item.union),
        settings.privacy.epsilon(turns),
        hot,
    )
