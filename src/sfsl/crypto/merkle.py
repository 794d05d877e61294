"""Hash trees over lists that only grow (RFC 9162, 2.1): roots, proofs that some are in a list, and proofs
that one list continues another.

Each level has the hashes of the pairs of the level below, from left to right; a last one without a partner
goes up as it is. Leaves and nodes are hashed differently, so that nobody can pass one for the other. Whoever
knows some leaves and the hashes beside their paths computes the same root.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from sfsl.arrays import Bits, Indices
from sfsl.errors import InvalidMessage

HASH = 32
EMPTY = hashlib.sha256().digest()
Nodes = Callable[[bytes], list[bytes]]  # of pairs that stand one after another, the hash of each


def leaf_hash(entry: bytes) -> bytes:
    return hashlib.sha256(b"\0" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    (found,) = node_hashes(left + right)
    return found


def node_hashes(pairs: bytes) -> list[bytes]:
    return [
        hashlib.sha256(b"\1" + pairs[at : at + 2 * HASH]).digest() for at in range(0, len(pairs), 2 * HASH)
    ]


class Tree:
    """The tree over all leaves so far, and over the first few of them: what is complete stays as it is. Its
    hashes have ``size`` bytes."""

    def __init__(self, leaves: Iterable[bytes] = (), nodes: Nodes = node_hashes, size: int = HASH) -> None:
        self._nodes, self._size = nodes, size
        self._levels = [bytearray()]  # of each level the hashes whose subtrees are complete
        self.extend(leaves)

    def __len__(self) -> int:
        return len(self._levels[0]) // self._size

    def extend(self, leaves: Iterable[bytes]) -> None:
        new, level, one = list(leaves), 0, self._size
        while new:
            if level == len(self._levels):
                self._levels.append(bytearray())
            hashes = self._levels[level]
            paired = len(hashes) // (2 * one) * (2 * one)
            hashes += b"".join(new)
            new = self._nodes(bytes(hashes[paired : len(hashes) // (2 * one) * (2 * one)]))
            level += 1

    @property
    def root(self) -> bytes:
        return self.root_at(len(self))

    def root_at(self, size: int) -> bytes:
        """The root when there were ``size`` leaves."""
        return self._over(0, size) if size else EMPTY

    def proof(self, positions: Sequence[int] | Indices, size: int | None = None) -> bytes:
        """The hashes that, with the leaves of these positions, give the root: level by level from the
        leaves up, and from left to right, every sibling that does not follow from them."""
        known: Bits = np.zeros(len(self) if size is None else size, np.bool_)
        known[np.asarray(positions, np.intp)] = True
        return self.proof_of(known)

    def proof_of(self, leaves: Bits) -> bytes:
        """The same for whichever leaves are set, of as many as the tree had."""
        size = count = len(leaves)
        found, level = [], 0
        known = np.zeros(1 << max(size - 1, 0).bit_length(), np.bool_)
        known[:size] = leaves
        while count > 1:
            pairs = known.view(np.uint16)  # a byte for each of the two
            above = pairs != 0
            beside = ((pairs ^ 0x0101) * above).view(np.bool_)[:count]  # where one is known, the other
            found.append(self._hashes(level, np.flatnonzero(beside), size))
            known, count, level = above, (count + 1) // 2, level + 1
        return b"".join(found)

    def consistency(self, first: int, size: int) -> bytes:
        """The hashes that show to whoever knows the root at ``first`` that the list of ``size`` continues
        that of ``first`` (RFC 9162, 2.1.4.1)."""
        return b"".join(self._continued(first, 0, size, known=True)) if 0 < first <= size else b""

    def _continued(self, first: int, start: int, end: int, known: bool) -> Iterator[bytes]:
        if first == end - start:
            if not known:
                yield self._over(start, end)
            return
        middle = start + _left(end - start)
        if first <= middle - start:
            yield from self._continued(first, start, middle, known)
            yield self._over(middle, end)
        else:
            yield from self._continued(first - (middle - start), middle, end, known=False)
            yield self._over(start, middle)

    def _over(self, start: int, end: int) -> bytes:
        """The hash over these leaves, which are a subtree when the tree had ``end`` leaves, or later."""
        level = (end - start - 1).bit_length()
        if end - start == 1 << level:
            at = (start >> level) * self._size
            return bytes(self._levels[level][at : at + self._size])
        middle = start + _left(end - start)
        return self._nodes(self._over(start, middle) + self._over(middle, end))[0]

    def _hashes(self, level: int, places: Indices, size: int) -> bytes:
        """The hashes at these places of a level; the last of them may be that of fewer leaves."""
        whole = size >> level
        hashes = np.frombuffer(self._levels[level], np.uint8).reshape(-1, self._size)
        if len(places) and places[-1] >= whole:
            return hashes.take(places[:-1], axis=0).tobytes() + self._over(whole << level, size)
        return hashes.take(places, axis=0).tobytes()


def _left(count: int) -> int:
    """How many of so many leaves are in the left subtree: the largest power of two that is less."""
    return 1 << ((count - 1).bit_length() - 1)


def root_of(
    leaves: Mapping[int, bytes], count: int, proof: bytes, nodes: Nodes = node_hashes, size: int = HASH
) -> bytes:
    """The root of a tree of ``count`` leaves, of which some are known by position."""
    if not leaves or len(proof) % size:
        raise InvalidMessage("a proof without members, or of broken hashes")
    if not 0 <= min(leaves) <= max(leaves) < count:
        raise InvalidMessage("a proof of a place that the tree does not have")
    rest = _hashes(proof, size)
    level = {place: leaves[place] for place in sorted(leaves)}
    while count > 1:
        level = _parents(level, count, rest, nodes)
        count = (count + 1) // 2
    if next(rest, None) is not None:
        raise InvalidMessage("a proof with more hashes than it needs")
    return level[0]


def _parents(level: Mapping[int, bytes], count: int, rest: Iterator[bytes], nodes: Nodes) -> dict[int, bytes]:
    places, pairs = list[int](), list[bytes]()
    for place, own in level.items():
        if place + 1 == count and not place % 2:
            break  # the last, and without a partner
        if place % 2 == 0 or place - 1 not in level:
            other = level.get(place ^ 1) or _next(rest)
            places.append(place // 2)
            pairs += (other, own) if place % 2 else (own, other)
    found = dict(zip(places, nodes(b"".join(pairs)), strict=True))
    return found | ({count // 2: level[count - 1]} if count % 2 and count - 1 in level else {})


def continues(first: int, root: bytes, size: int, proof: bytes) -> bytes:
    """The root that a list of ``size`` has by this proof, if its first ``first`` leaves have ``root``; raises
    ``InvalidMessage`` where the proof shows no such thing (RFC 9162, 2.1.4.2)."""
    if len(proof) % HASH or not 0 < first <= size:
        raise InvalidMessage("a proof of broken hashes, or that a list continues a longer one")
    rest = _hashes(proof)
    before, after = _both(first, size, root, rest)
    if next(rest, None) is not None:
        raise InvalidMessage("a proof with more hashes than it needs")
    if before != root:
        raise InvalidMessage("the proof does not begin with the list that is known")
    return after


def _both(first: int, size: int, known: bytes | None, rest: Iterator[bytes]) -> tuple[bytes, bytes]:
    """The hashes of a subtree when it had ``first`` leaves, which is ``known`` at the root, and now."""
    if first == size:
        one = _next(rest) if known is None else known
        return one, one
    left = _left(size)
    if first <= left:
        before, after = _both(first, left, known, rest)
        return before, node_hash(after, _next(rest))
    before, after = _both(first - left, size - left, None, rest)
    beside = _next(rest)
    return node_hash(beside, before), node_hash(beside, after)


def _hashes(proof: bytes, size: int = HASH) -> Iterator[bytes]:
    return (proof[start : start + size] for start in range(0, len(proof), size))


def _next(rest: Iterator[bytes]) -> bytes:
    found = next(rest, b"")
    if not found:
        raise InvalidMessage("a proof that ends before it reaches the root")
    return found
