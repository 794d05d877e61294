"""The summary of a run, made from its lines, and how it is shown."""

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from sfsl.cli.run_output import ADVICE, PATIENCE, RunProgress, print_summary, print_verdict
from sfsl.rounds.exchanges import ORDER
from sfsl.rounds.record import RoundRecord
from sfsl.run.summary import Summary, summarize
from sfsl.scores import CalibrationBin, Evaluation
from sfsl.settings.run import RunConfig, from_sections
from sfsl.submodel import ModelSpec, Table

MODEL = ModelSpec(dense=10, tables=(Table(name="item", rows=100, width=4),))
ALL = ("check-in", *ORDER)


def line(number: int = 1, **changes: Any) -> RoundRecord:
    made: dict[str, Any] = {
        "round": number,
        "aborted": None,
        "cohort": 20,
        "survivors": 16,
        "dropped": {"inbound": 1, "submodel": 2},
        "late": 0,
        "declined": {},
        "diverged": 0,
        "samples": 600,
        "unknown_rows": 0,
        "loss": 0.6,
        "auc": 0.7,
        "auc_secure": 0.6,
        "auc_secure_error": 0.01,
        "union": {"item": 90},
        "opened": {"item": 80},
        "moved": {"item": 70},
        "refused": {"item": 0},
        "bytes_up": dict.fromkeys(ALL, 1024.0),
        "bytes_down": dict.fromkeys(ALL, 2048.0),
        "client_seconds": dict.fromkeys(ALL, 0.00001),
        "server_seconds": dict.fromkeys(ALL, 0.01),
        "training_seconds": 3.4,
        "wall_seconds": 0.9,
    }
    return RoundRecord(**made | changes)


OPEN: dict[str, Any] = {
    "bytes_up": {"submodel": 1024.0},
    "bytes_down": {},
    "client_seconds": {},
    "server_seconds": {},
}
CENTRAL: dict[str, Any] = OPEN | {
    "bytes_up": {},
    "cohort": 0,
    "survivors": 0,
    "dropped": {},
    "auc_secure": None,
}
ABORTED: dict[str, Any] = {
    "aborted": "too few",
    "survivors": 0,
    "loss": None,
    "auc_secure": None,
    "refused": {},
}


def summary(
    *lines: RoundRecord,
    invited: dict[str, int] | None = None,
    evaluation: Evaluation | None = None,
    **changed: Any,
) -> Summary:
    config: RunConfig = from_sections({"round": {"clients": 20, "min_contributors": 2} | changed})
    return summarize(
        config,
        MODEL,
        lines,
        clients=60,
        invited={"a": 3, "b": 1} if invited is None else invited,
        evaluation=evaluation,
        data_problems={},
        peak_memory=2**20,
        mask_seconds=0.001,
    )


def shown(one: Summary) -> list[list[str]]:
    """The cells of every row, and other lines as they are."""
    out = io.StringIO()
    print_summary(Console(file=out, width=200), one)
    return [[cell.strip() for cell in row.strip("│").split("│")] for row in out.getvalue().splitlines()]


def facts(one: Summary) -> dict[str, str]:
    return {row[0]: row[1] for row in shown(one) if len(row) == 2}


def test_costs_without_the_protocol_are_dashes() -> None:
    rows = {row[0]: row[1:] for row in shown(summary(line(**OPEN), scheme="fl")) if len(row) == 7}
    assert rows["submodel"] == ["1.0", "–", "1.6", "1.6", "–", "–"]
    assert rows["check-in"] == ["–"] * 6
    assert rows["total"][-2:] == ["–", "–"]
    assert facts(summary(line(**OPEN), scheme="fl"))["CPU per client and round"] == "–"
    rows = {row[0]: row[1:] for row in shown(summary(line())) if len(row) == 7}
    assert rows["check-in"][-2:] == ["0.0000", "0.0100"], "measured, and small"
    assert rows["total"][-2:] == ["0.0001", "0.0700"]


def test_training_in_one_place_is_shown_without_clients_costs() -> None:
    one = summary(line(**CENTRAL), scheme="centralized", invited={})
    assert one.costs.training_seconds_per_client is one.full_model.client_seconds is None
    assert one.costs.wall_seconds_per_round == 0.9
    found = facts(one)
    assert found["clients"] == "60"
    names = " ".join(found)
    for absent in ("full model", "per client", "masks", "cohorts", "secure", "dropped", "late"):
        assert absent not in names
    assert found["time per round"] == "0.90 s"
    assert not any("Full model" in row[0] for row in shown(one))


def test_where_every_round_was_aborted_there_are_dashes() -> None:
    one = summary(line(**ABORTED), line(2, **ABORTED))
    assert one.costs.wall_seconds_per_round is one.full_model.server_seconds is None
    found = facts(one)
    assert found["rounds"] == "2 of 100, 2 aborted"
    timed = ("CPU per client and round", "CPU of the server per round", "… masks of the full model")
    for name in (*timed, "wall time of training, per client", "time per round"):
        assert found[name] == "–"


@pytest.mark.parametrize(
    ("scheme", "sums", "name"),
    [
        ("sfsl", "auto", "AUC, secure"),
        ("sfsl", "plain", "AUC of cohorts"),
        ("fl", "auto", "AUC of cohorts"),
        ("fsl", "auto", "AUC of cohorts"),
    ],
)
def test_only_masked_sums_give_a_secure_auc(scheme: str, sums: str, name: str) -> None:
    found = facts(summary(line(), scheme=scheme, sums=sums))
    assert found[f"{name}, before training"] == "0.6000 (round 1) ± 0.0100"
    assert sum("before training" in fact for fact in found) == 1


def test_training_is_divided_by_those_who_trained() -> None:
    """Vanishing at the submodel comes before training; an update that was not finite comes after it."""
    one = summary(line(declined={"NotFinite": 1, "Refused": 2}))
    assert one.costs.training_seconds_per_client == pytest.approx(3.4 / 17)
    assert facts(one)["wall time of training, per client"] == "0.200 s, of a pass for many"


def test_one_is_singular() -> None:
    found = facts(summary(line(), min_contributors=1, invited={"a": 1}))
    assert found["privacy"] == "cpp2, rows with 1 contributor or more"
    assert " after 1 round at most" in found["epsilon per row, exact"]
    assert found["exposures of a client"] == "1 at most; 1 client was in a round"
    found = facts(summary(line()))
    assert found["privacy"] == "cpp2, rows with 2 contributors or more"
    assert " after 3 rounds at most" in found["epsilon per row, exact"]
    assert found["exposures of a client"] == "3 at most; 2 clients were in a round"


def test_what_went_wrong_is_said_in_words_and_only_then() -> None:
    lines = (
        line(declined={"Refused": 2, "NotFinite": 1}, refused={"item": 3}),
        line(2, declined={"Declined": 1}, refused={"item": 1, "dense": 1}),
    )
    one = summary(*lines)
    assert one.refused_rows == 5
    found = facts(one)
    assert found["declined, their limits said no"] == "3"
    assert found["declined, update not finite"] == "1"
    assert found["rows and dense sums, refused"] == "5"
    assert not any("declined" in name or "refused" in name for name in facts(summary(line())))


def test_progress_has_nothing_per_client_where_there_are_none() -> None:
    out = io.StringIO()
    progress = RunProgress(Console(file=out, width=200), [], 2)
    progress.seen(line(**CENTRAL))
    progress.seen(line(2))
    first, second = out.getvalue().splitlines()
    assert first == "round 1/2  AUC 0.7000  log loss –  training loss 0.6000"
    assert second.endswith("21.0 KiB per client  3 dropped")


GOOD = Evaluation(
    samples=9,
    auc=0.7,
    log_loss=0.5,
    base_rate=0.3,
    base_log_loss=0.6,
    popularity_auc=0.65,
    popularity_log_loss=0.55,
    calibration=(CalibrationBin(9, 0.25, 1 / 3),),
)
POOR = replace(GOOD, auc=0.6)


def test_progress_tells_once_of_a_model_no_better_than_its_baselines() -> None:
    out, found = io.StringIO(), [POOR]
    progress = RunProgress(Console(file=out, width=1000), [], 3 * PATIENCE, lambda: found[-1])
    for number in (PATIENCE - 1, PATIENCE, PATIENCE + 1):
        progress.seen(line(number, auc=0.6, log_loss=0.5))
    said = [one for one in out.getvalue().splitlines() if ADVICE in one]
    assert len(said) == 1
    assert said[0].startswith(f"After {PATIENCE} rounds the model reaches AUC 0.6000 (item popularity: 0.65")
    fine, found = io.StringIO(), [GOOD]
    progress = RunProgress(Console(file=fine, width=1000), [], 3 * PATIENCE, lambda: found[-1])
    progress.seen(line(PATIENCE, log_loss=0.5))
    assert "log loss 0.5000" in fine.getvalue()
    assert ADVICE not in fine.getvalue()


def test_a_summary_has_log_losses_beside_the_baselines() -> None:
    lines = (line(1, log_loss=0.45, ndcg=0.8, recall=0.9), line(2, auc=None), line(3, log_loss=0.5))
    one = summary(*lines, evaluation=GOOD)
    learned = one.learning
    assert (learned.log_loss, learned.log_loss_best, learned.log_loss_best_round) == (0.5, 0.45, 1)
    assert (learned.ndcg, learned.recall) == (0.8, 0.9)
    assert one.baselines is not None
    assert (one.baselines.base_rate.rate, one.baselines.base_rate.log_loss) == (0.3, 0.6)
    assert (one.baselines.popularity.auc, one.baselines.popularity.log_loss) == (0.65, 0.55)
    assert one.calibration == GOOD.calibration
    assert one.verdict.startswith("After 3 rounds the model reaches AUC 0.7000")
    shown = facts(one)
    assert shown["baseline: base rate, log loss"] == "0.6000 (rate: 0.3000)"
    assert one.beats_baselines is True
    blind = summary(line(auc=None))
    assert (blind.baselines, blind.calibration, blind.verdict) == (None, (), "")
    assert blind.beats_baselines is None


def test_a_run_ends_with_a_sentence_and_with_what_may_help() -> None:
    def said(one: Summary) -> str:
        out = io.StringIO()
        print_verdict(Console(file=out, width=2000), one)
        return out.getvalue().strip()

    assert said(summary(line(1, log_loss=0.5), evaluation=GOOD)).endswith("better than both.")
    poor = said(summary(line(1, auc=0.6, log_loss=0.5), evaluation=POOR))
    assert poor.endswith(f"no better than item popularity (AUC). {ADVICE}")
    rising = said(summary(line(1, log_loss=0.4), line(2, log_loss=0.5), evaluation=GOOD))
    assert rising.endswith("Its log loss was 0.4000 after round 1, and rose since.")
    assert said(summary(line(auc=None))) == ""
