"""Where clients come: they check in, ask for their next message and answer it (spec network 5).

Everything a client could do to keep a round from going on is refused here, before the round sees it.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Collection

from sfsl.carriers.https.conversation import Conversation, Conversations
from sfsl.errors import ConflictingMessage, RemoteError, RoundOver, ShuttingDown, TooMany, WrongPhase
from sfsl.service.driver import CohortRound, Service
from sfsl.service.members import admit_check_in
from sfsl.service.messages import CODEC, CheckedIn, CheckIn

_FULL_WAIT_MS = 30_000
SHUTTING = "the server is shutting down; check in again later"


class CheckIns:
    """Holds conversations with clients. It belongs to the event loop; ``work`` does a thing in the round's
    thread.

    ``round`` is the last one committed. ``changed`` is set whenever the run of rounds should look again.
    """

    def __init__(self, service: Service, work: Callable[[Callable[[], None]], Awaitable[None]]) -> None:
        self.round, self.stopping = service.store.round, False
        self.changed = asyncio.Event()
        self.waiting: dict[str, Conversation] = {}
        self._service, self._registry, self._members = service, service.registry, service.members
        self._work, self._clock = work, service.clock
        self._conversations = Conversations(service.settings.most_clients)

    def check_in(self, client: str, message: CheckIn) -> CheckedIn:
        """Give a ticket for one round at most. The same bytes again get the same ticket."""
        if self.stopping:
            raise ShuttingDown(SHUTTING)
        fingerprint = hashlib.sha256(CODEC.encode(message)).digest()
        before = self._conversations.latest(client)
        if before is not None and before.fingerprint == fingerprint:
            return CheckedIn(before.ticket, before.acknowledged)
        self._require_check_in(client, message, before)
        if before is None and not self._conversations.room():
            raise TooMany("as many clients wait as this server takes", wait_ms=_FULL_WAIT_MS)
        acknowledged = self._registry.acknowledged(client)
        barred = self._members.bars(client)
        if before is not None:
            self.dismiss(before, "left-out", "this client checked in again, with other keys")
        ticket = self._service.randomness.bytes(16)
        added = Conversation(client, ticket, message, fingerprint, acknowledged, self._clock())
        self._conversations.add(added)
        if barred:
            added.end("not-chosen", self.round, barred)
        else:
            self.waiting[client] = added
            self.changed.set()
        return CheckedIn(ticket, acknowledged)

    def _require_check_in(self, client: str, message: CheckIn, before: Conversation | None) -> None:
        identities = {client: self._registry.public_key(client)} if self._service.rules.active else None
        publics = admit_check_in(client, message, self._service.model_digest, identities)
        if before is not None and before.publics & publics:
            raise ConflictingMessage(f"client {client} uses a key twice; every check-in has new ones")
        if any(self._conversations.holder(public) for public in publics):
            raise ConflictingMessage(f"client {client} checks in with a key that another client has")

    def eligible(self) -> Collection[str]:
        """Return who waits and may be chosen. Whoever did not ask for long is let go."""
        silence = 2 * self._service.settings.poll_seconds + 5
        now = self._clock()
        for client, one in list(self.waiting.items()):
            if not one.polls and now - one.heard_at > silence:
                why = f"this client was not heard for {silence:.0f} s; check in again"
                self.dismiss(one, "left-out", why)
            elif barred := self._members.bars(client):
                self.dismiss(one, "not-chosen", barred)
        return self.waiting.keys()

    def take(self, clients: Collection[str]) -> tuple[dict[str, Conversation], int | None] | None:
        """Take these out of those who wait, and return them and the period in which their round counts.

        If some were revoked meanwhile, those are let go and nobody is taken.
        """
        revoked = False
        for client in clients:
            try:
                self._registry.public_key(client)
            except RemoteError as error:
                self.dismiss(self.waiting[client], "left-out", str(error))
                revoked = True
        if revoked:
            return None
        period = self._members.take_turns(clients)
        return {client: self.waiting.pop(client) for client in clients}, period

    def dismiss(self, conversation: Conversation, outcome: str, message: str) -> None:
        in_round = conversation.running is not None
        conversation.end(outcome, self.round + in_round, message)
        if self.waiting.get(conversation.client) is conversation:
            del self.waiting[conversation.client]
        self.changed.set()

    def dismiss_all(self, message: str) -> None:
        for conversation in self._conversations.open():
            self.dismiss(conversation, "restarted", message)

    async def next(self, client: str, ticket: bytes, after: int, seconds: float) -> tuple[int, bytes] | None:
        """Return the message behind the first ``after``, or None within ``seconds``; ``RoundOver`` at the
        end."""
        conversation = self._find(client, ticket)
        conversation.heard_at = self._clock()
        try:
            found = await conversation.next(after, min(seconds, self._service.settings.poll_seconds))
        finally:
            conversation.heard_at = self._clock()
        if found is not None and found[0] > conversation.delivered:
            conversation.delivered = found[0]
            if (running := conversation.running) is not None:
                running.tally.down(running.order[found[0] - 1], len(found[1]))
        return found

    def answer_limit(self, client: str, ticket: bytes, number: int) -> int:
        """Return how many bytes an answer may have, before any is read; raise where none is due at all."""
        conversation = self._find(client, ticket)
        size = conversation.taken_size(number)  # perhaps the answer to it was lost, and it is sent again
        return self._due(conversation, number).limit(client) if size is None else size

    async def answer(
        self, client: str, ticket: bytes, number: int, data: bytes, fingerprint: bytes | None = None
    ) -> None:
        """Take the answer to a message, or raise. The same bytes again are taken silently.

        ``fingerprint`` is SHA-256 of ``data``, where the caller has it already.
        """
        conversation = self._find(client, ticket)
        conversation.heard_at = self._clock()
        fingerprint = fingerprint or hashlib.sha256(data).digest()
        async with conversation.lock:
            if conversation.took(number, fingerprint):
                return
            running = self._due(conversation, number)

            def receive() -> None:
                running.receive(running.order[number - 1], client, data)
                conversation.take(number, fingerprint, len(data))

            await self._work(receive)
        if client in running.declined:
            self.dismiss(conversation, "left-out", "this client declined the round")
        self.changed.set()

    def _due(self, conversation: Conversation, number: int) -> CohortRound:
        """Return the round that waits for this answer."""
        running = conversation.running
        try:
            conversation.require_due(number)
        except WrongPhase:
            if running is not None and conversation.over is not None:
                running.tally.late += 1
            raise
        if running is None:
            raise WrongPhase("this client is in no round")
        return running

    def _find(self, client: str, ticket: bytes) -> Conversation:
        found = self._conversations.find(client, ticket)
        if found is None:
            raise RoundOver(
                "this ticket is not known: the server was restarted, or the ticket is old; check in again",
                outcome="restarted",
                round_number=self.round,
            )
        return found
