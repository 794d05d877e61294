"""The server process: a socket, TLS, signals, and the rounds beside them."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from sfsl.carriers.https.coordinator import Coordinator
from sfsl.carriers.https.guarded import ConnectionLimits, Door, guarded, lean_tls
from sfsl.errors import InputError, KeyFileError

log = logging.getLogger(__name__)

_HEAD_BYTES = 16 << 10
_KEEP_ALIVE_SECONDS = 75
_GRACEFUL_SECONDS = 5
_HANDSHAKE_SECONDS = 10.0
_GOODBYE_SECONDS = 1.0  # a client that waits for nothing does not say goodbye, and is not waited for
_SPARE_FILES = 256


@dataclass(frozen=True)
class Listen:
    """Says where to listen. Without a certificate there is no TLS: for a proxy on this machine, and tests.

    ``proxied``: addresses are those that the proxy on this machine names.
    """

    host: str = "127.0.0.1"
    port: int = 8443
    certificate: Path | None = None
    key: Path | None = None
    proxied: bool = False
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)


async def serve(app: ASGIApp, coordinator: Coordinator, listen: Listen, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT, then finish or abort the round and close; a second signal does not wait.

    ``ready`` is told the URL. Raises what made the rounds end.
    """
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
    try:
        bound = socket.create_server((listen.host, listen.port), family=family, backlog=1024)
    except OSError as error:
        raise InputError(f"cannot listen on {listen.host} port {listen.port}: {error.strerror}") from None
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
