"""``sfsl keys log …``: the log of enrolled identities, for operators, authorities, witnesses and auditors."""

import asyncio
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from typer import Argument, Option

from sfsl.cli.output import Json, facts, moment, present
from sfsl.crypto.merkle import HASH, Tree
from sfsl.crypto.secret import SystemRandomness
from sfsl.durable import DurableFile, system_errors_as
from sfsl.errors import AuthenticationFailed, Forked, InputError, InvalidMessage, Unavailable
from sfsl.service.identities import read_identity
from sfsl.service.log import (
    LogTrust,
    head_json,
    leaf_of,
    require_voucher,
    sign_head,
    signers,
    vouch,
)
from sfsl.service.log_file import HEADS, KEY, LOG, line_of, read_deployment, read_heads, read_log
from sfsl.service.messages import LogEntry, LogHead
from sfsl.service.signing import client_id

app = typer.Typer(help="The log of enrolled clients: run, witness and audit it.", no_args_is_help=True)

_PATIENCE_SECONDS = 120

Folder = Annotated[Path, Argument(metavar="STATE", help="The server's folder, or its roster.log.")]
Trust = Annotated[Path, Option("--log", metavar="FILE", help="Whom to believe (sfsl keys log trust).")]


@app.command(
    epilog="Examples:  sfsl keys log show /var/lib/sfsl   |   sfsl keys log show srv/roster.log --json"
)
def show(state: Folder, json: Json = False) -> None:
    """What a log holds, and which heads were given out."""
    path, deployment, entries = _opened(state)
    heads = _heads(path.with_name(HEADS)) if path.with_name(HEADS).exists() else []
    result = {
        "deployment": deployment.hex(),
        "entries": len(entries),
        "vouched": sum(bool(one.voucher) for one in entries),
        "root": Tree(map(leaf_of, entries)).root.hex(),
        "heads": [msgspec.json.decode(head_json(one)) for one in heads],
        "clients": [client_id(one.public_key) for one in entries],
    }
    lines: dict[str, object] = {name: result[name] for name in ("deployment", "entries", "vouched", "root")}
    for name, head in zip(("witnesses are offered", "clients are shown"), heads, strict=False):
        lines[name] = f"{head.size} entries, signed by {len(head.signatures)}, {moment(head.time)}"
    present(result, json, facts(f"Log {path}", lines))


@app.command(
    epilog="Example:  sfsl keys log trust /var/lib/sfsl --authority 02ab… --witness 03cd… > log.toml"
)
def trust(
    state: Annotated[Path, Argument(metavar="STATE", help="The server's folder.")],
    authority: Annotated[
        list[str] | None, Option(help="An enrolment authority's public key. Repeat.")
    ] = None,
    witness: Annotated[list[str] | None, Option(help="A witness's public key. Repeat.")] = None,
    least_witnesses: Annotated[int | None, Option(help="So many sign a head. Default: all.")] = None,
    json: Json = False,
) -> None:
    """Write the file that clients and witnesses are given once: whom to believe about this log."""
    path, deployment, _ = _opened(state)
    public = read_identity(path.with_name(KEY)).public.hex()
    witnesses = tuple(dict.fromkeys(witness or ()))
    least = len(witnesses) if least_witnesses is None else least_witnesses
    given = {"authorities": tuple(authority or ()), "witnesses": witnesses, "least-witnesses": least}
    try:
        made = msgspec.convert({"deployment": deployment.hex(), "log": public, **given}, LogTrust)
    except msgspec.ValidationError as error:
        raise InputError(f"{error}; a public key has 64 hexadecimal digits (sfsl keys show)") from None
    present(msgspec.to_builtins(made), json, made.written().rstrip("\n"))


@app.command(
    "vouch",
    epilog="Example:  sfsl keys log vouch --key authority.key --deployment d9f7… 5fce4f… >> clients.txt",
)
def vouch_(
    public: Annotated[list[str], Argument(metavar="KEY…", help="Public keys of clients.")],
    key: Annotated[Path, Option(help="The authority's key (sfsl keys client makes one).")],
    deployment: Annotated[str, Option(metavar="ID", help="Where they are to be enrolled.")],
    json: Json = False,
) -> None:
    """Enrol clients as an authority that is not the server: print their lines for the server's list."""
    authority = read_identity(key)
    try:
        named = bytes.fromhex(deployment)
        made = [vouch(authority, named, bytes.fromhex(one)) for one in public]
    except (ValueError, InvalidMessage) as error:
        raise InputError(f"keys and deployments are in hexadecimal: {error}") from None
    if len(named) != 16:
        raise InputError("a deployment's id has 32 hexadecimal digits (sfsl keys log show)")
    lines = [line_of(one) for one in made]
    present({"authority": authority.public.hex(), "lines": lines}, json, "\n".join(lines))


@app.command(epilog="Example:  sfsl keys log prove /var/lib/sfsl 5fce4fcaa8df14b3987902072ba6d676 --json")
def prove(
    state: Folder,
    client: Annotated[str, Argument(metavar="ID", help="A client's id.")],
    json: Json = False,
) -> None:
    """Prove that a client is in a log: its place, and the hashes that lead from it to the root."""
    path, deployment, entries = _opened(state)
    places = [place for place, one in enumerate(entries) if client_id(one.public_key) == client]
    if not places:
        raise InputError(f"client {client} is not in {path}")
    tree, place = Tree(map(leaf_of, entries)), places[-1]
    proof = tree.proof([place])
    result = {
        "deployment": deployment.hex(),
        "size": len(tree),
        "root": tree.root.hex(),
        "place": place,
        "entry": line_of(entries[place]),
        "path": [proof[start : start + HASH].hex() for start in range(0, len(proof), HASH)],
    }
    present(result, json, facts(f"Client {client}", result))


@app.command(
    epilog="Examples:  sfsl keys log verify roster.log --head theirs.json --log log.toml   |   "
    "sfsl keys log verify roster.log --head me/log --head me/log-fork.json"
)
def verify(
    state: Folder,
    head: Annotated[list[Path] | None, Option(help="A head that somebody saw or published. Repeat.")] = None,
    log: Annotated[Path | None, Option(metavar="FILE", help="Check signatures and vouchers, too.")] = None,
    json: Json = False,
) -> None:
    """Audit a log: does it hold what each head commits to, is each head signed, each entry vouched for?"""
    path, deployment, entries = _opened(state)
    believed = None if log is None else LogTrust.read(log)
    tree, seen = Tree(map(leaf_of, entries)), [(one, file) for file in head or () for one in _heads(file)]
    if path.with_name(HEADS).exists():
        seen += [(one, path.with_name(HEADS)) for one in _heads(path.with_name(HEADS))]
    for one, file in seen:
        if one.deployment != deployment:
            raise InputError(f"{file} is of deployment {one.deployment.hex()}, {path} of {deployment.hex()}")
        signed = believed is None or signers(one, {bytes.fromhex(believed.log)})
        if not signed:
            raise AuthenticationFailed(f"{file}: the log's key has not signed this head; it proves nothing")
        if one.size > len(tree) or tree.root_at(one.size) != one.root:
            raise Forked(
                f"{path} with {len(tree)} entries is not the log that {file} commits to ({one.size} entries, "
                f"root {one.root.hex()[:16]}…): it was rewritten or cut, or others are shown another one"
            )
    if believed is not None and believed.authorities:
        latest = {one.public_key: one for one in entries}
        for entry in latest.values():
            require_voucher(entry, deployment, [bytes.fromhex(key) for key in believed.authorities])
    result = {"deployment": deployment.hex(), "entries": len(tree), "root": tree.root.hex()}
    said = f"{len(tree)} entries; {len(seen)} heads are of this log"
    present(result | {"heads": len(seen), "sound": True}, json, said)


@app.command(
    epilog="Example:  sfsl keys log witness --server https://host:8443 --ca authority.pem --log log.toml "
    "--key witness.key --state witnessed.json --first"
)
def witness(
    server: Annotated[str, Option(metavar="URL", help="The server, such as https://host:8443.")],
    log: Trust,
    key: Annotated[Path, Option(help="The witness's key (sfsl keys client makes one).")],
    state: Annotated[
        Path, Option(metavar="FILE", help="The last head that it signed: keep it, and publish it.")
    ],
    first: Annotated[
        bool, Option("--first", help="It has signed nothing yet: sign what it is shown.")
    ] = False,
    ca: Annotated[Path | None, Option(help="Trust this certificate authority and no other.")] = None,
    plain: Annotated[bool, Option(hidden=True)] = False,
    json: Json = False,
) -> None:
    """Sign the newest head of a server's log, if it continues the last one signed; otherwise say that it was
    forked, and sign no more. Run it with --first, then again and again without, anywhere but on the server;
    not twice at once."""
    from sfsl.cli.output import run_until_stopped
    from sfsl.client.events import Backoff
    from sfsl.client.link import Link, trusted
    from sfsl.client.log import MemberLog

    identity, randomness = read_identity(key), SystemRandomness()
    believed = LogTrust.read(log)
    if identity.public.hex() not in believed.witnesses:
        raise InputError(
            f"{key} is not the key of a witness that {log} names: nobody would ask for its signature"
        )

    async def sign(own: MemberLog) -> LogHead:
        async with Link(
            server,
            identity,
            tls=None if plain else trusted(ca),
            plain=plain,
            backoff=Backoff(randomness),
            randomness=randomness,
        ) as link:
            signed: LogHead | None = None
            while True:  # until it has signed what is offered: clients that enrolled meanwhile wait for it
                head = own.take(await link.log(own.query(), offered=True))
                if signed is not None and head.size == signed.size:
                    return signed
                head = sign_head(identity, head)
                own.keep(head)  # before it is given away: it signs no other of this size
                if await link.cosign(head):
                    signed = head

    async def patiently(own: MemberLog) -> LogHead:
        try:
            return await asyncio.wait_for(sign(own), _PATIENCE_SECONDS)
        except TimeoutError:
            raise Unavailable(
                f"{server} did not answer in {_PATIENCE_SECONDS} s; nothing more was signed"
            ) from None

    # Held from the question to the signature: a server that kept one run waiting could otherwise have the
    # next one, which read the same last head, sign another log.
    with DurableFile(state) as held:
        if first == held.exists():
            raise InputError(
                f"{state} is there: this witness has signed before; leave --first out"
                if first
                else f"there is no {state}, so that whatever log is shown would do. Put it back, from "
                "whoever has a copy; --first is for a witness that has signed nothing yet"
            )
        trust = msgspec.structs.replace(believed, least_witnesses=0)
        own = MemberLog(state, trust, held=held, stops="This witness signs no more")
        head = run_until_stopped(patiently(own))
    said = f"signed: {head.size} entries, root {head.root.hex()}"
    present(msgspec.json.decode(head_json(head)) | {"witness": identity.public.hex()}, json, said)


def _opened(state: Path) -> tuple[Path, bytes, list[LogEntry]]:
    path = state / LOG if state.is_dir() else state
    entries, _ = read_log(path)
    return path, read_deployment(path), entries


def _heads(file: Path) -> list[LogHead]:
    with system_errors_as(InputError, f"read {file}"):
        return read_heads(file)
