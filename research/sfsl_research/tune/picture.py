"""The picture of a search: what validation devices said about each arm, round by round."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sfsl_research.reproduce.drawing import blank, finish, save
from sfsl_research.tune.halving import DEFAULT, ArmState
from sfsl_research.tune.result import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME = "curves"
# Distinct also in print and for colour-blind readers; arms that were dropped are grey.
_COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9")
_GREY, _BLACK = "#c8c8c8", "#111111"


def draw(summary: Summary, arms: Mapping[str, ArmState], folder: Path) -> list[Path]:
    """Draw AUC and log loss, with the baselines dashed and each end's best round marked."""
    figure, panels = blank(2)
    chosen = summary.arm(summary.choice).validation
    popular = "item popularity"
    _panel(panels[0], summary, arms, "auc", {popular: chosen.popularity_auc})
    lines = {popular: chosen.popularity_log_loss, "base rate": chosen.base_log_loss}
    _panel(panels[1], summary, arms, "log_loss", lines)
    panels[0].set(ylabel="AUC", title="Validation devices, arm by arm")
    panels[1].set(ylabel="log loss", xlabel="round")
    for panel in panels:
        finish(panel)
    return save(figure, folder, NAME)


def _panel(
    panel: "Axes",
    summary: Summary,
    arms: Mapping[str, ArmState],
    figure: str,
    baselines: Mapping[str, float | None],
) -> None:
    ended = [one for one in summary.arms if one.dropped is not None]
    last = [one for one in summary.arms if one.dropped is None]
    for place, one in enumerate(ended):
        label = "dropped" if place == 0 else None
        panel.plot(*_line(arms[one.name], figure), color=_GREY, lw=1.0, label=label)
    colors, seen = iter(_COLORS * len(last)), [one for one in baselines.values() if one is not None]
    for one in last:
        color = _BLACK if one.name == DEFAULT else next(colors)
        chosen = one.name == summary.choice
        rounds, values = _line(arms[one.name], figure)
        label = f"{one.name} (chosen)" if chosen else one.name
        panel.plot(rounds, values, color=color, lw=2.2 if chosen else 1.4, label=label)
        seen += values
        if one.best_round in rounds:
            at = list(rounds).index(one.best_round)
            panel.plot([rounds[at]], [values[at]], "o", color=color, ms=6 if chosen else 4)
    for (name, value), style in zip(baselines.items(), ("--", ":"), strict=False):
        if value is not None:
            panel.axhline(value, color="#7a7a7a", ls=style, lw=1.0, label=name)
    if seen:  # an arm that was dropped because it went astray does not set the scale
        margin = 0.06 * (max(seen) - min(seen)) or 0.01
        panel.set_ylim(min(seen) - margin, max(seen) + margin)


def _line(arm: ArmState, figure: str) -> tuple[Sequence[int], Sequence[float]]:
    """Return rounds and values; a round without a figure, as after the arm diverged, is left out."""
    found = [(one.round, getattr(one.found, figure)) for one in arm.points]
    found = [(at, value) for at, value in found if value is not None]
    return [at for at, _ in found], [value for _, value in found]
