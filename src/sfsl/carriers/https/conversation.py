"""What one client is told under one ticket, and which of its answers were taken (spec network 5)."""

import asyncio
import hmac
from contextlib import suppress
from dataclasses import dataclass, field

from sfsl.errors import ConflictingMessage, RoundOver, WrongPhase
from sfsl.service.driver import CohortRound
from sfsl.service.messages import CheckIn


@dataclass(frozen=True)
class Over:
    """Says how a conversation ended."""

    outcome: str
    round: int
    message: str

    def error(self) -> RoundOver:
        return RoundOver(self.message, outcome=self.outcome, round_number=self.round)


@dataclass(eq=False)
class Conversation:
    """Holds what is said to one client. Messages are numbered from 1, and only the last is kept: whoever gets
    the next one has answered it. ``fingerprint`` is that of the check-in. ``heard_at``: when the client last
    asked or said something. ``running``: the round it was chosen for. ``told``: it has heard how it ended."""

    client: str
    ticket: bytes = field(repr=False)
    check_in: CheckIn = field(repr=False)
    fingerprint: bytes = field(repr=False)
    acknowledged: int
    heard_at: float
    number: int = 0
    delivered: int = 0
    over: Over | None = None
    polls: int = 0
    running: CohortRound | None = None
    told: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)
    _frame: bytes = field(default=b"", repr=False)
    _answers: dict[int, tuple[bytes, int]] = field(default_factory=dict, repr=False)
    _changed: asyncio.Event = field(default_factory=asyncio.Event, repr=False)

    @property
    def publics(self) -> frozenset[bytes]:
        return frozenset((self.check_in.keys.channel, *self.check_in.keys.masks))

    def say(self, frame: bytes) -> None:
        self.number += 1
        self._frame = frame
        self._changed.set()

    def end(self, outcome: str, round_number: int, message: str) -> None:
        """Say nothing more. The first end stands."""
        if self.over is None:
            self.over = Over(outcome, round_number, message)
            self._frame = b""
            self._changed.set()

    async def next(self, after: int, seconds: float) -> tuple[int, bytes] | None:
        """Return the message behind the first ``after``, or None if there is none within ``seconds``. A
        client has one question open: asking again answers the one before with None."""
        found = self._ready(after)
        if found is not None or seconds <= 0:
            return found
        self._changed.set()
        mine = self._changed = asyncio.Event()
        self.polls += 1
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(mine.wait(), seconds)
        finally:
            self.polls -= 1
        return self._ready(after)

    def _ready(self, after: int) -> tuple[int, bytes] | None:
        if self.over is not None:
            self.told.set()
            raise self.over.error()
        if after == self.number:
            return None
        if after != self.number - 1:
            raise WrongPhase(f"{self.number} messages were sent so far; {after} cannot have been received")
        return self.number, self._frame

    def took(self, number: int, fingerprint: bytes) -> bool:
        """Return whether this very answer was taken before; another one in its place is refused."""
        taken = self._answers.get(number)
        if taken is not None and taken[0] != fingerprint:
            raise ConflictingMessage(f"a second, different answer to message {number}")
        return taken is not None

    def take(self, number: int, fingerprint: bytes, size: int) -> None:
        self._answers[number] = (fingerprint, size)

    def taken_size(self, number: int) -> int | None:
        """Return the bytes of the answer that was taken, if one was."""
        return self._answers[number][1] if number in self._answers else None

    def require_due(self, number: int) -> None:
        """Refuse an answer that comes too late, too early or to nothing."""
        if self.over is not None:
            if self.over.outcome == "left-out":
                raise WrongPhase(f"too late: {self.over.message}")
            self.told.set()
            raise self.over.error()
        if number != self.number:
            raise WrongPhase(f"an answer to message {number}; the last one sent is {self.number}")


class Conversations:
    """Keeps each client's last conversation, and the one before, for whoever still asks about it. Those that
    are over make room for new ones."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._of: dict[str, Conversation] = {}  # oldest first
        self._before: dict[str, Conversation] = {}
        self._open: dict[bytes, str] = {}  # public keys in use, and whose they are

    def latest(self, client: str) -> Conversation | None:
        return self._of.get(client)

    def find(self, client: str, ticket: bytes) -> Conversation | None:
        """Return the conversation under this ticket, which is of use to its own client only."""
        for found in (self._of.get(client), self._before.get(client)):
            if found is not None and hmac.compare_digest(found.ticket, ticket):
                return found
        return None

    def open(self) -> list[Conversation]:
        return [one for one in self._of.values() if one.over is None]

    def untold(self, number: int) -> list[Conversation]:
        """Return those who lasted through round ``number`` and have not heard yet how it ended."""
        return [
            one
            for one in self._of.values()
            if one.running is not None
            and one.over is not None
            and one.over.round == number
            and one.over.outcome != "left-out"
            and not one.told.is_set()
        ]

    def holder(self, public: bytes) -> str | None:
        """Return whose open conversation has this key."""
        found = self._of.get(self._open.get(public, ""))
        return found.client if found and found.over is None and public in found.publics else None

    def room(self) -> bool:
        """Make room for one more, if that can be done without ending anyone's."""
        if len(self._of) < self._most:
            return True
        ended = [client for client, one in self._of.items() if one.over is not None]
        for client in ended[: max(1, len(ended) // 2)]:
            self._drop(client)
        return len(self._of) < self._most

    def add(self, conversation: Conversation) -> None:
        if (before := self._drop(conversation.client)) is not None:
            self._before[conversation.client] = before
        self._of[conversation.client] = conversation
        self._open.update(dict.fromkeys(conversation.publics, conversation.client))

    def _drop(self, client: str) -> Conversation | None:
        self._before.pop(client, None)
        old = self._of.pop(client, None)
        for public in old.publics if old is not None else ():
            if self._open.get(public) == client:
                del self._open[public]
        return old
