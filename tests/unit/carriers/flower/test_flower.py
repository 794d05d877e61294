"""Flower's edges: settings, names, rosters, terms, frames in records, and the Grid."""

import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from sfsl.carriers.flower.apps import GridPost, client_app, packed, unpacked, unpacked_at_node
from sfsl.carriers.flower.messages import node_name, node_token, read_roster
from sfsl.carriers.flower.node import Terms, open_node
from sfsl.crypto.secret import Identity, Secret
from sfsl.errors import DecodeError, InputError, ParameterError, StateError
from sfsl.service.registry import Registry
from sfsl.settings.flower import FlowerSettings, read_config
from sfsl.submodel import RowSet
from small_federation import NODES, Small

RUN = {"round.scheme": "sfsl", "round.clients": 5, "round.min_contributors": 2}


def test_settings_are_sections_of_the_runs_configuration() -> None:
    given = {"flower.rounds": 4, "training.learning_rate": 0.5, "my.own": 1, "loose": True}
    config = read_config(RUN | given)
    rounds = config.rounds()
    assert (rounds.cohort, rounds.min_cohort, rounds.rounds, rounds.rules.active) == (5, 4, 4, False)
    assert rounds.rules.training(1)["rate"] == 0.5
    assert rounds.rules.threshold is None
    assert read_config(RUN | {"round.threshold": 4}).rounds().rules.threshold == 4


def test_rounds_are_over_hot_rows_unless_the_run_says_otherwise() -> None:
    rules = read_config({"round.clients": 50, "privacy.epsilon": 4.0}).rounds().rules
    assert rules.hot is not None
    assert rules.hot.surveys == 1
    assert 0 < rules.hot.survey_rho < rules.hot.rho * 10
    dearer = read_config({"round.clients": 50, "privacy.epsilon": 4.0, "privacy.participations": 5})
    assert dearer.rounds().rules.hot.rho == pytest.approx(2 * rules.hot.rho)  # type: ignore[union-attr]
    assert read_config(RUN).rounds().rules.hot is None
    assert read_config({"round.clients": 5000, "flower.min_cohort": 4000}).rounds().cohort == 5000


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"flower.speed": 1}, "no key flower.speed"),
        ({"flower.phase_seconds": -1.0}, "phase_seconds"),
        ({"round.min_contributors": "auto"}, "give a number"),
        ({"round.scheme": "fl"}, 'round.scheme = "hot" or "sfsl"'),
        ({"round.sums": "plain"}, "masked sums"),
        ({"round.clients": "many"}, "round.clients"),
    ],
)
def test_a_wrong_setting_says_which(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ParameterError, match=says):
        read_config(RUN | given)


def test_a_node_has_one_name_and_the_registry_takes_it(tmp_path: Path) -> None:
    nodes = [0, 1, 2**63, 2**64 - 1]
    assert len({node_name(node) for node in nodes}) == len(nodes)
    with Registry(tmp_path / "registry.sqlite") as registry:
        for node in nodes:
            assert registry.enrol(node_token(node), 0) == node_name(node)


def test_rosters(tmp_path: Path) -> None:
    one, two = (Identity(Secret(bytes([number]) * 32)).public for number in (1, 2))
    file = tmp_path / "roster"
    file.write_text(f"# all of us\n5 {one.hex()}\n\n{2**64 - 1} {two.hex()}  # the second\n")
    assert read_roster(file) == {node_name(5): one, node_name(2**64 - 1): two}
    for wrong in (
        f"5 {one.hex()}\n5 {two.hex()}",
        f"5 {one.hex()}\n6 {one.hex()}",
        f"x {one.hex()}",
        f"{2**64} {one.hex()}",
        "5",
        f"5 {one.hex()} 7",
        "5 00",
    ):
        file.write_text(wrong)
        with pytest.raises(InputError, match=r"line [12]"):
            read_roster(file)
    with pytest.raises(InputError, match="cannot read"):
        read_roster(tmp_path / "none")


def test_a_nodes_terms_are_its_operators(tmp_path: Path) -> None:
    config = {"state": str(tmp_path / "n"), "exposures": 2, "max-rows": 7, "partition-id": 3, "app.x": 1}
    run = {"node.exposures": 99, "simulation.folder": str(tmp_path)}
    node = open_node(9, 1, config, run)
    assert (node.terms.exposures, node.terms.policy.max_rows, node.partition) == (2, 7, 3)
    assert (node.simulated, node.name, node.label) == (False, node_name(9), node_name(9))
    assert (tmp_path / "n").stat().st_mode & 0o777 == 0o700
    with pytest.raises(ParameterError, match=r"no key node config\.max-rowz"):
        open_node(9, 1, config | {"max-rowz": 1}, run)
    with pytest.raises(InputError, match="empty here"):
        open_node(9, 1, {"state": ""}, run)
    with pytest.raises(InputError, match="partition-id"):
        _ = open_node(9, 1, {"state": str(tmp_path / "m")}, run).partition


@pytest.mark.parametrize("content", [RecordDict(), RecordDict({"sfsl": ConfigRecord({"frame": 1})})], ids=str)
def test_what_is_not_one_frame(content: RecordDict) -> None:
    assert unpacked(packed(b"frame")) == b"frame"
    with pytest.raises(DecodeError):
        unpacked(content)


def test_what_is_published_goes_beside_a_frame_to_nodes_only() -> None:
    published = {bytes(32): b"rows", bytes(range(32)): b"model"}
    assert unpacked_at_node(packed(b"frame", published)) == (b"frame", published)
    assert unpacked_at_node(packed(b"frame")) == (b"frame", {})
    with pytest.raises(DecodeError, match="not one frame"):
        unpacked(packed(b"frame", published))
    # The same object for everyone, whatever is in the frame: Flower knows it by this id.
    ids = {packed(frame, published)["sfsl-published"].object_id for frame in (b"one", b"two")}  # type: ignore[union-attr]
    assert len(ids) == 1


def test_the_guide_names_every_key_and_no_other() -> None:
    guide = (Path(__file__).parents[4] / "docs/guide/flower.md").read_text()
    asked, said = guide.split("### What a node's operator says", 1)[1].split("### What a run says", 1)
    said = said.split("\n## ", 1)[0]

    def named(section: str) -> set[str]:
        """In the first column of its table."""
        cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
        return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}

    assert named(asked) == {field.encode_name for field in msgspec.structs.fields(Terms)}
    assert named(said) == {f"flower.{name}" for name in FlowerSettings.__struct_fields__}


class Refusing:
    """A Grid whose SuperLink takes no message, or knows none."""

    def __init__(self, ids: list[Any]) -> None:
        self.ids = ids
        self.asked = 0

    def push_messages(self, messages: list[Message]) -> list[Any]:
        return self.ids

    def pull_messages(self, ids: list[str]) -> list[Message]:
        self.asked += 1
        return []


@pytest.mark.parametrize(("ids", "asked"), [([], 0), ([None], 0), (["a"], 4)])
def test_nobody_waits_for_what_was_not_sent(ids: list[Any], asked: int) -> None:
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 7, 1, 1
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    grid: Any = Refusing(ids)
    GridPost(grid, 1.0, clock=lambda: now, sleep=sleep).exchange({5: b"x"}, 3.0, lambda node, data: None)
    assert grid.asked == asked


def test_a_mistake_in_the_app_is_silence_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its traceback is in this node's log, and in nobody else's."""
    slept: list[float] = []

    def join(node: Any) -> Any:
        raise ZeroDivisionError("film 17")

    app = client_app(join, sleep=slept.append)
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 7, 1, 1
    message = Message(packed(b"x"), dst_node_id=5, message_type="train.sfsl", ttl=9.0)
    message.metadata.__dict__["_message_id"] = "m"
    context = Context(1, 5, {"state": str(tmp_path)}, RecordDict(), {})
    reply = app(message, context)
    assert "film 17" in caplog.text
    assert "17" not in str(reply.error.reason)
    assert slept == [pytest.approx(9.0, abs=0.5)]


def test_a_round_with_durable_clients(tmp_path: Path) -> None:
    small = Small(tmp_path)
    before = small.store.read_rows("goods", RowSet(np.arange(60))).values.copy()
    small.run(small.grid())
    (line,) = small.lines
    assert (line.aborted, line.survivors, line.late) == (None, NODES, 0)
    moved = small.store.read_rows("goods", RowSet(np.arange(60))).values - before
    owned = np.array([any(row in some for some in small.real.values()) for row in range(60)])
    assert moved.any()
    assert not moved[~owned].any()


def test_active_mode_with_identities_that_are_known_in_advance(tmp_path: Path) -> None:
    """Eight exchanges and the check-in. Who has a roster declines any other round."""
    from federation import home_of
    from sfsl.rounds.exchanges import Exchange, order

    roster = tmp_path / "roster"
    small = Small(tmp_path, roster=str(roster))
    grid = small.grid()
    publics = {node: home_of(grid, node).identity().public for node in grid.contexts}
    roster.write_text("\n".join(f"{node} {public.hex()}" for node, public in publics.items()))
    small.run(grid)
    (line,) = small.lines
    assert (line.aborted, line.survivors) == (None, NODES)
    assert list(line.exchange_seconds) == [Exchange.CHECK_IN, *order(active=True)]
    passive = Small(tmp_path)  # its server; the clients are those that insist on active mode
    passive.run(grid)
    (line,) = passive.lines
    assert line.aborted is not None
    assert line.declined == {"Decline": NODES}


def test_a_folder_that_another_process_has_is_not_used(tmp_path: Path) -> None:
    small = Small(tmp_path)
    grid = small.grid()
    small.run(grid)
    node = next(iter(grid.contexts))
    config = dict(grid.contexts[node].node_config)
    with (
        small.join(open_node(node, 7, config, {})),
        pytest.raises(StateError, match="in use"),
        small.join(open_node(node, 7, config, {})),
    ):
        pass
