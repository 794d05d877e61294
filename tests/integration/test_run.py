"""``sfsl run`` and its neighbours, on a tiny fleet: what they leave behind, and that no crash harms it.

Run as a script, this file is the parent of the processes that are killed. It forks them, which is fast and
safe there, as the script has one thread; a test runner may have more.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

from sfsl.cli import app
from sfsl.cli.run_output import RunProgress
from sfsl.errors import (
    InputError,
    ParameterError,
    SfslError,
    StoreCorrupt,
    StoreError,
    StoreInUse,
    WrongModel,
)
from sfsl.models import LogisticRegression
from sfsl.privacy import PRESETS
from sfsl.report.runs import read_runs
from sfsl.rounds.exchanges import ORDER
from sfsl.rounds.record import RoundRecord
from sfsl.run import start
from sfsl.run.fleet import Interacted, build_fleet, client_privacy
from sfsl.run.planning import choose_cohort, planned_requesters
from sfsl.run.setup import resolved
from sfsl.run.summary import Summary
from sfsl.service.driver import Kept
from sfsl.service.folder import read_lines
from sfsl.settings.run import RunConfig, from_sections
from sfsl.settings.toml import read_config, to_toml
from sfsl.simulate.rebuilt import rebuild_personal
from sfsl.submodel import Commit, LmdbStore, RowSet
from sfsl.training import LocalSettings, auc

CLIENTS = 12
SECTIONS: dict[str, dict[str, Any]] = {
    "data": {"users": 40, "scale": 0.02},
    "model": {"kind": "logistic"},
    "privacy": {"preset": "cpp2"},  # "auto" has cpp5 for so few clients
    "round": {"clients": CLIENTS, "bins": 16, "min_contributors": 2},
    "faults": {"inbound": 0.05, "submodel": 0.05},
    "run": {"rounds": 4, "evaluate_every": 2, "threads": 1},
}
KEYS = {
    "checksum",
    "lost",
    "restored",
    *("round", "aborted", "cohort", "survivors", "dropped", "late", "declined", "diverged"),
    *("samples", "unknown_rows", "loss", "auc", "auc_secure", "auc_secure_error", "union", "opened", "moved"),
    *("log_loss", "ndcg", "recall", "log_loss_secure", "log_loss_secure_error", "base_log_loss_secure"),
    *("refused", "bytes_up", "bytes_down"),
    *("client_seconds", "server_seconds", "training_seconds", "wall_seconds", "exchange_seconds"),
    *("cohorts_aborted", "workers_lost", "auc_valid", "log_loss_valid", "correction"),
}
KILLS, MANY_KILLS = 12, 50


def tiny(**changes: dict[str, Any]) -> RunConfig:
    named = {**{key: {} for key in changes}, **SECTIONS}
    return from_sections({name: content | changes.get(name, {}) for name, content in named.items()})


def sfsl(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


def done(*args: object) -> Result:
    result = sfsl(*args)
    assert result.exit_code == 0, (result.output, result.exception)
    return result


def refused(kind: type[SfslError], *args: object) -> str:
    """What the command says; every error of ours is one line for ``main`` to print."""
    result = sfsl(*args)
    assert isinstance(result.exception, kind), (result.output, result.exception)
    return str(result.exception)


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    file = tmp_path_factory.mktemp("config") / "tiny.toml"
    file.write_text(to_toml(tiny()), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def finished(run_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "finished"
    done("run", run_file, "--out", out)
    return out


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def lines_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def contents(out: Path) -> dict[str, bytes]:
    files = sorted(one for one in out.rglob("*") if one.is_file() and one.name != "lock.mdb")
    return {str(one.relative_to(out)): one.read_bytes() for one in files}


def test_a_run_leaves_settings_versions_metrics_summary_and_store(finished: Path, run_file: Path) -> None:
    names = {one.name for one in finished.iterdir()}
    made = {"config.toml", "versions.json", "metrics.jsonl", "summary.json", "store", "store.lock"}
    assert names == made | {"model.json", "model-catalogue.json"}
    stored = read_config(finished / "config.toml")
    assert stored.round.threshold == stored.round.threshold_clients == 9, "no auto is left"
    assert {"sfsl", "python", "torch", "numpy"} <= json.loads((finished / "versions.json").read_text()).keys()
    with LmdbStore.open(finished / "store") as store:
        assert store.round == 4


def test_the_metrics_have_one_line_per_round_with_exactly_these_keys(finished: Path) -> None:
    lines = lines_of(finished)
    assert [line["round"] for line in lines] == [1, 2, 3, 4]
    assert all(line.keys() == KEYS for line in lines)
    assert [line["auc"] is not None for line in lines] == [False, True, False, True]
    for line in lines:
        assert line["aborted"] is None
        assert tuple(line["dropped"]) == ORDER
        assert tuple(line["bytes_up"]) == tuple(line["server_seconds"]) == ("check-in", *ORDER)
        assert line["survivors"] == line["cohort"] - sum(line["dropped"].values())
        for table, rows in line["union"].items():
            assert rows >= line["opened"][table] >= line["moved"][table]
    assert sum(sum(line["dropped"].values()) for line in lines) > 0


def test_the_summary_follows_from_the_metrics(finished: Path) -> None:
    summary = json.loads((finished / "summary.json").read_text())
    lines = lines_of(finished)
    assert summary["complete"]
    assert summary["learning"]["auc"] == lines[-1]["auc"]
    assert summary["learning"]["log_loss"] == lines[-1]["log_loss"] > 0
    assert summary["baselines"]["base_rate"]["log_loss"] < 0.7
    assert summary["baselines"]["popularity"]["auc"] > 0.5
    assert sum(one["samples"] for one in summary["calibration"]) > 10
    assert summary["verdict"].startswith("After 4 rounds the model reaches AUC ")
    assert summary["costs"]["bytes_up"]["submodel"] == pytest.approx(
        np.mean([line["bytes_up"]["submodel"] for line in lines])
    )
    # The cohorts follow from the seed, so whoever was invited most often can be counted again.
    clients = sorted(build_fleet(tiny()).devices)
    invited = Counter(name for number in range(1, 5) for name in choose_cohort(clients, CLIENTS, 0, number))
    most = max(invited.values())
    privacy = summary["privacy"]
    assert privacy["rounds_at_most"] == privacy["exposures_at_most"] == most
    assert privacy["clients_exposed"] == len(invited)
    assert privacy["epsilon"] == PRESETS["cpp2"].epsilon(most)
    full = summary["full_model"]
    spec = build_fleet(tiny()).task.spec
    assert full["parameters"] == spec.dense + sum(table.rows * table.width for table in spec.tables)
    assert full["bytes_up"]["submodel"] == full["bytes_down"]["submodel"] == 4 * full["parameters"]
    assert full["bytes_down"]["inbound"] == summary["costs"]["bytes_down"]["inbound"]
    assert "inbound" not in full["bytes_up"], "a full model needs no union"


def test_json_goes_to_stdout_alone_and_flags_win_over_the_file(run_file: Path, tmp_path: Path) -> None:
    flags = ["--rounds", 1, "--clients", 6, "--privacy", "1,0,1,0", "--set", "round.bins=0", "--json"]
    result = done("run", run_file, "--out", tmp_path / "run", *flags)
    summary = json.loads(result.stdout)
    assert (summary["rounds"], summary["clients_per_round"]) == (1, 6)
    assert (summary["privacy"]["preset"], summary["privacy"]["epsilon"]) == ("custom", None)
    assert lines_of(tmp_path / "run")[0]["auc_secure"] is None
    kept = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary == {name: value for name, value in kept.items() if name != "checksum"}


def test_the_summary_table_has_all_exchanges(copied: Path) -> None:
    shown = done("run", "--out", copied, "--resume").stdout
    for words in ("AUC, central", "AUC, secure", "epsilon", "exposures", "peak memory", *ORDER):
        assert words in shown


def test_an_aborted_round_changes_nothing_and_the_run_goes_on(tmp_path: Path) -> None:
    config = tiny(faults={"inbound": 0.9}, run={"rounds": 2})
    with start.begin(tmp_path / "run", config) as runner:
        summary = runner.run(stop=lambda: False, seen=lambda line: None)
        assert runner.store.round == 2
        assert (runner.store.read_dense().values == runner.fleet.task.initial_dense()).all()
        assert len(runner.store.touched("item")) == len(runner.store.touched("user")) == 0
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert all(line.aborted and line.survivors == 0 and line.loss is None for line in lines)
    assert (summary.rounds, summary.aborted) == (2, 2)
    assert summary.privacy is not None
    assert summary.privacy.exposures_at_most >= 1, "an aborted round counts"


# -- schemes -----------------------------------------------------------------------------------


def ended(out: Path, config: RunConfig) -> Summary:
    with start.begin(out, config) as runner:
        return runner.run(stop=lambda: False, seen=lambda line: None)


def model_of(out: Path) -> list[Any]:
    with LmdbStore.open(out / "store") as store:
        tables = [
            store.read_rows(table.name, RowSet(np.arange(table.rows))).values.tolist()
            for table in store.spec.model.tables
        ]
        return [store.read_dense().values.tolist(), *tables]


@pytest.mark.parametrize(("secure", "same"), [("sfsl", None), ("sfl", "fl")])
def test_masked_and_plain_sums_give_the_same_model(tmp_path: Path, secure: str, same: str | None) -> None:
    masked = ended(tmp_path / "masked", tiny(round={"scheme": secure}))
    plain = ended(tmp_path / "plain", tiny(round={"scheme": secure, "sums": "plain"}))
    assert model_of(tmp_path / "masked") == model_of(tmp_path / "plain")
    assert (masked.sums, plain.sums) == ("masked", "plain")
    assert masked.costs.bytes_up["submodel"] > 0
    assert plain.costs.bytes_up == plain.costs.client_seconds == {}, "it says nothing about the protocol"
    if same is not None:
        clear = ended(tmp_path / "clear", tiny(round={"scheme": same}))
        assert model_of(tmp_path / "clear") == model_of(tmp_path / "masked")
        assert (clear.sums, clear.privacy) == ("none", None)
        assert clear.costs.bytes_up["submodel"] > 0, "in the clear the bytes are those of the arrays"


def test_fsl_is_cpp1_in_the_open(tmp_path: Path) -> None:
    ended(tmp_path / "fsl", tiny(round={"scheme": "fsl", "min_contributors": 1}))
    ended(tmp_path / "cpp1", tiny(round={"min_contributors": 1}, privacy={"preset": "cpp1"}))
    assert model_of(tmp_path / "fsl") == model_of(tmp_path / "cpp1")


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_centralized_training_learns_and_resumes(tmp_path: Path, optimizer: str) -> None:
    config = tiny(
        round={"scheme": "centralized"},
        centralized={"optimizer": optimizer, "learning_rate": 0.05 if optimizer == "adam" else 1},
        training={"clip": 10},
        run={"rounds": 12, "evaluate_every": 4},
    )
    whole = ended(tmp_path / "whole", config)
    assert (whole.sums, whole.privacy, whole.aborted) == ("none", None, 0)
    losses = [line["loss"] for line in lines_of(tmp_path / "whole")]
    assert np.mean(losses[-3:]) < np.mean(losses[:3]) - 0.02
    ended(tmp_path / "parts", msgspec.structs.replace(config, run=tiny(run={"rounds": 5}).run))
    with start.resume(tmp_path / "parts", config) as runner:
        runner.run(stop=lambda: False, seen=lambda line: None)
    assert model_of(tmp_path / "whole") == model_of(tmp_path / "parts"), "the optimizer's state is kept too"


def test_plain_sums_are_labelled_wherever_they_are_shown(run_file: Path, tmp_path: Path) -> None:
    shown = done("run", run_file, "--out", tmp_path / "run", "--sums", "plain", "--rounds", 1)
    assert "PLAIN SUMS" in shown.stdout
    assert "PLAIN SUMS" in shown.stderr
    assert read_runs([tmp_path / "run"])[0].name == "run (PLAIN SUMS)"
    done("run", run_file, "--out", tmp_path / "fl", "--scheme", "fl", "--rounds", 1)
    assert read_runs([tmp_path / "fl"])[0].name == "fl"
    assert "hides nothing" in refused(ParameterError, "run", run_file, "--scheme", "fl", "--sums", "masked")


def test_with_periods_nobody_is_asked_twice_in_one(tmp_path: Path) -> None:
    config = tiny(run={"selection": "period", "period": 3, "rounds": 6}, faults={"inbound": 0, "submodel": 0})
    summary = ended(tmp_path / "run", config)
    with LmdbStore.open(tmp_path / "run" / "store") as store:
        state = Kept.decode(store.selection)
    assert (state.period.period, len(state.period.invited)) == (1, 3 * CLIENTS)
    assert max(state.rounds.values()) == 2
    assert summary.privacy is not None
    assert summary.privacy.epsilon == 2 * PRESETS["cpp2"].epsilon(1), "answers are drawn anew in each period"
    with pytest.raises(InputError, match=r"shorten the period"):
        start.begin(tmp_path / "long", tiny(run={"selection": "period", "period": 4}))


def test_permanent_answers_last_for_a_period_and_no_longer(tmp_path: Path) -> None:
    config = tiny(run={"selection": "period", "period": 3})
    with start.begin(tmp_path / "run", config) as runner:
        world = runner._engine.simulation  # type: ignore[union-attr]
        name = sorted(world.devices)[0]
        rows = np.arange(world.task.spec.table("item").rows)
        answers = [world.population.answers(name, number)._perturber for number in (1, 3, 4)]
        permanent = [one.permanent("item", rows) for one in answers]
    assert np.array_equal(permanent[0], permanent[1])
    assert not np.array_equal(permanent[0], permanent[2])


def test_clients_of_one_cohort_choose_for_themselves(tmp_path: Path) -> None:
    config = tiny(privacy={"mix": {"cpp1": 0.5, "cpp5": 0.5}}, data={"users": 200})
    chosen = client_privacy(config, [f"c{number}" for number in range(200)])
    assert {*chosen.values()} == {PRESETS["cpp1"], PRESETS["cpp5"]}
    assert 70 < sum(one == PRESETS["cpp1"] for one in chosen.values()) < 130
    summary = ended(tmp_path / "run", config)
    assert summary.privacy is not None
    assert (summary.privacy.preset, summary.privacy.epsilon) == ("50% cpp1 + 50% cpp5", None)
    assert read_config(tmp_path / "run" / "config.toml").privacy.mix == {"cpp1": 0.5, "cpp5": 0.5}
    with pytest.raises(ParameterError, match="sum to 1"):
        tiny(privacy={"mix": {"cpp1": 0.5}})


def test_a_client_with_more_rows_than_it_allows_declines_and_is_counted(tmp_path: Path) -> None:
    limits = {"max_rows": 14, "threshold": 7}
    summaries = [
        ended(tmp_path / sums, tiny(round=limits | {"sums": sums}, privacy={"preset": "cpp1"}))
        for sums in ("masked", "plain")
    ]
    assert all(one.declined["Refused"] > 0 for one in summaries)
    assert summaries[0].declined == summaries[1].declined
    assert summaries[0].aborted < summaries[0].rounds
    assert model_of(tmp_path / "masked") == model_of(tmp_path / "plain")


def test_a_plan_from_a_run_file_foretells_the_run(tmp_path: Path) -> None:
    """Bytes by exchange and in all, and the contributors that "auto" stands for."""
    file = tmp_path / "run.toml"
    config = tiny(
        data={"users": 60, "scale": 0.1},
        round={"clients": 30, "min_contributors": "auto"},
        faults={"inbound": 0, "submodel": 0},
    )
    file.write_text(to_toml(config))
    result = CliRunner().invoke(app, ["plan", "--config", str(file), "--json"])
    assert result.exit_code == 0, (result.output, result.exception)
    planned = json.loads(result.stdout)
    measured = ended(tmp_path / "run", config)
    assert read_config(tmp_path / "run" / "config.toml").round.min_contributors == planned["min_contributors"]
    for told, found in (("bytes_up", measured.costs.bytes_up), ("bytes_down", measured.costs.bytes_down)):
        assert sum(planned[told].values()) == pytest.approx(sum(found.values()), rel=0.05)
    file.write_text(to_toml(tiny(round={"scheme": "fl"})))
    with pytest.raises(InputError, match="sfsl"):
        CliRunner().invoke(app, ["plan", "--config", str(file)], catch_exceptions=False)


# -- your own model ----------------------------------------------------------------------------

OWN_MODEL = Path(__file__).parents[2] / "examples" / "own_model.py"
OWN_FLAGS = ("--clients", 40, "--set", "round.min_contributors=2")


def test_a_model_that_is_not_ours_learns_under_every_scheme(tmp_path: Path) -> None:
    data = ("--data", f"python:{OWN_MODEL}", *OWN_FLAGS, "--json")
    for scheme, rounds in (("sfsl", 3), ("fsl", 30), ("fl", 2), ("sfl", 1), ("centralized", 2)):
        result = done("run", *data, "--out", tmp_path / scheme, "--scheme", scheme, "--rounds", rounds)
        auc_now = json.loads(result.stdout)["learning"]["auc"]
        assert auc_now > (0.7 if rounds > 3 else 0.4)  # masks change no sum, and cost most of the time
    found = json.loads(done("evaluate", tmp_path / "sfsl", "--json").stdout)
    assert (found["round"], found["which"], found["users"]) == (3, "best", 100)
    assert found["samples"] == 1500 - 15 * 5, "five devices chose the model"
    line, said = found["correction"], done("evaluate", tmp_path / "sfsl").stdout
    assert f"× {line['scale']:.2f} {line['shift']:+.2f}" in said
    assert "your own class" in (told := done("export", tmp_path / "sfsl", tmp_path / "own.zip").stdout)
    assert "Try it" not in told, "a bundle without the code of its model makes no predictions"
    done("export", tmp_path / "sfsl", tmp_path / "model.pt")
    assert torch.load(tmp_path / "model.pt", weights_only=True)["film.weight"].shape == (300, 4)


def test_what_a_user_writes_is_about_forty_lines() -> None:
    text = OWN_MODEL.read_text()
    brought = text[text.index("# 1.") : text.index("# That is all")]
    assert len([line for line in brought.splitlines() if line.strip()]) <= 40


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "no function fleet"),
        ("def fleet(seed):\n    return 3", "returns int"),
        (None, "no such file"),
    ],
)
def test_a_file_that_is_no_fleet_is_refused(tmp_path: Path, text: str | None, said: str) -> None:
    file = tmp_path / "own.py"
    if text is not None:
        file.write_text(text)
    assert said in refused(InputError, "run", "--data", f"python:{file}", "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


BAD_FLEET = """
import runpy
from dataclasses import replace
import numpy as np
from sfsl.run.fleet import Fleet

own = runpy.run_path({example!r})

def fleet(seed):
    good = own["fleet"](seed)
    train = {{name: device.train for name, device in good.devices.items()}}
    held_out = {{name: device.held_out for name, device in good.devices.items()}}
    empty = np.zeros(0, np.int64)
    for number, name in enumerate(sorted(train)):
        columns = dict(train[name].columns)
        if number % 4 == 0:
            columns["film"] = np.where(np.arange(45) < 5, 10**6, columns["film"])  # unknown ids
        if number % 4 == 1:
            columns["label"] = np.full(45, np.nan, np.float32)  # training goes astray
        train[name] = replace(train[name], columns=columns)
        if number % 4 == 2:
            train[name] = train[name].at(empty)  # nothing to train on
    return Fleet.of(good.task, train, held_out)
"""


def test_files_with_bad_lines_train_on_the_rest_and_say_what_was_left_out(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    rng = np.random.default_rng(0)
    lines = [
        {"user": user, "item": int(rng.integers(50)), "label": int(rng.integers(2)), "time": float(time)}
        for user in range(20)
        for time in range(15)
    ]
    lines[7]["label"], lines[8]["item"], lines[9]["time"] = 5, -3, float("nan")
    names = list(lines[0])
    text = "\n".join([",".join(names), *(",".join(str(line[name]) for name in names) for line in lines)])
    (tmp_path / "clicks.csv").write_text(text + "\n")
    parquet.write_table(arrow.Table.from_pylist(lines), tmp_path / "clicks.parquet")
    flags = ("--clients", 8, "--rounds", 2, "--set", "round.min_contributors=1", "--sums", "plain")
    for kind in ("csv", "parquet"):
        out = tmp_path / kind
        shown = done("run", "--data", f"{kind}:{tmp_path / f'clicks.{kind}'}", "--out", out, *flags).stdout
        problems = json.loads((out / "summary.json").read_text())["data_problems"]
        assert sum(problems.values()) == 3
        assert all(f"data: {problem}"[:20] in shown for problem in problems)
    assert model_of(tmp_path / "csv") == model_of(tmp_path / "parquet")


@pytest.mark.parametrize("sums", ["masked", "plain"])
def test_bad_data_is_counted_and_shown_and_does_no_harm(tmp_path: Path, sums: str) -> None:
    file = tmp_path / "bad.py"
    file.write_text(BAD_FLEET.format(example=str(OWN_MODEL)))
    flags = ("--data", f"python:{file}", *OWN_FLAGS, "--sums", sums, "--rounds", 3)
    shown = done("run", *flags, "--out", tmp_path / "run").stdout
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["rounds"], summary["aborted"]) == (3, 0)
    assert summary["unknown_rows"] > 0
    assert summary["diverged"] > 0
    assert "rows in data, not in the model" in shown
    assert "updates that were not finite" in shown
    assert all(np.isfinite(np.asarray(part)).all() for part in model_of(tmp_path / "run"))


def test_a_personal_row_belongs_to_one_client(tmp_path: Path) -> None:
    file = tmp_path / "twins.py"
    file.write_text(
        BAD_FLEET.format(example=str(OWN_MODEL)).split("    empty =")[0]
        + "    train['user-1'] = train['user-0']\n    return Fleet.of(good.task, train, {})\n"
    )
    said = refused(InputError, "run", "--data", f"python:{file}", "--clients", 40, "--out", tmp_path / "run")
    assert "'user-0' and 'user-1' both have row 0 of table 'user'" in said


def test_flags_win_over_a_mix_and_errors_name_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mix.toml"
    file.write_text(to_toml(tiny(privacy={"mix": {"cpp2": 0.7, "cpp5": 0.3}})))
    done("run", file, "--out", tmp_path / "run", "--privacy", "cpp3", "--rounds", 1)
    assert read_config(tmp_path / "run" / "config.toml").privacy.name == "cpp3"
    file.write_text("[round]\nclients = 4\nmin_contributors = 5\n")
    said = refused(ParameterError, "run", file, "--out", tmp_path / "other")
    assert str(file) in said
    assert "no row could ever move" in said


def test_late_clients_count_as_lost_when_contributors_are_planned() -> None:
    found = [
        resolved(config, build_fleet(config)).round.min_contributors
        for late in (0.0, 0.4)
        for config in [tiny(round={"min_contributors": "auto"}, faults={"submodel": 0, "late": late})]
    ]
    assert found[1] > found[0]  # type: ignore[operator]


def test_a_run_that_goes_on_has_no_summary_of_fewer_rounds(copied: Path) -> None:
    assert (copied / "summary.json").exists()
    with start.resume(copied, tiny(run={"rounds": 6})) as runner:
        assert not (copied / "summary.json").exists()
        runner.run(stop=lambda: False, seen=lambda line: None)
    assert json.loads((copied / "summary.json").read_text())["rounds"] == 6


# -- going on ----------------------------------------------------------------------------------


def test_resume_extends_a_run_and_keeps_what_was_there(copied: Path) -> None:
    before = lines_of(copied)
    done("run", "--out", copied, "--resume", "--rounds", 6)
    assert lines_of(copied)[:4] == before
    assert [line["round"] for line in lines_of(copied)] == [1, 2, 3, 4, 5, 6]
    assert read_config(copied / "config.toml").run.rounds == 6
    with LmdbStore.open(copied / "store") as store:
        state = Kept.decode(store.selection)
    assert sum(state.rounds.values()) == 6 * CLIENTS


def test_a_run_in_two_parts_gives_the_model_of_one_in_one_part(run_file: Path, tmp_path: Path) -> None:
    """What devices do by chance follows from the seed, and the state of the scores' bins is kept."""
    done("run", run_file, "--out", tmp_path / "whole", "--sums", "plain")
    done("run", run_file, "--out", tmp_path / "parts", "--sums", "plain", "--rounds", 2)
    done("run", "--out", tmp_path / "parts", "--resume", "--rounds", 4)
    whole, parts = (lines_of(tmp_path / name) for name in ("whole", "parts"))
    for key in ("loss", "auc", "auc_secure", "union", "survivors"):
        assert [line[key] for line in whole] == [line[key] for line in parts]


def test_lines_beyond_the_store_and_torn_lines_are_dropped(copied: Path) -> None:
    metrics = copied / "metrics.jsonl"
    whole = metrics.read_bytes()
    surplus = whole.splitlines()[-1].replace(b'"round":4', b'"round":5')
    for tail in (surplus + b"\n", surplus, surplus[:50], b"\x00\xff"):
        metrics.write_bytes(whole + tail)
        done("run", "--out", copied, "--resume")
        assert metrics.read_bytes() == whole


def test_a_line_that_only_the_store_has_is_written_and_evaluated(copied: Path) -> None:
    metrics = copied / "metrics.jsonl"
    before = lines_of(copied)
    for cut in (b"".join(metrics.read_bytes().splitlines(True)[:3]), metrics.read_bytes()[:-2]):
        metrics.write_bytes(cut)
        done("run", "--out", copied, "--resume")
        after = lines_of(copied)
        assert len(after) == 4
        assert after[3]["wall_seconds"] <= before[3]["wall_seconds"]
        anything = {"wall_seconds": 0, "checksum": ""}
        assert after[3] | anything == before[3] | anything


def test_a_run_stopped_before_it_had_a_store_can_go_on(copied: Path) -> None:
    shutil.rmtree(copied / "store")
    for name in ("metrics.jsonl", "summary.json", "store.lock"):
        (copied / name).unlink()
    done("run", "--out", copied, "--resume", "--rounds", 1)
    assert len(lines_of(copied)) == 1


def test_a_crash_while_the_folder_is_made_leaves_none(
    run_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*paths: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", crash)
        sfsl("run", run_file, "--out", tmp_path / "run", "--rounds", 1)
    assert not (tmp_path / "run").exists()
    done("run", run_file, "--out", tmp_path / "run", "--rounds", 1)


def test_ctrl_c_stops_after_the_round_and_a_second_one_at_once(
    run_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    presses = {2: 1}

    def press(progress: object, line: RoundRecord) -> None:
        for _ in range(presses.get(line.round, 0)):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(RunProgress, "seen", press)
    handler = signal.getsignal(signal.SIGINT)
    stopped = sfsl("run", run_file, "--out", out)
    assert (stopped.exit_code, len(lines_of(out))) == (130, 2)
    assert "--resume" in stopped.output
    assert not json.loads((out / "summary.json").read_text())["complete"]
    presses = {3: 2}
    at_once = sfsl("run", "--out", out, "--resume")
    assert (at_once.exit_code, len(lines_of(out))) == (130, 3)
    assert signal.getsignal(signal.SIGINT) is handler
    done("run", "--out", out, "--resume")
    assert len(lines_of(out)) == 4


# -- refusals ----------------------------------------------------------------------------------


def test_an_existing_folder_is_refused_with_nothing_lost(
    finished: Path, run_file: Path, tmp_path: Path
) -> None:
    before = contents(finished)
    assert "--resume" in refused(InputError, "run", run_file, "--out", finished)
    assert contents(finished) == before
    (tmp_path / "notes.txt").write_text("mine")
    assert "not empty" in refused(InputError, "run", run_file, "--out", tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["notes.txt"]


def test_an_empty_folder_may_be_taken(run_file: Path, tmp_path: Path) -> None:
    done("run", run_file, "--out", tmp_path, "--rounds", 1)
    assert len(lines_of(tmp_path)) == 1


def test_resume_refuses_other_settings_and_no_run(finished: Path, run_file: Path, tmp_path: Path) -> None:
    before = contents(finished)
    said = refused(InputError, "run", "--out", finished, "--resume", "--clients", 13)
    assert "round.clients is 12 in this run and 13 here" in said
    said = refused(InputError, "run", "--out", finished, "--resume", "--privacy", "cpp3")
    assert "privacy.preset" in said
    assert "no run at" in refused(InputError, "run", "--out", tmp_path / "none", "--resume")
    assert "no run at" in refused(InputError, "run", run_file, "--out", tmp_path / "none", "--resume")
    assert contents(finished) == before
    assert not (tmp_path / "none").exists()


def test_bad_settings_and_data_leave_no_folder(run_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    refused(ParameterError, "run", run_file, "--out", out, "--set", "round.clints=5")
    assert "only 40 users" in refused(InputError, "run", run_file, "--out", out, "--clients", 41)
    refused(InputError, "run", run_file, "--out", out, "--data", f"csv:{tmp_path / 'none.csv'}")
    refused(ParameterError, "run", run_file, "--out", out, "--data", "csv")
    refused(InputError, "run", run_file, "--out", out, "--privacy", "1,0,x,0")
    assert not list(tmp_path.iterdir())


def test_an_engine_that_cannot_start_leaves_no_folder(
    run_file: Path, copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object) -> None:
        raise InputError("no cluster answers")

    before = contents(copied)
    monkeypatch.setattr("sfsl.run.runner.build_engine", fail)
    out = tmp_path / "another"
    assert "no cluster" in refused(InputError, "run", run_file, "--out", out)
    assert not out.exists()
    assert "no cluster" in refused(InputError, "run", "--out", copied, "--resume")
    assert contents(copied) == before


def test_a_corrupt_store_is_refused_and_left_as_it_is(copied: Path) -> None:
    data = copied / "store" / "data.mdb"
    damaged = bytearray(data.read_bytes())
    for place in range(2 * 4096, len(damaged), 4096):
        damaged[place + 2000 : place + 2016] = os.urandom(16)
        damaged[place + 4000 : place + 4016] = os.urandom(16)
    data.write_bytes(damaged)
    before = contents(copied)
    refused(StoreCorrupt, "run", "--out", copied, "--resume", "--rounds", 9)
    refused(StoreCorrupt, "evaluate", copied)
    assert contents(copied) == before


@pytest.mark.parametrize("harm", ["lines are gone", "a line is damaged", "not text", "empty", "a folder"])
def test_harm_to_metrics_keeps_no_run_from_going_on(
    copied: Path, caplog: pytest.LogCaptureFixture, harm: str
) -> None:
    metrics = copied / "metrics.jsonl"
    whole = metrics.read_bytes().splitlines(True)
    if harm == "a folder":
        metrics.unlink()
        metrics.mkdir()
    else:
        metrics.write_bytes(
            {
                "lines are gone": b"".join(whole[:2]),
                "a line is damaged": b"".join(
                    [*whole[:2], whole[2].replace(b'"samples"', b'"sample"'), whole[3]]
                ),
                "not text": b"\xff".join(whole),
                "empty": b"",
            }[harm]
        )
    summary = json.loads(done("run", "--out", copied, "--resume", "--rounds", 5, "--json").stdout)
    lines = lines_of(copied)
    assert [line["round"] for line in lines] == [1, 2, 3, 4, 5]
    lost = {
        "lines are gone": [3], "a line is damaged": [3], "not text": [2, 3],
    }.get(harm, [1, 2, 3])  # fmt: skip
    assert [line["round"] for line in lines if line["lost"]] == lost
    assert (summary["rounds"], summary["aborted"]) == (5, 0)
    assert summary["costs"]["bytes_up"]["submodel"] == pytest.approx(
        np.mean([line["bytes_up"]["submodel"] for line in lines if not line["lost"]])
    )
    assert len([said for said in caplog.messages if "is mended" in said]) == 1
    if harm == "lines are gone":
        assert done("report", copied, "--out", copied.parent / "page").exit_code == 0


def test_other_harm_to_a_run_is_named(copied: Path) -> None:
    with LmdbStore.open(copied / "store"):
        refused(StoreInUse, "run", "--out", copied, "--resume")
    config = (copied / "config.toml").read_text()
    (copied / "config.toml").write_text(config.replace("users = 40", "users = 41"))
    assert "if you edited it, delete its last line" in refused(InputError, "run", "--out", copied, "--resume")
    edited = config.replace("users = 40", "users = 41").partition("\n# checksum")[0]
    (copied / "config.toml").write_text(edited + "\n")
    refused(WrongModel, "run", "--out", copied, "--resume")
    (copied / "config.toml").write_text(config)
    shutil.move(copied / "store", copied / "elsewhere")
    assert "no store" in refused(StoreError, "run", "--out", copied, "--resume")


def test_without_torch_the_error_names_the_extra(run_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "[train]" in refused(InputError, "run", run_file, "--out", "never-made")
    assert not Path("never-made").exists()


def test_importing_the_commands_does_not_import_torch() -> None:
    code = "import sys, sfsl.cli.run, sfsl.run.summary; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0  # noqa: S603


# -- the neighbours ----------------------------------------------------------------------------


def test_init_writes_a_file_that_runs_and_never_overwrites(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    done("init", file)
    assert read_config(file) == RunConfig()
    file.write_text("mine")
    assert "exists already" in refused(InputError, "init", file)
    assert file.read_text() == "mine"


def test_evaluate_gives_the_auc_of_the_last_line(finished: Path) -> None:
    result = json.loads(done("evaluate", finished, "--json").stdout)
    last = lines_of(finished)[-1]
    assert (result["round"], result["auc"]) == (4, last["auc"])
    assert [result[name] for name in ("log_loss", "ndcg", "recall")] == [
        last[name] for name in ("log_loss", "ndcg", "recall")
    ]
    summary = json.loads((finished / "summary.json").read_text())
    assert result["base_log_loss"] == summary["baselines"]["base_rate"]["log_loss"]
    assert result["calibration"] == summary["calibration"]
    assert summary["verdict"] in " ".join(done("evaluate", finished).stdout.split())


def test_a_file_for_onnx_is_asked_for_otherwise(finished: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    assert "--onnx puts model.onnx into it" in refused(InputError, "export", finished, file)
    assert not file.exists()


def test_where_every_line_is_a_click_the_run_says_so(tmp_path: Path) -> None:
    file = tmp_path / "clicks.csv"
    lines = [f"{user},{(user + 3 * one) % 17},{one}" for user in range(20) for one in range(8)]
    flags = ("--data", file, "--rounds", 1, "--clients", 10, "--sums", "plain")
    for head, label in (("user,item,time", ""), ("user,item,time,label", ",1")):
        file.write_text("\n".join([head, *(line + label for line in lines)]) + "\n")
        said = done("run", *flags, "--out", tmp_path / str(len(head))).stderr
        assert "160 samples from 161 lines; every one is a click: beside each" in said
    file.write_text(
        "\n".join(["user,item,time,label", *(f"{line},{len(line) % 2}" for line in lines)]) + "\n"
    )
    assert "every one is a click" not in done("run", *flags, "--out", tmp_path / "both").stderr


def test_an_exported_model_scores_as_the_run_does(finished: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    done("export", finished, file)
    pool = build_fleet(tiny()).test
    assert isinstance(pool, Interacted)
    data = pool.data
    assert data.categories is not None
    model = LogisticRegression(len(data.users), len(data.items), len(data.categories))
    state = torch.load(file, weights_only=True)
    model.load_state_dict(state)
    with LmdbStore.open(finished / "store") as store:
        assert state["bias"].tolist() == store.read_dense().values.tolist() != [0.0]
    # Users' rows are rebuilt before anything is scored: those of the last rounds are old.
    fleet, local = build_fleet(tiny()), LocalSettings(**msgspec.structs.asdict(tiny().training))
    with LmdbStore.open(finished / "store") as store:
        users, rows = rebuild_personal(fleet.task, fleet.devices, store, local, seed=tiny().run.seed)["user"]
    state["user.weight"][torch.from_numpy(users)] = torch.from_numpy(rows)
    model.load_state_dict(state)
    samples = data.samples(np.arange(len(data)))
    batch = {name: torch.from_numpy(column) for name, column in samples.columns.items()}
    with torch.no_grad():
        scores = torch.sigmoid(model(batch)).numpy()
    assert auc(scores, samples.columns["label"]) == pytest.approx(lines_of(finished)[-1]["auc"])
    assert "exists already" in refused(InputError, "export", finished, file)
    small = refused(InputError, "export", finished, tmp_path / "other.pt", "--max-gib", "0.000001")
    assert "--max-gib" in small
    assert [one.name for one in tmp_path.iterdir()] == ["model.pt"]


def test_planned_requesters_are_owners_at_cpp1_and_the_cohort_at_cpp5() -> None:
    fleet = build_fleet(tiny())
    needed = [fleet.devices[name].needed for name in sorted(fleet.devices)[:CLIENTS]]
    owners = [
        count
        for table in ("item", "category")
        for count in Counter(row for own in needed for row in own[table].tolist()).values()
    ]
    rng = np.random.default_rng(0)
    assert sorted(planned_requesters(fleet.task, needed, [PRESETS["cpp1"]] * CLIENTS, rng)) == sorted(owners)
    assert (planned_requesters(fleet.task, needed, [PRESETS["cpp5"]] * CLIENTS, rng) == CLIENTS).all()


FULL_DISK = """
import resource, signal, sys
from sfsl.cli import main

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)), resource.RLIM_INFINITY))
main()
"""


def test_a_full_disk_stops_the_run_with_words_and_loses_nothing(copied: Path) -> None:
    before = lines_of(copied)
    size = (copied / "store" / "data.mdb").stat().st_size
    words = [sys.executable, "-c", FULL_DISK, str(size), "run", "--out", str(copied), "--resume"]
    result = subprocess.run(  # noqa: S603
        [*words, "--rounds", "60"], capture_output=True, text=True, check=False, timeout=600
    )
    assert result.returncode == 1, result.stderr
    assert "no room" in result.stderr
    assert "Traceback" not in result.stderr
    with LmdbStore.open(copied / "store") as store:
        reached = store.round
    assert 4 <= reached < 60
    assert lines_of(copied)[:4] == before
    done("run", "--out", copied, "--resume", "--rounds", reached + 1)
    assert [line["round"] for line in lines_of(copied)] == list(range(1, reached + 2))


# -- crashes -----------------------------------------------------------------------------------


def test_killed_at_random_moments_a_run_ends_whole() -> None:
    require_survival(KILLS)


@pytest.mark.slow
def test_killed_at_fifty_random_moments_a_run_ends_whole() -> None:
    require_survival(MANY_KILLS)


def require_survival(kills: int) -> None:
    command = [sys.executable, __file__, str(kills)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)  # noqa: S603
    assert result.returncode == 0, result.stdout + result.stderr


def survive(kills: int, seed: int) -> None:
    draws = random.Random(seed)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        # What torch imports when it is first used would take longer than a child lives.
        warm_up = tiny(run={"rounds": 1})
        with start.begin(Path(place) / "warm", warm_up) as runner:
            runner.run(stop=lambda: False, seen=lambda line: None)
        out, reached = Path(place) / "run", 0
        for kill in range(kills):
            if kill < kills // 4:
                killed(out, draws.uniform(0, 0.08), commits=0)  # as it begins
            elif kill % 2:
                killed(out, draws.uniform(0, 0.6), commits=0)  # anywhere
            else:  # near a commit; the last one lives to see a whole round, on the slowest machine too
                commits = draws.randint(1, 2) if kill < kills - 2 else 2
                killed(out, draws.uniform(0, 0.03), commits)
            if (out / "store").exists():
                with LmdbStore.open(out / "store") as store:  # reads and checks every record
                    assert store.round >= reached, "a round was lost"
                    reached = store.round
        assert reached > 0, "no child lived long enough"
        config = tiny(run={"rounds": reached + 2, "evaluate_every": 1})
        with (start.resume if out.exists() else start.begin)(out, config) as runner:
            runner.run(stop=lambda: False, seen=lambda line: None)
        require_complete(out, reached + 2)


def killed(out: Path, wait: float, commits: int) -> None:
    """Fork a child that runs, or goes on; kill it a while after it begins so many commits."""
    reports, report = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            config = tiny(run={"rounds": 10**6, "evaluate_every": 1})
            with (start.resume if out.exists() else start.begin)(out, config) as runner:
                reporting_commits(runner.store, report)
                runner.run(stop=lambda: False, seen=lambda line: None)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(report)
    for _ in range(commits):
        assert os.read(reports, 1), "the child ended by itself: it failed"
    time.sleep(wait)
    os.kill(child, signal.SIGKILL)
    os.close(reports)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the child ended by itself: it failed"


def reporting_commits(store: LmdbStore, report: int) -> None:
    real = store.commit

    def reported(commit: Commit) -> None:
        os.write(report, b".")
        real(commit)

    store.commit = reported  # type: ignore[method-assign]


def require_complete(out: Path, rounds: int) -> None:
    lines = read_lines(out / "metrics.jsonl")
    assert [line.round for line in lines] == list(range(1, rounds + 1))
    assert all(line.auc is not None for line in lines), "evaluated after every round"
    with LmdbStore.open(out / "store") as store:
        assert store.round == rounds
        assert sum(Kept.decode(store.selection).rounds.values()) == rounds * CLIENTS
    assert json.loads((out / "summary.json").read_text())["complete"]


if __name__ == "__main__":
    given = sys.argv[2:] or [str(random.SystemRandom().getrandbits(32))]
    sys.stderr.write(f"to repeat: seed {given[0]}\n")
    survive(int(sys.argv[1]), int(given[0]))
