"""Hostile peers on real sockets, over TLS, while honest clients run rounds beside them.

Every attack comes from addresses of its own (all of 127/8 is loopback), as it would on a network. Nothing
here asserts how fast anything is, only that the honest are served, and what the server holds meanwhile.
"""

import asyncio
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from clocks import PATIENCE
from deployment import Guest, Wire
from sfsl.carriers.https.authority import create_authority, issue_server
from sfsl.crypto.secret import Identity, Secret

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has 127/8 and /proc")

GROWTH = 96 << 20
SPARE_FILES = 64


class Enrolled:
    """Stands in for the deployment, which is in another process: clients need only their identities."""

    def identity(self, number: int) -> Identity:
        return Identity(Secret(bytes([number + 1]) * 32))


class Process:
    """The server. ``most``: connections; ``files``: how many it may have open in all."""

    def __init__(self, folder: Path, most: int, per_address: int) -> None:
        create_authority(folder / "tls", "test", 2, now=datetime.now(UTC))
        issue_server(folder / "tls", ["localhost", "127.0.0.1"], 1, now=datetime.now(UTC))
        self.trust = ssl.create_default_context(cafile=str(folder / "tls/authority.pem"))
        (folder / "state").mkdir()
        limits = (str(most), str(per_address), str(most + SPARE_FILES))
        command = [sys.executable, str(Path(__file__).with_name("served.py")), str(folder / "state")]
        self._log = open(folder / "log.txt", "w+", encoding="utf-8")  # noqa: SIM115 -- closed in stop
        self.process = subprocess.Popen(  # noqa: S603
            [*command, str(folder / "tls"), *limits], stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url, self.said()
        host, port = self.url.removeprefix("https://").split(":")
        self.place = (host, int(port))

    def said(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def resident(self) -> int:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(PATIENCE)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait(PATIENCE)
            assert self.process.stdout is not None
            self.process.stdout.close()
            self._log.close()

    async def open(self, address: str, *, tls: bool = True) -> tuple[Any, Any]:
        """A connection from an address of loopback."""
        return await asyncio.wait_for(
            asyncio.open_connection(
                *self.place,
                local_addr=(address, 0),
                ssl=self.trust if tls else None,
                server_hostname="localhost" if tls else None,
            ),
            PATIENCE,
        )


@contextmanager
def running(folder: Path, most: int, per_address: int) -> Iterator[Process]:
    process = Process(folder, most, per_address)
    try:
        yield process
    finally:
        process.stop()


async def honest(process: Process, rounds: int) -> int:
    """Three clients that come from 127.0.0.1, round after round. How many rounds were committed."""
    whole = 0
    async with httpx.AsyncClient(base_url=process.url, verify=process.trust, timeout=PATIENCE) as http:
        about = (await http.get("/v1/about")).json()
        guests = [Guest(Enrolled(), number) for number in range(3)]  # type: ignore[arg-type]
        wires = [Wire(guest, http, bytes.fromhex(about["deployment"])) for guest in guests]
        for _ in range(rounds):
            for guest in guests:
                guest.fresh()
            ends = await asyncio.gather(*(wire.play() for wire in wires))
            whole += all(end["outcome"] == "committed" for end in ends)
    return whole


Attack = Callable[[Process, int], Awaitable[None]]


async def idle(process: Process, count: int) -> None:
    """Connections that shake hands and say nothing."""
    await _many(process, count, "127.0.0.2", b"")


async def half_open(process: Process, count: int) -> None:
    """Connections that do not even begin TLS, each replaced when the server has had enough of it."""
    deadline, held = time.monotonic() + 5, []
    while time.monotonic() < deadline:
        while len(held) < count:
            one = socket.socket()
            one.bind(("127.0.0.3", 0))
            one.setblocking(False)
            with suppress(BlockingIOError):
                one.connect(process.place)
            held.append(one)
            if len(held) % 50 == 0:
                await asyncio.sleep(0)
        await asyncio.sleep(0.2)
        held = [one for one in held if _alive(one)]
    for one in held:
        one.close()


def _alive(one: socket.socket) -> bool:
    try:
        if one.recv(1) == b"":
            one.close()
            return False
    except BlockingIOError:
        return True
    except OSError:
        one.close()
        return False
    return True


async def garbage(process: Process, count: int) -> None:
    """What is no TLS."""
    for number in range(count):
        with suppress(OSError, asyncio.TimeoutError):
            reader, writer = await process.open("127.0.0.4", tls=False)
            writer.write(b"GET / HTTP/1.1\r\n\r\n" if number % 2 else os.urandom(2000))
            await writer.drain()
            await asyncio.wait_for(reader.read(), PATIENCE)
            writer.close()


async def slow_heads(process: Process, count: int) -> None:
    await _many(process, count, "127.0.0.5", b"GET /v1/about HTTP/1.1\r\nHost: x\r\nX-A: ", drip=True)


async def slow_bodies(process: Process, count: int) -> None:
    """Unsigned: refused from their heads. And to an endpoint that reads a body before it knows who asks."""
    head = b"POST /v1/check-in HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
    await _many(process, count // 2, "127.0.0.6", head, drip=True)
    head = b"POST /v1/enrol HTTP/1.1\r\nHost: x\r\nContent-Length: 200\r\n\r\n"
    await _many(process, count // 2, "127.0.0.6", head, drip=True)


async def oversized(process: Process, count: int) -> None:
    for number in range(count):
        with suppress(OSError, asyncio.TimeoutError):
            reader, writer = await process.open("127.0.0.7")
            path = (b"/v1/enrol", b"/v1/check-in", b"/v1/about")[number % 3]
            long = b"Content-Length: 99999999999\r\n\r\n"
            body = (long, b"Transfer-Encoding: chunked\r\n\r\n" + (b"ffff\r\n" + bytes(65535) + b"\r\n") * 8)
            writer.write(b"POST " + path + b" HTTP/1.1\r\nHost: x\r\n" + body[number % 2])
            answer = await asyncio.wait_for(reader.read(), PATIENCE)
            assert answer[:12] in (b"HTTP/1.1 413", b"HTTP/1.1 401", b"HTTP/1.1 405", b""), answer
            writer.close()


async def forged(process: Process, count: int) -> None:
    """Signed by nobody, and what was signed once again and again."""
    transport = httpx.AsyncHTTPTransport(verify=process.trust, local_address="127.0.0.8")
    async with httpx.AsyncClient(base_url=process.url, transport=transport, timeout=PATIENCE) as http:
        wire = Wire(Guest(Enrolled(), 0), http, bytes(16))  # type: ignore[arg-type]
        for _ in range(count):
            answer = await wire.send("POST", "/v1/check-in", b"x" * 100)
            assert (answer.status_code, answer.json()["error"]) == (401, "AuthenticationFailed")


async def _many(process: Process, count: int, address: str, say: bytes, drip: bool = False) -> None:
    """So many connections at once, each of which says something, and then a byte now and then."""
    held = []
    for start in range(0, count, 50):
        batch = min(50, count - start)
        opened = await asyncio.gather(*(process.open(address) for _ in range(batch)), return_exceptions=True)
        held += [one for one in opened if not isinstance(one, BaseException)]
    for _, writer in held:
        if say and not writer.transport.is_closing():
            writer.write(say)
    for _ in range(6):
        await asyncio.sleep(0.6)
        for _, writer in held if drip else ():
            if not writer.transport.is_closing():
                writer.write(b"a")
    for _, writer in held:
        writer.transport.abort()


ATTACKS: dict[str, tuple[Attack, int]] = {
    "idle": (idle, 300),
    "half open": (half_open, 400),
    "garbage": (garbage, 60),
    "slow heads": (slow_heads, 80),
    "slow bodies": (slow_bodies, 80),
    "oversized": (oversized, 60),
    "forged": (forged, 200),
}


def besiege(folder: Path, attacks: dict[str, tuple[Attack, int]], most: int, rounds: int) -> str:
    """The honest run rounds before, during and after; what the server held is said."""

    async def siege(process: Process) -> tuple[int, int, int]:
        assert await honest(process, 1) == 1
        before, peak, files = process.resident(), 0, 0
        tasks = [asyncio.create_task(attack(process, count)) for attack, count in attacks.values()]
        await asyncio.sleep(1)
        serving = asyncio.create_task(honest(process, rounds))
        while not (serving.done() and all(task.done() for task in tasks)):
            await asyncio.sleep(0.2)
            peak, files = max(peak, process.resident()), max(files, process.files())
        assert await serving == rounds
        await asyncio.gather(*tasks)
        assert await honest(process, 1) == 1
        return before, peak, files

    with running(folder, most, most // 8) as process:
        before, peak, files = asyncio.run(asyncio.wait_for(siege(process), PATIENCE))
        assert process.process.poll() is None
        log = process.said()
    assert "Traceback" not in log, log
    assert files <= most + SPARE_FILES
    assert peak - before < GROWTH, f"{before} -> {peak}"
    held = ", ".join(f"{count:,} {name}" for name, (_, count) in attacks.items())
    return f"{held}; memory {before / 2**20:.0f} -> at most {peak / 2**20:.0f} MiB; at most {files} files"


def test_the_honest_are_served_meanwhile(tmp_path: Path) -> None:
    besiege(tmp_path, ATTACKS, most=320, rounds=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_each_attack_by_itself(name: str, tmp_path: Path) -> None:
    besiege(tmp_path, {name: ATTACKS[name]}, most=320, rounds=2)


@pytest.mark.slow
def test_everything_at_once_and_thousands_of_it(tmp_path: Path, record_property: Any) -> None:
    attacks = {name: (attack, 10 * count) for name, (attack, count) in ATTACKS.items()}
    said = besiege(tmp_path, attacks, most=2000, rounds=5)
    record_property("cases", sum(count for _, count in attacks.values()))
    record_property("fuzz", said)
