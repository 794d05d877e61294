"""What a search found: a summary, the curves, and a run file with which the choice is trained."""

import csv
import io
from collections.abc import Mapping
from dataclasses import replace

import msgspec

from sfsl import __version__
from sfsl.scores import Evaluation, unbeaten
from sfsl.settings.run import RunConfig
from sfsl.settings.toml import to_toml
from sfsl_research.tune.folder import CURVES, RUN_FILE, Plan, TuneFolder
from sfsl_research.tune.halving import DEFAULT, ArmState, By, Cost, ordered, total, worth
from sfsl_research.tune.space import Changes, Value, said_value, with_changes


class ArmResult(msgspec.Struct, frozen=True):
    """One arm: what it changed, after which round it was dropped, its best round by validation devices, and
    what those and test devices say about that round."""

    name: str
    changes: dict[str, Value]
    dropped: int | None
    best_round: int
    validation: Evaluation
    test: Evaluation
    cost: Cost


class Summary(msgspec.Struct, frozen=True):
    """A whole search. ``arms`` are in order, the best first; ``verdict`` says in words what was chosen."""

    choice: str
    by: By
    rounds: int
    rungs: list[int]
    clients_per_round: int
    seed: int
    arms: list[ArmResult]
    cost: Cost
    verdict: str

    def arm(self, name: str) -> ArmResult:
        return next(one for one in self.arms if one.name == name)


def summarize(plan: Plan, rungs: list[int], arms: Mapping[str, ArmState]) -> Summary:
    """Sum up a search whose arms have all ended."""
    results = []
    for name in ordered(arms, plan.by):
        arm, best = arms[name], arms[name].best(plan.by)
        if best is None or arm.test is None:
            raise RuntimeError(f"{name} has not ended")
        results.append(
            ArmResult(name, plan.arms[name], arm.dropped, best.round, best.found, _brief(arm.test), arm.cost)
        )
    default = next(one for one in results if one.name == DEFAULT)
    return Summary(
        choice=results[0].name,
        by=plan.by,
        rounds=plan.rounds,
        rungs=rungs,
        clients_per_round=plan.base.round.clients,
        seed=plan.base.run.seed,
        arms=results,
        cost=total([one.cost for one in results]),
        verdict=_verdict(results[0], default, plan.by),
    )


def write_results(folder: TuneFolder, summary: Summary, arms: Mapping[str, ArmState]) -> None:
    """Write the run file, the curves and, when all else is there, the summary."""
    folder.write(RUN_FILE, run_file(folder.plan, summary).encode())
    folder.write(CURVES, _curves(arms))
    folder.write_summary(summary)


def chosen_config(plan: Plan, summary: Summary) -> RunConfig:
    return with_changes(plan.base, plan.arms[summary.choice])


def run_file(plan: Plan, summary: Summary) -> str:
    """Return the run file of the choice, which says where it comes from."""
    chosen, default = summary.arm(summary.choice), summary.arm(DEFAULT)
    lines = [
        f"Found by sfsl tune {__version__}: {len(summary.arms)} arms of at most {summary.rounds} rounds of "
        f"{summary.clients_per_round} clients, seed {summary.seed}.",
        f"Changed from what was asked for: {said_changes(chosen.changes)}.",
        f"Validation devices: {_figures(chosen.validation)} after round {chosen.best_round} "
        f"(unchanged: {_figures(default.validation)} after round {default.best_round}).",
        f"Test devices, which chose nothing: {_figures(chosen.test)} (unchanged: {_figures(default.test)}).",
        "Arms were trained with plain sums on one device. This run takes the cohorts of its seed, too.",
    ]
    return "".join(f"# {line}\n" for line in lines) + "#\n" + to_toml(chosen_config(plan, summary))


def said_changes(changes: Changes) -> str:
    return ", ".join(f"{key} = {said_value(value)}" for key, value in changes.items()) or "nothing"


def _verdict(chosen: ArmResult, default: ArmResult, by: By) -> str:
    if chosen.name == DEFAULT:
        said = "No arm was better than the settings as they are, by what validation devices say."
    else:
        said = f"{chosen.name} is best: {said_changes(chosen.changes)}."
    said += f" On test devices the model reaches {_figures(chosen.test)}"
    beside = [] if chosen.name == DEFAULT else [f"the settings as they were: {_figures(default.test)}"]
    test = chosen.test
    if test.popularity_auc is not None and test.popularity_log_loss is not None:
        beside.append(
            f"item popularity: AUC {test.popularity_auc:.4f}, log loss {test.popularity_log_loss:.4f}"
        )
    if test.base_log_loss is not None:
        beside.append(f"base rate: log loss {test.base_log_loss:.4f}")
    said += f" ({'; '.join(beside)})." if beside else "."
    if chosen.name != DEFAULT and worth(chosen.test, by) <= worth(default.test, by):
        said += " That is no better than the settings as they were: what validation devices saw was chance."
    if lost := unbeaten(chosen.test):
        said += f" It is no better than {' and '.join(lost)}; more rounds may help."
    return said


def _figures(found: Evaluation) -> str:
    figures = {"AUC": found.auc, "log loss": found.log_loss}
    return ", ".join(
        f"{name} {'undefined' if one is None else f'{one:.4f}'}" for name, one in figures.items()
    )


def _brief(found: Evaluation) -> Evaluation:
    return replace(found, calibration=())


def _curves(arms: Mapping[str, ArmState]) -> bytes:
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(("arm", "round", "validation_auc", "validation_log_loss"))
    for name, arm in arms.items():
        lines.writerows((name, one.round, one.found.auc, one.found.log_loss) for one in arm.points)
    return text.getvalue().encode()
