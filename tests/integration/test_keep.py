"""The best model is kept beside the last: chosen on validation devices, whole after any crash, exported."""

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch")
pytest.importorskip("lmdb")

import sfsl
from sfsl.cli import app
from sfsl.errors import InputError, ParameterError
from sfsl.run import start
from sfsl.run.load import Model, load
from sfsl.run.runner import Runner
from sfsl.service.folder import MetricsFile, read_lines
from sfsl.settings.paper import MODEL
from sfsl.settings.run import RunConfig, from_sections
from sfsl.submodel import LmdbStore

# Trained with steps that are too large: the fifth round is the best, by log loss and AUC alike.
SECTIONS: dict[str, dict[str, Any]] = {
    "data": MODEL["data"] | {"users": 150, "scale": 0.03, "validation": 0.3},
    "model": {"kind": "logistic"},
    "privacy": {"preset": "cpp2"},
    "round": {"clients": 20, "sums": "plain", "min_contributors": 1, "bins": 0},
    "training": MODEL["training"] | {"clip": 10.0},
    "server": MODEL["server"] | {"weights": "owners", "kappa": 10.0, "kappa_rounds": 110, "dense_rate": 2.0},
    "run": {"rounds": 9, "evaluate_every": 1, "threads": 1},
}


def settings(**changes: dict[str, Any]) -> RunConfig:
    return from_sections({name: content | changes.get(name, {}) for name, content in SECTIONS.items()})


def trained(path: Path, config: RunConfig) -> Runner:
    with start.begin(path, config) as runner:
        runner.run(stop=lambda: False, seen=lambda line: None)
    return runner


def resumed(path: Path, config: RunConfig) -> Runner:
    with start.resume(path, config) as runner:
        runner.run(stop=lambda: False, seen=lambda line: None)
    return runner


def summary_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "summary.json").read_text())
    return found


def done(*args: object) -> str:
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def rows(model: Model) -> np.ndarray[Any, Any]:
    return np.concatenate([model.rows(one.name, np.arange(one.rows)).ravel() for one in model.spec.tables])


def best_round(path: Path, figure: str = "log_loss_valid") -> int:
    lines = read_lines(path / "metrics.jsonl")
    values = [getattr(line, figure) for line in lines]
    worth = values if figure == "log_loss_valid" else [-one for one in values]
    return lines[int(np.argmin(worth))].round


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("runs") / "finished"
    trained(path, settings())
    return path


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_the_best_model_on_validation_devices_is_what_is_exported(finished: Path, tmp_path: Path) -> None:
    number, lines = best_round(finished), read_lines(finished / "metrics.jsonl")
    assert number < 9, "the last model is not the best, or nothing is tested here"
    best, last = load(finished), load(finished, last=True)
    assert (best.which, best.round, last.which, last.round) == ("best", number, "last", 9)
    assert best.evaluate().auc == pytest.approx(lines[number - 1].auc)
    assert last.evaluate().log_loss == pytest.approx(lines[-1].log_loss)
    assert not np.array_equal(rows(best), rows(last))
    for flags, model in (((), best), (("--last",), last)):
        file = tmp_path / f"{model.which}.pt"
        said = json.loads(done("export", finished, file, "--json", *flags))
        assert (said["round"], said["which"]) == (model.round, model.which)
        tables = torch.load(file)
        np.testing.assert_array_equal(tables["item.weight"], model.state_dict()["item.weight"])
        found = json.loads(done("evaluate", finished, "--json", *flags))
        assert (found["round"], found["which"]) == (model.round, model.which)
        line = lines[model.round - 1]
        assert (found["auc"], found["log_loss"]) == pytest.approx((line.auc, line.log_loss))
        assert (model.correction, found["correction"]) == (line.correction, said["correction"])
        assert found["correction"] == msgspec.to_builtins(line.correction)


def test_the_model_is_that_of_a_run_which_stopped_there(finished: Path, tmp_path: Path) -> None:
    """Validation chooses among models; it does not change them."""
    number = best_round(finished)
    trained(tmp_path / "shorter", settings(run={"rounds": number}, data={"validation": 0.0}))
    np.testing.assert_array_equal(rows(load(finished)), rows(load(tmp_path / "shorter")))


def test_the_best_model_outlasts_the_metrics(copied: Path) -> None:
    """With its line gone, any model would seem better than it."""
    number, before = best_round(copied), summary_of(copied)["best"]
    (copied / "metrics.jsonl").unlink()
    done("run", "--out", copied, "--resume")
    assert (load(copied).round, summary_of(copied)["best"]) == (number, before)


def test_the_summary_speaks_of_the_best_model(finished: Path) -> None:
    number, summary = best_round(finished), summary_of(finished)
    line = read_lines(finished / "metrics.jsonl")[number - 1]
    assert summary["best"] == {
        "round": number,
        "auc": line.auc,
        "log_loss": line.log_loss,
        "auc_valid": line.auc_valid,
        "log_loss_valid": line.log_loss_valid,
        "correction": msgspec.to_builtins(line.correction),
    }
    assert summary["stopped"] is None
    assert summary["verdict"].startswith(
        f"The best model, of round {number} of 9, reaches AUC {line.auc:.4f}"
    )
    assert f"log loss {line.log_loss:.4f}" in summary["verdict"]
    assert summary["learning"]["auc_round"] == 9  # the last one, as before


def test_auc_chooses_where_it_is_asked_to(tmp_path: Path) -> None:
    trained(tmp_path / "run", settings(run={"keep": "auc", "seed": 3}))
    number = best_round(tmp_path / "run", "auc_valid")
    assert number != best_round(tmp_path / "run")
    assert load(tmp_path / "run").round == number


def test_without_validation_all_is_as_it_was(finished: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    runner = trained(path, settings(data={"validation": 0.0}, run={"rounds": 3, "evaluate_every": 3}))
    assert runner.pools["test"] is runner.fleet.test
    assert not (path / "best").exists()
    line, summary = read_lines(path / "metrics.jsonl")[-1], summary_of(path)
    assert (line.auc_valid, line.log_loss_valid, summary["best"]) == (None, None, None)
    assert summary["verdict"].startswith("After 3 rounds the model reaches AUC")
    model = load(path)
    assert (model.which, model.round) == ("last", 3)
    assert model.evaluate().samples == len(runner.fleet.test)
    assert model.auc() == line.auc


@pytest.mark.parametrize("killed", ["before it is kept", "before its line is written"])
@pytest.mark.parametrize("place", [1, 4, 5])
def test_killed_between_commit_and_the_next_round_the_best_agrees_with_the_metrics(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: str, place: int
) -> None:
    class Killed(BaseException):
        pass

    copy, append = LmdbStore.copy_to, MetricsFile.append

    def copy_to(store: LmdbStore, path: Path) -> None:
        if killed == "before it is kept" and store.round >= place:
            raise Killed
        copy(store, path)

    def append_line(file: MetricsFile, line: Any) -> None:
        if killed != "before it is kept" and line.round >= place:
            raise Killed
        append(file, line)

    path = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(LmdbStore, "copy_to", copy_to)
        patched.setattr(MetricsFile, "append", append_line)
        with pytest.raises(Killed):
            trained(path, settings())
    with LmdbStore.open(path / "store") as store:
        reached = store.round
    with start.resume(path, settings()) as runner:
        assert len(runner.lines) == reached
        with LmdbStore.open(path / "best") as kept:
            assert kept.round == best_round(path)
    resumed(path, settings())
    assert load(path).round == best_round(finished)
    np.testing.assert_array_equal(rows(load(path)), rows(load(finished)))
    for key in ("best", "verdict", "calibration", "baselines"):
        assert summary_of(path)[key] == summary_of(finished)[key]


def test_a_summary_made_again_says_the_same(copied: Path, finished: Path) -> None:
    resumed(copied, settings())
    for key in ("best", "verdict", "calibration", "baselines"):
        assert summary_of(copied)[key] == summary_of(finished)[key]


def test_patience_stops_a_run_which_goes_on_only_with_more(tmp_path: Path) -> None:
    path, config = tmp_path / "run", settings(run={"rounds": 40, "patience": 2})
    trained(path, config)
    summary = summary_of(path)
    number = summary["best"]["round"]
    assert (summary["stopped"], summary["complete"], summary["rounds"]) == ("patience", False, number + 2)
    before = (path / "metrics.jsonl").read_bytes()
    said = " ".join(done("run", "--out", path, "--resume").split())
    assert (
        f"Stopped after round {number + 2}: no model was better on validation devices than that of round"
        in said
    )
    assert (path / "metrics.jsonl").read_bytes() == before
    done("run", "--out", path, "--resume", "--patience", 3)
    again = summary_of(path)
    assert again["rounds"] > number + 2
    assert again["rounds"] == again["best"]["round"] + 3
    assert (path / "metrics.jsonl").read_bytes().startswith(before)


def test_only_evaluated_rounds_can_stop_a_run(tmp_path: Path) -> None:
    config = settings(run={"rounds": 40, "patience": 1, "evaluate_every": 3})
    trained(tmp_path / "run", config)
    found = summary_of(tmp_path / "run")
    assert found["rounds"] % 3 == 0
    assert found["rounds"] - found["best"]["round"] == 3


@pytest.mark.parametrize("changes", [{"data": {"validation": 0.0}}, {"run": {"evaluate_every": 0}}])
def test_patience_without_anything_to_measure_is_refused(changes: dict[str, Any]) -> None:
    sections = {name: content | changes.get(name, {}) for name, content in SECTIONS.items()}
    sections["run"]["patience"] = 5
    with pytest.raises(ParameterError, match="what is not measured cannot stop a run"):
        from_sections(sections)


def test_a_run_of_before_goes_on_without_validation_and_has_its_last_model(copied: Path) -> None:
    shutil.rmtree(copied / "best")
    text = (copied / "config.toml").read_text()
    text = text.partition("\n# checksum")[0] + "\n"
    (copied / "config.toml").write_text(text.replace("\nvalidation = 0.3\n", "\n"))
    lines = [json.loads(line) for line in (copied / "metrics.jsonl").read_text().splitlines()]
    new = ("auc_valid", "log_loss_valid", "correction")
    old = [{key: value for key, value in line.items() if key not in new} for line in lines]
    (copied / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in old))
    assert load(copied).which == "last"
    assert load(copied).config.data.validation == 0  # type: ignore[union-attr]
    done("run", "--out", copied, "--resume", "--rounds", 10)
    assert not (copied / "best").exists()
    assert read_lines(copied / "metrics.jsonl")[-1].auc_valid is None
    with pytest.raises(InputError, match=r"data\.validation is 0\.0 in this run and 0\.3 here"):
        start.resume(copied, settings())


def test_a_best_model_of_a_round_that_the_store_has_not_come_to_is_dropped(
    finished: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    trained(path, settings(run={"rounds": 2}))
    shutil.rmtree(path / "best")
    shutil.copytree(finished / "best", path / "best")
    with start.resume(path, settings(run={"rounds": 2})), LmdbStore.open(path / "best") as kept:
        assert kept.round == 2


def test_few_devices_choose_nothing_and_the_run_says_so(tmp_path: Path) -> None:
    flags = [f"{section}.{key}={value}" for section, own in SECTIONS.items() for key, value in own.items()]
    sets = [part for one in [*flags, "data.users=25", "run.rounds=1"] for part in ("--set", one)]
    said = " ".join(done("run", "--out", tmp_path / "run", *sets).split())
    assert said.count("none for validation") == 1
    assert load(tmp_path / "run").which == "last"


def test_a_run_from_python_gives_the_best_model_and_the_last() -> None:
    class Rating(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.film = torch.nn.Embedding(10, 1, device="meta")

        def forward(self, batch: dict[str, Any]) -> Any:
            return self.film(batch["film"]).sum(dim=-1)

    task = sfsl.Task(Rating(), (sfsl.Table(name="film", rows=10, width=1),))
    rng = np.random.default_rng(0)

    def samples() -> sfsl.Samples:
        films = rng.permutation(10)
        liked = np.where(rng.random(10) < 0.4, rng.random(10) < 0.5, films > 4)
        return sfsl.Samples({"film": films, "label": np.float32(liked)}, {"film": "film"})

    train, held_out = ({f"user {number}": samples() for number in range(30)} for _ in range(2))
    run = sfsl.train(
        task,
        train,
        held_out,
        rounds=12,
        clients=10,
        settings={
            "training": SECTIONS["training"] | {"learning_rate": 5.0},
            "server": SECTIONS["server"],
            "data.validation": 0.3,
            "run.evaluate_every": 1,
            "round.sums": "plain",
            "round.min_contributors": 1,
        },
    )
    assert run.summary.best is not None
    assert run.model.round == run.summary.best.round < run.last_model.round == 12
    assert run.auc == run.records[run.model.round - 1].auc == pytest.approx(run.evaluation.auc)
    assert run.last_model.auc() == pytest.approx(run.records[-1].auc)
