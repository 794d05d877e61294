"""A digest of everyone in a roster, and proofs that some are in it (spec 6.2).

On a sparse graph a client is told of itself and its neighbours only. The root of a hash tree over the keys of
all members, in order of position, stands for the others: whoever knows some members and the hashes beside
their paths computes the same root. Who is whose neighbour follows from it, so that a server that shows a
client other members shows it another root, hence other neighbours and other keys.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from sfsl.arrays import Bits
from sfsl.crypto.secret import digest
from sfsl.errors import InvalidMessage, Refused
from sfsl.secagg.messages import CODEC, Keys, Member, Roster

_HASH = 32


def leaf(position: int, keys: Keys) -> bytes:
    return digest("roster leaf", position.to_bytes(4, "big"), CODEC.encode(keys))


def node(left: bytes, right: bytes) -> bytes:
    return digest("roster node", left, right)


class Tree:
    """The hash tree over all ``members``. A node without a sibling is its own parent."""

    def __init__(self, members: Sequence[Member]) -> None:
        level = [leaf(member.position, member.keys) for member in members]
        self._levels = [_array(level)]
        while len(level) > 1:
            pairs = zip(level[::2], level[1::2], strict=False)
            level = [node(left, right) for left, right in pairs] + level[len(level) & ~1 :]
            self._levels.append(_array(level))
        self.root = level[0]

    def proof(self, positions: Sequence[int]) -> bytes:
        """The hashes that, with the leaves of these positions, give the root: level by level from the
        leaves up, and from left to right, every sibling that does not follow from them."""
        found = []
        known: Bits = np.zeros(len(self._levels[0]), np.bool_)
        known[list(positions)] = True
        for level in self._levels[:-1]:
            pairs = np.append(known, np.zeros(len(known) % 2, np.bool_)).reshape(-1, 2)
            beside = (pairs[:, ::-1] & ~pairs).ravel()[: len(known)]
            found.append(level[np.flatnonzero(beside)].tobytes())
            known = pairs[:, 0] | pairs[:, 1]
        return b"".join(found)


def root_of(leaves: Mapping[int, bytes], count: int, proof: bytes) -> bytes:
    """The root of a tree of ``count`` leaves, of which some are known by position."""
    if not leaves or len(proof) % _HASH:
        raise InvalidMessage("a proof without members, or of broken hashes")
    rest = (proof[start : start + _HASH] for start in range(0, len(proof), _HASH))
    level = {place: leaves[place] for place in sorted(leaves)}
    while count > 1:
        level = dict(_parents(level, count, rest))
        count = (count + 1) // 2
    if next(rest, None) is not None:
        raise InvalidMessage("a proof with more hashes than it needs")
    return level[0]


def _parents(level: Mapping[int, bytes], count: int, rest: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    for place, own in level.items():
        if place + 1 == count and not place % 2:
            yield place // 2, own
        elif place % 2 == 0 or place - 1 not in level:
            other = level.get(place ^ 1) or next(rest, b"")
            if not other:
                raise InvalidMessage("a proof that ends before it reaches the root")
            yield place // 2, node(own, other) if place % 2 == 0 else node(other, own)


def require_proof(roster: Roster) -> None:
    """Refuse members of a sparse graph that are not those of the root, or not in the order of their ids."""
    names = [member.keys.client for member in roster.members]
    if names != sorted(names):
        raise Refused("positions on a sparse graph are in the order of the clients' ids, these are not")
    leaves = {member.position: leaf(member.position, member.keys) for member in roster.members}
    if root_of(leaves, roster.params.clients, roster.proof) != roster.root:
        raise Refused("the proof does not lead from these members to the roster's root")


def _array(hashes: Sequence[bytes]) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    return np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, _HASH)
