"""What ``sfsl tune`` shows: progress while it searches, a table of arms at the end."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sfsl.cli.output import table

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
    popular = [
        _said(one) for part in (valid, test) for one in (part.popularity_auc, part.popularity_log_loss)
    ]
    base = [NONE, _said(valid.base_log_loss), NONE, _said(test.base_log_loss)]
    rows += [("item popularity", "", "", "", *popular), ("base rate", "", "", "", *base)]
    heads = ("arm", "changes", "dropped", "best", "AUC", "log loss", "test AUC", "log loss")
    title = f"Arms, the best first by the {summary.by} of validation devices; rounds of drop and of best"
    out.print(table(title, heads, rows))
    costs = [(one.name, *_cost(one.cost)) for one in summary.arms] + [("all", *_cost(summary.cost))]
    out.print(table("What each arm cost", ("arm", "rounds", "client rounds", "samples", "seconds"), costs))
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
    changes = "\n".join(f"{key.partition('.')[2]} {value:g}" for key, value in one.changes.items())
    found = (one.validation.auc, one.validation.log_loss, one.test.auc, one.test.log_loss)
    return (
        f"{one.name} *" if one.name == summary.choice else one.name,
        changes or NONE,
        NONE if one.dropped is None else f"{one.dropped:,}",
        f"{one.best_round:,}",
        *map(_said, found),
    )


def _cost(cost: "Cost") -> tuple[str, ...]:
    return f"{cost.rounds:,}", f"{cost.client_rounds:,}", f"{cost.samples:,}", f"{cost.seconds:,.1f}"


def _said(value: float | None) -> str:
    return NONE if value is None else f"{value:.4f}"
