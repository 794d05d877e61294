"""The workers of a run: started, watched over, given up when lost, and replaced where there is room."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from sfsl.errors import InputError
from sfsl.simulate.population import Population
from sfsl_research.ray.cluster import ClusterSettings, Connection, gpus_for_each, room, total
from sfsl_research.ray.worker import Place, Worker

log = logging.getLogger(__name__)

_START_SECONDS = 120.0  # for workers to start: many at once load torch from one disk
_REPLACE_SECONDS = 30.0
_LOOK_SECONDS = 30.0


@dataclass(eq=False)
class Member:
    """Stands for one worker. ``lost`` says why it was, and ``failed`` that its own code raised something."""

    actor: Any
    starting: Any
    place: Place | None = None
    lost: str = ""
    failed: bool = False
    awaited: bool = False


class Crew:
    """Has the workers of a run. ``work``: how many pieces there are to divide; more are of no use.

    Used from several threads while a round runs, and from one between rounds.
    """

    def __init__(
        self, settings: ClusterSettings, population: Population, work: int, worker: type[Worker] = Worker
    ) -> None:
        self._settings, self._work, self._worker = settings, work, worker
        self._connection = Connection(settings)
        self._members: list[Member] = []
        self._lost: list[Member] = []
        self._lock = Lock()
        try:
            self._population = ray.put(population)
            self._begin()
        except BaseException:
            self.close()
            raise

    def ready(self) -> Sequence[Member]:
        """Return who can take part in the next round; whoever was lost is replaced where there is room."""
        self._lost = []
        self._look_after()
        self._members = [one for one in self._members if not one.lost]
        self._members += [self._started() for _ in range(self._wanted() - len(self._members))]
        there = self._await(_REPLACE_SECONDS)
        if not there:
            raise InputError(
                f"no worker is left, and the cluster has no room for another one of {self._settings.cpus} "
                "CPU; what is in the store stands"
            )
        return there

    def lose(self, member: Member, why: Exception | str) -> None:
        """Give a worker up, and its clients with it. It is ended, in case it only hangs."""
        with self._lock:
            if member.lost:
                return
            member.lost = _said(why)
            member.failed = isinstance(why, RayTaskError)
            if member.place is not None:  # one that never began has no clients to lose
                self._lost.append(member)
        log.warning("a worker was lost (%s): %s", member.place, member.lost)
        ray.kill(member.actor, no_restart=True)

    def lost(self) -> list[Member]:
        """Return who was lost since ``ready`` was called."""
        return list(self._lost)

    def close(self) -> None:
        with suppress(RayError):  # a cluster that is gone has no workers either
            for one in self._members if ray.is_initialized() else ():
                ray.kill(one.actor, no_restart=True)
        self._connection.close()

    def _begin(self) -> None:
        self._gpus = 0.0
        self._gpus = gpus_for_each(self._settings, self._wanted())
        self._members = [self._started() for _ in range(max(1, self._wanted()))]
        there = self._await(_START_SECONDS)
        if not there and (failed := [one.lost for one in self._members if one.lost]):
            raise InputError(
                f"no worker could be started: {failed[0]}. Every node needs the same Python, sfsl and torch"
            )
        if not there:
            raise InputError(
                f"the cluster has no room for a worker of {self._settings.cpus} CPU and {self._gpus:g} GPU: "
                f"in all it has {total('CPU'):g} CPU and {total('GPU'):g} GPU, and others may use them"
            )
        asked = self._settings.gpus != "auto" and self._settings.gpus > 0
        if asked and any(one.place.device == "cpu" for one in there if one.place):
            raise InputError(
                f"ray.gpus_per_worker = {self._settings.gpus:g}, and torch sees no GPU in a worker that was "
                'given one: install torch for CUDA on every node, or take 0 or "auto"'
            )

    def _look_after(self) -> None:
        """Find out who died since the last round, before clients are given to it."""
        asked = {one.actor.place.remote(): one for one in self._members if one.place and not one.lost}
        for reference in self._placed(asked, _LOOK_SECONDS):
            self.lose(asked[reference], f"no sign of life in {_LOOK_SECONDS:g} s")

    def _placed(self, asked: Mapping[Any, Member], seconds: float) -> Sequence[Any]:
        """Note where those are who say so in time, or that they are lost; return what nobody answered."""
        if not asked:
            return ()
        answered, silent = ray.wait(list(asked), num_returns=len(asked), timeout=seconds)
        for reference in answered:
            try:
                asked[reference].place = ray.get(reference)
            except RayError as error:
                self.lose(asked[reference], error)
        return silent

    def _wanted(self) -> int:
        return self._settings.workers or min(self._work, room(self._settings.cpus, self._gpus))

    def _started(self) -> Member:
        made = ray.remote(self._worker).options(
            num_cpus=self._settings.cpus,
            num_gpus=self._gpus,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
        )
        actor: Any = made.remote(self._population, self._settings.threads, self._settings.cpus)
        return Member(actor, actor.place.remote())

    def _await(self, seconds: float) -> list[Member]:
        """Wait for as many as the cluster could hold, and for nobody twice: whoever is not ready by then may
        be so in a later round. Return those who are."""
        pending = {one.starting: one for one in self._members if one.place is None and not one.lost}
        free = room(self._settings.cpus, self._gpus) - (len(self._members) - len(pending))
        due = min(free, sum(not one.awaited for one in pending.values()))
        if due > 0:
            ray.wait(list(pending), num_returns=due, timeout=seconds)
        for one in pending.values():
            one.awaited = one.awaited or due > 0
        self._placed(pending, 0)
        return [one for one in self._members if one.place is not None]


def _said(why: Exception | str) -> str:
    """Return one line of what Ray's errors say in pages: the first, or the last of a worker's own error."""
    lines = [line for line in str(why).strip().splitlines() if line.strip()]
    if not lines:
        return type(why).__name__
    raised = isinstance(why, RayTaskError) or "creation task" in lines[0]
    return lines[-1 if raised else 0].strip()
