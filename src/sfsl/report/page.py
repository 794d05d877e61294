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
    hot_privacy_table,
    learning_table,
    privacy_table,
    without_privacy,
)
from sfsl.report.runs import Run

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 62rem; padding: 1rem; color: #222; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
img { max-width: 100%; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.3rem 0.6rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
pre { overflow-x: auto; background: #f5f5f5; padding: 0.6rem; font-size: 0.85rem; }
.verdict { font-size: 1.1rem; }
.note { color: #555; font-size: 0.9rem; }
"""

_TITLES = {
    "auc": "AUC and log loss over rounds",
    "calibration": "Calibration: are chances what they say?",
    "bytes": "Bytes by exchange and direction",
    "seconds": "CPU time by exchange",
    "dropouts": "Dropouts",
}

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
    """Lay out the page. ``figures`` are of the runs in the same order, ``pictures`` PNG by name."""
    parts = [
        _section("Learning", _table(*learning_table(figures)) + _note(_learning(figures))),
        _baselines(figures),
        _picture("auc", pictures),
        _picture("calibration", pictures),
        _section("Costs per client and round", _table(*cost_table(figures)) + _note(_COSTS)),
        _picture("bytes", pictures),
        _picture("seconds", pictures),
        _clients(figures),
        _picture("dropouts", pictures),
        _section("Privacy", _privacy(figures)),
        *(_details(run, one) for run, one in zip(runs, figures, strict=True)),
    ]
    names = escape(", ".join(run.name for run in runs))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">\n"
        f"<title>sfsl: {names}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{names}</h1>\n{''.join(map(_verdict, runs))}{''.join(parts)}</body>\n</html>\n"
    )


def _verdict(run: Run) -> str:
    return f'<p class="verdict"><b>{escape(run.name)}</b>: {escape(run.verdict)}</p>\n' if run.verdict else ""


def _section(title: str, content: str) -> str:
    return f"<h2>{escape(title)}</h2>\n{content}"


def _picture(name: str, pictures: Mapping[str, bytes]) -> str:
    if name not in pictures:
        return ""
    title = escape(_TITLES.get(name, name))
    data = base64.b64encode(pictures[name]).decode()
    return f'<h2>{title}</h2>\n<img alt="{title}" src="data:image/png;base64,{data}">\n'


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(one)}</th>" for one in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n" for row in rows)
    return f'<div class="wide"><table>\n<tr>{head}</tr>\n{body}</table></div>\n'


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>\n'


def _learning(figures: Sequence[dict[str, Any]]) -> str:
    masked = {one["sums"] == "masked" for one in figures if one["asked"]}
    return _LEARNING + _SECURELY[masked.pop() if len(masked) == 1 else None]


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
        _section(run.name, content)
        + f"<details><summary>Settings and versions</summary>\n<pre>{escape(settings)}</pre>\n"
        + f"{_note(versions)}</details>\n"
    )
