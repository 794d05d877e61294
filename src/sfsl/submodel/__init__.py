"""Submodels: tables and index maps, updates as words of a ring, averaging, and stores of rows."""

from sfsl.submodel.lmdb_store import LmdbStore
from sfsl.submodel.memory_store import MemoryStore
from sfsl.submodel.quantize import Quantization, WeightedSums
from sfsl.submodel.store import Commit, DenseBlock, RowBlock, RowStore, StoreSpec
from sfsl.submodel.tables import ModelSpec, RowMaps, RowSet, Table
from sfsl.submodel.update import (
    ADDITION,
    PAPER,
    Applied,
    Averaging,
    ModelSums,
    ServerStep,
    TrainedRows,
    UpdateParams,
    UpdateWords,
    apply_sums,
    decode_sums,
    encode_update,
)

__all__ = [
    "ADDITION",
    "PAPER",
    "Applied",
    "Averaging",
    "Commit",
    "DenseBlock",
    "LmdbStore",
    "MemoryStore",
    "ModelSpec",
    "ModelSums",
    "Quantization",
    "RowBlock",
    "RowMaps",
    "RowSet",
    "RowStore",
    "ServerStep",
    "StoreSpec",
    "Table",
    "TrainedRows",
    "UpdateParams",
    "UpdateWords",
    "WeightedSums",
    "apply_sums",
    "decode_sums",
    "encode_update",
]
