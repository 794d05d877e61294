"""The server's HTTP surface (spec network 4, 5): what is asked, by whom, how much of it, and how often.

Everything that can be refused before a body is read is refused before it is read. Errors are answered by
kind: never a stack trace, never the sender's bytes.
"""

import asyncio
import logging
import math
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from sfsl.carriers.https import page, status
from sfsl.carriers.https.coordinator import Coordinator, now_ms
from sfsl.carriers.https.status import Status, nameless
from sfsl.codec import VERSION, Message
from sfsl.data.catalogue import catalogue_digest
from sfsl.errors import (
    AuthenticationFailed,
    ClockSkew,
    ConflictingMessage,
    DecodeError,
    InvalidMessage,
    Oversize,
    ParameterError,
    Refused,
    RemoteError,
    RoundOver,
    ShuttingDown,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreInUse,
    TooMany,
    Unavailable,
    UnexpectedSender,
    UnknownClient,
    WrongPhase,
    WrongRound,
)
from sfsl.service.clock import SigningClock, spell
from sfsl.service.log_file import RosterLog
from sfsl.service.messages import CODEC, MOST_PROVEN, CheckIn, Enrol, LogHead, LogQuery
from sfsl.service.registry import Enrolment
from sfsl.service.signing import Verifier

log = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)

ENROL_BYTES = 256
CHECK_IN_BYTES = 2048
QUERY_BYTES = 64 + 34 * MOST_PROVEN
HEAD_BYTES = 8192
_TICKET = re.compile("[0-9a-f]{32}")
_DIGEST = re.compile("[0-9a-f]{64}")
_NUMBER = re.compile("0|[1-9][0-9]{0,2}")
_SINCE = re.compile("(?:since=(0|[1-9][0-9]{0,12}))?")
_AFTER = re.compile("after=(0|[1-9][0-9]{0,2})")
_PATH = re.compile(rb"/[a-z0-9/.-]*")  # there is no other character in any of our paths, nor a "%"
_STATUS_SECONDS = 1.0
_SKEW_SECONDS = 60.0
_TOLD = ("poll_seconds", "phase_seconds", "training_seconds", "cohort", "min_cohort", "largest_set")
_READ = "sfsl.read"  # in the scope of a request whose body was read to its end
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
    Unavailable: 503,
}
_LONGEST = 400
_SHUTDOWN_SECONDS = 10
_HEADERS = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]


@dataclass(frozen=True)
class AppLimits:
    """Rates are requests a second and how many at once. ``body_seconds``: a whole body may take so long."""

    largest_body: int = 64 << 20
    body_seconds: float = 60.0
    client_rate: float = 20.0
    client_burst: int = 100
    address_rate: float = 500.0
    address_burst: int = 2000


class Rates:
    """Allows ``per_second`` in the long run, ``burst`` at once, by name. Of ``most`` names the oldest are
    forgotten, which gives them a full bucket again: what bounds the names themselves is elsewhere."""

    def __init__(self, what: str, per_second: float, burst: int, most: int = 100_000) -> None:
        if per_second <= 0 or burst < 1 or most < 1:
            raise ParameterError(f"requests of {what}: more than 0 a second, and at least 1 at once")
        self._what, self._per_second, self._burst, self._most = what, per_second, burst, most
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, and when

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, name: str, now: float) -> None:
        """Count one request now, or raise ``TooMany``. A refused one takes nothing."""
        tokens, then = self._buckets.pop(name, (float(self._burst), now))
        tokens = min(float(self._burst), tokens + max(0.0, now - then) * self._per_second)
        allowed = tokens >= 1
        self._buckets[name] = (tokens - allowed, now)
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        if not allowed:
            wait = math.ceil(1000 * (1 - tokens) / self._per_second)
            raise TooMany(f"too many requests of {self._what}; slow down", wait_ms=wait)


class Server:
    """Has the endpoints. ``package`` is what clients build the model from, ``catalogue`` what its rows are
    called: None where that is their numbers; ``log`` the log of enrolled identities, if one is kept.
    ``clock`` is what requests are signed by; without one that is ``time_ms``."""

    def __init__(
        self,
        coordinator: Coordinator,
        verifier: Verifier,
        enrolment: Enrolment,
        package: bytes,
        limits: AppLimits,
        *,
        catalogue: bytes | None = None,
        log: RosterLog | None = None,
        clock: SigningClock | None = None,
        time_ms: Callable[[], int] = now_ms,
    ) -> None:
        self.coordinator, self._check_ins = coordinator, coordinator.check_ins
        self._registry, self._verifier, self._enrolment = coordinator.registry, verifier, enrolment
        self._package, self._catalogue, self._limits = package, catalogue, limits
        self.clock = clock or SigningClock(None, wall=time_ms, steady=time_ms)
        self._named = {} if catalogue is None else {"catalogue": catalogue_digest(catalogue).hex()}
        self._log = log
        self._clients = Rates("this client", limits.client_rate, limits.client_burst)
        self._status: tuple[float, Status] | None = None

    def routes(self) -> list[Route]:
        clients = [
            Route("/v1/about", self.about),
            Route("/v1/model", self.model),
            Route("/v1/catalogue", self.catalogue),
            Route("/v1/log", self.log_head),
            Route("/v1/log/offer", self.log_offer),
            Route("/v1/log/prove", self.log_prove, methods=["POST"]),
            Route("/v1/log/witness", self.log_witness, methods=["POST"]),
            Route("/v1/published/{digest}", self.published),
            Route("/v1/enrol", self.enrol, methods=["POST"]),
            Route("/v1/check-in", self.check_in, methods=["POST"]),
            Route("/v1/next/{ticket}", self.next),
            Route("/v1/answer/{ticket}/{number}", self.answer, methods=["POST"]),
        ]
        operators = {"/healthz": self.health, "/metrics": self.metrics, "/status.json": self.status_json}
        # Starlette adds HEAD to every GET. A client has no use for it, and it would deliver a message.
        for route in clients:
            (route.methods or set()).discard("HEAD")
        return [*clients, *(Route(path, shows) for path, shows in operators.items()), Route("/", self.page)]

    # -- for clients ---------------------------------------------------------------------------

    async def about(self, request: Request) -> Response:
        settings = self.coordinator.settings
        return _json(
            {
                "protocol": VERSION,
                "deployment": self._registry.deployment.hex(),
                "model": self.coordinator.model_digest.hex(),
                **self._named,
                "round": self._check_ins.round,
                **self.times,
                "active": settings.rules.active,
                **({"binds_model": True} if self.coordinator.binds_model else {}),
                "scheme": settings.rules.scheme,
                "limits": {
                    "body_bytes": self._limits.largest_body,
                    "body_seconds": self._limits.body_seconds,
                    **{name: getattr(settings, name) for name in _TOLD},
                },
            }
        )

    @property
    def times(self) -> dict[str, int]:
        """What to sign by, and what this machine's clock says."""
        return {"time": self.clock.now_ms, "clock": self.clock.wall_ms}

    async def model(self, request: Request) -> Response:
        return _frame(self._package)

    async def catalogue(self, request: Request) -> Response:
        if self._catalogue is None:
            raise HTTPException(404)
        return Response(self._catalogue, media_type="application/json")

    async def published(self, request: Request) -> Response:
        """Hand out the hot rows or the model of a client's round, by digest: the same bytes for everyone."""
        text = request.path_params["digest"]
        if not _DIGEST.fullmatch(text):
            raise HTTPException(404)
        client, _, _ = await self._signed(request, lambda _: 0)
        found = self.coordinator.published(client, bytes.fromhex(text))
        if found is None:
            raise HTTPException(404)
        tag, had = f'"{text}"', request.headers.get("if-none-match", "").split(",")
        if tag in (one.strip().removeprefix("W/") for one in had):
            return Response(status_code=304, headers={"ETag": tag})
        self.coordinator.downloaded(len(found))
        return Response(found, media_type=FRAME, headers={"ETag": tag})

    async def enrol(self, request: Request) -> Response:
        if self._check_ins.stopping:
            raise ShuttingDown("the server is shutting down; come back later")
        body, digest = await self._body(request, ENROL_BYTES)
        public, now = _decoded(body, Enrol, ENROL_BYTES).public_key, self.clock.now_ms
        with _unsigned():
            self._verifier.check_enrolment(
                request.headers, request.method, _target(request), digest, now, public
            )
        today = self.clock.wall_ms
        return _json({"client": self._enrolment.admit(self._registry, public, today, self._log)})

    async def log_head(self, request: Request) -> Response:
        """Show the head of the log, and that it continues an earlier one."""
        return _frame(CODEC.encode(self._kept_log.prove(LogQuery(_since(request), ()))))

    async def log_offer(self, request: Request) -> Response:
        """The same of the newest head, for witnesses."""
        return _frame(CODEC.encode(self._kept_log.prove(LogQuery(_since(request), ()), offered=True)))

    async def log_prove(self, request: Request) -> Response:
        """Prove to a client that those it asks about are in the log."""
        _, body, _ = await self._signed(request, lambda _: QUERY_BYTES)
        return _frame(CODEC.encode(self._kept_log.prove(_decoded(body, LogQuery, QUERY_BYTES))))

    async def log_witness(self, request: Request) -> Response:
        """Take a witness's signature, which says by itself whose it is."""
        body, _ = await self._body(request, HEAD_BYTES)
        self._kept_log.cosign(_decoded(body, LogHead, HEAD_BYTES), self.clock.wall_ms)
        return Response(status_code=204)

    @property
    def _kept_log(self) -> RosterLog:
        if self._log is None:
            raise HTTPException(404)
        return self._log

    async def check_in(self, request: Request) -> Response:
        client, body, _ = await self._signed(request, lambda _: CHECK_IN_BYTES)
        checked_in = self._check_ins.check_in(client, _decoded(body, CheckIn, CHECK_IN_BYTES))
        return _frame(CODEC.encode(checked_in))

    async def next(self, request: Request) -> Response:
        ticket = _ticket(request)
        asked = _AFTER.fullmatch(request.scope["query_string"].decode("latin-1"))
        if asked is None:
            raise InvalidMessage("the next message is asked for with ?after=, the number of those received")
        client, _, _ = await self._signed(request, lambda _: 0)
        seconds = self.coordinator.settings.poll_seconds
        found = await self._check_ins.next(client, ticket, int(asked[1]), seconds)
        return Response(status_code=204) if found is None else _frame(found[1], found[0])

    async def answer(self, request: Request) -> Response:
        ticket, text = _ticket(request), request.path_params["number"]
        if not _NUMBER.fullmatch(text):
            raise HTTPException(404)
        number = int(text)
        client, body, digest = await self._signed(
            request, lambda claimed: self._check_ins.answer_limit(claimed, ticket, number)
        )
        await self._check_ins.answer(client, ticket, number, body, digest)
        return Response(status_code=204)

    # -- for operators -------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        if self._check_ins.stopping:
            return _json({"status": "stopping"}, 503)
        told: dict[str, object] = {"status": "ok", "round": self._check_ins.round}
        if why := self.coordinator.degraded:
            told |= {"status": "degraded", "why": why}
        return _json(told)

    async def metrics(self, request: Request) -> Response:
        shown = status.text(self._shown(), self.coordinator.totals)
        return Response(shown, media_type=status.CONTENT_TYPE)

    async def status_json(self, request: Request) -> Response:
        return _json(self._shown())

    async def page(self, request: Request) -> Response:
        shown = page.html(self._shown(), self.coordinator.totals.last, time.time())
        return Response(shown, media_type="text/html", headers=page.HEADERS)

    def _shown(self) -> Status:
        """Return the status. Anyone may ask, so it is made anew once a second at most."""
        now = time.monotonic()
        if self._status is None or now - self._status[0] > _STATUS_SECONDS:
            self._status = (now, self._now())
        return self._status[1]

    def _now(self) -> Status:
        return msgspec.structs.replace(
            self.coordinator.status(),
            clock_off_seconds=self.clock.off_ms / 1000,
            clock_refused=self.coordinator.totals.refused["ClockSkew"],
        )

    # -- who, and how much ---------------------------------------------------------------------

    async def _signed(self, request: Request, limit: Callable[[str], int]) -> tuple[str, bytes, bytes]:
        """Return the client that signed this request, the body and its digest. ``limit``: how long the body
        may be, given who claims to send it; it is asked, and may refuse, before any is read."""
        with _unsigned():
            claim = self._verifier.check_headers(request.headers, self.clock.now_ms)
        body, digest = await self._body(request, min(limit(claim.client), self._limits.largest_body))
        client = self._verifier.check_body(
            claim,
            request.method,
            _target(request),
            digest,
            self.clock.now_ms,
            lambda signer: self._clients.take(signer, time.monotonic()),
        )
        return client, body, digest

    async def _body(self, request: Request, limit: int) -> tuple[bytes, bytes]:
        """Return the body with its SHA-256, which is taken on the way."""
        oversize = Oversize(f"a body of more than the {limit} bytes that are allowed here")
        announced = request.headers.get("content-length", "0")
        if not announced.isdecimal() or len(announced) > 18 or int(announced) > limit:
            raise oversize
        chunks, size, digest = [], 0, sha256()
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size > limit:
                        raise oversize
                    chunks.append(chunk)
                    digest.update(chunk)
        except TimeoutError:
            raise DecodeError(f"the body took longer than {self._limits.body_seconds:g} s") from None
        request.scope[_READ] = True
        return b"".join(chunks), digest.digest()


class Guard:
    """Stands around everything: addresses that ask too often, errors as answers, headers of all answers."""

    def __init__(self, app: ASGIApp, server: Server, limits: AppLimits) -> None:
        self._app, self._server = app, server
        self._refused = server.coordinator.totals.refused
        self._skews = _Skews()
        self._disk_said = -math.inf
        self._addresses = Rates("this address", limits.address_rate, limits.address_burst)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False
        scope["app"] = self  # so that the router raises what it does not find

        async def marked(message: MutableMapping[str, Any]) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = [*message["headers"], *_HEADERS]
                if message["status"] >= 400 and not scope.get(_READ):
                    headers.append((b"connection", b"close"))  # there may be a body nobody wants to read
                message["headers"] = headers
            await send(message)

        try:
            address = scope["client"][0] if scope.get("client") else ""
            self._addresses.take(address, time.monotonic())
            if not _PATH.fullmatch(scope["raw_path"]):  # another spelling of a path is not that path
                raise HTTPException(404)
            if {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}:
                raise DecodeError("a body whose length is given in two ways")  # a proxy may take the other
            await self._app(scope, receive, marked)
        except ClientDisconnect:
            self._refused["Disconnected"] += 1
        except Exception as error:
            if started:
                log.exception("an answer broke off")
                raise
            await self._failed(error)(scope, receive, marked)

    def _failed(self, error: Exception) -> Response:
        if isinstance(error, RemoteError):
            if not isinstance(error, RoundOver):  # which is how every conversation ends
                self._refused[type(error).__name__] += 1
            if isinstance(error, ClockSkew):
                self._skews.note(error.off_ms, time.monotonic())
            return refusal(error, self._server.times)
        if isinstance(error, StoreInUse):
            return self._failed(Unavailable("the server waits for its registry; come back later"))
        if isinstance(error, StoreFull):
            self._server.coordinator.put_off(error)
            return self._failed(Unavailable("the server's disk has no room; come back later"))
        if isinstance(error, StoreError) and not isinstance(error, StoreCorrupt):
            if (now := time.monotonic()) - self._disk_said >= _SKEW_SECONDS:
                log.warning("a request is put off: %s", error)
                self._disk_said = now
            return self._failed(Unavailable("the server's disk fails; come back later"))
        if isinstance(error, HTTPException):
            kind = {404: "NotFound", 405: "MethodNotAllowed"}.get(error.status_code, "HttpError")
            self._refused[kind] += 1
            return failure(error.status_code, kind, error.detail)
        self._refused["ServerError"] += 1
        log.error("a request failed by a mistake of this program or its machine", exc_info=error)
        return failure(500, "ServerError", "the server failed; its log says why")


class _Skews:
    """Logs, once a minute at most, that clients sign by another clock. Who they are is not said: nothing of
    such a request is proved."""

    def __init__(self) -> None:
        self._since, self._count = -math.inf, 0

    def note(self, off_ms: int, now: float) -> None:
        self._count += 1
        if now - self._since >= _SKEW_SECONDS:
            log.warning(
                "refused because of their time: %d requests, the last one signed %s %s this server's clock; "
                "clients set theirs by it and try again",
                self._count, spell(off_ms), "ahead of" if off_ms > 0 else "behind",
            )  # fmt: skip
            self._since, self._count = now, 0


def create_app(server: Server, limits: AppLimits) -> ASGIApp:
    return Guard(Router(server.routes(), redirect_slashes=False), server, limits)


@contextmanager
def _unsigned() -> Iterator[None]:
    """Take headers that are missing or malformed for a request that nobody signed."""
    try:
        yield
    except DecodeError as error:
        raise AuthenticationFailed(str(error)) from None


def _target(request: Request) -> str:
    """Return the target as it was sent, which is what was signed."""
    raw, query = request.scope["raw_path"], request.scope["query_string"]
    return str(raw + (b"?" + query if query else b""), "latin-1")


def _ticket(request: Request) -> bytes:
    text = request.path_params["ticket"]
    if not _TICKET.fullmatch(text):
        raise HTTPException(404)
    return bytes.fromhex(text)


def _since(request: Request) -> int:
    asked = _SINCE.fullmatch(request.scope["query_string"].decode("latin-1"))
    if asked is None or int(asked[1] or 0) > 2**40:
        raise InvalidMessage("a head is asked for with ?since=, the size of the last one known, or without")
    return int(asked[1] or 0)


def _decoded(body: bytes, kind: type[M], limit: int) -> M:
    message = CODEC.decode(body, limit=limit)
    if not isinstance(message, kind):
        raise InvalidMessage(f"{type(message).__name__} where {kind.__name__} is due")
    return message


def _frame(data: bytes, number: int | None = None) -> Response:
    headers = {SEQUENCE: str(number)} if number is not None else {}
    return Response(data, media_type=FRAME, headers=headers)


def _json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, "application/json")


def refusal(error: RemoteError, times: Mapping[str, int] | None = None) -> Response:
    """Answer with an error. ``times``: by what to sign again, told where a signature was not taken."""
    status = next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
    # A conversation's end may be about any client of the round; other errors are about the sender.
    who, headers = "this client", {}
    fields: dict[str, object] = dict(times or {}) if status == 401 else {}
    match error:
        case RoundOver():
            who, fields = "a client", {"outcome": error.outcome, "round": error.round}
        case TooMany():
            headers = {"Retry-After": str(max(1, math.ceil(error.wait_ms / 1000)))}
        case ShuttingDown() | Unavailable():
            wait_s = getattr(error, "wait_s", 0) or _SHUTDOWN_SECONDS
            headers = {"Retry-After": str(math.ceil(wait_s))}
    return failure(status, type(error).__name__, nameless(str(error), who), headers, **fields)


def failure(
    status: int, kind: str, message: str, headers: Mapping[str, str] | None = None, **fields: object
) -> Response:
    line = " ".join(message.split())[:_LONGEST]
    return _json({"error": kind, "message": line} | fields, status, headers)
