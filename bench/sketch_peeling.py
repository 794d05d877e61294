"""How full a sketch may be: peeling of random 4-partite hypergraphs, without the field arithmetic.

Three measurements behind docs/spec/union-sizing.md, each printed as JSON:

    python bench/sketch_peeling.py critical --quarter 3400 --runs 2000
        the load (elements per cell) at which peeling first fails, one number per run
    python bench/sketch_peeling.py failures --elements 1000 --quarter 350 --runs 100000
        how often peeling fails at one load, and how many elements are left when it does
    python bench/sketch_peeling.py bound --elements 1000 --quarter 900
        the expected number of stopping sets by size: an upper bound of the failure probability, no
        simulation

``failures`` without --quarter takes the shipped sizing.
"""

import argparse
import functools
import json
import math
import platform
import sys
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfsl.union.sizing import QUARTERS, sketch_quarter

# Elements peeled side by side: enough that a numpy call costs little beside its work, yet in the cache.
BATCH_ELEMENTS = 200_000

# Load at which the 2-core of a random 4-uniform hypergraph appears, in the limit of large tables.
THRESHOLD = 0.7722799
# What peeling leaves behind is either a handful of elements that share cells or a core of some 60 % of all
# elements. Anything between would be counted as large.
SMALL = 20
# Sizes up to which stopping sets are counted exactly, not bounded.
EXACT = 60

Integers = NDArray[np.int64]


def random_cells(rng: np.random.Generator, runs: int, elements: int, quarter: int) -> Integers:
    """Cells of every element, [QUARTERS, runs, elements], numbered so that no two runs share one."""
    cells = rng.integers(0, quarter, (QUARTERS, runs, elements))
    cells += np.arange(QUARTERS)[:, None, None] * quarter
    cells += np.arange(runs)[None, :, None] * (QUARTERS * quarter)
    return cells


def left_over(cells: Integers, counts: Integers, quarter: int) -> Integers:
    """Peel the first ``counts[i]`` elements of each run i; how many are left in each."""
    _, runs, elements = cells.shape
    held = np.flatnonzero((np.arange(elements)[None, :] < counts[:, None]).ravel())
    flat = cells.reshape(QUARTERS, runs * elements)[:, held]
    total_cells = runs * QUARTERS * quarter
    degree = np.bincount(flat.ravel(), minlength=total_cells)
    # The sum of the numbers of a cell's elements: when one is left, the sum is its number.
    numbers = np.tile(np.arange(len(held)), QUARTERS)
    sums = np.bincount(flat.ravel(), weights=numbers, minlength=total_cells).astype(np.int64)
    finder = np.empty(len(held), np.int64)
    pure = np.flatnonzero(degree == 1)
    while len(pure):
        found = sums[pure]
        finder[found] = np.arange(len(found))
        found = found[finder[found] == np.arange(len(found))]  # each element once, whoever found it
        touched = flat[:, found].ravel()
        np.subtract.at(degree, touched, 1)
        np.subtract.at(sums, touched, np.tile(found, QUARTERS))
        pure = touched[degree[touched] == 1]
    left: Integers = degree.reshape(runs, QUARTERS, quarter)[:, 0].sum(axis=1)
    return left


def critical_loads(rng: np.random.Generator, runs: int, quarter: int) -> tuple[NDArray[np.float64], Integers]:
    """For each run: the least load (elements per cell) at which peeling fails, and what is then left."""
    cells = QUARTERS * quarter
    loads, remains = [], []
    batch = max(1, BATCH_ELEMENTS // cells)
    for start in range(0, runs, batch):
        here = min(batch, runs - start)
        most = math.ceil(0.8 * cells) + 300
        table = random_cells(rng, here, most, quarter)
        # Adding elements never repairs a failure, so the first failure is found by bisection.
        peels = np.zeros(here, np.int64)
        fails = np.full(here, most)
        left = left_over(table, fails, quarter)
        while (fails - peels > 1).any():
            middle = (peels + fails) // 2
            rest = left_over(table, middle, quarter)
            fails, left = np.where(rest > 0, (middle, rest), (fails, left))
            peels = np.where(rest > 0, peels, middle)
        loads.append(fails / cells)
        remains.append(left)
    return np.concatenate(loads), np.concatenate(remains)


def critical(rng: np.random.Generator, runs: int, quarter: int) -> dict[str, Any]:
    loads, left = critical_loads(rng, runs, quarter)
    # A few elements that share their cells fail at any load; those runs belong to the structural term.
    small = left <= SMALL
    kept = loads[~small]
    mean, deviation = float(kept.mean()), float(kept.std(ddof=1))
    standard = (kept - mean) / deviation
    quantiles = (0.0001, 0.001, 0.01, 0.1, 0.5, 0.9, 0.99)
    return {
        "quarter": quarter,
        "cells": QUARTERS * quarter,
        "small_failures": int(small.sum()),
        "least_large_failure": int(left[~small].min()),
        "mean": mean,
        "deviation": deviation,
        "deviation_times_sqrt_cells": deviation * math.sqrt(QUARTERS * quarter),
        "shift_times_cells_to_two_thirds": (THRESHOLD - mean) * (QUARTERS * quarter) ** (2 / 3),
        "skewness": float((standard**3).mean()),
        "excess_kurtosis": float((standard**4).mean() - 3),
        "lowest": float(kept.min()),
        "lowest_in_deviations": float(standard.min()),
        "quantiles_in_deviations": {
            str(q): round(float(np.quantile(standard, q)), 3) for q in quantiles if q * len(kept) >= 5
        },
    }


def failures(rng: np.random.Generator, runs: int, elements: int, quarter: int) -> dict[str, Any]:
    batch = max(1, BATCH_ELEMENTS // elements)
    left: list[int] = []
    for start in range(0, runs, batch):
        here = min(batch, runs - start)
        table = random_cells(rng, here, elements, quarter)
        rest = left_over(table, np.full(here, elements), quarter)
        left.extend(int(count) for count in rest[rest > 0])
    pairs = math.comb(elements, 2) / quarter**QUARTERS
    return {
        "elements": elements,
        "quarter": quarter,
        "cells_per_element": QUARTERS * quarter / elements,
        "failures": len(left),
        "rate": len(left) / runs,
        "left_over_two": sum(count == 2 for count in left),
        "left_over_few": sum(2 < count <= SMALL for count in left),
        "left_over_many": sum(count > SMALL for count in left),
        "pairs_expected": pairs,
    }


def no_singletons(size: int, quarter: int) -> float:
    """log P(no cell of a quarter holds exactly one of ``size`` elements).

    There are s! [z^s] (e^z - z)^q such placements of s elements in q cells. The coefficients of a series
    without negative ones are at most (e^z - z)^q / z^s for every z > 0; the best z is the saddle point.
    Small sizes, which make up the sum, are counted exactly instead.
    """
    if size <= EXACT:
        placements = _placements(size, quarter)
        return math.log(placements) - size * math.log(quarter)

    def slope(z: float) -> float:
        return quarter * z * math.expm1(z) / (math.exp(z) - z) - size

    low, high = 1e-9, 500.0
    for _ in range(100):
        z = (low + high) / 2
        low, high = (low, z) if slope(z) > 0 else (z, high)
    best = quarter * math.log(math.exp(z) - z) - size * math.log(z)
    return min(0.0, math.lgamma(size + 1) + best - size * math.log(quarter))


@functools.cache
def _associated(size: int, groups: int) -> int:
    """Partitions of ``size`` elements into ``groups`` groups of at least two."""
    if size == 0 and groups == 0:
        return 1
    if size < 2 * groups or groups == 0:
        return 0
    return groups * _associated(size - 1, groups) + (size - 1) * _associated(size - 2, groups - 1)


def _placements(size: int, quarter: int) -> int:
    return sum(_associated(size, groups) * math.perm(quarter, groups) for groups in range(1, size // 2 + 1))


def bound(elements: int, quarter: int) -> dict[str, Any]:
    terms = np.zeros(elements + 1)
    for size in range(2, elements + 1):
        choices = math.lgamma(elements + 1) - math.lgamma(size + 1) - math.lgamma(elements - size + 1)
        terms[size] = math.exp(min(700.0, choices + QUARTERS * no_singletons(size, quarter)))
    return {
        "elements": elements,
        "quarter": quarter,
        "cells_per_element": QUARTERS * quarter / elements,
        "expected_stopping_sets": float(terms.sum()),
        "of_size_2": float(terms[2]),
        "of_size_3_to_20": float(terms[3 : SMALL + 1].sum()),
        "of_size_21_up": float(terms[SMALL + 1 :].sum()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("measurement", choices=("critical", "failures", "bound"))
    parser.add_argument("--elements", type=int, help="elements in the table (failures, bound)")
    parser.add_argument("--quarter", type=int, help="cells in a quarter of the table")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    settings = parser.parse_args()
    if settings.measurement != "critical" and settings.elements is None:
        parser.error("--elements is needed")
    if settings.quarter is None:
        if settings.elements is None:
            parser.error("--quarter is needed")
        settings.quarter = sketch_quarter(settings.elements)

    started = time.perf_counter()
    rng = np.random.default_rng(settings.seed)
    if settings.measurement == "critical":
        result = critical(rng, settings.runs, settings.quarter)
    elif settings.measurement == "failures":
        result = failures(rng, settings.runs, settings.elements, settings.quarter)
    else:
        result = bound(settings.elements, settings.quarter)
    if settings.measurement != "bound":
        result |= {"runs": settings.runs, "seed": settings.seed}
    result |= {
        "measurement": settings.measurement,
        "seconds": round(time.perf_counter() - started, 2),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    json.dump(result, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
