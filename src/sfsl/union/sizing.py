"""How large: cells of a sketch, cells and partitions of a Bloom filter, and the capacity to plan for.

The reasons and measurements are in docs/spec/union-sizing.md.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from sfsl.arrays import LARGEST_DOMAIN
from sfsl.errors import ParameterError

# An element lies in one cell of each quarter of a sketch.
QUARTERS = 4
# Up to here the failure probability was measured or modelled. Beyond, it only falls (both of its terms do),
# so the rule still holds; where it stops is a matter of memory.
LARGEST_CAPACITY = 2**24
# Bounds the chance that a sum over capacity, all of it in four cells, passes for an element.
LEAST_QUARTER = 16
# Two elements in the same four cells cannot be told apart. Expecting at most 1 / 1,250,000 such pairs leaves
# a fifth of the failure budget of 1e-6 to everything else.
PAIR_RARITY = 1_250_000

# Membership tests that decoding a Bloom filter may take: a few seconds.
BLOOM_TESTS = 2**27


def sketch_quarter(capacity: int) -> int:
    """Cells in a quarter so that ``capacity`` elements fail to decode with probability below 1e-6. The larger
    of two needs, in whole numbers so that every implementation agrees. Few elements: no pair shares all its
    cells, q^4 >= PAIR_RARITY * C(n, 2). Many: 1.30 n + 4 sqrt(n) cells keep the load at least 6.9 standard
    deviations below the load at which peeling breaks down (1.295 n in the limit)."""
    if not 1 <= capacity <= LARGEST_CAPACITY:
        raise ParameterError(f"a sketch holds 1 to {LARGEST_CAPACITY} elements, not {capacity}")
    pairs = math.isqrt(math.isqrt(PAIR_RARITY * math.comb(capacity, 2))) + 1
    threshold = -(-13 * capacity // 40) + math.isqrt(capacity) + 1
    return max(LEAST_QUARTER, pairs, threshold)


class BloomSize(NamedTuple):
    cells: int
    hashes: int
    partitions: int  # 0: the whole domain is tested, there is no partition vector
    width: int  # indices in a partition

    @property
    def length(self) -> int:
        return self.cells + self.partitions


def bloom_size(domain: int, capacity: int, false_positive_rate: float) -> BloomSize:
    """The shortest filter for a rate (paper §II, "Bloom Filter") and the fewest partitions.

    Cells: of the two whole numbers of hashes next to the paper's optimum -log2(rate), the one that needs
    fewer cells by the paper's formula rate = (1 - (1 - 1/cells)^(hashes * capacity))^hashes.

    Partitions are contiguous ranges of the domain. They cost bytes and save tests, so there are as few as
    keep decoding within BLOOM_TESTS tests even if each element lies in a partition of its own; none if the
    whole domain may be tested. A partition vector longer than the filter itself is refused: from there on
    the length grows with the domain, which is what a Bloom filter was meant to avoid.
    """
    if not 1e-12 <= false_positive_rate <= 0.5:
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


def planned_capacity(
    domain: int, clients: int, largest_set: int, earlier: Sequence[int] = (), headroom: float = 0.25
) -> int:
    """The capacity to plan a round for: the worst case, or less if earlier unions say so. A union over
    capacity costs the round, and trying again costs every member a second exposure (spec 9.6), so the
    head-room is generous: a quarter more than the largest union seen so far."""
    if not 1 <= domain <= LARGEST_DOMAIN or clients < 1 or largest_set < 1:
        raise ParameterError("domain, clients and largest set are at least 1, the domain at most 2^63")
    if headroom < 0 or any(size < 0 for size in earlier):
        raise ParameterError("head-room and earlier union sizes are not negative")
    worst = min(domain, clients * largest_set)
    if not earlier:
        return worst
    return max(1, min(worst, math.ceil(max(earlier) * (1 + headroom))))


def estimated_elements(occupied: int, cells: int, bins: int, throws: int = 1) -> float:
    """How many elements leave ``occupied`` of ``cells`` cells non-empty; each is thrown into ``bins`` bins
    ``throws`` times. When every cell is occupied, no more than a lower bound can be said."""
    empty = max(cells - occupied, 0.5) / cells
    return math.log(empty) / (throws * math.log1p(-1 / bins)) if bins > 1 else float(occupied > 0)
