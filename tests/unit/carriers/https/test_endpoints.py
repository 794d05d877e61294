"""What each endpoint answers: status, type, headers, fields; what a body may have; how each error is told and
counted."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from clocks import PATIENCE
from deployment import HOSTS, MODEL_DIGEST, Deployment, Wire, serve
from sfsl import errors
from sfsl.carriers.https import app
from sfsl.carriers.https.app import AppLimits, Guard, Rates, Server, create_app, refusal
from sfsl.carriers.https.coordinator import now_ms
from sfsl.data.catalogue import catalogue_digest
from sfsl.errors import DecodeError, Oversize, RemoteError, ShuttingDown, StoreCorrupt, StoreInUse, TooMany
from sfsl.service.messages import CODEC, Enrol, LogHead, LogProof, LogQuery
from sfsl.service.registry import Enrolment
from sfsl.service.signing import Verifier

GET = ("/v1/about", "/v1/model", "/v1/catalogue", "/v1/log", "/v1/log/offer", "/v1/published/" + "0" * 64,
       "/v1/next/" + "0" * 32)  # fmt: skip
POST = ("/v1/log/prove", "/v1/log/witness", "/v1/enrol", "/v1/check-in", "/v1/answer/" + "0" * 32 + "/1")
OPERATORS = ("/healthz", "/metrics", "/status.json", "/")


def scenario(
    folder: Path,
    act: Callable[..., Awaitable[None]],
    limits: AppLimits | None = None,
    catalogue: bytes | None = None,
    **changes: Any,
) -> None:
    """Run ``act`` with a deployment, two clients over HTTP, and the server's endpoints."""

    async def run() -> None:
        async with Deployment(folder, **changes) as world:
            verifier = Verifier(world.registry.deployment, world.registry.public_key, hosts=HOSTS)
            bounds = limits or AppLimits()
            server = Server(
                world.coordinator, verifier, Enrolment.open(100), b"package", bounds, catalogue=catalogue,
                time_ms=now_ms,
            )  # fmt: skip
            transport = httpx.ASGITransport(create_app(server, bounds))
            async with httpx.AsyncClient(transport=transport, base_url="https://test") as http:
                wires = [Wire(guest, http, world.registry.deployment) for guest in world.clients(2)]
                await act(world, wires, server)

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


# -- what is there -------------------------------------------------------------------------------------


def test_what_may_be_asked_how(tmp_path: Path) -> None:
    async def act(world: Deployment, wires: list[Wire], server: Server) -> None:
        http = wires[0].http
        for path in GET:
            for wrong in ("HEAD", "POST", "PUT"):
                assert (await http.request(wrong, path)).status_code == 405, (wrong, path)
        for path in POST:
            for wrong in ("GET", "HEAD", "DELETE"):
                assert (await http.request(wrong, path)).status_code == 405, (wrong, path)
        for path in OPERATORS:
            assert (await http.head(path)).status_code == (await http.get(path)).status_code == 200
            assert (await http.post(path)).status_code == 405

    scenario(tmp_path, act)


def test_all_that_a_server_says_of_itself(tmp_path: Path) -> None:
    names = b'{"names": {}}'

    async def act(world: Deployment, wires: list[Wire], server: Server) -> None:
        told = (await wires[0].http.get("/v1/about")).json()
        assert abs(told.pop("time") - told.pop("clock")) < 1000
        own = world.coordinator.settings
        assert told == {
            "protocol": 1,
            "deployment": world.registry.deployment.hex(),
            "model": MODEL_DIGEST.hex(),
            "catalogue": catalogue_digest(names).hex(),
            "round": 0,
            "active": False,
            "scheme": "sfsl",
            "limits": {
                "body_bytes": 12345,
                "body_seconds": 9.0,
                "poll_seconds": 5.0,
                "phase_seconds": 1000.0,
                "training_seconds": 1000.0,
                "cohort": own.cohort,
                "min_cohort": own.min_cohort,
                "largest_set": own.largest_set,
            },
        }
        answer = await wires[0].http.get("/v1/catalogue")
        assert (answer.status_code, answer.content) == (200, names)
        assert answer.headers["content-type"] == "application/json"

    scenario(tmp_path, act, AppLimits(largest_body=12345, body_seconds=9.0), names, active=False)


def test_without_a_catalogue_or_a_log_there_is_none(tmp_path: Path) -> None:
    async def act(world: Deployment, wires: list[Wire], server: Server) -> None:
        wire = wires[0]
        assert "catalogue" not in (await wire.http.get("/v1/about")).json()
        for path in ("/v1/catalogue", "/v1/log", "/v1/log/offer"):
            assert (await wire.http.get(path)).status_code == 404
        assert (await wire.send("POST", "/v1/log/prove", CODEC.encode(LogQuery(0, ())))).status_code == 404
        head = CODEC.encode(LogHead(bytes(16), 0, bytes(32), 1))
        assert (await wire.http.post("/v1/log/witness", content=head)).status_code == 404
        assert world.coordinator.totals.refused == {"NotFound": 5}

    scenario(tmp_path, act)


def test_frames_and_pages_have_their_types(tmp_path: Path) -> None:
    async def act(world: Deployment, wires: list[Wire], server: Server) -> None:
        http = wires[0].http
        for path, kind in (
            ("/v1/model", "application/octet-stream"),
            ("/v1/about", "application/json"),
            ("/healthz", "application/json"),
            ("/status.json", "application/json"),
            ("/metrics", "text/plain; version=0.0.4; charset=utf-8"),
            ("/", "text/html; charset=utf-8"),
        ):
            answer = await http.get(path)
            assert answer.headers["content-type"] == kind
            assert answer.headers["cache-control"] == "no-store"
            assert answer.headers["x-content-type-options"] == "nosniff"
        page = (await http.get("/")).headers
        assert (page["referrer-policy"], page["x-frame-options"]) == ("no-referrer", "DENY")
        checked = await wires[0].check_in()
        assert checked.headers["content-type"] == "application/octet-stream"
        assert "sfsl-sequence" not in checked.headers

    scenario(tmp_path, act)


def test_messages_have_numbers_and_answers_nothing(tmp_path: Path) -> None:
    async def act(world: Deployment, wires: list[Wire], server: Server) -> None:
        for wire in wires:
            await wire.check_in()
        first = await wires[0].next()
        assert (first.status_code, first.headers["sfsl-sequence"]) == (200, "1")
        assert first.headers["content-type"] == "application/octet-stream"
        taken = await wires[0].answer(wires[0].guest.answer_to(first.content))
        assert (taken.status_code, taken.content) == (204, b"")
        ticket = wires[0].guest.ticket.hex()
        for number in ("01", "-1", "1234", "x", "1x"):
            answer = await wires[0].send("POST", f"/v1/answer/{ticket}/{number}", b"")
            assert answer.status_code == 404
        for number in ("0", "999"):  # such numbers there are, and they are not due
            answer = await wires[0].send("POST", f"/v1/answer/{ticket}/{number}", b"")
            assert answer.status_code == 409
        for wrong in (ticket[:-1], ticket + "0", ticket.upper().replace("0", "A"), "g" * 32):
            answer = await wires[0].send("GET", f"/v1/next/{wrong}?after=1")
            assert answer.status_code == 404
        again = await wires[0].send("GET", f"/v1/next/{ticket}?after=999")
        assert again.status_code == 409
        longer = await wires[0].send("GET", f"/v1/next/{ticket}?after=1000")
        assert longer.status_code == 400

    scenario(tmp_path, act, cohort=2)


def test_what_is_published_is_given_to_who_is_in_the_round_and_once(tmp_path: Path) -> None:
    content = b"hot rows"
    digest = sha256(content)

    async def act(world: Deployment, wires: list[Wire], server: Server) -> None:
        one, other = wires
        counted: list[int] = []
        world.coordinator.published = (  # type: ignore[method-assign]
            lambda client, asked: content if (client, asked) == (one.guest.id, digest.digest()) else None
        )
        world.coordinator.downloaded = counted.append  # type: ignore[method-assign]
        target, tag = f"/v1/published/{digest.hexdigest()}", f'"{digest.hexdigest()}"'
        answer = await one.send("GET", target)
        assert (answer.status_code, answer.content, answer.headers["etag"]) == (200, content, tag)
        assert answer.headers["content-type"] == "application/octet-stream"
        assert counted == [len(content)]
        for had in (tag, f'"x", {tag}', f"W/{tag}", f'W/"x",W/{tag}'):
            headers = one.headers("GET", target) | {"If-None-Match": had}
            answer = await one.send("GET", target, headers=headers)
            assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tag)
            assert "connection" not in answer.headers
        assert counted == [len(content)]
        for had in ('"x"', digest.hexdigest(), ""):
            headers = one.headers("GET", target) | {"If-None-Match": had}
            assert (await one.send("GET", target, headers=headers)).status_code == 200
        assert len(counted) == 4
        assert (await other.send("GET", target)).status_code == 404
        for wrong in ("0" * 64, "0" * 63, "0" * 65, digest.hexdigest().upper()):
            assert (await one.send("GET", f"/v1/published/{wrong}")).status_code == 404
        assert (await one.http.get(target)).status_code == 401  # nobody signed it

    scenario(tmp_path, act)


def test_who_asks_a_log_and_who_signs_its_heads(tmp_path: Path) -> None:
    asked: list[Any] = []
    head = LogHead(bytes(16), 0, bytes(32), 1)

    async def act(world: Deployment, wires: list[Wire], server: Server) -> None:
        server._log = SimpleNamespace(  # type: ignore[assignment]
            prove=lambda query, **_: asked.append(query) or LogProof(head, b""),
            cosign=lambda given, now: asked.append((given, now)),
        )
        wire, query = wires[0], LogQuery(3, (wires[0].guest.id,))
        answer = await wire.send("POST", "/v1/log/prove", CODEC.encode(query))
        assert answer.status_code == 200
        assert CODEC.decode(answer.content, limit=1000) == LogProof(head, b"")
        assert asked == [query]
        assert (await wire.http.post("/v1/log/prove", content=CODEC.encode(query))).status_code == 401
        before = now_ms()
        answer = await wire.http.post("/v1/log/witness", content=CODEC.encode(head))  # it signs for itself
        assert (answer.status_code, answer.content) == (204, b"")
        assert asked[1][0] == head
        assert before <= asked[1][1] <= now_ms()
        largest = LogQuery(2**40, tuple(f"{n:032x}" for n in range(1024)))
        assert len(CODEC.encode(largest)) <= app.QUERY_BYTES
        assert (await wire.send("POST", "/v1/log/prove", CODEC.encode(largest))).status_code == 200
        for path, most in (("/v1/log/prove", app.QUERY_BYTES), ("/v1/log/witness", app.HEAD_BYTES)):
            for size, status in ((most, 400), (most + 1, 413)):
                assert (await wire.send("POST", path, bytes(size))).status_code == status

    scenario(tmp_path, act)


def test_a_server_that_stops_enrols_nobody_and_is_not_healthy(tmp_path: Path) -> None:
    async def act(world: Deployment, wires: list[Wire], server: Server) -> None:
        http = wires[0].http
        assert (await http.get("/healthz")).json() == {"status": "ok", "round": 0}
        world.coordinator._degraded = "so"
        answer = await http.get("/healthz")
        assert (answer.status_code, answer.json()) == (200, {"status": "degraded", "round": 0, "why": "so"})
        world.check_ins.stopping = True
        answer = await http.get("/healthz")
        assert (answer.status_code, answer.json()) == (503, {"status": "stopping"})
        body = CODEC.encode(Enrol(wires[0].guest.identity.public))
        answer = await wires[0].send("POST", "/v1/enrol", body)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
        assert answer.headers["connection"] == "close"  # nobody read its body
        world.check_ins.stopping = False
        assert (await wires[0].send("POST", "/v1/enrol", body)).status_code == 200

    scenario(tmp_path, act)


# -- bodies --------------------------------------------------------------------------------------------


async def body_of(server: Server, limit: int, chunks: list[bytes], announced: str | None) -> Any:
    left = [{"type": "http.request", "body": one, "more_body": True} for one in chunks]
    left.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive() -> Any:
        return left.pop(0)

    headers = [] if announced is None else [(b"content-length", announced.encode())]
    scope = {"type": "http", "method": "POST", "headers": headers}
    request = Request(scope, receive)
    taken = await server._body(request, limit)
    assert scope["sfsl.read"] is True
    return taken


def test_a_body_has_at_most_what_is_allowed_announced_or_not(tmp_path: Path) -> None:
    async def act(world: Deployment, wires: list[Wire], server: Server) -> None:
        for chunks in ([b"12345"], [b"12", b"345"], [b"", b"12345"]):
            for announced in (None, "5", "0000000000000000" + "05"):
                taken = await body_of(server, 5, chunks, announced)
                assert taken == (b"12345", sha256(b"12345").digest())
        assert await body_of(server, 0, [], "0") == (b"", sha256(b"").digest())
        for chunks, told in (
            ([b"123456"], None),
            ([b"12345", b"6"], None),
            ([b"123456"], "5"),  # more than it says
            ([b"12345"], "6"),
            ([b"1"], "x"),
            ([b"1"], "-1"),
            ([b"1"], "1.0"),
            ([b"1"], "0" * 18 + "1"),  # a number of 19 digits is not even looked at
        ):
            with pytest.raises(Oversize, match="more than the 5 bytes"):
                await body_of(server, 5, chunks, told)

    scenario(tmp_path, act)


def test_where_no_body_belongs_none_is_taken(tmp_path: Path) -> None:
    async def act(world: Deployment, wires: list[Wire], server: Server) -> None:
        wire = wires[0]
        await wire.check_in()
        for target, otherwise in (
            (f"/v1/next/{wire.guest.ticket.hex()}?after=0", 204),
            ("/v1/published/" + "0" * 64, 404),
        ):
            assert (await wire.send("GET", target, b"x")).status_code == 413
            assert (await wire.send("GET", target)).status_code == otherwise

    scenario(tmp_path, act, poll_seconds=0.01)


def test_no_body_is_larger_than_all_may_be(tmp_path: Path) -> None:
    async def act(world: Deployment, wires: list[Wire], server: Server) -> None:
        for size, status in ((300, 400), (301, 413)):
            assert (await wires[0].send("POST", "/v1/check-in", bytes(size))).status_code == status

    scenario(tmp_path, act, AppLimits(largest_body=300))


def test_a_body_may_take_its_time(tmp_path: Path) -> None:
    async def act(world: Deployment, wires: list[Wire], server: Server) -> None:
        async def never() -> AsyncIterator[bytes]:
            yield b"x"
            await asyncio.sleep(PATIENCE)

        answer = await wires[0].http.post(
            "/v1/check-in", content=never(), headers=wires[0].headers("POST", "/v1/check-in")
        )
        assert (answer.status_code, answer.json()["error"]) == (400, "DecodeError")
        assert answer.json()["message"] == "the body took longer than 0.05 s"
        assert answer.headers["connection"] == "close"

    scenario(tmp_path, act, AppLimits(body_seconds=0.05))


# -- errors --------------------------------------------------------------------------------------------

STATUSES = {
    400: ("RemoteError", "DecodeError", "WrongVersion", "InvalidMessage", "Deceived"),
    401: ("AuthenticationFailed", "ClockSkew", "Replayed", "Forked"),
    403: ("UnknownClient", "Refused", "Revoked"),
    409: ("WrongPhase", "WrongRound", "UnexpectedSender", "ConflictingMessage"),
    410: ("RoundOver",),
    413: ("Oversize",),
    429: ("TooMany",),
    503: ("ShuttingDown", "Unavailable"),
}
MORE = {
    "ClockSkew": {"off_ms": 1},
    "RoundOver": {"outcome": "aborted", "round_number": 1},
    "TooMany": {"wait_ms": 1},
}


@pytest.mark.parametrize(
    ("status", "name"), [(status, name) for status, names in STATUSES.items() for name in names]
)
def test_every_error_has_its_status(status: int, name: str) -> None:
    answer = refusal(getattr(errors, name)("so", **MORE.get(name, {})), {"time": 1, "clock": 2})
    assert answer.status_code == status
    told = json.loads(bytes(answer.body))
    assert (told["error"], told["message"]) == (name, "so")
    assert ("time" in told) == (status == 401)
    assert ("retry-after" in answer.headers) == (status in (429, 503))
    assert ("outcome" in told) == (status == 410)


def test_there_is_no_other_error_of_a_peers() -> None:
    def below(kind: type) -> set[str]:
        return {kind.__name__}.union(*(below(one) for one in kind.__subclasses__()))

    ours = {name for name in below(RemoteError) if hasattr(errors, name)}
    assert ours == {name for names in STATUSES.values() for name in names}


@pytest.mark.parametrize(
    ("error", "status", "told", "counted"),
    [
        (HTTPException(404), 404, "NotFound", {"NotFound": 1}),
        (HTTPException(405), 405, "MethodNotAllowed", {"MethodNotAllowed": 1}),
        (HTTPException(418), 418, "HttpError", {"HttpError": 1}),
        (DecodeError("so"), 400, "DecodeError", {"DecodeError": 1}),
        (errors.RoundOver("so", outcome="aborted", round_number=1), 410, "RoundOver", {}),
        (StoreInUse("so"), 503, "Unavailable", {"Unavailable": 1}),
        (StoreCorrupt("secret"), 500, "ServerError", {"ServerError": 1}),
        (ValueError("secret"), 500, "ServerError", {"ServerError": 1}),
    ],
)
def test_what_an_error_in_an_endpoint_becomes(
    tmp_path: Path, error: Exception, status: int, told: str, counted: dict[str, int]
) -> None:
    sent: list[Any] = []

    async def act(world: Deployment, wires: list[Wire], server: Server) -> None:
        async def fails(*_: Any) -> None:
            raise error

        await asked(Guard(fails, server, AppLimits()), sent)
        assert world.coordinator.totals.refused == counted

    scenario(tmp_path, act)
    assert (sent[0]["status"], json.loads(sent[1]["body"])["error"]) == (status, told)
    assert b"secret" not in sent[1]["body"]


async def asked(guard: Guard, sent: list[Any], address: str = "10.0.0.1", **scope: Any) -> None:
    async def send(message: Any) -> None:
        sent.append(message)

    usual = {"type": "http", "raw_path": b"/", "headers": [], "client": (address, 1), "method": "GET"}
    await guard(usual | scope, None, send)  # type: ignore[arg-type]


def test_a_peer_that_leaves_is_counted_and_not_answered(tmp_path: Path) -> None:
    sent: list[Any] = []

    async def act(world: Deployment, wires: list[Wire], server: Server) -> None:
        async def left(*_: Any) -> None:
            raise ClientDisconnect

        guard = Guard(left, server, AppLimits())
        for _ in range(2):
            await asked(guard, sent)
        assert world.coordinator.totals.refused == {"Disconnected": 2}

    scenario(tmp_path, act)
    assert sent == []


def test_what_is_no_request_passes_and_every_address_has_its_own_rate(tmp_path: Path) -> None:
    seen: list[str] = []

    async def act(world: Deployment, wires: list[Wire], server: Server) -> None:
        async def inner(scope: Any, receive: Any, send: Any) -> None:
            seen.append(scope["type"])

        guard = Guard(inner, server, AppLimits(address_rate=0.001, address_burst=2))
        sent: list[Any] = []
        for address in ("10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.1"):
            await asked(guard, sent, address)
        assert len(seen) == 3
        assert sent[0]["status"] == 429
        assert (b"connection", b"close") in sent[0]["headers"]
        for _ in range(5):
            await asked(guard, sent, type="lifespan")
        assert seen[3:] == ["lifespan"] * 5
        with_both = [(b"content-length", b"1"), (b"transfer-encoding", b"chunked")]
        for headers, status in ((with_both[:1], None), (with_both[1:], None), (with_both, 400)):
            sent.clear()
            await asked(guard, sent, "10.0.0.3" if status is None else "10.0.0.4", headers=headers)
            assert [one["status"] for one in sent[:1]] == ([] if status is None else [status])

    scenario(tmp_path, act)


def test_what_is_asked_too_often_has_to_wait_and_is_told_how_long() -> None:
    rates = Rates("this client", per_second=0.5, burst=1, most=3)
    rates.take("a", 100.0)
    with pytest.raises(TooMany, match="too many requests of this client; slow down") as caught:
        rates.take("a", 100.0)
    assert caught.value.wait_ms == 2000
    rates.take("a", 102.0)
    with pytest.raises(TooMany) as caught:
        rates.take("a", 103.0)
    assert caught.value.wait_ms == 1000


def test_a_client_hears_that_the_server_stops_when_it_checks_in(tmp_path: Path) -> None:
    async def run() -> None:
        async with Deployment(tmp_path) as world:
            world.check_ins.stopping = True
            with pytest.raises(ShuttingDown, match="check in again later"):
                world.clients(1)[0].check_in()
            world.check_ins.stopping = False
            assert serve(world)

    asyncio.run(asyncio.wait_for(run(), PATIENCE))
