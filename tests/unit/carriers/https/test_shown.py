"""What the server shows and says: numbers before anything happened, refusals that name nobody, help."""

import asyncio
import json
import re
from pathlib import Path
from types import SimpleNamespace

import httpx
import msgspec
import pytest
from typer.testing import CliRunner

from clocks import PATIENCE
from deployment import Deployment, Wire, serve
from sfsl.carriers.https import status
from sfsl.carriers.https.app import refusal
from sfsl.carriers.https.page import html
from sfsl.carriers.https.status import RoundShown, Status, Totals
from sfsl.cli import app
from sfsl.crypto.secret import Identity, Secret
from sfsl.errors import RoundOver
from sfsl.privacy import accounting
from sfsl.rounds.exchanges import order
from sfsl.rounds.record import RoundTally
from sfsl.service.folder import REGISTRY
from sfsl.service.messages import CODEC, Enrol
from sfsl.service.registry import Enrolment
from sfsl.service.signing import CLIENT, client_id

NOW = 1_795_000_000.0  # 2026-11-18 11:06:40 UTC
BARE = Status("", 0, "waiting", 0, 0, 0, 0, 0, False, 0, 0, None, None, None, ())
SPEC = Path(__file__).parents[4] / "docs/spec/network.md"


def test_what_did_not_happen_yet_is_zero_and_not_absent(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path) as world:
            text = status.text(world.coordinator.status(), world.coordinator.totals)
            samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
            assert samples["sfsl_auc"] == samples["sfsl_log_loss"] == samples["sfsl_base_log_loss"] == "NaN"
            for exchange in order(active=False):
                assert samples[f'sfsl_dropouts_total{{exchange="{exchange}"}}'] == "0"
            for error in status.REFUSALS:
                assert samples[f'sfsl_refused_total{{error="{error}"}}'] == "0"
            world.coordinator.totals.refused["Replayed"] += 2
            world.coordinator.totals.refused["HttpError"] += 1
            text = status.text(world.coordinator.status(), world.coordinator.totals)
            for line in ('{error="Replayed"} 2', '{error="HttpError"} 1', '{error="TooMany"} 0'):
                assert text.count(f"sfsl_refused_total{line}\n") == 1

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))


def test_the_scheme_is_shown_and_what_a_round_costs() -> None:
    bare = BARE
    hot = msgspec.structs.replace(bare, scheme="hot", kind="survey", epsilon=2.5, delta=1e-6, hot_rows=1234)
    text = status.text(hot, Totals())
    for line in ('sfsl_scheme{scheme="hot",kind="survey"} 1', "sfsl_epsilon 2.5", "sfsl_delta 1e-06"):
        assert f"{line}\n" in text
    assert "sfsl_hot_rows 1234\n" in text
    page = html(hot, (), NOW)
    assert "hot, survey next" in page
    assert "2.5 at 1e-06" in page
    assert "1,234" in page
    without = msgspec.structs.replace(hot, epsilon=float("inf"))
    assert "sfsl_epsilon +Inf\n" in status.text(without, Totals())
    assert "no noise" in html(without, (), NOW)
    assert "sfsl_epsilon NaN\n" in status.text(bare, Totals())
    assert "Hot rows" not in html(bare, (), NOW)


def test_every_refusal_of_the_specification_is_counted_from_the_start() -> None:
    section = SPEC.read_text().split("### 5.6 Refusals\n", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"(?m)^\| [45]\d\d[^|]*\|([^|]*)\|", section)
    named = {name for row in rows for name in re.findall(r"`([A-Z]\w+)`", row)}
    assert len(named) > 15
    assert set(status.REFUSALS) == named - {"RoundOver"} | {"Disconnected"}


def test_refusals_name_nobody(tmp_path: Path) -> None:
    """Nothing of what was sent is in them, not even who the sender says it is."""

    async def scenario() -> None:
        async with Deployment(tmp_path) as world:
            (tmp_path / "list").write_text("")
            transport = httpx.ASGITransport(serve(world, enrolment=Enrolment.listed(tmp_path / "list")))
            async with httpx.AsyncClient(transport=transport, base_url="https://test") as http:
                (wire,) = (Wire(guest, http, world.registry.deployment) for guest in world.clients(1))
                target, known = "/v1/next/" + "0" * 32 + "?after=0", wire.guest.id
                twice = wire.headers("GET", target)
                await wire.send("GET", target, headers=twice)
                late = wire.headers("GET", target) | {"Sfsl-Time": "1"}
                answers = [await wire.send("GET", target, headers=headers) for headers in (twice, late)]
                world.registry.revoke(known, 1)
                answers.append(await wire.send("GET", target))
                new = Identity(Secret(b"new" + bytes(29)))
                wire.guest.identity = new
                answers.append(await wire.send("GET", target))
                answers.append(await wire.send("POST", "/v1/enrol", CODEC.encode(Enrol(new.public))))
                other = Identity(Secret(b"other" + bytes(27))).public
                answers.append(await wire.send("POST", "/v1/enrol", CODEC.encode(Enrol(other))))
                assert wire.headers("GET", target)[CLIENT] == client_id(new.public)
        said = [(answer.json()["error"], answer.json()["message"]) for answer in answers]
        assert [error for error, _ in said] == [
            "Replayed", "ClockSkew", "Revoked", "UnknownClient", "Refused", "AuthenticationFailed",
        ]  # fmt: skip
        for _, message in said:
            assert not re.search("[0-9a-f]{32}", message)
        assert said[3][1] == "this client is not enrolled here"
        assert re.search(r"is \d+\.\d s behind ours; at most", said[1][1])

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))


def test_rounds_that_stand_and_that_came_to_nothing_are_counted() -> None:
    totals = Totals()
    for number, aborted in enumerate((None, "too few", None), 1):
        totals.add(RoundTally(3).record(number, None, aborted=aborted), RoundTally(3))
    assert (totals.committed, totals.aborted) == (2, 1)
    bare = status.Status("", 0, "", 0, 0, 0, 0, 0, False, 0, 0, None, None, None, ())
    assert 'sfsl_rounds_total{outcome="aborted"} 1\n' in status.text(bare, totals)


def test_why_a_round_ended_is_told_without_names(tmp_path: Path) -> None:
    who = "0123456789abcdef" * 2
    why = f"2 shares of client '{who}' arrived, 3 are needed; no sum was opened"
    told = refusal(RoundOver(why, outcome="aborted", round_number=1))
    assert json.loads(bytes(told.body))["message"] == why.replace(f"client '{who}'", "a client")
    totals = Totals()
    values = {"aborted": why, "round": 1, "cohort": 3, "survivors": 0, "late": 0, "wall_seconds": 1.0}
    counts = {"dropped": {}, "bytes_up": {}, "bytes_down": {}}
    learned = dict.fromkeys(("auc_secure", "log_loss_secure", "base_log_loss_secure"))
    totals.show(SimpleNamespace(**values, **counts, **learned))  # type: ignore[arg-type]
    assert totals.last[0].aborted == "2 shares of a client arrived, 3 are needed; no sum was opened"


def test_a_log_loss_is_shown_beside_the_base_rate_of_the_same_round(tmp_path: Path) -> None:
    totals = Totals()
    values = {"aborted": None, "cohort": 3, "survivors": 3, "late": 0, "wall_seconds": 1.0}
    counts = {"dropped": {}, "bytes_up": {}, "bytes_down": {}}
    # What the last round measured was too coarse to say.
    for number, loss, base in ((1, 0.51, 0.62), (2, None, 0.69)):
        learned = {"auc_secure": None, "log_loss_secure": loss, "base_log_loss_secure": base}
        totals.show(SimpleNamespace(round=number, **values, **counts, **learned))  # type: ignore[arg-type]
    assert totals.log_losses == (0.51, 0.62)

    async def scenario() -> None:
        async with Deployment(tmp_path) as world:
            now = msgspec.structs.replace(
                world.coordinator.status(), log_loss=0.51, base_log_loss=0.62, rounds=tuple(totals.last)
            )
            text = status.text(now, totals)
            assert "sfsl_log_loss 0.51\n" in text
            assert "sfsl_base_log_loss 0.62\n" in text
            shown = html(now, totals.last, NOW)
            assert '<dd id="loss">0.5100 / 0.6200</dd>' in shown
            assert "<td>0.5100</td>" in shown

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))


def rounds(*, aborted: int) -> list[RoundShown]:
    why = "too few <b>clients</b> & keys"
    return [
        RoundShown(
            number, why if number == aborted else None, 10, 0 if number == aborted else 9, 1, 0,
            None if number < 2 else 0.6 + number / 100, None, None, 172_000.0, 168_000.0, 6.2,
        )
        for number in range(1, 6)
    ]  # fmt: skip


def test_the_page_says_who_is_awaited_and_until_when() -> None:
    steps = ("invitation", "inbound", "submodel", "unmask-update")
    training = msgspec.structs.replace(
        BARE, round=7, phase="submodel", cohort=10, expected=9, heard=6, steps=steps, seconds_left=41.0
    )
    page = html(training, (), NOW)
    assert "Round 8, 10 clients" in page
    assert "Waiting for 3 of 9 clients to train and upload, at most until 11:07:21 UTC (41 s left)." in page
    marks = re.findall('<li class="(past|now|next)" title="([a-z-]+)">', page)
    assert marks == list(zip(("past", "past", "now", "next"), steps, strict=True))
    assert '<progress value="6" max="9"' in page
    forming = msgspec.structs.replace(BARE, round=7, waiting=5, wanted=10, least=8, seconds_left=12.0)
    assert "5 of 10 clients have checked in; 8 will do from 11:06:52 UTC on (12 s left)." in html(
        forming, (), NOW
    )
    late = msgspec.structs.replace(forming, seconds_left=0.0)
    assert "8 will do now" in html(late, (), NOW)
    idle = msgspec.structs.replace(BARE, wanted=10, least=8)
    assert "0 of 10 clients have checked in; the first of them sets a deadline." in html(idle, (), NOW)


def test_curves_have_all_rounds_and_crosses_those_that_were_aborted() -> None:
    page = html(BARE, rounds(aborted=3), NOW)
    figures = dict(re.findall("<figcaption>(.*?)</figcaption>(.*?)</figure>", page))
    lines = {
        title: [len(points.split()) for points in re.findall('points="([^"]*)"', rest)]
        for title, rest in figures.items()
    }
    assert lines["AUC of cohorts, before they train"] == [3], "of the first round it is not known"
    assert lines["Clients in the sum, %"] == [4], "an aborted round has a cross instead"
    assert lines["kB per client and round"] == [4, 4]
    assert figures["Clients in the sum, %"].count('<path class="cross"') == 1
    assert "round 3 was aborted: too few &lt;b&gt;clients&lt;/b&gt; &amp; keys" in page
    assert "<b>clients</b>" not in page
    assert "not known yet" in figures["Log loss of cohorts"]
    for number in re.findall('(?:points|cx|cy|x1|y1|d)="([^"]*)"', page):
        assert "nan" not in number
        assert "inf" not in number


def test_budgets_that_are_left_are_shown() -> None:
    used = ((0, 4), (3, 5), (11, 1))
    hot = msgspec.structs.replace(BARE, scheme="hot", enrolled=10, exposures=used, rounds_allowed=11)
    page = html(hot, (), NOW)
    assert "9 of 10 clients have rounds left; noise is for 11 of each." in page
    assert "Rounds left" in page
    assert budget(page) == [("0 to 2", "1"), ("3 to 5", "0"), ("6 to 8", "5"), ("9 to 11", "4")]
    weekly = msgspec.structs.replace(
        BARE, enrolled=10, exposures=used, had_turn=4, period_ends=NOW + 3 * 86_400
    )
    said = "6 of 10 clients can still be invited in this period; the next begins in 3 days (2026-11-21)."
    assert said in html(weekly, (), NOW)
    many = msgspec.structs.replace(BARE, enrolled=40, exposures=tuple((n, 2) for n in range(20)))
    assert budget(html(many, (), NOW)) == [(f"{n} to {n + 3}", "8") for n in range(0, 20, 4)]
    few = msgspec.structs.replace(BARE, enrolled=3, exposures=((0, 2), (1, 1)))
    assert budget(html(few, (), NOW)) == [("0", "2"), ("1", "1")]


def budget(page: str) -> list[tuple[str, str]]:
    return re.findall(r"<tr><td>(\d+(?: to \d+)?)</td><td>(\d+)</td><td><svg", page)


def test_many_rounds_are_drawn_faintly_and_their_means_over_them() -> None:
    many = [
        msgspec.structs.replace(rounds(aborted=0)[4], round=n, seconds=float(n % 2)) for n in range(1, 41)
    ]
    page = html(BARE, many, NOW)
    assert page.count('<polyline class="faint c0"') == 1, "the others do not change"
    seconds = re.search("<figcaption>Seconds a round</figcaption>(.*?)</figure>", page)
    assert seconds is not None
    faint, line = (
        {point.split(",")[1] for point in re.findall('points="([^"]*)"', seconds[1])[at].split()[4:]}
        for at in (0, 1)
    )
    assert (len(faint), len(line)) == (2, 1), "ones and zeros, and their mean"
    assert re.findall('text-anchor="middle">([0-9.]+)<', seconds[1]) == ["10", "20", "30", "40"]


@pytest.mark.parametrize(
    ("days", "said", "alarms"),
    [
        (397, "in 397 days (2027\u201112\u201120)", False),
        (20, "in 20 days", True),
        (-1, "ended on 2026\u201111\u201117", True),
    ],
)
def test_when_the_certificate_ends_is_shown_and_cried_out_in_time(
    days: float, said: str, alarms: bool
) -> None:
    page = html(msgspec.structs.replace(BARE, certificate_ends=NOW + days * 86_400), (), NOW)
    assert f'<dd id="certificate">{said}' in page
    assert ('<p class="card alarm">The certificate ' in page) == alarms
    assert '<dd id="certificate">no TLS</dd>' in html(BARE, (), NOW)


def test_looking_at_the_page_converts_no_epsilon_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    converted: list[float] = []
    convert = accounting._convert

    def counted(rho: float, delta: float) -> float:
        converted.append(rho)
        return convert(rho, delta)

    monkeypatch.setattr(accounting, "_convert", counted)
    accounting.epsilon_of.cache_clear()
    first = accounting.epsilon_of(0.0371, 1e-6)
    once = len(converted)
    assert once > 0
    assert accounting.epsilon_of(0.0371, 1e-6) == first
    assert len(converted) == once


@pytest.mark.parametrize("command", ["list", "revoke"])
def test_help_names_the_registry_as_the_server_does(command: str) -> None:
    shown = CliRunner().invoke(app, ["keys", command, "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert f"server/{REGISTRY}" in shown.output
