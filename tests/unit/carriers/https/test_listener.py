"""The listener without a network: timers of a connection, what is no HTTP, signals, TLS, and what the event
loop is told."""

import asyncio
import json
import logging
import signal
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from uvicorn.server import ServerState

from clocks import PATIENCE
from sfsl.carriers.https import authority, expiry, listen
from sfsl.carriers.https.authority import create_authority, issue_server, read_certificate, valid_between
from sfsl.carriers.https.expiry import watch_certificate
from sfsl.carriers.https.listen import ConnectionLimits, Listen
from sfsl.errors import InputError, KeyFileError

NOW = datetime.now(UTC).replace(microsecond=0)


def run(scenario: Any) -> None:
    asyncio.run(asyncio.wait_for(scenario, PATIENCE))


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.sleep(PATIENCE)


async def says_nothing(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


# -- one connection ------------------------------------------------------------------------------------


class Pipe(asyncio.Transport):
    """A transport and a clock that write down what is asked of them."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.closing, self.aborted = b"", False, False
        self.timers: list[tuple[float, Any]] = []

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("10.0.0.1", 5), "sockname": ("10.0.0.2", 80)}.get(name, default)

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def call_later(self, seconds: float, act: Any, *given: Any) -> Any:
        timer = (seconds, act)
        self.timers.append(timer)
        return SimpleNamespace(cancel=lambda: self.timers.remove(timer))

    def waits(self) -> list[float]:
        """The timers that are ours."""
        return [seconds for seconds, act in self.timers if act == self.abort]


def connected(app: Any) -> tuple[Any, Pipe]:
    limits = ConnectionLimits(head_seconds=7.0, drain_seconds=9.0)
    config = listen._config(app, Listen(connections=limits))
    config.load()
    pipe, loop = Pipe(), asyncio.get_running_loop()
    watched = SimpleNamespace(call_later=pipe.call_later, create_task=loop.create_task)
    peer = config.http_protocol_class(  # type: ignore[call-arg]
        config=config, server_state=ServerState(), app_state={}, _loop=watched
    )
    peer.connection_made(pipe)
    return peer, pipe


WHOLE = b"GET / HTTP/1.1\r\nhost: test\r\n\r\n"


def test_a_head_has_its_time_and_an_endpoint_minds_its_own() -> None:
    async def scenario() -> None:
        peer, pipe = connected(nothing)
        assert pipe.waits() == [7.0]
        peer.data_received(WHOLE[:10])
        assert pipe.waits() == [7.0]  # from the first byte on, not from the last
        peer.data_received(WHOLE[10:])
        assert pipe.waits() == []
        peer.pause_writing()
        assert pipe.waits() == [9.0]
        peer.connection_lost(None)
        assert pipe.waits() == []

    run(scenario())


def test_what_comes_after_an_answer_has_the_time_of_a_head() -> None:
    async def scenario() -> None:
        peer, pipe = connected(says_nothing)
        peer.data_received(WHOLE)
        await asyncio.sleep(0.01)
        assert b"204" in pipe.written
        assert pipe.waits() == []
        peer.data_received(WHOLE[:10])
        assert pipe.waits() == [7.0]
        peer.connection_lost(None)
        assert pipe.waits() == []

    run(scenario())


def test_who_is_being_closed_gets_no_timer() -> None:
    async def scenario() -> None:
        peer, pipe = connected(nothing)
        peer._forget("head")
        pipe.closing = True
        peer.data_received(WHOLE[:10])
        assert pipe.waits() == []

    run(scenario())


def test_what_is_no_http_is_answered_as_all_that_is_refused() -> None:
    async def scenario() -> None:
        peer, pipe = connected(nothing)
        peer.data_received(b"\x16\x03\x01 this is TLS\r\n\r\n")
        head, _, body = pipe.written.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        assert lines[0] == b"http/1.1 400 bad request"
        assert set(lines[1:]) == {
            b"content-type: application/json", b"content-length: %d" % len(body), b"connection: close",
        }  # fmt: skip
        told = {"error": "DecodeError", "message": "this is not a request in HTTP/1.1"}
        assert json.loads(body) == told
        assert pipe.closing

    run(scenario())


# -- the process ---------------------------------------------------------------------------------------


def test_one_signal_asks_and_the_next_does_not_wait() -> None:
    async def scenario() -> None:
        server = listen._Server(listen._config(nothing, Listen()), None)
        seen = []
        for _ in range(3):
            seen.append((server.asked.is_set(), server.asked_again.is_set()))
            server.handle_exit(signal.SIGTERM, None)
            await asyncio.sleep(0)
        assert seen == [(False, False), (True, False), (True, True)]
        assert not server.should_exit  # which ends everything at once

    run(scenario())


@pytest.mark.parametrize("secured", [False, True])
def test_what_the_event_loop_is_told(secured: bool) -> None:
    given: list[Any] = []

    async def scenario() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if secured else None
        server = listen._Server(listen._config(nothing, Listen()), context)

        async def create(factory: Any, **named: Any) -> str:
            given.append(named)
            return "made"

        server._loop = SimpleNamespace(create_server=create)  # type: ignore[assignment]
        assert not server.started
        await server.startup(["a", "b"])  # type: ignore[list-item]
        assert server.started
        assert server.servers == ["made", "made"]  # type: ignore[comparison-overlap]
        assert [one["sock"] for one in given] == ["a", "b"]
        assert given[0]["ssl"] is context
        seconds = (10.0, 1.0) if secured else (None, None)
        assert (given[0]["ssl_handshake_timeout"], given[0]["ssl_shutdown_timeout"]) == seconds
        assert given[0]["backlog"] == server.config.backlog == 2048
        server.servers.clear()
        await server.startup(None)
        assert server.servers == []

    run(scenario())


class Rounds:
    """A coordinator that runs until it is told to stop, and stops when it may."""

    def __init__(self, under_way: bool = False, error: Exception | None = None) -> None:
        self.under_way, self.error, self.told = under_way, error, []
        self.over, self.may_stop = asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        try:
            await self.over.wait()
        except asyncio.CancelledError:
            self.told.append("cancelled")
            raise
        if self.error is not None:
            raise self.error

    async def stop(self) -> None:
        self.told.append("stop")
        await self.may_stop.wait()
        self.over.set()

    def give_up(self) -> None:
        self.told.append("give up")
        self.may_stop.set()


async def served(rounds: Rounds, made: list[Any], ready: list[str]) -> asyncio.Task[None]:
    """A server that listens, on a port that is free."""

    class Known(listen._Server):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)

    listen._Server, real = Known, listen._Server  # type: ignore[misc]
    try:
        task = asyncio.create_task(listen.serve(says_nothing, rounds, Listen(port=0), ready.append))  # type: ignore[arg-type]
        while not ready and not task.done():
            await asyncio.sleep(0.005)
    finally:
        listen._Server = real  # type: ignore[misc]
    return task


@pytest.mark.parametrize("under_way", [False, True])
def test_a_server_stops_when_it_is_asked_and_waits_for_its_round(
    under_way: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        rounds, made, ready = Rounds(under_way), [], []
        task = await served(rounds, made, ready)
        assert ready[0].startswith("http://127.0.0.1:")
        port = int(ready[0].rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(WHOLE)
        assert b"204" in await reader.readline()
        writer.close()
        assert rounds.told == []
        made[0].handle_exit(signal.SIGTERM, None)
        await asyncio.sleep(0.05)
        assert (rounds.told, task.done()) == (["stop"], False)
        rounds.may_stop.set()
        await task
        assert rounds.told == ["stop"]
        assert made[0].should_exit
        with pytest.raises(OSError, match=r"refused|Connect"):
            await asyncio.open_connection("127.0.0.1", port)

    with caplog.at_level(logging.INFO):
        run(scenario())
    said = "stopping: the round under way may finish" if under_way else "stopping"
    assert [one for one in caplog.messages if one.startswith("stopping")] == [said]


def test_a_second_signal_gives_the_round_up() -> None:
    async def scenario() -> None:
        rounds, made, ready = Rounds(), [], []
        task = await served(rounds, made, ready)
        for _ in range(2):
            made[0].handle_exit(signal.SIGINT, None)
            await asyncio.sleep(0.02)
        await task
        assert rounds.told == ["stop", "give up"]

    run(scenario())


@pytest.mark.parametrize("error", [None, ValueError("a mistake")])
def test_what_makes_rounds_end_ends_the_server_and_is_raised(error: Exception | None) -> None:
    async def scenario() -> None:
        before = asyncio.all_tasks()
        rounds, made, ready = Rounds(error=error), [], []
        task = await served(rounds, made, ready)
        rounds.over.set()
        if error is None:
            await task
        else:
            with pytest.raises(ValueError, match="a mistake"):
                await task
        assert rounds.told == []
        assert asyncio.all_tasks() == before  # nobody waits any more

    run(scenario())


def test_whoever_ends_a_server_ends_its_rounds() -> None:
    async def scenario() -> None:
        before, rounds = asyncio.all_tasks(), Rounds()
        task = await served(rounds, [], [])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert rounds.told == ["cancelled"]
        assert asyncio.all_tasks() == before

    run(scenario())


def test_a_web_server_that_fails_ends_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: Any, **__: Any) -> None:
        raise OSError("no more sockets")

    async def scenario() -> None:
        before, rounds, ready = asyncio.all_tasks(), Rounds(), []
        monkeypatch.setattr(listen._Server, "startup", fails)
        rounds.may_stop.set()
        with pytest.raises(OSError, match="no more sockets"):
            await listen.serve(says_nothing, rounds, Listen(port=0), ready.append)  # type: ignore[arg-type]
        assert (ready, rounds.told) == ([], ["stop"])
        assert asyncio.all_tasks() == before  # nobody waits any more

    run(scenario())


def test_files_are_allowed_for_all_connections_and_some_more(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[int] = []
    monkeypatch.setattr(listen, "_allow_files", wanted.append)
    with listen._bound(Listen(port=0, connections=ConnectionLimits(most=70))) as bound:
        assert wanted == [70 + 256]
        port = bound.getsockname()[1]
        with pytest.raises(InputError, match=f"listen on 127.0.0.1 port {port}"):
            listen._bound(Listen(port=port))


def test_ready_is_told_the_address_and_a_certificate_makes_it_https() -> None:
    assert listen.url(Listen(), 1) == "http://127.0.0.1:1"
    assert listen.url(Listen(certificate=Path("x")), 443) == "https://127.0.0.1:443"


# -- certificates --------------------------------------------------------------------------------------


@pytest.fixture
def tls(tmp_path: Path) -> Path:
    create_authority(tmp_path / "tls", "a", 100, now=NOW)
    issue_server(tmp_path / "tls", ["localhost"], 40, now=NOW)
    return tmp_path / "tls"


def test_tls_is_of_12_or_later_and_only_with_both_files(tls: Path) -> None:
    pair = {"certificate": tls / "server.pem", "key": tls / "server.key"}
    context = listen._tls(Listen(**pair))
    assert context is not None
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert listen._tls(Listen()) is None
    for name, path in pair.items():
        assert listen._tls(Listen(**{name: path})) is None


def test_pairs_that_cannot_be_used_are_named(tls: Path) -> None:
    def refused(key: Path, certificate: Path = tls / "server.pem") -> str:
        with pytest.raises(KeyFileError, match="cannot use the certificate") as caught:
            listen._tls(Listen(certificate=certificate, key=key))
        assert str(certificate) in str(caught.value)
        assert str(key) in str(caught.value)
        return str(caught.value)

    assert "No such file" in refused(tls / "none")
    assert "No such file" in refused(tls / "server.key", tls / "none")
    refused(tls / "authority.key")  # another one's
    secret = ec.generate_private_key(ec.SECP256R1())
    for name, protection in (
        ("locked", serialization.BestAvailableEncryption(b"pass")),
        ("open", serialization.NoEncryption()),
    ):
        (tls / name).write_bytes(
            secret.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection)
        )
    assert "a server that starts at night cannot ask for a password" in refused(tls / "locked")
    refused(tls / "open")
    data = (tls / "server.key").read_bytes()
    (tls / "flipped").write_bytes(data.replace(b"\n#", b"x\n#", 1))
    refused(tls / "flipped")


def test_what_is_in_certificates(tls: Path) -> None:
    issue_server(tls, ["a.example", "10.0.0.1"], 40, now=NOW, name="second")
    loaded = x509.load_pem_x509_certificate((tls / "second.pem").read_bytes().split(b"\n#")[0])
    facts = read_certificate(tls / "second.pem")
    assert facts.sha256 == loaded.fingerprint(hashes.SHA256()).hex()
    assert (facts.subject, facts.issuer) == ("CN=sfsl server", "CN=a")
    assert (facts.authority, facts.hosts) == (False, ("a.example", "10.0.0.1"))
    found = {type(one.value): one for one in loaded.extensions}
    basic, usage = found[x509.BasicConstraints], found[x509.KeyUsage]
    assert (basic.critical, basic.value.ca, basic.value.path_length) == (True, False, None)
    assert (usage.critical, usage.value.digital_signature, usage.value.key_cert_sign) == (True, True, False)
    for kind in (x509.ExtendedKeyUsage, x509.SubjectAlternativeName, x509.AuthorityKeyIdentifier):
        assert not found[kind].critical
    assert not found[x509.SubjectKeyIdentifier].critical
    assert read_certificate(tls / "authority.pem").hosts == ()
    for name in ("authority", "server"):
        assert (tls / f"{name}.key").stat().st_mode & 0o777 == 0o600
    assert tls.stat().st_mode & 0o777 == 0o700
    for wrong in ("a" * 65, ""):
        with pytest.raises(InputError, match="1 to 64 printable"):
            create_authority(tls / "other", wrong, 1, now=NOW)


def test_a_chain_is_valid_while_all_of_it_is(tls: Path) -> None:
    """It begins with the last of them and ends with the first."""
    create_authority(tls / "later", "b", 10, now=NOW + timedelta(days=5))
    first, last = (
        (tls / name).read_bytes().split(b"\n#")[0] for name in ("server.pem", "later/authority.pem")
    )
    hour = timedelta(hours=1)
    for at, order in enumerate(((first, last), (last, first))):
        chain = tls / f"chain {at}"
        chain.write_bytes(b"\n".join(order) + b"\n")
        assert valid_between(chain) == (NOW + timedelta(days=5) - hour, NOW + timedelta(days=15))
    assert read_certificate(tls / "chain 1").subject == "CN=b"  # what is served is the first


def test_files_that_are_too_large_are_no_certificates(tls: Path) -> None:
    data = (tls / "server.pem").read_bytes().split(b"\n#")[0] + b"\n"
    path = tls / "padded"
    path.write_bytes(data + b"\n" * ((1 << 20) - len(data)))
    assert read_certificate(path).subject == "CN=sfsl server"
    path.write_bytes(data + b"\n" * ((1 << 20) + 1 - len(data)))
    with pytest.raises(KeyFileError, match="no certificate, or it is damaged"):
        read_certificate(path)


def test_an_authority_signs_with_a_key_of_its_curve_that_nobody_locked(tls: Path) -> None:
    key = tls / "authority.key"

    def refused(secret: Any, protection: Any, says: str) -> None:
        key.write_bytes(
            secret.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection)
        )
        with pytest.raises(KeyFileError, match=says):
            issue_server(tls, ["localhost"], 1, now=NOW, name="more")

    plain = serialization.NoEncryption()
    refused(ec.generate_private_key(ec.SECP256R1()), plain, "do not belong together")
    refused(ed25519.Ed25519PrivateKey.generate(), plain, "do not belong together")
    refused(
        ec.generate_private_key(ec.SECP256R1()),
        serialization.BestAvailableEncryption(b"pass"),
        "no private key, or it is damaged",
    )
    assert not (tls / "more.key").exists()
    assert authority.MOST_AUTHORITY_DAYS == 36_500


def test_a_certificate_is_looked_at_again_and_again(tls: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert expiry._DAY_SECONDS == 86_400
    assert watch_certificate.__defaults__ == (expiry.utc_now, 86_400)
    ends, looked = NOW + timedelta(days=40), []

    def now() -> datetime:
        looked.append(1)
        return ends - timedelta(days=29, seconds=len(looked))

    async def scenario() -> None:
        watching = asyncio.create_task(watch_certificate(tls / "server.pem", ends, now, every=0.001))
        while len(looked) < 3:
            await asyncio.sleep(0.001)
        assert not watching.done()
        watching.cancel()

    with caplog.at_level(logging.WARNING):
        run(scenario())
    assert len([one for one in caplog.messages if "ends in 29 days" in one]) >= 3
