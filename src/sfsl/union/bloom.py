"""A Bloom filter with a partition vector, set bits replaced by uniform words (paper Alg. 3)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple, NoReturn

import numpy as np

from sfsl.arrays import Bits, Indices
from sfsl.crypto.ring import Z32, Ring, Words, uniform
from sfsl.crypto.secret import Randomness
from sfsl.errors import ParameterError
from sfsl.union.encoding import KeyedHash, check_domain, checked_sum, estimated_elements, fail, index_set

# Indices tested at a time: the work arrays stay in the cache and memory is bounded.
CHUNK = 2**17
# A union at capacity exceeds its expected fill by so many deviations once in 10^9 rounds.
FILL_DEVIATIONS = 6
# The paper's choice; how many false positives a full union may have; and the smallest rate there is.
PAPERS_RATE, FALSE_SHARE, LEAST_RATE = 1e-4, 0.01, 1e-12
# Membership tests that decoding a Bloom filter may take: a few seconds.
BLOOM_TESTS = 2**27


class BloomSize(NamedTuple):
    cells: int
    hashes: int
    partitions: int  # 0: the whole domain is tested, there is no partition vector
    width: int  # indices in a partition

    @property
    def length(self) -> int:
        return self.cells + self.partitions


def planned_rate(domain: int, capacity: int) -> float:
    """The paper's rate of false positives, or as much less as it takes for at most 1 % of a full union."""
    tested = max(1, min(domain, BLOOM_TESTS))
    return min(PAPERS_RATE, max(LEAST_RATE, FALSE_SHARE * capacity / tested))


def bloom_size(domain: int, capacity: int, false_positive_rate: float) -> BloomSize:
    """The shortest filter for a rate (paper §II, "Bloom Filter") and the fewest partitions.

    Cells: of the two whole numbers of hashes next to the paper's optimum -log2(rate), the one that needs
    fewer cells by the paper's formula rate = (1 - (1 - 1/cells)^(hashes * capacity))^hashes.

    Partitions are contiguous ranges of the domain. They cost bytes and save tests, so there are as few as
    keep decoding within BLOOM_TESTS tests even if each element lies in a partition of its own; none if the
    whole domain may be tested. A partition vector longer than the filter itself is refused: from there on
    the length grows with the domain, which is what a Bloom filter was meant to avoid.
    """
    if not LEAST_RATE <= false_positive_rate <= 0.5:
        raise ParameterError(f"a false positive rate of {false_positive_rate} is not in 1e-12 to 0.5")
    optimum = -math.log2(false_positive_rate)
    cells, hashes = min(
        (_bloom_cells(capacity, hashes, false_positive_rate), hashes)
        for hashes in {math.floor(optimum), math.ceil(optimum)}
    )
    if domain <= BLOOM_TESTS:
        return BloomSize(cells, hashes, partitions=0, width=domain)
    width = BLOOM_TESTS // capacity
    if width == 0 or -(-domain // width) > cells:
        raise ParameterError(
            f"a Bloom filter for {capacity} of {domain} indices would take more than {BLOOM_TESTS} "
            f"membership tests, or a partition vector longer than the filter, to decode; use 'sketch'"
        )
    return BloomSize(cells, hashes, partitions=-(-domain // width), width=width)


def _bloom_cells(capacity: int, hashes: int, rate: float) -> int:
    empty = math.log1p(-(rate ** (1 / hashes))) / (hashes * capacity)
    return math.ceil(-1 / math.expm1(empty))


@dataclass(frozen=True)
class Bloom:
    """A superset of the union: each index tested that is not in it is kept at ``false_positive_rate``. The
    vector is the filter, then the partitions. A word of the sum that is zero by chance (2^-32 for each) would
    drop an index; but the other words of that index then belong to no one, so it is nearly always found out
    and the union fails rather than lose it."""

    domain: int
    capacity: int
    seed: bytes
    false_positive_rate: float = 1e-4
    reason: str = "asked for by name"
    name: ClassVar[str] = "bloom"
    ring: ClassVar[Ring] = Z32

    def __post_init__(self) -> None:
        check_domain(self.domain, self.capacity)
        _ = self.size, self._hashes  # refuse now, not at the first use

    @cached_property
    def size(self) -> BloomSize:
        return bloom_size(self.domain, self.capacity, self.false_positive_rate)

    @cached_property
    def _hashes(self) -> tuple[KeyedHash, ...]:
        return tuple(KeyedHash(self.seed, "bloom", number) for number in range(self.size.hashes))

    @property
    def length(self) -> int:
        return self.size.length

    @property
    def false_positives_expected(self) -> float:
        tested = self.capacity * self.size.width if self.size.partitions else self.domain
        return self.false_positive_rate * max(0, min(tested, self.domain) - self.capacity)

    def encode(self, indices: Indices, randomness: Randomness) -> Words:
        held = np.flatnonzero(self._bits(index_set(indices, self.domain, self.capacity)))
        vector = self.ring.zeros(self.length)
        # One draw for each bit, also where several elements of this client set it.
        vector[held] = uniform(self.ring, len(held), randomness)
        return vector

    def decode(self, total: Words) -> Indices:
        bits = checked_sum(total, self.ring, self.length) != 0
        filled, hit = bits[: self.size.cells], np.flatnonzero(bits[self.size.cells :])
        if filled.sum() > self._most_filled or len(hit) > self.capacity:
            self._fail("too many cells are set for a union of this capacity", bits)
        found = [self._members(chunk, filled) for chunk in self._candidates(hit)]
        union = np.sort(np.concatenate(found)) if found else np.zeros(0, np.int64)
        if not np.array_equal(self._bits(union), bits):
            self._fail("some cells are set that no index in the union sets", bits)
        return union

    def _bits(self, elements: Indices) -> Bits:
        bits = np.zeros(self.length, np.bool_)
        for function in self._hashes:
            bits[function.below(elements, self.size.cells)] = True
        if self.size.partitions:
            bits[self.size.cells + elements // self.size.width] = True
        return bits

    def _candidates(self, hit: Indices) -> Iterator[Indices]:
        """The indices of hit partitions, a chunk at a time: whole partitions, or pieces of one."""
        starts = hit * self.size.width if self.size.partitions else np.zeros(1, np.int64)
        together = max(1, CHUNK // self.size.width)
        for begin in range(0, self.size.width, CHUNK):
            offsets = np.arange(begin, min(begin + CHUNK, self.size.width))
            for first in range(0, len(starts), together):
                chunk = (starts[first : first + together, None] + offsets).ravel()
                yield chunk[chunk < self.domain] if chunk[-1] >= self.domain else chunk

    def _members(self, candidates: Indices, filled: Bits) -> Indices:
        for function in self._hashes:
            candidates = candidates[filled[function.below(candidates, self.size.cells)]]
        return candidates

    @property
    def _most_filled(self) -> float:
        cells, load = self.size.cells, self.size.hashes * self.capacity / self.size.cells
        deviation = math.sqrt(cells * (math.exp(-load) - (1 + load) * math.exp(-2 * load)))
        return cells * -math.expm1(-load) + FILL_DEVIATIONS * deviation + 1

    def _fail(self, why: str, bits: Bits) -> NoReturn:
        cells = self.size.cells
        occupied = int(bits[:cells].sum())
        fail(why, estimated_elements(occupied, cells, cells, self.size.hashes), self.domain, self.capacity)
