"""From a store to the files of a bundle."""

from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfsl.bundle.contents import (
    CATALOGUE,
    FORMAT,
    OWN,
    SOURCE,
    WEIGHTS,
    Architecture,
    Manifest,
    Provenance,
    StoredTable,
    encode_tensors,
)
from sfsl.bundle.described import Described
from sfsl.bundle.source import model_source
from sfsl.correction import Correction
from sfsl.crypto.secret import digest
from sfsl.data.catalogue import Catalogue
from sfsl.errors import InputError
from sfsl.models.kinds import KINDS
from sfsl.submodel import ModelSpec, RowSet, RowStore, Table

# Tables up to this many bytes are stored whole: then plain torch needs nothing else to read them.
MOST_WHOLE = 1 << 26

Files = dict[str, bytes]


def fits(table: Table) -> bool:
    """Say whether a table is stored whole."""
    return 4 * table.rows * table.width <= MOST_WHOLE


def pack(
    store: RowStore,
    about: Described,
    catalogue: Catalogue | None,
    *,
    which: str,
    metrics: dict[str, Any],
    privacy: dict[str, Any],
    correction: Correction | None = None,
    known: bool = True,
) -> tuple[Manifest, Files]:
    """Return a manifest and the files that it speaks of. Rows of people stay behind, also where a simulation
    has them: in a deployment nobody else has, and what predicts rebuilds them from samples. Not ``known``: of
    rows that did not move nothing is, as of those that a client did not download."""
    if catalogue is not None:
        catalogue = _names(store.spec.model, catalogue)
    tensors = _dense(store, about)
    tables = tuple(_stored(store, table, tensors, known) for table in store.spec.model.tables)
    personal = [table.width for table in about.model.tables if table.kind == "personal"]
    files = {WEIGHTS: encode_tensors(tensors)}
    if catalogue is not None:
        files[CATALOGUE] = catalogue.public
    if about.kind != OWN:
        files[SOURCE] = model_source(KINDS[about.kind].module).encode()
    manifest = Manifest(
        format=FORMAT,
        architecture=Architecture(
            kind=about.kind,
            network=about.network,
            arguments=about.arguments,
            history=about.history,
            person=sum(personal),
            tables=tables,
            dense=about.dense,
            **({} if correction is None else asdict(correction)),
        ),
        metrics=metrics,
        privacy=privacy,
        provenance=Provenance(
            trained=about.trained,
            round=store.round,
            which="best" if which == "best" else "last",
            seed=about.config.run.seed,
            settings=about.settings,
            versions=about.versions,
            fingerprint=store.spec.model.fingerprint().hex(),
            catalogue=None if catalogue is None else catalogue.digest.hex(),
        ),
        files={},
    )
    return manifest, files


def _names(model: ModelSpec, catalogue: Catalogue) -> Catalogue:
    """Return what the rows of a store are called: an older version has fewer. One that has grown since its
    catalogue was written down, as a crash may leave it, is refused."""
    rows = {table.name: table.rows for table in model.tables if table.kind != "personal"}
    if rows == {table.name: table.rows for table in catalogue.tables}:
        return catalogue
    try:
        return catalogue.first(rows)
    except InputError as error:
        raise InputError(
            f"the store has rows that its catalogue has not ({error}); start its server once, which writes "
            "down what they are called"
        ) from None


def _dense(store: RowStore, about: Described) -> dict[str, NDArray[Any]]:
    vector, tensors, start = store.read_dense().values, dict[str, NDArray[Any]](), 0
    for name, shape in about.dense:
        size = int(np.prod((1, *shape)))
        tensors[name] = vector[start : start + size].reshape(shape)
        start += size
    return tensors


def _stored(store: RowStore, table: Table, tensors: dict[str, NDArray[Any]], known: bool) -> StoredTable:
    """Add a table's rows to the tensors, and say how."""
    whole = known and fits(table)
    if table.kind == "personal":
        how, key = "none", ""
    elif whole:
        how, key = "whole", ""
        every = RowSet(np.arange(table.rows))
        tensors[f"{table.name}.weight"] = store.read_rows(table.name, every).values
    else:
        key = digest("initial rows", store.spec.seed, table.name.encode()).hex() if known else ""
        how = "touched"
        moved = store.touched(table.name)
        tensors[f"{table.name}.numbers"] = moved.rows
        tensors[f"{table.name}.values"] = store.read_rows(table.name, moved).values
    return StoredTable(
        name=table.name, rows=table.rows, width=table.width, kind=table.kind, source=table.source,
        initial=table.initial if known else 0.0, stored=how, key=key,  # type: ignore[arg-type]
    )  # fmt: skip
