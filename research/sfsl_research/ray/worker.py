"""One worker of a cluster: the clients of some groups of each cohort, where they train and mask.

It holds the data of the whole population, or rather a view of it: an object store has it once per node.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import ray
import torch

from sfsl.carriers.local.engine import Lessons, LocalPool, Reply
from sfsl.crypto.secret import SystemRandomness
from sfsl.rounds.exchanges import SUBMODELS, Course, Exchange
from sfsl.rounds.hot import Published
from sfsl.simulate.population import Groups, Personal, Population


@dataclass(frozen=True)
class Place:
    """Says where a worker is, and what it trains on."""

    node: str
    process: int
    device: str


class Worker:
    """Has clients of some cohorts, each known by its ``key``. Calls come one after another."""

    def __init__(self, population: Population, threads: int, cpus: int) -> None:
        if threads:
            torch.set_num_threads(threads)
        self.device = training_device(ray.get_gpu_ids(), cuda=torch.cuda.is_available())
        self._population = population.on(self.device)
        self._threads = ThreadPoolExecutor(max(1, cpus))
        self._cohorts: dict[str, LocalPool] = {}

    def place(self) -> Place:
        return Place(ray.get_runtime_context().get_node_id(), os.getpid(), self.device)

    def check_in(
        self,
        key: str,
        number: int,
        groups: Groups,
        course: Course = SUBMODELS,
        published: Published | None = None,
    ) -> Mapping[str, Reply]:
        self._cohorts[key] = LocalPool(
            self._population, number, groups, SystemRandomness(), self._threads, course, published
        )
        return self._cohorts[key].check_in()

    def answer(self, key: str, exchange: Exchange, frames: Mapping[str, bytes]) -> Mapping[str, Reply]:
        return self._cohorts[key].answer(exchange, frames)

    def train(self, key: str, frames: Mapping[str, bytes], personal: Personal) -> Lessons:
        return self._cohorts[key].train(frames, personal)

    def forget(self) -> None:
        """Forget all cohorts: their round is over, and so are their keys."""
        self._cohorts.clear()


def training_device(gpus: Sequence[object], *, cuda: bool) -> str:
    """Return the GPU if this worker was given one and torch can use it. Ray shows it no others."""
    return "cuda" if gpus and cuda else "cpu"
