"""The HTTP surface, without sockets: what each endpoint answers, to whom, and what it refuses."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from clocks import PATIENCE
from deployment import MODEL_DIGEST, Deployment, Wire, serve
from sfsl.carriers.https import page, status
from sfsl.carriers.https.app import CHECK_IN_BYTES, STATUS, AppLimits, Rates
from sfsl.carriers.https.coordinator import now_ms
from sfsl.crypto.secret import Identity, Secret
from sfsl.errors import ParameterError, RemoteError, TooMany
from sfsl.service.messages import CODEC, CheckedIn, Enrol
from sfsl.service.registry import Enrolment
from sfsl.service.signing import client_id


def scenario(folder: Path, act: Callable[..., Awaitable[None]], count: int = 3, **changes: Any) -> None:
    """Run ``act`` with a deployment and its clients over HTTP."""
    given = {name: changes.pop(name) for name in ("limits", "enrolment") if name in changes}

    async def run() -> None:
        async with Deployment(folder, **changes) as world:
            transport = httpx.ASGITransport(serve(world, **given))
            async with httpx.AsyncClient(transport=transport, base_url="https://test") as http:
                wires = [Wire(guest, http, world.registry.deployment) for guest in world.clients(count)]
                await act(world, wires)

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


def refused(answer: Any, status: int, error: str) -> str:
    """A typed refusal and nothing else; its message."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    said = answer.json()
    assert said["error"] == error
    assert "\n" not in said["message"]
    assert "Traceback" not in answer.text
    message: str = said["message"]
    return message


def test_a_round_through_the_app(tmp_path: Path) -> None:
    async def act(world: Deployment, wires: list[Wire]) -> None:
        ends = await asyncio.gather(*(wire.play() for wire in wires))
        assert {(end["error"], end["outcome"], end["round"]) for end in ends} == {
            ("RoundOver", "committed", 1)
        }
        assert world.store.round == 1
        answer = await wires[0].next()
        refused(answer, 410, "RoundOver")
        again = await wires[0].answer(b"again", 6)
        refused(again, 409, "ConflictingMessage")

    scenario(tmp_path, act)


def test_what_anyone_may_ask(tmp_path: Path) -> None:
    async def act(world: Deployment, wires: list[Wire]) -> None:
        http = wires[0].http
        before = now_ms()
        about = (await http.get("/v1/about")).json()
        assert about["protocol"] == 1
        assert about["deployment"] == world.registry.deployment.hex()
        assert about["model"] == MODEL_DIGEST.hex()
        assert about["round"] == 0
        assert before <= about["time"] <= now_ms()
        assert about["active"] is False
        assert about["limits"]["poll_seconds"] == 5.0
        model = await http.get("/v1/model")
        assert (model.status_code, model.content) == (200, b"package")
        health = await http.get("/healthz")
        assert (health.status_code, health.json()) == (200, {"status": "ok", "round": 0})
        for answer in (model, health):
            assert answer.headers["cache-control"] == "no-store"
            assert answer.headers["x-content-type-options"] == "nosniff"

    scenario(tmp_path, act)


def test_a_poll_without_news_is_empty_and_counts_what_it_was_told(tmp_path: Path) -> None:
    async def act(world: Deployment, wires: list[Wire]) -> None:
        await wires[0].check_in()
        answer = await wires[0].next()
        assert (answer.status_code, answer.content) == (204, b"")
        for query in ("", "?after=", "?after=-1", "?after=01", "?after=0&after=1", "?after=1x", "?x=1"):
            target = f"/v1/next/{wires[0].guest.ticket.hex()}{query}"
            refused(await wires[0].send("GET", target), 400, "InvalidMessage")
        target = f"/v1/next/{wires[0].guest.ticket.hex()}?after=5"
        refused(await wires[0].send("GET", target), 409, "WrongPhase")

    scenario(tmp_path, act, poll_seconds=0.05)


def test_enrolment(tmp_path: Path) -> None:
    async def act(world: Deployment, wires: list[Wire]) -> None:
        (wire,) = wires
        new = Identity(Secret(b"new" + bytes(29)))
        wire.guest.identity = new
        body = CODEC.encode(Enrol(new.public))
        refused(await wire.send("GET", "/v1/next/" + "0" * 32 + "?after=0"), 403, "UnknownClient")
        for _ in range(2):
            answer = await wire.send("POST", "/v1/enrol", body)
            assert (answer.status_code, answer.json()) == (200, {"client": client_id(new.public)})
        assert world.registry.count() == 2
        # A key that is not the signer's, a frame of another kind, one that is too long.
        other = CODEC.encode(Enrol(Identity(Secret(b"other" + bytes(27))).public))
        refused(await wire.send("POST", "/v1/enrol", other), 401, "AuthenticationFailed")
        signed = wire.headers("POST", "/v1/enrol", body)
        refused(await wire.send("POST", "/v1/enrol", other, headers=signed), 401, "AuthenticationFailed")
        refused(await wire.send("POST", "/v1/enrol", CODEC.encode(wire.guest.message)), 413, "Oversize")
        refused(await wire.send("POST", "/v1/enrol", b"\x01"), 400, "DecodeError")
        stray = CODEC.encode(CheckedIn(bytes(16), 0))  # a message of the protocol, and none of a client's
        refused(await wire.send("POST", "/v1/enrol", stray), 400, "InvalidMessage")
        refused(await wire.send("POST", "/v1/check-in", stray), 400, "InvalidMessage")
        refused(await wire.http.post("/v1/enrol", content=body), 401, "AuthenticationFailed")
        assert world.registry.count() == 2
        third = Identity(Secret(b"third" + bytes(27)))
        wire.guest.identity = third
        answer = await wire.send("POST", "/v1/enrol", CODEC.encode(Enrol(third.public)))
        refused(answer, 403, "Refused")
        world.registry.revoke(client_id(new.public), 0)
        wire.guest.identity = new
        refused(await wire.send("POST", "/v1/enrol", body), 403, "Revoked")
        refused(await wire.check_in(), 403, "Revoked")

    scenario(tmp_path, act, count=1, enrolment=Enrolment.open(2))


def test_who_is_not_who_it_says(tmp_path: Path) -> None:
    async def act(world: Deployment, wires: list[Wire]) -> None:
        one, other = wires[:2]
        body = CODEC.encode(one.guest.message)
        target = "/v1/check-in"
        good = one.headers("POST", target, body)

        async def send(headers: Any, content: bytes = body, to: str = target, method: str = "POST") -> Any:
            return await one.http.request(method, to, content=content, headers=headers)

        for name in good:
            refused(await send({key: good[key] for key in good if key != name}), 401, "AuthenticationFailed")
            malformed = "x" + good[name][1:]
            refused(await send(good | {name: malformed}), 401, "AuthenticationFailed")
        twice = [*good.items(), ("Sfsl-Client", other.guest.id)]
        refused(await send(twice), 401, "AuthenticationFailed")
        refused(await send(good, body + b"\0"), 401, "AuthenticationFailed")
        refused(await send(good, to=target + "?x=1"), 401, "AuthenticationFailed")
        refused(await send(good | {"Sfsl-Client": other.guest.id}), 401, "AuthenticationFailed")
        refused(await send(good | {"Sfsl-Client": "0" * 32}), 403, "UnknownClient")
        for off in (-200_000, 200_000):
            early = one.headers("POST", target, body, now=now_ms() + off)
            refused(await send(early), 401, "ClockSkew")
        foreign = Wire(one.guest, one.http, bytes(16))
        refused(await send(foreign.headers("POST", target, body)), 401, "AuthenticationFailed")
        assert not world.check_ins.waiting
        assert (await send(good)).status_code == 200
        refused(await send(good), 401, "Replayed")
        # In another's name: its own signature, another's keys.
        refused(await other.send("POST", target, body), 409, "UnexpectedSender")
        assert list(world.check_ins.waiting) == [one.guest.id]

    scenario(tmp_path, act, cohort=3)


def test_bodies_are_bounded_before_they_are_read(tmp_path: Path) -> None:
    async def act(world: Deployment, wires: list[Wire]) -> None:
        one = wires[0]
        taken = 0

        async def endless() -> AsyncIterator[bytes]:
            nonlocal taken
            while True:
                taken += 1024
                yield bytes(1024)

        answer = await one.http.post(
            "/v1/check-in", content=endless(), headers=one.headers("POST", "/v1/check-in")
        )
        refused(answer, 413, "Oversize")
        assert taken <= CHECK_IN_BYTES + 2048
        assert answer.headers["connection"] == "close"
        big = bytes(CHECK_IN_BYTES + 1)
        refused(await one.send("POST", "/v1/check-in", big), 413, "Oversize")
        # A refused body that was read to its end costs nobody the connection.
        read = await one.send("POST", "/v1/check-in", b"\x01no check-in")
        refused(read, 400, "DecodeError")
        assert "connection" not in read.headers
        for wire in wires:
            await wire.check_in()
        await one.next()
        taken = 0
        target = f"/v1/answer/{one.guest.ticket.hex()}/1"
        answer = await one.http.post(target, content=endless(), headers=one.headers("POST", target))
        refused(answer, 413, "Oversize")
        limit = world.check_ins.answer_limit(one.guest.id, one.guest.ticket, 1)
        assert taken <= limit + 2048
        # Whoever is not due an answer does not get one read, however small.
        taken = 0
        target = f"/v1/answer/{one.guest.ticket.hex()}/2"
        answer = await one.http.post(target, content=endless(), headers=one.headers("POST", target))
        refused(answer, 409, "WrongPhase")
        target = f"/v1/answer/{'0' * 32}/1"
        answer = await one.http.post(target, content=endless(), headers=one.headers("POST", target))
        refused(answer, 410, "RoundOver")
        answer = await one.http.post(target, content=endless())
        refused(answer, 401, "AuthenticationFailed")
        assert taken == 0
        assert answer.headers["connection"] == "close"

    scenario(tmp_path, act)


def test_a_body_that_trickles_is_given_up(tmp_path: Path) -> None:
    async def act(world: Deployment, wires: list[Wire]) -> None:
        async def slow() -> AsyncIterator[bytes]:
            for _ in range(100):
                yield b"x"
                await asyncio.sleep(0.05)

        one = wires[0]
        answer = await one.http.post(
            "/v1/check-in", content=slow(), headers=one.headers("POST", "/v1/check-in")
        )
        assert "took longer than 0.2 s" in refused(answer, 400, "DecodeError")

    scenario(tmp_path, act, limits=AppLimits(body_seconds=0.2))


def test_no_such_path(tmp_path: Path) -> None:
    async def act(world: Deployment, wires: list[Wire]) -> None:
        http = wires[0].http
        for path in (
            "/v1",
            "/v1/next/",
            "/v2/about",
            "/v1/about/",
            "/status",
            "/../etc/passwd",
            "/v1/next/x?after=0",
        ):
            refused(await http.get(path), 404, "NotFound")
        for path in (
            "/v1/answer/" + "0" * 32 + "/x",
            "/v1/answer/" + "0" * 31 + "/1",
            "/v1/answer/" + "0" * 32 + "/1234",
        ):
            refused(await http.post(path), 404, "NotFound")
        refused(await http.post("/v1/about"), 405, "MethodNotAllowed")
        refused(await http.get("/v1/check-in"), 405, "MethodNotAllowed")
        assert (await http.head("/v1/about")).status_code == 405
        assert (await http.head("/healthz")).status_code == 200

    scenario(tmp_path, act)


def test_too_many_requests(tmp_path: Path) -> None:
    async def act(world: Deployment, wires: list[Wire]) -> None:
        one, other = wires[:2]
        statuses = [(await one.check_in()).status_code for _ in range(4)]
        assert statuses == [200, 200, 200, 429]
        answer = await one.check_in()
        refused(answer, 429, "TooMany")
        assert int(answer.headers["Retry-After"]) >= 1
        assert (await other.check_in()).status_code == 200  # it is the client's own limit
        # Someone who only claims to be it uses up nothing of its.
        third = wires[2]
        for _ in range(5):
            bad = third.headers("POST", "/v1/check-in", b"") | {"Sfsl-Signature": "0" * 128}
            answer = await third.http.post("/v1/check-in", headers=bad)
            refused(answer, 401, "AuthenticationFailed")
        assert (await third.check_in()).status_code == 200
        statuses = [(await one.http.get("/healthz")).status_code for _ in range(40)]
        assert 429 in statuses
        assert statuses[0] == 200

    limits = AppLimits(client_rate=0.01, client_burst=3, address_rate=0.01, address_burst=30)
    scenario(tmp_path, act, limits=limits)


def test_rates() -> None:
    rates = Rates("someone", 2.0, 3, most=2)
    for _ in range(3):
        rates.take("a", 10.0)
    with pytest.raises(TooMany) as many:
        rates.take("a", 10.0)
    assert many.value.wait_ms == 500
    rates.take("a", 10.5)
    with pytest.raises(TooMany):
        rates.take("a", 10.5)
    rates.take("b", 10.5)
    rates.take("c", 10.5)
    assert len(rates) == 2
    rates.take("c", 11.0)
    for _ in range(3):
        rates.take("c", 1000.0)  # no more than the burst, however long it was
    with pytest.raises(TooMany):
        rates.take("c", 1000.0)
    with pytest.raises(TooMany):
        rates.take("c", 900.0)  # a clock that goes back gives nothing
    for wrong in ((0, 1), (1, 0)):
        with pytest.raises(ParameterError):
            Rates("x", *wrong)


def test_while_it_stops(tmp_path: Path) -> None:
    async def act(world: Deployment, wires: list[Wire]) -> None:
        await world.coordinator.stop()
        answer = await wires[0].check_in()
        refused(answer, 503, "ShuttingDown")
        assert int(answer.headers["Retry-After"]) >= 1
        body = CODEC.encode(Enrol(wires[0].guest.identity.public))
        refused(await wires[0].send("POST", "/v1/enrol", body), 503, "ShuttingDown")
        health = await wires[0].http.get("/healthz")
        assert (health.status_code, health.json()) == (503, {"status": "stopping"})

    scenario(tmp_path, act)


def test_a_mistake_of_ours_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def act(world: Deployment, wires: list[Wire]) -> None:
        def broken(*_: object) -> None:
            raise KeyError("secret detail")

        monkeypatch.setattr(world.check_ins, "check_in", broken)
        answer = await wires[0].check_in()
        refused(answer, 500, "ServerError")
        assert "secret detail" not in answer.text
        assert "secret detail" in caplog.text

    scenario(tmp_path, act)


def test_every_remote_error_has_a_status() -> None:
    def below(kind: type) -> set[type]:
        return {kind}.union(*(below(one) for one in kind.__subclasses__()))

    for kind in below(RemoteError):
        assert any(one in STATUS for one in kind.__mro__)
    assert all(400 <= status < 504 for status in STATUS.values())


# -- for operators ---------------------------------------------------------------------------------


def test_status_metrics_and_page(tmp_path: Path) -> None:
    async def act(world: Deployment, wires: list[Wire]) -> None:
        http = wires[0].http
        await asyncio.gather(*(wire.play() for wire in wires))
        await http.get("/v1/next/" + "0" * 32)
        status = (await http.get("/status.json")).json()
        assert (status["round"], status["phase"], status["committed"], status["aborted"]) == (
            1,
            "waiting",
            1,
            0,
        )
        assert status["enrolled"] == 3
        (shown,) = status["rounds"]
        assert (shown["cohort"], shown["survivors"], shown["aborted"]) == (3, 3, None)
        assert status["auc"] == world.lines[0].auc_secure
        assert status["log_loss"] == status["rounds"][0]["log_loss"] == world.lines[0].log_loss_secure
        # Counts, never who.
        everything = json.dumps(status) + (await http.get("/metrics")).text + (await http.get("/")).text
        for wire in wires:
            assert wire.guest.id not in everything
            assert wire.guest.ticket.hex() not in everything

        text = (await http.get("/metrics")).text
        samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        assert samples['sfsl_rounds_total{outcome="committed"}'] == "1"
        assert samples['sfsl_phase{phase="waiting"}'] == "1"
        assert samples["sfsl_clients_enrolled"] == "3"
        assert float(samples["sfsl_auc"]) == world.lines[0].auc_secure
        up = float(samples['sfsl_bytes_total{exchange="submodel",direction="up"}'])
        assert up == 3 * world.lines[0].bytes_up["submodel"]
        assert not any("RoundOver" in name for name in samples)  # three conversations ended, as they should
        assert float(samples['sfsl_phase_seconds_total{exchange="union"}']) > 0
        for line in text.splitlines():
            assert re.fullmatch(
                r"# (HELP|TYPE) \S+ .+|[a-z_]+(\{[a-z]+=\"[^\"]*\"(,[a-z]+=\"[^\"]*\")*\})? \S+", line
            )

        answer = await http.get("/")
        assert answer.headers["content-type"].startswith("text/html")
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "3 of 3" in answer.text
        assert '<meta name="viewport"' in answer.text

    scenario(tmp_path, act)


def test_the_page_escapes_what_it_shows(tmp_path: Path) -> None:
    async def act(world: Deployment, wires: list[Wire]) -> None:
        ends = [asyncio.create_task(wire.play()) for wire in wires]
        await asyncio.gather(*ends)
        line = world.lines[0]
        world.coordinator.totals.show(type(line)(**{
            name: getattr(line, name) for name in line.__struct_fields__
        } | {"aborted": "<script>alert(1)</script>"}))  # fmt: skip
        text = (await wires[0].http.get("/")).text
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert" in text

    scenario(tmp_path, act)


def test_the_policy_allows_exactly_the_pages_own_script_and_style() -> None:
    import base64
    import hashlib

    for kind, text in (("script", page._SCRIPT), ("style", page._STYLE)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in page.HEADERS["Content-Security-Policy"]


def test_nothing_but_words_gets_into_a_label() -> None:
    assert status._label(phase='x"} 1\nevil{a="') == '{phase="other"}'
    assert status._label(exchange="unmask-union") == '{exchange="unmask-union"}'
