"""Hash functions, field arithmetic, sizes and each encoding on sets small enough to follow by hand."""

import hashlib
import math

import numpy as np
import pytest

import sfsl.union.sketch
from sfsl.crypto.ring import F31, Words, uniform
from sfsl.errors import Aborted, InputError, ParameterError, UnionFailed
from sfsl.testing import SeededRandomness
from sfsl.union import bloom as bloom_module
from sfsl.union import sketch as sketch_module
from sfsl.union.bloom import FILL_DEVIATIONS, Bloom
from sfsl.union.encoding import LARGEST_WHOLE, Encoding, Identity, KeyedHash, Whole
from sfsl.union.protocol import UnionParams, choose, planned_capacity
from sfsl.union.sketch import P, Sketch, inverse, times

SEED = bytes(range(32))
ALL: list[Encoding] = [Identity(5000), Bloom(5000, 40, SEED), Sketch(5000, 40, SEED)]


def name_of(encoding: Encoding) -> str:
    return encoding.name


def summed(encoding: Encoding, *vectors: Words) -> Words:
    total = encoding.ring.zeros(encoding.length)
    for vector in vectors:
        encoding.ring.add(total, vector)
    return total


def spelled_out_hash(seed: bytes, purpose: str, number: int, x: int, bound: int) -> int:
    """The specification, word for word, on Python's integers."""
    parts = [b"sfsl/1 union hash", seed, purpose.encode(), number.to_bytes(4, "big")]
    key = hashlib.sha256(b"".join(len(part).to_bytes(4, "big") + part for part in parts)).digest()
    z = x
    for half in (key[:8], key[8:16]):
        z ^= int.from_bytes(half, "little")
        z ^= z >> 30
        z = z * 0xBF58476D1CE4E5B9 % 2**64
        z ^= z >> 27
        z = z * 0x94D049BB133111EB % 2**64
        z ^= z >> 31
    return ((z >> 32) * bound) >> 32


@pytest.mark.parametrize("capacity", [1, 6, 1000, 33_000])
@pytest.mark.parametrize("domain", [1000, 143_534, 2**27, 2**31])
def test_false_positives_are_planned_from_domain_and_capacity(domain: int, capacity: int) -> None:
    capacity = min(capacity, domain)
    planned = choose("bloom", domain, capacity, bytes(32))
    assert planned.false_positives_expected <= 0.01 * capacity
    params = UnionParams.plan("bloom", domain, capacity, bytes(32))
    assert params.build().false_positives_expected == planned.false_positives_expected


@pytest.mark.parametrize("bound", [1, 2, 1000, P, 2**32])
def test_the_hash_is_the_one_in_the_specification(bound: int) -> None:
    indices = [0, 1, 2, 12345, 2**31 - 1, 2**31, 2**62 + 7, 2**63 - 1]
    values = KeyedHash(SEED, "sketch cell", 3).below(np.array(indices), bound)
    assert values.tolist() == [spelled_out_hash(SEED, "sketch cell", 3, x, bound) for x in indices]


def test_seed_purpose_and_number_each_make_another_hash() -> None:
    indices = np.arange(100)
    others = [
        KeyedHash(SEED, "bloom", 0),
        KeyedHash(SEED, "bloom", 1),
        KeyedHash(SEED, "sketch cell", 0),
        KeyedHash(bytes(32), "bloom", 0),
    ]
    assert len({hash_.words(indices).tobytes() for hash_ in others}) == len(others)


def test_hash_parameters_are_checked() -> None:
    with pytest.raises(ParameterError, match="32 bytes"):
        KeyedHash(b"short", "bloom")
    for bound in (0, 2**32 + 1):
        with pytest.raises(ParameterError, match="values"):
            KeyedHash(SEED, "bloom").below(np.arange(3), bound)


def test_field_products_and_inverses() -> None:
    values = np.array([0, 1, 2, 3, 2**16, 2**30, P - 2, P - 1], np.uint64)
    products = times(values[:, None], values[None, :])
    assert products.tolist() == [[int(a) * int(b) % P for b in values] for a in values]
    assert inverse(values).tolist() == [pow(int(a), P - 2, P) for a in values]


@pytest.mark.parametrize("encoding", ALL, ids=name_of)
def test_three_sets_and_their_union(encoding: Encoding) -> None:
    randomness = SeededRandomness("three sets")
    sets = [[0, 17, 4999], [17, 23], []]
    vectors = [encoding.encode(np.array(one, np.int64), randomness) for one in sets]
    assert all(
        vector.dtype == encoding.ring.dtype and vector.shape == (encoding.length,) for vector in vectors
    )
    union = encoding.decode(summed(encoding, *vectors))
    assert union.dtype == np.int64
    assert union.tolist() == [0, 17, 23, 4999]


@pytest.mark.parametrize("encoding", ALL, ids=name_of)
def test_the_empty_set_is_all_zeros_and_so_is_the_empty_union(encoding: Encoding) -> None:
    vector = encoding.encode(np.array([], np.int64), SeededRandomness(0))
    assert not vector.any()
    assert encoding.decode(vector).tolist() == []


@pytest.mark.parametrize("encoding", ALL, ids=name_of)
def test_two_encodings_of_a_set_differ(encoding: Encoding) -> None:
    randomness = SeededRandomness(0)
    elements = np.array([3, 4, 5])
    first, second = encoding.encode(elements, randomness), encoding.encode(elements, randomness)
    assert np.array_equal(first != 0, second != 0)
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("encoding", ALL, ids=name_of)
def test_decoding_leaves_the_sum_as_it_was(encoding: Encoding) -> None:
    total = encoding.encode(np.array([3, 4, 5]), SeededRandomness(0))
    kept = total.copy()
    total.setflags(write=False)
    encoding.decode(total)
    assert np.array_equal(total, kept)


@pytest.mark.parametrize("encoding", ALL, ids=name_of)
def test_a_sum_of_another_shape_or_ring_is_refused(encoding: Encoding) -> None:
    for total in (encoding.ring.zeros(encoding.length + 1), np.full(encoding.length, 0.5)):
        with pytest.raises(InputError):
            encoding.decode(total)


@pytest.mark.parametrize("number", range(3), ids=[encoding.name for encoding in ALL])
def test_a_factor_of_zero_is_kept(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # A second draw for zeros would make the sum depend on the number of owners; the price is a missed index.
    encoding = ALL[number]
    for module in ("encoding", "bloom", "sketch"):
        monkeypatch.setattr(f"sfsl.union.{module}.uniform", lambda ring, count, _: ring.zeros(count))
    vector = encoding.encode(np.array([3, 4, 5]), SeededRandomness(0))
    assert not vector.any()
    assert encoding.decode(vector).tolist() == []


def test_a_bloom_bit_gets_one_draw_however_many_elements_set_it(monkeypatch: pytest.MonkeyPatch) -> None:
    encoding = Bloom(5000, 40, SEED)
    elements = np.arange(40)
    drawn = []

    def counted(ring: object, count: int, randomness: object) -> Words:
        drawn.append(count)
        return np.full(count, 7, np.uint32)

    monkeypatch.setattr("sfsl.union.bloom.uniform", counted)
    vector = encoding.encode(elements, SeededRandomness(0))
    assert drawn == [np.count_nonzero(vector)]
    assert drawn[0] < 40 * encoding.size.hashes
    assert set(vector.tolist()) == {0, 7}


def test_a_bloom_filter_with_partitions() -> None:
    encoding = Bloom(2**31, 20, SEED)
    assert encoding.size.partitions * encoding.size.width >= 2**31
    assert 20 * encoding.size.width <= bloom_module.BLOOM_TESTS
    elements = np.array([0, 5, 2**31 - 1])
    vector = encoding.encode(elements, SeededRandomness(0))
    partitions = np.flatnonzero(vector[encoding.size.cells :])
    assert partitions.tolist() == [0, encoding.size.partitions - 1]


def test_a_partitioned_filter_tests_hit_partitions_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bloom_module, "BLOOM_TESTS", 2000)
    monkeypatch.setattr("sfsl.union.bloom.CHUNK", 64)
    encoding = Bloom(30_001, 20, SEED, 1e-6)
    assert encoding.size.width == 100
    assert encoding.size.partitions == 301
    tested: list[int] = []
    members = type(encoding)._members

    def watched(self: Bloom, candidates: np.ndarray, filled: np.ndarray) -> np.ndarray:
        tested.extend(candidates.tolist())
        return members(self, candidates, filled)

    monkeypatch.setattr(type(encoding), "_members", watched)
    union = encoding.decode(encoding.encode(np.array([0, 99, 199, 30_000]), SeededRandomness(0)))
    assert union.tolist() == [0, 99, 199, 30_000]
    assert sorted(tested) == [*range(200), 30_000]


def test_bloom_sizes_are_the_papers() -> None:
    # Paper §V: 32,904 elements at 0.01 % need 630,774 cells, with a fractional number of hashes.
    size = bloom_module.bloom_size(143_534, 32_904, 1e-4)
    assert size.hashes == 13
    assert 630_774 <= size.cells <= 1.0002 * 630_774
    rate = (1 - (1 - 1 / size.cells) ** (size.hashes * 32_904)) ** size.hashes
    assert rate <= 1e-4 < rate * 1.0001
    for hashes in (12, 14):
        assert bloom_module._bloom_cells(32_904, hashes, 1e-4) > size.cells
    assert size.partitions == 0


@pytest.mark.parametrize("rate", [0.0, 0.9, -1.0, math.nan])
def test_impossible_false_positive_rates_are_refused(rate: float) -> None:
    with pytest.raises(ParameterError, match="rate"):
        Bloom(1000, 10, SEED, rate)


def test_encodings_too_large_to_decode_are_refused_with_advice() -> None:
    for refused in (lambda: Bloom(2**40, 1000, SEED), lambda: Identity(2**30)):
        with pytest.raises(ParameterError, match="use 'sketch'"):
            refused()


@pytest.mark.parametrize(
    ("domain", "digits"),
    [(1, 1), (P, 1), (2**31, 1), (4 * P, 1), (4 * P + 1, 2), (2**62, 2), (2**63, 2)],
)
def test_the_ends_of_a_domain_survive_a_sketch(domain: int, digits: int) -> None:
    encoding = Sketch(domain, 50, SEED)
    assert encoding.digits == digits
    ends = {0, 1, P - 1, P, P + 1, 2 * P, P**2 - 1, P**2, 2 * P**2, domain // 2, domain - 2, domain - 1}
    elements = sorted(x for x in ends if 0 <= x < domain)
    vector = encoding.encode(np.array(elements), SeededRandomness(domain))
    assert encoding.decode(vector).tolist() == elements


def test_an_element_found_in_several_cells_is_taken_out_once() -> None:
    encoding = Sketch(2**31, 1, SEED)
    total = summed(encoding, *(encoding.encode(np.array([77]), SeededRandomness(i)) for i in range(3)))
    assert np.count_nonzero(total) == 4 * encoding.planes
    assert encoding.decode(total).tolist() == [77]


def test_two_elements_in_the_same_four_cells_fail_loudly() -> None:
    encoding = Sketch(2**31, 1, SEED)
    cells = encoding._cells(np.arange(20_000))
    names = (cells * np.array([[1], [2**10], [2**20], [2**30]])).sum(axis=0)
    _, first, counts = np.unique(names, return_index=True, return_counts=True)
    same = np.flatnonzero(names == names[first[counts == 2][0]])
    total = summed(encoding, *(encoding.encode(same[[i]], SeededRandomness(int(i))) for i in range(2)))
    with pytest.raises(UnionFailed, match="single element"):
        encoding.decode(total)


@pytest.mark.parametrize("held", [2000, 5000, 10_000])
def test_an_overfull_sketch_says_what_capacity_would_do(held: int) -> None:
    encoding = Sketch(2**40, 100, SEED)
    parts = np.random.default_rng(held).integers(0, 2**40, (held // 100, 100))
    randomness = SeededRandomness(held)
    with pytest.raises(UnionFailed) as caught:
        encoding.decode(summed(encoding, *(encoding.encode(part, randomness) for part in parts)))
    assert isinstance(caught.value, Aborted)
    # Far over, every cell is occupied and only a lower bound is known; it still leads there in a few rounds.
    low = held if held < 5 * encoding.quarter else 5 * encoding.quarter
    assert low <= caught.value.capacity <= 1.4 * held
    assert str(caught.value.capacity) in str(caught.value)


def test_an_overfull_bloom_filter_says_what_capacity_would_do() -> None:
    encoding = Bloom(10**6, 1000, SEED)
    parts = np.random.default_rng(1).integers(0, 10**6, (4, 1000))
    randomness = SeededRandomness(0)
    with pytest.raises(UnionFailed, match="too many cells") as caught:
        encoding.decode(summed(encoding, *(encoding.encode(part, randomness) for part in parts)))
    assert 4000 <= caught.value.capacity <= 4800


def test_a_bloom_filter_at_capacity_is_not_overfull() -> None:
    for seed in range(50):
        encoding = Bloom(3000, 200, bytes([seed]) * 32)
        elements = np.random.default_rng(seed).choice(3000, 200, replace=False)
        assert set(elements) <= set(encoding.decode(encoding.encode(elements, SeededRandomness(seed))))


def test_the_sketch_sizes_of_the_specification() -> None:
    # docs/spec/union-sizing.md; another implementation must agree on these to the cell.
    sizes = {1: 16, 2: 34, 10: 87, 100: 281, 1000: 889, 4800: 1948, 7000: 2359, 10_000: 3351}
    sizes |= {33_000: 10_907, 100_000: 32_817, 1_000_000: 326_001}
    assert {n: sketch_module.sketch_quarter(n) for n in sizes} == sizes


def test_every_sketch_size_keeps_both_failures_rare() -> None:
    for n in [*range(1, 3000), *range(3000, 10**6, 997), 10**6]:
        quarter = sketch_module.sketch_quarter(n)
        assert math.comb(n, 2) * sketch_module.PAIR_RARITY <= quarter**4
        # The critical load of the specification: mean 0.77228 - 0.8 m^(-2/3), deviation 0.4 m^(-1/2).
        cells = 4 * quarter
        critical = 0.77228 - 0.8 * cells ** (-2 / 3)
        assert n <= 64 or (critical - n / cells) * math.sqrt(cells) / 0.4 >= 6.5


def test_sketch_capacities_are_checked() -> None:
    for capacity in (0, -1, sketch_module.LARGEST_CAPACITY + 1):
        with pytest.raises(ParameterError):
            sketch_module.sketch_quarter(capacity)
    assert Sketch(10, 10**9, SEED).quarter == Sketch(10, 10, SEED).quarter


@pytest.mark.parametrize(("domain", "capacity"), [(0, 5), (2**63 + 1, 5), (10.0, 5), (10, 0), (10, True)])
def test_domains_and_capacities_are_checked(domain: int, capacity: int) -> None:
    with pytest.raises(ParameterError):
        Sketch(domain, capacity, SEED)
    with pytest.raises(ParameterError):
        Bloom(domain, capacity, SEED)


def test_auto_takes_the_shorter_exact_encoding_and_says_why() -> None:
    few, many = choose("auto", 143_534, 33_000, SEED), choose("auto", 143_534, 40_000, SEED)
    assert (few.name, many.name) == ("sketch", "identity")
    assert f"{4 * few.length} bytes" in few.reason
    assert "574136 bytes" in many.reason
    assert f"{4 * Sketch(143_534, 40_000, SEED).length}" in many.reason
    assert choose("auto", 2**63, 1000, SEED).name == "sketch"
    # 'whole' is the shortest of all and hides nothing: it has to be asked for.
    assert choose("auto", 1, 1, SEED).name != "whole"


def test_encodings_by_name() -> None:
    for name in ("identity", "bloom", "sketch", "whole"):
        encoding = choose(name, 5000, 40, SEED)
        assert encoding.name == name
        assert encoding.domain == 5000
    with pytest.raises(ParameterError, match="there are auto, identity"):
        choose("filter", 5000, 40, SEED)


def test_the_whole_domain_is_the_union_whatever_anyone_holds() -> None:
    encoding = choose("whole", 5000, 40, SEED)
    assert (encoding.length, encoding.capacity) == (0, 5000)
    for held in ([], [0, 17, 4999], range(5000)):
        vector = encoding.encode(np.array(held, np.int64), SeededRandomness(0))
        assert (vector.dtype, vector.shape) == (encoding.ring.dtype, (0,))
    union = encoding.decode(encoding.ring.zeros(0))
    assert union.dtype == np.int64
    assert np.array_equal(union, np.arange(5000))


@pytest.mark.parametrize("wrong", [[-1], [5000], [0, 2**40], [0.5], [[1, 2]]], ids=repr)
def test_the_whole_domain_has_no_other_indices(wrong: list[object]) -> None:
    with pytest.raises(InputError):
        Whole(5000).encode(np.array(wrong), SeededRandomness(0))


def test_nothing_comes_with_the_whole_domain() -> None:
    for total in (Whole(5000).ring.zeros(1), np.zeros((0, 1), np.uint32)):
        with pytest.raises(InputError, match="0 words"):
            Whole(5000).decode(total)


def test_full_models_have_a_largest_size() -> None:
    assert LARGEST_WHOLE == 2**26
    assert choose("whole", 2**26, 40, SEED).capacity == 2**26
    for domain in (2**26 + 1, 2**63, 0):
        with pytest.raises(ParameterError):
            choose("whole", domain, 40, SEED)


def test_expected_false_positives() -> None:
    assert Whole(100).false_positives_expected == 0
    assert Identity(100).false_positives_expected == 0
    assert Sketch(2**31, 100, SEED).false_positives_expected == 0
    assert Bloom(10_000, 100, SEED, 0.01).false_positives_expected == pytest.approx(99)
    assert Bloom(100, 100, SEED, 0.01).false_positives_expected == 0
    partitioned = Bloom(2**31, 100, SEED)
    assert partitioned.false_positives_expected == pytest.approx(1e-4 * bloom_module.BLOOM_TESTS, rel=1e-3)


def test_planned_capacity() -> None:
    assert planned_capacity(2**31, clients=100, largest_set=301) == 30_100
    assert planned_capacity(1000, clients=100, largest_set=301) == 1000
    assert planned_capacity(2**31, 100, 301, earlier=[10_000, 12_000, 9_000]) == 15_000
    assert planned_capacity(2**31, 100, 301, earlier=[29_000]) == 30_100
    assert planned_capacity(2**31, 100, 301, earlier=[0]) == 1
    assert planned_capacity(2**31, clients=2, largest_set=1) == 2
    for wrong in ({"domain": 0}, {"clients": 0}, {"largest_set": 0}, {"headroom": -1.0}, {"earlier": [-1]}):
        with pytest.raises(ParameterError):
            planned_capacity(**({"domain": 10, "clients": 2, "largest_set": 3} | wrong))


def test_factors_come_from_the_field() -> None:
    # The sketch relies on it: a word equal to p would be a second zero.
    assert vars(sfsl.union.sketch)["uniform"] is uniform
    assert uniform(F31, 1000, SeededRandomness(0)).max() < P


def test_how_full_a_filter_may_be_is_what_throws_at_random_give() -> None:
    encoding = Bloom(5000, 40, SEED)
    throws, cells = encoding.size.hashes * encoding.capacity, encoding.size.cells
    rng = np.random.default_rng(3)
    filled = [len(np.unique(rng.integers(cells, size=throws))) for _ in range(3000)]
    deviation = (encoding._most_filled - 1 - np.mean(filled)) / FILL_DEVIATIONS
    assert deviation == pytest.approx(np.std(filled), rel=0.1)
