"""network.json and the primitives' vectors against the second client, which was written from docs/spec."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from second_client import wire
from second_client.client import client_id, signed_headers
from second_client.privacy import RandomizedResponse
from second_client.rounds import Download, Model, Round, Update
from second_client.secagg import Policy, Session, redrawn, split, stream
from second_client.union import encoding
from second_client.wire import Refused, encode, read_requesters, read_set
from vectors import make_network

HERE = Path(__file__).parent


def vectors(name: str) -> Any:
    return json.loads((HERE / f"{name}.json").read_text())


NETWORK = vectors("network")


def named(cases: Any) -> Any:
    return [pytest.param(one, id=one["name"]) for one in cases]


class Tape:
    """Recorded random bytes, all of which have to be used."""

    def __init__(self, data: str) -> None:
        self.rest = bytes.fromhex(data)

    def __call__(self, count: int) -> bytes:
        taken, self.rest = self.rest[:count], self.rest[count:]
        assert len(taken) == count
        return taken


def test_the_file_is_what_the_code_gives() -> None:
    assert make_network.main(["--check"]) == 0


@pytest.mark.parametrize("case", named(NETWORK["rounds"]))
def test_a_round_byte_for_byte(case: Any) -> None:
    tape = Tape(case["random"])
    known = case["known"] and {client: bytes.fromhex(key) for client, key in case["known"].items()}
    identity = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(case["seed"]))
    session = Session(case["client"], Policy(), identity=identity, known=known, draw=tape)
    digest = bytes.fromhex(NETWORK["model_digest"])
    assert encode("check-in", model=digest, keys=session.keys).hex() == case["check_in"]

    def train(download: Download) -> Update:
        rows = {
            table: {
                row: (np.array(moves), count) for row, count, moves in some if row in download.rows[table]
            }
            for table, some in case["update"]["rows"].items()
        }
        given = case["update"]["histograms"]
        histograms = np.concatenate(given) if given else None
        return Update(np.array(case["update"]["dense"]), case["update"]["samples"], rows, histograms)

    model = Model(
        digest, NETWORK["model"]["tables"], NETWORK["model"]["dense"], np.array(NETWORK["category_of"])
    )
    response = RandomizedResponse(bytes.fromhex(case["period_key"]), tuple(case["p"]))
    round_ = Round(session, model, {"item": case["real"]}, response, train)
    assert len(case["exchanges"]) == (8 if known else 6)
    for exchange in case["exchanges"]:
        assert round_.answer(bytes.fromhex(exchange["message"])).hex() == exchange["answer"]
    assert not tape.rest


@pytest.mark.parametrize("case", named(NETWORK["sets"]))
def test_encoded_sets(case: Any) -> None:
    tape = Tape(case["random"])
    made = encoding(case["union"] | {"seed": bytes.fromhex(case["union"]["seed"])})
    words = made.fill(case["indices"], tape)
    assert made.ring == case["ring"]
    assert made.length == len(words)
    assert words.astype("<u4").tobytes().hex() == case["words"]
    assert not tape.rest


def test_messages_of_the_network_page() -> None:
    key = bytes(range(32))
    made = {
        "enrol": encode("enrol", public_key=key),
        "checked-in": encode("checked-in", ticket=key[:16], acknowledged=3),
        "decline": encode("decline", round_id=key[:16]),
    }
    assert {one["name"]: one["bytes"] for one in NETWORK["messages"]} == {
        name: data.hex() for name, data in made.items()
    }


def test_signed_requests() -> None:
    http = vectors("http")
    for one in http["identities"]:
        assert client_id(bytes.fromhex(one["public_key"])) == one["client"]
    for one in http["requests"]:
        headers = signed_headers(
            Ed25519PrivateKey.from_private_bytes(bytes.fromhex(one["seed"])),
            bytes.fromhex(one["deployment"]),
            one["host"],
            one["method"],
            one["target"],
            bytes.fromhex(one["body"]),
            one["time_ms"],
            bytes.fromhex(one["random"]),
        )
        assert headers == one["headers"]


@pytest.mark.parametrize("case", named(NETWORK["rounds"]))
def test_sizes_of_messages(case: Any) -> None:
    """network.md 4.5, where secure-aggregation.md has no formula of its own."""
    for exchange in case["exchanges"]:
        data = bytes.fromhex(exchange["message"])
        message = wire.decode(data, *wire.INCOMING)
        if message["type"] == "invitation":
            params = message["round"]
            roster = 1 + len(wire.pack(message["roster"]))
            assert len(data) == 30 + roster + len(wire.pack(params))
            assert 700 < len(wire.pack(params)) < 900
        elif message["type"] == "union":
            assert len(data) == 53 + u(message["count"]) + b(len(message["packed"]))
        elif message["type"] == "submodel":
            size = (
                87
                + 11  # root and proof by name
                + b(20)
                + b(len(message["proof"]))
                + 1
                + sum(map(u, message["participants"]))
                + 1
                + sum(b(len(one)) for one in message["rows"])
            )
            size += b(len(message["dense"])) + b(len(message["requesters"])) + 1
            size += sum(105 + 1 + sum(b(len(bits)) for bits in one["bitmaps"]) for one in message["requests"])
            assert len(data) == size
            assert len(message["dense"]) == 4 * NETWORK["model"]["dense"]


def u(number: int) -> int:
    return 1 if number < 128 else 2 if number < 256 else 3 if number < 65_536 else 5 if number < 2**32 else 9


def b(length: int) -> int:
    return length + (2 if length < 256 else 3 if length < 65_536 else 5)


def test_words_of_permanent_answers_that_the_specification_writes_out() -> None:
    response = RandomizedResponse(bytes(range(32)))
    assert [f"{word:016x}" for word in response.words("goods", [0, 1, 2, 143533, 2**63 - 1])] == [
        "5a8c4c391e23a547",
        "ecdda55a22123cfa",
        "691a96aae2df9420",
        "8f8cb5d8ac178b18",
        "cd25e79b53b5ae9c",
    ]


def test_packed_sets_and_requesters() -> None:
    packing = vectors("packing")
    for case in packing["sets"]:
        data = bytes.fromhex(case["bytes"])
        assert read_set(data, len(case["numbers"]), case["domain"]) == case["numbers"]
    for case in packing["sets_refused"]:
        with pytest.raises(Refused):
            read_set(bytes.fromhex(case["bytes"]), case["count"], case["domain"])
    for case in packing["requesters"]:
        bits = read_requesters(bytes.fromhex(case["bytes"]), len(case["bits"]))
        assert "".join(map(str, bits.astype(int))) == case["bits"]
    for case in packing["requesters_refused"]:
        with pytest.raises(Refused):
            read_requesters(bytes.fromhex(case["bytes"]), case["size"])


def test_messages_that_a_client_receives() -> None:
    codec = vectors("codec")
    read = 0
    for case in codec["messages"]:
        data = bytes.fromhex(case["bytes"])
        assert b"\x01" + wire.pack(wire.unpack(data[1:])) == data
        if case["message"]["type"] in wire.INCOMING:
            wire.decode(data, case["message"]["type"])
            read += 1
    assert read >= 3
    for case in codec["refused"]:
        data = bytes.fromhex(case["bytes"])
        if len(data) <= case["limit"]:  # a larger one is refused before it is read
            with pytest.raises(Refused):
                wire.decode(data, *wire.INCOMING)


def test_only_the_shortest_form_is_read() -> None:
    good = encode("checked-in", ticket=bytes(16), acknowledged=3)
    assert wire.decode(good, "checked-in")["acknowledged"] == 3
    head, number = good[:-1], good[-1:]
    twice = bytes((1, 0x84)) + good[2:] + b"\xacacknowledged" + number
    for bad in (
        head + b"\xcc\x03",  # a number in a byte too many
        good.replace(b"\xa4type", b"\xd9\x04type"),
        good.replace(b"\xc4\x10", b"\xc5\x00\x10"),
        bytes((1, 0xDE, 0, 3)) + good[2:],
        good + b"\x00",
        head,
        twice,
        head + b"\xcb" + bytes(8),  # a float
        b"\x02" + good[1:],
    ):
        with pytest.raises(Refused):
            wire.decode(bad, "checked-in")


def test_streams_and_shares() -> None:
    for case in vectors("streams")["redrawn"]:
        assert redrawn(bytes.fromhex(case["key"]), case["position"]) == case["word"]
    for case in vectors("streams")["streams"]:
        words = stream(bytes.fromhex(case["key"]), case["ring"], case["skip"] + len(case["words"]) // 8)
        size = 8 if case["ring"] == "z64" else 4
        found = words[case["skip"] :].astype(f"<u{size}").tobytes().hex()
        assert found.startswith(case["words"]) or case["words"].startswith(found)
    for case in vectors("shamir")["split"]:
        tape = Tape(case["random"])
        shares = split(bytes.fromhex(case["secret"]), case["threshold"], case["points"], tape)
        assert [share.hex() for share in shares] == case["shares"]
        assert not tape.rest
