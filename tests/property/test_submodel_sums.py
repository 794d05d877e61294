"""Whatever the cohort: what comes out of the ring is the weighted average, to the size of a step."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sfsl.secagg import aggregate_rows
from sfsl.submodel import PAPER, Averaging, Quantization, ServerStep, WeightedSums
from sfsl.testing import SeededRandomness

MANY = settings(deadline=None, derandomize=True, max_examples=150)
RANDOMNESS = SeededRandomness("submodel sums")


@dataclass
class Cohort:
    quantization: Quantization
    averaging: Averaging
    deltas: NDArray[np.float32]  # [client, row, width]
    counts: NDArray[np.int64]  # [client, row]
    samples: NDArray[np.int64]  # [client]


@st.composite
def cohorts(draw: st.DrawFn) -> Cohort:
    clients, rows, width = draw(st.integers(1, 6)), draw(st.integers(1, 5)), draw(st.integers(1, 4))
    ring: Literal["z32", "z64"] = draw(st.sampled_from(["z32", "z64"]))
    weights: Literal["samples", "owners", "dataset"] = draw(st.sampled_from(["samples", "owners", "dataset"]))
    averaging = Averaging(weights=weights, kappa=draw(st.sampled_from([1, 2.5, 5])))
    cap = draw(st.integers(1, 400))
    clip = draw(st.sampled_from([1e-3, 0.1, 0.7, 1.0, 50.0]))
    finest = Quantization.finest(ring, cohort=clients, clip=clip, max_weight=averaging.largest_weight(cap))
    levels = draw(st.sampled_from([1, 7, finest.levels]) | st.integers(1, finest.levels))
    quantization = Quantization(
        ring=ring, cohort=clients, clip=clip, levels=levels, max_weight=finest.max_weight
    )
    numbers = st.floats(-1, 1, width=32).map(lambda part: 2 * clip * part) | st.sampled_from(
        [0.0, 1e30, -1e30, 1e-40, -clip]
    )
    flat = draw(st.lists(numbers, min_size=clients * rows * width, max_size=clients * rows * width))
    counts = st.lists(
        st.integers(0, 5) | st.integers(0, 1000), min_size=clients * rows, max_size=clients * rows
    )
    return Cohort(
        quantization,
        averaging,
        np.array(flat, np.float32).reshape(clients, rows, width),
        np.array(draw(counts), np.int64).reshape(clients, rows),
        np.array(draw(st.lists(st.integers(0, 1000), min_size=clients, max_size=clients)), np.int64),
    )


def encoded(cohort: Cohort, client: int) -> NDArray[np.unsignedinteger]:
    weights = cohort.averaging.row_weights(cohort.counts[client], int(cohort.samples[client]))
    return cohort.quantization.encode(cohort.deltas[client], weights, RANDOMNESS)


@MANY
@given(cohorts())
def test_quantize_sum_decode_is_the_weighted_average(cohort: Cohort) -> None:
    quantization, averaging = cohort.quantization, cohort.averaging
    total = encoded(cohort, 0)
    for client in range(1, len(cohort.deltas)):
        total = total + encoded(cohort, client)
    decoded = quantization.decode(total)

    weights = {
        "samples": cohort.counts,
        "owners": (cohort.counts > 0).astype(np.int64),
        "dataset": np.broadcast_to(cohort.samples[:, None], cohort.counts.shape),
    }[averaging.weights]
    weights = np.minimum(weights, quantization.max_weight)
    clipped = np.clip(cohort.deltas.astype(np.float64), -quantization.clip, quantization.clip)
    exact = (weights[:, :, None] * clipped).sum(axis=0)
    # Each client that has a weight is off by less than one unit; the rest is float64.
    bound = (weights > 0).sum(axis=0)[:, None] * quantization.unit + 1e-12 * np.abs(exact) + 1e-300
    assert decoded.weights.tolist() == weights.sum(axis=0).tolist()
    assert decoded.refused == 0
    assert (np.abs(decoded.values - exact) <= bound).all()

    divisor = np.maximum(weights.sum(axis=0), averaging.kappa)[:, None]
    assert (np.abs(averaging.moves(decoded) - exact / divisor) <= bound / divisor).all()
    assert (np.abs(averaging.moves(decoded)) <= quantization.clip * (1 + 1e-12)).all()


@MANY
@given(
    st.lists(
        st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.integers(0, 2**40)), min_size=1, max_size=8
    ),
    st.floats(1, 1e4),
    st.floats(1e-3, 1e3) | st.none(),
)
def test_averaging_against_a_plain_reference(
    rows: list[tuple[float, float, int]], kappa: float, max_move: float | None
) -> None:
    values = np.array([row[:2] for row in rows])
    weights = np.array([row[2] for row in rows])
    moves = Averaging(kappa=kappa, max_move=max_move).moves(WeightedSums(values, weights, 0))
    for (first, second, weight), move in zip(rows, moves, strict=True):
        expected = [part / max(weight, kappa) if weight else 0.0 for part in (first, second)]
        length = (expected[0] ** 2 + expected[1] ** 2) ** 0.5
        if max_move is not None and length > max_move:
            expected = [part * max_move / length for part in expected]
        assert move == pytest.approx(expected, rel=1e-9, abs=1e-300)
        assert max_move is None or np.linalg.norm(move) <= max_move * (1 + 1e-12)


@settings(deadline=None, derandomize=True, max_examples=12)
@given(st.integers(0, 2**32))
def test_the_secure_sum_of_updates_is_the_plain_one_word_for_word(seed: int) -> None:
    rng = np.random.default_rng(seed)
    quantization = Quantization.finest("z32", cohort=4, clip=0.1, max_weight=50)
    rows, plain = 9, np.zeros((9, 4), np.uint32)
    asked, words = {}, {}
    for name in ("ada", "bob", "cyd", "dan"):
        asked[name] = np.flatnonzero(rng.random(rows) < 0.7)
        deltas = rng.normal(0, 0.1, (len(asked[name]), 3))
        counts = PAPER.row_weights(rng.integers(0, 80, len(asked[name])), 80)
        words[name] = quantization.encode(deltas, counts, SeededRandomness(seed))
        plain[asked[name]] += words[name].astype(np.uint32)
    secure = aggregate_rows(
        asked, words, rows, min_contributors=1, wrap=True, randomness=SeededRandomness(seed)
    )
    assert secure.totals.tolist() == plain.tolist()
    assert quantization.decode(secure.totals).values.tolist() == quantization.decode(plain).values.tolist()


@MANY
@given(st.sampled_from(["add", "adagrad", "adam", "heat"]), st.integers(0, 2**32), st.integers(1, 6))
def test_rows_step_alone_as_they_do_together(
    kind: Literal["add", "adagrad", "adam", "heat"], seed: int, count: int
) -> None:
    rng = np.random.default_rng(seed)
    step = ServerStep(kind=kind, rate=0.3)
    values = rng.normal(0, 1, (count, 3)).astype(np.float32)
    state = np.abs(rng.normal(0, 1, (count, step.slots, 3))).astype(np.float32)
    moves = rng.normal(0, 1, (count, 3))
    together = step.apply(values, state, moves)
    for row in range(count):
        alone = step.apply(values[[row]], state[[row]], moves[[row]])
        assert alone[0].tolist() == together[0][[row]].tolist()
        assert alone[1].tolist() == together[1][[row]].tolist()
