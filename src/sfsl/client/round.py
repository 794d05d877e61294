"""What a client does with each message of a round, whatever brings it, with a memory and a trainer of its
own.

Nothing here waits or sends. The steps are apart because training may have a thread of its own; ``answer``
takes them one after another.
"""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import date
from typing import Generic, Protocol, TypeVar

from numpy.typing import ArrayLike

from sfsl.arrays import Bits, Indices, Values
from sfsl.client.home import PersonalRows
from sfsl.codec import Message
from sfsl.crypto.secret import Identity, Randomness
from sfsl.errors import Refused, WrongPhase
from sfsl.privacy import ClientState, Decoys, IndexPrivacy, Tables
from sfsl.rounds import Download, RoundClient, RoundPolicy, Trained
from sfsl.rounds.client import Answers, Own
from sfsl.rounds.exchanges import HANDLERS, Invitation, Submodel
from sfsl.service.messages import Decline
from sfsl.submodel import ModelSpec, RowMaps

Remembered = TypeVar("Remembered")


@dataclass(frozen=True)
class ClientModel:
    """``digest`` is that of the package from which ``spec`` and ``maps`` were built, ``names`` that of what a
    catalogue calls its rows; empty where there is none."""

    digest: bytes
    spec: ModelSpec
    maps: RowMaps
    names: bytes = b""

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
        told = (policy, randomness, rounding, self.names)
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


class Memory(Answers, Protocol):
    """The answers of one client. In a round: ``prepare``, ``enter``, ``expose``, ``answer``."""

    def prepare(self, acknowledged: int | None) -> None:
        """Raise ``Declined`` unless one more round is allowed today. ``acknowledged``: how many of its rounds
        the server has seen, None before it was asked."""

    def enter(self, number: int) -> None:
        """The same, now that a round with this number begins."""

    def rounding(self, number: int) -> Randomness | None:
        """What draws how the numbers of its update are rounded; None: what draws its keys."""

    @property
    def rests_until(self) -> date | None:
        """The day from which a declined client may try again, where that is known."""


class PassingMemory(Memory, Protocol):
    """The memory of a client whose messages are each answered by a process of its own."""

    def keep(self, snapshot: bytes | None) -> None:
        """Before an answer leaves: the round goes on from this only; None: from nothing."""

    def go_on(self, snapshot: bytes, number: int | None, exposed: bytes | None) -> None:
        """In the next process, instead of ``prepare`` and ``enter``. Raises ``RolledBack`` unless this was
        kept last. ``number``: the round's, once invited. ``exposed``: its id, after ``expose`` and before
        ``answer``."""


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

    def create_update(self, trained: Trained) -> Message: ...


class Remembers(Protocol):
    """What the memories of clients in rounds of any kind have in common."""

    def rounding(self, number: int) -> Randomness | None:
        """What draws how the numbers of its update are rounded; None: what draws its keys."""


M = TypeVar("M", bound=Machine)
R = TypeVar("R", bound=Remembers)


@dataclass(repr=False, eq=False)
class InRound(Generic[M, R]):
    """One client in one round of any kind. ``number`` is the round's, once it has joined; ``refused`` why it
    declined."""

    client: M
    memory: R
    trainer: Trainer
    personal: PersonalRows
    rounding: Chance
    number: int | None = None
    refused: str = ""

    def __post_init__(self) -> None:
        if self.number is not None:
            self._draw(self.number)

    def train(self, download: Download) -> Lesson:
        own = {name: self.personal.read(name, rows) for name, rows in self.trainer.personal.items()}
        return self.trainer.train(download, own, self.number or 0)

    def upload(self, lesson: Lesson) -> Message:
        """Make the update. Own rows move only with one that can be sent, and before it is."""
        update = self.client.create_update(lesson.trained)
        self.personal.keep(lesson.personal)
        return update

    def _draw(self, number: int) -> None:
        self.rounding.source = self.memory.rounding(number) or self.rounding.source


class ClientRound(InRound[RoundClient, Memory]):
    """One client in one round of submodels."""

    def answer(self, message: Message, training: Callable[[], None]) -> Message:
        """Answer, or raise and then nothing may be sent. ``training`` is called before it trains."""
        if isinstance(message, Invitation):
            return self.join(message)
        if isinstance(message, Submodel):
            download = self.open(message)
            training()
            return self.upload(self.train(download))
        return self.step(message)

    def join(self, invitation: Invitation) -> Message:
        number, params = invitation.round.number, invitation.roster.params
        try:
            self.trainer.require(invitation.round.training)
            answer = self.client.handle_invitation(invitation)
        except Refused as reason:
            # Said aloud, so that nobody waits: the invitation and fixed settings decided it. What comes
            # after this line may depend on this client's data, and is declined by silence.
            self.refused = str(reason)
            return Decline(params.round_id)
        self.memory.enter(number)
        self.number = number
        self._draw(number)
        return answer

    def step(self, message: Message) -> Message:
        if type(message) not in HANDLERS:
            raise WrongPhase(f"{type(message).__name__}, which no server sends")
        answer: Message = getattr(self.client, HANDLERS[type(message)])(message)
        return answer

    def open(self, submodel: Submodel) -> Download:
        return self.client.handle_submodel(submodel)
