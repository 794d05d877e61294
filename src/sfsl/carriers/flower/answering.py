"""One message to one client, in a process that may live for nothing else. No Flower in it.

What the client must know from message to message comes in as bytes and goes out as bytes. That it is used
once, the client's memory sees to: it notes durably, before an answer leaves, the one snapshot from which the
round goes on. So a message that is repeated is not answered again, and an older snapshot is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sfsl.carriers.flower.messages import CODEC, Call, Over
from sfsl.client.home import Home
from sfsl.client.memory import PassingMemory
from sfsl.client.model import ClientModel
from sfsl.client.personal import PersonalRows
from sfsl.client.round import Chance, ClientRound
from sfsl.client.trainer import Trainer
from sfsl.crypto.identity import Identity
from sfsl.crypto.randomness import Randomness
from sfsl.errors import (
    BudgetExhausted,
    InputError,
    Refused,
    SfslError,
    StateError,
    WrongModel,
    WrongPhase,
    WrongRound,
)
from sfsl.rounds import RoundClient, RoundPolicy
from sfsl.rounds.client import Phase
from sfsl.rounds.exchanges import SUMS
from sfsl.rounds.snapshot import Own, RoundSnapshot, decode, encode, revive
from sfsl.secagg import Client
from sfsl.service.messages import CheckIn, Decline

_SMALL, _LARGE = 4 << 20, 256 << 20
_EXPOSED = ("UNITING", "AWAITS_UNION")


@dataclass(frozen=True)
class Member:
    """One client: what it has, and what it insists on. ``home`` knows the server it joined, and keeps to it;
    ``pinned`` are the identities of all by name, where it insists on active mode."""

    name: str
    model: ClientModel
    memory: PassingMemory
    trainer: Trainer
    personal: PersonalRows
    policy: RoundPolicy
    randomness: Randomness
    home: Home
    identity: Identity | None = None
    pinned: Mapping[str, bytes] | None = None

    def __post_init__(self) -> None:
        if self.pinned is not None and self.identity is None:
            raise InputError("active mode needs an identity of this client's own")


@dataclass(frozen=True)
class Answer:
    """``kept`` is what to bring with the next message, and secret; None: the client is in no round."""

    frame: bytes = field(repr=False)
    kept: bytes | None = field(repr=False)


class SatOut(SfslError):
    """No answer. ``kept`` is what is left to bring next time; ``aloud``: only public parameters and fixed
    settings decided it, so it may be said at once. All else could tell something about the client's data."""

    def __init__(self, why: str, kept: bytes | None, *, aloud: bool) -> None:
        super().__init__(why)
        self.kept = kept
        self.aloud = aloud


def answer(member: Member, frame: bytes, kept: bytes | None) -> Answer:
    """The answer to one message, or ``SatOut``."""
    before, kept = _read(kept)
    large = before is not None and before.phase in ("AWAITS_UNION", "REQUESTED")
    called = False
    try:
        message = CODEC.decode(frame, limit=_LARGE if large else _SMALL)
        if isinstance(message, Call):
            called = True
            return _checked_in(member, message)
        if isinstance(message, Over):
            return _dismissed(member, before, message, kept)
        if before is None or kept is None:
            raise WrongPhase(f"{type(message).__name__}, and this client is in no round")
    except SatOut:
        raise
    except SfslError as reason:
        # What a server could as well know: how often it was in a round, and which app it runs.
        known = isinstance(reason, BudgetExhausted | WrongModel | Refused)
        raise SatOut(_said(reason), kept, aloud=called and known) from None
    round_ = _revived(member, before, kept)
    try:
        # A client trains once in a round, and if that fails, be it by a crash, it is out: whether training on
        # another submodel fails would tell a server which of the rows it spoiled there are this client's.
        said = round_.answer(message, lambda: member.memory.keep(None))
        if isinstance(said, Decline) or round_.client.phase is Phase.FINISHED:
            kept = None
        else:
            kept = encode(round_.client)
        answered = CODEC.encode(said)
    except SfslError as reason:
        if round_.client.phase is not Phase[before.phase]:  # debited or trained, and nothing to show for it
            kept = None
            member.memory.keep(None)
        raise SatOut(_said(reason), kept, aloud=False) from None
    member.memory.keep(kept)
    return Answer(answered, kept)


def _read(kept: bytes | None) -> tuple[RoundSnapshot | None, bytes | None]:
    """What cannot be read is of no round: the next call begins another."""
    try:
        return (None, None) if kept is None else (decode(kept), kept)
    except StateError:
        return None, None


def _checked_in(member: Member, call: Call) -> Answer:
    """New keys for one round. Whatever was kept of another is void from here on."""
    if call.model != member.model.digest:
        raise WrongModel("the server has another model than this app")
    if member.home.deployment() not in (None, call.deployment):
        raise Refused("this client has joined another server: its folder belongs to that one")
    member.memory.prepare(call.acknowledged)
    member.home.pin(call.deployment)
    session = Client(
        member.name,
        member.policy.session,
        member.randomness,
        sums=SUMS,
        identity=_identity(member),
        identities=member.pinned,
    )
    model = member.model
    client = RoundClient(
        session, member.memory, model.spec, model.maps, member.policy, member.randomness, None
    )
    frame = CODEC.encode(CheckIn(model.digest, client.create_keys()))
    kept = encode(client)
    member.memory.keep(kept)
    return Answer(frame, kept)


def _dismissed(member: Member, before: RoundSnapshot | None, over: Over, kept: bytes | None) -> Answer:
    """Again changes nothing."""
    if before is not None and kept is not None:
        if before.session.keys.channel != over.channel:
            raise WrongRound("the end of another round")
        try:
            _go_on(member, before, kept)
        except SfslError as reason:  # it has gone on without these secrets: they can go as well
            raise SatOut(_said(reason), None, aloud=False) from None
        member.memory.keep(None)
    return Answer(CODEC.encode(over), None)


def _revived(member: Member, before: RoundSnapshot, kept: bytes) -> ClientRound:
    try:
        _go_on(member, before, kept)
    except SfslError as reason:
        raise SatOut(_said(reason), None, aloud=False) from None
    rounding = Chance(member.randomness)
    own = Own(
        member.memory,
        member.model.spec,
        member.model.maps,
        member.policy,
        member.randomness,
        rounding,
        _identity(member),
        member.pinned,
    )
    number = None if before.params is None else before.params.number
    client = revive(before, own)
    return ClientRound(client, member.memory, member.trainer, member.personal, rounding, number)


def _go_on(member: Member, before: RoundSnapshot, kept: bytes) -> None:
    number = None if before.params is None else before.params.number
    roster = before.session.roster
    exposed = roster.params.round_id if roster is not None and before.phase in _EXPOSED else None
    member.memory.go_on(kept, number, exposed)


def _identity(member: Member) -> Identity | None:
    return None if member.pinned is None else member.identity


def _said(reason: SfslError) -> str:
    return f"{type(reason).__name__}: {reason}"
