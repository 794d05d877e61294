"""What the server shows of itself: counts, never who. A value for the page and for programs, and text for
Prometheus."""

import math
import re
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from sfsl.rounds.exchanges import ORDER
from sfsl.rounds.record import RoundRecord, RoundTally

# What the page draws, and what it lists and programs are told.
_DRAWN_ROUNDS, _SHOWN_ROUNDS = 300, 20
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
    """Describes a moment. ``phase``: the exchange under way or "waiting"; bytes: per client that answered.
    Where the scheme is "hot", ``kind`` is that of the round under way or next ("survey" or "train"), and
    ``epsilon`` at ``delta`` what it costs each client. ``clock_off_seconds``: the machine's clock minus the
    one that requests are signed by, 0 unless it was set; ``clock_refused``: requests refused because of their
    time. ``degraded``: what keeps the server from working as it should, if anything.
    ``certificate_ends`` and ``period_ends`` are in seconds since 1970; None without TLS, and without periods.
    ``seconds_left``: how long what is awaited now is waited for; None where that has no end. ``steps``: the
    exchanges of the round under way. A round has ``wanted`` clients, or ``least`` of them when time is up.
    ``exposures``: how many enrolled clients were in so many rounds, as pairs (rounds, clients), of
    ``rounds_allowed`` that noise is made for; None where it is not. ``had_turn``: clients that were invited
    in this period and have to wait for the next."""

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
    scheme: str = "sfsl"
    kind: str = ""
    epsilon: float | None = None
    delta: float | None = None
    hot_rows: int = 0
    certificate_ends: float | None = None
    clock_off_seconds: float = 0.0
    clock_refused: int = 0
    degraded: str = ""
    seconds_left: float | None = None
    steps: tuple[str, ...] = ()
    wanted: int = 0
    least: int = 0
    exposures: tuple[tuple[int, int], ...] = ()
    rounds_allowed: int | None = None
    had_turn: int = 0
    period_ends: float | None = None


@dataclass
class Totals:
    """Counts what this process did so far."""

    committed: int = 0
    aborted: int = 0
    left_out: int = 0
    tally: RoundTally = field(default_factory=RoundTally)
    refused: Counter[str] = field(default_factory=Counter)
    last: deque[RoundShown] = field(default_factory=lambda: deque(maxlen=_DRAWN_ROUNDS))

    def add(self, line: RoundRecord, tally: RoundTally) -> None:
        self.committed += line.aborted is None
        self.aborted += line.aborted is not None
        self.tally.add(tally)
        self.show(line)

    def show(self, line: RoundRecord) -> None:
        why = None if line.aborted is None else nameless(line.aborted)
        dropped, up, down = (sum(one.values()) for one in (line.dropped, line.bytes_up, line.bytes_down))
        clients = (line.cohort, line.survivors, int(dropped), line.late)
        scores = (line.auc_secure, line.log_loss_secure, line.base_log_loss_secure)
        self.last.append(RoundShown(line.round, why, *clients, *scores, up, down, line.wall_seconds))

    @property
    def listed(self) -> tuple[RoundShown, ...]:
        """The last few rounds, the newest first."""
        return tuple(islice(reversed(self.last), _SHOWN_ROUNDS))

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
    "Unavailable", "Disconnected",
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
    scheme = _label(scheme=status.scheme, kind=status.kind)
    add("scheme", "gauge", "1 for the scheme, and for the kind of round that is due.", {scheme: 1})
    epsilon, delta = (math.nan if one is None else one for one in (status.epsilon, status.delta))
    add("epsilon", "gauge", "What the round under way or next costs each client, at sfsl_delta.", epsilon)
    add("delta", "gauge", "The delta that sfsl_epsilon is stated at.", delta)
    add("hot_rows", "gauge", "Rows that are hot.", status.hot_rows)
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
    off = "The machine's clock minus the one that requests are signed by."
    add("clock_off_seconds", "gauge", off, status.clock_off_seconds)
    why = "1 while something keeps the server from working as it should; /healthz says what."
    add("degraded", "gauge", why, int(bool(status.degraded)))
    add("stopping", "gauge", "1 while the server shuts down.", int(status.stopping))
    ends_at = math.nan if status.certificate_ends is None else status.certificate_ends
    add("certificate_expiry_timestamp_seconds", "gauge", "When the server's certificate ends.", ends_at)
    left = math.nan if status.seconds_left is None else status.seconds_left
    add("seconds_left", "gauge", "How long what is awaited is still waited for; NaN: no end.", left)
    add("turns_taken", "gauge", "Clients that were invited in this period already.", status.had_turn)
    return "\n".join(out) + "\n"


def _by(counts: Mapping[str, float], label: str = "exchange") -> dict[str, float]:
    return {_label(**{label: name}): value for name, value in counts.items()}


def _label(**labels: str) -> str:
    """Return a series' labels. All are words of ours; nothing else is let into the format."""
    words = (f'{name}="{value if _PLAIN.fullmatch(value) else "other"}"' for name, value in labels.items())
    return f"{{{','.join(words)}}}"


def _number(value: float) -> str:
    return {"nan": "NaN", "inf": "+Inf"}.get(str(value), repr(value))
