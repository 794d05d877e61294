"""A digest of everyone in a roster, and proofs that some are in it (spec 6.2).

On a sparse graph a client is told of itself and its neighbours only. The root of a hash tree over the keys of
all members, in order of position, stands for the others: whoever knows some members and the hashes beside
their paths computes the same root. Who is whose neighbour follows from it, so that a server that shows a
client other members shows it another root, hence other neighbours and other keys.
"""

from collections.abc import Mapping, Sequence

from sfsl.crypto import merkle
from sfsl.crypto.secret import digest
from sfsl.errors import Refused
from sfsl.secagg.messages import CODEC, Keys, Member, Roster


def leaf(position: int, keys: Keys) -> bytes:
    return digest("roster leaf", position.to_bytes(4, "big"), CODEC.encode(keys))


def nodes(pairs: bytes) -> list[bytes]:
    half = merkle.HASH
    return [
        digest("roster node", pairs[at : at + half], pairs[at + half : at + 2 * half])
        for at in range(0, len(pairs), 2 * half)
    ]


class Tree(merkle.Tree):
    """The hash tree over all ``members``."""

    def __init__(self, members: Sequence[Member]) -> None:
        super().__init__((leaf(member.position, member.keys) for member in members), nodes)


def root_of(leaves: Mapping[int, bytes], count: int, proof: bytes) -> bytes:
    """The root of a roster of ``count`` members, of which some are known by position."""
    return merkle.root_of(leaves, count, proof, nodes)


def require_proof(roster: Roster) -> None:
    """Refuse members of a sparse graph that are not those of the root, or not in the order of their ids."""
    names = [member.keys.client for member in roster.members]
    if names != sorted(names):
        raise Refused("positions on a sparse graph are in the order of the clients' ids, these are not")
    leaves = {member.position: leaf(member.position, member.keys) for member in roster.members}
    if root_of(leaves, roster.params.clients, roster.proof) != roster.root:
        raise Refused("the proof does not lead from these members to the roster's root")
