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
from sfsl.carriers.https.status import Totals, html
from sfsl.cli import app
from sfsl.crypto.secret import Identity, Secret
from sfsl.errors import RoundOver
from sfsl.rounds.exchanges import order
from sfsl.rounds.record import RoundTally
from sfsl.service.folder import REGISTRY
from sfsl.service.messages import CODEC, Enrol
from sfsl.service.registry import Enrolment
from sfsl.service.signing import CLIENT, client_id

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
    bare = status.Status("", 0, "", 0, 0, 0, 0, 0, False, 0, 0, None, None, None, ())
    hot = msgspec.structs.replace(bare, scheme="hot", kind="survey", epsilon=2.5, delta=1e-6, hot_rows=1234)
    text = status.text(hot, Totals())
    for line in ('sfsl_scheme{scheme="hot",kind="survey"} 1', "sfsl_epsilon 2.5", "sfsl_delta 1e-06"):
        assert f"{line}\n" in text
    assert "sfsl_hot_rows 1234\n" in text
    page = html(hot)
    assert "hot, survey next" in page
    assert "2.5 at 1e-06" in page
    assert "1,234" in page
    without = msgspec.structs.replace(hot, epsilon=float("inf"))
    assert "sfsl_epsilon +Inf\n" in status.text(without, Totals())
    assert "no noise" in html(without)
    assert "sfsl_epsilon NaN\n" in status.text(bare, Totals())
    assert "Hot rows" not in html(bare)


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
            shown = html(now)
            assert '<dd id="loss">0.5100 / 0.6200</dd>' in shown
            assert "<td>0.5100</td>" in shown

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))


@pytest.mark.parametrize("command", ["list", "revoke"])
def test_help_names_the_registry_as_the_server_does(command: str) -> None:
    shown = CliRunner().invoke(app, ["keys", command, "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert f"server/{REGISTRY}" in shown.output
