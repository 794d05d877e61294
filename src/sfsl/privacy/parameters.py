"""A client's four probabilities, and what follows from them (spec privacy 1).

Each client chooses its own; the server has no say in them.
"""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from sfsl.errors import ParameterError
from sfsl.privacy import accounting
from sfsl.privacy.accounting import Events, Owners, owner_distribution

# Below this a threshold of 64 bits would no longer keep to the probability, and epsilon with it.
LEAST = 2.0**-32
PAPER_COHORT = 100


class IndexPrivacy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Randomized response about each index, in two layers (paper, Algorithm 2).

    The permanent answer is yes with p1 if the index is real and with p2 if not, once per period; each
    round's answer is yes with p3 if the permanent one is yes and with p4 if not.
    """

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
        return accounting.epsilon_after(self.p1, self.p2, -math.inf, -math.inf)

    def epsilon(self, rounds: int) -> float:
        """The exact epsilon after so many rounds of one period."""
        if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 0:
            raise ParameterError(f"the number of rounds must be a whole number from 0 up, not {rounds!r}")
        if rounds == 0:
            return 0.0
        yes, no = self.evidence
        return accounting.epsilon_after(self.p1, self.p2, rounds * yes, rounds * no)

    @property
    def evidence(self) -> tuple[float, float]:
        """What one round adds to the ledger (see ``accounting``)."""
        return accounting.evidence(self.p3, self.p4)

    def events(self, owners: Owners, cohort: int = PAPER_COHORT) -> Events:
        """p7 and p8 if all of a cohort use these parameters (paper, Theorem 2).

        ``owners`` is the number of owners of a row among the cohort, or a distribution over it; a cohort
        has the paper's 100 members unless said otherwise.
        """
        return cohort_events([self] * cohort, owners)


def cohort_events(cohort: Sequence[IndexPrivacy], owners: Owners) -> Events:
    """p7 and p8 in a cohort whose members chose their own parameters.

    Each set of members of the given size is equally likely to be the owners of a row.
    """
    return accounting.events([(member.p5, member.p6) for member in cohort], owners)


PRESETS: Mapping[str, IndexPrivacy] = MappingProxyType(
    {
        "cpp1": IndexPrivacy(1, 0, 1, 0),
        "cpp2": IndexPrivacy(15 / 16, 1 / 16, 15 / 16, 1 / 16),
        "cpp3": IndexPrivacy(7 / 8, 1 / 8, 7 / 8, 1 / 8),
        "cpp4": IndexPrivacy(3 / 4, 1 / 4, 3 / 4, 1 / 4),
        "cpp5": IndexPrivacy(1, 1, 1, 1),
    }
)

# The paper prints that 86.7 % of the union of 100 clients has one owner and 1.17 owners on average, not
# the distribution. With the power-law tail of owner_distribution, 86.73 % is a value within that rounding
# for which every p8 of its table comes out as printed (with 86.70 %, cpp4 gives 34.15 and not 34.2).
PAPER_SINGLE_OWNER = 0.8673
PAPER_MEAN_OWNERS = 1.17
PAPER_OWNERS: Mapping[int, float] = MappingProxyType(
    owner_distribution(PAPER_SINGLE_OWNER, PAPER_MEAN_OWNERS, PAPER_COHORT)
)
