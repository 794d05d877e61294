"""One HTML page that compares runs: pictures inline, nothing loaded from anywhere, readable on a phone."""

import base64
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from sfsl.report.comparison import cost_table, exchange_table, learning_table, privacy_table
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
.note { color: #555; font-size: 0.9rem; }
"""

_TITLES = {
    "auc": "AUC and loss over rounds",
    "bytes": "Bytes by exchange and direction",
    "seconds": "CPU time by exchange",
    "dropouts": "Dropouts",
}


_LEARNING = (
    "AUC: on the central test set, last and best, and after which round that was. Cohorts: the last AUC from "
    "securely summed histograms, on clients' own held-out samples that could be scored."
)
_COSTS = (
    "Means over rounds that were not aborted. Full model: MiB up and down if the same clients trained "
    "all of it. Seconds are CPU time without training, of a client and of the server; wall: a whole round."
)
_PRIVACY = (
    "Rounds and exposures are those of the client invited most often; least: contributors of a row. ε is "
    "exact for its answers about one row over that many rounds, ε∞ bounds any number. Neither covers the "
    "unions and sums that rounds open: each such round is an exposure."
)


def page(runs: Sequence[Run], figures: Sequence[dict[str, Any]], pictures: Mapping[str, bytes]) -> str:
    """``figures`` of the runs in the same order, ``pictures`` as PNG by name."""
    parts = [
        _section("Learning", _table(*learning_table(figures)) + _note(_LEARNING)),
        _picture("auc", pictures),
        _section("Costs per client and round", _table(*cost_table(figures)) + _note(_COSTS)),
        _picture("bytes", pictures),
        _picture("seconds", pictures),
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
        f"<h1>{names}</h1>\n{''.join(parts)}</body>\n</html>\n"
    )


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


def _privacy(figures: Sequence[dict[str, Any]]) -> str:
    heads, rows = privacy_table(figures)
    if not rows:
        return _note("No run has a summary yet; privacy is summed up when a run ends.")
    return _table(heads, rows) + _note(_PRIVACY)


def _details(run: Run, one: dict[str, Any]) -> str:
    aborts = [f"round {line.round}: {line.aborted}" for line in run.lines if line.aborted is not None]
    content = _table(*exchange_table(one))
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
