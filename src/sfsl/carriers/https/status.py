"""What the server shows of itself: counts, never who; for people and for Prometheus."""

import math
import re
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from sfsl.rounds.exchanges import ORDER
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


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# All of spec network 5.6 that is refused, and peers that left. What did not happen yet is 0 and not absent:
# increase() over a series that begins with its first event misses that one.
REFUSALS = (
    "DecodeError", "WrongVersion", "InvalidMessage", "AuthenticationFailed", "ClockSkew", "Replayed",
    "UnknownClient", "Revoked", "Refused", "NotFound", "MethodNotAllowed", "WrongPhase", "WrongRound",
    "UnexpectedSender", "ConflictingMessage", "Oversize", "TooMany", "ServerError", "ShuttingDown",
    "Disconnected",
)  # fmt: skip
_PLAIN = re.compile("[A-Za-z0-9_-]*")


def text(status: Status, totals: Totals) -> str:
    out: list[str] = []

    def add(name: str, kind: str, about: str, values: Mapping[str, float]) -> None:
        out.extend((f"# HELP sfsl_{name} {about}", f"# TYPE sfsl_{name} {kind}"))
        out.extend(f"sfsl_{name}{labels} {_number(value)}" for labels, value in values.items())

    ends = {_label(outcome="committed"): totals.committed, _label(outcome="aborted"): totals.aborted}
    add("rounds_total", "counter", "Rounds since this process started.", ends)
    add("round", "gauge", "The last round in the store.", {"": status.round})
    add("phase", "gauge", "1 for the exchange under way, or for waiting.", {_label(phase=status.phase): 1})
    add("cohort", "gauge", "Clients in the round under way.", {"": status.cohort})
    add("expected", "gauge", "Clients whose answer is awaited or here.", {"": status.expected})
    add("heard", "gauge", "Clients whose answer is here.", {"": status.heard})
    add("waiting", "gauge", "Clients that checked in and wait.", {"": status.waiting})
    add("clients_enrolled", "gauge", "Clients enrolled and not revoked.", {"": status.enrolled})
    add(
        "auc",
        "gauge",
        "Of the last evaluated cohort, securely summed.",
        {"": math.nan if status.auc is None else status.auc},
    )
    add(
        "bytes_total",
        "counter",
        "Encoded frames of finished rounds, by exchange.",
        {_label(exchange=name, direction="up"): size for name, size in totals.bytes_up.items()}
        | {_label(exchange=name, direction="down"): size for name, size in totals.bytes_down.items()},
    )
    add(
        "dropouts_total",
        "counter",
        "Clients that did not answer, by exchange.",
        _by({**dict.fromkeys(ORDER, 0), **totals.dropped}),
    )
    add("declined_total", "counter", "Invitations that clients declined.", {"": totals.declined})
    add("left_out_total", "counter", "Clients left out for ending a round.", {"": totals.left_out})
    add("late_total", "counter", "Answers that came too late.", {"": totals.late})
    add("phase_seconds_total", "counter", "Wall time, by exchange.", _by(totals.wall_seconds))
    add("server_cpu_seconds_total", "counter", "CPU time of the rounds' thread.", _by(totals.server_seconds))
    refused = {
        _label(error=name): count for name, count in (dict.fromkeys(REFUSALS, 0) | totals.refused).items()
    }
    add("refused_total", "counter", "Requests refused, by error.", refused)
    add("stopping", "gauge", "1 while the server shuts down.", {"": int(status.stopping)})
    return "\n".join(out) + "\n"


def _by(counts: Mapping[str, float]) -> dict[str, float]:
    return {_label(exchange=name): value for name, value in counts.items()}


def _label(**labels: str) -> str:
    """All are words of ours; nothing else is let into the format."""
    words = (f'{name}="{value if _PLAIN.fullmatch(value) else "other"}"' for name, value in labels.items())
    return f"{{{','.join(words)}}}"


def _number(value: float) -> str:
    return "NaN" if math.isnan(value) else repr(value)
