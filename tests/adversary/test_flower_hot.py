"""Rounds over hot rows on Flower, where each message has a process: what leaves is paid for once, before it
leaves, whatever is killed, replayed, put back or spoiled."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("torch")
pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.serde import context_from_proto, context_to_proto

from crowd import POLICY, Counting
from federation import home_of
from sfsl.carriers.flower.apps import PUBLISHED, TYPE, packed, unpacked_at_node
from sfsl.carriers.flower.messages import CODEC, Call, node_name
from sfsl.client.hot import DurablePurse
from sfsl.errors import NotFinite, TooFewClients
from sfsl.privacy import ClientState
from sfsl.rounds.exchanges import HOT as COURSE
from sfsl.rounds.exchanges import Exchange, HotInvitation
from sfsl.rounds.params import HotLimits, HotRules
from sfsl.secagg.client import Client
from sfsl.secagg.messages import InboundShares
from sfsl.service.messages import Decline
from small_federation import NODES, VICTIM, Probed, Small

LIMIT = 1 << 24
RULES = HotRules(rho=0.05, survey_rho=0.02, marks=8)
SURVEY, TRAIN = 1, 2  # by number of the round
COST = {SURVEY: 0.02, TRAIN: 0.07}  # in all, when it is over


class Killed(BaseException):
    """The process of one message dies."""


def hot(folder: Path, **options: Any) -> Small:
    return Small(folder, **{"hot": RULES, "limits": HotLimits(max_rho=1.0)} | options)


def probing(small: Small, around: Any) -> Probed:
    grid = small.grid(type("Probing", (Probed,), {"around": staticmethod(around)}))
    assert isinstance(grid, Probed)
    return grid


def again(message: Message, content: RecordDict | None = None) -> Message:
    """The same message, or one with another content, as new."""
    if content is None:
        content = packed(*unpacked_at_node(message.content))
    made = Message(content, dst_node_id=VICTIM, message_type=TYPE, ttl=message.metadata.ttl)
    made.metadata.__dict__["_message_id"] = message.metadata.message_id
    return made


def refused(reply: Message) -> bool:
    if not reply.has_error():
        return False
    assert (reply.error.code, reply.error.reason) == (2, "sits out")
    return True


def told(message: Message) -> Any:
    return CODEC.decode(unpacked_at_node(message.content)[0], limit=LIMIT)


def spent(small: Small, place: int = 1) -> tuple[float, int]:
    """What the ledger of a node says: rho, and rounds."""
    name = node_name(VICTIM - 1 + place)
    with ClientState.open(
        small.folder / f"node-{place}" / "state", client=name, budget=small.budget
    ) as state:
        return state.rho, state.hot_rounds


def test_a_survey_and_a_round_are_paid_for_once_each(tmp_path: Path) -> None:
    small = hot(tmp_path)
    grid = small.grid()
    small.run(grid, 2)
    assert [(line.aborted, line.survivors) for line in small.lines] == [(None, NODES)] * 2
    for place in range(NODES):
        rho, rounds = spent(small, place)
        assert (rho, rounds) == (pytest.approx(COST[TRAIN], rel=1e-6), 2)
    assert all(not context.state for context in grid.contexts.values())
    assert grid.silences == []


def test_a_message_that_is_repeated_is_not_answered_again(tmp_path: Path) -> None:
    """Nor by a SuperNode whose memory is put back to before it was answered."""
    small, seen = hot(tmp_path), []

    def around(grid: Probed, message: Message) -> Message:
        memory = context_to_proto(grid.contexts[VICTIM])
        reply = grid.honest(again(message))
        if isinstance(told(message), Call):
            return reply
        seen.append(type(told(message)).__name__)
        assert refused(grid.honest(again(message)))
        now = grid.contexts[VICTIM]
        grid.contexts[VICTIM] = context_from_proto(memory)
        assert refused(grid.honest(again(message)))
        grid.contexts[VICTIM] = now
        return reply

    small.run(probing(small, around), 2)
    assert [(line.aborted, line.survivors) for line in small.lines] == [(None, NODES)] * 2
    assert seen == ["HotInvitation", "InboundShares", "UnmaskRequest"] * 2
    assert spent(small) == (pytest.approx(COST[TRAIN], rel=1e-6), 2)


@pytest.mark.parametrize("number", [SURVEY, TRAIN])
@pytest.mark.parametrize("where", ["before it masks", "before it notes where it goes on"])
def test_a_node_that_is_killed_between_debit_and_upload_is_out_and_has_paid(
    tmp_path: Path, number: int, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It restarts with what its SuperNode remembers, and is asked again: there is no second vector."""
    small, killed = hot(tmp_path), []
    keeps = DurablePurse.keep

    def kill(self: Any, *given: Any) -> Any:
        if where == "before it masks":
            raise Killed
        if given[0] is None:  # it is about to train
            return keeps(self, *given)
        raise Killed

    def around(grid: Probed, message: Message) -> Message:
        if small.store.round + 1 != number or not isinstance(told(message), InboundShares):
            return grid.honest(message)
        before = spent(small)
        with monkeypatch.context() as patch:
            if where == "before it masks":
                patch.setattr(Client, "create_masked", kill)
            else:
                patch.setattr(DurablePurse, "keep", kill)
            with pytest.raises(Killed):
                grid.honest(again(message))
        killed.append(spent(small))
        assert killed[-1][1] == before[1] + 1  # paid
        for _ in range(2):
            reply = grid.honest(again(message))
            assert refused(reply)
        assert spent(small) == killed[-1]  # and not twice
        return reply

    small.run(probing(small, around), number)
    assert killed == [(pytest.approx(COST[number], rel=1e-6), number)]
    line = small.lines[-1]
    assert (line.aborted, line.survivors, line.dropped) == (None, NODES - 1, {"inbound": 1})


def test_a_model_that_is_not_the_one_that_was_promised_is_not_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None, others', spoiled, of another digest: refused, nothing debited, memory and disk as they were; and
    the right one is taken then."""
    small, trained, tried = hot(tmp_path), [], 0
    honest = Counting.train
    monkeypatch.setattr(
        Counting, "train", lambda self, *given: trained.append(self.move) or honest(self, *given)
    )

    def around(grid: Probed, message: Message) -> Message:
        nonlocal tried
        if small.store.round + 1 != TRAIN or not isinstance(told(message), InboundShares):
            return grid.honest(message)
        frame, published = unpacked_at_node(message.content)
        (hot_digest, hot_set), (blob_digest, blob) = published.items()
        memory, disk = context_to_proto(grid.contexts[VICTIM]), small.state_bytes(1)
        wrong = [
            packed(frame),
            packed(frame, {hot_digest: hot_set}),
            packed(frame, {blob_digest: blob}),
            packed(frame, {hot_digest: hot_set, blob_digest: blob[:-1]}),
            packed(frame, {hot_digest: hot_set, blob_digest: bytes(len(blob))}),
            packed(frame, {hot_digest: hot_set[:-1] + b"x", blob_digest: blob}),
            packed(frame, {hot_digest: blob, blob_digest: hot_set}),
            packed(frame, {bytes(32): hot_set, bytes(31) + b"1": blob}),
        ]
        odd = packed(frame, published)
        odd[PUBLISHED] = ConfigRecord({"no digest": blob})
        more = packed(frame, published)
        more["more"] = ConfigRecord()
        texts = packed(frame, published)
        texts[PUBLISHED] = ConfigRecord({hot_digest.hex(): "text", blob_digest.hex(): 1})
        alone = RecordDict({PUBLISHED: odd[PUBLISHED]})
        for content in (*wrong, odd, more, texts, alone):
            tried += 1
            assert refused(grid.honest(again(message, content))), tried
            assert context_to_proto(grid.contexts[VICTIM]) == memory
            assert small.state_bytes(1) == disk
        assert 2 / 1024 not in trained  # the victim's
        return grid.honest(message)

    small.run(probing(small, around), 2)
    assert tried == 12
    assert [(line.aborted, line.survivors) for line in small.lines] == [(None, NODES)] * 2


def test_an_invitation_that_costs_more_than_the_call_said_is_declined(tmp_path: Path) -> None:
    """The call is the server's word; what a round costs a client works out by itself."""
    small = hot(tmp_path, limits=HotLimits(max_rho=0.01))

    def around(grid: Probed, message: Message) -> Message:
        call = told(message)
        if isinstance(call, Call):
            assert call.rho == pytest.approx(COST[SURVEY])
            return grid.honest(again(message, packed(CODEC.encode(msgspec.structs.replace(call, rho=1e-9)))))
        reply = grid.honest(message)
        if isinstance(call, HotInvitation):
            assert isinstance(told(reply), Decline)
        return reply

    small.run(probing(small, around))
    assert small.lines[0].aborted is not None
    assert small.lines[0].declined == {"Decline": NODES}
    assert spent(small) == (0.0, 0)


@pytest.mark.parametrize("why", ["spent", "no hot rounds", "no exact sums"])
def test_what_a_node_does_not_take_part_in_is_said_at_the_call(tmp_path: Path, why: str) -> None:
    options: dict[str, Any] = {"epsilon_hot": 1.3 if why == "spent" else 100.0}
    if why == "no hot rounds":
        options["limits"] = None
    small = hot(tmp_path, **options)
    if why == "no exact sums":
        small.hot = None
    grid = small.grid()
    with pytest.MonkeyPatch.context() as patch:
        if why == "no exact sums":
            patch.setattr("small_federation.POLICY", msgspec.structs.replace(POLICY, exact=False))
        with pytest.raises(TooFewClients):
            small.run(grid, 3)
    assert grid.silences == []
    assert not [line for line in small.lines if line.aborted]
    if why == "spent":  # what is left pays for no round that trains
        assert len(small.lines) == spent(small)[1] == 1
        assert small.budget.rho < COST[TRAIN]
    else:
        assert not small.lines


def test_a_folder_from_a_backup_owns_up_and_goes_on(tmp_path: Path) -> None:
    """Noise is new each time, so nothing is drawn twice; what was forgotten is charged in full."""
    small = hot(tmp_path)
    grid = small.grid()
    small.run(grid, 1)
    old = small.state_bytes(1)
    small.run(grid, 2)
    (tmp_path / "node-1" / "state").write_bytes(old)
    small.run(grid, 3)
    assert [line.survivors for line in small.lines] == [NODES] * 3
    charged, rounds = spent(small)
    honest, _ = spent(small, 2)
    assert rounds == 3
    assert charged == pytest.approx(
        0.02 + 1.0 + 0.05, rel=1e-6
    )  # a survey, the most a round may cost, a round
    assert charged > honest


@pytest.mark.parametrize("how", [NotFinite("as a gradient of a spoiled model is"), RuntimeError("a crash")])
def test_a_client_trains_once_in_a_round_also_if_that_fails(
    tmp_path: Path, how: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, tried = hot(tmp_path), []
    honest = Counting.train

    def train(self: Counting, *given: Any) -> Any:
        if self.move == 2 / 1024:
            tried.append(self)
            raise how
        return honest(self, *given)

    monkeypatch.setattr(Counting, "train", train)

    def around(grid: Probed, message: Message) -> Message:
        reply = grid.honest(again(message))
        if small.store.round + 1 == TRAIN and isinstance(told(message), InboundShares):
            assert not refused(reply)  # zeros under noise: staying away would tell
            assert refused(grid.honest(again(message)))
        return reply

    small.run(probing(small, around), 2)
    assert len(tried) == 1
    assert small.lines[-1].survivors == NODES
    assert spent(small) == (pytest.approx(COST[TRAIN]), 2)


def test_active_mode_in_a_survey_and_a_round(tmp_path: Path) -> None:
    """One exchange more, in which survivors are signed; who insists on it declines a round without."""
    roster = tmp_path / "roster"
    small = hot(tmp_path, roster=str(roster))
    grid = small.grid()
    publics = {node: home_of(grid, node).identity().public for node in grid.contexts}
    roster.write_text("\n".join(f"{node} {public.hex()}" for node, public in publics.items()))
    small.run(grid, 2)
    for line in small.lines:
        assert (line.aborted, line.survivors) == (None, NODES)
        assert list(line.exchange_seconds) == [Exchange.CHECK_IN, *COURSE.order(active=True)]
    passive = hot(tmp_path)  # its server; the clients are those that insist on active mode
    passive.run(grid)
    (line,) = passive.lines
    assert (line.survivors, line.declined) == (0, {"Decline": NODES})


def test_nodes_send_vectors_of_one_length(tmp_path: Path) -> None:
    """Whatever they have: what they say about themselves is not in the size."""
    small = hot(tmp_path)
    small.real[0], small.real[1] = set(), set(range(60))
    grid = small.grid()
    small.run(grid, 2)
    sizes: dict[int, set[int]] = {}
    for place, (_, frame) in enumerate(grid.said):
        assert frame is not None
        sizes.setdefault(place // NODES, set()).add(len(frame))
    assert len(sizes) == 8
    assert all(len(one) == 1 for one in sizes.values()), sizes
