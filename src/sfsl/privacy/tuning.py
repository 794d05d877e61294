"""Which p1 … p4 cost the fewest bytes for a wanted epsilon (spec privacy 4.4).

For given p5 and p6, epsilon after one round is fixed and can only grow with more rounds. With p3 = 1 and
p4 = 0 it does not grow at all. So whatever the number of rounds, the cheapest parameters for a wanted
epsilon put all noise into the permanent answers. Noise in each round buys no epsilon for its bytes; who
wants it nevertheless, so that rounds are harder to link, states it as ``flip``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sfsl.errors import ParameterError
from sfsl.privacy.parameters import (
    LEAST,
    PAPER_COHORT,
    PAPER_MEAN_OWNERS,
    PAPER_SINGLE_OWNER,
    Events,
    IndexPrivacy,
    epsilon_after,
    evidence,
    owner_distribution,
)

_WORD_BYTES = 4


@dataclass(frozen=True)
class Workload:
    """What a round is like for one client: the defaults are the paper's, its wider table."""

    cohort: int = PAPER_COHORT
    set_size: int = 301
    row_width: int = 18
    single_owner: float = PAPER_SINGLE_OWNER
    mean_owners: float = PAPER_MEAN_OWNERS

    def __post_init__(self) -> None:
        if self.cohort < 1 or self.set_size < 1 or self.row_width < 1:
            raise ParameterError("cohort, set size and row width are whole numbers from 1 up")
        self.owners  # noqa: B018 -- refuses impossible figures now

    @property
    def owners(self) -> Mapping[int, float]:
        return owner_distribution(self.single_owner, self.mean_owners, self.cohort)

    @property
    def union_size(self) -> float:
        return self.cohort * self.set_size / self.mean_owners

    def rows(self, privacy: IndexPrivacy) -> float:
        """Rows a client asks for in a round, on average."""
        return self.set_size * privacy.p5 + (self.union_size - self.set_size) * privacy.p6

    def bytes_per_round(self, privacy: IndexPrivacy) -> float:
        """The bitmap, the rows down, the rows and their counts up; what no parameter changes is left out."""
        return self.union_size / 8 + self.rows(privacy) * _WORD_BYTES * (2 * self.row_width + 1)


@dataclass(frozen=True)
class Tuned:
    """Parameters, and what they give and cost under a workload."""

    privacy: IndexPrivacy
    epsilon: float
    rows: float
    bytes_per_round: float
    events: Events


def tune(epsilon: float, rounds: int | None, p5: float, workload: Workload, *, flip: float = 0.0) -> Tuned:
    """The cheapest parameters with at least this p5 and at most this epsilon after so many rounds. ``rounds``
    None means for ever. Each round's answer is flipped with probability ``flip``: p3 is 1 - flip, p4 is
    flip."""
    if not epsilon >= 0:
        raise ParameterError(f"epsilon is a number from 0 up, not {epsilon}")
    if not 0 < p5 <= 1:
        raise ParameterError(f"p5 = {p5} must be above 0 and at most 1: the share of real rows to train on")
    if not 0 <= flip < 0.5:
        raise ParameterError(f"flip = {flip} must be from 0 to below 0.5")
    if rounds is not None and rounds < 1:
        raise ParameterError("the number of rounds starts at 1; leave it out for ever")
    p1 = _round_up((p5 - flip) / (1 - 2 * flip))
    if not 0 <= p1 <= 1:
        raise ParameterError(
            f"with answers flipped at {flip}, p5 lies between {flip} and {1 - flip}, not at {p5}"
        )
    yes, no = evidence(1 - flip, flip) if rounds is not None else (-math.inf, -math.inf)
    times = rounds or 1
    p2 = _least_p2(p1, epsilon, times * yes, times * no)
    privacy = IndexPrivacy(p1, _round_up(p2), 1 - flip, flip)
    return _evaluated(privacy, rounds, workload)


def _least_p2(p1: float, epsilon: float, yes: float, no: float) -> float:
    """Epsilon falls as p2 rises to p1, where it is 0; every yes about a row one has not costs bytes."""
    low, high = 0.0, p1
    if epsilon_after(p1, low, yes, no) <= epsilon:
        return low
    while low < (middle := (low + high) / 2) < high:
        if epsilon_after(p1, middle, yes, no) > epsilon:
            low = middle
        else:
            high = middle
    return high


def _round_up(probability: float) -> float:
    """To the next one that an ``IndexPrivacy`` takes. A larger p1 keeps p5, a larger p2 keeps epsilon."""
    if 0 < probability < LEAST:
        return LEAST
    return 1.0 if abs(probability - 1) < LEAST else probability


def _evaluated(privacy: IndexPrivacy, rounds: int | None, workload: Workload) -> Tuned:
    return Tuned(
        privacy=privacy,
        epsilon=privacy.epsilon_infinity if rounds is None else privacy.epsilon(rounds),
        rows=workload.rows(privacy),
        bytes_per_round=workload.bytes_per_round(privacy),
        events=privacy.events(workload.owners, workload.cohort),
    )


def frontier(
    epsilons: Sequence[float],
    rounds: int | None,
    p5s: Sequence[float],
    workload: Workload,
    *,
    flip: float = 0.0,
) -> list[Tuned]:
    """The cheapest parameters for each pair of epsilon and p5 that ``flip`` allows."""
    return [
        tune(epsilon, rounds, p5, workload, flip=flip)
        for epsilon in epsilons
        for p5 in p5s
        if flip <= p5 <= 1 - flip
    ]
