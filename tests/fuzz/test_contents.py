"""Wrong content in right frames: packed sets, requester bits, bitmaps, model packages, JSON of a server."""

import random
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest

from fuzz.campaign import SEED, Campaign, sizes
from fuzz.frames import Frame, mutated
from sfsl.client.events import About, Enrolled, read_json, read_problem
from sfsl.codec import pack, pack_bits, packed_size, unpack, unpack_bits
from sfsl.data.catalogue import Catalogue
from sfsl.errors import DecodeError, InvalidMessage, RemoteError
from sfsl.secagg import Layout, TableShape
from sfsl.secagg.masking import pack_requesters, parse_request, parse_requesters, request_bitmaps

_DOMAINS = (1, 2, 7, 8, 9, 64, 100, 1000, 2**20, 2**31, 2**32 + 1, 2**40, 2**62, 2**63)


def _set(rng: random.Random) -> tuple[bytes, int, int]:
    """A packed set, how many are in it, and out of how many; not yet wrong."""
    domain = rng.choice(_DOMAINS)
    count = rng.randrange(min(domain, 40) + 1)
    chosen = np.array(sorted({rng.randrange(domain) for _ in range(count)}), np.int64)
    return pack(chosen, domain), len(chosen), domain


def _blunt(rng: random.Random, data: bytes) -> bytes:
    """Flipped, shorter, longer, all ones, or left as it is."""
    match rng.randrange(6):
        case 0 if data:
            changed = bytearray(data)
            changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            return bytes(changed)
        case 1:
            return data[: rng.randrange(len(data) + 1)]
        case 2:
            return data + rng.randbytes(rng.randrange(1, 9))
        case 3:
            return rng.choice((b"\xff", b"\x00")) * len(data)
        case 4:
            return rng.randbytes(len(data))
        case _:
            return data


@sizes(quick=2000, share=0.1)
def test_packed_sets(cases: int, record_property: Any) -> None:
    rng = random.Random(f"{SEED} packing")
    campaign = Campaign(cases, record_property, InvalidMessage)
    for number in campaign:
        data, count, domain = _set(rng)
        data = _blunt(rng, data)
        if rng.random() < 0.3:
            count = max(0, count + rng.choice((-1, 1, 8, -8, 2**40)))
        if rng.random() < 0.2:
            domain = rng.choice(_DOMAINS)
        with campaign.case(number, data, f"{count} of {domain}"):
            found = unpack(data, count, domain)
            assert pack(found, domain) == data
            assert len(data) == packed_size(count, domain)
            assert len(found) == count
            assert not count or (int(found[0]) >= 0 and int(found[-1]) < domain)
            if domain <= 2**20:
                assert pack_bits(unpack_bits(data, count, domain)) == data
    assert min(campaign.outcomes["accepted"], campaign.outcomes["InvalidMessage"]) > cases / 20


@sizes(quick=1000, share=0.05)
def test_requesters_and_requests(cases: int, record_property: Any) -> None:
    rng, bits = random.Random(f"{SEED} requesters"), np.random.default_rng(SEED)
    campaign = Campaign(cases, record_property, InvalidMessage)
    for number in campaign:
        people = rng.randrange(1, 6)
        tables = [bits.random((people, rng.randrange(12))) < rng.choice((0.1, 0.5, 0.95)) for _ in range(2)]
        rows = [np.flatnonzero(table[0]) for table in tables]
        data = _blunt(rng, pack_requesters(tables, people)[0])
        with campaign.case(number, data, "requesters"):
            read = parse_requesters(data, people - 1, rows)
            whole = [np.zeros((people, table.shape[1]), bool) for table in tables]
            for table, own, others in zip(whole, rows, read, strict=True):
                table[0, own] = True
                table[np.ix_(range(1, people), own)] = others
            assert pack_requesters(whole, people)[0] == data
            layout = Layout(dense=1, tables=tuple(TableShape(rows=one.shape[1], width=2) for one in tables))
            bitmaps = tuple(_blunt(rng, one) for one in request_bitmaps(layout, rows))
            asked = parse_request(layout, bitmaps[: rng.choice((2, 2, 2, 1))])
            assert request_bitmaps(layout, [np.flatnonzero(one) for one in asked]) == bitmaps
    assert min(campaign.outcomes["accepted"], campaign.outcomes["InvalidMessage"]) > cases / 20


@cache
def _packages() -> tuple[Frame, ...]:
    from sfsl.data.synthetic import SyntheticSettings, SyntheticTaobao
    from sfsl.models import din, logistic_regression
    from sfsl.models.package import describe

    data = SyntheticTaobao(SyntheticSettings().scaled(0.01, users=3), seed=1).interactions()
    tasks = (
        din(Catalogue.of(data), seed=1),
        din(Catalogue.of(data), seed=1, slopes="prelu", width=4),
        logistic_regression(Catalogue.of(data)),
    )
    return tuple(Frame.of(describe(task)) for task in tasks)


@sizes(quick=500, share=0.05)
def test_packages_are_read_or_refused(cases: int, record_property: Any) -> None:
    pytest.importorskip("torch")
    from sfsl.models.package import read_package

    rng = random.Random(f"{SEED} packages")
    campaign = Campaign(cases, record_property, RemoteError)
    for number in campaign:
        data = mutated(rng, _packages())
        with campaign.case(number, data):
            package = read_package(data)
            assert b"\x01" + msgspec.msgpack.encode(package) == data


@sizes(quick=150, share=0.002)
def test_packages_are_built_or_refused(cases: int, record_property: Any) -> None:
    """What a client makes of a package: nothing of the size that it claims, unless it is all there."""
    pytest.importorskip("torch")
    from sfsl.models.package import Limits, build

    rng = random.Random(f"{SEED} built packages")
    campaign = Campaign(cases, record_property, RemoteError)
    for number in campaign:
        data = mutated(rng, _packages())
        with campaign.case(number, data):
            build(data, Limits(bytes=1 << 20, width=64))


_ABOUT = {
    "protocol": 1,
    "deployment": "0" * 32,
    "model": "1" * 64,
    "round": 3,
    "time": 1_800_000_000_000,
    "limits": {"body_bytes": 1, "poll_seconds": 25.0},
}
_JSON = (
    msgspec.json.encode(_ABOUT),
    b'{"client":"' + b"a" * 32 + b'"}',
    b'{"error":"RoundOver","message":"round 3 is committed","outcome":"committed","round":3}',
)
_TOKENS = (
    b"NaN", b"1e999", b"-1", b"9" * 400, b'"\\ud800"', b"null", b"[" * 5000, b'{"a":' * 2000, b'"\xff\xfe"',
    b"1.5",
    b'"\\u0000\\u001b[31m"', b'""', b"{}", b"true", b'{"type":1,"type":2}', b'"' + b"x" * 70_000 + b'"',
)  # fmt: skip


@sizes(quick=1000, share=0.05)
def test_what_a_server_says_in_json(cases: int, record_property: Any) -> None:
    rng = random.Random(f"{SEED} json")
    campaign = Campaign(cases, record_property, DecodeError)
    for number in campaign:
        data = bytearray(rng.choice(_JSON))
        for _ in range(rng.randrange(1, 3)):
            place = rng.randrange(len(data))
            match rng.randrange(4):
                case 0:
                    data[place] = rng.randrange(256)
                case 1:
                    del data[place:]
                    data += b"}"
                case 2:
                    data[place : place + rng.randrange(4)] = rng.choice(_TOKENS)
                case _:
                    start = data.find(b":", place)
                    end = data.find(b",", start) if start >= 0 else -1
                    if end > 0:
                        data[start + 1 : end] = rng.choice(_TOKENS)
        with campaign.case(number, bytes(data)):
            said = read_problem(bytes(data))
            assert (said.error + said.message).isprintable()
            read_json(rng.choice((About, Enrolled)), bytes(data))
