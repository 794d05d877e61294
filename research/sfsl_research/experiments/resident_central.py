"""Training on everyone's samples in one place, on a device: ``centralized``, with every step a replay."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import grad_and_value

from sfsl.training.graphs import STEPS_PER_GRAPH, captured
from sfsl.training.local import mean_loss
from sfsl.training.stack import with_embeddings
from sfsl.training.task import Parameters, parameter_of
from sfsl_research.experiments.centralized import CentralSettings
from sfsl_research.resident.clients import ResidentClients
from sfsl_research.resident.engine import Figures
from sfsl_research.resident.model import ResidentModel

_BETA1, _BETA2, _TINY = 0.9, 0.999, 1e-8


class ResidentCentral:
    """Epochs over all samples, in an order that ``seed`` draws, cut into rounds.

    With Adam every row has its momentum, also in steps that do not touch it, unlike in ``centralized``.
    ``compiled``: torch makes fewer and larger kernels of a step, which takes it a while once.
    """

    def __init__(
        self,
        fleet: ResidentClients,
        model: ResidentModel,
        settings: CentralSettings,
        *,
        seed: int,
        compiled: bool = False,
    ) -> None:
        self._fleet, self._model, self._settings, self._seed = fleet, model, settings, seed
        device, task = fleet.device, model.task
        self._total = int(fleet.host.offsets[-1])
        steps = -(-settings.steps // STEPS_PER_GRAPH) * STEPS_PER_GRAPH
        self._order = torch.full((steps, settings.batch_size), -1, device=device)
        self._step_number = torch.zeros(1, dtype=torch.int64, device=device)
        self._done = torch.zeros((), device=device)
        self._rate = torch.zeros((), device=device)
        self._loss = torch.zeros((), device=device)
        self._samples = torch.zeros((), dtype=torch.int64, device=device)
        self._parameters = model.dense_parameters() | {
            parameter_of(table): model.tables[table.name] for table in task.tables
        }
        self._states = self._slots()
        self._slopes = grad_and_value(mean_loss(task, with_embeddings(task, task.looked_up, _Selected)))
        self._learn: Callable[[Tensor], None] = (
            torch.compile(self._learned, dynamic=False) if compiled else self._learned
        )
        self._graph: torch.cuda.CUDAGraph | None = None
        self._epoch, self._permutation = -1, torch.zeros(0, dtype=torch.int64, device=device)

    def prepare(self) -> None:
        """What a device takes time for once: capturing its graph."""
        if self._order.is_cuda and self._graph is None:
            self._graph = self._capture()

    def run(self, number: int) -> Figures:
        """Round ``number``, counted from 1."""
        settings = self._settings
        self.prepare()
        self._fill(number)
        self._rate.fill_(settings.learning_rate * settings.decay ** (number - 1))
        self._done.fill_((number - 1) * settings.steps)
        self._step_number.zero_()
        self._loss.zero_()
        self._samples.zero_()
        if self._graph is not None:
            for _ in range(len(self._order) // STEPS_PER_GRAPH):
                self._graph.replay()
        else:
            for _ in range(settings.steps):
                self._step()
        for table in self._model.task.tables:
            self._model.touched[table.name][:-1] = True
        return Figures(self._samples.clone(), self._loss.clone(), (~self._finite()).to(torch.int64))

    def _finite(self) -> Tensor:
        """Whether training went well: a loss is of the model before its step, and does not see the last."""
        parts = [self._loss, *self._parameters.values()]
        return torch.stack([one.isfinite().all() for one in parts]).all()

    def _capture(self) -> torch.cuda.CUDAGraph:
        states = [one for some in self._states.values() for one in some]
        written = [*self._parameters.values(), *states, self._step_number, self._done, self._loss]
        written.append(self._samples)
        kept = [one.clone() for one in written]
        graph = captured(self._step)
        for one, old in zip(written, kept, strict=True):
            one.copy_(old)
        return graph

    def _fill(self, number: int) -> None:
        wanted = self._settings.samples
        first, last = (number - 1) * wanted, number * wanted
        parts = []
        while first < last:
            epoch, start = divmod(first, self._total)
            stop = min(self._total, start + last - first)
            parts.append(self._epoch_order(epoch)[start:stop])
            first += stop - start
        self._order.fill_(-1)
        self._order.view(-1)[:wanted] = torch.cat(parts)

    def _epoch_order(self, epoch: int) -> Tensor:
        if epoch != self._epoch:
            device = self._order.device
            generator = torch.Generator(device).manual_seed((self._seed * 1_000_003 + epoch) % 2**63)
            self._permutation = torch.randperm(self._total, generator=generator, device=device)
            self._epoch = epoch
        return self._permutation

    def _slots(self) -> dict[str, list[Tensor]]:
        """The optimizer's numbers for each parameter: views of what the model keeps."""
        model, slots = self._model, self._settings.slots
        states: dict[str, list[Tensor]] = {name: [] for name in self._parameters}
        for slot in range(slots):
            for table in model.task.tables:
                states[parameter_of(table)].append(model.states[table.name][:, slot])
            pieces = torch.split(
                model.dense_state[slot], [one.numel() for one in model.task.dense_shapes.values()]
            )
            for (name, shape), piece in zip(model.task.dense_shapes.items(), pieces, strict=True):
                states[name].append(piece.view(shape))
        return states

    def _step(self) -> None:
        self._learn(self._order.index_select(0, self._step_number).squeeze(0))
        self._step_number.add_(1)

    def _learned(self, chosen: Tensor) -> None:
        """One step with these samples; -1 is none."""
        batch = self._fleet.everywhere(chosen.clamp_min(0))
        taken = chosen >= 0
        for name in self._fleet.host.sequences:  # as ``Samples.keep`` has it
            taken = taken & (batch[name] >= 0).any(1)
        weight = taken.to(torch.float32)
        slopes, loss = self._slopes(self._parameters, {}, batch, weight)
        there = (weight.sum() > 0).to(torch.float32)
        # A filler after the step that diverged has a loss that is no number, which times nothing is none too.
        self._loss.add_(torch.where(there > 0, loss * weight.sum(), 0.0))
        self._samples.add_(taken.sum())
        self._done.add_(there)
        if self._settings.slots:
            self._adam(slopes, there)
        else:
            norm = torch.stack([one.square().sum() for one in slopes.values()]).sum().sqrt()
            scale = self._rate * self._settings.clip / norm.clamp_min(self._settings.clip)
            for name, one in self._parameters.items():
                one.addcmul_(slopes[name], scale, value=-1)

    def _adam(self, slopes: Parameters, there: Tensor) -> None:
        """A step without samples changes nothing: fillers after the last step of a round, or samples of which
        none can be used, before the first step too."""
        done = self._done.clamp_min(1)
        rate = there * self._rate / (1 - _BETA1**done)
        correction = (1 - _BETA2**done).sqrt()
        for name, one in self._parameters.items():
            first, second = self._states[name]
            slope = slopes[name]
            first.lerp_(slope, there * (1 - _BETA1))
            second.lerp_(slope.square(), there * (1 - _BETA2))
            one.addcmul_(first / (second.sqrt() / correction + _TINY), rate, value=-1)


class _Selected(nn.Module):
    """An embedding whose gradient is added up row by row, without the sorting that a graph cannot hold."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.weight = table.weight

    def forward(self, rows: Tensor) -> Tensor:
        return self.weight.index_select(0, rows.flatten()).reshape(*rows.shape, -1)
