"""Requests of every wrong kind to the HTTP surface, and a server in the middle of a round."""

import asyncio
import json
import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from clocks import PATIENCE
from deployment import HOST, HOSTS, Deployment, Guest
from fuzz.corpus import frames
from fuzz.frames import Frame, mutated
from sfsl.carriers.https.app import AppLimits, Server, create_app
from sfsl.crypto.secret import Identity, Secret, SystemRandomness
from sfsl.service.log import sign_head
from sfsl.service.log_file import LogRules, RosterLog
from sfsl.service.messages import CODEC, Enrol, LogEntry, LogQuery
from sfsl.service.registry import Enrolment
from sfsl.service.signing import Verifier, client_id, sign_request

START_MS = 1_800_000_000_000
STEP_MS = 200  # between two cases: nonces are forgotten as they would be
Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Call:
    """One request. ``chunks`` is the body, as it arrives."""

    kind: str
    method: str
    target: bytes
    headers: Headers = field(repr=False)
    chunks: tuple[bytes, ...] = ()

    def describe(self) -> str:
        return repr((self.kind, self.method, self.target, self.headers, self.chunks))


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


class Site:
    """A deployment whose honest clients are in the middle of a round. The crook is enrolled, and checked in
    for the next round or, ``inside``, in this one."""

    def __init__(self, folder: Path, *, inside: bool) -> None:
        self.inside = inside
        self.now_ms = START_MS
        self._folder = folder

    async def __aenter__(self) -> "Site":
        size = 4 if self.inside else 3
        self.world = await Deployment(
            self._folder, cohort=size, min_cohort=size, threshold=3, poll_seconds=0.002, period_days=0
        ).__aenter__()
        *self.honest, self.crook = self.world.clients(4)
        self.gone = self.world.identity(8)
        self.world.registry.revoke(client_id(self.gone.public), START_MS)
        self.stranger = Identity(Secret(b"s" * 32))
        for guest in (*self.honest, self.crook) if self.inside else self.honest:
            guest.check_in()
        frames_ = [await self._first(guest) for guest in self.honest]
        self.answer = CODEC.encode(self.crook.message)
        if self.inside:
            self.answer = self.crook.answer_to(await self._first(self.crook))
        else:
            self.crook.check_in()
        for guest, frame in zip(self.honest[:2], frames_[:2], strict=True):
            await guest.answer(guest.answer_to(frame))
        self.pending = (self.honest[2], frames_[2])
        limits = AppLimits(client_rate=1e9, client_burst=10**9, address_rate=1e9, address_burst=10**9)
        registry = self.world.registry
        # The stranger has the witness's place: it may sign heads, and must not be able to do more.
        witnesses = LogRules(frozenset({self.stranger.public}), 1)
        self.log = RosterLog(self._folder, registry.deployment, witnesses, SystemRandomness(), START_MS)
        self.log.enter([LogEntry(guest.identity.public) for guest in (*self.honest, self.crook)], START_MS)
        self.log.cosign(sign_head(self.stranger, self.log.offered), START_MS)
        server = Server(
            self.world.coordinator,
            Verifier(registry.deployment, registry.public_key, hosts=HOSTS, nonces_per_client=100_000),
            Enrolment.open(50),
            b"package",
            limits,
            log=self.log,
            time_ms=lambda: self.now_ms,
        )
        self.server = server
        self.app = create_app(server, limits)
        return self

    async def _first(self, guest: Guest) -> bytes:
        while (frame := await guest.next()) is None:
            await asyncio.sleep(0.01)
        return frame

    async def __aexit__(self, *_: object) -> None:
        self.log.close()
        await self.world.__aexit__()

    async def send(self, call: Call) -> Answer:
        """Through the app, as uvicorn would."""
        raw, _, query = call.target.partition(b"?")
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": call.method,
            "scheme": "https", "path": unquote(raw.decode("latin-1")), "raw_path": raw, "query_string": query,
            "root_path": "", "headers": call.headers, "client": ("127.0.0.9", 1), "server": ("127.0.0.1", 2),
        }  # fmt: skip
        parts = [*call.chunks] or [b""]
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            if not parts:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

        async def send(message: Any) -> None:
            sent.append(message)

        await asyncio.wait_for(self.app(scope, receive, send), PATIENCE)
        start, *bodies = sent
        assert start["type"] == "http.response.start"
        assert [one["type"] for one in bodies] == ["http.response.body"] * len(bodies)
        headers = {name.decode(): value.decode() for name, value in start["headers"]}
        return Answer(start["status"], headers, b"".join(one.get("body", b"") for one in bodies))

    def state(self) -> bytes:
        """What a stranger must not change: the round, the others' conversations, the registry, the store.

        Of the crook's own conversation everything may change; of the registry, who is enrolled.
        """
        coordinator, check_ins, registry = self.world.coordinator, self.world.check_ins, self.world.registry
        running = coordinator._running
        assert running is not None
        others = [
            (one.client, one.ticket, one.number, one.delivered, one.over, one._answers, one._frame)
            for one in check_ins._conversations._of.values()
            if one.client != self.crook.id
        ]
        heard = running.answered - {self.crook.id}
        return pickle.dumps(
            (
                None if self.inside else running.server,
                sorted(heard),
                running.exchange,
                others,
                sorted(name for name in check_ins.waiting if name != self.crook.id),
                check_ins.round,
                check_ins.stopping,
                self.world.store.round,
                [registry.acknowledged(guest.id) for guest in self.honest],
            )
        )

    async def finish(self) -> None:
        """The honest clients go on as if nothing had been."""
        guest, frame = self.pending
        await guest.answer(guest.answer_to(frame))
        ends = await asyncio.gather(*(one.play() for one in self.honest))
        assert {(end.outcome, end.round) for end in ends} == {("committed", 1)}


class Calls:
    """Makes requests by chance, and remembers a few for replays."""

    METHODS = (
        "GET",
        "POST",
        "HEAD",
        "PUT",
        "DELETE",
        "OPTIONS",
        "PATCH",
        "get",
        "TRACE",
        "PROPFIND",
        "X" * 40,
    )
    ODD = (
        b"/", b"//", b"/v1", b"/v1/", b"/v1/about/", b"/v2/about", b"/v1/next", b"/v1/next/", b"/v1/answer/x",
        b"/%00", b"/../../etc/passwd", b"/v1/%61bout", b"/v1/about%2f", b"/\xff\xfe", b"*", b"http://x/v1/about",
        b"/v1/about;x", b"/" + b"a" * 3000, b"/status.json/..", b"/metrics%0a", b"/%e2%82%ac", b"", b"/%zz%",
        b"/v1/check-in/", b"/V1/ABOUT", b"/docs", b"/.env", b"/favicon.ico",
    )  # fmt: skip
    NUMBERS = (
        b"0",
        b"1",
        b"2",
        b"3",
        b"999",
        b"1000",
        b"-1",
        b"01",
        b"1e1",
        b"%31",
        b"\xd9\xa1",
        b"x",
        b"1" * 50,
    )
    QUERIES = (
        b"", b"after=0", b"after=1", b"after=2", b"after=999", b"after=01", b"after=-1", b"after=0&after=0",
        b"after", b"after=", b"after=%30", b"after=0&x=1", b"x=1", b"&", b"after=\xff",
        b"after=" + b"9" * 500,
    )  # fmt: skip

    def __init__(self, site: Site, *, replays: bool = True) -> None:
        self._site = site
        self._replays = replays
        self._randomness = SystemRandomness()
        self._frames = frames()["http"][1]
        self._taken: list[Call] = []

    def make(self, rng: random.Random) -> Call:
        if self._taken and rng.random() < 0.05:
            again = rng.choice(self._taken)
            return Call("replayed", again.method, again.target, again.headers, again.chunks)
        path, method = self._path(rng)
        query = rng.choice(self.QUERIES[:3] * 4 + self.QUERIES) if b"/next/" in path else b""
        if path.startswith(b"/v1/log"):
            query = rng.choice((b"", b"since=0", b"since=3", b"since=99", b"since=01", b"since=" + b"9" * 13))
        if rng.random() < 0.1:
            query = rng.choice(self.QUERIES)
        target = path + (b"?" + query if query else b"")
        if rng.random() < 0.1:
            method = rng.choice(self.METHODS)
        body = self._body(rng, path) if rng.random() < 0.8 or method == "POST" else b""
        kind = rng.choice(("signed",) * 8 + ("unsigned", "wrong", "other", "stale", "mangled", "lying"))
        headers = self._headers(rng, kind, method, target, body)
        if rng.random() < 0.1:
            headers += rng.choice(_EXTRA)
        call = Call(kind, method, target, headers, _chunks(rng, body))
        if self._replays and kind == "signed" and rng.random() < 0.1:
            self._taken = [*self._taken[-20:], call]
        return call

    def _path(self, rng: random.Random) -> tuple[bytes, str]:
        site = self._site
        mine, others = site.crook.ticket, (site.honest[0].ticket, site.honest[2].ticket)
        ticket = rng.choice((mine, mine, *others, rng.randbytes(16))).hex().encode()
        if rng.random() < 0.1:
            ticket = rng.choice((ticket.upper(), ticket[:-1], ticket + b"0", b"%00" * 3, ticket[:-1] + b"\n"))
        # Inside, a new check-in would take the crook out of the round: so it stays in it.
        match rng.choice((0, 1, 4, 5, 5, 5, 7, 8) if site.inside else (0, 1, 2, 2, 4, 5, 5, 7, 8)):
            case 0:
                return rng.choice(self.ODD), rng.choice(("GET", "POST"))
            case 1:
                return b"/v1/enrol", "POST"
            case 2:
                return b"/v1/check-in", "POST"
            case 4:
                return b"/v1/next/" + ticket, "GET"
            case 5:
                return b"/v1/answer/" + ticket + b"/" + rng.choice(
                    self.NUMBERS[:3] * 4 + self.NUMBERS
                ), "POST"
            case 8:
                logs = (b"/v1/log", b"/v1/log/offer", b"/v1/log/prove", b"/v1/log/witness")
                path = rng.choice(logs)
                return path, "POST" if path in logs[2:] else "GET"
            case _:
                open_ = (b"/v1/about", b"/v1/model", b"/healthz", b"/metrics", b"/status.json", b"/")
                return rng.choice(open_), "GET"

    def _body(self, rng: random.Random, path: bytes) -> bytes:
        if path.startswith(b"/v1/log") and rng.random() < 0.5:
            names = tuple(guest.id for guest in self._site.honest[: rng.randrange(4)])
            head = sign_head(self._site.stranger, self._site.log.offered)
            valid = rng.choice((LogQuery(rng.choice((0, 2, 3, 2**40)), names), head, self._site.log.offered))
            data = CODEC.encode(valid)
            return data if rng.random() < 0.5 else mutated(rng, (Frame.of(data),), sly=True)
        match rng.randrange(7):
            case 0:
                return b""
            case 1:
                return rng.randbytes(rng.choice((1, 100, 300, 3000, 70_000)))
            case 2:
                return CODEC.encode(rng.choice((self._site.crook.message, Enrol(self._site.stranger.public))))
            case 3:
                return CODEC.encode(Enrol(rng.choice((rng.randbytes(32), bytes(32), self._site.gone.public))))
            case 4:
                return mutated(rng, self._frames, Frame.of(self._site.answer), sly=True)
            case _:
                return mutated(rng, self._frames, sly=rng.random() < 0.6)

    def _headers(self, rng: random.Random, kind: str, method: str, target: bytes, body: bytes) -> Headers:
        site = self._site
        who = site.stranger if target == b"/v1/enrol" or rng.random() < 0.05 else site.crook.identity
        if rng.random() < 0.03:
            who = site.gone
        claimed = rng.choice((0, 10**14, site.now_ms - 10**6)) if kind == "stale" else site.now_ms
        signed = sign_request(
            who,
            deployment=site.world.registry.deployment if kind != "other" else bytes(16),
            host=HOST if kind != "other" or len(body) % 2 else "elsewhere",
            method=method if method.isupper() and len(method) <= 16 else "GET",
            target=_signable(target),
            body=body if kind != "wrong" else body + b"x",
            now_ms=claimed,
            randomness=self._randomness,
        )
        if kind == "lying":
            signed["Sfsl-Client"] = site.honest[0].id
        headers = [(name.lower().encode(), value.encode()) for name, value in signed.items()]
        if kind == "unsigned":
            return []
        if kind == "mangled":
            place = rng.randrange(len(headers))
            name, value = headers[place]
            changed = (
                value + b"0",
                value[:-1],
                b"",
                value.upper(),
                b"\xff" + value[1:],
                value + b" ",
                b"9" * 5000,
            )
            headers[place] = (name, rng.choice([one for one in changed if one != value]))
            if rng.random() < 0.3:
                headers.append(headers[rng.randrange(len(headers))])
        return headers


_EXTRA: tuple[Headers, ...] = (
    [(b"content-length", b"99999999999")], [(b"content-length", b"-1")], [(b"content-length", b"\xb2")],
    [(b"content-length", b"9" * 5000)], [(b"content-length", b"0")], [(b"content-length", b"1_0")],
    [(b"content-encoding", b"gzip")], [(b"content-type", b"multipart/form-data; boundary=\xff")],
    [(b"cookie", b"a=b; " * 500)], [(b"x-forwarded-for", b"1.2.3.4, \xff")], [(b"host", b"evil\r\n")],
    [(b"expect", b"100-continue")], [(b"range", b"bytes=0-")], [(b"accept", b"*/*;q=\xff")],
    [(b"x-http-method-override", b"DELETE")], [(b"transfer-encoding", b"chunked")],
    [(b"transfer-encoding", b"chunked"), (b"content-length", b"3")], [(b"sfsl-other", b"1")],
    [(b"upgrade", b"websocket"), (b"connection", b"upgrade")], [(b"x" * 2000, b"y" * 2000)],
)  # fmt: skip


def _signable(target: bytes) -> str:
    text = "".join(chr(one) if 0x21 <= one <= 0x7E else "%20" for one in target)[:2000]
    return text if text.startswith("/") else "/" + text


def _chunks(rng: random.Random, body: bytes) -> tuple[bytes, ...]:
    if rng.random() < 0.8 or len(body) < 2:
        return (body,)
    cut = rng.randrange(len(body))
    return (body[:cut], b"", body[cut:])


NAMES = {
    400: {"DecodeError", "WrongVersion", "InvalidMessage"},
    401: {"AuthenticationFailed", "ClockSkew", "Replayed"},
    403: {"UnknownClient", "Revoked", "Refused"},
    404: {"NotFound"},
    405: {"MethodNotAllowed"},
    409: {"WrongPhase", "WrongRound", "UnexpectedSender", "ConflictingMessage"},
    410: {"RoundOver"},
    413: {"Oversize"},
    429: {"TooMany"},
}
OPEN = {b"/v1/about", b"/v1/model", b"/healthz", b"/metrics", b"/status.json", b"/"}
OPEN |= {b"/v1/log", b"/v1/log/offer"}


def require_proper(call: Call, answer: Answer) -> str:
    """Typed, in one line, with nothing of the sender's in it; or an answer that this request may have."""
    assert answer.headers["cache-control"] == "no-store"
    assert b"Traceback" not in answer.body
    assert b'File "' not in answer.body
    if answer.status in (200, 204):
        assert may_be_taken(call), f"{answer.status} for {call.describe()}"
        return str(answer.status)
    assert answer.status in NAMES, f"{answer.status} {answer.body!r} for {call.describe()}"
    assert answer.headers["content-type"] == "application/json"
    said = json.loads(answer.body)
    assert said["error"] in NAMES[answer.status], f"{said} with {answer.status} for {call.describe()}"
    beside = {401: {"time", "clock"}, 410: {"outcome", "round"}}
    assert set(said) == {"error", "message"} | beside.get(answer.status, set())
    assert 0 < len(said["message"]) <= 400
    assert "\n" not in said["message"]
    return f"{answer.status} {said['error']}"


def may_be_taken(call: Call) -> bool:
    """Whether this request could be in order."""
    path = call.target.partition(b"?")[0]
    if path in OPEN:
        return call.method == "GET" or (call.method == "HEAD" and not path.startswith(b"/v1/"))
    if path == b"/v1/log/witness":  # the body is signed
        return call.method == "POST" and b"".join(call.chunks).startswith(b"\x01\x86\xa4type\xa8log-head")
    if call.kind != "signed":
        return call.kind == "replayed" and path == b"/v1/enrol"
    if path.startswith(b"/v1/next/"):
        return call.method == "GET"
    return call.method == "POST" and path.startswith(
        (b"/v1/check-in", b"/v1/answer/", b"/v1/enrol", b"/v1/log/prove")
    )


Check = Callable[[Call, Answer], str]
