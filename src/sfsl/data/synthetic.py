"""Simulated clicks like Taobao's, user by user from (seed, user) alone, with a signal of known strength.

A world of items is drawn from the seed: each item has a category, a popularity and an appeal, each
category an appeal of its own. A user is interested in some categories, likes them more or less, is shown
items mostly from them and clicks with a probability that is known here and nowhere else:

    logit = base + appeal(category) + appeal(item) + liking(user, category) + taste · (user · item)

The appeals can be learned from everyone's clicks, if rows are; the liking shows in the user's history. Taste
does too, a product of vectors: half of an item's is its category's, the rest only its own row can hold.
Scores equal to these probabilities have the best AUC there is, ``bayes_auc``.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sfsl.arrays import Indices, Reals
from sfsl.data.interactions import Interactions
from sfsl.errors import InputError, ParameterError

# Streams of random numbers from one seed, told apart by their first word.
WORLD, USER = 0, 1
# Of the vectors of users and items, and what part of an item's is its category's.
_FACTORS, _SHARED = 6, 0.5


@dataclass(frozen=True)
class SyntheticSettings:
    """Defaults are the paper's data set (Table of statistics): 301 items and 117 categories per client.

    ``samples`` is a client's mean number, ``spread`` its coefficient of variation. Larger
    ``popularity`` makes items more alike in popularity: 2 gives 1.17 owners per item of the union of 100
    clients; ``most_popular``, if not 0, is how many times as popular as the least an item can be.
    ``interests`` is the mean number of categories a client turns to; it strays to any item
    with probability ``stray``, and sees one again with probability ``again``. ``before`` is what it was
    shown, relative to its samples, before the first of them: those clicks are in histories only. The last
    four are strengths, as standard deviations of what they add to the logit.
    """

    users: int = 49_023
    items: int = 143_534
    categories: int = 4_815
    samples: float = 323.4
    spread: float = 0.75
    popularity: float = 2.0
    most_popular: float = 0.0
    interests: float = 78.0
    stray: float = 0.175
    again: float = 0.02
    before: float = 0.16
    base: float = -0.3
    category_appeal: float = 0.8
    item_appeal: float = 0.4
    liking: float = 0.6
    taste: float = 0.0

    def __post_init__(self) -> None:
        if self.users < 1 or self.categories < 1 or self.items < self.categories:
            raise ParameterError(
                f"{self.users} users, {self.items} items in {self.categories} categories: at least one of "
                "each is needed, and an item per category"
            )
        for name in ("samples", "spread", "popularity", "interests"):
            if not getattr(self, name) > 0:
                raise ParameterError(f"{name} = {getattr(self, name)} must be positive")
        for name in ("stray", "again", "before"):
            if not 0 <= getattr(self, name) <= 1:
                raise ParameterError(f"{name} = {getattr(self, name)} must lie between 0 and 1")

    def scaled(self, factor: float, users: int) -> "SyntheticSettings":
        """A smaller world in which 100 clients overlap as they do in this one.

        What a client has and what there is shrink alike, so each item keeps its chance to be had.
        """
        return replace(
            self,
            users=users,
            items=max(1, round(self.items * factor)),
            categories=max(1, round(self.categories * factor)),
            samples=self.samples * factor,
            interests=max(1.0, self.interests * factor),
        )


# In "paper" a category says nearly all that can be learned. In "tastes" items carry more than it, and few of
# them are popular, so that in a small world too many have owners enough for their rows to learn.
WORLDS = {
    "paper": SyntheticSettings(),
    "tastes": SyntheticSettings(
        popularity=0.5, most_popular=1000.0, category_appeal=0.7, item_appeal=1.2, liking=0.3, taste=1.0
    ),
    # Few items that many have seen, and users who agree less on what is good: what `make demo` learns.
    "films": SyntheticSettings(
        items=6_000, categories=300, samples=600.0, interests=80.0, popularity=0.5, most_popular=1000.0,
        category_appeal=0.6, item_appeal=0.7, liking=1.5, taste=1.0,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class _Shown:
    """What one user was shown, in order; ``first`` is where its samples begin."""

    item: Indices
    probability: Reals
    label: NDArray[np.int8]
    time: Reals
    first: int


class SyntheticTaobao:
    """A world of items, and users who click in it; a user's samples are drawn when they are asked for."""

    def __init__(self, settings: SyntheticSettings | None = None, *, seed: int) -> None:
        self.settings = settings or SyntheticSettings()
        self.seed = seed
        rng = np.random.default_rng([seed, WORLD])
        items, categories = self.settings.items, self.settings.categories
        # Every category has an item; the others spread as exponential sizes do, some of them large.
        size = rng.exponential(size=categories)
        more = rng.choice(categories, items - categories, p=size / size.sum())
        self.category_of = np.sort(np.concatenate([np.arange(categories), more])).astype(np.int32)
        popularity = (1 - rng.random(items)) ** (-1 / self.settings.popularity)
        if self.settings.most_popular:
            popularity = np.minimum(popularity, self.settings.most_popular)
        # Items stand in order of category: drawing one of a category is drawing from a stretch of this.
        self._reach = np.concatenate([[0.0], np.cumsum(popularity)])
        self._stretch = self._reach[np.searchsorted(self.category_of, np.arange(categories + 1))]
        self._appeal = (
            self.settings.base
            + self.settings.category_appeal * rng.standard_normal(categories)[self.category_of]
            + self.settings.item_appeal * rng.standard_normal(items)
        )
        if self.settings.taste:  # drawn last, so that worlds without are what they were
            common = rng.standard_normal((categories, _FACTORS))[self.category_of]
            own = rng.standard_normal((items, _FACTORS))
            self._vectors = (np.sqrt(_SHARED) * common + np.sqrt(1 - _SHARED) * own) / np.sqrt(_FACTORS)

    def interactions(self, users: Iterable[int] | None = None) -> Interactions:
        """The samples of these users, or of all."""
        chosen = np.array(list(range(self.settings.users) if users is None else users), dtype=np.int64)
        if not len(chosen) or chosen.min() < 0 or chosen.max() >= self.settings.users:
            raise InputError(f"users are numbered 0 to {self.settings.users - 1}, and at least one is needed")
        shown = [self._user(int(user)) for user in chosen]
        clicks = [one.item[one.label == 1] for one in shown]
        before = [(np.cumsum(one.label) - one.label)[one.first :] for one in shown]
        stop = np.concatenate(before).astype(np.int32)
        return Interactions(
            users=chosen,
            items=np.arange(self.settings.items),
            offsets=np.cumsum([0, *map(len, before)]),
            item=np.concatenate([one.item[one.first :] for one in shown]).astype(np.int32),
            label=np.concatenate([one.label[one.first :] for one in shown]),
            time=np.concatenate([one.time[one.first :] for one in shown]),
            click_offsets=np.cumsum([0, *map(len, clicks)]),
            clicks=np.concatenate(clicks).astype(np.int32),
            history_start=np.zeros_like(stop),
            history_stop=stop,
            category_of=self.category_of,
            categories=np.arange(self.settings.categories),
            probability=np.concatenate([one.probability[one.first :] for one in shown]),
        )

    def _user(self, user: int) -> _Shown:
        settings, rng = self.settings, np.random.default_rng([self.seed, USER, user])
        samples = max(1, round(settings.samples * self._lognormal(rng)))
        first = round(settings.before * samples)
        item = self._items(rng, samples + first)
        categories, which = np.unique(self.category_of[item], return_inverse=True)
        liking = settings.liking * rng.standard_normal(len(categories))
        logit = self._appeal[item] + liking[which]
        if settings.taste:
            logit += settings.taste * self._vectors[item] @ rng.standard_normal(_FACTORS)
        probability = 1 / (1 + np.exp(-logit))
        label = (rng.random(len(item)) < probability).astype(np.int8)
        return _Shown(item, probability, label, np.sort(rng.random(len(item))), first)

    def _items(self, rng: np.random.Generator, count: int) -> Indices:
        settings = self.settings
        # A client with more samples has more interests, but not in proportion.
        interests = max(1, round(settings.interests * (count / settings.samples) ** 0.7))
        category = self.category_of[self._items_at(rng.random(interests) * self._reach[-1])]
        weight = np.cumsum(rng.exponential(size=interests))
        chosen = category[np.searchsorted(weight, rng.random(count) * weight[-1])]
        low, high = self._stretch[chosen], self._stretch[chosen + 1]
        astray = rng.random(count) < settings.stray
        low[astray], high[astray] = 0.0, self._reach[-1]
        item = self._items_at(low + (high - low) * rng.random(count))
        # Seen again: one of those shown before, which the first cannot be.
        again = rng.random(count) < settings.again
        again[0] = False
        earlier = (rng.random(count) * np.arange(count)).astype(np.int64)
        item[again] = item[earlier[again]]
        return item

    def _items_at(self, place: Reals) -> Indices:
        found = np.searchsorted(self._reach, place, side="right") - 1
        return np.minimum(found, self.settings.items - 1).astype(np.int64)

    def _lognormal(self, rng: np.random.Generator) -> float:
        """A factor of mean 1 and standard deviation ``spread``."""
        variance = np.log1p(self.settings.spread**2)
        return float(np.exp(np.sqrt(variance) * rng.standard_normal() - variance / 2))


def bayes_auc(probability: Reals) -> float:
    """The expected AUC of scoring samples by their true probabilities; no score does better.

    Over all pairs: the chance that the one is clicked and the other not, where the one has the larger
    probability, plus half where they are equal, over the chance regardless of order.
    """
    ordered, count = np.unique(probability, return_counts=True)
    clicks, skips = ordered * count, (1 - ordered) * count
    below = np.cumsum(skips) - skips
    # A sample makes no pair with itself.
    own = float(np.sum(probability * (1 - probability)))
    ranked = float(np.sum(clicks * (below + skips / 2))) - own / 2
    return ranked / (float(clicks.sum()) * float(skips.sum()) - own)
