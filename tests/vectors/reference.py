"""A second client, written from docs/spec/secure-aggregation.md alone: slow, plain, and without sfsl.

It shows that the specification is enough, and is what ``round.json`` is checked against. It makes the
honest messages and refuses only requests that the others did not sign or that are not coded as they must
be; a real client must refuse much more.
Never use it for real sums.
Numbers in comments are sections of the specification.
"""

import hashlib
import hmac
from fractions import Fraction
from itertools import pairwise
from math import ceil, comb
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB

PRIME = 2**256 + 297
MODULUS = {"z32": 2**32, "z64": 2**64, "f31": 2**31 - 1}
WORD_BYTES = {"z32": 4, "z64": 8, "f31": 4}


def be32(number: int) -> bytes:
    return number.to_bytes(4, "big")


# -- 2.2 labels ------------------------------------------------------------------------------------


def frame(label: str, *parts: bytes) -> bytes:
    head = b"sfsl/1 " + label.encode("ascii")
    return b"".join(be32(len(part)) + part for part in (head, *parts))


def hkdf(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    """RFC 5869 with SHA-256."""
    prk = hmac.digest(salt or bytes(32), secret, "sha256")
    block, out, count = b"", b"", 0
    while len(out) < length:
        count += 1
        block = hmac.digest(prk, block + info + bytes((count,)), "sha256")
        out += block
    return out[:length]


def derive(secret: bytes, label: str, *parts: bytes) -> bytes:
    return hkdf(secret, b"", frame(label, *parts), 32)


def digest(label: str, *parts: bytes) -> bytes:
    return hashlib.sha256(frame(label, *parts)).digest()


# -- 2.3 agreement ---------------------------------------------------------------------------------


def public_key(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes, public: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))


def canonical(public: bytes) -> bool:
    return int.from_bytes(public, "little") < 2**255 - 19


# -- 2.6 signatures --------------------------------------------------------------------------------


class Refused(Exception):
    """A message that this client does not answer."""


def verify(public: bytes, signature: bytes, label: str, *parts: bytes) -> None:
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, frame("sign " + label, *parts))
    except InvalidSignature:
        raise Refused(f"not signed: {label}") from None


# -- 2.5 streams -----------------------------------------------------------------------------------


def block(key: bytes, counter: int) -> bytes:
    return Cipher(AES256(key), ECB()).encryptor().update(counter.to_bytes(16, "big"))  # noqa: S305


def stream(key: bytes, ring: str, count: int) -> list[int]:
    size = WORD_BYTES[ring]
    raw = b"".join(block(key, counter) for counter in range((count * size + 15) // 16))
    words = [int.from_bytes(raw[size * q : size * (q + 1)], "little") for q in range(count)]
    if ring == "f31":
        words = [element(key, q, word) for q, word in enumerate(words)]
    return words


def element(key: bytes, position: int, word: int) -> int:
    attempt = 0
    while word & MODULUS["f31"] == MODULUS["f31"]:
        attempt += 1
        word = int.from_bytes(block(key, attempt * 2**96 + position)[:4], "little")
    return word & MODULUS["f31"]


# -- 2.7 sharing -----------------------------------------------------------------------------------


def coefficient(tape: "Tape") -> int:
    while True:
        value = int.from_bytes(tape.take(33), "big") % 2**257
        if value < PRIME:
            return value


def split(secret: bytes, threshold: int, positions: list[int], tape: "Tape") -> list[bytes]:
    powers = [coefficient(tape) for _ in range(threshold - 1)][::-1]  # drawn from the highest power down
    polynomial = [int.from_bytes(secret, "big"), *powers]
    return [
        (sum(a * pow(k + 1, power, PRIME) for power, a in enumerate(polynomial)) % PRIME).to_bytes(33, "big")
        for k in positions
    ]


def reconstruct(points: list[int], shares: list[bytes]) -> int:
    total = 0
    for point, share in zip(points, shares, strict=True):
        weight = 1
        for other in points:
            if other != point:
                weight = weight * other * pow(other - point, -1, PRIME) % PRIME
        total += weight * int.from_bytes(share, "big")
    return total % PRIME


# -- 3 codec ---------------------------------------------------------------------------------------


def pack(value: Any) -> bytes:
    """Canonical MessagePack of what the protocol uses. A dict keeps its order."""
    if value is None:
        return b"\xc0"
    if value is False or value is True:
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return bytes((value,)) if value < 128 else _head(value, {1: 0xCC, 2: 0xCD, 4: 0xCE, 8: 0xCF})
    if isinstance(value, bytes):
        return _head(len(value), {1: 0xC4, 2: 0xC5, 4: 0xC6}) + value
    if isinstance(value, str):
        text = value.encode()
        short = len(text) < 32
        return (bytes((0xA0 | len(text),)) if short else _head(len(text), {1: 0xD9, 2: 0xDA})) + text
    short = len(value) < 16
    if isinstance(value, dict):
        head = bytes((0x80 | len(value),)) if short else _head(len(value), {2: 0xDE})
        return head + b"".join(pack(key) + pack(item) for key, item in value.items())
    head = bytes((0x90 | len(value),)) if short else _head(len(value), {2: 0xDC, 4: 0xDD})
    return head + b"".join(map(pack, value))


def _head(number: int, codes: dict[int, int]) -> bytes:
    size, code = next((size, code) for size, code in codes.items() if number < 256**size)
    return bytes((code,)) + number.to_bytes(size, "big")


def unpack(data: bytes) -> Any:
    value, end = _read(data, 0)
    if end != len(data):
        raise ValueError("trailing bytes")
    return value


def _read(data: bytes, at: int) -> tuple[Any, int]:
    code, at = data[at], at + 1
    if code < 0x80:
        return code, at
    if code < 0x90:
        return _read_map(data, at, code & 0x0F)
    if code < 0xA0:
        return _read_array(data, at, code & 0x0F)
    if code < 0xC0:
        return data[at : at + (code & 0x1F)].decode(), at + (code & 0x1F)
    if code in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[code], at
    sizes = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
    sizes |= {0xD9: 1, 0xDA: 2, 0xDC: 2, 0xDD: 4, 0xDE: 2}
    number, at = int.from_bytes(data[at : at + sizes[code]], "big"), at + sizes[code]
    if code <= 0xC6:
        return data[at : at + number], at + number
    if code <= 0xCF:
        return number, at
    if code <= 0xDA:
        return data[at : at + number].decode(), at + number
    return _read_map(data, at, number) if code == 0xDE else _read_array(data, at, number)


def _read_array(data: bytes, at: int, count: int) -> tuple[list[Any], int]:
    items = []
    for _ in range(count):
        item, at = _read(data, at)
        items.append(item)
    return items, at


def _read_map(data: bytes, at: int, count: int) -> tuple[dict[Any, Any], int]:
    items, at = _read_array(data, at, 2 * count)
    return dict(zip(items[::2], items[1::2], strict=True)), at


def encode(message: dict[str, Any]) -> bytes:
    return b"\x01" + pack(message)


def decode(data: bytes) -> dict[str, Any]:
    if data[:1] != b"\x01":
        raise ValueError("another version")
    message: dict[str, Any] = unpack(data[1:])
    if encode(message) != data:
        raise ValueError("not canonical")
    return message


def size(message: dict[str, Any]) -> int:
    """The frame's size by the formulas of 4.3, without encoding it."""
    return {
        "keys": _keys_size,
        "roster": lambda m: (
            29
            + _params_size(m["params"])
            + _members_size(m["members"])
            + (39 if "root" in m else 0)
            + (6 + _b(len(m["proof"])) if "proof" in m else 0)
        ),
        "sealed-shares": lambda m: (
            (87 + _u(m["sender"]) + _boxes(m["boxes"]) + _boxes(m["request"]))
            + (1 if m["request_signature"] is None else 66)
        ),
        "inbound-shares": lambda m: (
            (83 + _list(m["senders"]) + _boxes(m["boxes"]) + _b(len(m["requesters"])) + _a(m["requests"]))
            + sum(105 + _boxes(one["bitmaps"]) for one in m["requests"])
        ),
        "masked-vector": lambda m: 66 + _u(m["sender"]) + _b(len(m["words"])),
        "survivors": lambda m: 67 + _list(m["survivors"]) + _list(m["dropped"]),
        "consistency": lambda m: 134 + _u(m["sender"]),
        "unmask-request": lambda m: (
            (83 + _list(m["survivors"]) + _list(m["dropped"]) + _a(m["signatures"]))
            + sum(67 + _u(position) for position, _ in m["signatures"])
            + (7 + _b(len(m["cohort"])) if "cohort" in m else 0)
        ),
        "unmask-shares": lambda m: 67 + _u(m["sender"]) + _a(m["shares"]) + 35 * len(m["shares"]),
    }[message["type"]](message)


def _u(value: int) -> int:
    return 1 if value < 128 else next(1 + size for size in (1, 2, 4, 8) if value < 256**size)


def _a(items: list[Any]) -> int:
    return 1 if len(items) < 16 else 3


def _b(length: int) -> int:
    return length + (2 if length < 256 else 3 if length < 65536 else 5)


def _s(text: str) -> int:
    length = len(text.encode())
    return length + (1 if length < 32 else 2 if length < 256 else 3)


def _list(positions: list[int]) -> int:
    return _a(positions) + sum(map(_u, positions))


def _boxes(items: list[bytes]) -> int:
    return _a(items) + sum(_b(len(item)) for item in items)


def size_limit(params: dict[str, Any], layout: dict[str, Any], word_bytes: int) -> int:
    """3.4: no message is larger."""
    n, sums = params["clients"], params["sums"]
    announced = sum(len(one["layout"]["tables"]) for one in sums if one["layout"])
    rows = sum(table["rows"] for table in layout["tables"])
    words = layout["dense"] + sum(table["rows"] * table["width"] for table in layout["tables"])
    return 4096 + n * (512 + 130 * len(sums) + rows // 8) + announced * (64 + 8 * n) + words * word_bytes


def _keys_size(keys: dict[str, Any]) -> int:
    return 91 + _s(keys["client"]) + 68 * len(keys["masks"]) + (1 if keys["signature"] is None else 66)


def _members_size(members: list[dict[str, Any]]) -> int:
    return _a(members) + sum(26 + _u(one["position"]) + _keys_size(one["keys"]) for one in members)


def _params_size(params: dict[str, Any]) -> int:
    near = 1 if params["neighbours"] is None else _u(params["neighbours"])
    sums = (
        40 + _s(s["label"]) + _u(s["min_contributors"]) + _layout_size(s["layout"]) for s in params["sums"]
    )
    least = 16 + _u(params["least_survivors"]) if "least_survivors" in params else 0
    return 71 + _u(params["clients"]) + _u(params["threshold"]) + near + sum(sums) + least


def _layout_size(layout: dict[str, Any] | None) -> int:
    if layout is None:
        return 1
    tables = layout["tables"]
    return 14 + _u(layout["dense"]) + _a(tables) + sum(12 + _u(t["rows"]) + _u(t["width"]) for t in tables)


# -- 5.2 bits --------------------------------------------------------------------------------------


def to_bits(data: bytes) -> list[int]:
    return [byte >> (7 - place) & 1 for byte in data for place in range(8)]


def from_bits(bits: list[int]) -> bytes:
    padded = bits + [0] * (-len(bits) % 8)
    return bytes(
        sum(bit << (7 - place) for place, bit in enumerate(padded[at : at + 8]))
        for at in range(0, len(padded), 8)
    )


# -- 3.5 packed sets -------------------------------------------------------------------------------


def set_shape(count: int, domain: int) -> tuple[int, int]:
    """k and h."""
    low = (domain // count).bit_length() - 1
    return low, count + ((domain - 1) >> low)


def set_size(count: int, domain: int) -> int:
    if count == 0:
        return 0
    k, h = set_shape(count, domain)
    return (domain + 7) // 8 if domain <= count * k + h else (count * k + 7) // 8 + (h + 7) // 8


def pack_set(numbers: list[int], domain: int) -> bytes:
    if not numbers:
        return b""
    k, h = set_shape(len(numbers), domain)
    if domain <= len(numbers) * k + h:
        return from_bits([int(number in numbers) for number in range(domain)])
    places = [(number >> k) + i for i, number in enumerate(numbers)]
    low = [number >> bit & 1 for number in numbers for bit in range(k)]
    return from_bits(low) + from_bits([int(place in places) for place in range(h)])


def unpack_set(data: bytes, count: int, domain: int) -> list[int]:
    if count > domain or len(data) != set_size(count, domain):
        raise Refused("not the size of such a set")
    if count == 0:
        return []
    k, h = set_shape(count, domain)
    start = 0 if domain <= count * k + h else (count * k + 7) // 8
    numbers = [place for place, bit in enumerate(to_bits(data[start:])) if bit]
    if len(numbers) != count:
        raise Refused("another number of ones")
    if start:
        low = to_bits(data[:start])
        numbers = [
            (place - i << k) + sum(low[i * k + bit] << bit for bit in range(k))
            for i, place in enumerate(numbers)
        ]
    ascending = all(one < other for one, other in pairwise(numbers))
    if not ascending or numbers[-1] >= domain or pack_set(numbers, domain) != data:
        raise Refused("not the packing of a set")
    return numbers


def read_requesters(data: bytes, size: int) -> list[int]:
    """5.2: the bits of what an honest-but-curious server tells."""
    if size == 0:
        if data:
            raise Refused("requesters of no rows")
        return []
    if len(data) < 9 or data[0] > 1:
        raise Refused("neither ones nor zeros are listed")
    count = int.from_bytes(data[1:9], "little")
    if 2 * count > size or (data[0] == 1 and 2 * count == size):
        raise Refused("the more frequent bits are listed")
    listed = unpack_set(data[9:], count, size)
    return [int((place in listed) == (data[0] == 0)) for place in range(size)]


# -- 6.2 random cycles -----------------------------------------------------------------------------


def cycles(clients: int, neighbours: int, round_id: bytes, root: bytes) -> list[list[int]]:
    words = stream(digest("graph", round_id, root), "z64", neighbours // 2 * clients)
    near: list[set[int]] = [set() for _ in range(clients)]
    for cycle in range(neighbours // 2):
        order = sorted(range(clients), key=lambda position: (words[cycle * clients + position], position))
        for one, other in zip(order, order[1:] + order[:1], strict=True):
            near[one].add(other)
            near[other].add(one)
    return [sorted(each) for each in near]


def root_of(members: dict[int, dict[str, Any]], clients: int, proof: bytes) -> bytes:
    """Level by level: what follows from the members, with what the proof has beside it."""
    row: list[bytes | None] = [None] * clients
    for place, keys in members.items():
        row[place] = digest("roster leaf", be32(place), encode(keys))
    hashes = [proof[at : at + 32] for at in range(0, len(proof), 32)]
    while len(row) > 1:
        above: list[bytes | None] = []
        for pair in (row[at : at + 2] for at in range(0, len(row), 2)):
            if pair == [None] * len(pair):
                above.append(None)
            elif len(pair) == 1:
                above.append(pair[0])
            else:
                left, right = (one or (hashes.pop(0) if hashes else b"") for one in pair)
                above.append(digest("roster node", left, right))
        row = above
    if hashes or row[0] is None:
        raise Refused("a proof that does not fit")
    return row[0]


# -- 6.3 degree and threshold ------------------------------------------------------------------------


def plan(clients: int, dropout: float, corruption: float, failure: float) -> dict[str, Any] | None:
    """In exact fractions, so for small cohorts only."""
    dropped, corrupt = ceil(dropout * clients), ceil(corruption * clients)
    honest = clients - dropped - corrupt
    if honest < 2:
        return None
    bad, lasting = [Fraction(1)], [Fraction(1)]
    for count in range(1, (clients - 1) // 2 + 1):
        bad = one_more_cycle(bad, clients - 1, corrupt)
        lasting = one_more_cycle(lasting, clients - 1, clients - 1 - dropped)
        split = sum(
            comb(honest, size) * apart(size, honest, clients - honest) ** count
            for size in range(1, honest // 2 + 1)
        )
        for threshold in range(2, 2 * count + 1):
            opened = clients * sum(bad[threshold:])
            stuck = clients * sum(lasting[:threshold])
            if opened <= failure:
                if split <= failure and stuck <= failure:
                    bounds = {"opened": opened, "split": split, "stuck": stuck}
                    return {"neighbours": 2 * count, "threshold": threshold} | bounds
                break
    return None


def one_more_cycle(before: list[Fraction], others: int, marked: int) -> list[Fraction]:
    after = [Fraction(0)] * (len(before) + 2)
    for found, chance in enumerate(before):
        new = marked - found
        old = others - new
        if chance:
            after[found] += chance * Fraction(old * (old - 1), others * (others - 1))
            after[found + 1] += chance * Fraction(2 * new * old, others * (others - 1))
            after[found + 2] += chance * Fraction(new * (new - 1), others * (others - 1))
    return after


def apart(size: int, honest: int, gone: int) -> Fraction:
    ways = sum(
        comb(gone, gaps) * comb(size - 1, gaps - 1) * comb(gone - gaps + honest - size - 1, honest - size)
        for gaps in range(1, min(size, gone - 1) + 1)
    )
    return Fraction(ways, comb(honest, size) * comb(honest + gone - 1, max(gone - 1, 0)))


# -- 4 the client ----------------------------------------------------------------------------------


class Tape:
    """The random bytes a client draws, written down."""

    def __init__(self, data: bytes) -> None:
        self.rest = data

    def take(self, count: int) -> bytes:
        if len(self.rest) < count:
            raise ValueError("the tape is at its end")
        taken, self.rest = self.rest[:count], self.rest[count:]
        return taken


class Client:
    """One honest client: frames in, frames out. ``known`` are the others' identities, in active mode."""

    def __init__(
        self, name: str, tape: Tape, sums: int, identity: bytes | None, known: dict[str, bytes]
    ) -> None:
        self.name = name
        self.tape = tape
        self.identity = Ed25519PrivateKey.from_private_bytes(identity) if identity else None
        self.known = known
        self.channel = tape.take(32)
        self.masks = [tape.take(32) for _ in range(sums)]
        self.seeds = [tape.take(32) for _ in range(sums)]
        self.sum = 0

    def keys(self) -> bytes:
        channel = public_key(self.channel)
        masks = [public_key(private) for private in self.masks]
        commitments = [digest("seed-commitment", seed) for seed in self.seeds]
        signature = None
        if self.identity:
            parts = (self.name.encode(), channel, b"".join(masks), b"".join(commitments))
            signature = self.identity.sign(frame("sign keys", *parts))
        self.own_keys = {
            "type": "keys",
            "client": self.name,
            "channel": channel,
            "masks": masks,
            "commitments": commitments,
            "signature": signature,
        }
        return encode(self.own_keys)

    def roster(self, data: bytes, rows: list[list[int]]) -> bytes:
        roster = decode(data)
        self.params = roster["params"]
        self.members = {one["position"]: one["keys"] for one in roster["members"]}
        self.position = next(k for k, keys in self.members.items() if keys == self.own_keys)
        if self.params["neighbours"] is not None:
            self._require_sparse(roster)
            shown = {"type": "roster", "params": self.params, "members": [], "root": roster["root"]}
            data = encode(shown)
        self.binding = digest("roster", data)

        positions = list(self.members)
        secrets = [s for pair in zip(self.masks, self.seeds, strict=True) for s in pair]  # box order
        columns = [split(s, self.params["threshold"], positions, self.tape) for s in secrets]
        plain = {k: b"".join(column[at] for column in columns) for at, k in enumerate(positions)}
        boxes = []
        for peer, keys in self.members.items():
            if peer != self.position:
                shared = agree(self.channel, keys["channel"])
                key = derive(shared, "channel", self.binding, self.own_keys["channel"], keys["channel"])
                boxes.append(AESGCM(key).encrypt(bytes(12), plain[peer], self._header(self.position, peer)))
        self.shares = {self.position: plain[self.position]}
        self.rows = rows
        tables = (self.params["sums"][0]["layout"] or {"tables": []})["tables"]
        bitmaps = [
            from_bits([int(row in asked) for row in range(table["rows"])])
            for table, asked in zip(tables, rows, strict=True)
        ]
        self.bitmaps = bitmaps
        signature = None
        if self.identity and tables:
            signature = self.identity.sign(frame("sign request", self.binding, bytes((0,)), *bitmaps))
        fields = {"boxes": boxes, "request": bitmaps, "request_signature": signature}
        return encode(self._message("sealed-shares", summed=False, **fields))

    def _require_sparse(self, roster: dict[str, Any]) -> None:
        clients, degree, round_id = (self.params[name] for name in ("clients", "neighbours", "round_id"))
        names = [keys["client"] for keys in self.members.values()]
        if "root" not in roster or names != sorted(names):
            raise Refused("no root, or ids out of order")
        if root_of(self.members, clients, roster.get("proof", b"")) != roster["root"]:
            raise Refused("a proof of another root")
        near = cycles(clients, degree, round_id, roster["root"])[self.position]
        if sorted(self.members) != sorted([*near, self.position]):
            raise Refused("other neighbours")

    def inbound(self, data: bytes, dense: list[int], tables: list[list[list[int]]]) -> bytes:
        inbound = decode(data)
        layout = self.params["sums"][0]["layout"]
        asked = self.requesters(layout, inbound["senders"], inbound["requesters"], inbound["requests"])
        for sender, box in zip(inbound["senders"], inbound["boxes"], strict=True):
            keys = self.members[sender]
            shared = agree(self.channel, keys["channel"])
            key = derive(shared, "channel", self.binding, keys["channel"], self.own_keys["channel"])
            self.shares[sender] = AESGCM(key).decrypt(bytes(12), box, self._header(sender, self.position))
        participants = sorted([*inbound["senders"], self.position])
        return self.mask(layout, participants, asked, b"", dense, tables)

    def requesters(
        self, layout: dict[str, Any], others: list[int], told: bytes, signed: list[dict[str, Any]]
    ) -> list[list[list[int]]]:
        """5.2: per table, per other participant, per own row, whether that one asked for it."""
        if not (self.identity and layout["tables"]):
            if signed:
                raise Refused("signed requests where none are due")
            bits = iter(read_requesters(told, len(others) * sum(map(len, self.rows))))
            self.all_requests = []
            return [[[next(bits) for _ in own] for _ in others] for own in self.rows]
        if told or len(signed) != len(others):
            raise Refused("not one signed request of each other participant")
        for other, request in zip(others, signed, strict=True):
            public = self.known[self.members[other]["client"]]
            verify(
                public, request["signature"], "request", self.binding, bytes((self.sum,)), *request["bitmaps"]
            )
            self._require_bitmaps(layout, request["bitmaps"])
        everyone = {other: request["bitmaps"] for other, request in zip(others, signed, strict=True)}
        everyone[self.position] = self.bitmaps
        joined = [bitmap for place in sorted(everyone) for bitmap in everyone[place]]
        self.all_requests = [digest("requests", *joined)]  # 4.4
        lines = [[to_bits(bitmap) for bitmap in request["bitmaps"]] for request in signed]
        return [[[line[table][row] for row in own] for line in lines] for table, own in enumerate(self.rows)]

    def _require_bitmaps(self, layout: dict[str, Any], bitmaps: list[bytes]) -> None:
        shapes = [table["rows"] for table in layout["tables"]]
        if [len(bitmap) for bitmap in bitmaps] != [(rows + 7) // 8 for rows in shapes]:
            raise Refused("bitmaps of another layout")
        if any(any(to_bits(bitmap)[rows:]) for bitmap, rows in zip(bitmaps, shapes, strict=True)):
            raise Refused("a bit set beyond the end")

    def mask(
        self,
        layout: dict[str, Any],
        participants: list[int],
        asked: list[list[list[int]]],
        caller: bytes,
        dense: list[int],
        tables: list[list[list[int]]],
    ) -> bytes:
        one = self.params["sums"][self.sum]
        ring = one["ring"]
        others = [k for k in participants if k != self.position]
        upload = list(dense)  # 5.3: rows with too few requesters stay here
        covered: dict[int, list[int]] = {k: list(range(len(dense))) for k in others}  # places in the upload
        for own, values, table in zip(self.rows, tables, asked, strict=True):
            for at in range(len(own)):
                count = 1 + sum(line[at] for line in table)
                if count < one["min_contributors"]:
                    continue
                places = range(len(upload), len(upload) + len(values[at]))
                upload += values[at]
                for k, line in zip(others, table, strict=True):
                    if line[at]:
                        covered[k] += places

        listed = b"neighbours" if self.params["neighbours"] is not None else b"".join(map(be32, participants))
        context = digest("sum", one["label"].encode(), pack(layout), listed, caller, *self.all_requests)
        key = derive(self.seeds[self.sum], "self-mask", self.binding, context, be32(self.position))
        for place, word in enumerate(stream(key, ring, len(upload))):
            upload[place] += word
        mine = self.own_keys["masks"][self.sum]
        for k in others:
            theirs = self.members[k]["masks"][self.sum]
            places_of_pair = be32(min(k, self.position)) + be32(max(k, self.position))
            shared = agree(self.masks[self.sum], theirs)
            ordered = sorted([mine, theirs])
            key = derive(shared, "pair-mask", self.binding, context, places_of_pair, *ordered)
            sign = 1 if self.position < k else -1
            for place, word in zip(covered[k], stream(key, ring, len(covered[k])), strict=True):
                upload[place] += sign * word
        words = b"".join((value % MODULUS[ring]).to_bytes(WORD_BYTES[ring], "little") for value in upload)
        return encode(self._message("masked-vector", words=words))

    def survivors(self, data: bytes) -> bytes:
        lists = decode(data)
        assert self.identity is not None
        joined = [b"".join(map(be32, lists[kind])) for kind in ("survivors", "dropped")]
        signature = self.identity.sign(frame("sign survivors", self.binding, bytes((self.sum,)), *joined))
        return encode(self._message("consistency", signature=signature))

    def unmask(self, data: bytes) -> bytes:
        request = decode(data)
        if self.params["neighbours"] is not None:
            self._require_cohort(request)
        shares = []
        for k in sorted(request["survivors"] + request["dropped"]):
            start = 66 * self.sum + (33 if k in request["survivors"] else 0)
            shares.append(self.shares[k][start : start + 33])
        answer = encode(self._message("unmask-shares", shares=shares))
        self.sum += 1
        return answer

    def _require_cohort(self, request: dict[str, Any]) -> None:
        cohort, clients = request.get("cohort", b""), self.params["clients"]
        bits = to_bits(cohort)
        if len(cohort) != (clients + 7) // 8 or any(bits[clients:]):
            raise Refused("a bitmap of another cohort")
        if [place for place in self.members if bits[place]] != request["survivors"]:
            raise Refused("the bitmap contradicts the lists")
        if sum(bits) < self.params.get("least_survivors", 0):
            raise Refused("too few survivors")

    def _header(self, sender: int, receiver: int) -> bytes:
        return frame("seal shares", self.params["round_id"], be32(sender), be32(receiver))

    def _message(self, kind: str, *, summed: bool = True, **fields: Any) -> dict[str, Any]:
        about = {"sum": self.sum} if summed else {}
        head = {"type": kind, "round_id": self.params["round_id"], **about, "sender": self.position}
        return head | fields
