"""Small bundles of every kind of model, with made-up numbers."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from sfsl.bundle.describe import describe
from sfsl.bundle.file import write_bundle
from sfsl.bundle.pack import pack
from sfsl.correction import Correction
from sfsl.data.catalogue import Catalogue
from sfsl.models import build_task
from sfsl.settings.run import from_sections
from sfsl.submodel import Commit, DenseBlock, MemoryStore, RowBlock, RowSet, StoreSpec
from sfsl.training.task import Task

KINDS = ("din", "dien", "bst", "logistic", "lstm")
ITEMS, HISTORY = 12, 3
NAMES = [f"film-{number}" for number in range(ITEMS)]
# What a process does in which sfsl cannot be imported, as on a machine that has torch alone.
_WITHOUT = "import sys; sys.modules['sfsl'] = None; sys.path.insert(0, {folder!r}); import model\n"


def catalogue(kind: str) -> Catalogue:
    if kind == "lstm":
        return Catalogue.of_words(NAMES)
    return Catalogue.of_items(NAMES, ["a", "b"], np.arange(ITEMS) % 2, users=4)


def trained(kind: str, names: Catalogue | None = None) -> tuple[Task, MemoryStore, Any]:
    """A model whose dense part and every second of the first rows were moved."""
    source = {"source": "catalogue", "path": "x", "max_history": HISTORY}
    config = from_sections({"data": source, "model": {"kind": kind, "width": 6}})
    task, rng = build_task(names or catalogue(kind), config.model, 0), np.random.default_rng(1)
    store = MemoryStore(StoreSpec(model=task.spec, seed=bytes(32)), dense=task.initial_dense())
    blocks = {}
    for table in task.spec.summed:
        rows = RowSet(np.arange(0, min(table.rows, ITEMS), 2))
        values = rng.standard_normal((len(rows), table.width)).astype(np.float32)
        blocks[table.name] = RowBlock(rows, values, np.zeros((len(rows), 0, table.width), np.float32))
    dense = task.initial_dense() + rng.standard_normal(task.spec.dense).astype(np.float32) / 5
    store.commit(Commit(1, blocks, DenseBlock(dense, np.zeros((0, len(dense)), np.float32))))
    return task, store, config


def write(
    kind: str, path: Path, names: Catalogue | None = None, correction: Correction | None = None
) -> Path:
    task, store, config = trained(kind, names)
    about = describe(task, config, "run", HISTORY)
    told: dict[str, Any] = {
        "which": "last",
        "correction": correction,
        "metrics": {"auc": 0.7},
        "privacy": {"scheme": "sfsl"},
    }
    manifest, files = pack(store, about, names or catalogue(kind), **told)
    write_bundle(path, manifest, files)
    return path


def without_sfsl(folder: Path, code: str) -> str:
    """Run code with the bundle's ``model`` in a process of its own; return what it prints."""
    text = _WITHOUT.format(folder=str(folder)) + code
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300)  # noqa: S603
    assert done.returncode == 0, done.stderr
    return done.stdout
