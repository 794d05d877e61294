"""The certificate of a server: the one that it makes for itself on loopback, its end, and the names in it."""

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import sfsl
from clocks import PATIENCE
from sfsl.carriers.https.authority import create_authority, issue_server, read_certificate
from sfsl.carriers.https.expiry import require_current, watch_certificate
from sfsl.deploy import HOSTS, loopback_tls
from sfsl.errors import KeyFileError

EVERYWHERE = "0.0.0.0"  # noqa: S104 -- for a moment
NOW = datetime(2030, 1, 1, tzinfo=UTC)
FILES = ("authority.key", "authority.pem", "server.key", "server.pem")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def changed(folder: Path, days: float) -> tuple[bool, set[str]]:
    before = contents(folder)
    fresh = loopback_tls(folder, now=NOW + timedelta(days=days))
    after = contents(folder)
    assert set(after) == set(FILES)
    return fresh, {name for name in FILES if before.get(name) != after[name]}


def test_made_once_and_renewed_before_it_ends(tmp_path: Path) -> None:
    folder = tmp_path / "state/tls"
    assert loopback_tls(folder, now=NOW)
    assert read_certificate(folder / "server.pem").hosts == HOSTS
    assert (folder / "authority.key").stat().st_mode & 0o777 == 0o600
    assert changed(folder, 1) == (False, set())
    assert changed(folder, 389) == (False, set())
    assert changed(folder, 391) == (False, {"server.key", "server.pem"})
    assert changed(folder, 3300) == (True, set(FILES))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    context.load_verify_locations(folder / "authority.pem")


@pytest.mark.parametrize(
    ("lost", "made"),
    [
        ("server.pem", {"server.key", "server.pem"}),
        ("authority.pem", set(FILES)),
    ],
)
def test_what_a_crash_left_half_done_is_made_anew(tmp_path: Path, lost: str, made: set[str]) -> None:
    loopback_tls(tmp_path, now=NOW)
    (tmp_path / lost).unlink()
    assert changed(tmp_path, 0) == ("authority.pem" in made, made)


def test_what_cannot_be_read_is_not_replaced(tmp_path: Path) -> None:
    loopback_tls(tmp_path, now=NOW)
    (tmp_path / "authority.pem").write_text("mine")
    with pytest.raises(KeyFileError, match="holds no certificate"):
        loopback_tls(tmp_path, now=NOW)
    (tmp_path / "authority.pem").unlink()
    (tmp_path / "authority.key").unlink()
    (tmp_path / "authority.key").mkdir()
    with pytest.raises(KeyFileError, match="cannot renew"):
        loopback_tls(tmp_path, now=NOW)


def served(folder: Path, **serve: object) -> dict[str, dict[str, object]]:
    """The settings of a small server, listening wherever ``serve`` says."""
    own = {"enrolment": "open", "port": 0, "rounds": 1, "state": str(folder / "state")} | serve
    data = {"users": 12, "scale": 0.03}
    return {"data": data, "model": {"kind": "logistic"}, "round": {"clients": 5}, "serve": own}


def certified(folder: Path, begins: datetime, days: int, *hosts: str) -> dict[str, str]:
    create_authority(folder / "tls", "test", 3650, now=begins)
    issue_server(folder / "tls", hosts or ("127.0.0.1",), days, now=begins)
    return {kind: str(folder / f"tls/server.{end}") for kind, end in (("certificate", "pem"), ("key", "key"))}


@pytest.mark.parametrize(
    ("begins", "says"),
    [
        (-30, r"ended on .*: no client connects any more.*make a new one"),
        (30, r"begins on .*set the clock"),
    ],
)
def test_no_server_starts_with_a_certificate_that_no_client_takes(
    tmp_path: Path, begins: int, says: str
) -> None:
    given = certified(tmp_path, datetime.now(UTC) + timedelta(days=begins), 10)
    with pytest.raises(KeyFileError, match=says):
        sfsl.serve(served(tmp_path, **given))
    assert not (tmp_path / "state").exists()


def test_the_end_of_a_certificate_is_told_in_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = Path(certified(tmp_path, NOW, 100)["certificate"])
    ends = require_current(given, now=NOW)
    assert ends == NOW + timedelta(days=100)
    moments = iter([NOW + timedelta(days=day) for day in (0, 69, 71, 101)])

    async def watched() -> None:
        with pytest.raises(RuntimeError):  # what an iterator that is over becomes in a coroutine
            await watch_certificate(given, ends, now=moments.__next__, every=0)

    asyncio.run(watched())
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]
    assert "ends in 29 days" in caplog.messages[0]
    assert "sfsl keys server" in caplog.messages[0]
    assert "clients refuse this server" in caplog.messages[1]


def test_of_a_chain_the_first_to_end_counts(tmp_path: Path) -> None:
    long, short = (
        Path(certified(tmp_path / name, NOW, days)["certificate"]) for name, days in (("a", 90), ("b", 9))
    )
    chain = tmp_path / "chain.pem"
    chain.write_bytes(long.read_bytes() + short.read_bytes())
    assert require_current(chain, now=NOW) == NOW + timedelta(days=9)


@pytest.mark.parametrize(
    ("hosts", "serve", "url"),
    [
        (("sfsl.example.org", "10.0.0.7"), {"host": EVERYWHERE}, "https://sfsl.example.org:{port}"),
        (("*.example.org", "10.0.0.7"), {"host": EVERYWHERE}, "https://10.0.0.7:{port}"),
        (("localhost", "10.0.0.7"), {"host": EVERYWHERE}, "https://10.0.0.7:{port}"),
        (("localhost", "::1"), {"host": "localhost"}, "https://localhost:{port}"),
        (("::1",), {"host": "127.0.0.1"}, "https://[::1]:{port}"),
        ((), {"plain": True, "hosts": "sfsl.example.org"}, "https://sfsl.example.org"),
        ((), {"plain": True}, "http://127.0.0.1:{port}"),
    ],
)
def test_clients_are_told_a_host_that_they_can_reach(
    tmp_path: Path, hosts: tuple[str, ...], serve: dict[str, object], url: str
) -> None:
    given = certified(tmp_path, datetime.now(UTC), 10, *hosts) if hosts else {}

    async def scenario() -> None:
        ready: asyncio.Future[sfsl.Serving] = asyncio.get_running_loop().create_future()
        server = asyncio.create_task(
            sfsl.serve_async(served(tmp_path, **given, **serve), ready=ready.set_result)
        )
        await asyncio.wait({ready, server}, return_when=asyncio.FIRST_COMPLETED)
        serving = ready.result()
        assert serving.join_url == url.format(port=serving.url.rpartition(":")[2])
        ends = serving.deployment.coordinator.status().certificate_ends
        assert (ends is None) == (not hosts)
        await serving.stop()
        await server

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))
