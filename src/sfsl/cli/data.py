"""``sfsl data``: interactions made or read once, and stored for many runs."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from sfsl.cli.output import Json, console, emit_json, progress_console
from sfsl.data.lines import LoadReport
from sfsl.errors import InputError
from sfsl.settings.run import DataSettings

Users = Annotated[int, Option(help="Synthetic: how many clients.")]
Scale = Annotated[float, Option(help="Synthetic: 1 is the paper's 143,534 items.")]
TextIds = Annotated[bool, Option(help="CSV and Parquet: ids are any text.")]


def register(app: typer.Typer) -> None:
    example = "Example:  sfsl data big && sfsl run --data stored:big --sums plain --device cuda"
    app.command(epilog=example)(data)


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
    if json:
        counts = {"samples": len(made), "users": len(made.users), "items": len(made.items)}
        size = sum(file.stat().st_size for file in out.iterdir())
        problems = dict(report.problems) if report else {}
        emit_json({"folder": str(out), **counts, "bytes": size, "problems": problems})
        return
    console().print(
        f"{len(made):,} samples of {len(made.users):,} users and {len(made.items):,} items in {out}. "
        f"Train on them: sfsl run --data stored:{out}"
    )
    for line in left_out(report):
        console().print(line)


def left_out(report: LoadReport | None) -> list[str]:
    """A line that says what reading left out, where it left out anything."""
    problems = report.problems if report else {}
    said = ", ".join(f"{what} ({count:,})" for what, count in problems.items())
    return [f"Left out: {said}"] if said else []
