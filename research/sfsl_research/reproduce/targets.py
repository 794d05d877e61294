"""All targets by name, in the paper's order, and what running one means."""

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from sfsl.errors import InputError
from sfsl_research.reproduce import (
    fig_auc,
    fig_communication,
    fig_computation,
    fig_dropout,
    memory,
    table_privacy,
    table_union,
)
from sfsl_research.reproduce.drawing import blank, save
from sfsl_research.reproduce.page import Made, page
from sfsl_research.reproduce.scales import SCALES
from sfsl_research.reproduce.sheets import put, read_sheet, write_sheet
from sfsl_research.reproduce.target import Job, Target


def _target(
    made: ModuleType, name: str, title: str, about: str, takes: tuple[str, str], **more: Any
) -> Target:
    """``made`` measures, draws and tells; ``takes``: how long at the small scale, and at the paper's."""
    times = dict(zip(SCALES, takes, strict=True))
    return Target(name, title, about, times, made.Row, made.measure, made.draw, made.tell, **more)


_ALL = (
    _target(
        table_privacy,
        "table-privacy",
        "Privacy levels",
        "p5 to p8 and epsilon of CPP1 to CPP5, computed exactly and counted among real answers",
        ("2 s", "5 s"),
    ),
    _target(
        fig_auc,
        "fig-auc",
        "Accuracy and convergence",
        "AUC over rounds: centralized, full-model FL, and SFSL with CPP1 to CPP5",
        ("3 min", "33 min on an H200 for all but ours, days on a CPU"),
        device=fig_auc.device_named,
    ),
    _target(
        fig_communication,
        "fig-communication",
        "Communication per client and round",
        "MiB per client and round, CPP1 to CPP5 and the full model, by cohort size",
        ("3 min", "7 min"),
        repeated=True,
    ),
    _target(
        fig_computation,
        "fig-computation",
        "Computation of client and server per round",
        "CPU seconds of a client and of the server, from the same rounds as fig-communication",
        ("none after fig-communication", "none likewise"),
        repeated=True,
    ),
    _target(
        table_union,
        "table-union",
        "Private set union by itself",
        "MiB and CPU seconds of the private set union, by cohort size",
        ("5 s", "30 s"),
        repeated=True,
    ),
    _target(
        fig_dropout,
        "fig-dropout",
        "The server when clients drop out",
        "CPU seconds of the server by share of clients that vanish, union and sums apart",
        ("4 min", "12 min"),
        repeated=True,
    ),
    _target(
        memory,
        "memory",
        "Memory of client and server",
        "MiB of a client's and of the server's process at the peak of a round",
        ("3 min", "4 min"),
    ),
)
TARGETS: dict[str, Target] = {one.name: one for one in _ALL}
ALL = "all"
PAGE, MADE = "index.html", "made.json"


def chosen(names: Sequence[str]) -> list[Target]:
    unknown = [name for name in names if name not in TARGETS and name != ALL]
    if unknown:
        raise InputError(f"no target {unknown[0]!r}; there are {', '.join(TARGETS)}, and {ALL}")
    return [one for name, one in TARGETS.items() if name in names or ALL in names]


def reproduce(target: Target, job: Job) -> tuple[list[Any], list[Path]]:
    """Measure what is not there yet, write rows and pictures, and the page anew from all that is there.

    When and where it was made is when the rows last changed; curves that were brought here say nothing of it.
    """
    blank(1)  # without matplotlib or a folder, say so before minutes of measuring
    try:
        job.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot make the folder {job.out}: {error.strerror}; choose another --out"
        ) from None
    rows = target.measure(job)
    sheet = job.out / f"{target.name}.csv"
    old = sheet.read_bytes() if sheet.exists() else b""
    write_sheet(sheet, target.rows, rows)
    if job.stop_after > 0 and sheet.read_bytes() != old:
        _write_made(job, target)
    pictures = save(target.draw(rows), job.out, target.name)
    return rows, [sheet, *pictures, write_page(job.out)]


def write_page(out: Path) -> Path:
    """From whatever targets' rows the folder holds."""
    made = _read_made(out)
    sections = []
    for target in TARGETS.values():
        rows = read_sheet(out / f"{target.name}.csv", target.rows)
        if rows:
            picture = out / f"{target.name}.png"
            if not picture.exists():
                save(target.draw(rows), out, target.name)
            sections.append((target, target.tell(rows), picture.read_bytes(), made.get(target.name)))
    put(out / PAGE, page(sections).encode())
    return out / PAGE


def _write_made(job: Job, target: Target) -> None:
    made = _read_made(job.out)
    only = f" --only {','.join(job.only)}" if job.only else ""
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    made[target.name] = Made(
        command=f"sfsl reproduce {target.name} --scale {job.scale.name} --seed {job.seed}{only}",
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        machine=", ".join(filter(None, [target.device(job), machine])),
        runs=job.scale.repeats if target.repeated else 1,
    )
    put(job.out / MADE, msgspec.json.format(msgspec.json.encode(made), indent=2) + b"\n")


def _read_made(out: Path) -> dict[str, Made]:
    try:
        return msgspec.json.decode((out / MADE).read_bytes(), type=dict[str, Made])
    except (OSError, msgspec.MsgspecError):
        return {}  # only what the page says about when and where is lost
