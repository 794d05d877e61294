"""Generated worlds, each from (name, seed) alone, whose labels have known probabilities.

An item has a quality and a vector, part of which is its category's; a user has a bias and a vector, and in
every session a mood, a vector as well. Users meet items by popularity, and the more so the closer an item
is to their vector and mood. There are two kinds of worlds:

- in a world of **ratings** an item is met once, and liked with the probability whose logit is
  ``base + quality + category's quality + bias + taste · (user vector · item vector)``, or its opposite
  where the label is flipped by ``noise``;
- in a world of **clicks** whatever is met is a click, and items that the user never clicked are drawn
  uniformly beside it. The probability is that of being the click among them, as if items could be met again:
  nearly right where a user meets few of those there are.

Vectors are scaled so that the product of a user's, or a mood, with an item's has a standard deviation of 1:
every strength below is in units of the logit.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from sfsl.arrays import Indices, Reals
from sfsl.data.assemble import assemble, with_negatives
from sfsl.data.interactions import Interactions
from sfsl.errors import ParameterError
from sfsl_research.worlds.world import World

# Scores of so many sessions and items are held at a time.
_CELLS = 4_000_000


@dataclass(frozen=True)
class WorldSettings:
    """``samples`` is a client's mean number (clicks, where ``negatives`` are drawn), lognormal with
    coefficient of variation ``spread``, at least ``least``. ``zipf`` is the exponent of popularity by rank,
    0 is flat. ``steer`` is how much a user's vector, ``mood`` how much a session of ``session`` samples
    decides what is met (0: one session). ``shared`` is the part of an item's vector that is its category's.
    """

    users: int
    items: int
    samples: float
    spread: float = 0.8
    least: int = 5
    categories: int = 0
    zipf: float = 0.8
    negatives: int = 0
    factors: int = 8
    base: float = 0.0
    quality: float = 0.0
    category_quality: float = 0.0
    bias: float = 0.0
    taste: float = 0.0
    shared: float = 0.0
    steer: float = 0.0
    mood: float = 0.0
    session: int = 0
    noise: float = 0.0
    clients: int = 100

    def __post_init__(self) -> None:
        if min(self.users, self.items, self.factors) < 1 or not self.samples > 0:
            raise ParameterError("a world has users, items, factors and samples, at least one of each")
        if self.categories > self.items:
            raise ParameterError(f"{self.categories} categories of {self.items} items: some would be empty")
        if not 0 <= self.noise < 0.5 or not 0 <= self.shared <= 1:
            raise ParameterError("noise lies in [0, 0.5), shared in [0, 1]")


WORLDS: Mapping[str, WorldSettings] = {
    # Ratings of films: many owners per item, long histories, taste beyond what is generally liked.
    "films": WorldSettings(
        2000, 1500, 130, spread=1.1, least=20, factors=5, base=-0.15, quality=0.7, bias=0.6, taste=1.0,
        steer=0.7,
    ),
    # Clicks in a shop: few per client, a long tail, and the next click is near the last ones.
    "shop": WorldSettings(
        8000, 5000, 9, spread=0.6, zipf=0.7, negatives=1, factors=3, steer=3.0, mood=2.5, session=5
    ),
    # An item has two or three owners in all: categories are most of what there is to go by.
    "sparse": WorldSettings(
        2500, 12_000, 14, categories=150, zipf=0.4, factors=3, base=-0.1, quality=0.5, category_quality=0.7,
        taste=0.8, shared=0.6, steer=0.5,
    ),
    # What a newcomer would try: a small file, cohorts of ten.
    "small-csv": WorldSettings(
        600, 250, 20, spread=0.3, zipf=0.5, factors=2, base=-0.1, quality=0.6, bias=0.6, taste=0.8, steer=0.5,
        clients=10,
    ),
    # Nearly all of it is in categories, and in how users like them.
    "categories": WorldSettings(
        3000, 4000, 60, categories=80, zipf=0.6, factors=4, base=-0.2, quality=0.1, category_quality=0.8,
        taste=0.9, shared=0.95, steer=0.6,
    ),
    # Who it is says more than what it is.
    "users": WorldSettings(
        2000, 1000, 40, zipf=0.7, factors=4, quality=0.3, bias=1.3, taste=0.4, steer=0.2
    ),
    # A quarter of the labels are wrong.
    "noisy": WorldSettings(
        2000, 1000, 80, factors=4, base=0.2, quality=0.9, bias=0.4, taste=1.1, steer=0.4, noise=0.25
    ),
    # Few clients with much.
    "long": WorldSettings(
        200, 3000, 500, spread=0.6, least=50, zipf=0.7, factors=5, quality=0.6, bias=0.5, taste=1.0,
        steer=0.7, clients=50,
    ),
    # Five hundred owners for each item.
    "hot": WorldSettings(
        5000, 400, 42, spread=0.6, zipf=0.0, factors=4, base=-0.1, quality=0.5, taste=1.0, steer=0.5
    ),
    # Clicks on items that are all alike popular: only taste tells, and categories are half of it.
    "music": WorldSettings(
        1200, 3000, 70, categories=60, spread=1.0, zipf=0.0, negatives=1, factors=4, shared=0.5, steer=2.5,
        mood=1.0, session=10,
    ),
    # As many users, films and ratings as a well-known set of a million ratings.
    "cinema": WorldSettings(
        6040, 3700, 130, spread=1.15, least=20, zipf=0.9, factors=6, base=0.2, quality=0.8, bias=0.5,
        taste=1.0, steer=0.7,
    ),
    # Many users with a few clicks each: three hundred rounds of a hundred are little more than one pass.
    "bazaar": WorldSettings(
        22_363, 12_100, 9, spread=0.7, zipf=0.9, negatives=1, factors=4, steer=3.0, mood=1.5, session=5
    ),
    # Clicks with little of everything, cohorts of ten.
    "pocket": WorldSettings(
        800, 600, 12, spread=0.7, zipf=0.8, negatives=1, factors=2, steer=2.5, mood=0.8, session=5, clients=10
    ),
}  # fmt: skip


def generate(name: str, *, seed: int, settings: WorldSettings | None = None) -> World:
    """Make the world of this name; with ``settings``, one of your own."""
    if settings is None:
        if name not in WORLDS:
            raise ParameterError(f"there is no world {name!r}; there are {', '.join(WORLDS)}")
        settings = WORLDS[name]
    rng = np.random.default_rng([zlib.crc32(name.encode()), seed])
    items = _Items.drawn(settings, rng)
    met = _meet(settings, items, rng)
    data = (_clicks if settings.negatives else _ratings)(settings, items, met, rng)
    return World(name, data, settings.clients)


@dataclass(frozen=True)
class _Items:
    log_popularity: Reals
    quality: Reals
    vectors: Reals
    category: Indices

    @classmethod
    def drawn(cls, settings: WorldSettings, rng: np.random.Generator) -> "_Items":
        items, groups = settings.items, max(1, settings.categories)
        # Every category has an item; the others spread as exponential sizes do.
        size = rng.exponential(size=groups)
        more = rng.choice(groups, items - groups, p=size / size.sum())
        category = np.concatenate([np.arange(groups), more])
        rank = rng.permutation(items) + 10  # the very first are not that far ahead of the rest
        common = rng.standard_normal((groups, settings.factors))[category]
        own = rng.standard_normal((items, settings.factors))
        vectors = np.sqrt(settings.shared) * common + np.sqrt(1 - settings.shared) * own
        return cls(
            log_popularity=-settings.zipf * np.log(rank),
            quality=settings.category_quality * rng.standard_normal(groups)[category]
            + settings.quality * rng.standard_normal(items),
            # Of one length, or the long ones would be popular by that alone.
            vectors=vectors / np.linalg.norm(vectors, axis=1, keepdims=True),
            category=category,
        )


@dataclass(frozen=True)
class _Met:
    """Who met what, user after user in order of time; ``mind`` and ``log_total`` are those of sessions."""

    tastes: Reals
    user: Indices
    session: Indices
    item: Indices
    mind: Reals
    log_total: Reals


def _meet(settings: WorldSettings, items: _Items, rng: np.random.Generator) -> _Met:
    """Users meet items by popularity and by what is close to them, none of them twice."""
    tastes = rng.standard_normal((settings.users, settings.factors))
    counts = _counts(settings, rng)
    sessions = -(-counts // settings.session) if settings.session else np.ones_like(counts)
    user = np.repeat(np.arange(settings.users), sessions)
    place = np.arange(len(user)) - np.repeat(np.cumsum(sessions) - sessions, sessions)
    sizes = np.minimum(counts[user] - place * settings.session, settings.session or settings.items)
    mind = settings.steer * tastes[user] + settings.mood * rng.standard_normal((len(user), settings.factors))
    parts, log_total = [], np.empty(len(user))
    step = max(1, _CELLS // settings.items)
    for start in range(0, len(user), step):
        these = slice(start, start + step)
        score = mind[these] @ items.vectors.T + items.log_popularity
        highest = score.max(axis=1)
        log_total[these] = highest + np.log(np.exp(score - highest[:, None]).sum(axis=1))
        # The largest of scores with Gumbel noise are a draw without replacement.
        size = sizes[these]
        score += rng.gumbel(size=score.shape)
        most = int(size.max())
        top = np.argpartition(score, -most, axis=1)[:, -most:]
        order = np.take_along_axis(top, np.argsort(-np.take_along_axis(score, top, axis=1), axis=1), axis=1)
        chosen = np.arange(order.shape[1]) < size[:, None]
        parts.append(order[chosen])
    session, item = np.repeat(np.arange(len(user)), sizes), np.concatenate(parts)
    # What is met first in a session is not what is most popular.
    shuffled = np.lexsort((rng.random(len(item)), session))
    session, item = session[shuffled], item[shuffled]
    _, first = np.unique(user[session] * settings.items + item, return_index=True)
    first.sort()
    return _Met(tastes, user[session[first]], session[first], item[first], mind, log_total)


def _counts(settings: WorldSettings, rng: np.random.Generator) -> Indices:
    """Return how many samples each user has: a heavy tail, up to half of the items there are."""
    variance = np.log1p(settings.spread**2)
    factor = np.exp(np.sqrt(variance) * rng.standard_normal(settings.users) - variance / 2)
    wanted = np.rint(settings.samples * factor).astype(np.int64)
    return np.asarray(np.clip(wanted, settings.least, max(settings.least, settings.items // 2)))


def _ratings(settings: WorldSettings, items: _Items, met: _Met, rng: np.random.Generator) -> Interactions:
    product = np.einsum("nf,nf->n", met.tastes[met.user], items.vectors[met.item])
    bias = settings.bias * rng.standard_normal(settings.users)
    logit = settings.base + items.quality[met.item] + bias[met.user] + settings.taste * product
    probability = settings.noise + (1 - 2 * settings.noise) / (1 + np.exp(-logit))
    label = rng.random(len(probability)) < probability
    return replace(_assembled(settings, items, met, label), probability=probability)


def _clicks(settings: WorldSettings, items: _Items, met: _Met, rng: np.random.Generator) -> Interactions:
    clicks = _assembled(settings, items, met, np.ones(len(met.item)))
    both = with_negatives(clicks, settings.negatives, seed=int(rng.integers(2**32)))
    # A negative stands behind its click, and was drawn in the same session.
    session = met.session[np.cumsum(both.label, dtype=np.int64) - 1]
    item = np.asarray(both.items)[both.item]
    score = np.einsum("nf,nf->n", met.mind[session], items.vectors[item]) + items.log_popularity[item]
    chance = np.exp(score - met.log_total[session])
    return replace(both, probability=chance / (chance + settings.negatives / len(both.items)))


def _assembled(settings: WorldSettings, items: _Items, met: _Met, label: Reals) -> Interactions:
    """Assemble samples that stand in order already, so that they stay where they are."""
    category = items.category[met.item] if settings.categories else None
    return assemble(met.user, met.item, label, np.arange(len(met.item)), category)
