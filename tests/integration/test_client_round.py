"""Several participants and a server: whole rounds over HTTP."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from clocks import PATIENCE
from crowd import Crowd, close
from deployment import Deployment, serve
from sfsl.client import Link
from sfsl.client.events import Event
from sfsl.client.home import read_roster
from sfsl.submodel import RowSet


def test_three_participants_complete_a_round(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path)
    people = [crowd.participant(name) for name in crowd.names]
    before = crowd.server.store.read_rows("goods", RowSet(np.arange(60))).values.copy()

    async def main() -> None:
        async with asyncio.timeout(PATIENCE):
            ended = await asyncio.gather(*(one.run(1) for one in people))
        assert [[one.outcome for one in some] for some in ended] == [["committed"]] * 3

    asyncio.run(main())
    (outcome,) = crowd.server.outcomes
    assert set(outcome.survivors) == {one.link.client for one in people}
    union = sorted(set().union(*crowd.real.values()))
    assert outcome.union["goods"].rows.tolist() == union
    assert crowd.server.store.round == 1
    moved = crowd.server.store.read_rows("goods", RowSet(np.arange(60))).values - before
    owners = np.array([[row in crowd.real[name] for name in crowd.names] for row in range(60)])
    moves = owners @ (np.arange(1, 4) / 1024) / np.maximum(owners.sum(axis=1), 1)
    assert np.allclose(moved, moves[:, None], atol=1e-6)
    for name in crowd.names:
        assert crowd.kinds(name) == [
            "connected",
            "enrolled",
            "checked-in",
            "invited",
            "exposed",
            "training",
            "uploaded",
            "committed",
        ]


class Real(Crowd):
    """The same participants, and the real server without its sockets."""

    def __init__(self, folder: Path, n: int, **settings: Any) -> None:
        super().__init__(folder, n)
        self.world = Deployment(folder, cohort=n, poll_seconds=0.2, largest_set=60, **settings)

    def link(self, name: str, **options: Any) -> Link:
        app = httpx.ASGITransport(serve(self.world))
        return super().link(name, transport=app, **options)


@pytest.mark.parametrize("gone", [0, 1])
def test_participants_of_the_real_server_and_one_that_is_cancelled(tmp_path: Path, gone: int) -> None:
    """Whoever is cancelled in mid-round is a dropout: the others finish without it, and it stays charged."""

    async def main() -> None:
        crowd = Real(tmp_path, 4, threshold=3)
        exposed = asyncio.Event()
        people = {name: crowd.participant(name) for name in crowd.names}
        tasks: dict[str, asyncio.Task[Any]] = {}

        def left(event: Event) -> None:
            """Cancelled at this moment, however busy the machine is."""
            if event.kind == "exposed":
                exposed.set()
                if gone:
                    tasks["c0"].cancel()

        people["c0"].notify = left
        async with crowd.world, asyncio.timeout(PATIENCE):
            tasks |= {name: asyncio.create_task(one.run(1)) for name, one in people.items()}
            if gone:
                await exposed.wait()
                await asyncio.wait([tasks["c0"]])
                assert tasks["c0"].cancelled()
                while not all(tasks[name].done() for name in crowd.names[1:]):
                    await asyncio.sleep(0.01)
                    if crowd.world.coordinator.status().heard == 3:  # all but the one that is gone
                        crowd.world.advance(1001)
            for name in crowd.names[gone:]:
                assert [one.outcome for one in await tasks[name]] == ["committed"]
            (line,) = crowd.world.lines
            assert (line.cohort, line.survivors, line.aborted) == (4, 4 - gone, None)
            assert crowd.world.store.round == 1
            for name in crowd.names:
                client = people[name].link.client
                assert people[name].memory.state.ledger.exposures == 1  # type: ignore[attr-defined]
                assert crowd.world.registry.acknowledged(client) == 1
        for name in crowd.names:
            close(people[name])

    asyncio.run(main())


def test_active_mode_with_identities_that_are_known_in_advance(tmp_path: Path) -> None:
    """Who pins a roster takes part in active mode only; a client that is not on it is not dealt with."""

    async def main() -> None:
        crowd = Real(tmp_path, 4, active=True)
        publics = [one.public for one in crowd.identities.values()]
        listed = tmp_path / "clients.txt"
        listed.write_text("# all of us\n" + "\n".join(public.hex() for public in publics))
        pinned = read_roster(listed)
        assert set(pinned.values()) == set(publics)
        people = {
            name: crowd.participant(name, identity=crowd.identities[name], pinned=pinned, exposures=2)
            for name in crowd.names
        }
        async with crowd.world, asyncio.timeout(PATIENCE):
            ended = await asyncio.gather(*(one.run(1) for one in people.values()))
            assert [[one.outcome for one in some] for some in ended] == [["committed"]] * 4
            (line,) = crowd.world.lines
            assert line.survivors == 4
            people["c0"].pinned = {name: key for name, key in pinned.items() if key != publics[1]}
            tasks = [asyncio.create_task(one.take_part()) for one in people.values()]
            attempt = await tasks[0]
            assert attempt.outcome == "declined"
            assert "is unknown or did not sign its keys" in attempt.why
            assert people["c0"].memory.state.ledger.exposures == 1  # type: ignore[attr-defined]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for one in people.values():
            close(one)

    asyncio.run(main())
