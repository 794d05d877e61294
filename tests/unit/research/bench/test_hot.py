"""What ``sfsl bench hot`` measures is a whole round whose sum is right."""

import pytest

from sfsl.errors import InputError
from sfsl_research.bench import hot
from sfsl_research.bench.hot import bench_hot

SMALL = {"items": 500, "categories": 20, "width": 4, "dense": 200, "megabytes": 0.08, "own_rows": 10}


@pytest.mark.parametrize("epsilon", [8.0, float("inf")])
def test_a_small_round_is_measured_and_checked(epsilon: float) -> None:
    found = bench_hot(12, epsilon=epsilon, **SMALL)
    assert found["checked"] is True
    assert found["dropped"] == 1
    for name in ("client_seconds", "server_seconds", "client_bytes_up", "client_bytes_down"):
        assert found[name] > 0
    assert found["client_bytes_up"] > 4 * found["words"]
    assert (found["epsilon"] is None) == (epsilon == float("inf"))


def test_where_few_mask_the_sum_is_not_looked_at() -> None:
    assert bench_hot(12, masked=3, **SMALL)["checked"] is False


def test_a_wrong_sum_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot.Masker, "subtract", lambda *given: None)
    with pytest.raises(AssertionError, match="words off"):
        bench_hot(12, **SMALL)


def test_more_dropouts_than_a_round_bears_are_refused() -> None:
    with pytest.raises(InputError, match="dropout"):
        bench_hot(12, dropout=0.5, **SMALL)
