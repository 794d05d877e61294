"""One client's side of a session with secure sums: keys, shares, masks (secure-aggregation.md 2, 4, 5)."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from second_client.wire import (
    Refused,
    ascending,
    be32,
    derive,
    digest,
    encode,
    frame,
    insist,
    joined,
    pack,
    require,
)

Draw = Callable[[int], bytes]  # so many fresh random bytes

PRIME = 2**256 + 297
F31 = 2**31 - 1
CURVE = 2**255 - 19


# -- primitives (2) ----------------------------------------------------------------------------------


def sign(identity: Ed25519PrivateKey, label: str, *parts: bytes) -> bytes:
    return identity.sign(frame("sign " + label, *parts))


def verify(public: bytes, signature: bytes, label: str, *parts: bytes) -> None:
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, frame("sign " + label, *parts))
    except (InvalidSignature, ValueError):
        raise Refused("a signature that does not verify") from None


def public_of(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes, public: bytes) -> bytes:
    try:
        return X25519PrivateKey.from_private_bytes(private).exchange(
            X25519PublicKey.from_public_bytes(public)
        )
    except ValueError:
        raise Refused("a key of small order") from None


def split(secret: bytes, threshold: int, points: Sequence[int], draw: Draw) -> list[bytes]:
    """Shamir's shares of a secret (2.7)."""
    coefficients = []
    while len(coefficients) < threshold - 1:
        drawn = int.from_bytes(draw(33), "big") % 2**257
        if drawn < PRIME:
            coefficients.append(drawn)
    shares = []
    for point in points:
        value = 0
        for coefficient in (*coefficients, int.from_bytes(secret, "big")):
            value = (value * point + coefficient) % PRIME
        shares.append(value.to_bytes(33, "big"))
    return shares


def stream(key: bytes, ring: str, words: int) -> np.ndarray:
    """The first words of the mask stream under a key (2.5)."""
    size = 8 if ring == "z64" else 4
    raw = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor().update(bytes(size * words))
    found = np.frombuffer(raw, f"<u{size}").astype(np.uint64)
    if ring == "f31":
        found &= np.uint64(F31)
        for place in np.flatnonzero(found == F31).tolist():
            found[place] = redrawn(key, place)
    return found


def redrawn(key: bytes, place: int) -> int:
    attempt = 0
    while True:
        attempt += 1
        block = ((attempt << 96) + place).to_bytes(16, "big")
        raw = Cipher(algorithms.AES256(key), modes.ECB()).encryptor().update(block)  # noqa: S305
        word = int.from_bytes(raw[:4], "little") & F31
        if word != F31:
            return word


# -- the session (4) ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Policy:
    """What a client insists on (4.2)."""

    min_clients: int = 3
    min_threshold: int = 2
    min_contributors: int = 1
    max_words: int = 1_000_000


class Session:
    """Keys for one check-in, and what becomes of them. ``known`` (active mode): public keys by client id."""

    def __init__(
        self,
        client: str,
        policy: Policy,
        *,
        sums: int = 2,
        identity: Ed25519PrivateKey | None = None,
        known: Mapping[str, bytes] | None = None,
        draw: Draw = os.urandom,
    ) -> None:
        self.draw = draw
        self.policy, self.known, self._identity = policy, known, identity
        self._channel = draw(32)
        self._masks = [draw(32) for _ in range(sums)]
        self._seeds = [draw(32) for _ in range(sums)]
        self._shares: dict[int, list[bytes]] = {}  # from each sender: mask key and seed of each sum in turn
        self._signed: tuple[list[int], list[int]] | None = None
        masks = [public_of(mask) for mask in self._masks]
        commitments = [digest("seed-commitment", seed) for seed in self._seeds]
        self.keys: dict[str, Any] = {
            "type": "keys",
            "client": client,
            "channel": public_of(self._channel),
            "masks": masks,
            "commitments": commitments,
            "signature": None,
        }
        if known is not None:
            assert identity is not None
            self.keys["signature"] = sign(identity, "keys", *_signed_keys(self.keys))

    # -- exchange 1: the roster ------------------------------------------------------------------------

    def handle_roster(self, roster: dict[str, Any]) -> bytes:
        params, members = roster["params"], roster["members"]
        self._check(params, members)
        require(not {"root", "proof"} & set(roster), "a root on a complete graph")
        self.round_id, self.threshold, self.sums = params["round_id"], params["threshold"], params["sums"]
        self.members = {member["position"]: member["keys"] for member in members}
        self.position = next(place for place, keys in self.members.items() if keys == self.keys)
        self.binding = digest("roster", b"\x01" + pack(roster))
        secrets = [secret for both in zip(self._masks, self._seeds, strict=True) for secret in both]
        points = [place + 1 for place in self.members]
        dealt = [split(secret, self.threshold, points, self.draw) for secret in secrets]
        boxes = []
        for place, *shares in zip(self.members, *dealt, strict=True):
            if place == self.position:
                self._shares[place] = shares
            else:
                key = self._channel_key(place, outgoing=True)
                header = frame("seal shares", self.round_id, be32(self.position), be32(place))
                boxes.append(AESGCM(key).encrypt(bytes(12), joined(shares), header))
        return encode(
            "sealed-shares",
            round_id=self.round_id,
            sender=self.position,
            boxes=boxes,
            request=[],
            request_signature=None,
        )

    def _check(self, params: dict[str, Any], members: list[dict[str, Any]]) -> None:
        """4.1 and 4.2, for the complete graph."""
        clients, threshold, sums = params["clients"], params["threshold"], params["sums"]
        active, everyone = self.known is not None, [member["keys"] for member in members]
        require(not self._shares, "these keys have answered a roster")
        insist(params["active"] == active and len(sums) == len(self._masks), "another mode or other sums")
        require(params["neighbours"] is None and threshold <= clients <= 512, "not a complete graph")
        require("least_survivors" not in params, "the threshold says how many survive")
        require(not active or threshold >= 2 * clients // 3 + 1, "too low a threshold")
        require(len({one["label"] for one in sums}) == len(sums), "a label twice")
        require(sums[0]["layout"] is not None, "the first sum's layout is missing")
        insist(clients >= self.policy.min_clients, "too few clients")
        insist(threshold >= self.policy.min_threshold, "too low a threshold")
        for one in sums:
            layout = one["layout"]
            if layout is None or layout["tables"]:
                insist(one["min_contributors"] >= self.policy.min_contributors, "too few contributors")
            if layout is not None:
                rows = sum(table["rows"] for table in layout["tables"])
                insist(max(layout["dense"], rows // 32) <= self.policy.max_words, "too many words")
        require([member["position"] for member in members] == list(range(clients)), "other positions")
        require(everyone.count(self.keys) == 1, "our keys are not there once")
        require(len({keys["client"] for keys in everyone}) == clients, "an id twice")
        publics = [key for keys in everyone for key in (keys["channel"], *keys["masks"])]
        require(len(set(publics)) == len(publics), "a key twice")
        require(all(int.from_bytes(key, "little") < CURVE for key in publics), "a key that is not canonical")
        for keys in everyone:
            require(len(keys["masks"]) == len(keys["commitments"]) == len(sums), "keys for other sums")
            if self.known is not None:
                require(keys["client"] in self.known and keys["signature"] is not None, "an unknown client")
                verify(self.known[keys["client"]], keys["signature"], "keys", *_signed_keys(keys))
            agree(self._channel, keys["channel"])

    def _channel_key(self, peer: int, *, outgoing: bool) -> bytes:
        mine, theirs = self.keys["channel"], self.members[peer]["channel"]
        ends = (mine, theirs) if outgoing else (theirs, mine)
        return derive(agree(self._channel, theirs), "channel", self.binding, *ends)

    # -- exchange 2: the others' shares ----------------------------------------------------------------

    def handle_inbound(self, message: dict[str, Any]) -> list[int]:
        """Keep the shares; returns the participants of the first sum."""
        senders, boxes = message["senders"], message["boxes"]
        require(message["round_id"] == self.round_id, "another round")
        require(not self._started(), "shares a second time")
        require(ascending(senders) and set(senders) <= self.members.keys() - {self.position}, "other senders")
        require(len(boxes) == len(senders), "not one box for each")
        require(not message["requesters"] and not message["requests"], "there are no rows in this sum")
        self._enough([*senders, self.position])
        opened = {}
        for sender, box in zip(senders, boxes, strict=True):
            header = frame("seal shares", self.round_id, be32(sender), be32(self.position))
            try:
                plain = AESGCM(self._channel_key(sender, outgoing=False)).decrypt(bytes(12), box, header)
            except (InvalidTag, ValueError):
                raise Refused("a box that does not open") from None
            require(len(plain) == 66 * len(self._masks), "not the right number of shares")
            shares = [plain[at : at + 33] for at in range(0, len(plain), 33)]
            require(all(int.from_bytes(share, "big") < PRIME for share in shares), "not a share")
            opened[sender] = shares
        self._shares |= opened
        self._left = sorted([*senders, self.position])
        return self._left

    def _started(self) -> bool:
        return len(self._shares) > 1

    def _enough(self, positions: Sequence[int]) -> None:
        require(len(positions) >= max(self.threshold, self.policy.min_clients), "too few are left")

    # -- masking (4.4, 5.1) ----------------------------------------------------------------------------

    def start(
        self,
        number: int,
        layout: dict[str, Any],
        participants: list[int],
        caller: bytes,
        requests: Sequence[bytes] | None = None,
    ) -> None:
        """``requests`` (active mode, with tables): all bitmaps, by participant and then by table."""
        require(ascending(participants) and self.position in participants, "other participants")
        require(set(participants) <= set(self._left), "a participant that had left")
        self._enough(participants)
        parts = [self.sums[number]["label"].encode(), pack(layout), be32(*participants), caller]
        if requests is not None:
            parts.append(digest("requests", *requests))
        self._number, self._participants, self._context = number, participants, digest("sum", *parts)

    def mask(self, words: np.ndarray, covered: Mapping[int, np.ndarray] | None = None) -> bytes:
        """``covered``: for each other participant, which words it has too; all of them unless given."""
        number, ring = self._number, self.sums[self._number]["ring"]
        private, here = self._masks[number], self.position
        key = derive(self._seeds[number], "self-mask", self.binding, self._context, be32(here))
        added, taken = words.astype(np.uint64), np.zeros(len(words), np.uint64)
        modulus = np.uint64(F31) if ring == "f31" else None
        added = _sum(added, stream(key, ring, len(words)), modulus)
        for peer in self._participants:
            if peer == here:
                continue
            theirs, low, high = self.members[peer]["masks"][number], min(here, peer), max(here, peer)
            ends = sorted([public_of(private), theirs])
            key = derive(
                agree(private, theirs), "pair-mask", self.binding, self._context, be32(low, high), *ends
            )
            places = np.ones(len(words), bool) if covered is None else covered[peer]
            pair = stream(key, ring, int(places.sum()))
            side = added if here < peer else taken
            side[places] = _sum(side[places], pair, modulus)
        total = added - taken if modulus is None else (added + modulus - taken) % modulus
        return encode(
            "masked-vector",
            round_id=self.round_id,
            sum=number,
            sender=here,
            words=total.astype("<u8" if ring == "z64" else "<u4").tobytes(),
        )

    def sign_request(self, number: int, bitmaps: Sequence[bytes]) -> bytes | None:
        if self.known is None or self._identity is None:
            return None
        return sign(self._identity, "request", self.binding, bytes([number]), *bitmaps)

    def verify_request(self, number: int, sender: int, request: dict[str, Any]) -> None:
        assert self.known is not None
        public = self.known[self.members[sender]["client"]]
        parts = (self.binding, bytes([number]), *request["bitmaps"])
        verify(public, request["signature"], "request", *parts)

    # -- exchanges 2a and 3 ----------------------------------------------------------------------------

    def handle_survivors(self, message: dict[str, Any]) -> bytes:
        assert self._identity is not None
        lists = self._lists(message)
        require(self._signed is None, "lists a second time")
        self._signed = lists
        return encode(
            "consistency",
            round_id=self.round_id,
            sum=self._number,
            sender=self.position,
            signature=sign(self._identity, "survivors", *self._signed_lists(lists)),
        )

    def handle_unmask(self, message: dict[str, Any]) -> bytes:
        require("cohort" not in message, "survivors of a cohort besides the lists")
        survivors, dropped = lists = self._lists(message)
        if self.known is not None:
            require(lists == self._signed, "other lists than those we signed")
            signers = [place for place, _ in message["signatures"]]
            require(ascending(signers) and set(signers) <= set(survivors), "other signers")
            self._enough(signers)
            for place, signature in message["signatures"]:
                public = self.known[self.members[place]["client"]]
                verify(public, signature, "survivors", *self._signed_lists(lists))
        self._signed, self._left = None, survivors
        # Of a survivor the seed's share, of a dropped client the mask key's: never both of one.
        shares = [
            self._shares[place][2 * self._number + (place in survivors)]
            for place in sorted([*survivors, *dropped])
        ]
        return encode(
            "unmask-shares", round_id=self.round_id, sum=self._number, sender=self.position, shares=shares
        )

    def _lists(self, message: dict[str, Any]) -> tuple[list[int], list[int]]:
        survivors, dropped = message["survivors"], message["dropped"]
        require(message["round_id"] == self.round_id and message["sum"] == self._number, "another sum")
        require(ascending(survivors) and ascending(dropped), "lists out of order")
        require(sorted([*survivors, *dropped]) == self._participants, "other participants")
        require(self.position in survivors, "we are listed as dropped")
        self._enough(survivors)
        return survivors, dropped

    def _signed_lists(self, lists: tuple[list[int], list[int]]) -> tuple[bytes, ...]:
        return self.binding, bytes([self._number]), be32(*lists[0]), be32(*lists[1])


def _sum(one: np.ndarray, other: np.ndarray, modulus: np.uint64 | None) -> np.ndarray:
    return one + other if modulus is None else (one + other) % modulus


def _signed_keys(keys: dict[str, Any]) -> tuple[bytes, ...]:
    return keys["client"].encode(), keys["channel"], joined(keys["masks"]), joined(keys["commitments"])
