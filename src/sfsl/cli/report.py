"""``sfsl report``: runs side by side, as pictures and one page."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from sfsl.cli.output import Json, console, emit_json, table
from sfsl.durable import write_whole
from sfsl.errors import InputError
from sfsl.report.comparison import (
    baseline_table,
    client_table,
    cost_table,
    figures,
    learning_table,
    privacy_table,
    without_privacy,
)
from sfsl.report.page import page
from sfsl.report.run_plots import as_svg, pictures, save
from sfsl.report.runs import read_runs
from sfsl.report.words import opening

PAGE = "report.html"


def report(
    runs: Annotated[
        list[Path], Argument(metavar="RUN…", help="Folders of runs and of servers; bundles of them.")
    ],
    out: Annotated[Path, Option(help="Folder for the pictures and the page.")] = Path("report"),
    last: Annotated[
        bool, Option("--last", help="Judge runs by their last models, not by the best on validation.")
    ] = False,
    json: Json = False,
) -> None:
    """Show a run, or compare several: in words, quality, costs, privacy and settings on one page to open, and
    pictures as PNG and SVG."""
    read = read_runs(runs, last=last)
    compared, drawn = [figures(run) for run in read], pictures(read)
    try:
        out.mkdir(parents=True, exist_ok=True)
        written = save(drawn, out)
        text = page(read, compared, {name: as_svg(figure) for name, figure in drawn.items()})
        write_whole(out / PAGE, text.encode())
    except OSError as error:
        raise InputError(f"cannot write to {out}: {error.strerror}; choose another folder, --out") from None
    if json:
        emit_json({"runs": compared, "files": [str(out / PAGE), *map(str, written)]})
        return
    show = console()
    for run, one in zip(read, compared, strict=True):
        show.print(f"{run.name}: {' '.join(opening(run, one).values())}\n", highlight=False, markup=False)
    tables = {
        "Learning": learning_table(compared),
        "Beside the baselines": baseline_table(compared),
        "Costs per client and round, and of the server": cost_table(compared),
        "Clients": client_table(compared),
        "Privacy": privacy_table(compared),
    }
    for title, (heads, rows) in tables.items():
        if rows:
            show.print(table(title, heads, rows))
    if missing := without_privacy(compared):
        show.print(missing)
    show.print(f"Page: {out / PAGE}; pictures beside it, as .png and .svg.")
