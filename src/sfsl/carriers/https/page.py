"""The status page: what happens now, curves of the last rounds, what is left of budgets, the last rounds in a
list. A few lines of script ask for it again and put the new one in its place; nothing else is loaded."""

import base64
import hashlib
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape

from sfsl.carriers.https.charts import Curve, chart
from sfsl.carriers.https.expiry import WARN_DAYS
from sfsl.carriers.https.status import RoundShown, Status
from sfsl.rounds.exchanges import Exchange

_DAY = 86_400
# What clients do in an exchange, for people who have not read the specification.
_DOES: dict[str, str] = {
    Exchange.CHECK_IN: "check in",
    Exchange.INVITATION: "deal key shares",
    Exchange.INBOUND: "send masked rows",
    Exchange.SURVIVORS_UNION: "confirm who is left",
    Exchange.UNMASK_UNION: "open the union",
    Exchange.UNION: "ask for rows",
    Exchange.SUBMODEL: "train and upload",
    Exchange.SURVIVORS_UPDATE: "confirm who is left",
    Exchange.UNMASK_UPDATE: "open the sum",
}
# A round over hot rows has one sum.
_DOES_HOT = _DOES | {Exchange.INBOUND: "compute and upload"}

_STYLE = """
:root { color-scheme: light dark; --back: #fff; --card: #f6f7f9; --ink: #1c2330; --soft: #5b6473;
  --line: #d9dde4; --a: #1f6fd6; --b: #d9730d; --bad: #c62828; --good: #1b7f4b; }
@media (prefers-color-scheme: dark) { :root { --back: #14171c; --card: #1d2129; --ink: #e6e9ee;
  --soft: #9aa4b2; --line: #343b47; --a: #6aa9ff; --b: #ffa657; --bad: #ff7b72; --good: #56d364; } }
* { box-sizing: border-box; }
body { font: 16px/1.45 system-ui, sans-serif; margin: 0 auto; padding: 1rem; max-width: 70rem;
  background: var(--back); color: var(--ink); }
h1 { font-size: 1.25rem; margin: 0; }
h2 { font-size: 1rem; margin: 1.5rem 0 .5rem; }
header p, .note { color: var(--soft); font-size: .875rem; margin: .25rem 0 1rem; overflow-wrap: anywhere; }
.live::before { content: "\\25cf\\a0"; color: var(--good); }
.old::before { content: "\\25cf\\a0"; color: var(--bad); }
.card, figure, dl div { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; }
.card { padding: .75rem 1rem; margin: 0 0 1rem; }
.card h2 { margin: 0 0 .25rem; }
.card p { margin: .25rem 0; }
.alarm { border-color: var(--bad); color: var(--bad); font-weight: 600; }
progress { width: 100%; height: .6rem; accent-color: var(--a); }
ol.steps { display: flex; flex-wrap: wrap; gap: .35rem; list-style: none; padding: 0; margin: .5rem 0 0;
  font-size: .8rem; color: var(--soft); }
ol.steps li { border: 1px solid var(--line); border-radius: 1rem; padding: .1rem .6rem; }
ol.steps .past { color: var(--good); }
ol.steps .now { border-color: var(--a); color: var(--a); font-weight: 600; }
.curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(19rem, 100%), 1fr));
  gap: .75rem; }
figure { margin: 0; padding: .6rem .75rem; }
figcaption { font-weight: 600; font-size: .9rem; }
.keys { margin: .1rem 0 .25rem; font-size: .8rem; min-height: 1.2rem; }
.key { margin-right: 1rem; color: var(--soft); white-space: nowrap; }
.key b { color: var(--ink); font-variant-numeric: tabular-nums; }
.key::before { content: ""; display: inline-block; width: .9rem; height: .2rem; margin-right: .35rem;
  vertical-align: middle; background: var(--a); }
.key.c1::before { background: var(--b); }
.key.crossed::before { content: "\\00d7"; background: none; height: auto; width: auto; color: var(--bad);
  font-weight: 700; vertical-align: baseline; }
.none { color: var(--soft); font-size: .875rem; margin: .5rem 0; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font: 11px system-ui, sans-serif; }
.grid { stroke: var(--line); }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.faint { fill: none; opacity: .35; }
.line.c0, .faint.c0 { stroke: var(--a); } .line.c1, .faint.c1 { stroke: var(--b); }
circle.c0 { fill: var(--a); } circle.c1 { fill: var(--b); }
.cross { stroke: var(--bad); stroke-width: 2; fill: none; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(12rem, 45%), 1fr));
  gap: .5rem; margin: 0; }
dl div { padding: .5rem .75rem; }
dt { font-size: .8rem; color: var(--soft); }
dd { margin: 0; font-size: 1.1rem; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
dd.alarm { font-size: 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .3rem .5rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 600; }
th:nth-child(-n+2), td:first-child { text-align: left; }
td.why { white-space: normal; text-align: left; min-width: 10rem; }
figure .note { margin: .1rem 0 .5rem; font-size: .8rem; }
table.budget { font-size: .8rem; }
table.budget td:first-child { text-align: right; }
table.budget th:nth-child(-n+2) { text-align: right; }
table.budget td:last-child { width: 50%; }
table.budget svg { height: .7rem; }
.bar { fill: var(--a); }
"""

_SCRIPT = """
const main = () => document.querySelector("main");
function say(live) {
  const mark = document.getElementById("live");
  mark.className = live ? "live" : "old";
  mark.textContent = live ? "live" : "not reachable: what is shown is old";
}
async function ask() {
  try {
    const answer = await fetch("/", { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.status);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    const left = document.querySelector(".wide").scrollLeft;
    main().replaceWith(fresh.querySelector("main"));
    document.querySelector(".wide").scrollLeft = left;
    document.title = fresh.title;
    say(true);
  } catch (error) { say(false); }
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


def html(status: Status, history: Sequence[RoundShown], now: float) -> str:
    """Return the page. ``history`` has the rounds that are drawn, the newest last; ``now`` is in seconds
    since 1970."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>sfsl: round {status.round}</title><style>{_STYLE}</style></head><body>"
        "<header><h1>Secure federated submodel learning</h1>"
        f'<p>Deployment {escape(status.deployment)} · <span id="live" class="live">live</span></p></header>'
        f"<main>{_alarms(status, now)}{_under_way(status, now)}{_facts(status, now)}"
        f'<h2>{_title(history)}</h2><div class="curves">{_curves(history)}{_budget(status, now)}</div>'
        f"{_rounds(status)}</main><script>{_SCRIPT}</script></body></html>"
    )


def _alarms(status: Status, now: float) -> str:
    said = []
    if status.degraded:
        said.append(status.degraded)
    if status.stopping:
        said.append("The server shuts down")
    if status.certificate_ends is not None and status.certificate_ends - now < WARN_DAYS * _DAY:
        said.append(f"The certificate ends {_when(status.certificate_ends, now)}; renew it")
    return "".join(f'<p class="card alarm">{escape(one)}</p>' for one in said)


def _under_way(status: Status, now: float) -> str:
    """Say what the server waits for, for how many and until when."""
    if status.cohort == 0:
        title, share, steps = f"Round {status.round + 1} has not begun", (status.waiting, status.wanted), ""
        said = f"{status.waiting} of {status.wanted} clients have checked in"
        if status.stopping:
            said += "; no round begins any more"
        elif status.seconds_left is None:
            said += "; the first of them sets a deadline"
        else:
            said += f"; {status.least} will do {_until(status.seconds_left, now)}"
    else:
        does = _DOES_HOT if status.scheme == "hot" else _DOES
        awaited = status.expected - status.heard
        what = does.get(status.phase, "answer")
        title, share = f"Round {status.round + 1}, {status.cohort} clients", (status.heard, status.expected)
        said = f"Waiting for {awaited} of {status.expected} clients to {what}"
        if not status.expected or not awaited:
            said = "The server computes"
        elif status.seconds_left is not None:
            said += f", {_until(status.seconds_left, now, 'at most until')}"
        place = status.steps.index(status.phase) if status.phase in status.steps else len(status.steps)
        shown = "".join(
            f'<li class="{"past" if at < place else "now" if at == place else "next"}" '
            f'title="{escape(one)}">{"✓ " * (at < place)}{escape(does.get(one, one))}</li>'
            for at, one in enumerate(status.steps)
        )
        steps = f'<ol class="steps">{shown}</ol>'
    heard, of = share
    return (
        f'<section class="card"><h2>{escape(title)}</h2><p id="phase">{escape(said)}.</p>'
        f'<progress value="{heard}" max="{max(1, of)}" aria-label="answers">{heard} of {of}</progress>{steps}'
        "</section>"
    )


def _until(seconds: float, now: float, word: str = "from") -> str:
    """Write a moment that is so many seconds away."""
    if seconds <= 0:
        return "now"
    moment = datetime.fromtimestamp(now + seconds, UTC)
    left = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
    return f"{word} {moment:%H:%M:%S} UTC{' on' if word == 'from' else ''} ({left} left)"


def _when(moment: float, now: float) -> str:
    days = (moment - now) / _DAY
    date = f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d}"
    if days < 0:
        return f"ended on {date}"
    return f"in {days:.0f} days ({date})" if days >= 2 else f"in {24 * days:.0f} hours ({date})"


def _facts(status: Status, now: float) -> str:
    ends = "no TLS" if status.certificate_ends is None else _when(status.certificate_ends, now)
    ends = ends.replace("-", "\u2011")  # a date is not broken into lines
    facts = [
        ("round", "Last round", f"{status.round:,}"),
        ("ends", "Committed / aborted", f"{status.committed:,} / {status.aborted:,}"),
        ("enrolled", "Clients enrolled", f"{status.enrolled:,}"),
        ("waiting", "Checked in, waiting", f"{status.waiting:,}"),
        ("auc", "AUC of a cohort", _figure(status.auc)),
        ("loss", "Log loss / base rate's", f"{_figure(status.log_loss)} / {_figure(status.base_log_loss)}"),
        ("scheme", "Scheme", status.scheme + (f", {status.kind} next" if status.kind else "")),
        ("certificate", "Certificate ends", ends),
        ("clock", "Clock off / refused by it", f"{status.clock_off_seconds:.1f} s / {status.clock_refused}"),
        ("health", "Health", status.degraded or "ok"),
    ]
    if status.scheme == "hot":
        facts[7:7] = [
            ("epsilon", "Epsilon of a round", _epsilon(status)),
            ("hot_rows", "Hot rows", f"{status.hot_rows:,}"),
        ]
    boxes = "".join(
        f'<div><dt>{escape(name)}</dt><dd id="{key}">{escape(value)}</dd></div>' for key, name, value in facts
    )
    return f"<dl>{boxes}</dl>"


def _title(history: Sequence[RoundShown]) -> str:
    if not history:
        return "No round yet"
    first, last = history[0].round, history[-1].round
    return f"Round {last:,}" if first == last else f"Rounds {first:,} to {last:,}"


def _curves(history: Sequence[RoundShown]) -> str:
    # Of an aborted round, costs are those of the few that were left.
    ended = [one for one in history if one.aborted is None]

    def curve(name: str, figure: str, scale: float = 1.0) -> Curve:
        values = [(one.round, getattr(one, figure)) for one in ended]
        return Curve(name, [(at, None if value is None else value / scale) for at, value in values])

    share = [(one.round, 100 * one.survivors / max(1, one.cohort)) for one in ended]
    crosses = [
        (one.round, f"round {one.round} was aborted: {one.aborted}")
        for one in history
        if one.aborted is not None
    ]
    auc, loss = curve("AUC", "auc"), curve("model", "log_loss")
    base = curve("base rate", "base_log_loss") if loss.known else Curve("base rate", ())
    size, unit = _unit(max((max(one.bytes_up, one.bytes_down) for one in ended), default=0))
    sent, received = curve("sent", "bytes_up", size), curve("received", "bytes_down", size)
    late = "not known yet: the first rounds are too coarse to say"
    return "".join(
        (
            chart("AUC of cohorts, before they train", [auc], _quality, from_zero=False, missing=late),
            chart("Log loss of cohorts", [loss, base], _quality, from_zero=False, missing=late),
            chart("Clients in the sum, %", [Curve("of the cohort", share)], _plain, crosses=crosses),
            chart("Seconds a round", [curve("seconds", "seconds")], _plain),
            chart(f"{unit} per client and round", [sent, received], _plain),
        )
    )


def _quality(value: float) -> str:
    return f"{value:.3f}"


def _plain(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _unit(most: float) -> tuple[float, str]:
    return next(((size, unit) for size, unit in ((1e6, "MB"), (1e3, "kB")) if most >= size), (1.0, "Bytes"))


def _budget(status: Status, now: float) -> str:
    """Say how many rounds clients have used, and what is left to them, as far as a server can know it."""
    used, allowed = status.exposures, status.rounds_allowed
    if not used:
        return ""
    if allowed is not None:
        left = sum(clients for rounds, clients in used if rounds < allowed)
        said = f"{left:,} of {status.enrolled:,} clients have rounds left; noise is for {allowed} of each."
    elif status.period_ends is not None:
        left = max(0, status.enrolled - status.had_turn)
        said = (
            f"{left:,} of {status.enrolled:,} clients can still be invited in this period; the next begins "
            f"{_when(status.period_ends, now)}."
        )
    else:
        said = "This server sets no limit on how often a client is invited; clients keep to their own."
    if allowed is not None:
        used = tuple((max(0, allowed - rounds), clients) for rounds, clients in used)
    lines = _ranges(used)
    most = max(clients for _, clients in lines)
    rows = "".join(
        f"<tr><td>{span}</td><td>{clients:,}</td><td>"
        '<svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="bar" width="{100 * clients / most:.1f}" height="8"/></svg></td></tr>'
        for span, clients in lines
    )
    head = f"<th>Rounds {'used' if allowed is None else 'left'}</th><th>Clients</th><th></th>"
    return (
        f'<figure><figcaption>Budget across clients</figcaption><p class="note">{escape(said)}</p>'
        f'<table class="budget"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></figure>'
    )


def _ranges(counts: Sequence[tuple[int, int]], most: int = 5) -> list[tuple[str, int]]:
    """Return how many clients have so many rounds, in a few ranges of equal width."""
    low, high = min(rounds for rounds, _ in counts), max(rounds for rounds, _ in counts)
    width = -(-(high - low + 1) // most)
    lines = []
    for first in range(low, high + 1, width):
        last = min(high, first + width - 1)
        span = f"{first:,}" if first == last else f"{first:,} to {last:,}"
        lines.append((span, sum(clients for rounds, clients in counts if first <= rounds <= last)))
    return lines


def _rounds(status: Status) -> str:
    heads = ("Round", "End", "Clients", "Dropped", "Late", "AUC", "Log loss", "Sent", "Received", "Time")
    head = "".join(f"<th>{name}</th>" for name in heads)
    rows = "".join(map(_row, status.rounds))
    return (
        f'<h2>Newest rounds</h2><div class="wide"><table><thead><tr>{head}</tr></thead>'
        f'<tbody id="rounds">{rows}</tbody></table></div>'
        '<p class="note">Sent and received: by a client that answered. Committed and aborted rounds count '
        "since the server started. Nobody is named here.</p>"
    )


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
    size, unit = _unit(count)
    return f"{count / size:.{0 if size == 1 else 1 if size == 1e3 else 2}f} {'B' if size == 1 else unit}"
