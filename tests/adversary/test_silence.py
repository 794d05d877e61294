"""A model, the same for all, on which training fails where a client has a given row: silence would say so.

Answers for rows are randomized; whether a client has a row would show in who sends no update. Our own
training ends in zeros where it diverges. An app's may raise, or return what is no number; and own rows may
grow beyond all numbers where hyperparameters are large.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from cohort import CATEGORY_OF, DENSE, MODEL, Cohort
from sfsl.client.home import PersonalRows
from sfsl.client.round import Chance, ClientRound, InRound, Lesson
from sfsl.errors import SfslError
from sfsl.rounds import RoundClient, Trained
from sfsl.rounds.client import Own
from sfsl.rounds.exchanges import CODEC
from sfsl.rounds.server import RoundServer
from sfsl.submodel import Commit, RowBlock, RowSet, TrainedRows

LIMIT = 10**7
MARKED = 7  # the row whose owners a server wants to know


class Memory:
    """Answers for everything, and remembers nothing."""

    rests_until = None

    def __init__(self, answers: Any) -> None:
        self.expose, self.answer = answers.expose, answers.answer

    def prepare(self, acknowledged: int | None) -> None: ...

    def enter(self, number: int) -> None: ...

    def rounding(self, number: int) -> None: ...


class Diverging:
    """Trains the rows that its client really has, and goes astray where one of them is beyond all bounds."""

    personal: Mapping[str, Any] = {"user": np.array([0])}

    def __init__(self, real: set[int], astray: Callable[[Trained], Lesson]) -> None:
        self.real, self.astray = real, astray

    def require(self, training: Mapping[str, float]) -> None: ...

    def train(self, download: Any, personal: Any, number: int) -> Lesson:
        goods = RowSet.of(sorted(self.real)).common(download.asked["goods"])
        held = download.rows["goods"][download.asked["goods"].positions_of(goods.rows)]
        category = RowSet.of(CATEGORY_OF[goods.rows])
        rows = {
            name: TrainedRows(own, np.full((len(own), width), 0.01), np.ones(len(own), int))
            for name, own, width in (("goods", goods, 3), ("category", category, 2))
        }
        fine = Trained(np.full(DENSE, 0.01), 3, rows)
        if len(held) and np.abs(held).max() > 1e30:
            return self.astray(fine)
        return Lesson(fine, {"user": (np.array([0]), np.full((1, 2), 0.5, np.float32))})


def raises(fine: Trained) -> Lesson:
    raise MemoryError("no room for this batch")


def no_number(fine: Trained) -> Lesson:
    return Lesson(Trained(np.full(DENSE, np.nan), 3, fine.rows), {})


def own_rows(fine: Trained) -> Lesson:
    return Lesson(fine, {"user": (np.array([0]), np.full((1, 2), np.inf, np.float32))})


ASTRAY = pytest.mark.parametrize("astray", [raises, no_number, own_rows])


def crafted(cohort: Cohort) -> None:
    """Give the marked row values that no training survives."""
    values, state = np.full((1, 3), 3e38, np.float32), np.zeros((1, 0, 3), np.float32)
    cohort.store.commit(Commit(1, {"goods": RowBlock(RowSet.of([MARKED]), values, state)}))


def silent(astray: Callable[[Trained], Lesson]) -> tuple[set[str], set[str]]:
    """Run a round of twenty in active mode; return who sent no update, and who has the marked row."""
    cohort = Cohort(20, active=True)
    crafted(cohort)
    made = {
        name: RoundClient(
            cohort.sessions[name],
            Own(cohort.answers[name], cohort.model, cohort.maps, cohort.policy, cohort.randomness),
        )
        for name in cohort.names
    }
    rounds = {
        name: ClientRound(
            client,
            Memory(cohort.answers[name]),
            Diverging(cohort.real[name], astray),
            PersonalRows(MODEL, bytes(32)),
            Chance(cohort.randomness),
        )
        for name, client in made.items()
    }
    keys = [client.create_keys() for client in made.values()]
    server = RoundServer(cohort.session, cohort.params, keys, cohort.store, cohort.maps, cohort.pinned)
    outbound, gone = dict(server.invitations()), set[str]()
    while outbound:
        for name, message in outbound.items():
            received = CODEC.decode(CODEC.encode(message), limit=LIMIT)
            try:
                answer = rounds[name].answer(received, lambda: None, {})
            except (SfslError, MemoryError):
                gone.add(name)
                continue
            server.receive(name, CODEC.decode(CODEC.encode(answer), limit=LIMIT))
        try:
            outbound = dict(server.close_phase())
        except SfslError:  # too few are left: the server knows what it wanted by then
            break
    return gone, {name for name in cohort.names if MARKED in cohort.real[name]}


@ASTRAY
def test_who_has_a_row_does_not_show_in_who_answers(astray: Callable[[Trained], Lesson]) -> None:
    gone, owners = silent(astray)
    assert owners
    assert not gone


def as_it_was(self: Any, download: Any) -> Lesson:
    own = {name: self.personal.read(name, rows) for name, rows in self.trainer.personal.items()}
    return self.trainer.train(download, own, self.number or 0)


def sent_as_it_was(self: Any, lesson: Lesson) -> Any:
    update = self.client.create_update(lesson.trained)
    self.personal.keep(lesson.personal)
    return update


@ASTRAY
def test_where_failures_are_silence_it_does(
    astray: Callable[[Trained], Lesson], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InRound, "train", as_it_was)
    monkeypatch.setattr(InRound, "upload", sent_as_it_was)
    gone, owners = silent(astray)
    assert gone == owners
    assert owners
