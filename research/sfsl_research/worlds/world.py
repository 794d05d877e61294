"""One world: its samples, the model that fits them, how many clients a round has; and its figures."""

from dataclasses import dataclass

import numpy as np

from sfsl.arrays import Reals
from sfsl.data.interactions import Interactions, hold_out_last
from sfsl.data.synthetic import bayes_auc
from sfsl.data.words import Speech
from sfsl.errors import InputError
from sfsl.scores import auc

# Item means are drawn towards the mean of all as if every item had so many samples more.
_PRIOR = 5.0


@dataclass(frozen=True, repr=False)
class World:
    """``clients`` is the cohort that suits it; a run may have fewer."""

    name: str
    data: Interactions | Speech
    clients: int = 100
    model: str = "din"

    def __repr__(self) -> str:
        return f"World({self.name!r}, cohorts of {self.clients})"


@dataclass(frozen=True)
class Facts:
    """What a world of clicks is like. The AUCs are those of the samples held out.

    ``popularity_auc`` scores a sample by its item's mean label among the samples to train on;
    ``best_auc`` by the true probability, where that is known. Nobody can do better than that, and who does
    not know the users' minds does worse.
    """

    name: str
    users: int
    items: int
    samples: int
    owners: float
    samples_per_client: float
    largest_client: int
    base_rate: float
    popularity_auc: float
    best_auc: float | None
    clients: int


def facts_of(world: World, held_out: float = 0.2) -> Facts:
    """Count and measure a world of clicks."""
    data = world.data
    if not isinstance(data, Interactions):
        raise InputError(f"{world.name} is made of words, which have no items to count")
    train, test = hold_out_last(data, held_out)
    pairs = np.unique(data.user * len(data.items) + data.item)
    sizes = np.diff(data.offsets)[data.clients]
    return Facts(
        name=world.name,
        users=len(data.clients),
        items=len(data.items),
        samples=len(data),
        owners=len(pairs) / len(data.items),
        samples_per_client=float(sizes.mean()),
        largest_client=int(sizes.max()),
        base_rate=float(data.label.mean()),
        popularity_auc=auc(item_means(train)[test.item], test.label),
        best_auc=None if test.probability is None else bayes_auc(test.probability),
        clients=world.clients,
    )


def item_means(data: Interactions) -> Reals:
    """Return each item's mean label, drawn towards the mean of all."""
    items, mean = len(data.items), float(data.label.mean())
    count = np.bincount(data.item, minlength=items)
    clicks = np.bincount(data.item, weights=data.label, minlength=items)
    return np.asarray((clicks + _PRIOR * mean) / (count + _PRIOR))
