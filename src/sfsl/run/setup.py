"""From a run's settings to the parameters of the protocol, and to its store."""

import math
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Literal, Protocol

import msgspec

from sfsl.carriers.local.engine import LocalEngine
from sfsl.errors import InputError
from sfsl.installed import install_research
from sfsl.privacy import IndexPrivacy
from sfsl.run.fleet import Fleet, client_privacy
from sfsl.run.folder import RunFolder
from sfsl.run.planning import plan_min_contributors
from sfsl.run.validation import choosing, split_held_out
from sfsl.service import folder as folders
from sfsl.settings.rounds import round_rules, store_spec
from sfsl.settings.run import SMALL_COHORT, RunConfig, ServerSettings
from sfsl.simulate.engine import Engine, baselines_of
from sfsl.simulate.population import Simulation
from sfsl.simulate.settings import FaultPlan, SimulationSettings
from sfsl.submodel import LmdbStore, RowStore
from sfsl.training import LocalSettings
from sfsl.training.task import Task

# The rate of rows is halved when samples come for the third time: the first time they are all new.
_PASSES = 2
CENTRALIZED = "centralized"


class EnginePlugin(Protocol):
    """What an entry point of the group ``sfsl.engines`` names: an engine of another distribution.

    The name ``device`` is for runs that set ``run.device``, any other for those whose ``run.engine`` or
    ``round.scheme`` it is.
    """

    def require(self, config: RunConfig) -> None:
        """Refuse, before anything is written, a run that this engine cannot do here."""

    def build(self, config: RunConfig, fleet: Fleet, store: RowStore) -> Engine: ...


def resolved(config: RunConfig, fleet: Fleet) -> RunConfig:
    """Put numbers in the place of "auto", so that a resumed run has the same."""
    privacy = config.privacy.of_cohort(config.round.clients)
    config = msgspec.structs.replace(config, privacy=privacy)
    chosen = msgspec.structs.replace(config.round, threshold=config.round.threshold_clients)
    if chosen.min_contributors == "auto":
        planned = plan_min_contributors(config, fleet) if config.round.scheme == "sfsl" else 1
        if planned > config.round.clients:
            raise InputError(_too_few(config, fleet, planned))
        chosen = msgspec.structs.replace(chosen, min_contributors=planned)
    config = msgspec.structs.replace(config, round=chosen, server=with_passes(config, len(fleet.devices)))
    config = msgspec.structs.replace(config, server=_with_weights(config, fleet))
    return with_turns(config, len(fleet.devices))


def _with_weights(config: RunConfig, fleet: Fleet) -> ServerSettings:
    """Let rows weigh by samples where items were drawn beside clicks (decision 31), unless told otherwise."""
    server = config.server
    exact = config.round.scheme in ("sfsl", "fsl") and config.small_steps
    if server.weights != "auto" or server.row_step != "heat" or not (exact and fleet.drawn_beside):
        return server
    return msgspec.structs.replace(server, weights="samples")


def with_passes(config: RunConfig, clients: int) -> ServerSettings:
    """Put numbers in the place of "auto" of what follows the passes over a fleet of so many clients: when
    rows move half as far, and how many rounds a pass has, by which they are drawn back."""
    server, heat = config.server, config.server.row_step == "heat"

    def rounds(asked: int | Literal["auto"], passes: int, has: bool) -> int:
        if asked != "auto":
            return asked
        return math.ceil(passes * clients / config.round.clients) if heat and has else 0

    return msgspec.structs.replace(
        server,
        row_halving=rounds(server.row_halving, _PASSES, not config.small_steps),
        row_pull_rounds=rounds(server.row_pull_rounds, 1, config.small_steps),
    )


def _too_few(config: RunConfig, fleet: Fleet, planned: int) -> str:
    """Say how many clients it takes for a row to be opened safely, where there are too few."""
    clients, most = config.round.clients, len(fleet.devices) // config.round.cohorts
    enough = (
        count
        for count in range(clients + 1, min(most, SMALL_COHORT) + 1)
        if plan_min_contributors(_with_clients(config, count), fleet) <= count
    )
    advice = (
        f"take round.clients = {count} or more (--clients)" if (count := next(enough, 0)) else "take more"
    )
    return (
        f"round.clients = {clients} is too few: a row is opened only if so many ask for it that hardly ever "
        f'all but one drop out, which here takes {planned} (round.min_contributors = "auto"); {advice}, or '
        "say yourself how many are enough: --set round.min_contributors=2; 1 is the paper"
    )


def _with_clients(config: RunConfig, count: int) -> RunConfig:
    resized = msgspec.structs.replace(config.round, clients=count, threshold="auto")
    return msgspec.structs.replace(config, round=resized)


def with_turns(config: RunConfig, clients: int) -> RunConfig:
    """Put numbers in the place of "auto" of rounds over hot rows, for a fleet of so many clients."""
    privacy, hot, rounds, cohort = config.privacy, config.hot, config.run.rounds, config.round.clients
    if config.round.scheme != "hot":
        return config
    if hot.surveys == "auto":
        surveys = min(math.ceil(clients / cohort), max(1, rounds // 5))
        hot = msgspec.structs.replace(hot, surveys=surveys)
    assert hot.surveys != "auto"  # noqa: S101 -- just replaced
    if hot.surveys * cohort > math.ceil(clients / cohort) * cohort:
        raise InputError(
            f"hot.surveys = {hot.surveys} of {cohort} clients each: the noise is made for one survey of each "
            f"client, and there are {clients:,}; at most {math.ceil(clients / cohort)} are possible"
        )
    if privacy.participations == "auto":
        turns = math.ceil(max(1, rounds - hot.surveys) * cohort / clients)
        privacy = msgspec.structs.replace(privacy, participations=turns)
    return msgspec.structs.replace(config, privacy=privacy, hot=hot)


def open_store(folder: RunFolder, config: RunConfig, fleet: Fleet) -> LmdbStore:
    """Open the run's store; a new one if the run was stopped before it had any."""
    spec = store_spec(config, fleet.task.spec, devices=True)
    return folders.open_store(folder.path, spec, fleet.task.initial_dense)


def build_engine(config: RunConfig, fleet: Fleet, store: RowStore) -> Engine:
    """Build what runs this scheme's rounds, and evaluates the model on what the fleet held out."""
    engine = _engine(config, fleet, store)
    engine.pools = split_held_out(config, fleet)
    engine.choose = choosing(engine.pools, fleet)
    engine.baselines = baselines_of(fleet.task, fleet.train)
    return engine


def _engine(config: RunConfig, fleet: Fleet, store: RowStore) -> Engine:
    if plugin := _plugin(config):
        return plugin.build(config, fleet, store)
    return LocalEngine(build_simulation(config, fleet, store))


def require_engine(config: RunConfig) -> None:
    """Refuse, before anything is written, a run whose engine is not there."""
    if plugin := _plugin(config):
        plugin.require(config)


def _plugin(config: RunConfig) -> EnginePlugin | None:
    """Find the engine of another distribution that this run asks for; None: it is one of ours."""
    run, scheme, extra = config.run, config.round.scheme, ""
    if run.device:
        name, asked = "device", f'run.device = "{run.device}"'
    elif run.engine != "local":
        name, asked, extra = run.engine, f'run.engine = "{run.engine}"', run.engine
    elif scheme == CENTRALIZED:
        name, asked = scheme, f'round.scheme = "{scheme}"'
    else:
        return None
    for point in entry_points(group="sfsl.engines", name=name):
        plugin: EnginePlugin = point.load()
        return plugin
    raise InputError(
        f"{asked} is for experiments, whose engines are in a package of their own, which is not "
        f"installed here; install it with: {install_research(extra)}"
    )


def build_simulation(config: RunConfig, fleet: Fleet, store: RowStore) -> Simulation:
    """Build the simulated clients of a run of the protocol, on its store."""
    settings = simulation_settings(config, client_privacy(config, sorted(fleet.devices)))
    return Simulation(fleet.task, fleet.devices, store, settings, seed=config.run.seed)


def simulation_settings(config: RunConfig, privacy: Mapping[str, IndexPrivacy]) -> SimulationSettings:
    """Return what a simulation of this run file is given."""
    one = config.round
    return SimulationSettings(
        rules=round_rules(config, threshold=one.threshold_clients),
        local=LocalSettings(**msgspec.structs.asdict(config.training)),
        privacy=privacy,
        sums="masked" if one.masked else "plain",
        period=config.run.period,
        max_rows=one.max_rows,
        cohorts=one.cohorts,
        together=config.run.together,
        faults=FaultPlan(config.faults.rates, seed=config.run.seed, late=config.faults.late),
    )


def rebuilds(config: RunConfig, task: Task) -> bool:
    """Say whether clients of this run rebuild personal rows, so that evaluations must do it too."""
    return bool(config.training.rebuild and task.personal and config.round.scheme != CENTRALIZED)
