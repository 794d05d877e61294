"""Clients of simulations and load tests: what they do by chance follows from a seed, and they take any round.

Never for people: they have no ledger.
"""

import math
from collections.abc import Mapping
from datetime import date

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfsl.arrays import Indices
from sfsl.crypto.secret import Randomness
from sfsl.errors import StateError
from sfsl.privacy import IndexPrivacy
from sfsl.rounds import RoundPolicy
from sfsl.rounds.params import ANYTHING, HotLimits
from sfsl.secagg import Policy
from sfsl.simulate.chance import Chance, SimulatedAnswers

# Simulated clients accept what the deployment under test offers them.
_GENEROUS = 2**32
TOLERANT = RoundPolicy(
    session=Policy(min_clients=2, min_threshold=2, min_contributors=1, max_words=_GENEROUS),
    max_clip=_GENEROUS,
    max_rows=_GENEROUS,
    hot=HotLimits(max_rho=math.inf),
    limits=ANYTHING,
)


class SimulatedMemory:
    """Answers from a seed, and pays for any round. It counts what it exposed, and holds the server's count
    against that. ``own`` are the rows of its data by shared table."""

    def __init__(
        self,
        chance: Chance,
        name: str,
        privacy: IndexPrivacy,
        every: int,
        own: Mapping[str, Indices] | None = None,
    ) -> None:
        self._chance, self._name, self._privacy, self._every = chance, name, privacy, every
        self._own = own or {}
        self._answers: SimulatedAnswers | None = None
        self.exposed = 0

    def prepare(self, acknowledged: int | None) -> None:
        if acknowledged is not None and acknowledged > self.exposed:
            raise StateError(f"the server counts {acknowledged} masked sets, {self.exposed} were made")

    def enter(self, number: int) -> None:
        self._answers = self._chance.answers(self._name, number, self._privacy, every=self._every)

    def rounding(self, number: int) -> Randomness:
        return self._chance.rounding(self._name, number)

    def expose(self, round_id: bytes) -> Mapping[str, Indices]:
        self.exposed += 1
        return self._entered.expose(round_id)

    def answer(
        self, round_id: bytes, unions: Mapping[str, ArrayLike], randomness: Randomness
    ) -> Mapping[str, NDArray[np.bool_]]:
        return self._entered.answer(round_id, unions)

    def afford(self, rho: float) -> None:
        """A swarm is made of simulated devices: nothing is too dear."""

    def spend(self, round_id: bytes, rho: float) -> None:
        self.exposed += 1

    def owned(self) -> Mapping[str, Indices]:
        return self._own

    def account(self) -> str:
        return f"{self.exposed} rounds by now"

    @property
    def rests_until(self) -> date | None:
        return None

    @property
    def _entered(self) -> SimulatedAnswers:
        if self._answers is None:
            raise StateError("this device has entered no round")
        return self._answers


class PassingSimulation(SimulatedMemory):
    """The same for a client that lives from message to message. Nothing is counted, so nothing is refused."""

    def prepare(self, acknowledged: int | None) -> None:
        """Always ready."""

    def keep(self, snapshot: bytes | None) -> None:
        """There is nothing to guard."""

    def go_on(self, snapshot: bytes, number: int | None = None, exposed: bytes | None = None) -> None:
        if number is not None:
            self.enter(number)
