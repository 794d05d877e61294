"""One page that a privacy engineer can file: what is covered, the claim, and what attacks found here."""

from collections.abc import Sequence
from html import escape

from sfsl_research.audit.owners import OwnersNamed
from sfsl_research.audit.run_audit import RunAudit

_STYLE = """
:root { color-scheme: light; }
body { font: 14px/1.4 system-ui, sans-serif; margin: 0 auto; max-width: 54rem; padding: 1rem; color: #222; }
h1 { font-size: 1.35rem; margin: 0 0 0.3rem; } h2 { font-size: 1.05rem; margin: 1.1rem 0 0.3rem; }
.verdict { border-left: 0.4rem solid; padding: 0.4rem 0.8rem; background: #f5f5f5; margin: 0.6rem 0; }
.good { border-color: #2a7d3f; } .bad { border-color: #b3261e; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9em; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 0.2rem 0.5rem; text-align: left; vertical-align: top; border-bottom: 1px solid #ddd; }
td.n, th.n { text-align: right; white-space: nowrap; }
p { margin: 0.3rem 0; } .note { color: #555; font-size: 0.85em; }
code { font-size: 0.9em; overflow-wrap: anywhere; }
.sign td { height: 2.2rem; border: 1px solid #999; width: 33%; color: #555; }
@media print {
  @page { size: A4; margin: 10mm; }
  body { font-size: 9px; line-height: 1.3; max-width: none; padding: 0; }
  th, td { padding: 0.1rem 0.4rem; } h2 { margin: 0.6rem 0 0.2rem; break-after: avoid; }
  .verdict, tr { break-inside: avoid; }
  .verdict { background: none; border: 1px solid; border-left-width: 0.4rem; }
}
"""

_MOST_NAMED = 0.5  # named by requests, owners are not hidden at all
# What a server sees of a round, and what covers it.
_COVERED = {
    "hot": (
        ("who takes part, and when", "not covered"),
        ("which rows a client has (survey)", "covered: noise in a secure sum"),
        ("values of rows and of the dense part", "covered: joint clip, noise in a secure sum"),
        (
            "scores of held-out samples (histograms), whether a client was clipped",
            "covered: in the same clip",
        ),
        ("which rows a client downloads", "nothing to see: everyone downloads the same"),
        ("lengths and kinds of messages", "the same for all clients"),
    ),
    "sfsl": (
        ("who takes part, and when", "not covered"),
        ("which rows a client asks for", "covered by epsilon, row by row"),
        ("the union of a cohort's rows", "NOT covered: exact"),
        ("the sum of each row, and its weight", "NOT covered: exact, mostly one client's own change"),
        ("the sum of the dense part, and of scores", "NOT covered: exact sums of a cohort"),
        ("several rounds with the same data", "NOT covered, but for answers about rows"),
    ),
    "sfl": (
        ("who takes part, and when", "not covered"),
        ("which rows a client has", "hidden in the request; NOT covered in the sums"),
        ("the sum of each row and of the dense part", "NOT covered: exact"),
    ),
}
_ADVERSARY = {
    "hot": "A server that follows the protocol and is curious, with up to the stated share of a cohort that "
    "tells it everything and adds no noise; any dropouts with which a sum still opens. A server that lies is "
    "covered in active mode only, with up to 512 clients in a round, as far as the specification says.",
    "sfsl": "A server that follows the protocol and is curious: it keeps the requests, the union and the "
    "opened sums of one round. Active mode adds signatures against a lying server and changes nothing on "
    "this page.",
}
_ASSUMED = {
    "hot": "Cryptography holds. At least the counted number of honest survivors is in every opened sum. "
    "Clients keep their ledgers, and take part no more often than the claim says.",
    "sfsl": "Cryptography holds. A client answers once per period, and keeps its permanent answers.",
}


def page(audit: RunAudit, command: str) -> str:
    """Lay out the page; it loads nothing from anywhere, and prints on A4."""
    scheme = audit.scheme
    parts = [
        _verdict(audit),
        _section("What was audited", _facts({**audit.subject, "command": f"<code>{escape(command)}</code>"})),
        _section("The claim", _claim(audit)),
        _section(
            "What the server sees, and what covers it",
            _table(("seen", "covered"), _COVERED.get(scheme, ()), numbers=False),
        ),
        _section(
            "Adversary and assumptions",
            f"<p>{escape(_ADVERSARY.get(scheme, _ADVERSARY['sfsl']))}</p>"
            f"<p>{escape(_ASSUMED.get(scheme, _ASSUMED['sfsl']))}</p>",
        ),
        _linking(audit),
        _canaries(audit),
        _answers(audit),
        _section("Versions", f'<p class="note">{escape(_pairs(audit.versions))}</p>'),
        '<table class="sign"><tr><td>Decision</td><td>Name</td><td>Date and signature</td></tr></table>\n',
    ]
    title = escape(f"Privacy audit: {audit.subject['data']}, scheme {scheme}")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f'<h1>{title}</h1>\n<p class="note">{escape(audit.date)}</p>\n{"".join(parts)}</body>\n</html>\n'
    )


def verdict(audit: RunAudit) -> str:
    """Say in a few sentences what was found."""
    first, hardest = audit.linking[0], audit.linking[-1]
    worst = max(hardest.tables, key=lambda one: one.rows)
    made_easier = f" ({hardest.case})" if hardest is not first else ""
    said = (
        f"Of {worst.rows:,} rows of table {worst.table!r} that one client alone moved{made_easier}, the "
        f"server names the owner of {worst.named:.1%} in one round; {worst.by_requests:.1%} from requests "
        f"alone, {worst.guess:.1%} by guessing. {worst.certain:.1%} are named with a certainty of 95 % or "
        "more"
        + ("" if worst.certain_right is None else f", and of these {worst.certain_right:.1%} rightly")
        + "."
    )
    if audit.scheme != "hot":
        if first.found:
            return (
                said + " Exact sums name their owners: epsilon is about requests, and says nothing of this."
            )
        if worst.by_requests > _MOST_NAMED:
            return said + " Requests alone say whose rows they are."
        return said + " The attack does no better than requests alone here; nothing guarantees that."
    if audit.violated:
        return said + " A CLAIM IS FALSE: see the attacks below. Do not deploy."
    return said + " No attack contradicts the claim."


def _verdict(audit: RunAudit) -> str:
    named = any(one.found or one.by_requests > _MOST_NAMED for one in audit.linking[0].tables)
    bad = audit.violated or named
    return f'<p class="verdict {"bad" if bad else "good"}"><b>{escape(verdict(audit))}</b></p>\n'


def _claim(audit: RunAudit) -> str:
    claim = audit.claim
    delta = f", delta = {claim.delta:g}" if claim.delta else ""
    line = f"epsilon = {_number(claim.epsilon)}{delta}, for {claim.covers}"
    terms = _pairs({name: _number(value) for name, value in claim.terms.items()})
    return f'<p><b>{escape(line)}</b></p><p class="note">{escape(terms)}</p>\n'


def _linking(audit: RunAudit) -> str:
    rows = [_owner_cells(f"{one.table}, {case.case}", one) for case in audit.linking for one in case.tables]
    heads = ("table", "rows", "askers", "guess", "by requests", "named", "certain", "right", "")
    note = (
        "Rows that one client alone moved. Guess: one of those who asked. By requests: without the sums. "
        "Named: rows linked by how alike their changes are, and by askers in common; with standard errors "
        "over clients. Certain: at 95 % or more; right: how many of those. What an attack does not find, "
        "another may."
    )
    return _section("Attack 1: whose row is it?", _table(heads, rows) + _note(note))


def _owner_cells(name: str, one: OwnersNamed) -> tuple[str, ...]:
    return (
        name,
        f"{one.rows:,}",
        f"{one.askers:.1f}",
        f"{one.guess:.1%}",
        f"{one.by_requests:.1%} ± {100 * one.by_requests_error:.1f}",
        f"{one.named:.1%} ± {100 * one.named_error:.1f}",
        f"{one.certain:.1%}",
        "–" if one.certain_right is None else f"{one.certain_right:.1%}",
        "OWNERS NAMED" if one.found else "no better than without sums",
    )


def _canaries(audit: RunAudit) -> str:
    if not audit.canaries:
        return ""
    rows = [
        (
            "a survey" if one.kind == "survey" else "a round that trains",
            f"{one.bound.trials:,}",
            _number(one.bound.claimed_epsilon),
            _number(one.bound.epsilon),
            _number(one.bound.claimed_rho),
            _number(one.bound.rho),
            "CLAIM IS FALSE" if one.bound.violated else "claim stands",
        )
        for one in audit.canaries
    ]
    heads = ("round", "trials", "epsilon claimed", "at least", "rho claimed", "at least", "")
    first = audit.canaries[0]
    note = (
        f"A client with the longest vector is in a sum or is not; noise of {first.honest} clients, those "
        f"that the claim counts on. Lower bounds with {first.bound.confidence:.1%} confidence, at delta = "
        f"{first.bound.delta:g}, for one round."
    )
    return _section("Attack 2: is a known client there?", _table(heads, rows) + _note(note))


def _answers(audit: RunAudit) -> str:
    if not audit.answers:
        return ""
    rows = [
        (
            f"{one.rounds}",
            f"{one.claimed:.3f}",
            f"{one.lower:.3f}",
            "CLAIM IS FALSE" if one.violated else "claim stands",
        )
        for one in audit.answers
    ]
    sure = f"{audit.answers[0].confidence:.2%}"
    note = f"Lower bounds with {sure} confidence each, from the code that clients run."
    heads = ("rounds", "epsilon claimed", "at least", "")
    return _section("Attack 2: is a row asked for a real one?", _table(heads, rows) + _note(note))


def _section(title: str, content: str) -> str:
    return f"<h2>{escape(title)}</h2>\n{content}"


def _facts(facts: dict[str, str]) -> str:
    """Lay out named facts; values are text, but for the command, which is HTML already."""
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{value if name == 'command' else escape(value)}</td></tr>\n"
        for name, value in facts.items()
    )
    return f'<div class="wide"><table>\n{rows}</table></div>\n'


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = True) -> str:
    def cells(tag: str, row: Sequence[str]) -> str:
        kind = ' class="n"' if numbers else ""
        return "".join(
            f"<{tag}{kind if place else ''}>{escape(cell)}</{tag}>" for place, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>\n" for row in rows)
    return f'<div class="wide"><table>\n<tr>{cells("th", heads)}</tr>\n{body}</table></div>\n'


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>\n'


def _pairs(values: dict[str, str]) -> str:
    return "; ".join(f"{name} {value}" for name, value in values.items())


def _number(value: float) -> str:
    return "∞" if value == float("inf") else f"{value:,.4g}"
