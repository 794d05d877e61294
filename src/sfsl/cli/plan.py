"""``sfsl plan``: what a round will take, before anything runs."""

import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from sfsl.cli.output import (
    Json,
    console,
    counts_of_rounds,
    emit_json,
    plain,
    privacy_level,
    progress_console,
    table,
)
from sfsl.cli.plan_hot import HotFlags, plan_hot_data, plan_hot_figures
from sfsl.errors import InputError
from sfsl.plan import (
    Load,
    Plan,
    PlanSettings,
    SharedLoad,
    derived_load,
    make_plan,
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
_TABLE = re.compile(
    r"(?P<name>[^:]*):(?P<rows>\d+):(?P<width>\d+)"
    r"(?::(?P<kind>personal|derived)(?:=(?P<source>[^:]*))?)?(?::(?P<figure>\d+\.?\d*|\.\d+)?)?:*"
)
_MIB = 2**20


def plan(
    clients: Annotated[int, Option(help="Clients in a round.")] = 100,
    set_size: Annotated[float, Option(help="Rows of the shared table a client has, on average.")] = 301,
    unique: Annotated[
        float | None, Option(help="Share of the union's rows that one client has. Default: 0.867.")
    ] = None,
    union: Annotated[float | None, Option(help="Rows in the union of a round, where known.")] = None,
    tables: Annotated[
        list[str] | None, Option("--table", help=f"{_KINDS}. Repeat. Default: the paper's.")
    ] = None,
    dense: Annotated[int, Option(help="Parameters outside the tables.")] = PAPER_DENSE,
    privacy: Annotated[str, Option(help="A preset, cpp1 to cpp5, or p1,p2,p3,p4.")] = "cpp2",
    dropout: Annotated[
        list[str] | None,
        Option(help="Share of clients that vanish before they upload; or EXCHANGE=SHARE. Repeat."),
    ] = None,
    min_contributors: Annotated[
        int | None, Option(help="Default: the least that opens 0.05 rows alone at 10 % dropout.")
    ] = None,
    largest_set: Annotated[
        int | None, Option(help="Most rows that one client has. Default: the set size.")
    ] = None,
    capacity: Annotated[
        int | None, Option(help="Largest union to plan for. Default: clients times largest set.")
    ] = None,
    bins: Annotated[int, Option(help="Bins of the score histograms; 0 leaves them out.")] = 256,
    half: Annotated[bool, Option("--half", help="Download rows in half precision.")] = False,
    rounds: Annotated[str, Option(help="Show epsilon after so many rounds of a client.")] = "1,10,100",
    fleet: Annotated[int, Option(help="Clients there are in all.")] = 49_023,
    period: Annotated[float, Option(help="Days in which a client takes part once.")] = 1.0,
    config: Annotated[
        Path | None,
        Option(help="A run file: its settings and data take the place of those above but --capacity."),
    ] = None,
    scheme: Annotated[
        str, Option(help="sfsl: the paper's; hot: rows that many have, under differential privacy.")
    ] = "sfsl",
    epsilon: Annotated[float, Option(help="hot: what a client may spend in all.")] = 8.0,
    delta: Annotated[float, Option(help="hot: the chance with which epsilon may not hold.")] = 1e-6,
    participations: Annotated[int, Option(help="hot: rounds that a client trains in, at the most.")] = 5,
    data: Annotated[
        str | None, Option(help="hot: SOURCE:PATH as of sfsl run; owners of rows are counted in it.")
    ] = None,
    catalogue: Annotated[
        Path | None, Option(help="hot: a catalogue with statistics (sfsl catalogue make).")
    ] = None,
    json: Json = False,
) -> None:
    """Predict bytes, CPU and memory of a round, epsilon, rows lost, and rounds per day.

    CPU seconds are calibrated on this machine, which takes a fraction of a second; training is not in them.

    Examples: sfsl plan --clients 200   |   sfsl plan --scheme hot --clients 5000   |   sfsl plan --scheme hot
    --data csv:clicks.csv --clients 1000 --epsilon 4   |   sfsl plan --config run.toml
    """
    if scheme not in ("sfsl", "hot"):
        raise InputError(f"--scheme {scheme}: a plan is for sfsl or hot")
    if scheme == "hot":
        given = HotFlags(clients, fleet, set_size, epsilon, delta, participations)
        if config or catalogue or data:
            plan_hot_data(given, config, catalogue, data, json)
        else:
            model, _ = _model(tables or PAPER_TABLES, dense, clients, set_size, unique, union)
            plan_hot_figures(given, model, json)
        return
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
    out, sent = console(), made.traffic
    columns = [
        (sent.up, ",.0f"),
        (sent.down, ",.0f"),
        (made.seconds.client, ".4f"),
        (made.seconds.server, ".4f"),
    ]
    rows: list[tuple[str, ...]] = [
        (name, f"{count:,}", *(format(column[name], form) for column, form in columns))
        for name, count in made.heard.items()
    ]
    rows.append(("in all", "", *(format(sum(column.values()), form) for column, form in columns)))
    heads: tuple[str, ...] = ("exchange", "clients", "bytes up", "bytes down", "client s", "server s")
    out.print(table("One round: bytes and CPU seconds per client, and of the server", heads, rows))
    rows = [
        (
            name,
            f"{one.union:,.0f}",
            *(f"{figure:,.1f}" for figure in (one.real, one.asked, one.uploaded, one.left_out)),
            f"{one.opened_alone:.3g}",
        )
        for name, one in made.rows.tables.items()
    ]
    heads = ("table", "union", "real", "asked for", "uploaded", "left out", "opened alone")
    out.print(table(f"Rows, with at least {made.rows.min_contributors} contributors", heads, rows))
    rows = [
        ("MiB per client and round", f"{(made.bytes_up + made.bytes_down) / _MIB:,.3f}"),
        ("… with the full model", f"{made.full_model_bytes / _MIB:,.3f}"),
        ("memory of a client, MiB", f"{made.memory.client / _MIB:,.1f}"),
        ("memory of the server, MiB", f"{made.memory.server / _MIB:,.1f}"),
        *(
            (f"epsilon after {one} round{'s' if one > 1 else ''}", f"{made.epsilon(one):.3f}")
            for one in counts
        ),
        ("epsilon for ever", f"{made.settings.privacy.epsilon_infinity:.3f}"),
        (f"rounds per day, fleet of {fleet:,}, each once in {period:g} days", f"{per_day:,.1f}"),
    ]
    out.print(table("In short", ("", ""), rows))
    out.print(
        f"The union travels as {sent.encoding.name}: {sent.encoding.reason}. CPU seconds are calibrated on "
        "this machine, training comes on top; memory is that of arrays and messages. Both are good to a "
        "factor of two. Epsilon covers the requests, not unions and sums (docs/privacy.md)."
    )


def _figures(made: Plan, counts: list[int], fleet: int, period: float, per_day: float) -> dict[str, Any]:
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
        "epsilon_infinity": plain(made.settings.privacy.epsilon_infinity),
        "fleet": fleet,
        "period_days": period,
        "rounds_per_day": per_day,
    }


def _of_run(path: Path, capacity: int | None) -> tuple[PlanSettings, int]:
    """Read the settings of a run, count what clients need in its first cohort, and count all clients."""
    # Only here: a run's data and model need torch, a plan from figures does not.
    from sfsl.run.fleet import build_fleet
    from sfsl.run.planning import plan_settings
    from sfsl.settings.toml import read_config

    config = read_config(path)
    if config.round.scheme != "sfsl" or config.privacy.mix:
        raise InputError(
            f'{path}: a plan is for round.scheme = "sfsl" and one choice of privacy for all clients; set '
            f"them so (scheme is {config.round.scheme!r}, privacy.mix has {len(config.privacy.mix)} choices)"
        )
    with progress_console().status("counting rows in a cohort"):
        fleet = build_fleet(config)
        return plan_settings(config, fleet, capacity), len(fleet.devices)


def _model(
    given: list[str], dense: int, clients: int, set_size: float, unique: float | None, union: float | None
) -> tuple[ModelSpec, dict[str, Load]]:
    """Read tables as written on the command line, and say what clients need of them."""
    if unique is None and union is None:
        unique = 0.867
    declared, figures = [], {}
    for text in given:
        found = _TABLE.fullmatch(text)
        if not found:
            raise InputError(f"--table {text!r} is not {_KINDS}")
        kind: Any = found["kind"] or "shared"
        sizes = {"rows": int(found["rows"]), "width": int(found["width"])}
        declared.append(Table(name=found["name"], kind=kind, source=found["source"] or None, **sizes))
        figures[found["name"]] = float(found["figure"]) if found["figure"] else None
    model = ModelSpec(tables=tuple(declared), dense=dense)
    loads: dict[str, Load] = {}
    for one in sorted(declared, key=lambda table: table.kind == "derived"):  # a source before what follows
        if one.kind == "shared":
            loads[one.name] = shared_load(clients, figures[one.name] or set_size, unique=unique, union=union)
        elif one.source is not None:
            source = loads[one.source]
            assert isinstance(source, SharedLoad)  # noqa: S101 - ModelSpec saw to it
            loads[one.name] = derived_load(one.rows, source, per_client=figures[one.name])
    return model, loads


def _dropout(given: list[str]) -> dict[str, float]:
    rates = {}
    for text in given:
        exchange, _, share = text.rpartition("=")
        if not share.replace(".", "", 1).isdigit():
            raise InputError(f"--dropout {text!r} is neither a share nor EXCHANGE=SHARE")
        rates[exchange or Exchange.SUBMODEL] = float(share)
    return rates
