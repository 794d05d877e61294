"""What commands read and print: values of flags, JSON for scripts, tables for people, a clean stop."""

import asyncio
import json as json_text
import math
import signal
import sys
import warnings
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from fractions import Fraction
from typing import Annotated, Any, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from sfsl.errors import InputError, SfslError, SlowerTraining
from sfsl.privacy import PRESETS, IndexPrivacy

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Any key; repeatable.")
]
Track = Annotated[
    list[str] | None,
    typer.Option(help="run.track: tensorboard, mlflow or wandb, told of every round; repeatable."),
]

INTERRUPTED = 130
TERMINATED = 143

Result = TypeVar("Result")


def emit_json(result: Mapping[str, Any]) -> None:
    typer.echo(json_text.dumps(result, indent=2))


def present(result: Mapping[str, Any], json: bool, *texts: str | Table) -> None:
    """Print a result for scripts, as one JSON object, or else for people, as lines and tables."""
    if json:
        emit_json(result)
        return
    for text in texts:
        if isinstance(text, Table):
            console().print(text)
        else:
            typer.echo(text)


def plain(value: Any) -> Any:
    """JSON has no infinity: it is written as a string."""
    value = msgspec.to_builtins(value)
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return "infinity" if isinstance(value, float) and math.isinf(value) else value


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Lay out rows. The first column names things and is left-aligned; the others hold figures."""
    made = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        made.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        made.add_row(*row)
    return made


def facts(title: str, values: Mapping[str, object]) -> Table:
    """Lay out named values, one a row."""
    return table(title, ("", ""), [(name, shown(value)) for name, value in values.items()])


def shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def moment(milliseconds: int) -> str:
    """Write a time, in milliseconds since 1970, as ISO 8601 has it."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")


def console() -> Console:
    return Console()


def progress_console(quiet: bool = False) -> Console:
    """Progress goes to stderr, so that --json output stays clean."""
    return Console(stderr=True, quiet=quiet)


@contextmanager
def warned() -> Iterator[None]:
    """Print warnings of ours as one line on stderr; those of others are Python's business."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
            if issubclass(category, SlowerTraining):
                typer.echo(f"sfsl: {message}", file=sys.stderr)
            else:
                usual(message, category, *rest, **more)

        warnings.showwarning = show
        yield


class Stopped(Exception):
    """A signal stopped the command, once everything was closed. ``status`` is what shells exit with."""

    def __init__(self, status: int) -> None:
        super().__init__(f"stopped, status {status}")
        self.status = status


def run_until_stopped(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine. SIGTERM cancels it as Ctrl-C does, also where a shell has SIGINT ignored."""
    terminated: list[bool] = []

    async def guarded() -> Result:
        task = asyncio.current_task()

        def stop() -> None:
            terminated.append(True)
            if task is not None:
                task.cancel()

        # Only the main thread has signals, and not every system has this one.
        with suppress(NotImplementedError, RuntimeError, ValueError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
        return await main

    try:
        return asyncio.run(guarded())
    except KeyboardInterrupt:
        raise Stopped(INTERRUPTED) from None
    except asyncio.CancelledError:
        if not terminated:
            raise
        raise Stopped(TERMINATED) from None


@contextmanager
def told_as_json(wanted: bool) -> Iterator[None]:
    """An error that ends the command is also one JSON object in a line, the last on stdout."""
    try:
        yield
    except SfslError as error:
        if wanted:
            line = {"event": "failed", "error": type(error).__name__, "message": str(error)}
            typer.echo(json_text.dumps(line))
        raise


def probabilities(text: str) -> list[float]:
    try:
        return [float(Fraction(part)) for part in text.split(",")]
    except (ValueError, ZeroDivisionError):
        raise InputError(f"{text!r}: probabilities are written like 0.9375 or 15/16") from None


def privacy_level(text: str) -> IndexPrivacy:
    """Return a preset by its name, or the level with these four probabilities."""
    if text in PRESETS:
        return PRESETS[text]
    if text.count(",") != 3:
        raise InputError(
            f"{text!r} is neither a preset ({', '.join(PRESETS)}) nor four probabilities p1,p2,p3,p4"
        )
    return IndexPrivacy(*probabilities(text))


def counts_of_rounds(text: str) -> list[int]:
    """Read numbers of rounds, such as ``1,10,100``: ascending, each once."""
    try:
        numbers = sorted({int(part) for part in text.split(",")})
    except ValueError:
        numbers = [0]
    if numbers[0] < 1:
        raise InputError(f"--rounds {text!r}: expected whole numbers from 1 up, such as 1,10,100")
    return numbers
