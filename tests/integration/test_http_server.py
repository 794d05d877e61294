"""A real server on a loopback port, with TLS: rounds, hostile peers, the command, crashes."""

import asyncio
import json
import logging
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from uvicorn.protocols.http.h11_impl import H11Protocol

from clocks import PATIENCE, let_time_pass, until
from deployment import Deployment, Wire, serve
from sfsl.carriers.https.app import AppLimits
from sfsl.carriers.https.authority import create_authority, issue_server
from sfsl.carriers.https.listen import ConnectionLimits, Listen, _bound
from sfsl.carriers.https.listen import serve as serve_forever
from sfsl.cli import main
from sfsl.client import Backoff, Link
from sfsl.crypto.secret import Identity, SystemRandomness
from sfsl.errors import InputError, KeyFileError
from sfsl.secagg import Client, Policy
from sfsl.service.messages import CODEC, CheckIn


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    create_authority(folder, "test", 2, now=datetime.now(UTC))
    issue_server(folder, ["localhost", "127.0.0.1"], 1, now=datetime.now(UTC))
    return folder


def trusting(tls: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(tls / "authority.pem"))


Act = Callable[[Deployment, list[Wire], str], Awaitable[None]]


def served(
    folder: Path, tls: Path, act: Act, *, limits: Any = None, connections: Any = None, **changes: Any
) -> None:
    """Run ``act`` against a deployment behind real sockets."""

    async def scenario() -> None:
        world = Deployment(folder, **changes)
        listen = Listen(
            port=0,
            certificate=tls / "server.pem",
            key=tls / "server.key",
            connections=connections or ConnectionLimits(),
        )
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        app = serve(world, limits)
        server = asyncio.create_task(serve_forever(app, world.coordinator, listen, ready.set_result))
        url = await ready
        try:
            async with httpx.AsyncClient(base_url=url, verify=trusting(tls), timeout=PATIENCE) as http:
                wires = [Wire(guest, http, world.registry.deployment) for guest in world.clients(3)]
                await act(world, wires, url)
        finally:
            await world.coordinator.stop()
            await asyncio.wait_for(server, PATIENCE)
            world.registry.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))


async def raw(url: str, tls: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = url.removeprefix("https://").split(":")
    return await asyncio.open_connection(host, int(port), ssl=trusting(tls))


async def closed(reader: asyncio.StreamReader) -> int:
    """Wait until the server has had enough; how many bytes it sent before."""
    received = 0
    with suppress(ConnectionError):
        while part := await asyncio.wait_for(reader.read(1 << 20), PATIENCE):
            received += len(part)
    return received


def polled(world: Deployment) -> bool:
    """Whether a client waits at the server for its next message."""
    return any(one.polls for one in world.check_ins.waiting.values())


def noting(method: Callable[..., Any], event: asyncio.Event) -> Callable[..., Any]:
    """``method``, and word that it was called."""

    def noted(self: Any, *given: Any) -> Any:
        event.set()
        return method(self, *given)

    return noted


def test_rounds_over_tls(tmp_path: Path, tls: Path) -> None:
    async def act(world: Deployment, wires: list[Wire], url: str) -> None:
        assert url.startswith("https://127.0.0.1:")
        for number in (1, 2):
            ends = await asyncio.gather(*(wire.play() for wire in wires))
            assert {(end["outcome"], end["round"]) for end in ends} == {("committed", number)}
            for wire in wires:
                wire.guest.fresh()
        assert world.store.round == 2
        with pytest.raises(httpx.ConnectError):
            async with httpx.AsyncClient(base_url=url) as untrusting:
                await untrusting.get("/healthz")

    served(tmp_path, tls, act)


def test_answers_do_not_wait_for_the_peer_to_confirm_their_head() -> None:
    with (
        _bound(Listen(port=0)) as listening,
        socket.create_connection(listening.getsockname()),
        listening.accept()[0] as accepted,
    ):
        for one in (listening, accepted):
            assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_stopping_answers_those_who_poll(tmp_path: Path, tls: Path) -> None:
    async def act(world: Deployment, wires: list[Wire], url: str) -> None:
        await wires[0].check_in()
        polling = asyncio.create_task(wires[0].next())
        await until(lambda: polled(world))
        await world.coordinator.stop()
        answer = await polling
        assert (answer.status_code, answer.json()["outcome"]) == (410, "restarted")

    served(tmp_path, tls, act, poll_seconds=PATIENCE)


def test_a_peer_that_sends_no_whole_head_is_cut_off(tmp_path: Path, tls: Path) -> None:
    async def act(world: Deployment, wires: list[Wire], url: str) -> None:
        silent, _ = await raw(url, tls)
        trickling, writer = await raw(url, tls)

        # Also if it has sent a whole one before.
        second, other = await raw(url, tls)
        other.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.wait_for(second.readuntil(b"}"), PATIENCE)
        other.write(b"GET /heal")
        for byte in b"GET /healthz HTTP/1.1":  # a byte every four seconds is no excuse
            with suppress(ConnectionError):
                writer.write(bytes([byte]))
                await writer.drain()
            let_time_pass(4)
            await asyncio.sleep(0.01)
        for reader in (silent, second, trickling):
            await closed(reader)
        assert (await wires[0].http.get("/healthz")).status_code == 200

    served(tmp_path, tls, act, connections=ConnectionLimits(head_seconds=60))


def test_a_poll_is_not_taken_for_a_dawdler(tmp_path: Path, tls: Path) -> None:
    async def act(world: Deployment, wires: list[Wire], url: str) -> None:
        await wires[0].check_in()
        polling = asyncio.create_task(wires[0].next())
        await until(lambda: polled(world))
        let_time_pass(120)  # longer than a head may take
        for _ in range(20):
            await asyncio.sleep(0.005)
        assert not polling.done()
        let_time_pass(120)
        assert (await polling).status_code == 204

    served(tmp_path, tls, act, connections=ConnectionLimits(head_seconds=60), poll_seconds=200)


def test_a_body_that_trickles_or_never_ends(
    tmp_path: Path, tls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = asyncio.Event()
    monkeypatch.setattr(Request, "stream", noting(Request.stream, waiting))

    async def act(world: Deployment, wires: list[Wire], url: str) -> None:
        one = wires[0]
        head = "".join(f"{name}: {value}\r\n" for name, value in one.headers("POST", "/v1/check-in").items())
        request = f"POST /v1/check-in HTTP/1.1\r\nHost: x\r\n{head}"
        reader, writer = await raw(url, tls)
        writer.write(f"{request}Content-Length: 100\r\n\r\nabc".encode())
        await asyncio.wait_for(waiting.wait(), PATIENCE)
        let_time_pass(61)
        answer = await asyncio.wait_for(reader.readuntil(b"}"), PATIENCE)
        assert answer.startswith(b"HTTP/1.1 400")
        assert b"DecodeError" in answer
        let_time_pass(61)
        await closed(reader)
        # Announced too long: refused at once, nothing is read.
        reader, writer = await raw(url, tls)
        writer.write(f"{request}Content-Length: 100000000\r\n\r\n".encode())
        answer = await asyncio.wait_for(reader.readuntil(b"}"), PATIENCE)
        assert answer.startswith(b"HTTP/1.1 413")
        let_time_pass(61)
        await closed(reader)
        # Chunks without end: cut off, however the peer goes on.
        reader, writer = await raw(url, tls)
        writer.write(f"{request}Transfer-Encoding: chunked\r\n\r\n".encode())
        sent = 0
        with suppress(ConnectionError):
            while sent < 1 << 26:
                writer.write(b"1000\r\n" + bytes(0x1000) + b"\r\n")
                await writer.drain()
                sent += 0x1000
        assert sent < 1 << 24
        assert (await one.check_in()).status_code == 200

    served(tmp_path, tls, act, limits=AppLimits(body_seconds=60))


def test_what_is_no_http(tmp_path: Path, tls: Path) -> None:
    async def act(world: Deployment, wires: list[Wire], url: str) -> None:
        for start in (b"\x00\x01\x02\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"a: " + b"b" * 40000 + b"\r\n\r\n"):
            reader, writer = await raw(url, tls)
            writer.write(start)
            answer = await asyncio.wait_for(reader.read(), PATIENCE)
            assert answer.startswith(b"HTTP/1.1 400"), answer
            body = json.loads(answer.split(b"\r\n\r\n", 1)[1])
            assert set(body) == {"error", "message"}
        assert (await wires[0].http.get("/healthz")).status_code == 200

    served(tmp_path, tls, act)


def test_no_more_connections_than_allowed(tmp_path: Path, tls: Path) -> None:
    async def act(world: Deployment, wires: list[Wire], url: str) -> None:
        held = []
        refused = 0
        for _ in range(12):
            try:
                reader, writer = await raw(url, tls)
            except ConnectionError:  # before TLS
                refused += 1
                continue
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await asyncio.wait_for(reader.read(4096), PATIENCE)).startswith(b"HTTP/1.1 200")
            held.append(writer)
        assert refused == 4
        for writer in held:
            writer.close()

        async def makes_room() -> bool:
            with suppress(httpx.ConnectError, httpx.ReadError):
                return (await wires[0].http.get("/healthz")).status_code == 200
            return False

        while not await makes_room():  # when the server has seen that they left
            await asyncio.sleep(0.01)

    served(tmp_path, tls, act, connections=ConnectionLimits(most_per_address=8))


def test_a_peer_that_does_not_read_is_dropped(
    tmp_path: Path, tls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = asyncio.Event()
    monkeypatch.setattr(H11Protocol, "pause_writing", noting(H11Protocol.pause_writing, full))

    async def act(world: Deployment, wires: list[Wire], url: str) -> None:
        reader, writer = await raw(url, tls)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 5000)
        await asyncio.wait_for(full.wait(), PATIENCE)  # the server can write no more
        let_time_pass(61)
        await asyncio.sleep(0.01)
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert 0 < await closed(reader) < 5000 * 4000  # cut off in the middle
        assert (await wires[0].http.get("/healthz")).status_code == 200

    limits = AppLimits(address_burst=10_000)
    served(tmp_path, tls, act, limits=limits, connections=ConnectionLimits(drain_seconds=60))


def test_files_and_ports_that_cannot_be_used(tmp_path: Path, tls: Path) -> None:
    world = Deployment(tmp_path)

    async def start(listen: Listen) -> None:
        await serve_forever(serve(world), world.coordinator, listen, lambda _: None)

    certificate, key = tls / "server.pem", tls / "server.key"
    for wrong in (
        Listen(port=0, certificate=tmp_path / "none.pem", key=key),
        Listen(port=0, certificate=certificate, key=tls / "authority.key"),
        Listen(port=0, certificate=key, key=key),
    ):
        with pytest.raises(KeyFileError, match="cannot use the certificate"):
            asyncio.run(start(wrong))
    with pytest.raises(InputError, match=r"cannot listen on 192\.0\.2\.1"):
        asyncio.run(start(Listen(host="192.0.2.1", port=0, certificate=certificate, key=key)))
    world.registry.close()


# -- the command -----------------------------------------------------------------------------------

CONFIG = """
[data]
world = "tastes"
users = 40
scale = 0.02
[round]
scheme = "sfsl"
clients = 3
min_contributors = 1
[serve]
enrolment = "open"
port = 0
period_days = 0
check_in_seconds = 5
"""


def words(folder: Path, tls: Path, *more: str) -> list[str]:
    config = folder / "serve.toml"
    config.write_text(
        f'{CONFIG}certificate = "{tls / "server.pem"}"\nkey = "{tls / "server.key"}"\n', encoding="utf-8"
    )
    return ["serve", str(config), "--out", str(folder / "state"), *more]


Ended = Callable[..., tuple[int, str]]


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Ended]:
    """The command in this process, which costs no import of torch, where it does not come to serving: its
    status, and what it said."""
    levels = {name: logging.getLogger(name).level for name in ("asyncio", "uvicorn")}

    def run(folder: Path, tls: Path, *more: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["sfsl", *words(folder, tls, *more)])
        capsys.readouterr()
        try:
            main()
            status = 0
        except SystemExit as over:
            status = int(over.code or 0)
        return status, "".join(capsys.readouterr())

    yield run
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


class Command:
    """``sfsl serve`` in a process of its own."""

    def __init__(self, folder: Path, tls: Path, *more: str) -> None:
        command = [sys.executable, "-m", "sfsl", *words(folder, tls, *more)]
        self.log = open(folder / "log.txt", "a+", encoding="utf-8")  # noqa: SIM115 -- closed in stop
        self._start = self.log.tell()
        self.process = subprocess.Popen(command, stderr=self.log, stdout=self.log)  # noqa: S603

    def said(self) -> str:
        self.log.seek(self._start)
        return self.log.read()

    def url(self) -> str:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.process.poll() is None:
            for line in self.said().splitlines():
                if line.startswith("Serving at ") and "Join with" in self.said():
                    return line.split()[2]
            time.sleep(0.1)
        raise AssertionError(self.said())

    def stop(self, number: int) -> int:
        if self.process.poll() is None:
            os.kill(self.process.pid, number)
        try:
            return self.process.wait(PATIENCE)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait(PATIENCE)


@contextmanager
def command(folder: Path, tls: Path, *more: str) -> Iterator[Command]:
    running = Command(folder, tls, *more)
    try:
        yield running
    finally:
        running.stop(signal.SIGKILL)
        running.log.close()


def test_the_command_starts_stops_and_comes_back(tmp_path: Path, tls: Path, ended: Ended) -> None:
    with command(tmp_path, tls) as first:
        url = first.url()
        status, refused = ended(tmp_path, tls)  # two cannot share a folder
        assert (status, refused.count("sfsl: "), "Traceback" in refused) == (1, 1, False)
        about = httpx.get(f"{url}/v1/about", verify=trusting(tls)).json()
        said = first.said()
        assert about["deployment"] in said
        assert about["model"] in said
        assert "ANYONE" in said
        assert f"sfsl join --server {url}" in said
        page = httpx.get(url, verify=trusting(tls))
        assert (page.status_code, "Secure federated submodel learning" in page.text) == (200, True)
        assert first.stop(signal.SIGTERM) == 0
        assert "Stopped after round 0" in first.said()
        assert "INFO stopping\n" in first.said()
        assert "under way" not in first.said()  # there is none
    with command(tmp_path, tls) as second:
        again = httpx.get(f"{second.url()}/v1/about", verify=trusting(tls)).json()
        assert (again["deployment"], again["model"]) == (about["deployment"], about["model"])
        assert second.stop(signal.SIGINT) == 0


async def invited(url: str, tls: Path) -> None:
    """Three clients come, and are in a round that nobody answers."""
    randomness = SystemRandomness()
    async with AsyncExitStack() as stack:
        links = []
        for _ in range(3):
            identity = Identity.generate(randomness)
            made = Link(url, identity, tls=trusting(tls), backoff=Backoff(randomness), randomness=randomness)
            links.append(await stack.enter_async_context(made))
        tickets = []
        for link in links:
            model = bytes.fromhex((await link.about()).model)
            await link.enrol()
            policy = Policy(min_clients=2, min_threshold=2, min_contributors=1, max_words=10**6)
            keys = Client(link.client, policy, randomness, sums=2).create_keys()
            tickets.append((await link.check_in(CODEC.encode(CheckIn(model, keys)))).ticket)
        for link, ticket in zip(links, tickets, strict=True):
            assert type(await link.next(ticket, 0, limit=10**6)).__name__ == "Invitation"


def test_a_second_signal_aborts_the_round_that_the_first_lets_finish(
    tmp_path: Path, tls: Path, ended: Ended
) -> None:
    patient = ("serve.grace_seconds=300", "serve.phase_seconds=300", "serve.training_seconds=300")
    with command(tmp_path, tls, *(word for one in patient for word in ("--set", one))) as running:
        url = running.url()
        asyncio.run(asyncio.wait_for(invited(url, tls), PATIENCE))
        os.kill(running.process.pid, signal.SIGTERM)
        while "stopping: the round" not in running.said():
            assert running.process.poll() is None, running.said()
            time.sleep(0.05)
        health = httpx.get(f"{url}/healthz", verify=trusting(tls))
        assert (health.status_code, health.json()["status"]) == (503, "stopping")
        assert running.stop(signal.SIGTERM) == 0
        said = running.said()
    assert "round 1 aborted: the server was told to stop before the round was over" in said
    assert "Stopped after round 1" in said
    assert "stopping: the round under way may finish" in said
    assert "Traceback" not in said
    # Started again with no rounds left to run, it says so and announces nothing.
    status, said = ended(tmp_path, tls, "--set", "serve.rounds=1")
    assert status == 0
    assert "serve.rounds = 1, and round 1 is in the store" in said
    assert "nothing to do" in said
    assert "Serving" not in said
    assert json.loads((tmp_path / "state/metrics.jsonl").read_text())["aborted"].startswith("the server was")


def test_settings_that_are_refused(tmp_path: Path, tls: Path, ended: Ended) -> None:
    for setting, says in (
        ("round.scheme=fl", "is for simulations"),
        ("round.sums=plain", "hides nothing"),
        ("serve.min_cohort=9", "serve.min_cohort"),
        ("serve.nothing=1", "there is no key serve.nothing"),
        ("serve.largest_body=4096", "raise it"),
        ("serve.host=999.1.2.3", "cannot listen on 999.1.2.3 port"),
    ):
        status, said = ended(tmp_path, tls, "--set", setting)
        assert status == 1
        assert says in said
        assert "Unknown error" not in said
        assert "Traceback" not in said
