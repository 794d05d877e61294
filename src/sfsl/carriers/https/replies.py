"""Answers in HTTP: frames, JSON, and errors by kind. Never a stack trace, never the sender's bytes."""

import math
from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from sfsl.carriers.https.status import nameless
from sfsl.errors import (
    AuthenticationFailed,
    ConflictingMessage,
    Oversize,
    Refused,
    RemoteError,
    RoundOver,
    ShuttingDown,
    TooMany,
    UnexpectedSender,
    UnknownClient,
    WrongPhase,
    WrongRound,
)

FRAME = "application/octet-stream"
SEQUENCE = "Sfsl-Sequence"
# The nearest of an error's ancestors counts.
STATUS: dict[type[Exception], int] = {
    RemoteError: 400,
    Oversize: 413,
    AuthenticationFailed: 401,
    UnknownClient: 403,
    Refused: 403,
    TooMany: 429,
    WrongPhase: 409,
    WrongRound: 409,
    UnexpectedSender: 409,
    ConflictingMessage: 409,
    RoundOver: 410,
    ShuttingDown: 503,
}
_LONGEST = 400
_SHUTDOWN_SECONDS = 10


def frame(data: bytes, number: int | None = None) -> Response:
    headers = {SEQUENCE: str(number)} if number is not None else {}
    return Response(data, media_type=FRAME, headers=headers)


def json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, "application/json")


def refusal(error: RemoteError) -> Response:
    status = next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
    # A conversation's end may be about any client of the round; other errors are about the sender.
    who, fields, headers = "this client", {}, {}
    match error:
        case RoundOver():
            who, fields = "a client", {"outcome": error.outcome, "round": error.round}
        case TooMany():
            headers = {"Retry-After": str(max(1, math.ceil(error.wait_ms / 1000)))}
        case ShuttingDown():
            headers = {"Retry-After": str(_SHUTDOWN_SECONDS)}
    return failure(status, type(error).__name__, nameless(str(error), who), headers, **fields)


def failure(
    status: int, kind: str, message: str, headers: Mapping[str, str] | None = None, **fields: object
) -> Response:
    line = " ".join(message.split())[:_LONGEST]
    return json({"error": kind, "message": line} | fields, status, headers)
