"""The HTTP surface in the middle of a round: any request, signed by an enrolled client or not at all.

Only typed refusals, nothing of the round changed, and the honest clients finish it.
"""

import asyncio
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.calls import STEP_MS, Call, Calls, Site, require_proper
from fuzz.campaign import CASES, SEED, Campaign, sizes
from sfsl.errors import RemoteError
from sfsl.service.messages import CODEC


@contextmanager
def site(*, inside: bool) -> Iterator[tuple[asyncio.AbstractEventLoop, Site]]:
    """In an event loop of its own, which the caller runs."""
    loop = asyncio.new_event_loop()
    with tempfile.TemporaryDirectory() as folder:
        made = Site(Path(folder), inside=inside)
        loop.run_until_complete(made.__aenter__())
        try:
            yield loop, made
        finally:
            loop.run_until_complete(made.__aexit__())
            loop.close()


async def _one(site: Site, calls: Calls, rng: random.Random, before: bytes) -> str:
    site.now_ms += STEP_MS
    call = calls.make(rng)
    answer = await site.send(call)
    said = require_proper(call, answer)
    if answer.status == 200 and call.target == b"/v1/check-in":
        site.crook.ticket = CODEC.decode(answer.body, limit=100).ticket  # type: ignore[attr-defined]
    assert site.state() == before, f"changed by {call.describe()}"
    return said


@sizes(quick=2500, share=0.03)
@pytest.mark.parametrize("crook", ["outside", "inside"])
def test_requests_of_every_kind(crook: str, cases: int, record_property: Any) -> None:
    rng = random.Random(f"{SEED} http {crook}")
    campaign = Campaign(cases, record_property, RemoteError)
    with site(inside=crook == "inside") as (loop, made):
        calls, before = Calls(made), made.state()
        for number in campaign:
            with campaign.case(number, b"", crook) as said:
                said.append(loop.run_until_complete(_one(made, calls, rng, before)))
        if crook == "outside":
            loop.run_until_complete(made.finish())
    seen = {name.split()[0] for name in campaign.outcomes}
    assert {"200", "204", "400", "401", "403", "404", "405", "409", "410", "413"} <= seen
    assert made.world.coordinator.totals.refused["ServerError"] == 0


def _explored(examples: int) -> int:
    """How many requests were tried."""
    tried = 0
    with site(inside=False) as (loop, made):
        calls, before = Calls(made, replays=False), made.state()

        @settings(max_examples=examples, deadline=None, derandomize=True, database=None,
                  suppress_health_check=list(HealthCheck))  # fmt: skip
        @given(st.randoms(use_true_random=False))
        def explore(rng: random.Random) -> None:
            nonlocal tried
            tried += 1
            loop.run_until_complete(_one(made, calls, rng, before))

        explore()

        @settings(max_examples=examples, deadline=None, derandomize=True, database=None)
        @given(
            method=st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ-_!", min_size=1, max_size=20),
            target=st.binary(max_size=60).map(lambda one: b"/" + one),
            headers=st.lists(
                st.tuples(st.binary(min_size=1, max_size=20), st.binary(max_size=60)), max_size=6
            ),
            body=st.binary(max_size=400),
        )
        def anything(method: str, target: bytes, headers: Any, body: bytes) -> None:
            nonlocal tried
            tried += 1
            call = Call(
                "unsigned", method, target, [(name.lower(), value) for name, value in headers], (body,)
            )
            require_proper(call, loop.run_until_complete(made.send(call)))
            assert made.state() == before

        anything()
        loop.run_until_complete(made.finish())
    return tried


def test_what_hypothesis_thinks_of() -> None:
    assert _explored(200) >= 200


@pytest.mark.slow
def test_what_hypothesis_thinks_of_in_more_time(record_property: Any) -> None:
    tried = _explored(CASES // 100)
    record_property("cases", tried)
    record_property("fuzz", f"{tried:,} cases")
