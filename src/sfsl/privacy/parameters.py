"""A client's four probabilities (spec privacy 1), and what its answers give away with them: exact epsilon
and the paper's two events (spec privacy 4). Each client chooses its own; the server has no say in them.

All accounting is about one index of one client: by how much, at most, can the answers seen so far
change anyone's odds that the client has it. The permanent answer is drawn once with p1 or p2; each
round shows it through p3 or p4. A round's answer therefore speaks about the permanent answer only,
and its weight is one number per outcome, the *evidence*:

    yes = ln(p4 / p3)                  how much less likely a yes is if the permanent answer is No
    no  = ln((1 - p3) / (1 - p4))      how much less likely a no is if the permanent answer is Yes

Evidence adds up over rounds, also over rounds with different p3 and p4, so a ledger needs two numbers
however many rounds there were.

Which p1 … p4 cost the fewest bytes for a wanted epsilon (spec privacy 4.4)? For given p5 and p6, epsilon
after one round is fixed and can only grow with more rounds. With p3 = 1 and p4 = 0 it does not grow at all.
So whatever the number of rounds, the cheapest parameters for a wanted epsilon put all noise into the
permanent answers. Noise in each round buys no epsilon for its bytes; who wants it nevertheless, so that
rounds are harder to link, states it as ``flip``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import msgspec
import numpy as np

from sfsl.errors import ParameterError

Owners = int | Mapping[int, float]
# Below this a threshold of 64 bits would no longer keep to the probability, and epsilon with it.
LEAST = 2.0**-32
PAPER_COHORT = 100
# The paper prints that 86.7 % of the union of 100 clients has one owner and 1.17 owners on average, not
# the distribution. With the power-law tail of owner_distribution, 86.73 % is a value within that rounding
# for which every p8 of its table comes out as printed (with 86.70 %, cpp4 gives 34.15 and not 34.2).
PAPER_SINGLE_OWNER = 0.8673
PAPER_MEAN_OWNERS = 1.17
_WORD_BYTES = 4


def evidence(p3: float, p4: float) -> tuple[float, float]:
    """What one yes and one no weigh, both at most 0. An outcome that cannot occur weighs nothing."""
    if p3 == p4:
        return 0.0, 0.0
    return _ln(p4) - _ln(p3), _ln(1 - p3) - _ln(1 - p4)


def epsilon_after(p1: float, p2: float, yes: float, no: float) -> float:
    """The exact epsilon once all-yes weighs ``yes`` and all-no weighs ``no``; needs p1 >= p2. The likelihood
    ratio rises with every yes, so its extremes lie at the two constant sequences."""
    if p1 == p2 or yes == no == 0:
        return 0.0
    towards_real = _mixture(p1, 1 - p1, yes) - _mixture(p2, 1 - p2, yes)
    towards_other = _mixture(1 - p2, p2, no) - _mixture(1 - p1, p1, no)
    return max(0.0, towards_real, towards_other)


def _mixture(fits: float, contradicts: float, weight: float) -> float:
    """ln(fits + contradicts * e^weight), right where e^weight underflows and where a term is zero."""
    high, low = _ln(fits), _ln(contradicts) + weight
    if low > high:
        high, low = low, high
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))


def _ln(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


@dataclass(frozen=True)
class Events:
    """How likely an opened row betrays someone in one round (paper, Definition 2 and Theorem 2).

    ``p7``: Event 1 for one given owner: it alone asked, so the sum is its update. ``p7_any``: the same
    for any of the owners (the paper's formula is for a given one). ``p8``: Event 2: clients asked, but
    no owner did, so a zero sum says that none of them has the row.
    """

    p7: float
    p8: float
    p7_any: float


def events(rates: Sequence[tuple[float, float]], owners: Owners) -> Events:
    """p7 and p8 in a cohort whose members ask with (p5, p6), for rows with so many owners among them.
    ``owners`` is a number, or a distribution {number: share of rows}. Which members own the row is taken as
    equally likely for each set of that size; with equal rates this is Theorem 2 as printed."""
    shares = _shares(owners, len(rates))
    most = max(shares)
    # By number of owners m among the members so far, averaged over all placements of m owners:
    silent = np.zeros(most + 1)  # nobody asks
    absent = np.zeros(most + 1)  # no owner asks
    alone = np.zeros(most + 1)  # one owner asks and nobody else
    silent[0] = absent[0] = 1.0
    number = np.arange(most + 1)
    for seen, (p5, p6) in enumerate(rates, start=1):
        # The new member is one of the m owners in m of `seen` placements.
        owns, lacks = np.minimum(number / seen, 1.0), np.maximum(1 - number / seen, 0.0)
        alone = lacks * (1 - p6) * alone + owns * ((1 - p5) * _after(alone) + p5 * _after(silent))
        silent = lacks * (1 - p6) * silent + owns * (1 - p5) * _after(silent)
        absent = lacks * absent + owns * (1 - p5) * _after(absent)
    p7_any = sum(share * alone[count] for count, share in shares.items())
    p7 = sum(share * alone[count] / count for count, share in shares.items() if count)
    p8 = sum(share * (absent[count] - silent[count]) for count, share in shares.items())
    return Events(p7=float(p7), p8=float(max(p8, 0.0)), p7_any=float(p7_any))


def _after(by_owners: np.ndarray) -> np.ndarray:
    """The same figures with one owner fewer before the new member."""
    return np.concatenate(([0.0], by_owners[:-1]))


def _shares(owners: Owners, cohort: int) -> dict[int, float]:
    if cohort < 1:
        raise ParameterError("a cohort has at least one client")
    shares = dict(owners) if isinstance(owners, Mapping) else {owners: 1.0}
    for count in shares:
        if isinstance(count, bool) or not isinstance(count, int | np.integer):
            raise ParameterError(
                f"{count!r} owners: p8 at the mean number of owners is not the mean p8; pass the "
                "distribution {number of owners: share of rows} instead, see owner_distribution()"
            )
        if not 0 <= count <= cohort:
            raise ParameterError(f"{count} owners in a cohort of {cohort}")
    if not all(share >= 0 for share in shares.values()) or not math.isclose(sum(shares.values()), 1.0):
        raise ParameterError("the shares of rows by number of owners must be at least 0 and add up to 1")
    return {int(count): share for count, share in shares.items()}


def owner_distribution(single: float, mean: float, cohort: int) -> dict[int, float]:
    """Shares of rows by number of owners, from the two figures people know. ``single`` is the share of rows
    of the union with one owner, ``mean`` the mean number of owners. Beyond one owner the shares follow a
    power law whose exponent fits the mean."""
    if not 0 <= single <= 1:
        raise ParameterError(f"a share of {single} rows with one owner is not between 0 and 1")
    if cohort < 2 or single == 1:
        if not math.isclose(mean, 1.0):
            raise ParameterError(f"where every row has one owner the mean is 1, not {mean}")
        return {1: 1.0}
    several = np.arange(2, cohort + 1, dtype=np.float64)
    wanted = (mean - single) / (1 - single)
    if not 2 <= wanted <= cohort:
        raise ParameterError(
            f"with {single:.1%} of rows owned once, a cohort of {cohort} has between "
            f"{single + 2 * (1 - single):.3f} and {single + cohort * (1 - single):.3f} owners per row, "
            f"not {mean}"
        )
    steepest, flattest = 1000.0, -1000.0
    for _ in range(100):
        exponent = (steepest + flattest) / 2
        logs = -exponent * np.log(several)
        tail = np.exp(logs - logs.max())
        tail /= tail.sum()
        if tail @ several > wanted:
            flattest = exponent
        else:
            steepest = exponent
    shares = (1 - single) * tail
    return {1: single, **dict(zip(several.astype(int).tolist(), shares.tolist(), strict=True))}


class IndexPrivacy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Randomized response about each index, in two layers (paper, Algorithm 2). The permanent answer is yes
    with p1 if the index is real and with p2 if not, once per period; each round's answer is yes with p3 if
    the permanent one is yes and with p4 if not."""

    p1: float
    p2: float
    p3: float
    p4: float

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ParameterError(f"{name} must be a number between 0 and 1, not {value!r}")
            if not 0 <= value <= 1:
                raise ParameterError(f"{name} = {value} is not a probability between 0 and 1")
            if 0 < value < LEAST or 1 - LEAST < value < 1:
                raise ParameterError(f"{name} = {value!r} is closer to 0 or 1 than 2^-32; write 0 or 1")
            msgspec.structs.force_setattr(self, name, float(value))
        if self.p1 < self.p2:
            raise ParameterError(
                f"p1 = {self.p1:g} is below p2 = {self.p2:g}: p1 is the chance of a yes for an index the "
                "client has, p2 for one it has not. Were they mixed up?"
            )
        if self.p3 < self.p4:
            raise ParameterError(
                f"p3 = {self.p3:g} is below p4 = {self.p4:g}: p3 is the chance to repeat a permanent yes, "
                "p4 to turn a permanent no into a yes. Were they mixed up?"
            )

    @classmethod
    def preset(cls, name: str) -> "IndexPrivacy":
        """One of the paper's choices, ``cpp1`` to ``cpp5``."""
        try:
            return PRESETS[name]
        except KeyError:
            raise ParameterError(f"no preset {name!r}; there are {', '.join(PRESETS)}") from None

    @property
    def p5(self) -> float:
        """The chance that a real index is asked for in a round."""
        return self.p1 * self.p3 + (1 - self.p1) * self.p4

    @property
    def p6(self) -> float:
        """The chance that any other index of the union is asked for in a round."""
        return self.p2 * self.p3 + (1 - self.p2) * self.p4

    @property
    def epsilon_one(self) -> float:
        """Epsilon of one round (paper, Lemma 2)."""
        return self.epsilon(1)

    @property
    def epsilon_infinity(self) -> float:
        """Epsilon of the permanent answers, which no number of rounds exceeds (paper, Lemma 1)."""
        return epsilon_after(self.p1, self.p2, -math.inf, -math.inf)

    def epsilon(self, rounds: int) -> float:
        """The exact epsilon after so many rounds of one period."""
        if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 0:
            raise ParameterError(f"the number of rounds must be a whole number from 0 up, not {rounds!r}")
        if rounds == 0:
            return 0.0
        yes, no = self.evidence
        return epsilon_after(self.p1, self.p2, rounds * yes, rounds * no)

    @property
    def evidence(self) -> tuple[float, float]:
        """What one round adds to the ledger (see the head of this file)."""
        return evidence(self.p3, self.p4)

    def events(self, owners: Owners, cohort: int = PAPER_COHORT) -> Events:
        """p7 and p8 if all of a cohort use these parameters (paper, Theorem 2). ``owners`` is the number of
        owners of a row among the cohort, or a distribution over it; a cohort has the paper's 100 members
        unless said otherwise."""
        return cohort_events([self] * cohort, owners)


def cohort_events(cohort: Sequence[IndexPrivacy], owners: Owners) -> Events:
    """p7 and p8 in a cohort whose members chose their own parameters. Each set of members of the given size
    is equally likely to be the owners of a row."""
    return events([(member.p5, member.p6) for member in cohort], owners)


PRESETS: Mapping[str, IndexPrivacy] = MappingProxyType(
    {
        "cpp1": IndexPrivacy(1, 0, 1, 0),
        "cpp2": IndexPrivacy(15 / 16, 1 / 16, 15 / 16, 1 / 16),
        "cpp3": IndexPrivacy(7 / 8, 1 / 8, 7 / 8, 1 / 8),
        "cpp4": IndexPrivacy(3 / 4, 1 / 4, 3 / 4, 1 / 4),
        "cpp5": IndexPrivacy(1, 1, 1, 1),
    }
)

PAPER_OWNERS: Mapping[int, float] = MappingProxyType(
    owner_distribution(PAPER_SINGLE_OWNER, PAPER_MEAN_OWNERS, PAPER_COHORT)
)


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
