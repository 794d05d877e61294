"""Who is behind a row: an attack on the opened sums of one round by its own, honest server.

A row that one client moved is that client's change, exactly. The changes of one client's rows are alike,
since they come from the same samples and the same local model. So rows whose changes are alike are linked,
and whoever asked for all of a group of linked rows is its owner: decoys are drawn row by row and do not
repeat.

Nothing is learned from the truth. How likely two rows are one client's, given how alike they are, is fitted
to the requests themselves: rows of one client have an asker in common more often than others. So the attack
knows how far to trust its links, on any data and under any noise, and where sums say nothing it names nobody
with certainty.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfsl.arrays import Bits, Indices, Positions, Reals
from sfsl_research.audit.watched import SeenTable, WatchedRound

CERTAIN = 0.95
_NEIGHBOURS = 8  # looked at for each row, in each space and either direction
_EDGES = 12  # kept for each row, the likeliest
_LEAST_LINK = 0.05
_MOST_LINK = 0.98
_SWEEPS = 15
_DAMPING = 0.3
_FEW_SWEEPS = 7  # enough to choose by, and to learn from
_PASSES = 1  # with what was learned
_KNOWN = 0.8  # from here on a name is trusted enough to learn from
_TEMPERS = (0.7, 0.5, 0.35)  # weaker ones would be surer, and name fewer
_HELD_BACK = 0.2
_AT_ONCE = 1024
_TINY = 1e-30

Beliefs = NDArray[np.float32]  # [rows, clients]: how likely each client is a row's owner


@dataclass(frozen=True)
class Named:
    """What the attack says about the opened rows of one table: their places in it, and for each how likely
    every client is its owner; ``by_requests`` is what the requests alone would have said."""

    places: Positions
    beliefs: Beliefs
    by_requests: Beliefs


def link(seen: WatchedRound, rng: np.random.Generator) -> dict[str, Named]:
    """Attack one round: shared tables by their own sums, those that follow from them by both."""
    named: dict[str, Named] = {}
    for name, table in seen.tables.items():
        if table.follows is None:
            named[name] = _link_table(table, rng)
    for name, table in seen.tables.items():
        if table.follows is not None:
            source, places = table.follows
            named[name] = _with_source(_link_table(table, rng), named[source], places)
    return named


def _link_table(table: SeenTable, rng: np.random.Generator) -> Named:
    places = np.flatnonzero((table.weights > 0) & (table.sums != 0).any(axis=1))
    if table.counted:  # a row that says it has several owners is not one owner's change
        places = places[table.weights[places] == 1]
    asked = np.ascontiguousarray(table.asked[:, places].T)
    changes = table.sums[places] / table.weights[places][:, None]
    none = _Links(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
    by_requests = _propagate(none, asked)
    beliefs = by_requests
    # Where everyone asks for everything, rows may be linked, and nothing says to whom they belong.
    if len(places) > 2 * _NEIGHBOURS and not asked.all():
        spaces = [_directions(changes), _whitened(_directions(changes)), _whitened(changes)]
        links = _likely_links(spaces, changes, asked)
        temper = _fitted_temper(links, asked, rng)
        beliefs = _propagate(links, asked, temper=temper, sweeps=_FEW_SWEEPS)
        for _ in range(_PASSES):
            learned = [_told_apart(one, beliefs) for one in (_directions(changes), changes)]
            links = _likely_links([*spaces, *learned], changes, asked)
            beliefs = _propagate(links, asked, temper=temper)
    return Named(places, beliefs, by_requests)


def _with_source(own: Named, source: Named, places: Positions) -> Named:
    """Add what follows from the source: where one client moved a row, the rows that led to it are its own."""
    if not len(own.places):
        return own
    at = places[source.places]
    where = np.minimum(np.searchsorted(own.places, at), len(own.places) - 1)
    there = own.places[where] == at

    def joined(beliefs: Beliefs, known: Beliefs) -> Beliefs:
        told = np.zeros_like(beliefs)
        # A name that is wrong must not rule out the right one.
        np.add.at(told, where[there], np.log(known[there] + 0.01))
        return _normalized(np.log(beliefs + _TINY) + told)

    return Named(
        own.places,
        joined(own.beliefs, source.beliefs),
        joined(own.by_requests, source.by_requests),
    )


# -- how alike two rows are --------------------------------------------------------------------


def _directions(changes: Reals) -> Reals:
    directions: Reals = changes / np.maximum(np.linalg.norm(changes, axis=1, keepdims=True), _TINY)
    return directions


def _whitened(changes: Reals) -> Reals:
    """Return directions once what all changes have in common is taken out: their mean and covariance."""
    centred = changes - changes.mean(axis=0)
    return _directions(centred @ _inverse_root(centred.T @ centred / len(centred), 1e-9))


def _told_apart(changes: Reals, beliefs: Beliefs) -> Reals:
    """Return directions in which clients that are known by now differ most: whitened within clients."""
    known, names = beliefs.max(axis=1) >= _KNOWN, beliefs.argmax(axis=1)
    if known.sum() <= 2 * changes.shape[1]:
        return _whitened(changes)
    counts = np.bincount(names[known], minlength=beliefs.shape[1])
    means = np.zeros((beliefs.shape[1], changes.shape[1]))
    np.add.at(means, names[known], changes[known])
    within = changes[known] - (means / np.maximum(counts, 1)[:, None])[names[known]]
    scatter = within.T @ within / len(within)
    return _directions((changes - changes.mean(axis=0)) @ _inverse_root(scatter, 1e-3))


def _inverse_root(covariance: Reals, least: float) -> Reals:
    sizes, axes = np.linalg.eigh(covariance)
    root: Reals = axes / np.sqrt(np.maximum(sizes, 0) + max(least * sizes.max(), _TINY))
    return root


@dataclass(frozen=True)
class _Links:
    """Pairs of rows, and how likely each is of one client."""

    first: Indices
    second: Indices
    chance: Reals

    def at(self, kept: Bits) -> "_Links":
        return _Links(self.first[kept], self.second[kept], self.chance[kept])


def _likely_links(spaces: list[Reals], changes: Reals, asked: Bits) -> _Links:
    """Find each row's nearest in every space, and say how likely they are one client's."""
    first, second = _neighbours(spaces)
    askers = asked.sum(axis=1)
    common = np.concatenate(
        [
            (asked[first[at : at + _AT_ONCE * 64]] & asked[second[at : at + _AT_ONCE * 64]]).sum(axis=1)
            for at in range(0, len(first), _AT_ONCE * 64)
        ]
    )
    # How much likelier the two requests are if one client moved both rows than if two did.
    ratio = asked.shape[1] * common / np.maximum(askers[first] * askers[second], 1)
    links = _Links(first, second, _fitted_chances(_likeness(spaces, changes, first, second), ratio))
    return _strongest(links, len(changes))


def _neighbours(spaces: list[Reals]) -> tuple[Indices, Indices]:
    """Return pairs of rows that point the same way or opposite ways: clicks and others move rows so."""
    count = len(spaces[0])
    found = []
    for space in spaces:
        narrow = space.astype(np.float32)
        for start in range(0, count, _AT_ONCE):
            own = np.arange(start, min(start + _AT_ONCE, count))
            alike = narrow[own] @ narrow.T
            alike[np.arange(len(own)), own] = 0
            for signed in (alike, -alike):
                near = np.argpartition(-signed, _NEIGHBOURS, axis=1)[:, :_NEIGHBOURS]
                pair = np.repeat(own, _NEIGHBOURS), near.ravel()
                found.append(np.minimum(*pair) * count + np.maximum(*pair))
    pairs = np.unique(np.concatenate(found))
    return pairs // count, pairs % count


def _likeness(spaces: list[Reals], changes: Reals, first: Indices, second: Indices) -> Reals:
    """Describe pairs of rows: [pairs, features], of which the first is constant."""
    features = []
    for space in spaces:
        cosine = np.clip(np.einsum("ij,ij->i", space[first], space[second]), -1, 1)
        for signed in (cosine, -cosine):
            features += [np.log(1 - signed + 1e-4), np.maximum(signed, 0)]
    length = np.log(np.linalg.norm(changes, axis=1) + _TINY)
    features.append(np.abs(length[first] - length[second]))
    table = np.stack(features, axis=1)
    scaled = (table - table.mean(axis=0)) / (table.std(axis=0) + 1e-9)
    return np.concatenate([np.ones((len(scaled), 1)), scaled], axis=1)


def _fitted_chances(likeness: Reals, ratio: Reals) -> Reals:
    """Return how likely each pair is one client's: a logistic model of its likeness, fitted to the requests.

    A pair is of one client with chance c, so its requests have the likelihood 1 + c (ratio - 1), up to what
    does not depend on c.
    """
    import torch

    inputs, gain = torch.from_numpy(likeness), torch.from_numpy(ratio - 1)
    weights = torch.zeros(likeness.shape[1], dtype=torch.float64)
    weights[0] = -3.0
    weights.requires_grad_()
    optimizer = torch.optim.LBFGS([weights], max_iter=80, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        chance = torch.sigmoid(inputs @ weights)
        found = (weights[1:] ** 2).sum() + (weights[0] + 3) ** 2 / 10 - torch.log1p(chance * gain).sum()
        found.backward()  # type: ignore[no-untyped-call]
        return found

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        chances: Reals = torch.sigmoid(inputs @ weights).numpy()
    return chances


def _strongest(links: _Links, rows: int) -> _Links:
    """Keep the links that are among the likeliest of either of their rows."""
    links = links.at(links.chance >= _LEAST_LINK)
    kept = np.zeros(len(links.chance), np.bool_)
    order = np.argsort(-links.chance, kind="stable")
    for ends in (links.first, links.second):
        # The how-manieth link of its row each is, the likeliest first.
        by_row = order[np.argsort(ends[order], kind="stable")]
        starts = np.searchsorted(ends[by_row], np.arange(rows))
        rank = np.arange(len(by_row)) - starts[ends[by_row]]
        kept[by_row[rank < _EDGES]] = True
    return links.at(kept)


# -- from links and requests to names ----------------------------------------------------------


def _propagate(links: _Links, asked: Bits, *, temper: float = 1.0, sweeps: int = _SWEEPS) -> Beliefs:
    """Return how likely each client is each row's owner, by belief propagation over the links.

    A row's owner asked for it. A linked row of one client has the same owner, of two any other; how many
    rows each client has is learned on the way. ``temper`` weakens what neighbours say, who repeat one
    another.
    """
    clients = asked.shape[1]
    pairs = len(links.first)
    source = np.concatenate([links.first, links.second])
    target = np.concatenate([links.second, links.first])
    back = np.concatenate([np.arange(pairs, 2 * pairs), np.arange(pairs)])
    chance = np.minimum(np.tile(links.chance, 2), _MOST_LINK).astype(np.float32)[:, None]
    order = np.argsort(target, kind="stable")
    linked, starts = np.unique(target[order], return_index=True)
    own = np.where(asked, 0, -60).astype(np.float32)
    share = np.full(clients, 1 / clients, np.float32)
    told = np.zeros((2 * pairs, clients), np.float32)
    for _ in range(sweeps):
        total = own + np.log(share)
        if pairs:
            total[linked] += np.add.reduceat(told[order], starts, axis=0)
        beliefs = _normalized(total)
        share = beliefs.sum(axis=0) + 1
        share /= share.sum()
        if pairs:
            without = _normalized(total[source] - told[back])
            said = temper * np.log(chance * without / share + (1 - chance))
            told = _DAMPING * told + (1 - _DAMPING) * said
    return beliefs


def _fitted_temper(links: _Links, asked: Bits, rng: np.random.Generator) -> float:
    """Choose the temper by requests that are held back: names that come from links alone must fit them.

    An owner has always asked, any other client in few cases; so the server can check its names, and how
    sure it may be of them, without knowing the truth.
    """
    held = rng.random(len(asked)) < _HELD_BACK
    if not held.any():
        return 1.0
    without = asked | held[:, None]
    fits = []
    for temper in _TEMPERS:
        beliefs = _propagate(links, without, temper=temper, sweeps=_FEW_SWEEPS)
        asking = np.where(asked[held], beliefs[held], 0).sum(axis=1)
        fits.append(float(np.log(asking + 1e-4).mean()))
    return _TEMPERS[int(np.argmax(fits))]


def _normalized(logs: NDArray[np.float32]) -> Beliefs:
    shifted = np.exp(logs - logs.max(axis=1, keepdims=True))
    normalized: Beliefs = shifted / shifted.sum(axis=1, keepdims=True)
    return normalized
