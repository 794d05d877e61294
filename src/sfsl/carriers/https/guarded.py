"""Limits on what strangers may do: connections, handshakes, requests a second."""

import asyncio
import math
import socket
import struct
from asyncio import sslproto
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from sfsl.errors import ParameterError, TooMany


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


_READ_BYTES = 32 << 10
_AT_ONCE = struct.pack("ii", 1, 0)  # a reset, and nothing lingers
_NO_HTTP = b'{"error":"DecodeError","message":"this is not a request in HTTP/1.1"}'


@dataclass(frozen=True)
class ConnectionLimits:
    """Bounds connections. ``head_seconds``: for the head of a request, and for what nobody reads after its
    answer. ``drain_seconds``: for a peer to take what was written."""

    most: int = 5000
    most_per_address: int = 1000
    head_seconds: float = 10.0
    drain_seconds: float = 120.0


def lean_tls() -> None:
    """Have TLS connections of this process read into small buffers. asyncio gives each 256 KiB, also before
    it has said anything; most of what an idle one costs. A TLS record has 16 KiB at the most."""
    sslproto.SSLProtocol.max_size = _READ_BYTES


class Door(socket.socket):
    """Listens, and counts who is inside. Whoever is too many is out before TLS has cost anything:
    connections that never finish their handshake are counted too."""

    def __init__(self, listening: socket.socket, limits: ConnectionLimits) -> None:
        super().__init__(listening.family, listening.type, listening.proto, fileno=listening.detach())
        self._limits = limits
        self._inside: Counter[str] = Counter()

    def accept(self) -> tuple[socket.socket, Any]:
        accepted, peer = super().accept()
        inside, limits, address = self._inside, self._limits, str(peer[0])
        if inside.total() >= limits.most or inside[address] >= limits.most_per_address:
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            accepted.close()
            raise ConnectionAbortedError  # which the event loop takes for one that left by itself
        return _Inside(accepted, inside, address), peer


class _Inside(socket.socket):
    """Is a connection's socket; however it ends, its place is free again."""

    def __init__(self, accepted: socket.socket, inside: Counter[str], address: str) -> None:
        super().__init__(accepted.family, accepted.type, accepted.proto, fileno=accepted.detach())
        self._inside, self._address = inside, address
        inside[address] += 1

    def close(self) -> None:
        address, self._address = self._address, ""
        super().close()
        if address:
            self._inside[address] -= 1
            if not self._inside[address]:
                del self._inside[address]


def guarded(limits: ConnectionLimits) -> type[H11Protocol]:
    """Return a protocol whose peers may not dawdle."""

    class Guarded(H11Protocol):
        _timers: dict[str, asyncio.TimerHandle]

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._timers = {}
            self._allow("head", limits.head_seconds)

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget("head")
            self._forget("drain")
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            # Once a request is under way, its endpoint minds the time.
            if self.cycle is not None and not self.cycle.response_complete:
                self._forget("head")
            elif not self.transport.is_closing():
                self._allow("head", limits.head_seconds)

        def send_400_response(self, msg: str) -> None:
            """Answer what is no HTTP, in the form that all our refusals have."""
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(_NO_HTTP)).encode()),
                (b"connection", b"close"),
            ]
            response = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
            events = (response, h11.Data(data=_NO_HTTP), h11.EndOfMessage())
            self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
            self.transport.close()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._allow("drain", limits.drain_seconds)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._forget("drain")

        def _allow(self, what: str, seconds: float) -> None:
            """Abort the connection so many seconds after the first call for ``what``."""
            if what not in self._timers:
                self._timers[what] = self.loop.call_later(seconds, self.transport.abort)

        def _forget(self, what: str) -> None:
            if timer := self._timers.pop(what, None):
                timer.cancel()

    return Guarded
