"""``sfsl keys``: from nothing to a handshake, and the clients of a server that runs."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from handshake import shake_hands
from sfsl.cli import app
from sfsl.crypto.secret import Identity
from sfsl.errors import InputError, KeyFileError, SfslError, StoreError, UnknownClient
from sfsl.service.identities import read_identity
from sfsl.service.registry import Registry
from sfsl.service.signing import client_id
from sfsl.testing import SeededRandomness

runner = CliRunner()


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


def test_an_identity_may_be_the_first_thing_in_a_clients_folder(tmp_path: Path) -> None:
    """As the guide to Flower makes it before the node is started."""
    own = tmp_path / "films" / "identity.key"
    assert figures("client", own)["public_key"] == read_identity(own).public.hex()
    assert own.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "command",
    ["authority", "server", "client", "show", "revoke", "list"]
    + [f"log {one}" for one in ("show", "trust", "vouch", "prove", "verify", "witness")],
)
def test_help_has_examples(command: str) -> None:
    shown = run(*command.split(), "--help").output
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
        clients = tmp_path / "clients.txt"
        clients.write_text(f"{keys[0].hex()}  # Ada\x1b[31m, lab 2\n# nobody\n{keys[1].hex()}\n")
        named = figures("list", "--registry", path, "--clients", clients)["clients"]
        assert {one["id"]: one["name"] for one in named} == {ada: "Ada[31m, lab 2", bob: ""}
        assert "Ada[31m" in run("list", "--registry", path, "--clients", clients).output
        assert isinstance(refused("list", "--registry", path, "--clients", tmp_path / "none"), InputError)
        assert "2027-01-15" in shown
        assert server.count() == 1
