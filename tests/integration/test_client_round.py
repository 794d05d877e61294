"""Several participants and a server: whole rounds over HTTP."""

import asyncio
from pathlib import Path

import numpy as np

from crowd import Crowd
from sfsl.submodel import RowSet


def test_three_participants_complete_a_round(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path)
    people = [crowd.participant(name) for name in crowd.names]
    before = crowd.server.store.read_rows("goods", RowSet(np.arange(60))).values.copy()

    async def main() -> None:
        async with asyncio.timeout(20):
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
