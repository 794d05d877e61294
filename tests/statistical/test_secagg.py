"""Masks are uniform in every ring, and a masked vector says nothing about what is under it.

Seeds are fixed: these tests cannot flake, they can only break.
"""

import numpy as np
import pytest
from scipy import stats

from sfsl.crypto.ring import RINGS, MaskStream, Ring, uniform
from sfsl.crypto.secret import Secret
from sfsl.secagg import Layout, SumParams
from sfsl.testing import SeededRandomness
from world import World

rings = pytest.mark.parametrize("ring", RINGS.values(), ids=RINGS)
LEAST_P = 1e-4


def p_uniform(words: np.ndarray, ring: Ring, bins: int = 64) -> float:
    counts = np.bincount((words.astype(object) * bins // ring.modulus).astype(int), minlength=bins)
    return float(stats.chisquare(counts).pvalue)


def p_low_bits(words: np.ndarray) -> float:
    return float(
        stats.chisquare(np.bincount((words & np.array(63, words.dtype)).astype(int), minlength=64)).pvalue
    )


@rings
def test_stream_words_are_uniform(ring: Ring) -> None:
    words = ring.zeros(200_000)
    MaskStream(Secret(bytes(range(32))), ring).fill(words)
    assert int(words.max()) < ring.modulus
    assert p_uniform(words, ring) > LEAST_P
    assert p_low_bits(words) > LEAST_P
    # Neighbouring words are independent.
    low = (words & np.array(7, words.dtype)).astype(int)
    pairs = np.bincount(low[:-1] * 8 + low[1:], minlength=64)
    assert stats.chisquare(pairs).pvalue > LEAST_P


def test_the_uniformity_test_sees_a_bias() -> None:
    """Words taken modulo p without rejection pile up at the low end; a coarse version of that is caught."""
    ring = RINGS["f31"]
    biased = np.random.default_rng(0).integers(0, 2**31 - 1, 200_000, dtype=np.uint32)
    biased[::50] = 5
    assert p_uniform(biased, ring) < LEAST_P


@rings
def test_uniform_draws_are_uniform(ring: Ring) -> None:
    assert p_uniform(uniform(ring, 100_000, SeededRandomness("uniform")), ring) > LEAST_P


def masked(ring: Ring, vector: np.ndarray, seed: str) -> np.ndarray:
    one = SumParams(label="sum", ring=ring.name, min_contributors=1, layout=Layout(dense=len(vector)))  # type: ignore[arg-type]
    world = World(n=3, threshold=2, sums=(one,), seed=seed, length=len(vector)).share()
    start = world.starts()["c1"]
    return np.frombuffer(world.clients["c1"].create_masked(start, vector).words, ring.dtype)


@rings
def test_a_masked_vector_is_uniform_whatever_is_under_it(ring: Ring) -> None:
    length = 50_000
    top = np.full(length, ring.modulus - 1, np.uint64)
    for seed, vector in (("zeros", np.zeros(length, np.uint64)), ("ones", top)):
        words = masked(ring, vector, seed)
        assert p_uniform(words, ring) > LEAST_P
        assert p_low_bits(words) > LEAST_P


@rings
def test_nothing_in_a_masked_vector_correlates_with_the_input(ring: Ring) -> None:
    length = 50_000
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 2, length)
    vector = np.where(bits, ring.modulus - 1, 0).astype(np.uint64)
    words = masked(ring, vector, "correlation").astype(np.float64)
    assert stats.pearsonr(bits, words).pvalue > LEAST_P
    assert stats.ks_2samp(words[bits == 0], words[bits == 1]).pvalue > LEAST_P
    # The same input bit by bit: every bit of the masked word is independent of it.
    whole = masked(ring, vector, "correlation")
    for bit in range(ring.modulus.bit_length() - 1):
        table = np.histogram2d(
            bits, (whole >> np.array(bit, whole.dtype)) & np.array(1, whole.dtype), bins=2
        )[0]
        assert stats.chi2_contingency(table).pvalue > LEAST_P


def test_the_correlation_test_sees_an_unmasked_part() -> None:
    ring = RINGS["z32"]
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 2, 50_000)
    words = masked(ring, np.zeros(50_000, np.uint64), "leaky").copy()
    words[:1000] = np.where(bits[:1000], 2**32 - 1, 0)  # one word in fifty under no mask
    assert stats.ks_2samp(words[bits == 0], words[bits == 1]).pvalue < LEAST_P
