"""What is planned for a round: where scores are counted, and how many rows there is room for."""

import numpy as np
import pytest

from cohort import MODEL
from sfsl.errors import ParameterError
from sfsl.rounds import ScoreBins
from sfsl.rounds.params import HotRules


def test_bins_stay_where_nothing_was_counted_and_go_where_scores_are() -> None:
    bins = ScoreBins(bins=8, centre=0.5, scale=2.0)
    assert bins.after(np.zeros(8, int), np.zeros(8, int)) == bins
    low, high = np.eye(8, dtype=int)[[0, 7]]
    assert bins.after(high, high).centre > bins.after(low, high).centre > bins.after(low, low).centre
    assert bins.after(low, high).centre == pytest.approx(bins.centre)


def test_room_for_hot_rows_is_what_the_rest_leaves() -> None:
    rules = HotRules(rho=1.0, survey_rho=0.1)
    assert rules.delta == 1e-6
    one, two = rules.words(MODEL, 0, "float32"), HotRules(1.0, 0.1, megabytes=2.5).words(MODEL, 0, "float32")
    assert two - one == 2**20 / 8
    assert one - rules.words(MODEL, 8, "float32") == 4 * 16 / 8
    assert rules.words(MODEL, 0, "float16") == pytest.approx(one * 8 / 6, abs=1)
    with pytest.raises(ParameterError, match="leaves no room"):
        HotRules(rho=1.0, survey_rho=0.1, megabytes=0.001).words(MODEL, 0, "float32")
