"""A server that claims another's deployment at a client's first contact, and passes its requests on."""

import asyncio
from pathlib import Path

import httpx
import pytest

from clocks import PATIENCE
from deployment import Deployment, serve
from sfsl.client import Backoff, Link
from sfsl.crypto.secret import Identity
from sfsl.errors import AuthenticationFailed
from sfsl.service.signing import Verifier
from sfsl.testing import SeededRandomness

VICTIM = Identity.generate(SeededRandomness("victim"))


class Relay(httpx.AsyncBaseTransport):
    """What the victim asks of the liar goes to the honest server, headers and all; so do the answers."""

    def __init__(self, honest: httpx.AsyncBaseTransport) -> None:
        self._honest = honest

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url.copy_with(host="server")
        passed = httpx.Request(
            request.method, url, headers={**request.headers, "host": "server"}, content=await request.aread()
        )
        return await self._honest.handle_async_request(passed)


def enrolled_through(folder: Path, liar: str) -> int:
    """Return how many clients the honest server has once the victim tried to join the liar."""

    async def at_once(_: float) -> None: ...

    async def run() -> int:
        async with Deployment(folder) as world:
            relay = Relay(httpx.ASGITransport(serve(world)))
            source = SeededRandomness("link")
            async with Link(
                liar,
                VICTIM,
                transport=relay,
                backoff=Backoff(source),
                randomness=source,
                sleep=at_once,
                patience_s=0,
            ) as link:
                about = await link.about()
                assert about.deployment == world.registry.deployment.hex()  # which is not the liar's
                try:
                    await link.enrol()
                finally:
                    count = world.registry.count()
                return count

    return asyncio.run(asyncio.wait_for(run(), PATIENCE))


def test_requests_passed_on_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AuthenticationFailed, match="signed for another host than this server's"):
        enrolled_through(tmp_path, "https://evil.example")


def test_without_the_check_they_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Verifier, "_require_host", lambda *_: None)
    assert enrolled_through(tmp_path, "https://evil.example") == 1


def test_by_its_own_name_the_server_takes_them(tmp_path: Path) -> None:
    assert enrolled_through(tmp_path, "https://server") == 1
