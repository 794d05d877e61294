"""The engine ``device`` of ``sfsl run``: the whole fleet of a run on one device (``run.device``)."""

import numpy as np
import torch

from sfsl.errors import InputError
from sfsl.run.fleet import Devices, Fleet, Interacted, scheme_privacy
from sfsl.run.setup import rebuilds, simulation_settings
from sfsl.run.validation import choosing, split_held_out
from sfsl.settings.run import RunConfig
from sfsl.simulate.rebuilt import draw_tested
from sfsl.submodel import RowStore
from sfsl_research.resident.clients import ResidentClients
from sfsl_research.resident.compact import compact
from sfsl_research.resident.rounds import ResidentRounds
from sfsl_research.resident.scoring import ResidentTest

# Samples of a central test set on a device; more say no more about an AUC.
_MOST_TESTED = 1_000_000


def require(config: RunConfig) -> None:
    """Refuse a GPU where torch sees none."""
    if config.run.device == "cuda" and not torch.cuda.is_available():
        raise InputError('run.device = "cuda", and torch sees no GPU here; "cpu" works everywhere')


def clients_of(config: RunConfig, train: Interacted, device: torch.device) -> ResidentClients:
    return ResidentClients(compact(train.data, config.data.max_history), device)


def build(config: RunConfig, fleet: Fleet, store: RowStore) -> ResidentRounds:
    if not (isinstance(fleet.train, Interacted) and isinstance(fleet.devices, Devices)):
        raise InputError("run.device is for clicks data; leave it empty")
    device, seed, users = torch.device(config.run.device), config.run.seed, None
    pools = split_held_out(config, fleet)
    if rebuilds(config, fleet.task):
        names, choose = sorted(fleet.devices), choosing(pools, fleet)
        chosen = np.array([name in choose for name in names]) if choose else None
        tested = draw_tested(len(names), seed, choose=chosen)
        users = np.array([fleet.devices.numbers[names[place]] for place in tested])
    return ResidentRounds(
        fleet.task,
        clients_of(config, fleet.train, device),
        fleet.devices.numbers,
        store,
        simulation_settings(config, {}),
        scheme_privacy(config),
        {
            name: ResidentTest(fleet.task, pool, device, most=_MOST_TESTED, seed=seed, users=users)
            for name, pool in pools.items()
        },
        clients=config.round.clients,
        seed=seed,
    )
