"""The status page: rendered here, kept fresh by a few lines of script. It shows counts, never who."""

import base64
import hashlib
from html import escape

from sfsl.carriers.https.status import RoundShown, Status

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
