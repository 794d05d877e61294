"""What the status page says, at the edges of what it is told."""

import re
from typing import Any

import msgspec
import pytest

from sfsl.carriers.https.page import html
from sfsl.carriers.https.status import RoundShown, Status, Totals, nameless, text
from sfsl.rounds.record import RoundTally

NOW = 1_795_000_000.0  # 2026-11-18 11:06:40 UTC
DAY = 86_400
BARE = Status("", 0, "waiting", 0, 0, 0, 0, 0, False, 0, 0, None, None, None, ())
ROUND = RoundShown(1, None, 10, 9, 2, 3, 0.61, 0.5, 0.6, 999.0, 1000.0, 6.25)


def said(history: tuple[RoundShown, ...] = (), **fields: Any) -> str:
    return html(msgspec.structs.replace(BARE, **fields), history, NOW)


def fact(page: str, name: str) -> str:
    found = re.search(f'<dd id="{name}">([^<]*)</dd>', page)
    assert found is not None
    return found[1]


def phase(page: str) -> str:
    found = re.search('<p id="phase">([^<]*)</p>', page)
    assert found is not None
    return found[1]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (30 * DAY, "in 30 days"),
        (2 * DAY, "in 2 days"),
        (2 * DAY - 3600, "in 47 hours"),
        (3600, "in 1 hours"),
        (0, "in 0 hours"),
        (-1, "ended on"),
    ],
)
def test_when_a_certificate_ends(seconds: float, shown: str) -> None:
    assert fact(said(certificate_ends=NOW + seconds), "certificate").startswith(shown)


def test_an_alarm_a_month_before_a_certificate_ends() -> None:
    assert "alarm" not in said(certificate_ends=NOW + 30 * DAY).split("<main>")[1]
    assert '<p class="card alarm">The certificate ends in 30 days' in said(
        certificate_ends=NOW + 30 * DAY - 60
    )
    assert "alarm" not in said().split("<main>")[1]
    assert '<p class="card alarm">a &amp; b</p>' in said(degraded="a & b")
    assert '<p class="card alarm">The server shuts down</p>' in said(stopping=True)
    assert (fact(said(), "health"), fact(said(degraded="so"), "health")) == ("ok", "so")


def test_what_a_server_waits_for() -> None:
    forming = {"round": 7, "waiting": 5, "wanted": 10, "least": 8}
    assert "<h2>Round 8 has not begun</h2>" in said(**forming)
    assert '<progress value="5" max="10" aria-label="answers">5 of 10</progress>' in said(**forming)
    assert phase(said(**forming, stopping=True)).endswith("have checked in; no round begins any more.")
    assert phase(said(**forming, seconds_left=0.0)).endswith("8 will do now.")
    assert phase(said(**forming, seconds_left=119.0)).endswith("from 11:08:39 UTC on (119 s left).")
    assert phase(said(**forming, seconds_left=120.0)).endswith("from 11:08:40 UTC on (2 min left).")
    running = {"cohort": 4, "expected": 3, "phase": "inbound", "steps": ("invitation", "inbound")}
    assert phase(said(**running, heard=1)) == "Waiting for 2 of 3 clients to send masked rows."
    assert phase(said(**running, heard=1, scheme="hot")).endswith("to compute and upload.")
    assert phase(said(**running, heard=3)) == "The server computes."
    assert phase(said(**running | {"expected": 0})) == "The server computes."
    assert phase(said(**running | {"phase": "else"}, heard=1)).endswith("clients to answer.")
    committing = said(**running | {"phase": "committing"})
    assert re.findall('<li class="(past|now|next)"', committing) == ["past", "past"]
    assert '<li class="past" title="invitation">✓ deal key shares</li>' in said(**running)
    assert '<li class="now" title="inbound">send masked rows</li>' in said(**running)
    assert '<progress value="0" max="1"' in said()


def test_figures_of_rounds() -> None:
    page = said((ROUND,), rounds=(ROUND,), committed=1234, aborted=5, enrolled=9876, waiting=1, auc=0.61)
    assert fact(page, "ends") == "1,234 / 5"
    assert (fact(page, "enrolled"), fact(page, "waiting"), fact(page, "auc")) == ("9,876", "1", "0.6100")
    assert (fact(said(), "auc"), fact(said(), "loss")) == ("–", "– / –")
    assert fact(said(clock_off_seconds=1.26, clock_refused=3), "clock") == "1.3 s / 3"
    row = page.split('<tbody id="rounds">')[1].split("</tbody>")[0]
    assert re.findall("<td[^>]*>([^<]*)</td>", row) == [
        "1", "committed", "9 of 10", "2", "3", "0.6100", "0.5000", "999 B", "1.0 kB", "6.2 s",
    ]  # fmt: skip
    large = msgspec.structs.replace(ROUND, bytes_up=1e6, bytes_down=999_999.0, aborted="so & so")
    row = said(rounds=(large,)).split('<tbody id="rounds">')[1]
    for one in ("<td>1.00 MB</td>", "<td>1000.0 kB</td>", '<td class="why">so &amp; so</td>'):
        assert one in row


def test_curves_are_in_units_that_fit() -> None:
    def titled(**fields: float) -> str:
        page = said((msgspec.structs.replace(ROUND, **fields),))
        return re.findall("<figcaption>([^<]*) per client and round", page)[0]

    assert titled(bytes_up=999.0, bytes_down=1.0) == "Bytes"
    assert titled(bytes_up=1.0, bytes_down=1000.0) == "kB"
    assert titled(bytes_up=1e6, bytes_down=1.0) == "MB"
    page = said((ROUND,))
    assert "<h2>Round 1</h2>" in page
    assert '<span class="key c0">of the cohort <b>90</b></span>' in page
    assert (
        '<span class="key c0">sent <b>0.999</b></span><span class="key c1">received <b>1</b></span>' in page
    )
    assert '<span class="key c0">seconds <b>6.25</b></span>' in page
    assert '<span class="key c0">AUC <b>0.610</b></span>' in page
    assert (
        '<span class="key c0">model <b>0.500</b></span><span class="key c1">base rate <b>0.600</b></span>'
        in page
    )
    slow = said(
        (
            msgspec.structs.replace(ROUND, seconds=99.96),
            msgspec.structs.replace(ROUND, round=2, seconds=1234.0),
        )
    )
    assert '<span class="key c0">seconds <b>1,234</b></span>' in slow
    assert "<h2>Rounds 1 to 2</h2>" in slow
    assert "<h2>No round yet</h2>" in said()
    # Without a log loss its base rate says nothing.
    bare = said((msgspec.structs.replace(ROUND, log_loss=None),))
    assert "base rate <b>" not in bare
    empty = said((msgspec.structs.replace(ROUND, cohort=0, survivors=0),))
    assert '<span class="key c0">of the cohort <b>0</b></span>' in empty


def test_budgets_at_their_end() -> None:
    assert "Budget" not in said(enrolled=3)
    assert "sets no limit" in said(enrolled=3, exposures=((0, 3),))
    used = ((0, 1), (4, 2), (5, 7))
    noisy = said(enrolled=10, exposures=used, rounds_allowed=5)
    assert "3 of 10 clients have rounds left" in noisy
    widths = re.findall('<rect class="bar" width="([0-9.]+)" height="8"/>', noisy)
    assert widths == ["100.0", "0.0", "11.1"]  # 0 to 1, 2 to 3, 4 to 5
    over = said(enrolled=10, exposures=((7, 10),), rounds_allowed=5)
    assert "<tr><td>0</td><td>10</td>" in over
    turns = said(enrolled=3, exposures=used, had_turn=5, period_ends=NOW + DAY)
    assert "0 of 3 clients can still be invited in this period; the next begins in 24 hours" in turns


def test_hot_rounds_say_what_they_cost() -> None:
    hot = {"scheme": "hot", "kind": "train", "delta": 1e-6, "hot_rows": 1234}
    page = said(**hot, epsilon=2.345)
    assert (fact(page, "scheme"), fact(page, "epsilon"), fact(page, "hot_rows")) == (
        "hot, train next", "2.35 at 1e-06", "1,234",
    )  # fmt: skip
    assert fact(said(**hot), "epsilon") == "no noise"
    keys = re.findall('<dd id="([a-z_]+)">', page)
    assert keys.index("scheme") + 1 == keys.index("epsilon") == keys.index("hot_rows") - 1
    assert keys[-3:] == ["certificate", "clock", "health"]


def test_totals_keep_the_last_three_hundred_and_list_twenty() -> None:
    totals = Totals()
    for number in range(1, 303):
        totals.add(RoundTally(2).record(number, None), RoundTally(2))
    assert (len(totals.last), totals.last[0].round, totals.last[-1].round) == (300, 3, 302)
    assert [one.round for one in totals.listed] == list(range(302, 282, -1))
    assert (totals.auc, totals.log_losses) == (None, (None, None))


def test_lines_for_programs() -> None:
    totals = Totals()
    tally = RoundTally(3, dropped={"inbound": 2}, declined={"a": 1, "b": 2}, late=4)
    tally.up("inbound", 10)
    tally.down("inbound", 20)
    totals.add(tally.record(1, None), tally)
    totals.left_out += 1
    shown = text(msgspec.structs.replace(BARE, stopping=True, degraded="so", had_turn=5, phase='x"y'), totals)
    for line in (
        'sfsl_rounds_total{outcome="committed"} 1',
        'sfsl_bytes_total{exchange="inbound",direction="up"} 10',
        'sfsl_bytes_total{exchange="inbound",direction="down"} 20',
        'sfsl_dropouts_total{exchange="inbound"} 2',
        'sfsl_phase{phase="other"} 1',
        "sfsl_declined_total 3",
        "sfsl_left_out_total 1",
        "sfsl_late_total 4",
        "sfsl_degraded 1",
        "sfsl_stopping 1",
        "sfsl_turns_taken 5",
        "sfsl_seconds_left NaN",
        "sfsl_certificate_expiry_timestamp_seconds NaN",
    ):
        assert f"\n{line}\n" in f"\n{shown}", line
    quiet = text(msgspec.structs.replace(BARE, seconds_left=2.5, certificate_ends=7.0), Totals())
    for line in ("sfsl_degraded 0", "sfsl_stopping 0", "sfsl_seconds_left 2.5"):
        assert f"\n{line}\n" in quiet
    assert "sfsl_certificate_expiry_timestamp_seconds 7.0\n" in quiet


def test_what_a_status_says_where_nobody_says() -> None:
    assert (BARE.scheme, BARE.kind, BARE.epsilon, BARE.delta, BARE.hot_rows) == ("sfsl", "", None, None, 0)
    assert (BARE.certificate_ends, BARE.clock_off_seconds, BARE.clock_refused) == (None, 0.0, 0)
    assert (BARE.degraded, BARE.seconds_left, BARE.steps, BARE.wanted, BARE.least) == ("", None, (), 0, 0)
    assert (BARE.exposures, BARE.rounds_allowed, BARE.had_turn, BARE.period_ends) == ((), None, 0, None)
    fresh = Totals()
    assert (fresh.committed, fresh.aborted, fresh.left_out, fresh.listed) == (0, 0, 0, ())
    assert (fresh.refused, fresh.tally) == ({}, RoundTally())


def test_nobody_is_named() -> None:
    who = "0123456789abcdef" * 2
    assert nameless(f"client {who} and client '{who}'", "one") == "one and one"
    assert nameless(f"client {who}") == "a client"
