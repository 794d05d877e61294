"""Distributions of answers, with seeded generators: each test either always passes or always fails."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from sfsl.crypto.secret import Randomness, Secret
from sfsl.privacy import PRESETS, Decoys, IndexPrivacy, Perturber, Tables
from sfsl.testing import SeededRandomness

ROWS = np.arange(60_000)
REAL = ROWS[::3]
IS_REAL = np.isin(ROWS, REAL)
SKEWED = IndexPrivacy(0.8, 0.1, 0.9, 0.2)
GOODS = Tables(shared=("goods",))
# How unlikely a result must be before we call it wrong; seeds are fixed, so this is not a flake rate.
SUSPICIOUS = 1e-4


def period(seed: str | int, privacy: IndexPrivacy = SKEWED) -> Perturber:
    return Perturber(Secret(SeededRandomness(f"period {seed}").bytes(32)), privacy, GOODS, {"goods": REAL})


def answer(client: Perturber, seed: str | int) -> NDArray[np.bool_]:
    return client.answer({"goods": ROWS}, SeededRandomness(f"round {seed}"))["goods"]


def fits(happened: NDArray[np.bool_], probability: float) -> bool:
    return bool(stats.binomtest(int(happened.sum()), len(happened), probability).pvalue > SUSPICIOUS)


def independent(one: NDArray[np.bool_], other: NDArray[np.bool_]) -> bool:
    table = [[int((one == a)[other == b].sum()) for a in (False, True)] for b in (False, True)]
    return bool(stats.chi2_contingency(table, correction=False).pvalue > SUSPICIOUS)


@pytest.mark.parametrize("privacy", [SKEWED, PRESETS["cpp2"], PRESETS["cpp4"], IndexPrivacy(1, 0.3, 0.7, 0)])
def test_frequencies_of_both_layers(privacy: IndexPrivacy) -> None:
    client = period("frequencies", privacy)
    permanent = client.permanent("goods", ROWS)
    assert fits(permanent[IS_REAL], privacy.p1)
    assert fits(permanent[~IS_REAL], privacy.p2)
    seen = answer(client, "frequencies")
    assert fits(seen[permanent], privacy.p3)
    assert fits(seen[~permanent], privacy.p4)
    assert fits(seen[IS_REAL], privacy.p5)
    assert fits(seen[~IS_REAL], privacy.p6)


def test_a_round_sees_the_truth_only_through_the_permanent_answer() -> None:
    client = period("layers")
    permanent, seen = client.permanent("goods", ROWS), answer(client, "layers")
    for value in (False, True):
        assert independent(IS_REAL[permanent == value], seen[permanent == value])


@pytest.mark.parametrize("lag", [1, 2, 3, 16, 256, 4096])
def test_answers_are_independent_across_rows(lag: int) -> None:
    client = period("lags")
    for answers in (client.permanent("goods", ROWS), answer(client, "lags")):
        for kind in (IS_REAL, ~IS_REAL):
            same_kind = answers[kind]
            assert independent(same_kind[:-lag], same_kind[lag:])


def test_gaps_between_permanent_yeses_are_geometric() -> None:
    """Lags see pairs only; the gaps between yeses see more."""
    gaps = np.diff(np.flatnonzero(period("gaps").permanent("goods", ROWS)[~IS_REAL]))
    lengths = np.bincount(np.minimum(gaps, 30), minlength=31)[1:]
    expected = stats.geom.pmf(np.arange(1, 31), SKEWED.p2)
    expected[-1] = stats.geom.sf(29, SKEWED.p2)
    assert stats.chisquare(lengths, expected * lengths.sum()).pvalue > SUSPICIOUS


def test_permanent_answers_are_independent_across_periods_and_tables() -> None:
    two = Tables(shared=("goods", "shops"))
    key = Secret(SeededRandomness("two tables").bytes(32))
    both = Perturber(key, SKEWED, two, {"goods": REAL, "shops": REAL})
    pairs = [
        (period(1).permanent("goods", ROWS), period(2).permanent("goods", ROWS)),
        (both.permanent("goods", ROWS), both.permanent("shops", ROWS)),
    ]
    for one, other in pairs:
        for kind in (IS_REAL, ~IS_REAL):
            assert independent(one[kind], other[kind])


def test_rounds_are_independent_given_the_permanent_answers() -> None:
    client = period("rounds")
    permanent = client.permanent("goods", ROWS)
    first, second = answer(client, "one"), answer(client, "two")
    for value in (False, True):
        assert independent(first[permanent == value], second[permanent == value])


def test_permanent_answers_are_the_same_in_every_round_and_after_a_restart() -> None:
    """Seen from outside: over many rounds each row's yeses concentrate at p3 or p4, nowhere else."""
    rounds = 150
    yeses = np.zeros(2000)
    for number in range(rounds):
        client = period("restarts")  # a new object each time, as after a restart
        yeses += client.answer({"goods": ROWS[:2000]}, SeededRandomness(f"restart {number}"))["goods"]
    permanent = period("restarts").permanent("goods", ROWS[:2000])
    for value, chance in ((True, SKEWED.p3), (False, SKEWED.p4)):
        spread = np.sqrt(chance * (1 - chance) / rounds)
        assert np.abs(yeses[permanent == value] / rounds - chance).max() < 5 * spread


class Memoized:
    """The paper's Algorithm 2, line by line, with its two growing sets."""

    def __init__(self, privacy: IndexPrivacy, real: set[int], seed: int) -> None:
        self.privacy, self.real = privacy, real
        self.yes: set[int] = set()
        self.no: set[int] = set()
        self._rng = np.random.default_rng(seed)

    def answer(self, union: NDArray[np.int64]) -> NDArray[np.bool_]:
        p = self.privacy
        for j in union.tolist():
            if j not in self.yes and j not in self.no:
                chance = p.p1 if j in self.real else p.p2
                (self.yes if self._rng.random() < chance else self.no).add(j)
        return np.array([self._rng.random() < (p.p3 if j in self.yes else p.p4) for j in union.tolist()])


@pytest.mark.parametrize("privacy", [SKEWED, PRESETS["cpp2"]])
def test_same_distribution_as_the_papers_memoized_sets(privacy: IndexPrivacy) -> None:
    """All eight outcomes of three rounds over changing unions, for real rows and for others."""
    rows = ROWS[:9000]
    unions = [rows, rows[rows % 7 != 1], rows]  # some rows are asked about in two rounds only
    memoized = Memoized(privacy, set(REAL.tolist()), seed=8)
    client = period("memoized", privacy)
    randomness = SeededRandomness("memoized rounds")
    ways: list[Callable[[NDArray[np.int64]], NDArray[np.bool_]]] = [
        memoized.answer,
        lambda union: client.answer({"goods": union}, randomness)["goods"],
    ]
    counts = []
    for way in ways:
        outcome = np.zeros(len(rows), np.int64)
        for number, union in enumerate(unions):
            outcome[union] += way(union) * 2**number
        always = rows % 7 != 1
        kinds = [(IS_REAL[: len(rows)] == real) & (always == asked) for real in (0, 1) for asked in (0, 1)]
        counts.append([np.bincount(outcome[kind], minlength=8) for kind in kinds])
    for ours, papers in zip(*counts, strict=True):
        table = np.array([ours, papers])
        assert stats.chi2_contingency(table[:, table.sum(axis=0) > 0]).pvalue > SUSPICIOUS
    # The paper's sets grow with the union; ours is the 32-byte key.
    assert len(memoized.yes) + len(memoized.no) == len(rows)


def test_decoys_are_uniform_and_fixed() -> None:
    client = Perturber(
        Secret(SeededRandomness("decoys").bytes(32)), IndexPrivacy(0.5, 0.25, 1, 0), GOODS, {"goods": []}
    )
    perturbed = client.union_input(Decoys(40_000, {"goods": 10**6}))["goods"]
    assert stats.kstest(perturbed / 10**6, "uniform").pvalue > SUSPICIOUS
    assert stats.binomtest(len(perturbed), 39_211, 0.25).pvalue > SUSPICIOUS  # distinct draws, on average


class Stuck:
    """A broken source, to see the tests above fail: the same bytes in every round."""

    def bytes(self, count: int, /) -> bytes:
        return SeededRandomness("stuck").bytes(count)


def test_these_tests_notice_reused_randomness_and_a_wrong_probability() -> None:
    stuck: Randomness = Stuck()
    client = period("broken")
    permanent = client.permanent("goods", ROWS)
    one, other = (client.answer({"goods": ROWS}, stuck)["goods"] for _ in range(2))
    assert not independent(one[permanent], other[permanent])
    assert not fits(permanent[IS_REAL], SKEWED.p1 + 0.02)
    assert not independent(permanent, client.permanent("goods", ROWS))
