"""Rounds as a carrier drives them: whose answers count, what is charged to which exchange, what is exposed
when; and what is logged, told and kept of a round."""

import itertools
import logging
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cohort import MAPS, MODEL, Cohort, Stepper
from deployment import MODEL_DIGEST, new_store, settings
from sfsl.errors import (
    Aborted,
    ConflictingMessage,
    KeyMismatch,
    Oversize,
    UnexpectedSender,
    WrongPhase,
    WrongRound,
)
from sfsl.privacy import PeriodSelection, epsilon_of
from sfsl.rounds import ScoreBins
from sfsl.rounds.hot import HotState
from sfsl.rounds.record import RoundTally
from sfsl.service.driver import CohortRound, Driver, Journal, Service, untold
from sfsl.service.messages import CODEC, Decline
from sfsl.service.registry import Registry
from sfsl.submodel import Commit


class Driven:
    """A cohort of four, driven by its frames. ``cpu`` goes on by a second at each look."""

    def __init__(self, **given: Any) -> None:
        self.cohort = Cohort(4)
        self.step = Stepper(self.cohort)
        self.exposed: list[tuple[bytes, set[str]]] = []
        self.tally = RoundTally(4)
        seconds = itertools.count()
        self.running = CohortRound(
            self.step.server,
            self.cohort.session,
            self.cohort.params,
            self.tally,
            cpu=lambda: float(next(seconds)),
            exposed=lambda round_id, clients: self.exposed.append((round_id, set(clients))),
            **given,
        )
        self.frames = self.running.begin()
        self._answers: dict[tuple[str, str], bytes] = {}

    def answer(self, name: str) -> bytes:
        """Its answer to what is asked now, which it makes once."""
        key = (self.running.exchange, name)
        if key not in self._answers:
            self._answers[key] = self._made(name)
        return self._answers[key]

    def _made(self, name: str) -> bytes:
        message = CODEC.decode(self.frames[name], limit=10**7)
        handler = self.running.course.step(self.running.exchange).handler  # type: ignore[arg-type]
        client = self.step.clients[name]
        if handler == "handle_submodel":
            return CODEC.encode(
                client.create_update(self.cohort.train(name, client.handle_submodel(message)))
            )
        return CODEC.encode(getattr(client, handler)(message))

    def exchange(self, *without: str) -> dict[str, bytes]:
        answers = {name: self.answer(name) for name in self.frames if name not in without}
        for name, data in answers.items():
            self.running.receive(self.running.exchange, name, data)
        self.frames = self.running.close()
        return answers

    def decline(self, round_id: bytes | None = None) -> bytes:
        return CODEC.encode(Decline(self.running.round_id if round_id is None else round_id))


# -- answers -------------------------------------------------------------------------------------------


def test_what_a_round_is_before_anyone_answered() -> None:
    driven = Driven()
    running = driven.running
    assert (running.exchange, running.expected) == ("invitation", {"c0", "c1", "c2", "c3"})
    assert (running.answered, running.declined, running.finished) == (set(), set(), frozenset())
    assert running.published == {}
    assert untold(b"", []) is None
    assert Driven(published={b"d": b"c"}).running.published == {b"d": b"c"}


def test_who_says_no_is_not_waited_for_and_cannot_say_yes() -> None:
    driven = Driven()
    running = driven.running
    for data, name, error, says in (
        (driven.decline(bytes(16)), "c0", WrongRound, "declines another round"),
        (driven.decline(), "stranger", Oversize, "."),  # who is due nothing may send nothing
    ):
        with pytest.raises(error, match=says):
            running.receive("invitation", name, data)
    with pytest.raises(UnexpectedSender, match="was not invited"):
        running._decline("stranger", Decline(running.round_id))
    assert (running.declined, driven.tally.declined, driven.tally.bytes_up) == (set(), {}, {})
    running.receive("invitation", "c1", driven.answer("c1"))
    with pytest.raises(ConflictingMessage, match="c1 has answered the invitation already"):
        running.receive("invitation", "c1", driven.decline())
    sent = len(driven.answer("c1"))
    for times in (1, 2):
        running.receive("invitation", "c0", driven.decline())
        assert (running.declined, driven.tally.declined) == ({"c0"}, {"Decline": 1})
        assert driven.tally.bytes_up == {"invitation": sent + times * len(driven.decline())}
    with pytest.raises(ConflictingMessage, match="c0 declined this round"):
        running.receive("invitation", "c0", driven.answer("c0"))
    for name in ("c2", "c3"):
        running.receive("invitation", name, driven.answer(name))
    driven.frames = running.close()
    assert set(driven.frames) == {"c1", "c2", "c3"}
    assert (driven.tally.dropped, driven.tally.late) == ({}, 0)  # who said no is not missed
    assert driven.tally.answered == {"invitation": 3}
    with pytest.raises(WrongPhase, match="Decline does not answer 'inbound'"):
        running.receive("inbound", "c1", driven.decline())


def test_an_answer_to_another_exchange_is_late_once_if_it_was_given_up() -> None:
    driven = Driven()
    running = driven.running
    first = driven.answer("c0")
    driven.exchange()
    for late in (1, 2):
        with pytest.raises(WrongPhase, match="'invitation' was closed"):
            running.receive("invitation", "c0", first)
        assert driven.tally.late == late
    with pytest.raises(WrongPhase, match="does not answer 'inbound'"):
        running.receive("inbound", "c0", first)
    running.leave("c1")
    assert (driven.tally.late, driven.tally.declined) == (3, {})
    inbound = driven.answer("c1")
    driven.exchange("c1")
    assert driven.tally.dropped == {}  # it is counted as late already
    with pytest.raises(WrongPhase):
        running.receive("inbound", "c1", inbound)
    assert driven.tally.late == 3
    with pytest.raises(WrongPhase):
        running.receive("invitation", "c1", first)
    assert driven.tally.late == 4


def test_who_gives_a_reason_declines_and_who_gives_none_is_late() -> None:
    driven = Driven()
    driven.running.leave("c0", "Busy")
    driven.running.leave("c1", Aborted("so"))
    assert (driven.tally.declined, driven.tally.late) == ({"Busy": 1, "Aborted": 1}, 0)
    driven.running.leave("c2")
    assert driven.tally.late == 1


def test_who_is_silent_is_counted_and_expected_no_more() -> None:
    driven = Driven()
    driven.exchange("c3")
    assert driven.tally.dropped == {"invitation": 1}
    assert driven.running.expected == {"c0", "c1", "c2"}
    assert driven.running.limit("c3") == 0
    driven.exchange()
    assert driven.tally.dropped == {"invitation": 1}
    assert driven.tally.answered == {"invitation": 3, "inbound": 3}


def test_masked_sets_are_exposed_before_they_are_opened_and_only_if_there_are_any() -> None:
    driven = Driven()
    running = driven.running
    running.expose()  # nothing came yet that could be
    driven.exchange()
    running.expose()
    assert driven.exposed == []
    running.receive("inbound", "c2", driven.answer("c2"))
    running.expose()
    running.expose()
    assert driven.exposed == [(running.round_id, {"c2"})] * 2
    for name in ("c0", "c1", "c3"):
        running.receive("inbound", name, driven.answer(name))
    driven.frames = running.close()
    assert driven.exposed[2:] == [(running.round_id, {"c0", "c1", "c2", "c3"})]
    while running.exchange:
        driven.exchange()
    assert len(driven.exposed) == 3
    assert running.finished == {"c0", "c1", "c2", "c3"}
    assert running.expected == frozenset()
    assert driven.frames == {}


def test_every_look_at_the_processor_is_charged_to_its_exchange() -> None:
    """A second each for beginning, receiving and closing, also for what is refused."""
    driven = Driven()
    seconds = driven.tally.server_seconds
    assert seconds == {"invitation": 1}
    answers = {name: driven.answer(name) for name in driven.frames}
    for name, data in answers.items():
        driven.running.receive("invitation", name, data)
    assert seconds == {"invitation": 5}
    driven.frames = driven.running.close()
    assert seconds == {"invitation": 6}
    with pytest.raises(WrongPhase):
        driven.running.receive("invitation", "c0", answers["c0"])
    assert seconds == {"invitation": 7}
    driven.exchange()
    assert seconds == {"invitation": 7, "inbound": 5}
    assert driven.tally.bytes_up["invitation"] == sum(map(len, answers.values()))


# -- plans ---------------------------------------------------------------------------------------------


def test_every_plan_has_a_seed_of_its_own_unless_it_is_given_one() -> None:
    driver = Driver(settings().rules, MODEL, MAPS, new_store(), cpu=lambda: 0.0)
    plans: list[Any] = [driver.plan(3, 8) for _ in range(2)]
    assert plans[0].union.seed != plans[1].union.seed
    assert len(plans[0].union.seed) == 32
    given: Any = driver.plan(3, 8, seed=b"s" * 32, scores=ScoreBins(bins=8, centre=2.0))
    assert (given.union.seed, given.scores, given.number) == (b"s" * 32, ScoreBins(bins=8, centre=2.0), 1)
    assert (driver.number, driver.names) == (1, b"")
    driver.store.commit(Commit(1))
    assert driver.number == 2
    assert driver.plan(3, 8).number == 2  # type: ignore[union-attr]


class Served:
    """A service beside its registry, of which three clients may be in a round."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.lines: list[Any] = []
        self.registry = Registry(folder / "registry.sqlite")
        self.service = Service(
            settings(**changes),
            MODEL,
            MAPS,
            new_store(),
            self.registry,
            model_digest=MODEL_DIGEST,
            record=self.lines.append,
            cpu=lambda: 0.0,
            clock=lambda: 0.0,
            today=lambda: 0,
            first_rest=float(changes.pop("rest", 600.0)),
        )


def test_what_a_service_begins_with(tmp_path: Path) -> None:
    service = Served(tmp_path).service
    assert (service.told.scheme, service.rho, service.names) == ("sfsl", None, b"")
    assert str(service.told) == "submodels"
    assert service.members.first_rest == 600.0
    assert service.next_plan(3).number == 1  # type: ignore[union-attr]


def test_what_a_round_over_hot_rows_costs_is_told_by_its_kind() -> None:
    """Two surveys first, at a price of their own; then rounds that train."""
    rules = SimpleNamespace(
        scheme="hot", hot=SimpleNamespace(surveys=2, survey_rho=0.02, rho=0.5, delta=1e-6)
    )
    found = SimpleNamespace(rows={"a": bytes(16), "b": bytes(24)})  # each row is named in eight bytes
    told, rho = (getattr(Service, name).fget for name in ("told", "rho"))
    for surveys, hot, kind, costs, rows in (
        (0, None, "survey", 0.02, 0),
        (1, found, "survey", 0.02, 5),
        (2, found, "train", 0.5, 5),
        (3, None, "train", 0.5, 0),
    ):
        state = SimpleNamespace(surveys=surveys, hot_set=lambda hot=hot: hot)
        world = SimpleNamespace(rules=rules, _journal=SimpleNamespace(kept=SimpleNamespace(hot=state)))
        said = told(world)
        assert (said.scheme, said.kind, said.delta) == ("hot", kind, 1e-6)
        assert said.epsilon == epsilon_of(costs, 1e-6)
        assert rho(world) == costs
        assert said.hot_rows == rows


def test_as_many_are_chosen_as_are_wanted_or_there(tmp_path: Path) -> None:
    service = Served(tmp_path).service
    three = {"a", "b", "c"}
    assert set(service.choose(three, 3)) == set(service.choose(three, 9)) == three
    assert {frozenset(service.choose(three, 2)) for _ in range(200)} == {
        frozenset(one) for one in (("a", "b"), ("b", "c"), ("a", "c"))
    }


def test_who_ended_a_round_is_left_out_and_named_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service = Served(tmp_path).service
    with caplog.at_level(logging.WARNING):
        assert service.blame(7, Aborted("nobody in particular")) == 0
        assert service.blame(7, KeyMismatch("nobody can tell")) == 0
        assert not caplog.records
        assert service.blame(7, KeyMismatch("two of them", ("ann", "bob"))) == 2
        service.members.first_rest = math.inf
        assert service.blame(8, KeyMismatch("one", ("eve",))) == 1
    said = "client {} dealt shares that do not fit its keys and ended round {}: left out {}"
    assert caplog.messages == [
        said.format("ann", 7, "for 10 min"),
        said.format("bob", 7, "for 10 min"),
        said.format("eve", 8, "from here on"),
    ]
    assert service.members.bars("ann")
    assert not service.members.bars("cat")


def test_invitations_are_noted_where_there_are_periods(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served(tmp_path)
    noted: list[Any] = []
    served.service.open = lambda *_, **given: SimpleNamespace(  # type: ignore[method-assign]
        round_id=bytes(16), exposed=given["exposed"], identities=given["identities"]
    )
    served.registry.invite = lambda *given: noted.append(given)  # type: ignore[method-assign]
    check_ins: Any = {name: SimpleNamespace(keys=name) for name in ("ann", "bob", "cat")}
    tally = RoundTally()
    with caplog.at_level(logging.INFO):
        opened: Any = served.service.invite(check_ins, None, tally, None)
        assert (tally.cohort, noted) == (3, [])
        assert opened.exposed == served.registry.acknowledge
        served.service.invite(check_ins, None, tally, 0)  # the first period there is has the number 0
    assert noted == [(0, bytes(16), check_ins)]
    assert caplog.messages == [f"round 1 ({bytes(16).hex()}): 3 clients invited to submodels"] * 2


# -- the end of a round --------------------------------------------------------------------------------


def test_an_aborted_round_counts_and_keeps_the_bins(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    served, exposed = Served(tmp_path), []
    service = served.service
    bins = ScoreBins(bins=8, centre=3.0)
    service._journal.commit(Commit(1), RoundTally(3).record(1, None), bins)
    tally = RoundTally(3, answered={"check-in": 3, "invitation": 2}, exchange_seconds={"invitation": 1.234})
    running: Any = SimpleNamespace(expose=lambda: exposed.append(1))
    with caplog.at_level(logging.INFO):
        record = service.finish(running, tally, aborted="too few", seconds=4.5)
        assert exposed == [1]
        service.finish(None, RoundTally(3), aborted="no luck", seconds=0.0)
    assert (record.round, record.aborted, record.wall_seconds) == (2, "too few", 4.5)
    assert [line.round for line in served.lines] == [2, 3]
    assert service.store.round == 3
    kept = Journal(service.store).kept
    assert kept.scores == bins
    assert kept.record() == served.lines[1]
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("WARNING", "round 2 aborted: too few; answered: check-in 3, invitation 2 in 1.23 s"),
        ("WARNING", "round 3 aborted: no luck; answered: nobody"),
    ]
    assert caplog.records[0].figures["cost/wall_seconds"] == 4.5  # type: ignore[attr-defined]


def test_a_committed_round_says_who_was_in_it_and_how_long_it_took(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served, driven = Served(tmp_path), Driven()
    while driven.running.exchange:
        driven.exchange()
    driven.tally.exchange_seconds = {"inbound": 0.5}
    with caplog.at_level(logging.INFO):
        record = served.service.finish(driven.running, driven.tally, aborted=None, seconds=2.25)
    assert (record.round, record.survivors, record.samples, record.loss) == (1, 4, 12, None)
    (said,) = caplog.records
    assert said.levelname == "INFO"
    assert said.getMessage().startswith("round 1 committed: 4 of 4 clients, 2.2 s; answered: invitation 4, ")
    assert "inbound 4 in 0.50 s, unmask-union 4, " in said.getMessage()
    assert said.figures["clients/survivors"] == 4.0  # type: ignore[attr-defined]
    kept = Journal(served.service.store).kept
    assert kept.scores is not None
    assert kept.scores != driven.cohort.params.scores
    assert kept.hot == HotState()
    assert served.lines == [record]


def test_what_was_not_said_between_rounds_stays_as_it_was() -> None:
    journal = Journal(new_store())
    record = RoundTally(2).record(1, None)
    journal.commit(Commit(1), record, ScoreBins(bins=8), rounds={"ann": 2}, spent={"ann": 0.5})
    journal.commit(Commit(2), RoundTally(2).record(2, None), None)
    kept = Journal(journal.store).kept
    assert (kept.rounds, kept.spent, kept.scores) == ({"ann": 2}, {"ann": 0.5}, ScoreBins(bins=8))
    assert (kept.period, kept.hot) == (PeriodSelection(), HotState())
    last = kept.record()
    assert last is not None
    assert last.round == 2
    assert journal.kept == kept


def test_a_commit_that_fails_is_not_kept() -> None:
    journal = Journal(new_store())
    before = journal.kept
    with pytest.raises(Exception, match="round 5 cannot follow"):
        journal.commit(Commit(5), RoundTally(2).record(5, None), None, rounds={"ann": 1})
    assert journal.kept is before
