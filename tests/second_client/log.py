"""The log of enrolled identities (log.md): its tree, and what a client checks of heads and members."""

from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from typing import Any

from second_client.secagg import verify
from second_client.wire import Refused, ascending, digest, frame, require


def leaf(public: bytes, voucher: bytes) -> bytes:
    return sha256(b"\0" + frame("log entry", public, voucher)).digest()


def node(left: bytes, right: bytes) -> bytes:
    return sha256(b"\1" + left + right).digest()


def root(leaves: Sequence[bytes]) -> bytes:
    """RFC 9162, 2.1.1."""
    if not leaves:
        return sha256().digest()
    if len(leaves) == 1:
        return leaves[0]
    half = 1
    while 2 * half < len(leaves):
        half *= 2
    return node(root(leaves[:half]), root(leaves[half:]))


def _hashes(proof: bytes) -> list[bytes]:
    require(len(proof) % 32 == 0, "broken hashes")
    return [proof[at : at + 32] for at in range(0, len(proof), 32)]


def continued(first: int, old: bytes, second: int, new: bytes, proof: bytes) -> None:
    """RFC 9162, 2.1.4.2, step by step."""
    path = _hashes(proof)
    if first == second:
        require(old == new and not path, "another root at the same size")
        return
    require(0 < first < second and bool(path), "no proof that one continues the other")
    if first & (first - 1) == 0:
        path = [old, *path]
    at, last = first - 1, second - 1
    while at & 1:
        at, last = at >> 1, last >> 1
    before = after = path[0]
    for one in path[1:]:
        require(last != 0, "more hashes than it needs")
        if at & 1 or at == last:
            before, after = node(one, before), node(one, after)
            while not at & 1 and at != 0:
                at, last = at >> 1, last >> 1
        else:
            after = node(after, one)
        at, last = at >> 1, last >> 1
    require(last == 0 and before == old and after == new, "the log was forked")


def included(leaves: Mapping[int, bytes], size: int, proof: bytes) -> bytes:
    """The root, from some leaves and the hashes beside their paths."""
    rest, level = _hashes(proof), dict(leaves)
    require(all(0 <= place < size for place in level), "places beyond the end")
    while size > 1:
        above: dict[int, bytes] = {}
        for place in sorted(level):
            if place // 2 in above:
                continue
            if place == size - 1 and place % 2 == 0:
                above[place // 2] = level[place]
                continue
            if place ^ 1 not in level:
                require(bool(rest), "fewer hashes than it needs")
                level[place ^ 1] = rest.pop(0)
            left, right = level[place & ~1], level[place | 1]
            above[place // 2] = node(left, right)
        level, size = above, (size + 1) // 2
    require(not rest, "more hashes than it needs")
    return level[0]


class Log:
    """``trust`` is the file of 4.1; ``known`` the last head, which a client that ends keeps."""

    def __init__(self, trust: Mapping[str, Any], known: dict[str, Any] | None = None) -> None:
        self.trust, self.known = trust, known

    @property
    def since(self) -> int:
        return 0 if self.known is None else int(self.known["size"])

    def take(self, proof: dict[str, Any], clients: Collection[str]) -> dict[str, bytes]:
        """The identities of these clients, if everything is as it should be (4.2, 4.3)."""
        head = proof["head"]
        self._require_head(head, proof["consistency"])
        places, entries = proof["places"], proof["entries"]
        found = {digest("client id", public)[:16].hex(): public for public, _ in entries}
        require(ascending(places) and len(places) == len(entries) == len(found), "entries out of order")
        require(set(found) == set(clients), "a proof about others")
        if found:
            leaves = {place: leaf(*entry) for place, entry in zip(places, entries, strict=True)}
            require(included(leaves, head["size"], proof["inclusion"]) == head["root"], "not in the log")
        authorities = [bytes.fromhex(one) for one in self.trust.get("authorities", ())]
        for public, voucher in entries if authorities else ():
            said = ("log entry", head["deployment"], public)
            require(any(_verifies(one, voucher, *said) for one in authorities), "nobody vouches for it")
        if head["size"] > self.since or self.known is None:
            self.known = head
        return found

    def _require_head(self, head: dict[str, Any], consistency: bytes) -> None:
        times = [head[name].to_bytes(8, "big") for name in ("size", "time")]
        said = ("log head", head["deployment"], times[0], head["root"], times[1])
        require(head["deployment"].hex() == self.trust["deployment"], "another deployment")
        witnesses, own = set(self.trust.get("witnesses", ())), self.trust["log"]
        signed = set()
        for key, signature in head["signatures"]:
            if key.hex() in witnesses | {own}:
                verify(key, signature, *said)
                signed.add(key.hex())
        require(own in signed, "not signed by the log")
        if self.known is not None:
            require(head["size"] >= self.since, "the log was rolled back")
            if self.since:
                continued(self.since, self.known["root"], head["size"], head["root"], consistency)
        require(len(signed & witnesses) >= self.trust.get("least-witnesses", 0), "not witnessed")


def _verifies(public: bytes, signature: bytes, label: str, *parts: bytes) -> bool:
    try:
        verify(public, signature, label, *parts)
    except Refused:
        return False
    return True
