"""A registry that another process holds: a backup, a shell, an operator's command that hangs."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from clocks import PATIENCE, until
from deployment import NOW_MS, Deployment, Wire, serve
from sfsl.crypto.secret import Identity, Secret
from sfsl.errors import StoreError, StoreInUse
from sfsl.service import registry
from sfsl.service.messages import CODEC, Enrol
from sfsl.service.registry import Registry
from sfsl.service.signing import Verifier


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the registry as someone who writes to it."""
    other = sqlite3.connect(folder / "registry.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


@pytest.fixture(autouse=True)
def shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_BUSY_SECONDS", 0.2)


def test_reading_does_not_wait_for_a_write_here_or_elsewhere(tmp_path: Path) -> None:
    known, new = (Identity(Secret(bytes([number]) * 32)).public for number in (1, 2))
    with Registry(tmp_path / "registry.sqlite") as mine:
        client = mine.enrol(known, NOW_MS)
        with held(tmp_path):
            assert mine.public_key(client) == known
            assert mine.enrol(known, NOW_MS) == client  # which changes nothing
            for write in (lambda: mine.enrol(new, NOW_MS), lambda: mine.acknowledge(b"round", [client])):
                with pytest.raises(StoreInUse):
                    write()
            assert mine.locked
        assert not mine.locked
        with mine._file.write():  # as the round's thread may have one open
            assert mine.count() == 1
            with pytest.raises(StoreInUse, match="takes long"):
                mine.enrol(new, NOW_MS)
        mine.enrol(new, NOW_MS)
        assert mine.count() == 2


def test_rounds_wait_for_the_registry_and_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """At the invitations and at the acknowledgements, the two times that a round writes."""
    caplog.set_level("INFO")

    async def act(world: Deployment, wires: list[Wire]) -> None:
        async def health() -> dict[str, object]:
            answer = await wires[0].http.get("/healthz")
            assert answer.status_code == 200
            told: dict[str, object] = answer.json()
            return told

        assert (await health())["status"] == "ok"
        with held(tmp_path):
            for wire in wires:
                await wire.check_in()
            await until(lambda: caplog.text.count("waits for it") == 1)
            assert await health() == {
                "status": "degraded", "round": 0, "why": "another process holds the registry",
            }  # fmt: skip
            assert "sfsl_degraded 1" in (await wires[0].http.get("/metrics")).text
            stranger = Identity(Secret(bytes([77]) * 32))
            body = CODEC.encode(Enrol(stranger.public))
            wires[0].guest.identity, own = stranger, wires[0].guest.identity
            refused = await wires[0].send("POST", "/v1/enrol", body)
            wires[0].guest.identity = own
            assert (refused.status_code, refused.json()["error"]) == (503, "Unavailable")
            assert int(refused.headers["Retry-After"]) > 0
        for wire in wires:
            while (answer := await wire.next()).status_code != 200:
                pass
            await wire.answer(wire.guest.answer_to(answer.content))
        assert (await health())["status"] == "ok"
        with held(tmp_path):
            for wire in wires:
                while (answer := await wire.next()).status_code != 200:
                    pass
                await wire.answer(wire.guest.answer_to(answer.content))
            await until(lambda: caplog.text.count("waits for it") == 2)
        ends = await asyncio.gather(*(finish(wire) for wire in wires))
        assert [end["outcome"] for end in ends] == ["committed"] * 3
        assert [world.registry.acknowledged(wire.guest.id) for wire in wires] == [1] * 3

    async def finish(wire: Wire) -> dict[str, object]:
        while True:
            answer = await wire.next()
            if answer.status_code == 410:
                end: dict[str, object] = answer.json()
                return end
            if answer.status_code == 200:
                await wire.answer(wire.guest.answer_to(answer.content))

    async def run() -> None:
        async with Deployment(tmp_path, period_days=1, poll_seconds=0.05) as world:
            transport = httpx.ASGITransport(serve(world))
            async with httpx.AsyncClient(transport=transport, base_url="https://test") as http:
                await act(world, [Wire(guest, http, world.registry.deployment) for guest in world.clients(3)])

    asyncio.run(asyncio.wait_for(run(), PATIENCE))
    told = [one.getMessage() for one in caplog.records if "registry" in one.getMessage()]
    assert [line.partition(" ")[0] for line in told] == ["cannot", "the", "cannot", "the"]


def test_a_server_that_is_to_stop_does_not_wait_for_ever(tmp_path: Path) -> None:
    async def run() -> None:
        world = Deployment(tmp_path, period_days=1)
        rounds = asyncio.create_task(world.coordinator.run())
        guests = world.clients(3)
        with held(tmp_path):
            for guest in guests:
                guest.check_in()
            await until(lambda: world.coordinator.degraded)
            await world.coordinator.stop()  # its grace is 0 s
            with pytest.raises(StoreInUse):
                await rounds
        world.registry.close()

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


def test_a_full_disk_puts_requests_off_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise StoreError("cannot write clock: No space left on device")

    async def run() -> None:
        async with Deployment(tmp_path) as world:
            transport = httpx.ASGITransport(serve(world))
            async with httpx.AsyncClient(transport=transport, base_url="https://test") as http:
                wire = Wire(world.clients(3)[0], http, world.registry.deployment)
                monkeypatch.setattr(Verifier, "check_body", full)
                for _ in range(3):
                    answer = await wire.send("GET", "/v1/published/" + 64 * "0", b"")
                    assert (answer.status_code, answer.json()["error"]) == (503, "Unavailable")

    asyncio.run(asyncio.wait_for(run(), PATIENCE))
    assert [one.getMessage() for one in caplog.records if one.levelname in ("WARNING", "ERROR")] == [
        "a request is put off: cannot write clock: No space left on device"
    ]
