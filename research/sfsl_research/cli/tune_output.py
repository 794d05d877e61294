"""What ``sfsl tune`` shows: progress while it searches, a table of arms at the end."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sfsl.cli.output import table
from sfsl_research.tune.space import said_value

if TYPE_CHECKING:
    from sfsl.scores import Evaluation
    from sfsl_research.tune.halving import Cost
    from sfsl_research.tune.result import ArmResult, Summary
    from sfsl_research.tune.search import Progress as Seen
    from sfsl_research.tune.search import Search

NONE = "–"


class TuneProgress(Progress):
    """A live line on a terminal; elsewhere a plain line for each evaluation. Rungs are told of on both."""

    def __init__(self, console: Console, search: "Search") -> None:
        super().__init__(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(20),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        rounds, arms = search.plan.rounds, len(search.running)
        state = f"{arms} arms, compared after rounds {', '.join(map(str, search.rungs))}"
        self._bar = self.add_task("", total=rounds, completed=search.round, state=state)
        if self.disable:
            self._say(f"from round {search.round} of {rounds}: {state}")

    def seen(self, one: "Seen") -> None:
        state = f"rung {one.rung} of {one.rungs}, {one.running} arms"
        if one.best is not None:
            state += f"; best {one.leader} {figures(one.best.found)}"
        if one.default is not None and one.leader != "default":
            state += f"; default {figures(one.default.found)}"
        self.update(self._bar, completed=one.round, state=state)
        if one.measured and self.disable:
            self._say(f"round {one.round}/{one.rounds}: {state}")
        if one.ended:
            self._say(f"after round {one.round} dropped: {', '.join(one.ended)}")

    def _say(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)


def print_summary(out: Console, summary: "Summary", folder: Path) -> None:
    """Print every arm with what it changed, where it ended and its figures; what it cost; and the verdict."""
    test, valid = summary.arms[0].test, summary.arms[0].validation
    rows = [_figure_row(one, summary) for one in summary.arms]
    popular = [(part.popularity_auc, part.popularity_log_loss) for part in (valid, test)]
    base = [(None, part.base_log_loss) for part in (valid, test)]
    for name, found in (("popularity", popular), ("base rate", base)):
        rows.append((name, "", *(_said(one) for pair in found for one in pair)))
    heads = ("arm", "changes", "AUC", "log loss", "test AUC", "test log loss")
    by = summary.by.replace("_", " ")
    out.print(table(f"Arms at their best rounds, ordered by the {by} of validation devices", heads, rows))
    costs = [_cost_row(one) for one in summary.arms] + [("all", "", "", *_cost(summary.cost))]
    cost_heads = ("arm", "best after", "dropped after", "rounds", "client rounds", "samples", "seconds")
    out.print(table("What each arm cost", cost_heads, costs))
    out.print(summary.verdict, highlight=False, soft_wrap=True)
    out.print(
        f"Train the choice: sfsl run {folder / 'tuned.toml'} --out FOLDER. Also in {folder}: summary.json, "
        "curves.csv, curves.png and .svg",
        highlight=False,
        soft_wrap=True,
    )


def figures(found: "Evaluation") -> str:
    return f"AUC {_said(found.auc)}, log loss {_said(found.log_loss)}"


def _figure_row(one: "ArmResult", summary: "Summary") -> tuple[str, ...]:
    changes = "\n".join(f"{key.partition('.')[2]} {said_value(value)}" for key, value in one.changes.items())
    found = (one.validation.auc, one.validation.log_loss, one.test.auc, one.test.log_loss)
    return (
        f"{one.name} *" if one.name == summary.choice else one.name,
        changes or NONE,
        *map(_said, found),
    )


def _cost_row(one: "ArmResult") -> tuple[str, ...]:
    dropped = NONE if one.dropped is None else f"{one.dropped:,}"
    return one.name, f"{one.best_round:,}", dropped, *_cost(one.cost)


def _cost(cost: "Cost") -> tuple[str, ...]:
    return f"{cost.rounds:,}", f"{cost.client_rounds:,}", f"{cost.samples:,}", f"{cost.seconds:,.1f}"


def _said(value: float | None) -> str:
    return NONE if value is None else f"{value:.4f}"
