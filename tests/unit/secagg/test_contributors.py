import numpy as np
import pytest

from sfsl.errors import ParameterError
from sfsl.secagg.graph import default_min_contributors, opened_alone


def test_chance_of_being_opened_alone_by_simulation() -> None:
    rng = np.random.default_rng(1)
    for requesters, dropout in ((1, 0.1), (2, 0.1), (3, 0.3), (6, 0.5)):
        uploads = (rng.random((200_000, requesters)) >= dropout).sum(axis=1)
        seen = float(np.mean(uploads == 1))
        assert seen == pytest.approx(float(opened_alone([requesters], dropout)[0]), abs=0.004)


def test_nobody_drops() -> None:
    assert opened_alone([0, 1, 2, 5], 0.0).tolist() == [0, 1, 0, 0]
    assert default_min_contributors([1, 1, 2, 5], dropout=0.0) == 2


def test_the_designs_figures() -> None:
    """DESIGN §4: cpp2, 100 clients, 10 % dropout: about 3.5 rows a round at m = 2, 0.05 at m = 6.

    A union of 25.7 thousand rows; 86.7 % have one owner, who asks with p5 = 0.9; the other 99 with p6 = 0.1.
    """
    rng = np.random.default_rng(2)
    owners = rng.choice([1, 2, 3], 25_700, p=[0.867, 0.10, 0.033])
    counts = rng.binomial(owners, 0.9) + rng.binomial(100 - owners, 0.1)
    alone = opened_alone(counts, 0.1)
    at_two = float(alone[counts >= 2].sum())
    at_six = float(alone[counts >= 6].sum())
    assert 1.5 < at_two < 7
    assert 0.02 < at_six < 0.1
    assert default_min_contributors(counts, bound=0.1) == 6
    assert np.mean(counts < 6) < 0.05


def test_default_is_the_least_that_meets_the_bound() -> None:
    counts = np.array([2] * 3 + [3] * 5 + [4] * 7 + [9] * 100)
    alone = opened_alone(counts, 0.1)
    least = default_min_contributors(counts, bound=0.05)
    assert alone[counts >= least].sum() <= 0.05 < alone[counts >= least - 1].sum()
    assert default_min_contributors([], bound=0.05) == 2
    assert default_min_contributors([1000] * 10, bound=0.05) == 2


@pytest.mark.parametrize(("dropout", "bound"), [(1.0, 0.1), (-0.1, 0.1), (0.1, 0.0)])
def test_bad_settings(dropout: float, bound: float) -> None:
    with pytest.raises(ParameterError):
        default_min_contributors([1, 2], dropout=dropout, bound=bound)
