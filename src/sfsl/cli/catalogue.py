"""``sfsl catalogue …``: what a model is about, made from data, grown, shown."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from sfsl.cli.output import Json, present, progress_console, shown, table
from sfsl.cli.tables import (
    Columns,
    Label,
    Scale,
    TextIds,
    Unusable,
    Users,
    left_out,
    table_settings,
)
from sfsl.data.catalogue import Catalogue
from sfsl.data.catalogue_file import read_catalogue, write_catalogue
from sfsl.data.lines import LoadReport
from sfsl.data.plain import UNUSABLE
from sfsl.errors import InputError
from sfsl.settings.run import DataSettings
from sfsl.settings.source import TABLES

app = typer.Typer(help="What a served model is about: its items or words.", no_args_is_help=True)
Out = Annotated[Path, Option("-o", "--out", metavar="FILE", help="The file to write; .gz is packed.")]
Seed = Annotated[int, Option(help="Of synthetic data.")]

Data = Annotated[
    str,
    Argument(
        metavar="DATA",
        help="A table (CSV, TSV, Parquet, JSON lines); amazon:, taobao: or shakespeare: and a file, stored: "
        "and a folder, or synthetic. A table with the columns item or item,category is a list of items.",
    ),
]


@app.command(
    epilog="Examples:  sfsl catalogue make items.csv -o catalogue.json   |   "
    "sfsl catalogue make clicks.csv --columns item=movie_id,user=user_id,time=timestamp --label all "
    "-o catalogue.json.gz   |   "
    "sfsl catalogue make shakespeare:roles.jsonl -o words.json"
)
def make(
    data: Data,
    out: Out,
    columns: Columns = None,
    label: Label = "",
    unusable: Unusable = UNUSABLE,
    text_ids: TextIds = False,
    users: Users = 1000,
    scale: Scale = 0.1,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Make version 1 of a catalogue from a data file: its items or words, and which category each item has.

    Samples do not go into it. Where there are any, statistics of them do: how many rows clients have, and how
    many clients have a row; a server plans its rounds by them and shows them to nobody.
    """
    if out.exists():
        raise InputError(f"{out} exists already; choose another name, or add to it: sfsl catalogue grow")
    made, report = _read(table_settings(data, columns, label, unusable, text_ids, users, scale), seed)
    _write(made, out, report, json)


@app.command(epilog="Example:  sfsl catalogue grow catalogue.json new-items.csv -o catalogue-2.json")
def grow(
    catalogue: Annotated[Path, Argument(metavar="CATALOGUE", help="The version to add to.")],
    data: Data,
    out: Out,
    columns: Columns = None,
    label: Label = "",
    unusable: Unusable = UNUSABLE,
    users: Users = 1000,
    scale: Scale = 0.1,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Make the next version of a catalogue: what is new in DATA is added behind the rows that are there.

    Old rows keep their numbers and categories. A server that is started with the new version goes on with
    its store, and clients follow; new rows count for a client from its next period on.
    """
    if out.exists() and not out.samefile(catalogue):
        raise InputError(f"{out} exists already; choose another name")
    old = read_catalogue(catalogue)
    textual = old.tables[0].textual
    found, report = _read(table_settings(data, columns, label, unusable, textual, users, scale), seed)
    _write(old.grown(found), out, report, json, {one.name: one.rows for one in old.tables})


@app.command(
    epilog="Examples:  sfsl catalogue show catalogue.json   |   sfsl catalogue show catalogue.json --json"
)
def show(
    catalogue: Annotated[Path, Argument(metavar="CATALOGUE", help="The file.")], json: Json = False
) -> None:
    """Show what a catalogue has: its version, its tables, its statistics."""
    found = read_catalogue(catalogue)
    figures = _figures(found)
    rows = [(one["table"], shown(one["rows"]), one["ids"], one["source"] or "") for one in figures["tables"]]
    lines = [f"{key}  {figures[key]}" for key in ("digest", "parent") if figures[key] is not None]
    if found.statistics is not None:
        sizes = ", ".join(f"{name} {count:,}" for name, count in found.statistics.rows.items())
        lines.append(f"of {found.statistics.clients:,} clients; rows of a client: {sizes}")
    heads = ("table", "rows", "ids", "follows from")
    drawn = table(f"{catalogue}, version {found.version}", heads, rows)
    present({"file": str(catalogue), **figures}, json, drawn, *lines)


def _read(settings: DataSettings, seed: int) -> tuple[Catalogue, LoadReport | None]:
    from sfsl.data.plain import is_item_list, load_item_list

    path, columns = settings.path, settings.columns
    if settings.source in ("python", "catalogue"):
        raise InputError(f"a catalogue cannot be made from {settings.source}: data; name a file with samples")
    with progress_console().status(f"Reading {path or 'nothing: data are simulated'}"):
        if settings.source == "shakespeare":
            from sfsl.data import load_shakespeare, speech_of

            roles, report = load_shakespeare(path)
            speech = speech_of(roles)
            return Catalogue.of_words(speech.vocabulary, speech), report
        if settings.source in TABLES and is_item_list(path, columns):
            return load_item_list(
                path, columns=columns, text_ids=settings.text_ids, unusable=settings.unusable
            )
        from sfsl.run.fleet import load_interactions

        clicks, noted = load_interactions(settings, seed)
        return Catalogue.of(clicks, statistics=True), noted


def _write(
    made: Catalogue, out: Path, report: LoadReport | None, json: bool, before: dict[str, int] | None = None
) -> None:
    """Write a catalogue and say what it has; ``before`` holds the rows of the version it grew from."""
    write_catalogue(made, out)
    rows = ", ".join(
        f"{one.rows:,} rows of {one.name}" + (f" ({one.rows - before[one.name]:,} new)" if before else "")
        for one in made.tables
    )
    present(
        {"file": str(out), **_figures(made), "problems": dict(report.problems) if report else {}},
        json,
        f"{out}: version {made.version}, {rows}. Serve it: sfsl serve RUN_FILE --catalogue {out}",
        *left_out(report),
    )


def _figures(catalogue: Catalogue) -> dict[str, Any]:
    known = catalogue.statistics
    return {
        "version": catalogue.version,
        "digest": catalogue.digest.hex(),
        "parent": catalogue.parent.hex() if catalogue.parent is not None else None,
        "users": catalogue.users,
        "tables": [
            {
                "table": one.name,
                "rows": one.rows,
                "ids": "row numbers" if one.ids is None else "text" if one.textual else "numbers",
                "source": one.source,
            }
            for one in catalogue.tables
        ],
        "statistics": known and {"clients": known.clients, "rows": known.rows},
    }
