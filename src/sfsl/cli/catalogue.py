"""``sfsl catalogue …``: what a model is about, made from data, grown, shown."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sfsl.cli.output import console, emit_json, progress_console, shown, table
from sfsl.data.catalogue import Catalogue
from sfsl.data.catalogue_file import read_catalogue, write_catalogue
from sfsl.data.lines import LoadReport
from sfsl.errors import InputError

app = typer.Typer(help="What a served model is about: its items or words.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="csv:, parquet:, amazon:, taobao: or shakespeare: and a file, stored: and a folder, or "
        "synthetic. A CSV with the columns item or item,category is a list of items.",
    ),
]
Out = Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="The file to write; .gz is packed.")]
Users = Annotated[int, typer.Option(help="Synthetic: how many clients.")]
Scale = Annotated[float, typer.Option(help="Synthetic: 1 is the paper's 143,534 items.")]
Seed = Annotated[int, typer.Option(help="Of synthetic data.")]
_CLICKS = ("synthetic", "amazon", "taobao", "csv", "parquet", "stored")


@app.command(
    epilog="Examples:  sfsl catalogue make csv:items.csv -o catalogue.json   |   "
    "sfsl catalogue make csv:clicks.csv --text-ids -o catalogue.json.gz   |   "
    "sfsl catalogue make shakespeare:roles.jsonl -o words.json"
)
def make(
    data: Data,
    out: Out,
    text_ids: Annotated[bool, typer.Option(help="CSV and Parquet: ids are any text.")] = False,
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
    made, report = _catalogue_of(data, text_ids, users, scale, seed)
    write_catalogue(made, out)
    _told(made, out, report, json)


@app.command(epilog="Example:  sfsl catalogue grow catalogue.json csv:new-items.csv -o catalogue-2.json")
def grow(
    catalogue: Annotated[Path, typer.Argument(metavar="CATALOGUE", help="The version to add to.")],
    data: Data,
    out: Out,
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
    found, report = _catalogue_of(data, old.tables[0].textual, users, scale, seed)
    grown = old.grown(found)
    write_catalogue(grown, out)
    _told(grown, out, report, json, old)


@app.command(
    epilog="Examples:  sfsl catalogue show catalogue.json   |   sfsl catalogue show catalogue.json --json"
)
def show(
    catalogue: Annotated[Path, typer.Argument(metavar="CATALOGUE", help="The file.")], json: Json = False
) -> None:
    """Show what a catalogue has: its version, its tables, its statistics."""
    found = read_catalogue(catalogue)
    figures = _figures(found)
    if json:
        emit_json({"file": str(catalogue), **figures})
        return
    rows = [(one["table"], shown(one["rows"]), one["ids"], one["source"] or "") for one in figures["tables"]]
    console().print(
        table(f"{catalogue}, version {found.version}", ("table", "rows", "ids", "follows from"), rows)
    )
    typer.echo(f"digest  {figures['digest']}")
    if found.parent is not None:
        typer.echo(f"parent  {figures['parent']}")
    if found.statistics is not None:
        sizes = ", ".join(f"{name} {count:,}" for name, count in found.statistics.rows.items())
        typer.echo(f"of {found.statistics.clients:,} clients; rows of a client: {sizes}")


def _catalogue_of(
    data: str, text_ids: bool, users: int, scale: float, seed: int
) -> tuple[Catalogue, LoadReport | None]:
    from sfsl.data.plain import is_item_list, load_item_list
    from sfsl.settings.run import DataSettings

    kind, _, path = data.partition(":")
    if kind not in (*_CLICKS, "shakespeare") and Path(data).is_file():
        kind, path = "csv", data
    if kind not in (*_CLICKS, "shakespeare") or (kind == "synthetic") != (path == ""):
        raise InputError(
            f"DATA {data!r}: synthetic, or {':, '.join(_CLICKS[1:])}: or shakespeare: and a file or folder"
        )
    with progress_console().status(f"Reading {path or 'nothing: data are simulated'}"):
        if kind == "shakespeare":
            from sfsl.data import load_shakespeare, speech_of

            roles, report = load_shakespeare(path)
            speech = speech_of(roles)
            return Catalogue.of_words(speech.vocabulary, speech), report
        if kind == "csv" and is_item_list(path):
            return load_item_list(path, text_ids=text_ids)
        from sfsl.run.fleet import load_interactions

        chosen: Any = kind
        settings = DataSettings(source=chosen, path=path, users=users, scale=scale, text_ids=text_ids)
        clicks, noted = load_interactions(settings, seed)
        return Catalogue.of(clicks, statistics=True), noted


def _told(
    made: Catalogue, out: Path, report: LoadReport | None, json: bool, old: Catalogue | None = None
) -> None:
    problems = {} if report is None else dict(report.problems)
    if json:
        emit_json({"file": str(out), **_figures(made), "problems": problems})
        return
    before = {} if old is None else {one.name: one.rows for one in old.tables}
    rows = ", ".join(
        f"{one.rows:,} rows of {one.name}" + (f" ({one.rows - before[one.name]:,} new)" if before else "")
        for one in made.tables
    )
    typer.echo(f"{out}: version {made.version}, {rows}. Serve it: sfsl serve RUN_FILE --catalogue {out}")
    if problems:
        typer.echo(f"Left out: {', '.join(f'{what} ({count:,})' for what, count in problems.items())}")


def _figures(catalogue: Catalogue) -> dict[str, Any]:
    known = catalogue.statistics
    return {
        "version": catalogue.version,
        "digest": catalogue.digest.hex(),
        "parent": None if catalogue.parent is None else catalogue.parent.hex(),
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
        "statistics": None if known is None else {"clients": known.clients, "rows": known.rows},
    }
