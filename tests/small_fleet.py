"""A few users' data, and what it takes to run rounds of ``plain`` and of a fleet on a device with them."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from sfsl.data.interactions import Interactions
from sfsl.data.synthetic import SyntheticSettings, SyntheticTaobao
from sfsl.privacy import PRESETS
from sfsl.run.setup import simulation_settings
from sfsl.settings.run import from_sections
from sfsl.simulate.settings import SimulationSettings
from sfsl.submodel import MemoryStore, RowSet, StoreSpec
from sfsl.training.task import Task
from sfsl_research.resident import Arm, ResidentClients, ResidentEngine, ResidentModel

# Where there is a GPU, everything is tried on it too.
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
CLIENTS = 12
NAMES = [f"user-{user:02}" for user in range(CLIENTS)]

Section = Mapping[str, object]


def interactions() -> Interactions:
    return SyntheticTaobao(SyntheticSettings().scaled(0.05, users=CLIENTS), seed=3).interactions()


def store_of(task: Task, slots: int = 0, dense_slots: int | None = None) -> MemoryStore:
    dense = slots if dense_slots is None else dense_slots
    spec = StoreSpec(model=task.spec, seed=bytes(32), devices=True, row_slots=slots, dense_slots=dense)
    return MemoryStore(spec, task.initial_dense())


def settings_of(preset: str, **sections: Section) -> SimulationSettings:
    """One step per client with all its samples: the order of samples plays no part. Rows add up, and personal
    ones are kept, unless ``sections`` say otherwise."""
    given: dict[str, dict[str, object]] = {
        "round": {"clients": CLIENTS, "sums": "plain", "bins": 0, "min_contributors": 1},
        "training": {
            "batch_size": 128,
            "learning_rate": 1.0,
            "decay": 0.999,
            "clip": 0.1,
            "max_samples": 0,
            "rebuild": 0.0,
        },
        "server": {"row_step": "add", "row_rate": 1.0, "dense_step": "add"},
    }
    for section, content in sections.items():
        given[section] = given.get(section, {}) | dict(content)
    return simulation_settings(from_sections(given), dict.fromkeys(NAMES, PRESETS[preset]))


def model_of(task: Task, settings: SimulationSettings, device: torch.device) -> ResidentModel:
    """As it begins."""
    update = settings.rules.update
    return ResidentModel(task, store_of(task, update.row_step.slots, update.dense_step.slots), device)


def engine_of(
    fleet: ResidentClients,
    models: Sequence[ResidentModel],
    settings: SimulationSettings,
    presets: Sequence[str],
    clients: int = CLIENTS,
) -> ResidentEngine:
    arms = [Arm(name, one, settings, PRESETS[name]) for name, one in zip(presets, models, strict=True)]
    return ResidentEngine(fleet, arms, clients=clients, seed=0)


def all_rows(store: MemoryStore, table: str) -> np.ndarray:
    return store.read_rows(table, RowSet(np.arange(store.spec.table(table).rows))).values
