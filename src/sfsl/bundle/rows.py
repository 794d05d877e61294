"""The numbers of a model at rest, read as a store's are, with nothing of anybody's."""

from collections.abc import Callable
from typing import NoReturn

import numpy as np
import torch

from sfsl.arrays import Indices, Values
from sfsl.bundle.contents import WEIGHTS, Manifest, decode_tensors
from sfsl.bundle.scorer import Rows
from sfsl.errors import BundleError, InputError
from sfsl.submodel import Commit, DenseBlock, ModelSpec, RowBlock, RowSet, StoreSpec, Table

_NOTHING = b"\0" * 32


class AtRest:
    """A store that is only read. Rows of personal tables are zero, where a rebuild begins; ``find`` has those
    of all others."""

    def __init__(
        self, model: ModelSpec, dense: Values, find: Callable[[str, RowSet], Values], round_number: int = 0
    ) -> None:
        self.spec = StoreSpec(model=model, seed=_NOTHING, devices=True)
        self.round, self.selection, self._dense, self._find = round_number, b"", dense, find

    def read_rows(self, table: str, rows: RowSet) -> RowBlock:
        about = self.spec.table(table)
        personal = about.kind == "personal"
        values = np.zeros((len(rows), about.width), np.float32) if personal else self._find(table, rows)
        return RowBlock(rows, values, np.zeros((len(rows), 0, about.width), np.float32))

    def read_dense(self) -> DenseBlock:
        return DenseBlock(self._dense, np.zeros((0, len(self._dense)), np.float32))

    def touched(self, table: str) -> RowSet:
        raise InputError(f"which rows of {table!r} some round moved is not known here")

    def commit(self, commit: Commit) -> NoReturn:
        raise InputError(f"a model at rest takes no round {commit.round}")

    def close(self) -> None:
        pass

    def __enter__(self) -> "AtRest":
        return self

    def __exit__(self, *error: object) -> None:
        pass


class BundleRows:
    """The tables and the dense part of a bundle, from its checked files."""

    def __init__(self, manifest: Manifest, weights: bytes, where: str) -> None:
        about = manifest.architecture
        tensors = decode_tensors(weights, f"{where}, {WEIGHTS}")
        self._tables = {table.name: table for table in about.tables}
        self.model = ModelSpec(
            tables=tuple(
                Table(
                    name=one.name, rows=one.rows, width=one.width, kind=one.kind, source=one.source,
                    initial=one.initial,
                )
                for one in about.tables
            ),
            dense=sum(int(np.prod((1, *shape))) for _, shape in about.dense),
        )  # fmt: skip
        due: dict[str, tuple[int | None, ...]] = {name: tuple(shape) for name, shape in about.dense}
        for one in about.tables:
            if one.stored == "whole":
                due[f"{one.name}.weight"] = (one.rows, one.width)
            elif one.stored == "touched":
                due |= {f"{one.name}.numbers": (None,), f"{one.name}.values": (None, one.width)}
        found = {name: values.shape for name, values in tensors.items()}
        fits = found.keys() == due.keys() and all(
            len(found[name]) == len(shape)
            and all(size in (None, got) for size, got in zip(shape, found[name], strict=True))
            for name, shape in due.items()
        )
        if not fits:
            raise BundleError(f"{where}: its weights are not those of the architecture that it states")
        self.tensors = tensors
        parts = [tensors[name].reshape(-1) for name, _ in about.dense]
        self.dense: Values = np.concatenate([np.zeros(0, np.float32), *parts]).astype(np.float32)

    def rows(self, table: str, numbers: Indices) -> Values:
        """Return these rows [n, width]; untrained ones as they began."""
        about = self._tables[table]
        if about.stored == "none":
            raise InputError(f"table {table!r} is personal: no bundle has its rows")
        if about.stored == "whole":
            return np.asarray(self.tensors[f"{table}.weight"][numbers], np.float32)
        moved, values = (torch.tensor(self.tensors[f"{table}.{one}"]) for one in ("numbers", "values"))
        lookup = Rows(moved, values, about.initial, bytes.fromhex(about.key))
        return np.asarray(lookup(torch.tensor(numbers)).numpy(), np.float32)
