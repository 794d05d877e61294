"""What stands around the endpoints: connections that are closed or kept, what the listener is told, what is
made anew and when, and who waits how long."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from cryptography import x509

from clocks import PATIENCE
from deployment import Deployment, Wire, serve, settings
from sfsl.carriers.https import app, authority, coordinator, listen
from sfsl.carriers.https.authority import create_authority, expires_within, issue_server, valid_between
from sfsl.carriers.https.expiry import require_current, warn_of_end
from sfsl.carriers.https.listen import ConnectionLimits, Listen
from sfsl.errors import InputError, KeyFileError, RoundOver, TooMany
from sfsl.service.messages import CODEC, LogHead, LogProof, LogQuery

NOW = datetime(2030, 1, 1, 12, 0, 0, 987, tzinfo=UTC)


def scenario(folder: Path, act: Callable[..., Awaitable[None]], **changes: Any) -> None:
    async def run() -> None:
        async with Deployment(folder, **changes) as world:
            transport = httpx.ASGITransport(serve(world))
            async with httpx.AsyncClient(transport=transport, base_url="https://test") as http:
                await act(world, [Wire(guest, http, world.registry.deployment) for guest in world.clients(2)])

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


def test_a_connection_whose_body_nobody_read_is_closed(tmp_path: Path) -> None:
    async def act(world: Deployment, wires: list[Wire]) -> None:
        http = wires[0].http
        for path, status in (("/v1/log?since=x", 404), ("/nowhere", 404), ("/v1/next/" + "0" * 32, 400)):
            answer = await http.get(path)
            assert answer.status_code == status
            assert answer.headers["connection"] == "close"
        assert "connection" not in (await http.get("/healthz")).headers
        # The body of this one was read to its end.
        answer = await wires[0].send("POST", "/v1/check-in", b"nonsense")
        assert answer.status_code == 400
        assert "connection" not in answer.headers
        both = {"content-length": "2", "transfer-encoding": "chunked"}
        answer = await http.post("/v1/enrol", content=b"{}", headers=both)
        assert answer.status_code == 400
        assert "two ways" in answer.json()["message"]
        for path in ("/v1/About", "/v1/about%2f", "/v1/about/"):
            assert (await http.get(path)).status_code == 404
        assert (await http.head("/v1/about")).status_code == 405
        assert (await http.head("/healthz")).status_code == 200
        counted = world.coordinator.totals.refused
        assert (counted["NotFound"], counted["MethodNotAllowed"], counted["DecodeError"]) == (5, 1, 1)

    scenario(tmp_path, act)


def test_an_answer_that_breaks_off_is_not_answered_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def breaks(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ValueError("halfway")

    async def run() -> None:
        async with Deployment(tmp_path) as world:
            whole: Any = serve(world)
            guard = app.Guard(breaks, whole._server, app.AppLimits())
            sent: list[Any] = []

            async def send(message: Any) -> None:
                sent.append(message)

            scope = {"type": "http", "raw_path": b"/", "headers": [], "client": None}
            with pytest.raises(ValueError, match="halfway"):
                await guard(scope, None, send)  # type: ignore[arg-type]
            assert [message["type"] for message in sent] == ["http.response.start"]
            assert (b"cache-control", b"no-store") in sent[0]["headers"]

    asyncio.run(asyncio.wait_for(run(), PATIENCE))
    assert "an answer broke off" in caplog.text


def test_clients_are_shown_one_head_and_witnesses_offered_another(tmp_path: Path) -> None:
    asked: list[tuple[int, bool]] = []

    def prove(query: LogQuery, *, offered: bool = False) -> LogProof:
        asked.append((query.since, offered))
        return LogProof(LogHead(bytes(16), 0, bytes(32), 1), b"")

    async def run() -> None:
        async with Deployment(tmp_path) as world:
            whole: Any = serve(world)
            whole._server._log = SimpleNamespace(prove=prove)
            transport = httpx.ASGITransport(whole)
            async with httpx.AsyncClient(transport=transport, base_url="https://test") as http:
                for path in ("/v1/log?since=3", "/v1/log/offer?since=4", "/v1/log"):
                    answer = await http.get(path)
                    assert isinstance(CODEC.decode(answer.content, limit=1000), LogProof)
                whole._server._log = None
                assert (await http.get("/v1/log/offer")).status_code == 404

    asyncio.run(asyncio.wait_for(run(), PATIENCE))
    assert asked == [(3, False), (4, True), (0, False)]


def test_what_does_not_change_is_made_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(app.time, "monotonic", lambda: now[0])

    async def act(world: Deployment, wires: list[Wire]) -> None:
        made: list[int] = []
        status = world.coordinator.status
        monkeypatch.setattr(world.coordinator, "status", lambda: made.append(1) or status())
        for moment, times in ((100.0, 1), (100.9, 1), (101.0, 1), (101.1, 2), (102.0, 2)):
            now[0] = moment
            await wires[0].http.get("/status.json")
            assert len(made) == times
        shown = (await wires[0].http.get("/status.json")).json()
        assert (shown["clock_refused"], shown["round"]) == (0, 0)

    scenario(tmp_path, act)


def test_who_comes_when_all_places_are_taken_waits(tmp_path: Path) -> None:
    async def run() -> None:
        async with Deployment(tmp_path, cohort=3, most_clients=3, min_cohort=3) as world:
            guests = world.clients(4)  # nobody is chosen before this lets the others run
            for guest in guests[:3]:
                guest.check_in()
            with pytest.raises(TooMany) as caught:
                guests[3].check_in()
            assert caught.value.wait_ms == 30_000
            guests[0].check_in()  # who is inside may ask again
            with pytest.raises(RoundOver, match="not known") as over:
                await world.check_ins.next(guests[3].id, bytes(16), 0, 0.0)
            assert (over.value.outcome, over.value.round) == ("restarted", 0)

    asyncio.run(asyncio.wait_for(run(), PATIENCE))
    assert coordinator._PAUSE_SECONDS == 0.5


def test_who_is_silent_for_two_polls_and_a_little_is_let_go(tmp_path: Path) -> None:
    async def run() -> None:
        async with Deployment(tmp_path, poll_seconds=5.0) as world:
            (guest, other, _) = world.clients(3)
            guest.check_in()
            world.advance(14.9)
            assert guest.id in world.check_ins.eligible()
            other.check_in()
            world.advance(0.2)
            assert set(world.check_ins.eligible()) == {other.id}
            with pytest.raises(RoundOver, match="not heard for 15 s"):
                await world.check_ins.next(guest.id, guest.ticket, 0, 0.0)

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


def test_what_is_seen_while_nothing_is_under_way(tmp_path: Path) -> None:
    async def run() -> None:
        async with Deployment(tmp_path, cohort=3) as world:
            status = world.coordinator.status()
            assert (status.phase, status.expected, status.heard, status.cohort) == ("waiting", 0, 0, 0)
            assert (status.seconds_left, status.steps, status.wanted, status.least) == (None, (), 3, 3)
            assert (status.had_turn, status.period_ends, status.stopping) == (0, None, False)
            assert not world.coordinator.under_way
            assert not world.coordinator.finished
            assert world.coordinator.published("x", b"y") is None
            guest = world.clients(1)[0]
            guest.check_in()
            await asyncio.sleep(0.05)
            left = world.coordinator.status().seconds_left
            assert left is not None
            assert 999 < left <= 1000
            world.advance(2000)
            assert world.coordinator.status().seconds_left == 0.0
            assert world.coordinator.status().waiting == 1

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


def test_all_rounds_that_were_planned(tmp_path: Path) -> None:
    for rounds, done, finished in ((0, 5, False), (3, 2, False), (3, 3, True), (3, 4, True)):
        world = SimpleNamespace(
            settings=SimpleNamespace(rounds=rounds), check_ins=SimpleNamespace(round=done)
        )
        assert coordinator.Coordinator.finished.fget(world) is finished  # type: ignore[attr-defined]
    assert settings(rounds=3).rounds == 3


# -- the listener --------------------------------------------------------------------------------------


def test_what_the_listener_is_told() -> None:
    async def nothing(*_: Any) -> None:
        pass

    for proxied in (False, True):
        config = listen._config(nothing, Listen(proxied=proxied))
        assert (config.timeout_keep_alive, config.timeout_graceful_shutdown) == (75, 5)
        assert config.h11_max_incomplete_event_size == 16 << 10
        assert (config.access_log, config.server_header, config.proxy_headers) == (False, False, proxied)
        assert config.forwarded_allow_ips == "127.0.0.1,::1"
        assert (config.ws, config.lifespan) == ("none", "off")
    listen.lean_tls()
    assert listen.sslproto.SSLProtocol.max_size == 32 << 10
    assert (listen._HANDSHAKE_SECONDS, listen._GOODBYE_SECONDS, listen._SPARE_FILES) == (10.0, 1.0, 256)


class Timed:
    """A transport and a loop that write down what is asked of them."""

    def __init__(self) -> None:
        self.timers: dict[float, Any] = {}
        self.written, self.closed, self.aborted = b"", False, False

    def call_later(self, seconds: float, what: Any) -> Any:
        self.timers[seconds] = what
        return SimpleNamespace(cancel=lambda: self.timers.pop(seconds))

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.closed


def test_peers_may_not_dawdle() -> None:
    kind = listen.guarded(ConnectionLimits(head_seconds=7.0, drain_seconds=9.0))
    peer, base = Timed(), listen.H11Protocol
    one = kind.__new__(kind)
    one.loop, one.transport, one._timers = peer, peer, {}
    one._allow("head", 7.0)
    first = peer.timers[7.0]
    one._allow("head", 8.0)  # from the first on
    assert list(peer.timers) == [7.0]
    first()
    assert peer.aborted
    one._forget("head")
    one._forget("head")
    assert peer.timers == {}
    paused = SimpleNamespace(pause_writing=lambda: None, resume_writing=lambda: None)
    one.flow = paused
    one.pause_writing()
    assert list(peer.timers) == [9.0]
    one.resume_writing()
    assert peer.timers == {}
    assert issubclass(kind, base)


# -- certificates --------------------------------------------------------------------------------------


def test_days_and_names_of_certificates(tmp_path: Path) -> None:
    for name, days in (("", 1), ("x" * 65, 1), ("a\n", 1), ("a", 0), ("a", 36_501)):
        with pytest.raises(InputError):
            create_authority(tmp_path / "no", name, days, now=NOW)
    made = create_authority(tmp_path / "tls", "x" * 64, 36_500, now=NOW)
    assert made.authority
    assert (made.not_before, made.not_after) == (
        datetime(2030, 1, 1, 11, tzinfo=UTC), NOW.replace(microsecond=0) + timedelta(days=36_500),
    )  # fmt: skip
    server = issue_server(
        tmp_path / "tls", ["a.example", "a.example", "127.0.0.1", "*.b.example"], 825, now=NOW
    )
    assert (server.authority, server.hosts) == (False, ("a.example", "127.0.0.1", "*.b.example"))
    assert server.not_after == NOW.replace(microsecond=0) + timedelta(days=825)
    folder = tmp_path / "tls"
    for hosts, days, name, says in (
        (["a"], 826, "s", "1 to 825"),
        (["a"], 0, "s", "1 to 825"),
        ([], 1, "s", "needs the names"),
        (["a"], 1, "authority", "cannot name"),
        (["a"], 1, "x" * 101, "cannot name"),
        (["192.168.1"], 1, "s", "neither an IP"),
        ([f"{'a' * 64}.example"], 1, "s", "neither an IP"),
        (["a" * 50 + (".b" * 102)], 1, "s", "neither an IP"),
    ):
        with pytest.raises(InputError, match=says):
            issue_server(folder, hosts, days, now=NOW, name=name)
    issue_server(folder, ["a." * 125 + "abc"], 1, now=NOW, name="x" * 100)
    with pytest.raises(InputError, match="without a time zone"):
        expires_within(folder / "server.pem", 1, now=datetime(2030, 1, 1))
    ends = server.not_after
    assert expires_within(folder / "server.pem", 825, now=NOW.replace(microsecond=0))
    assert not expires_within(
        folder / "server.pem", 825, now=NOW.replace(microsecond=0) - timedelta(seconds=1)
    )
    assert valid_between(folder / "server.pem") == (server.not_before, ends)
    short = create_authority(tmp_path / "short", "a", 10, now=NOW)
    issue_server(tmp_path / "short", ["a"], 10, now=NOW)
    with pytest.raises(InputError, match="before the 11 days"):
        issue_server(tmp_path / "short", ["a"], 11, now=NOW, name="later")
    assert short.subject == "CN=a"
    loaded = x509.load_pem_x509_certificate((folder / "authority.pem").read_bytes().split(b"\n#")[0])
    usage = loaded.extensions.get_extension_for_class(x509.KeyUsage)
    assert usage.critical
    assert (usage.value.key_cert_sign, usage.value.crl_sign, usage.value.digital_signature) == (
        True,
        True,
        False,
    )
    basic = loaded.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (basic.critical, basic.value.path_length) == (True, 0)
    assert authority.MOST_SERVER_DAYS == 825


def test_a_certificate_is_taken_from_its_first_second_to_its_last(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    create_authority(tmp_path, "a", 100, now=NOW)
    made = issue_server(tmp_path, ["a"], 40, now=NOW)
    path, second = tmp_path / "server.pem", timedelta(seconds=1)
    for moment in (made.not_before, made.not_after - second):
        assert require_current(path, now=moment) == made.not_after
    for moment, says in ((made.not_before - second, "begins on"), (made.not_after, "ended on")):
        with pytest.raises(KeyFileError, match=says):
            require_current(path, now=moment)
    month = timedelta(days=30)
    warn_of_end(path, made.not_after, now=made.not_after - month)
    assert not caplog.records
    warn_of_end(path, made.not_after, now=made.not_after - month + second)
    assert "ends in 29 days" in caplog.text
    caplog.clear()
    warn_of_end(path, made.not_after, now=made.not_after)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
