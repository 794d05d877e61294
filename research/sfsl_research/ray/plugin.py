"""The engine ``ray`` of ``sfsl run`` (``run.engine``). Ray is imported once a run asks for it."""

from typing import TYPE_CHECKING

from sfsl.errors import InputError
from sfsl.installed import install_research
from sfsl.run.fleet import Fleet
from sfsl.run.setup import build_simulation
from sfsl.settings.run import RunConfig
from sfsl.submodel import LmdbStore

if TYPE_CHECKING:  # ray need not be installed
    from sfsl_research.ray.cluster import ClusterSettings
    from sfsl_research.ray.engine import RayEngine


def require(config: RunConfig) -> None:
    """Refuse a run where ray is not installed, or where nobody listens at the cluster's address."""
    try:
        from sfsl_research.ray.cluster import address_of, require_reachable
    except ImportError:
        raise InputError(
            f'run.engine = "ray" needs ray; install it with: {install_research("ray")}'
        ) from None
    require_reachable(address_of(cluster_settings(config)))


def build(config: RunConfig, fleet: Fleet, store: LmdbStore) -> "RayEngine":
    from sfsl_research.ray.engine import RayEngine

    simulation = build_simulation(config, fleet, store)
    return RayEngine(simulation, cluster_settings(config), clients=config.round.clients)


def cluster_settings(config: RunConfig) -> "ClusterSettings":
    from sfsl_research.ray.cluster import ClusterSettings

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
