"""One client's side of a round: union, request, submodel, update (round.md, submodel.md, union pages)."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from math import isqrt
from typing import Any

import numpy as np

from second_client.secagg import F31, Session
from second_client.wire import (
    bitmap,
    decode,
    digest,
    encode,
    frame,
    pack,
    read_bitmap,
    read_requesters,
    read_set,
    require,
)

# -- what is trained ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    """What the package describes (network.md 4.4): tables, dense size, the public map of derived rows."""

    digest: bytes
    tables: list[dict[str, Any]]
    dense: int
    category_of: np.ndarray

    @classmethod
    def read(cls, data: bytes) -> "Model":
        package = decode(data, "model-package")
        size = next(size for size in (1, 2, 4, 8) if package["categories"] <= 256**size)
        category_of = np.frombuffer(package["category_of"], f"<u{size}").astype(np.int64)
        expected = package["items"] if package["categories"] else 0
        require(len(category_of) == expected, "another number of items")
        spec = package["model"]
        return cls(digest("model package", data), spec["tables"], spec["dense"], category_of)

    @property
    def shared(self) -> list[dict[str, Any]]:
        return [table for table in self.tables if table["kind"] == "shared"]

    @property
    def summed(self) -> list[dict[str, Any]]:
        return [table for table in self.tables if table["kind"] != "personal"]

    def with_derived(self, rows: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The rows of all summed tables that follow from those of the shared ones (submodel.md 2.2)."""
        return {
            table["name"]: np.unique(self.category_of[rows[table["source"]]])
            if table["kind"] == "derived"
            else rows[table["name"]]
            for table in self.summed
        }


@dataclass
class Download:
    """The rows a client asked for, and the dense part."""

    rows: dict[str, dict[int, np.ndarray]]
    dense: np.ndarray
    training: dict[str, float]


@dataclass
class Update:
    """By how much things moved: the dense part with its weight; by table and row a move and its weight."""

    dense: np.ndarray
    weight: int
    rows: dict[str, dict[int, tuple[np.ndarray, int]]] = field(default_factory=dict)


Train = Callable[[Download], Update]


# -- the union's vector (private-set-union.md 9, union-sizing.md) ------------------------------------


class Hash:
    """A function of the round's seed, a purpose and a number."""

    def __init__(self, seed: bytes, purpose: str, number: int) -> None:
        key = sha256(frame("union hash", seed, purpose.encode(), number.to_bytes(4, "big"))).digest()
        self._a, self._b = (int.from_bytes(key[at : at + 8], "little") for at in (0, 8))

    def below(self, index: int, bound: int) -> int:
        return ((_mix(_mix(index ^ self._a) ^ self._b) >> 32) * bound) >> 32


def _mix(z: int) -> int:
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) % 2**64
    return z ^ z >> 31


def union_vector(union: dict[str, Any], indices: Sequence[int] = ()) -> tuple[str, np.ndarray]:
    """The ring and the words of an encoded set."""
    domain, capacity = union["domain"], union["capacity"]
    require(
        len(indices) <= capacity and all(0 <= index < domain for index in indices), "a set that is too large"
    )
    if union["encoding"] == "whole":
        require(domain <= 2**26, "too large a domain")
        return "z32", np.zeros(0, np.uint64)
    if union["encoding"] == "identity":
        words = np.zeros(domain, np.uint64)
        words[list(indices)] = np.frombuffer(os.urandom(4 * len(indices)), "<u4")
        return "z32", words
    require(union["encoding"] == "sketch", "an encoding that this client does not speak")
    pairs = isqrt(isqrt(1_250_000 * (capacity * (capacity - 1) // 2))) + 1
    quarter = max(16, pairs, -(-13 * capacity // 40) + isqrt(capacity) + 1)
    digits = next(d for d in range(1, 4) if domain <= 4 * F31**d)
    planes = np.zeros((digits + 2, 4 * quarter), np.uint64)
    cells = [Hash(union["seed"], "sketch cell", number) for number in range(4)]
    check = Hash(union["seed"], "sketch check", 0)
    for index in indices:
        factor = _field_element()
        column = [1, *(index // F31**d % F31 for d in range(digits)), check.below(index, F31)]
        for number, cell in enumerate(cells):
            place = number * quarter + cell.below(index, quarter)
            for plane, value in enumerate(column):
                planes[plane, place] = (int(planes[plane, place]) + factor * value) % F31
    return "f31", planes.reshape(-1)


def _field_element() -> int:
    while True:
        drawn = int.from_bytes(os.urandom(4), "little") & F31
        if drawn != F31:
            return drawn


# -- the update's words (submodel.md 3) --------------------------------------------------------------


def quantized(delta: np.ndarray, weight: int, params: dict[str, Any]) -> np.ndarray:
    require(bool(np.isfinite(delta).all()), "an update that is not finite")
    weight = min(weight, params["max_weight"])
    x = np.clip(delta.astype(np.float64), -params["clip"], params["clip"]) / params["clip"]
    x = x * (weight * params["levels"])
    drawn = np.frombuffer(os.urandom(4 * len(x)), "<u4").astype(np.float64)
    steps = np.floor(x) + (drawn < (x - np.floor(x)) * 2.0**32)
    words = np.append(steps.astype(np.int64), weight)
    return words.astype(np.uint64)  # two's complement; the ring takes its lowest bits


# -- the round (round.md) ----------------------------------------------------------------------------

ORDER = ["invitation", "inbound-shares", "unmask-request", "union", "submodel", "unmask-request"]
ORDER_ACTIVE = [
    *ORDER[:2],
    "survivors",
    *ORDER[2:5],
    "survivors",
    ORDER[5],
]


class Round:
    """Answers the messages of one round, each once, in their order.

    ``real`` is the client's rows of each shared table. It asks for exactly these: randomized response and
    the durable debits of privacy.md are left out here, and a client for people has to have them.
    """

    def __init__(
        self,
        session: Session,
        model: Model,
        real: Mapping[str, Sequence[int]],
        train: Train,
        max_clip: float = 10,
    ) -> None:
        self._session, self._model, self._train, self._max_clip = session, model, train, max_clip
        self._real = {name: np.array(sorted(rows), np.int64) for name, rows in real.items()}
        self._awaited = list(ORDER if session.known is None else ORDER_ACTIVE)
        self._handlers = {
            "invitation": self._invitation,
            "inbound-shares": self._inbound,
            "survivors": session.handle_survivors,
            "unmask-request": session.handle_unmask,
            "union": self._union,
            "submodel": self._submodel,
        }

    def answer(self, data: bytes) -> bytes:
        message = decode(data, self._awaited[0])
        answer = self._handlers[message["type"]](message)
        del self._awaited[0]
        return answer

    def _invitation(self, message: dict[str, Any]) -> bytes:
        self._params = params = message["round"]
        self._context = digest("round", pack(params))
        model, update, session = params["model"], params["update"], message["roster"]["params"]
        require(model == {"tables": self._model.tables, "dense": self._model.dense}, "another model")
        domain = sum(table["rows"] for table in self._model.shared)
        require(params["union"]["domain"] == domain, "another index space")
        for one in (update["rows"], update["dense"]):
            bits = 63 if one["ring"] == "z64" else 31
            most = one["max_weight"] * one["levels"]
            require(one["cohort"] * most < 2**bits and most <= 2**52, "sums that could overflow")
            require(one["clip"] <= self._max_clip, "too wide a clip")
            require(session["clients"] <= one["cohort"], "more clients than planned for")
            require(one["ring"] == update["rows"]["ring"], "two rings")
        ring, words = union_vector(params["union"])
        sums = [
            {
                "label": "union",
                "ring": ring,
                "min_contributors": 1,
                "layout": {"dense": len(words), "tables": []},
            },
            {
                "label": "update",
                "ring": update["rows"]["ring"],
                "min_contributors": params["min_contributors"],
                "layout": None,
            },
        ]
        require(session["sums"] == sums, "other sums than the round's")
        return self._session.handle_roster(message["roster"])

    def _inbound(self, message: dict[str, Any]) -> bytes:
        participants = self._session.handle_inbound(message)
        layout = self._session.sums[0]["layout"]
        self._session.start(0, layout, participants, self._context)
        offset, indices = 0, []
        for table in self._model.shared:
            indices += (self._real[table["name"]] + offset).tolist()
            offset += table["rows"]
        return self._session.mask(union_vector(self._params["union"], indices)[1])

    def _union(self, message: dict[str, Any]) -> bytes:
        params = self._params["union"]
        require(message["round_id"] == self._session.round_id, "another round")
        require(message["count"] <= 2 * params["capacity"] + 1024, "too large a union")
        self._packed = message["packed"]
        indices = np.array(read_set(self._packed, message["count"], params["domain"]), np.int64)
        offset, shared, asked = 0, {}, {}
        for table in self._model.shared:
            name, rows = table["name"], table["rows"]
            shared[name] = indices[(offset <= indices) & (indices < offset + rows)] - offset
            asked[name] = np.intersect1d(shared[name], self._real[name])
            offset += rows
        self._rows, self._asked = self._model.with_derived(shared), self._model.with_derived(asked)
        self._bitmaps = [
            bitmap(np.isin(self._rows[table["name"]], self._asked[table["name"]]))
            for table in self._model.summed
        ]
        return encode(
            "request",
            round_id=self._session.round_id,
            sender=self._session.position,
            bitmaps=self._bitmaps,
            signature=self._session.sign_request(1, self._bitmaps),
        )

    def _submodel(self, message: dict[str, Any]) -> bytes:
        require(message["round_id"] == self._session.round_id, "another round")
        others = [place for place in message["participants"] if place != self._session.position]
        shared_by, requests = self._who_else(message, others)
        summed, params = self._model.summed, self._params
        bins = params["scores"]["bins"] if params["scores"] else 0
        layout = {
            "dense": self._model.dense + 1 + 2 * bins,
            "tables": [{"rows": len(self._rows[one["name"]]), "width": one["width"] + 1} for one in summed],
        }
        caller = digest(
            "update", self._context, digest("union indices", self._packed), digest("dense", message["dense"])
        )
        self._session.start(1, layout, message["participants"], caller, requests)
        update = self._train(self._download(message))
        words = [
            quantized(update.dense, update.weight, params["update"]["dense"]),
            np.zeros(2 * bins, np.uint64),
        ]
        covered = {place: [np.ones(layout["dense"], bool)] for place in others}
        for table in summed:
            name, width = table["name"], table["width"] + 1
            bits = shared_by[name]  # one line per other participant
            kept = bits.sum(axis=0) + 1 >= params["min_contributors"]
            nothing = np.zeros(table["width"]), 0
            for row in self._asked[name][kept].tolist():
                move, weight = update.rows.get(name, {}).get(row, nothing)
                words.append(quantized(move, weight, params["update"]["rows"]))
            for place, line in zip(others, bits, strict=True):
                covered[place].append(np.repeat(line[kept], width))
        return self._session.mask(
            np.concatenate(words), {place: np.concatenate(lines) for place, lines in covered.items()}
        )

    def _who_else(
        self, message: dict[str, Any], others: list[int]
    ) -> tuple[dict[str, np.ndarray], list[bytes] | None]:
        """For each table who else asked for our rows; in active mode also everyone's bitmaps."""
        names = [table["name"] for table in self._model.summed]
        if self._session.known is None:
            require(not message["requests"], "signed requests")
            counts = [len(self._asked[name]) for name in names]
            bits = read_requesters(message["requesters"], len(others) * sum(counts))
            parts = np.split(bits, np.cumsum([len(others) * count for count in counts])[:-1])
            told = zip(names, parts, counts, strict=True)
            return {name: part.reshape(len(others), count) for name, part, count in told}, None
        require(not message["requesters"] and len(message["requests"]) == len(others), "not one for each")
        bitmaps = {self._session.position: self._bitmaps}
        for place, request in zip(others, message["requests"], strict=True):
            require(len(request["bitmaps"]) == len(names), "not one bitmap per table")
            require(place in self._session.members, "an unknown participant")
            self._session.verify_request(1, place, request)
            bitmaps[place] = request["bitmaps"]
        lines = {}
        for number, name in enumerate(names):
            own = np.isin(self._rows[name], self._asked[name])
            theirs = [read_bitmap(bitmaps[place][number], len(own))[own] for place in others]
            lines[name] = np.array(theirs, bool).reshape(len(others), int(own.sum()))
        return lines, [one for place in sorted(bitmaps) for one in bitmaps[place]]

    def _download(self, message: dict[str, Any]) -> Download:
        summed, size = self._model.summed, 2 if self._params["precision"] == "float16" else 4
        require(len(message["rows"]) == len(summed), "not the rows of each table")
        dense = _floats(message["dense"], 4, self._model.dense)
        rows = {}
        for table, data in zip(summed, message["rows"], strict=True):
            asked = self._asked[table["name"]].tolist()
            values = _floats(data, size, len(asked) * table["width"]).reshape(len(asked), table["width"])
            rows[table["name"]] = dict(zip(asked, values, strict=True))
        return Download(rows, dense, self._params["training"])


def _floats(data: bytes, size: int, count: int) -> np.ndarray:
    require(len(data) == size * count, "another number of values")
    values = np.frombuffer(data, f"<f{size}").astype(np.float32)
    require(bool(np.isfinite(values).all()), "values that are not finite")
    return values
