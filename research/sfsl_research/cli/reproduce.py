"""``sfsl reproduce``: the paper's figures and tables, measured here, beside what the paper printed."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from sfsl.cli.output import console, emit_json, progress_console, table
from sfsl.errors import InputError
from sfsl_research.reproduce.scales import scale_named
from sfsl_research.reproduce.target import Job, Report
from sfsl_research.reproduce.targets import ALL, PAGE, TARGETS, chosen
from sfsl_research.reproduce.targets import reproduce as make

INTERRUPTED = 130


def reproduce(
    targets: Annotated[
        list[str] | None, typer.Argument(metavar="TARGET", help=f"Targets by name, or {ALL}.")
    ] = None,
    scale: Annotated[str, typer.Option(help="small: minutes on two cores; paper: all of it.")] = "small",
    out: Annotated[Path, typer.Option(help="Folder for rows, pictures and the page.")] = Path("reproduced"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of simulated data and dropouts, not of keys.")] = 0,
    device: Annotated[
        str, typer.Option(help="Of fig-auc: cuda, cpu, or auto, which takes a GPU where there is one.")
    ] = "auto",
    stop_after: Annotated[
        float | None,
        typer.Option(min=0, help="Minutes until fig-auc stops; asked again it goes on. 0 only draws."),
    ] = None,
    only: Annotated[str | None, typer.Option(help="Of fig-auc: some curves, such as fl,cpp2,ours.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the targets.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Make the paper's figures and tables again: rows as CSV, pictures as PNG and SVG, and one page.

    Costs are measured on the real masked protocol at the paper's size; --scale small measures fewer points.
    What was measured is kept in --out: a target that was stopped goes on when it is asked for again, and the
    page is made anew from all targets that are there.
    """
    if listed or not targets:
        _list(json)
        return
    size, wanted = scale_named(scale), chosen(targets)
    if stop_after is not None and math.isnan(stop_after):
        raise InputError("--stop-after nan: how many minutes?")
    some = tuple(dict.fromkeys(one.strip() for one in only.split(","))) if only else ()
    seconds = math.inf if stop_after is None else 60 * stop_after
    found: dict[str, Any] = {}
    files: dict[Path, None] = {}
    screen = progress_console()
    try:
        for target in wanted:
            with _shown(screen, target.name) as progress:
                rows, written = make(target, Job(out, size, seed, progress, device, seconds, some))
            found[target.name] = rows
            files.update(dict.fromkeys(written))
    except KeyboardInterrupt:
        screen.print("Stopped. What was measured is kept; the same command goes on.")
        raise typer.Exit(INTERRUPTED) from None
    if json:
        emit_json(
            {"targets": {name: _plain(rows) for name, rows in found.items()}, "files": [*map(str, files)]}
        )
        return
    for target in wanted:
        story = target.tell(found[target.name])
        console().print(table(target.title, story.heads, story.table))
        for text in story.differs:
            console().print(text, highlight=False)
    console().print(f"Page: {out / PAGE}; rows and pictures beside it, as .csv, .png and .svg.")


def register(app: typer.Typer) -> None:
    app.command(
        epilog="Examples:  sfsl reproduce --list   |   sfsl reproduce table-privacy   |   "
        "sfsl reproduce fig-communication fig-computation --scale paper --out reproduced   |   "
        "sfsl reproduce all --json"
    )(reproduce)


def _list(json: bool) -> None:
    if json:
        emit_json({name: {"about": one.about, "takes": one.takes} for name, one in TARGETS.items()})
        return
    for name, one in TARGETS.items():
        takes = ", ".join(f"{scale}: {time}" for scale, time in one.takes.items())
        console().print(f"{name:<18} {one.about} ({takes})", highlight=False, soft_wrap=True)
    console().print(
        f"\nRun one, several, or {ALL}:  sfsl reproduce table-privacy --out reproduced", highlight=False
    )


def _plain(rows: list[Any]) -> Any:
    """Infinity is null in JSON."""
    return msgspec.json.decode(msgspec.json.encode(rows))


@contextmanager
def _shown(screen: Console, name: str) -> Iterator[Report]:
    """A bar on a terminal; elsewhere a line for each step."""
    bar = Progress(
        TextColumn("{task.fields[target]}"),
        BarColumn(20),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=screen,
        disable=not screen.is_terminal,
        transient=True,
    )
    with bar:
        line = bar.add_task("", total=1, target=name)

        def report(doing: str, done: int, total: int) -> None:
            bar.update(line, description=doing, completed=done, total=total)
            if not screen.is_terminal and doing:
                screen.print(f"{name} {done + 1}/{total}: {doing}", highlight=False, soft_wrap=True)

        yield report
