"""Rounds in pfl-research, run in an environment that has it: ``compare_frameworks.py`` makes one.

Its federated averaging of a PyTorch model. ``torchrun`` starts a process per worker, with one thread each;
each has its part of the cohort, dealt by numbers of samples, and statistics are summed over processes. The
first iteration evaluates, always, and does not count.
"""

import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend  # type: ignore[import-not-found]
from pfl.algorithm.base import NNAlgorithmParams  # type: ignore[import-not-found]
from pfl.algorithm.federated_averaging import FederatedAveraging  # type: ignore[import-not-found]
from pfl.callback.base import TrainingProcessCallback  # type: ignore[import-not-found]
from pfl.data.federated_dataset import FederatedDataset  # type: ignore[import-not-found]
from pfl.data.pytorch import PyTorchTensorDataset  # type: ignore[import-not-found]
from pfl.data.sampling import get_user_sampler  # type: ignore[import-not-found]
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams  # type: ignore[import-not-found]
from pfl.internal.ops.selector import get_framework_module  # type: ignore[import-not-found]
from pfl.metrics import Metrics, Weighted  # type: ignore[import-not-found]
from pfl.model.pytorch import PyTorchModel  # type: ignore[import-not-found]
from torch import Tensor, nn

from clients_file import BATCH, RATE, ClientsFile, ClippedSGD, mean_loss, sparse_din

PATH, ROUNDS, OUT = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])


class Clicks(nn.Module):
    """What pfl asks of a module."""

    def __init__(self, din: nn.Module) -> None:
        super().__init__()
        self.din = din

    def loss(self, **columns: Tensor) -> Tensor:
        return mean_loss(self.din, columns)

    def metrics(self, **columns: Tensor) -> dict[str, Any]:
        return {"samples": Weighted(0, len(columns["label"]))}


class Clock(TrainingProcessCallback):  # type: ignore[misc]
    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.cpu_seconds: list[float] = []
        self._last, self._cpu = time.perf_counter(), time.process_time()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        now, cpu = time.perf_counter(), time.process_time()
        every = torch.tensor([cpu - self._cpu])
        get_framework_module().distributed.all_reduce([every])
        self.seconds.append(now - self._last)
        self.cpu_seconds.append(float(every))
        self._last, self._cpu = now, cpu
        return False, Metrics()


def main() -> None:
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    file = ClientsFile(PATH)
    users = [user for user, own in enumerate(file.clients) if len(own["label"])]  # pfl refuses empty ones
    sizes = {user: len(own["label"]) for user, own in enumerate(file.clients)}
    sets = {user: PyTorchTensorDataset(own, user_id=str(user)) for user, own in enumerate(file.clients)}
    sampler = get_user_sampler("minimize_reuse", users)
    data = FederatedDataset(sets.__getitem__, sampler, user_id_to_weight=sizes)
    module = Clicks(sparse_din(file.sizes))
    model = PyTorchModel(module, ClippedSGD, torch.optim.SGD(module.parameters(), lr=1.0))
    clock = Clock()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=ROUNDS + 1,
            evaluation_frequency=10**6,
            train_cohort_size=len(users),
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=data),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=RATE, local_batch_size=BATCH),
        NNEvalHyperParams(local_batch_size=10**6),
        callbacks=[clock],
    )
    if get_framework_module().distributed.global_rank == 0:
        found = {
            "version": version("pfl"),
            "seconds": clock.seconds[1:],
            "cpu_seconds": clock.cpu_seconds[1:],
        }
        OUT.write_text(json.dumps(found | {"samples": [sum(sizes.values())]}))


main()
