"""What ``sfsl run`` shows: progress while it runs, the summary at the end."""

from collections.abc import Callable

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from sfsl.cli.output import table
from sfsl.correction import Correction
from sfsl.errors import NotFinite
from sfsl.rounds.exchanges import ORDER, Exchange
from sfsl.rounds.record import RoundRecord
from sfsl.run.summary import (
    BaselineFigures,
    Best,
    Costs,
    FullModel,
    HotPrivacy,
    Predicted,
    Privacy,
    Summary,
)
from sfsl.scores import Evaluation, unbeaten, verdict

NONE = "–"
_SUMS = {"masked": "masked sums", "plain": "PLAIN SUMS", "none": "nothing hidden"}

# A model that is no better than its baselines after so many rounds is told of while it is trained.
PATIENCE = 50
# A log loss that was this much lower before is told of: the model overfits, or its steps are too large.
_WORSE = 0.98
ADVICE = (
    "What may help: more rounds; sfsl tune, which looks for settings; more clients per round (--clients); "
    "and a look at the data: can items, users and their order in time tell clicks apart at all?"
)

Facts = list[tuple[str, str]]


class RunProgress(Progress):
    """A live line on a terminal; elsewhere a plain line for each round that was evaluated or aborted.

    ``evaluation`` is asked for the last one. From round ``PATIENCE`` on, the first that is no better than its
    baselines is told of, once.
    """

    def __init__(
        self,
        console: Console,
        lines: list[RoundRecord],
        rounds: int,
        evaluation: Callable[[], Evaluation | None] = lambda: None,
    ) -> None:
        super().__init__(
            TextColumn("round"),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=console,
            disable=not console.is_terminal,
        )
        measured = next((line for line in reversed(lines) if line.auc is not None), None)
        self._auc, self._log_loss = (measured.auc, measured.log_loss) if measured else (None, None)
        self._rounds, self._evaluation, self._warned = rounds, evaluation, False
        self._bar = self.add_task("", total=rounds, completed=len(lines), state="")

    def seen(self, line: RoundRecord) -> None:
        if line.auc is not None:
            self._auc, self._log_loss = line.auc, line.log_loss
        state = f"AUC {_said(self._auc)}  log loss {_said(self._log_loss)}  training loss {_said(line.loss)}"
        if line.cohort:
            sent = sum(line.bytes_up.values()) + sum(line.bytes_down.values())
            state += f"  {_size(sent)} per client  {sum(line.dropped.values())} dropped"
        self.update(self._bar, advance=1, state=state)
        if line.aborted is not None:
            self.console.print(f"round {line.round} was aborted: {line.aborted}", highlight=False)
        elif line.auc is not None and self.disable:
            said = f"round {line.round}/{self._rounds}  {state}"
            self.console.print(said, highlight=False, soft_wrap=True)
        found = self._evaluation() if line.auc is not None else None
        if found and PATIENCE <= line.round < self._rounds and not self._warned and unbeaten(found):
            self._warned = True
            self.console.print(f"{verdict(found, line.round)} {ADVICE}", highlight=False, soft_wrap=True)


def print_summary(out: Console, summary: Summary) -> None:
    out.print(table("Run", ("", ""), _facts(summary)))
    if _total(summary.costs):
        out.print(_exchanges(summary))
    if not _central(summary):
        out.print(
            "Full model: what secure aggregation of the whole model would take with the same cohort, "
            "computed from its size and the speed of masks here."
        )
    if summary.sums == "plain":
        out.print(
            "PLAIN SUMS: this run added its clients' integers in the open. The model is that of masked sums; "
            "costs were not measured, bytes are those that the plan predicts, and nothing was hidden."
        )
    elif summary.privacy is not None:
        out.print(
            "Epsilon is about the answers to which rows a client has; unions and sums reveal more with every "
            "exposure (docs/privacy.md)."
        )


def print_verdict(out: Console, summary: Summary) -> None:
    """Say in a sentence what the model is worth, and what may help where that is nothing."""
    if summary.verdict:
        found, said = summary.learning, summary.verdict
        best = None if summary.best else found.log_loss_best
        if found.log_loss and best is not None and best < _WORSE * found.log_loss:
            said += f" Its log loss was {best:.4f} after round {found.log_loss_best_round}, and rose since."
        out.print(f"{said} {ADVICE}" if summary.beats_baselines is False else said, highlight=False)


def _facts(summary: Summary) -> Facts:
    wanted = "" if summary.complete else f" of {summary.rounds_planned:,}"
    central, full = _central(summary), summary.full_model
    cohort = "" if central else f", {summary.clients_per_round:,} per round"
    facts = [
        ("scheme", f"{summary.scheme}, {_SUMS[summary.sums]}"),
        ("rounds", f"{summary.rounds:,}{wanted}, {summary.aborted:,} aborted"),
        ("clients", f"{summary.clients:,}{cohort}"),
        *_learning_facts(summary),
        *([] if central else _cost_facts(summary.costs, full, summary.predicted)),
        ("time per round", _said(summary.costs.wall_seconds_per_round, "{:,.2f} s")),
        ("peak memory, all parties", _size(summary.costs.peak_memory_bytes)),
    ]
    if not central:
        memory = f"{_size(full.client_memory_bytes)}, {_size(full.server_memory_bytes)}"
        facts.append(("… full model, client and server", memory))
    hot = summary.hot_privacy
    facts += _privacy_facts(summary.privacy) if hot is None else _hot_facts(hot)
    if not central:
        facts.append(("clients that dropped out", f"{summary.dropped:,}"))
        facts.append(("answers that came too late", f"{summary.late:,}"))
    # By what a user can do about it: every other kind of declining is a client's own limits.
    broken = summary.declined.get(NotFinite.__name__, 0)
    rare = {
        "declined, their limits said no": sum(summary.declined.values()) - broken,
        "declined, update not finite": broken,
        "rows in data, not in the model": summary.unknown_rows,
        "updates that were not finite": summary.diverged,
        "rows and dense sums, refused": summary.refused_rows,
    }
    facts += [(what, f"{count:,}") for what, count in rare.items() if count]
    return facts + [(f"data: {kind}", f"{count:,}") for kind, count in summary.data_problems.items()]


def _learning_facts(summary: Summary) -> Facts:
    found = summary.learning
    facts = [
        *_best_facts(summary.best),
        ("AUC, central test set", _said(found.auc, f"{{:.4f}} (round {found.auc_round})")),
        ("… best", _said(found.auc_best, f"{{:.4f}} (round {found.auc_best_round})")),
        ("log loss", _said(found.log_loss)),
        ("… best", _said(found.log_loss_best, f"{{:.4f}} (round {found.log_loss_best_round})")),
        ("NDCG and recall of the first ten", f"{_said(found.ndcg)}, {_said(found.recall)}"),
        *_baseline_facts(summary.baselines),
    ]
    if _central(summary):
        return [*facts, ("loss of training", _said(found.loss))]
    name = "AUC, secure" if summary.sums == "masked" else "AUC of cohorts"
    auc = _said(found.auc_secure, f"{{:.4f}} (round {found.auc_secure_round})")
    auc += _said(found.auc_secure_error, " ± {:.4f}", none="")
    loss = _said(found.log_loss_secure) + _said(found.log_loss_secure_error, " ± {:.4f}", none="")
    loss += _said(found.base_log_loss_secure, " (base rate: {:.4f})", none="")
    return [
        *facts,
        (f"{name}, before training", auc),
        ("… log loss, at its best shift", loss),
        ("loss of local training", _said(found.loss)),
    ]


def _best_facts(best: Best | None) -> Facts:
    if best is None:
        return []
    both = ((best.auc, best.log_loss), (best.auc_valid, best.log_loss_valid))
    test, valid = (f"AUC {_said(auc)}, log loss {_said(loss)}" for auc, loss in both)
    facts = [(f"best model: round {best.round}, test set", test), ("… validation devices", valid)]
    return facts + correction_facts(best.correction, "… by whom log-odds count")


def correction_facts(line: Correction | None, title: str) -> Facts:
    """Say how much log-odds and their parts count; nothing where nobody corrected them."""
    if line is None:
        return []
    each = ", ".join(f"{name} × {times:.2f}" for name, times in line.parts.items())
    parts = [("… and before, their parts", each)] if each else []
    return [(title, f"× {line.scale:.2f} {line.shift:+.2f}"), *parts]


def _baseline_facts(found: BaselineFigures | None) -> Facts:
    if found is None:
        return []
    base, popular = found.base_rate, found.popularity
    worth = f"{_said(popular.auc)}, {_said(popular.log_loss)}, {_said(popular.ndcg)}, {_said(popular.recall)}"
    return [
        ("baseline: base rate, log loss", f"{_said(base.log_loss)} (rate: {_said(base.rate)})"),
        ("baseline: item popularity, all four", worth),
    ]


def _cost_facts(costs: Costs, full: FullModel, predicted: Predicted | None) -> Facts:
    sent, whole, second = _total(costs), _total(full), "{:,.3f} s"
    marked = ""
    if not sent and predicted is not None:
        sent, marked = _total(predicted), ", predicted for masked sums"
    times = f" ({whole / sent:,.1f} times)" if sent else ""
    client, server = (
        sum(one.values()) if one else None for one in (costs.client_seconds, costs.server_seconds)
    )
    return [
        ("bytes per client and round", f"{_size(sent)}{marked}"),
        ("… for the full model", f"{_size(whole)}{times}"),
        ("CPU per client and round", _said(client, f"{second} + training")),
        ("… masks of the full model", _said(full.client_seconds, second)),
        ("CPU of the server per round", _said(server, second)),
        ("… masks of the full model", _said(full.server_seconds, second)),
        (
            "wall time of training, per client",
            _said(costs.training_seconds_per_client, f"{second}, of a pass for many"),
        ),
    ]


def _privacy_facts(privacy: Privacy | None) -> Facts:
    if privacy is None:
        return [("privacy", "none: this scheme hides nothing")]
    were = "was" if privacy.clients_exposed == 1 else "were"
    least = _counted(privacy.min_contributors, "contributor")
    now, ever = (_said(one, "{:.3f}", none="infinite") for one in (privacy.epsilon, privacy.epsilon_infinity))
    rounds, exposed = _counted(privacy.rounds_at_most, "round"), _counted(privacy.clients_exposed, "client")
    return [
        ("privacy", f"{privacy.preset}, rows with {least} or more"),
        ("epsilon per row, exact", f"{now} after {rounds} at most, {ever} for ever in one period"),
        ("exposures of a client", f"{privacy.exposures_at_most:,} at most; {exposed} {were} in a round"),
    ]


def _hot_facts(privacy: HotPrivacy) -> Facts:
    spent, allowed = (
        _said(one, "{:.3f}", none="infinite: NO NOISE") for one in (privacy.epsilon, privacy.epsilon_allowed)
    )
    rounds, clients = _counted(privacy.rounds_at_most, "round"), _counted(privacy.clients_exposed, "client")
    rows = ", ".join(f"{count:,} of {name}" for name, count in privacy.hot_rows.items()) or "none yet"
    return [
        ("epsilon of a client, in all", f"{spent} at delta {privacy.delta:g}; {allowed} allowed"),
        ("… covers", "all that leaves a client, all rounds, surveys included"),
        ("… against", f"a curious server and {privacy.corruption:.0%} of a cohort"),
        ("rounds of a client", f"{rounds} at most; {clients} took part"),
        ("hot rows", rows),
    ]


def _exchanges(summary: Summary) -> Table:
    costs, full = summary.costs, summary.full_model
    columns = (costs.bytes_up, costs.bytes_down, full.bytes_up, full.bytes_down)
    cpu = (costs.client_seconds, costs.server_seconds)
    rows = [
        (
            exchange,
            *(_kib(column.get(exchange, 0)) for column in columns),
            *(_said(column.get(exchange)) for column in cpu),
        )
        for exchange in (Exchange.CHECK_IN, *ORDER)
        if any(exchange in column for column in (*columns, *cpu))
    ]
    totals = (
        "total",
        *(_kib(sum(column.values())) for column in columns),
        *(_said(sum(column.values()) if column else None) for column in cpu),
    )
    heads = ("", "up", "down", "full up", "full down", "client s", "server s")
    return table("KiB per client and round, beside the full model's; CPU seconds", heads, [*rows, totals])


def _central(summary: Summary) -> bool:
    """Say whether there are no cohorts, no uploads, and nothing to mask."""
    return summary.scheme == "centralized"


def _counted(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def _total(costs: Costs | FullModel | Predicted) -> float:
    return sum(costs.bytes_up.values()) + sum(costs.bytes_down.values())


def _said(value: float | None, form: str = "{:.4f}", none: str = NONE) -> str:
    return none if value is None else form.format(value)


def _size(count: float) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if count >= size:
            return f"{count / size:,.2f} {unit}"
    return f"{_kib(count)} KiB" if count else NONE


def _kib(count: float) -> str:
    return f"{count / 2**10:,.1f}" if count else NONE
