"""What the server shows of itself: counts, never who."""

import re
from collections import Counter, deque
from dataclasses import dataclass, field

import msgspec

from sfsl.rounds.record import RoundRecord, RoundTally

_SHOWN_ROUNDS = 20
_WHO = re.compile("client '?[0-9a-f]{32}'?")


def nameless(text: str, instead: str = "a client") -> str:
    """An error names clients for the log; whoever else reads it is not told who."""
    return _WHO.sub(instead, text)


class RoundShown(msgspec.Struct, frozen=True):
    """One past round on the status page."""

    round: int
    aborted: str | None
    cohort: int
    survivors: int
    dropped: int
    late: int
    auc: float | None
    bytes_up: float
    bytes_down: float
    seconds: float


class Status(msgspec.Struct, frozen=True):
    """A moment. ``phase`` is the exchange under way, or "waiting"; bytes are per client that answered."""

    deployment: str
    round: int
    phase: str
    expected: int
    heard: int
    cohort: int
    waiting: int
    enrolled: int
    stopping: bool
    committed: int
    aborted: int
    auc: float | None
    rounds: tuple[RoundShown, ...]


@dataclass
class Totals:
    """What this process did so far."""

    committed: int = 0
    aborted: int = 0
    late: int = 0
    declined: int = 0
    left_out: int = 0
    bytes_up: Counter[str] = field(default_factory=Counter)
    bytes_down: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    wall_seconds: Counter[str] = field(default_factory=Counter)
    server_seconds: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    last: deque[RoundShown] = field(default_factory=lambda: deque(maxlen=_SHOWN_ROUNDS))

    def add(self, line: RoundRecord, tally: RoundTally) -> None:
        self.committed += line.aborted is None
        self.aborted += line.aborted is not None
        self.late += tally.late
        self.declined += sum(tally.declined.values())
        self.bytes_up.update(tally.bytes_up)
        self.bytes_down.update(tally.bytes_down)
        self.dropped.update(tally.dropped)
        self.wall_seconds.update(tally.exchange_seconds)
        self.server_seconds.update(tally.server_seconds)
        self.show(line)

    def show(self, line: RoundRecord) -> None:
        self.last.append(
            RoundShown(
                round=line.round,
                aborted=None if line.aborted is None else nameless(line.aborted),
                cohort=line.cohort,
                survivors=line.survivors,
                dropped=sum(line.dropped.values()),
                late=line.late,
                auc=line.auc_secure,
                bytes_up=sum(line.bytes_up.values()),
                bytes_down=sum(line.bytes_down.values()),
                seconds=line.wall_seconds,
            )
        )

    @property
    def auc(self) -> float | None:
        return next((one.auc for one in reversed(self.last) if one.auc is not None), None)
