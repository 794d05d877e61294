"""Where the clients of a cohort live during a round: frames go in, frames or the reason for none come out.

``MaskedRound`` neither knows nor cares whether they are threads beside it or on other machines.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

from sfsl.client.device import Learned
from sfsl.codec import Message
from sfsl.crypto.secret import Randomness
from sfsl.errors import Declined, NotFinite, Refused
from sfsl.rounds import RoundClient, RoundPolicy
from sfsl.rounds.exchanges import STEP, SUMS, Exchange
from sfsl.rounds.messages import CODEC
from sfsl.secagg import Client, Policy
from sfsl.simulate.population import Groups, Personal, Population

MESSAGE_LIMIT = 1 << 30
# A simulated client accepts what it is offered; a deployed one has a policy of its own.
_GENEROUS = 2**32
_SESSION = Policy(min_clients=2, min_threshold=2, min_contributors=1, max_words=_GENEROUS)


@dataclass(frozen=True)
class Reply:
    """Holds what a client answers, or why it does not: it declines, or its update is not finite. ``seconds``
    of its CPU, without training."""

    frame: bytes | None
    seconds: float
    reason: str = ""


@dataclass(frozen=True)
class Lessons:
    """Holds what comes of training. ``seconds``: wall time, all places together."""

    replies: Mapping[str, Reply]
    learned: Mapping[str, Learned]
    seconds: float


class ClientPool(Protocol):
    """Has a cohort's clients. One for whom there is no reply was lost."""

    def check_in(self) -> Mapping[str, Reply]:
        """Return everyone's keys."""

    def answer(self, exchange: Exchange, frames: Mapping[str, bytes]) -> Mapping[str, Reply]: ...
    def train(self, frames: Mapping[str, bytes], personal: Personal) -> Lessons:
        """Return the answers to ``submodel``."""


class LocalPool:
    """Has the clients of some groups, in this process, for one round. ``randomness`` makes keys and masks.

    They work side by side in the threads of ``workers``: ciphers and arrays, which take most of the time,
    run in parallel.
    """

    def __init__(
        self, population: Population, number: int, groups: Groups, randomness: Randomness, workers: Executor
    ) -> None:
        self._population, self._number, self._groups = population, number, groups
        self._randomness, self._workers = randomness, workers
        self._clients: dict[str, RoundClient] = {}

    def check_in(self) -> dict[str, Reply]:
        return self._side_by_side(chain.from_iterable(self._groups), self._keys)

    def answer(self, exchange: Exchange, frames: Mapping[str, bytes]) -> dict[str, Reply]:
        handler = STEP[exchange].handler
        return self._side_by_side(
            frames, lambda name: getattr(self._clients[name], handler)(_decoded(frames[name]))
        )

    def train(self, frames: Mapping[str, bytes], personal: Personal) -> Lessons:
        downloads, spent = {}, {}
        for name, frame in frames.items():
            start = time.thread_time()
            downloads[name] = self._clients[name].handle_submodel(_decoded(frame))
            spent[name] = time.thread_time() - start
        began = time.perf_counter()
        trained, learned = self._population.train(self._number, self._groups, downloads, personal)
        seconds = time.perf_counter() - began
        replies = self._side_by_side(
            frames, lambda name: self._clients[name].create_update(trained[name]), spent
        )
        return Lessons(replies, {name: learned[name] for name in frames}, seconds)

    def _side_by_side(
        self, names: Iterable[str], act: Callable[[str], Message], spent: Mapping[str, float] | None = None
    ) -> dict[str, Reply]:
        def reply(name: str) -> tuple[str, Reply]:
            start = time.thread_time() - (spent[name] if spent else 0.0)
            try:
                frame, reason = CODEC.encode(act(name)), ""
            except (Declined, Refused, NotFinite) as error:
                frame, reason = None, type(error).__name__
            return name, Reply(frame, time.thread_time() - start, reason)

        return dict(self._workers.map(reply, names))

    def _keys(self, name: str) -> Message:
        population, number, randomness = self._population, self._number, self._randomness
        self._clients[name] = RoundClient(
            Client(name, _SESSION, randomness, sums=SUMS),
            population.answers(name, number),
            population.task.spec,
            population.task.row_maps,
            RoundPolicy(session=_SESSION, max_clip=_GENEROUS, max_rows=population.settings.max_rows),
            randomness,
            population.rounding(name, number),
        )
        return self._clients[name].create_keys()


def _decoded(frame: bytes) -> Any:
    """Decode what our own server made."""
    return CODEC.decode(frame, limit=MESSAGE_LIMIT)
