"""A node as an app sees it: its configuration, and the client that lives on it."""

import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from sfsl.carriers.flower.messages import CODEC, Call, Over, node_name, read_roster
from sfsl.client.device import Device, DeviceTrainer, TrainingLimits
from sfsl.client.home import Home
from sfsl.client.memory import DurableMemory, PassingMemory
from sfsl.client.personal import PersonalRows
from sfsl.client.round import Chance, ClientRound
from sfsl.client.trainer import ClientModel, Trainer
from sfsl.crypto.identity import Identity
from sfsl.crypto.secret import Randomness, SystemRandomness, digest
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
from sfsl.privacy import ClientState
from sfsl.rounds import RoundClient, RoundPolicy
from sfsl.rounds.client import Phase
from sfsl.rounds.exchanges import SUMS
from sfsl.rounds.snapshot import Own, RoundSnapshot, decode, encode, revive
from sfsl.secagg import Client
from sfsl.service.messages import CheckIn, Decline
from sfsl.settings import terms
from sfsl.settings.sections import about, section_from
from sfsl.training.task import ClientData, Task

_FOLDER = "simulation.folder"
_TEMPORARY = "temporary"
_FLOWERS_OWN = ("partition-id", "num-partitions")


class Terms(terms.Terms, frozen=True, rename="kebab"):
    """What a node's client insists on, and where it lives."""

    state: Annotated[str, about("This client's folder; made if it is not there.")] = ""
    data: Annotated[str, about("Its samples; what is in the file is for the app to say.")] = ""
    roster: Annotated[str, about("Insist on active mode, and on these node ids and public keys.")] = ""
    epsilon: Annotated[float, Meta(ge=0), about("Epsilon per index over all periods; 0 is no limit.")] = 0.0

    @property
    def _most_epsilon(self) -> float:
        return self.epsilon or math.inf


@dataclass(frozen=True)
class Node:
    """One node as an app sees it. ``config`` and ``run`` are Flower's configurations of the node and the run;
    ``label`` is what its durable state is marked with, so that it is not taken for another's."""

    name: str
    label: str
    home: Home
    terms: Terms
    config: Mapping[str, Any]
    run: Mapping[str, Any]
    simulated: bool
    randomness: Randomness

    @property
    def partition(self) -> int:
        """Which part of the data is this node's, in a simulation or where its operator says so."""
        found = self.config.get("partition-id")
        if isinstance(found, bool) or not isinstance(found, int):
            raise InputError("this node has no partition-id; give one with --node-config 'partition-id=0'")
        return found

    @staticmethod
    def today() -> date:
        return datetime.now(UTC).date()


def open_node(
    node_id: int, run_id: int, node_config: Mapping[str, Any], run_config: Mapping[str, Any]
) -> Node:
    """From what Flower knows of a node. A node with a folder is a deployed one, whatever the run says."""
    randomness = SystemRandomness()
    name = node_name(node_id)
    if "state" in node_config:
        own = {key: value for key, value in node_config.items() if key not in _FLOWERS_OWN}
        known = {key: value for key, value in own.items() if not key.startswith("app.")}
        own_terms = _terms("node config", known)
        if not own_terms.state:
            raise InputError("node config: state is a folder of this node's own, and empty here")
        home = Home(Path(own_terms.state).expanduser(), randomness)
        return Node(name, name, home, own_terms, node_config, run_config, False, randomness)
    # A run's word is not enough: a server could otherwise have a deployed client forget its ledger.
    if not (run_config.get(_FOLDER) and "ray" in sys.modules):
        raise InputError(
            "this node has no folder for its client's durable state; start it with --node-config "
            "'state=\"/path/of/its/own\"'"
        )
    own_terms = _terms("node", _section(run_config, "node."))
    chosen = str(run_config[_FOLDER])
    under = Path(tempfile.gettempdir()) / f"sfsl-{run_id}" if chosen == _TEMPORARY else Path(chosen)
    label = f"partition-{node_config.get('partition-id', node_id)}"
    return Node(
        name, label, Home(under / label, randomness), own_terms, node_config, run_config, True, randomness
    )


def _terms(section: str, content: Mapping[str, Any]) -> Terms:
    found = section_from(section, Terms, content)
    assert isinstance(found, Terms)  # noqa: S101 -- it was asked for
    return found


def _section(config: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {key.removeprefix(prefix): value for key, value in config.items() if key.startswith(prefix)}


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


Load = Callable[[ClientState], tuple[ClientData, ClientData | None]]


def model_of(task: Task) -> ClientModel:
    """Both sides build it from the same app; the digest finds out where they do not."""
    maps = [
        part
        for name, given in sorted(task.maps.items())
        for part in (
            name.encode(),
            b"" if callable(given) else np.asarray(given).astype("<i8").tobytes(),
        )
    ]
    name = digest("flower model", msgspec.msgpack.encode(task.spec), *maps)
    return ClientModel(name, task.spec, task.row_maps)


@contextmanager
def device_member(
    node: Node, task: Task, load: Load, limits: TrainingLimits | None = None
) -> Iterator[Member]:
    """``load`` gives the samples to train on and those held out, which a period freezes: it is handed the
    client's state, so that it can tell whether a new period has begun (``Home.samples`` does)."""
    terms, home, randomness = node.terms, node.home, node.randomness
    model = model_of(task)
    with home.state(node.label, terms.calendar, terms.budget) as state, home.personal(task.spec) as personal:
        train, held_out = load(state)
        device = Device(task, train, held_out)
        yield Member(
            name=node.name,
            model=model,
            memory=DurableMemory(
                state,
                terms.index_privacy,
                model.tables,
                {name: device.needed[name] for name in model.tables.shared},
                today=node.today,
                randomness=randomness,
            ),
            trainer=DeviceTrainer(
                device,
                lambda number: int.from_bytes(randomness.bytes(4), "big") >> 1,
                limits=limits or TrainingLimits(),
            ),
            personal=personal,
            policy=terms.policy,
            randomness=randomness,
            home=home,
            identity=home.identity() if terms.roster else None,
            pinned=None if terms.roster_file is None else read_roster(terms.roster_file),
        )
