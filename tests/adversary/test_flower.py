"""A SuperLink that lies, replays and swaps, and a SuperNode whose memory is put back: nothing is said twice,
nothing is re-opened, nothing is learned from a refusal."""

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.serde import context_from_proto, context_to_proto

from crowd import Counting
from federation import FIRST, LoopGrid, home_of
from sfsl.carriers.flower.apps import packed, unpacked
from sfsl.carriers.flower.messages import CODEC, Call, Over, node_name
from sfsl.carriers.flower.node import Answer, open_node
from sfsl.client import PersonalRows
from sfsl.crypto.secret import Secret
from sfsl.errors import InputError, NotFinite, StateError, TooFewClients
from sfsl.privacy import Budget, ClientState
from sfsl.rounds.exchanges import Submodel
from sfsl.rounds.snapshots import decode_client
from sfsl.secagg.messages import InboundShares, UnmaskRequest
from small_federation import NODES, VICTIM, Probed, Small

LIMIT = 1 << 24
EXCHANGES = 7  # with the check-in


def probing(small: Small, around: Callable[[Probed, Message], Message]) -> Probed:
    kind = type("Probing", (Probed,), {"around": staticmethod(around)})
    grid = small.grid(kind)
    assert isinstance(grid, Probed)
    return grid


def again(message: Message, frame: bytes | RecordDict) -> Message:
    """The same message with another content."""
    made = Message(
        frame if isinstance(frame, RecordDict) else packed(frame),
        dst_node_id=VICTIM,
        message_type=message.metadata.message_type,
        ttl=message.metadata.ttl,
    )
    made.metadata.__dict__["_message_id"] = message.metadata.message_id
    return made


def refused(reply: Message) -> bool:
    """With the one error that all refusals have."""
    if not reply.has_error():
        return False
    assert (reply.error.code, reply.error.reason) == (2, "sits out")
    return True


def whole(small: Small) -> None:
    (line,) = small.lines
    assert (line.aborted, line.survivors, line.dropped) == (None, NODES, {})


# -- once ------------------------------------------------------------------------------------------


def test_a_message_that_is_repeated_is_not_answered_again(tmp_path: Path) -> None:
    """Not with the same bytes, and not with others. A second call is another check-in, with other keys."""
    small, seen = Small(tmp_path), []

    def around(grid: Probed, message: Message) -> Message:
        frame = unpacked(message.content)
        reply = grid.honest(again(message, frame))
        if not isinstance(CODEC.decode(frame, limit=LIMIT), Call):
            seen.append(type(CODEC.decode(frame, limit=LIMIT)).__name__)
            for _ in range(2):
                assert refused(grid.honest(again(message, frame)))
        return reply

    small.run(probing(small, around))
    whole(small)
    assert len(seen) == EXCHANGES - 1


def test_another_message_of_a_phase_that_is_over_is_not_answered(tmp_path: Path) -> None:
    """The same boxes for fewer participants would be a second vector under the masks of the first; other
    survivors would open both secrets of a client."""
    small, tried = Small(tmp_path), []

    def around(grid: Probed, message: Message) -> Message:
        frame = unpacked(message.content)
        told: Any = CODEC.decode(frame, limit=LIMIT)
        reply = grid.honest(again(message, frame))
        other = None
        if isinstance(told, InboundShares):
            other = InboundShares(told.round_id, told.senders[1:], told.boxes[1:], b"", ())
        if isinstance(told, UnmaskRequest):
            some = told.survivors
            gone = next(place for place in reversed(some) if place != some[0])
            other = UnmaskRequest(
                told.round_id, told.sum, tuple(one for one in some if one != gone), (gone,), ()
            )
        if other is not None:
            tried.append(type(other))
            assert refused(grid.honest(again(message, CODEC.encode(other))))
        return reply

    small.run(probing(small, around))
    whole(small)
    assert tried == [InboundShares, UnmaskRequest, UnmaskRequest]


def test_an_older_snapshot_is_refused(tmp_path: Path) -> None:
    """The SuperNode's memory is put back to each earlier point, with the message that was answered there. The
    disk says that the round has gone on. With the right memory it does go on afterwards."""
    small = Small(tmp_path)
    before: list[tuple[Any, bytes]] = []
    tried = 0

    def around(grid: Probed, message: Message) -> Message:
        nonlocal tried
        frame = unpacked(message.content)
        latest = context_to_proto(grid.contexts[VICTIM])
        for context, earlier in before[1:]:  # a call needs no memory: it makes new keys
            grid.contexts[VICTIM] = context_from_proto(context)
            assert refused(grid.honest(again(message, earlier)))
            assert refused(grid.honest(again(message, frame)))
            tried += 1
        grid.contexts[VICTIM] = context_from_proto(latest)
        before.append((latest, frame))
        return grid.honest(again(message, frame))

    small.run(probing(small, around))
    whole(small)
    assert tried == sum(range(EXCHANGES - 1))
    budget = Budget(100.0, 100.0, 9)
    with ClientState.open(tmp_path / "node-1" / "state", client=node_name(VICTIM), budget=budget) as state:
        assert (state.ledger.exposures, state.ledger.answered) == (1, 1)


def test_a_folder_from_a_backup_is_noticed_and_sat_out(tmp_path: Path) -> None:
    """The server's count is in its call. The ledger that forgot is charged."""
    small = Small(tmp_path)
    grid = small.grid()
    small.run(grid, 1)
    old = small.state_bytes(1)
    small.run(grid, 2)
    (tmp_path / "node-1" / "state").write_bytes(old)
    small.run(grid, 3)
    assert [line.cohort for line in small.lines] == [NODES, NODES, NODES - 1]
    assert len(grid.silences) == 1


# -- a message that does not belong ----------------------------------------------------------------


def wrong_frames(frames: list[bytes]) -> list[bytes | RecordDict]:
    """``frames``: all that was ever sent to anyone; the last belongs here and now."""
    due = frames[-1]
    return [
        b"",
        due[:-1],
        due[: len(due) // 2],
        due + b"\0",
        b"\x02" + due[1:],
        bytes(5 << 20),
        *frames[:-1],
        CODEC.encode(Over(bytes(range(32)))),
        RecordDict(),
        RecordDict({"sfsl": ConfigRecord({"frame": "text"})}),
        RecordDict({"sfsl": ConfigRecord({"frame": due, "more": 1})}),
        RecordDict({"sfsl": ConfigRecord({"frame": due}), "more": ConfigRecord()}),
        RecordDict({"sfsl": ArrayRecord()}),
        RecordDict({"other": ConfigRecord({"frame": due})}),
    ]


def could_be_its_own(frame: bytes, due: bytes) -> bool:
    """A submodel names no receiver (spec round 4): one with as many rows is as good as the client's own."""
    sent, own = (CODEC.decode(one, limit=LIMIT) for one in (frame, due))
    return (
        isinstance(sent, Submodel)
        and isinstance(own, Submodel)
        and [len(rows) for rows in sent.rows] == [len(rows) for rows in own.rows]
    )


def test_messages_of_another_round_phase_or_client_change_nothing(tmp_path: Path) -> None:
    """Truncated, oversized, foreign, swapped: refused, and memory and disk are as they were."""
    small, frames = Small(tmp_path), []
    tried = 0

    def around(grid: Probed, message: Message) -> Message:
        nonlocal tried
        frame = unpacked(message.content)
        frames.append(frame)
        if isinstance(CODEC.decode(frame, limit=LIMIT), Call):
            return grid.honest(again(message, frame))
        # What others were sent in this exchange is for them.
        for_others = [
            sent
            for node, sent in grid.sent
            if node != VICTIM and sent not in frames and not could_be_its_own(sent, frame)
        ]
        memory, disk = context_to_proto(grid.contexts[VICTIM]), small.state_bytes(1)
        for wrong in wrong_frames([*frames[1:-1], *for_others[-2:], frame]):
            if wrong in frames[-1:] or (isinstance(wrong, bytes) and wrong == frame):
                continue
            tried += 1
            assert refused(grid.honest(again(message, wrong))), wrong
            assert context_to_proto(grid.contexts[VICTIM]) == memory
            assert small.state_bytes(1) == disk
        return grid.honest(again(message, frame))

    small.run(probing(small, around))
    whole(small)
    assert tried > 80


def test_memory_that_cannot_be_read_costs_a_round_and_no_more(tmp_path: Path) -> None:
    small, seen = Small(tmp_path), 0

    def around(grid: Probed, message: Message) -> Message:
        nonlocal seen
        seen += 1
        if seen == 3:
            grid.contexts[VICTIM].state["sfsl"] = ConfigRecord({"kept": b"\x01 no snapshot"})
        return grid.honest(message)

    small.run(probing(small, around), 2)
    assert [(line.survivors, line.dropped) for line in small.lines] == [
        (NODES - 1, {"inbound": 1}),
        (NODES, {}),
    ]


def lied_to(folder: Path) -> Small:
    """A run in active mode whose server sends one node other rows than it has committed to."""
    roster = folder / "roster"
    small = Small(folder, roster=str(roster))

    def around(grid: Probed, message: Message) -> Message:
        told = CODEC.decode(unpacked(message.content), limit=10**7)
        if isinstance(told, Submodel):
            rows = tuple((np.frombuffer(data, "<f4") + np.float32(1)).tobytes() for data in told.rows)
            message = again(message, CODEC.encode(msgspec.structs.replace(told, rows=rows)))
        return grid.honest(message)

    grid = probing(small, around)
    publics = {node: home_of(grid, node).identity().public for node in grid.contexts}
    roster.write_text("\n".join(f"{node} {public.hex()}" for node, public in publics.items()))
    small.run(grid)
    return small


def test_a_server_that_sends_one_node_other_rows_is_named_in_its_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (line,) = lied_to(tmp_path).lines
    assert (line.survivors, line.dropped) == (NODES - 1, {"submodel": 1})
    assert "Deceived: the server sent rows that are not those of the model it committed to" in caplog.text


def test_without_the_proof_it_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sfsl.rounds.client.require_committed", lambda *_: None)
    (line,) = lied_to(tmp_path).lines
    assert line.survivors == NODES


def test_frames_swapped_between_nodes_are_refused_by_the_server(tmp_path: Path) -> None:
    """The SuperLink hands the server one node's answer as another's: both are out, and nothing is mixed."""
    small = Small(tmp_path)
    held: list[Message] = []

    def meddle(reply: Message) -> Message | None:
        if reply.has_error() or grid.counts() != 3 or reply.metadata.src_node_id not in (FIRST, VICTIM):
            return reply
        held.append(reply)
        if len(held) < 2:
            return None
        first, second = held
        for one, other in ((first, second), (second, first)):
            swapped = Message(packed(unpacked(other.content)), dst_node_id=1, message_type="train.sfsl")
            swapped.metadata.__dict__.update(one.metadata.__dict__)
            grid._replies[one.metadata.reply_to_message_id] = swapped
        return grid._replies.pop(second.metadata.reply_to_message_id)

    class Counting(LoopGrid):
        def counts(self) -> int:
            return -(-len(self.sent) // NODES)

    grid: Any = small.grid(Counting, meddle=meddle)
    small.run(grid)
    (line,) = small.lines
    assert line.aborted is not None
    assert line.dropped == {"inbound": 2}
    assert line.survivors == 0


def reply_with(message: Message, frame: bytes, sender: int | None = None) -> Message:
    made = Message(packed(frame), dst_node_id=1, message_type="train.sfsl")
    made.metadata.__dict__.update(message.metadata.__dict__)
    if sender is not None:
        made.metadata.__dict__["_src_node_id"] = sender
    return made


@pytest.mark.parametrize("lie", ["truncated", "oversized", "wrong sender", "not a frame", "another's keys"])
def test_a_reply_that_lies_is_a_node_that_does_not_answer(tmp_path: Path, lie: str) -> None:
    small, seen = Small(tmp_path), 0
    due = 1 if lie == "another's keys" else 3
    other: list[bytes] = []

    def meddle(reply: Message) -> Message | None:
        nonlocal seen
        if reply.metadata.src_node_id != VICTIM:
            if not reply.has_error():
                other.append(unpacked(reply.content))
            return reply
        seen += 1
        if seen != due:
            return reply
        frame = unpacked(reply.content)
        match lie:
            case "truncated":
                return reply_with(reply, frame[:-1])
            case "oversized":
                return reply_with(reply, frame + bytes(1 << 20))
            case "wrong sender":
                return reply_with(reply, frame, FIRST + 2)
            case "not a frame":
                made = reply_with(reply, frame)
                made.content["more"] = ConfigRecord()
                return made
        return reply_with(reply, other[-1]) if other else None

    small.run(small.grid(meddle=meddle))
    (line,) = small.lines
    assert line.aborted is None
    if due == 1:
        assert (line.cohort, line.survivors) == (NODES - 1, NODES - 1)
    else:
        assert (line.dropped, line.survivors) == ({"inbound": 1}, NODES - 1)


class Unreadable(LoopGrid):
    """Flower raises while it decodes what the victim has pushed, as it does for garbage in its own format."""

    def pull_messages(self, message_ids: Any) -> Any:
        wanted = list(message_ids)
        if any(one in self._replies and self._replies[one].metadata.src_node_id == VICTIM for one in wanted):
            raise ValueError("not what flwr writes")
        return super().pull_messages(wanted)


def test_a_reply_that_flower_cannot_read_costs_its_node_only(tmp_path: Path) -> None:
    small = Small(tmp_path)
    small.run(small.grid(Unreadable))
    (line,) = small.lines
    assert (line.aborted, line.cohort, line.survivors) == (None, NODES - 1, NODES - 1)


def test_a_reply_that_claims_to_be_anothers_answer_is_its_senders(tmp_path: Path) -> None:
    """Metadata of a reply are its sender's to write, and ids of messages can be guessed."""
    small = Small(tmp_path)

    def meddle(reply: Message) -> Message | None:
        if reply.metadata.src_node_id == VICTIM:  # here the liar
            own = int(reply.metadata.reply_to_message_id.partition("-")[2])
            made = reply_with(reply, unpacked(reply.content), FIRST + 2)
            made.metadata.__dict__["_reply_to_message_id"] = f"message-{own + 1}"
            return made
        return reply

    small.run(small.grid(meddle=meddle))
    (line,) = small.lines
    assert (line.aborted, line.cohort, line.survivors) == (None, NODES - 1, NODES - 1)


@pytest.mark.parametrize("how", [NotFinite("as a gradient of spoiled rows is"), RuntimeError("a crash")])
def test_a_client_whose_training_fails_sends_zeros_and_trains_once_in_a_round(
    tmp_path: Path, how: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a server spoils row after row, and learns from failures whether they are this client's."""
    small, trained, asked = Small(tmp_path), [], 0
    honest = Counting.train

    def train(self: Counting, *given: Any) -> Any:
        if self.move == 2 / 1024:  # the victim's
            trained.append(self)
            if len(trained) == 1:
                raise how
        return honest(self, *given)

    monkeypatch.setattr(Counting, "train", train)

    def around(grid: Probed, message: Message) -> Message:
        nonlocal asked
        frame = unpacked(message.content)
        reply = grid.honest(again(message, frame))
        if isinstance(CODEC.decode(frame, limit=LIMIT), Submodel):
            assert not refused(reply)
            for _ in range(3):
                asked += 1
                assert refused(grid.honest(again(message, frame)))
        return reply

    small.run(probing(small, around))
    (line,) = small.lines
    assert (line.aborted, line.survivors, line.dropped) == (None, NODES, {})
    assert (len(trained), asked) == (1, 3)


def test_own_rows_that_cannot_be_kept_end_the_round_and_leave_no_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The update is masked by then: it is not sent, and nothing is left to make another from."""
    small, seen = Small(tmp_path), []
    honest = PersonalRows.keep

    def keep(self: PersonalRows, moved: Any) -> None:
        if not seen:
            seen.append(self)
            raise StateError("the disk is full")
        honest(self, moved)

    def around(grid: Probed, message: Message) -> Message:
        frame = unpacked(message.content)
        submodel = isinstance(CODEC.decode(frame, limit=LIMIT), Submodel)
        if submodel:
            monkeypatch.setattr(PersonalRows, "keep", keep)
        reply = grid.honest(again(message, frame))
        if submodel:
            assert refused(reply)
            assert not grid.contexts[VICTIM].state
            assert refused(grid.honest(again(message, frame)))
        return reply

    small.run(probing(small, around))
    (line,) = small.lines
    assert (line.aborted, line.survivors, line.dropped) == (None, NODES - 1, {"submodel": 1})


# -- what a refusal says ---------------------------------------------------------------------------


def test_what_depends_on_data_is_declined_by_silence(tmp_path: Path) -> None:
    """A submodel that is too large for it: no answer before time is up, and then one that says nothing."""
    small = Small(tmp_path, max_rows=3)
    grid = small.grid()
    small.run(grid)
    (line,) = small.lines
    assert line.aborted is not None
    assert line.dropped == {"union": NODES}
    assert grid.silences == [pytest.approx(0.3, abs=0.2)] * NODES
    for context in grid.contexts.values():
        assert not context.state  # out of the round, with nothing left of it


@pytest.mark.parametrize("ttl", [0.0, -1.0, 1e-9, float("nan")])
def test_a_server_that_leaves_no_time_waits_all_the_same(tmp_path: Path, ttl: float) -> None:
    small = Small(tmp_path)
    grid = small.grid()
    message = Message(packed(b"no frame"), dst_node_id=VICTIM, message_type="train.sfsl", ttl=5)
    message.metadata.__dict__ |= {"_message_id": "one", "_ttl": ttl}
    assert refused(grid.deliver(VICTIM, message))
    assert grid.silences == [pytest.approx(60, abs=5)]


def test_ids_of_messages_cannot_be_guessed(tmp_path: Path) -> None:
    """A SuperLink takes a reply from whoever knows which message it answers."""
    small, groups = Small(tmp_path), []

    def around(grid: Probed, message: Message) -> Message:
        groups.append(message.metadata.group_id)
        return grid.honest(message)

    small.run(probing(small, around))
    whole(small)
    assert len(set(groups)) == len(groups) == EXCHANGES
    assert {len(one) for one in groups} == {32}


def test_a_spent_budget_is_said_at_once(tmp_path: Path) -> None:
    small = Small(tmp_path, exposures=1)
    grid = small.grid()
    small.run(grid, 1)
    with pytest.raises(TooFewClients):
        small.run(grid, 2)
    assert grid.silences == []
    assert refused_all(grid)


def refused_all(grid: LoopGrid) -> bool:
    return all(frame is None for _, frame in grid.said[EXCHANGES * NODES :])


def test_nothing_secret_is_logged_or_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bytes] = []
    honest = Secret.__init__

    def recording(secret: Secret, value: bytes) -> None:
        seen.append(value)
        honest(secret, value)

    monkeypatch.setattr(Secret, "__init__", recording)
    caplog.set_level(logging.DEBUG)
    small, shown = Small(tmp_path), []

    def around(grid: Probed, message: Message) -> Message:
        reply = grid.honest(message)
        shown.append(repr(reply.error) if reply.has_error() else "")
        record = grid.contexts[VICTIM].state.get("sfsl")
        if isinstance(record, ConfigRecord):
            kept = record["kept"]
            assert isinstance(kept, bytes)
            shown.extend(
                (repr(decode_client(kept)), repr(Answer(b"", kept)), f"{decode_client(kept).session!r}")
            )
        if not isinstance(CODEC.decode(unpacked(message.content), limit=LIMIT), Call):
            assert refused(grid.honest(message))
        return reply

    small.run(probing(small, around))
    whole(small)
    text = caplog.text + "".join(shown)
    assert len(seen) > 50
    assert len(text) > 1000
    for secret in seen:
        assert secret.hex() not in text
        assert repr(secret)[2:-1] not in text


def test_a_deployed_node_without_a_folder_is_refused_whatever_the_run_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else a server could have clients forget their ledgers."""
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    with pytest.raises(InputError, match="no folder for its client's durable state"):
        open_node(7, 1, {"partition-id": 0}, {"simulation.folder": str(tmp_path)})


def test_a_node_that_is_told_another_id_keeps_to_its_own(tmp_path: Path) -> None:
    small = Small(tmp_path)
    grid = small.grid()
    small.run(grid, 1)
    context = grid.contexts.pop(VICTIM)
    context.node_id = 77
    grid.contexts[77] = context
    small.run(grid, 2)
    assert [line.cohort for line in small.lines] == [NODES, NODES - 1]
