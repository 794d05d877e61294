"""Sets and requesters as bytes: back to the same, and one form only."""

from math import lgamma, log, log2

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfsl.codec import pack, pack_bits, packed_size, unpack, unpack_bits
from sfsl.errors import InvalidMessage
from sfsl.secagg.masking import pack_requesters, parse_requesters, requesters_size

DOMAINS = st.sampled_from([1, 2, 7, 100, 5000, 2**31 - 1, 2**31, 2**31 + 1, 2**40, 2**63 - 1, 2**63])


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_packing_and_back(data: st.DataObject) -> None:
    domain = data.draw(DOMAINS)
    chosen = data.draw(st.sets(st.integers(0, domain - 1), max_size=min(domain, 60)))
    indices = np.array(sorted(chosen), np.int64)
    packed = pack(indices, domain)
    assert len(packed) == packed_size(len(indices), domain)
    assert unpack(packed, len(indices), domain).tolist() == indices.tolist()
    if domain <= 5000:
        held = np.isin(np.arange(domain), indices)
        assert pack_bits(held) == packed
        assert unpack_bits(packed, len(indices), domain).tolist() == held.tolist()


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=40), st.integers(0, 50), DOMAINS)
def test_unpacking_untrusted_bytes(data: bytes, count: int, domain: int) -> None:
    """Either refused, or a set whose packing is these very bytes."""
    try:
        indices = unpack(data, count, domain)
    except InvalidMessage:
        return
    assert len(indices) == count
    assert pack(indices, domain) == data


def test_packings_that_no_set_has() -> None:
    """Two of 16 indices: three low bits each, then three bits of which two are set."""
    packed = pack(np.array([1, 2]), 16)
    assert packed == bytes((0b10001000, 0b11000000))  # low bits first: 100 010, then 11 0
    for bad in (
        bytes((0b01010000, 0b11000000)),  # 2 and then 1
        bytes((0b10010000, 0b11000000)),  # 1 twice
        bytes((0b10001001, 0b11000000)),  # a bit beyond the low bits
        bytes((0b10001000, 0b11010000)),  # a bit beyond the high bits
        bytes((0b10001000, 0b10000000)),  # one index too few
    ):
        with pytest.raises(InvalidMessage):
            unpack(bad, 2, 16)
    with pytest.raises(InvalidMessage):
        unpack(b"\x00", 0, 16)
    with pytest.raises(InvalidMessage):
        unpack(packed, 17, 16)


@pytest.mark.parametrize(
    ("count", "domain"),
    [(25_709, 143_534), (90_000, 143_534), (143_534, 143_534), (25_709, 2**31), (1000, 2**63)],
)
def test_packing_is_close_to_the_least_possible(count: int, domain: int) -> None:
    rng = np.random.default_rng(0)
    pool = np.arange(domain) if domain < 10**6 else np.unique(rng.integers(0, domain, 2 * count, np.uint64))
    indices = np.sort(rng.choice(pool, count, replace=False)).astype(np.int64)
    bits = 8 * len(pack(indices, domain))
    if domain < 10**6:
        least = (lgamma(domain + 1) - lgamma(count + 1) - lgamma(domain - count + 1)) / log(2)
        assert bits <= max(least + 0.65 * count, domain + 8)
    else:
        assert bits <= count * (log2(domain / count) + 1.4427 + 0.65)


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 9),
    st.lists(st.integers(0, 40), max_size=3),
    st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1)),
    st.integers(0, 2**32 - 1),
)
def test_requesters_and_back(participants: int, tables: list[int], density: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    asked = [rng.random((participants, rows)) < density for rows in tables]
    told = pack_requesters(asked, participants)
    assert len(told) == participants
    for own, data in enumerate(told):
        rows = [np.flatnonzero(table[own]) for table in asked]
        matrices = parse_requesters(data, participants - 1, rows)
        expected = [np.delete(table, own, axis=0)[:, table[own]] for table in asked]
        assert [one.tolist() for one in matrices] == [one.tolist() for one in expected]
        assert [one.shape for one in matrices] == [one.shape for one in expected]
        size, ones = sum(one.size for one in expected), sum(int(one.sum()) for one in expected)
        assert len(data) == requesters_size(ones, size)
        assert len(data) <= (size + 7) // 8 + 10
        assert size or not data


def form(bits: list[bool]) -> bytes:
    """What a client is told of so many others, if it has one row."""
    return pack_requesters([np.array([[True], *([bit] for bit in bits)])], len(bits) + 1)[0]


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_untrusted_requesters(data: st.DataObject) -> None:
    """Either refused, or the one form of the bits they say."""
    size = data.draw(st.integers(0, 40))
    head = st.builds(
        lambda kind, count: bytes((kind,)) + count.to_bytes(8, "little"),
        st.integers(0, 2),
        st.one_of(st.integers(0, 41), st.just(2**64 - 1)),
    )
    told = data.draw(st.one_of(st.binary(max_size=20), st.builds(bytes.__add__, head, st.binary(max_size=7))))
    try:
        (matrix,) = parse_requesters(told, size, [np.arange(1)])
    except InvalidMessage:
        return
    assert form(matrix[:, 0].tolist()) == told


@settings(max_examples=200, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=200), st.data())
def test_changed_requesters_say_something_else_or_nothing(bits: list[bool], data: st.DataObject) -> None:
    told = form(bits)
    place = data.draw(st.integers(0, len(told) - 1))
    flipped = bytearray(told)
    flipped[place] ^= 1 << data.draw(st.integers(0, 7))
    for changed in (told[:place], told + b"\0", bytes(flipped)):
        try:
            (matrix,) = parse_requesters(changed, len(bits), [np.arange(1)])
        except InvalidMessage:
            continue
        assert changed == flipped
        assert matrix[:, 0].tolist() != bits


def test_requesters_that_are_all_or_none_take_nine_bytes() -> None:
    for bit in (False, True):
        asked = np.full((4, 1000), bit)
        asked[0] = True
        assert pack_requesters([asked], 4)[0] == bytes((bit,)) + bytes(8)


def test_a_number_of_listed_bits_allocates_nothing() -> None:
    """The number is checked against what the client knows, before anything is made of it."""
    for count in (2**33, 2**63, 2**64 - 1):
        with pytest.raises(InvalidMessage):
            parse_requesters(b"\0" + count.to_bytes(8, "little"), 3, [np.arange(5)])
