"""What a client hears of a server besides messages (JSON, untrusted and bounded), what it tells the app
around it, and how long it waits before it tries again."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Literal, TypeVar, get_args

import msgspec
from msgspec import Meta

from sfsl.crypto.secret import Randomness
from sfsl.errors import DecodeError

MOST_JSON = 64 << 10
_MOST_TEXT = 300
_UNSHOWN = re.compile(r"[^ -~]+")

Outcome = Literal["committed", "aborted", "left-out", "not-chosen", "restarted"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
Hex16 = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
Hex32 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]

Milliseconds = Annotated[int, Meta(ge=0, le=2**49)]

Read = TypeVar("Read")
_Around = Literal[
    "terms",
    "data",
    "model",
    "log",
    "connected",
    "enrolled",
    "checked-in",
    "declined",
    "deceived",
    "waiting",
    "offline",
]
_InRound = Literal["invited", "exposed", "training", "uploaded"]
Kind = _Around | _InRound | Outcome


class About(msgspec.Struct, frozen=True):
    """What anyone may know of a deployment. ``time``, in milliseconds, is what requests are signed by,
    ``clock`` what the server's machine says; None where it does not. ``active``: whether its rounds are in
    active mode; None where it does not say. ``catalogue``: the digest of what its rows are called; None where
    that is their numbers. ``scheme``: "hot" are rounds over hot rows, "sfsl" those of the paper, which has
    exact sums. ``binds_model``: whether masks are bound to the model's digest in active mode."""

    protocol: int
    deployment: Hex16
    model: Hex32
    round: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    time: Milliseconds
    clock: Milliseconds | None = None
    active: bool | None = None
    catalogue: Hex32 | None = None
    scheme: Annotated[str, Meta(max_length=32)] = "sfsl"
    binds_model: bool = False


class Enrolled(msgspec.Struct, frozen=True):
    client: Annotated[str, Meta(max_length=64)]


class Problem(msgspec.Struct, frozen=True):
    """Why a request was refused. With status 410: how the conversation ended. With status 401: the server's
    clocks, as in ``About``."""

    error: Annotated[str, Meta(max_length=64)] = ""
    message: str = ""
    outcome: str = ""
    round: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    time: Milliseconds | None = None
    clock: Milliseconds | None = None


def read_json(kind: type[Read], body: bytes) -> Read:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise DecodeError(f"not the JSON of {kind.__name__} ({type(error).__name__})") from None


def read_problem(body: bytes) -> Problem:
    """Never raises: whoever refuses in words of its own has refused as well."""
    try:
        found = read_json(Problem, body)
    except DecodeError:
        return Problem()
    return msgspec.structs.replace(found, error=shown(found.error), message=shown(found.message))


def shown(text: str) -> str:
    """A server's words, fit for a terminal and a log."""
    return _UNSHOWN.sub("?", text[:_MOST_TEXT])


@dataclass(frozen=True)
class Event:
    """What a client does or hears, as it happens.

    ``kind`` is for programs, ``text`` for people. ``round`` is the round's number once it is known; ``until``
    is the day to which a client sits out, ``seconds`` how long it waits before it tries again.

    >>> import sfsl
    >>> print(sfsl.Event("invited", "Invited to round 7 with 9 others", round=7))
    Invited to round 7 with 9 others
    """

    kind: Kind
    text: str
    round: int | None = None
    until: date | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        return self.text


Notify = Callable[[Event], None]


def nobody(event: Event) -> None:
    """Hear of an event and do nothing: where nobody listens."""


@dataclass(frozen=True)
class Backoff:
    """Delays double from ``first`` to ``longest`` seconds; each is then drawn from its upper half. After an
    outage all clients come back at once unless chance spreads them; but a delay of nearly nothing would make
    a busy server busier."""

    randomness: Randomness
    first: float = 1.0
    longest: float = 60.0
    most_obeyed: float = 3600.0

    def delay(self, attempt: int, asked: float = 0.0) -> float:
        """Return the seconds before try ``attempt`` + 2. ``asked``: what the server wants, within reason."""
        own = min(self.longest, self.first * 2.0 ** min(attempt, 32))
        least = min(max(asked, 0.0), self.most_obeyed)
        share = int.from_bytes(self.randomness.bytes(4), "big") / 2**32
        return least + own * (0.5 + 0.5 * share)
