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
from sfsl.report.run_plots import as_png, pictures, save
from sfsl.report.runs import read_runs

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
    """Compare runs: AUC curves, costs, dropouts, privacy, as PNG, SVG and one self-contained page."""
    read = read_runs(runs, last=last)
    compared, drawn = [figures(run) for run in read], pictures(read)
    try:
        out.mkdir(parents=True, exist_ok=True)
        written = save(drawn, out)
        text = page(read, compared, {name: as_png(figure) for name, figure in drawn.items()})
        write_whole(out / PAGE, text.encode())
    except OSError as error:
        raise InputError(f"cannot write to {out}: {error.strerror}; choose another folder, --out") from None
    if json:
        emit_json({"runs": compared, "files": [str(out / PAGE), *map(str, written)]})
        return
    show = console()
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
    for run in read:
        if run.verdict:
            show.print(f"{run.name}: {run.verdict}", highlight=False)
    show.print(f"Page: {out / PAGE}; pictures beside it, as .png and .svg.")
