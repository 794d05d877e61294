"""Schemes side by side: the same whether in one stretch or several, and never on top of something else."""

import json
from pathlib import Path

import msgspec
import pytest
import torch

from sfsl.data import Interactions, SyntheticSettings, SyntheticTaobao, hold_out_last
from sfsl.data.catalogue import Catalogue
from sfsl.errors import InputError, ParameterError, StoreInUse
from sfsl.models import logistic_regression
from sfsl.settings.run import RunConfig, from_sections
from sfsl.training.task import Task
from sfsl_research.experiments import experiment
from sfsl_research.experiments.experiment import CURVES, SETTINGS, STATE, Experiment, Progress, read_curves
from sfsl_research.experiments.paper import open_paper_experiment, paper_arms

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def parts() -> tuple[Task, Interactions, Interactions]:
    data = SyntheticTaobao(SyntheticSettings().scaled(0.05, users=40), seed=2).interactions()
    train, test = hold_out_last(data)
    return logistic_regression(Catalogue.of(train)), train, test


def arms(**changes: object) -> dict[str, RunConfig]:
    def arm(scheme: str, preset: str = "cpp2") -> RunConfig:
        sums = "plain" if scheme == "sfsl" else "auto"
        one = {"scheme": scheme, "sums": sums, "clients": 8, "min_contributors": 1, "bins": 0, **changes}
        return from_sections({"privacy": {"preset": preset}, "round": one})

    return {
        "centralized": arm("centralized"),
        "fl": arm("fl"),
        "cpp1": arm("sfsl", "cpp1"),
        "cpp2": arm("sfsl"),
    }


def opened(out: Path, parts: tuple[Task, Interactions, Interactions], **changes: object) -> Experiment:
    """Open, and free for the next to be opened: as if its process had ended."""
    one = Experiment(out, arms(**changes), *parts, device=CPU)
    one.close()
    return one


def curves(out: Path) -> list[tuple[str, int, float]]:
    return [line[:3] for line in read_curves(out)]


def test_stretches_make_the_same_curves(
    tmp_path: Path, parts: tuple[Task, Interactions, Interactions]
) -> None:
    seen: list[Progress] = []
    assert opened(tmp_path / "whole", parts).run(6, every=2, seen=seen.append) == 6
    assert [one.round for one in seen] == [1, 2, 4, 6]
    for rounds in (3, 6):
        assert opened(tmp_path / "stretches", parts).run(rounds, every=2) == rounds
    found = {line for line in curves(tmp_path / "stretches") if line[1] != 3}  # where a stretch ended
    assert found == set(curves(tmp_path / "whole"))
    assert len(found) == 4 * 4


def test_what_came_after_the_checkpoint_is_done_again(
    tmp_path: Path, parts: tuple[Task, Interactions, Interactions]
) -> None:
    opened(tmp_path, parts).run(2, every=1)
    old = (tmp_path / STATE).read_bytes()
    opened(tmp_path, parts).run(4, every=1)
    expected = curves(tmp_path)
    (tmp_path / STATE).write_bytes(old)  # as if killed before the second checkpoint
    again = opened(tmp_path, parts)
    assert again.round == 2
    again.run(4, every=1)
    assert curves(tmp_path) == expected


def test_whoever_interrupts_it_loses_little(
    tmp_path: Path, parts: tuple[Task, Interactions, Interactions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment, "_CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(experiment, "_CHECKPOINTS", 0)

    def stop(progress: Progress) -> None:
        if progress.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        opened(tmp_path, parts).run(9, every=1, seen=stop)
    again = opened(tmp_path, parts)
    assert again.round == 2
    assert {number for _, number, _ in curves(tmp_path)} == {1, 2}


def test_it_stops_when_its_time_is_over(
    tmp_path: Path, parts: tuple[Task, Interactions, Interactions]
) -> None:
    assert opened(tmp_path, parts).run(1000, every=10, stop_after=0.0) == 0


def test_learning_shows(tmp_path: Path, parts: tuple[Task, Interactions, Interactions]) -> None:
    opened(tmp_path, parts).run(30, every=30)
    last = {name: auc for name, number, auc in curves(tmp_path) if number == 30}
    assert last["centralized"] > 0.52


def test_other_settings_are_refused(tmp_path: Path, parts: tuple[Task, Interactions, Interactions]) -> None:
    opened(tmp_path, parts).run(1, every=1)
    with pytest.raises(InputError, match="other settings"):
        opened(tmp_path, parts, clip=0.5)


def test_settings_of_an_older_version_are_understood(
    tmp_path: Path, parts: tuple[Task, Interactions, Interactions]
) -> None:
    opened(tmp_path, parts).run(1, every=1)
    path = tmp_path / SETTINGS
    settings = json.loads(path.read_text())
    del settings["checksum"]
    for arm in settings.values():
        del arm["run"]["device"]
    path.write_text(json.dumps(settings))
    assert opened(tmp_path, parts).round == 1


@pytest.mark.parametrize("cut", [1, 5, 12, 24])
def test_a_line_of_a_curve_that_a_crash_cut_short_is_left_out(
    tmp_path: Path, parts: tuple[Task, Interactions, Interactions], cut: int
) -> None:
    opened(tmp_path, parts).run(2, every=1)
    before = curves(tmp_path)
    with open(tmp_path / CURVES, "a", encoding="utf-8") as file:
        file.write("cpp2,3,0.512345,0.6,12"[:cut])
    assert curves(tmp_path) == before
    opened(tmp_path, parts).run(3, every=1)
    assert curves(tmp_path)[: len(before)] == before
    assert len(curves(tmp_path)) == len(before) + 4


@pytest.mark.parametrize("line", ["cpp2,3", "cpp2,three,0.5,1,1,1", "cpp2,3,much,1,1,1"])
def test_damaged_curves_are_refused_and_left_alone(
    tmp_path: Path, parts: tuple[Task, Interactions, Interactions], line: str
) -> None:
    opened(tmp_path, parts).run(1, every=1)
    damaged = (tmp_path / CURVES).read_text() + line + "\n"
    (tmp_path / CURVES).write_text(damaged)
    with pytest.raises(InputError, match="cannot read"):
        opened(tmp_path, parts)
    assert (tmp_path / CURVES).read_text() == damaged


@pytest.mark.parametrize("cut", [1, 30])
def test_curves_with_points_missing_are_not_gone_on_with(
    tmp_path: Path, parts: tuple[Task, Interactions, Interactions], cut: int
) -> None:
    opened(tmp_path, parts).run(2, every=1)
    (tmp_path / CURVES).write_bytes((tmp_path / CURVES).read_bytes()[:-cut])
    with pytest.raises(InputError, match="lacks lines"):
        opened(tmp_path, parts)


def test_curves_without_a_checkpoint_are_not_begun_anew(
    tmp_path: Path, parts: tuple[Task, Interactions, Interactions]
) -> None:
    opened(tmp_path, parts).run(1, every=1)
    (tmp_path / STATE).unlink()
    before = curves(tmp_path)
    with pytest.raises(InputError, match=r"no state\.npz to go on from"):
        opened(tmp_path, parts)
    assert curves(tmp_path) == before


def test_whoever_is_killed_before_the_first_checkpoint_can_go_on(
    tmp_path: Path, parts: tuple[Task, Interactions, Interactions]
) -> None:
    def stop(progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        opened(tmp_path, parts).run(9, every=1, seen=stop)
    assert len(curves(tmp_path)) == 4
    assert opened(tmp_path, parts).run(1, every=1) == 1
    assert len(curves(tmp_path)) == 4


def test_a_full_disk_costs_what_came_after_the_checkpoint(
    tmp_path: Path, parts: tuple[Task, Interactions, Interactions]
) -> None:
    one = opened(tmp_path, parts)
    one.run(1, every=1)
    before = curves(tmp_path)
    (tmp_path / CURVES).rename(tmp_path / "kept")
    (tmp_path / CURVES).symlink_to("/dev/full")
    with pytest.raises(InputError, match="last checkpoint"):
        one.run(2, every=1)
    (tmp_path / "kept").replace(tmp_path / CURVES)
    assert opened(tmp_path, parts).run(2, every=1) == 2
    assert curves(tmp_path)[: len(before)] == before


def test_a_folder_has_one_experiment_at_a_time(
    tmp_path: Path, parts: tuple[Task, Interactions, Interactions]
) -> None:
    with Experiment(tmp_path, arms(), *parts, device=CPU) as one:
        with pytest.raises(StoreInUse):
            opened(tmp_path, parts)
        one.run(1, every=1)
    assert opened(tmp_path, parts).round == 1


@pytest.mark.parametrize("damage", [b"", b"[]", b'{"fl": {"round": {"scheme": "none"}}}'])
def test_damaged_settings_are_refused(
    tmp_path: Path, parts: tuple[Task, Interactions, Interactions], damage: bytes
) -> None:
    opened(tmp_path, parts).run(1, every=1)
    (tmp_path / SETTINGS).write_bytes(damage)
    with pytest.raises(InputError, match="cannot go on"):
        opened(tmp_path, parts)


@pytest.mark.parametrize("size", [0, 1000])
def test_a_torn_checkpoint_is_refused_and_left_alone(
    tmp_path: Path, parts: tuple[Task, Interactions, Interactions], size: int
) -> None:
    opened(tmp_path, parts).run(1, every=1)
    torn = (tmp_path / STATE).read_bytes()[:size]
    (tmp_path / STATE).write_bytes(torn)
    before = curves(tmp_path)
    with pytest.raises(InputError, match="cannot go on"):
        opened(tmp_path, parts)
    assert (tmp_path / STATE).read_bytes() == torn
    assert curves(tmp_path) == before


def test_arms_that_cannot_run_side_by_side_are_refused(
    tmp_path: Path, parts: tuple[Task, Interactions, Interactions]
) -> None:
    different = arms() | {"more": arms(clients=9)["cpp1"]}
    with pytest.raises(ParameterError, match="more: arms share"):
        Experiment(tmp_path, different, *parts, device=CPU)
    with pytest.raises(ParameterError, match="min_contributors"):
        opened(tmp_path, parts, min_contributors="auto")
    with pytest.raises(ParameterError, match="there are 40"):
        opened(tmp_path, parts, clients=41)


@pytest.mark.parametrize(
    ("section", "changes"),
    [
        ("round", {"sums": "masked"}),
        ("round", {"cohorts": 2}),
        ("round", {"precision": "float16"}),
        ("round", {"max_rows": 5}),
        ("round", {"encoding": "bloom"}),
        ("run", {"selection": "period", "period": 3}),
        ("privacy", {"mix": {"cpp1": 0.5, "cpp2": 0.5}}),
        ("faults", {"late": 0.1}),
    ],
)
def test_what_an_arm_cannot_do_is_refused(
    tmp_path: Path, parts: tuple[Task, Interactions, Interactions], section: str, changes: dict[str, object]
) -> None:
    sections = msgspec.to_builtins(arms()["cpp2"])
    wanted = from_sections(sections | {section: sections[section] | changes})
    with pytest.raises(ParameterError, match=f"cpp2: .*{section}"):
        Experiment(tmp_path, {"cpp2": wanted}, *parts, device=CPU)
    assert not list(tmp_path.iterdir())


def test_the_papers_arms(tmp_path: Path) -> None:
    wanted = paper_arms(1, clients=5, users=30, scale=0.03)
    assert list(wanted) == ["centralized", "fl", *(f"cpp{n}" for n in range(1, 6)), "ours"]
    assert wanted["cpp2"].weights == "samples"
    assert wanted["ours"].weights == "owners"
    data = tmp_path / "data"
    with open_paper_experiment(tmp_path, wanted, data, device=CPU, compiled=False) as experiment:
        experiment.run(1, every=1)
    said: list[str] = []
    with open_paper_experiment(tmp_path, wanted, data, device=CPU, compiled=False, said=said.append):
        assert not any("making data" in text for text in said)
    assert {name for name, _, _ in curves(tmp_path)} == set(wanted)


def test_other_data_are_not_trained_on_unseen(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for seed, users in ((1, 30), (2, 30), (1, 31)):
        wanted = paper_arms(seed, clients=5, users=users, scale=0.03)
        out = tmp_path / f"{seed}-{users}"
        if (seed, users) == (1, 30):
            open_paper_experiment(out, wanted, data, device=CPU, compiled=False).close()
            continue
        with pytest.raises(InputError, match="holds other data"):
            open_paper_experiment(out, wanted, data, device=CPU, compiled=False)
        assert not out.exists()


def test_the_papers_arms_do_not_follow_the_defaults() -> None:
    arms = paper_arms(0, clients=10, users=20, scale=0.05)
    for arm in arms.values():
        assert (arm.training.batch_size, arm.training.learning_rate, arm.training.clip) == (2, 1.0, 0.1)
        assert (arm.training.decay, arm.training.rebuild, arm.training.max_samples) == (0.999, 0, 0)
        assert (arm.server.row_step, arm.server.row_rate, arm.server.dense_step) == ("add", 1.0, "add")
        assert arm.data.world == "paper"
        assert arm.model.initial == 0.05
    assert (arms["cpp2"].server.kappa, arms["cpp2"].weights, arms["cpp2"].dense_rate) == (1, "samples", 1)
    assert (arms["ours"].server.kappa, arms["ours"].weights, arms["ours"].dense_rate) == (10, "owners", 2)
    assert (arms["fl"].weights, arms["fl"].dense_rate) == ("dataset", 1)
