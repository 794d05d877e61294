"""The server process: a socket, TLS, signals, limits on the connections of strangers, and the rounds beside
them."""

import asyncio
import logging
import socket
import ssl
import struct
from asyncio import sslproto
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from sfsl.carriers.https.coordinator import Coordinator
from sfsl.checksums import without_last_lines
from sfsl.durable import system_errors_as
from sfsl.errors import InputError, KeyFileError

log = logging.getLogger(__name__)

_READ_BYTES = 32 << 10
_AT_ONCE = struct.pack("ii", 1, 0)  # a reset, and nothing lingers
_NO_HTTP = b'{"error":"DecodeError","message":"this is not a request in HTTP/1.1"}'
_HEAD_BYTES = 16 << 10
_KEEP_ALIVE_SECONDS = 75
_GRACEFUL_SECONDS = 5
_HANDSHAKE_SECONDS = 10.0
_GOODBYE_SECONDS = 1.0  # a client that waits for nothing does not say goodbye, and is not waited for
_SPARE_FILES = 256


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


@dataclass(frozen=True)
class Listen:
    """Says where to listen. Without a certificate there is no TLS: for a proxy on this machine, and tests.
    ``proxied``: addresses are those that the proxy on this machine names."""

    host: str = "127.0.0.1"
    port: int = 8443
    certificate: Path | None = None
    key: Path | None = None
    proxied: bool = False
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)


async def serve(app: ASGIApp, coordinator: Coordinator, listen: Listen, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT, then finish or abort the round and close; a second signal does not wait.
    ``ready`` is told the URL. Raises what made the rounds end."""
    context = _tls(listen)
    with Door(_bound(listen), listen.connections) as sock:
        server = _Server(_config(app, listen), context)
        web = asyncio.create_task(server.serve([sock]))
        rounds = asyncio.create_task(coordinator.run())
        asked = asyncio.create_task(server.asked.wait())
        try:
            while not (server.started or web.done()):
                await asyncio.sleep(0.01)
            if not web.done():
                ready(url(listen, sock.getsockname()[1]))
            await asyncio.wait({web, rounds, asked}, return_when=asyncio.FIRST_COMPLETED)
            if not rounds.done():
                log.info("stopping%s", ": the round under way may finish" if coordinator.under_way else "")
                stopping = asyncio.create_task(coordinator.stop())
                again = asyncio.create_task(server.asked_again.wait())
                await asyncio.wait({stopping, again}, return_when=asyncio.FIRST_COMPLETED)
                again.cancel()
                if not stopping.done():
                    coordinator.give_up()
                    await stopping
        finally:
            asked.cancel()
            server.should_exit = True
            await asyncio.gather(web, return_exceptions=True)
            rounds.cancel()  # which changes nothing if they are over
            await asyncio.gather(rounds, return_exceptions=True)
        for task in (rounds, web):
            if not task.cancelled():
                task.result()


class _Server(uvicorn.Server):
    """Adds to uvicorn's a bound on handshakes, and signals that ask instead of ending everything."""

    def __init__(self, config: uvicorn.Config, context: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self.asked, self.asked_again = asyncio.Event(), asyncio.Event()
        self._context, self._loop = context, asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        event = self.asked_again if self.asked.is_set() else self.asked
        self._loop.call_soon_threadsafe(event.set)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        def connection() -> asyncio.Protocol:
            made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
                config=self.config, server_state=self.server_state, app_state={}, _loop=self._loop
            )
            return made

        secured = self._context is not None
        self.servers = [
            await self._loop.create_server(
                connection,
                sock=sock,
                ssl=self._context,
                ssl_handshake_timeout=_HANDSHAKE_SECONDS if secured else None,
                ssl_shutdown_timeout=_GOODBYE_SECONDS if secured else None,
                backlog=self.config.backlog,
            )
            for sock in sockets or ()
        ]
        self.started = True


def url(listen: Listen, port: int) -> str:
    host = f"[{listen.host}]" if ":" in listen.host else listen.host
    return f"{'https' if listen.certificate else 'http'}://{host}:{port}"


def _config(app: ASGIApp, listen: Listen) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=guarded(listen.connections),
        ws="none",
        lifespan="off",
        loop="asyncio",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=listen.proxied,
        forwarded_allow_ips="127.0.0.1,::1",
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_GRACEFUL_SECONDS,
        h11_max_incomplete_event_size=_HEAD_BYTES,
    )


def _tls(listen: Listen) -> ssl.SSLContext | None:
    if listen.certificate is None or listen.key is None:
        return None
    lean_tls()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        for file in (listen.certificate, listen.key):
            without_last_lines(file.read_bytes(), str(file))  # damage that OpenSSL would not find
        context.load_cert_chain(listen.certificate, listen.key, password=_no_password)
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise KeyFileError(
            f"cannot use the certificate {listen.certificate} with the key {listen.key}: {said}"
        ) from None
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted; a server that starts at night cannot ask for a password")


def _bound(listen: Listen) -> socket.socket:
    _allow_files(listen.connections.most + _SPARE_FILES)
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    with system_errors_as(InputError, f"listen on {listen.host} port {listen.port}"):
        bound = socket.create_server((listen.host, listen.port), family=family, backlog=1024)
    # Connections inherit it. asyncio sets it only where a socket names TCP, which this one does not; without
    # it a body waits for the peer to confirm the head, which takes 40 ms.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return bound


def _allow_files(wanted: int) -> None:
    """Allow this many open files, as every connection is one; take what the system gives."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
