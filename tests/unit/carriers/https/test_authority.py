"""An authority of one's own: certificates that TLS takes, keys that only their owner reads."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from handshake import shake_hands
from sfsl.carriers.https import authority
from sfsl.carriers.https.authority import (
    create_authority,
    expires_within,
    issue_server,
    read_certificate,
)
from sfsl.errors import InputError, KeyFileError
from sfsl.service import identities

NOW = datetime.now(UTC)


@pytest.fixture
def tls(tmp_path: Path) -> Path:
    create_authority(tmp_path / "tls", "test authority", 3650, now=NOW)
    return tmp_path / "tls"


def test_a_client_that_trusts_the_authority_takes_the_server(tls: Path, tmp_path: Path) -> None:
    hosts = ["localhost", "127.0.0.1", "::1", "sfsl.Example.org", "*.branch.example.org", "localhost"]
    facts = issue_server(tls, hosts, 397, now=NOW)
    assert facts.hosts == ("localhost", "127.0.0.1", "::1", "sfsl.example.org", "*.branch.example.org")
    assert not facts.authority
    for host in ("localhost", "127.0.0.1", "::1", "sfsl.example.org", "a.branch.example.org"):
        shake_hands(tls, host)
    for host in ("example.org", "127.0.0.2", "a.b.branch.example.org"):
        with pytest.raises(ssl.SSLCertVerificationError):
            shake_hands(tls, host)
    create_authority(tmp_path / "other", "test authority", 3650, now=NOW)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(tls, "localhost", trusted=tmp_path / "other" / "authority.pem")


def test_a_certificate_that_has_ended_is_not_taken(tls: Path) -> None:
    long_ago = NOW - timedelta(days=500)
    create_authority(tls / "old", "old", 3650, now=long_ago)
    issue_server(tls / "old", ["localhost"], 30, now=long_ago)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        shake_hands(tls / "old", "localhost")


def test_a_server_cannot_issue_certificates(tls: Path, tmp_path: Path) -> None:
    issue_server(tls, ["localhost"], 30, now=NOW)
    for end in ("key", "pem"):
        (tmp_path / f"authority.{end}").write_bytes((tls / f"server.{end}").read_bytes())
    (tmp_path / "authority.key").chmod(0o600)
    with pytest.raises(KeyFileError, match="may not issue"):
        issue_server(tmp_path, ["localhost"], 10, now=NOW)


def test_when_a_certificate_ends(tls: Path) -> None:
    facts = issue_server(tls, ["localhost"], 90, now=NOW)
    place = tls / "server.pem"
    assert facts == read_certificate(place)
    assert facts.not_after == NOW.replace(microsecond=0) + timedelta(days=90)
    assert facts.not_before == NOW.replace(microsecond=0) - timedelta(hours=1)  # for clocks that are behind
    assert not expires_within(place, 89, now=NOW)
    assert expires_within(place, 90, now=NOW.replace(microsecond=0))
    assert expires_within(place, 0, now=NOW + timedelta(days=91))
    with pytest.raises(InputError, match="time zone"):
        expires_within(place, 1, now=datetime(2027, 1, 1))


@pytest.mark.parametrize(
    "host",
    ["", "https://a.org", "a.org:8443", "a b", "ä.org", "-a.org", "a..org", "a" * 64 + ".org", "*.*.org",
     "1.2.3", "a.org\n", "[::1]", "a." * 127 + "a"],
)  # fmt: skip
def test_hosts_that_cannot_be(tls: Path, host: str) -> None:
    with pytest.raises(InputError, match="neither an IP address nor a DNS name"):
        issue_server(tls, ["localhost", host], 30, now=NOW)
    assert not (tls / "server.key").exists()


def test_settings_that_cannot_be(tls: Path, tmp_path: Path) -> None:
    for call, says in (
        (lambda: issue_server(tls, [], 30, now=NOW), "needs the names"),
        (lambda: issue_server(tls, ["a.org"], 826, now=NOW), "1 to 825"),
        (lambda: issue_server(tls, ["a.org"], 0, now=NOW), "1 to 825"),
        (lambda: issue_server(tls, ["a.org"], 30, now=NOW, name="../up"), "cannot name"),
        (lambda: issue_server(tls, ["a.org"], 30, now=NOW, name="authority"), "cannot name"),
        (lambda: issue_server(tls, ["a.org"], 800, now=NOW + timedelta(days=3000)), "fewer days"),
        (lambda: create_authority(tmp_path / "new", "", 30, now=NOW), "1 to 64"),
        (lambda: create_authority(tmp_path / "new", "a\n", 30, now=NOW), "1 to 64"),
        (lambda: create_authority(tmp_path / "new", "a", 40_000, now=NOW), "1 to 36500"),
        (lambda: create_authority(tmp_path / "new", "a", 30, now=NOW.replace(tzinfo=None)), "time zone"),
    ):
        with pytest.raises(InputError, match=says):
            call()
    assert not (tmp_path / "new").exists()


def test_keys_are_private_and_never_overwritten(tls: Path) -> None:
    issue_server(tls, ["localhost"], 30, now=NOW)
    before = {file: file.read_bytes() for file in tls.iterdir()}
    assert {file.name for file in before} == {"authority.key", "authority.pem", "server.key", "server.pem"}
    for file in before:
        assert file.stat().st_mode & 0o777 == (0o600 if file.suffix == ".key" else 0o644)
    with pytest.raises(KeyFileError, match="never overwritten"):
        create_authority(tls, "again", 30, now=NOW)
    with pytest.raises(KeyFileError, match="never overwritten"):
        issue_server(tls, ["localhost"], 30, now=NOW)
    (tls / "server.key").unlink()  # also not half of a pair
    with pytest.raises(KeyFileError, match=r"server\.pem exists"):
        issue_server(tls, ["localhost"], 30, now=NOW)
    del before[tls / "server.key"]
    assert {file: file.read_bytes() for file in tls.iterdir()} == before
    issue_server(tls, ["localhost"], 30, now=NOW, name="renewed")
    shake_hands(tls, "localhost", "renewed")


def test_half_a_pair_is_taken_back(tls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = identities.write_new

    def no_certificate(path: Path, data: bytes, *, secret: bool) -> None:
        if not secret:
            raise KeyFileError("the disk is full")
        real(path, data, secret=secret)

    monkeypatch.setattr(authority, "write_new", no_certificate)
    with pytest.raises(KeyFileError, match="full"):
        issue_server(tls, ["localhost"], 30, now=NOW)
    assert {file.name for file in tls.iterdir()} == {"authority.key", "authority.pem"}


def test_an_authority_that_cannot_be_used(tls: Path, tmp_path: Path) -> None:
    def issue(folder: Path = tls) -> None:
        issue_server(folder, ["localhost"], 30, now=NOW)

    with pytest.raises(KeyFileError, match="no authority in"):
        issue(tmp_path)
    key = tls / "authority.key"
    key.chmod(0o640)
    with pytest.raises(KeyFileError, match=rf"mode 0640.*chmod 600 {key}"):
        issue()
    key.chmod(0o600)
    create_authority(tls / "other", "other", 30, now=NOW)
    other = tls / "other" / "authority.key"
    good = key.read_bytes()
    key.write_bytes(other.read_bytes())
    with pytest.raises(KeyFileError, match="do not belong together"):
        issue()
    key.write_bytes(good[:100])
    with pytest.raises(KeyFileError, match="damaged") as caught:
        issue()
    assert good.splitlines()[1].decode()[:20] not in str(caught.value)
    key.unlink()
    with pytest.raises(KeyFileError, match="cannot read"):
        issue()
    for content in (b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", bytes(2 << 20)):
        (tls / "authority.pem").write_bytes(content)
        with pytest.raises(KeyFileError, match="no certificate"):
            issue()
    (tmp_path / "file").write_text("")
    with pytest.raises(KeyFileError, match="cannot make the folder"):
        create_authority(tmp_path / "file" / "sub", "x", 30, now=NOW)
