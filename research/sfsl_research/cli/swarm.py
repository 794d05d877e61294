"""``sfsl swarm``: many simulated clients against a real server, for load and chaos tests."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console

from sfsl.cli.output import (
    Stopped,
    console,
    emit_json,
    progress_console,
    run_until_stopped,
    shown,
    table,
    told_as_json,
)
from sfsl.crypto.secret import Identity, Secret, SystemRandomness, digest
from sfsl.errors import InputError
from sfsl.installed import install_command
from sfsl.settings.run import from_sections
from sfsl.settings.serve import SECTION, run_sections
from sfsl.settings.toml import overridden, read_sections

if TYPE_CHECKING:
    from sfsl.client.events import Event
    from sfsl_research.swarm.faults import NetworkFaults
    from sfsl_research.swarm.swarm import Swarm, SwarmReport


def register(app: typer.Typer) -> None:
    app.command(
        epilog="Examples:  sfsl swarm my.toml --server https://localhost:8443 --ca tls/authority.pem "
        "--clients 100 --rounds 5   |   sfsl swarm my.toml --server https://localhost:8443 "
        "--ca tls/authority.pem --clients 40 --rounds 200 --faults 0.2 --seed 7 --json"
    )(swarm)


def swarm(
    config: Annotated[Path, typer.Argument(help="The run file that the server has: data, model, privacy.")],
    server: Annotated[str, typer.Option(metavar="URL", help="The server, such as https://host:8443.")],
    clients: Annotated[int, typer.Option(help="How many clients.", min=1)],
    rounds: Annotated[
        int | None, typer.Option(help="Stop when so many have ended. Default: Ctrl-C.", min=1)
    ] = None,
    ca: Annotated[Path | None, typer.Option(help="Trust this certificate authority and no other.")] = None,
    identities: Annotated[
        Path | None,
        typer.Option(help="Folder of the clients' keys, made on first use. Default: new keys every time."),
    ] = None,
    faults: Annotated[
        float,
        typer.Option(help="Share of a round's clients that one fault happens to, of any kind, anywhere."),
    ] = 0.0,
    fault: Annotated[
        list[str] | None, typer.Option(metavar="KIND=SHARE", help="One kind of fault; repeatable.")
    ] = None,
    per_request: Annotated[
        bool, typer.Option("--per-request", help="Shares are of requests, some 15 a round, not of clients.")
    ] = False,
    delay: Annotated[float, typer.Option(help="Longest delay by plan, in seconds.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the faults.")] = 0,
    workers: Annotated[int, typer.Option(help="Threads for the protocol; training has one.", min=1)] = 2,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Any key; repeatable.")
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="No TLS, for tests on one machine only.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run many clients against a server over real sockets, with faults by plan, and report what happened.

    They are simulated devices of a run file, whose answers follow from its seed: for tests, never for
    people's data. Kinds of fault: vanish-before and vanish-after, which cost a client its round; and
    drop-before, drop-after, delay, disconnect, duplicate, corrupt, which it survives by sending the same
    bytes again. Each strikes at the check-in or at a message or answer of the six exchanges, evenly.
    Ctrl-C or SIGTERM stops them and still reports. Exit status: 0, 1 where a client gave up or nothing could
    start, 130 after Ctrl-C, 143 after SIGTERM. In active mode the swarm's clients pin each other's keys, and
    decline rounds with anyone else in them.
    """
    with told_as_json(json):
        sections = overridden(read_sections(config), settings or ())
        wanted = from_sections(run_sections(sections) if SECTION in sections else sections)
        screen = progress_console()
        plan = _plan(faults, fault or [], seed, delay, per_request)
        made = _swarm(screen, wanted, server, clients, rounds, ca, identities, plan, workers, plain)
        start = time.perf_counter()
        status = 0
        try:
            run_until_stopped(made.run())
        except Stopped as stopped:
            status = stopped.status
    result = summary(made.report, clients, time.perf_counter() - start)
    if json:
        emit_json(result)
    else:
        _print(console(), result)
    if status or made.report.failed:
        raise typer.Exit(status or 1)


def summary(report: "SwarmReport", clients: int, seconds: float) -> dict[str, Any]:
    ended = list(report.ended.values())
    return {
        "clients": clients,
        "seconds": seconds,
        "rounds": {kind: ended.count(kind) for kind in ("committed", "aborted")},
        "check_ins": dict(report.attempts),
        "faults": dict(report.traffic.faults),
        "exchanges": report.exchanges(),
        "latencies": report.latencies(),
        "statuses": {str(status): count for status, count in sorted(report.traffic.statuses.items())},
        "declined": dict(report.declined.most_common(20)),
        "errors": dict(report.errors.most_common(20)),
        "failed": report.failed,
    }


def _swarm(
    screen: Console,
    config: Any,
    server: str,
    clients: int,
    rounds: int | None,
    ca: Path | None,
    folder: Path | None,
    faults: "NetworkFaults",
    workers: int,
    plain: bool,
) -> "Swarm":
    try:
        import torch

        from sfsl.client.link import address, trusted
        from sfsl.client.round import ClientModel
        from sfsl_research.swarm.swarm import Swarm, SwarmSettings
    except ImportError as error:
        raise InputError(
            f"a swarm needs more packages ({error}); install them with: {install_command('network,train')}"
        ) from None
    from sfsl.models.package import describe, package_digest
    from sfsl.run.fleet import build_fleet, client_privacy
    from sfsl.simulate.chance import Chance
    from sfsl.training import LocalSettings

    address(server, plain)
    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    with screen.status("reading data and settings"):
        fleet = build_fleet(config)
        names = sorted(fleet.devices)
        if clients > len(names):
            raise InputError(f"--clients {clients}, but the data has {len(names)} clients")
        task = fleet.task
        model = ClientModel(package_digest(describe(task)), task.spec, task.row_maps)
        keys = {name: _identity(folder, name) for name in names[:clients]}

    def seen(name: str, event: "Event") -> None:
        if event.kind in ("committed", "aborted") and event.round not in told:
            told.add(event.round)
            screen.print(f"round {event.round}: {event.text}", highlight=False, markup=False)

    told: set[int | None] = set()
    return Swarm(
        server,
        model,
        fleet.devices,
        keys,
        client_privacy(config, names),
        Chance(task, fleet.devices, config.run.seed),
        SwarmSettings(
            rounds=rounds,
            every=config.run.period,
            row_seed=digest("seed of a run", str(config.run.seed).encode()),
            local=LocalSettings(**msgspec.structs.asdict(config.training)),
            faults=faults,
            workers=workers,
        ),
        tls=None if plain else trusted(ca),
        plain=plain,
        seen=seen,
    )


def _identity(folder: Path | None, name: str) -> Identity:
    seed = Secret(SystemRandomness().bytes(32))
    if folder is None:
        return Identity(seed)
    from sfsl.service.identities import read_identity, write_identity

    path = folder / f"{name}.key"
    if path.exists():
        return read_identity(path)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror}") from None
    return write_identity(path, seed)


def _plan(share: float, single: Sequence[str], seed: int, delay: float, per_request: bool) -> "NetworkFaults":
    from sfsl_research.swarm.faults import KINDS, NetworkFaults

    rates = dict.fromkeys(KINDS, share / len(KINDS)) if share else {}
    for text in single:
        kind, _, rate = text.partition("=")
        try:
            rates[kind] = float(rate)
        except ValueError:
            raise InputError(f"--fault {text!r}: expected KIND=SHARE, such as drop-after=0.05") from None
    return NetworkFaults(rates, seed, delay, per_request)


def _print(screen: Console, result: Mapping[str, Any]) -> None:
    seconds, rounds = result["seconds"], result["rounds"]
    screen.print(
        f"{result['clients']:,} clients, {seconds:,.1f} s: {rounds['committed']} rounds committed, "
        f"{rounds['aborted']} aborted",
        highlight=False,
    )
    columns = ("wall", "slowest", "overhead", "all")
    spent = [(name, *(shown(one[key]) for key in columns)) for name, one in result["exchanges"].items()]
    if spent:
        title = (
            "A round by exchange, seconds: all in all; the slowest client's computing; the rest; everyone's"
        )
        screen.print(table(title, ("exchange", *columns), spent))
    rows = [
        (kind, *(shown(one[key]) for key in ("requests", "p50", "p95", "p99")))
        for kind, one in result["latencies"].items()
    ]
    screen.print(table("Requests, seconds", ("kind", "requests", "p50", "p95", "p99"), rows))
    for title, key in (
        ("Check-ins by how they ended", "check_ins"),
        ("Faults by plan", "faults"),
        ("Answers by status", "statuses"),
        ("Declined by clients", "declined"),
        ("What clients met", "errors"),
        ("Clients that gave up", "failed"),
    ):
        if result[key]:
            found = [(kind, shown(count)) for kind, count in result[key].items()]
            screen.print(table(title, ("", ""), found))
