"""What a server says besides messages: JSON, untrusted and bounded."""

import re
from typing import Annotated, Literal, TypeVar, get_args

import msgspec
from msgspec import Meta

from sfsl.errors import DecodeError

MOST_JSON = 64 << 10
_MOST_TEXT = 300
_UNSHOWN = re.compile(r"[^ -~]+")

Outcome = Literal["committed", "aborted", "left-out", "not-chosen", "restarted"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
Hex16 = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
Hex32 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]

Read = TypeVar("Read")


class About(msgspec.Struct, frozen=True):
    """What anyone may know of a deployment. ``time`` is the server's, in milliseconds. ``active``: whether
    its rounds are in active mode; None where it does not say. ``catalogue``: the digest of what its rows are
    called; None where that is their numbers."""

    protocol: int
    deployment: Hex16
    model: Hex32
    round: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    time: Annotated[int, Meta(ge=0, le=2**49)]
    active: bool | None = None
    catalogue: Hex32 | None = None


class Enrolled(msgspec.Struct, frozen=True):
    client: Annotated[str, Meta(max_length=64)]


class Problem(msgspec.Struct, frozen=True):
    """Why a request was refused. With status 410: how the conversation ended."""

    error: Annotated[str, Meta(max_length=64)] = ""
    message: str = ""
    outcome: str = ""
    round: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None


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
    return Problem(shown(found.error), shown(found.message), found.outcome, found.round)


def shown(text: str) -> str:
    """A server's words, fit for a terminal and a log."""
    return _UNSHOWN.sub("?", text[:_MOST_TEXT])
