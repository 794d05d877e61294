"""Unions at their bounds: how large sets, domains and filters may be, and which guard refuses."""

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from sfsl.errors import InputError, InvalidMessage, ParameterError, UnionFailed, WrongPhase, WrongRound
from sfsl.testing import SeededRandomness
from sfsl.union import UnionParams, planned_capacity, private_set_union
from sfsl.union.bloom import Bloom, bloom_size, planned_rate
from sfsl.union.encoding import (
    LARGEST_BOUND,
    LARGEST_WHOLE,
    Identity,
    KeyedHash,
    Whole,
    check_domain,
    checked_sum,
    estimated_elements,
    fail,
    hash_strings,
    index_set,
    string_index,
)
from sfsl.union.protocol import Union, UnionServer, choose, most_indices, open_union, read_union
from sfsl.union.sketch import Sketch

SEED = bytes(range(32))
CHANCE = SeededRandomness("union bounds")
PARAMS = UnionParams(domain=100, encoding="sketch", capacity=5, seed=SEED)


def test_capacities_that_are_planned() -> None:
    assert planned_capacity(100, 3, 5) == 15
    assert planned_capacity(10, 3, 5) == 10
    assert planned_capacity(2**63, 1, 1) == 1
    assert planned_capacity(100, 3, 5, [8, 4]) == 10
    assert planned_capacity(100, 3, 5, [9]) == 12
    assert planned_capacity(100, 3, 5, [14]) == 15
    assert planned_capacity(100, 3, 5, [0], headroom=0) == 1
    assert planned_capacity(100, 3, 5, [8], headroom=0.0) == 8
    for wrong in ((0, 1, 1), (2**63 + 1, 1, 1), (1, 0, 1), (1, 1, 0)):
        with pytest.raises(ParameterError, match="at least 1"):
            planned_capacity(*wrong)
    for earlier, headroom in (([-1], 0.25), ([5, -1], 0.25), ([1], -0.01)):
        with pytest.raises(ParameterError, match="not negative"):
            planned_capacity(10, 1, 1, earlier, headroom)


@pytest.mark.parametrize(
    ("name", "fits", "beyond"),
    [
        ("domain", 2**63, 2**63 + 1),
        ("domain", 1, 0),
        ("capacity", 2**40, 2**40 + 1),
        ("capacity", 1, 0),
        ("seed", bytes(32), bytes(31)),
        ("seed", bytes(32), bytes(33)),
        ("false_positive_rate", 0.99, 1.0),
        ("false_positive_rate", 1e-300, 0.0),
    ],
)
def test_parameters_at_their_bounds(name: str, fits: Any, beyond: Any) -> None:
    assert getattr(msgspec.structs.replace(PARAMS, **{name: fits}), name) == fits
    with pytest.raises(ParameterError):
        msgspec.structs.replace(PARAMS, **{name: beyond})


def test_a_plan_takes_the_shortest_exact_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    sketch = Sketch(100, 2, SEED)
    assert PARAMS.false_positive_rate == 1e-4
    at = sketch.length * sketch.ring.word_bytes // 4
    assert choose("auto", at, 2, SEED).name == "identity"
    assert choose("auto", at + 1, 2, SEED).name == "sketch"
    assert "takes" in choose("auto", at, 2, SEED).reason
    assert f"one cell for each of {at + 1} indices {4 * (at + 1)}" in choose("auto", at + 1, 2, SEED).reason
    monkeypatch.setattr("sfsl.union.protocol.LARGEST_IDENTITY", at)
    assert choose("auto", at, 2, SEED).name == "identity"
    monkeypatch.setattr("sfsl.union.protocol.LARGEST_IDENTITY", at - 1)
    assert choose("auto", at, 2, SEED).name == "sketch"
    for name in ("identity", "bloom", "sketch", "whole"):
        planned = UnionParams.plan(name, 1000, 10, SEED)
        assert (planned.encoding, planned.build().name) == (name, name)
    assert UnionParams.plan("bloom", 1000, 10, SEED, 0.01).false_positive_rate == 0.01
    assert UnionParams.plan("bloom", 10**7, 10, SEED).false_positive_rate == planned_rate(10**7, 10) == 1e-8
    with pytest.raises(ParameterError, match="no encoding 'other'"):
        choose("other", 10, 1, SEED)
    one = PARAMS.sum_params()
    assert (one.label, one.min_contributors, one.layout.dense if one.layout else 0) == (
        "union", 1, PARAMS.build().length,
    )  # fmt: skip


def test_rates_and_sizes_of_filters() -> None:
    assert planned_rate(100, 100) == 1e-4
    assert planned_rate(10**6, 50) == pytest.approx(5e-7)
    assert planned_rate(2**40, 1) == pytest.approx(0.01 / 2**27)
    assert planned_rate(2**63, 1) == planned_rate(2**27, 1)
    for fits in (1e-12, 0.5):
        bloom_size(100, 5, fits)
    for wrong in (0.9e-12, 0.51):
        with pytest.raises(ParameterError, match="1e-12 to 0"):
            bloom_size(100, 5, wrong)
    whole = bloom_size(2**27, 5, 1e-4)
    assert (whole.partitions, whole.width, whole.length) == (0, 2**27, whole.cells)
    parted = bloom_size(2**27 + 1, 1000, 1e-4)
    assert parted.width == 2**27 // 1000
    assert parted.partitions == -(-(2**27 + 1) // parted.width) == 1001
    assert parted.length == parted.cells + 1001
    with pytest.raises(ParameterError, match="partition vector longer"):
        bloom_size(2**40, 1000, 1e-4)
    with pytest.raises(ParameterError, match="membership tests"):
        bloom_size(2**28, 2**27 + 1, 0.5)
    rate = (1 - (1 - 1 / whole.cells) ** (whole.hashes * 5)) ** whole.hashes
    assert rate <= 1e-4 < (1 - (1 - 1 / (whole.cells - 1)) ** (whole.hashes * 5)) ** whole.hashes
    assert whole.hashes in (13, 14)
    bloom = Bloom(1000, 10, SEED, 0.01)
    assert bloom.false_positives_expected == pytest.approx(0.01 * 990)
    assert Bloom(10, 10, SEED, 0.01).false_positives_expected == 0
    assert Bloom(2**27 + 1, 1000, SEED).false_positives_expected == pytest.approx(
        1e-4 * (1000 * (2**27 // 1000) - 1000)
    )


def test_domains_and_sets() -> None:
    check_domain(2**63, 1)
    for domain, capacity, says in (
        (0, 1, "domain: 0"),
        (2**63 + 1, 1, r"at most 2\^63"),
        (1, 0, "capacity: 0"),
        (True, 1, "domain: True"),
        (1, 1.0, "capacity: 1.0"),
    ):
        with pytest.raises(ParameterError, match=says):
            check_domain(domain, capacity)  # type: ignore[arg-type]
    assert index_set([3, 1, 3], 4, 2).tolist() == [1, 3]
    with pytest.raises(InputError, match="a set of 3 indices where the whole union may have 2"):
        index_set([1, 2, 3], 4, 2)
    with pytest.raises(InputError):
        index_set([4], 4, 4)
    Identity(LARGEST_WHOLE)
    Whole(LARGEST_WHOLE)
    for kind, says in ((Identity, "use 'sketch'"), (Whole, "full model")):
        with pytest.raises(ParameterError, match=says):
            kind(LARGEST_WHOLE + 1)
        assert (kind(7).capacity, kind(7).false_positives_expected) == (7, 0.0)
    assert (Identity(7).length, Whole(7).length) == (7, 0)
    assert Whole(3).decode(np.zeros(0, np.uint32)).tolist() == [0, 1, 2]
    vector = Identity(5).encode(np.array([1, 4]), CHANCE)
    assert np.flatnonzero(vector).tolist() == [1, 4]
    with pytest.raises(InputError, match="has 5 words"):
        checked_sum(np.zeros(4, np.uint32), Identity.ring, 5)


@pytest.mark.parametrize("chunk", [1, 5, 16, 33])
@pytest.mark.parametrize("domain", [97, 98, 104, 111, 112])
def test_what_is_tested_ends_with_the_domain(
    monkeypatch: pytest.MonkeyPatch, domain: int, chunk: int
) -> None:
    """Seven partitions of sixteen indices, of which the last has one at the least: none is tested beyond."""
    monkeypatch.setattr("sfsl.union.bloom.BLOOM_TESTS", 64)
    monkeypatch.setattr("sfsl.union.bloom.CHUNK", chunk)
    bloom = Bloom(domain, 4, SEED)
    assert (bloom.size.partitions, bloom.size.width) == (7, 16)
    for hit in ([0, 1, 2, 3, 4, 5, 6], [0, 6], [6], [2]):
        tested = np.sort(np.concatenate(list(bloom._candidates(np.array(hit)))))
        expected = [one for at in hit for one in range(16 * at, 16 * at + 16) if one < domain]
        assert tested.tolist() == expected


def test_hashes_at_their_bounds() -> None:
    function = KeyedHash(SEED, "bloom")
    numbers = np.arange(1000)
    assert function.below(numbers, 1).tolist() == [0] * 1000
    assert (LARGEST_BOUND, int(function.below(numbers, LARGEST_BOUND).max()) < 2**32) == (2**32, True)
    assert set(function.below(numbers, 3).tolist()) == {0, 1, 2}
    for wrong in (0, LARGEST_BOUND + 1):
        with pytest.raises(ParameterError, match=f"not {wrong}"):
            function.below(numbers, wrong)
    for size in (31, 33):
        with pytest.raises(ParameterError, match=f"not {size}"):
            KeyedHash(bytes(size), "bloom")
    assert KeyedHash(SEED, "bloom", 0).words(numbers).tolist() == function.words(numbers).tolist()
    assert KeyedHash(SEED, "bloom", 1).words(numbers).tolist() != function.words(numbers).tolist()


def test_strings_as_indices() -> None:
    assert string_index("a") == string_index("a", 2**63) == 3219246892007964308  # the same for every client
    assert string_index("a", 1_000_003) == 128167
    assert 0 <= string_index("a", 10) < 10
    found = hash_strings(["a", "b", "a"])
    assert found == {string_index("a"): "a", string_index("b"): "b"}
    with pytest.raises(InputError, match="a domain of 1"):
        hash_strings(["a", "b"], 1)


def test_how_many_elements_there_seem_to_be() -> None:
    assert estimated_elements(0, 100, 100) == 0
    assert estimated_elements(50, 100, 100) == pytest.approx(math.log(0.5) / math.log(0.99))
    assert estimated_elements(50, 100, 100, 2) == pytest.approx(math.log(0.5) / math.log(0.99) / 2)
    assert estimated_elements(100, 100, 100) == pytest.approx(math.log(0.005) / math.log(0.99))
    assert [estimated_elements(one, 1, 1) for one in (0, 1)] == [0.0, 1.0]
    assert estimated_elements(2, 4, 2) == pytest.approx(1.0)
    with pytest.raises(UnionFailed, match="within the capacity of 5") as within:
        fail("why", 5.0, 100, 5)
    assert within.value.capacity == 5
    for estimate, domain, enough in ((5.1, 100, 6), (20.0, 100, 23), (95.0, 100, 100)):
        with pytest.raises(UnionFailed, match=f"a capacity of {enough}") as over:
            fail("why", estimate, domain, 5)
        assert over.value.capacity == enough


def test_unions_that_are_read() -> None:
    encoding = PARAMS.build()
    assert most_indices(encoding) == 2 * 5 + 1024
    indices = np.array([3, 99])
    vector = encoding.encode(indices, CHANCE)
    found, message = open_union(vector, bytes(16), encoding)
    assert (found.tolist(), message.count) == ([3, 99], 2)
    assert read_union(message, bytes(16), encoding).tolist() == [3, 99]
    with pytest.raises(WrongRound):
        read_union(message, b"x" * 16, encoding)
    with pytest.raises(InvalidMessage, match="over the capacity"):
        read_union(Union(bytes(16), 1035, b""), bytes(16), encoding)
    with pytest.raises(InvalidMessage) as other:
        read_union(Union(bytes(16), 1034, b""), bytes(16), encoding)
    assert "over the capacity" not in str(other.value)
    with pytest.raises(WrongPhase, match="no union yet"):
        _ = UnionServer.union.fget(type("Empty", (), {"_union": None})())  # type: ignore[attr-defined]


def test_sets_of_the_facade() -> None:
    result = private_set_union({"a": [1, 2], "b": [2, 3], "c": []}, 10, dropped=["b"], threshold=2)
    assert (result.indices.tolist(), result.capacity) == ([1, 2], 10)
    assert result.survivors == {"a", "c"}
    assert result.vector_bytes == 40
    sketch = private_set_union({"a": [1], "b": [2]}, 2**40, capacity=2)
    built = Sketch(2**40, 2, SEED)
    assert (sketch.encoding, sketch.capacity) == ("sketch", 2)
    assert sketch.vector_bytes == built.length * built.ring.word_bytes
    assert sketch.packed_bytes > 0
    assert private_set_union({"a": [], "b": []}, 10).indices.tolist() == []
    with pytest.raises(InputError, match="brings 2 indices, over the capacity of 1; a capacity of 4"):
        private_set_union({"a": [1, 2], "b": [2]}, 100, encoding="sketch", capacity=1)
    with pytest.raises(InputError, match="client 'b'"):
        private_set_union({"a": [1], "b": [10]}, 10)
