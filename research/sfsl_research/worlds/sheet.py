"""The benchmark's table, as Markdown and JSON, and its picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from sfsl.durable import write_whole
from sfsl_research.reproduce.drawing import COLORS, blank, finish, save
from sfsl_research.worlds.arms import CENTRALIZED, DEFAULT
from sfsl_research.worlds.standings import ALLOWED, LeftOut, Standing, shortcomings

TABLE, PICTURE = "table", "regret"
_COLUMNS = (
    "world", "arm", "AUC", "last", "regret", "worst seed", "log loss", "last", "base rate's", "popularity's",
    "popularity's AUC",
)  # fmt: skip


def result_of(standings: Sequence[Standing], chosen: Sequence[LeftOut]) -> dict[str, Any]:
    """Return all there is to say, for JSON."""
    own = [one for one in standings if one.arm == DEFAULT]
    return {
        "standings": msgspec.to_builtins(standings),
        "worst_regret": max((one.regret for one in own), default=None),
        "lacks": shortcomings(standings),
        "left_out": msgspec.to_builtins(chosen),
    }


def write_sheet(out: Path, standings: Sequence[Standing], chosen: Sequence[LeftOut]) -> list[Path]:
    """Write the table and the picture."""
    paths = [out / f"{TABLE}.md", out / f"{TABLE}.json"]
    write_whole(paths[0], _markdown(standings, chosen).encode())
    write_whole(paths[1], msgspec.json.format(msgspec.json.encode(result_of(standings, chosen))))
    return [*paths, *_draw(out, standings)] if standings else paths


def rows_of(standings: Sequence[Standing]) -> list[tuple[str, ...]]:
    """Return the table's rows, world by world and the best arm first."""
    worlds = list(dict.fromkeys(one.world for one in standings))
    ordered = sorted(standings, key=lambda one: (worlds.index(one.world), one.regret))
    return [
        (
            one.world,
            one.arm + (f" ({one.failed} failed)" if one.failed else ""),
            *map(
                _figure,
                (
                    one.auc, one.last_auc, one.regret, one.worst_regret, one.log_loss, one.last_log_loss,
                    one.base_log_loss, one.popularity_log_loss, one.popularity_auc,
                ),
            ),
        )
        for one in ordered
    ]  # fmt: skip


def overview(standings: Sequence[Standing]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return heads and rows of a table that a terminal has room for: a row for each world."""
    arms = [arm for arm in dict.fromkeys(one.arm for one in standings) if arm != DEFAULT]
    found = {(one.world, one.arm): one for one in standings}
    rows = []
    for own in standings:
        if own.arm == DEFAULT:
            auc = [_short(found[own.world, arm].auc) if (own.world, arm) in found else "" for arm in arms]
            bounds = [one for one in (own.base_log_loss, own.popularity_log_loss) if one is not None]
            losses = _short(own.log_loss), _short(min(bounds, default=None))
            rows.append(
                (own.world, _short(own.popularity_auc), *auc, _short(own.auc), _short(own.regret), *losses)
            )
    return ["", "popular", *arms, DEFAULT, "regret", "log loss", "needed"], rows


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _markdown(standings: Sequence[Standing], chosen: Sequence[LeftOut]) -> str:
    lines = ["# Worlds", "", *_table(_COLUMNS, rows_of(standings)), ""]
    lines += ["## What the default lacks", ""]
    lacks = shortcomings(standings)
    lines += [f"- {world}: {'; '.join(some) or 'nothing'}" for world, some in lacks.items()]
    if chosen:
        rows = [(one.world, one.chosen, _figure(one.worst_elsewhere), _figure(one.regret)) for one in chosen]
        heads = ("world left out", "chosen by the others", "worst regret there", "regret here")
        lines += ["", "## Each world left out in turn", "", *_table(heads, rows)]
    return "\n".join(lines) + "\n"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(one) + " |" for one in (heads, ["---"] * len(heads), *rows)]


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _draw(out: Path, standings: Sequence[Standing]) -> list[Path]:
    """One line for each world, one mark for each arm: how far below centralized training it is."""
    worlds = list(dict.fromkeys(one.world for one in standings))
    arms = [arm for arm in dict.fromkeys(one.arm for one in standings) if arm != CENTRALIZED]
    figure, (panel,) = blank(1, height=1.6 + 0.35 * len(worlds))
    colors = {DEFAULT: COLORS["cpp2"], "paper": COLORS["cpp4"], "fl": COLORS["fl"]}
    for place, arm in enumerate(arms):
        own = [one for one in standings if one.arm == arm]
        panel.plot(
            [one.regret for one in own],
            [worlds.index(one.world) for one in own],
            ls="none",
            marker="osD^vPX*"[place % 8],
            color=colors.get(arm, f"C{place}"),
            label=arm,
        )
    panel.axvline(0, color=COLORS[CENTRALIZED], lw=1)
    panel.axvline(ALLOWED, color=COLORS[CENTRALIZED], lw=1, ls=":", label=f"{ALLOWED} below")
    panel.set_yticks(range(len(worlds)), worlds)
    panel.set_ylim(len(worlds) - 0.5, -0.5)
    panel.set_xlabel("AUC below centralized training at its best rate")
    finish(panel)
    return save(figure, out, PICTURE)
