"""Figures in the paper's manner: its axes, its order of schemes, and its own numbers as diamonds."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sfsl.errors import InputError
from sfsl.installed import install_command
from sfsl_research.reproduce.paper import CLIENTS, LABELS, SCHEMES, Quoted
from sfsl_research.reproduce.sheets import put

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")
_DPI = 150
Group = TypeVar("Group", int, str)
# Distinct also in print and for colour-blind readers; the same scheme has the same colour in every figure.
COLORS = {
    "cpp1": "#56b4e9",
    "cpp2": "#0072b2",
    "cpp3": "#009e73",
    "cpp4": "#e69f00",
    "cpp5": "#d55e00",
    "sfl": "#7a7a7a",
    "fl": "#7a7a7a",
    "psu": "#cc79a7",
    "centralized": "#111111",
    "ours": "#cc79a7",
}
_DIAMOND = {"marker": "D", "ls": "none", "ms": 5.5, "mec": "black", "mew": 1.0, "zorder": 5, "clip_on": False}


def blank(panels: int, height: float = 4.0) -> "tuple[Figure, list[Axes]]":
    """One panel below the other, so that a phone shows them in full width."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError:
        raise InputError(f"pictures need matplotlib; install it with: {install_command('plot')}") from None
    figure = Figure(figsize=(6.4, height * panels), layout=ConstrainedLayoutEngine(h_pad=0.12, w_pad=0.1))
    return figure, [figure.add_subplot(panels, 1, place + 1) for place in range(panels)]


def finish(panel: "Axes") -> None:
    """Grid, plain numbers, and a legend below the panel, where it covers nothing; the paper comes last."""
    from matplotlib.ticker import FuncFormatter
    from matplotlib.transforms import ScaledTranslation

    if panel.get_yscale() == "log":
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    panel.grid(alpha=0.3, axis="y")
    panel.set_axisbelow(True)
    entries = zip(*panel.get_legend_handles_labels(), strict=True)
    handles, labels = zip(*sorted(entries, key=lambda entry: entry[1].startswith("paper")), strict=True)
    # In inches below the ticks, and the axis label where there is one.
    below = ScaledTranslation(0, -0.46 if panel.get_xlabel() else -0.26, panel.figure.dpi_scale_trans)
    panel.legend(
        handles,
        labels,
        fontsize="small",
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        bbox_transform=panel.transAxes + below,
        ncols=4,
        frameon=False,
    )


def by_clients(panel: "Axes", rows: Sequence[Any], column: str, quoted: Mapping[str, Quoted]) -> None:
    """For each size of cohort a bar of each scheme; ``quoted`` by scheme, at the paper's own size."""
    groups = sorted({row.clients for row in rows})
    bars = {
        scheme: {row.clients: getattr(row, column) for row in rows if row.scheme == scheme}
        for scheme in SCHEMES
    }
    grouped(panel, groups, bars, {(CLIENTS, scheme): one for scheme, one in quoted.items()})
    panel.set(xlabel="number of chosen clients")


def grouped(
    panel: "Axes",
    groups: Sequence[Group],
    bars: Mapping[str, Mapping[Group, float]],
    quoted: Mapping[tuple[Group, str], Quoted],
) -> None:
    """For each group a bar of each scheme, log scale; ``quoted`` by group and scheme."""
    width = 0.84 / len(bars)
    printed: list[tuple[float, float]] = []
    derived: list[tuple[float, float]] = []
    for place, (scheme, heights) in enumerate(bars.items()):
        shift = (place - (len(bars) - 1) / 2) * width
        at = [(number + shift, heights[group]) for number, group in enumerate(groups) if group in heights]
        panel.bar(
            [x for x, _ in at],
            [height for _, height in at],
            width * 0.94,
            color=COLORS[scheme],
            label=LABELS[scheme],
        )
        for number, group in enumerate(groups):
            if (group, scheme) in quoted:
                one = quoted[group, scheme]
                (derived if one.derived else printed).append((number + shift, one.value))
    diamonds(panel, printed, derived)
    panel.set_xticks(range(len(groups)), [str(group) for group in groups])
    # A bar on a log axis has no natural foot; this one lets the shortest still be seen.
    panel.set_yscale("log")
    panel.set_ylim(bottom=min(height for heights in bars.values() for height in heights.values()) / 2)


def diamonds(
    panel: "Axes", printed: Sequence[tuple[float, float]], derived: Sequence[tuple[float, float]] = ()
) -> None:
    """The paper's numbers: filled where it prints them, hollow where they follow from a percentage."""
    for points, fill, label in (
        (printed, "#ffd800", "paper"),
        (derived, "none", "paper, from its percentages"),
    ):
        if points:
            xs, ys = zip(*points, strict=True)
            panel.plot(xs, ys, label=label, mfc=fill, **_DIAMOND)  # type: ignore[arg-type]


def save(figure: "Figure", folder: Path, name: str) -> list[Path]:
    written = []
    for form in FORMATS:
        buffer = io.BytesIO()
        # No date in the file: the same rows give the same picture.
        figure.savefig(
            buffer, format=form, dpi=_DPI, metadata={"Date": None} if form == "svg" else {"Software": None}
        )
        written.append(folder / f"{name}.{form}")
        put(written[-1], buffer.getvalue())
    return written
