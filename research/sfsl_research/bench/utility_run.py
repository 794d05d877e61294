"""All arms of ``sfsl bench utility``, side by side in processes of their own, and what they came to."""

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from sfsl.checksums import with_json_sum, without_json_sum
from sfsl.durable import make_folder, write_whole
from sfsl.errors import InputError
from sfsl.settings.run import RunConfig, from_sections
from sfsl_research.bench.utility import train_one
from sfsl_research.reproduce.drawing import blank, finish, save

NAME = "utility"
_COLORS = {2.0: "#e69f00", 4.0: "#009e73", 8.0: "#0072b2", math.inf: "#cc79a7"}
_OTHERS = ("#111111", "#7a7a7a", "#d55e00", "#56b4e9")


def run_arms(
    out: Path,
    arms: Mapping[str, RunConfig],
    *,
    together: int,
    seen: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Train arms, so many at a time, and gather their results. One that has a result is not trained again."""
    make_folder(out)
    due = [name for name in arms if not _result(out, name).exists()]
    running: dict[str, subprocess.Popen[bytes]] = {}
    failed = []
    while due or running:
        while due and len(running) < together:
            name = due.pop(0)
            settings = _result(out, name).with_suffix(".settings")
            write_whole(settings, _encoded(arms[name]))
            command = [sys.executable, "-m", __name__, name, str(settings), str(_result(out, name))]
            running[name] = subprocess.Popen(command)  # noqa: S603 -- ourselves
            seen(f"{name} has begun")
        time.sleep(0.2)
        for name in [one for one, process in running.items() if process.poll() is not None]:
            if running.pop(name).returncode:
                failed.append(name)
            seen(f"{name} is over")
    if failed:
        raise InputError(f"these arms failed, for reasons they gave above: {', '.join(failed)}")
    return {"arms": [read_arm(_result(out, name)) for name in arms]}


def lines(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the table: what each arm ended at, and what item popularity is worth."""
    found = []
    for one in result["arms"]:
        last, about = one["points"][-1], one["about"]
        covered = ", ".join(f"{name} {share:.0%}" for name, share in about.get("covered", {}).items())
        noise = about.get("noise_of_sum_in_clips")
        found.append(
            (
                one["arm"],
                str(one["rounds"]),
                f"{last['auc']:.4f}",
                f"{last['log_loss']:.4f}",
                covered,
                "" if noise is None else f"{noise:.2f}",
            )
        )
    first = result["arms"][0]
    popular = (f"{first['popularity_auc']:.4f}", f"{first['popularity_log_loss']:.4f}")
    return [*found, ("item popularity", "", *popular, "", "")]


def draw(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw AUC by how many clients took part so far, a panel for each cohort of rounds over hot rows."""
    arms = result["arms"]
    cohorts = sorted({one["clients"] for one in arms if one["scheme"] == "hot"}, reverse=True)
    figure, panels = blank(len(cohorts))
    for panel, clients in zip(panels, cohorts, strict=True):
        own = [one for one in arms if one["scheme"] == "hot" and one["clients"] == clients]
        for one in sorted(own, key=lambda one: one["epsilon"]):
            label = "no noise" if math.isinf(one["epsilon"]) else f"epsilon {one['epsilon']:g}"
            panel.plot(*_curve(one), color=_COLORS.get(one["epsilon"]), marker=".", label=label)
        for color, one in zip(_OTHERS, (one for one in arms if one["scheme"] != "hot"), strict=False):
            panel.plot(*_curve(one), color=color, lw=1.0, ls="--", label=one["arm"])
        panel.axhline(arms[0]["popularity_auc"], color="#c8c8c8", lw=1.0, label="item popularity")
        panel.set(ylabel="AUC", title=f"{clients:,} clients a round")
    panels[-1].set(xlabel="turns of a client")
    for panel in panels:
        finish(panel)
    return save(figure, folder, NAME)


def _curve(one: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    """Return turns per client and AUC; rounds that only survey are left out."""
    surveys = one["surveys"]
    shown = [point for point in one["points"] if point["round"] > surveys]
    return [(point["round"] - surveys) * one["clients"] / one["users"] for point in shown], [
        point["auc"] for point in shown
    ]


def _result(out: Path, name: str) -> Path:
    return out / f"{name.replace(' ', '-')}.json"


def write_arm(path: Path, found: Mapping[str, Any]) -> None:
    write_whole(path, with_json_sum(json.dumps(found, indent=1).encode()))


def read_arm(path: Path) -> dict[str, Any]:
    """Read what an arm came to, or its settings."""
    advice = "remove it and its arm is trained again"
    try:
        found: dict[str, Any] = json.loads(without_json_sum(path.read_bytes(), str(path), advice))
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}; {advice}") from None
    return found


def _encoded(config: RunConfig) -> bytes:
    """Return settings in JSON, which has no infinity: no epsilon is one."""
    return with_json_sum(msgspec.json.encode(config))


def main(given: Sequence[str]) -> None:
    name, settings, result = given
    sections = read_arm(Path(settings))
    if sections["privacy"]["epsilon"] is None:
        sections["privacy"]["epsilon"] = math.inf
    write_arm(Path(result), train_one(name, from_sections(sections)))


if __name__ == "__main__":
    main(sys.argv[1:])
