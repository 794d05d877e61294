"""The two models of a package: the logit of a sample, and training of the logistic one (models.md).

DIN's gradient is left to whatever library a port has; its logit is here to check that one against.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Rows = Mapping[str, Mapping[int, np.ndarray]]


@dataclass(frozen=True)
class Sample:
    user: int
    item: int
    history: Sequence[int]
    label: int


def logistic(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def logistic_logit(dense: np.ndarray, rows: Rows, category_of: np.ndarray, sample: Sample) -> float:
    def weights(item: int) -> np.ndarray:
        own = rows["item"][item]
        return own + rows["category"][int(category_of[item])] if len(category_of) else own

    past = sum(weights(item)[1] for item in sample.history) / max(len(sample.history), 1)
    return float(dense[0] + rows["user"][sample.user][0] + weights(sample.item)[0] + past)


def din_logit(
    dense: np.ndarray, rows: Rows, category_of: np.ndarray, sample: Sample, package: Mapping[str, Any]
) -> float:
    width, slopes = package["width"], package["slopes"]
    n = 2 * width if len(category_of) else width
    m, at = width + 4 * n, 0

    def take(*shape: int) -> np.ndarray:
        nonlocal at
        at += int(np.prod(shape))
        return dense[at - int(np.prod(shape)) : at].reshape(shape).astype(np.float64)

    def good(item: int) -> np.ndarray:
        own = rows["item"][item]
        return np.concatenate([own, rows["category"][int(category_of[item])]]) if len(category_of) else own

    def bent(z: np.ndarray, slope: np.ndarray) -> np.ndarray:
        if slopes == "dice":
            return z * (logistic(z) + slope * (1 - logistic(z)))
        return np.where(z > 0, z, slope * z)

    scale, shift = take(m), take(m)
    a1, b1, a2, b2, a3, b3 = take(80, 4 * n), take(80), take(40, 80), take(40), take(1, 40), take(1)
    t1, c1, s1, t2, c2, s2 = take(200, m), take(200), take(200), take(80, 200), take(80), take(80)
    t3, c3 = take(2, 80), take(2)
    own, past = good(sample.item), np.array([good(item) for item in sample.history]).reshape(-1, n)
    joined = [np.concatenate([own, one, own - one, own * one]) for one in past]
    relevance = np.array(
        [float((a3 @ logistic(a2 @ logistic(a1 @ one + b1) + b2) + b3)[0]) for one in joined]
    )
    share = np.exp(relevance - relevance.max(initial=-np.inf)) if len(relevance) else relevance
    share = share / share.sum() if len(share) else share
    total, interest = past.sum(axis=0), share @ past if len(past) else np.zeros(n)
    user, wide = rows["user"][sample.user], package.get("layout", "paper") == "wide"
    if wide:
        total = total / max(len(past), 1)
    entry = np.concatenate([user, own, total, own * total, interest])
    y = t3 @ bent(t2 @ bent(t1 @ (entry * scale + shift) + c1, s1) + c2, s2) + c3
    return float(y[1] - y[0] + (user[0] + own[::width].sum() + own @ total if wide else 0))


def succinct(samples: Sequence[Sample], asked: Sequence[int]) -> list[Sample]:
    """What can be trained with these items (4)."""
    held = set(asked)
    thinned = [
        Sample(one.user, one.item, [item for item in one.history if item in held], one.label)
        for one in samples
        if one.item in held
    ]
    return [one for one in thinned if one.history]


def train_logistic(
    dense: np.ndarray,
    rows: Rows,
    category_of: np.ndarray,
    samples: Sequence[Sample],
    training: Mapping[str, float],
    rng: np.random.Generator,
) -> tuple[np.ndarray, dict[str, dict[int, tuple[np.ndarray, int]]]]:
    """How far the dense part moved, and by table and row how far that did and how many samples touch it."""
    bias = dense.astype(np.float64)
    held = {name: {row: one.astype(np.float64) for row, one in some.items()} for name, some in rows.items()}
    counts: dict[tuple[str, int], int] = {}
    for sample in samples:
        for place in {place for place, _ in _slopes(sample, category_of)}:
            counts[place] = counts.get(place, 0) + 1
    size = int(training.get("batch_size", 2))
    for _ in range(int(training.get("epochs", 1))):
        batches = -(-len(samples) // size)
        for part in np.array_split(rng.permutation(len(samples)), max(1, batches)):
            batch = [samples[k] for k in part]
            slope_bias, slope = 0.0, {place: np.zeros_like(held[place[0]][place[1]]) for place in counts}
            for sample in batch:
                error = logistic(logistic_logit(bias, held, category_of, sample)) - sample.label
                slope_bias += error / len(batch)
                for place, by in _slopes(sample, category_of):
                    slope[place] += error / len(batch) * by
            length = np.sqrt(slope_bias**2 + sum((one**2).sum() for one in slope.values()))
            step = training["rate"] * min(1.0, training.get("clip", 0.1) / max(length, 1e-300))
            bias = bias - step * slope_bias
            for (name, row), one in slope.items():
                held[name][row] = held[name][row] - step * one
    moved: dict[str, dict[int, tuple[np.ndarray, int]]] = {name: {} for name in rows}
    for (name, row), count in counts.items():
        moved[name][row] = (held[name][row] - rows[name][row], count)
    return bias - dense, moved


def _slopes(sample: Sample, category_of: np.ndarray) -> list[tuple[tuple[str, int], np.ndarray]]:
    """The logit's gradient by table and row."""
    found = [(("user", sample.user), np.array([1.0]))]
    share = np.array([0.0, 1 / max(len(sample.history), 1)])
    for item, by in [(sample.item, np.array([1.0, 0.0])), *((item, share) for item in sample.history)]:
        found.append((("item", item), by))
        if len(category_of):
            found.append((("category", int(category_of[item])), by))
    return found
