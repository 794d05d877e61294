"""Estimates from simulated answers: epsilon from below, and how often the paper's two events happen.

An estimate of epsilon is a lower bound with a confidence: a sound perturber stays below its claim except
with the stated error, a broken one is caught.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sfsl.arrays import Counts
from sfsl.crypto.secret import Secret
from sfsl.errors import ParameterError
from sfsl.privacy.parameters import IndexPrivacy
from sfsl.privacy.response import KEY_BYTES, Perturber
from sfsl_research.audit.intervals import lower_bound, upper_bound
from sfsl_research.audit.simulation import ONE_TABLE, TABLE, Fleet, SeenRound

_AUDITED_CLIENTS = 16


@dataclass(frozen=True)
class EpsilonBound:
    """With this confidence the answers of ``rounds`` rounds cost at least ``lower``, shown by ``event``."""

    rounds: int
    claimed: float
    lower: float
    confidence: float
    event: str

    @property
    def violated(self) -> bool:
        return self.lower > self.claimed


def epsilon_bounds(
    privacy: IndexPrivacy,
    rounds: Sequence[int],
    *,
    trials: int,
    confidence: float,
    rng: np.random.Generator,
    subject: type[Perturber] = Perturber,
) -> list[EpsilonBound]:
    """Bound epsilon from below for each number of rounds, from ``trials`` real rows and as many others.

    All bounds hold together with the given confidence.
    """
    if not rounds or min(rounds) < 1:
        raise ParameterError("the numbers of rounds to audit start at 1")
    per_client = trials // _AUDITED_CLIENTS
    if per_client < 1:
        raise ParameterError(f"an audit needs at least {_AUDITED_CLIENTS} trials")
    # By number of rounds: half of the clients × real and other rows × how many yeses.
    histograms = {count: np.zeros((2, 2, count + 1), np.int64) for count in rounds}
    for client in range(_AUDITED_CLIENTS):
        for count, real, other in _yeses(subject, privacy, rounds, per_client, rng):
            for kind, yeses in enumerate((real, other)):
                histograms[count][client % 2, kind] += np.bincount(yeses, minlength=count + 1)
    each = 1 - (1 - confidence) / len(rounds)
    bounds = []
    for count in rounds:
        choosing, testing = histograms[count]
        lower, event = _bound(choosing, testing, each)
        bounds.append(EpsilonBound(count, privacy.epsilon(count), lower, each, event))
    return bounds


def _yeses(
    subject: type[Perturber],
    privacy: IndexPrivacy,
    rounds: Sequence[int],
    per_client: int,
    rng: np.random.Generator,
) -> Iterator[tuple[int, Counts, Counts]]:
    """Ask one client about the same rows again and again; at each of ``rounds``, yeses per row so far."""
    rows = np.arange(2 * per_client)
    real = np.zeros(len(rows), np.bool_)
    real[rng.choice(len(rows), per_client, replace=False)] = True
    client = subject(Secret(rng.bytes(KEY_BYTES)), privacy, ONE_TABLE, {TABLE: rows[real]})
    tally = np.zeros(len(rows), np.int64)
    for number in range(1, max(rounds) + 1):
        tally += client.answer({TABLE: rows}, rng)[TABLE]
        if number in rounds:
            yield number, tally[real], tally[~real]


def _bound(choosing: Counts, testing: Counts, confidence: float) -> tuple[float, str]:
    """Choose the most telling event on one half of the clients and test it on the other.

    Both hold two histograms, of real and of other rows. Choosing and testing on the same data would find
    a telling event in any noise.
    """
    candidates = []
    for name, tail in (("at least", _upper_tail), ("at most", _lower_tail)):
        for likelier, rarer in ((0, 1), (1, 0)):
            often, seldom = tail(choosing[likelier]), tail(choosing[rarer])
            spread = np.sqrt(1 / (often + 1) + 1 / (seldom + 1))
            score = np.log((often + 1) / (seldom + 1)) - 2 * spread
            candidates.append((float(score.max()), name, tail, int(score.argmax()), likelier))
    _, name, tail, yeses, likelier = max(candidates, key=lambda candidate: candidate[0])
    numerator, denominator = testing[likelier], testing[1 - likelier]
    one_side = 1 - (1 - confidence) / 2
    least = lower_bound(int(tail(numerator)[yeses]), int(numerator.sum()), one_side)
    most = upper_bound(int(tail(denominator)[yeses]), int(denominator.sum()), one_side)
    event = f"{name} {yeses} yes in {len(numerator) - 1}, {('real', 'other')[likelier]} rows"
    return (max(0.0, math.log(least / most)) if least > 0 else 0.0), event


def _upper_tail(histogram: Counts) -> Counts:
    return np.cumsum(histogram[::-1])[::-1]


def _lower_tail(histogram: Counts) -> Counts:
    return np.cumsum(histogram)


@dataclass(frozen=True)
class EventFrequency:
    """How often an event happened among the opened rows, between two bounds, and what was predicted."""

    event: str
    happened: int
    rows: int
    lower: float
    upper: float
    predicted: float

    @property
    def unexpected(self) -> bool:
        return not self.lower <= self.predicted <= self.upper


def event_frequencies(
    privacy: IndexPrivacy, seen: SeenRound, fleet: Fleet, confidence: float
) -> list[EventFrequency]:
    """Events 1 and 2 in one round, next to Theorem 2 for the owners that the cohort really has."""
    asked = seen.asked[:, seen.union].sum(axis=0)
    counts = seen.counts[seen.union]
    owners = fleet.owns[seen.members][:, seen.union].sum(axis=0)
    numbers, rows = np.unique(owners, return_counts=True)
    distribution = dict(zip(numbers.tolist(), (rows / rows.sum()).tolist(), strict=True))
    predicted = privacy.events(distribution, len(seen.members))
    one_side = 1 - (1 - confidence) / 4  # two events, two sides each
    return [
        EventFrequency(
            event,
            happened,
            len(asked),
            lower_bound(happened, len(asked), one_side),
            upper_bound(happened, len(asked), one_side),
            chance,
        )
        for event, happened, chance in (
            ("event 1", int(((asked == 1) & (counts == 1)).sum()), predicted.p7_any),
            ("event 2", int(((asked > 0) & (counts == 0)).sum()), predicted.p8),
        )
    ]
