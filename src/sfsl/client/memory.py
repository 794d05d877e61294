"""What a client remembers from round to round about its answers."""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import date
from typing import Protocol

from numpy.typing import ArrayLike

from sfsl.arrays import Bits, Indices
from sfsl.crypto.secret import Randomness
from sfsl.privacy import ClientState, Decoys, IndexPrivacy, Tables
from sfsl.rounds.client import Answers


class Memory(Answers, Protocol):
    """The answers of one client. In a round: ``prepare``, ``enter``, ``expose``, ``answer``."""

    def prepare(self, acknowledged: int | None) -> None:
        """Raise ``Declined`` unless one more round is allowed today.

        ``acknowledged``: how many of its rounds the server has seen, None before it was asked.
        """

    def enter(self, number: int) -> None:
        """The same, now that a round with this number begins."""

    def rounding(self, number: int) -> Randomness | None:
        """What draws how the numbers of its update are rounded; None: what draws its keys."""

    @property
    def rests_until(self) -> date | None:
        """The day from which a declined client may try again, where that is known."""


class PassingMemory(Memory, Protocol):
    """The memory of a client whose messages are each answered by a process of its own."""

    def keep(self, snapshot: bytes | None) -> None:
        """Before an answer leaves: the round goes on from this only; None: from nothing."""

    def go_on(self, snapshot: bytes, number: int | None, exposed: bytes | None) -> None:
        """In the next process, instead of ``prepare`` and ``enter``. Raises ``RolledBack`` unless this was
        kept last. ``number``: the round's, once invited. ``exposed``: its id, after ``expose`` and before
        ``answer``."""


@dataclass(repr=False)
class DurableMemory:
    """A deployed client's memory: its period, its key and its ledger are on disk before anything leaves.

    ``real`` are the rows of its data by shared table, the same for a whole period. ``today`` is asked
    whenever a round may begin. Not for use by two threads at once.
    """

    state: ClientState
    privacy: IndexPrivacy
    tables: Tables
    real: Mapping[str, ArrayLike]
    _: KW_ONLY
    today: Callable[[], date]
    randomness: Randomness
    decoys: Decoys | None = None

    def prepare(self, acknowledged: int | None) -> None:
        self._begin(acknowledged)
        self.state.require_round()

    def enter(self, number: int) -> None:
        # Days may have passed since the check-in: a round belongs to the period in which it begins.
        self.prepare(None)

    def rounding(self, number: int) -> Randomness | None:
        return None

    def expose(self, round_id: bytes) -> dict[str, Indices]:
        return self.state.expose(round_id)

    def answer(
        self, round_id: bytes, unions: Mapping[str, ArrayLike], randomness: Randomness
    ) -> dict[str, Bits]:
        return self.state.answer(round_id, unions, randomness)

    def keep(self, snapshot: bytes | None) -> None:
        self.state.keep(snapshot)

    def go_on(self, snapshot: bytes, number: int | None, exposed: bytes | None) -> None:
        self._begin(None)
        self.state.go_on(snapshot, exposed)

    def _begin(self, acknowledged: int | None) -> None:
        self.state.begin(
            self.today(),
            self.privacy,
            self.tables,
            {name: self.real[name] for name in self.tables.shared},
            acknowledged=acknowledged,
            randomness=self.randomness,
            decoys=self.decoys,
        )

    @property
    def rests_until(self) -> date | None:
        period = self.state.period
        return None if period is None else self.state.calendar.first_day(period + 1)
