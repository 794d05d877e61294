"""What ``sfsl run`` shows: progress while it runs, the summary at the end."""

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sfsl.cli.output import table
from sfsl.errors import NotFinite
from sfsl.rounds.exchanges import ORDER, Exchange
from sfsl.rounds.record import RoundRecord
from sfsl.run.summary import Privacy, Summary

NONE = "–"
_SUMS = {"masked": "masked sums", "plain": "PLAIN SUMS", "none": "nothing hidden"}


class RunProgress:
    """A live line on a terminal; elsewhere a plain line for each round that was evaluated or aborted."""

    def __init__(self, console: Console, lines: list[RoundRecord], rounds: int) -> None:
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

    def seen(self, line: RoundRecord) -> None:
        if line.auc is not None:
            self._auc = line.auc
        state = f"AUC {number(self._auc)}  loss {number(line.loss)}"
        if line.cohort:
            sent = sum(line.bytes_up.values()) + sum(line.bytes_down.values())
            state += f"  {data_size(sent)} per client  {sum(line.dropped.values())} dropped"
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
    if not _central(summary):
        out.print(
            "Full model: what secure aggregation of the whole model would take with the same cohort, "
            "computed from its size and the speed of masks here."
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
    wanted = "" if summary.complete else f" of {summary.rounds_planned:,}"
    central = _central(summary)
    cohort = "" if central else f", {summary.clients_per_round:,} per round"
    facts = [
        ("scheme", f"{summary.scheme}, {_SUMS[summary.sums]}"),
        ("rounds", f"{summary.rounds:,}{wanted}, {summary.aborted:,} aborted"),
        ("clients", f"{summary.clients:,}{cohort}"),
        *_learning_facts(summary),
        *([] if central else _cost_facts(summary)),
        ("time per round", _seconds(summary.costs.wall_seconds_per_round, 2)),
        ("peak memory, all parties", data_size(summary.costs.peak_memory_bytes)),
    ]
    if not central:
        full = summary.full_model
        memory = f"{data_size(full.client_memory_bytes)}, {data_size(full.server_memory_bytes)}"
        facts.append(("… full model, client and server", memory))
    facts += _privacy_facts(summary.privacy)
    if not central:
        facts.append(("clients that dropped out", f"{summary.dropped:,}"))
        facts.append(("answers that came too late", f"{summary.late:,}"))
    facts += _declined_facts(summary.declined)
    if summary.unknown_rows:
        facts.append(("rows in data, not in the model", f"{summary.unknown_rows:,}"))
    if summary.diverged:
        facts.append(("updates that were not finite", f"{summary.diverged:,}"))
    if summary.refused_rows:
        facts.append(("rows and dense sums, refused", f"{summary.refused_rows:,}"))
    return facts + [(f"data: {kind}", f"{count:,}") for kind, count in summary.data_problems.items()]


def _learning_facts(summary: Summary) -> list[tuple[str, str]]:
    learning = summary.learning
    facts = [
        ("AUC, central test set", _at(learning.auc, learning.auc_round)),
        ("… best", _at(learning.auc_best, learning.auc_best_round)),
    ]
    if _central(summary):
        return [*facts, ("loss of training", number(learning.loss))]
    name = "AUC, secure" if summary.sums == "masked" else "AUC of cohorts"
    auc = _at(learning.auc_secure, learning.auc_secure_round) + _within(learning.auc_secure_error)
    return [*facts, (f"{name}, before training", auc), ("loss of local training", number(learning.loss))]


def _cost_facts(summary: Summary) -> list[tuple[str, str]]:
    costs, full = summary.costs, summary.full_model
    sent, whole = total(summary), full_total(summary)
    times = f" ({whole / sent:,.1f} times)" if sent else ""
    training = costs.training_seconds_per_client
    cpu = seconds(costs.client_seconds) + (" + training" if costs.client_seconds else "")
    return [
        ("bytes per client and round", data_size(sent)),
        ("… for the full model", f"{data_size(whole)}{times}"),
        ("CPU per client and round", cpu),
        ("… masks of the full model", _seconds(full.client_seconds)),
        ("CPU of the server per round", seconds(costs.server_seconds)),
        ("… masks of the full model", _seconds(full.server_seconds)),
        (
            "wall time of training, per client",
            NONE if training is None else f"{_seconds(training)}, of a pass for many",
        ),
    ]


def _privacy_facts(privacy: Privacy | None) -> list[tuple[str, str]]:
    if privacy is None:
        return [("privacy", "none: this scheme hides nothing")]
    were = "was" if privacy.clients_exposed == 1 else "were"
    return [
        (
            "privacy",
            f"{privacy.preset}, rows with {counted(privacy.min_contributors, 'contributor')} or more",
        ),
        (
            "epsilon per row, exact",
            f"{_bound(privacy.epsilon)} after {counted(privacy.rounds_at_most, 'round')} at most, "
            f"{_bound(privacy.epsilon_infinity)} for ever in one period",
        ),
        (
            "exposures of a client",
            f"{privacy.exposures_at_most:,} at most; "
            f"{counted(privacy.clients_exposed, 'client')} {were} in a round",
        ),
    ]


def _declined_facts(declined: Mapping[str, int]) -> list[tuple[str, str]]:
    """By what a user can do about it; every other kind is a client's own limits."""
    broken = declined.get(NotFinite.__name__, 0)
    limits = sum(declined.values()) - broken
    facts = [("declined, their limits said no", limits), ("declined, update not finite", broken)]
    return [(name, f"{count:,}") for name, count in facts if count]


def _exchanges(summary: Summary) -> object:
    costs, full = summary.costs, summary.full_model
    columns = (costs.bytes_up, costs.bytes_down, full.bytes_up, full.bytes_down)
    cpu = (costs.client_seconds, costs.server_seconds)
    rows = [
        (
            exchange,
            *(_kib(column.get(exchange, 0)) for column in columns),
            *(number(column.get(exchange)) for column in cpu),
        )
        for exchange in (Exchange.CHECK_IN, *ORDER)
    ]
    totals = (
        "total",
        *(_kib(sum(column.values())) for column in columns),
        *(number(sum(column.values()) if column else None) for column in cpu),
    )
    heads = ("", "up", "down", "full up", "full down", "client s", "server s")
    return table("KiB per client and round, beside the full model's; CPU seconds", heads, [*rows, totals])


def _central(summary: Summary) -> bool:
    """No cohorts, no uploads, nothing to mask."""
    return summary.scheme == "centralized"


def counted(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def total(summary: Summary) -> float:
    return sum(summary.costs.bytes_up.values()) + sum(summary.costs.bytes_down.values())


def full_total(summary: Summary) -> float:
    return sum(summary.full_model.bytes_up.values()) + sum(summary.full_model.bytes_down.values())


def seconds(by_exchange: Mapping[str, float]) -> str:
    return _seconds(sum(by_exchange.values()) if by_exchange else None)


def _seconds(value: float | None, digits: int = 3) -> str:
    return NONE if value is None else f"{value:,.{digits}f} s"


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
