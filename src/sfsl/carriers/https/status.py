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
    """Return an error's text without the clients it names for the log: nobody else is told who."""
    return _WHO.sub(instead, text)


class RoundShown(msgspec.Struct, frozen=True):
    """Describes one past round on the status page."""

    round: int
    aborted: str | None
    cohort: int
    survivors: int
    dropped: int
    late: int
    auc: float | None
    log_loss: float | None
    base_log_loss: float | None
    bytes_up: float
    bytes_down: float
    seconds: float


class Status(msgspec.Struct, frozen=True):
    """Describes a moment. ``phase``: the exchange under way or "waiting"; bytes: per client that answered."""

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
    log_loss: float | None
    base_log_loss: float | None
    rounds: tuple[RoundShown, ...]


@dataclass
class Totals:
    """Counts what this process did so far."""

    committed: int = 0
    aborted: int = 0
    left_out: int = 0
    tally: RoundTally = field(default_factory=RoundTally)
    refused: Counter[str] = field(default_factory=Counter)
    last: deque[RoundShown] = field(default_factory=lambda: deque(maxlen=_SHOWN_ROUNDS))

    def add(self, line: RoundRecord, tally: RoundTally) -> None:
        self.committed += line.aborted is None
        self.aborted += line.aborted is not None
        self.tally.add(tally)
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
                log_loss=line.log_loss_secure,
                base_log_loss=line.base_log_loss_secure,
                bytes_up=sum(line.bytes_up.values()),
                bytes_down=sum(line.bytes_down.values()),
                seconds=line.wall_seconds,
            )
        )

    @property
    def auc(self) -> float | None:
        return next((one.auc for one in reversed(self.last) if one.auc is not None), None)

    @property
    def log_losses(self) -> tuple[float | None, float | None]:
        """The last log loss of a cohort, and that of knowing only how often the same cohort clicks."""
        known = (one for one in reversed(self.last) if one.log_loss is not None)
        return next(((one.log_loss, one.base_log_loss) for one in known), (None, None))


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

    def add(name: str, kind: str, about: str, values: Mapping[str, float] | float) -> None:
        out.extend((f"# HELP sfsl_{name} {about}", f"# TYPE sfsl_{name} {kind}"))
        series = values if isinstance(values, Mapping) else {"": values}
        out.extend(f"sfsl_{name}{labels} {_number(value)}" for labels, value in series.items())

    learned = (status.auc, status.log_loss, status.base_log_loss)
    auc, log_loss, base = (math.nan if one is None else one for one in learned)
    tally = totals.tally
    moved = {
        _label(exchange=name, direction=way): size
        for way, sizes in (("up", tally.bytes_up), ("down", tally.bytes_down))
        for name, size in sizes.items()
    }
    refused = dict.fromkeys(REFUSALS, 0) | totals.refused
    ends = {_label(outcome="committed"): totals.committed, _label(outcome="aborted"): totals.aborted}
    add("rounds_total", "counter", "Rounds since this process started.", ends)
    add("round", "gauge", "The last round in the store.", status.round)
    add("phase", "gauge", "1 for the exchange under way, or for waiting.", {_label(phase=status.phase): 1})
    add("cohort", "gauge", "Clients in the round under way.", status.cohort)
    add("expected", "gauge", "Clients whose answer is awaited or here.", status.expected)
    add("heard", "gauge", "Clients whose answer is here.", status.heard)
    add("waiting", "gauge", "Clients that checked in and wait.", status.waiting)
    add("clients_enrolled", "gauge", "Clients enrolled and not revoked.", status.enrolled)
    add("auc", "gauge", "Of the last evaluated cohort, securely summed.", auc)
    add("log_loss", "gauge", "Of the last evaluated cohort, at the best shift of its scores.", log_loss)
    add("base_log_loss", "gauge", "Of the same cohort, if only its click rate were known.", base)
    add("bytes_total", "counter", "Encoded frames of finished rounds, by exchange.", moved)
    dropped: dict[str, float] = {**dict.fromkeys(ORDER, 0), **tally.dropped}
    add("dropouts_total", "counter", "Clients that did not answer, by exchange.", _by(dropped))
    add("declined_total", "counter", "Invitations that clients declined.", sum(tally.declined.values()))
    add("left_out_total", "counter", "Clients left out for ending a round.", totals.left_out)
    add("late_total", "counter", "Answers that came too late.", tally.late)
    add("phase_seconds_total", "counter", "Wall time, by exchange.", _by(tally.exchange_seconds))
    add("server_cpu_seconds_total", "counter", "CPU time of the rounds' thread.", _by(tally.server_seconds))
    add("refused_total", "counter", "Requests refused, by error.", _by(refused, "error"))
    add("stopping", "gauge", "1 while the server shuts down.", int(status.stopping))
    return "\n".join(out) + "\n"


def _by(counts: Mapping[str, float], label: str = "exchange") -> dict[str, float]:
    return {_label(**{label: name}): value for name, value in counts.items()}


def _label(**labels: str) -> str:
    """Return a series' labels. All are words of ours; nothing else is let into the format."""
    words = (f'{name}="{value if _PLAIN.fullmatch(value) else "other"}"' for name, value in labels.items())
    return f"{{{','.join(words)}}}"


def _number(value: float) -> str:
    return "NaN" if math.isnan(value) else repr(value)
