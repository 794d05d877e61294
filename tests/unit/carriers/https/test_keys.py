"""``sfsl keys``: certificates that TLS takes, files that only their owner reads, nothing overwritten."""

import json
import os
import resource
import ssl
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sfsl.carriers.https import authority
from sfsl.carriers.https.authority import (
    create_authority,
    expires_within,
    issue_server,
    read_certificate,
)
from sfsl.cli import app
from sfsl.crypto.identity import Identity
from sfsl.crypto.secret import Secret
from sfsl.errors import InputError, KeyFileError, SfslError, StoreError, UnknownClient
from sfsl.service import key_files
from sfsl.service.key_files import read_identity, write_identity
from sfsl.service.registry import Registry
from sfsl.service.signing import client_id
from sfsl.testing import SeededRandomness

runner = CliRunner()
NOW = datetime.now(UTC)
SEED = SeededRandomness("keys").bytes(32)


@pytest.fixture
def tls(tmp_path: Path) -> Path:
    create_authority(tmp_path / "tls", "test authority", 3650, now=NOW)
    return tmp_path / "tls"


# -- certificates -----------------------------------------------------------------------------------------


def shake_hands(tls: Path, host: str, name: str = "server", trusted: Path | None = None) -> None:
    """A TLS handshake in memory, with the strictest checks there are."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    client.load_verify_locations(trusted or tls / "authority.pem")
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    server.load_cert_chain(tls / f"{name}.pem", tls / f"{name}.key")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = client.wrap_bio(to_client, to_server, server_hostname=host)
    there = server.wrap_bio(to_server, to_client, server_side=True)
    waiting = [here, there]
    for _ in range(10):
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                pass
    assert not waiting


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
    real = key_files.write_new

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


# -- identities -------------------------------------------------------------------------------------------


def test_an_identity_comes_back(tmp_path: Path) -> None:
    made = write_identity(tmp_path / "ada.key", Secret(SEED))
    assert (tmp_path / "ada.key").stat().st_mode & 0o777 == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["ada.key"]
    read = read_identity(tmp_path / "ada.key")
    assert read.public == made.public == Identity(Secret(SEED)).public
    with pytest.raises(KeyFileError, match="never overwritten"):
        write_identity(tmp_path / "ada.key", Secret(bytes(32)))
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(KeyFileError, match="never overwritten"):
        write_identity(tmp_path / "link", Secret(SEED))
    assert read_identity(tmp_path / "ada.key").public == made.public
    assert {file.name for file in tmp_path.iterdir()} == {"ada.key", "link"}  # nothing is left lying about
    with pytest.raises(InputError):
        write_identity(tmp_path / "short", Secret(b"short"))
    with pytest.raises(KeyFileError, match="folder must exist"):
        write_identity(tmp_path / "no" / "such", Secret(SEED))


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o640, 0o660, 0o602, 0o777])
def test_a_file_that_others_may_read_is_refused_and_how_to_mend_it_said(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "ada.key"
    write_identity(file, Secret(SEED))
    file.chmod(mode)
    with pytest.raises(KeyFileError, match=rf"mode {mode:04o}.*chmod 600 {file}"):
        read_identity(file)
    file.chmod(0o400)
    assert read_identity(file)


def test_damage_is_found_wherever_it_is(tmp_path: Path) -> None:
    file = tmp_path / "ada.key"
    write_identity(file, Secret(SEED))
    whole = file.read_bytes()
    damaged = [whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :] for place in range(len(whole))]
    damaged += [whole[:length] for length in range(len(whole))]
    lines = whole.split(b"\n")
    damaged += [whole + b"x", b"\n".join([lines[0], lines[1].upper(), *lines[2:]])]
    damaged += [
        whole + b"\n",
        whole.upper(),
        whole.replace(b"\n", b"\r\n"),
        whole + bytes(70_000),
        b"\xff" * 90,
    ]
    for content in damaged:
        file.write_bytes(content)
        with pytest.raises(KeyFileError) as caught:
            read_identity(file)
        assert SEED.hex()[:12] not in str(caught.value)
    file.write_bytes(whole + bytes(70_000))
    with pytest.raises(KeyFileError, match="more than 65536 bytes"):
        read_identity(file)
    file.write_bytes(whole.replace(b"identity 1", b"identity 2"))
    with pytest.raises(KeyFileError, match="another version"):
        read_identity(file)
    file.write_bytes(whole)
    assert read_identity(file)


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(KeyFileError, match="is not a file"):
            read_identity(path)
    with pytest.raises(KeyFileError, match="No such file"):
        read_identity(tmp_path / "none")


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    code = (
        "import resource, sys\n"
        "from sfsl.crypto.secret import Secret\n"
        "from sfsl.service.key_files import write_identity\n"
        "from sfsl.errors import KeyFileError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))\n"
        "try: write_identity(sys.argv[1], Secret(bytes(32)))\n"
        "except KeyFileError as error: print(error)\n"
    )
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code, str(tmp_path / "ada.key")], capture_output=True, text=True, check=True
    )
    assert "free some space" in done.stdout
    assert not list(tmp_path.iterdir())
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 10


# -- the commands -----------------------------------------------------------------------------------------


def run(*args: Any, status: int = 0) -> Any:
    result = runner.invoke(app, ["keys", *map(str, args)])
    assert result.exit_code == status, (result.output, result.exception)
    return result


def figures(*args: Any) -> Any:
    return json.loads(run(*args, "--json").stdout)


def refused(*args: Any) -> SfslError:
    error = runner.invoke(app, ["keys", *map(str, args)]).exception
    assert isinstance(error, SfslError)
    return error


@pytest.mark.parametrize("command", ["authority", "server", "client", "show", "revoke", "list"])
def test_help_has_examples(command: str) -> None:
    shown = run(command, "--help").output
    assert "Example" in shown
    assert "--json" in shown


def test_from_nothing_to_a_handshake(tmp_path: Path) -> None:
    tls = tmp_path / "tls"
    assert "give it to every client" in run("authority", tls).output
    assert "localhost, 127.0.0.1" in run("server", tls, "--host", "localhost", "--host", "127.0.0.1").output
    shake_hands(tls, "localhost")
    renewed = figures("server", tls, "--host", "a.org", "--name", "new", "--days", "20")
    assert renewed["hosts"] == ["a.org"]
    assert renewed["certificate"] == str(tls / "new.pem")
    shown = figures("show", tls / "new.pem")
    assert shown["sha256"] == renewed["sha256"]
    assert shown["days_left"] == 19
    assert "ends in 19 days" in run("show", tls / "new.pem").output
    assert "ends in" not in run("show", tls / "server.pem").output
    assert figures("authority", tmp_path / "more", "--name", "ACME")["subject"] == "CN=ACME"
    assert "PRIVATE" not in run("show", tls / "authority.pem").output
    assert isinstance(refused("authority", tls), KeyFileError)
    assert isinstance(refused("show", tls / "none.pem"), KeyFileError)
    assert run("server", tls, status=2)  # without a host


def test_a_clients_identity(tmp_path: Path) -> None:
    made = figures("client", tmp_path / "ada.key")
    public = read_identity(tmp_path / "ada.key").public
    assert (made["id"], made["public_key"]) == (client_id(public), public.hex())
    assert figures("show", tmp_path / "ada.key") == made
    shown = run("show", tmp_path / "ada.key").output
    assert made["id"] in shown
    assert f"{public.hex()}  # ada" in shown
    seed = (tmp_path / "ada.key").read_text().splitlines()[1]
    assert seed not in shown + json.dumps(made) + run("client", tmp_path / "bob.key").output
    assert figures("show", tmp_path / "bob.key")["id"] != made["id"]
    assert isinstance(refused("client", tmp_path / "ada.key"), KeyFileError)


def test_the_clients_of_a_running_server(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    assert isinstance(refused("list", "--registry", path), StoreError)
    assert not path.exists()
    keys = [Identity.generate(SeededRandomness(name)).public for name in ("ada", "bob")]
    with Registry(path) as server:
        ada, bob = (server.enrol(key, 1_800_000_000_000) for key in keys)
        server.acknowledge(bytes(16), [bob])
        gone = figures("revoke", ada, "--registry", path)
        assert gone["revoked"] >= "2026"
        assert "revoked" in run("revoke", "--registry", path, ada).output
        assert isinstance(refused("revoke", "f" * 32, "--registry", path), UnknownClient)
        listed = figures("list", "--registry", path)
        assert listed["deployment"] == server.deployment.hex()
        found = {one["id"]: one for one in listed["clients"]}
        assert found[ada] == gone
        assert found[bob] == {
            "id": bob,
            "public_key": keys[1].hex(),
            "enrolled": "2027-01-15T08:00:00+00:00",
            "revoked": None,
            "acknowledged": 1,
        }
        shown = run("list", "--registry", path).output
        assert ada in shown
        assert "2027-01-15" in shown
        assert server.count() == 1


def test_the_modules_import_without_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import sfsl.carriers.https.authority, sfsl.service.registry, sfsl.service.signing\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)  # noqa: S603
