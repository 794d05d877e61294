"""Flags that say where samples are and what their columns mean, the same in every command."""

from typing import Annotated, Any

from typer import Option

from sfsl.data.lines import LoadReport
from sfsl.errors import InputError
from sfsl.settings.run import DataSettings
from sfsl.settings.sections import section_from
from sfsl.settings.source import TABLES, columns_of, source_of

Columns = Annotated[
    str | None,
    Option(
        metavar="FIELD=COLUMN,…",
        help="Tables: columns of user, item, label, time and category, where they are called otherwise: "
        "user=user_id,item=movie_id,time=timestamp",
    ),
]
Label = Annotated[
    str,
    Option(
        metavar="RULE",
        help="Tables: which lines are clicks: rating>=4, behavior=buy, a column of 0 and 1, or all.",
    ),
]
Unusable = Annotated[float, Option(help="Tables: refuse one with a larger share of unusable lines.")]
TextIds = Annotated[bool, Option(help="Tables: take ids for text even if they are whole numbers.")]
Users = Annotated[int, Option(help="Synthetic: how many clients.")]
Scale = Annotated[float, Option(help="Synthetic: 1 is the paper's 143,534 items.")]


def table_flags(data: str | None, columns: str | None, label: str, unusable: float | None) -> dict[str, Any]:
    """Return the settings that these flags stand for, by their names."""
    flags: dict[str, Any] = {}
    if data is not None:
        flags["data.source"], flags["data.path"] = source_of(data)
    if columns is not None:
        flags["data.columns"] = columns_of(columns)
    if label:
        flags["data.label"] = label
    if unusable is not None:
        flags["data.unusable"] = unusable
    return flags


def table_settings(
    data: str,
    columns: str | None,
    label: str,
    unusable: float,
    text_ids: bool,
    users: int = 1000,
    scale: float = 0.1,
) -> DataSettings:
    """Return the section [data] of these flags alone."""
    flags = table_flags(data, columns, label, unusable)
    content = {name.removeprefix("data."): value for name, value in flags.items()}
    made = section_from(
        "data", DataSettings, content | {"text_ids": text_ids, "users": users, "scale": scale}
    )
    if (made.source == "synthetic") != (made.path == ""):
        raise InputError(f"--data {data!r}: synthetic data has no path, and every other kind needs one")
    if made.source not in TABLES and (made.columns or made.label):
        raise InputError(f"--columns and --label are for tables, and {data!r} has a form of its own")
    return made


def left_out(report: LoadReport | None) -> list[str]:
    """A line that says what reading left out, where it left out anything."""
    problems = report.problems if report else {}
    said = ", ".join(f"{what} ({count:,})" for what, count in problems.items())
    return [f"Left out: {said}"] if said else []
