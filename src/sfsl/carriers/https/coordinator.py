"""Runs rounds one after another for clients that converse over tickets (spec network 5). No HTTP in it.

All that touches the round or the store happens in one worker thread, one thing at a time; conversations
belong to the event loop. Killed at any point, the store holds round r or r + 1, and a round that was under
way is never gone on with: nobody but this process knows its tickets.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from sfsl.carriers.https.check_in import SHUTTING, CheckIns
from sfsl.carriers.https.conversation import Conversation
from sfsl.carriers.https.status import Status, Totals
from sfsl.errors import Aborted, SfslError, StoreError
from sfsl.rounds.exchanges import Exchange
from sfsl.rounds.record import RoundTally
from sfsl.service.driver import CohortRound, Service
from sfsl.service.messages import CODEC, CheckedIn

log = logging.getLogger(__name__)

T = TypeVar("T")
Cohort = dict[str, Conversation]

WAITING = "waiting"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Coordinator:
    """Runs one round at a time of a ``service``, with the clients at its ``check_ins``."""

    def __init__(self, service: Service) -> None:
        self._service, self._clock = service, service.clock
        self.settings, self.registry = service.settings, service.registry
        self.model_digest = service.model_digest
        self.totals = Totals()
        self._members: Cohort = {}
        self._running: CohortRound | None = None
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="sfsl-round")
        self._give_up_at: float | None = None
        self._ended = asyncio.Event()
        self.check_ins = CheckIns(service, self._work)

    async def run(self) -> None:
        """Run rounds until ``stop``. Raise only where going on would be wrong: with a store that fails."""
        try:
            while not self.finished and (chosen := await self._form()) is not None:
                await self._round(*chosen)
        finally:
            self.check_ins.stopping = True
            self.check_ins.dismiss_all(
                "this was the last round that was planned" if self.finished else SHUTTING
            )
            self._ended.set()
            self._worker.shutdown(wait=True)

    async def stop(self) -> None:
        """Take nothing new; let the round under way finish or, after a while, abort it; tell the clients."""
        if not self.check_ins.stopping:
            self.check_ins.stopping = True
            self._give_up_at = self._clock() + self.settings.grace_seconds
            self.check_ins.changed.set()
        await self._ended.wait()

    def give_up(self) -> None:
        """Abort the round under way now; this comes after ``stop``."""
        self._give_up_at = self._clock()
        self.check_ins.changed.set()

    @property
    def under_way(self) -> bool:
        """Whether there is a round."""
        return bool(self._members)

    @property
    def finished(self) -> bool:
        """Whether all rounds that are planned are in the store."""
        return 0 < self.settings.rounds <= self.check_ins.round

    def status(self) -> Status:
        running, totals = self._running, self.totals
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
            rounds=tuple(reversed(totals.last)),
        )

    async def _form(self) -> tuple[Cohort, int | None] | None:
        """Form the next cohort; return it and its period, or None when the server is to stop."""
        check_ins, settings = self.check_ins, self.settings
        await self._until(lambda: bool(check_ins.waiting))
        deadline = self._clock() + settings.check_in_seconds
        while not check_ins.stopping:
            await self._until(lambda: len(check_ins.waiting) >= settings.cohort, deadline)
            await self._until(lambda: len(check_ins.waiting) >= settings.min_cohort)
            if check_ins.stopping:
                break
            waiting, late = check_ins.eligible(), self._clock() >= deadline
            if len(waiting) >= (settings.min_cohort if late else settings.cohort):
                chosen = check_ins.take(self._service.choose(waiting, settings.cohort))
                if chosen is not None:
                    return chosen
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
        self._members = members
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
            line = await self._work(
                lambda: self._service.finish(running, tally, aborted=reason, seconds=seconds)
            )
        except BaseException:
            self._tell("aborted", number, "the server could not commit the round; check in again")
            raise
        self.check_ins.round = number
        self.totals.add(line, tally)
        if reason is None:
            self._tell("committed", number, f"round {number} is committed")
        else:
            self._tell("aborted", number, reason)
        self._members, self._running = {}, None

    async def _exchanges(self, number: int, members: Cohort, period: int | None, tally: RoundTally) -> None:
        running, outbound = await self._work(lambda: self._begin(members, period, tally))
        self._running = running
        for conversation in members.values():
            conversation.running = running
        while exchange := running.exchange:
            began = self._clock()
            for client, frame in outbound.items():
                members[client].say(frame)
            await self._answers(running, began + self.settings.deadline(exchange))
            outbound = await self._work(running.close)
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
