"""The HTTP surface, without sockets: what each endpoint answers, to whom, and what it refuses."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx

from deployment import Deployment, Wire, serve


def scenario(folder: Path, act: Callable[..., Awaitable[None]], count: int = 3, **changes: Any) -> None:
    """Run ``act`` with a deployment and its clients over HTTP."""
    given = {name: changes.pop(name) for name in ("limits", "enrolment") if name in changes}

    async def run() -> None:
        async with Deployment(folder, **changes) as world:
            transport = httpx.ASGITransport(serve(world, **given))
            async with httpx.AsyncClient(transport=transport, base_url="https://test") as http:
                wires = [Wire(guest, http, world.registry.deployment) for guest in world.clients(count)]
                await act(world, wires)

    asyncio.run(run())


def test_a_round_through_the_app(tmp_path: Path) -> None:
    async def act(world: Deployment, wires: list[Wire]) -> None:
        ends = await asyncio.gather(*(wire.play() for wire in wires))
        assert {(end["error"], end["outcome"], end["round"]) for end in ends} == {
            ("RoundOver", "committed", 1)
        }
        assert world.store.round == 1

    scenario(tmp_path, act)
