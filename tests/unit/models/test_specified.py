"""DIEN, BST and the LSTM compute what docs/spec/models.md says, in numpy, one sample at a time."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.func import functional_call

from sfsl.data.catalogue import Catalogue
from sfsl.models import bst, dien, next_word_lstm
from sfsl.training.task import Task

W, ITEMS = 5, 7
CATEGORY_OF = np.array([2, 0, 1, 1, 0, 2, 2])
SAMPLES = [(3, []), (0, [4]), (6, [1, 2, 2, 5]), (2, [0, 3] * 40)]


def sigma(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def softmax(x: Any) -> Any:
    powers = np.exp(x - x.max())
    return powers / powers.sum()


def parts(dense: Any, *shapes: tuple[int, ...]) -> Iterator[Any]:
    """The dense part cut up in the order of the specification."""
    at = 0
    for shape in shapes:
        size = int(np.prod(shape))
        yield dense[at : at + size].reshape(shape)
        at += size
    assert at == len(dense)


def tower_shapes(m: int) -> list[tuple[int, ...]]:
    return [(200, m), (200,), (200,), (80, 200), (80,), (80,), (2, 80), (2,)]


def tower(
    x: Any, slopes: str, t1: Any, b1: Any, s1: Any, t2: Any, b2: Any, s2: Any, t3: Any, b3: Any
) -> float:
    def f(z: Any, s: Any) -> Any:
        return z * (sigma(z) + s * (1 - sigma(z))) if slopes == "dice" else np.where(z > 0, z, s * z)

    y = t3 @ f(t2 @ f(t1 @ x + b1, s1) + b2, s2) + b3
    return float(y[1] - y[0])


def gated(given: Any, bias: Any, gates: Any, candidate: Any, steps: list[Any], attention: Any) -> list[Any]:
    states, s = [], np.zeros(len(candidate))
    for x, a in zip(steps, attention, strict=True):
        u, r, f = np.split(given @ x + bias, 3)
        kept, remembered = np.split(gates @ s, 2)
        c = np.tanh(f + candidate @ (sigma(r + remembered) * s))
        s = s + sigma(u + kept) * a * (c - s)
        states.append(s)
    return states


def wide(user: Any, own: Any, pooled: Any) -> float:
    """What the layout "wide" adds to the logit: biases, and the match of the item with the history."""
    return float(user[0] + own[::W].sum() + own @ pooled)


def dien_logit(
    dense: Any, user: Any, v: Callable[[int], Any], g: int, h: list[int], slopes: str, layout: str, n: int
) -> float:
    unit = [(3 * n, n), (3 * n,), (2 * n, n), (n, n)]
    cut = list(parts(dense, *unit, (n, n), *unit, *tower_shapes(W + 4 * n)))
    past = [v(i) for i in h]
    interests = gated(*cut[:4], past, np.ones(len(h)))
    share = softmax(np.array([i @ (cut[4] @ v(g)) for i in interests])) if h else []
    total = sum(past, np.zeros(n)) / (max(len(h), 1) if layout == "wide" else 1)
    interest = gated(*cut[5:9], interests, share)[-1] if h else np.zeros(n)
    logit = tower(np.concatenate([user, v(g), total, v(g) * total, interest]), slopes, *cut[9:])
    return logit + (wide(user, v(g), total) if layout == "wide" else 0)


def normed(x: Any, weight: Any, bias: Any) -> Any:
    return (x - x.mean()) / np.sqrt(x.var() + 1e-5) * weight + bias


def bst_logit(
    dense: Any, user: Any, v: Callable[[int], Any], g: int, h: list[int], slopes: str, layout: str, n: int
) -> float:
    shapes = [(64, n), (96, n), (96,), (n, 32), (n,), (n,), (n,), (n,), (n,), (64, n), (64,), (n, 64), (n,)]
    position, p, pb, j, jb, n1, m1, n2, m2, i, ib, o, ob, *top = parts(
        dense, *shapes, *tower_shapes(W + 5 * n)
    )
    k = len(h)
    places = [v(one) + position[min(k - at, 63)] for at, one in enumerate(h)] + [v(g) + position[0]]
    queries, keys, values = zip(*(np.split((p @ x + pb).reshape(12, 8), 3) for x in places), strict=True)
    after = []
    for at, x in enumerate(places):
        heads = []
        for head in range(4):
            share = softmax(np.array([queries[at][head] @ key[head] for key in keys]) / np.sqrt(8))
            heads.append(sum(a * value[head] for a, value in zip(share, values, strict=True)))
        y = normed(x + j @ np.concatenate(heads) + jb, n1, m1)
        inner = i @ y + ib
        after.append(normed(y + o @ np.where(inner > 0, inner, 0.01 * inner) + ob, n2, m2))
    total = sum((v(one) for one in h), np.zeros(n)) / (max(k, 1) if layout == "wide" else 1)
    interest = sum(after[:-1], np.zeros(n)) / max(k, 1)
    logit = tower(np.concatenate([user, v(g), total, v(g) * total, after[-1], interest]), slopes, *top)
    return logit + (wide(user, v(g), total) if layout == "wide" else 0)


def lstm_output(dense: Any, rows: Any, context: list[int], target: int) -> float:
    given, bias, before, meant, shift = parts(dense, (192, W), (192,), (192, 64), (W, 64), (W,))
    cell = s = np.zeros(64)
    for word in context:
        i, o, f = np.split(given @ rows[word, :W] + bias, 3)
        i2, o2, f2 = np.split(before @ s, 3)
        cell = cell + sigma(i + i2) * (np.tanh(f + f2) - cell)
        s = sigma(o + o2) * np.tanh(cell)
    fit = rows[:, :W] @ (meant @ s + shift) + rows[:, W]
    return float(np.log(softmax(fit)[target]) + np.log(len(rows)))


def drawn(task: Task) -> tuple[Any, dict[str, Any]]:
    rng = np.random.default_rng(4)
    rows = {one.name: rng.normal(0, 0.5, (one.rows, one.width)).astype(np.float32) for one in task.tables}
    return rng.normal(0, 0.3, task.spec.dense).astype(np.float32), rows


@pytest.mark.parametrize("categories", [True, False])
@pytest.mark.parametrize(("make", "logit"), [(dien, dien_logit), (bst, bst_logit)])
@pytest.mark.parametrize("slopes", ["dice", "prelu"])
@pytest.mark.parametrize("layout", ["wide", "paper"])
def test_models_of_clicks(make: Any, logit: Any, layout: Any, slopes: Any, categories: bool) -> None:
    about = Catalogue.of_items(np.arange(ITEMS), *((np.arange(3), CATEGORY_OF) if categories else ()))
    task = make(about, seed=1, width=W, slopes=slopes, layout=layout)
    dense, rows = drawn(task)
    held = {name: values.astype(np.float64) for name, values in rows.items()}

    def v(item: int) -> Any:
        both = (
            [held["item"][item], held["category"][CATEGORY_OF[item]]] if categories else [held["item"][item]]
        )
        return np.concatenate(both)

    for g, h in SAMPLES:
        history = np.array([[*h, -1, -1]])
        batch = {"user": np.zeros(1, np.int64), "item": np.array([g]), "history": history}
        if categories:
            batch |= {
                "item_category": CATEGORY_OF[batch["item"]],
                "history_category": np.where(history < 0, -1, CATEGORY_OF[history]),
            }
        told = {name: torch.tensor(column) for name, column in batch.items()}
        found = functional_call(task.module, task.parameters(dense, rows), (told,))
        expected = logit(dense.astype(np.float64), held["user"][0], v, g, h, slopes, layout, len(v(0)))
        assert found.item() == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_the_model_of_words() -> None:
    task = next_word_lstm(Catalogue.sized(word=9), seed=1, width=W)
    dense, rows = drawn(task)
    for context, target in [([3], 1), ([0, 8, 8, 2], 8), ([5, 4], 0)]:
        batch = {
            "context": torch.tensor([[*context, -1]]),
            "target": torch.tensor([target]),
            "known": torch.tensor([9]),
        }
        found = functional_call(task.module, task.parameters(dense, rows), (batch,))
        expected = lstm_output(dense.astype(np.float64), rows["word"].astype(np.float64), context, target)
        assert found.item() == pytest.approx(expected, rel=1e-4, abs=1e-4)
