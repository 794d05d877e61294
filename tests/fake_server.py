"""A small server that keeps to the contract of the network, for tests of clients, and can be told to lie.

It drives the real ``RoundServer``, checks signatures, and answers over ASGI without a socket.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sfsl.codec import Message
from sfsl.crypto.secret import digest
from sfsl.errors import Aborted, AuthenticationFailed, RemoteError, UnknownClient
from sfsl.rounds import RoundParams, RoundServer
from sfsl.secagg import SessionParams, default_threshold
from sfsl.secagg.messages import MaskedVector
from sfsl.service.messages import CODEC, CheckedIn, CheckIn, Decline, Enrol
from sfsl.service.signing import Verifier

LIMIT = 1 << 26
DEPLOYMENT = bytes(range(16))


@dataclass
class Talk:
    """One ticket: the messages for it, and what it answered."""

    client: str
    check_in: bytes
    messages: list[bytes] = field(default_factory=list)
    answers: dict[int, bytes] = field(default_factory=dict)
    over: dict[str, Any] | None = None


class FakeServer:
    """A round starts when ``cohort`` clients have checked in; a phase closes when all of them answered,
    or by ``close_phase``."""

    def __init__(
        self,
        cohort: int,
        params: Callable[[int], RoundParams],
        store: Any,
        maps: Any,
        *,
        model: bytes = bytes(32),
        package: bytes = b"",
        poll_s: float = 0.2,
        threshold: int | None = None,
        session: Callable[[SessionParams], SessionParams] = lambda params: params,
    ) -> None:
        self.cohort, self.params, self.store, self.maps = cohort, params, store, maps
        self.model, self.package, self.poll_s = model, package, poll_s
        self.threshold = threshold or default_threshold(cohort)
        self.session = session
        self.enrolled: dict[str, bytes] = {}
        self.acknowledged: dict[str, int] = {}
        self.talks: dict[bytes, Talk] = {}
        self.waiting: list[bytes] = []
        self.round: RoundServer | None = None
        self.playing: dict[str, bytes] = {}
        self.outcomes: list[Any] = []
        self.log: list[tuple[str, str, bytes]] = []
        self.meddle: Callable[[str, str, bytes], Awaitable[Response | None]] | None = None
        self.alter: Callable[[str, int, Message], Message] | None = None
        self._spread: tuple[asyncio.AbstractEventLoop, asyncio.Condition] | None = None
        self._verifier = Verifier(DEPLOYMENT, self._public, hosts=("server", "localhost", "127.0.0.1"))
        self.app = Starlette(routes=[Route("/{path:path}", self._serve, methods=["GET", "POST"])])

    @property
    def _news(self) -> asyncio.Condition:
        """Of the loop that runs: a test may have one after another."""
        loop = asyncio.get_running_loop()
        if self._spread is None or self._spread[0] is not loop:
            self._spread = loop, asyncio.Condition()
        return self._spread[1]

    @property
    def transport(self) -> httpx.ASGITransport:
        return httpx.ASGITransport(self.app)

    def posts(self, part: str) -> list[bytes]:
        return [body for method, target, body in self.log if method == "POST" and part in target]

    def _public(self, client: str) -> bytes:
        if client not in self.enrolled:
            raise UnknownClient("nobody enrolled that")
        return self.enrolled[client]

    async def _serve(self, request: Request) -> Response:
        body = await request.body()
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        self.log.append((request.method, target, body))
        if self.meddle and (found := await self.meddle(request.method, target, body)):
            return found
        try:
            return await self._route(request, target, body)
        except UnknownClient as error:
            return problem(403, error)
        except AuthenticationFailed as error:
            return problem(401, error)
        except RemoteError as error:
            return problem(409, error)

    async def _route(self, request: Request, target: str, body: bytes) -> Response:
        now = round(time.time() * 1000)
        match request.url.path.strip("/").split("/"):
            case ["v1", "about"]:
                return JSONResponse(
                    {
                        "protocol": 1,
                        "deployment": DEPLOYMENT.hex(),
                        "model": self.model.hex(),
                        "round": self.store.round,
                        "time": now,
                        "limits": {},
                    }
                )
            case ["v1", "model"]:
                return Response(self.package)
            case ["v1", "enrol"]:
                message = CODEC.decode(body, limit=LIMIT)
                assert isinstance(message, Enrol)
                client = self._verifier.check_enrolment(
                    request.headers, request.method, target, sha256(body).digest(), now, message.public_key
                )
                self.enrolled[client] = message.public_key
                return JSONResponse({"client": client})
        client = self._verifier.check(request.headers, request.method, target, sha256(body).digest(), now)
        match request.url.path.strip("/").split("/"):
            case ["v1", "check-in"]:
                return await self._check_in(client, body)
            case ["v1", "next", ticket]:
                return await self._next(bytes.fromhex(ticket), int(request.query_params["after"]))
            case ["v1", "answer", ticket, number]:
                return await self._answer(bytes.fromhex(ticket), int(number), body)
        return problem(404, RemoteError("no such path"))

    async def _check_in(self, client: str, body: bytes) -> Response:
        message = CODEC.decode(body, limit=LIMIT)
        assert isinstance(message, CheckIn)
        assert message.keys.client == client
        ticket = digest("ticket", body)[:16]
        if ticket not in self.talks:
            for old, talk in self.talks.items():
                if talk.client == client and talk.over is None:
                    self._end(old, "left-out", "checked in again")
            self.talks[ticket] = Talk(client, body)
            self.waiting.append(ticket)
            if self.round is None and len(self.waiting) >= self.cohort:
                await self._start()
        return Response(CODEC.encode(CheckedIn(ticket, self.acknowledged.get(client, 0))))

    async def _next(self, ticket: bytes, after: int) -> Response:
        talk = self.talks.get(ticket)
        if talk is None:
            return over({"outcome": "restarted", "round": self.store.round, "message": "started again"})
        try:
            async with asyncio.timeout(self.poll_s), self._news:
                await self._news.wait_for(lambda: len(talk.messages) > after or talk.over)
        except TimeoutError:
            return Response(status_code=204)
        if len(talk.messages) > after:
            return Response(talk.messages[after], headers={"Sfsl-Sequence": str(after + 1)})
        assert talk.over
        return over(talk.over)

    async def _answer(self, ticket: bytes, number: int, body: bytes) -> Response:
        talk = self.talks.get(ticket)
        if talk is None or talk.over:
            return over((talk and talk.over) or {"outcome": "restarted", "round": 0, "message": ""})
        if number in talk.answers:
            if talk.answers[number] == body:
                return Response(status_code=204)
            return problem(409, RemoteError("other bytes than before"))
        message = CODEC.decode(body, limit=LIMIT)
        assert self.round is not None
        if isinstance(message, Decline):
            assert number == 1
            talk.over = {"outcome": "left-out", "round": self.store.round + 1, "message": "declined"}
        else:
            self.round.receive(talk.client, message)
        talk.answers[number] = body
        if isinstance(message, MaskedVector) and message.sum == 0:
            self.acknowledged[talk.client] = self.acknowledged.get(talk.client, 0) + 1
        if all(len(one.messages) in one.answers for one in self.live()):
            await self.close_phase()
        return Response(status_code=204)

    def live(self) -> list[Talk]:
        talks = (self.talks[ticket] for ticket in self.playing.values())
        return [one for one in talks if not one.over]

    async def _start(self) -> None:
        chosen, self.waiting = self.waiting[: self.cohort], self.waiting[self.cohort :]
        self.playing = {self.talks[ticket].client: ticket for ticket in chosen}
        params = self.params(self.store.round + 1)
        session = SessionParams(
            round_id=digest("round", str(time.monotonic_ns()).encode())[:16],
            clients=self.cohort,
            threshold=self.threshold,
            neighbours=None,
            active=False,
            sums=params.sums(),
        )
        keys = [CODEC.decode(self.talks[ticket].check_in, limit=LIMIT).keys for ticket in chosen]  # type: ignore[attr-defined]
        self.round = RoundServer(self.session(session), params, keys, self.store, self.maps)
        await self._send(self.round.invitations())

    async def close_phase(self) -> None:
        """Whoever did not answer is out."""
        assert self.round is not None
        for one in self.live():
            if len(one.messages) not in one.answers:
                one.over = {"outcome": "left-out", "round": self.store.round + 1, "message": "too late"}
        try:
            outbound = self.round.close_phase()
        except Aborted as reason:
            self.outcomes.append(reason)
            await self._finish("aborted", str(reason))
            return
        if outbound:
            await self._send(outbound)
            return
        self.outcomes.append(self.round.outcome)
        self.store.commit(self.round.outcome.applied.commit)
        await self._finish("committed", "")

    async def _send(self, outbound: Any) -> None:
        for client, message in outbound.items():
            talk = self.talks[self.playing[client]]
            altered = self.alter(client, len(talk.messages) + 1, message) if self.alter else message
            talk.messages.append(CODEC.encode(altered))
        async with self._news:
            self._news.notify_all()

    async def _finish(self, outcome: str, why: str) -> None:
        for ticket in self.playing.values():
            self._end(ticket, outcome, why)
        self.round, self.playing = None, {}
        async with self._news:
            self._news.notify_all()

    def _end(self, ticket: bytes, outcome: str, why: str) -> None:
        talk = self.talks[ticket]
        if ticket in self.waiting:
            self.waiting.remove(ticket)
        talk.over = talk.over or {"outcome": outcome, "round": self.store.round, "message": why}

    async def restart(self) -> None:
        """As after a crash: tickets and rounds are gone, enrolments and the store are not."""
        self.talks, self.waiting, self.playing, self.round = {}, [], {}, None
        async with self._news:
            self._news.notify_all()


def problem(status: int, error: Exception) -> Response:
    return JSONResponse({"error": type(error).__name__, "message": str(error)}, status_code=status)


def over(said: dict[str, Any]) -> Response:
    return JSONResponse({"error": "RoundOver", **said}, status_code=410)
