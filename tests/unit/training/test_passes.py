"""How a cohort is cut into passes for the cores, and that it does not matter for what is learned."""

import numpy as np
import pytest
import torch

from sfsl.data import SyntheticSettings, SyntheticTaobao
from sfsl.data.catalogue import Catalogue
from sfsl.models import din
from sfsl.training import ClientWork, LocalSettings, train_cohort
from sfsl.training.cohort import _STEP, _passes


@pytest.mark.parametrize("cores", [1, 2, 4])
@pytest.mark.parametrize("together", [1, 3, 100])
@pytest.mark.parametrize("samples", [[], [7], [900, 30, 20, 10, 9, 8, 1], [5] * 10])
def test_passes_hold_everyone_once(samples: list[int], cores: int, together: int) -> None:
    passes = _passes(samples, cores, together)
    assert [place for one in passes for place in one] == list(range(len(samples)))
    assert all(1 <= len(one) <= together for one in passes)
    assert len(passes) <= cores * -(-len(samples) // (cores * together))


def test_no_core_has_much_more_to_do() -> None:
    samples = sorted(np.random.default_rng(1).lognormal(5, 0.7, 100).astype(int).tolist(), reverse=True)
    passes = _passes(samples, 2, 100)
    cost = [_STEP * samples[one[0]] + sum(samples[place] for place in one) for one in passes]
    assert len(cost) == 2
    assert max(cost) < 1.15 * min(cost)


def test_two_cores_learn_what_one_learns() -> None:
    world = SyntheticSettings(users=5, items=40, categories=8, samples=6, interests=3)
    data = SyntheticTaobao(world, seed=3).interactions()
    task = din(Catalogue.of(data), seed=1, width=4)
    works = []
    for user in range(5):
        rows, _ = task.needed_rows(data.client(user))
        values = {one.name: np.full((len(rows[one.name]), one.width), 0.1, np.float32) for one in task.tables}
        works.append(ClientWork(rows, values, data.client(user), seed=user))
    before = torch.get_num_threads()
    learned = []
    try:
        for cores in (1, 2):
            torch.set_num_threads(cores)
            learned.append(train_cohort(task, task.initial_dense(), works, LocalSettings()))
            assert torch.get_num_threads() == cores
    finally:
        torch.set_num_threads(before)
    for one, two in zip(*learned, strict=True):
        assert one.samples == two.samples > 0
        np.testing.assert_allclose(one.dense, two.dense, atol=1e-6)
        np.testing.assert_allclose(one.rows["item"], two.rows["item"], atol=1e-6)
