"""From a run's settings to the parameters of the protocol, and to its store."""

import msgspec

from sfsl.crypto.kdf import digest
from sfsl.engines.faults import FaultPlan
from sfsl.engines.local import RoundSettings
from sfsl.errors import StoreError
from sfsl.run.config import RunConfig
from sfsl.run.fleet import Fleet
from sfsl.run.folder import RunFolder
from sfsl.run.metrics import read_lines
from sfsl.run.planning import plan_min_contributors
from sfsl.submodel import (
    Averaging,
    LmdbStore,
    Quantization,
    ServerStep,
    StoreSpec,
    UpdateParams,
)
from sfsl.training import LocalSettings


def resolved(config: RunConfig, fleet: Fleet) -> RunConfig:
    """With numbers instead of "auto", so that a resumed run has the same."""
    chosen = msgspec.structs.replace(config.round, threshold=config.round.threshold_clients)
    if chosen.min_contributors == "auto":
        chosen = msgspec.structs.replace(chosen, min_contributors=plan_min_contributors(config, fleet))
    return msgspec.structs.replace(config, round=chosen)


def open_store(folder: RunFolder, config: RunConfig, fleet: Fleet) -> LmdbStore:
    """The run's store; a new one if the run was stopped before it had any."""
    spec = StoreSpec(
        model=fleet.task.spec,
        seed=digest("seed of a run", str(config.run.seed).encode()),
        row_slots=server_step(config.server.row_step, config.server.row_rate).slots,
        dense_slots=server_step(config.server.dense_step, config.server.dense_rate).slots,
        devices=True,
    )
    if folder.store.exists():
        return LmdbStore.open(folder.store, spec)
    if read_lines(folder.metrics_file):
        raise StoreError(f"{folder.path} has metrics but no store: it was deleted; restore it")
    return LmdbStore.create(folder.store, spec, fleet.task.initial_dense())


def round_settings(config: RunConfig, clients: list[str]) -> RoundSettings:
    one, server = config.round, config.server
    averaging = Averaging(weights=server.weights, kappa=server.kappa, max_move=server.max_move or None)
    rows, dense = (
        Quantization.finest(one.ring, cohort=one.clients, clip=one.clip, max_weight=weight)
        for weight in (averaging.largest_weight(one.max_samples), one.max_samples)
    )
    return RoundSettings(
        update=UpdateParams(
            rows=rows,
            dense=dense,
            averaging=averaging,
            row_step=server_step(server.row_step, server.row_rate),
            dense_step=server_step(server.dense_step, server.dense_rate),
        ),
        local=LocalSettings(**msgspec.structs.asdict(config.training)),
        privacy=dict.fromkeys(clients, config.privacy.index_privacy),
        min_contributors=1 if one.min_contributors == "auto" else one.min_contributors,
        threshold=one.threshold_clients,
        encoding=one.encoding,
        bins=one.bins,
        precision=one.precision,
        faults=FaultPlan(config.faults.rates, seed=config.run.seed),
    )


def server_step(kind: str, rate: float) -> ServerStep:
    return msgspec.convert({"kind": kind, "rate": rate}, ServerStep)
