"""What a server believes of noisy sums: what owners say beyond the noise, and nothing of noise alone."""

import numpy as np
import pytest

from sfsl.arrays import Reals
from sfsl.rounds.hot import Said, blocks_of, listen
from sfsl.submodel.quantize import WeightedSums
from sfsl.submodel.update import ServerStep, evidence, row_trust

ROWS, WIDTH, OWNERS, NOISE = 400, 6, 50, 2.0
WEIGHTS = np.full(ROWS, OWNERS)
RNG = np.random.default_rng(5)
# What one owner says at the first place of a row; its size differs from row to row, and its sign.
SIGNAL = 0.05 * RNG.standard_normal(ROWS)


def opened(signal: float = 1.0) -> Reals:
    """Draw the sums of one round, in clips."""
    sums: Reals = NOISE * RNG.standard_normal((ROWS, WIDTH))
    sums[:, 0] += signal * OWNERS * SIGNAL
    return sums


def heard(rounds: int, signal: float = 1.0) -> Said:
    said = None
    for _ in range(rounds):
        said = listen(said, opened(signal), WEIGHTS, NOISE)
    assert said is not None
    return said


def test_noise_alone_is_not_heard() -> None:
    assert not heard(60, signal=0.0).seen(NOISE).any()


def test_what_owners_say_is_heard_at_its_place_and_about_as_loud() -> None:
    seen = heard(60).seen(NOISE)
    assert not seen[1:].any()
    assert seen[0] == pytest.approx(OWNERS * np.mean(SIGNAL**2), rel=0.3)


def test_many_rounds_hear_what_one_does_not() -> None:
    faint = 0.25
    assert np.mean([bool(heard(1, faint).seen(NOISE)[0]) for _ in range(20)]) < 0.8
    assert all(heard(40, faint).seen(NOISE)[0] > 0 for _ in range(5))


def sums_of(values: Reals, said: Reals) -> WeightedSums:
    return WeightedSums(values, WEIGHTS, 0, NOISE, said)


def test_rows_stay_under_noise_alone_and_learn_what_is_said() -> None:
    step = ServerStep(kind="heat", rate=0.3, tau=10.0)
    for signal in (0.0, 1.0):
        values, state = np.zeros((ROWS, WIDTH), np.float32), np.zeros((ROWS, 1, WIDTH), np.float32)
        said = None
        for _ in range(60):
            sums = opened(signal)
            said = listen(said, sums, WEIGHTS, NOISE)
            values, state = step.apply(values, state, evidence(sums_of(sums, said.seen(NOISE))))
        assert np.abs(values[:, 1:]).max() < 0.1
        if signal:
            assert np.corrcoef(values[:, 0], SIGNAL)[0, 1] > 0.9
        else:
            assert np.abs(values[:, 0]).max() < 0.1


def test_trust_grows_with_owners_and_shrinks_with_noise() -> None:
    said = np.full(WIDTH, 0.1)
    many, few = np.full(ROWS, 1000), np.full(ROWS, 10)
    values = np.zeros((ROWS, WIDTH))
    shares = [
        row_trust(WeightedSums(values, weights, 0, noise, said))[0, 0]
        for weights, noise in ((many, 2.0), (few, 2.0), (few, 20.0))
    ]
    assert shares == pytest.approx([100 / 104, 1 / 5, 1 / 401])


def test_without_noise_evidence_is_what_it_was() -> None:
    values = RNG.standard_normal((ROWS, WIDTH))
    unit = np.sqrt(np.mean(values**2) / OWNERS)
    np.testing.assert_allclose(evidence(WeightedSums(values, WEIGHTS, 0)), values / unit)


@pytest.mark.parametrize("width", [1, 63, 64, 65, 128, 1000])
def test_blocks_cover_every_place_of_the_dense_part(width: int) -> None:
    at = blocks_of(width)
    assert at.shape[0] == min(width, 64)
    assert np.array_equal(np.unique(at), np.arange(width))
    assert (np.diff(at, axis=0) == 1).all()


def test_size_of_steps_is_that_of_noisy_moves_and_their_direction_is_shrunk() -> None:
    step = ServerStep(kind="adam", rate=0.01)
    moves = np.ones((1, 4))
    still = np.zeros((1, 4), np.float32), np.zeros((1, 2, 4), np.float32)
    whole, _ = step.apply(*still, moves)
    half, state = step.apply(*still, moves, np.full((1, 4), 0.5))
    np.testing.assert_allclose(half, whole / 2, rtol=1e-5)
    np.testing.assert_allclose(state[0, 1], 0.01)
