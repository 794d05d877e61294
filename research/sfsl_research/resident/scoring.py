"""The scores of a model on a device, on a central test set that lies there too."""

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from sfsl.arrays import Indices
from sfsl.scores import Scored
from sfsl.simulate.engine import Pool
from sfsl.training.task import Task, parameter_of
from sfsl_research.resident.model import ResidentModel

# Samples at once: of each a history of fifty goes through the attention.
_AT_ONCE = 1 << 15
_LOADED_AT_ONCE = 1 << 16


class ResidentTest:
    """A pool to test on, or, of more samples than ``most``, some of them that ``seed`` draws.

    ``users``: only samples of these, whose rows are rebuilt (``ResidentEngine.rebuild``) before each test.
    """

    def __init__(
        self,
        task: Task,
        pool: Pool,
        device: torch.device,
        *,
        most: int,
        seed: int,
        users: Indices | None = None,
    ) -> None:
        self.users, chosen = users, np.arange(len(pool))
        if users is not None:
            owners = pool.column("user")
            chosen = np.flatnonzero(np.isin(owners if owners is not None else [], users))
        if len(chosen) > most:
            chosen = np.sort(np.random.default_rng(seed).choice(chosen, most, replace=False))
        parts: list[Mapping[str, Tensor]] = []
        for start in range(0, len(chosen), _LOADED_AT_ONCE):
            data = pool.samples(chosen[start : start + _LOADED_AT_ONCE])
            rows, unknown = task.needed_rows(data)
            if unknown:  # rows that the model does not have
                data = data.keep(rows)
            columns = data.local_columns({})
            parts.append({name: _on(torch.from_numpy(one), device) for name, one in columns.items()})
        self._columns = _joined(parts)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), ()))

    def auc(self, model: ResidentModel) -> float:
        """Return the AUC alone, which the device computes; NaN where it is not defined: without samples, with
        one kind of label only, or with scores that are not finite."""
        if not len(self):  # and no columns
            return float("nan")
        return float(_auc(self._scores(model), self._columns["label"] == 1))

    def scored(self, model: ResidentModel) -> Scored:
        """Return the samples with the model's scores."""
        if not len(self):
            return Scored(np.zeros(0), np.zeros(0))
        task, parts = model.task, np.zeros((0, len(self)))
        if task.parts:
            apart = torch.cat(list(self._outputs(model, apart=True)))
            scores, parts = task.score(apart.sum(dim=-1)), apart.T.cpu().numpy().astype(np.float64)
        else:
            scores = self._scores(model)
        found = scores.cpu().numpy().astype(np.float64)
        labels, users, items = (self._columns[name].cpu().numpy() for name in ("label", "user", "item"))
        named = dict(zip(task.parts, parts, strict=True))
        return Scored(found, labels, users, items, task.chances, named)

    def _scores(self, model: ResidentModel) -> Tensor:
        return model.task.score(torch.cat(list(self._outputs(model))))

    def _outputs(self, model: ResidentModel, **asked: bool) -> Iterator[Tensor]:
        """Yield what the module makes of the samples, some at a time."""
        task = model.task
        parameters = model.dense_parameters() | {
            parameter_of(table): model.tables[table.name] for table in task.tables
        }
        task.module.eval()
        with torch.no_grad():
            for start in range(0, len(self), _AT_ONCE):
                batch = {name: _wide(one[start : start + _AT_ONCE]) for name, one in self._columns.items()}
                if asked and not start:
                    task.require_parts(parameters, batch)
                yield functional_call(task.module, parameters, (batch,), asked)


def _auc(scores: Tensor, clicked: Tensor) -> Tensor:
    """Return the chance that a click scores above a non-click, a tie counting half."""
    clicks, others = scores[clicked], scores[~clicked].sort().values
    below = torch.searchsorted(others, clicks).to(torch.float64)
    upto = torch.searchsorted(others, clicks, right=True).to(torch.float64)
    auc = (below + upto).mean() / (2 * len(others))
    return torch.where(scores.isfinite().all(), auc, torch.nan)


def _joined(parts: list[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Join columns one behind another; sequences are filled up to the longest."""
    columns = {}
    for name in parts[0] if parts else ():
        each = [part[name] for part in parts]
        if each[0].ndim == 2:
            longest = max(one.shape[1] for one in each)
            each = [torch.nn.functional.pad(one, (0, longest - one.shape[1]), value=-1) for one in each]
        columns[name] = torch.cat(each)
    return columns


def _on(column: Tensor, device: torch.device) -> Tensor:
    """Put a column on a device; row numbers take half the room as long as they lie there."""
    return column.to(torch.int32 if column.dtype == torch.int64 else column.dtype).to(device)


def _wide(column: Tensor) -> Tensor:
    return column.to(torch.int64) if column.dtype == torch.int32 else column
