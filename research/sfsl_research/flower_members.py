"""Clients whose chance follows from a seed, to compare a federation with the local engine and to measure it.

Never for people: they have no ledger, and take any round.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import date

from sfsl.arrays import Indices
from sfsl.carriers.flower.node import Member, Node, model_of
from sfsl.client.device import DeviceTrainer
from sfsl.client.home import PersonalRows
from sfsl.crypto.secret import Randomness, SystemRandomness, digest
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
        with PersonalRows.open(node.home.folder / "rows", fleet.task.spec, row_seed) as personal:
            yield Member(
                name=node.name,
                model=model,
                memory=PassingSimulation(chance, name, privacy[name], run.run.period),
                trainer=DeviceTrainer(
                    fleet.devices[name], lambda number: chance.shuffle(name, number), LocalSettings()
                ),
                personal=personal,
                policy=TOLERANT,
                purse=_OpenPurse(chance, name, fleet.devices[name].needed),
                randomness=SystemRandomness(),
                home=node.home,
            )

    return join


@dataclass(frozen=True)
class _OpenPurse:
    """Pays for any round over hot rows, and keeps no books."""

    chance: Chance
    name: str
    needed: Mapping[str, Indices]

    def prepare(self, acknowledged: int | None) -> None:
        """Always ready."""

    def afford(self, rho: float) -> None:
        """Whatever it costs."""

    def spend(self, round_id: bytes, rho: float) -> None:
        """Debit nothing."""

    def keep(self, snapshot: bytes | None) -> None:
        """There is nothing to guard."""

    def go_on(self, snapshot: bytes) -> None:
        """From anything."""

    def owned(self) -> Mapping[str, Indices]:
        return self.needed

    def rounding(self, number: int) -> Randomness:
        return self.chance.rounding(self.name, number)

    def account(self) -> str:
        return "no books are kept"

    @property
    def rests_until(self) -> date | None:
        return None


class _Fixed:
    """A source of one thing."""

    def __init__(self, value: bytes) -> None:
        self._value = value

    def bytes(self, count: int, /) -> bytes:
        return self._value[:count]
