"""A disk that is full while a server runs: it waits for room, says so once, and loses and doubles nothing."""

import asyncio
import errno
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from clocks import PATIENCE, until
from cohort import DENSE
from deployment import HOSTS, NOW_MS, Deployment, Wire, new_store, serve
from sfsl.carriers.https import coordinator
from sfsl.carriers.https.app import AppLimits, Server, create_app
from sfsl.carriers.https.coordinator import now_ms, steady_ms
from sfsl.crypto.secret import Identity, Secret, SystemRandomness
from sfsl.durable import LineFile, room_for, takes
from sfsl.errors import StoreError, StoreFull
from sfsl.service import log_file
from sfsl.service.clock import SigningClock
from sfsl.service.disk import DiskTrouble
from sfsl.service.folder import METRICS, MetricsFile, read_lines
from sfsl.service.log_file import LogRules, RosterLog
from sfsl.service.messages import CODEC, Enrol, LogEntry
from sfsl.service.registry import Enrolment, Registry, typed
from sfsl.service.signing import Verifier
from sfsl.service.versions import tag
from sfsl.submodel import LmdbStore
from small_disk import small_disk

ROOM_AGAIN = "there is room on the disk again; the server goes on"


@pytest.fixture(autouse=True)
def shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "_PAUSE_SECONDS", 0.01)


class Full:
    """A disk that takes nothing of these, by name of a method, until there is room."""

    def __init__(self, world: Deployment, monkeypatch: pytest.MonkeyPatch, *calls: str) -> None:
        self.tried, self.full = 0, True
        for call in calls:
            owner = world.store if call == "commit" else world.registry
            monkeypatch.setattr(owner, call, self._refusing(getattr(owner, call)))

    def _refusing(self, real: Any) -> Any:
        def tried(*values: Any, **more: Any) -> Any:
            if self.full:
                self.tried += 1
                raise StoreFull("no room to write the file: the disk is full")
            return real(*values, **more)

        return tried


@asynccontextmanager
async def guests_of(world: Deployment) -> AsyncIterator[list[Wire]]:
    transport = httpx.ASGITransport(serve(world))
    async with httpx.AsyncClient(transport=transport, base_url="https://test") as http:
        yield [Wire(guest, http, world.registry.deployment) for guest in world.clients(3)]


def run(scenario: Any) -> None:
    asyncio.run(asyncio.wait_for(scenario, PATIENCE))


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelname in ("WARNING", "ERROR")]


@pytest.mark.parametrize("call", ["invite", "acknowledge", "commit"])
def test_a_round_waits_for_room_wherever_it_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path, period_days=1, poll_seconds=0.05) as world, guests_of(world) as wires:
            full = Full(world, monkeypatch, call)
            playing = [asyncio.create_task(wire.play()) for wire in wires]
            await until(lambda: full.tried >= 3)
            assert not world.task.done()
            answer = await wires[0].http.get("/healthz")
            assert answer.status_code == 200
            assert answer.json() == {
                "status": "degraded", "round": 0, "why": "the disk has no room, or fails",
            }  # fmt: skip
            assert world.store.round == 0
            full.full = False
            ends = await asyncio.gather(*playing)
            assert [(end["outcome"], end["round"]) for end in ends] == [("committed", 1)] * 3
            assert (await wires[0].http.get("/healthz")).json()["status"] == "ok"
            assert [world.registry.acknowledged(wire.guest.id) for wire in wires] == [1] * 3
            assert (world.store.round, [line.round for line in world.lines]) == (1, [1])

    run(scenario())
    assert told(caplog) == [
        "no room to write the file: the disk is full. The server waits for room, and rounds with it",
        ROOM_AGAIN,
    ]


def test_an_aborted_round_waits_for_room_and_keeps_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two of three do not unmask; whose masked sets came counts all the same, once."""

    async def scenario() -> None:
        async with Deployment(tmp_path) as world:
            guests = world.clients(3)
            for guest in guests:
                guest.check_in()
            await asyncio.gather(*(guest.until(3) for guest in guests))
            full = Full(world, monkeypatch, "commit")
            world.advance(1001)
            await until(lambda: full.tried >= 3)
            full.full = False
            ends = await asyncio.gather(*(guest.play() for guest in guests))
            assert {(end.outcome, end.round) for end in ends} <= {("aborted", 1), ("left-out", 1)}
            assert world.store.round == 1
            assert world.lines[0].aborted
            assert [world.registry.acknowledged(guest.id) for guest in guests] == [1] * 3

    run(scenario())
    first, last, *others = told(caplog)
    assert first.startswith("no room")
    assert ROOM_AGAIN in [last, *others]


def test_a_round_that_stands_is_not_committed_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        world = Deployment(tmp_path)
        real = world.store.commit

        def stands(commit: Any) -> None:
            real(commit)
            raise StoreFull("no room for what comes after it")

        monkeypatch.setattr(world.store, "commit", stands)
        async with world:
            guests = world.clients(3)
            for guest in guests:
                guest.check_in()
            ends = await asyncio.gather(*(guest.play() for guest in guests))
            assert {(end.outcome, end.round) for end in ends} == {("committed", 1)}
            assert world.store.round == 1
            with pytest.raises(StoreFull):
                await world.task

    run(scenario())


def test_a_server_that_is_to_stop_does_not_wait_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        world = Deployment(tmp_path)
        full = Full(world, monkeypatch, "commit")
        async with world:
            guests = world.clients(3)
            for guest in guests:
                guest.check_in()
            playing = [asyncio.create_task(guest.play()) for guest in guests]
            await until(lambda: full.tried >= 2)
            await world.coordinator.stop()  # its grace is 0 s
            with pytest.raises(StoreFull):
                await world.task
            assert {(await one).outcome for one in playing} == {"aborted"}
            assert world.store.round == 0

    run(scenario())


def test_requests_are_put_off_until_the_disk_takes_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    takes = [False]
    monkeypatch.setattr("sfsl.service.disk.takes", lambda folder, size: takes[0])

    def cover(self: SigningClock, time_ms: int) -> None:
        if not takes[0]:
            raise StoreFull("cannot write clock: No space left on device")

    async def scenario() -> None:
        async with Deployment(tmp_path, disk=DiskTrouble(tmp_path)) as world:
            clock = SigningClock(None, wall=now_ms, steady=steady_ms)
            monkeypatch.setattr(SigningClock, "cover", cover)
            verifier = Verifier(
                world.registry.deployment, world.registry.public_key, hosts=HOSTS, cover=clock.cover
            )
            limits = AppLimits()
            app = create_app(
                Server(world.coordinator, verifier, Enrolment.open(9), b"", limits, clock=clock), limits
            )
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="https://test") as http:
                wire = Wire(world.clients(3)[0], http, world.registry.deployment)
                for _ in range(3):
                    answer = await wire.check_in()
                    assert (answer.status_code, answer.json()["error"]) == (503, "Unavailable")
                    assert "no room" in answer.json()["message"]
                    assert int(answer.headers["Retry-After"]) > 0
                assert (await http.get("/healthz")).json()["status"] == "degraded"
                takes[0] = True
                await until(lambda: not world.coordinator.degraded)
                assert (await wire.check_in()).status_code == 200

    run(scenario())
    assert [said for said in told(caplog) if "room" in said] == [
        "cannot write clock: No space left on device. The server waits for room, and puts requests off",
        ROOM_AGAIN,
    ]


def no_room(*_: object, **more: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_the_log_of_clients_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is none for an entry, and where there is none for the head that has it."""
    entries = [LogEntry(Identity(Secret(bytes([number]) * 32)).public) for number in (1, 2, 3)]
    with RosterLog(tmp_path, bytes(16), LogRules(), SystemRandomness(), NOW_MS) as roster:
        with monkeypatch.context() as patch:
            patch.setattr(LineFile, "append", no_room)
            with pytest.raises(StoreFull, match="nobody was enrolled"):
                roster.enter(entries[:1], NOW_MS)
            assert roster.entries == []
        roster.enter(entries[:1], NOW_MS)
        with monkeypatch.context() as patch:
            patch.setattr(log_file, "write_whole", no_room)
            with pytest.raises(StoreFull):
                roster.enter(entries[1:2], NOW_MS)
            assert roster.offered.size == 1
        roster.enter(entries[1:2], NOW_MS)  # as the client does that was put off
        assert roster.entries == entries[:2]
        assert roster.shown is not None
        assert roster.shown.size == 2
    with RosterLog(tmp_path, bytes(16), LogRules(), SystemRandomness(), NOW_MS) as roster:
        assert roster.entries == entries[:2]


@pytest.mark.parametrize(("room", "error"), [(1 << 30, StoreError), (4096, StoreFull)])
@pytest.mark.parametrize("doing", ["write", "read"])
def test_a_write_that_fails_with_little_room_is_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, error: type[StoreError], doing: str
) -> None:
    """SQLite has one code for whatever its files but the largest cannot do. Whoever reads needs no room."""
    monkeypatch.setattr("sfsl.durable.shutil.disk_usage", lambda _: type("Usage", (), {"free": room}))
    found = sqlite3.OperationalError("disk I/O error")
    found.sqlite_errorcode = sqlite3.SQLITE_IOERR | 19 << 8  # of the file of the log's index
    with pytest.raises(StoreError) as caught, typed(tmp_path / "registry.sqlite", doing):
        raise found
    assert type(caught.value) is (error if doing == "write" else StoreError)


# -- a real one ----------------------------------------------------------------------------------------


@contextmanager
def filled(disk: Path, room: int) -> Iterator[None]:
    """Leave so many bytes on a disk."""
    with open(disk / "filler", "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 12))
        except OSError:
            size = file.tell()
        file.truncate(max(0, size - room))
    try:
        yield
    finally:
        (disk / "filler").unlink()


@pytest.mark.parametrize("room", [0, 4096, 8192, 16384, 32768, 49152])
def test_rounds_go_on_after_a_disk_was_full(room: int, caplog: pytest.LogCaptureFixture) -> None:
    """With so many bytes left they come as far as they come; each commits once, and every exposure counts."""

    async def scenario(disk: Path) -> None:
        trouble, spec = DiskTrouble(disk), new_store().spec
        store = LmdbStore.create(disk / "store", spec, np.arange(DENSE, dtype=np.float32))
        metrics = MetricsFile(disk / METRICS, [], trouble)
        world = Deployment(disk, store, trouble)
        world.coordinator._service._record = metrics.append
        with store, metrics:
            async with world, guests_of(world) as wires:
                playing = asyncio.create_task(rounds(world, wires, 6))
                await until(lambda: world.store.round >= 1)
                with filled(disk, room):
                    await until(lambda: bool(world.coordinator.degraded) or playing.done())
                    assert not world.task.done()
                    assert (await wires[0].http.get("/healthz")).status_code == 200
                assert await playing == [("committed", number) for number in range(1, 7)]
                assert not world.task.done()
                assert [world.registry.acknowledged(wire.guest.id) for wire in wires] == [6] * 3
            assert store.round == 6
        assert [line.round for line in read_lines(disk / METRICS)] == list(range(1, 7))

    async def rounds(world: Deployment, wires: list[Wire], count: int) -> list[tuple[str, int]]:
        ended = []
        for _ in range(count):
            ends = await asyncio.gather(*(wire.guest.play() for wire in wires if wire.guest.check_in()))
            (end,) = {(one.outcome, one.round) for one in ends}
            ended.append(end)
            for wire in wires:
                wire.guest.fresh()
        return ended

    with small_disk(4096) as disk:
        run(scenario(disk))
    said = [one for one in told(caplog) if "room" in one or "written again" in one]
    assert len(said) in (0, 2), said


def test_an_enrolment_is_put_off_and_done_when_there_is_room(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(disk: Path) -> None:
        async with Deployment(disk, disk=DiskTrouble(disk)) as world, guests_of(world) as wires:
            wire, stranger = wires[0], Identity(Secret(bytes([77]) * 32))
            wire.guest.identity = stranger
            body = CODEC.encode(Enrol(stranger.public))
            with filled(disk, 0):
                refused = await wire.send("POST", "/v1/enrol", body)
                assert (refused.status_code, refused.json()["error"]) == (503, "Unavailable")
                assert (await wire.http.get("/healthz")).json()["status"] == "degraded"
            await until(lambda: not world.coordinator.degraded)
            assert (await wire.send("POST", "/v1/enrol", body)).status_code == 200
            assert world.registry.count() == 4

    with small_disk(1024) as disk:
        run(scenario(disk))
    assert len(told(caplog)) == 2
    assert told(caplog)[1] == ROOM_AGAIN


def test_whoever_joins_in_a_trouble_says_nothing_until_all_are_out_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    trouble = DiskTrouble()
    for who in ("rounds", "requests", "rounds"):
        trouble.begins(who, f"{who} wait")
    assert trouble.why
    for who in ("rounds", "metrics", "requests", "requests"):
        trouble.ends(who, f"{who} go on")
    assert not trouble.why
    assert caplog.messages == ["rounds wait", "requests go on"]


def test_a_disk_is_tried_and_nothing_is_left_of_it() -> None:
    with small_disk(256) as disk:
        (disk / "room.new").write_bytes(b"of a crash")
        assert takes(disk, 1 << 16)
        assert room_for(disk / "file") >= 1 << 17
        with filled(disk, 4096):
            assert not takes(disk, 1 << 16)
            assert room_for(disk / "file") == 4096
        assert takes(disk, 1 << 16)
        assert list(disk.iterdir()) == []


def test_a_model_that_there_is_no_room_for_is_not_tagged() -> None:
    with small_disk(1024) as disk:
        Registry(disk / "registry.sqlite").close()
        LmdbStore.create(disk / "store", new_store().spec, np.arange(DENSE, dtype=np.float32)).close()
        with filled(disk, 8192), pytest.raises(StoreFull):
            tag(disk, "good")
        assert list((disk / "versions").iterdir()) == []
        assert tag(disk, "good").round == 0
