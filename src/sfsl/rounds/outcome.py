"""What the opened sums of a round come to: one cohort's, or several cohorts' together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from sfsl.arrays import Counts
from sfsl.crypto.ring import Words
from sfsl.rounds.params import RoundParams
from sfsl.submodel import Applied, ModelSums, RowSet, RowStore, apply_sums, decode_sums

Histograms = tuple[Counts, Counts]


_MOST = 2**40  # scores in a bin, of all clients together


@dataclass(frozen=True)
class RoundSums:
    """What a cohort opened. ``scores`` are the summed histograms (positives, negatives).

    Cohorts of one round that have no client in common add up: rows are averaged once, over all of them.
    """

    model: ModelSums
    contributors: dict[str, Counts]
    survivors: tuple[str, ...]
    scores: Histograms | None

    def __add__(self, other: Self) -> Self:
        model = self.model + other.model
        contributors = {name: np.zeros(len(union), np.int64) for name, union in model.unions.items()}
        for one in (self, other):
            for name, count in one.contributors.items():
                contributors[name][model.unions[name].positions_of(one.model.unions[name].rows)] += count
        scores = self.scores or other.scores
        if self.scores is not None and other.scores is not None:
            scores = (self.scores[0] + other.scores[0], self.scores[1] + other.scores[1])
        return type(self)(model, contributors, self.survivors + other.survivors, scores)


@dataclass(frozen=True)
class RoundOutcome:
    """What a finished round comes to. ``scores`` are the summed histograms (positives, negatives)."""

    applied: Applied
    survivors: tuple[str, ...]
    union: dict[str, RowSet]
    contributors: dict[str, Counts]
    scores: Histograms | None


def read_sums(
    params: RoundParams,
    unions: Mapping[str, RowSet],
    dense: Words,
    tables: Sequence[Words],
    contributors: Sequence[Counts],
    survivors: tuple[str, ...],
) -> RoundSums:
    """The words of an opened sum in numbers."""
    end, bins, summed = params.model.dense_words, params.bins, params.model.summed
    model = decode_sums(
        params.model,
        params.update,
        unions=unions,
        dense=dense[:end],
        tables=tables,
        contributors=contributors,
    )
    scores = dense[end:].astype(np.int64).reshape(2, bins) if bins else None
    if scores is not None and not ((scores >= 0) & (scores < _MOST)).all():
        scores = None  # somebody counted below nothing: no number of samples
    return RoundSums(
        model,
        {table.name: count for table, count in zip(summed, contributors, strict=True)},
        survivors,
        (scores[0], scores[1]) if scores is not None else None,
    )


def conclude(store: RowStore, params: RoundParams, sums: RoundSums) -> RoundOutcome:
    """The store is only read."""
    applied = apply_sums(store, params.update, sums.model, selection=b"")
    return RoundOutcome(applied, sums.survivors, sums.model.unions, sums.contributors, sums.scores)
