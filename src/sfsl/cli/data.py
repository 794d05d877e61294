"""``sfsl data …``: a first look at one's data, public data sets, and samples stored for many runs."""

from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import click
import msgspec
import typer
from typer import Argument, Option
from typer.core import TyperGroup

from sfsl.cli.fetch import fetch
from sfsl.cli.output import Json, facts, plain, present, progress_console, table
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
from sfsl.data.inspect import Inspection, inspect_table
from sfsl.data.plain import UNUSABLE
from sfsl.durable import write_new
from sfsl.errors import InputError
from sfsl.plan.data import DataFigures, DataPlan, count_data, plan_data
from sfsl.settings.source import columns_of


class _DataGroup(TyperGroup):
    """What is no command is a folder for samples: ``sfsl data FOLDER`` is ``sfsl data store FOLDER``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "--help"):
            args = ["store", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_DataGroup,
    no_args_is_help=True,
    help="Look at your data, fetch public ones, store samples for many runs.",
)


@app.command(
    epilog="Examples:  sfsl data inspect ratings.csv   |   sfsl data inspect ratings.csv --json   |   "
    'sfsl data inspect log.parquet --columns user=visitor,item=sku,time=at --label "event=buy"'
)
def inspect(
    file: Annotated[Path, Argument(help="CSV (also with ; or tabs), Parquet or JSON lines; also .gz.")],
    columns: Columns = None,
    label: Label = "",
    unusable: Unusable = UNUSABLE,
    text_ids: TextIds = False,
    json: Json = False,
) -> None:
    """Show what a file holds: its columns, which are likely user, item, label and time and why, what would be
    left out, and what learning and privacy it allows. Nothing is written and nothing trained."""
    given = None if columns is None else columns_of(columns)
    with progress_console().status(f"Reading {file}"):
        found = inspect_table(file, columns=given, label=label, text_ids=text_ids, unusable=unusable)
    figures, planned = None, None
    if found.data is not None:
        with progress_console().status("Planning"):
            figures, planned = count_data(found.data), _planned(found)
    if json:
        present(_inspected(found, figures, planned), json)
        return
    seen = [
        (one.name, one.kind, f"{one.different:,}", f"{one.empty:,}", ", ".join(one.examples))
        for one in found.columns
    ]
    title = f"{file}: {found.format}" + (f", {found.report.rows:,} lines" if found.report else "")
    lines: list[Any] = [table(title, ("column", "holds", "different", "empty", "such as"), seen)]
    lines += [f"{one.field}: {one.column} ({one.reason})" for one in found.guesses]
    if found.rule and not label:
        lines.append(
            f'Which lines are clicks is not guessed; a rule to begin with: --label "{found.rule}", or '
            "--label all"
        )
    lines += left_out(found.report)
    if figures is not None:
        lines += [_counted(figures), *_allowed(figures, planned)]
    lines.append(
        f"A run would refuse this: {found.refused}"
        if found.refused
        else f"Train on it: sfsl run --data {file} {found.flags}".rstrip()
    )
    present({}, json, *lines)


def _planned(found: Inspection) -> DataPlan | None:
    try:
        return plan_data(found.data) if found.data is not None else None
    except ImportError:  # torch, which the size of a model needs
        return None


def _inspected(found: Inspection, figures: DataFigures | None, planned: DataPlan | None) -> dict[str, Any]:
    report = found.report
    return {
        "source": found.source,
        "format": found.format,
        "lines": report.rows if report else None,
        "samples": report.samples if report else None,
        "columns": [asdict(one) for one in found.columns],
        "guesses": [asdict(one) for one in found.guesses],
        "rule": found.rule,
        "missing": list(found.missing),
        "refused": found.refused,
        "flags": found.flags,
        "problems": dict(report.problems) if report else {},
        "figures": asdict(figures) if figures else None,
        "plan": plain(msgspec.to_builtins(planned)) if planned else None,
    }


def _counted(figures: DataFigures) -> Any:
    def spread(one: Any) -> str:
        return f"{one.low:,} / {one.middle:,} / {one.high:,}, at most {one.most:,}"

    return facts(
        "What it holds",
        {
            "samples, users, items": f"{figures.samples:,}, {figures.users:,}, {figures.items:,}",
            "share of clicks": f"{figures.clicks:.1%}",
            "samples per user: a tenth / half / nine tenths have up to": spread(figures.per_user),
            "owners per item: a tenth / half / nine tenths have up to": spread(figures.owners),
            "items that one user alone has": f"{figures.lonely:.1%}",
            "users that can train": f"{figures.learning:,}",
            "users with samples to test on": f"{figures.tested:,}",
        },
    )


def _allowed(figures: DataFigures, planned: DataPlan | None) -> list[str]:
    """Say in sentences what learning and which privacy these data allow."""
    if planned is None:
        return []
    hot = planned.hot
    lines = [
        f"The paper's scheme (--scheme sfsl): of {planned.union:,.0f} items of {planned.clients:,} clients "
        f"{planned.opened:.0%} are asked for by {planned.min_contributors} or more, as opening a row takes; "
        f"epsilon of a row's answers is {planned.epsilon:.3g} with {planned.preset}, and sums are exact."
    ]
    verdict = "enough" if hot.large_enough else "too few: " + "; ".join(hot.problems)
    lines.append(
        f"Under differential privacy (--scheme hot, epsilon {hot.epsilon:g}), {hot.fleet:,} clients are "
        f"{verdict}."
    )
    if figures.owners.middle < 2:
        lines.append("Half of all items have one owner: what is learned of them, they learn alone.")
    return lines


@app.command(epilog="Example:  sfsl data store big && sfsl run --data stored:big --sums plain --device cuda")
def store(
    out: Annotated[Path, Argument(help="The folder to write; it must not exist.")],
    source: Annotated[
        str, Option("--data", help="A table (CSV, Parquet, …), amazon: or taobao: and a file, or synthetic")
    ] = "synthetic",
    columns: Columns = None,
    label: Label = "",
    unusable: Unusable = UNUSABLE,
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
    settings = table_settings(source, columns, label, unusable, text_ids, users, scale)
    kind, path = settings.source, settings.path
    if kind in ("stored", "shakespeare", "python", "catalogue"):
        raise InputError(f"--data {source!r}: synthetic, a table, or amazon: or taobao: and a file")
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


SAMPLE = Path("ratings.csv")
_TRAINED = 'sfsl run --data {out} --columns user=user_id,item=movie_id,time=timestamp --label "rating>=4"'


@app.command(epilog="Example:  sfsl data sample && sfsl data inspect ratings.csv")
def sample(
    out: Annotated[Path, Option("-o", "--out", metavar="FILE", help="The file to write.")] = SAMPLE,
    json: Json = False,
) -> None:
    """Write a small file of made-up film ratings to try everything with: user_id, movie_id, rating,
    timestamp. It comes with the package; nothing is fetched."""
    import gzip

    content = gzip.decompress((files("sfsl.data") / "sample.csv.gz").read_bytes())
    try:
        write_new(out, content)
    except FileExistsError:
        raise InputError(f"{out} exists already; choose another name with --out, or remove it") from None
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror}") from None
    ratings = content.count(b"\n") - 1
    said = f"Wrote {out}: {ratings:,} made-up ratings. Look at it: sfsl data inspect {out}. Train on it: "
    present({"file": str(out), "ratings": ratings}, json, said + _TRAINED.format(out=out))


app.command(
    epilog="Examples:  sfsl data fetch   |   sfsl data fetch movielens-100k --accept   |   "
    "sfsl data fetch taobao --from UserBehavior.csv.zip --accept --out taobao.csv"
)(fetch)
