"""One client's side of rounds over hot rows: surveys, and rounds that train (hot.md)."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from second_client.noise import gaussian
from second_client.rounds import Model, Update
from second_client.secagg import Draw, Session, stream
from second_client.wire import Forbidden, ascending, decode, digest, encode, insist, pack, require

Fetch = Callable[[bytes], bytes]  # what everybody downloads, by its digest


@dataclass(frozen=True)
class Limits:
    """What its owner allows (hot.md 8). ``corrupt``: the share of a cohort that may work with the server."""

    rho: float = math.inf
    corrupt: float = 0.1
    clip: float = 10.0
    marks: int = 1000
    megabytes: float = 10.0


@dataclass
class HotDownload:
    """The model over hot rows. A cold row is not in it, and begins as ``first`` says."""

    rows: dict[str, dict[int, np.ndarray]]
    dense: np.ndarray
    training: dict[str, float]
    bins: dict[str, Any] | None
    first: Callable[[str, int], np.ndarray]


Train = Callable[[HotDownload], Update]


def length(params: Mapping[str, Any]) -> int:
    tables = params["model"]["tables"]
    if params["kind"] == "survey":
        return sum(table["rows"] for table in tables if table["kind"] == "shared")
    widths = {table["name"]: table["width"] for table in tables}
    rows = sum(count * widths[name] for name, count in params["rows"].items())
    return params["model"]["dense"] + rows + 2 * bins(params) + 1


def bins(params: Mapping[str, Any]) -> int:
    return params["scores"]["bins"] if params["scores"] else 0


def sensitivity(params: Mapping[str, Any]) -> float:
    if params["kind"] == "survey":
        return params["levels"] * math.sqrt(params["marks"])
    return params["levels"] + math.sqrt(length(params))


def cost(params: Mapping[str, Any], least: int, clients: int, corrupt: float) -> float:
    """Rho of taking part (hot.md 7, privacy.md 10.2)."""
    honest = least - math.floor(corrupt * clients + 1e-9)
    insist(honest > 0, "nobody honest for certain")
    if params["deviation"] == 0:
        return math.inf
    insist(2.5 <= params["deviation"] <= 2**24 and honest <= 100_000, "noise out of bounds")
    return sensitivity(params) ** 2 / (2 * honest * params["deviation"] ** 2) + 1e-12


def require_parameters(params: Mapping[str, Any]) -> None:
    """hot.md 2, beyond the bounds of single fields."""
    summed = [table["name"] for table in params["model"]["tables"] if table["kind"] != "personal"]
    trains = params["kind"] == "train"
    require(set(params["rows"]) == set(summed if trains else []), "rows of other tables")
    require({len(params["hot"]), len(params["blob"])} == {32 if trains else 0}, "digests of other lengths")
    require(length(params) <= 2**40, "too long a vector")


def context(params: Mapping[str, Any], *told: bytes) -> bytes:
    return digest("hot round", pack(params), *told)


# -- vectors (hot.md 3, 6) ---------------------------------------------------------------------------


def marked(params: Mapping[str, Any], real: Mapping[str, Sequence[int]], draw: Draw) -> np.ndarray:
    offset, indices = 0, list[int]()
    for table in params["model"]["tables"]:
        if table["kind"] == "shared":
            indices += [offset + row for row in sorted(set(real[table["name"]]))]
            offset += table["rows"]
    if len(indices) > params["marks"]:
        tickets = draw(16 * len(indices))
        order = sorted((tickets[16 * k : 16 * k + 16], index) for k, index in enumerate(indices))
        indices = [index for _, index in order[: params["marks"]]]
    vector = np.zeros(offset, np.int64)
    vector[indices] = params["levels"]
    return vector


def updated(
    params: Mapping[str, Any], hot: Mapping[str, list[int]], update: Update, draw: Draw
) -> np.ndarray:
    clip, parts = params["clip"], [np.asarray(update.dense, np.float64)]
    for table in params["model"]["tables"]:
        if table["kind"] == "personal":
            continue
        rows = hot[table["name"]]
        moves = np.zeros((len(rows), table["width"]))
        for row, (move, _) in update.rows.get(table["name"], {}).items():
            moves[rows.index(row)] = move
        parts.append(moves.reshape(-1))
    moved = np.concatenate(parts)
    require(len(parts[0]) == params["model"]["dense"], "not such an update")
    if not np.isfinite(moved).all():
        return np.zeros(length(params), np.int64)
    moved, cut = shortened(moved, math.sqrt(1 - 0.1**2 - 0.05**2) * clip)
    counts = np.zeros(2 * bins(params)) if update.histograms is None else update.histograms
    scores, _ = shortened(0.02 * clip * counts, 0.1 * clip)
    x = np.concatenate([moved, scores, [0.05 * clip if cut else 0.0]])
    y = x * (params["levels"] / clip) * (1 - 1e-9)
    drawn = stream(draw(32), "z32", len(y))
    words = (np.floor(y) + (drawn < (y - np.floor(y)) * 2.0**32)).astype(np.int64)
    require(math.sqrt(sum(int(one) ** 2 for one in words)) <= sensitivity(params), "too long a vector")
    return words


def shortened(vector: np.ndarray, longest: float) -> tuple[np.ndarray, bool]:
    norm = math.sqrt(float(vector @ vector))
    return (vector * (longest / norm), True) if norm > longest else (vector, False)


# -- what is downloaded (hot.md 4, 5) ----------------------------------------------------------------


def read_hot_set(data: bytes, params: Mapping[str, Any]) -> dict[str, list[int]]:
    require(digest("hot set", data) == params["hot"], "other hot rows than announced")
    found, hot = decode(data, "hot-set"), {}
    for table in params["model"]["tables"]:
        if table["kind"] == "personal":
            continue
        name = table["name"]
        rows, owners = found["rows"].get(name, b""), found["owners"].get(name, b"")
        require(
            len(rows) == 8 * params["rows"][name] and 2 * len(owners) == len(rows), "another number of rows"
        )
        hot[name] = np.frombuffer(rows, "<i8").tolist()
        require(ascending(hot[name]), "rows that do not ascend")
        require(not hot[name] or (hot[name][0] >= 0 and hot[name][-1] < table["rows"]), "rows of no table")
    return hot


def first_values(seed: bytes, table: Mapping[str, Any], row: int) -> np.ndarray:
    """Where a row begins (submodel.md 6)."""
    key = digest("initial rows", seed, table["name"].encode())
    cipher = Cipher(algorithms.AES256(key), modes.ECB()).encryptor()  # noqa: S305
    blocks = -(-table["width"] // 4)
    raw = cipher.update(
        b"".join(row.to_bytes(8, "big") + block.to_bytes(8, "big") for block in range(blocks))
    )
    words = np.frombuffer(raw, "<i4")[: table["width"]]
    return ((words >> 8) * np.float32(table["initial"] / 2**23)).astype(np.float32)


def read_blob(data: bytes, params: Mapping[str, Any], hot: Mapping[str, list[int]]) -> HotDownload:
    require(digest("hot model", data) == params["blob"], "another model than announced")
    size, at = 2 if params["precision"] == "float16" else 4, 4 * params["model"]["dense"]
    tables = {table["name"]: table for table in params["model"]["tables"]}
    require(
        len(data) == at + size * sum(len(rows) * tables[name]["width"] for name, rows in hot.items()),
        "a model of another size",
    )
    dense, rows = np.frombuffer(data[:at], "<f4"), {}
    for name, numbers in hot.items():
        width = tables[name]["width"]
        part = np.frombuffer(data, f"<f{size}", count=len(numbers) * width, offset=at).astype(np.float32)
        at += part.size * size
        require(bool(np.isfinite(part).all()), "values that are not finite")
        rows[name] = dict(zip(numbers, part.reshape(-1, width), strict=True))
    require(bool(np.isfinite(dense).all()), "values that are not finite")
    return HotDownload(
        rows,
        dense,
        params["training"],
        params["scores"],
        lambda name, row: first_values(params["seed"], tables[name], row),
    )


# -- the round (hot.md 1) ----------------------------------------------------------------------------

ORDER = ["hot-invitation", "inbound-shares", "unmask-request"]
ORDER_ACTIVE = ["hot-invitation", "inbound-shares", "survivors", "unmask-request"]


class HotRound:
    """Answers the messages of one round, each once, in their order. ``spent`` is what a ledger would keep:
    a client for people writes it durably before the vector leaves."""

    def __init__(
        self,
        session: Session,
        model: Model,
        real: Mapping[str, Sequence[int]],
        train: Train,
        fetch: Fetch,
        limits: Limits | None = None,
        told: Sequence[bytes] = (),
    ) -> None:
        self._told = told
        self._session, self._model, self._real = session, model, real
        self._train, self._fetch, self._limits = train, fetch, limits or Limits()
        self._awaited = list(ORDER if session.known is None else ORDER_ACTIVE)
        self._handlers = {
            "hot-invitation": self._invitation,
            "inbound-shares": self._inbound,
            "survivors": session.handle_survivors,
            "unmask-request": session.handle_unmask,
        }
        self.spent = 0.0

    def answer(self, data: bytes) -> bytes:
        message = decode(data, self._awaited[0])
        try:
            return self._handlers[message["type"]](message)
        except Forbidden:
            return encode("decline", round_id=message["roster"]["params"]["round_id"])
        finally:
            del self._awaited[0]  # whatever became of it, no message is answered twice

    def _invitation(self, message: dict[str, Any]) -> bytes:
        params, session, limits = message["round"], message["roster"]["params"], self._limits
        require_parameters(params)
        model = {"tables": self._model.tables, "dense": self._model.dense}
        require(params["model"] == model, "another model")
        one = {
            "label": f"hot-{params['kind']}",
            "ring": "z32",
            "min_contributors": 1,
            "layout": {"dense": length(params), "tables": []},
        }
        require(session["sums"] == [one], "another sum than the round's")
        # On the complete graph a sum opens with the threshold's number of clients, or more.
        self._rho = cost(params, session["threshold"], session["clients"], limits.corrupt)
        insist(self._rho <= limits.rho, "too dear a round")
        trains = params["kind"] == "train"
        insist(not trains or params["clip"] <= limits.clip, "too wide a clip")
        insist(trains or params["marks"] <= limits.marks, "too many marks")
        insist(8 * length(params) <= limits.megabytes * 2**20, "too large a round")
        self._params = params
        return self._session.handle_roster(message["roster"])

    def _inbound(self, message: dict[str, Any]) -> bytes:
        params, draw = self._params, self._session.draw
        hot, download = {}, None
        if params["kind"] == "train":
            hot = read_hot_set(self._fetch(params["hot"]), params)
            download = read_blob(self._fetch(params["blob"]), params, hot)
        participants = self._session.handle_inbound(message)
        self._session.start(0, self._session.sums[0]["layout"], participants, context(params, *self._told))
        if download is None:
            vector = marked(params, self._real, draw)
        else:
            vector = updated(params, hot, self._train(download), draw)
        self.spent += self._rho
        if params["deviation"]:
            vector = vector + gaussian(params["deviation"], len(vector), draw)
        return self._session.mask(vector.astype(np.uint64))
