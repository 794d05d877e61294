"""Rounds over hot rows with clients written from docs/spec alone (tests/second_client), beside our own: a
survey that finds out which rows are hot, and rounds that train on them, with and without noise."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from cohort import CATEGORY_OF, DENSE, GOODS, MAPS, MODEL, WIDTH
from hot_cohort import Purse, new_store, rules
from second_client.hot import HotDownload, HotRound, Limits
from second_client.rounds import Model, Update
from second_client.secagg import Policy, Session
from second_client.wire import pack
from sfsl import secagg
from sfsl.crypto.secret import SystemRandomness
from sfsl.errors import Refused
from sfsl.rounds import RoundPolicy, Trained
from sfsl.rounds.client import Own
from sfsl.rounds.hot_client import HotClient
from sfsl.rounds.hot_server import HotRound as Plan
from sfsl.rounds.params import HotLimits
from sfsl.rounds.record import RoundTally
from sfsl.service.driver import Driver, Journal, Kept
from sfsl.service.messages import CODEC
from sfsl.submodel import RowSet, TrainedRows

CORRUPTION = 0.1
THEIR_MODEL = Model(
    bytes(32),
    [
        {name: getattr(one, name) for name in ("name", "rows", "width", "kind", "source", "initial")}
        for one in MODEL.tables
    ],
    MODEL.dense,
    CATEGORY_OF,
)


class Person:
    """Someone's goods, and what training makes of those that are hot: the same in every round."""

    def __init__(self, number: int, max_rho: float) -> None:
        rng = np.random.default_rng(number)
        self.id, self.max_rho = f"person-{number}", max_rho
        self.goods = sorted({0, 1, 2, *rng.choice(GOODS, 6, replace=False).tolist()})
        self.rows = {"goods": self.goods, "category": sorted(set(CATEGORY_OF[self.goods].tolist()))}
        self.dense = rng.normal(0, 0.05, DENSE)
        self.moves = {
            table: {row: rng.normal(0, 0.05, width) for row in self.rows[table]}
            for table, width in (("goods", WIDTH), ("category", 2))
        }
        self.spent = 0.0


class Second(Person):
    """As a client of the second kind."""

    def begin(self, plan: Plan) -> Any:
        contents: dict[bytes, bytes] = {}
        if plan.published is not None:
            contents = {
                plan.params.hot: plan.published.hot.encode(),
                plan.params.blob: plan.published.blob,
            }
        session = Session(self.id, Policy(), sums=1)
        self.round = HotRound(
            session,
            THEIR_MODEL,
            {"goods": self.goods},
            self.train,
            contents.__getitem__,
            Limits(rho=self.max_rho, corrupt=CORRUPTION),
        )
        return CODEC.decode(b"\x01" + pack(session.keys), limit=10**4)

    def answer(self, exchange: str, frame: bytes) -> bytes:
        answer = self.round.answer(frame)
        self.spent += self.round.spent if exchange == "unmask-update" else 0.0
        return answer

    def train(self, download: HotDownload) -> Update:
        rows = {
            table: {row: (move, 1) for row, move in moves.items() if row in download.rows[table]}
            for table, moves in self.moves.items()
        }
        cold = next(row for row in range(GOODS) if row not in download.rows["goods"])
        assert download.first("goods", cold).shape == (WIDTH,)
        return Update(self.dense, 3, rows, np.ones(16))


class Ours(Person):
    """As a client of ours."""

    def begin(self, plan: Plan) -> Any:
        self.plan, self.purse = plan, Purse(self.goods)
        policy = RoundPolicy(
            session=secagg.Policy(min_clients=3, min_threshold=2, min_contributors=1, max_words=10**5),
            max_clip=2.0,
            max_rows=1000,
            hot=HotLimits(max_rho=self.max_rho, corruption=CORRUPTION),
        )
        self.client = HotClient.join(self.id, Own(self.purse, MODEL, MAPS, policy, SystemRandomness()))
        return self.client.create_keys()

    def answer(self, exchange: str, frame: bytes) -> bytes:
        message: Any = CODEC.decode(frame, limit=10**6)
        match exchange:
            case "invitation":
                answer: Any = self.client.handle_invitation(message)
            case "inbound" if self.plan.published is None:
                answer = self.client.handle_survey(message)
            case "inbound":
                assert self.plan.published is not None
                asked = self.client.handle_model(message, self.plan.published).asked
                answer = self.client.create_update(self.trained(asked))
            case _:
                answer = self.client.handle_unmask(message)
                self.spent += sum(self.purse.spent.values())
        return CODEC.encode(answer)

    def trained(self, asked: Any) -> Trained:
        rows = {}
        for table, moves in self.moves.items():
            own = [row for row in moves if asked[table].holds(np.array([row]))[0]]
            width = WIDTH if table == "goods" else 2
            deltas = np.array([moves[row] for row in own]).reshape(len(own), width)
            rows[table] = TrainedRows(RowSet.of(own), deltas, np.ones(len(own), int))
        return Trained(self.dense, 3, rows, (np.ones(8, int), np.ones(8, int)))


def play(driver: Driver, people: Sequence[Second | Ours]) -> tuple[Plan, Any]:
    """One round in frames, committed to the store; what was planned, and the server at its end."""
    journal = Journal(driver.store)
    plan = driver.plan(len(people), 0, hot=journal.kept.hot, scores=journal.kept.scores)
    assert isinstance(plan, Plan)
    tally = RoundTally(len(people))
    cohort = driver.open(plan, [one.begin(plan) for one in people], tally)
    frames, by_id = cohort.begin(), {one.id: one for one in people}
    while exchange := cohort.exchange:
        for client, frame in frames.items():
            cohort.receive(exchange, client, by_id[client].answer(exchange, frame))
        frames = cohort.close()
    outcome = cohort.server.outcome
    record = tally.record(plan.number, outcome, aborted=None, seconds=0.0)
    journal.commit(outcome.applied.commit, record, None, hot=outcome.hot)
    return plan, cohort.server


def driver_of(**changes: Any) -> Driver:
    given: dict[str, Any] = {"corruption": CORRUPTION, "marks": 20}
    return Driver(rules(**(given | changes)), MODEL, MAPS, new_store(), cpu=lambda: 0.0)


@pytest.mark.parametrize("theirs", [6, 3], ids=["second clients alone", "beside our own"])
def test_sums_without_noise_are_what_both_kinds_learned(theirs: int) -> None:
    people = [(Second if k < theirs else Ours)(k, math.inf) for k in range(6)]
    driver = driver_of()
    plan, server = play(driver, people)
    assert plan.params.kind == "survey"
    counts = np.bincount(np.concatenate([one.goods for one in people]), minlength=GOODS)
    np.testing.assert_array_equal(server.sums.words, counts)
    hot = Kept.decode(driver.store.selection).hot.hot_set()
    assert hot is not None
    np.testing.assert_array_equal(np.frombuffer(hot.rows["goods"], "<i8"), np.flatnonzero(counts))
    for _ in range(2):
        before = driver.store.read_dense().values.copy()
        plan, server = play(driver, people)
        assert plan.params.kind == "train"
        unit, clients = plan.params.clip / plan.params.levels, len(people)
        near = {"atol": 1.01 * clients * unit, "rtol": 1e-6}
        np.testing.assert_allclose(server.sums.words[:DENSE] * unit, sum(one.dense for one in people), **near)
        first = sum(one.moves["goods"][0] for one in people)
        np.testing.assert_allclose(server.sums.words[DENSE : DENSE + WIDTH] * unit, first, **near)
        assert (driver.store.read_dense().values != before).all()


def test_with_noise_all_pay_the_same() -> None:
    people = [(Second if k % 2 else Ours)(k, 0.4) for k in range(8)]
    driver = driver_of(rho=0.4, survey_rho=0.3)
    plan, server = play(driver, people)
    counts = np.bincount(np.concatenate([one.goods for one in people]), minlength=GOODS)
    noise = server.sums.words / plan.params.levels - counts
    # Eight clients' noise, in marks: of their deviation, and not of less.
    deviation = plan.params.deviation / plan.params.levels * math.sqrt(8)
    assert abs(noise.std() / deviation - 1) < 5 / math.sqrt(2 * GOODS)
    play(driver, people)
    assert driver.store.round == 2
    for one in people:
        assert one.spent == pytest.approx(0.7, rel=1e-6)


def test_too_dear_a_round_is_declined_by_both() -> None:
    people = [(Second if k % 2 else Ours)(k, 0.1) for k in range(4)]
    driver = driver_of(survey_rho=0.3)
    plan = driver.plan(4, 0)
    assert isinstance(plan, Plan)
    cohort = driver.open(plan, [one.begin(plan) for one in people], RoundTally(4))
    frames = cohort.begin()
    for one in people:
        if isinstance(one, Ours):
            with pytest.raises(Refused):
                one.answer("invitation", frames[one.id])
        else:
            cohort.receive("invitation", one.id, one.answer("invitation", frames[one.id]))
    assert cohort.declined == {one.id for one in people if isinstance(one, Second)}
