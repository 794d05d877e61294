"""What the server shows of itself: counts, never who. A page for people, which a few lines of script keep
fresh, and text for Prometheus."""

import base64
import hashlib
import math
import re
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape

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
    """Describes a moment. ``phase``: the exchange under way or "waiting"; bytes: per client that answered.
    Where the scheme is "hot", ``kind`` is that of the round under way or next ("survey" or "train"), and
    ``epsilon`` at ``delta`` what it costs each client. ``clock_off_seconds``: the machine's clock minus the
    one that requests are signed by, 0 unless it was set; ``clock_refused``: requests refused because of their
    time. ``degraded``: what keeps the server from working as it should, if anything.
    ``certificate_ends`` is in seconds since 1970; None without TLS."""

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
        why = None if line.aborted is None else nameless(line.aborted)
        dropped, up, down = (sum(one.values()) for one in (line.dropped, line.bytes_up, line.bytes_down))
        clients = (line.cohort, line.survivors, int(dropped), line.late)
        scores = (line.auc_secure, line.log_loss_secure, line.base_log_loss_secure)
        self.last.append(RoundShown(line.round, why, *clients, *scores, up, down, line.wall_seconds))

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
    return "\n".join(out) + "\n"


def _by(counts: Mapping[str, float], label: str = "exchange") -> dict[str, float]:
    return {_label(**{label: name}): value for name, value in counts.items()}


def _label(**labels: str) -> str:
    """Return a series' labels. All are words of ours; nothing else is let into the format."""
    words = (f'{name}="{value if _PLAIN.fullmatch(value) else "other"}"' for name, value in labels.items())
    return f"{{{','.join(words)}}}"


def _number(value: float) -> str:
    return {"nan": "NaN", "inf": "+Inf"}.get(str(value), repr(value))


_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.45 system-ui, sans-serif; margin: 0 auto; padding: 1rem; max-width: 46rem; }
h1 { font-size: 1.25rem; margin: 0 0 .25rem; }
p { margin: .25rem 0 1rem; opacity: .75; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(8rem, 1fr)); gap: .5rem; }
dl div { border: 1px solid #8885; border-radius: .5rem; padding: .5rem .75rem; }
dt { font-size: .8rem; opacity: .75; }
dd { margin: 0; font-size: 1.25rem; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .3rem .5rem; border-bottom: 1px solid #8884; white-space: nowrap; }
th:nth-child(-n+2), td:first-child { text-align: left; }
td.why { white-space: normal; text-align: left; min-width: 10rem; }
"""

_SCRIPT = """
const put = (id, text) => { document.getElementById(id).textContent = text; };
const size = n => n >= 1e6 ? (n / 1e6).toFixed(2) + " MB" : n >= 1e3 ? (n / 1e3).toFixed(1) + " kB"
  : n.toFixed(0) + " B";
const figure = x => x === null ? "\\u2013" : x.toFixed(4);
function show(s) {
  put("round", s.round); put("phase", s.phase + (s.stopping ? ", stopping" : ""));
  put("heard", s.heard + " of " + s.expected); put("cohort", s.cohort); put("waiting", s.waiting);
  put("enrolled", s.enrolled); put("auc", figure(s.auc));
  put("loss", figure(s.log_loss) + " / " + figure(s.base_log_loss));
  put("ends", s.committed + " / " + s.aborted);
  put("clock", s.clock_off_seconds.toFixed(1) + " s / " + s.clock_refused);
  put("health", s.degraded || "ok");
  put("scheme", s.scheme + (s.kind ? ", " + s.kind + " next" : ""));
  if (s.scheme === "hot") {
    put("epsilon", s.epsilon === null ? "no noise" : s.epsilon.toPrecision(3) + " at " + s.delta);
    put("hot_rows", s.hot_rows.toLocaleString("en"));
  }
  const rows = s.rounds.map(r => {
    const row = document.createElement("tr");
    const cells = [r.round, r.aborted || "committed", r.survivors + " of " + r.cohort, r.dropped, r.late,
      figure(r.auc), figure(r.log_loss), size(r.bytes_up), size(r.bytes_down), r.seconds.toFixed(1) + " s"];
    for (const text of cells) row.appendChild(document.createElement("td")).textContent = text;
    row.children[1].className = "why";
    return row;
  });
  document.getElementById("rounds").replaceChildren(...rows);
}
async function ask() {
  try {
    const answer = await fetch("/status.json", { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.status);
    show(await answer.json()); put("live", "live");
  } catch (error) { put("live", "not reachable: what is shown is old"); }
  setTimeout(ask, 2000);
}
setTimeout(ask, 2000);
"""


def _source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; script-src {_source(_SCRIPT)}; style-src {_source(_STYLE)}; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}


def html(status: Status) -> str:
    phase = status.phase + (", stopping" if status.stopping else "")
    facts = [
        ("round", "Last round", str(status.round)),
        ("phase", "Phase", phase),
        ("heard", "Heard", f"{status.heard} of {status.expected}"),
        ("cohort", "Cohort", str(status.cohort)),
        ("waiting", "Waiting", str(status.waiting)),
        ("enrolled", "Enrolled", str(status.enrolled)),
        ("auc", "AUC", _figure(status.auc)),
        ("loss", "Log loss / base rate's", f"{_figure(status.log_loss)} / {_figure(status.base_log_loss)}"),
        ("ends", "Committed / aborted", f"{status.committed} / {status.aborted}"),
        ("scheme", "Scheme", _scheme(status)),
        ("clock", "Clock off / refused by it", f"{status.clock_off_seconds:.1f} s / {status.clock_refused}"),
        ("health", "Health", status.degraded or "ok"),
    ]
    if status.scheme == "hot":
        facts += [
            ("epsilon", "Epsilon per round", _epsilon(status)),
            ("hot_rows", "Hot rows", f"{status.hot_rows:,}"),
        ]
    boxes = "".join(
        f'<div><dt>{escape(name)}</dt><dd id="{key}">{escape(value)}</dd></div>' for key, name, value in facts
    )
    heads = ("Round", "End", "Clients", "Dropped", "Late", "AUC", "Log loss", "Up", "Down", "Time")
    head = "".join(f"<th>{name}</th>" for name in heads)
    rows = "".join(map(_row, status.rounds))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>sfsl: round {status.round}</title><style>{_STYLE}</style></head><body>"
        f"<h1>Secure federated submodel learning</h1>"
        f'<p>Deployment {escape(status.deployment)}, <span id="live">live</span>. '
        "Bytes are per client that answered.</p>"
        f'<dl>{boxes}</dl><div class="wide"><table><thead><tr>{head}</tr></thead>'
        f'<tbody id="rounds">{rows}</tbody></table></div>'
        f"<script>{_SCRIPT}</script></body></html>"
    )


def _scheme(status: Status) -> str:
    return status.scheme + (f", {status.kind} next" if status.kind else "")


def _epsilon(status: Status) -> str:
    noisy = status.epsilon is not None and math.isfinite(status.epsilon)
    return f"{status.epsilon:.3g} at {status.delta:g}" if noisy else "no noise"


def _row(one: RoundShown) -> str:
    cells = (
        f"{one.survivors} of {one.cohort}", one.dropped, one.late, _figure(one.auc), _figure(one.log_loss),
        _size(one.bytes_up), _size(one.bytes_down), f"{one.seconds:.1f} s",
    )  # fmt: skip
    shown = "".join(f"<td>{escape(str(cell))}</td>" for cell in cells)
    end = escape(one.aborted or "committed")
    return f'<tr><td>{one.round}</td><td class="why">{end}</td>{shown}</tr>'


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _size(count: float) -> str:
    if count >= 1e6:
        return f"{count / 1e6:.2f} MB"
    return f"{count / 1e3:.1f} kB" if count >= 1e3 else f"{count:.0f} B"
