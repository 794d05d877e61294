"""One client's way to its server: signed requests over pinned TLS, answers of bounded size.

A body is made once by the caller; a retry sends the same bytes under a fresh signature.
"""

import asyncio
import math
import re
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import KW_ONLY, InitVar, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import httpx

from sfsl.checksums import without_last_lines
from sfsl.client.events import (
    MOST_JSON,
    About,
    Backoff,
    Enrolled,
    Event,
    Notify,
    Problem,
    Read,
    nobody,
    read_json,
    read_problem,
    shown,
)
from sfsl.codec import Message
from sfsl.crypto.secret import Identity, Randomness
from sfsl.errors import (
    AuthenticationFailed,
    ClockSkew,
    Declined,
    DecodeError,
    InputError,
    InvalidMessage,
    KeyFileError,
    Oversize,
    RemoteError,
    Unavailable,
    WrongRound,
    WrongVersion,
)
from sfsl.service.clock import spell
from sfsl.service.members import DAY_MS
from sfsl.service.messages import CODEC, CheckedIn, Enrol, LogHead, LogProof, LogQuery
from sfsl.service.signing import client_id, sign_request

PROTOCOL = 1
_NUMBER = re.compile("[0-9]{1,9}")
# A garbled answer may be a proxy's; so many in a row are the server's.
_GARBLED = 3
_SIGNED_AGAIN = 5


# OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED
_UNTIMELY = {9: "is not valid yet", 10: "has expired"}
_TOLD_MS = 5000  # clocks that differ by less are not worth a word


class _NotNow(Unavailable):
    """The server is there and refuses, for a reason that time may mend."""


@dataclass(frozen=True)
class LinkLimits:
    """Seconds for a request as a whole, and bytes of answers. A poll must outlast the server's."""

    request_s: float = 120.0
    connect_s: float = 30.0
    poll_s: float = 60.0
    model_bytes: int = 64 << 20
    catalogue_bytes: int = 64 << 20
    proof_bytes: int = 4 << 20


@dataclass(frozen=True)
class Over:
    """The conversation is at its end: what the server says came of it."""

    outcome: str
    round: int | None
    why: str


@dataclass(frozen=True)
class _Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def problem(self) -> Problem:
        return read_problem(self.body)

    @property
    def content(self) -> bytes:
        """The body of an answer that is one; otherwise the server's refusal is raised."""
        if self.status != 200:
            raise self.refusal
        return self.body

    @property
    def refusal(self) -> RemoteError:
        why = self.problem.message or self.problem.error or "no reason"
        kind = AuthenticationFailed if self.status in (401, 403) else InvalidMessage
        return kind(f"the server refuses (status {self.status}): {why}")

    @property
    def over(self) -> Over | None:
        """How the conversation ended, where it did."""
        problem = self.problem
        ended = self.status in (404, 410)
        return Over(shown(problem.outcome[:32]) or "over", problem.round, problem.message) if ended else None


def trusted(ca: str | Path | None) -> ssl.SSLContext:
    """Trust this authority and no other; without one, those of the system."""
    try:
        if ca is not None:
            without_last_lines(Path(ca).read_bytes(), "it")  # damage that OpenSSL would not find
        return ssl.create_default_context(cafile=None if ca is None else str(ca))
    except (OSError, InputError) as error:
        raise KeyFileError(f"cannot read the certificate authority {ca}: {error}") from None


@dataclass(frozen=True)
class _Request:
    """One question to the server. ``limit``: the most bytes of its answer; ``seconds``: for all of it."""

    method: str
    target: str
    body: bytes = b""
    signed: bool = True
    limit: int = MOST_JSON
    seconds: float | None = None


@dataclass(repr=False, eq=False)
class Link:
    """One client's connection to its server.

    ``deployment`` pins the server's; None takes the one met first and keeps to it. Retries for ever what a
    bad link spoils, for ``patience_s`` what a server refuses that time may mend (it is busy, signatures are
    not taken, its certificate is out of date or not valid yet), and says so to ``notify``; raises what no
    retry mends. ``transport`` replaces the sockets, ``sleep``, ``wall`` and ``steady`` the clocks: requests
    are signed by the server's clock as it goes on here, whatever happens to this device's.
    """

    server: str
    identity: Identity
    _: KW_ONLY
    backoff: Backoff
    randomness: Randomness
    tls: InitVar[ssl.SSLContext | None] = None
    plain: InitVar[bool] = False
    deployment: bytes | None = None
    limits: LinkLimits = LinkLimits()
    patience_s: float = 86_400.0
    notify: Notify = nobody
    transport: InitVar[httpx.AsyncBaseTransport | None] = None
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    wall: Callable[[], float] = time.time
    steady: Callable[[], float] = time.monotonic

    def __post_init__(
        self, tls: ssl.SSLContext | None, plain: bool, transport: httpx.AsyncBaseTransport | None
    ) -> None:
        self._base = address(self.server, plain)
        self.client = client_id(self.identity.public)
        self._since: dict[type[Exception], float] = {}  # since when there was nothing but such refusals
        here = round(self.wall() * 1000)
        self._sign_by(here, here)
        self._http = httpx.AsyncClient(
            verify=tls or trusted(None),
            trust_env=False,
            follow_redirects=False,
            transport=transport,
            headers={"Accept-Encoding": "identity"},
            # Each request has one deadline for all of it; to connect takes no poll.
            timeout=httpx.Timeout(None, connect=self.limits.connect_s),
        )

    async def about(self) -> About:
        """What is served; also sets our idea of the server's clock."""
        request = _Request("GET", "/v1/about", signed=False)
        about = await self._insist(request, lambda reply: read_json(About, reply.content))
        if about.protocol != PROTOCOL:
            raise WrongVersion(f"the server speaks protocol {about.protocol}, this client {PROTOCOL}")
        found = bytes.fromhex(about.deployment)
        if self.deployment is not None and found != self.deployment:
            raise AuthenticationFailed(
                f"this is deployment {about.deployment}; this client joined {self.deployment.hex()}"
            )
        self.deployment = found
        self._sign_by(about.time, about.clock)
        return about

    @property
    def apart_ms(self) -> int:
        """This device's clock minus the server's, as far as the server has told."""
        return round(self.wall() * 1000) - self._clock_ms - self._elapsed_ms

    async def agree_on_the_day(self) -> None:
        """Wait until the two clocks are less than a day apart: with a wrong one, a client would use up the
        budget of another period than the present one."""
        tries = 0
        while abs(self.apart_ms) >= DAY_MS:
            why = f"{self._clocks}. One of them is wrong"
            await self._pause(why, tries, final=ClockSkew(why, off_ms=self.apart_ms))
            tries += 1
            await self.about()
        self._since.pop(ClockSkew, None)

    def require_same_day(self) -> None:
        """Raise ``Declined`` where this device's clock was set since the server was asked."""
        if abs(self.apart_ms) >= DAY_MS:
            raise Declined(f"{self._clocks}, so this client does not know which period it is in")

    async def model(self) -> bytes:
        """Fetch the package of the model, for the caller to check and build."""
        return await self._file("/v1/model", self.limits.model_bytes)

    async def catalogue(self) -> bytes:
        """Fetch what the rows of the model are called, for the caller to check."""
        return await self._file("/v1/catalogue", self.limits.catalogue_bytes)

    async def published(self, digest: bytes, limit: int) -> bytes:
        """Fetch what everybody downloads, by its digest, which the caller checks."""
        request = _Request("GET", f"/v1/published/{digest.hex()}", limit=limit)
        return await self._insist(request, lambda reply: reply.content)

    async def _file(self, target: str, limit: int) -> bytes:
        request = _Request("GET", target, signed=False, limit=limit)
        return await self._insist(request, lambda reply: reply.content)

    async def enrol(self) -> None:
        request = _Request("POST", "/v1/enrol", CODEC.encode(Enrol(self.identity.public)))
        named = await self._insist(request, lambda reply: read_json(Enrolled, reply.content))
        if named.client != self.client:
            raise InvalidMessage("the server enrolled this client under another name than its key gives it")

    async def check_in(self, body: bytes) -> CheckedIn:
        request = _Request("POST", "/v1/check-in", body)
        message = await self._insist(request, lambda reply: _frame(reply.content, MOST_JSON))
        if not isinstance(message, CheckedIn):
            raise InvalidMessage(f"{type(message).__name__} in answer to a check-in")
        return message

    async def log(self, query: LogQuery, *, offered: bool = False) -> LogProof:
        """Ask the log of enrolled identities about some of them; without any, for its head: the one that
        clients are shown, or the one that is ``offered`` to witnesses."""
        request = _Request("POST", "/v1/log/prove", CODEC.encode(query), limit=self.limits.proof_bytes)
        if not query.clients:
            path = "/v1/log/offer" if offered else "/v1/log"
            request = _Request("GET", f"{path}?since={query.since}", signed=False)
        message = await self._insist(request, lambda reply: _frame(reply.content, request.limit))
        if not isinstance(message, LogProof):
            raise InvalidMessage(f"{type(message).__name__} where the log's proof is due")
        return message

    async def cosign(self, head: LogHead) -> bool:
        """Hand over a witness's signature; return whether its head is the one that is offered still."""

        def read(reply: _Reply) -> bool:
            if reply.status not in (204, 409):
                raise reply.refusal
            return reply.status == 204

        return await self._insist(_Request("POST", "/v1/log/witness", CODEC.encode(head), signed=False), read)

    async def next(self, ticket: bytes, after: int, *, limit: int) -> Message | Over:
        """Wait for message ``after`` + 1."""

        def read(reply: _Reply) -> Message | Over | None:
            if reply.over or reply.status == 204:
                return reply.over
            body = reply.content
            if reply.headers.get("sfsl-sequence") != str(after + 1):
                raise WrongRound(f"the server sent another message than number {after + 1}, which is due")
            return _frame(body, limit)

        target, quick = f"/v1/next/{ticket.hex()}?after={after}", 0
        request = _Request("GET", target, limit=limit, seconds=self.limits.poll_s)
        while True:
            asked = self.steady()
            got = await self._insist(request, read)
            if got is not None:
                return got
            # A server that holds no poll open is not asked without end.
            quick = quick + 1 if self.steady() - asked < 1.0 else 0
            if quick:
                await self.sleep(self.backoff.delay(quick))

    async def answer(self, ticket: bytes, number: int, body: bytes) -> Over | None:
        """Hand over the answer to message ``number``. A late one is no error here: the next poll says so."""

        def read(reply: _Reply) -> Over | None:
            if reply.status not in (204, 404, 409, 410):
                raise reply.refusal
            return reply.over

        return await self._insist(_Request("POST", f"/v1/answer/{ticket.hex()}/{number}", body), read)

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def _insist(self, request: _Request, read: Callable[[_Reply], Read]) -> Read:
        """Ask until another try would not change the answer; return what ``read`` makes of it."""
        failed = garbled = signings = 0
        while True:
            wait, final = 0.0, None
            try:
                reply = await self._once(request)
                if not (request.signed and reply.status == 401):
                    self._served(request)
                    return read(reply)
                # Our clock, a server that has just started, or a copy of our request that came first.
                signings += 1
                why = await self._sign_anew(reply)
                if signings == 1:
                    continue
                # A bad network garbles requests too, or delivers them twice: a few times mean nothing.
                final = reply.refusal if signings > _SIGNED_AGAIN else None
            except Unavailable as error:
                wait, why = error.wait_s, str(error)
                final = error if isinstance(error, _NotNow) else None
            except DecodeError as error:
                garbled += 1
                if garbled >= _GARBLED:
                    raise
                why = str(error)
            await self._pause(why, failed, wait, final)
            failed += 1

    async def _sign_anew(self, reply: _Reply) -> str:
        """Set the clock that requests are signed by, and say why this one was not taken."""
        problem = reply.problem
        if problem.time is None:
            await self.about()
        else:
            self._sign_by(problem.time, problem.clock)
        why = f"signing again: {problem.message or 'the signature was not taken'}"
        return why if abs(self.apart_ms) < _TOLD_MS else f"{why}. {self._clocks}"

    def _sign_by(self, time_ms: int, clock_ms: int | None) -> None:
        """Sign by the server's time from now on; ``clock_ms`` is what its machine's clock says."""
        self._synced, self._time_ms = self.steady(), time_ms
        self._clock_ms = time_ms if clock_ms is None else clock_ms

    @property
    def _elapsed_ms(self) -> int:
        return round(1000 * (self.steady() - self._synced))

    @property
    def _clocks(self) -> str:
        apart = self.apart_ms
        return f"This device's clock is {spell(apart)} {'ahead of' if apart > 0 else 'behind'} the server's"

    def _served(self, request: _Request) -> None:
        """Be patient anew with what this answer shows to be over."""
        for kind in (_NotNow, *((AuthenticationFailed,) if request.signed else ())):
            self._since.pop(kind, None)

    async def _pause(self, why: str, tries: int, wait: float = 0.0, final: Exception | None = None) -> None:
        """Wait, and say so; or raise ``final``, where there is one, once this client's patience is over."""
        more = ""
        if final is not None:
            since = self._since.setdefault(type(final), self.steady())
            left = self.patience_s - (self.steady() - since)
            if left <= 0:
                raise final
            more = f", for {spell(round(1000 * left))} more" if math.isfinite(left) else ""
        delay = self.backoff.delay(tries, wait)
        text = f"{why}; trying again in {delay:.0f} s{more}"
        self.notify(Event("offline", text, seconds=round(delay, 3)))
        await self.sleep(delay)

    async def _once(self, request: _Request) -> _Reply:
        headers = {"Content-Type": "application/octet-stream"} if request.method == "POST" else {}
        if request.signed:
            headers |= self._signature(request)
        url = self._base + request.target
        try:
            async with (
                asyncio.timeout(request.seconds or self.limits.request_s),
                self._http.stream(request.method, url, content=request.body, headers=headers) as response,
            ):
                body = await _body(response, request.limit)
                reply = _Reply(response.status_code, response.headers, body)
        except TimeoutError:
            raise Unavailable("the server did not answer in time") from None
        except httpx.HTTPError as error:
            _require_certificate(error, self.wall())
            raise Unavailable(f"cannot reach the server: {_why(error, self._base)}") from None
        if 300 <= reply.status < 400 or reply.status < 200:
            raise DecodeError(f"an answer of status {reply.status}; this client goes nowhere else")
        if reply.status == 429 or reply.status >= 500:
            wanted = reply.headers.get("retry-after", "")
            raise _NotNow(_busy(reply), wait_s=float(wanted) if _NUMBER.fullmatch(wanted) else 0.0)
        return reply

    def _signature(self, request: _Request) -> dict[str, str]:
        if self.deployment is None:
            raise InputError("ask the server about itself first: a signature names the deployment")
        return sign_request(
            self.identity,
            deployment=self.deployment,
            host=urlsplit(self._base).hostname or "",
            method=request.method,
            target=request.target,
            body=request.body,
            now_ms=self._time_ms + self._elapsed_ms,
            randomness=self.randomness,
        )


async def _body(response: httpx.Response, limit: int) -> bytes:
    """Read all of it as it came; refuse it before it is read where it says that it is too large."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise DecodeError("a compressed answer, which this client did not ask for")
    limit = limit if response.status_code == 200 else MOST_JSON
    length = response.headers.get("content-length", "0")
    if not _NUMBER.fullmatch(length) or int(length) > limit:
        raise Oversize(f"an answer of {shown(length)} bytes where at most {limit} are taken")
    parts, size = [], 0
    async for part in response.aiter_raw():
        size += len(part)
        if size > limit:
            raise Oversize(f"an answer of more than {limit} bytes")
        parts.append(part)
    return b"".join(parts)


def _frame(body: bytes, limit: int) -> Message:
    """Decode a message. A proxy's page is not another version of the protocol, which ``about`` tells."""
    try:
        return CODEC.decode(body, limit=limit)
    except WrongVersion:
        raise DecodeError("an answer that is no message of this protocol") from None


def _busy(reply: _Reply) -> str:
    said = reply.problem.message
    what = "asks for fewer requests" if reply.status == 429 else f"is not available (status {reply.status})"
    return f"the server {what}" + (f": {said}" if said else "")


def address(server: str, plain: bool) -> str:
    """Return the server's address without a path; raise ``InputError`` where it cannot be one."""
    wrong = f"{server!r} is not the address of a server, such as https://host:8443"
    try:
        parts = urlsplit(server)
        port = parts.port
        httpx.URL(server)
        (parts.hostname or "").encode("idna")  # as it is looked up
    except (ValueError, httpx.InvalidURL):
        raise InputError(f"{wrong}: a host, and a port from 1 to 65535") from None
    if parts.scheme not in ("https", "http") or not parts.hostname or parts.query or parts.fragment:
        raise InputError(wrong)
    if port == 0:
        raise InputError(f"{server!r}: a port is a number from 1 to 65535")
    if parts.username or parts.path.strip("/"):
        raise InputError(f"{server!r}: an address has a host and a port, and no user or path")
    if parts.scheme == "http" and not plain:
        raise InputError(f"{server!r} is not encrypted; use https")
    return f"{parts.scheme}://{parts.netloc}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error, what it came from, and so on."""
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for one in error.exceptions:
                yield from _causes(one)
        error = error.__cause__ or error.__context__


def _require_certificate(error: BaseException, now: float) -> None:
    """Raise where the certificate is not the pinned authority's, which is nothing to wait for; or where it is
    out of date or not valid yet, which another one mends, or the right time."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            if cause.verify_code in _UNTIMELY:
                raise _NotNow(
                    f"the server's certificate {_UNTIMELY[cause.verify_code]} by this device's clock, which "
                    f"says {datetime.fromtimestamp(now, UTC):%Y-%m-%d %H:%M} UTC"
                ) from None
            raise AuthenticationFailed(
                f"the server's certificate is not trusted: {cause.verify_message}. Give the right authority, "
                "or do not join"
            ) from None


def _why(error: httpx.HTTPError, base: str) -> str:
    """Say it in words, without a semicolon, which ends them where they are counted."""
    causes = list(_causes(error))

    def has(*kinds: type[BaseException]) -> bool:
        return any(isinstance(one, kinds) for one in causes)

    if has(ConnectionRefusedError):
        return f"nothing listens at {base} (connection refused)"
    if has(socket.gaierror):
        return f"the name {urlsplit(base).hostname} is not found"
    if has(ssl.SSLError) and isinstance(error, httpx.ConnectError):
        return f"{base} does not speak TLS as this client does. Is it the right port?"
    if has(httpx.TimeoutException, TimeoutError):
        return f"{base} does not answer in time (timed out)"
    if has(httpx.RemoteProtocolError) and base.startswith("http:"):
        return f"{base} does not speak HTTP here. Is it TLS?"
    if has(ConnectionResetError, BrokenPipeError, ssl.SSLError, httpx.RemoteProtocolError, httpx.ReadError):
        return "it closed the connection without a whole answer"
    said = next((one.strerror for one in causes if isinstance(one, OSError) and one.strerror), None)
    return said or f"no connection ({type(error).__name__})"
