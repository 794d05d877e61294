"""What commands that run for long log, how much of it, and in which form: flags that they share."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Annotated, Literal, TextIO

from typer import Option

Verbose = Annotated[bool, Option("--verbose", "-v", help="Log more than usual.")]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"] | None,
    Option(help="Log this and what is worse, on stderr; wins over -v."),
]
LogJson = Annotated[
    bool, Option("--log-json", help="Log one JSON object a line, with the figures of each round.")
]


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to what stderr is at the moment: a progress line on a terminal takes its place for a while."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, given: TextIO) -> None:
        """Ignore what the base class sets."""


class _AsJson(logging.Formatter):
    """Writes a line for programs: when (UTC), how bad, where, what; and ``figures``, where there are some."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (figures := getattr(record, "figures", None)) is not None:
            told["figures"] = figures
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told)


def start_logging(usual: int, *, verbose: bool, level: str | None, as_json: bool) -> None:
    """Log from here on. ``usual`` is what a command logs when nothing is said; -v goes one step further."""
    chosen = usual - 10 if verbose else usual  # levels are ten apart
    if level is not None:
        chosen = logging.getLevelNamesMapping()[level.upper()]
    handler = _Stderr()
    plain = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(_AsJson() if as_json else plain)
    logging.basicConfig(level=chosen, handlers=[handler], force=True)
    for other in ("asyncio", "uvicorn"):  # what strangers send is counted, not logged line by line
        logging.getLogger(other).setLevel(logging.ERROR)
