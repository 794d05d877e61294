"""``sfsl data``: interactions made or read once, and stored for many runs."""

from pathlib import Path
from typing import Annotated

import typer

from sfsl.cli.output import console, emit_json, progress_console
from sfsl.errors import InputError
from sfsl.settings.run import DataSettings

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def register(app: typer.Typer) -> None:
    app.command(epilog="Example:  sfsl data big && sfsl run --data stored:big --sums plain --device cuda")(
        data
    )


def data(
    out: Annotated[Path, typer.Argument(help="The folder to write; it must not exist.")],
    source: Annotated[
        str, typer.Option("--data", help="synthetic, or amazon:, taobao:, csv: or parquet: and a file")
    ] = "synthetic",
    users: Annotated[int, typer.Option(help="Synthetic: how many clients.")] = 49_023,
    scale: Annotated[float, typer.Option(help="Synthetic: 1 is the paper's 143,534 items.")] = 1.0,
    text_ids: Annotated[bool, typer.Option(help="CSV and Parquet: ids are any text.")] = False,
    seed: Annotated[int, typer.Option(help="Of simulated data, and of negatives.")] = 0,
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
    found = {
        "folder": str(out),
        "samples": len(made),
        "users": len(made.users),
        "items": len(made.items),
        "bytes": sum(file.stat().st_size for file in out.iterdir()),
        "problems": {} if report is None else dict(report.problems),
    }
    if json:
        emit_json(found)
        return
    console().print(
        f"{found['samples']:,} samples of {found['users']:,} users and {found['items']:,} items in {out}. "
        f"Train on them: sfsl run --data stored:{out}"
    )
    if report is not None and report.problems:
        left = ", ".join(f"{what} ({count:,})" for what, count in report.problems.items())
        console().print(f"Left out: {left}")
