"""What commands print: one JSON object for scripts, tables for people, errors on stderr."""

import json
import math
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from sfsl.errors import SfslError, SlowerTraining


def emit_json(result: Mapping[str, Any]) -> None:
    typer.echo(json.dumps(result, indent=2))


def plain(value: Any) -> Any:
    """JSON has no infinity: it is written as a string."""
    value = msgspec.to_builtins(value)
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return "infinity" if isinstance(value, float) and math.isinf(value) else value


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """The first column names things and is left-aligned; the others hold figures."""
    made = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        made.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        made.add_row(*row)
    return made


def shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def console() -> Console:
    return Console()


def progress_console() -> Console:
    """Progress goes to stderr, so that --json output stays clean."""
    return Console(stderr=True)


def fail(error: SfslError) -> None:
    typer.echo(f"sfsl: {error}", file=sys.stderr)


@contextmanager
def warned() -> Iterator[None]:
    """Warnings of ours as one line on stderr; those of others are Python's business."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
            if issubclass(category, SlowerTraining):
                typer.echo(f"sfsl: {message}", file=sys.stderr)
            else:
                usual(message, category, *rest, **more)

        warnings.showwarning = show
        yield
