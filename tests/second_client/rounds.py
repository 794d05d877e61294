"""One client's side of a round: union, request, submodel, update (round.md, submodel.md 2 to 4)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np

from second_client.privacy import RandomizedResponse
from second_client.secagg import Draw, Session, stream
from second_client.union import encoding
from second_client.wire import (
    Forbidden,
    bitmap,
    decode,
    digest,
    encode,
    insist,
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
        require(bool((category_of < package["categories"]).all()), "a category that is not there")
        spec = package["model"]
        require(spec == _described(package), "a package whose parts do not make its model")
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


def _described(package: dict[str, Any]) -> dict[str, Any]:
    """The tables and the dense size that follow from a package (models.md 1 to 3)."""
    width, initial, plain = package["width"], package["initial"], package["kind"] == "logistic"
    wanted = (2, "", 0.0) if plain else (width, package["slopes"] or "none", initial)
    require((width, package["slopes"], initial) == wanted, "numbers that its kind does not have")
    kinds = [
        ("user", package["users"], 1 if plain else width, "personal", None),
        ("item", package["items"], width, "shared", None),
        ("category", package["categories"], width, "derived", "item"),
    ]
    tables = [
        {"name": name, "rows": rows, "width": wide, "kind": kind, "source": source, "initial": initial}
        for name, rows, wide, kind, source in kinds
        if name != "category" or rows
    ]
    n = 2 * width if package["categories"] else width
    m = width + 4 * n
    attention = 80 * (4 * n + 1) + 40 * 81 + 41
    din = 2 * m + attention + 200 * (m + 2) + 80 * 202 + 162
    return {"tables": tables, "dense": 1 if plain else din}


@dataclass
class Download:
    """The rows a client asked for, and the dense part."""

    rows: dict[str, dict[int, np.ndarray]]
    dense: np.ndarray
    training: dict[str, float]


@dataclass
class Update:
    """What training did: how far the dense part moved, and on how many samples; by table and row how far
    the row moved, and how many of the samples touch it."""

    dense: np.ndarray
    samples: int
    rows: dict[str, dict[int, tuple[np.ndarray, int]]] = field(default_factory=dict)
    histograms: np.ndarray | None = None  # clicks by bin, then others, where held-out samples were scored


Train = Callable[[Download], Update]


# -- the update's words (submodel.md 3) --------------------------------------------------------------


def quantized(delta: np.ndarray, weights: np.ndarray, params: dict[str, Any], draw: Draw) -> np.ndarray:
    """Rows of moves [n, width] with a weight each as words [n, width + 1]."""
    require(bool(np.isfinite(delta).all()), "an update that is not finite")
    weights = np.minimum(weights, params["max_weight"])[:, None]
    x = np.clip(delta.astype(np.float64), -params["clip"], params["clip"]) / params["clip"]
    x = x * (weights * params["levels"])
    drawn = stream(draw(32), "z32", x.size).reshape(x.shape)
    steps = np.floor(x) + (drawn < (x - np.floor(x)) * 2.0**32)
    words = np.concatenate([steps.astype(np.int64), weights], axis=1)
    return words.astype(np.uint64)  # two's complement; the ring takes its lowest bits


# -- the round (round.md) ----------------------------------------------------------------------------

ORDER = ["invitation", "inbound-shares", "unmask-request", "union", "submodel", "unmask-request"]
ORDER_ACTIVE = [*ORDER[:2], "survivors", *ORDER[2:5], "survivors", *ORDER[5:]]


class Round:
    """Answers the messages of one round, each once, in their order. ``real``: rows of each shared table.
    ``told``: what of the model is bound into masks besides (3)."""

    def __init__(
        self,
        session: Session,
        model: Model,
        real: Mapping[str, Sequence[int]],
        response: RandomizedResponse,
        train: Train,
        max_clip: float = 10.0,
        told: Sequence[bytes] = (),
    ) -> None:
        self._told = told
        self._session, self._model, self._train, self._max_clip = session, model, train, max_clip
        self._response = response
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
        try:
            return self._handlers[message["type"]](message)
        except Forbidden:
            return encode("decline", round_id=message["roster"]["params"]["round_id"])
        finally:
            del self._awaited[0]  # whatever became of it, no message is answered twice

    def _invitation(self, message: dict[str, Any]) -> bytes:
        self._params = params = message["round"]
        self._context = digest("round", pack(params), *self._told)
        model, update, session = params["model"], params["update"], message["roster"]["params"]
        require(model == {"tables": self._model.tables, "dense": self._model.dense}, "another model")
        domain = sum(table["rows"] for table in self._model.shared)
        require(params["union"]["domain"] == domain, "another index space")
        for one in (update["rows"], update["dense"]):
            bits = 63 if one["ring"] == "z64" else 31
            most = one["max_weight"] * one["levels"]
            require(one["cohort"] * most < 2**bits and most <= 2**52, "sums that could overflow")
            insist(one["clip"] <= self._max_clip, "too wide a clip")
            require(session["clients"] <= one["cohort"], "more clients than planned for")
            same = ("ring", "cohort")
            require(all(one[name] == update["rows"][name] for name in same), "two rings or cohorts")
        weights = update["averaging"]["weights"]
        require(weights != "owners" or update["rows"]["max_weight"] == 1, "owners that weigh more than 1")
        self._encoding = encoding(params["union"])
        sums = [
            {
                "label": "union",
                "ring": self._encoding.ring,
                "min_contributors": 1,
                "layout": {"dense": self._encoding.length, "tables": []},
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
        if len(indices) > self._encoding.capacity:
            indices = []  # private-set-union.md 9.3: silence would tell its size
        return self._session.mask(self._encoding.fill(indices, self._session.draw))

    def _union(self, message: dict[str, Any]) -> bytes:
        params = self._params["union"]
        require(message["round_id"] == self._session.round_id, "another round")
        require(
            0 < message["count"] <= 2 * self._encoding.capacity + 1024, "an empty union, or too large a one"
        )
        self._packed = message["packed"]
        indices = np.array(read_set(self._packed, message["count"], params["domain"]), np.int64)
        offset, shared, asked = 0, {}, {}
        for table in self._model.shared:
            name, rows = table["name"], table["rows"]
            shared[name] = indices[(offset <= indices) & (indices < offset + rows)] - offset
            union, real = shared[name].tolist(), self._real[name].tolist()
            asked[name] = shared[name][self._response.asks(name, union, real, self._session.draw)]
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
        self._require_committed(message)
        model = digest("dense", message["dense"]), message["root"]
        caller = digest("update", self._context, digest("union indices", self._packed), *model)
        self._session.start(1, layout, message["participants"], caller, requests)
        asked = sum(len(self._asked[one["name"]]) * (one["width"] + 1) for one in summed)
        require(layout["dense"] + asked <= self._session.policy.max_words, "too large an upload")
        update = self._train(self._download(message))
        tables = [self._row_words(table, update) for table in summed]
        dense = quantized(
            update.dense[None], np.array([update.samples]), params["update"]["dense"], self._session.draw
        )
        scores = np.zeros(2 * bins) if update.histograms is None else update.histograms
        words = [dense[0], scores.astype(np.uint64)]
        covered = {place: [np.ones(layout["dense"], bool)] for place in others}
        for table, rows in zip(summed, tables, strict=True):
            bits = shared_by[table["name"]]  # one line per other participant
            kept = bits.sum(axis=0) + 1 >= params["min_contributors"]
            words.append(rows[kept].reshape(-1))
            for place, line in zip(others, bits, strict=True):
                covered[place].append(np.repeat(line[kept], table["width"] + 1))
        return self._session.mask(
            np.concatenate(words), {place: np.concatenate(lines) for place, lines in covered.items()}
        )

    def _require_committed(self, message: dict[str, Any]) -> None:
        """In active mode the rows are leaves of a hash tree, whose root is in all masks (round.md 3.1)."""
        if self._session.known is None:
            require(not message["proof"], "a proof outside active mode")
            return
        size = 2 if self._params["precision"] == "float16" else 4
        require(len(message["rows"]) == len(self._model.summed), "not the rows of each table")
        told = []
        for table, data in zip(self._model.summed, message["rows"], strict=True):
            union = self._rows[table["name"]]
            places = np.flatnonzero(np.isin(union, self._asked[table["name"]])).tolist()
            require(len(data) == size * table["width"] * len(places), "another number of values")
            told.append((data, places, len(union)))
        require_committed(self._session.binding, told, message["root"], message["proof"])

    def _row_words(self, table: dict[str, Any], update: Update) -> np.ndarray:
        """Words for all rows that we asked for, trained or not (submodel.md 3.3, 4.1)."""
        params, asked = self._params["update"], self._asked[table["name"]].tolist()
        trained = {row: one for row, one in update.rows.get(table["name"], {}).items() if row in asked}
        counts = np.array([trained[row][1] for row in sorted(trained)], np.int64)
        kind, idle = params["averaging"]["weights"], 0
        if kind == "owners":
            counts = np.minimum(counts, 1)
        elif kind == "dataset":
            counts, idle = np.full_like(counts, update.samples), update.samples
        moves = np.array([trained[row][0] for row in sorted(trained)]).reshape(-1, table["width"])
        words = np.zeros((len(asked), table["width"] + 1), np.uint64)
        words[:, -1] = min(idle, params["rows"]["max_weight"])
        places = [asked.index(row) for row in sorted(trained)]
        words[places] = quantized(moves, counts, params["rows"], self._session.draw)
        return words

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


def require_committed(
    binding: bytes, tables: list[tuple[bytes, list[int], int]], root: bytes, proof: bytes
) -> None:
    """``tables``: of each its rows as they came, their places in the union, and how many that has."""
    key, known, start = digest("rows", binding), {}, 0
    for data, places, count in tables:
        width = len(data) // max(len(places), 1)
        for number, place in enumerate(places):
            row = data[number * width : (number + 1) * width]
            known[start + place] = sha256(b"\0" + key + row).digest()[:20]
        start += count
    while known and start > 1:
        above = {}
        for place in sorted(known):
            pair = place // 2 * 2
            if place == pair + 1 and pair in known:
                continue
            if pair + 1 == start:
                above[place // 2] = known[place]
                continue
            sides = []
            for side in (pair, pair + 1):
                if side not in known:
                    require(len(proof) >= 20, "a proof that is too short")
                sides.append(known[side] if side in known else proof[:20])
                proof = proof if side in known else proof[20:]
            above[place // 2] = sha256(b"\1" + key + sides[0] + sides[1]).digest()[:20]
        known, start = above, (start + 1) // 2
    require(not proof, "a proof that is too long")
    require(not known or known[0] == root, "rows of another model than the committed one")
