"""What a server binds itself to before anyone trains (spec round 3.1).

Each client downloads other rows of one model. The server commits to the rows of the whole union, and the
commitment is bound into the masks of the update: clients that were told of different models add up to noise.
In active mode it is the root of a hash tree, and a client has it proved that the rows it was sent are those
of the tree. Otherwise it is a digest, which a server that lies could send beside any rows.
"""

import hashlib
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfsl.arrays import Bits, Positions
from sfsl.crypto.merkle import Tree, root_of
from sfsl.crypto.secret import digest
from sfsl.errors import Deceived, InvalidMessage
from sfsl.rounds.exchanges import Submodel
from sfsl.secagg.messages import Layout

# Bytes of a hash. The key of the tree has everyone's fresh keys in it, so that two rows with one hash would
# have to be found while the round waits: 2^80 tries. Whole hashes would be 15 % of a round's bytes.
HASH = 20


class _Hashes:
    """Hashes of leaves and nodes, for one session."""

    def __init__(self, binding: bytes) -> None:
        key = digest("rows", binding)
        self._leaf, self._node = (hashlib.sha256(kind + key) for kind in (b"\0", b"\1"))

    def leaves(self, table: bytes, rows: int) -> list[bytes]:
        """Return the hash of each row of a table."""
        return _each(self._leaf, table, len(table) // rows) if rows else []

    def nodes(self, pairs: bytes) -> list[bytes]:
        return _each(self._node, pairs, 2 * HASH)


def _each(begun: Any, data: bytes, width: int) -> list[bytes]:
    """Return the hashes of what stands in ``data`` one after another. In one loop: of a round's seconds for
    the commitment, half were calls from one function to the next."""
    found = []
    for at in range(0, len(data), width):
        one = begun.copy()
        one.update(data[at : at + width])
        found.append(one.digest()[:HASH])
    return found


class CommittedRows:
    """The rows of the union of each table that is summed, as they are downloaded. ``binding`` is that of the
    session; ``proves``: active mode."""

    def __init__(self, tables: Sequence[NDArray[Any]], binding: bytes, *, proves: bool) -> None:
        self._tree, blobs = None, [table.tobytes() for table in tables]
        if proves:
            hashes = _Hashes(binding)
            leaves = (hashes.leaves(blob, len(table)) for blob, table in zip(blobs, tables, strict=True))
            self._tree = Tree(chain.from_iterable(leaves), hashes.nodes, HASH)
        self.root = digest("rows", binding, *blobs)[:HASH] if self._tree is None else self._tree.root

    def proof(self, asked: Sequence[Bits]) -> bytes:
        """Return what shows that the rows asked for are in the commitment; nothing outside active mode."""
        leaves = np.concatenate(asked)
        return self._tree.proof_of(leaves) if self._tree is not None and leaves.any() else b""


def require_committed(
    submodel: Submodel, binding: bytes, layout: Layout, positions: Sequence[Positions]
) -> None:
    """Refuse rows, at these positions of each table's union, that are not those of the commitment."""
    hashes, leaves, start = _Hashes(binding), dict[int, bytes](), 0
    for shape, places, data in zip(layout.tables, positions, submodel.rows, strict=True):
        leaves |= zip((places + start).tolist(), hashes.leaves(data, len(places)), strict=True)
        start += shape.rows
    if not leaves and not submodel.proof:
        return
    try:
        proved = root_of(leaves, start, submodel.proof, hashes.nodes, HASH) == submodel.root
    except InvalidMessage:  # no proof of these rows, nor of any others
        proved = False
    if not proved:
        raise Deceived(
            "the server sent rows that are not those of the model it committed to: it shows clients "
            "different models, or somebody altered them on the way"
        )


def model_context(package: bytes, names: bytes) -> bytes:
    """Return what masks are bound to of the model beside its shape, in active mode: the digest of the package
    that describes it, with its kind and its maps, and that of what its rows are called, if anything."""
    return digest("model told", package, names)


def update_context(told: bytes, union: bytes, dense: bytes, root: bytes) -> bytes:
    """Return what the masks of the update are bound to: what was ``told`` of the round, the digest of its
    ``union``, and the model."""
    return digest("update", told, union, digest("dense", dense), root)
