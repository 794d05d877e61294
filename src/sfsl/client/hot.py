"""A client in rounds over hot rows: what it pays with, and what it does with each message (spec hot)."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from sfsl.arrays import Indices
from sfsl.client.round import InRound, Passing, Remembers
from sfsl.codec import Message
from sfsl.crypto.secret import Randomness
from sfsl.errors import BudgetExhausted, Declined
from sfsl.privacy import ClientState
from sfsl.rounds import Download
from sfsl.rounds.exchanges import SURVEY, HotInvitation
from sfsl.rounds.hot import HotParams, Published, decode_hot_set
from sfsl.rounds.hot_client import HotClient, HotMemory
from sfsl.rounds.states import HotShared, HotTraining
from sfsl.secagg.messages import InboundShares


class Purse(HotMemory, Remembers, Protocol):
    """What one client pays for rounds over hot rows with. In a round: ``prepare``, ``afford``, ``spend``."""

    def afford(self, rho: float) -> None:
        """Raise ``Declined`` unless a round at this cost could be paid. Nothing is debited."""

    def account(self) -> str:
        """Say, for people, what was spent by now."""


class PassingPurse(Purse, Passing, Protocol):
    """The same of a client whose messages are each answered by a process of its own."""


@dataclass(repr=False)
class DurablePurse:
    """A deployed client's: what a round costs is debited on disk before anything of it leaves. ``real`` are
    the rows of its data by shared table. Whoever could not pay once stays away: it would only take the place
    of others. ``delta`` is what it states its epsilon at. Not for use by two threads at once."""

    state: ClientState
    real: Mapping[str, ArrayLike]
    delta: float = 1e-6
    _empty: str = ""

    def prepare(self, acknowledged: int | None) -> None:
        self.state.catch_up(acknowledged)
        if self._empty:
            raise Declined(self._empty)

    def afford(self, rho: float) -> None:
        try:
            self.state.require_spend(rho)
        except BudgetExhausted as reason:
            self._empty = str(reason)
            raise

    def spend(self, round_id: bytes, rho: float) -> None:
        self.state.spend(round_id, rho)

    def keep(self, snapshot: bytes | None) -> None:
        self.state.keep(snapshot)

    def go_on(self, snapshot: bytes, number: int | None, exposed: bytes | None) -> None:
        self.state.go_on(snapshot, None)

    def owned(self) -> dict[str, Indices]:
        return {name: np.asarray(rows, np.int64) for name, rows in self.real.items()}

    def rounding(self, number: int) -> Randomness | None:
        return None

    def account(self) -> str:
        epsilon, rounds = self.state.epsilon_hot(self.delta), self.state.hot_rounds
        return f"epsilon {epsilon:.3g} at delta {self.delta:g} is spent, in {rounds} rounds"

    @property
    def rests_until(self) -> date | None:
        return None


class HotClientRound(InRound[HotClient, Purse]):
    """One client in one round over hot rows."""

    unjoined = SURVEY

    def _accept(self, invitation: HotInvitation) -> Message:
        if invitation.round.kind == "train":
            self.trainer.require(invitation.round.training)
        answer = self.client.handle_invitation(invitation)
        self.memory.afford(self.cost)
        return answer

    @property
    def cost(self) -> float:
        """What taking part costs (rho), before it has sent anything; 0 where nothing is under way."""
        state = self.client.state
        return state.rho if isinstance(state, HotShared | HotTraining) else 0.0

    def open(self, message: InboundShares, published: Published | None) -> Download:
        assert published is not None  # noqa: S101 -- whoever brings the message has fetched it
        return self.client.handle_model(message, published)

    def _published(self, came: Mapping[bytes, bytes]) -> Published:
        assert isinstance(self.params, HotParams)  # noqa: S101 -- else it is no round that trains
        hot, blob = (came.get(digest, b"") for digest in (self.params.hot, self.params.blob))
        return Published(decode_hot_set(hot, self.params.hot), blob)
