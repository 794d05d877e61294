"""What a server says about clocks: in refusals, in its log, on its page."""

import asyncio
from pathlib import Path

import httpx
import pytest

from clocks import PATIENCE
from deployment import HOSTS, Deployment, Wire
from sfsl.carriers.https.app import AppLimits, Server, create_app
from sfsl.service.clock import SigningClock
from sfsl.service.registry import Enrolment
from sfsl.service.signing import Verifier

NOW, HOUR = 1_800_000_000_000, 3_600_000


def test_a_refusal_says_what_to_sign_by_and_a_clock_that_was_set_is_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    set_by, passed = [0], [0]
    clock = SigningClock(
        tmp_path / "clock", wall=lambda: NOW + passed[0] + set_by[0], steady=lambda: 5 + passed[0]
    )

    async def run() -> None:
        async with Deployment(tmp_path) as world:
            verifier = Verifier(
                world.registry.deployment, world.registry.public_key, hosts=HOSTS,
                not_before_ms=clock.began_ms, cover=clock.cover,
            )  # fmt: skip
            limits = AppLimits()
            server = Server(world.coordinator, verifier, Enrolment.open(9), b"package", limits, clock=clock)
            transport = httpx.ASGITransport(create_app(server, limits))
            async with httpx.AsyncClient(transport=transport, base_url="https://test") as http:
                wire = Wire(world.clients(1)[0], http, world.registry.deployment)
                target = "/v1/published/" + 64 * "0"
                for _ in range(3):
                    late = wire.headers("GET", target, now=NOW - HOUR)
                    told = await http.get(target, headers=late)
                    assert (told.status_code, told.json()["error"]) == (401, "ClockSkew")
                    assert (told.json()["time"], told.json()["clock"]) == (NOW, NOW)
                set_by[0] = -HOUR
                passed[0] += 1500
                about = (await http.get("/v1/about")).json()
                assert (about["time"], about["clock"]) == (NOW + 1500, NOW + 1500 - HOUR)
                answer = await http.get(target, headers=wire.headers("GET", target, now=about["time"]))
                assert answer.status_code == 404  # taken, and there is no such thing
                shown = (await http.get("/status.json")).json()
                assert (shown["clock_off_seconds"], shown["clock_refused"]) == (-3600.0, 3)
                assert "-3600.0 s / 3" in (await http.get("/")).text
                metrics = (await http.get("/metrics")).text
                assert "sfsl_clock_off_seconds -3600.0\n" in metrics
                assert 'sfsl_refused_total{error="ClockSkew"} 3\n' in metrics

    asyncio.run(asyncio.wait_for(run(), PATIENCE))
    said = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert said == [  # the other two are counted, and told with the next line
        "refused because of their time: 1 requests, the last one signed 60 minutes behind this server's "
        "clock; clients set theirs by it and try again",
        "this machine's clock was set back by 60 minutes; signed requests do not depend on it, periods do",
    ]
