"""``sfsl plan --scheme hot``: what rounds over hot rows will cost, and whether a fleet is large enough."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from sfsl.cli.output import console, emit_json, plain, progress_console, table
from sfsl.errors import InputError
from sfsl.plan.hot import HotPlan, Owners, owners_assumed, owners_known, plan_hot_rounds
from sfsl.rounds.params import HotRules
from sfsl.settings.source import source_of
from sfsl.submodel import ModelSpec

if TYPE_CHECKING:
    from sfsl.run.fleet import Fleet
    from sfsl.settings.run import RunConfig

_MIB = 2**20


@dataclass(frozen=True)
class HotFlags:
    """What the command line says."""

    clients: int
    fleet: int
    set_size: float
    epsilon: float
    delta: float
    participations: int


def plan_hot_figures(given: HotFlags, model: ModelSpec, json: bool) -> None:
    """Plan from figures: rows are taken to be as popular as 1 / rank."""
    owners = {
        one.name: owners_assumed(one.rows, given.fleet, given.set_size)
        for one in model.tables
        if one.kind == "shared"
    }
    _plan(given, model, owners, "rows are taken to be as popular as 1 / rank (--data counts yours)", json)


def plan_hot_data(
    given: HotFlags, config: Path | None, catalogue: Path | None, data: str | None, json: bool
) -> None:
    """Plan from what is known of real clients: a run file, a catalogue with statistics, or a data file."""
    # Only here: a run's data and model need torch, a plan from figures does not.
    from sfsl.run.fleet import build_fleet
    from sfsl.settings.run import RunConfig
    from sfsl.settings.toml import read_config

    if sum(one is not None for one in (config, catalogue, data)) > 1:
        raise InputError("--config, --catalogue and --data are three ways to say one thing; give one of them")
    if catalogue is not None:
        _plan_catalogue(given, catalogue, json)
        return
    wanted = RunConfig() if config is None else read_config(config)
    if data is not None:
        source, path = source_of(data)
        section = msgspec.convert({"source": source, "path": path}, type(wanted.data))
        wanted = msgspec.structs.replace(wanted, data=section)
    if config is not None:
        privacy, one = wanted.privacy, wanted.round
        turns = given.participations if privacy.participations == "auto" else privacy.participations
        given = HotFlags(one.clients, 0, 0, privacy.epsilon, privacy.delta, turns)
    with progress_console().status("counting owners of rows"):
        fleet = build_fleet(_without_cohort(wanted))
        owners, per_client = _counted(fleet)
    flags = HotFlags(**(asdict(given) | {"fleet": len(fleet.devices), "set_size": per_client}))
    _plan(flags, fleet.task.spec, owners, "owners of rows were counted in the data", json)


def _without_cohort(config: "RunConfig") -> "RunConfig":
    """Leave open how many clients a round has: data are counted whatever that is."""
    one = msgspec.structs.replace(config.round, clients=2, threshold="auto", min_contributors=1)
    return msgspec.structs.replace(config, round=one)


def _counted(fleet: "Fleet") -> tuple[dict[str, Owners], float]:
    shared = [one for one in fleet.task.spec.tables if one.kind == "shared"]
    counts, held = {one.name: np.zeros(one.rows) for one in shared}, 0
    for device in fleet.devices.values():
        for one in shared:
            rows = device.needed[one.name]
            counts[one.name][rows] += 1
            held += len(rows)
    owners = {}
    for name, count in counts.items():
        number, rows = np.unique(count[count > 0], return_counts=True)
        owners[name] = Owners(number, rows.astype(np.float64))
    return owners, held / max(1, len(fleet.devices))


def _plan_catalogue(given: HotFlags, path: Path, json: bool) -> None:
    from sfsl.data.catalogue_file import read_catalogue
    from sfsl.models.kinds import build_task
    from sfsl.settings.run import ModelSettings

    found = read_catalogue(path)
    if found.statistics is None:
        raise InputError(
            f"{path} has no statistics, from which a plan is made; make it from data with samples "
            "(sfsl catalogue make), or give --data"
        )
    owners = owners_known(found.statistics)
    clients = found.statistics.clients
    touches = sum(one.touches for one in owners.values())
    flags = HotFlags(**(asdict(given) | {"fleet": clients, "set_size": touches / max(1, clients)}))
    _plan(
        flags,
        build_task(found, ModelSettings(), seed=0).spec,
        owners,
        f"owners of rows are those that {path} counted",
        json,
    )


def _plan(given: HotFlags, model: ModelSpec, owners: Mapping[str, Owners], source: str, json: bool) -> None:
    surveys = max(1, math.ceil(given.fleet / given.clients))
    with progress_console().status("measuring this machine"):
        made = plan_hot_rounds(
            model,
            owners,
            fleet=given.fleet,
            clients=given.clients,
            per_client=given.set_size,
            epsilon=given.epsilon,
            delta=given.delta,
            participations=given.participations,
            rules=HotRules(rho=math.inf, survey_rho=math.inf, surveys=surveys),
        )
    if json:
        figures = {name: plain(value) for name, value in asdict(made).items()}
        emit_json({"scheme": "hot", **figures, "large_enough": made.large_enough, "owners": source})
    else:
        _show(made, source)


def _show(made: HotPlan, source: str) -> None:
    out = console()
    rows = [
        ("epsilon of a client, in all", f"{made.epsilon:g} at delta {made.delta:g}"),
        (f"… of one round that trains, of {made.participations}", f"{made.epsilon_round:.3g}"),
        ("honest clients that noise counts on", f"{made.honest:,} of {made.clients:,}"),
        ("rounds that the fleet has budget for", f"{made.rounds:,} of {made.clients:,} clients"),
        ("owners that a row needs in the surveys", f"{made.owners_needed:,.0f}"),
        *((f"hot rows of {name}", f"{count:,.0f}") for name, count in made.hot_rows.items()),
        *((f"… cover of what clients touch, {name}", f"{one:.1%}") for name, one in made.covered.items()),
        ("MiB per client and round, up and down", f"{(made.bytes_up + made.bytes_down) / _MIB:,.3f}"),
        ("CPU of a client, without training", f"{made.client_seconds:.3f} s"),
        ("… of it, noise", f"{made.noise_seconds:.3f} s"),
        ("CPU of the server", f"{made.server_seconds:.2f} s"),
        ("noise in a mean update, to the clip", f"{made.noise_share:.3g}"),
    ]
    out.print(table("Rounds over hot rows", ("", ""), rows))
    if made.problems:
        out.print(f"This fleet of {made.fleet:,} is too small for it:", highlight=False)
        for problem in made.problems:
            out.print(f"- {problem}.", highlight=False)
    else:
        out.print(
            f"A fleet of {made.fleet:,} is large enough by these figures. How much it learns, a run shows: "
            "at the paper's size it was less than item popularity knows (docs/results.md).",
            highlight=False,
        )
    out.print(
        f"Here {source}. Epsilon covers all that leaves a client, against a curious server and 10 % of a "
        "cohort (docs/privacy.md). CPU seconds are good to a factor of two; training comes on top.",
        highlight=False,
    )
