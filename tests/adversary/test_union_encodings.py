"""What a careless caller or a malicious client would try on an encoding."""

import numpy as np
import pytest

from sfsl.arrays import Indices
from sfsl.crypto.ring import Words, uniform
from sfsl.errors import InputError, UnionFailed
from sfsl.testing import SeededRandomness
from sfsl.union.bloom import Bloom
from sfsl.union.encoding import Encoding, Identity
from sfsl.union.sketch import Field, P, Sketch, inverse, times

SEED = bytes(range(32))
DOMAIN = 5000
ALL = [Identity(DOMAIN), Bloom(DOMAIN, 200, SEED), Sketch(DOMAIN, 200, SEED)]
CHECKING = ALL[1:]  # identity takes every vector for a sum; it says so


def name_of(encoding: Encoding) -> str:
    return encoding.name


def honest_sum(encoding: Encoding, clients: int = 4) -> tuple[Words, list[int]]:
    rng = np.random.default_rng(3)
    total: Words = encoding.ring.zeros(encoding.length)
    union: set[int] = set()
    for client in range(clients):
        elements = rng.integers(0, encoding.domain, 30)
        encoding.ring.add(total, encoding.encode(elements, SeededRandomness(client)))
        union |= set(elements.tolist())
    return total, sorted(union)


@pytest.mark.parametrize("encoding", ALL, ids=name_of)
@pytest.mark.parametrize(
    "elements",
    [
        [-1],
        [DOMAIN],
        [0, 2**63 - 1],
        [2**63],
        [2**70],
        [-1, 2**63],
        [1.0, 2.0],
        [True, False],
        ["3"],
        [None],
        [[1, 2], [3, 4]],
        [[1], [2, 3]],
        3,
        {1, 2},
        np.array([-(2**63)]),
        np.array([2**64 - 1], np.uint64),
        np.array([np.nan]),
    ],
    ids=repr,
)
def test_what_is_no_index_of_the_domain_is_refused(encoding: Encoding, elements: Indices) -> None:
    with pytest.raises(InputError):
        encoding.encode(elements, SeededRandomness(0))


@pytest.mark.parametrize("encoding", CHECKING, ids=name_of)
def test_a_set_over_the_limit_is_refused_and_not_trimmed(encoding: Encoding) -> None:
    assert encoding.encode(np.arange(200), SeededRandomness(0)).any()
    with pytest.raises(InputError, match="201 indices"):
        encoding.encode(np.arange(201), SeededRandomness(0))


@pytest.mark.parametrize("encoding", ALL, ids=name_of)
def test_duplicates_count_once(encoding: Encoding) -> None:
    once = encoding.encode(np.array([7, 9]), SeededRandomness(1))
    often = encoding.encode(np.array([9, 7, 7, 9, 7] * 100), SeededRandomness(1))
    assert np.array_equal(once, often)


@pytest.mark.parametrize("encoding", ALL, ids=name_of)
def test_one_client_with_everything_beside_empty_ones(encoding: Encoding) -> None:
    everything = np.random.default_rng(1).choice(DOMAIN, min(encoding.capacity, 200), replace=False)
    total = encoding.encode(everything, SeededRandomness(1))
    for client in range(3):
        encoding.ring.add(total, encoding.encode(np.array([], np.int64), SeededRandomness(client)))
    assert set(everything) <= set(encoding.decode(total))
    if encoding.name != "bloom":
        assert encoding.decode(total).tolist() == sorted(everything)


@pytest.mark.parametrize("encoding", [Identity(1), Sketch(1, 1, SEED), Bloom(1, 1, SEED)], ids=name_of)
def test_a_domain_of_one_index(encoding: Encoding) -> None:
    assert encoding.decode(encoding.encode(np.array([0]), SeededRandomness(0))).tolist() == [0]


@pytest.mark.parametrize("encoding", CHECKING, ids=name_of)
def test_a_vector_of_noise_fails_loudly(encoding: Encoding) -> None:
    total, _ = honest_sum(encoding)
    encoding.ring.add(total, uniform(encoding.ring, encoding.length, SeededRandomness("noise")))
    with pytest.raises(UnionFailed) as caught:
        encoding.decode(total)
    assert caught.value.capacity > encoding.capacity


def test_one_changed_word_of_a_sketch_fails_loudly() -> None:
    encoding = Sketch(DOMAIN, 200, SEED)
    total, _ = honest_sum(encoding)
    rng = np.random.default_rng(7)
    for position in rng.choice(encoding.length, 150, replace=False):
        corrupted = total.copy()
        corrupted[position] = (int(corrupted[position]) + int(rng.integers(1, P))) % P
        with pytest.raises(UnionFailed):
            encoding.decode(corrupted)


def test_a_scaled_cell_of_a_sketch_fails_loudly_and_at_once() -> None:
    # Its ratios are those of a true element, but the factor is another one: cells that disagree could pass
    # the element to and fro for ever.
    encoding = Sketch(DOMAIN, 200, SEED)
    total, _ = honest_sum(encoding)
    planes = total.reshape(encoding.planes, encoding.cells)
    for cell in np.flatnonzero(planes.any(axis=0))[:100]:
        corrupted = planes.astype(np.uint64)
        corrupted[:, cell] = times(corrupted[:, cell], np.full(encoding.planes, 12_345, np.uint64))
        with pytest.raises(UnionFailed):
            encoding.decode(corrupted.astype(np.uint32).ravel())


def test_an_index_outside_the_domain_cannot_be_smuggled_into_a_sum() -> None:
    encoding = Sketch(DOMAIN, 200, SEED)
    table = np.zeros((encoding.planes, encoding.cells), np.uint64)
    encoding._add(table, np.array([3, DOMAIN]), np.array([5, 6], np.uint64))
    with pytest.raises(UnionFailed):
        encoding.decode(table.astype(np.uint32).ravel())


def test_an_element_in_a_cell_that_is_not_its_own_is_no_element() -> None:
    encoding = Sketch(DOMAIN, 200, SEED)
    table = np.zeros((encoding.planes, encoding.cells), np.uint64)
    encoding._add(table, np.array([42]), np.array([5], np.uint64))
    table = np.roll(table, 1, axis=1)
    assert len(encoding._pure(table, np.arange(encoding.cells))[0]) == 0
    with pytest.raises(UnionFailed):
        encoding.decode(table.astype(np.uint32).ravel())


def test_elements_cannot_come_and_go_for_ever() -> None:
    # x with factor 1 in one of its cells, 2 in another, and nothing in the rest; alone in the table.
    encoding = Sketch(DOMAIN, 200, SEED)
    table = np.zeros((encoding.planes, encoding.cells), np.uint64)
    encoding._add(table, np.array([42]), np.array([1], np.uint64))
    cells = encoding._cells(np.array([42]))[:, 0]
    for factors in ([1, 2, 0, 0], [1, 1, 1, 2], [1, 0, 0, 0], [1, P - 1, 1, P - 1]):
        corrupted = np.zeros_like(table)
        for cell, factor in zip(cells, factors, strict=True):
            corrupted[:, cell] = times(table[:, cell], np.full(encoding.planes, factor, np.uint64))
        with pytest.raises(UnionFailed):
            encoding.decode(corrupted.astype(np.uint32).ravel())


def test_a_word_wiped_from_a_bloom_filter_is_never_a_silent_loss_alone() -> None:
    encoding = Bloom(DOMAIN, 200, SEED)
    total, union = honest_sum(encoding)
    failed = 0
    for position in np.flatnonzero(total)[:300]:
        corrupted = total.copy()
        corrupted[position] = 0
        try:
            encoding.decode(corrupted)
        except UnionFailed:
            failed += 1
    assert failed >= 298
    assert set(union) <= set(encoding.decode(total))


def test_a_word_planted_in_a_bloom_filter_adds_little_or_fails() -> None:
    # The documented limit: a planted word passes if it completes some index, which its sender might as well
    # have held. Everything else is seen.
    encoding = Bloom(DOMAIN, 200, SEED)
    total, union = honest_sum(encoding)
    empty = np.flatnonzero(total == 0)[:300]
    failed = 0
    for position in empty:
        corrupted = total.copy()
        corrupted[position] = 1
        try:
            assert set(union) <= set(encoding.decode(corrupted))
        except UnionFailed:
            failed += 1
    assert failed >= 290


def affine_check(self: Sketch, elements: Indices) -> Field:
    return (
        times(elements.view(np.uint64) % np.uint64(P), np.uint64(271_828)) + np.uint64(31_415)
    ) % np.uint64(P)


def mixture_that_belongs(encoding: Sketch) -> tuple[Words, list[int], int]:
    """A sum of two elements with the same four cells whose ratio x' belongs to those cells, too."""
    low = np.arange(20_000)
    names = encoding._cells(low).T
    _, group, counts = np.unique(names, axis=0, return_inverse=True, return_counts=True)
    a, b = np.flatnonzero(group == np.flatnonzero(counts == 2)[0])[:2]
    factors = np.arange(2, 2_000_000, dtype=np.uint64)
    ratios = times((factors * np.uint64(a) + np.uint64(b)) % np.uint64(P), inverse(factors + np.uint64(1)))
    fits = np.flatnonzero((encoding._cells(ratios.view(np.int64)) == names[a][:, None]).all(axis=0))
    table = np.zeros((encoding.planes, encoding.cells), np.uint64)
    encoding._add(table, np.array([a, b]), np.array([factors[fits[0]], 1], np.uint64))
    return table.astype(np.uint32).ravel(), sorted([int(a), int(b)]), int(ratios[fits[0]])


def test_a_mixture_of_elements_is_not_taken_for_one() -> None:
    encoding = Sketch(P, 1, SEED)
    total, _, _ = mixture_that_belongs(encoding)
    with pytest.raises(UnionFailed):
        encoding.decode(total)


def test_with_an_affine_check_a_wrong_element_would_come_out(monkeypatch: pytest.MonkeyPatch) -> None:
    # The test above, seen failing: this is the mixture that only the check stands against.
    monkeypatch.setattr(Sketch, "_check", affine_check)
    encoding = Sketch(P, 1, SEED)
    total, held, ratio = mixture_that_belongs(encoding)
    assert encoding.decode(total).tolist() == [ratio]
    assert ratio not in held


def test_a_mixture_taken_for_an_element_is_found_out_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    # One cell holds a and b, which have cells of their own elsewhere, in a ratio that belongs to the cell.
    # The affine check takes it for an element; its three other cells then say the opposite. A decoder that
    # lets it be found again with the opposite factor would return {a, b, ratio}.
    monkeypatch.setattr(Sketch, "_check", affine_check)
    encoding = Sketch(P, 100, SEED)
    cells = encoding._cells(np.arange(10_000))
    alike = (cells == cells[:, :1]).astype(np.int64)
    b = int(np.flatnonzero((alike[0] == 1) & (alike.sum(axis=0) == 1))[0])
    factors = np.arange(2, 20_000, dtype=np.uint64)
    ratios = times(np.full(len(factors), b, np.uint64), inverse(factors + np.uint64(1)))
    others = encoding._cells(ratios.view(np.int64))
    fits = (others[0] == cells[0, 0]) & ~np.isin(others[1:], cells[1:, [0, b]]).any(axis=0)
    table = np.zeros((encoding.planes, encoding.cells), np.uint64)
    encoding._add(table, np.array([0, b]), np.array([factors[fits][0], 1], np.uint64))
    with pytest.raises(UnionFailed, match="already emptied"):
        encoding.decode(table.astype(np.uint32).ravel())


def test_with_an_affine_check_ordinary_unions_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    # 12,000 elements: about 3 mixed cells hold a ratio that belongs there; the check alone tells.
    encoding = Sketch(P, 12_000, SEED)
    elements = np.random.default_rng(1).integers(0, P, 12_000)
    assert len(encoding.decode(encoding.encode(elements, SeededRandomness(1)))) == len(np.unique(elements))
    monkeypatch.setattr(Sketch, "_check", affine_check)
    with pytest.raises(UnionFailed):
        encoding.decode(encoding.encode(elements, SeededRandomness(1)))
