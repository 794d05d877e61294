"""Pictures that compare runs: AUC over rounds, bytes and CPU by exchange, dropouts."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sfsl.errors import InputError
from sfsl.report.runs import EXCHANGES, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")
_DPI = 150


def pictures(runs: Sequence[Run]) -> "dict[str, Figure]":
    """By name. There is no AUC picture where no run measured one."""
    drawn = {
        "bytes": _figure(2, lambda axes: _bytes(runs, axes)),
        "seconds": _figure(2, lambda axes: _seconds(runs, axes)),
        "dropouts": _figure(2, lambda axes: _dropouts(runs, axes)),
    }
    if any(run.curve("auc") or run.curve("auc_secure") for run in runs):
        return {"auc": _figure(2, lambda axes: _curves(runs, axes)), **drawn}
    return drawn


def save(drawn: "dict[str, Figure]", folder: Path) -> list[Path]:
    """Each as PNG and SVG."""
    written = []
    for name, figure in drawn.items():
        for form in FORMATS:
            path = folder / f"{name}.{form}"
            try:
                figure.savefig(path, dpi=_DPI, bbox_inches="tight")
            except OSError as error:
                raise InputError(f"cannot write {path}: {error.strerror}") from None
            written.append(path)
    return written


def as_png(figure: "Figure") -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI, bbox_inches="tight")
    return buffer.getvalue()


def _curves(runs: Sequence[Run], axes: "list[Axes]") -> None:
    left, right = axes
    for number, run in enumerate(runs):
        color = f"C{number % 10}"
        for figure, style, label in (("auc", "o-", "test set"), ("auc_secure", ":", "cohorts")):
            points = run.curve(figure)
            if points:
                left.plot(
                    *zip(*points, strict=True), style, color=color, ms=3, lw=1.2, label=f"{run.name}, {label}"
                )
        losses = run.curve("loss")
        if losses:
            right.plot(*zip(*losses, strict=True), color=color, label=run.name)
    left.set(xlabel="round", ylabel="AUC", title="AUC")
    right.set(xlabel="round", ylabel="loss", title="Training loss")


def _bytes(runs: Sequence[Run], axes: "list[Axes]") -> None:
    for panel, cost, title in zip(axes, ("bytes_up", "bytes_down"), ("Sent", "Received"), strict=True):
        _bars(panel, runs, [_scaled(run.mean(cost), 1 / 1024) for run in runs])
        panel.set(ylabel="KiB per client and round", title=f"{title} by a client, by exchange")


def _seconds(runs: Sequence[Run], axes: "list[Axes]") -> None:
    for panel, cost in zip(axes, ("client_seconds", "server_seconds"), strict=True):
        _bars(panel, runs, [_scaled(run.mean(cost), 1000) for run in runs])
    axes[0].set(ylabel="CPU ms per client and round", title="A client, without training")
    axes[1].set(ylabel="CPU ms per round", title="The server")


def _dropouts(runs: Sequence[Run], axes: "list[Axes]") -> None:
    left, right = axes
    _bars(left, runs, [_scaled(run.dropped_by_exchange(), 100) for run in runs])
    left.set(ylabel="% of the cohorts", title="Vanished before answering")
    for number, run in enumerate(runs):
        color = f"C{number % 10}"
        shares = [100 * line.survivors / max(1, line.cohort) for line in run.lines]
        right.plot([line.round for line in run.lines], shares, color=color, label=run.name)
        lost = [line.round for line in run.lines if line.aborted is not None]
        if lost:
            right.plot(lost, [0] * len(lost), "x", color=color, label=f"{run.name}, aborted")
    right.set(xlabel="round", ylabel="% of the cohort", title="Clients in the sum", ylim=(-4, 104))


def _bars(panel: "Axes", runs: Sequence[Run], figures: Sequence[dict[str, float]]) -> None:
    """One group of bars for each exchange, one bar for each run."""
    width = 0.8 / len(runs)
    for number, (run, values) in enumerate(zip(runs, figures, strict=True)):
        places = [at + (number - (len(runs) - 1) / 2) * width for at in range(len(EXCHANGES))]
        heights = [values[exchange] for exchange in EXCHANGES]
        panel.bar(places, heights, width, color=f"C{number % 10}", label=run.name)
    panel.set_xticks(range(len(EXCHANGES)), EXCHANGES, rotation=30, ha="right")


def _scaled(values: dict[str, float], factor: float) -> dict[str, float]:
    return {exchange: factor * value for exchange, value in values.items()}


def _figure(panels: int, draw: "Callable[[list[Axes]], None]") -> "Figure":
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("pictures need matplotlib: install the extra, sfsl[plot]") from None
    # One panel below the other, so that a phone shows them in full width.
    figure = Figure(figsize=(7.2, 4.6 * panels), layout="constrained")
    axes = [figure.add_subplot(panels, 1, number + 1) for number in range(panels)]
    draw(axes)
    for panel in axes:
        panel.grid(alpha=0.3)
        panel.set_axisbelow(True)
        handles, labels = panel.get_legend_handles_labels()
        if handles:
            # Below the panel, where it covers nothing; lower where the names of exchanges stand aslant.
            below = -0.28 if panel.get_xticklabels()[0].get_rotation() else -0.14
            columns = 3 if max(map(len, labels)) < 20 else 1
            safe = [label.replace("$", r"\$") for label in labels]
            panel.legend(
                handles,
                safe,
                fontsize="small",
                loc="upper center",
                bbox_to_anchor=(0.5, below),
                ncols=columns,
            )
    return figure
