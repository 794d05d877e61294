"""One client's way to its server: signed requests over pinned TLS, answers of bounded size.

A body is made once by the caller; a retry sends the same bytes under a fresh signature.
"""

import asyncio
import re
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import httpx

from sfsl.client.backoff import Backoff
from sfsl.client.events import Event, Notify, nobody
from sfsl.client.replies import MOST_JSON, About, Enrolled, Problem, Read, read_json, read_problem, shown
from sfsl.codec import Message
from sfsl.crypto.identity import Identity
from sfsl.crypto.secret import Randomness
from sfsl.errors import (
    AuthenticationFailed,
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
from sfsl.service.messages import CODEC, CheckedIn, Enrol
from sfsl.service.signing import client_id, sign_request

PROTOCOL = 1
_NUMBER = re.compile("[0-9]{1,9}")
# A garbled answer may be a proxy's; so many in a row are the server's.
_GARBLED = 3
# A bad network garbles requests too, or delivers them twice.
_SIGNED_AGAIN = 5


@dataclass(frozen=True)
class LinkLimits:
    """Seconds for a request as a whole, and bytes of answers. A poll must outlast the server's."""

    request_s: float = 120.0
    connect_s: float = 30.0
    poll_s: float = 60.0
    model_bytes: int = 64 << 20
    catalogue_bytes: int = 64 << 20


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


def trusted(ca: str | Path | None) -> ssl.SSLContext:
    """Trust this authority and no other; without one, those of the system."""
    try:
        return ssl.create_default_context(cafile=None if ca is None else str(ca))
    except OSError as error:
        raise KeyFileError(f"cannot read the certificate authority {ca}: {error}") from None


class Link:
    """``deployment`` pins the server's; None takes the one met first and keeps to it.

    Retries for ever what a bad link or a busy server spoils, and says so to ``notify``; raises what no
    retry mends. ``transport`` replaces the sockets, ``sleep``, ``wall`` and ``steady`` the clocks.
    """

    def __init__(
        self,
        server: str,
        identity: Identity,
        *,
        backoff: Backoff,
        randomness: Randomness,
        tls: ssl.SSLContext | None = None,
        plain: bool = False,
        deployment: bytes | None = None,
        limits: LinkLimits | None = None,
        notify: Notify = nobody,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._base = address(server, plain)
        self._identity = identity
        self.client = client_id(identity.public)
        self.deployment = deployment
        self._backoff = backoff
        self._randomness = randomness
        self._limits = limits or LinkLimits()
        self._notify = notify
        self._sleep = sleep
        self._wall = wall
        self._steady = steady
        self._ahead_ms = 0
        self._http = httpx.AsyncClient(
            verify=tls or trusted(None),
            trust_env=False,
            follow_redirects=False,
            transport=transport,
            headers={"Accept-Encoding": "identity"},
            # Each request has one deadline for all of it; to connect takes no poll.
            timeout=httpx.Timeout(None, connect=self._limits.connect_s),
        )

    async def about(self) -> About:
        """What is served; also sets our idea of the server's clock."""
        about = await self._ask("GET", "/v1/about", partial(read_json, About), signed=False)
        if about.protocol != PROTOCOL:
            raise WrongVersion(f"the server speaks protocol {about.protocol}, this client {PROTOCOL}")
        found = bytes.fromhex(about.deployment)
        if self.deployment is not None and found != self.deployment:
            raise AuthenticationFailed(
                f"this is deployment {about.deployment}; this client joined {self.deployment.hex()}"
            )
        self.deployment = found
        self._ahead_ms = about.time - round(self._wall() * 1000)
        return about

    async def model(self) -> bytes:
        """The package of the model, for the caller to check and build."""
        return await self._ask("GET", "/v1/model", bytes, signed=False, limit=self._limits.model_bytes)

    async def catalogue(self) -> bytes:
        """What the rows of the model are called, for the caller to check."""
        limit = self._limits.catalogue_bytes
        return await self._ask("GET", "/v1/catalogue", bytes, signed=False, limit=limit)

    async def enrol(self) -> None:
        body = CODEC.encode(Enrol(self._identity.public))
        named = await self._ask("POST", "/v1/enrol", partial(read_json, Enrolled), body)
        if named.client != self.client:
            raise InvalidMessage("the server enrolled this client under another name than its key gives it")

    async def check_in(self, body: bytes) -> CheckedIn:
        message = await self._ask("POST", "/v1/check-in", partial(_frame, limit=MOST_JSON), body)
        if not isinstance(message, CheckedIn):
            raise InvalidMessage(f"{type(message).__name__} in answer to a check-in")
        return message

    async def next(self, ticket: bytes, after: int, *, limit: int) -> Message | Over:
        """Message ``after`` + 1, as soon as there is one."""

        def read(reply: _Reply) -> Message | Over | None:
            if reply.status in (404, 410):
                return _over(reply)
            if reply.status == 204:
                return None
            if self._ok(reply).headers.get("sfsl-sequence") != str(after + 1):
                raise WrongRound(f"the server sent another message than number {after + 1}, which is due")
            return _frame(reply.body, limit)

        target, quick = f"/v1/next/{ticket.hex()}?after={after}", 0
        while True:
            asked = self._steady()
            got = await self._insist("GET", target, read, limit=limit, seconds=self._limits.poll_s)
            if got is not None:
                return got
            # A server that holds no poll open is not asked without end.
            quick = quick + 1 if self._steady() - asked < 1.0 else 0
            if quick:
                await self._sleep(self._backoff.delay(quick))

    async def answer(self, ticket: bytes, number: int, body: bytes) -> Over | None:
        """Hand over the answer to message ``number``. A late one is no error here: the next poll says so."""

        def read(reply: _Reply) -> Over | None:
            if reply.status in (404, 410):
                return _over(reply)
            if reply.status not in (204, 409):
                raise self._refused(reply)
            return None

        return await self._insist("POST", f"/v1/answer/{ticket.hex()}/{number}", read, body)

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ------------------------------------------------------------------------------------------

    async def _ask(
        self,
        method: str,
        target: str,
        read: Callable[[bytes], Read],
        body: bytes = b"",
        *,
        signed: bool = True,
        limit: int = MOST_JSON,
    ) -> Read:
        def ok(reply: _Reply) -> Read:
            return read(self._ok(reply).body)

        return await self._insist(method, target, ok, body, signed=signed, limit=limit)

    async def _insist(
        self,
        method: str,
        target: str,
        read: Callable[[_Reply], Read],
        body: bytes = b"",
        *,
        signed: bool = True,
        limit: int = MOST_JSON,
        seconds: float | None = None,
    ) -> Read:
        """Until there is an answer that another try would not change; what ``read`` makes of it."""
        failed = garbled = signings = 0
        while True:
            wait = 0.0
            try:
                reply = await self._once(method, target, body, signed, limit, seconds)
                if not (signed and reply.status == 401 and signings < _SIGNED_AGAIN):
                    return read(reply)
                # Our clock, a server that has just started, or a copy of our request that came first.
                signings += 1
                why = f"signing again: {reply.problem.message or 'the signature was not taken'}"
                if signings == 1:
                    await self.about()
                    continue
            except Unavailable as reason:
                wait, why = reason.wait_s, str(reason)
            except DecodeError as reason:
                garbled += 1
                if garbled >= _GARBLED:
                    raise
                why = str(reason)
            delay = self._backoff.delay(failed, wait)
            failed += 1
            self._notify(Event("offline", f"{why}; trying again in {delay:.0f} s"))
            await self._sleep(delay)

    async def _once(
        self, method: str, target: str, body: bytes, signed: bool, limit: int, seconds: float | None
    ) -> _Reply:
        headers = {"Content-Type": "application/octet-stream"} if method == "POST" else {}
        if signed:
            headers |= self._signature(method, target, body)
        request = self._http.build_request(method, self._base + target, content=body, headers=headers)
        try:
            async with asyncio.timeout(seconds or self._limits.request_s):
                response = await self._http.send(request, stream=True)
                try:
                    reply = _Reply(response.status_code, response.headers, await _body(response, limit))
                finally:
                    await response.aclose()
        except TimeoutError:
            raise Unavailable("the server did not answer in time") from None
        except httpx.HTTPError as error:
            _require_certificate(error)
            raise Unavailable(f"cannot reach the server: {_why(error, self._base)}") from None
        if 300 <= reply.status < 400 or reply.status < 200:
            raise DecodeError(f"an answer of status {reply.status}; this client goes nowhere else")
        if reply.status == 429 or reply.status >= 500:
            wanted = reply.headers.get("retry-after", "")
            seconds_wanted = float(wanted) if _NUMBER.fullmatch(wanted) else 0.0
            raise Unavailable(_busy(reply), wait_s=seconds_wanted)
        return reply

    def _signature(self, method: str, target: str, body: bytes) -> dict[str, str]:
        if self.deployment is None:
            raise InputError("ask the server about itself first: a signature names the deployment")
        return sign_request(
            self._identity,
            deployment=self.deployment,
            method=method,
            target=target,
            body=body,
            now_ms=round(self._wall() * 1000) + self._ahead_ms,
            randomness=self._randomness,
        )

    def _ok(self, reply: _Reply) -> _Reply:
        if reply.status != 200:
            raise self._refused(reply)
        return reply

    def _refused(self, reply: _Reply) -> RemoteError:
        problem = reply.problem
        said = (
            f"the server refuses (status {reply.status}): {problem.message or problem.error or 'no reason'}"
        )
        return AuthenticationFailed(said) if reply.status in (401, 403) else InvalidMessage(said)


async def _body(response: httpx.Response, limit: int) -> bytes:
    """All of it, as it came: refused before it is read where it says that it is too large."""
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
    """A page of some proxy is not another version of the protocol; ``about`` is asked for that."""
    try:
        return CODEC.decode(body, limit=limit)
    except WrongVersion:
        raise DecodeError("an answer that is no message of this protocol") from None


def _over(reply: _Reply) -> Over:
    problem = reply.problem
    return Over(shown(problem.outcome[:32]) or "over", problem.round, problem.message)


def _busy(reply: _Reply) -> str:
    said = reply.problem.message
    what = "asks for fewer requests" if reply.status == 429 else f"is not available (status {reply.status})"
    return f"the server {what}" + (f": {said}" if said else "")


def address(server: str, plain: bool) -> str:
    """Of the server, without a path; ``InputError`` where it cannot be one."""
    try:
        parts = urlsplit(server)
        port = parts.port
        httpx.URL(server)
        (parts.hostname or "").encode("idna")  # as it is looked up
    except (ValueError, httpx.InvalidURL):
        raise InputError(
            f"{server!r} is not the address of a server, such as https://host:8443: a host, and a port from "
            "1 to 65535"
        ) from None
    if parts.scheme not in ("https", "http") or not parts.hostname or parts.query or parts.fragment:
        raise InputError(f"{server!r} is not the address of a server, such as https://host:8443")
    if port == 0:
        raise InputError(f"{server!r}: a port is a number from 1 to 65535")
    if parts.username or parts.path.strip("/"):
        raise InputError(f"{server!r}: an address has a host and a port, and no user or path")
    if parts.scheme == "http" and not plain:
        raise InputError(f"{server!r} is not encrypted; use https")
    return f"{parts.scheme}://{parts.netloc}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, what it came from, and so on."""
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for one in error.exceptions:
                yield from _causes(one)
        error = error.__cause__ or error.__context__


def _require_certificate(error: BaseException) -> None:
    """A certificate that is not the pinned authority's is nothing to wait for."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            raise AuthenticationFailed(
                f"the server's certificate is not trusted: {cause.verify_message}. Give the right authority, "
                "or do not join"
            ) from None


def _why(error: httpx.HTTPError, base: str) -> str:
    """In words, without a semicolon, which ends them where they are counted."""
    host = urlsplit(base).hostname
    causes = list(_causes(error))

    def has(*kinds: type[BaseException]) -> bool:
        return any(isinstance(one, kinds) for one in causes)

    if has(ConnectionRefusedError):
        return f"nothing listens at {base} (connection refused)"
    if has(socket.gaierror):
        return f"the name {host} is not found"
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
