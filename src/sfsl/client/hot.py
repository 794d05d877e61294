"""A client in rounds over hot rows: what it pays with, and what it does with each message (spec hot)."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from sfsl.arrays import Indices
from sfsl.client.round import InRound, Lesson
from sfsl.codec import Message
from sfsl.crypto.secret import Randomness
from sfsl.errors import BudgetExhausted, Declined, InputError, Refused, StateError, WrongPhase
from sfsl.privacy import ClientState
from sfsl.rounds import Download, Trained
from sfsl.rounds.exchanges import SURVEY, Course, HotInvitation, Step, course_of
from sfsl.rounds.hot import HotParams, Published, decode_hot_set
from sfsl.rounds.hot_client import HotClient, HotMemory
from sfsl.rounds.states import HotShared, HotTraining
from sfsl.secagg.messages import InboundShares
from sfsl.service.messages import Decline
from sfsl.submodel import RowSet, TrainedRows

log = logging.getLogger(__name__)


class Purse(HotMemory, Protocol):
    """What one client pays for rounds over hot rows with. In a round: ``prepare``, ``afford``, ``spend``."""

    def prepare(self, acknowledged: int | None) -> None:
        """Raise ``Declined`` where nothing is left. ``acknowledged``: how many of its rounds the server has
        seen, None before it was asked."""

    def afford(self, rho: float) -> None:
        """Raise ``Declined`` unless a round at this cost could be paid. Nothing is debited."""

    def rounding(self, number: int) -> Randomness | None:
        """What draws how the numbers of its update are rounded; None: what draws its keys."""

    def account(self) -> str:
        """Say, for people, what was spent by now."""

    @property
    def rests_until(self) -> date | None:
        """The day from which a declined client may try again, where that is known."""


class PassingPurse(Purse, Protocol):
    """The same of a client whose messages are each answered by a process of its own."""

    def keep(self, snapshot: bytes | None) -> None:
        """Before an answer leaves: the round goes on from this only; None: from nothing."""

    def go_on(self, snapshot: bytes) -> None:
        """In the next process. Raises ``RolledBack`` unless this was kept last."""


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

    def go_on(self, snapshot: bytes) -> None:
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


@dataclass(repr=False, eq=False)
class HotClientRound(InRound[HotClient, Purse]):
    """One client in one round over hot rows. ``params`` are the round's, once it has joined."""

    params: HotParams | None = None

    def answer(
        self, message: Message, training: Callable[[], None], published: Mapping[bytes, bytes]
    ) -> Message:
        """Answer, or raise and then nothing may be sent. ``training`` is called before it trains.
        ``published`` is what came with the message, by digest."""
        if isinstance(message, HotInvitation):
            return self.join(message)
        if not isinstance(message, InboundShares) or not self.trains(message):
            return self.step(message)
        assert self.params is not None  # noqa: S101 -- else it is no round that trains
        hot, blob = (published.get(digest, b"") for digest in (self.params.hot, self.params.blob))
        download = self.open(message, Published(decode_hot_set(hot, self.params.hot), blob))
        training()
        return self.upload(self.train(download))

    def join(self, invitation: HotInvitation) -> Message:
        try:
            if invitation.round.kind == "train":
                self.trainer.require(invitation.round.training)
            answer = self.client.handle_invitation(invitation)
            self.memory.afford(self.cost)
        except (Refused, BudgetExhausted) as reason:
            # Said aloud: the invitation, fixed settings and how often it took part decided it.
            self.refused = str(reason)
            return Decline(invitation.roster.params.round_id)
        self.params, self.number = invitation.round, invitation.round.number
        self._draw(self.number)
        return answer

    @property
    def cost(self) -> float:
        """What taking part costs (rho), before it has sent anything; 0 where nothing is under way."""
        state = self.client.state
        return state.rho if isinstance(state, HotShared | HotTraining) else 0.0

    def trains(self, message: Message) -> bool:
        """Whether this client downloads the model and trains before it answers this message."""
        return self._step(message).exchange is self._course.trains

    def step(self, message: Message) -> Message:
        answer: Message = getattr(self.client, self._step(message).handler)(message)
        return answer

    def open(self, inbound: InboundShares, published: Published) -> Download:
        return self.client.handle_model(inbound, published)

    def train(self, download: Download) -> Lesson:
        """Train, and learn nothing where that fails. A client that stayed away because of its data would tell
        the server so, and nothing accounts for that."""
        try:
            return super().train(download)
        except StateError:
            raise
        except Exception:
            log.exception("training failed; this client sends zeros under its noise")
            return Lesson(self._nothing(), {})

    def upload(self, lesson: Lesson) -> Message:
        """Make the vector; of zeros, where what was learned cannot be encoded. Own rows that are no numbers
        stay as they were."""
        try:
            update = self.client.create_update(lesson.trained)
        except InputError:
            log.exception("what was learned is no update; this client sends zeros under its noise")
            update = self.client.create_update(self._nothing())
        try:
            self.personal.keep(lesson.personal)
        except InputError as error:
            log.warning("own rows stay as they were: %s", error)
        return update

    def _nothing(self) -> Trained:
        assert self.params is not None  # noqa: S101 -- it has joined
        model = self.params.model
        rows = {
            table.name: TrainedRows(
                RowSet(np.zeros(0, np.int64)), np.zeros((0, table.width)), np.zeros(0, np.int64)
            )
            for table in model.summed
        }
        return Trained(np.zeros(model.dense), 0, rows, None)

    def _step(self, message: Message) -> Step:
        found = [step for step in self._course.steps if type(message) is step.message]
        if not found:
            raise WrongPhase(f"{type(message).__name__}, which no server sends in such a round")
        return found[0]

    @property
    def _course(self) -> Course:
        # Whoever has not joined yet is held up by its state machine; whoever has masked needs no parameters.
        return SURVEY if self.params is None else course_of(self.params)
