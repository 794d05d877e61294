"""Scores of a bundle's model, in plain torch.

This text is the head of ``model.py`` in every bundle: it imports nothing but torch and the standard library.
"""

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Batch = Mapping[str, Tensor]
NO_ROW = -1  # fills up a history


def read_tensors(data: bytes) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file."""
    kinds = {"F32": torch.float32, "I64": torch.int64}
    (size,) = struct.unpack("<Q", data[:8])
    found: dict[str, Tensor] = {}
    for name, one in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            start, stop = (8 + size + offset for offset in one["data_offsets"])
            kind = kinds[one["dtype"]]
            values = torch.frombuffer(bytearray(data[start:stop]), dtype=kind) if stop > start else None
            found[name] = (
                torch.empty(one["shape"], dtype=kind) if values is None else values.view(one["shape"])
            )
    return found


def first_values(key: bytes, initial: float, rows: Sequence[int], width: int) -> Tensor:
    """Return what rows begin with, uniform within ±initial; each has a stream of its own."""
    if not initial:
        return torch.zeros(len(rows), width)
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import AES256
    from cryptography.hazmat.primitives.ciphers.modes import ECB

    blocks = -(-width // 4)
    counters = b"".join(struct.pack(">QQ", row, block) for row in rows for block in range(blocks))
    encryptor = Cipher(AES256(key), ECB()).encryptor()  # noqa: S305 -- a stream of numbers, no encryption
    words = torch.frombuffer(bytearray(encryptor.update(counters)), dtype=torch.int32)
    scale = float(torch.tensor(initial / 2**23, dtype=torch.float32))
    return (words.view(len(rows), -1)[:, :width] >> 8) * scale


class Rows(nn.Module):
    """A large table. Only rows that some round moved are kept; the others are what they began with."""

    numbers: Tensor
    values: Tensor

    def __init__(self, numbers: Tensor, values: Tensor, initial: float, key: bytes) -> None:
        super().__init__()
        self.register_buffer("numbers", numbers)
        self.register_buffer("values", values)
        self.initial, self.key = initial, key

    def forward(self, wanted: Tensor) -> Tensor:
        flat, width = wanted.reshape(-1), self.values.shape[1]
        found, held = torch.zeros(len(flat), width), torch.zeros(len(flat), dtype=torch.bool)
        if len(self.numbers):
            at = torch.searchsorted(self.numbers, flat).clamp_max(len(self.numbers) - 1)
            held = self.numbers[at] == flat
            found[held] = self.values[at[held]]
        fresh, places = torch.unique(flat[~held], return_inverse=True)
        if len(fresh):
            found[~held] = first_values(self.key, self.initial, fresh.tolist(), width)[places]
        return found.view(*wanted.shape, width)


def table_of(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module:
    """Return a table as a layer that looks rows up by their numbers."""
    name = about["name"]
    if about["stored"] == "whole":
        return nn.Embedding(about["rows"], about["width"], _weight=tensors[f"{name}.weight"])
    numbers, values = tensors[f"{name}.numbers"], tensors[f"{name}.values"]
    return Rows(numbers, values, about["initial"], bytes.fromhex(about["key"]))


class ClickScorer(nn.Module):
    """The chance that somebody clicks an item, after a history of clicks.

    ``person`` [n, width] are personal rows, which no bundle has: zero where nothing is known of somebody.
    ``item`` [n] and ``history`` [n, any number, the oldest first] are row numbers, filled up with NO_ROW.
    """

    follows: Tensor | None
    parts: Tensor | None

    def __init__(
        self,
        net: Callable[..., nn.Module],
        about: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        follows: Tensor | None,
    ) -> None:
        super().__init__()
        self.net = net(**about["arguments"])
        self.net.user = nn.Identity()  # rows of people are given
        for table in about["tables"]:
            if table["stored"] != "none":
                setattr(self.net, table["name"], table_of(table, tensors))
        dense = {name: tensors[name] for name, _ in about["dense"]}
        self.net.load_state_dict({**self.net.state_dict(), **dense})
        self.register_buffer("follows", follows)
        named: tuple[str, ...] = getattr(self.net, "logit_parts", ())
        if about["parts"] and set(named) != set(about["parts"]):
            raise KeyError(f"parts {sorted(about['parts'])} of the log-odds")
        counts = torch.tensor([about["parts"][name] for name in named]) if about["parts"] else None
        self.register_buffer("parts", counts)
        self.width, self.scale, self.shift = int(about["person"]), about["scale"], about["shift"]
        self.eval().requires_grad_(False)

    def forward(self, person: Tensor, item: Tensor, history: Tensor) -> Tensor:
        batch = {"user": person, "item": item, "history": history}
        if self.follows is not None:
            batch["item_category"] = self.follows[item]
            batch["history_category"] = self.follows[history.clamp_min(0)]
        if self.parts is None:
            odds = self.net(batch)
        else:
            odds = (self.net(batch, apart=True) * self.parts).sum(dim=-1)
        return torch.sigmoid(self.scale * odds + self.shift)


class WordScorer(nn.Module):
    """The chance that a word comes next, among all words. ``context`` [n, any number] are the words before,
    filled up with NO_ROW; ``target`` [n] the words that may come next."""

    def __init__(
        self, net: Callable[..., nn.Module], about: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> None:
        super().__init__()
        self.net = net(**about["arguments"])
        self.net.load_state_dict({name: tensors[name] for name in self.net.state_dict()})
        self.words = int(about["arguments"]["words"])
        self.eval().requires_grad_(False)

    def forward(self, context: Tensor, target: Tensor) -> Tensor:
        return self.chances(context).gather(-1, target.unsqueeze(-1)).squeeze(-1)

    def chances(self, context: Tensor) -> Tensor:
        """Return the chances of all words [n, words]."""
        known = torch.full(context.shape[:1], self.words, dtype=torch.float32)
        logarithms: Tensor = self.net.chances({"context": context, "known": known})  # type: ignore[operator]
        return logarithms.exp()


Scorer = ClickScorer | WordScorer


def scorer_of(
    net: Callable[..., nn.Module], about: Mapping[str, Any], catalogue: Mapping[str, Any], data: bytes
) -> Scorer:
    """Build the scoring function of a bundle from what its files hold."""
    tensors = read_tensors(data)
    if about["kind"] == "lstm":
        return WordScorer(net, about, tensors)
    maps = [table["map"] for table in catalogue["tables"] if table.get("map") is not None]
    return ClickScorer(net, about, tensors, torch.tensor(maps[0]) if maps else None)


class Model:
    """A bundle's model, by the ids of its items or words."""

    def __init__(self, scorer: Scorer, catalogue: Mapping[str, Any]) -> None:
        self.scorer, self._table = scorer, catalogue["tables"][0]
        self._rows = {str(name): row for row, name in enumerate(self._table.get("ids") or ())}

    def row(self, name: object) -> int:
        """Return the row that an item, or a word, has; where rows have no names, they have numbers."""
        row = self._rows[str(name)] if self._rows else int(str(name))
        if not 0 <= row < self._table["rows"]:
            raise KeyError(name)
        return row

    def name(self, row: int) -> str:
        return str(self._table["ids"][row] if self._rows else row)

    def score(
        self, items: Sequence[object], history: Sequence[object] = (), person: Tensor | None = None
    ) -> list[float]:
        """Score each item (or next word) for one person, after a history of items (or words)."""
        return self._scores(
            torch.tensor([*map(self.row, items)], dtype=torch.int64), history, person
        ).tolist()

    def top(
        self, history: Sequence[object] = (), count: int = 10, person: Tensor | None = None
    ) -> list[tuple[str, float]]:
        """Return the best items that are not in the history (or the likeliest next words)."""
        rows = torch.arange(self._table["rows"]) if self._known is None else self._known
        if isinstance(self.scorer, ClickScorer):
            rows = rows[~torch.isin(rows, torch.tensor([*map(self.row, history)], dtype=torch.int64))]
        scores = self._scores(rows, history, person)
        best = scores.argsort(descending=True, stable=True)[:count].tolist()
        return [(self.name(int(rows[place])), float(scores[place])) for place in best]

    @property
    def _known(self) -> Tensor | None:
        """The rows that some round moved, of a table that is too large to be stored whole."""
        layer = getattr(self.scorer.net, self._table["name"])
        return layer.numbers if isinstance(layer, Rows) else None

    def _scores(self, rows: Tensor, history: Sequence[object], person: Tensor | None) -> Tensor:
        past = torch.tensor([[*map(self.row, history)] or [NO_ROW]], dtype=torch.int64)
        with torch.no_grad():
            if isinstance(self.scorer, WordScorer):
                return self.scorer.chances(past)[0, rows]
            own = torch.zeros(1, self.scorer.width) if person is None else person.view(1, -1)
            scores: Tensor = self.scorer(own.expand(len(rows), -1), rows, past.expand(len(rows), -1))
            return scores


def load(folder: str | Path, net: Callable[..., nn.Module]) -> Model:
    """Load an unpacked bundle. ``net`` is the class of its network."""
    where = Path(folder)
    about = json.loads((where / "bundle.json").read_text())["architecture"]
    catalogue = json.loads((where / "catalogue.json").read_text())
    return Model(scorer_of(net, about, catalogue, (where / "weights.safetensors").read_bytes()), catalogue)
