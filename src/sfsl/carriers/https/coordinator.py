"""Runs rounds one after another for clients that converse over tickets (spec network 5). No HTTP in it.

All that touches the round or the store happens in one worker thread, one thing at a time; conversations
belong to the event loop. Killed at any point, the store holds round r or r + 1, and a round that was under
way is never gone on with: nobody but this process knows its tickets.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from sfsl.carriers.https.check_in import SHUTTING, CheckIns, Cohort
from sfsl.carriers.https.conversation import Conversation
from sfsl.carriers.https.status import Status, Totals
from sfsl.crypto.secret import Randomness
from sfsl.errors import Aborted, KeyMismatch, SfslError, StoreError
from sfsl.privacy import choose_uniformly
from sfsl.rounds.exchanges import Exchange
from sfsl.rounds.record import RoundRecord, RoundTally
from sfsl.service.driver import CohortRound, Driver
from sfsl.service.members import Members
from sfsl.service.messages import CODEC, CheckedIn
from sfsl.service.registry import Registry
from sfsl.service.settings import ServiceSettings
from sfsl.submodel import ModelSpec, RowMaps, RowStore

log = logging.getLogger(__name__)

T = TypeVar("T")

WAITING = "waiting"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Coordinator:
    """One model, one store, one round at a time. ``record`` is given the line of each round, to be kept.

    ``model_digest`` is what clients call the model by. ``clock`` counts seconds, ``today`` milliseconds since
    1970, which periods are cut from. Clients are at the ``check_ins``.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        model: ModelSpec,
        maps: RowMaps,
        store: RowStore,
        registry: Registry,
        *,
        model_digest: bytes,
        record: Callable[[RoundRecord], None],
        randomness: Randomness | None = None,
        clock: Callable[[], float] = time.monotonic,
        today: Callable[[], int] = now_ms,
    ) -> None:
        self.settings = settings
        self.registry = registry
        self.model_digest = model_digest
        self.totals = Totals()
        self._clock = clock
        self._driver = Driver(
            settings.rules,
            model,
            maps,
            store,
            cpu=time.thread_time,
            largest_set=settings.largest_set,
            registry=registry,
            record=record,
            randomness=randomness,
        )
        self._members: dict[str, Conversation] = {}
        self._running: CohortRound | None = None
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="sfsl-round")
        self._give_up_at: float | None = None
        self._ended = asyncio.Event()
        members = Members(settings, registry, clock=clock, today=today)
        self.check_ins = CheckIns(
            settings, registry, members, model_digest, self._driver.randomness, self._work, clock=clock
        )
        self.check_ins.round = store.round
        # What is wrong with the settings shows now, not when the first cohort is there.
        for clients in {settings.min_cohort, settings.cohort}:
            self._driver.plan(clients)

    # -- the life of the server ----------------------------------------------------------------

    async def run(self) -> None:
        """Rounds until ``stop``. Raises only where going on would be wrong, as with a store that fails."""
        try:
            while self._more() and (cohort := await self._form()) is not None:
                await self._round(cohort)
        finally:
            self.check_ins.stopping = True
            self.check_ins.dismiss_all(
                SHUTTING if self._more() else "this was the last round that was planned"
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
        """After ``stop``: abort the round under way now."""
        self._give_up_at = self._clock()
        self.check_ins.changed.set()

    @property
    def under_way(self) -> bool:
        """Whether there is a round."""
        return bool(self._members)

    @property
    def finished(self) -> bool:
        """Whether all rounds that are planned are in the store."""
        return not self._more()

    def status(self) -> Status:
        running, totals = self._running, self.totals
        return Status(
            deployment=self.registry.deployment.hex(),
            round=self.check_ins.round,
            phase=running.exchange or "committing" if running is not None else WAITING,
            expected=len(running.expected) if running is not None else 0,
            heard=len(running.answered) if running is not None else 0,
            cohort=len(self._members),
            waiting=len(self.check_ins.waiting),
            enrolled=self.registry.count(),
            stopping=self.check_ins.stopping,
            committed=totals.committed,
            aborted=totals.aborted,
            auc=totals.auc,
            rounds=tuple(reversed(totals.last)),
        )

    def _more(self) -> bool:
        return not self.settings.rounds or self.check_ins.round < self.settings.rounds

    # -- cohorts -------------------------------------------------------------------------------

    async def _form(self) -> Cohort | None:
        """The next cohort, each set of that size equally likely; None when the server is to stop."""
        check_ins, settings = self.check_ins, self.settings
        await self._until(lambda: bool(check_ins.waiting))
        deadline = self._clock() + settings.check_in_seconds
        while not check_ins.stopping:
            await self._until(lambda: len(check_ins.waiting) >= settings.cohort, deadline)
            await self._until(lambda: len(check_ins.waiting) >= settings.min_cohort)
            if check_ins.stopping:
                break
            waiting = check_ins.eligible()
            late = self._clock() >= deadline
            if len(waiting) >= (settings.min_cohort if late else settings.cohort):
                size = min(settings.cohort, len(waiting))
                chosen = check_ins.choose(choose_uniformly(waiting, size, self._driver.randomness))
                if chosen is not None:
                    return chosen
        return None

    async def _until(self, ready: Callable[[], bool], deadline: float | None = None) -> None:
        """Until it is so, or the deadline, or the server is to stop."""
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

    # -- one round -----------------------------------------------------------------------------

    async def _round(self, cohort: Cohort) -> None:
        start, number, tally = self._clock(), self.check_ins.round + 1, RoundTally()
        self._members = cohort.members
        reason = None
        try:
            await self._exchanges(number, cohort, tally)
        except StoreError:
            self._tell("aborted", number, "the server failed; check in again later")
            raise
        except SfslError as error:
            reason = str(error)
            if isinstance(error, KeyMismatch):
                self._leave_out(number, error.clients)
        except Exception:
            log.exception("round %d failed by a mistake of this program", number)
            reason = "the server made a mistake; its log says which"
        try:
            running, seconds = self._running, self._clock() - start
            line = await self._work(
                lambda: self._driver.finish(running, tally, aborted=reason, seconds=seconds)
            )
        except BaseException:
            self._tell("aborted", number, "the server could not commit the round; check in again")
            raise
        self.check_ins.round = number
        self._report(line, tally)
        if reason is None:
            self._tell("committed", number, f"round {number} is committed")
        else:
            self._tell("aborted", number, reason)
        self._members, self._running = {}, None

    def _leave_out(self, number: int, clients: Collection[str]) -> None:
        for client in clients:
            minutes = self.check_ins.members.leave_out(client) / 60
            log.warning(
                "client %s dealt shares that do not fit its keys and ended round %d: left out for %.0f min",
                client, number, minutes,
            )  # fmt: skip
        self.totals.left_out += len(clients)

    async def _exchanges(self, number: int, cohort: Cohort, tally: RoundTally) -> None:
        running, outbound = await self._work(lambda: self._begin(cohort, tally))
        self._running = running
        members = cohort.members
        for conversation in members.values():
            conversation.running = running
        log.info("round %d (%s): %d clients invited", number, running.round_id.hex(), len(members))
        while exchange := running.exchange:
            began = self._clock()
            for client, frame in outbound.items():
                members[client].say(frame)
            await self._answers(running, began + self.settings.deadline(exchange))
            outbound = await self._work(running.close)
            tally.exchange_seconds[exchange] = self._clock() - began
            if running.exchange:
                for client, conversation in members.items():
                    if client not in outbound:
                        why = f"no answer to {exchange!r} in time; this client is out of round {number}"
                        self.check_ins.dismiss(conversation, "left-out", why)

    async def _answers(self, running: CohortRound, deadline: float) -> None:
        """Until all who are left have answered, or time is up, or the server will not wait longer."""

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
        """Everyone who is still in the round how it ended."""
        for conversation in self._members.values():
            conversation.end(outcome, number, message)

    def _report(self, line: RoundRecord, tally: RoundTally) -> None:
        self.totals.add(line, tally)
        took = tally.exchange_seconds
        heard = ", ".join(
            f"{exchange} {count}" + (f" in {took[exchange]:.2f} s" if exchange in took else "")
            for exchange, count in tally.answered.items()
        )
        if line.aborted is None:
            log.info(
                "round %d committed: %d of %d clients, %.1f s; answered: %s",
                line.round, line.survivors, line.cohort, line.wall_seconds, heard,
            )  # fmt: skip
        else:
            log.warning("round %d aborted: %s; answered: %s", line.round, line.aborted, heard or "nobody")

    # -- in the worker thread ------------------------------------------------------------------

    async def _work(self, job: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, job)

    def _begin(self, cohort: Cohort, tally: RoundTally) -> tuple[CohortRound, dict[str, bytes]]:
        """Begin the round, and tally what the check-ins cost. Exact bytes of the invitations follow."""
        start, members, registry = time.thread_time(), cohort.members, self.registry
        active = self.settings.rules.active
        identities = {client: registry.public_key(client) for client in members} if active else None
        check_ins = {client: one.check_in for client, one in members.items()}
        running = self._driver.begin(check_ins, identities, tally, period=cohort.period)
        for one in members.values():
            tally.up(Exchange.CHECK_IN, len(CODEC.encode(one.check_in)))
            tally.down(Exchange.CHECK_IN, len(CODEC.encode(CheckedIn(one.ticket, one.acknowledged))))
        tally.answered[Exchange.CHECK_IN] = len(members)
        tally.server_seconds[Exchange.CHECK_IN] = time.thread_time() - start
        return running, running.begin()
