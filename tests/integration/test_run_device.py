"""``sfsl run`` with its fleet on a device, and ``sfsl data``: the same folder, resumable, refusing what it
cannot do."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sfsl.cli import app
from sfsl.errors import InputError, ParameterError
from sfsl.run import start
from sfsl.scores import evaluate
from sfsl.settings.run import RunConfig, from_sections
from sfsl.simulate.engine import score_pool

SECTIONS: dict[str, dict[str, object]] = {
    "data": {"users": 40, "scale": 0.02},
    "model": {"kind": "logistic"},
    "round": {"clients": 12, "sums": "plain", "min_contributors": 1},
    "run": {"rounds": 4, "evaluate_every": 2, "device": "cpu"},
    "training": {"rebuild": 0.0},
}


def tiny(**changes: dict[str, object]) -> RunConfig:
    named = {**{key: {} for key in changes}, **SECTIONS}
    return from_sections({name: content | changes.get(name, {}) for name, content in named.items()})


def finished(folder: Path, config: RunConfig, *, resume: bool = False) -> list[tuple[int, float | None]]:
    with (start.resume if resume else start.begin)(folder, config) as runner:
        runner.run(stop=lambda: False, seen=lambda line: None)
        assert runner.lines[-1].auc == pytest.approx(
            evaluate(score_pool(runner.fleet.task, runner.fleet.test, runner.store)).auc, abs=1e-6
        )
        assert all(line.moved["item"] > 0 for line in runner.lines)
        return [(line.round, line.auc, line.loss) for line in runner.lines]  # type: ignore[misc]


def test_a_resumed_run_is_the_same_run(tmp_path: Path) -> None:
    whole = finished(tmp_path / "whole", tiny())
    finished(tmp_path / "parts", tiny(run={"rounds": 2}))
    assert finished(tmp_path / "parts", tiny(), resume=True) == whole


def test_a_run_that_has_nothing_left_to_do_says_the_same_again(tmp_path: Path) -> None:
    finished(tmp_path, tiny())
    said = json.loads((tmp_path / "summary.json").read_text())
    finished(tmp_path, tiny(), resume=True)
    again = json.loads((tmp_path / "summary.json").read_text())
    for name in ("learning", "baselines", "calibration", "verdict", "beats_baselines"):
        assert again[name] == said[name]
    assert said["verdict"]


def test_stored_data_train_the_same_model(tmp_path: Path) -> None:
    made = CliRunner().invoke(
        app, ["data", str(tmp_path / "data"), "--users", "40", "--scale", "0.02", "--json"]
    )
    assert made.exit_code == 0, made.output
    assert json.loads(made.output)["users"] == 40
    stored = tiny(data={"source": "stored", "path": str(tmp_path / "data")})
    assert finished(tmp_path / "stored", stored) == finished(tmp_path / "made", tiny())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"round": {"sums": "auto"}}, "round.sums"),
        ({"round": {"scheme": "centralized", "sums": "auto"}}, "round.scheme"),
        ({"faults": {"union": 0.1}}, "faults"),
        ({"privacy": {"mix": {"cpp1": 0.5, "cpp2": 0.5}}}, "privacy.mix"),
        ({"round": {"precision": "float16"}}, "round.precision"),
        ({"server": {"weights": "dataset"}}, "server.weights"),
        ({"data": {"source": "python", "path": "x.py"}}, "data.source"),
    ],
)
def test_what_a_device_cannot_do_is_named(changes: dict[str, dict[str, object]], said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        tiny(**changes)


def test_a_machine_without_a_gpu_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(InputError, match="no GPU"):
        start.begin(tmp_path / "run", tiny(run={"device": "cuda"}))


def test_data_from_nowhere_and_onto_something(tmp_path: Path) -> None:
    for arguments, said in [
        ([str(tmp_path)], "exists already"),
        ([str(tmp_path / "new"), "--data", "shakespeare:x"], "--data"),
        ([str(tmp_path / "new"), "--data", "csv:missing.csv"], "missing.csv"),
    ]:
        result = CliRunner().invoke(app, ["data", *arguments])
        assert result.exit_code != 0
        assert said in str(result.exception)
    assert not (tmp_path / "new").exists()
