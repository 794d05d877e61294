"""Limits of the HTTP surface: what they are where nobody says, and each at its boundary."""

import asyncio
import json
import logging
import math
import socket
import struct
from typing import Any

import pytest
from starlette.requests import Request

from clocks import PATIENCE
from sfsl.carriers.https import app, listen
from sfsl.carriers.https.app import AppLimits, Rates, refusal
from sfsl.carriers.https.conversation import Conversation, Conversations
from sfsl.carriers.https.listen import ConnectionLimits, Door, Listen
from sfsl.errors import (
    AuthenticationFailed,
    ClockSkew,
    ConflictingMessage,
    InvalidMessage,
    Oversize,
    ParameterError,
    RoundOver,
    ShuttingDown,
    TooMany,
    Unavailable,
    WrongPhase,
)
from sfsl.secagg.messages import Keys
from sfsl.service.messages import CheckIn


def test_limits_where_nobody_says() -> None:
    usual = AppLimits()
    assert (usual.largest_body, usual.body_seconds) == (64 << 20, 60.0)
    assert (usual.client_rate, usual.client_burst) == (20.0, 100)
    assert (usual.address_rate, usual.address_burst) == (500.0, 2000)
    doors = ConnectionLimits()
    assert (doors.most, doors.most_per_address, doors.head_seconds, doors.drain_seconds) == (
        5000,
        1000,
        10,
        120,
    )
    place = Listen()
    assert (place.host, place.port, place.certificate, place.proxied) == ("127.0.0.1", 8443, None, False)
    # Room for what is sent, as the specification has it.
    assert (app.ENROL_BYTES, app.CHECK_IN_BYTES, app.HEAD_BYTES) == (256, 2048, 8192)
    assert app.QUERY_BYTES == 64 + 34 * 1024


# -- rates ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [(0.0, 1, 1), (-1.0, 1, 1), (1.0, 0, 1), (1.0, 1, 0)])
def test_rates_that_let_nobody_in(wrong: tuple[float, int, int]) -> None:
    with pytest.raises(ParameterError, match="requests of this client"):
        Rates("this client", *wrong)
    Rates("this client", 0.1, 1, 1)


def test_a_burst_and_then_the_rate() -> None:
    rates = Rates("x", per_second=2.0, burst=3)
    for _ in range(3):
        rates.take("a", 10.0)
    with pytest.raises(TooMany) as caught:
        rates.take("a", 10.0)
    assert caught.value.wait_ms == 500
    with pytest.raises(TooMany) as caught:
        rates.take("a", 10.25)
    assert caught.value.wait_ms == 250
    rates.take("a", 10.5)
    with pytest.raises(TooMany):
        rates.take("a", 10.9)
    rates.take("b", 10.9)
    for _ in range(3):
        rates.take("a", 100.0)  # never more than the burst, however long nobody asked
    with pytest.raises(TooMany):
        rates.take("a", 100.0)
    with pytest.raises(TooMany):
        rates.take("a", 50.0)  # a clock that goes back gives nothing


def test_of_many_names_the_oldest_is_forgotten() -> None:
    rates = Rates("x", per_second=0.001, burst=1, most=2)
    for name in ("a", "b"):
        rates.take(name, 0.0)
    assert len(rates) == 2
    with pytest.raises(TooMany):
        rates.take("a", 0.0)  # and is the newest now
    rates.take("c", 0.0)
    assert len(rates) == 2
    with pytest.raises(TooMany):
        rates.take("a", 0.0)
    rates.take("b", 0.0)
    assert Rates("x", 1.0, 1)._most == 100_000


# -- refusals ------------------------------------------------------------------------------------------


def told(error: Any, times: Any = None) -> tuple[int, dict[str, Any], dict[str, str]]:
    answer = refusal(error, times)
    return answer.status_code, json.loads(bytes(answer.body)), dict(answer.headers)


def test_when_to_come_back() -> None:
    for wait_ms, seconds in ((0, "1"), (1000, "1"), (1001, "2"), (30_000, "30")):
        status, body, headers = told(TooMany("too many", wait_ms=wait_ms))
        assert (status, body["error"], headers["retry-after"]) == (429, "TooMany", seconds)
    for error, seconds in (
        (ShuttingDown("so"), "10"),
        (Unavailable("so"), "10"),
        (Unavailable("so", wait_s=2.0), "2"),
        (Unavailable("so", wait_s=2.1), "3"),
    ):
        status, _, headers = told(error)
        assert (status, headers["retry-after"]) == (503, seconds)
    assert "retry-after" not in told(Oversize("so"))[2]


def test_by_what_to_sign_again_is_told_where_a_signature_was_not_taken() -> None:
    times = {"time": 5, "clock": 7}
    for error in (AuthenticationFailed("so"), ClockSkew("so", off_ms=3)):
        status, body, _ = told(error, times)
        assert (status, body["time"], body["clock"]) == (401, 5, 7)
    status, body, _ = told(InvalidMessage("so"), times)
    assert (status, set(body)) == (400, {"error", "message"})
    assert set(told(AuthenticationFailed("so"))[1]) == {"error", "message"}
    _, body, _ = told(RoundOver("so", outcome="aborted", round_number=4), times)
    assert (body["outcome"], body["round"]) == ("aborted", 4)


def test_what_is_told_is_one_line_of_400_characters() -> None:
    assert told(InvalidMessage("a\n  b\tc"))[1]["message"] == "a b c"
    for size, shown in ((400, 400), (401, 400)):
        assert len(told(InvalidMessage("x" * size))[1]["message"]) == shown


def asking(query: bytes) -> Request:
    return Request({"type": "http", "query_string": query, "raw_path": b"/v1/log", "headers": []})


def test_since_when_a_head_is_asked_for() -> None:
    for query, size in ((b"", 0), (b"since=0", 0), (b"since=12", 12), (b"since=1099511627776", 2**40)):
        assert app._since(asking(query)) == size
    for wrong in (b"since=", b"since=-1", b"since=01", b"since=1099511627777", b"after=1", b"since=1&"):
        with pytest.raises(InvalidMessage, match="since"):
            app._since(asking(wrong))
    assert app._target(asking(b"")) == "/v1/log"
    assert app._target(asking(b"since=1")) == "/v1/log?since=1"


def test_clocks_that_disagree_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    skews = app._Skews()
    with caplog.at_level(logging.WARNING):
        for off, now in ((-5000, 0.0), (-5000, 59.9), (1, 60.0), (0, 120.0)):
            skews.note(off, now)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 3
    assert "1 requests, the last one signed 5.0 s behind" in said[0]
    assert "2 requests, the last one signed 0.0 s ahead of" in said[1]
    assert "1 requests, the last one signed 0.0 s behind" in said[2]


# -- conversations -------------------------------------------------------------------------------------


def conversation(client: str = "a", ticket: bytes = b"t", key: int = 1) -> Conversation:
    keys = Keys(client, bytes([key]) * 32, (bytes([key + 100]) * 32,), (bytes(32),), None)
    return Conversation(client, ticket, CheckIn(bytes(32), keys), b"f", 0, 0.0)


def test_only_the_last_message_is_kept() -> None:
    async def scenario() -> None:
        one = conversation()
        assert await one.next(0, 0) is None
        with pytest.raises(WrongPhase, match="0 messages were sent so far; 1 cannot"):
            await one.next(1, 0)
        one.say(b"first")
        assert await one.next(0, 0) == (1, b"first")
        assert await one.next(1, 0) is None
        one.say(b"second")
        assert await one.next(1, 0) == (2, b"second")
        for wrong in (0, 3):
            with pytest.raises(WrongPhase, match=f"{wrong} cannot have been received"):
                await one.next(wrong, 0)
        asked = asyncio.create_task(one.next(2, PATIENCE))
        await asyncio.sleep(0)
        assert one.polls == 1
        one.say(b"third")
        assert await asked == (3, b"third")
        assert one.polls == 0
        one.end("aborted", 5, "so")
        one.end("committed", 6, "again")
        with pytest.raises(RoundOver, match="so") as caught:
            await one.next(3, 0)
        assert (caught.value.outcome, caught.value.round) == ("aborted", 5)

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))


def test_an_answer_is_taken_once_and_when_it_is_due() -> None:
    one = conversation()
    one.say(b"first")
    one.require_due(1)
    for wrong in (0, 2):
        with pytest.raises(WrongPhase, match=f"message {wrong}; the last one sent is 1"):
            one.require_due(wrong)
    assert not one.took(1, b"x")
    assert one.taken_size(1) is None
    one.take(1, b"x", 7)
    assert one.took(1, b"x")
    assert one.taken_size(1) == 7
    with pytest.raises(ConflictingMessage, match="answer to message 1"):
        one.took(1, b"y")
    one.end("left-out", 1, "slow")
    with pytest.raises(WrongPhase, match="too late: slow"):
        one.require_due(1)
    other = conversation()
    other.end("aborted", 1, "so")
    with pytest.raises(RoundOver):
        other.require_due(0)


def test_the_last_conversation_and_the_one_before_are_found() -> None:
    held = Conversations(2)
    first, second, third = (conversation("a", bytes([n]), n) for n in (1, 2, 3))
    for one in (first, second):
        held.add(one)
    assert held.latest("a") is second
    assert held.find("a", b"\1") is first
    assert held.find("a", b"\2") is second
    assert held.find("b", b"\2") is held.latest("b") is None
    held.add(third)
    assert held.find("a", b"\1") is None
    assert held.find("a", b"\2") is second
    # Keys of a conversation that is gone are free.
    assert held.holder(bytes([3]) * 32) == held.holder(bytes([103]) * 32) == "a"
    assert held.holder(bytes([2]) * 32) is None
    third.end("aborted", 1, "so")
    assert held.holder(bytes([3]) * 32) is None
    assert held.open() == []


def test_those_that_are_over_make_room_half_of_them_at_a_time() -> None:
    held = Conversations(4)
    all_of = [conversation(f"c{n}", bytes([n]), n) for n in range(4)]
    for number, one in enumerate(all_of):
        assert held.room()
        held.add(one)
        assert len(held.open()) == number + 1
    assert not held.room()
    for one in all_of[:3]:
        one.end("aborted", 1, "so")
    assert held.room()
    assert [held.latest(f"c{n}") is None for n in range(4)] == [True, False, False, False]
    held.add(conversation("c9", b"9", 9))
    assert held.room()
    assert [held.latest(f"c{n}") is None for n in range(4)] == [True, True, False, False]


# -- the door ------------------------------------------------------------------------------------------


def test_whoever_is_too_many_is_out_at_once() -> None:
    limits = ConnectionLimits(most=3, most_per_address=2)
    with Door(socket.create_server(("127.0.0.1", 0)), limits) as door:
        port, guests, inside = door.getsockname()[1], [], []
        for _ in range(2):
            guests.append(socket.create_connection(("127.0.0.1", port), PATIENCE))
            inside.append(door.accept()[0])
        assert door._inside == {"127.0.0.1": 2}
        guests.append(socket.create_connection(("127.0.0.1", port), PATIENCE))
        with pytest.raises(ConnectionAbortedError):
            door.accept()
        with pytest.raises(ConnectionResetError):
            guests[-1].recv(1)
        inside[0].close()
        inside[0].close()  # its place is free once
        assert door._inside == {"127.0.0.1": 1}
        guests.append(socket.create_connection(("127.0.0.1", port), PATIENCE))
        inside.append(door.accept()[0])
        door._inside["10.0.0.1"] = 1  # somebody else's: then all together are too many
        guests.append(socket.create_connection(("127.0.0.1", port), PATIENCE))
        door._inside["127.0.0.1"] = 1
        inside.append(door.accept()[0])
        guests.append(socket.create_connection(("127.0.0.1", port), PATIENCE))
        with pytest.raises(ConnectionAbortedError):
            door.accept()
        for one in (*guests, *inside):
            one.close()
    assert struct.pack("ii", 1, 0) == listen._AT_ONCE


def test_a_bound_socket_sends_at_once() -> None:
    with listen._bound(Listen(port=0)) as bound:
        assert bound.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert bound.family is socket.AF_INET
    with listen._bound(Listen(host="::1", port=0)) as bound:
        assert bound.family is socket.AF_INET6


def test_files_are_allowed_up_to_what_the_system_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    unlimited = resource.RLIM_INFINITY
    for soft, hard, wanted, after in (
        (100, 1000, 500, 500),
        (100, 300, 500, 300),
        (500, 1000, 500, None),
        (499, 1000, 500, 500),
        (100, unlimited, 500, 500),
        (unlimited, unlimited, 500, None),
    ):
        changed: list[Any] = []
        monkeypatch.setattr(resource, "getrlimit", lambda _, now=(soft, hard): now)
        monkeypatch.setattr(resource, "setrlimit", lambda _, now, to=changed: to.append(now))
        listen._allow_files(wanted)
        assert changed == ([] if after is None else [(after, hard)])
    assert math.isfinite(listen._HANDSHAKE_SECONDS)
