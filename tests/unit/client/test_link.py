"""A client's link: what it retries, what it refuses, and what it never sends twice in two forms."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from clocks import PATIENCE, let_time_pass
from sfsl.carriers.https.authority import create_authority, issue_server
from sfsl.client import Backoff, Event, Link, LinkLimits, trusted
from sfsl.client.link import Over
from sfsl.crypto.secret import Identity
from sfsl.errors import (
    AuthenticationFailed,
    DecodeError,
    InputError,
    InvalidMessage,
    KeyFileError,
    Oversize,
    WrongRound,
    WrongVersion,
)
from sfsl.secagg.messages import Survivors
from sfsl.service.messages import CODEC, CheckedIn
from sfsl.service.signing import Verifier
from sfsl.testing import SeededRandomness

DEPLOYMENT = bytes(16)
TICKET = bytes(16)
ABOUT = {
    "protocol": 1,
    "deployment": DEPLOYMENT.hex(),
    "model": "ab" * 32,
    "round": 4,
    "time": 1_700_000_000_000,
}
MESSAGE = CODEC.encode(Survivors(bytes(16), 0, (0, 1), ()))
Answer = Callable[[httpx.Request], httpx.Response | Awaitable[httpx.Response]]


class Wire:
    """A server as a list of answers, the last of which repeats; and the client's clocks."""

    def __init__(self, *answers: Any, **options: Any) -> None:
        self.answers = list(answers)
        self.sent: list[httpx.Request] = []
        self.slept: list[float] = []
        self.events: list[Event] = []
        self.now = 1_700_000_000.0
        self.options = options

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/about":
            answer: Any = ABOUT
            if self.answers and isinstance(self.answers[0], dict):
                answer = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
            return on_the_wire(httpx.Response(200, json=answer))
        self.sent.append(request)
        answer = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, httpx.Response):
            return on_the_wire(answer)
        found = answer(request)
        return on_the_wire(found if isinstance(found, httpx.Response) else await found)

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)  # or a client that tries for ever could not be stopped

    def run(self, act: Callable[[Link], Awaitable[Any]]) -> Any:
        async def main() -> Any:
            given: dict[str, Any] = {
                "backoff": Backoff(SeededRandomness("jitter")),
                "randomness": SeededRandomness("nonces"),
                "deployment": DEPLOYMENT,
                "transport": httpx.MockTransport(self._handle),
                "notify": self.events.append,
                "sleep": self._sleep,
                "wall": lambda: self.now,
                "steady": lambda: self.now,
            }
            link = Link("https://server", Identity.generate(SeededRandomness("me")), **(given | self.options))
            async with link, asyncio.timeout(PATIENCE):
                return await act(link)

        return asyncio.run(main())


def on_the_wire(answer: httpx.Response) -> httpx.Response:
    """Not read yet, as a response from a socket."""
    if not answer.is_stream_consumed:
        return answer
    return httpx.Response(answer.status_code, headers=answer.headers, stream=httpx.ByteStream(answer.content))


def message(number: int = 1, body: bytes = MESSAGE, **headers: str) -> httpx.Response:
    return httpx.Response(200, content=body, headers={"Sfsl-Sequence": str(number), **headers})


def over(outcome: str = "committed") -> httpx.Response:
    said = {"error": "RoundOver", "outcome": outcome, "round": 7, "message": "why\x1b[31m not"}
    return httpx.Response(410, json=said)


def poll(link: Link) -> Awaitable[Any]:
    return link.next(TICKET, 0, limit=1000)


def post(link: Link) -> Awaitable[Any]:
    return link.answer(TICKET, 2, b"the answer")


# -- bad links ---------------------------------------------------------------------------------


def test_a_retry_sends_identical_bytes_under_a_fresh_signature() -> None:
    wire = Wire(httpx.ConnectError("no"), httpx.ReadError("gone"), httpx.Response(502), httpx.Response(204))
    assert wire.run(post) is None
    assert [request.content for request in wire.sent] == [b"the answer"] * 4
    assert len({request.headers["Sfsl-Nonce"] for request in wire.sent}) == 4
    identity = Identity.generate(SeededRandomness("me"))
    verifier = Verifier(DEPLOYMENT, lambda client: identity.public, hosts=("server",))
    for request in wire.sent:
        signed = int(request.headers["Sfsl-Time"])
        target = request.url.raw_path.decode()
        verifier.check(request.headers, "POST", target, sha256(request.content).digest(), signed)
    assert [event.kind for event in wire.events] == ["offline"] * 3
    assert [event.seconds for event in wire.events] == pytest.approx(wire.slept, abs=0.001)


def test_waits_grow_with_jitter_up_to_a_bound() -> None:
    failures = [httpx.ConnectError("no")] * 12
    wire = Wire(*failures, httpx.Response(204))
    wire.run(post)
    for attempt, seconds in enumerate(wire.slept):
        most = min(60.0, 2.0**attempt)
        assert most / 2 <= seconds <= most
    assert len(wire.slept) == 12
    assert len(set(wire.slept)) == 12


@pytest.mark.parametrize(
    ("asked", "least"), [("7", 7), ("999999999", 3600), ("soon", 0), ("-5", 0), ("9" * 30, 0)]
)
@pytest.mark.parametrize("status", [429, 503])
def test_a_server_may_ask_for_patience_within_reason(status: int, asked: str, least: float) -> None:
    wire = Wire(httpx.Response(status, headers={"Retry-After": asked}), httpx.Response(204))
    wire.run(post)
    (seconds,) = wire.slept
    assert least + 0.5 <= seconds <= least + 1


def test_an_answer_that_never_comes_is_given_up() -> None:
    async def silent(request: httpx.Request) -> httpx.Response:
        let_time_pass(61)
        await asyncio.Event().wait()
        return httpx.Response(204)

    wire = Wire(silent, httpx.Response(204), limits=LinkLimits(request_s=60))
    wire.run(post)
    assert len(wire.sent) == 2


def test_an_answer_that_drips_is_given_up() -> None:
    async def drips() -> AsyncIterator[bytes]:
        while True:
            yield b"x"
            let_time_pass(1)
            await asyncio.sleep(0)

    wire = Wire(message(body=drips()), message(), limits=LinkLimits(poll_s=60))  # type: ignore[arg-type]
    assert wire.run(poll) == CODEC.decode(MESSAGE, limit=100)


def test_polls_go_on_until_there_is_a_message_and_not_without_end() -> None:
    wire = Wire(*[httpx.Response(204)] * 5, message())
    assert isinstance(wire.run(poll), Survivors)
    assert len(wire.sent) == 6
    assert len(wire.slept) == 5  # a server that holds no poll open
    assert wire.slept[4] > wire.slept[0]


# -- ends and refusals -------------------------------------------------------------------------


@pytest.mark.parametrize("act", [poll, post])
def test_410_is_the_end_of_the_conversation(act: Any) -> None:
    wire = Wire(over("left-out"))
    assert wire.run(act) == Over("left-out", 7, "why?[31m not")
    assert len(wire.sent) == 1


def test_410_without_sense_is_an_end_as_well() -> None:
    wire = Wire(httpx.Response(410, text="<html>"))
    assert wire.run(poll) == Over("over", None, "")


def test_a_late_answer_is_left_to_the_next_poll() -> None:
    wire = Wire(httpx.Response(409, json={"error": "WrongPhase", "message": "too late"}))
    assert wire.run(post) is None
    assert len(wire.sent) == 1


@pytest.mark.parametrize("status", [400, 413, 418])
def test_what_no_retry_mends_is_raised(status: int) -> None:
    wire = Wire(httpx.Response(status, json={"error": "DecodeError", "message": "nonsense"}))
    with pytest.raises(InvalidMessage, match="nonsense"):
        wire.run(post)
    assert len(wire.sent) == 1


def test_an_unknown_or_revoked_client_is_told() -> None:
    wire = Wire(httpx.Response(403, json={"error": "Revoked", "message": "withdrawn"}))
    with pytest.raises(AuthenticationFailed, match="withdrawn"):
        wire.run(post)
    assert len(wire.sent) == 1


def test_a_wrong_clock_is_set_by_the_servers() -> None:
    ahead = ABOUT | {"time": 1_700_000_500_000}
    skewed = httpx.Response(401, json={"error": "ClockSkew", "message": "behind"})
    wire = Wire(skewed, ahead, httpx.Response(204))
    wire.run(post)
    first, second = (int(request.headers["Sfsl-Time"]) for request in wire.sent)
    assert second - first == 500_000
    assert first == 1_700_000_000_000


def test_a_signature_that_is_never_taken_is_an_error() -> None:
    refused = httpx.Response(401, json={"error": "AuthenticationFailed", "message": "who?"})
    wire = Wire(refused, patience_s=0)
    with pytest.raises(AuthenticationFailed, match="who"):
        wire.run(post)
    assert len(wire.sent) == 6


# -- answers that lie --------------------------------------------------------------------------


def test_html_instead_of_frames() -> None:
    wire = Wire(httpx.Response(200, text="<html>Welcome to our hotel", headers={"Sfsl-Sequence": "1"}))
    with pytest.raises(DecodeError):
        wire.run(poll)
    assert len(wire.sent) == 3  # a proxy may be passing; a server that does this three times is not


def test_a_garbled_answer_is_asked_for_again() -> None:
    wire = Wire(message(body=MESSAGE[:-1]), message())
    assert wire.run(poll) == CODEC.decode(MESSAGE, limit=100)


@pytest.mark.parametrize("number", ["0", "2", "01", "1 ", "", "x"])
def test_a_message_out_of_sequence(number: str) -> None:
    wire = Wire(httpx.Response(200, content=MESSAGE, headers={"Sfsl-Sequence": number}))
    with pytest.raises(WrongRound):
        wire.run(poll)


def test_a_huge_content_length_is_refused_unread() -> None:
    touched = []

    async def body() -> AsyncIterator[bytes]:
        touched.append(1)
        yield b"x"

    answers = [
        httpx.Response(200, content=body(), headers={"Content-Length": str(10**9), "Sfsl-Sequence": "1"})
        for _ in range(3)
    ]
    with pytest.raises(Oversize, match="1000000000"):
        Wire(*answers).run(poll)
    assert not touched


@pytest.mark.parametrize("length", ["-1", "1e3", "9" * 40, "0x10"])
def test_a_nonsensical_content_length(length: str) -> None:
    wire = Wire(
        httpx.Response(200, content=MESSAGE, headers={"Content-Length": length, "Sfsl-Sequence": "1"})
    )
    with pytest.raises(Oversize):
        wire.run(poll)


def test_more_bytes_than_are_taken() -> None:
    got = []

    async def endless() -> AsyncIterator[bytes]:
        while True:
            got.append(1)
            yield bytes(100)

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=endless(), headers={"Sfsl-Sequence": "1"})

    with pytest.raises(Oversize):
        Wire(answer).run(poll)
    assert len(got) == 3 * 11


def test_a_long_refusal_is_not_read() -> None:
    wire = Wire(httpx.Response(400, content=bytes(100_000)))
    with pytest.raises(Oversize):
        wire.run(poll)


def test_compression_is_not_undone() -> None:
    wire = Wire(message(body=b"\x1f\x8b", **{"Content-Encoding": "gzip"}))
    with pytest.raises(DecodeError, match="compressed"):
        wire.run(poll)
    assert wire.sent[0].headers["Accept-Encoding"] == "identity"


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(status: int) -> None:
    wire = Wire(httpx.Response(status, headers={"Location": "https://elsewhere/v1/answer"}))
    with pytest.raises(DecodeError, match="goes nowhere else"):
        wire.run(post)
    assert {request.url.host for request in wire.sent} == {"server"}


@pytest.mark.parametrize(
    ("about", "error"),
    [
        (ABOUT | {"protocol": 2}, WrongVersion),
        (ABOUT | {"deployment": "01" * 16}, AuthenticationFailed),
        (ABOUT | {"deployment": "xyz"}, DecodeError),
        (ABOUT | {"model": "ab" * 31}, DecodeError),
        (ABOUT | {"time": 10**16}, DecodeError),
        (ABOUT | {"time": "now"}, DecodeError),
        ({}, DecodeError),
    ],
)
def test_a_server_that_is_not_ours(about: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Wire(about).run(lambda link: link.about())


def test_enrolment_under_another_name() -> None:
    wire = Wire(httpx.Response(200, json={"client": "somebody"}))
    with pytest.raises(InvalidMessage, match="another name"):
        wire.run(lambda link: link.enrol())


def test_another_message_than_checked_in() -> None:
    with pytest.raises(InvalidMessage, match="Survivors"):
        Wire(httpx.Response(200, content=MESSAGE)).run(lambda link: link.check_in(b"keys"))


def test_checked_in() -> None:
    reply = CheckedIn(TICKET, 3)
    assert (
        Wire(httpx.Response(200, content=CODEC.encode(reply))).run(lambda link: link.check_in(b"")) == reply
    )


def test_a_model_larger_than_allowed() -> None:
    wire = Wire(httpx.Response(200, content=bytes(101)), limits=LinkLimits(model_bytes=100))
    with pytest.raises(Oversize):
        wire.run(lambda link: link.model())


# -- whom it speaks to -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "http://server",
        "ftp://server",
        "server:8443",
        "https://a@server",
        "https://server/path",
        "https://",
        "https://server:99999",
        "https://server:abc",
        "https://server:0",
        "https://[::1",
        "https://a..b",
    ],
)
def test_addresses_that_are_not_taken(address: str) -> None:
    with pytest.raises(InputError):
        Link(
            address,
            Identity.generate(SeededRandomness("me")),
            backoff=Backoff(SeededRandomness("a")),
            randomness=SeededRandomness("b"),
        )


def test_a_missing_authority_file(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError):
        trusted(tmp_path / "none.pem")


def from_cause(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = OSError("All connection attempts failed")
    error.__cause__.__context__ = ExceptionGroup("", [cause]) if isinstance(cause, Exception) else cause
    return error


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (from_cause(httpx.ConnectError("no"), ConnectionRefusedError()), "nothing listens at https://server"),
        (from_cause(httpx.ConnectError("no"), socket.gaierror()), "the name server is not found"),
        (from_cause(httpx.ConnectError("no"), OSError(113, "No route to host")), "No route to host"),
        (httpx.ConnectTimeout("no"), "timed out"),
        (httpx.ReadError("no"), "closed the connection"),
        (httpx.ConnectError("no"), "no connection (ConnectError)"),
    ],
)
def test_why_a_server_cannot_be_reached_is_said_in_words(error: Exception, says: str) -> None:
    wire = Wire(error, httpx.Response(204))
    wire.run(post)
    said = str(wire.events[0])
    assert said.startswith("cannot reach the server: ")
    assert says in said


@pytest.mark.parametrize(
    ("scheme", "says"),
    [
        ("https", "does not speak TLS"),
        ("http", "does not speak HTTP here. Is it TLS?"),
        ("nobody", "nothing listens at"),
    ],
)
def test_a_port_of_another_kind_is_said_in_words(tmp_path: Path, scheme: str, says: str) -> None:
    """Over real sockets: TLS where none is spoken, none where TLS is, and nobody there at all."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"\x15\x03\x01\x00\x02\x02\x16" if scheme == "http" else b"HTTP/1.1 400 No\r\n\r\n")
        writer.close()

    async def main() -> str:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        if scheme == "nobody":
            server.close()
            await server.wait_closed()
        said: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def notify(event: Event) -> None:
            if not said.done():
                said.set_result(str(event))

        link = Link(
            f"{'http' if scheme == 'http' else 'https'}://localhost:{port}",
            Identity.generate(SeededRandomness("me")),
            backoff=Backoff(SeededRandomness("a")),
            randomness=SeededRandomness("b"),
            plain=True,
            notify=notify,
        )
        async with link, asyncio.timeout(PATIENCE):
            asking = asyncio.create_task(link.about())
            text = await said
            asking.cancel()
            await asyncio.wait([asking])
        server.close()
        return text

    assert says in asyncio.run(main())


@pytest.mark.parametrize("known", [True, False])
def test_tls_of_an_unknown_authority_is_refused(tmp_path: Path, known: bool) -> None:
    """Over a real socket. Whoever does not have the pinned authority's certificate learns nothing."""
    now = datetime.now(UTC)
    for name in ("ours", "theirs"):
        create_authority(tmp_path / name, name, 10, now=now)
        issue_server(tmp_path / name, ["localhost"], 5, now=now)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "ours/server.pem", tmp_path / "ours/server.key")
    heard = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(1000))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        pinned = trusted(tmp_path / ("ours" if known else "theirs") / "authority.pem")
        async with (
            server,
            Link(
                f"https://localhost:{port}",
                Identity.generate(SeededRandomness("me")),
                backoff=Backoff(SeededRandomness("a")),
                randomness=SeededRandomness("b"),
                deployment=DEPLOYMENT,
                tls=pinned,
            ) as link,
            asyncio.timeout(PATIENCE),
        ):
            await post(link)

    if known:
        asyncio.run(main())
        assert b"the answer" in heard[0]
    else:
        with pytest.raises(AuthenticationFailed, match="certificate is not trusted"):
            asyncio.run(main())
        assert not heard


def test_it_goes_through_no_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it connects to is said by its owner alone: a variable must not put someone in between."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        body = json.dumps(ABOUT).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        proxy = await asyncio.start_server(lambda *_: proxied.append(1), "127.0.0.1", 0)
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            for spelling in (name, name.lower()):
                monkeypatch.setenv(spelling, f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}")
        randomness = SeededRandomness("proxy")
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with (
            server,
            proxy,
            asyncio.timeout(PATIENCE),
            Link(
                url,
                Identity.generate(randomness),
                plain=True,
                backoff=Backoff(randomness),
                randomness=randomness,
            ) as link,
        ):
            assert (await link.about()).round == ABOUT["round"]

    asked: list[bytes] = []
    proxied: list[int] = []
    asyncio.run(main())
    assert len(asked) == 1
    assert asked[0].startswith(b"GET /v1/about ")
    assert not proxied
