"""Pictures that compare runs: what they learned over rounds, calibration, costs by exchange, dropouts."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sfsl.durable import written_whole
from sfsl.errors import InputError
from sfsl.report.runs import EXCHANGES, LOST, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")
_DPI = 150
_AUC = {"auc": ("o-", "test set"), "auc_valid": ("--", "validation"), "auc_secure": (":", "cohorts")}
_TESTED = {
    "log_loss": ("o-", "test set"),
    "log_loss_valid": ("--", "validation"),
    "loss": ("-", "while training"),
}
# Every cohort has another base rate, which its log loss follows: beside that of the test set it says nothing.
_SUMMED = {
    "log_loss_secure": ("o-", "cohorts, at the best shift"),
    "base_log_loss_secure": ("-.", "cohorts' own base rate"),
    "loss": ("-", "while training"),
}
_BASELINES = {"popularity": "item popularity", "base_rate": "base rate"}


def pictures(runs: Sequence[Run]) -> "dict[str, Figure]":
    """Draw pictures, by name: none of what no run measured, each with the runs that measured it."""
    drawn: dict[str, Figure] = {}
    if any(run.curve("auc") or run.curve("auc_secure") for run in runs):
        drawn["auc"] = _figure(_curves, runs)
    if any(run.calibration for run in runs):
        drawn["calibration"] = _figure(_calibration, runs, panels=1)
    if any(run.mean("bytes_up") or run.mean("bytes_down") for run in runs):
        drawn["bytes"] = _figure(_bytes, runs)
    if any(run.mean("client_seconds") or run.mean("server_seconds") for run in runs):
        drawn["seconds"] = _figure(_seconds, runs)
    if any(run.asked for run in runs):
        drawn["dropouts"] = _figure(_dropouts, runs)
    return drawn


def save(drawn: "dict[str, Figure]", folder: Path) -> list[Path]:
    """Write each picture as PNG and as SVG; return the files."""
    written = []
    for name, figure in drawn.items():
        for form in FORMATS:
            path = folder / f"{name}.{form}"
            try:
                with written_whole(path) as file:
                    figure.savefig(file, format=form, dpi=_DPI, bbox_inches="tight")
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
        _lines(left, run, color, _AUC)
        _lines(right, run, color, _TESTED if run.curve("log_loss") else _SUMMED)
        for panel, figure in ((left, "auc"), (right, "log_loss")):
            _mark_best(panel, run, color, figure)
    _levels(left, runs, "popularity", "auc", "--")
    _levels(right, runs, "popularity", "log_loss", "--")
    _levels(right, runs, "base_rate", "log_loss", "-.")
    left.set(ylabel="AUC", title="AUC: the higher, the better")
    right.set(ylabel="log loss", title="Log loss: the lower, the better")
    for panel in axes:
        _over_rounds(panel, runs)


def _lines(panel: "Axes", run: Run, color: str, drawn: "dict[str, tuple[str, str]]") -> None:
    """Draw figures over rounds. What was measured of the test set stands out."""
    for figure, (style, label) in drawn.items():
        points = run.curve(figure)
        if points:
            shown = 1.0 if style == "o-" else 0.5
            label = f"{run.name}, {label}"
            panel.plot(*zip(*points, strict=True), style, color=color, ms=3, lw=1.2, label=label, alpha=shown)


def _mark_best(panel: "Axes", run: Run, color: str, figure: str) -> None:
    """Mark the round whose model is exported."""
    value = getattr(run.best, figure, None)
    if run.best is not None and value is not None:
        label = f"{run.name}, best model: round {run.best.round}"
        panel.plot([run.best.round], [value], "*", color=color, ms=13, mec="0.2", label=label, zorder=3)


def _levels(panel: "Axes", runs: Sequence[Run], kind: str, figure: str, style: str) -> None:
    """Draw what a baseline is worth: once where all runs are of the same data."""
    found = [(f"C{number % 10}", run.name, run.baseline(kind, figure)) for number, run in enumerate(runs)]
    known = [
        (color, f"{name}, {_BASELINES[kind]}", value) for color, name, value in found if value is not None
    ]
    if len({value for *_, value in known}) == 1:
        known = [("0.3", _BASELINES[kind], known[0][2])]
    for color, label, value in known:
        panel.axhline(value, ls=style, color=color, lw=1, label=label)


def _calibration(runs: Sequence[Run], axes: "list[Axes]") -> None:
    (panel,) = axes
    seen: list[float] = []
    for number, run in enumerate(runs):
        bins = run.calibration
        if bins:
            said, came = [one.score for one in bins], [one.rate for one in bins]
            # Two standard errors of a share: what lies within them may be chance.
            wide = [2 * (one.rate * (1 - one.rate) / one.samples) ** 0.5 for one in bins]
            color = f"C{number % 10}"
            panel.errorbar(said, came, wide, fmt="o-", ms=3, lw=1.2, capsize=2, color=color, label=run.name)
            seen += said + came
    ends = [min(seen), max(seen)]
    panel.plot(ends, ends, color="0.3", lw=1, ls="--", label="as often as it says")
    label = "chance of a click that the model gives, in parts of as many samples each"
    panel.set(xlabel=label, ylabel="how often a click came", title="Calibration (bars: two standard errors)")


def _bytes(runs: Sequence[Run], axes: "list[Axes]") -> None:
    for panel, cost, title in zip(axes, ("bytes_up", "bytes_down"), ("Sent", "Received"), strict=True):
        _bars(panel, runs, EXCHANGES, [_scaled(run.mean(cost), 1 / 1024) for run in runs])
        panel.set(ylabel="KiB per client and round", title=f"{title} by a client, by exchange")


def _seconds(runs: Sequence[Run], axes: "list[Axes]") -> None:
    for panel, cost in zip(axes, ("client_seconds", "server_seconds"), strict=True):
        _bars(panel, runs, EXCHANGES, [_scaled(run.mean(cost), 1000) for run in runs])
    axes[0].set(ylabel="CPU ms per client and round", title="A client, without training")
    axes[1].set(ylabel="CPU ms per round", title="The server")


def _dropouts(runs: Sequence[Run], axes: "list[Axes]") -> None:
    left, right = axes
    shares = [_scaled(run.lost(), 100) for run in runs]
    _bars(left, runs, LOST, shares)
    most = max((value for one in shares for value in one.values()), default=0)
    title = "Vanished before answering an exchange, answered late, declined"
    left.set(ylabel="% of the cohorts", title=title, ylim=(0, max(5, 1.1 * most)))
    for number, run in enumerate(runs):
        if not run.asked:
            continue
        color = f"C{number % 10}"
        left_over = [100 * line.survivors / max(1, line.cohort) for line in run.lines]
        right.plot([line.round for line in run.lines], left_over, color=color, label=run.name)
        lost = [line.round for line in run.lines if line.aborted is not None]
        if lost:
            right.plot(lost, [0] * len(lost), "x", color=color, label=f"{run.name}, aborted")
    right.set(ylabel="% of the cohort", title="Clients in the sum", ylim=(-4, 104))
    _over_rounds(right, runs)


def _over_rounds(panel: "Axes", runs: Sequence[Run]) -> None:
    """Count whole rounds on the axis: there is no half round, also where there are few."""
    from matplotlib.ticker import MaxNLocator

    last = max(run.lines[-1].round for run in runs)
    panel.set(xlabel="round", xlim=(1 - 0.04 * last, 1.04 * last))
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))


def _bars(
    panel: "Axes", runs: Sequence[Run], groups: Sequence[str], figures: Sequence[dict[str, float]]
) -> None:
    """Draw for each group one bar of each run that has figures."""
    shown = [(number, values) for number, values in enumerate(figures) if values]
    width = 0.8 / max(1, len(shown))
    for place, (number, values) in enumerate(shown):
        places = [at + (place - (len(shown) - 1) / 2) * width for at in range(len(groups))]
        heights = [values.get(group, 0.0) for group in groups]
        panel.bar(places, heights, width, color=f"C{number % 10}", label=runs[number].name)
    panel.set_xticks(range(len(groups)), groups, rotation=30, ha="right")


def _scaled(values: dict[str, float], factor: float) -> dict[str, float]:
    return {exchange: factor * value for exchange, value in values.items()}


def _figure(
    draw: "Callable[[Sequence[Run], list[Axes]], None]", runs: Sequence[Run], panels: int = 2
) -> "Figure":
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("pictures need matplotlib: install the extra, sfsl[plot]") from None
    # Panels one below the other, so that a phone shows them in full width.
    figure = Figure(figsize=(7.2, 4.6 * panels), layout="constrained")
    axes = [figure.add_subplot(panels, 1, number + 1) for number in range(panels)]
    draw(runs, axes)
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
