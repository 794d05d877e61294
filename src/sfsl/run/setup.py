"""From a run's settings to the parameters of the protocol, and to its store."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
import torch

from sfsl.carriers.local.engine import LocalEngine
from sfsl.data.compact import compact
from sfsl.errors import InputError
from sfsl.privacy import IndexPrivacy
from sfsl.run.fleet import Devices, Fleet, Interacted, client_privacy, scheme_privacy
from sfsl.run.folder import RunFolder
from sfsl.run.planning import plan_min_contributors
from sfsl.service import folder as folders
from sfsl.settings.rounds import round_rules, store_spec
from sfsl.settings.run import RunConfig
from sfsl.simulate.centralized import CentralizedEngine, CentralSettings
from sfsl.simulate.engine import Engine, baselines_of
from sfsl.simulate.population import Simulation
from sfsl.simulate.resident import ResidentClients
from sfsl.simulate.resident.rounds import ResidentRounds
from sfsl.simulate.resident.scoring import ResidentTest
from sfsl.simulate.settings import FaultPlan, SimulationSettings
from sfsl.submodel import LmdbStore
from sfsl.training import LocalSettings

if TYPE_CHECKING:  # ray need not be installed
    from sfsl.carriers.ray.cluster import ClusterSettings

# Samples of a central test set on a device; more say no more about an AUC.
_MOST_TESTED = 1_000_000


def resolved(config: RunConfig, fleet: Fleet) -> RunConfig:
    """Put numbers in the place of "auto", so that a resumed run has the same."""
    chosen = msgspec.structs.replace(config.round, threshold=config.round.threshold_clients)
    if chosen.min_contributors == "auto":
        planned = plan_min_contributors(config, fleet) if config.round.scheme == "sfsl" else 1
        chosen = msgspec.structs.replace(chosen, min_contributors=planned)
    return msgspec.structs.replace(config, round=chosen)


def open_store(folder: RunFolder, config: RunConfig, fleet: Fleet) -> LmdbStore:
    """Open the run's store; a new one if the run was stopped before it had any."""
    spec = store_spec(config, fleet.task.spec, devices=True)
    return folders.open_store(folder.path, spec, fleet.task.initial_dense)


def build_engine(config: RunConfig, fleet: Fleet, store: LmdbStore) -> Engine:
    """Build what runs this scheme's rounds, and evaluates the model on what the fleet held out."""
    engine = _engine(config, fleet, store)
    engine.pools, engine.baselines = {"test": fleet.test}, baselines_of(fleet.task, fleet.train)
    return engine


def _engine(config: RunConfig, fleet: Fleet, store: LmdbStore) -> Engine:
    seed = config.run.seed
    if config.run.device:
        return _on_device(config, fleet, store)
    if config.round.scheme == "centralized":
        central = central_settings(config, len(fleet.train), len(fleet.devices))
        return CentralizedEngine(fleet.task, fleet.train, store, central, seed=seed)
    settings = simulation_settings(config, client_privacy(config, sorted(fleet.devices)))
    simulation = Simulation(fleet.task, fleet.devices, store, settings, seed=seed)
    if config.run.engine == "local":
        return LocalEngine(simulation)
    from sfsl.carriers.ray.engine import RayEngine

    return RayEngine(simulation, cluster_settings(config), clients=config.round.clients)


def require_engine(config: RunConfig) -> None:
    """Refuse, before anything is written, a run whose engine is not there."""
    if config.run.engine != "ray":
        return
    try:
        from sfsl.carriers.ray.cluster import address_of, require_reachable
    except ImportError:
        raise InputError("run.engine = \"ray\" needs ray; install it with: pip install 'sfsl[ray]'") from None
    require_reachable(address_of(cluster_settings(config)))


def cluster_settings(config: RunConfig) -> "ClusterSettings":
    from sfsl.carriers.ray.cluster import ClusterSettings

    own = config.ray
    return ClusterSettings(
        address=own.address,
        workers=own.workers,
        cpus=own.cpus_per_worker or max(1, config.run.threads),
        gpus=own.gpus_per_worker,
        threads=config.run.threads,
        seconds=own.seconds,
        memory_mb=own.memory_mb,
    )


def _on_device(config: RunConfig, fleet: Fleet, store: LmdbStore) -> ResidentRounds:
    if config.run.device == "cuda" and not torch.cuda.is_available():
        raise InputError('run.device = "cuda", and torch sees no GPU here; "cpu" works everywhere')
    if not (isinstance(fleet.train, Interacted) and isinstance(fleet.devices, Devices)):
        raise InputError("run.device is for clicks data; leave it empty")
    device = torch.device(config.run.device)
    return ResidentRounds(
        fleet.task,
        ResidentClients(compact(fleet.train.data, config.data.max_history), device),
        fleet.devices.numbers,
        store,
        simulation_settings(config, {}),
        scheme_privacy(config),
        ResidentTest(fleet.task, fleet.test, device, most=_MOST_TESTED, seed=config.run.seed),
        clients=config.round.clients,
        seed=config.run.seed,
    )


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


def central_settings(config: RunConfig, samples: int, clients: int) -> CentralSettings:
    """Return settings for so many samples of so many clients: a round has a cohort's on average."""
    return CentralSettings(
        samples=max(1, round(samples / clients * config.round.clients)),
        decay=config.training.decay,
        clip=config.training.clip,
        **msgspec.structs.asdict(config.centralized),
    )
