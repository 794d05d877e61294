"""Faults by plan, and what a trainer takes from a server."""

import asyncio
from typing import Any

import httpx
import pytest

from sfsl.errors import ParameterError
from sfsl_research.swarm.faults import KINDS, FaultyTransport, NetworkFaults, Traffic, Vanished

BODY = b"some bytes of a message"


class Inner(httpx.AsyncBaseTransport):
    """What reaches the server."""

    def __init__(self) -> None:
        self.got: list[bytes] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.got.append(await request.aread())
        return httpx.Response(200, headers={"Sfsl-Sequence": "1"}, stream=httpx.ByteStream(b"answer"))


def send(kind: str, seed: int = 0) -> tuple[Inner, Traffic, Any]:
    inner, traffic = Inner(), Traffic()
    transport = FaultyTransport(inner, "me", NetworkFaults({kind: 1.0}, seed, 0.01, True), traffic)

    async def main() -> Any:
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return (await client.post("/v1/answer/00/1", content=BODY)).content

    try:
        return inner, traffic, asyncio.run(main())
    except (httpx.HTTPError, Vanished) as error:
        return inner, traffic, error


@pytest.mark.parametrize(
    ("kind", "reached", "outcome"),
    [
        ("vanish-before", [], Vanished),
        ("vanish-after", [BODY], Vanished),
        ("drop-before", [], httpx.ConnectError),
        ("drop-after", [BODY], httpx.ReadError),
        ("delay", [BODY], b"answer"),
        ("disconnect", [], httpx.WriteError),
        ("duplicate", [BODY, BODY], b"answer"),
    ],
)
def test_what_each_fault_does(kind: str, reached: list[bytes], outcome: Any) -> None:
    inner, traffic, found = send(kind)
    assert inner.got == reached
    assert found == outcome if isinstance(outcome, bytes) else isinstance(found, outcome)
    assert traffic.faults == {kind: 1}
    assert len(traffic.seconds.get("answer", [])) == len(reached)


def test_corruption_strikes_the_request_or_the_answer() -> None:
    seen = set()
    for seed in range(20):
        inner, _, found = send("corrupt", seed)
        (got,) = inner.got
        assert (got == BODY) != (found == b"answer")
        assert (len(got), len(found)) == (len(BODY), len(b"answer"))
        if got != BODY:
            assert sum(one != other for one, other in zip(got, BODY, strict=True)) == 1
        seen.add(got == BODY)
    assert seen == {True, False}


def test_a_seed_repeats_the_plan_and_shares_come_out() -> None:
    plan = NetworkFaults(dict.fromkeys(KINDS, 0.025), seed=3)
    drawn = [plan.strike(f"c{client}", number) for client in range(20) for number in range(200)]
    assert drawn == [plan.strike(f"c{client}", number) for client in range(20) for number in range(200)]
    assert drawn != [NetworkFaults(plan.rates, seed=4).strike("c0", number) for number in range(4000)]
    for kind in KINDS:
        assert 60 < sum(found == kind for found, _, _ in drawn) < 140
    assert NetworkFaults().strike("c0", 0)[0] is None


def struck(share: float, rounds: int, *, retries: int = 0) -> list[list[int]]:
    """By round the places of a client's round that were struck: each request fails, and is sent again."""
    traffic = Traffic()
    plan = NetworkFaults({"drop-before": share}, seed=5)

    async def main() -> list[list[int]]:
        transport, found = FaultyTransport(Inner(), "me", plan, traffic), []
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            for number in range(rounds):
                requests = [("POST", "/v1/check-in", f"keys {number}")]
                for exchange in range(6):
                    requests.append(("GET", f"/v1/next/00ff?after={exchange}", ""))
                    requests.append(("POST", f"/v1/answer/00ff/{exchange + 1}", "answer"))
                found.append([])
                for place, (method, target, body) in enumerate(requests):
                    for _ in range(1 + retries):
                        try:
                            await client.request(method, target, content=body)
                        except httpx.ConnectError:
                            found[-1].append(place)
            await client.get("/v1/about")
        return found

    found = asyncio.run(main())
    assert sum(map(len, found)) == traffic.faults["drop-before"]
    return found


def test_a_share_of_a_rounds_clients_is_struck_once_and_anywhere() -> None:
    """Of 160 clients 12 are expected at each of 13 places, and 32 are struck if a fifth is. The seed is
    fixed; two in 10^4 others would fail."""
    everyone = struck(1.0, 160, retries=1)
    assert all(len(places) == 1 for places in everyone)
    places = [one for (one,) in everyone]
    assert set(places) == set(range(13))
    assert max(places.count(place) for place in range(13)) < 31
    some = [len(places) for places in struck(0.2, 160)]
    assert set(some) == {0, 1}
    assert 12 < sum(some) < 53


@pytest.mark.parametrize("rates", [{"storm": 0.1}, {"delay": -0.1}, {"delay": 0.6, "corrupt": 0.6}])
def test_plans_that_cannot_be(rates: dict[str, float]) -> None:
    with pytest.raises(ParameterError):
        NetworkFaults(rates)
