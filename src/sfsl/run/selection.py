"""Who is in a round, and what has to survive a crash for the next one: committed with the round's rows."""

from collections.abc import Iterable, Sequence
from typing import Any, Self

import msgspec
import numpy as np

from sfsl.crypto.kdf import digest
from sfsl.crypto.secret import Secret
from sfsl.errors import StoreCorrupt

# Streams of random numbers from the run's seed, told apart by their first word.
_COHORT = 1


def choose_cohort(clients: Sequence[str], count: int, seed: int, number: int) -> list[str]:
    """``count`` of the clients, uniformly: a function of seed and round, the same after a crash."""
    rng = np.random.default_rng([_COHORT, seed, number])
    return [clients[place] for place in sorted(rng.choice(len(clients), count, replace=False))]


class SelectionState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``key`` stands for the devices' durable secrets: with others after a resume they would answer anew
    about the same data, which an observer averages. ``rounds`` counts the rounds each client was invited
    to. ``line`` is the last round's line of metrics, so that a crash right after the commit cannot lose it.
    """

    key: bytes
    rounds: dict[str, int] = {}
    line: bytes = b""

    @classmethod
    def decode(cls, data: bytes, where: str) -> Self:
        try:
            return msgspec.msgpack.decode(data, type=cls)
        except msgspec.MsgspecError as error:
            raise StoreCorrupt(f"the selection state in {where} cannot be read: {error}") from None

    def __repr__(self) -> str:
        return f"SelectionState(<{len(self.rounds)} clients>, redacted)"

    def __rich_repr__(self) -> Any:
        yield repr(self)

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    def invited(self, cohort: Iterable[str]) -> dict[str, int]:
        return self.rounds | {name: self.rounds.get(name, 0) + 1 for name in cohort}

    def device_key(self, name: str) -> Secret:
        return Secret(digest("simulated device", self.key, name.encode()))
