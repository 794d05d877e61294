"""Hash trees: RFC 9162's shape, proofs for every size, and nothing else passes for a proof."""

import contextlib
import hashlib
import random

import pytest

from sfsl.crypto.merkle import EMPTY, HASH, Tree, continues, leaf_hash, node_hash, root_of
from sfsl.errors import InvalidMessage

# The entries and the roots of the certificate-transparency project's own tests (RFC 6962 and 9162 trees).
ENTRIES = [
    bytes.fromhex(one)
    for one in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657",
                "606162636465666768696a6b6c6d6e6f")
]  # fmt: skip
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


def leaves(count: int) -> list[bytes]:
    return [leaf_hash(b"%d" % number) for number in range(count)]


def by_definition(given: list[bytes]) -> bytes:
    """RFC 9162, 2.1.1, word for word."""
    if len(given) == 1:
        return given[0]
    split = 1
    while 2 * split < len(given):
        split *= 2
    return node_hash(by_definition(given[:split]), by_definition(given[split:]))


def test_the_roots_that_others_publish() -> None:
    tree = Tree()
    assert tree.root == EMPTY == hashlib.sha256(b"").digest()
    for entry, root in zip(ENTRIES, ROOTS, strict=True):
        tree.extend([leaf_hash(entry)])
        assert tree.root.hex() == root


def test_roots_of_all_earlier_sizes() -> None:
    given, tree = leaves(70), Tree()
    for start, end in ((0, 1), (1, 4), (4, 5), (5, 64), (64, 70)):
        tree.extend(given[start:end])
    assert len(tree) == 70
    assert all(tree.root_at(size) == by_definition(given[:size]) for size in range(1, 71))


def test_some_of_them_are_in_it() -> None:
    given, rng = leaves(37), random.Random(1)
    tree = Tree(given)
    for size in range(1, 38):
        for count in {1, min(3, size), size}:
            places = sorted(rng.sample(range(size), count))
            proof = tree.proof(places, size)
            assert root_of({place: given[place] for place in places}, size, proof) == tree.root_at(size)


def test_one_list_continues_the_other() -> None:
    given = leaves(34)
    tree = Tree(given)
    for size in range(1, 35):
        for first in range(1, size + 1):
            proof = tree.consistency(first, size)
            assert continues(first, tree.root_at(first), size, proof) == tree.root_at(size)
            assert len(proof) // HASH <= 2 * size.bit_length()
    assert tree.consistency(0, 5) == tree.consistency(6, 5) == b""


@pytest.mark.parametrize("first", [1, 3, 4, 6, 7])
def test_a_list_that_was_rewritten_has_no_proof(first: int) -> None:
    honest, forged = Tree(leaves(8)), Tree([leaf_hash(b"other"), *leaves(9)[1:]])
    for size in range(first, 10):
        for proof in (forged.consistency(first, size), honest.consistency(first, min(size, 8))):
            try:
                found = continues(first, honest.root_at(first), size, proof)
            except InvalidMessage:
                continue
            assert found != forged.root_at(size)


def test_proofs_have_exactly_what_they_need() -> None:
    given = leaves(11)
    tree = Tree(given)
    proof, path = tree.consistency(5, 11), tree.proof([4])
    for wrong in (proof[:-HASH], proof + bytes(HASH), proof[:-1], b""):
        with pytest.raises(InvalidMessage):
            continues(5, tree.root_at(5), 11, wrong)
    for place in range(len(proof) // HASH):
        changed = proof[: place * HASH] + bytes(HASH) + proof[(place + 1) * HASH :]
        with contextlib.suppress(InvalidMessage):
            assert continues(5, tree.root_at(5), 11, changed) != tree.root
    for first, size in ((0, 11), (12, 11)):
        with pytest.raises(InvalidMessage, match="longer"):
            continues(first, tree.root, size, proof)
    for wrong in (path[:-HASH], path + bytes(HASH), path[:-1]):
        with pytest.raises(InvalidMessage):
            root_of({4: given[4]}, 11, wrong)
    for places in ({}, {11: given[4]}, {-1: given[4]}):
        with pytest.raises(InvalidMessage):
            root_of(places, 11, path)
    assert root_of({5: given[4]}, 11, path) != tree.root


def test_a_node_does_not_pass_for_a_leaf() -> None:
    """Without the byte in front, two leaves' hashes would be an entry with the same root."""
    one, two = leaves(2)
    assert Tree([leaf_hash(one + two)]).root != Tree([one, two]).root
