"""What a participant tells the app around it: one kind, one sentence."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Literal

Kind = Literal[
    "connected",
    "enrolled",
    "checked-in",
    "invited",
    "exposed",
    "training",
    "uploaded",
    "committed",
    "aborted",
    "left-out",
    "not-chosen",
    "restarted",
    "declined",
    "waiting",
    "offline",
]


@dataclass(frozen=True)
class Event:
    """``text`` is for people. ``round`` is the round's number once it is known; ``until`` is the day to
    which a client sits out."""

    kind: Kind
    text: str
    round: int | None = None
    until: date | None = None

    def __str__(self) -> str:
        return self.text


Notify = Callable[[Event], None]


def nobody(event: Event) -> None:
    """Where nobody listens."""
