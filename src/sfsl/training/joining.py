"""Samples of several clients as one set of columns."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sfsl.training.local import ClientWork

FILLER = -1


def joined_columns(works: Sequence[ClientWork], *, multiple: int = 1) -> dict[str, Tensor]:
    """One client behind another along the samples; sequences are filled up to the longest, and on to a
    ``multiple``."""
    each = [work.data.local_columns(work.rows) for work in works]
    return {name: torch.from_numpy(_joined([one[name] for one in each], multiple)) for name in each[0]}


def filled(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Arrays that differ in size, one behind another, filled up to the largest."""
    shape = np.max([one.shape for one in arrays], axis=0)
    stacked = np.full((len(arrays), *shape), FILLER, dtype=arrays[0].dtype)
    for place, one in enumerate(arrays):
        stacked[place][tuple(slice(size) for size in one.shape)] = one
    return stacked


def _joined(columns: Sequence[NDArray[Any]], multiple: int) -> NDArray[Any]:
    longest = np.max([one.shape[1:] for one in columns], axis=0).astype(int)
    shape = -(-longest // multiple) * multiple
    joined = np.full((sum(map(len, columns)), *shape), FILLER, dtype=columns[0].dtype)
    start = 0
    for one in columns:
        joined[(slice(start, start + len(one)), *map(slice, one.shape[1:]))] = one
        start += len(one)
    return joined
