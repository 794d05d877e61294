"""A cohort in one file, and local training as PyTorch users write it: for frameworks with environments of
their own, which import our DIN and nothing else of ours."""

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sfsl.models.din import DIN
from sfsl.training.task import click_loss

BATCH, RATE, CLIP = 2, 1.0, 0.1


class ClientsFile:
    """``columns`` of each client as tensors, and the sizes of the model."""

    def __init__(self, path: Path) -> None:
        with np.load(path) as file:
            self.sizes: dict[str, int] = json.loads(str(file["sizes"]))
            names = [name for name in file.files if name != "sizes"]
            every = {name: torch.from_numpy(file[name]) for name in names}
        self.clients: list[dict[str, Tensor]] = [{} for _ in range(self.sizes["users"])]
        for name, one in every.items():
            client, column = name.split("/")
            self.clients[int(client)][column] = one

    @staticmethod
    def write(
        path: Path, sizes: Mapping[str, int], clients: Iterable[Mapping[str, np.ndarray[Any, Any]]]
    ) -> None:
        columns = {f"{client}/{name}": one for client, own in enumerate(clients) for name, one in own.items()}
        np.savez(path, sizes=json.dumps(dict(sizes)), **columns)  # type: ignore[arg-type]


def sparse_din(sizes: Mapping[str, int]) -> DIN:
    """Our DIN; gradients of its embeddings are sparse, so that a step touches the rows of its batch only."""
    torch.manual_seed(0)
    module = DIN(sizes["users"], sizes["items"], sizes["categories"])
    for layer in module.modules():
        if isinstance(layer, nn.Embedding):
            nn.init.uniform_(layer.weight, -0.05, 0.05)
            layer.sparse = True
    return module


@lru_cache(1)
def at_hand(path: Path) -> tuple[ClientsFile, DIN]:
    """Read and built once in a process, which has one thread."""
    torch.set_num_threads(1)
    file = ClientsFile(path)
    return file, sparse_din(file.sizes)


def mean_loss(module: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    return click_loss(module(batch), batch).mean()


class ClippedSGD(torch.optim.SGD):
    """SGD whose gradients are clipped to a norm, all together, sparse ones too: torch's own clipping does
    not take those."""

    def step(self, closure: Any = None) -> Any:
        values = []
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is not None:
                    if one.grad.is_sparse:
                        one.grad = one.grad.coalesce()
                    values.append(one.grad._values() if one.grad.is_sparse else one.grad)
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(values)))
        torch._foreach_mul_(values, (CLIP / norm.clamp_min(CLIP)).item())
        return super().step(closure)


def train(module: nn.Module, columns: Mapping[str, Tensor]) -> int:
    """One epoch; the number of samples."""
    optimizer = ClippedSGD(module.parameters(), lr=RATE)
    samples = len(columns["label"])
    for chosen in torch.split(torch.randperm(samples), BATCH):
        optimizer.zero_grad()
        mean_loss(module, {name: one[chosen] for name, one in columns.items()}).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return samples
