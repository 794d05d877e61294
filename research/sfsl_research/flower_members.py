"""Clients whose chance follows from a seed, to compare a federation with the local engine and to measure it.

Never for people: they have no ledger, and take any round.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from sfsl.carriers.flower.node import Member, Node, model_of
from sfsl.client.device import DeviceTrainer
from sfsl.client.home import PersonalRows
from sfsl.crypto.secret import SystemRandomness, digest
from sfsl.run.fleet import Fleet, client_privacy
from sfsl.settings.run import RunConfig
from sfsl.simulate.chance import Chance
from sfsl.training import LocalSettings
from sfsl_research.swarm.members import TOLERANT, PassingSimulation


def seeded_members(run: RunConfig, fleet: Fleet) -> Callable[[Node], AbstractContextManager[Member]]:
    """The device of a node is that of its ``partition-id``, in the order of names."""
    names, chance = sorted(fleet.devices), Chance(fleet.task, fleet.devices, run.run.seed)
    privacy, model = client_privacy(run, names), model_of(fleet.task)
    # Personal rows begin as the local engine's store has them.
    row_seed = _Fixed(digest("seed of a run", str(run.run.seed).encode()))

    @contextmanager
    def join(node: Node) -> Iterator[Member]:
        name = names[node.partition]
        memory = PassingSimulation(chance, name, privacy[name], run.run.period, fleet.devices[name].needed)
        with PersonalRows.open(node.home.folder / "rows", fleet.task.spec, row_seed) as personal:
            yield Member(
                name=node.name,
                model=model,
                memory=memory,
                trainer=DeviceTrainer(
                    fleet.devices[name], lambda number: chance.shuffle(name, number), LocalSettings()
                ),
                personal=personal,
                policy=TOLERANT,
                purse=memory,
                randomness=SystemRandomness(),
                home=node.home,
            )

    return join


class _Fixed:
    """A source of one thing."""

    def __init__(self, value: bytes) -> None:
        self._value = value

    def bytes(self, count: int, /) -> bytes:
        return self._value[:count]
