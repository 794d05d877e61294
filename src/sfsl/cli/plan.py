"""``sfsl plan``: what a round will take, before anything runs."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from sfsl.cli.output import (
    console,
    counts_of_rounds,
    emit_json,
    plain,
    privacy_level,
    progress_console,
    table,
)
from sfsl.errors import InputError
from sfsl.plan import (
    Load,
    Plan,
    PlanSettings,
    SharedLoad,
    derived_load,
    make_plan,
    measured_loads,
    rounds_per_day,
    shared_load,
)
from sfsl.rounds.exchanges import Exchange
from sfsl.submodel import ModelSpec, Table

PAPER_TABLES = ["user:49023:18:personal", "item:143534:18", "category:4815:18:derived=item:117"]
PAPER_DENSE = 64_327
_KINDS = (
    "NAME:ROWS:WIDTH, then :personal, :derived=SOURCE[:ROWS PER CLIENT] or, for a shared one, [:SET SIZE]"
)
_MIB = 2**20


def plan(
    clients: Annotated[int, typer.Option(help="Clients in a round.")] = 100,
    set_size: Annotated[float, typer.Option(help="Rows of the shared table a client has, on average.")] = 301,
    unique: Annotated[
        float | None, typer.Option(help="Share of the union's rows that one client has. Default: 0.867.")
    ] = None,
    union: Annotated[float | None, typer.Option(help="Rows in the union of a round, where known.")] = None,
    tables: Annotated[
        list[str] | None, typer.Option("--table", help=f"{_KINDS}. Repeat. Default: the paper's.")
    ] = None,
    dense: Annotated[int, typer.Option(help="Parameters outside the tables.")] = PAPER_DENSE,
    privacy: Annotated[str, typer.Option(help="A preset, cpp1 to cpp5, or p1,p2,p3,p4.")] = "cpp2",
    dropout: Annotated[
        list[str] | None,
        typer.Option(help="Share of clients that vanish before they upload; or EXCHANGE=SHARE. Repeat."),
    ] = None,
    min_contributors: Annotated[
        int | None, typer.Option(help="Default: the least that opens 0.05 rows alone at 10 % dropout.")
    ] = None,
    largest_set: Annotated[
        int | None, typer.Option(help="Most rows that one client has. Default: the set size.")
    ] = None,
    capacity: Annotated[
        int | None, typer.Option(help="Largest union to plan for. Default: clients times largest set.")
    ] = None,
    bins: Annotated[int, typer.Option(help="Bins of the score histograms; 0 leaves them out.")] = 256,
    half: Annotated[bool, typer.Option("--half", help="Download rows in half precision.")] = False,
    rounds: Annotated[str, typer.Option(help="Show epsilon after so many rounds of a client.")] = "1,10,100",
    fleet: Annotated[int, typer.Option(help="Clients there are in all.")] = 49_023,
    period: Annotated[float, typer.Option(help="Days in which a client takes part once.")] = 1.0,
    config: Annotated[
        Path | None,
        typer.Option(help="A run file: its settings and data take the place of those above but --capacity."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Predict bytes, CPU and memory of a round, epsilon, rows lost, and rounds per day.

    CPU seconds are calibrated on this machine, which takes a fraction of a second; training is not in them.
    """
    if config is not None:
        settings, fleet = _of_run(config, capacity)
    else:
        model, loads = _model(tables or PAPER_TABLES, dense, clients, set_size, unique, union)
        settings = PlanSettings(
            clients=clients,
            model=model,
            loads=loads,
            privacy=privacy_level(privacy),
            dropout=_dropout(dropout or []),
            min_contributors=min_contributors,
            largest_set=largest_set,
            capacity=capacity,
            bins=bins,
            precision="float16" if half else "float32",
        )
    counts = counts_of_rounds(rounds)
    per_day = rounds_per_day(fleet, settings.clients, period)
    with progress_console().status("measuring this machine"):
        made = make_plan(settings)
    if json:
        emit_json(_figures(made, counts, fleet, period, per_day))
    else:
        _show(made, counts, fleet, period, per_day)


def _show(made: Plan, counts: list[int], fleet: int, period: float, per_day: float) -> None:
    out, sent, seconds = console(), made.traffic, made.seconds
    rows = [
        (
            exchange,
            f"{made.heard[exchange]:,}",
            f"{sent.up[exchange]:,.0f}",
            f"{sent.down[exchange]:,.0f}",
            f"{seconds.client[exchange]:.4f}",
            f"{seconds.server[exchange]:.4f}",
        )
        for exchange in sent.up
    ]
    rows.append(
        (
            "in all",
            "",
            f"{made.bytes_up:,.0f}",
            f"{made.bytes_down:,.0f}",
            f"{sum(seconds.client.values()):.4f}",
            f"{sum(seconds.server.values()):.4f}",
        )
    )
    heads = ("exchange", "clients", "bytes up", "bytes down", "client s", "server s")
    out.print(table("One round: bytes and CPU seconds per client, and of the server", heads, rows))
    out.print(
        table(
            f"Rows, with at least {made.rows.min_contributors} contributors",
            ("table", "union", "real", "asked for", "uploaded", "left out", "opened alone"),
            [
                (
                    name,
                    f"{one.union:,.0f}",
                    *(f"{figure:,.1f}" for figure in (one.real, one.asked, one.uploaded, one.left_out)),
                    f"{one.opened_alone:.3g}",
                )
                for name, one in made.rows.tables.items()
            ],
        )
    )
    total = made.bytes_up + made.bytes_down
    facts = [
        ("MiB per client and round", f"{total / _MIB:,.3f}"),
        ("… with the full model", f"{made.full_model_bytes / _MIB:,.3f}"),
        ("memory of a client, MiB", f"{made.memory.client / _MIB:,.1f}"),
        ("memory of the server, MiB", f"{made.memory.server / _MIB:,.1f}"),
        *(
            (f"epsilon after {count} round{'s' if count > 1 else ''}", f"{made.epsilon(count):.3f}")
            for count in counts
        ),
        ("epsilon for ever", f"{made.settings.privacy.epsilon_infinity:.3f}"),
        (f"rounds per day, fleet of {fleet:,}, each once in {period:g} days", f"{per_day:,.1f}"),
    ]
    out.print(table("In short", ("", ""), facts))
    out.print(
        f"The union travels as {sent.encoding.name}: {sent.encoding.reason}. CPU seconds are calibrated on "
        "this machine, training comes on top; memory is that of arrays and messages. Both are good to a "
        "factor of two. Epsilon covers the requests, not unions and sums (docs/privacy.md)."
    )


def _figures(made: Plan, counts: list[int], fleet: int, period: float, per_day: float) -> dict[str, Any]:
    privacy = made.settings.privacy
    return {
        "clients": made.settings.clients,
        "heard": made.heard,
        "bytes_up": made.traffic.up,
        "bytes_down": made.traffic.down,
        "bytes_per_client": made.bytes_up + made.bytes_down,
        "full_model_bytes": made.full_model_bytes,
        "encoding": made.traffic.encoding.name,
        "client_seconds": made.seconds.client,
        "server_seconds": made.seconds.server,
        "client_memory": made.memory.client,
        "server_memory": made.memory.server,
        "min_contributors": made.rows.min_contributors,
        "rows": plain({name: asdict(one) for name, one in made.rows.tables.items()}),
        "epsilon": {str(count): plain(made.epsilon(count)) for count in counts},
        "epsilon_infinity": plain(privacy.epsilon_infinity),
        "fleet": fleet,
        "period_days": period,
        "rounds_per_day": per_day,
    }


def _of_run(path: Path, capacity: int | None) -> tuple[PlanSettings, int]:
    """The settings of a run, what clients need counted in its first cohort, and how many clients it has."""
    # Only here: a run's data and model need torch, a plan from figures does not.
    from sfsl.run.fleet import build_fleet
    from sfsl.run.planning import choose_cohort, plan_min_contributors
    from sfsl.settings.toml import read_config

    config = read_config(path)
    if config.round.scheme != "sfsl" or config.privacy.mix:
        raise InputError(
            f'{path}: a plan is for round.scheme = "sfsl" and one choice of privacy for all clients; set '
            f"them so (scheme is {config.round.scheme!r}, privacy.mix has {len(config.privacy.mix)} choices)"
        )
    with progress_console().status("counting rows in a cohort"):
        fleet = build_fleet(config)
        cohort = choose_cohort(sorted(fleet.devices), config.round.clients, config.run.seed, 1)
        spec = fleet.task.spec
        shared = [one.name for one in spec.tables if one.kind == "shared"]
        sets = [{name: fleet.devices[client].needed[name] for name in shared} for client in cohort]
        contributors = config.round.min_contributors
        least = plan_min_contributors(config, fleet) if contributors == "auto" else contributors
    settings = PlanSettings(
        clients=config.round.clients,
        model=spec,
        loads=measured_loads(spec, fleet.task.row_maps, sets),
        privacy=config.privacy.index_privacy,
        dropout=config.faults.lost,
        min_contributors=least,
        threshold=config.round.threshold_clients,
        largest_set=max(sum(map(len, one.values())) for one in sets),
        capacity=capacity,
        encoding=config.round.encoding,
        bins=config.round.bins,
        precision=config.round.precision,
        ring=config.round.ring,
        id_length=max(map(len, cohort)),
    )
    return settings, len(fleet.devices)


def _model(
    given: list[str], dense: int, clients: int, set_size: float, unique: float | None, union: float | None
) -> tuple[ModelSpec, dict[str, Load]]:
    """Tables as written on the command line, and what clients need of them."""
    if unique is None and union is None:
        unique = 0.867
    declared, figures = [], {}
    for text in given:
        parts = [*text.split(":"), "", "", "", ""]
        (name, rows, width), rest = parts[:3], parts[3:]
        kind, _, source = rest[0].partition("=")
        number = rest[1] if kind in ("derived", "personal") else kind
        shared = kind not in ("derived", "personal")
        if not (rows.isdigit() and width.isdigit()) or (number and not _is_number(number)) or any(rest[2:]):
            raise InputError(f"--table {text!r} is not {_KINDS}")
        declared.append(
            Table(
                name=name,
                rows=int(rows),
                width=int(width),
                kind="shared" if shared else kind,  # type: ignore[arg-type]
                source=source or None,
            )
        )
        figures[name] = float(number) if number else None
    model = ModelSpec(tables=tuple(declared), dense=dense)
    loads: dict[str, Load] = {}
    for one in declared:
        if one.kind == "shared":
            loads[one.name] = shared_load(clients, figures[one.name] or set_size, unique=unique, union=union)
    for one in declared:
        if one.source is not None:
            source_load = loads[one.source]
            assert isinstance(source_load, SharedLoad)  # noqa: S101 - ModelSpec saw to it
            loads[one.name] = derived_load(one.rows, source_load, per_client=figures[one.name])
    return model, loads


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()


def _dropout(given: list[str]) -> dict[str, float]:
    rates = {}
    for text in given:
        exchange, _, share = text.rpartition("=")
        if not _is_number(share):
            raise InputError(f"--dropout {text!r} is neither a share nor EXCHANGE=SHARE")
        rates[exchange or Exchange.SUBMODEL] = float(share)
    return rates


def register(app: typer.Typer) -> None:
    app.command(
        epilog="Examples:  sfsl plan   |   sfsl plan --config run.toml --json   |   "
        "sfsl plan --clients 200 --set-size 50 --union 8000 --table item:2000000000:32 --dense 20000"
    )(plan)
