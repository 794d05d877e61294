"""A search in little: what it costs, who survives it, and that it goes on where it was stopped."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from sfsl.errors import InputError, ParameterError, StoreInUse
from sfsl.run.fleet import Fleet, build_fleet
from sfsl.run.validation import TEST, VALID
from sfsl.settings.run import RunConfig, from_sections
from sfsl.settings.toml import read_config
from sfsl_research.tune import search as searching
from sfsl_research.tune.folder import PLAN, STATE, Plan
from sfsl_research.tune.halving import DEFAULT, ArmState, Cost
from sfsl_research.tune.picture import draw
from sfsl_research.tune.result import chosen_config, run_file, summarize, write_results
from sfsl_research.tune.search import Progress, Search, begin, go_on
from sfsl_research.tune.space import Value

CPU = torch.device("cpu")
CLIENTS = 6


def config(**sections: dict[str, object]) -> RunConfig:
    return from_sections(
        {
            "data": {"world": "tastes", "users": 40, "scale": 0.05, "validation": 0.5},
            "model": {"width": 4, "initial": 0.05},
            "privacy": {"preset": "cpp2"},
            "round": {"clients": CLIENTS, "min_contributors": 1},
            "run": {"rounds": 4, "seed": 2},
            **sections,
        }
    )


# So slow that nearly nothing is learned; the arm "fast" is not.
BASE = config(
    training={"learning_rate": 1e-6, "rebuild": 0.3, "rebuild_rate": 1e-3, "rebuild_epochs": 2},
    server={"row_rate": 1e-6, "row_prior": 20.0, "row_halving": 14, "dense_rate": 1e-9},
)
ARMS: dict[str, dict[str, Value]] = {
    DEFAULT: {},
    "fast": {"training.learning_rate": 0.2, "server.row_rate": 0.3, "server.dense_rate": 0.003},
    "kept": {"training.rebuild": 0.0},
    "slow": {"server.row_rate": 1e-7},
}


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return build_fleet(BASE)


def plan_of(fleet: Fleet, base: RunConfig = BASE) -> Plan:
    return Plan(base, ARMS, len(fleet.devices), len(fleet.train))


def searched(
    search: Search,
    stop: Callable[[], bool] = lambda: False,
    seen: Callable[[Progress], None] = lambda progress: None,
) -> dict[str, ArmState]:
    with search:
        search.run(stop=stop, seen=seen)
    return search.arms


def told(arms: dict[str, ArmState]) -> list[object]:
    """All that arms say but for seconds and last bits: the buffers of a fresh engine are others."""
    said: list[object] = []
    for name, arm in arms.items():
        tests = [] if arm.test is None else [arm.test.auc, arm.test.log_loss]
        figures = [one.found.log_loss for one in arm.points] + tests
        cost = msgspec.structs.replace(arm.cost, seconds=0.0)
        said.append((name, arm.dropped, cost, [one.round for one in arm.points]))
        said.append(pytest.approx(figures, abs=1e-6))
    return said


def figures_of(arms: dict[str, ArmState]) -> list[object]:
    return [getattr(one, "expected", one) for one in told(arms)]


@pytest.fixture(scope="module")
def whole(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Search]:
    path = tmp_path_factory.mktemp("tune") / "whole"
    search = begin(path, plan_of(fleet), fleet, CPU)
    searched(search)
    return path, search


def test_the_default_survives_to_the_end_and_the_best_is_chosen(whole: tuple[Path, Search]) -> None:
    _, search = whole
    assert search.rungs == [2, 4]
    dropped = {name: arm.dropped for name, arm in search.arms.items()}
    assert dropped[DEFAULT] is dropped["fast"] is None
    assert sorted([dropped["kept"] or 0, dropped["slow"] or 0])[1] == 2
    summary = summarize(search.plan, search.rungs, search.arms)
    assert summary.choice == "fast"
    chosen, default = summary.arm("fast"), summary.arm(DEFAULT)
    assert chosen.validation.log_loss is not None
    assert default.validation.log_loss is not None
    assert chosen.validation.log_loss < default.validation.log_loss
    assert "fast is best" in summary.verdict
    assert "item popularity" in summary.verdict


def test_another_model_is_an_arm_like_others_and_may_be_chosen(fleet: Fleet, tmp_path: Path) -> None:
    arms: dict[str, dict[str, Value]] = {DEFAULT: {}, "other": {"model.kind": "logistic"}}
    plan = Plan(BASE, arms, len(fleet.devices), len(fleet.train))
    path = tmp_path / "tune"
    searched(begin(path, plan, fleet, CPU), stop=lambda: True)
    search = go_on(path, fleet, CPU)
    found = searched(search)
    assert {name: len(arm.points) for name, arm in found.items()} == {DEFAULT: 4, "other": 2}
    assert found["other"].test != found[DEFAULT].test
    summary = summarize(plan, search.rungs, {"other": found["other"], DEFAULT: found["other"]})
    assert summary.choice == DEFAULT  # of equals
    said = run_file(plan, msgspec.structs.replace(summary, choice="other"))
    assert "# Changed from what was asked for: model.kind = logistic." in said
    (tmp_path / "chosen.toml").write_text(said)
    assert read_config(tmp_path / "chosen.toml").model.kind == "logistic"


def test_each_arm_says_what_it_cost(whole: tuple[Path, Search], fleet: Fleet) -> None:
    _, search = whole
    for name, arm in search.arms.items():
        rounds = arm.dropped or 4
        assert (arm.cost.rounds, arm.cost.client_rounds) == (rounds, rounds * CLIENTS), name
        assert len(arm.points) == rounds
        assert arm.cost.seconds > 0
        assert arm.cost.samples >= arm.cost.client_rounds, name
    summary = summarize(search.plan, search.rungs, search.arms)
    costs = [arm.cost for arm in search.arms.values()]
    assert summary.cost.rounds == sum(one.rounds for one in costs)
    assert summary.cost.samples == sum(one.samples for one in costs)
    assert summary.cost.seconds == pytest.approx(sum(one.seconds for one in costs))


def test_validation_and_test_devices_are_different_ones(whole: tuple[Path, Search]) -> None:
    _, search = whole
    valid, test = (search.held_out[name].users for name in (VALID, TEST))
    assert valid is not None
    assert test is not None
    assert len(valid) > 5
    assert len(test) > 5
    assert not np.intersect1d(valid, test).size


def test_test_devices_judge_the_best_round_and_not_the_last(fleet: Fleet, tmp_path: Path) -> None:
    wild: dict[str, dict[str, Value]] = {
        DEFAULT: {},
        "wild": {"training.learning_rate": 0.5, "server.row_rate": 10.0, "server.dense_rate": 0.5},
    }

    def after(rounds: int) -> ArmState:
        base = msgspec.structs.replace(BASE, run=msgspec.structs.replace(BASE.run, rounds=rounds))
        plan = Plan(base, wild, len(fleet.devices), len(fleet.train))
        return searched(begin(tmp_path / str(rounds), plan, fleet, CPU))["wild"]

    whole = after(4)
    best = whole.best("log_loss")
    assert best is not None
    assert whole.points[-1].found.log_loss > best.found.log_loss + 0.01  # or there is nothing to see
    until_best = after(best.round)
    assert whole.test is not None
    assert until_best.test is not None
    assert whole.test.log_loss == pytest.approx(until_best.test.log_loss, abs=1e-6)
    assert whole.test.correction == best.found.correction


def test_a_search_that_was_stopped_goes_on_to_the_same_end(
    whole: tuple[Path, Search], fleet: Fleet, tmp_path: Path
) -> None:
    """Stopped within a rung, at its end, and after all of it, which asks for nothing more."""
    path = tmp_path / "tune"
    rounds: list[int] = []
    search = begin(path, plan_of(fleet), fleet, CPU)
    searched(search, stop=lambda: len(rounds) == 1, seen=lambda one: rounds.append(one.round))
    for until in (2, 3, 4, 4):
        search, target = go_on(path, fleet, CPU), until
        searched(search, lambda target=target: len(rounds) == target, lambda one: rounds.append(one.round))
    assert rounds == [1, 2, 3, 4]
    assert figures_of(search.arms) == told(whole[1].arms)


def test_what_came_after_the_checkpoint_is_done_again(
    whole: tuple[Path, Search], fleet: Fleet, tmp_path: Path
) -> None:
    path = tmp_path / "tune"

    def crash(progress: Progress) -> None:
        if progress.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        searched(begin(path, plan_of(fleet), fleet, CPU), seen=crash)
    again = go_on(path, fleet, CPU)
    assert again.round == 2  # the rung
    assert figures_of(searched(again)) == told(whole[1].arms)


def test_a_checkpoint_is_also_due_after_some_time(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "_CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(searching, "_CHECKPOINTS", 0)

    def crash(progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        searched(begin(tmp_path / "tune", plan_of(fleet), fleet, CPU), seen=crash)
    with go_on(tmp_path / "tune", fleet, CPU) as again:
        assert again.round == 1


def test_a_damaged_checkpoint_is_refused_and_left_alone(fleet: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "tune"
    searched(begin(path, plan_of(fleet), fleet, CPU), stop=lambda: True)
    damaged = (path / STATE).read_bytes()[:-100]
    (path / STATE).write_bytes(damaged)
    with pytest.raises(InputError, match="damaged"):
        go_on(path, fleet, CPU)
    assert (path / STATE).read_bytes() == damaged


def test_other_data_are_refused(fleet: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "tune"
    searched(begin(path, plan_of(fleet), fleet, CPU), stop=lambda: True)
    other = build_fleet(config(data={"users": 39, "scale": 0.05, "validation": 0.5}))
    with pytest.raises(InputError, match="other data need another search"):
        go_on(path, other, CPU)


def test_a_folder_is_one_process_s_and_what_is_in_it_stays(fleet: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "tune"
    with begin(path, plan_of(fleet), fleet, CPU):
        with pytest.raises(StoreInUse):
            go_on(path, fleet, CPU)
        with pytest.raises(InputError, match="--resume"):
            begin(path, plan_of(fleet), fleet, CPU)
    full = tmp_path / "full"
    full.mkdir()
    (full / "letter").write_text("dear")
    with pytest.raises(InputError, match="no empty folder"):
        begin(full, plan_of(fleet), fleet, CPU)
    assert [one.name for one in full.iterdir()] == ["letter"]
    with pytest.raises(InputError, match=PLAN):
        go_on(full, fleet, CPU)


def test_devices_that_cannot_be_split_are_refused_and_leave_no_folder(fleet: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "tune"
    few = config(data={"users": 40, "scale": 0.05, "validation": 1e-9})
    with pytest.raises(InputError, match="cannot be split"):
        begin(path, plan_of(fleet, few), fleet, CPU)
    none = config(data={"users": 40, "scale": 0.05, "validation": 0.0})
    with pytest.raises(ParameterError, match=r"data\.validation = 0"):
        begin(path, plan_of(fleet, none), fleet, CPU)
    assert not path.exists()


def test_what_a_device_cannot_do_is_refused_and_leaves_no_folder(fleet: Fleet, tmp_path: Path) -> None:
    for sections in ({"faults": {"submodel": 0.1}}, {"round": {"clients": 6, "scheme": "centralized"}}):
        with pytest.raises(ParameterError, match="trains its arms on a device"):
            begin(tmp_path / "tune", plan_of(fleet, config(**sections)), fleet, CPU)
    assert not (tmp_path / "tune").exists()


def test_the_run_file_is_the_choice_and_says_where_it_comes_from(whole: tuple[Path, Search]) -> None:
    path, search = whole
    summary = summarize(search.plan, search.rungs, search.arms)
    pictures = draw(summary, search.arms, path)
    write_results(search.folder, summary, search.arms)
    assert all(one.stat().st_size > 1000 for one in pictures)
    found = read_config(path / "tuned.toml")
    assert found == chosen_config(search.plan, summary)
    assert (found.server.row_rate, found.training.learning_rate) == (0.3, 0.2)
    assert found.round.sums == "auto"  # as it was asked for, not as the search trains
    text = (path / "tuned.toml").read_text()
    assert text.startswith("# Found by sfsl tune")
    assert "# Changed from what was asked for: training.learning_rate = 0.2" in text
    lines = (path / "curves.csv").read_text().splitlines()
    assert len(lines) == 1 + sum(len(arm.points) for arm in search.arms.values())
    assert Cost() + summary.cost == summary.cost
