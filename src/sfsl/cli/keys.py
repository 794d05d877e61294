"""``sfsl keys …``: certificates for the server, identities for the clients, who is enrolled."""

import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from sfsl.carriers.https.authority import CertificateFacts, create_authority, issue_server, read_certificate
from sfsl.carriers.https.expiry import WARN_DAYS
from sfsl.cli import log
from sfsl.cli.output import Json, moment, present, table
from sfsl.crypto.secret import Identity, Secret, SystemRandomness
from sfsl.durable import make_folder, system_errors_as
from sfsl.errors import KeyFileError
from sfsl.service.identities import names_on, read_identity, write_identity
from sfsl.service.registry import ClientRecord, Registry
from sfsl.service.signing import client_id

app = typer.Typer(help="Certificates, client identities, enrolled clients.", no_args_is_help=True)
app.add_typer(log.app, name="log")

RegistryFile = Annotated[Path, Option("--registry", metavar="FILE", help="The server's registry.")]


@app.command(
    epilog="Examples:  sfsl keys authority tls   |   sfsl keys authority tls --name 'ACME SFSL' --days 1825"
)
def authority(
    folder: Annotated[Path, Argument(metavar="DIR", help="Where authority.key and .pem are put.")],
    name: Annotated[str, Option(help="What the certificate says.")] = "sfsl authority",
    days: Annotated[int, Option(help="How long it is valid.")] = 3650,
    json: Json = False,
) -> None:
    """Make a certificate authority: authority.pem is for every client, authority.key for nobody."""
    facts = create_authority(folder, name, days, now=_now())
    present(
        {"certificate": str(folder / "authority.pem"), **_plain(facts)},
        json,
        f"{folder}/authority.pem   give it to every client; valid until {facts.not_after:%Y-%m-%d}",
        f"{folder}/authority.key   keep it where no server is; whoever has it can pose as yours",
        f"\nNext:  sfsl keys server {folder} --host NAME",
    )


@app.command(
    epilog="Examples:  sfsl keys server tls --host localhost --host 127.0.0.1   |   "
    "sfsl keys server tls --host sfsl.example.org --days 90 --name server-2   |   "
    "to renew, take another --name"
)
def server(
    folder: Annotated[Path, Argument(metavar="DIR", help="Where the authority is.")],
    host: Annotated[list[str], Option(help="A name or address that clients connect to. Repeat.")],
    days: Annotated[int, Option(help="How long it is valid; 825 at the most.")] = 397,
    name: Annotated[str, Option(help="What the two files are called.")] = "server",
    json: Json = False,
) -> None:
    """Make a server's key and certificate, signed by the authority in DIR."""
    facts = issue_server(folder, host, days, now=_now(), name=name)
    present(
        {"certificate": str(folder / f"{name}.pem"), **_plain(facts)},
        json,
        f"{folder}/{name}.pem   for {', '.join(facts.hosts)}; valid until {facts.not_after:%Y-%m-%d}",
        f"{folder}/{name}.key   its private key",
    )


@app.command(epilog="Examples:  sfsl keys client ada.key   |   sfsl keys client ada.key --json")
def client(
    file: Annotated[Path, Argument(help="Where the new identity is put.")], json: Json = False
) -> None:
    """Make a client's identity. Only the public key leaves the client; it goes on the server's list."""
    with system_errors_as(KeyFileError, f"make the folder {file.parent}"):
        make_folder(file.parent, 0o700)
    _print_identity(file, write_identity(file, Secret(SystemRandomness().bytes(32))), json)


@app.command(epilog="Examples:  sfsl keys show ada.key   |   sfsl keys show tls/server.pem --json")
def show(
    file: Annotated[Path, Argument(help="A client's identity, or a certificate.")], json: Json = False
) -> None:
    """What a file holds: an identity's id and public key, or a certificate's names and end."""
    if not _is_certificate(file):
        _print_identity(file, read_identity(file), json)
        return
    facts = read_certificate(file)
    left = (facts.not_after - _now()).days
    lines = [
        f"{key.replace('_', ' '):<12}{', '.join(value) if isinstance(value, tuple) else value}"
        for key, value in _plain(facts).items()
    ]
    if left < WARN_DAYS:
        lines.append("it has ended" if left < 0 else f"it ends in {left} days: make a new one")
    present({"certificate": str(file), **_plain(facts), "days_left": left}, json, *lines)


@app.command(
    epilog="Example:  sfsl keys revoke --registry server/registry.sqlite 0123456789abcdef0123456789abcdef"
)
def revoke(
    client: Annotated[str, Argument(metavar="ID", help="The client's id.")],
    registry: RegistryFile,
    json: Json = False,
) -> None:
    """Refuse a client from now on, for good, also while the server runs."""
    with Registry.beside(registry) as opened:
        opened.revoke(client, time.time_ns() // 10**6)
        record = _plain_client(opened.client(client))
    present(record, json, f"client {client} is revoked; take its key off the list of clients, too")


@app.command(
    "list",
    epilog="Examples:  sfsl keys list --registry server/registry.sqlite --clients clients.txt   |   "
    "sfsl keys list --registry server/registry.sqlite --json",
)
def list_(
    registry: RegistryFile,
    clients: Annotated[
        Path | None,
        Option(metavar="FILE", help="The server's list of clients (serve.clients), which has their names."),
    ] = None,
    json: Json = False,
) -> None:
    """Who is enrolled, by which name, since when, and in how many rounds the server received their sets.

    A server keeps keys and no names: those are the comments on its list of clients.
    """
    with Registry.beside(registry) as opened:
        deployment, known = opened.deployment.hex(), [_plain_client(one) for one in opened.clients()]
    columns = ["client", "enrolled", "revoked", "rounds"]
    rows = [
        [one["id"], one["enrolled"][:10], (one["revoked"] or "")[:10], f"{one['acknowledged']:,}"]
        for one in known
    ]
    if clients is not None:
        names = names_on(clients)
        known = [{"name": names.get(bytes.fromhex(one["public_key"]), "")} | one for one in known]
        rows = sorted([one["name"], *row] for one, row in zip(known, rows, strict=True))
        columns = ["name", *columns]
    hint = [] if clients else ["Names are on the server's list of clients: --clients FILE"]
    drawn = table(f"Deployment {deployment}", columns, rows)
    present({"deployment": deployment, "clients": known}, json, drawn, *hint)


def _is_certificate(file: Path) -> bool:
    with system_errors_as(KeyFileError, f"read {file}"), open(file, "rb") as opened:
        return opened.read(64).startswith(b"-----BEGIN CERTIFICATE-----")


def _print_identity(file: Path, identity: Identity, json: bool) -> None:
    name, public = client_id(identity.public), identity.public.hex()
    present(
        {"file": str(file), "id": name, "public_key": public},
        json,
        f"client      {name}\npublic key  {public}",
        f"\nOn the server's list of clients:\n{public}  # {file.stem}",
    )


def _plain(facts: CertificateFacts) -> dict[str, Any]:
    return asdict(facts) | {name: getattr(facts, name).isoformat() for name in ("not_before", "not_after")}


def _plain_client(record: ClientRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "public_key": record.public.hex(),
        "enrolled": moment(record.enrolled_ms),
        "revoked": None if record.revoked_ms is None else moment(record.revoked_ms),
        "acknowledged": record.acknowledged,
    }


def _now() -> datetime:
    return datetime.now(UTC)
