"""One client on a network: checks in, takes part in rounds, sits out what its policy forbids.

Nothing here is global; everything that has a clock or chance in it comes in as an argument.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from functools import partial
from typing import Any, TypeVar

from sfsl.client.events import OUTCOMES, About, Backoff, Event, Notify, Outcome, nobody, shown
from sfsl.client.home import PersonalRows
from sfsl.client.hot import HotClientRound, Purse
from sfsl.client.link import Link, Over
from sfsl.client.log import MemberLog
from sfsl.client.round import Chance, ClientModel, ClientRound, InRound, Memory, Trainer
from sfsl.codec import Message
from sfsl.crypto.secret import Identity, Randomness
from sfsl.errors import (
    AuthenticationFailed,
    Deceived,
    Declined,
    Forked,
    InputError,
    InvalidMessage,
    RemoteError,
    RolledBack,
    SfslError,
    StateError,
    Unavailable,
    WrongModel,
    WrongVersion,
)
from sfsl.rounds import RoundClient, RoundPolicy
from sfsl.rounds.client import Download, Phase
from sfsl.rounds.exchanges import HotInvitation, Invitation
from sfsl.rounds.hot import HotParams, HotSet, Published, blob_bytes, blob_digest, decode_hot_set
from sfsl.rounds.hot_client import HotClient
from sfsl.service.messages import CODEC, CheckIn, Decline

Result = TypeVar("Result")

_AN_HOUR = 3600.0
HOT = "hot"
# The published hot rows: a head, then per table lengths and a name, then per row its number and its owners.
_HEAD, _PER_TABLE, _PER_ROW = 256, 256, 12
_TOLD: Mapping[str, str] = {
    "committed": "The round is committed",
    "aborted": "The round came to nothing",
    "left-out": "Left out of the round from here on",
    "not-chosen": "Not chosen for the round",
    "restarted": "The server has started again, and its round is gone",
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

    >>> import sfsl
    >>> attempts = [sfsl.Attempt("committed", round=7, whole=True), sfsl.Attempt("declined", "0 of 1 left")]
    >>> sum(one.whole for one in attempts)
    1
    """

    outcome: Outcome | str
    why: str = ""
    round: int | None = None
    whole: bool = False
    work: tuple[Work, ...] = ()


@dataclass(frozen=True)
class Settings:
    """``small`` and ``large`` bound messages in bytes: lists of clients, and unions and submodels.
    ``pause_s`` is the wait after a round was declined, failed or had no place: longer each time."""

    small: int = 4 << 20
    large: int = 256 << 20
    pause_s: float = 5.0
    longest_pause_s: float = 600.0


@dataclass
class Participant:
    """One client on a network. ``pinned`` are the identities of all clients by name, where it insists on
    active mode. ``log`` proves that those of a cohort are enrolled. ``purse`` pays for rounds over hot rows;
    None: it takes part in none. ``worker`` runs the protocol's arithmetic, ``training`` the trainer; None:
    threads of the event loop.

    ``run`` is a coroutine to cancel at any time: a round under way goes on without this client, what was
    debited stays debited, and what it learned about itself is kept. ``ended`` is how the last attempts of a
    ``run`` ended, also of one that raised. ``now`` is in the time zone of the memory's days. ``clock`` counts
    seconds, ``cpu`` those that the thread it is asked in has computed.
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
    log: MemberLog | None = None
    purse: Purse | None = None
    worker: Executor | None = None
    training: Executor | None = None
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    now: Callable[[], datetime] = datetime.now
    clock: Callable[[], float] = time.perf_counter
    cpu: Callable[[], float] = time.thread_time
    ended: list[Attempt] = field(default_factory=list)
    _hot: HotSet | None = None  # the last that was downloaded

    async def run(self, rounds: int | None = None, *, wait: bool = True) -> list[Attempt]:
        """Take part until ``rounds`` were gone through whole. Without ``wait``, stop where only the next
        period can help. Returns how the last attempts ended, a hundred at most."""
        await self.enrol()
        pause = Backoff(self.randomness, self.settings.pause_s, self.settings.longest_pause_s)
        self.ended = []
        whole = idle = strange = 0
        while rounds is None or whole < rounds:
            try:
                attempt = await self.take_part()
            except Declined as reason:
                self.ended = [*self.ended[-99:], self._declined(str(reason))]
                if not wait or not await self.rest():
                    break
                continue
            except Forked:
                raise
            except AuthenticationFailed:
                strange += 1
                if strange > 1:
                    raise
                await self.enrol()  # a server restored from a backup may have forgotten this client
                continue
            self.ended = [*self.ended[-99:], attempt]
            whole += attempt.whole
            strange = 0
            idle = 0 if attempt.whole else idle + 1
            if idle:
                await self.sleep(pause.delay(idle - 1))
        return self.ended

    async def enrol(self) -> None:
        """Meet the server and become known to it; the same again changes nothing."""
        about = await self.link.about()
        self._require(about)
        self.notify(Event("connected", f"The server is at round {about.round}"))
        await self.link.enrol()
        self.notify(Event("enrolled", f"Enrolled as client {self.link.client}"))

    async def take_part(self) -> Attempt:
        """Check in with new keys, and take part in the round that comes of it, if any.

        Raises ``Declined`` where this client's own limits forbid any round for now, ``StateError`` where
        its memory cannot be trusted, ``WrongModel`` where the server has another model by now,
        ``InputError`` where it has another mode than this client, ``AuthenticationFailed`` where one side
        does not trust the other, and ``Unavailable`` where this client's patience with it is over.
        """
        if self.purse is None:  # exact sums or none: whoever has nothing left asks for nothing
            await self._steadily(self.memory.prepare, None)
        try:
            hot = await self._require_same_model()
            if not hot:
                await self.link.agree_on_the_day()
            if self.purse is not None:
                await self._steadily(self._paying(hot).prepare, None)
            return await self._checked_in(hot)
        except (AuthenticationFailed, WrongVersion, WrongModel, Unavailable):
            raise
        except RemoteError as reason:
            return self._declined(str(reason))

    async def _checked_in(self, hot: bool) -> Attempt:
        round_ = self._new_round(hot)
        keys = CODEC.encode(CheckIn(self.model.digest, round_.client.create_keys()))
        checked = await self.link.check_in(keys)
        try:
            await self._steadily(self._paying(hot).prepare, checked.acknowledged)
        except RolledBack as reason:
            raise Declined(str(reason)) from None
        self.notify(Event("checked-in", "Checked in with new keys; waiting for an invitation"))
        return await _Conversation(self, round_, checked.ticket).hold()

    def _paying(self, hot: bool) -> Memory | Purse:
        return self.purse if hot and self.purse is not None else self.memory

    def _new_round(self, hot: bool) -> ClientRound | HotClientRound:
        name, model, rounding = self.link.client, self.model, Chance(self.randomness)
        told = (self.policy, self.randomness, rounding, self.identity, self.pinned)
        having = (self.trainer, self.personal, rounding)
        if hot and self.purse is not None:
            return HotClientRound(HotClient.join(name, model.own(self.purse, *told)), self.purse, *having)
        return ClientRound(RoundClient.join(name, model.own(self.memory, *told)), self.memory, *having)

    async def _require_same_model(self) -> bool:
        """Return whether the server's rounds are over hot rows."""
        about = await self.link.about()
        self._require(about)
        if bytes.fromhex(about.model) != self.model.digest:
            raise WrongModel("the server has another model than this client was built for; start it again")
        return about.scheme == HOT

    def _require(self, about: About) -> None:
        require_mode(about, self.pinned is not None)
        require_scheme(about, self.policy)
        if about.scheme == HOT and self.purse is None:
            raise InputError("this client has no ledger for rounds over hot rows, which this server runs")

    async def require_members(self, invitation: Invitation | HotInvitation) -> None:
        """Have the log prove that everyone in this cohort is enrolled, before anything is answered."""
        if self.log is not None:
            names = {member.keys.client for member in invitation.roster.members}
            proof = await self.link.log(await self._steadily(self.log.query, names))
            await self._steadily(self.log.take, proof, names)

    async def published(self, params: HotParams) -> Published:
        """Fetch what everybody downloads in a round that trains: hot rows once, the model in every round."""
        server = self.link.server
        try:
            if self._hot is None or self._hot.digest() != params.hot:
                size = _HEAD + sum(_PER_TABLE + _PER_ROW * count for count in params.rows.values())
                found = decode_hot_set(await self.link.published(params.hot, size), params.hot)
                found.sets(params.model)
                self._hot = found
            blob = await self.link.published(params.blob, blob_bytes(params))
            if blob_digest(blob) != params.blob:
                raise Deceived("the model that came is not the one that the round was announced with")
        except (AuthenticationFailed, Deceived):
            raise
        except RemoteError as error:
            raise InvalidMessage(f"no model from {server}: {error}") from None
        return Published(self._hot, blob)

    def _declined(self, why: str, number: int | None = None) -> Attempt:
        self.notify(Event("declined", f"Sitting out: {why}", number))
        return Attempt("declined", why, number)

    def _deceived(self, why: str, number: int | None) -> Attempt:
        said = f"{self.link.server} lies, or somebody between: {why}. This client has left the round"
        self.notify(Event("deceived", said, number))
        return Attempt("declined", why, number)

    async def rest(self) -> bool:
        """Wait until the next period, and a little longer: not all clients come back at midnight sharp.
        Return False where that would change nothing."""
        until, most = self.memory.rests_until, self.settings.longest_pause_s
        if until is None:
            return False
        self.notify(Event("waiting", f"Waiting until {until}", until=until))
        midnight = datetime(until.year, until.month, until.day)
        while (left := (midnight - self.now()).total_seconds()) > 0:
            await self.sleep(min(left, _AN_HOUR))  # a device may sleep too, and its clock be set
        await self.sleep(Backoff(self.randomness, most, most).delay(0))
        return True

    async def _steadily(self, act: Callable[..., Result], *given: Any) -> Result:
        """Act in a thread, and to the end even if this task is cancelled: files are being written."""
        running = asyncio.get_running_loop().run_in_executor(self.worker, partial(act, *given))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            raise


@dataclass
class _Conversation:
    """What is said under one ticket."""

    owner: Participant
    round: InRound[Any, Any]
    ticket: bytes
    spent: float = 0.0
    work: list[Work] = field(default_factory=list)
    told: Enum | None = None  # of which it has said that its answer is sent

    async def hold(self) -> Attempt:
        link, received = self.owner.link, 0
        while True:
            got = await link.next(self.ticket, received, limit=self._limit())
            if isinstance(got, Over):
                return self._over(got)
            received += 1
            at, self.spent = self.owner.clock(), 0.0
            try:
                message = await self._answer(got)
                answer = self._timed(CODEC.encode, message)
            except (StateError, Forked):
                raise
            except Deceived as reason:
                return self.owner._deceived(str(reason), self.round.number)
            except SfslError as reason:  # whoever's fault: it is a dropout
                return self.owner._declined(str(reason), self.round.number)
            self.work.append(Work(at, self.spent))
            over = await link.answer(self.ticket, received, answer)
            if isinstance(message, Decline):
                return self.owner._declined(self.round.refused, self.round.number)
            if over is not None:
                return self._over(over)
            self._say_sent()

    def _limit(self) -> int:
        large = self.round.client.phase in (Phase.AWAITS_UNION, Phase.REQUESTED)
        return self.owner.settings.large if large else self.owner.settings.small

    async def _answer(self, message: Message) -> Message:
        round_, exchange = self.round, self.round.due(message).exchange
        if isinstance(message, Invitation | HotInvitation):
            return await self._join(message)
        if exchange is not round_.course.trains:
            return await self._computed(round_.step, message)
        params = round_.params
        published = await self.owner.published(params) if isinstance(params, HotParams) else None
        return await self._train(partial(round_.open, message, published))

    async def _computed(self, act: Callable[..., Result], *given: Any) -> Result:
        return await self.owner._steadily(self._timed, act, *given)

    def _timed(self, act: Callable[..., Result], *given: Any) -> Result:
        start = self.owner.cpu()
        try:
            return act(*given)
        except AuthenticationFailed as error:  # of what others signed or sealed, and the server brought
            raise Deceived(str(error)) from None
        finally:
            self.spent += self.owner.cpu() - start

    async def _join(self, invitation: Invitation | HotInvitation) -> Message:
        try:
            await self.owner.require_members(invitation)
        except Forked:
            raise
        except RemoteError as reason:  # the invitation decides it, and nothing of this client's data
            self.round.refused = str(reason)
            return Decline(invitation.roster.params.round_id)
        answer = await self._computed(self.round.join, invitation)
        if (number := self.round.number) is not None:
            others, what = invitation.roster.params.clients - 1, f"round {number}"
            if isinstance(invitation, HotInvitation) and invitation.round.kind == "survey":
                what += ", a survey,"
            self.owner.notify(Event("invited", f"Invited to {what} with {others} others", number))
        return answer

    async def _train(self, opened: Callable[[], Download]) -> Message:
        owner, number = self.owner, self.round.number or 0
        download = await self._computed(opened)
        rows = sum(map(len, download.asked.values()))
        kind = "a submodel of" if download.cold is None else "its samples and"
        what = "rows" if download.cold is None else "hot rows"
        owner.notify(Event("training", f"Training on {kind} {rows:,} {what}", number))
        train = partial(self._timed, self.round.train, download)
        lesson = await asyncio.get_running_loop().run_in_executor(owner.training, train)
        return await self._computed(self.round.upload, lesson)

    def _say_sent(self) -> None:
        phase, notify, number = self.round.client.phase, self.owner.notify, self.round.number
        if phase is self.told:  # active mode, where lists are signed between
            return
        self.told = phase
        if phase is Phase.UNITING:
            notify(Event("exposed", "Its rows are in the union, under masks; one exposure is spent", number))
        if phase is Phase.UPLOADED:
            said = "Uploaded its update, under masks"
            if isinstance(self.round, HotClientRound):
                said = f"Uploaded its vector, under noise and masks; {self.round.memory.account()}"
            notify(Event("uploaded", said, number))

    def _over(self, over: Over) -> Attempt:
        whole = self.round.client.phase is Phase.FINISHED and over.outcome in ("committed", "aborted")
        number = self.round.number if self.round.number is not None else over.round
        kind: Outcome = next((one for one in OUTCOMES if one == over.outcome), "aborted")
        said = _TOLD[kind]
        if kind == "committed":
            said += "" if whole else ", without this client"
        elif over.why:
            said += f": {over.why}"
        self.owner.notify(Event(kind, said, number))
        return Attempt(over.outcome, over.why, number, whole, tuple(self.work))


def require_scheme(about: About, policy: RoundPolicy) -> None:
    """Refuse a server whose rounds this client's owner has not allowed, before anything leaves."""
    if about.scheme not in (HOT, "sfsl"):
        raise InputError(f"this client does not know the scheme {shown(about.scheme)!r} of this server")
    if about.scheme != HOT and not policy.exact:
        raise InputError(
            "this server opens exact sums, from which it can find out who has which row; take part with "
            "--exact-sums, or not at all"
        )
    if about.scheme == HOT and policy.hot is None:
        raise InputError("this server runs rounds over hot rows, for which --hot-epsilon 0 leaves nothing")


def require_mode(about: About, pinned: bool) -> None:
    """Refuse a server of another mode: no later round would be another, so there is nothing to wait for."""
    if about.active is True and not pinned:
        raise InputError("this server runs in active mode; give --log FILE or --roster FILE")
    if about.active is False and pinned:
        raise InputError("this server does not run in active mode, which --log and --roster insist on")
