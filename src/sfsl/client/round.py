"""What a client does with each message of a round, whatever brings it: one way for every engine.

Nothing here waits or sends. The steps are apart because training may have a thread of its own; ``answer``
takes them one after another.
"""

from collections.abc import Callable
from dataclasses import dataclass

from sfsl.client.memory import Memory
from sfsl.client.personal import PersonalRows
from sfsl.client.trainer import Lesson, Trainer
from sfsl.codec import Message
from sfsl.crypto.secret import Randomness
from sfsl.errors import Refused, WrongPhase
from sfsl.rounds import Download, RoundClient
from sfsl.rounds.exchanges import HANDLERS, Invitation, Submodel
from sfsl.service.messages import Decline


@dataclass
class Chance:
    """A source of randomness that is chosen once the round is known."""

    source: Randomness

    def bytes(self, count: int, /) -> bytes:
        return self.source.bytes(count)


@dataclass(repr=False, eq=False)
class ClientRound:
    """One client in one round. ``number`` is the round's, once it has joined; ``refused`` why it declined."""

    client: RoundClient
    memory: Memory
    trainer: Trainer
    personal: PersonalRows
    rounding: Chance
    number: int | None = None
    refused: str = ""

    def __post_init__(self) -> None:
        if self.number is not None:
            self._draw(self.number)

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
