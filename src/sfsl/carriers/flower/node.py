"""A node as an app sees it: its configuration, and the client that lives on it.

It is the node's operator who gives it (``flower-supernode --node-config``), never the server: privacy
parameters and limits are the client's. Simulated nodes have no operator; the run's section ``node`` stands
for him there.

What the client must know from message to message comes in as bytes and goes out as bytes. That it is used
once, the client's memory sees to: it notes durably, before an answer leaves, the one snapshot from which the
round goes on. So a message that is repeated is not answered again, and an older snapshot is refused.
"""

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
from sfsl.client.home import Home, PersonalRows
from sfsl.client.hot import DurablePurse, HotClientRound, PassingPurse
from sfsl.client.round import (
    Chance,
    ClientModel,
    ClientRound,
    DurableMemory,
    Passing,
    PassingMemory,
    Remembered,
    Trainer,
)
from sfsl.crypto.secret import Identity, Randomness, SystemRandomness, digest
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
from sfsl.rounds.client import Own, Phase
from sfsl.rounds.hot_client import HotClient
from sfsl.rounds.snapshots import HotSnapshot, Snapshot, decode_client, encode_client, revive
from sfsl.service.messages import CheckIn, Decline
from sfsl.settings import terms
from sfsl.settings.sections import about, section_from
from sfsl.training.task import ClientData, Task

_FOLDER = "simulation.folder"
_TEMPORARY = "temporary"
_NODE = "node."
_FLOWERS_OWN = ("partition-id", "num-partitions")
_SMALL, _LARGE = 4 << 20, 256 << 20
_EXPOSED = ("UNITING", "AWAITS_UNION")
Load = Callable[[ClientState], tuple[ClientData, ClientData | None]]


class Terms(terms.Terms, frozen=True, rename="kebab"):
    """Says what a node's client insists on, and where it lives."""

    state: Annotated[str, about("This client's folder; made if it is not there.")] = ""
    data: Annotated[str, about("Its samples; what is in the file is for the app to say.")] = ""
    roster: Annotated[str, about("Insist on active mode, and on these node ids and public keys.")] = ""
    epsilon: Annotated[float, Meta(ge=0), about("Epsilon per index over all periods; 0 is no limit.")] = (
        terms.EPSILON
    )

    @property
    def _most_epsilon(self) -> float:
        return self.epsilon or math.inf

    def require_sound(self) -> None:
        super().require_sound()
        if self.log:
            raise InputError("log: a Grid carries no log of enrolled clients; pin them with roster")


@dataclass(frozen=True)
class Node:
    """Shows a node as an app sees it. ``config`` and ``run`` are Flower's configurations of the node and the
    run; ``label`` is what its durable state is marked with, so that it is not taken for another's."""

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
    """Make a node of what Flower knows. One with a folder is a deployed one, whatever the run says."""
    name = label = node_name(node_id)
    deployed = "state" in node_config
    if deployed:
        foreign = {key for key in node_config if key in _FLOWERS_OWN or key.startswith("app.")}
        known = {key: value for key, value in node_config.items() if key not in foreign}
        own = section_from("node config", Terms, known)
        if not own.state:
            raise InputError("node config: state is a folder of this node's own, and empty here")
        folder = Path(own.state).expanduser()
    # A run's word is not enough: a server could otherwise have a deployed client forget its ledger.
    elif run_config.get(_FOLDER) and "ray" in sys.modules:
        given = {key[len(_NODE) :]: value for key, value in run_config.items() if key.startswith(_NODE)}
        own = section_from("node", Terms, given)
        chosen = str(run_config[_FOLDER])
        label = f"partition-{node_config.get('partition-id', node_id)}"
        under = Path(tempfile.gettempdir()) / f"sfsl-{run_id}" if chosen == _TEMPORARY else Path(chosen)
        folder = under / label
    else:
        raise InputError(
            "this node has no folder for its client's durable state; start it with --node-config "
            "'state=\"/path/of/its/own\"'"
        )
    randomness = SystemRandomness()
    home = Home(folder, randomness)
    return Node(name, label, home, own, node_config, run_config, not deployed, randomness)


@dataclass(frozen=True)
class Member:
    """Holds what one client has and insists on. ``home`` knows the server it joined, and keeps to it;
    ``pinned`` are the identities of all by name, where it insists on active mode. ``purse`` pays for rounds
    over hot rows; None: it takes part in none."""

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
    purse: PassingPurse | None = None

    def __post_init__(self) -> None:
        if self.pinned is not None and self.identity is None:
            raise InputError("active mode needs an identity of this client's own")

    def own(self, memory: Remembered, rounding: Randomness | None) -> Own[Remembered]:
        """Return what it has in a round."""
        told = (self.policy, self.randomness, rounding, self.identity, self.pinned)
        return self.model.own(memory, *told)

    @property
    def paying(self) -> PassingPurse:
        if self.purse is None:
            raise Refused("a round over hot rows, which this client does not take part in (hot-epsilon)")
        return self.purse


@dataclass(frozen=True)
class Answer:
    """Holds a client's answer. ``kept`` is what to bring with the next message, and secret; None: the client
    is in no round."""

    frame: bytes = field(repr=False)
    kept: bytes | None = field(repr=False)


class SatOut(SfslError):
    """Says that there is no answer. ``kept`` is what is left to bring next time; ``aloud``: only public
    parameters and fixed settings decided it, so it may be said at once. All else could tell something about
    the client's data."""

    def __init__(self, why: SfslError, kept: bytes | None, *, aloud: bool = False) -> None:
        super().__init__(f"{type(why).__name__}: {why}")
        self.kept, self.aloud = kept, aloud


def answer(
    member: Member, frame: bytes, kept: bytes | None, published: Mapping[bytes, bytes] | None = None
) -> Answer:
    """Return the answer to one message, or raise ``SatOut``. ``published`` came beside it, by digest."""
    before, kept = _read(kept)
    large = before is not None and before.phase in ("AWAITS_UNION", "REQUESTED")
    message = None
    try:
        message = CODEC.decode(frame, limit=_LARGE if large else _SMALL)
        if isinstance(message, Call):
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
        raise SatOut(reason, kept, aloud=known and isinstance(message, Call)) from None
    keep = _go_on(member, before, kept)
    round_ = _revived(member, before)
    try:
        # A client trains once in a round, and if that fails, be it by a crash, it is out: whether training on
        # another submodel fails would tell a server which of the rows it spoiled there are this client's.
        said = round_.answer(message, lambda: keep(None), published or {})
        over = isinstance(said, Decline) or round_.client.phase is Phase.FINISHED
        kept = None if over else encode_client(round_.client)
        answered = CODEC.encode(said)
    except SfslError as reason:
        if round_.client.phase is not Phase[before.phase]:  # debited or trained, and nothing to show for it
            kept = None
            keep(None)
        raise SatOut(reason, kept) from None
    keep(kept)
    return Answer(answered, kept)


def _read(kept: bytes | None) -> tuple[Snapshot | None, bytes | None]:
    """Read what was kept. What cannot be read is of no round: the next call begins another."""
    try:
        return (None, None) if kept is None else (decode_client(kept), kept)
    except StateError:
        return None, None


def _checked_in(member: Member, call: Call) -> Answer:
    """Make new keys for one round. Whatever was kept of another is void from here on."""
    if call.model != member.model.digest:
        raise WrongModel("the server has another model than this app")
    if member.home.deployment() not in (None, call.deployment):
        raise Refused("this client has joined another server: its folder belongs to that one")
    client: RoundClient | HotClient
    if call.rho is None:
        member.policy.require_exact()
        member.memory.prepare(call.acknowledged)
        keep, client = member.memory.keep, RoundClient.join(member.name, member.own(member.memory, None))
    else:
        member.paying.prepare(call.acknowledged)
        member.paying.afford(call.rho)
        keep, client = member.paying.keep, HotClient.join(member.name, member.own(member.paying, None))
    member.home.pin(call.deployment)
    frame = CODEC.encode(CheckIn(member.model.digest, client.create_keys()))
    kept = encode_client(client)
    keep(kept)
    return Answer(frame, kept)


def _dismissed(member: Member, before: Snapshot | None, over: Over, kept: bytes | None) -> Answer:
    """Forget the round that is over. Again changes nothing."""
    if before is not None and kept is not None:
        if before.session.keys.channel != over.channel:
            raise WrongRound("the end of another round")
        _go_on(member, before, kept)(None)
    return Answer(CODEC.encode(over), None)


def _go_on(member: Member, before: Snapshot, kept: bytes) -> Callable[[bytes | None], None]:
    """Have the client's memory go on with the round, and return where to note what it goes on from next. If
    it has gone on without these secrets, they can go."""
    roster = before.session.roster
    exposed = roster.params.round_id if roster is not None and before.phase in _EXPOSED else None
    number = None if before.params is None else before.params.number
    try:
        paying: Passing = member.paying if isinstance(before, HotSnapshot) else member.memory
        paying.go_on(kept, number, exposed)
    except SfslError as reason:
        raise SatOut(reason, None) from None
    return paying.keep


def _revived(member: Member, before: Snapshot) -> ClientRound | HotClientRound:
    chance = Chance(member.randomness)
    told = (member.trainer, member.personal, chance, before.params)
    if isinstance(before, HotSnapshot):
        client = revive(HotClient, before, member.own(member.paying, chance))
        return HotClientRound(client, member.paying, *told)
    return ClientRound(revive(RoundClient, before, member.own(member.memory, chance)), member.memory, *told)


def model_of(task: Task) -> ClientModel:
    """Describe the model. Both sides build it from the same app; the digest finds out where they do not."""
    parts = [msgspec.msgpack.encode(task.spec)]
    for name, given in sorted(task.maps.items()):
        rows = b"" if callable(given) else np.asarray(given).astype("<i8").tobytes()
        parts += name.encode(), rows
    return ClientModel(digest("flower model", *parts), task.spec, task.row_maps, bound=True)


@contextmanager
def device_member(
    node: Node, task: Task, load: Load, limits: TrainingLimits | None = None
) -> Iterator[Member]:
    """Open a node's client. ``load`` gives the samples to train on and those held out, which a period
    freezes: it is handed the client's state, so that it can tell whether a new period has begun
    (``Home.samples`` does). In exact sums it has to ask which of them are new (``ExposedSamples.fresh``)."""
    terms, home, randomness = node.terms, node.home, node.randomness
    model = model_of(task)
    home.note_terms(terms.loosened())
    with home.state(node.label, terms.calendar, terms.budget) as state, home.personal(task.spec) as personal:
        train, held_out = load(state)
        if terms.exact_sums and not (terms.repeat_samples or node.simulated or state.exposed_known):
            raise InputError(
                "this app takes samples into a period without asking which of them an earlier one has "
                "exposed (node.home.exposed.fresh, as films/data.py does); this node's operator can allow "
                "that with repeat-samples=true"
            )
        device = Device(task, train, held_out)

        real = {name: device.needed[name] for name in model.tables.shared}

        def seed(number: int) -> int:
            return int.from_bytes(randomness.bytes(4), "big") >> 1

        yield Member(
            name=node.name,
            model=model,
            memory=DurableMemory(
                state,
                terms.index_privacy,
                model.tables,
                real,
                today=node.today,
                randomness=randomness,
            ),
            trainer=DeviceTrainer(device, seed, limits=limits or TrainingLimits()),
            personal=personal,
            policy=terms.policy,
            randomness=randomness,
            home=home,
            purse=DurablePurse(state, real) if terms.policy.hot else None,
            identity=home.identity() if terms.roster else None,
            pinned=None if terms.roster_file is None else read_roster(terms.roster_file),
        )
