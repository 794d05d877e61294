"""A bad network and unreliable clients, on purpose: a seeded plan, for tests of a deployment."""

import asyncio
import hashlib
import re
import time
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

import httpx

from sfsl.errors import ParameterError

# The client is gone: these, and no others, cost it the round.
LOSSES = ("vanish-before", "vanish-after")
KINDS = (*LOSSES, "drop-before", "drop-after", "delay", "disconnect", "duplicate", "corrupt")
# Where a round may be struck: the check-in, and each message and answer of six exchanges.
_PLACES = 13
_PLACE = re.compile(r"/v1/(?:next/[0-9a-f]+\?after=|answer/[0-9a-f]+/)([0-9]+)")


class Vanished(Exception):
    """A client that went away by plan. No ``SfslError``: nothing that takes part may take it for one."""


@dataclass(frozen=True)
class NetworkFaults:
    """Per kind of fault the share of a round's clients that it strikes, once, at a place drawn evenly: the
    check-in, or a message or an answer of an exchange. ``per_request``: the share of requests instead.

    ``vanish``: the client is gone, before or after an exchange, and begins anew. ``drop``: the connection
    fails before the request or before its answer. ``delay``: it comes up to ``delay_s`` late.
    ``disconnect``: in mid-body, of the request or else of the answer. ``duplicate``: the request arrives
    twice. ``corrupt``: a byte of it, or all of the answer, is another.
    """

    rates: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    delay_s: float = 1.0
    per_request: bool = False

    def __post_init__(self) -> None:
        for kind, rate in self.rates.items():
            if kind not in KINDS:
                raise ParameterError(f"no fault {kind!r}; there are {', '.join(KINDS)}")
            if not 0 <= rate <= 1:
                raise ParameterError(f"a rate of {rate} of {kind!r} is not in 0..1")
        if sum(self.rates.values()) > 1:
            raise ParameterError("the shares of all faults together are more than 1")

    def strike(self, client: str, number: int) -> tuple[str | None, float, int]:
        """The fault of a client's check-in (or request) by its number, a number from 0 to 1 that shapes it,
        and its place in the round."""
        drawn = hashlib.sha256(f"{self.seed} {client} {number}".encode()).digest()
        at, shape, place = (int.from_bytes(drawn[k : k + 8], "big") / 2**64 for k in (0, 8, 16))
        for kind in KINDS:
            at -= self.rates.get(kind, 0.0)
            if at < 0:
                return kind, shape, int(place * _PLACES)
        return None, shape, 0


@dataclass
class Traffic:
    """What went over the network: faults by kind, seconds by kind of request, statuses."""

    faults: Counter[str] = field(default_factory=Counter)
    seconds: "dict[str, array[float]]" = field(default_factory=dict)
    statuses: Counter[int] = field(default_factory=Counter)


class FaultyTransport(httpx.AsyncBaseTransport):
    """Sends one client's requests over ``inner``, with faults, and keeps the books."""

    def __init__(
        self, inner: httpx.AsyncBaseTransport, client: str, faults: NetworkFaults, traffic: Traffic
    ) -> None:
        self._inner = inner
        self._client = client
        self._faults = faults
        self._traffic = traffic
        self._drawn = 0
        self._check_in = b""
        self._due: tuple[str, float, int] | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        fault, shape = self._fault(request.url.raw_path.decode(), body)
        if fault:
            self._traffic.faults[fault] += 1
        if fault == "vanish-before":
            raise Vanished
        if fault == "drop-before":
            raise httpx.ConnectError("dropped by plan", request=request)
        if fault == "delay":
            await asyncio.sleep(shape * self._faults.delay_s)
        if fault == "disconnect" and body:
            await self._break_off(request, body, shape)
        if fault == "duplicate":
            await self._whole(request, body)
        asked = fault == "corrupt" and body and shape < 0.5
        if asked:
            place = int(2 * shape * len(body))
            body = body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :]
        response, content = await self._whole(request, body)
        if fault == "vanish-after":
            raise Vanished
        if fault in ("drop-after", "disconnect"):
            raise httpx.ReadError("dropped by plan", request=request)
        if fault == "corrupt" and not asked:
            return _made(response.status_code, response.headers, _garbage(content))
        return _made(response.status_code, response.headers, content)

    async def aclose(self) -> None:
        await self._inner.aclose()

    def _fault(self, target: str, body: bytes) -> tuple[str | None, float]:
        """What the plan has for this request. A check-in with new keys begins a round."""
        place = _place(target)
        if self._faults.per_request or (place == 0 and body != self._check_in):
            fault, shape, at = self._faults.strike(self._client, self._drawn)
            self._drawn += 1
            if self._faults.per_request:
                return fault, shape
            self._check_in = body
            self._due = None if fault is None else (fault, shape, at)
        if self._due is None or place != self._due[2]:
            return None, 0.0
        fault, shape, _ = self._due
        self._due = None
        return fault, shape

    async def _whole(self, request: httpx.Request, body: bytes) -> tuple[httpx.Response, bytes]:
        """One exchange over the network, timed."""
        start = time.perf_counter()
        sent = httpx.Request(request.method, request.url, headers=request.headers, content=body)
        response = await self._inner.handle_async_request(sent)
        try:
            content = await response.aread()
        finally:
            await response.aclose()
        kind = request.url.path.split("/")[2] if request.url.path.count("/") > 1 else request.url.path
        self._traffic.seconds.setdefault(kind, array("d")).append(time.perf_counter() - start)
        self._traffic.statuses[response.status_code] += 1
        return response, content

    async def _break_off(self, request: httpx.Request, body: bytes, shape: float) -> None:
        """Send a part of the body that was announced, and close."""

        async def part() -> AsyncIterator[bytes]:
            yield body[: int(shape * len(body))]
            await asyncio.sleep(0)
            raise httpx.WriteError("broken off by plan", request=request)

        sent = httpx.Request(request.method, request.url, headers=request.headers, content=part())
        await self._inner.handle_async_request(sent)


def _place(target: str) -> int | None:
    """0: the check-in; odd: a message is asked for; even: it is answered; None: no part of a round."""
    if target == "/v1/check-in":
        return 0
    found = _PLACE.fullmatch(target)
    if found is None:
        return None
    return 2 * int(found[1]) + (1 if "/next/" in target else 0)


def _garbage(content: bytes) -> bytes:
    """As long, and nothing that was said."""
    return (hashlib.sha256(content).digest() * (len(content) // 32 + 1))[: len(content)]


def _made(status: int, headers: httpx.Headers, content: bytes) -> httpx.Response:
    return httpx.Response(status, headers=headers, stream=httpx.ByteStream(content))
