"""Run folders read, compared and shown."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from sfsl.cli import report as command
from sfsl.errors import InputError
from sfsl.report.comparison import (
    baseline_table,
    client_table,
    cost_table,
    exchange_table,
    figures,
    glance_table,
    privacy_table,
    without_privacy,
)
from sfsl.report.page import page
from sfsl.report.run_plots import pictures
from sfsl.report.runs import EXCHANGES, read_runs
from sfsl.report.words import opening

PNG = b"\x89PNG\r\n\x1a\n"
SUMMARY: dict[str, Any] = {
    "complete": True,
    "privacy": {"preset": "cpp2", "p1": 1, "p2": 0, "p3": 1, "p4": 0, "epsilon": None, "rounds_at_most": 2},
    "full_model": {"bytes_up": {"submodel": 14e6}, "bytes_down": {"submodel": 14e6}},
}


def line(number: int, **changes: Any) -> dict[str, Any]:
    by_exchange = {exchange: 1000.0 * (place + 1) for place, exchange in enumerate(EXCHANGES)}
    return {
        "round": number,
        "aborted": None,
        "cohort": 20,
        "survivors": 18,
        "dropped": {"inbound": 1, "submodel": 1},
        "late": 0,
        "declined": {"Refused": 1},
        "diverged": 0,
        "samples": 600,
        "unknown_rows": 0,
        "loss": 0.7 - 0.01 * number,
        "auc": 0.5 + 0.01 * number if number % 2 else None,
        "auc_secure": 0.5,
        "auc_secure_error": 0.004,
        "union": {"item": 400},
        "opened": {"item": 380},
        "moved": {"item": 300},
        "refused": {"item": 0},
        "bytes_up": by_exchange,
        "bytes_down": {name: 2 * value for name, value in by_exchange.items()},
        "client_seconds": dict.fromkeys(EXCHANGES, 0.001),
        "server_seconds": dict.fromkeys(EXCHANGES, 0.01),
        "training_seconds": 0.4,
        "wall_seconds": 0.9,
        **changes,
    }


# Without the protocol: no seconds by exchange, and bytes only where arrays are sent.
OPEN: dict[str, Any] = {
    "bytes_up": {"union": 0.0, "submodel": 5000.0},
    "bytes_down": {"submodel": 4000.0},
    "client_seconds": {},
    "server_seconds": {},
}
NOBODY: dict[str, Any] = {"cohort": 0, "survivors": 0, "dropped": {}, "declined": {}, "auc_secure": None}
NO_BYTES: dict[str, Any] = {"bytes_up": {}, "bytes_down": {}}


def folder(
    path: Path,
    lines: list[dict[str, Any]],
    summary: dict[str, Any] | None = SUMMARY,
    config: str = '[privacy]\npreset = "cpp2"\n',
) -> Path:
    path.mkdir(parents=True)
    (path / "config.toml").write_text(config)
    (path / "versions.json").write_text('{"sfsl": "0"}')
    (path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    if summary is not None:
        (path / "summary.json").write_text(json.dumps({"rounds": len(lines)} | summary))
    return path


def in_the_open(path: Path, scheme: str, **changes: Any) -> Path:
    lines = [line(number, **OPEN | changes) for number in (1, 2)]
    return folder(path, lines, SUMMARY | {"privacy": None}, f'[round]\nscheme = "{scheme}"\n')


def plain_sums(path: Path) -> Path:
    return folder(path, [line(1, **OPEN | NO_BYTES)], config='[round]\nsums = "plain"\n')


def test_means_are_over_rounds_that_were_not_aborted(tmp_path: Path) -> None:
    lost = line(3, aborted="too few", survivors=0, bytes_up={"check-in": 1e9}, bytes_down={})
    (run,) = read_runs([folder(tmp_path / "a", [line(1), line(2), lost])])
    assert run.mean("bytes_up") == {name: 1000.0 * (at + 1) for at, name in enumerate(EXCHANGES)}
    assert (run.aborted, run.dropped) == (1, 6)
    assert run.lost()["inbound"] == pytest.approx(3 / 60)
    assert run.curve("auc") == [(1, 0.51), (3, 0.53)]


def test_figures_say_what_was_not_measured(tmp_path: Path) -> None:
    blind = [line(number, auc=None, auc_secure=None, loss=None) for number in (1, 2)]
    one = figures(read_runs([folder(tmp_path / "a", blind, summary=None)])[0])
    assert one["auc"] is one["auc_best"] is one["auc_secure"] is one["privacy"] is None
    assert one["full_model_bytes"] is None
    assert privacy_table([one])[1] == []


def test_an_infinite_epsilon_is_shown_as_such(tmp_path: Path) -> None:
    one = figures(read_runs([folder(tmp_path / "a", [line(1)])])[0])
    assert privacy_table([one])[1][0][3:5] == ["∞", "–"]
    assert one["full_model_bytes"] == 28e6


def test_what_was_not_measured_is_a_dash(tmp_path: Path) -> None:
    folders = [in_the_open(tmp_path / "fl", "fl"), plain_sums(tmp_path / "plain")]
    for run, submodel in zip(read_runs(folders), (["5,000", "4,000"], ["–", "–"]), strict=True):
        rows = {row[0]: row[1:] for row in exchange_table(figures(run))[1]}
        assert rows["submodel"] == [*submodel, "–", "–"]
        assert rows["union"] == rows["check-in"] == ["–"] * 4
    (masked,) = read_runs([folder(tmp_path / "masked", [line(1, server_seconds={"union": 0.0})])])
    assert exchange_table(figures(masked))[1][4][3:] == ["0.0010", "0.0000"], "measured, and small"


def test_training_in_one_place_has_no_clients(tmp_path: Path) -> None:
    (run,) = read_runs([in_the_open(tmp_path / "a", "centralized", **NOBODY | NO_BYTES)])
    one = figures(run)
    assert one["clients_per_round"] is one["full_model_bytes"] is None
    assert cost_table([one])[1][0][1:6] == ["–"] * 5
    assert client_table([one])[1] == []
    text = page([run], [one], {})
    assert "check-in" not in text
    assert "Clients" not in text


def test_late_and_declined_clients_and_refused_rows_are_counted(tmp_path: Path) -> None:
    lines = [line(1, late=2, refused={"item": 3}), line(2, refused={"item": 1, "dense": 1})]
    (run,) = read_runs([folder(tmp_path / "a", lines)])
    one = figures(run)
    assert client_table([one])[1] == [["a", "40", "36", "4", "2", "2"]]
    assert one["refused_rows"] == 5
    assert (run.lost()["late"], run.lost()["declined"]) == (2 / 40, 2 / 40)
    assert "<th>late</th><th>declined</th>" in page([run], [one], {})


def test_only_masked_sums_are_called_secure(tmp_path: Path) -> None:
    masked, fl, plain = (
        folder(tmp_path / "masked", [line(1)]),
        in_the_open(tmp_path / "fl", "fl"),
        plain_sums(tmp_path / "plain"),
    )
    for folders, said in (
        ([masked], "the sum is a secure one."),
        ([fl], "nothing hides what a client adds to it."),
        ([plain, fl], "nothing hides what a client adds to it."),
        ([masked, fl], "the sum is a secure one where sums are masked."),
    ):
        runs = read_runs(folders)
        assert f"; {said}" in page(runs, [figures(run) for run in runs], {})


def test_runs_that_hide_nothing_are_named_as_such(tmp_path: Path) -> None:
    runs = read_runs([in_the_open(tmp_path / "fl", "fl"), folder(tmp_path / "new", [line(1)], summary=None)])
    compared = [figures(run) for run in runs]
    assert privacy_table(compared)[1] == [["fl", "hides nothing", *["–"] * 6]]
    assert without_privacy(compared) == "No summary of new yet; privacy is summed up when a run ends."
    assert without_privacy(compared[:1]) == ""
    assert without_privacy(compared[1:]).startswith("No run has a summary yet;")
    assert "No run has a summary" not in page(runs[:1], compared[:1], {})
    assert "No run has a summary" in page(runs[1:], compared[1:], {})


@pytest.mark.parametrize("rounds", [1, 3, None])
def test_a_summary_of_another_number_of_rounds_is_not_believed(tmp_path: Path, rounds: int | None) -> None:
    """The run went on and was killed: its summary knows too few exposures."""
    path = folder(tmp_path / "a", [line(1), line(2)], SUMMARY | {"rounds": rounds})
    (run,) = read_runs([path])
    one = figures(run)
    assert one["privacy"] is one["complete"] is None
    assert privacy_table([one])[1] == []


def test_clients_that_were_in_a_round_are_shown(tmp_path: Path) -> None:
    privacy = SUMMARY["privacy"] | {"exposures_at_most": 2, "clients_exposed": 33}
    one = figures(read_runs([folder(tmp_path / "a", [line(1)], SUMMARY | {"privacy": privacy})])[0])
    heads, rows = privacy_table([one])
    shown = dict(zip(heads, rows[0], strict=True))
    assert (shown["exposures"], shown["clients"]) == ("2", "33")


def test_pictures_are_of_what_there_is(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    calm = {"dropped": {}, "declined": {}, "survivors": 20}
    central = in_the_open(tmp_path / "central", "centralized", **NOBODY | NO_BYTES)
    fl, plain = in_the_open(tmp_path / "fl", "fl", **calm), plain_sums(tmp_path / "plain")
    masked = folder(tmp_path / "masked", [line(1, late=4, **calm)])
    assert pictures(read_runs([central])).keys() == {"auc", "log_loss"}
    assert pictures(read_runs([fl])).keys() == {"auc", "log_loss", "bytes_up", "bytes_down"}, (
        "nobody was lost"
    )
    drawn = pictures(read_runs([central, fl, plain, masked]))

    def shown(name: str) -> list[str]:
        return [str(label) for label in drawn[name].axes[0].get_legend_handles_labels()[1]]

    assert shown("client_seconds") == shown("server_seconds") == ["masked"]
    assert shown("bytes_up") == shown("bytes_down") == ["fl", "masked"]
    assert shown("lost") == shown("survivors") == ["fl", "plain (PLAIN SUMS)", "masked"]
    lost = drawn["lost"].axes[0]
    named = [text.get_text() for text in lost.get_yticklabels()]
    assert named == ["inbound", "submodel", "late", "declined"], "what happened to nobody is not there"
    assert {text.get_text() for text in lost.texts} == {"", "5", "20"}
    for axes in (drawn["auc"].axes[0], drawn["survivors"].axes[0]):
        low, high = axes.get_xlim()
        ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
        assert ticks == [1, 2]


BESIDE: dict[str, Any] = SUMMARY | {
    "baselines": {"base_rate": {"rate": 0.4, "log_loss": 0.67}, "popularity": {"auc": 0.6, "log_loss": 0.65}},
    "calibration": [
        {"samples": 10, "score": 0.2, "rate": 0.1},
        {"samples": 10, "score": 0.6, "rate": 0.7},
    ],
    "verdict": "After 2 rounds the model reaches AUC 0.5100 & so on.",
}


def drawn_levels(figure: Any) -> dict[str, list[float]]:
    return {str(one.get_label()): list(one.get_ydata()) for one in figure.axes[0].lines}


def test_a_run_is_judged_by_its_best_model_or_on_request_by_its_last(tmp_path: Path) -> None:
    valid = [(0.70, 0.61), (0.60, 0.55), (0.65, 0.62)]
    lines = [
        line(number, auc=0.5 + 0.1 * number, log_loss=0.7, log_loss_valid=loss, auc_valid=auc)
        for number, (loss, auc) in enumerate(valid, 1)
    ]
    path = folder(tmp_path / "a", lines, BESIDE)
    (best,), (last,) = read_runs([path]), read_runs([path], last=True)
    keys = ("which", "round", "auc", "log_loss_valid", "auc_best")
    assert [figures(best)[key] for key in keys] == ["best", 2, pytest.approx(0.7), 0.60, pytest.approx(0.8)]
    assert [figures(last)[key] for key in keys] == ["last", 3, pytest.approx(0.8), 0.65, pytest.approx(0.8)]
    assert best.verdict == BESIDE["verdict"]
    assert last.verdict.startswith("After 3 rounds the model reaches AUC 0.8000 (item popularity: 0.6000)")
    assert (len(best.calibration), len(last.calibration)) == (2, 0), "the calibration is the best model's"
    drawn = drawn_levels(pictures([best])["auc"])
    assert drawn["best model: round 2"] == pytest.approx([0.7])
    assert drawn["validation"] == [0.61, 0.55, 0.62]
    by_auc = folder(tmp_path / "b", lines, BESIDE, '[run]\nkeep = "auc"\n')
    assert figures(read_runs([by_auc])[0])["round"] == 3
    before = folder(tmp_path / "c", [line(1), line(2)], BESIDE)
    assert [figures(read_runs([before])[0])[key] for key in keys[:3]] == ["last", 1, 0.51]


def test_baselines_and_calibration_are_drawn_and_the_verdict_stands_first(tmp_path: Path) -> None:
    lines = [line(number, log_loss=0.7 - 0.01 * number, ndcg=0.8, recall=0.9) for number in (1, 2)]
    runs = read_runs([folder(tmp_path / "a", lines, BESIDE)])
    drawn = pictures(runs)
    assert drawn_levels(drawn["auc"])["item popularity"] == [0.6, 0.6]
    losses = drawn_levels(drawn["log_loss"])
    assert losses["test set"] == pytest.approx([0.69, 0.68])
    assert (losses["item popularity"], losses["base rate"]) == ([0.65, 0.65], [0.67, 0.67])
    (diagonal,) = (one for label, one in drawn_levels(drawn["calibration"]).items() if "as often" in label)
    assert diagonal == [0.1, 0.7]
    compared = [figures(run) for run in runs]
    _, rows = baseline_table(compared)
    assert rows == [["a", "0.5100", "0.6000", "0.6800", "0.6700", "0.6500", "0.8000", "0.9000"]]
    text = page(runs, compared, {})
    assert text.index("AUC 0.5100 &amp; so on.") < text.index("<h2>")
    # Another run of other data has lines of its own.
    other = {"baselines": {"base_rate": {"log_loss": 0.5}, "popularity": {"auc": 0.7, "log_loss": 0.4}}}
    both = read_runs([tmp_path / "a", folder(tmp_path / "b", lines, SUMMARY | other)])
    levels = drawn_levels(pictures(both)["auc"])
    assert levels["a, item popularity"] == [0.6, 0.6]
    assert levels["b, item popularity"] == [0.7, 0.7]


def test_without_a_test_set_the_log_loss_is_that_of_cohorts(tmp_path: Path) -> None:
    lines = [line(1, auc=None, log_loss_secure=0.6, base_log_loss_secure=0.66)]
    losses = drawn_levels(pictures(read_runs([folder(tmp_path / "a", lines)]))["log_loss"])
    assert losses["cohorts, at the best shift"] == [0.6]
    assert losses["cohorts' own base rate"] == [0.66]


def test_runs_from_before_there_were_baselines_are_shown_without(tmp_path: Path) -> None:
    odd = SUMMARY | {"baselines": None, "calibration": [{"samples": "many"}]}
    for name, summary in (("old", SUMMARY), ("odd", odd)):
        (run,) = runs = read_runs([folder(tmp_path / name, [line(1)], summary)])
        assert run.baseline("popularity", "auc") is None
        assert run.calibration == ()
        assert "calibration" not in pictures(runs)
        assert baseline_table([figures(run)])[1] == []
        assert "reaches AUC 0.5100." in page(runs, [figures(run)], {})


def opened(path: Path, *lines: dict[str, Any], **more: Any) -> dict[str, str]:
    (run,) = read_runs([folder(path, list(lines), **more)])
    return opening(run, figures(run))


def test_the_first_paragraph_says_what_was_trained_how_well_for_what_and_what_is_protected(
    tmp_path: Path,
) -> None:
    config = '[data]\nsource = "file"\npath = "/home/me/clicks.csv"\n[model]\nkind = "din"\n'
    privacy = {"preset": "cpp2", "epsilon": 2.708, "epsilon_infinity": 2.708, "exposures_at_most": 6}
    summary = BESIDE | {"clients": 120, "privacy": privacy | {"min_contributors": 5}}
    said = opened(tmp_path / "a", line(1), line(2), summary=summary, config=config)
    assert said["Trained"] == (
        "A deep interest network (DIN) on clicks.csv: 2 rounds, each with 20 of 120 clients."
    )
    assert said["Quality"] == BESIDE["verdict"]
    assert said["Cost"] == (
        "A client sent 27.3 KiB and received 54.7 KiB in a round, and computed 7 ms besides training (the "
        "full model: 26.7 MiB); a round took 0.9 s on this machine, 1.8 s in all."
    )
    assert "rows with 5 contributors or more; requests are randomized (cpp2): ε = 2.71" in said["Protection"]
    assert (
        "NOT covered: the unions and the exact sums (a client was in 6 at most), which name"
        in said["Protection"]
    )


@pytest.mark.parametrize(
    ("epsilon", "preset", "told"),
    [(0.0, "cpp5", "so its requests tell nothing (ε = 0)"), (None, "cpp1", "a client has (cpp1, ε = ∞)")],
)
def test_requests_that_tell_nothing_or_everything_are_called_so(
    tmp_path: Path, epsilon: float | None, preset: str, told: str
) -> None:
    summary = SUMMARY | {"privacy": {"preset": preset, "epsilon": epsilon}}
    assert told in opened(tmp_path / "a", line(1), summary=summary)["Protection"]


def test_rounds_over_hot_rows_are_told_by_their_epsilon(tmp_path: Path) -> None:
    spent = {"epsilon": 7.525, "epsilon_allowed": 8.0, "delta": 1e-6, "corruption": 0.1}
    config = '[round]\nscheme = "hot"\n'
    hot = {"summary": SUMMARY | {"privacy": None, "hot_privacy": spent}, "config": config}
    said = opened(tmp_path / "a", line(1), **hot)["Protection"]
    assert "ε = 7.53 of 8 allowed at δ = 1e-06, against a curious server and up to 10% of a cohort" in said
    hot["summary"]["hot_privacy"] = spent | {"epsilon": None}
    assert "NO NOISE" in opened(tmp_path / "b", line(1), **hot)["Protection"]


def test_plain_sums_have_the_bytes_that_were_predicted_and_marked_so(tmp_path: Path) -> None:
    predicted = {"predicted": {"bytes_up": {"submodel": 2048.0}, "bytes_down": {"submodel": 1024.0}}}
    lines = [line(1, **OPEN | NO_BYTES)]
    path = folder(tmp_path / "a", lines, SUMMARY | predicted, '[round]\nsums = "plain"\n')
    (run,) = runs = read_runs([path])
    one = figures(run)
    assert (one["bytes"], one["bytes_predicted"]) == (3072.0, True)
    assert cost_table([one])[1][0][1:3] == ["0.002 (predicted)", "0.001 (predicted)"]
    assert glance_table([one])[1][0][4] == "3 KiB (predicted)"
    said = opening(run, one)
    assert "A client would send 2 KiB and receive 1 KiB in a round" in said["Cost"]
    assert "that is what the plan predicts" in said["Cost"]
    assert said["Protection"].startswith("PLAIN SUMS: this simulation hid nothing.")
    assert pictures(runs)["bytes_up"].axes[0].get_title(loc="left").endswith(", predicted")
    assert "Predicted: by the plan" in page(runs, [one], {})


def test_what_hides_nothing_and_what_has_no_clients_or_no_test_says_so(tmp_path: Path) -> None:
    (run,) = read_runs([in_the_open(tmp_path / "central", "centralized", **NOBODY | NO_BYTES)])
    said = opening(run, figures(run))
    assert "in one place, in 2 rounds" in said["Trained"]
    assert said["Cost"] == "A round took 0.9 s on this machine, 1.8 s in all."
    assert said["Protection"] == "Nothing is hidden: all samples lie in one place."
    blind = line(1, auc=None, auc_secure=None, aborted="too few")
    said = opened(tmp_path / "blind", blind, summary=None)
    assert said["Trained"].endswith("; 1 of them was aborted; it has not ended yet.")
    assert said["Quality"] == "The model was not evaluated."
    assert said["Cost"] == "No round came to its end."
    assert "summed up when the run ends" in said["Protection"]


def test_settings_that_differ_stand_first(tmp_path: Path) -> None:
    configs = (
        '[round]\nclients = 20\n[privacy]\npreset = "cpp2"\n',
        "[round]\nclients = 20\n[hot]\nmarks = 9\n",
    )
    runs = read_runs([folder(tmp_path / f"r{at}", [line(1)], config=one) for at, one in enumerate(configs)])
    text = page(runs, [figures(run) for run in runs], {}).split("<h2>Settings</h2>")[1]
    rows = re.findall("<tr><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td></tr>", text)
    assert rows[:3] == [
        ("privacy.preset", "cpp2", "–"),
        ("hot.marks", "–", "9"),
        ("round.clients", "20", "20"),
    ]


def test_a_line_being_written_is_left_out(tmp_path: Path) -> None:
    path = folder(tmp_path / "a", [line(1)])
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"round": 2, "abor')
    assert len(read_runs([path])[0].lines) == 1


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "holds no round yet"),
        ([line(1), line(1)], "line 2: round 1 after round 1"),
        ([line(1, auc=1.5)], "line 1 is not"),
        ([line(1, bytes_up={"union": -1.0})], "line 1 is not"),
        ([{"round": 1}], "line 1 is not"),
    ],
)
def test_broken_metrics_are_refused_with_their_place(
    tmp_path: Path, lines: list[dict[str, Any]], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        read_runs([folder(tmp_path / "a", lines)])


@pytest.mark.parametrize(
    ("name", "content"),
    [("config.toml", "= 1"), ("summary.json", "[1]"), ("versions.json", "{"), ("metrics.jsonl", None)],
)
def test_broken_files_are_named(tmp_path: Path, name: str, content: str | None) -> None:
    path = folder(tmp_path / "a", [line(1)])
    if content is None:
        (path / name).unlink()
    else:
        (path / name).write_text(content)
    with pytest.raises(InputError, match=re.escape(name)):
        read_runs([path])


def test_runs_are_told_apart(tmp_path: Path) -> None:
    one, two = folder(tmp_path / "x" / "a", [line(1)]), folder(tmp_path / "y" / "a", [line(1)])
    assert [run.name for run in read_runs([one, two])] == ["x/a", "y/a"]
    with pytest.raises(InputError, match="twice"):
        read_runs([one, one])
    with pytest.raises(InputError, match="not a folder"):
        read_runs([tmp_path / "nowhere"])


def test_text_from_outside_cannot_become_markup(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    path = folder(tmp_path / "<b>run", [line(1, aborted=evil)])
    (path / "config.toml").write_text(f'[data]\npath = "{evil}"\n')
    (path / "versions.json").write_text(json.dumps({"sfsl": evil}))
    runs = read_runs([path])
    text = page(runs, [figures(run) for run in runs], {"bytes_up": b"<svg/>"})
    assert "<script" not in text
    assert "<b>run" not in text
    assert text.count("&lt;script&gt;") == 4
    # Nothing is fetched: the only address is the picture's, which is inline.
    assert re.findall(r'(?:src|href)="([^"]{9})', text) == ["data:imag"]
    assert "http:" not in text
    assert "https:" not in text


def test_the_command_writes_pictures_and_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    app = typer.Typer()
    app.command()(command.report)
    one = folder(tmp_path / "one $a$ run", [line(number) for number in (1, 2, 3)])
    two = folder(tmp_path / "two", [line(1, auc=None), line(2, aborted="too few")], summary=None)
    out = tmp_path / "out" / "deep"
    result = CliRunner().invoke(app, [str(one), str(two), "--out", str(out), "--json"])
    assert result.exit_code == 0, result.output
    said = json.loads(result.output)
    assert [run["name"] for run in said["runs"]] == ["one $a$ run", "two"]
    assert sorted(path.name for path in out.iterdir()) == sorted(Path(name).name for name in said["files"])
    names = (
        "auc",
        "log_loss",
        "bytes_up",
        "bytes_down",
        "client_seconds",
        "server_seconds",
        "lost",
        "survivors",
    )
    for name in names:
        assert (out / f"{name}.png").read_bytes().startswith(PNG)
        assert "<svg" in (out / f"{name}.svg").read_text()
    assert (out / command.PAGE).read_text().count("data:image/svg+xml") == len(names)
    monkeypatch.setattr(command, "pictures", lambda runs: {})
    shown = CliRunner().invoke(app, [str(one), "--out", str(out)])
    assert "Learning" in shown.output
    with pytest.raises(InputError, match="--out"):
        CliRunner().invoke(app, [str(two), "--out", str(one / "config.toml")], catch_exceptions=False)
