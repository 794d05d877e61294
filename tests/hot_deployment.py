"""A server of rounds over hot rows and clients that join it, over TLS on loopback, all in this process."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from clocks import PATIENCE
from sfsl.client.events import Event
from sfsl.client.join import join_async
from sfsl.client.participant import Attempt
from sfsl.deploy import Serving, serve_async
from sfsl.privacy.state import read_state
from sfsl.settings.terms import Terms

CLIENTS = 4
SETTINGS: dict[str, Any] = {
    "data": {"users": 12, "scale": 0.03},
    "model": {"kind": "logistic"},
    "round": {"clients": CLIENTS, "threshold": 3},
    "privacy": {"epsilon": 500.0, "participations": 5},
    "serve": {
        "enrolment": "open",
        "port": 0,
        "rounds": 3,
        "period_days": 0,
        "min_cohort": 3,
        "check_in_seconds": 3,
    },
}
# A round that trains costs 0.18 of the whole there, and a survey 0.1; 0.2 is allowed.
TERMS = Terms(hot_epsilon=500, participations=5, least_cohort=3)


def settings(**changes: dict[str, Any]) -> dict[str, Any]:
    return SETTINGS | {name: SETTINGS.get(name, {}) | one for name, one in changes.items()}


@asynccontextmanager
async def served(folder: Path, **changes: dict[str, Any]) -> AsyncIterator[Serving]:
    ready: asyncio.Future[Serving] = asyncio.get_running_loop().create_future()
    server = asyncio.create_task(
        serve_async(settings(**changes), out=folder / "server", ready=ready.set_result)
    )
    await asyncio.wait([server, ready], return_when=asyncio.FIRST_COMPLETED)
    if server.done():
        server.result()
    serving = ready.result()
    try:
        async with asyncio.timeout(PATIENCE):
            yield serving
    finally:
        serving.deployment.coordinator.give_up()
        await serving.stop()
        await server


async def join(
    serving: Serving,
    folder: Path,
    number: int,
    *,
    terms: Terms = TERMS,
    rounds: int | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> list[Attempt]:
    """One client, whose items are its own and some that everybody has."""
    data = folder / f"{number}.csv"
    items = [*range(10), *range(20 + 5 * number, 25 + 5 * number)]
    data.write_text("item,label,time\n" + "".join(f"{item},{item % 2},{item}\n" for item in items))
    return await join_async(
        serving.url,
        data,
        folder / f"client-{number}",
        terms=terms,
        ca=serving.authority,
        rounds=rounds,
        wait=False,
        on_event=on_event,
    )


async def until(kinds: str, serving: Serving, folder: Path, number: int, **more: Any) -> list[Event]:
    """What a client said up to its first word of one of these kinds, after which it leaves."""
    said: list[Event] = []
    heard = asyncio.Event()

    def note(event: Event) -> None:
        said.append(event)
        if event.kind in kinds.split():
            heard.set()

    client = asyncio.create_task(join(serving, folder, number, on_event=note, **more))
    waiting = asyncio.create_task(heard.wait())
    await asyncio.wait([client, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    client.cancel()
    ended = (await asyncio.gather(client, return_exceptions=True))[0]
    if isinstance(ended, Exception):
        raise ended
    return said


def spent(folder: Path, number: int) -> tuple[float, int, int]:
    """What a client's ledger has: rho, the rounds over hot rows, and all rounds."""
    state = read_state(folder / f"client-{number}" / "state")
    return state.hot.rho, state.hot.rounds, state.ledger.begun
