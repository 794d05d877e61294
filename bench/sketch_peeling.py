"""How full a sketch may be: peeling of random 4-partite hypergraphs, without the field arithmetic.

Three measurements behind docs/spec/union-sizing.md, each printed as JSON:

    python bench/sketch_peeling.py critical --quarter 3351 --runs 100000
        the load (elements per cell) at which peeling first fails: its distribution over runs
    python bench/sketch_peeling.py failures --elements 1000 --quarter 350 --runs 100000
        how often peeling fails at one load, and how many elements are left when it does
    python bench/sketch_peeling.py bound --elements 1000
        the expected number of stopping sets by size: an upper bound of the failure probability that
        needs no simulation

Without --quarter, the table is the shipped one for --elements. The simulation is a page of C, compiled by
the system's ``cc``: a run of 10,000 elements takes a third of a millisecond, so rates of 1e-6
are within reach.
"""

import argparse
import ctypes
import functools
import json
import math
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfsl.union.sketch import QUARTERS, sketch_quarter

# Load at which the 2-core of a random 4-uniform hypergraph appears, in the limit of large tables.
THRESHOLD = 0.7722799
# What peeling leaves behind is either a handful of elements that share cells or a core of some 40 % of all
# elements and more. Anything between would be counted as large.
SMALL = 20
# Sizes up to which stopping sets are counted exactly, not bounded.
EXACT = 60
# Runs between two visits to Python.
BATCH = 100_000

Counts = NDArray[np.int32]

SIMULATION = r"""
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state[4];  /* xoshiro256**, seeded by SplitMix64 */

static uint64_t rotate(uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }

static uint64_t draw(void) {
    uint64_t result = rotate(state[1] * 5, 7) * 9, t = state[1] << 17;
    state[2] ^= state[0]; state[3] ^= state[1]; state[1] ^= state[2]; state[0] ^= state[3];
    state[2] ^= t; state[3] = rotate(state[3], 45);
    return result;
}

void seed_generator(uint64_t x) {
    for (int i = 0; i < 4; i++) {
        uint64_t z = (x += 0x9e3779b97f4a7c15u);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        state[i] = z ^ (z >> 31);
    }
}

/* For each run: elements 0, 1, ... are put in; fails = the least number of them that does not peel, 0 if all
   do; left = what peeling leaves of those. Found from above: peel all, then take out the last element that
   is left, peel on, until nothing is left; the last element taken out is the one that broke it. */
int simulate(int quarter, int elements, int runs, int32_t *fails, int32_t *left) {
    int cells = 4 * quarter;
    uint32_t *cell = malloc(16 * (size_t) elements), *names = malloc(4 * (size_t) cells);
    int32_t *degree = malloc(4 * (size_t) cells);
    int32_t *pure = malloc(4 * ((size_t) cells + 4 * (size_t) elements));
    char *present = malloc(elements);
    if (!cell || !names || !degree || !pure || !present) return 1;
    for (int run = 0; run < runs; run++) {
        memset(degree, 0, 4 * (size_t) cells);
        memset(names, 0, 4 * (size_t) cells);
        memset(present, 1, elements);
        for (int e = 0; e < elements; e++)
            for (int j = 0; j < 4; j++) {
                uint32_t c = j * quarter + (uint32_t) (((draw() >> 32) * (uint64_t) quarter) >> 32);
                cell[4 * e + j] = c; degree[c]++; names[c] ^= e;
            }
        int waiting = 0, rest = elements, last = elements - 1;
        for (int c = 0; c < cells; c++) if (degree[c] == 1) pure[waiting++] = c;
        fails[run] = left[run] = 0;
        for (;;) {
            int out;
            if (waiting) {
                int c = pure[--waiting];
                if (degree[c] != 1) continue;
                out = names[c];
            } else if (rest) {
                while (!present[last]) last--;
                out = last; fails[run] = last + 1; left[run] = rest;
            } else break;
            present[out] = 0; rest--;
            for (int j = 0; j < 4; j++) {
                uint32_t c = cell[4 * out + j];
                names[c] ^= out;
                if (--degree[c] == 1) pure[waiting++] = c;
            }
        }
    }
    free(cell); free(names); free(degree); free(pure); free(present);
    return 0;
}
"""


def simulate(quarter: int, elements: int, runs: int, seed: int) -> Iterator[tuple[Counts, Counts]]:
    """Batches of runs: the least number of elements that does not peel, or 0; and what is then left."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "peeling.c"), Path(folder, "peeling.so")
        source.write_text(SIMULATION)
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
        compiled = ctypes.CDLL(str(library))
    compiled.seed_generator(ctypes.c_uint64(seed))
    for start in range(0, runs, BATCH):
        count = min(BATCH, runs - start)
        fails, left = np.zeros(count, np.int32), np.zeros(count, np.int32)
        pointers = (ctypes.c_void_p(fails.ctypes.data), ctypes.c_void_p(left.ctypes.data))
        if compiled.simulate(quarter, elements, count, *pointers):
            raise MemoryError
        yield fails, left


def critical(quarter: int, runs: int, seed: int) -> dict[str, Any]:
    cells = QUARTERS * quarter
    batches = list(simulate(quarter, math.ceil(0.8 * cells) + 300, runs, seed))
    loads = np.concatenate([fails for fails, _ in batches]) / cells
    left = np.concatenate([rest for _, rest in batches])
    # A few elements that share their cells fail at any load; those runs belong to the structural term.
    small = left <= SMALL
    kept = loads[~small]
    mean, deviation = float(kept.mean()), float(kept.std(ddof=1))
    standard = (kept - mean) / deviation
    return {
        "quarter": quarter,
        "cells": cells,
        "small_failures": int(small.sum()),
        "least_large_failure": int(left[~small].min()),
        "mean": mean,
        "shift_times_cells_to_two_thirds": (THRESHOLD - mean) * cells ** (2 / 3),
        "deviation_times_sqrt_cells": deviation * math.sqrt(cells),
        "skewness": float((standard**3).mean()),
        "excess_kurtosis": float((standard**4).mean() - 3),
        "lowest_in_deviations": float(standard.min()),
        "below_minus_deviations": {
            str(z): {
                "measured": int((standard < -z).sum()),
                "gaussian": round(len(kept) * math.erfc(z / math.sqrt(2)) / 2, 2),
            }
            for z in (2, 3, 3.5, 4, 4.5, 5)
        },
    }


def failures(elements: int, quarter: int, runs: int, seed: int) -> dict[str, Any]:
    left = np.concatenate([rest[rest > 0] for _, rest in simulate(quarter, elements, runs, seed)])
    return {
        "elements": elements,
        "quarter": quarter,
        "cells_per_element": QUARTERS * quarter / elements,
        "failures": len(left),
        "rate": len(left) / runs,
        # When peeling fails, the left-over at the first failure: a pair, a few, or a large core.
        "left_two": int((left == 2).sum()),
        "left_few": int(((left > 2) & (left <= SMALL)).sum()),
        "left_many": int((left > SMALL).sum()),
        "pairs_expected": math.comb(elements, 2) / quarter**QUARTERS,
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
    if settings.measurement == "critical":
        result = critical(settings.quarter, settings.runs, settings.seed)
    elif settings.measurement == "failures":
        result = failures(settings.elements, settings.quarter, settings.runs, settings.seed)
    else:
        result = bound(settings.elements, settings.quarter)
    if settings.measurement != "bound":
        result |= {"runs": settings.runs, "seed": settings.seed}
    result |= {
        "measurement": settings.measurement,
        "seconds": round(time.perf_counter() - started, 2),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    json.dump(result, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
