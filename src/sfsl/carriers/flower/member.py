"""The usual client of a node: a torch task, its samples, and a folder that remembers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import numpy as np

from sfsl.carriers.flower.answering import Member
from sfsl.carriers.flower.names import read_roster
from sfsl.carriers.flower.node import Node
from sfsl.client.device import Device
from sfsl.client.memory import DurableMemory
from sfsl.client.model import ClientModel
from sfsl.client.training import DeviceTrainer, TrainingLimits
from sfsl.crypto.kdf import digest
from sfsl.privacy import ClientState
from sfsl.training.task import ClientData, Task

Load = Callable[[ClientState], tuple[ClientData, ClientData | None]]


def model_of(task: Task) -> ClientModel:
    """Both sides build it from the same app; the digest finds out where they do not."""
    maps = [
        part
        for name, given in sorted(task.maps.items())
        for part in (
            name.encode(),
            b"" if callable(given) else np.asarray(given).astype("<i8").tobytes(),
        )
    ]
    name = digest("flower model", msgspec.msgpack.encode(task.spec), *maps)
    return ClientModel(name, task.spec, task.row_maps)


@contextmanager
def device_member(
    node: Node, task: Task, load: Load, limits: TrainingLimits | None = None
) -> Iterator[Member]:
    """``load`` gives the samples to train on and those held out, which a period freezes: it is handed the
    client's state, so that it can tell whether a new period has begun (``Home.samples`` does)."""
    terms, home, randomness = node.terms, node.home, node.randomness
    model = model_of(task)
    with home.state(node.label, terms.calendar, terms.budget) as state, home.personal(task.spec) as personal:
        train, held_out = load(state)
        device = Device(task, train, held_out)
        yield Member(
            name=node.name,
            model=model,
            memory=DurableMemory(
                state,
                terms.index_privacy,
                model.tables,
                {name: device.needed[name] for name in model.tables.shared},
                today=node.today,
                randomness=randomness,
            ),
            trainer=DeviceTrainer(
                device,
                lambda number: int.from_bytes(randomness.bytes(4), "big") >> 1,
                limits=limits or TrainingLimits(),
            ),
            personal=personal,
            policy=terms.policy,
            randomness=randomness,
            home=home,
            identity=home.identity() if terms.roster else None,
            pinned=None if terms.roster_file is None else read_roster(terms.roster_file),
        )
