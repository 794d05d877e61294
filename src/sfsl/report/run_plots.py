"""Pictures that compare runs, each a small one: what they learned over rounds, calibration, costs by
exchange, who was lost."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfsl.durable import written_whole
from sfsl.errors import InputError
from sfsl.installed import install_command
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
# Of small multiples: as wide as a phone, or a third of a screen.
_SIZE, _LEGEND_LINE = (4.6, 3.4), 0.22
_LOOK: Any = {
    "font.size": 10.5,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "legend.fontsize": 9.5,
    "legend.frameon": False,
    "svg.fonttype": "path",
}
# Values are written beside bars where there is room for them.
_MOST_LABELLED = 3


def pictures(runs: Sequence[Run]) -> "dict[str, Figure]":
    """Draw pictures, by name: none of what no run measured, each with the runs that measured it."""
    wanted: dict[str, tuple[bool, Callable[[Sequence[Run], Axes], None]]] = {
        "auc": (any(run.curve("auc") or run.curve("auc_secure") for run in runs), _auc),
        "log_loss": (any(run.curve(one) for run in runs for one in (*_TESTED, *_SUMMED)), _log_loss),
        "calibration": (any(run.calibration for run in runs), _calibration),
        "bytes_up": (any(run.traffic("bytes_up") for run in runs), _sent),
        "bytes_down": (any(run.traffic("bytes_down") for run in runs), _received),
        "client_seconds": (any(run.mean("client_seconds") for run in runs), _client_seconds),
        "server_seconds": (any(run.mean("server_seconds") for run in runs), _server_seconds),
        "lost": (any(any(run.lost().values()) for run in runs), _lost),
        "survivors": (any(line.survivors < line.cohort for run in runs for line in run.lines), _survivors),
    }
    return {name: _figure(draw, runs) for name, (measured, draw) in wanted.items() if measured}


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


def as_svg(figure: "Figure") -> bytes:
    """Return a picture for a page: sharp at any size, and with no ground of its own."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight", transparent=True)
    return buffer.getvalue()


def _label(runs: Sequence[Run], run: Run, text: str) -> str:
    """Name a line: a single run needs no name."""
    return text if len(runs) == 1 else f"{run.name}, {text}"


def _auc(runs: Sequence[Run], panel: "Axes") -> None:
    for number, run in enumerate(runs):
        _lines(panel, runs, number, _AUC)
        _mark_best(panel, runs, run, f"C{number % 10}", "auc")
    _levels(panel, runs, "popularity", "auc", "--")
    panel.set(title="AUC: the higher, the better")
    _over_rounds(panel, runs)


def _log_loss(runs: Sequence[Run], panel: "Axes") -> None:
    for number, run in enumerate(runs):
        _lines(panel, runs, number, _TESTED if run.curve("log_loss") else _SUMMED)
        _mark_best(panel, runs, run, f"C{number % 10}", "log_loss")
    _levels(panel, runs, "popularity", "log_loss", "--")
    _levels(panel, runs, "base_rate", "log_loss", "-.")
    panel.set(title="Log loss: the lower, the better")
    _over_rounds(panel, runs)


def _lines(panel: "Axes", runs: Sequence[Run], number: int, drawn: "dict[str, tuple[str, str]]") -> None:
    """Draw figures of a run over rounds. What was measured of the test set stands out; beside other runs only
    the first figure that there is."""
    run = runs[number]
    known = [(run.curve(figure), style, label) for figure, (style, label) in drawn.items()]
    known = [one for one in known if one[0]]
    for points, style, label in known if len(runs) == 1 else known[:1]:
        panel.plot(
            *zip(*points, strict=True),
            style if len(points) > 1 else "o",
            color=f"C{number % 10}",
            ms=3,
            lw=1.3,
            label=label if len(runs) == 1 else run.name,
            alpha=1.0 if style == "o-" or len(runs) > 1 else 0.6,
        )


def _mark_best(panel: "Axes", runs: Sequence[Run], run: Run, color: str, figure: str) -> None:
    """Mark the round whose model is exported."""
    value = getattr(run.best, figure, None)
    if run.best is not None and value is not None:
        _, labels = panel.get_legend_handles_labels()
        label = f"best model: round {run.best.round}" if len(runs) == 1 else "best model of a run"
        hidden = "_" if label in labels else ""  # a star for each, and one line about them
        panel.plot(
            [run.best.round], [value], "*", color=color, ms=12, mec="0.2", label=hidden + label, zorder=3
        )


def _levels(panel: "Axes", runs: Sequence[Run], kind: str, figure: str, style: str) -> None:
    """Draw what a baseline is worth: once where all runs are of the same data."""
    found = [(f"C{number % 10}", run, run.baseline(kind, figure)) for number, run in enumerate(runs)]
    known = [
        (color, _label(runs, run, _BASELINES[kind]), value)
        for color, run, value in found
        if value is not None
    ]
    if len({value for *_, value in known}) == 1:
        known = [("0.4", _BASELINES[kind], known[0][2])]
    for color, label, value in known:
        panel.axhline(value, ls=style, color=color, lw=1, label=label)


def _calibration(runs: Sequence[Run], panel: "Axes") -> None:
    seen: list[float] = []
    for number, run in enumerate(runs):
        bins = run.calibration
        if bins:
            said, came = [one.score for one in bins], [one.rate for one in bins]
            # Two standard errors of a share: what lies within them may be chance.
            wide = [2 * (one.rate * (1 - one.rate) / one.samples) ** 0.5 for one in bins]
            label = "two standard errors" if len(runs) == 1 else run.name
            color = f"C{number % 10}"
            panel.errorbar(said, came, wide, fmt="o-", ms=3, lw=1.2, capsize=2, color=color, label=label)
            seen += said + came
    ends = [min(seen), max(seen)]
    panel.plot(ends, ends, color="0.4", lw=1, ls="--", label="as often as it says")
    panel.set(xlabel="chance of a click that the model gives", title="How often a click came")


def _sent(runs: Sequence[Run], panel: "Axes") -> None:
    _traffic(panel, runs, "bytes_up", "Sent by a client")


def _received(runs: Sequence[Run], panel: "Axes") -> None:
    _traffic(panel, runs, "bytes_down", "Received by a client")


def _traffic(panel: "Axes", runs: Sequence[Run], cost: str, title: str) -> None:
    figures = [_scaled(run.traffic(cost), 1 / 1024) for run in runs]
    guessed = [run.predicted for run, one in zip(runs, figures, strict=True) if one]
    marked = "" if not any(guessed) else ", predicted" if all(guessed) else ", of PLAIN SUMS predicted"
    _bars(panel, runs, EXCHANGES, figures)
    panel.set(title=f"{title}, KiB a round{marked}")


def _client_seconds(runs: Sequence[Run], panel: "Axes") -> None:
    _bars(panel, runs, EXCHANGES, [_scaled(run.mean("client_seconds"), 1000) for run in runs])
    panel.set(title="CPU of a client, ms a round")


def _server_seconds(runs: Sequence[Run], panel: "Axes") -> None:
    _bars(panel, runs, EXCHANGES, [_scaled(run.mean("server_seconds"), 1000) for run in runs])
    panel.set(title="CPU of the server, ms a round")


def _lost(runs: Sequence[Run], panel: "Axes") -> None:
    _bars(panel, runs, LOST, [_scaled(run.lost(), 100) for run in runs])
    panel.set(title="Lost at an exchange, % of the cohorts")


def _survivors(runs: Sequence[Run], panel: "Axes") -> None:
    for number, run in enumerate(runs):
        if not run.asked:
            continue
        color, ended = f"C{number % 10}", [line for line in run.lines if line.aborted is None]
        shares = [100 * line.survivors / max(1, line.cohort) for line in ended]
        marker = "o" if len(ended) == 1 else None
        label = "in the sum" if len(runs) == 1 else run.name
        panel.plot([line.round for line in ended], shares, color=color, marker=marker, ms=3, label=label)
        lost = [line.round for line in run.lines if line.aborted is not None]
        if lost:
            panel.plot(lost, [0] * len(lost), "x", color=color, label=_label(runs, run, "aborted"))
    panel.set(title="Clients in the sum, % of the cohort", ylim=(-4, 104))
    _over_rounds(panel, runs)


def _over_rounds(panel: "Axes", runs: Sequence[Run]) -> None:
    """Count whole rounds on the axis: there is no half round, also where there are few."""
    from matplotlib.ticker import MaxNLocator

    last = max(run.lines[-1].round for run in runs)
    panel.set(xlabel="round", xlim=(1 - 0.04 * last, 1.04 * last))
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))


def _bars(
    panel: "Axes", runs: Sequence[Run], groups: Sequence[str], figures: Sequence[dict[str, float]]
) -> None:
    """Draw for each group that somebody has figures of one bar of each run that has any."""
    shown = [(number, values) for number, values in enumerate(figures) if values]
    groups = [group for group in groups if any(values.get(group) for _, values in shown)]
    width = 0.8 / max(1, len(shown))
    for place, (number, values) in enumerate(shown):
        places = [at + (place - (len(shown) - 1) / 2) * width for at in range(len(groups))]
        lengths = [values.get(group, 0.0) for group in groups]
        drawn = panel.barh(places, lengths, width, color=f"C{number % 10}", label=runs[number].name)
        if len(shown) <= _MOST_LABELLED:
            panel.bar_label(drawn, [_short(one) for one in lengths], padding=2, fontsize=9)
    panel.set_yticks(range(len(groups)), groups)
    panel.invert_yaxis()
    panel.grid(axis="y", visible=False)
    panel.margins(x=0.16)


def _short(value: float) -> str:
    return "" if not value else f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def _scaled(values: dict[str, float], factor: float) -> dict[str, float]:
    return {exchange: factor * value for exchange, value in values.items()}


def _figure(draw: "Callable[[Sequence[Run], Axes], None]", runs: Sequence[Run]) -> "Figure":
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError(f"pictures need matplotlib; install it with: {install_command('plot')}") from None
    with rc_context(_LOOK):
        figure = Figure(figsize=_SIZE, layout="constrained")
        panel = figure.add_subplot()
        draw(runs, panel)
        handles, labels = panel.get_legend_handles_labels()
        if len(labels) > 1:
            # Below the panel, where it covers nothing; the picture is higher by what the legend takes.
            columns = 2 if max(map(len, labels), default=0) < 24 else 1
            figure.set_figheight(_SIZE[1] + _LEGEND_LINE * max(0, -(-len(labels) // columns) - 2))
            safe = [label.replace("$", r"\$") for label in labels]
            figure.legend(handles, safe, loc="outside lower center", ncols=columns)
    return figure
