"""Trackers against modules that record what they are asked, with the calls of the real ones (tried by hand:
decision 23)."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import sfsl
from sfsl.errors import InputError

SMALL: dict[str, Any] = {
    "data.users": 12,
    "data.scale": 0.03,
    "model.kind": "logistic",
    "round.min_contributors": 1,
    "run.evaluate_every": 2,
}


class Asked:
    """Notes every call of any method; ``answers`` are what some of them return."""

    def __init__(self, **answers: Any) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.answers = answers

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            self.calls.append((name, args, more))
            return self.answers.get(name)

        return call

    def of(self, name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [(args, more) for called, args, more in self.calls if called == name]


def module(monkeypatch: pytest.MonkeyPatch, name: str, **contents: Any) -> None:
    made = ModuleType(name)
    for key, value in contents.items():
        setattr(made, key, value)
    monkeypatch.setitem(sys.modules, name, made)


def train(path: Path, tracker: str, rounds: int, *, resume: bool = False) -> sfsl.TrainedRun:
    given = SMALL | {"run.track": [tracker]}
    return sfsl.train(rounds=rounds, clients=4, settings=given, out=path, resume=resume)


def test_tensorboard_has_every_round_once_also_of_a_run_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers: list[Asked] = []

    def writer(folder: str, purge_step: int | None) -> Asked:
        Path(folder).mkdir(exist_ok=True)
        writers.append(Asked(opened=(folder, purge_step)))
        return writers[-1]

    module(monkeypatch, "tensorboard")
    module(monkeypatch, "torch.utils.tensorboard", SummaryWriter=writer)
    run = train(tmp_path / "run", "tensorboard", 2)
    train(tmp_path / "run", "tensorboard", 3, resume=True)
    assert [one.answers["opened"] for one in writers] == [
        (str(tmp_path / "run/tensorboard"), None),
        (str(tmp_path / "run/tensorboard"), 3),
    ]
    drawn = [args for one in writers for args, _ in one.of("add_scalar")]
    assert [args[2] for args in drawn if args[0] == "clients/survivors"] == [1, 2, 3]
    assert next(args[1:] for args in drawn if args[0] == "quality/auc") == (run.records[1].auc, 2)
    texts = dict(args for args, _ in writers[0].of("add_text"))
    assert "round.clients = 4" in texts["settings"]
    assert texts["verdict"] == run.summary.verdict
    assert writers[0].calls[-1][0] == "close"


def test_mlflow_is_told_in_batches_that_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clients: list[Asked] = []

    def client() -> Asked:
        created = SimpleNamespace(info=SimpleNamespace(run_id="r1"))
        clients.append(Asked(create_experiment="7", create_run=created))
        return clients[-1]

    module(monkeypatch, "mlflow", MlflowClient=client)
    module(monkeypatch, "mlflow.entities", Metric=lambda *of: of, Param=lambda *of: of)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    run = train(tmp_path / "run", "mlflow", 2)
    train(tmp_path / "run", "mlflow", 3, resume=True)
    first, second = clients
    assert first.of("get_experiment_by_name") == [(("sfsl",), {})]
    assert first.of("create_run") == [(("7",), {"run_name": "run"})]
    batches = [more for args, more in first.of("log_batch") if args == ("r1",)]
    params = dict(one for more in batches for one in more.get("params", ()))
    assert params["round.clients"] == "4"
    assert all(len(more.get("params", ())) <= 100 for more in batches)
    rounds = [
        [
            step
            for more in batches
            if "metrics" in more
            for name, _, _, step in more["metrics"]
            if name == "quality/loss"
        ]
        for batches in ([more for _, more in one.of("log_batch")] for one in clients)
    ]
    assert rounds == [[1, 2], [1, 2, 3]], "a run that goes on is another, with all rounds"
    assert first.of("set_tag") == [(("r1", "verdict", run.summary.verdict), {})]
    assert second.calls[-1] == ("set_terminated", ("r1", "FINISHED"), {})


def test_wandb_is_told_by_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, begun = Asked(), []
    run.summary = {}

    def init(**more: Any) -> Asked:
        begun.append(more)
        return run

    module(monkeypatch, "wandb", init=init)
    monkeypatch.setenv("WANDB_PROJECT", "shop")
    done = train(tmp_path / "run", "wandb", 2)
    assert (begun[0]["project"], begun[0]["name"]) == ("shop", "run")
    assert begun[0]["config"]["round.clients"] == "4"
    logged = run.of("log")
    assert [more["step"] for _, more in logged] == [1, 2]
    assert logged[1][0][0]["quality/auc"] == done.records[1].auc
    assert run.summary == {"verdict": done.summary.verdict}
    assert run.calls[-1][0] == "finish"


def test_a_tracker_that_cannot_be_reached_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def init(**_: Any) -> None:
        raise ConnectionError("api.example: no route to host")

    module(monkeypatch, "wandb", init=init)
    assert train(tmp_path / "run", "wandb", 5).summary.complete
    (said,) = (one.getMessage() for one in caplog.records if "failed" in one.getMessage())
    assert "Wandb failed (ConnectionError: api.example: no route to host)" in said


def test_a_tracker_that_is_not_installed_is_named_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(InputError, match=r"mlflow needs more packages .* install them with: .*mlflow"):
        train(tmp_path / "run", "mlflow", 1)
    assert not (tmp_path / "run").exists()


def test_callbacks_of_a_program_hear_of_tests_and_of_the_end(tmp_path: Path) -> None:
    heard: list[object] = []

    class Own(sfsl.Callback):
        def on_evaluation(self, number: int, evaluation: Any) -> None:
            heard.append((number, evaluation.auc))

        def on_end(self, summary: Any) -> None:
            heard.append(summary)

    run = sfsl.train(rounds=3, clients=4, settings=SMALL, callbacks=[Own()])
    assert heard == [(2, run.records[1].auc), (3, run.records[2].auc), run.summary]
    heard.clear()

    def breaks(line: sfsl.RoundRecord) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        sfsl.train(rounds=3, clients=4, settings=SMALL, callbacks=[Own()], on_round=breaks)
    assert heard == [None], "no summary of a run that broke off"
