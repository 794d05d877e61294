"""Canaries in rounds over hot rows: what a survey and a round that trains cost, from below.

The words come from the code that clients run, and so does the noise: of exactly as many clients as the claim
counts on. Masks are left out, under which the same integers are summed; so are words that the canary does not
touch, whose noise is independent of it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np

from sfsl.arrays import Counts, Reals
from sfsl.errors import ParameterError
from sfsl.privacy.accounting import epsilon_of
from sfsl.rounds import Trained
from sfsl.rounds.hot import HotParams, HotSet, HotState
from sfsl.rounds.hot_client import survey_vector, update_vector, with_noise
from sfsl.rounds.hot_server import honest_of, plan_hot
from sfsl.run.fleet import Fleet
from sfsl.settings.rounds import round_rules
from sfsl.settings.run import RunConfig
from sfsl.simulate.chance import SeededRandomness
from sfsl.submodel import RowSet, RowStore
from sfsl.submodel.update import TrainedRows
from sfsl_research.audit.canaries import CanaryBound, Observer, bound_by_canaries

_STREAM = 2001
_FAR = 1e3  # times the clip: an update that is cut to it


@dataclass(frozen=True)
class HotCanary:
    """What canaries say about one kind of round: "survey" or "train"."""

    kind: str
    honest: int
    bound: CanaryBound


def audit_hot_rounds(
    config: RunConfig,
    fleet: Fleet,
    store: RowStore,
    *,
    trials: int,
    confidence: float,
    seed: int,
    weaken: float = 1.0,
    progress: Callable[[str], None] = lambda stage: None,
) -> list[HotCanary]:
    """Try canaries in a survey and in a round that trains, as this run plans them.

    ``weaken`` divides the noise that clients add, and not the claim: an audit must find that out.
    """
    if weaken < 1:
        raise ParameterError(f"noise is divided by 1 or more, not by {weaken:g}")
    clients = config.round.clients
    rules = round_rules(config, threshold=config.round.threshold_clients)
    honest, found = honest_of(rules, clients), []
    if rules.hot is None:
        raise ParameterError('canaries are for runs with round.scheme = "hot"')
    states = {"survey": HotState(), "train": _any_hot(fleet, rules.hot.surveys)}
    for kind, state in states.items():
        progress(f"canaries in a {'survey' if kind == 'survey' else 'round that trains'}")
        plan = plan_hot(rules, fleet.task.spec, store, clients=clients, state=state)
        claimed = plan.rho(clients)
        bound = bound_by_canaries(
            hot_observer(plan.params, canary_words(plan.params), honest, weaken=weaken),
            trials=trials,
            claimed_epsilon=epsilon_of(claimed, config.privacy.delta),
            claimed_rho=claimed,
            delta=config.privacy.delta,
            confidence=confidence,
            seed=seed,
        )
        found.append(HotCanary(kind, honest, bound))
    return found


def canary_words(params: HotParams) -> Counts:
    """Return the words of a client that a sum shows best: the longest vector that a client may add."""
    rounding = SeededRandomness(_STREAM)
    if params.kind == "survey":
        table = next(table for table in params.model.tables if table.kind == "shared")
        marked = {one.name: np.zeros(0, np.int64) for one in params.model.tables if one.kind == "shared"}
        marked[table.name] = np.arange(min(params.marks, table.rows))
        return survey_vector(params, marked, rounding)
    sets = {table.name: RowSet(np.arange(params.rows[table.name])) for table in params.model.summed}
    dense = np.zeros(params.model.dense)
    still = {
        table.name: TrainedRows(RowSet(np.zeros(0, np.int64)), np.zeros((0, table.width)), np.zeros(0))
        for table in params.model.summed
    }
    if params.model.dense:
        dense[0] = _FAR * params.clip
    else:
        table = params.model.summed[0]
        moves = np.zeros((1, table.width))
        moves[0, 0] = _FAR * params.clip
        still[table.name] = TrainedRows(RowSet(np.zeros(1, np.int64)), moves, np.ones(1, np.int64))
    scores = None
    if params.bins:
        many = np.zeros(params.bins)
        many[0] = 100.0
        scores = (many, np.zeros(params.bins))
    return update_vector(params, sets, Trained(dense, 1, still, scores), rounding)


def hot_observer(params: HotParams, canary: Counts, honest: int, *, weaken: float = 1.0) -> Observer:
    """Observe sums of ``honest`` clients, of whom one is the canary or has nothing, along the canary's own
    words."""
    touched = np.flatnonzero(canary)
    words = canary[touched]
    length = math.sqrt(float(np.square(words.astype(np.float64)).sum()))
    noisy = msgspec.structs.replace(params, deviation=params.deviation / weaken)

    def observe(present: bool, seed: int, count: int) -> Reals:
        randomness = SeededRandomness(_STREAM, seed)
        # All trials side by side: noise of each word is drawn by itself.
        total = np.tile(words if present else np.zeros_like(words), count)
        total = with_noise(noisy, total, randomness).view(np.int32).astype(np.int64)
        for _ in range(honest - 1):
            total += with_noise(noisy, np.zeros_like(total), randomness).view(np.int32)
        return np.asarray(total.reshape(count, -1) @ words / length, np.float64)

    return observe


def _any_hot(fleet: Fleet, surveys: int) -> HotState:
    """Return the state after surveys that found the first row of each table: a canary needs no more."""
    summed = fleet.task.spec.summed
    rows, owners = {one.name: np.arange(1) for one in summed}, {one.name: np.ones(1) for one in summed}
    return HotState(surveys=surveys, hot=HotSet.of(1, 1, rows, owners).encode())
