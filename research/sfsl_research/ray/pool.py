"""The clients of a cohort on the workers of a cluster, each group whole on one of them."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
import ray
from ray.exceptions import RayError

from sfsl.carriers.local.engine import Lessons, Reply
from sfsl.client.device import Device
from sfsl.rounds.exchanges import SUBMODELS, Course
from sfsl.rounds.hot import Published
from sfsl.rounds.record import Learned
from sfsl.simulate.population import Groups, Personal
from sfsl_research.ray.crew import Crew, Member

T = TypeVar("T")
Results = list[tuple[Member, Collection[str], Any]]


class RayPool:
    """Asks workers for their clients. ``parts`` says who has which groups. A worker that dies, raises, hangs
    or answers with something else than replies is lost from that exchange on; its clients have no reply.

    What is in a frame is not looked at here: the round does that, client by client. What is ``published`` for
    all clients travels once to each worker, when its clients check in.
    """

    def __init__(
        self,
        crew: Crew,
        key: str,
        number: int,
        parts: Mapping[Member, Groups],
        devices: Mapping[str, Device],
        seconds: float,
        course: Course = SUBMODELS,
        published: Published | None = None,
    ) -> None:
        self._crew, self._key, self._number, self._parts = crew, key, number, parts
        self._devices, self._seconds, self._course = devices, seconds, course
        self._published = None if published is None else ray.put(published)
        self._names = {
            member: [name for group in groups for name in group] for member, groups in parts.items()
        }

    def check_in(self) -> dict[str, Reply]:
        told = (self._course, self._published)
        found = self._ask(
            "check_in", self._names, lambda member, _: (self._number, self._parts[member], *told)
        )
        return self._replies(found)

    def answer(self, exchange: str, frames: Mapping[str, bytes]) -> dict[str, Reply]:
        asked = self._among(frames)
        return self._replies(self._ask("answer", asked, lambda _, names: (exchange, _only(frames, names))))

    def train(self, frames: Mapping[str, bytes], personal: Personal) -> Lessons:
        taken: Results = []
        learned: dict[str, Learned] = {}
        seconds = 0.0
        for member, names, lessons in self._ask(
            "train", self._among(frames), lambda _, names: (_only(frames, names), _only(personal, names))
        ):
            if not isinstance(lessons, Lessons) or not self._plausible(lessons, names):
                self._crew.lose(member, "it answers with something else than lessons")
                continue
            taken.append((member, names, lessons.replies))
            learned |= _only(lessons.learned, names)
            seconds += lessons.seconds
        replies = self._replies(taken)
        return Lessons(replies, _only(learned, replies), seconds)

    def _among(self, frames: Mapping[str, bytes]) -> dict[Member, list[str]]:
        return {member: [name for name in names if name in frames] for member, names in self._names.items()}

    def _ask(
        self,
        what: str,
        asked: Mapping[Member, list[str]],
        given: Callable[[Member, list[str]], tuple[Any, ...]],
    ) -> Results:
        """Return what each worker answers for its clients, as far as it does in time."""
        deadline = time.monotonic() + self._seconds
        waiting: dict[Any, Member] = {
            getattr(member.actor, what).remote(self._key, *given(member, names)): member
            for member, names in asked.items()
            if names and not member.lost
        }
        results: Results = []
        while waiting:
            left = max(0.0, deadline - time.monotonic())
            done, _ = ray.wait(list(waiting), num_returns=1, timeout=left)
            if not done:
                for member in waiting.values():
                    self._crew.lose(member, f"no answer in {self._seconds:g} s")
                break
            member = waiting.pop(done[0])
            try:
                results.append((member, asked[member], ray.get(done[0])))
            except RayError as error:
                self._crew.lose(member, error)
        return results

    def _replies(self, results: Results) -> dict[str, Reply]:
        found: dict[str, Reply] = {}
        for member, names, replies in results:
            if not isinstance(replies, Mapping) or not all(_is_reply(replies.get(name)) for name in names):
                self._crew.lose(member, "it answers with something else than replies")
                continue
            found |= _only(replies, names)
        return found

    def _plausible(self, lessons: Lessons, names: Collection[str]) -> bool:
        """Return whether what is stored for devices is theirs, and numbers."""
        learned = lessons.learned
        return (
            isinstance(learned, Mapping)
            and isinstance(lessons.seconds, float)
            and all(_is_learned(learned.get(name), self._devices[name]) for name in names)
        )


def _only(all_of_them: Mapping[str, T], names: Iterable[str]) -> dict[str, T]:
    return {name: all_of_them[name] for name in names}


def _is_reply(given: object) -> bool:
    return (
        isinstance(given, Reply)
        and isinstance(given.frame, bytes | None)
        and isinstance(given.seconds, float)
        and isinstance(given.reason, str)
    )


def _is_learned(given: object, device: Device) -> bool:
    if not isinstance(given, Learned) or given.samples < 0 or given.personal.keys() != device.personal.keys():
        return False
    for table, (rows, moves) in given.personal.items():
        width = device.task.spec.table(table).width
        if moves.shape != (len(rows), width) or not np.isfinite(moves).all():
            return False
        if len(np.unique(rows)) != len(rows) or not np.isin(rows, device.personal[table]).all():
            return False
    return True
