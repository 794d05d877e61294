"""What a participant tells the app around it: one kind, one sentence."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Literal

from sfsl.client.replies import Outcome

_Around = Literal["data", "model", "connected", "enrolled", "checked-in", "declined", "waiting", "offline"]
_InRound = Literal["invited", "exposed", "training", "uploaded"]
Kind = _Around | _InRound | Outcome


@dataclass(frozen=True)
class Event:
    """What a client does or hears, as it happens.

    ``kind`` is for programs, ``text`` for people. ``round`` is the round's number once it is known; ``until``
    is the day to which a client sits out.

    >>> import sfsl
    >>> print(sfsl.Event("invited", "Invited to round 7 with 9 others", round=7))
    Invited to round 7 with 9 others
    """

    kind: Kind
    text: str
    round: int | None = None
    until: date | None = None

    def __str__(self) -> str:
        return self.text


Notify = Callable[[Event], None]


def nobody(event: Event) -> None:
    """Hear of an event and do nothing: where nobody listens."""
