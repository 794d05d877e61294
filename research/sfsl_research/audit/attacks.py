"""What a curious server does with several rounds (paper, last appendix; spec privacy 8).

Epsilon is about the answers. These attacks use what epsilon does not cover: the unions, and the exact
counts of opened rows next to the list of who asked for them. All are group testing: each union and each
opened row is a test of a known pool of clients, positive if an owner is in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sfsl.arrays import Bits, Indices, Reals, Values
from sfsl_research.audit.simulation import SeenRound

# How far above chance two bitmaps must agree to count as one client's: once in 10^9 pairs by accident.
LINK_DEVIATIONS = 6.0


@dataclass(frozen=True)
class Deduction:
    """Clients × columns. ``possible`` owners are not ruled out; ``proved`` owners are certain.

    ``named`` adds a guess to the proved ones: a row without a proved owner has one owner, where exactly
    one client explains all that was seen.
    """

    possible: Bits
    proved: Bits
    named: Bits


def intersection(rounds: Sequence[SeenRound], clients: int) -> Bits:
    """The paper's attack: a client's rows lie in every union it was part of."""
    claimed = _took_part(rounds, clients)
    for seen in rounds:
        claimed[seen.members] &= seen.union
    return claimed


def deduce(rounds: Sequence[SeenRound], clients: int, *, unions_exact: bool) -> Deduction:
    """Combine unions, requests and counts. Unions with decoys prove nothing and are left out."""
    possible = _took_part(rounds, clients)
    proved = np.zeros_like(possible)
    while True:
        before = int(possible.sum()), int(proved.sum())
        for seen in rounds:
            if unions_exact:
                _apply_union(possible, proved, seen)
            _apply_counts(possible, proved, seen)
        if before == (int(possible.sum()), int(proved.sum())):
            break
    sole = _sole_owners(rounds, clients, unions_exact=unions_exact)
    guessed = sole & (sole.sum(axis=0) == 1) & ~proved.any(axis=0)
    return Deduction(possible, proved, proved | guessed)


def _took_part(rounds: Sequence[SeenRound], clients: int) -> Bits:
    took_part = np.zeros((clients, len(rounds[0].union)), np.bool_)
    for seen in rounds:
        took_part[seen.members] = True
    return took_part


def _apply_union(possible: Bits, proved: Bits, seen: SeenRound) -> None:
    """A row outside the union has no owner among the members, one inside has at least one."""
    possible[seen.members] &= seen.union
    left = possible[seen.members]
    proved[seen.members] |= left & seen.union & (left.sum(axis=0) == 1)


def _apply_counts(possible: Bits, proved: Bits, seen: SeenRound) -> None:
    """A count says how many of those who asked are owners: all who are left, or all who are known."""
    left = seen.asked & possible[seen.members]
    proved[seen.members] |= left & seen.union & (left.sum(axis=0) == seen.counts)
    known = seen.asked & proved[seen.members]
    complete = seen.union & (known.sum(axis=0) == seen.counts)
    possible[seen.members] &= ~(seen.asked & complete & ~known)


def _sole_owners(rounds: Sequence[SeenRound], clients: int, *, unions_exact: bool) -> Bits:
    """Who could be a row's only owner: asks whenever the count is one and is there when the row is."""
    fits = _took_part(rounds, clients)
    for seen in rounds:
        outside = np.ones(clients, np.bool_)
        outside[seen.members] = False
        fits[seen.members] &= np.where(seen.union, seen.asked == seen.counts, not unions_exact)
        fits[outside] &= ~seen.union if unions_exact else seen.counts == 0
    return fits


def link_pseudonyms(rounds: Sequence[SeenRound]) -> list[SeenRound]:
    """Replace the members' names, unknown to the server, by its guess of who is who.

    Permanent answers are a fingerprint: two bitmaps of one client agree, on the rows both unions hold,
    far more often than two clients' do. Guesses are numbered by first appearance.
    """
    columns = len(rounds[0].union)
    memory = np.zeros((0, columns), np.float32)  # per identity: centred answers, added up
    covered = np.zeros((0, columns), np.float32)  # per identity: in how many rounds the row was asked about
    linked = []
    for seen in rounds:
        answers = np.where(seen.union, seen.asked - seen.asked.mean(axis=0), 0).astype(np.float32)
        union = seen.union.astype(np.float32)
        names = _match(_deviations(answers, union, memory, covered > 0), len(memory))
        grown = int(names.max(initial=-1)) + 1 - len(memory)
        if grown > 0:
            memory = np.vstack([memory, np.zeros((grown, columns), np.float32)])
            covered = np.vstack([covered, np.zeros((grown, columns), np.float32)])
        memory[names] += answers
        covered[names] += union
        linked.append(replace(seen, members=names))
    return linked


def _deviations(answers: Values, union: Values, memory: Values, covered: Bits) -> Reals:
    """Correlation of each answer with each remembered identity, in standard deviations from none."""
    mask = covered.astype(np.float32)
    dots = (answers @ memory.T).astype(np.float64)
    power = (answers**2 @ mask.T).astype(np.float64) * (union @ (memory**2).T)[None, :]
    common = (union @ mask.T).astype(np.float64)[None, :]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(power > 0, dots / np.sqrt(power) * np.sqrt(common), -np.inf)


def _match(deviations: Reals, identities: int) -> Indices:
    """Give each member the identity it fits best, best fits first; whoever fits none is new."""
    names = np.full(len(deviations), -1, np.int64)
    if identities:
        free = deviations.copy()
        while (best := float(free.max())) > LINK_DEVIATIONS:
            member, identity = divmod(int(free.argmax()), identities)
            if best == free[member, identity]:
                names[member] = identity
            free[member, :] = -np.inf
            free[:, identity] = -np.inf
    new = np.flatnonzero(names < 0)
    names[new] = identities + np.arange(len(new))
    return names
