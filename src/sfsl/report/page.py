"""One HTML page that compares runs: pictures inline, nothing loaded from anywhere, readable on a phone."""

import base64
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from sfsl.report.comparison import (
    baseline_table,
    client_table,
    cost_table,
    exchange_table,
    glance_table,
    hot_privacy_table,
    learning_table,
    privacy_table,
    without_privacy,
)
from sfsl.report.runs import Run
from sfsl.report.words import opening

_STYLE = """
:root { color-scheme: light dark; --back: #fff; --card: #f6f7f9; --ink: #1c2330; --soft: #5b6473;
  --line: #d9dde4; --a: #1f6fd6; }
@media screen and (prefers-color-scheme: dark) {
  :root { --back: #14171c; --card: #1d2129; --ink: #e6e9ee; --soft: #9aa4b2; --line: #343b47; --a: #6aa9ff; }
  figure img { filter: invert(0.92) hue-rotate(180deg); } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 74rem; padding: 1rem;
  background: var(--back); color: var(--ink); }
h1 { font-size: 1.6rem; margin: .5rem 0 1rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1rem 0 .25rem; overflow-wrap: anywhere; }
.lead { background: var(--card); border: 1px solid var(--line); border-left: .3rem solid var(--a);
  border-radius: .5rem; padding: .5rem 1.25rem; margin: 0 0 1rem; font-size: 1.05rem; }
.lead p { margin: .4rem 0; max-width: 62rem; }
.lead h3 { margin-top: .5rem; }
.grid { display: grid; gap: .75rem; margin: .75rem 0;
  grid-template-columns: repeat(auto-fill, minmax(min(20rem, 100%), 1fr)); }
.of2, .of4 { grid-template-columns: repeat(auto-fill, minmax(min(27rem, 100%), 1fr)); }
figure { margin: 0; padding: .6rem; border: 1px solid var(--line); border-radius: .5rem; max-width: 38rem; }
figure img { display: block; width: 100%; height: auto; }
.wide { overflow-x: auto; margin-bottom: .75rem; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.3rem 0.7rem; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th { color: var(--soft); font-weight: 600; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
pre { overflow-x: auto; background: var(--card); padding: 0.6rem; font-size: 0.8rem; }
.note { color: var(--soft); font-size: 0.85rem; max-width: 62rem; margin: .4rem 0; }
summary { cursor: pointer; }
@media print { body { max-width: none; padding: 0; font-size: 10pt; } .lead { font-size: 10.5pt; }
  .wide { overflow: visible; } table { font-size: 8pt; } th, td { padding: .15rem .4rem; }
  .grid { grid-template-columns: repeat(2, 1fr); } figure, .lead, tr { break-inside: avoid; }
  h2, h3 { break-after: avoid; } details { display: none; } }
"""

_TITLES = {
    "auc": "AUC over rounds",
    "log_loss": "Log loss over rounds",
    "calibration": "Calibration: are chances what they say?",
    "bytes_up": "Bytes sent by a client, by exchange",
    "bytes_down": "Bytes received by a client, by exchange",
    "client_seconds": "CPU time of a client, by exchange",
    "server_seconds": "CPU time of the server, by exchange",
    "lost": "Clients lost, by exchange",
    "survivors": "Clients in the sum, over rounds",
}
# What one asks first when somebody shows a run; all others are folded away.
_ASKED_FIRST = (
    "data.source", "data.path", "data.world", "data.users", "model.kind", "model.width", "round.scheme",
    "round.sums", "round.clients", "round.min_contributors", "privacy.preset", "privacy.epsilon",
    "privacy.participations", "training.epochs", "training.batch", "training.rate", "server.row_step",
    "run.rounds", "run.seed",
)  # fmt: skip

_LEARNING = (
    "AUC: on the central test set, of the model that is judged here, and of which round that is: the best on "
    "validation devices, which is exported, or else the last. Highest: the highest AUC on the test set, and "
    "after which round that was. Cohorts: the last AUC of "
    "cohorts, from the sum of histograms of clients' own held-out samples that could be scored"
)
_BASELINES = (
    "On the central test set. Log loss: the mean of -ln(chance that was given to what came). Base rate: a "
    "model that always says the click rate of the training samples. Popularity: one that says the click rate "
    "of the item among them. NDCG and recall: of the first ten when each user's held-out samples are ranked; "
    "a user with ten or fewer has a recall of 1."
)
_SECURELY = {
    True: "; the sum is a secure one.",
    False: "; nothing hides what a client adds to it.",
    None: "; the sum is a secure one where sums are masked.",
}
_CLIENTS = (
    "Over all rounds, and counted in each. Dropped: vanished before an answer; late: answers that came when "
    "their phase was over; declined: clients whose own limits said no, or whose update was not finite."
)
_COSTS = (
    "Means over rounds that were not aborted. Full model: MiB up and down if the same clients trained "
    "all of it. Seconds are CPU time without training, of a client and of the server; wall: a whole round."
)
_HOT_PRIVACY = (
    "User-level differential privacy of everything that left a client, over all rounds and surveys, of "
    "whoever has spent most; against a curious server with which so large a share of a cohort colludes. "
    "∞: no noise."
)
_PRIVACY = (
    "Exposures: rounds of the client invited most often; clients: how many were in a round; least: "
    "contributors of a row. ε is exact for that client's answers about one row, ε∞ bounds any number of "
    "rounds. Neither covers the unions and sums that rounds open: each such round is an exposure."
)


def page(runs: Sequence[Run], figures: Sequence[dict[str, Any]], pictures: Mapping[str, bytes]) -> str:
    """Lay out the page. ``figures`` are of the runs in the same order, ``pictures`` SVG by name."""
    parts = [
        _lead(runs, figures),
        _section("Learning", _table(*learning_table(figures)) + _note(_learning(figures))),
        _grid(("auc", "log_loss", "calibration"), pictures),
        _baselines(figures),
        _section("Costs per client and round", _table(*cost_table(figures)) + _note(_costs(figures))),
        _clients(figures),
        _grid(("bytes_up", "bytes_down", "client_seconds", "server_seconds", "survivors", "lost"), pictures),
        _section("Privacy", _privacy(figures)),
        _section("Settings", _settings(runs)),
        *(_details(run, one) for run, one in zip(runs, figures, strict=True)),
    ]
    names = escape(", ".join(run.name for run in runs))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">\n"
        f"<title>sfsl: {names}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{names}</h1>\n{''.join(parts)}</body>\n</html>\n"
    )


def _lead(runs: Sequence[Run], figures: Sequence[dict[str, Any]]) -> str:
    """Say in plain words what each run came to; of several, first side by side."""
    said = ""
    for run, one in zip(runs, figures, strict=True):
        about = "".join(
            f"<p><b>{escape(what)}.</b> {escape(text)}</p>\n" for what, text in opening(run, one).items()
        )
        name = f"<h3>{escape(run.name)}</h3>\n" if len(runs) > 1 else ""
        said += f'<div class="lead">{name}{about}</div>\n'
    return said if len(runs) == 1 else _table(*glance_table(figures)) + said


def _settings(runs: Sequence[Run]) -> str:
    """Show the settings that one asks for first and, of several runs, all that differ."""
    every = [
        {
            f"{section}.{key}": str(value)
            for section, keys in run.config.items()
            for key, value in (keys.items() if isinstance(keys, dict) else [("", keys)])
        }
        for run in runs
    ]
    names = dict.fromkeys(name for one in every for name in one)
    differ = [name for name in names if len({one.get(name) for one in every}) > 1]
    said_by_all = [name for name in names if all(one.get(name) for one in every)]
    first = [name for name in _ASKED_FIRST if name in said_by_all and name not in differ]
    rows = [[name, *(one.get(name) or "–" for one in every)] for name in (*differ, *first)]
    said = "Those that differ stand first. " if differ else ""
    text = f"{said}Every other is in the fold of its run below, and sfsl init explains each."
    return _table(["setting", *(run.name for run in runs)], rows) + _note(text)


def _section(title: str, content: str) -> str:
    return f"<h2>{escape(title)}</h2>\n{content}"


def _grid(names: Sequence[str], pictures: Mapping[str, bytes]) -> str:
    """Set pictures side by side: three in a row, or two where that comes out even."""
    drawn = [
        f'<figure><img alt="{escape(_TITLES[name])}" src="data:image/svg+xml;base64,'
        f'{base64.b64encode(pictures[name]).decode()}"></figure>\n'
        for name in names
        if name in pictures
    ]
    return f'<div class="grid of{len(drawn)}">\n{"".join(drawn)}</div>\n' if drawn else ""


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(one)}</th>" for one in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows)
    return f'<div class="wide"><table>\n<tr>{head}</tr>\n{body}</table></div>\n'


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>\n'


def _learning(figures: Sequence[dict[str, Any]]) -> str:
    masked = {one["sums"] == "masked" for one in figures if one["asked"]}
    return _LEARNING + _SECURELY[masked.pop() if len(masked) == 1 else None]


def _costs(figures: Sequence[dict[str, Any]]) -> str:
    guessed = any(one["bytes_predicted"] for one in figures)
    return _COSTS + (" Predicted: by the plan, for masked sums, since plain ones hide nothing." * guessed)


def _baselines(figures: Sequence[dict[str, Any]]) -> str:
    heads, rows = baseline_table(figures)
    return _section("Beside the baselines", _table(heads, rows) + _note(_BASELINES)) if rows else ""


def _clients(figures: Sequence[dict[str, Any]]) -> str:
    heads, rows = client_table(figures)
    return _section("Clients", _table(heads, rows) + _note(_CLIENTS)) if rows else ""


def _privacy(figures: Sequence[dict[str, Any]]) -> str:
    heads, rows = privacy_table(figures)
    missing = without_privacy(figures)
    shown = _table(heads, rows) if rows else ""
    if any(one["privacy"] for one in figures):
        plain = any(one["sums"] == "plain" for one in figures)
        shown += _note(
            _PRIVACY + (" PLAIN SUMS hid nothing: their figures are those of masked ones." * plain)
        )
    heads, rows = hot_privacy_table(figures)
    if rows:
        shown += _table(heads, rows) + _note(_HOT_PRIVACY)
    return shown + (_note(missing) if missing else "")


def _details(run: Run, one: dict[str, Any]) -> str:
    aborts = [f"round {line.round}: {line.aborted}" for line in run.lines if line.aborted is not None]
    content = _table(*exchange_table(one)) if run.asked else ""
    if aborts:
        shown = "".join(f"<li>{escape(text)}</li>\n" for text in aborts[:20])
        more = f"<p>… and {len(aborts) - 20} more</p>\n" if len(aborts) > 20 else ""
        content += f"<p>Aborted rounds, which left the model as it was:</p>\n<ul>{shown}</ul>\n{more}"
    settings = "\n".join(
        f"{section}.{key} = {value}"
        for section, keys in run.config.items()
        for key, value in (keys.items() if isinstance(keys, dict) else [("", keys)])
    )
    versions = ", ".join(f"{name} {value}" for name, value in run.versions.items())
    return (
        _section(f"{run.name}, by exchange" if content else run.name, content)
        + f"<details><summary>Every setting, and versions</summary>\n<pre>{escape(settings)}</pre>\n"
        + f"{_note(versions)}</details>\n"
    )
