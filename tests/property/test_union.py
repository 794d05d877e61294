"""Whatever the sets, the encoding and the dropouts: the union of the survivors' sets, or a typed failure."""

from math import lgamma, log, log2
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfsl.errors import InvalidMessage, TooFewClients
from sfsl.union import private_set_union
from sfsl.union.packing import pack, unpack

DOMAINS = st.sampled_from([1, 2, 7, 100, 5000, 2**31 - 1, 2**31, 2**31 + 1, 2**40, 2**63 - 1, 2**63])


@st.composite
def parties(draw: st.DrawFn, domains: st.SearchStrategy[int]) -> tuple[int, dict[str, set[int]]]:
    domain = draw(domains)
    indices = st.one_of(st.integers(0, domain - 1), st.just(domain - 1), st.just(0))
    # A small common pool makes sets overlap.
    pool = draw(st.lists(indices, min_size=1, max_size=20))
    element = st.one_of(st.sampled_from(pool), indices)
    sets = draw(st.lists(st.sets(element, max_size=30), min_size=2, max_size=9))
    return domain, {f"c{i}": one for i, one in enumerate(sets)}


def union_of(sets: dict[str, set[int]], names: Any) -> list[int]:
    return sorted(set().union(*(sets[name] for name in names)))


@settings(max_examples=60, deadline=None)
@given(parties(DOMAINS), st.sampled_from(["auto", "sketch"]), st.integers(0, 4), st.booleans())
def test_exact_from_any_domain(
    given_sets: tuple[int, dict[str, set[int]]], encoding: str, drops: int, active: bool
) -> None:
    domain, sets = given_sets
    names = sorted(sets)
    threshold = 2 * len(names) // 3 + 1
    dropped = names[:drops]
    if len(names) - len(dropped) < threshold:
        with pytest.raises(TooFewClients):
            private_set_union(sets, domain=domain, encoding=encoding, dropped=dropped, active=active)
        return
    result = private_set_union(sets, domain=domain, encoding=encoding, dropped=dropped, active=active)
    assert result.survivors == set(names) - set(dropped)
    assert result.indices.tolist() == union_of(sets, result.survivors)
    assert result.false_positives_expected == 0


@settings(max_examples=40, deadline=None)
@given(parties(st.sampled_from([1, 2, 7, 100, 5000])), st.integers(0, 2))
def test_identity_is_exact_and_bloom_a_superset(
    given_sets: tuple[int, dict[str, set[int]]], drops: int
) -> None:
    domain, sets = given_sets
    names = sorted(sets)
    dropped = names[: min(drops, len(names) - (2 * len(names) // 3 + 1))]
    expected = union_of(sets, set(names) - set(dropped))
    exact = private_set_union(sets, domain=domain, encoding="identity", dropped=dropped)
    assert exact.indices.tolist() == expected
    over = private_set_union(sets, domain=domain, encoding="bloom", dropped=dropped)
    assert set(expected) <= set(over.indices.tolist())
    assert np.all(np.diff(over.indices) > 0)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_packing_and_back(data: st.DataObject) -> None:
    domain = data.draw(DOMAINS)
    chosen = data.draw(st.sets(st.integers(0, domain - 1), max_size=min(domain, 60)))
    indices = np.array(sorted(chosen), np.int64)
    packed = pack(indices, domain)
    assert unpack(packed, len(indices), domain).tolist() == indices.tolist()


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
