"""A server that lies to one client: between it and the honest server, with the server's own certificate, and
what it passes on is altered. ``python tests/lying_proxy.py URL PORT TLS_FOLDER``."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sfsl.client.link import trusted
from sfsl.codec import Message
from sfsl.errors import RemoteError
from sfsl.rounds.exchanges import Submodel
from sfsl.service.messages import CODEC

Lie = Callable[[Message], Message]
_LARGEST = 1 << 28
_PASSED_ON = ("content-type", "sfsl-sequence", "etag", "retry-after")


def other_rows(message: Message) -> Message:
    """Everything in a submodel is as it should be but the values of its rows."""
    if not isinstance(message, Submodel):
        return message
    rows = tuple((np.frombuffer(data, "<f4") + np.float32(1)).tobytes() for data in message.rows)
    return msgspec.structs.replace(message, rows=rows)


def lying(server: str, ca: Path, lie: Lie) -> Starlette:
    """Pass every request on as it is, and every frame that comes back as ``lie`` makes it."""

    async def pass_on(request: Request) -> Response:
        kept = {name: value for name, value in request.headers.items() if name.startswith("sfsl-")}
        kept["host"] = request.headers["host"].partition(":")[0]
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        async with httpx.AsyncClient(verify=trusted(ca), timeout=120) as honest:
            answer = await honest.request(
                request.method, server + target, headers=kept, content=await request.body()
            )
        body = answer.content
        with suppress(RemoteError):  # what is no frame
            body = CODEC.encode(lie(CODEC.decode(body, limit=_LARGEST)))
        headers = {name: answer.headers[name] for name in _PASSED_ON if name in answer.headers}
        return Response(body, answer.status_code, headers)

    return Starlette(routes=[Route("/{path:path}", pass_on, methods=["GET", "POST", "PUT", "DELETE"])])


@asynccontextmanager
async def lying_proxy(server: str, tls: Path, lie: Lie = other_rows, port: int = 0) -> AsyncIterator[str]:
    """Serve over TLS with the certificate in ``tls``; yields the address."""
    config = uvicorn.Config(
        lying(server, tls / "authority.pem", lie),
        host="127.0.0.1",
        port=port,
        ssl_certfile=tls / "server.pem",
        ssl_keyfile=tls / "server.key",
        log_level="error",
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=1,
    )
    running = uvicorn.Server(config)
    task = asyncio.create_task(running._serve(None))  # not serve(): signals are the test's
    while not running.started:
        if task.done():
            task.result()
        await asyncio.sleep(0.02)
    (listener,) = running.servers
    yield f"https://localhost:{listener.sockets[0].getsockname()[1]}"
    running.should_exit = True
    await task


async def main(server: str, port: str, tls: str) -> Any:
    async with lying_proxy(server, Path(tls), port=int(port)) as url:
        print(f"Lying at {url}", flush=True)  # noqa: T201
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
