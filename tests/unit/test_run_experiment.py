"""Schemes side by side: the same whether in one stretch or several, and never on top of something else."""

import json
from pathlib import Path

import pytest
import torch

from sfsl.data import Interactions, SyntheticSettings, SyntheticTaobao, hold_out_last
from sfsl.errors import InputError, ParameterError
from sfsl.models import logistic_regression
from sfsl.run import experiment
from sfsl.run.config import RunConfig, from_sections
from sfsl.run.experiment import SETTINGS, STATE, Experiment, Progress, read_curves
from sfsl.run.paper import open_paper_experiment, paper_arms
from sfsl.training.task import Task

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def parts() -> tuple[Task, Interactions, Interactions]:
    data = SyntheticTaobao(SyntheticSettings().scaled(0.05, users=40), seed=2).interactions()
    train, test = hold_out_last(data)
    return logistic_regression(train), train, test


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
    return Experiment(out, arms(**changes), *parts, device=CPU)


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
    for arm in settings.values():
        del arm["run"]["device"]
    path.write_text(json.dumps(settings))
    assert opened(tmp_path, parts).round == 1


@pytest.mark.parametrize("damage", [b"", b"[]", b'{"fl": {"round": {"scheme": "none"}}}'])
def test_damaged_settings_are_refused(
    tmp_path: Path, parts: tuple[Task, Interactions, Interactions], damage: bytes
) -> None:
    opened(tmp_path, parts).run(1, every=1)
    (tmp_path / SETTINGS).write_bytes(damage)
    with pytest.raises(InputError, match="cannot go on"):
        opened(tmp_path, parts)


def test_a_torn_checkpoint_is_refused_and_left_alone(
    tmp_path: Path, parts: tuple[Task, Interactions, Interactions]
) -> None:
    opened(tmp_path, parts).run(1, every=1)
    torn = (tmp_path / STATE).read_bytes()[:1000]
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


def test_the_papers_arms(tmp_path: Path) -> None:
    wanted = paper_arms(1, clients=5, users=30, scale=0.03)
    assert list(wanted) == ["centralized", "fl", *(f"cpp{n}" for n in range(1, 6)), "ours"]
    assert wanted["cpp2"].weights == "samples"
    assert wanted["ours"].weights == "owners"
    data = tmp_path / "data"
    experiment = open_paper_experiment(tmp_path, wanted, data, device=CPU, compiled=False)
    experiment.run(1, every=1)
    said: list[str] = []
    open_paper_experiment(tmp_path, wanted, data, device=CPU, compiled=False, said=said.append)
    assert not any("making data" in text for text in said)
    assert {name for name, _, _ in curves(tmp_path)} == set(wanted)
