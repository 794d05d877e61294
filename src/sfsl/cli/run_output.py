"""What ``sfsl run`` shows: progress while it runs, the summary at the end."""

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sfsl.cli.output import table
from sfsl.engines.faults import EXCHANGES
from sfsl.engines.metrics import RoundLine
from sfsl.run.summary import Privacy, Summary

NONE = "–"
_SUMS = {"masked": "masked sums", "plain": "PLAIN SUMS", "none": "nothing hidden"}


class RunProgress:
    """A live line on a terminal; elsewhere a plain line for each round that was evaluated or aborted."""

    def __init__(self, console: Console, lines: list[RoundLine], rounds: int) -> None:
        self._console = console
        self._live = console.is_terminal
        self._auc = next((line.auc for line in reversed(lines) if line.auc is not None), None)
        self._progress = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=console,
            disable=not self._live,
        )
        self._rounds = rounds
        self._bar = self._progress.add_task("", total=rounds, completed=len(lines), state="")

    def seen(self, line: RoundLine) -> None:
        if line.auc is not None:
            self._auc = line.auc
        state = (
            f"AUC {number(self._auc)}  loss {number(line.loss)}  "
            f"{data_size(sum(line.bytes_up.values()) + sum(line.bytes_down.values()))} per client  "
            f"{sum(line.dropped.values())} dropped"
        )
        self._progress.update(self._bar, advance=1, state=state)
        if line.aborted is not None:
            self._console.print(f"round {line.round} was aborted: {line.aborted}", highlight=False)
        elif line.auc is not None and not self._live:
            self._console.print(
                f"round {line.round}/{self._rounds}  {state}", highlight=False, soft_wrap=True
            )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


def print_summary(out: Console, summary: Summary) -> None:
    out.print(table("Run", ("", ""), _facts(summary)))
    if total(summary):
        out.print(_exchanges(summary))
    out.print(
        "Full model: what secure aggregation of the whole model would take with the same cohort, computed "
        "from its size and the speed of masks here."
    )
    if summary.sums == "plain":
        out.print(
            "PLAIN SUMS: this run added its clients' integers in the open. The model is that of masked sums; "
            "costs were not measured (sfsl plan predicts them), and nothing was hidden."
        )
    elif summary.privacy is not None:
        out.print(
            "Epsilon is about the answers to which rows a client has; unions and sums reveal more with every "
            "exposure (docs/privacy.md)."
        )


def _facts(summary: Summary) -> list[tuple[str, str]]:
    learning, costs, privacy = summary.learning, summary.costs, summary.privacy
    wanted = "" if summary.complete else f" of {summary.rounds_planned:,}"
    sent, full = total(summary), full_total(summary)
    facts = [
        ("scheme", f"{summary.scheme}, {_SUMS[summary.sums]}"),
        ("rounds", f"{summary.rounds:,}{wanted}, {summary.aborted:,} aborted"),
        ("clients", f"{summary.clients:,}, {summary.clients_per_round:,} per round"),
        ("AUC, central test set", _at(learning.auc, learning.auc_round)),
        ("… best", _at(learning.auc_best, learning.auc_best_round)),
        (
            "AUC, secure, before training",
            _at(learning.auc_secure, learning.auc_secure_round) + _within(learning.auc_secure_error),
        ),
        ("loss of local training", number(learning.loss)),
        ("bytes per client and round", data_size(sent)),
        (
            "… for the full model",
            f"{data_size(full)} ({full / sent:,.1f} times)" if sent else data_size(full),
        ),
        ("CPU per client and round", f"{seconds(costs.client_seconds)} + training"),
        ("… masks of the full model", f"{summary.full_model.client_seconds:,.3f} s"),
        ("… training", f"{costs.training_seconds_per_client:.3f} s"),
        ("CPU of the server per round", seconds(costs.server_seconds)),
        ("… masks of the full model", f"{summary.full_model.server_seconds:,.3f} s"),
        ("time per round", f"{costs.wall_seconds_per_round:.2f} s"),
        ("peak memory, all parties", data_size(costs.peak_memory_bytes)),
        (
            "… full model, client and server",
            f"{data_size(summary.full_model.client_memory_bytes)}, "
            f"{data_size(summary.full_model.server_memory_bytes)}",
        ),
        *_privacy_facts(privacy),
        ("clients that dropped out", f"{summary.dropped:,}"),
        ("answers that came too late", f"{summary.late:,}"),
    ]
    facts += [(f"declined: {kind}", f"{count:,}") for kind, count in summary.declined.items()]
    if summary.unknown_rows:
        facts.append(("rows in data, not in the model", f"{summary.unknown_rows:,}"))
    if summary.diverged:
        facts.append(("updates that were not finite", f"{summary.diverged:,}"))
    return facts + [(f"data: {kind}", f"{count:,}") for kind, count in summary.data_problems.items()]


def _privacy_facts(privacy: Privacy | None) -> list[tuple[str, str]]:
    if privacy is None:
        return [("privacy", "none: this scheme hides nothing")]
    return [
        ("privacy", f"{privacy.preset}, rows with {privacy.min_contributors} contributors or more"),
        (
            "epsilon per row, exact",
            f"{_bound(privacy.epsilon)} after {privacy.rounds_at_most:,} rounds at most, "
            f"{_bound(privacy.epsilon_infinity)} for ever in one period",
        ),
        ("exposures of a client", f"{privacy.exposures_at_most:,} at most"),
    ]


def _exchanges(summary: Summary) -> object:
    costs, full = summary.costs, summary.full_model
    columns = (costs.bytes_up, costs.bytes_down, full.bytes_up, full.bytes_down)
    seconds = (costs.client_seconds, costs.server_seconds)
    rows = [
        (
            exchange,
            *(_kib(column.get(exchange, 0)) for column in columns),
            *(f"{column.get(exchange, 0):.4f}" for column in seconds),
        )
        for exchange in ("check-in", *EXCHANGES)
    ]
    totals = (
        "total",
        *(_kib(sum(column.values())) for column in columns),
        *(f"{sum(column.values()):.4f}" for column in seconds),
    )
    heads = ("", "up", "down", "full up", "full down", "client s", "server s")
    return table("KiB per client and round, beside the full model's; CPU seconds", heads, [*rows, totals])


def total(summary: Summary) -> float:
    return sum(summary.costs.bytes_up.values()) + sum(summary.costs.bytes_down.values())


def full_total(summary: Summary) -> float:
    return sum(summary.full_model.bytes_up.values()) + sum(summary.full_model.bytes_down.values())


def seconds(by_exchange: Mapping[str, float]) -> str:
    return f"{sum(by_exchange.values()):.3f} s" if by_exchange else NONE


def number(value: float | None) -> str:
    return NONE if value is None else f"{value:.4f}"


def data_size(count: float) -> str:
    if count >= 2**30:
        return f"{count / 2**30:,.2f} GiB"
    if count >= 2**20:
        return f"{count / 2**20:,.2f} MiB"
    return f"{count / 2**10:,.1f} KiB" if count else NONE


def _kib(count: float) -> str:
    return f"{count / 2**10:,.1f}" if count else NONE


def _at(value: float | None, place: int | None) -> str:
    return NONE if value is None else f"{value:.4f} (round {place})"


def _within(error: float | None) -> str:
    return "" if error is None else f" ± {error:.4f}"


def _bound(value: float | None) -> str:
    return "infinite" if value is None else f"{value:.3f}"
