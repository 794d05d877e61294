"""What a user brings: a model whose embeddings are declared as tables, and data that know their rows."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import binary_cross_entropy_with_logits

from sfsl.arrays import Indices, Values
from sfsl.errors import InputError, ParameterError
from sfsl.submodel.tables import ModelSpec, RowMap, RowMaps, Table

Rows = Mapping[str, Indices]
Batch = Mapping[str, Tensor]
Parameters = dict[str, Tensor]

# By so many samples, parts of log-odds are held against what they are parts of; they add up to within so
# much of their absolute sum.
_FEW, _ADDS_UP = 8, 1e-3


class ClientData(Protocol):
    """One client's samples. ``sfsl.data.Samples`` is one; whatever else can do this will do as well.

    Rows are given by table, ascending.
    """

    @property
    def tables(self) -> Mapping[str, str]:
        """The columns that hold row numbers, and of which table."""

    def __len__(self) -> int:
        """Return the number of samples."""

    def rows(self) -> Rows:
        """Return the rows needed of each table that is not derived."""

    def keep(self, rows: Rows, /) -> "ClientData":
        """Return what can be trained with these rows alone."""

    def counts(self, rows: Rows, /) -> Rows:
        """Count the samples that touch each of these rows."""

    def local_columns(self, rows: Rows, /) -> Mapping[str, NDArray[Any]]:
        """Return the samples as columns, row numbers replaced by their positions in ``rows``."""


def click_loss(logit: Tensor, batch: Batch) -> Tensor:
    """Return the cross-entropy of each sample against its ``label``."""
    return binary_cross_entropy_with_logits(logit, batch["label"], reduction="none")


@dataclass(frozen=True)
class Task:
    """A model and how it is trained.

    ``module`` maps a batch of columns to one output per sample; each table is its parameter
    ``<table>.weight``, as an ``nn.Embedding`` of that name makes it. Only the module's shape, its forward
    pass and its initial dense parameters are used. Weights come in as arguments, so that one module
    serves every client, alone or many at a time under ``torch.func.vmap``; its tables may stay on the
    device ``meta``, where two billion rows take no room. ``maps`` are the public maps of derived tables.
    ``looked_up`` names tables that the module only looks up, in an ``nn.Embedding``, by columns of which
    the data say that they hold its rows: many clients at a time then train faster.

    >>> import sfsl, torch
    >>> class Rating(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.film = torch.nn.Embedding(10, 4, device="meta")
    ...         self.out = torch.nn.Linear(4, 1)
    ...     def forward(self, batch):
    ...         return self.out(self.film(batch["film"])).squeeze(-1)
    >>> task = sfsl.Task(Rating(), (sfsl.Table(name="film", rows=10, width=4),))
    >>> task.spec.dense, task.initial_dense().shape
    (5, (5,))
    """

    module: nn.Module
    tables: tuple[Table, ...]
    maps: Mapping[str, RowMap] = field(default_factory=dict)
    loss: Callable[[Tensor, Batch], Tensor] = click_loss
    score: Callable[[Tensor], Tensor] = torch.sigmoid
    looked_up: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        shapes = {name: tuple(one.shape) for name, one in self.module.named_parameters()}
        for table in self.tables:
            found = shapes.get(parameter_of(table))
            if found != (table.rows, table.width):
                raise ParameterError(
                    f"table {table.name!r}: the module should have {parameter_of(table)!r} of "
                    f"{table.rows} x {table.width}, and has {found or 'none'}"
                )
        layers = dict(self.module.named_modules())
        for table_name in self.looked_up:
            layer = layers.get(table_name)
            if not isinstance(layer, nn.Embedding) or layer.padding_idx is not None or layer.max_norm:
                raise ParameterError(
                    f"looked_up names {table_name!r}, which is no nn.Embedding of this module, or one with "
                    "padding_idx or max_norm"
                )
        for name, one in layers.items():
            if getattr(one, "track_running_stats", False):
                raise ParameterError(
                    f"layer {name!r} keeps running statistics: they are not part of any sum, and would mix "
                    "the clients of a simulation; build it with track_running_stats=False"
                )
        named, biases = (getattr(self.module, name, ()) for name in ("logit_parts", "bias_parts"))
        if self.chances and (named or biases):
            self._require_names(named, biases)

    def _require_names(self, named: object, biases: object) -> None:
        if not isinstance(named, tuple | list) or not all(isinstance(one, str) for one in named):
            raise ParameterError(
                f"logit_parts of the module are names, such as ('user', 'item'), not {named!r}"
            )
        if len(set(named)) < len(named):
            raise ParameterError(f"logit_parts of the module name one part twice: {', '.join(named)}")
        if not isinstance(biases, tuple | list) or not set(biases) <= set(named):
            raise ParameterError(
                f"bias_parts of the module are {biases!r}, and not some of its logit_parts: "
                f"{', '.join(named) or 'it has none'}"
            )
        try:
            inspect.signature(self.module.forward).bind({}, apart=True)
        except TypeError as error:
            raise ParameterError(
                "the module has logit_parts, and its forward(batch, apart=True) cannot be called: "
                f"{error}; give it that argument, or leave logit_parts out"
            ) from None

    @property
    def chances(self) -> bool:
        """Whether a score is the chance that a sample's ``label`` is 1, and so has a log loss.

        Scores of other losses may only be larger where a 1 is likelier.
        """
        return self.loss is click_loss and self.score is torch.sigmoid

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The parts of the module's log-odds, which it gives side by side if its forward pass is asked for
        them ``apart``; none of a module that has no ``logit_parts``, or whose scores are no chances."""
        return tuple(getattr(self.module, "logit_parts", ())) if self.chances else ()

    @cached_property
    def biases(self) -> tuple[int, ...]:
        """The places, among the parts, of the module's ``bias_parts``: rows are rebuilt so that these explain
        labels by themselves, too."""
        return tuple(self.parts.index(name) for name in getattr(self.module, "bias_parts", ()) if self.parts)

    def require_parts(self, parameters: Parameters, batch: Batch) -> None:
        """Refuse a module whose parts of the log-odds, of these samples, are not those of its log-odds."""
        few = {name: one[:_FEW] for name, one in batch.items()}
        whole = functional_call(self.module, parameters, (few,))
        apart = functional_call(self.module, parameters, (few,), {"apart": True})
        if apart.shape != (*whole.shape, len(self.parts)):
            raise ParameterError(
                f"the module has {len(self.parts)} logit_parts, so of {len(whole)} samples its "
                f"forward(batch, apart=True) returns {[len(whole), len(self.parts)]} numbers, not "
                f"{list(apart.shape)}"
            )
        away, sizes = (apart.sum(dim=-1) - whole).abs(), apart.abs().sum(dim=-1)
        if (away > _ADDS_UP * (1 + sizes)).any():  # which what is not finite never is
            raise ParameterError(
                f"logit_parts of the module, {', '.join(self.parts)}, as forward(batch, apart=True) returns "
                "them, do not add up to what forward(batch) returns"
            )

    @cached_property
    def spec(self) -> ModelSpec:
        return ModelSpec(tables=self.tables, dense=sum(one.numel() for one in self.dense_shapes.values()))

    @cached_property
    def row_maps(self) -> RowMaps:
        return RowMaps(self.spec, self.maps)

    @cached_property
    def dense_shapes(self) -> dict[str, torch.Size]:
        """The parameters outside the tables, in the order of the dense vector."""
        tables = {parameter_of(table) for table in self.tables}
        return {name: one.shape for name, one in self.module.named_parameters() if name not in tables}

    @cached_property
    def personal(self) -> dict[str, str]:
        """The personal tables, and the parameter of each."""
        return {table.name: parameter_of(table) for table in self.tables if table.kind == "personal"}

    def initial_dense(self) -> Values:
        """Return the dense parameters the module was built with, as one vector."""
        own = dict(self.module.named_parameters())
        return self.dense_vector({name: own[name].detach() for name in self.dense_shapes})

    def dense_vector(self, parameters: Mapping[str, Tensor]) -> Values:
        """Join the parameters outside the tables to one vector."""
        parts = [parameters[name].reshape(-1) for name in self.dense_shapes]
        return np.asarray(torch.cat([torch.zeros(0), *parts]).numpy(), dtype=np.float32)

    def dense_parts(self, vector: Tensor) -> Parameters:
        """Return views of a dense vector by the names of the parameters it consists of."""
        shapes = self.dense_shapes.items()
        pieces = torch.split(vector, [shape.numel() for _, shape in shapes]) if shapes else ()
        return {name: piece.reshape(shape) for (name, shape), piece in zip(shapes, pieces, strict=True)}

    def parameters(self, dense: Values, values: Mapping[str, Values]) -> Parameters:
        """Make fresh tensors by name, as ``torch.func.functional_call`` takes them."""
        if dense.shape != (self.spec.dense,):
            raise InputError(f"the dense part is one vector of {self.spec.dense} numbers, not {dense.shape}")
        parameters = self.dense_parts(torch.tensor(dense, dtype=torch.float32))
        for table in self.tables:
            block = values[table.name]
            if block.ndim != 2 or block.shape[1] != table.width:
                raise InputError(f"table {table.name!r}: rows are {table.width} wide, not {block.shape}")
            parameters[parameter_of(table)] = torch.tensor(block, dtype=torch.float32)
        return parameters

    def needed_rows(self, data: ClientData) -> tuple[dict[str, Indices], int]:
        """Return the rows a client needs of every table, and how many it named that are not in the table.

        Unknown rows are left out, not refused: one bad id should not cost a client its part.
        """
        named = data.rows()
        known: dict[str, Indices] = {}
        unknown = 0
        for table in self.tables:
            if table.kind != "derived":
                rows = named[table.name]
                known[table.name] = rows[(rows >= 0) & (rows < table.rows)]
                unknown += len(rows) - len(known[table.name])
        return self.with_derived(known), unknown

    def with_derived(self, rows: Rows) -> dict[str, Indices]:
        """Return these rows of shared and personal tables, and those of derived tables that follow."""
        return {
            table.name: rows[table.name]
            if table.source is None
            else np.unique(self.row_maps.rows_of(table.name, rows[table.source]))
            for table in self.tables
        }


def parameter_of(table: Table) -> str:
    """Return the name of a table's parameter in the module."""
    return f"{table.name}.weight"
