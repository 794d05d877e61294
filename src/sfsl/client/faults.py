"""A bad network and unreliable clients, on purpose: a seeded plan, for tests of a deployment."""

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

import httpx

from sfsl.errors import ParameterError

KINDS = (
    "vanish-before",
    "vanish-after",
    "drop-before",
    "drop-after",
    "delay",
    "disconnect",
    "duplicate",
    "corrupt",
)


class Vanished(Exception):
    """A client that went away by plan. No ``SfslError``: nothing that takes part may take it for one."""


@dataclass(frozen=True)
class NetworkFaults:
    """Per kind of fault the share of requests that it strikes.

    ``vanish``: the client is gone, before or after an exchange, and begins anew. ``drop``: the connection
    fails before the request or before its answer. ``delay``: it comes up to ``delay_s`` late.
    ``disconnect``: in mid-body. ``duplicate``: the request arrives twice. ``corrupt``: a byte of it, or all
    of the answer, is another.
    """

    rates: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    delay_s: float = 1.0

    def __post_init__(self) -> None:
        for kind, rate in self.rates.items():
            if kind not in KINDS:
                raise ParameterError(f"no fault {kind!r}; there are {', '.join(KINDS)}")
            if not 0 <= rate <= 1:
                raise ParameterError(f"a rate of {rate} of {kind!r} is not in 0..1")
        if sum(self.rates.values()) > 1:
            raise ParameterError("the shares of all faults together are more than 1")

    def strike(self, client: str, request: int) -> tuple[str | None, float]:
        """The fault of a client's request by its number, and a number from 0 to 1 that shapes it."""
        drawn = hashlib.sha256(f"{self.seed} {client} {request}".encode()).digest()
        at, shape = (int.from_bytes(part, "big") / 2**64 for part in (drawn[:8], drawn[8:16]))
        for kind in KINDS:
            at -= self.rates.get(kind, 0.0)
            if at < 0:
                return kind, shape
        return None, shape


@dataclass
class Traffic:
    """What went over the network: faults by kind, seconds by kind of request, statuses."""

    faults: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, list[float]] = field(default_factory=dict)
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
        self._sent = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        fault, shape = self._faults.strike(self._client, self._sent)
        self._sent += 1
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
        if fault == "corrupt" and body and shape < 0.5:
            place = int(2 * shape * len(body))
            body = body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :]
        response, content = await self._whole(request, body)
        if fault == "vanish-after":
            raise Vanished
        if fault in ("drop-after", "disconnect"):
            raise httpx.ReadError("dropped by plan", request=request)
        if fault == "corrupt" and shape >= 0.5:
            return _made(response.status_code, response.headers, _garbage(content))
        return _made(response.status_code, response.headers, content)

    async def aclose(self) -> None:
        await self._inner.aclose()

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
        self._traffic.seconds.setdefault(kind, []).append(time.perf_counter() - start)
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


def _garbage(content: bytes) -> bytes:
    """As long, and nothing that was said."""
    return (hashlib.sha256(content).digest() * (len(content) // 32 + 1))[: len(content)]


def _made(status: int, headers: httpx.Headers, content: bytes) -> httpx.Response:
    return httpx.Response(status, headers=headers, stream=httpx.ByteStream(content))
