"""What the fuzzers found, each by itself."""

import asyncio
import socket
from pathlib import Path

import msgspec
import pytest

from cohort import Cohort, Stepper
from fuzz.calls import Call, Site
from sfsl.carriers.https.listen import ConnectionLimits, Door
from sfsl.errors import InvalidMessage


def test_a_signature_that_nobody_asked_for_does_not_end_the_round() -> None:
    """One signed request outside active mode made the server look for everyone's, and fail."""
    stepper = Stepper(Cohort(4)).until("union")
    request = stepper.clients["c0"].handle_union(stepper.outbound["c0"])
    with pytest.raises(InvalidMessage, match="outside active mode"):
        stepper.server.receive("c0", msgspec.structs.replace(request, signature=bytes(64)))
    stepper.server.receive("c0", request)
    del stepper.outbound["c0"]
    for name, message in stepper.outbound.items():
        stepper.server.receive(name, stepper.clients[name].handle_union(message))
    assert set(stepper.server.close_phase()) == set(stepper.clients)


async def _statuses(folder: Path, *requests: tuple[str, str]) -> list[int]:
    """By method and path, of someone who signs nothing."""
    found = []
    async with Site(folder, inside=False) as site:
        for method, path in requests:
            found.append((await site.send(Call("unsigned", method, path.encode(), []))).status)
    return found


def test_head_is_no_way_to_ask_for_a_message(tmp_path: Path) -> None:
    """The framework answers HEAD wherever there is a GET; a message would count as delivered."""
    asked = [
        ("HEAD", "/v1/about"),
        ("HEAD", "/v1/model"),
        ("HEAD", f"/v1/next/{'0' * 32}"),
        ("HEAD", "/healthz"),
    ]
    assert asyncio.run(_statuses(tmp_path, *asked)) == [405, 405, 405, 200]


def test_another_spelling_of_a_path_is_not_that_path(tmp_path: Path) -> None:
    """A proxy that keeps strangers from /metrics would let /metrics%0a pass, and the router took it."""
    asked = ("/metrics", "/metrics%0a", "/%6detrics", "/v1/about", "/v1/%61bout", "/v1/about%0A")
    found = asyncio.run(_statuses(tmp_path, *(("GET", path) for path in asked)))
    assert found == [200, 404, 404, 200, 404, 404]


def test_a_length_given_in_two_ways_is_refused(tmp_path: Path) -> None:
    """A proxy and a server that choose differently see two requests where the other sees one."""

    async def statuses() -> list[int]:
        chunked, length = (b"transfer-encoding", b"chunked"), (b"content-length", b"0")
        async with Site(tmp_path, inside=False) as site:
            return [
                (await site.send(Call("unsigned", "GET", b"/v1/about", headers))).status
                for headers in ([], [chunked], [length], [chunked, length])
            ]

    assert asyncio.run(statuses()) == [200, 200, 200, 400]


def test_connections_count_before_tls_and_make_room_however_they_end(tmp_path: Path) -> None:
    """Handshakes that nobody finished were not counted, and used up the files of the server."""
    limits = ConnectionLimits(most=5, most_per_address=3)
    with Door(socket.create_server(("127.0.0.1", 0)), limits) as door:

        def come(address: str) -> socket.socket | None:
            """The server's end, if it takes one more from there."""
            peer = socket.create_connection(door.getsockname(), source_address=(address, 0))
            peers.append(peer)
            try:
                return door.accept()[0]
            except ConnectionAbortedError:
                with pytest.raises(ConnectionResetError):
                    peer.recv(1)
                return None

        peers: list[socket.socket] = []
        inside = [come("127.0.0.2") for _ in range(3)]
        assert all(inside)
        assert come("127.0.0.2") is None  # of one address
        inside += [come("127.0.0.3"), come("127.0.0.3")]
        assert all(inside)
        assert come("127.0.0.4") is None  # in all
        for one in inside[:2]:
            assert one is not None
            one.close()
            one.close()  # it leaves once
        again = [come("127.0.0.2"), come("127.0.0.2"), come("127.0.0.2")]
        assert [one is not None for one in again] == [True, True, False]
        for each in (*inside, *again, *peers):
            if each is not None:
                each.close()
        assert not door._inside
