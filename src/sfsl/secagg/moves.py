"""A state machine as data: in which phase it takes what, and which phase may follow (spec 4.3).

A machine holds one frozen state. A step that the table has no move for is refused. A step that it has
checks all that it was given, computes, and at its end enters the next state in one assignment: whatever is
refused on the way has changed nothing.
"""

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Generic, TypeVar

from msgspec import Struct

from sfsl.errors import ConflictingMessage, WrongPhase, WrongRound


class State(Struct, frozen=True, eq=False):
    """What a machine knows in one phase. Two states are the same only if they are one value; what is in
    one, secrets among it, is never printed."""

    phase: ClassVar[Enum]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self.__struct_fields__)})"


@dataclass(frozen=True)
class Move:
    """In ``phase`` a machine takes ``takes``, and thereupon, or when the phase is closed, it is in one of
    ``after``. ``active`` is the mode in which this is so; None is both."""

    phase: Enum
    takes: type
    after: tuple[Enum, ...]
    active: bool | None = None


S = TypeVar("S", bound=State)
T = TypeVar("T", bound=State)


class Machine(Generic[S]):
    """Holds one ``state`` and follows its table ``moves``."""

    moves: ClassVar[tuple[Move, ...]]

    def __init__(self, state: S, *, active: bool = False) -> None:
        self._state = state
        self._possible = [move for move in self.moves if move.active in (None, active)]

    @property
    def state(self) -> S:
        """All that changes about this machine, as one value; the next step replaces it as a whole."""
        return self._state

    @property
    def phase(self) -> Enum:
        return self._state.phase

    def _due(self, takes: type, kind: type[T]) -> T:
        """The state, if this machine takes such a thing now."""
        state: State = self._state
        phases = [move.phase for move in self._possible if move.takes is takes]
        if state.phase not in phases:
            needed = " or ".join(phase.name for phase in phases) or "another mode"
            raise WrongPhase(f"{self!r} takes no {takes.__name__} now; that needs {needed}")
        assert isinstance(state, kind)  # noqa: S101 -- the table and the step agree
        return state

    def _enter(self, state: S) -> None:
        """Every step ends with this one assignment."""
        ways = [move.after for move in self._possible if move.phase is self.phase]
        assert any(state.phase in after for after in ways)  # noqa: S101 -- the table and the step agree
        self._state = state


def require_round(round_id: bytes, due: bytes, what: str) -> None:
    if round_id != due:
        raise WrongRound(f"{what} is of another round")


def require_same(message: object, accepted: object, client: str) -> None:
    """Two different vectors under one mask would be a two-time pad; a repeated message is nothing new."""
    if message != accepted:
        raise ConflictingMessage(f"a second, different message from client {client!r}")
