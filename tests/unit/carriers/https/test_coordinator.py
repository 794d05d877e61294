"""The coordinator: conversations over tickets, cohorts, deadlines, aborts, restarts."""

import asyncio
import errno
import logging
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from clocks import PATIENCE, until
from cohort import DENSE
from deployment import LIMIT, Deployment, Guest, new_store, settings
from sfsl.durable import LineFile
from sfsl.errors import (
    AuthenticationFailed,
    ConflictingMessage,
    DecodeError,
    InvalidMessage,
    Oversize,
    ParameterError,
    RoundOver,
    ShuttingDown,
    StoreError,
    StoreFull,
    TooMany,
    UnexpectedSender,
    WrongPhase,
)
from sfsl.rounds.exchanges import ORDER, TRAINS, Invitation, order
from sfsl.rounds.server import RoundServer
from sfsl.service.folder import MetricsFile, read_lines
from sfsl.service.members import DAY_MS
from sfsl.service.messages import CODEC, Decline
from world import frozen, tampered

UNKNOWN = bytes(16)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, PATIENCE))


async def whole_round(guests: list[Guest]) -> list[RoundOver]:
    for guest in guests:
        guest.check_in()
    return await asyncio.gather(*(guest.play() for guest in guests))


# -- the last round ------------------------------------------------------------------------------------


async def last_round_up_to_its_end(world: Deployment) -> list[Guest]:
    """All have given their last answer, and nobody has asked since."""
    guests = world.clients(3)
    for guest in guests:
        guest.check_in()
    for number in range(1, len(order(active=False)) + 1):
        frames = await asyncio.gather(*(guest.until(number) for guest in guests))
        for guest, frame in zip(guests, frames, strict=True):
            await guest.answer(guest.answer_to(frame))
    await until(lambda: world.check_ins.round == 1)
    return guests


@pytest.mark.parametrize("late", [0, 1, 3])
def test_a_server_that_is_done_stays_until_the_last_round_has_heard_of_its_end(
    tmp_path: Path, late: int
) -> None:
    """Whoever is between an answer and the next question would wait for a server that is gone."""

    async def scenario() -> None:
        async with Deployment(tmp_path, rounds=1, goodbye_seconds=PATIENCE) as world:
            guests = await last_round_up_to_its_end(world)
            ends = await asyncio.gather(*(guest.play() for guest in guests[late:]))
            if late:
                await asyncio.sleep(0.05)
                assert not world.task.done()
            ends += await asyncio.gather(*(guest.play() for guest in guests[:late]))
            await world.task
            assert [end.outcome for end in ends] == ["committed"] * 3

    run(scenario())


def test_a_server_that_is_done_does_not_wait_for_who_is_gone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path, rounds=1, goodbye_seconds=0.01) as world:
            guests = await last_round_up_to_its_end(world)
            await world.task
            with pytest.raises(ShuttingDown):
                world.clients(4)[3].check_in()
            assert (await guests[0].play()).outcome == "committed"

    run(scenario())


def test_a_server_that_is_done_waits_for_nobody_who_was_left_out_or_waits(tmp_path: Path) -> None:
    """Those who wait for a round have a question open nearly always, and get their answer to it."""

    async def scenario() -> None:
        async with Deployment(tmp_path, rounds=1, cohort=4, goodbye_seconds=PATIENCE) as world:
            guests = world.clients(5)
            for guest in guests[:4]:
                guest.check_in()
            await guests[0].until(1)
            await guests[0].answer(decline(guests[0]))
            guests[4].check_in()
            ends = await asyncio.gather(*(guest.play() for guest in guests[1:4]))
            await world.task
            assert [end.outcome for end in ends] == ["committed"] * 3
            assert (await guests[4].play()).outcome == "restarted"

    run(scenario())


@pytest.mark.parametrize("asks", [True, False])
def test_a_server_that_is_told_to_stop_waits_for_questions_too(tmp_path: Path, asks: bool) -> None:
    """An answer to what was never asked is a question as well: its client hears how the round ended."""

    async def scenario() -> None:
        async with Deployment(tmp_path, goodbye_seconds=PATIENCE) as world:
            guests = await last_round_up_to_its_end(world)
            stopping = asyncio.create_task(world.coordinator.stop())
            await asyncio.gather(*(guest.play() for guest in guests[1:]))
            await asyncio.sleep(0.05)
            assert not stopping.done()
            with pytest.raises(RoundOver, match="round 1 is committed"):
                await (guests[0].next() if asks else guests[0].answer(b"another", guests[0].received + 1))
            await stopping

    run(scenario())


def test_a_server_that_stops_long_after_a_round_waits_for_nobody(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path, goodbye_seconds=PATIENCE) as world:
            await last_round_up_to_its_end(world)
            world.advance(PATIENCE)
            await world.coordinator.stop()

    run(scenario())


@pytest.mark.parametrize("before", [True, False])
def test_a_server_that_is_told_twice_waits_for_nobody(tmp_path: Path, before: bool) -> None:
    """The second time comes before the goodbye, or while it lasts."""

    async def scenario() -> None:
        async with Deployment(tmp_path, goodbye_seconds=PATIENCE) as world:
            await last_round_up_to_its_end(world)
            stopping = asyncio.create_task(world.coordinator.stop())
            if not before:
                await asyncio.sleep(0.05)
                assert not stopping.done()
            world.coordinator.give_up()
            await stopping
            await world.task

    run(scenario())


def test_a_goodbye_can_be_cut_short(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path, rounds=1, goodbye_seconds=PATIENCE) as world:
            others = asyncio.all_tasks() - {world.task}
            await last_round_up_to_its_end(world)
            await asyncio.sleep(0.05)
            world.task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await world.task
            assert asyncio.all_tasks() == others, "nothing waits any more"

    run(scenario())


# -- declining ----------------------------------------------------------------------------------------


def decline(guest: Guest) -> bytes:
    """What says no to the first message that this guest was sent."""
    invitation = CODEC.decode(guest.frames[0], limit=LIMIT)
    assert isinstance(invitation, Invitation)
    return CODEC.encode(Decline(invitation.roster.params.round_id))


def test_nobody_waits_for_who_declines(tmp_path: Path) -> None:
    """Deadlines are of a thousand seconds here."""

    async def scenario() -> None:
        async with Deployment(tmp_path, cohort=4) as world:
            guests = world.clients(4)
            for guest in guests:
                guest.check_in()
            await guests[0].until(1)
            said = decline(guests[0])
            for _ in range(2):  # its answer may get lost
                await guests[0].answer(said)
            with pytest.raises(ConflictingMessage):
                await guests[0].answer(guests[0].answer_to(guests[0].frames[0]))
            ends = [await guests[0].play(), *await asyncio.gather(*(guest.play() for guest in guests[1:]))]
            assert [end.outcome for end in ends] == ["left-out", *["committed"] * 3]
            await guests[0].answer(said)
            (line,) = world.lines
            assert (line.cohort, line.survivors) == (4, 3)
            assert (line.declined, line.dropped, line.late) == ({"Decline": 1}, {}, 0)
            assert world.coordinator.totals.tally.declined == {"Decline": 1}
            assert world.registry.acknowledged(guests[0].id) == 0

    run(scenario())


def test_a_round_that_too_many_decline_is_over_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path) as world:
            guests = world.clients(3)
            for guest in guests:
                guest.check_in()
            await guests[0].until(1)
            await guests[0].answer(decline(guests[0]))
            ends = await asyncio.gather(*(guest.play() for guest in guests[1:]))
            assert {end.outcome for end in ends} == {"aborted"}
            (line,) = world.lines
            assert line.aborted is not None
            assert line.aborted.startswith("2 clients answered")
            assert line.declined == {"Decline": 1}

    run(scenario())


@pytest.mark.parametrize("exchange", order(active=False)[1:])
def test_only_an_invitation_can_be_declined(tmp_path: Path, exchange: str) -> None:
    number = order(active=False).index(exchange) + 1

    async def scenario() -> None:
        async with Deployment(tmp_path) as world:
            guests = world.clients(3)
            for guest in guests:
                guest.check_in()
            frames = await asyncio.gather(*(guest.until(number) for guest in guests))
            with pytest.raises(WrongPhase, match="Decline does not answer"):
                await guests[0].answer(decline(guests[0]))
            for guest, frame in zip(guests, frames, strict=True):
                await guest.answer(guest.answer_to(frame))
            ends = await asyncio.gather(*(guest.play() for guest in guests))
            assert {end.outcome for end in ends} == {"committed"}

    run(scenario())


# -- shares that do not fit ------------------------------------------------------------------------


def misdeals(guest: Guest) -> None:
    """It publishes other commitments than belong to the seeds that it shares."""
    keys = guest.message.keys
    other = msgspec.structs.replace(keys, commitments=keys.commitments[::-1])
    tampered(guest.machine.session, keys=other)
    guest.message = msgspec.structs.replace(guest.message, keys=other)


def test_whoever_misdeals_is_left_out_for_a_while(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path, cohort=8, min_cohort=7, check_in_seconds=20.0) as world:
            guests = world.clients(8)
            misdeals(guests[3])
            ends = await whole_round(guests)
            assert {end.outcome for end in ends} == {"aborted"}
            assert world.coordinator.totals.left_out == 1
            for rest in (600, 1200):
                for guest in guests:
                    guest.fresh()
                    guest.check_in()
                assert (await guests[3].play()).outcome == "not-chosen"
                others = [asyncio.create_task(guest.play()) for guest in guests if guest is not guests[3]]
                await asyncio.sleep(0.05)
                world.advance(21)
                assert {end.outcome for end in await asyncio.gather(*others)} == {"committed"}
                world.advance(rest)
                for guest in guests:
                    guest.fresh()
                misdeals(guests[3])
                assert {end.outcome for end in await whole_round(guests)} == {"aborted"}
            assert world.coordinator.totals.left_out == 3

    with caplog.at_level(logging.WARNING):
        run(scenario())
    said = [one.getMessage() for one in caplog.records if "left out for" in one.getMessage()]
    assert [one.rsplit(" ", 2)[1] for one in said] == ["10", "20", "40"]
    assert all("dealt shares that do not fit" in one for one in said)


def test_whoever_misdealt_and_waits_already_is_left_out_too(tmp_path: Path) -> None:
    """It leaves before its secret is opened, and has checked in anew when it is."""

    async def scenario() -> None:
        async with Deployment(tmp_path, cohort=10, min_cohort=9, check_in_seconds=20.0) as world:
            guests = world.clients(10)
            crook = guests[3]
            misdeals(crook)
            for guest in guests:
                guest.check_in()
            ends = await asyncio.gather(*(guest.play(leave_at=3 * (guest is crook)) for guest in guests))
            assert [end.outcome for end in ends] == ["aborted"] * 3 + ["left-out"] + ["aborted"] * 6
            waiting = asyncio.create_task(crook.play())
            honest = [guest for guest in guests if guest is not crook]
            for guest in honest:
                guest.fresh()
                guest.check_in()
            playing = [asyncio.create_task(guest.play()) for guest in honest]
            assert (await waiting).outcome == "not-chosen"
            world.advance(21)
            assert {end.outcome for end in await asyncio.gather(*playing)} == {"committed"}
            assert [line.cohort for line in world.lines] == [10, 9]

    run(scenario())


# -- rounds ----------------------------------------------------------------------------------------


def test_three_clients_make_one_round(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path) as world:
            guests = world.clients(3)
            ends = await whole_round(guests)
            assert [(end.outcome, end.round) for end in ends] == [("committed", 1)] * 3
            assert world.store.round == 1
            moved = world.store.read_dense().values - np.arange(DENSE)
            assert np.allclose(moved, np.mean([guest.dense for guest in guests], axis=0), atol=1e-6)
            (line,) = world.lines
            assert (line.cohort, line.survivors, line.aborted, line.late) == (3, 3, None, 0)
            assert line.dropped == {}
            assert line.auc_secure is not None
            assert list(line.server_seconds) == ["check-in", *order(active=False)]
            down = [sum(map(len, guest.frames)) for guest in guests]
            assert sum(line.bytes_down.values()) - line.bytes_down["check-in"] == np.mean(down)
            up = [sum(map(len, guest.answers)) for guest in guests]
            assert sum(line.bytes_up.values()) - line.bytes_up["check-in"] == np.mean(up)
            assert line.bytes_up["check-in"] == len(CODEC.encode(guests[0].message))

    run(scenario())


@pytest.mark.parametrize(
    ("active", "exchange"), [(active, one) for active in (False, True) for one in order(active)]
)
def test_a_client_that_leaves_at_any_exchange_costs_the_others_nothing(
    tmp_path: Path, exchange: str, active: bool
) -> None:
    place = order(active).index(exchange)

    async def scenario() -> None:
        async with Deployment(tmp_path, cohort=4, active=active) as world:
            guests = world.clients(4)
            for guest in guests:
                guest.check_in()
            leaves = {guests[1]: place + 1}
            ends = await asyncio.gather(*(guest.play(leave_at=leaves.get(guest, 0)) for guest in guests))
            outcomes = [end.outcome for end in ends]
            assert outcomes == ["committed", "left-out", "committed", "committed"]
            (line,) = world.lines
            assert line.aborted is None
            assert line.dropped == {exchange: 1}
            # Whoever has uploaded is in the sum, also if it helps to open it no more.
            assert line.survivors == (4 if place >= order(active).index(TRAINS) + 1 else 3)
            counted = [world.registry.acknowledged(guest.id) for guest in guests]
            assert counted == [1, int(place > 1), 1, 1]

    run(scenario())


def test_a_late_answer_is_refused_and_its_client_left_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path, cohort=4) as world:
            guests = world.clients(4)
            for guest in guests:
                guest.check_in()
            slow, others = guests[0], guests[1:]
            answer = slow.answer_to(await slow.until(1))
            playing = [asyncio.create_task(guest.play()) for guest in others]
            await until(lambda: world.coordinator.status().heard == 3)
            world.advance(999)
            await asyncio.sleep(0.05)
            assert world.coordinator.status().phase == "invitation"
            world.advance(2)
            await until(lambda: world.coordinator.status().phase != "invitation")
            with pytest.raises(WrongPhase, match="too late"):
                await slow.answer(answer)
            with pytest.raises(RoundOver) as over:
                await slow.next()
            assert (over.value.outcome, over.value.round) == ("left-out", 1)
            assert "no answer to 'invitation' in time" in str(over.value)
            ends = await asyncio.gather(*playing)
            assert [end.outcome for end in ends] == ["committed"] * 3
            assert (world.lines[0].late, world.lines[0].dropped) == (1, {"invitation": 1})

    run(scenario())


def test_training_has_a_deadline_of_its_own(tmp_path: Path) -> None:
    chosen = settings(phase_seconds=1.0, training_seconds=2.0)
    assert [chosen.deadline(exchange) for exchange in ("union", "submodel", "unmask-update")] == [1, 2, 1]


def test_an_abort_is_explained_and_the_next_round_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        async with Deployment(tmp_path) as world:
            guests = world.clients(3)
            before = world.store.read_dense().values
            for guest in guests:
                guest.check_in()
            ends = await asyncio.gather(
                guests[0].play(), guests[1].play(leave_at=3), guests[2].play(leave_at=3)
            )
            assert [end.outcome for end in ends] == ["aborted", "left-out", "left-out"]
            assert "3 are needed" in str(ends[0])
            assert world.lines[0].aborted is not None
            assert "3 are needed" in world.lines[0].aborted
            assert "round 1 aborted: 1 clients answered" in caplog.text
            assert world.store.round == 1  # it counts, and changes nothing
            assert np.array_equal(world.store.read_dense().values, before)
            guests[0].fresh()
            guests[0].check_in()
            ends = await asyncio.gather(*(guest.play() for guest in guests))
            assert [(end.outcome, end.round) for end in ends] == [("committed", 2)] * 3
            assert [line.aborted is None for line in world.lines] == [False, True]

    run(scenario())


def test_the_bins_of_scores_follow(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path) as world:
            guests = world.clients(3)
            told = []
            for _ in range(2):
                await whole_round(guests)
                told.append(CODEC.decode(guests[0].frames[0], limit=10**7).round)  # type: ignore[attr-defined]
                for guest in guests:
                    guest.fresh()
            assert told[0].scores != told[1].scores
            assert [one.training["rate"] for one in told] == [1.0, 0.5]
            assert [one.number for one in told] == [1, 2]

    run(scenario())


@pytest.mark.parametrize("broken", ["commit", "read_dense"])
def test_a_store_that_fails_ends_the_server(tmp_path: Path, broken: str) -> None:
    async def scenario() -> None:
        world = Deployment(tmp_path)
        setattr(world.store, broken, _broken)
        async with world:
            ends = await whole_round(world.clients(3))
            assert [end.outcome for end in ends] == ["aborted"] * 3
            with pytest.raises(StoreError, match="check the disk"):
                await world.task
            assert world.check_ins.stopping
            assert world.lines == []
            assert world.store.round == 0

    run(scenario())


def _broken(*_: object) -> None:
    raise StoreError("cannot do it; check the disk")


def _full(*_: object) -> None:
    raise StoreFull("no room")


def test_a_round_that_stands_is_not_called_aborted_whatever_fails_after_its_commit(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = Deployment(tmp_path)
        world.coordinator._service._record = _full
        async with world:
            ends = await whole_round(world.clients(3))
            assert {(end.outcome, end.round) for end in ends} == {("committed", 1)}
            assert world.store.round == 1
            with pytest.raises(StoreFull):
                await world.task

    run(scenario())


def test_metrics_that_cannot_be_written_cost_no_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        world, path = Deployment(tmp_path), tmp_path / "metrics.jsonl"
        with MetricsFile(path, []) as metrics:
            world.coordinator._service._record = metrics.append
            async with world:
                guests = world.clients(3)
                with monkeypatch.context() as patch:
                    patch.setattr(LineFile, "append", no_room)
                    for number in (1, 2):
                        ends = await whole_round(guests)
                        assert {(end.outcome, end.round) for end in ends} == {("committed", number)}
                        for guest in guests:
                            guest.fresh()
                    assert read_lines(path) == []
                await whole_round(guests)
        assert [line.round for line in read_lines(path)] == [1, 2, 3]

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    run(scenario())
    assert [said for said in caplog.messages if "metrics" in said] == [
        f"cannot write {tmp_path / 'metrics.jsonl'}: No space left on device. Rounds stand, and their "
        "lines are written when there is room",
        f"{tmp_path / 'metrics.jsonl'} can be written again, and has every line",
    ]


def test_a_mistake_of_ours_ends_the_round_and_not_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path) as world:
            guests = world.clients(3)
            with monkeypatch.context() as patch:
                patch.setattr("sfsl.service.driver.CohortRound.close", lambda _: 1 // 0)
                ends = await whole_round(guests)
            assert {end.outcome for end in ends} == {"aborted"}
            assert "ZeroDivisionError" in caplog.text
            assert "division" not in str(ends[0])
            for guest in guests:
                guest.fresh()
            assert {end.outcome for end in await whole_round(guests)} == {"committed"}

    run(scenario())


# -- what is refused, with nothing changed -----------------------------------------------------------


async def at_exchange(world: Deployment, guests: list[Guest], number: int) -> list[bytes]:
    """Everyone has message ``number`` and has not answered it."""
    for guest in guests:
        guest.check_in()
    return list(await asyncio.gather(*(guest.until(number) for guest in guests)))


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6])
def test_what_does_not_belong_changes_nothing(tmp_path: Path, number: int) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path) as world:
            guests = world.clients(3)
            frames = await at_exchange(world, guests, number)
            honest, other = guests[0], guests[1]
            answers = [guest.answer_to(frame) for guest, frame in zip(guests, frames, strict=True)]
            running = world.coordinator._running
            assert running is not None

            def picture() -> Any:
                return frozen(running.server), set(running.answered), dict(running.tally.bytes_up)

            before = picture()
            check_ins = world.check_ins
            with pytest.raises(UnexpectedSender):  # someone else's answer, under one's own ticket
                await check_ins.answer(honest.id, honest.ticket, number, answers[1])
            with pytest.raises(RoundOver, match="not known"):  # someone else's ticket
                await check_ins.answer(honest.id, other.ticket, number, answers[0])
            with pytest.raises(RoundOver, match="not known"):
                await check_ins.next(honest.id, other.ticket, 0, 0)
            with pytest.raises(RoundOver) as unknown:
                await check_ins.answer(honest.id, UNKNOWN, number, answers[0])
            assert unknown.value.outcome == "restarted"
            for wrong in {0, number + 1, number + 100}:
                with pytest.raises(WrongPhase):
                    await check_ins.answer(honest.id, honest.ticket, wrong, answers[0])
            if number > 1:  # an answer of before, as an answer to this
                with pytest.raises(WrongPhase, match="does not answer"):
                    await check_ins.answer(honest.id, honest.ticket, number, honest.answers[-1])
                with pytest.raises(ConflictingMessage):  # this, as an answer to that of before
                    await check_ins.answer(honest.id, honest.ticket, number - 1, answers[0])
                await check_ins.answer(
                    honest.id, honest.ticket, number - 1, honest.answers[-1]
                )  # a repetition
            limit = check_ins.answer_limit(honest.id, honest.ticket, number)
            assert len(answers[0]) <= limit < len(answers[0]) + 1024
            with pytest.raises(Oversize):
                await check_ins.answer(honest.id, honest.ticket, number, answers[0] + bytes(limit))
            for broken in (b"", b"\x01", answers[0][:-1], answers[0] + b"\0", b"\x02" + answers[0][1:]):
                with pytest.raises(DecodeError):
                    await check_ins.answer(honest.id, honest.ticket, number, broken)
            for wrong in {number + 1, number - 2} - {-1}:
                with pytest.raises(WrongPhase):
                    await check_ins.next(honest.id, honest.ticket, wrong, 0)
            assert picture() == before
            # None of it keeps the client from going on, and what it said stays said.
            await check_ins.answer(honest.id, honest.ticket, number, answers[0])
            assert running.answered == {honest.id}
            heard = picture()
            await check_ins.answer(honest.id, honest.ticket, number, answers[0])
            with pytest.raises(ConflictingMessage):
                await check_ins.answer(honest.id, honest.ticket, number, answers[0] + b"\0")
            assert picture() == heard
            for guest, answer in zip(guests[1:], answers[1:], strict=True):
                await guest.answer(answer)
            ends = await asyncio.gather(*(guest.play() for guest in guests))
            assert {end.outcome for end in ends} == {"committed"}
            # The last answer's reply may have been lost: the same again is taken, another is not.
            last = guests[1]
            await check_ins.answer(last.id, last.ticket, 6, last.answers[-1])
            with pytest.raises(ConflictingMessage):
                await check_ins.answer(last.id, last.ticket, 6, b"other")
            with pytest.raises(RoundOver):
                await check_ins.answer(last.id, last.ticket, 7, b"more")

    run(scenario())


def test_asking_again_gives_the_same_bytes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path) as world:
            guests = world.clients(3)
            (frame, *_) = await at_exchange(world, guests, 1)
            one = guests[0]
            assert await world.check_ins.next(one.id, one.ticket, 0, 0) == (1, frame)
            assert await world.check_ins.next(one.id, one.ticket, 1, 0) is None
            await one.answer(one.answer_to(frame))
            assert await world.check_ins.next(one.id, one.ticket, 0, 0) == (1, frame)
            running = world.coordinator._running
            assert running is not None
            assert running.tally.bytes_down["invitation"] == 3 * len(frame)  # told once each, however often

    run(scenario())


def test_a_client_has_one_question_open(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path, poll_seconds=PATIENCE) as world:
            (guest,) = world.clients(1)
            guest.check_in()
            first = asyncio.create_task(world.check_ins.next(guest.id, guest.ticket, 0, PATIENCE))
            await asyncio.sleep(0.02)
            second = asyncio.create_task(world.check_ins.next(guest.id, guest.ticket, 0, PATIENCE))
            assert await asyncio.wait_for(first, PATIENCE) is None
            assert not second.done()
            second.cancel()

    run(scenario())


# -- check-in --------------------------------------------------------------------------------------


def test_the_same_check_in_gives_the_same_ticket(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path) as world:
            guests = world.clients(3)
            one = guests[0].check_in()
            assert guests[0].check_in() == one
            assert len(world.check_ins.waiting) == 1
            await whole_round(guests)
            assert guests[0].check_in() == one  # also when its round is over: keys are used once
            with pytest.raises(RoundOver):
                await guests[0].next()
            guests[0].fresh()
            again = guests[0].check_in()
            assert again.ticket != one.ticket
            assert (one.acknowledged, again.acknowledged) == (0, 1)

    run(scenario())


def test_a_new_check_in_ends_the_old_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path) as world:
            (guest,) = world.clients(1)
            guest.check_in()
            polling = asyncio.create_task(world.check_ins.next(guest.id, guest.ticket, 0, PATIENCE))
            await asyncio.sleep(0.02)
            guest.fresh()
            guest.check_in()
            with pytest.raises(RoundOver) as over:
                await polling
            assert over.value.outcome == "left-out"
            assert len(world.check_ins.waiting) == 1

    run(scenario())


def test_check_ins_that_would_spoil_a_round_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path, most_clients=3) as world:
            honest, crook, third, fourth = world.clients(4)
            honest.check_in()
            mine, theirs = crook.message.keys, honest.message.keys

            def keys(**changes: Any) -> Any:
                return msgspec.structs.replace(crook.message, keys=msgspec.structs.replace(mine, **changes))

            cases: list[tuple[Any, type[Exception]]] = [
                (msgspec.structs.replace(crook.message, model=bytes(32)), InvalidMessage),
                (keys(client=honest.id), UnexpectedSender),
                (keys(channel=bytes(32)), AuthenticationFailed),
                (keys(channel=b"\xff" * 32), AuthenticationFailed),
                (keys(masks=mine.masks[:1], commitments=mine.commitments[:1]), InvalidMessage),
                (keys(masks=mine.masks[:1]), InvalidMessage),
                (keys(channel=theirs.channel), ConflictingMessage),
                (keys(masks=(mine.masks[0], theirs.channel)), ConflictingMessage),
                (keys(masks=(mine.masks[0], mine.masks[0])), ConflictingMessage),
                (keys(channel=mine.masks[0]), ConflictingMessage),
            ]
            for message, error in cases:
                with pytest.raises(error):
                    world.check_ins.check_in(crook.id, message)
            assert list(world.check_ins.waiting) == [honest.id]
            crook.check_in()
            crook.fresh()
            reused = msgspec.structs.replace(crook.message.keys, channel=mine.channel)
            with pytest.raises(ConflictingMessage, match="uses a key twice"):
                world.check_ins.check_in(crook.id, msgspec.structs.replace(crook.message, keys=reused))
            world.registry.revoke(third.id, 0)
            third.check_in()  # HTTP has refused it before; here it takes a place
            with pytest.raises(TooMany):
                fourth.check_in()

    run(scenario())


def test_in_active_mode_keys_are_signed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path, active=True) as world:
            one = world.clients(3)[0]
            for signature in (None, bytes(64)):
                keys = msgspec.structs.replace(one.message.keys, signature=signature)
                with pytest.raises(AuthenticationFailed):
                    world.check_ins.check_in(one.id, msgspec.structs.replace(one.message, keys=keys))
            one.check_in()

    run(scenario())


def test_clients_that_are_over_make_room(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path, most_clients=3) as world:
            guests = world.clients(6)
            await whole_round(guests[:3])
            ends = await whole_round(guests[3:])
            assert {end.outcome for end in ends} == {"committed"}

    run(scenario())


# -- cohorts ---------------------------------------------------------------------------------------


def test_a_cohort_has_its_size_and_the_others_wait(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path) as world:
            guests = world.clients(5)
            for guest in guests:
                guest.check_in()
            await until(lambda: world.coordinator.status().cohort == 3)
            assert len(world.check_ins.waiting) == 2
            left = [guest for guest in guests if guest.id in world.check_ins.waiting]
            chosen = [guest for guest in guests if guest not in left]
            assert {end.outcome for end in await asyncio.gather(*(one.play() for one in chosen))} == {
                "committed"
            }
            chosen[0].fresh()
            chosen[0].check_in()  # the third: those who waited are in the next round, with the same tickets
            ends = await asyncio.gather(*(one.play() for one in [*left, chosen[0]]))
            assert {(end.outcome, end.round) for end in ends} == {("committed", 2)}

    run(scenario())


def test_after_the_deadline_fewer_will_do(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path, cohort=5, min_cohort=3) as world:
            guests = world.clients(3)
            for guest in guests[:2]:
                guest.check_in()
            await asyncio.sleep(0.05)
            world.advance(1001)
            polls = [asyncio.create_task(guest.next()) for guest in guests[:2]]
            await asyncio.sleep(0.1)
            assert world.coordinator.status().cohort == 0  # two are too few, however long
            for poll in polls:
                poll.cancel()
            guests[2].check_in()
            ends = await asyncio.gather(*(guest.play() for guest in guests))
            assert {end.outcome for end in ends} == {"committed"}
            assert world.lines[0].cohort == 3

    run(scenario())


def test_before_the_deadline_fewer_will_not_do(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path, cohort=5, min_cohort=3) as world:
            guests = world.clients(3)
            for guest in guests:
                guest.check_in()
            await asyncio.sleep(0.1)
            assert world.coordinator.status().cohort == 0
            world.advance(1001)
            ends = await asyncio.gather(*(guest.play() for guest in guests))
            assert {end.outcome for end in ends} == {"committed"}

    run(scenario())


def test_the_silent_do_not_make_a_cohort_whole(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path, cohort=5, min_cohort=3) as world:
            *present, one, other = world.clients(5)
            for guest in (one, other):
                guest.check_in()
            await asyncio.sleep(0.02)
            world.advance(100)
            for guest in present:
                guest.check_in()
            playing = [asyncio.create_task(guest.play()) for guest in present]
            await until(lambda: len(world.check_ins.waiting) == 3)
            await asyncio.sleep(0.05)
            assert world.coordinator.status().cohort == 0  # there is time left for a fourth and a fifth
            world.advance(1000)
            ends = await asyncio.gather(*playing)
            assert {end.outcome for end in ends} == {"committed"}

    run(scenario())


def test_the_silent_and_the_revoked_are_let_go(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path, cohort=3) as world:
            silent, revoked, *others = world.clients(5)
            silent.check_in()
            world.advance(100)
            revoked.check_in()
            world.registry.revoke(revoked.id, 1)
            for guest in others[:2]:
                guest.check_in()
            await until(lambda: len(world.check_ins.waiting) == 2)  # the cohort would be these and it
            others[2].check_in()
            ends = await asyncio.gather(*(guest.play() for guest in others))
            assert {end.outcome for end in ends} == {"committed"}
            for guest, says in ((silent, "not heard"), (revoked, "revoked")):
                with pytest.raises(RoundOver, match=says) as over:
                    await guest.next()
                assert over.value.outcome == "left-out"

    run(scenario())


def test_once_in_a_period(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path, period_days=7) as world:
            guests = world.clients(3)
            for guest in guests:
                guest.check_in()
            await guests[0].until(1)
            period = world.now_ms // (7 * DAY_MS)
            assert world.registry.invited(period) == {guest.id for guest in guests}
            guests[0].received = 0
            await asyncio.gather(*(guest.play() for guest in guests))
            for guest in guests:
                guest.fresh()
                guest.check_in()
                with pytest.raises(RoundOver, match="invited in this period already") as over:
                    await guest.next()
                assert over.value.outcome == "not-chosen"
            world.now_ms += 7 * DAY_MS
            for guest in guests:
                guest.fresh()
            ends = await whole_round(guests)
            assert {(end.outcome, end.round) for end in ends} == {("committed", 2)}

    run(scenario())


def test_a_period_ends_with_its_last_millisecond(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path, period_days=7) as world:
            period = world.now_ms // (7 * DAY_MS)
            guests = world.clients(3)
            world.now_ms = (period + 1) * 7 * DAY_MS - 1
            await whole_round(guests)
            assert world.registry.invited(period) == {guest.id for guest in guests}
            for guest in guests:
                guest.fresh()
                guest.check_in()
                with pytest.raises(RoundOver, match="invited in this period already"):
                    await guest.next()
            world.now_ms += 1
            for guest in guests:
                guest.fresh()
            ends = await whole_round(guests)
            assert {(end.outcome, end.round) for end in ends} == {("committed", 2)}
            assert world.registry.invited(period + 1) == {guest.id for guest in guests}

    run(scenario())


def test_checking_in_again_while_invitations_are_written_is_no_second_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the registry does not have yet must not be taken for what it has."""

    async def scenario() -> None:
        async with Deployment(tmp_path, period_days=7) as world:
            guests = world.clients(4)
            invite, asked, go_on = world.registry.invite, threading.Event(), threading.Event()

            def slow(*given: Any) -> None:
                asked.set()
                go_on.wait(10)
                invite(*given)

            monkeypatch.setattr(world.registry, "invite", slow)
            for guest in guests[:3]:
                guest.check_in()
            await until(asked.is_set)
            guests[3].check_in()
            guests[0].fresh()
            guests[0].check_in()
            with pytest.raises(RoundOver, match="invited in this period"):
                await guests[0].next()
            go_on.set()

    run(scenario())


# -- the life of the server ------------------------------------------------------------------------


def test_masked_sets_are_counted_before_the_union_can_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    close_phase, counted = RoundServer.close_phase, []

    async def scenario() -> None:
        async with Deployment(tmp_path) as world:
            guests = world.clients(3)

            def watched(server: RoundServer) -> Any:
                counted.append([world.registry.acknowledged(guest.id) for guest in guests])
                return close_phase(server)

            monkeypatch.setattr(RoundServer, "close_phase", watched)
            await whole_round(guests)

    run(scenario())
    assert counted == [[0, 0, 0], *[[1, 1, 1]] * (len(ORDER) - 1)]


def test_masked_sets_are_counted_also_when_the_round_is_cut_short(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path) as world:
            guests = world.clients(3)
            frames = await at_exchange(world, guests, 2)
            await guests[0].answer(guests[0].answer_to(frames[0]))
            await world.coordinator.stop()
            assert [world.registry.acknowledged(guest.id) for guest in guests] == [1, 0, 0]

    run(scenario())


def test_a_restart_never_reopens_a_round(tmp_path: Path) -> None:
    """The process dies in mid-round: its tickets are void, the store is at the round before."""
    store = new_store()

    async def before() -> list[bytes]:
        world = Deployment(tmp_path, store, period_days=7)
        task = asyncio.create_task(world.coordinator.run())
        guests = world.clients(3)
        for guest in guests:
            guest.check_in()
        await asyncio.gather(*(guest.until(4) for guest in guests))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        world.registry.close()
        return [guest.ticket for guest in guests]

    tickets = asyncio.run(before())
    assert store.round == 0

    async def after() -> None:
        async with Deployment(tmp_path, store, period_days=7) as world:
            guests = world.clients(6)
            for guest, ticket in zip(guests[:3], tickets, strict=True):
                with pytest.raises(RoundOver) as over:
                    await world.check_ins.next(guest.id, ticket, 4, 5)
                assert (over.value.outcome, over.value.round) == ("restarted", 0)
                with pytest.raises(RoundOver):
                    await world.check_ins.answer(guest.id, ticket, 4, b"answer")
                # They were invited and exposed, and that is not forgotten.
                guest.fresh()
                assert guest.check_in().acknowledged == 1
                with pytest.raises(RoundOver, match="invited in this period"):
                    await guest.next()
            ends = await whole_round(guests[3:])
            assert {(end.outcome, end.round) for end in ends} == {("committed", 1)}
        assert store.round == 1

    run(after())


def test_stopping_tells_those_who_wait_and_takes_nobody_new(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path) as world:
            one, other = world.clients(2)
            one.check_in()
            polling = asyncio.create_task(world.check_ins.next(one.id, one.ticket, 0, 50))
            await asyncio.sleep(0.02)
            await asyncio.wait_for(world.coordinator.stop(), PATIENCE)
            with pytest.raises(RoundOver) as over:
                await polling
            assert over.value.outcome == "restarted"
            with pytest.raises(ShuttingDown):
                other.check_in()

    run(scenario())


def test_a_round_may_finish_within_the_grace(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path, grace_seconds=1000.0) as world:
            guests = world.clients(3)
            await at_exchange(world, guests, 5)
            for guest in guests:
                guest.received -= 1
            stopping = asyncio.create_task(world.coordinator.stop())
            await asyncio.sleep(0.02)
            ends = await asyncio.gather(*(guest.play() for guest in guests))
            assert {end.outcome for end in ends} == {"committed"}
            await asyncio.wait_for(stopping, PATIENCE)
            assert world.store.round == 1

    run(scenario())


def test_a_round_that_takes_longer_than_the_grace_is_aborted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path, grace_seconds=50.0) as world:
            guests = world.clients(3)
            await at_exchange(world, guests, 5)
            stopping = asyncio.create_task(world.coordinator.stop())
            await asyncio.sleep(0.05)
            assert not stopping.done()
            world.advance(51)
            await asyncio.wait_for(stopping, PATIENCE)
            for guest in guests:
                with pytest.raises(RoundOver, match="told to stop") as over:
                    await guest.next()
                assert (over.value.outcome, over.value.round) == ("aborted", 1)
            assert world.lines[0].aborted is not None

    run(scenario())


def test_a_second_request_to_stop_does_not_wait(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path, grace_seconds=1000.0) as world:
            await at_exchange(world, world.clients(3), 1)
            stopping = asyncio.create_task(world.coordinator.stop())
            await asyncio.sleep(0.02)
            world.coordinator.give_up()
            await asyncio.wait_for(stopping, PATIENCE)

    run(scenario())


def test_after_the_last_round_it_stops(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path, rounds=1) as world:
            guests = world.clients(4)
            guests[3].check_in()
            ends = await whole_round(guests)
            await asyncio.wait_for(world.task, PATIENCE)
            assert sorted(end.outcome for end in ends) == ["committed"] * 3 + ["restarted"]

    run(scenario())


@pytest.mark.parametrize(
    "changes",
    [
        {"min_cohort": 1},
        {"min_cohort": 4},
        {"threshold": 1},
        {"cohort": 4, "min_cohort": 3, "threshold": 4},
        {"most_clients": 2},
    ],
    ids=str,
)
def test_settings_that_contradict_each_other(changes: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        settings(**changes)


@pytest.mark.parametrize(("cohort", "threshold"), [(3, 2), (3, 3), (6, 4), (7, 4)])
def test_a_threshold_is_more_than_half_of_a_cohort_and_no_more_than_all(cohort: int, threshold: int) -> None:
    assert settings(cohort=cohort, threshold=threshold).rules.threshold == threshold
    for other in (cohort // 2, cohort + 1):
        with pytest.raises(ParameterError, match="more than half"):
            settings(cohort=cohort, threshold=other)


def test_one_thread_does_one_thing_after_another(tmp_path: Path) -> None:
    """Store and registry are written by rounds and check-ins in the order in which they asked."""

    async def scenario() -> None:
        async with Deployment(tmp_path) as world:
            go_on, order = threading.Event(), []

            def slow() -> int:
                order.append("begun")
                go_on.wait(10)
                order.append("done")
                return threading.get_ident()

            def quick() -> int:
                order.append("next")
                go_on.set()
                return threading.get_ident()

            first = asyncio.ensure_future(world.coordinator._work(slow))
            second = asyncio.ensure_future(world.coordinator._work(quick))
            await until(lambda: bool(order))
            await asyncio.sleep(0.05)  # room for a mistake to show
            assert order == ["begun"]
            go_on.set()
            assert await first == await second
            assert order == ["begun", "done", "next"]

    run(scenario())


def test_before_the_first_round_nothing_is_expected_and_a_download_is_nobodys(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path) as world:
            world.coordinator.downloaded(100)
            status = world.coordinator.status()
            assert (status.expected, status.heard, status.cohort, status.waiting) == (0, 0, 0, 0)

    run(scenario())


def test_settings_that_no_round_can_have_show_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ParameterError):
        Deployment(tmp_path, encoding="nothing")
