"""One client on a network: checks in, takes part in rounds, sits out what its policy forbids.

Nothing here is global; everything that has a clock or chance in it comes in as an argument.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import partial
from typing import Any, TypeVar

from sfsl.client.backoff import Backoff
from sfsl.client.events import Event, Notify, nobody
from sfsl.client.link import Link, Over
from sfsl.client.memory import Memory
from sfsl.client.model import ClientModel
from sfsl.client.personal import PersonalRows
from sfsl.client.replies import OUTCOMES, About, Outcome
from sfsl.client.trainer import Trainer
from sfsl.codec import Message
from sfsl.crypto.identity import Identity
from sfsl.crypto.randomness import Randomness
from sfsl.engines.exchange.messages import CODEC, CheckIn, Decline
from sfsl.errors import (
    AuthenticationFailed,
    Declined,
    InputError,
    Refused,
    RemoteError,
    RolledBack,
    SfslError,
    StateError,
    WrongModel,
    WrongPhase,
    WrongVersion,
)
from sfsl.rounds import RoundClient, RoundPolicy
from sfsl.rounds.client import Phase
from sfsl.rounds.messages import Invitation, Submodel
from sfsl.secagg import Client
from sfsl.secagg.messages import InboundShares, Survivors, UnmaskRequest
from sfsl.union.messages import Union

Result = TypeVar("Result")

_SUMS = 2
_AN_HOUR = 3600.0
_STEPS: dict[type[Message], Callable[[RoundClient, Any], Message]] = {
    InboundShares: RoundClient.handle_inbound,
    Survivors: RoundClient.handle_survivors,
    UnmaskRequest: RoundClient.handle_unmask,
    Union: RoundClient.handle_union,
}


@dataclass(frozen=True)
class Work:
    """One message of a round: when it was here, and the CPU seconds that its answer took, without those of
    decoding the message."""

    at: float
    seconds: float


@dataclass(frozen=True)
class Attempt:
    """How one check-in ended. ``outcome`` "declined": by this client, for the reason ``why``.

    ``whole``: this client went through the round to its last exchange. ``work``: by message, in order.
    """

    outcome: Outcome | str
    why: str = ""
    round: int | None = None
    whole: bool = False
    work: tuple[Work, ...] = ()


@dataclass(frozen=True)
class Settings:
    """``small`` and ``large`` bound messages in bytes: lists of clients, and unions and submodels.

    ``pause_s`` is the wait after a round was declined, failed or had no place: longer each time.
    """

    small: int = 4 << 20
    large: int = 256 << 20
    pause_s: float = 5.0
    longest_pause_s: float = 600.0


@dataclass
class _Chance:
    """A source that is chosen once the round is known."""

    source: Randomness

    def bytes(self, count: int, /) -> bytes:
        return self.source.bytes(count)


@dataclass
class Participant:
    """``pinned`` are the identities of all clients by name, where it insists on active mode. ``worker`` runs
    the protocol's arithmetic, ``training`` the trainer; None: threads of the event loop.

    ``run`` is a coroutine to cancel at any time: a round under way goes on without this client, what was
    debited stays debited, and what it learned about itself is kept. ``now`` is in the time zone of the
    memory's days. ``clock`` counts seconds, ``cpu`` those that the thread it is asked in has computed.
    """

    link: Link
    model: ClientModel
    memory: Memory
    trainer: Trainer
    personal: PersonalRows
    policy: RoundPolicy
    randomness: Randomness
    settings: Settings = field(default_factory=Settings)
    notify: Notify = nobody
    identity: Identity | None = None
    pinned: Mapping[str, bytes] | None = None
    worker: Executor | None = None
    training: Executor | None = None
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    now: Callable[[], datetime] = datetime.now
    clock: Callable[[], float] = time.perf_counter
    cpu: Callable[[], float] = time.thread_time

    async def run(self, rounds: int | None = None, *, wait: bool = True) -> list[Attempt]:
        """Take part until ``rounds`` were gone through whole. Without ``wait``, stop where only the next
        period can help. Returns how the last attempts ended, a hundred at most."""
        await self.enrol()
        pause = Backoff(self.randomness, self.settings.pause_s, self.settings.longest_pause_s)
        ended: list[Attempt] = []
        whole = idle = strange = 0
        while rounds is None or whole < rounds:
            try:
                attempt = await self.take_part()
            except Declined as reason:
                ended = [*ended[-99:], self._declined(str(reason))]
                if not wait or not await self.rest():
                    break
                continue
            except AuthenticationFailed:
                strange += 1
                if strange > 1:
                    raise
                await self.enrol()  # a server restored from a backup may have forgotten this client
                continue
            ended = [*ended[-99:], attempt]
            whole += attempt.whole
            strange = 0
            idle = 0 if attempt.whole else idle + 1
            if idle:
                await self.sleep(pause.delay(idle - 1))
        return ended

    async def enrol(self) -> None:
        """Meet the server and become known to it; the same again changes nothing."""
        about = await self.link.about()
        require_mode(about, self.pinned is not None)
        self.notify(Event("connected", f"The server is at round {about.round}"))
        await self.link.enrol()
        self.notify(Event("enrolled", f"Enrolled as client {self.link.client}"))

    async def take_part(self) -> Attempt:
        """One check-in with new keys, and the round that comes of it, if any.

        Raises ``Declined`` where this client's own limits forbid any round for now, ``StateError`` where
        its memory cannot be trusted, ``WrongModel`` where the server has another model by now,
        ``InputError`` where it has another mode than this client, and ``AuthenticationFailed`` where one
        side does not trust the other.
        """
        await self._steadily(self.memory.prepare, None)
        try:
            await self._require_same_model()
            return await self._checked_in()
        except (AuthenticationFailed, WrongVersion, WrongModel):
            raise
        except RemoteError as reason:
            return self._declined(str(reason))

    async def _checked_in(self) -> Attempt:
        rounding = _Chance(self.randomness)
        client = self._new_client(rounding)
        keys = CODEC.encode(CheckIn(self.model.digest, client.create_keys()))
        checked = await self.link.check_in(keys)
        try:
            await self._steadily(self.memory.prepare, checked.acknowledged)
        except RolledBack as reason:
            raise Declined(str(reason)) from None
        self.notify(Event("checked-in", "Checked in with new keys; waiting for an invitation"))
        return await _Conversation(self, client, checked.ticket, rounding).hold()

    def _new_client(self, rounding: Randomness) -> RoundClient:
        identity = None if self.pinned is None else self.identity
        session = Client(
            self.link.client,
            self.policy.session,
            self.randomness,
            sums=_SUMS,
            identity=identity,
            identities=self.pinned,
        )
        return RoundClient(
            session, self.memory, self.model.spec, self.model.maps, self.policy, self.randomness, rounding
        )

    async def _require_same_model(self) -> None:
        about = await self.link.about()
        require_mode(about, self.pinned is not None)
        if bytes.fromhex(about.model) != self.model.digest:
            raise WrongModel("the server has another model than this client was built for; start it again")

    def _declined(self, why: str, number: int | None = None) -> Attempt:
        self.notify(Event("declined", f"Sitting out: {why}", number))
        return Attempt("declined", why, number)

    async def rest(self) -> bool:
        """Until the next period, and a little longer: not all clients come back at midnight sharp. False
        where that would change nothing."""
        until, most = self.memory.rests_until, self.settings.longest_pause_s
        if until is None:
            return False
        self.notify(Event("waiting", f"Waiting until {until}", until=until))
        while (left := _seconds_until(until, self.now())) > 0:
            await self.sleep(min(left, _AN_HOUR))  # a device may sleep too, and its clock be set
        await self.sleep(Backoff(self.randomness, most, most).delay(0))
        return True

    async def _steadily(self, act: Callable[..., Result], *given: Any) -> Result:
        """In a thread, and to its end even if this task is cancelled: files are being written."""
        running = asyncio.get_running_loop().run_in_executor(self.worker, partial(act, *given))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            raise


class _Conversation:
    """What is said under one ticket."""

    def __init__(self, owner: Participant, client: RoundClient, ticket: bytes, rounding: _Chance) -> None:
        self._owner = owner
        self._client = client
        self._ticket = ticket
        self._rounding = rounding
        self.number: int | None = None
        self._refused = ""
        self._spent = 0.0
        self._work: list[Work] = []

    async def hold(self) -> Attempt:
        link, received = self._owner.link, 0
        while True:
            got = await link.next(self._ticket, received, limit=self._limit())
            if isinstance(got, Over):
                return self._over(got)
            received += 1
            at, self._spent = self._owner.clock(), 0.0
            try:
                message = await self._answer(got)
                answer = self._timed(CODEC.encode, message)
            except StateError:
                raise
            except SfslError as reason:  # whoever's fault: it is a dropout
                return self._owner._declined(str(reason), self.number)
            self._work.append(Work(at, self._spent))
            over = await link.answer(self._ticket, received, answer)
            if isinstance(message, Decline):
                return self._owner._declined(self._refused, self.number)
            if over is not None:
                return self._over(over)
            self._say_sent()

    def _limit(self) -> int:
        large = self._client.phase in (Phase.AWAITS_UNION, Phase.REQUESTED)
        return self._owner.settings.large if large else self._owner.settings.small

    async def _answer(self, message: Message) -> Message:
        if isinstance(message, Invitation):
            return await self._join(message)
        if isinstance(message, Submodel):
            return await self._train(message)
        step = _STEPS.get(type(message))
        if step is None:
            raise WrongPhase(f"{type(message).__name__}, which no server sends")
        return await self._computed(step, self._client, message)

    async def _computed(self, act: Callable[..., Result], *given: Any) -> Result:
        return await self._owner._steadily(self._timed, act, *given)

    def _timed(self, act: Callable[..., Result], *given: Any) -> Result:
        start = self._owner.cpu()
        try:
            return act(*given)
        finally:
            self._spent += self._owner.cpu() - start

    async def _join(self, invitation: Invitation) -> Message:
        owner, number, params = self._owner, invitation.round.number, invitation.roster.params
        try:
            owner.trainer.require(invitation.round.training)
            answer = await self._computed(self._client.handle_invitation, invitation)
        except Refused as reason:
            # Said aloud, so that nobody waits: the invitation and fixed settings decided it. What comes
            # after this line may depend on this client's data, and is declined by silence.
            self._refused = str(reason)
            return Decline(params.round_id)
        await owner._steadily(owner.memory.enter, number)
        self.number = number
        self._rounding.source = owner.memory.rounding(number) or owner.randomness
        owner.notify(Event("invited", f"Invited to round {number} with {params.clients - 1} others", number))
        return answer

    async def _train(self, submodel: Submodel) -> Message:
        owner, number = self._owner, self.number or 0
        download = await self._computed(self._client.handle_submodel, submodel)
        rows = sum(map(len, download.asked.values()))
        owner.notify(Event("training", f"Training on a submodel of {rows:,} rows", number))
        own = {name: owner.personal.read(name, rows) for name, rows in owner.trainer.personal.items()}
        loop = asyncio.get_running_loop()
        train = partial(self._timed, owner.trainer.train, download, own, number)
        lesson = await loop.run_in_executor(owner.training, train)
        await self._computed(owner.personal.keep, lesson.personal)
        return await self._computed(self._client.create_update, lesson.trained)

    def _say_sent(self) -> None:
        phase, notify = self._client.phase, self._owner.notify
        if phase is Phase.UNITING:
            notify(
                Event("exposed", "Its rows are in the union, under masks; one exposure is spent", self.number)
            )
        if phase is Phase.UPLOADED:
            notify(Event("uploaded", "Uploaded its update, under masks", self.number))

    def _over(self, over: Over) -> Attempt:
        whole = self._client.phase is Phase.FINISHED and over.outcome in ("committed", "aborted")
        number = self.number if self.number is not None else over.round
        attempt = Attempt(over.outcome, over.why, number, whole, tuple(self._work))
        kind: Outcome = next((one for one in OUTCOMES if one == over.outcome), "aborted")
        why = f": {over.why}" if over.why and kind != "committed" else ""
        self._owner.notify(Event(kind, _told(kind, whole) + why, number))
        return attempt


def require_mode(about: About, pinned: bool) -> None:
    """No later round would be another: nothing to wait for."""
    if about.active is True and not pinned:
        raise InputError("this server runs in active mode; give --roster FILE, which its operator publishes")
    if about.active is False and pinned:
        raise InputError("this server does not run in active mode, which --roster FILE insists on")


def _told(kind: Outcome, whole: bool) -> str:
    match kind:
        case "committed":
            return "The round is committed" if whole else "The round is committed, without this client"
        case "aborted":
            return "The round came to nothing"
        case "left-out":
            return "Left out of the round from here on"
        case "not-chosen":
            return "Not chosen for the round"
        case "restarted":
            return "The server has started again, and its round is gone"


def _seconds_until(day: date, now: datetime) -> float:
    return (datetime(day.year, day.month, day.day) - now).total_seconds()
