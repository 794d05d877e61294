"""A client waits, and says so, where time may mend what is in its way; for as long as its owner allows."""

import asyncio
import math
import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from clocks import PATIENCE
from crowd import Crowd
from sfsl.carriers.https.authority import create_authority, issue_server
from sfsl.client import Backoff, Event, Link, trusted
from sfsl.crypto.secret import Identity
from sfsl.errors import AuthenticationFailed, ClockSkew, Declined, Unavailable
from sfsl.testing import SeededRandomness

DEPLOYMENT = bytes(16)
NOW, DAY = 1_800_000_000.0, 86_400.0
ABOUT = {"protocol": 1, "deployment": DEPLOYMENT.hex(), "model": "ab" * 32, "round": 4}
ANSWERED = httpx.Response(204)


class World:
    """A server that refuses in its way until ``mended`` seconds have passed; the device's clocks."""

    def __init__(self, refusal: Callable[[], httpx.Response], mended: float, **options: Any) -> None:
        self.passed = self.set = self.server_set = 0.0
        self.events: list[Event] = []
        self.times: list[int] = []
        self._refusal, self._mended, self._options = refusal, mended, options

    @property
    def clocks(self) -> dict[str, int]:
        return {
            "time": int(1000 * (NOW + self.passed)),
            "clock": int(1000 * (NOW + self.passed + self.server_set)),
        }

    def _handle(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/about":
            return httpx.Response(
                200, stream=httpx.ByteStream(httpx.Response(200, json=ABOUT | self.clocks).content)
            )
        self.times.append(int(request.headers["Sfsl-Time"]))
        answer = self._refusal() if self.passed < self._mended else ANSWERED
        return httpx.Response(
            answer.status_code, headers=answer.headers, stream=httpx.ByteStream(answer.content)
        )

    async def _sleep(self, seconds: float) -> None:
        self.passed += seconds
        await asyncio.sleep(0)

    def run(self, act: Callable[[Link], Awaitable[Any]]) -> Any:
        async def main() -> Any:
            given: dict[str, Any] = {
                "backoff": Backoff(SeededRandomness("jitter")),
                "randomness": SeededRandomness("nonces"),
                "deployment": DEPLOYMENT,
                "transport": httpx.MockTransport(self._handle),
                "notify": self.events.append,
                "sleep": self._sleep,
                "wall": lambda: NOW + self.passed + self.set,
                "steady": lambda: 77.0 + self.passed,
            }
            link = Link(
                "https://server", Identity.generate(SeededRandomness("me")), **(given | self._options)
            )
            async with link, asyncio.timeout(PATIENCE):
                return await act(link)

        return asyncio.run(main())


def answer(link: Link) -> Awaitable[Any]:
    return link.answer(bytes(16), 2, b"the answer")


def unsigned() -> httpx.Response:
    return httpx.Response(401, json={"error": "Replayed", "message": "a copy"})


def busy() -> httpx.Response:
    return httpx.Response(
        429, json={"error": "TooMany", "message": "slow down"}, headers={"Retry-After": "30"}
    )


def stopping() -> httpx.Response:
    return httpx.Response(503, json={"error": "Unavailable", "message": "later"})


@pytest.mark.parametrize("refusal", [unsigned, busy, stopping])
def test_it_outlasts_a_refusal_within_its_patience(refusal: Callable[[], httpx.Response]) -> None:
    world = World(refusal, 3600.0, patience_s=7200.0)
    world.run(answer)
    assert world.passed >= 3600
    said = [event.text for event in world.events]
    assert all("; trying again in " in text for text in said)
    assert said[-1].endswith(" more"), said[-1]  # and how long it will
    assert len(said) < 200  # it does not hammer


@pytest.mark.parametrize("refusal", [unsigned, busy, stopping])
@pytest.mark.parametrize("patience", [0.0, 600.0])
def test_its_owner_sets_the_bound(refusal: Callable[[], httpx.Response], patience: float) -> None:
    world = World(refusal, math.inf, patience_s=patience)
    with pytest.raises((AuthenticationFailed, Unavailable)):
        world.run(answer)
    assert patience <= world.passed < patience + 200


def test_a_new_try_does_not_renew_its_patience_and_an_answer_does() -> None:
    world = World(unsigned, math.inf, patience_s=600.0)

    async def act(link: Link) -> None:
        with pytest.raises(AuthenticationFailed):
            await answer(link)
        first = world.passed
        await link.about()  # which anyone may ask
        with pytest.raises(AuthenticationFailed):
            await answer(link)
        assert world.passed - first < 100
        world._mended = 0.0
        await answer(link)
        world._mended = math.inf
        second = world.passed
        with pytest.raises(AuthenticationFailed):
            await answer(link)
        assert world.passed - second >= 600

    world.run(act)


def test_a_server_that_cannot_be_reached_is_waited_for_without_end() -> None:
    def gone() -> httpx.Response:
        raise httpx.ConnectError("no route")

    world = World(gone, 7200.0, patience_s=0.0)
    world.run(answer)
    assert world.passed >= 7200


@pytest.mark.parametrize("step", [-3600.0, 3600.0, 10 * DAY, -10 * DAY, 4000 * DAY, -4000 * DAY])
def test_what_happens_to_its_clock_does_not_change_what_it_signs_by(step: float) -> None:
    world = World(unsigned, 0.0)

    async def act(link: Link) -> None:
        await link.about()
        await answer(link)
        world.set, world.passed = step, world.passed + 60
        await answer(link)
        assert abs(link.apart_ms - 1000 * step) < 5

    world.run(act)
    assert world.times == [int(1000 * NOW), int(1000 * NOW) + 60_000]
    assert not world.events


def test_a_refusal_says_by_how_much_clocks_differ_and_sets_what_it_signs_by() -> None:
    """The refusal has the server's time: no other question is needed."""
    world = World(
        lambda: httpx.Response(401, json={"error": "ClockSkew", "message": "late"} | world.clocks), 9.0
    )
    world.set = -3600.0
    world.run(answer)
    assert "This device's clock is 60 minutes behind the server's" in world.events[-1].text
    assert abs(world.times[0] - world.times[1] + 3_600_000) < 10  # at once, and the rest by the server's


# -- certificates -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("days", "says"), [(-400, "has expired by this device's clock"), (3, "is not valid yet by this device's")]
)
@pytest.mark.parametrize("patient", [True, False])
def test_a_certificate_out_of_time_is_waited_out(tmp_path: Path, days: int, says: str, patient: bool) -> None:
    """Over real sockets: until the operator has renewed it, or the device's clock is right."""
    now = datetime.now(UTC)
    create_authority(tmp_path, "ours", 3000, now=now - timedelta(days=500))
    issue_server(tmp_path, ["localhost"], 30, now=now + timedelta(days=days), name="bad")
    issue_server(tmp_path, ["localhost"], 30, now=now, name="good")
    heard: list[bytes] = []
    events: list[Event] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(1000))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    async def main() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "bad.pem", tmp_path / "bad.key")
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)

        async def sleep(seconds: float) -> None:
            if len(events) == 3:
                context.load_cert_chain(tmp_path / "good.pem", tmp_path / "good.key")
            await asyncio.sleep(0)

        link = Link(
            f"https://localhost:{server.sockets[0].getsockname()[1]}",
            Identity.generate(SeededRandomness("me")),
            backoff=Backoff(SeededRandomness("a")),
            randomness=SeededRandomness("b"),
            deployment=DEPLOYMENT,
            tls=trusted(tmp_path / "authority.pem"),
            sleep=sleep,
            notify=events.append,
            patience_s=3600.0 if patient else 0.0,
        )
        async with server, link, asyncio.timeout(PATIENCE):
            await answer(link)

    if not patient:
        with pytest.raises(Unavailable, match=says):
            asyncio.run(main())
        assert not heard
        return
    asyncio.run(main())
    assert len(events) == 3
    assert all(says in event.text for event in events)
    assert b"the answer" in heard[0]


# -- periods ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [10 * DAY, -10 * DAY, 4000 * DAY])
def test_a_client_whose_clock_is_days_off_waits_until_it_is_right(step: float) -> None:
    world = World(unsigned, 0.0)
    world.set = step

    async def act(link: Link) -> None:
        await link.about()
        with pytest.raises(Declined, match="does not know which period"):
            link.require_same_day()
        waiting = asyncio.create_task(link.agree_on_the_day())
        while world.passed < 7200:
            assert not waiting.done()
            await asyncio.sleep(0)
        world.set = 0.0
        await waiting
        link.require_same_day()

    world.run(act)
    assert "days ahead of" in world.events[0].text if step > 0 else "days behind" in world.events[0].text


def test_a_server_whose_clock_is_days_off_is_waited_for_within_patience() -> None:
    """Nobody knows who is wrong. What requests are signed by is another clock, and may be anything."""
    world = World(unsigned, 0.0, patience_s=3600.0)
    world.server_set = 4000 * DAY

    async def act(link: Link) -> None:
        await link.about()
        await answer(link)
        with pytest.raises(ClockSkew, match=r"4,000 days behind the server's. One of them is wrong"):
            await link.agree_on_the_day()

    world.run(act)


def test_a_clock_set_between_check_in_and_invitation_costs_a_round_and_no_period(tmp_path: Path) -> None:
    """+4,000 days just then would be an exposure in a period far away, and a client out until then."""
    crowd = Crowd(tmp_path)
    name = crowd.names[0]
    people = {one: crowd.participant(one) for one in crowd.names}
    memory: Any = people[name].memory
    before = (tmp_path / f"{name}.state").read_bytes()

    def set_meanwhile() -> None:
        raise Declined("This device's clock is 4,000 days ahead of the server's")

    memory.require_day = set_meanwhile
    real_today = memory.today
    memory.today = lambda: real_today() + timedelta(days=4000)

    async def main() -> Any:
        for one in people.values():
            await one.enrol()
        tasks = [asyncio.create_task(one.take_part()) for one in people.values()]
        attempt = await tasks[0]
        for task in tasks[1:]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return attempt

    attempt = asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert attempt.outcome == "declined"
    assert (tmp_path / f"{name}.state").read_bytes() == before
