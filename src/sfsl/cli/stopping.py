"""Commands that run until they are stopped: Ctrl-C and SIGTERM; and how a script hears of an error."""

import asyncio
import json as json_text
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import typer

from sfsl.errors import SfslError

INTERRUPTED = 130
TERMINATED = 143

Result = TypeVar("Result")


class Stopped(Exception):
    """By a signal, after everything was closed. ``status``: to exit with, as shells have it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"stopped, status {status}")
        self.status = status


def run_until_stopped(main: Coroutine[Any, Any, Result]) -> Result:
    """SIGTERM cancels it as Ctrl-C does, also where a shell has set SIGINT to be ignored."""
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
