"""Whatever the sets, their sum decodes to their union: exactly, or for Bloom to a superset."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfsl.crypto.ring import Words
from sfsl.errors import InputError, UnionFailed
from sfsl.testing import SeededRandomness
from sfsl.union.bloom import Bloom
from sfsl.union.encoding import Encoding, Identity
from sfsl.union.protocol import choose
from sfsl.union.sketch import Sketch

SEEDS = st.binary(min_size=32, max_size=32)
LARGEST_SET = 25
PARTIES = 5


@st.composite
def parties(draw: st.DrawFn, largest_domain: int) -> tuple[int, list[list[int]]]:
    """A domain and a few sets that overlap often: a small pool of elements, near the ends or anywhere."""
    domain = draw(
        st.integers(1, largest_domain) | st.sampled_from([largest_domain, min(largest_domain, 2**31)])
    )
    near_the_ends = st.integers(0, min(domain, 20) - 1) | st.integers(max(0, domain - 20), domain - 1)
    pool = draw(st.lists(near_the_ends | st.integers(0, domain - 1), min_size=1, max_size=60))
    one = st.lists(st.sampled_from(pool), max_size=LARGEST_SET)
    return domain, draw(st.lists(one, min_size=1, max_size=PARTIES))


def united(encoding: Encoding, sets: list[list[int]], seed: bytes) -> list[int]:
    total: Words = encoding.ring.zeros(encoding.length)
    for number, one in enumerate(sets):
        randomness = SeededRandomness(f"{seed.hex()} {number}")
        encoding.ring.add(total, encoding.encode(np.array(one, np.int64), randomness))
    union: list[int] = encoding.decode(total).tolist()
    return union


@settings(deadline=None, derandomize=True, max_examples=150)
@given(parties(largest_domain=2**63), SEEDS)
def test_a_sketch_decodes_to_exactly_the_union(case: tuple[int, list[list[int]]], seed: bytes) -> None:
    domain, sets = case
    encoding = Sketch(domain, PARTIES * LARGEST_SET, seed)
    assert united(encoding, sets, seed) == sorted(set().union(*sets))


@settings(deadline=None, derandomize=True, max_examples=100)
@given(parties(largest_domain=3000), SEEDS)
def test_identity_decodes_to_exactly_the_union(case: tuple[int, list[list[int]]], seed: bytes) -> None:
    domain, sets = case
    assert united(Identity(domain), sets, seed) == sorted(set().union(*sets))


@settings(deadline=None, derandomize=True, max_examples=100)
@given(parties(largest_domain=3000), SEEDS)
def test_the_whole_is_the_domain_whatever_the_sets(case: tuple[int, list[list[int]]], seed: bytes) -> None:
    domain, sets = case
    encoding = choose("whole", domain, 1, seed)
    assert encoding.length == 0
    assert united(encoding, sets, seed) == list(range(domain))


@settings(deadline=None, derandomize=True, max_examples=100)
@given(parties(largest_domain=20_000), SEEDS, st.sampled_from([0.5, 0.1, 1e-3, 1e-6]))
def test_a_bloom_filter_decodes_to_a_superset(
    case: tuple[int, list[list[int]]], seed: bytes, rate: float
) -> None:
    domain, sets = case
    union = set().union(*sets)
    encoding = Bloom(domain, max(1, len(union), *map(len, map(set, sets))), seed, rate)
    result = united(encoding, sets, seed)
    assert union <= set(result)
    assert result == sorted(set(result))
    assert all(0 <= index < domain for index in result)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.integers(1, 2**63), st.integers(1, 40), SEEDS, st.data())
def test_auto_always_finds_an_encoding_that_works(
    domain: int, capacity: int, seed: bytes, data: st.DataObject
) -> None:
    encoding = choose("auto", domain, capacity, seed)
    assert encoding.name in ("identity", "sketch")
    one = data.draw(st.lists(st.integers(0, domain - 1), max_size=capacity))
    assert united(encoding, [one, one], seed) == sorted(set(one))


@settings(deadline=None, derandomize=True, max_examples=100)
@given(SEEDS, st.integers(2, 200), st.integers(0, 2**32))
def test_over_capacity_a_sketch_decodes_exactly_or_not_at_all(seed: bytes, held: int, draw: int) -> None:
    encoding = Sketch(2**50, 1, seed)
    elements = np.unique(np.random.default_rng(draw).integers(0, 2**50, held))
    try:
        result = united(encoding, [[x] for x in elements.tolist()], seed)
    except UnionFailed:
        return
    assert result == elements.tolist()


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.integers(1, 2**62), st.integers(-(2**64), 2**65), SEEDS)
def test_only_elements_of_the_domain_are_encoded(domain: int, element: int, seed: bytes) -> None:
    encoding = Sketch(domain, 5, seed)
    if 0 <= element < domain:
        assert united(encoding, [[element]], seed) == [element]
    else:
        with pytest.raises(InputError):
            encoding.encode([element], SeededRandomness(0))  # type: ignore[arg-type]


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.integers(1, 2**26), st.integers(-(2**64), 2**65) | st.integers(-2, 2))
def test_only_elements_of_the_whole_are_encoded(domain: int, offset: int) -> None:
    encoding = choose("whole", domain, 1, bytes(32))
    for element in (offset, domain + offset):
        if 0 <= element < domain:
            assert encoding.encode(np.array([element]), SeededRandomness(0)).shape == (0,)
        else:
            with pytest.raises(InputError):
                encoding.encode([element], SeededRandomness(0))  # type: ignore[arg-type]
