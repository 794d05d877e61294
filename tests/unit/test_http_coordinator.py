"""The coordinator: conversations over tickets, cohorts, deadlines, aborts, restarts."""

import asyncio
from pathlib import Path

import numpy as np

from cohort import DENSE
from deployment import Deployment


def test_three_clients_make_one_round(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path) as world:
            guests = world.clients(3)
            for guest in guests:
                guest.check_in()
            ends = await asyncio.gather(*(guest.play() for guest in guests))
            assert [(end.outcome, end.round) for end in ends] == [("committed", 1)] * 3
            assert world.store.round == 1
            moved = world.store.read_dense().values - np.arange(DENSE)
            assert np.allclose(moved, np.mean([guest.dense for guest in guests], axis=0), atol=1e-6)
            (line,) = world.lines
            assert (line.cohort, line.survivors, line.aborted) == (3, 3, None)
            sent = [sum(len(frame) for frame in guest.frames) for guest in guests]
            checked_in = line.bytes_down["check-in"]
            assert sum(line.bytes_down.values()) - checked_in == np.mean(sent)

    asyncio.run(scenario())
