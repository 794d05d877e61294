"""What a client does with each message of a round, whatever brings it, with a memory and a trainer of its
own.

Nothing here waits or sends. The steps are apart because training may have a thread of its own; ``answer``
takes them one after another.
"""

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import date
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from sfsl.arrays import Bits, Indices, Values
from sfsl.client.home import PersonalRows
from sfsl.codec import Message
from sfsl.crypto.secret import Identity, Randomness
from sfsl.errors import BudgetExhausted, InputError, Refused, StateError, WrongPhase
from sfsl.privacy import ClientState, Decoys, IndexPrivacy, Tables
from sfsl.rounds import Download, RoundClient, RoundParams, RoundPolicy, Trained
from sfsl.rounds.client import Answers, Own
from sfsl.rounds.commitment import model_context
from sfsl.rounds.exchanges import SUBMODELS, Course, Exchange, Invitation, Step, Submodel, course_of
from sfsl.rounds.hot import HotParams, Published
from sfsl.service.messages import Decline
from sfsl.submodel import ModelSpec, RowMaps, RowSet, TrainedRows

log = logging.getLogger(__name__)
Remembered = TypeVar("Remembered")


@dataclass(frozen=True)
class ClientModel:
    """``digest`` is that of the package from which ``spec`` and ``maps`` were built, ``names`` that of what a
    catalogue calls its rows; empty where there is none. ``bound``: in active mode masks are bound to all of
    it, and not to ``names`` alone."""

    digest: bytes
    spec: ModelSpec
    maps: RowMaps
    names: bytes = b""
    bound: bool = False

    @property
    def tables(self) -> Tables:
        """The model's tables by what a client may say about them."""
        kinds = ("shared", "derived", "personal")
        named = {kind: tuple(one.name for one in self.spec.tables if one.kind == kind) for kind in kinds}
        return Tables(**named)

    def own(
        self,
        memory: Remembered,
        policy: RoundPolicy,
        randomness: Randomness,
        rounding: Randomness | None,
        identity: Identity | None,
        pinned: Mapping[str, bytes] | None,
    ) -> Own[Remembered]:
        """Return what a client has in a round. It signs nothing there, unless it insists on active mode, in
        which the identities of all are ``pinned``."""
        signer = None if pinned is None else identity
        binds = self.bound and pinned is not None
        names = model_context(self.digest, self.names) if binds else self.names
        told = (policy, randomness, rounding, names)
        return Own(memory, self.spec, self.maps, *told, signer, pinned)


@dataclass(frozen=True)
class Lesson:
    """What goes into the sum, and what stays: per personal table the rows and their new values."""

    trained: Trained
    personal: Mapping[str, tuple[Indices, Values]]


class Trainer(Protocol):
    """Called in another thread than the event loop's, for one round at a time. Trainers that share a torch
    module must not run side by side."""

    @property
    def personal(self) -> Mapping[str, Indices]:
        """The rows that it keeps of each personal table, ascending."""

    def require(self, training: Mapping[str, float]) -> None:
        """Raise ``Refused`` where it does not take a round's hyperparameters; before anything leaves. The
        server is told that this client declines, so it must not depend on the client's data."""

    def train(self, download: Download, personal: Mapping[str, Values], number: int) -> Lesson:
        """Train a submodel in round ``number``. ``personal`` are the values of its personal rows."""


class Remembers(Protocol):
    """What one client remembers from round to round, whatever kind they are of."""

    def prepare(self, acknowledged: int | None) -> None:
        """Raise ``Declined`` unless one more round is allowed today. ``acknowledged``: how many of its rounds
        the server has seen, None before it was asked."""

    def rounding(self, number: int) -> Randomness | None:
        """What draws how the numbers of its update are rounded; None: what draws its keys."""

    @property
    def rests_until(self) -> date | None:
        """The day from which a declined client may try again, where that is known."""


class Memory(Answers, Remembers, Protocol):
    """The answers of one client. In a round: ``prepare``, ``enter``, ``expose``, ``answer``."""

    def enter(self, number: int) -> None:
        """Raise as ``prepare`` does, now that a round with this number begins."""


class Passing(Protocol):
    """What a client remembers whose messages are each answered by a process of its own."""

    def keep(self, snapshot: bytes | None) -> None:
        """Before an answer leaves: the round goes on from this only; None: from nothing."""

    def go_on(self, snapshot: bytes, number: int | None, exposed: bytes | None) -> None:
        """In the next process, instead of ``prepare`` and ``enter``. Raises ``RolledBack`` unless this was
        kept last. ``number``: the round's, once invited. ``exposed``: its id, after ``expose`` and before
        ``answer``."""


class PassingMemory(Memory, Passing, Protocol):
    """The memory of such a client."""


@dataclass(repr=False)
class DurableMemory:
    """A deployed client's memory: its period, its key and its ledger are on disk before anything leaves.
    ``real`` are the rows of its data by shared table, the same for a whole period. ``today`` is asked
    whenever a round may begin; ``require_day`` raises where it is not to be trusted. Not for use by two
    threads at once."""

    state: ClientState
    privacy: IndexPrivacy
    tables: Tables
    real: Mapping[str, ArrayLike]
    _: KW_ONLY
    today: Callable[[], date]
    randomness: Randomness
    decoys: Decoys | None = None
    require_day: Callable[[], None] = lambda: None

    def prepare(self, acknowledged: int | None) -> None:
        self._begin(acknowledged)
        self.state.require_round()

    def enter(self, number: int) -> None:
        # Days may have passed since the check-in: a round belongs to the period in which it begins.
        self.require_day()
        self.prepare(None)

    def rounding(self, number: int) -> Randomness | None:
        return None

    def expose(self, round_id: bytes) -> dict[str, Indices]:
        return self.state.expose(round_id)

    def answer(
        self, round_id: bytes, unions: Mapping[str, ArrayLike], randomness: Randomness
    ) -> dict[str, Bits]:
        return self.state.answer(round_id, unions, randomness)

    def keep(self, snapshot: bytes | None) -> None:
        self.state.keep(snapshot)

    def go_on(self, snapshot: bytes, number: int | None, exposed: bytes | None) -> None:
        self._begin(None)
        self.state.go_on(snapshot, exposed)

    def _begin(self, acknowledged: int | None) -> None:
        self.state.begin(
            self.today(),
            self.privacy,
            self.tables,
            {name: self.real[name] for name in self.tables.shared},
            acknowledged=acknowledged,
            randomness=self.randomness,
            decoys=self.decoys,
        )

    @property
    def rests_until(self) -> date | None:
        return self.state.next_period


@dataclass
class Chance:
    """A source of randomness that is chosen once the round is known."""

    source: Randomness

    def bytes(self, count: int, /) -> bytes:
        return self.source.bytes(count)


class Machine(Protocol):
    """The state machine of a client in a round of any kind."""

    def handle_invitation(self, invitation: Any, /) -> Message: ...
    def create_update(self, trained: Trained, /) -> Message: ...


M = TypeVar("M", bound=Machine)
R = TypeVar("R", bound=Remembers)


@dataclass(repr=False, eq=False)
class InRound(Generic[M, R]):
    """One client in one round of any kind. ``params`` are the round's, once it has joined and until it has
    masked; ``refused`` is why it declined. Messages are taken by the round's course; before it has joined by
    ``unjoined``, all but whose first its state machine refuses."""

    unjoined: ClassVar[Course]
    client: M
    memory: R
    trainer: Trainer
    personal: PersonalRows
    rounding: Chance
    params: RoundParams | HotParams | None = None
    refused: str = ""

    def __post_init__(self) -> None:
        if self.params is not None:
            self._draw(self.params.number)

    @property
    def number(self) -> int | None:
        return None if self.params is None else self.params.number

    @property
    def course(self) -> Course:
        return self.unjoined if self.params is None else course_of(self.params)

    def due(self, message: Message) -> Step:
        """Return the step of the course that begins with this message."""
        found = next((step for step in self.course.steps if type(message) is step.message), None)
        if found is None:
            raise WrongPhase(f"{type(message).__name__}, which no server sends in such a round")
        return found

    def answer(
        self, message: Message, training: Callable[[], None], published: Mapping[bytes, bytes]
    ) -> Message:
        """Answer, or raise and then nothing may be sent. ``training`` is called before it trains.
        ``published`` is what came with the message, by digest."""
        exchange = self.due(message).exchange
        if exchange is Exchange.INVITATION:
            return self.join(message)
        if exchange is not self.course.trains:
            return self.step(message)
        download = self.open(message, self._published(published))
        training()
        return self.upload(self.train(download))

    def join(self, invitation: Any) -> Message:
        """Join the round, or decline it aloud, so that nobody waits: the invitation, fixed settings and how
        often this client took part decide that. What may depend on its data is declined by silence."""
        try:
            answer = self._accept(invitation)
        except (Refused, BudgetExhausted) as reason:
            self.refused = str(reason)
            return Decline(invitation.roster.params.round_id)
        self._enter(invitation.round.number)
        self.params = invitation.round
        self._draw(invitation.round.number)
        return answer

    @abstractmethod
    def _accept(self, invitation: Any) -> Message:
        """Answer an invitation, or refuse it by what anyone may know."""

    def _enter(self, number: int) -> None:
        """Raise where a round that was accepted is not for this client after all."""

    def step(self, message: Message) -> Message:
        answer: Message = getattr(self.client, self.due(message).handler)(message)
        return answer

    @abstractmethod
    def open(self, message: Any, published: Published | None) -> Download:
        """Take the message before training, and what was ``published`` where the round has such a thing."""

    def _published(self, came: Mapping[bytes, bytes]) -> Published | None:
        return None

    def train(self, download: Download) -> Lesson:
        """Train, and learn nothing where that fails. A client that stayed away because of its data would tell
        the server so, and nothing accounts for that."""
        try:
            own = {name: self.personal.read(name, rows) for name, rows in self.trainer.personal.items()}
            return self.trainer.train(download, own, self.number or 0)
        except StateError:
            raise
        except Exception:
            log.exception("training failed; this client sends zeros")
            return Lesson(self._nothing(), {})

    def upload(self, lesson: Lesson) -> Message:
        """Make the update; of zeros, where what was learned cannot be encoded. Own rows move only with what
        was learned, and before it is sent; those that are no numbers stay as they were."""
        try:
            update = self.client.create_update(lesson.trained)
        except InputError:
            log.exception("what was learned is no update; this client sends zeros")
            return self.client.create_update(self._nothing())
        try:
            self.personal.keep(lesson.personal)
        except InputError as error:
            log.warning("own rows stay as they were: %s", error)
        return update

    def _nothing(self) -> Trained:
        assert self.params is not None  # noqa: S101 -- it has joined
        model = self.params.model
        none = np.zeros(0, np.int64)
        rows = {
            table.name: TrainedRows(RowSet(none), np.zeros((0, table.width)), none) for table in model.summed
        }
        return Trained(np.zeros(model.dense), 0, rows, None)

    def _draw(self, number: int) -> None:
        self.rounding.source = self.memory.rounding(number) or self.rounding.source


class ClientRound(InRound[RoundClient, Memory]):
    """One client in one round of submodels."""

    unjoined = SUBMODELS

    def _accept(self, invitation: Invitation) -> Message:
        self.trainer.require(invitation.round.training)
        return self.client.handle_invitation(invitation)

    def _enter(self, number: int) -> None:
        self.memory.enter(number)

    def open(self, message: Submodel, published: Published | None = None) -> Download:
        return self.client.handle_submodel(message)
