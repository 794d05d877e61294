"""What local training and averaging do to clients' losses, part by part: where a rising loss comes from.

Rounds run with plain sums, which give the same model. In some of them everyone's samples are scored with the
model before and after: with all that moved, and with the shared part or the personal rows alone.
"""

from collections.abc import Callable
from typing import Any

import msgspec
import torch

from sfsl.carriers.local.engine import LocalEngine
from sfsl.errors import InputError
from sfsl.run.fleet import build_fleet, client_privacy
from sfsl.run.planning import choose_cohort
from sfsl.run.setup import resolved, simulation_settings
from sfsl.settings.rounds import store_spec
from sfsl.settings.run import RunConfig
from sfsl.simulate.engine import baselines_of
from sfsl.submodel import MemoryStore
from sfsl_research.experiments.scenes import Scenes, Watched

# Rounds that are looked at, besides the last: what goes wrong begins early.
LOOKED_AT = (1, 5, 20, 50)


def measure_drift(config: RunConfig, *, seen: Callable[[int], None] = lambda number: None) -> dict[str, Any]:
    """Run ``run.rounds`` rounds of these settings and return what was found in those that are looked at."""
    if config.round.scheme == "centralized":
        raise InputError('round.scheme = "centralized" has no clients that could drift; take another scheme')
    plain = msgspec.structs.replace(config.round, sums="plain", bins=0)
    config = msgspec.structs.replace(config, round=plain)
    fleet = build_fleet(config)
    config = resolved(config, fleet)
    if not fleet.task.chances:
        raise InputError("drift is about log losses, and the scores of this model are no chances of a click")
    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    clients, seed = sorted(fleet.devices), config.run.seed
    store = MemoryStore(store_spec(config, fleet.task.spec, devices=True), fleet.task.initial_dense())
    settings = simulation_settings(config, client_privacy(config, clients))
    simulation = Watched(fleet.task, fleet.devices, store, settings, seed=seed)
    engine = LocalEngine(simulation)
    engine.pools, engine.baselines = {"test": fleet.test}, baselines_of(fleet.task, fleet.train)
    looked_at = {number for number in LOOKED_AT if number < config.run.rounds} | {config.run.rounds}
    found = []
    for number in range(1, config.run.rounds + 1):
        result = engine.run(choose_cohort(clients, config.round.all_clients, seed, number))
        if number in looked_at and not result.record.aborted:
            scenes = Scenes(simulation)
            store.commit(result.commit)
            tested = engine.evaluate()
            found.append(
                {"round": number, "clients": len(scenes.names), **scenes.figures(store)}
                | {"test_auc": tested.auc, "test_log_loss": tested.log_loss}
                | {"base_log_loss": tested.base_log_loss, "popularity_auc": tested.popularity_auc}
            )
        else:
            store.commit(result.commit)
        seen(number)
    if not found:
        raise InputError(
            "every round that was to be looked at was aborted; lower the faults, or have more clients"
        )
    return {
        name: msgspec.to_builtins(getattr(config, name)) for name in ("data", "model", "training", "server")
    } | {"seed": seed, "rounds": found}
