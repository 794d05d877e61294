"""Runs rounds one after another for clients that converse over tickets (spec network 5). No HTTP in it.

Clients check in, ask for their next message and answer it. Everything that one of them could do to keep a
round from going on is refused here, before the round sees it.

All that touches the round or the store happens in one worker thread, one thing at a time; conversations
belong to the event loop. Killed at any point, the store holds round r or r + 1, and a round that was under
way is never gone on with: nobody but this process knows its tickets.
"""

import asyncio
import hashlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from typing import TypeVar

from sfsl.carriers.https.conversation import Conversation, Conversations
from sfsl.carriers.https.status import Status, Totals
from sfsl.errors import (
    Aborted,
    ConflictingMessage,
    RemoteError,
    RoundOver,
    SfslError,
    ShuttingDown,
    StoreError,
    StoreFull,
    StoreInUse,
    TooMany,
    WrongPhase,
)
from sfsl.rounds.exchanges import Exchange
from sfsl.rounds.record import RoundTally
from sfsl.service.disk import DiskTrouble
from sfsl.service.driver import CohortRound, Service
from sfsl.service.members import admit_check_in
from sfsl.service.messages import CODEC, CheckedIn, CheckIn

log = logging.getLogger(__name__)

_FULL_WAIT_MS = 30_000
_UNTOLD_SECONDS = 5.0
_LOCKED = "another process holds the registry"
_PAUSE_SECONDS = 0.5
_ROOM_AGAIN = "there is room on the disk again; the server goes on"
SHUTTING = "the server is shutting down; check in again later"
T = TypeVar("T")
Cohort = dict[str, Conversation]
WAITING, _ROUNDS, _REQUESTS = "waiting", "rounds", "requests"


class CheckIns:
    """Holds conversations with clients. It belongs to the event loop; ``work`` does a thing in the round's
    thread. ``round`` is the last one committed. ``changed`` is set whenever the run of rounds should look
    again."""

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
        service = self._service
        publics = admit_check_in(client, message, service.model_digest, identities, sums=service.rules.sums)
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
        """Take these out of those who wait, and return them and the period in which their round counts. If
        some were revoked meanwhile, those are let go and nobody is taken."""
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

    async def all_told(self) -> None:
        """Wait until all who lasted through the last round have asked how it ended."""
        for one in self._conversations.untold(self.round):
            await one.told.wait()

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
        """Take the answer to a message, or raise. The same bytes again are taken silently. ``fingerprint`` is
        SHA-256 of ``data``, where the caller has it already."""
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


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def steady_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Coordinator:
    """Runs one round at a time of a ``service``, with the clients at its ``check_ins``. ``disk``: who else
    has trouble with it. Before it ends, it waits for clients to hear how their last round ended, until
    ``goodbye_seconds`` after that at most."""

    def __init__(
        self, service: Service, disk: DiskTrouble | None = None, *, goodbye_seconds: float = _UNTOLD_SECONDS
    ) -> None:
        self._service, self._clock, self._goodbye_seconds = service, service.clock, goodbye_seconds
        self._disk = disk or DiskTrouble()
        self._trying: asyncio.Task[None] | None = None
        self.settings, self.registry = service.settings, service.registry
        self.model_digest, self.binds_model = service.model_digest, service.binds_model
        self.totals = Totals()
        # For whoever looks at the status: TLS is the listener's, and noise is planned by whoever deploys.
        self.certificate_ends: float | None = None
        self.rounds_allowed: int | None = None
        self._deadline: float | None = None  # of what is waited for now
        self._members: Cohort = {}
        self._running: CohortRound | None = None
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="sfsl-round")
        self._give_up_at: float | None = None
        self._in_haste = False
        self._round_over = -math.inf  # when the last one ended
        self._goodbye: asyncio.Task[None] | None = None
        self._degraded = ""
        self._ended = asyncio.Event()
        self.check_ins = CheckIns(service, self._work)

    async def run(self) -> None:
        """Run rounds until ``stop``. Raise only where going on would be wrong: with a store that fails."""
        try:
            while not self.finished and (chosen := await self._form()) is not None:
                await self._round(*chosen)
            self._take_leave()
            await self._say_goodbye()
        finally:
            self._take_leave()
            if self._goodbye is not None:
                self._goodbye.cancel()
            if self._trying is not None:
                self._trying.cancel()
            self._ended.set()
            self._worker.shutdown(wait=True)

    def _take_leave(self) -> None:
        self.check_ins.stopping = True
        self.check_ins.dismiss_all("this was the last round that was planned" if self.finished else SHUTTING)

    async def _say_goodbye(self) -> None:
        """Stay until the last round has heard how it ended, a few seconds from then at most, unless nobody is
        to wait any more. A client between an answer and the next question would hear nothing from a server
        that is gone, and wait for it."""
        left = self._round_over + self._goodbye_seconds - self._clock()
        if left > 0 and not self._in_haste:
            self._goodbye = asyncio.create_task(self.check_ins.all_told())
            await asyncio.wait({self._goodbye}, timeout=left)

    async def stop(self) -> None:
        """Take nothing new; let the round under way finish or, after a while, abort it; tell the clients, for
        whose questions it waits some seconds."""
        if not self.check_ins.stopping:
            self.check_ins.stopping = True
            self._give_up_at = self._clock() + self.settings.grace_seconds
            self.check_ins.changed.set()
        await self._ended.wait()

    def give_up(self) -> None:
        """Abort the round under way now, and wait for nobody; this comes after ``stop``."""
        self._give_up_at, self._in_haste = self._clock(), True
        self.check_ins.changed.set()
        if self._goodbye is not None:
            self._goodbye.cancel()

    @property
    def under_way(self) -> bool:
        """Whether there is a round."""
        return bool(self._members)

    @property
    def degraded(self) -> str:
        """What keeps the server from working as it should; empty where nothing does."""
        return self._disk.why or self._degraded or (_LOCKED if self.registry.locked else "")

    @property
    def finished(self) -> bool:
        """Whether all rounds that are planned are in the store."""
        return 0 < self.settings.rounds <= self.check_ins.round

    def published(self, client: str, digest: bytes) -> bytes | None:
        """Return what this client's round has published under this digest, if anything."""
        running = self._running
        return None if running is None or client not in self._members else running.published.get(digest)

    def downloaded(self, size: int) -> None:
        """Count what a client of the round under way was sent besides its messages."""
        if (running := self._running) is not None and running.course.trains is not None:
            running.tally.down(running.course.trains, size)

    def status(self) -> Status:
        running, totals, told = self._running, self.totals, self._service.told
        return Status(
            deployment=self.registry.deployment.hex(),
            round=self.check_ins.round,
            phase=WAITING if running is None else running.exchange or "committing",
            expected=0 if running is None else len(running.expected),
            heard=0 if running is None else len(running.answered),
            cohort=len(self._members),
            waiting=len(self.check_ins.waiting),
            enrolled=self.registry.count(),
            stopping=self.check_ins.stopping,
            committed=totals.committed,
            aborted=totals.aborted,
            auc=totals.auc,
            log_loss=totals.log_losses[0],
            base_log_loss=totals.log_losses[1],
            rounds=totals.listed,
            certificate_ends=self.certificate_ends,
            degraded=self.degraded,
            seconds_left=None if self._deadline is None else max(0.0, self._deadline - self._clock()),
            steps=() if running is None else tuple(running.order),
            wanted=self.settings.cohort,
            least=self.settings.min_cohort,
            exposures=self.registry.exposures(),
            rounds_allowed=self.rounds_allowed,
            had_turn=len(self._service.members.had_their_turn()),
            period_ends=self._service.members.period_ends,
            **asdict(told),
        )

    async def _form(self) -> tuple[Cohort, int | None] | None:
        """Form the next cohort; return it and its period, or None when the server is to stop."""
        check_ins, settings = self.check_ins, self.settings
        self._deadline = None
        await self._until(lambda: bool(check_ins.waiting))
        deadline = self._deadline = self._clock() + settings.check_in_seconds
        while not check_ins.stopping:
            await self._until(lambda: len(check_ins.waiting) >= settings.cohort, deadline)
            await self._until(lambda: len(check_ins.waiting) >= settings.min_cohort)
            if check_ins.stopping:
                break
            late = self._clock() >= deadline
            try:
                waiting = check_ins.eligible()
                if len(waiting) >= (settings.min_cohort if late else settings.cohort):
                    chosen = check_ins.take(self._service.choose(waiting, settings.cohort))
                    if chosen is not None:
                        return chosen
            except (StoreInUse, StoreFull) as error:
                await self._wait_for(error)
        return None

    async def _until(self, ready: Callable[[], bool], deadline: float | None = None) -> None:
        """Wait until it is so, or the deadline, or the server is to stop."""
        while not ready() and not self.check_ins.stopping:
            left = None if deadline is None else deadline - self._clock()
            if left is not None and left <= 0:
                return
            await self._change(left)

    async def _change(self, seconds: float | None) -> None:
        """Wait for something to look at. Nothing is awaited between looking and this."""
        self.check_ins.changed.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.check_ins.changed.wait(), seconds)

    async def _round(self, members: Cohort, period: int | None) -> None:
        start, number, tally = self._clock(), self.check_ins.round + 1, RoundTally(len(members))
        self._members, self._deadline = members, None
        reason = None
        try:
            await self._exchanges(number, members, period, tally)
        except StoreError:
            self._tell("aborted", number, "the server failed; check in again later")
            raise
        except SfslError as error:
            reason = str(error)
            self.totals.left_out += self._service.blame(number, error)
        except Exception:
            log.exception("round %d failed by a mistake of this program", number)
            reason = "the server made a mistake; its log says which"
        try:
            running, seconds = self._running, self._clock() - start
            line = await self._persist(
                lambda: self._service.finish(running, tally, aborted=reason, seconds=seconds), number
            )
        except BaseException:
            if reason is None and self._stands(number):
                self._tell("committed", number, f"round {number} is committed; the server failed after it")
            else:
                self._tell("aborted", number, "the server could not commit the round; check in again")
            raise
        self.check_ins.round = number
        self.totals.add(line, tally)
        if reason is None:
            self._tell("committed", number, f"round {number} is committed")
        else:
            self._tell("aborted", number, reason)
        self._members, self._running, self._round_over = {}, None, self._clock()

    def _stands(self, number: int) -> bool:
        """Return whether round ``number`` is in the store, whatever failed since."""
        try:
            return self._service.store.round >= number
        except StoreError:
            return False

    async def _exchanges(self, number: int, members: Cohort, period: int | None, tally: RoundTally) -> None:
        running, outbound = await self._persist(lambda: self._begin(members, period, tally))
        self._running = running
        for conversation in members.values():
            conversation.running = running
        while exchange := running.exchange:
            began = self._clock()
            for client, frame in outbound.items():
                members[client].say(frame)
            self._deadline = began + self.settings.deadline(exchange)
            await self._answers(running, self._deadline)
            self._deadline = None
            outbound = await self._persist(running.close)
            tally.exchange_seconds[exchange] = self._clock() - began
            if running.exchange:
                why = f"no answer to {exchange!r} in time; this client is out of round {number}"
                for client in members.keys() - outbound:
                    self.check_ins.dismiss(members[client], "left-out", why)

    async def _answers(self, running: CohortRound, deadline: float) -> None:
        """Wait until all who are left have answered, or time is up, or the server will not wait longer."""

        def awaited() -> bool:
            left = running.expected - running.answered
            return any(self._members[client].over is None for client in left)

        while awaited():
            now = self._clock()
            until = deadline if self._give_up_at is None else min(deadline, self._give_up_at)
            if self._give_up_at is not None and now >= self._give_up_at:
                raise Aborted("the server was told to stop before the round was over")
            if now >= until:
                return
            await self._change(until - now)

    def _tell(self, outcome: str, number: int, message: str) -> None:
        """Tell everyone who is still in the round how it ended."""
        for conversation in self._members.values():
            conversation.end(outcome, number, message)

    async def _work(self, job: Callable[[], T]) -> T:
        """Do this in the worker thread."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, job)

    async def _persist(self, job: Callable[[], T], commits: int | None = None) -> T:
        """Do this in the worker thread, again and again while another process holds the registry or the disk
        is full: what has to be written comes first in the job, so that nothing was done yet. Nobody is asked
        or told anything twice. A job that ``commits`` a round which stands, whatever failed after it, is not
        done again. A server that is to stop does not wait longer than its grace."""
        while True:
            try:
                done = await self._work(job)
            except (StoreInUse, StoreFull) as error:
                late = self._give_up_at is not None and self._clock() >= self._give_up_at
                if late or (commits is not None and self._stands(commits)):
                    raise
                await self._wait_for(error)
            else:
                self._disk.ends(_ROUNDS, _ROOM_AGAIN)
                if self._degraded:
                    log.info("the registry is free again; the server goes on")
                    self._degraded = ""
                return done

    async def _wait_for(self, error: StoreInUse | StoreFull) -> None:
        if isinstance(error, StoreFull):
            self._disk.begins(_ROUNDS, f"{error}. The server waits for room, and rounds with it")
        else:
            if not self._degraded:
                log.warning("%s. The server waits for it, and rounds with it", error)
            self._degraded = _LOCKED
        await asyncio.sleep(_PAUSE_SECONDS)

    def put_off(self, error: StoreFull) -> None:
        """Note that there was no room for what a request has to write; it comes again by itself."""
        self._disk.begins(_REQUESTS, f"{error}. The server waits for room, and puts requests off")
        if not self._ended.is_set() and (self._trying is None or self._trying.done()):
            self._trying = asyncio.create_task(self._try_disk())

    async def _try_disk(self) -> None:
        while not await self._work(self._disk.takes_again):
            await asyncio.sleep(_PAUSE_SECONDS)
        self._disk.ends(_REQUESTS, _ROOM_AGAIN)

    def _begin(
        self, members: Cohort, period: int | None, tally: RoundTally
    ) -> tuple[CohortRound, dict[str, bytes]]:
        """Begin the round, in the worker thread, and tally what the check-ins cost."""
        start, registry = time.thread_time(), self.registry
        active = self.settings.rules.active
        identities = {client: registry.public_key(client) for client in members} if active else None
        check_ins = {client: one.check_in for client, one in members.items()}
        running = self._service.invite(check_ins, identities, tally, period)
        for one in members.values():
            tally.up(Exchange.CHECK_IN, len(CODEC.encode(one.check_in)))
            tally.down(Exchange.CHECK_IN, len(CODEC.encode(CheckedIn(one.ticket, one.acknowledged))))
        tally.answered[Exchange.CHECK_IN] = len(members)
        tally.server_seconds[Exchange.CHECK_IN] = time.thread_time() - start
        return running, running.begin()
