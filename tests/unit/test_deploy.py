"""The certificate that a server on loopback makes for itself."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sfsl.carriers.https.authority import read_certificate
from sfsl.deploy import HOSTS, loopback_tls
from sfsl.errors import KeyFileError

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
