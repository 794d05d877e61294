"""Pictures of what privacy costs: epsilon over rounds, events, the tuning frontier."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sfsl.errors import InputError
from sfsl.installed import install_command
from sfsl.privacy import IndexPrivacy, Tuned

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".png", ".svg")


def plot_levels(levels: Mapping[str, IndexPrivacy], rounds: int, cohort: int, path: Path) -> None:
    """Draw epsilon over rounds, and p7 and p8 over the number of owners."""
    with Picture(path, panels=2) as (left, right):
        over = sorted({round(rounds ** (step / 200)) for step in range(201)})
        for name, privacy in levels.items():
            label = name if math.isfinite(privacy.epsilon(rounds)) else f"{name} (infinite)"
            line = left.plot(over, [privacy.epsilon(count) for count in over], label=label)[0]
            owners = list(range(1, min(cohort, 10) + 1))
            events = [privacy.events(count, cohort) for count in owners]
            right.plot(owners, [e.p8 for e in events], color=line.get_color(), label=f"p8 {name}")
            right.plot(owners, [e.p7 for e in events], "--", color=line.get_color(), label=f"p7 {name}")
        left.set(xlabel="rounds in one period", ylabel="epsilon", title="Epsilon after k rounds")
        left.set_xscale("log")
        right.set(xlabel="owners of the row", ylabel="probability", title=f"Events, cohort of {cohort}")


def plot_frontier(points: Mapping[float, Sequence[Tuned]], rounds: int | None, path: Path) -> None:
    """Draw bytes against p5, one line for each epsilon."""
    with Picture(path, panels=1) as (axes,):
        for epsilon, line in points.items():
            cost = [point.bytes_per_round / 2**20 for point in line]
            axes.plot([point.privacy.p5 for point in line], cost, label=f"epsilon {epsilon:g}")
        span = "for ever" if rounds is None else f"over {rounds} rounds"
        axes.set(
            xlabel="p5: share of real rows trained on",
            ylabel="MiB per client and round",
            title=f"Fewest bytes for an epsilon {span}",
        )
        axes.set_yscale("log")


class Picture:
    """A figure with panels, saved when the block ends without an error."""

    def __init__(self, path: Path, panels: int) -> None:
        if path.suffix.lower() not in FORMATS:
            raise InputError(f"{path} is not a picture that we can make; use a name ending in .png or .svg")
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise InputError(f"plots need matplotlib; install it with: {install_command('plot')}") from None
        self._path = path
        self._figure = Figure(figsize=(6.4 * panels, 4.8), layout="constrained")
        self._axes: list[Axes] = [self._figure.add_subplot(1, panels, n + 1) for n in range(panels)]

    def __enter__(self) -> "list[Axes]":
        return self._axes

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            return
        for axes in self._axes:
            axes.grid(alpha=0.3)
            # Below the panel, where it covers no line.
            longest = max((len(label) for label in axes.get_legend_handles_labels()[1]), default=0)
            columns = 5 if longest < 16 else 2
            axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=columns)
        try:
            self._figure.savefig(self._path)
        except OSError as error:
            raise InputError(f"cannot write {self._path}: {error.strerror}") from None
