"""``sfsl data``: interactions made or read once, and stored for many runs; and ``sfsl catalogue …``: what a
model is about, made from data, grown, shown."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from sfsl.cli.output import Json, present, progress_console, shown, table
from sfsl.data.catalogue import Catalogue
from sfsl.data.catalogue_file import read_catalogue, write_catalogue
from sfsl.data.lines import LoadReport
from sfsl.errors import InputError
from sfsl.settings.run import DataSettings

Users = Annotated[int, Option(help="Synthetic: how many clients.")]
Scale = Annotated[float, Option(help="Synthetic: 1 is the paper's 143,534 items.")]
TextIds = Annotated[bool, Option(help="CSV and Parquet: ids are any text.")]
app = typer.Typer(help="What a served model is about: its items or words.", no_args_is_help=True)
Out = Annotated[Path, Option("-o", "--out", metavar="FILE", help="The file to write; .gz is packed.")]
Seed = Annotated[int, Option(help="Of synthetic data.")]
_CLICKS = ("synthetic", "amazon", "taobao", "csv", "parquet", "stored")


def data(
    out: Annotated[Path, Argument(help="The folder to write; it must not exist.")],
    source: Annotated[
        str, Option("--data", help="synthetic, or amazon:, taobao:, csv: or parquet: and a file")
    ] = "synthetic",
    users: Users = 49_023,
    scale: Scale = 1.0,
    text_ids: TextIds = False,
    seed: Annotated[int, Option(help="Of simulated data, and of negatives.")] = 0,
    json: Json = False,
) -> None:
    """Store the samples of a data set as flat files with checksums, which runs map into memory.

    By default a synthetic data set of the paper's size: 49,023 clients and 15.8 million samples.
    """
    from sfsl.data.stored import store_interactions
    from sfsl.run.fleet import load_interactions

    if out.exists():
        raise InputError(f"{out} exists already; choose another folder, or remove it")
    kind, _, path = source.partition(":")
    if kind not in ("synthetic", "amazon", "taobao", "csv", "parquet"):
        raise InputError(f"--data {source!r}: synthetic, or amazon:, taobao:, csv: or parquet: and a file")
    settings = DataSettings(source=kind, path=path, users=users, scale=scale, text_ids=text_ids)  # type: ignore[arg-type]
    with progress_console().status("Making samples" if kind == "synthetic" else f"Reading {path}"):
        made, report = load_interactions(settings, seed)
    with progress_console().status(f"Storing {len(made):,} samples"):
        about = f"{source}, seed {seed}" + (f", {users} users, scale {scale}" if kind == "synthetic" else "")
        store_interactions(made, out, about=about)
    counts = {"samples": len(made), "users": len(made.users), "items": len(made.items)}
    size = sum(file.stat().st_size for file in out.iterdir())
    problems = dict(report.problems) if report else {}
    present(
        {"folder": str(out), **counts, "bytes": size, "problems": problems},
        json,
        "{samples:,} samples of {users:,} users and {items:,} items".format(**counts)
        + f" in {out}. Train on them: sfsl run --data stored:{out}",
        *left_out(report),
    )


def left_out(report: LoadReport | None) -> list[str]:
    """A line that says what reading left out, where it left out anything."""
    problems = report.problems if report else {}
    said = ", ".join(f"{what} ({count:,})" for what, count in problems.items())
    return [f"Left out: {said}"] if said else []


Data = Annotated[
    str,
    Argument(
        metavar="DATA",
        help="csv:, parquet:, amazon:, taobao: or shakespeare: and a file, stored: and a folder, or "
        "synthetic. A CSV with the columns item or item,category is a list of items.",
    ),
]


@app.command(
    epilog="Examples:  sfsl catalogue make csv:items.csv -o catalogue.json   |   "
    "sfsl catalogue make csv:clicks.csv --text-ids -o catalogue.json.gz   |   "
    "sfsl catalogue make shakespeare:roles.jsonl -o words.json"
)
def make(
    data: Data,
    out: Out,
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
    made, report = _read(data, text_ids, users, scale, seed)
    _write(made, out, report, json)


@app.command(epilog="Example:  sfsl catalogue grow catalogue.json csv:new-items.csv -o catalogue-2.json")
def grow(
    catalogue: Annotated[Path, Argument(metavar="CATALOGUE", help="The version to add to.")],
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
    found, report = _read(data, old.tables[0].textual, users, scale, seed)
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


def _read(
    data: str, text_ids: bool, users: int, scale: float, seed: int
) -> tuple[Catalogue, LoadReport | None]:
    from sfsl.data.plain import is_item_list, load_item_list

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

        settings = DataSettings(source=kind, path=path, users=users, scale=scale, text_ids=text_ids)  # type: ignore[arg-type]
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
