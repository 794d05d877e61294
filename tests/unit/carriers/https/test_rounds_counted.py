"""What a round costs and how long it took, as the coordinator counts it; what is seen while one is under way;
who waits how long; and in which order things end."""

import asyncio
import logging
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clocks import PATIENCE, until
from deployment import Deployment, Guest
from sfsl.carriers.https.coordinator import SHUTTING, Coordinator, now_ms, steady_ms
from sfsl.errors import RoundOver, StoreError, StoreInUse, WrongPhase
from sfsl.rounds.exchanges import order
from sfsl.service.messages import CODEC, CheckedIn

STEPS = order(active=False)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, PATIENCE))


async def asked(world: Deployment, guests: list[Guest], number: int = 1) -> list[bytes]:
    """Everyone has message ``number`` and has not answered it."""
    for guest in guests:
        guest.check_in()
    return list(await asyncio.gather(*(guest.until(number) for guest in guests)))


async def finished(guests: list[Guest]) -> set[str]:
    for guest in guests:
        guest.received -= 1  # what it has is said once more
    return {end.outcome for end in await asyncio.gather(*(guest.play() for guest in guests))}


# -- time and bytes ------------------------------------------------------------------------------------


def test_seconds_of_a_round_and_of_each_exchange(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path) as world:
            guests = world.clients(3)
            world.advance(500)  # the server has been there for a while
            await asked(world, guests)
            world.advance(7)
            assert await finished(guests) == {"committed"}
            (line,) = world.lines
            assert list(line.exchange_seconds) == list(STEPS)
            assert line.exchange_seconds["invitation"] == pytest.approx(7, abs=0.1)
            assert all(line.exchange_seconds[name] < 0.1 for name in STEPS[1:])
            assert line.wall_seconds == pytest.approx(7, abs=0.1)

    run(scenario())


def test_check_ins_are_part_of_what_a_round_costs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        async with Deployment(tmp_path) as world:
            guests = world.clients(3)
            await asked(world, guests)
            running = world.coordinator._running
            assert running is not None
            tally = running.tally
            assert (tally.cohort, tally.answered) == (3, {"check-in": 3})
            up = sum(len(CODEC.encode(guest.message)) for guest in guests)
            down = sum(len(CODEC.encode(CheckedIn(guest.ticket, 0))) for guest in guests)
            assert (tally.bytes_up["check-in"], tally.bytes_down["check-in"]) == (up, down)
            assert tally.server_seconds["check-in"] >= 0
            assert await finished(guests) == {"committed"}

    run(scenario())
    assert "answered: check-in 3, invitation 3 in 0.00 s, inbound 3 in 0.00 s" in caplog.text


def test_a_message_is_counted_when_it_is_given_and_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path) as world:
            guests = world.clients(3)
            for guest in guests:
                guest.check_in()
            frames = [await guests[0].until(1)]
            running = world.coordinator._running
            assert running is not None
            assert running.tally.bytes_down["invitation"] == len(frames[0])
            for _ in range(2):
                await world.check_ins.next(guests[0].id, guests[0].ticket, 0, 0)
            assert running.tally.bytes_down["invitation"] == len(frames[0])
            frames.append(await guests[1].until(1))
            assert running.tally.bytes_down["invitation"] == sum(map(len, frames))

    run(scenario())


def test_downloads_count_for_the_exchange_that_trains(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path) as world:
            guests, coordinator = world.clients(3), world.coordinator
            await asked(world, guests)
            running = coordinator._running
            assert running is not None
            running.published = {b"digest": b"content"}
            assert coordinator.published(guests[0].id, b"digest") == b"content"
            assert coordinator.published(guests[0].id, b"other") is None
            assert coordinator.published("stranger", b"digest") is None
            coordinator.downloaded(100)
            coordinator.downloaded(11)
            assert running.course.trains == "submodel"
            assert running.tally.bytes_down["submodel"] == 111

    run(scenario())


# -- what is seen --------------------------------------------------------------------------------------


def test_what_is_seen_while_a_round_is_under_way(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path, cohort=4, min_cohort=3, phase_seconds=300.0, period_days=1) as world:
            guests = world.clients(6)
            frames = await asked(world, guests[:4])
            guests[4].check_in()
            world.coordinator.certificate_ends, world.coordinator.rounds_allowed = 12.5, 9
            await guests[0].answer(guests[0].answer_to(frames[0]))
            status = world.coordinator.status()
            assert (status.phase, status.expected, status.heard, status.cohort) == ("invitation", 4, 1, 4)
            assert (status.waiting, status.enrolled, status.steps) == (1, 6, tuple(STEPS))
            assert (status.wanted, status.least, status.had_turn) == (4, 3, 4)
            assert (status.certificate_ends, status.rounds_allowed) == (12.5, 9)
            assert (status.exposures, status.round, status.stopping) == (((0, 6),), 0, False)
            assert status.seconds_left == pytest.approx(300, abs=0.1)
            assert status.period_ends == (world.now_ms // 86_400_000 + 1) * 86_400
            assert world.coordinator.under_way
            world.advance(100)
            assert world.coordinator.status().seconds_left == pytest.approx(200, abs=0.1)
            for guest, frame in zip(guests[1:4], frames[1:], strict=True):
                await guest.answer(guest.answer_to(frame))
            await until(lambda: world.coordinator.status().phase == "inbound")
            assert world.coordinator.status().heard == 0

    run(scenario())


def test_while_a_round_is_committed_that_is_said(tmp_path: Path) -> None:
    seen: list[Any] = []

    async def scenario() -> None:
        async with Deployment(tmp_path) as world:
            commit = world.store.commit

            def watched(given: Any) -> None:
                seen.append(world.coordinator.status())
                commit(given)

            world.store.commit = watched  # type: ignore[method-assign]
            guests = world.clients(3)
            await asked(world, guests)
            assert await finished(guests) == {"committed"}
            await until(lambda: not world.coordinator.under_way)
            after = world.coordinator.status()
            assert (after.phase, after.cohort, after.round, after.committed) == ("waiting", 0, 1, 1)
            assert (after.aborted, after.seconds_left, after.steps) == (0, None, ())

    run(scenario())
    assert [(one.phase, one.seconds_left, one.cohort, one.round) for one in seen] == [
        ("committing", None, 3, 0)
    ]


def test_what_keeps_a_server_from_working_is_said_first() -> None:
    registry = SimpleNamespace(locked=False)
    world = SimpleNamespace(_degraded="", registry=registry, _disk=SimpleNamespace(why=""))
    degraded = Coordinator.degraded.fget  # type: ignore[attr-defined]
    assert degraded(world) == ""
    registry.locked = True
    assert degraded(world) == "another process holds the registry"
    world._degraded = "something else"
    assert degraded(world) == "something else"
    world._disk.why = "the disk"
    assert degraded(world) == "the disk"


# -- who waits how long --------------------------------------------------------------------------------


def test_a_poll_takes_no_longer_than_either_says(tmp_path: Path) -> None:
    async def scenario() -> None:
        for poll, wanted in ((0.01, 10 * PATIENCE), (10 * PATIENCE, 0.01)):
            async with Deployment(tmp_path, poll_seconds=poll) as world:
                guest = world.clients(1)[0]
                guest.check_in()
                assert await world.check_ins.next(guest.id, guest.ticket, 0, wanted) is None

    run(scenario())


def test_a_cohort_is_waited_for_to_the_last_moment(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path, cohort=5, min_cohort=3, check_in_seconds=1000.0) as world:
            guests = world.clients(3)
            guests[0].check_in()
            await asyncio.sleep(0.01)  # who is first sets the deadline
            world.advance(999.5)
            for guest in guests:
                guest.fresh()
                guest.check_in()
            await asyncio.sleep(0.02)
            assert not world.coordinator.under_way
            world.advance(0.6)
            await until(lambda: world.coordinator.under_way)
            assert world.coordinator.status().cohort == 3

    run(scenario())


def test_who_has_just_asked_or_answered_is_not_silent(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path, cohort=3, poll_seconds=5.0) as world:
            one, other = world.clients(2)
            one.check_in()
            other.check_in()
            conversation = world.check_ins.waiting[one.id]
            for _ in range(3):
                world.advance(14)
                await world.check_ins.next(one.id, one.ticket, 0, 0)
                assert conversation.heard_at == pytest.approx(world.clock(), abs=0.01)
            assert set(world.check_ins.eligible()) == {one.id}
            polling = asyncio.create_task(world.check_ins.next(one.id, one.ticket, 0, 4))
            await asyncio.sleep(0)
            world.advance(100)  # who asks now is there, however long ago it began to
            assert set(world.check_ins.eligible()) == {one.id}
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)
            assert conversation.polls == 0
            assert conversation.heard_at == pytest.approx(world.clock(), abs=0.01)  # until it left

    run(scenario())


def test_an_answer_that_was_taken_may_be_sent_again_as_long_as_it_was(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path) as world:
            guests = world.clients(3)
            frames = await asked(world, guests)
            one = guests[0]
            due = world.check_ins.answer_limit(one.id, one.ticket, 1)
            answer = one.answer_to(frames[0])
            await world.check_ins.answer(one.id, one.ticket, 1, answer, b"as the caller says")
            assert world.check_ins.answer_limit(one.id, one.ticket, 1) == len(answer) < due
            # The digest is the caller's: the same one is the same answer.
            await world.check_ins.answer(one.id, one.ticket, 1, b"", b"as the caller says")
            with pytest.raises(WrongPhase, match="the last one sent is 1"):
                world.check_ins.answer_limit(one.id, one.ticket, 2)

    run(scenario())


def test_answers_that_come_too_late_are_counted_and_others_are_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path, cohort=4) as world:
            guests = world.clients(4)
            frames = await asked(world, guests)
            running, slow = world.coordinator._running, guests[0]
            assert running is not None
            with pytest.raises(WrongPhase):
                await slow.answer(b"", 2)  # too early
            assert running.tally.late == 0
            answers = [guest.answer_to(frame) for guest, frame in zip(guests, frames, strict=True)]
            for guest, answer in zip(guests[1:], answers[1:], strict=True):
                await guest.answer(answer)
            world.advance(1001)
            await until(lambda: running.exchange == "inbound")
            for late in (1, 2):
                with pytest.raises(WrongPhase, match="too late"):
                    await slow.answer(answers[0])
                assert running.tally.late == late

    run(scenario())


def test_who_waits_in_vain_hears_of_the_last_round_and_who_was_in_one_of_that(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path, cohort=3, period_days=1) as world:
            guests = world.clients(4)
            await asked(world, guests[:3])
            assert await finished(guests[:3]) == {"committed"}
            one, other = guests[0], guests[3]
            one.fresh()
            one.check_in()
            assert one.id not in world.check_ins.waiting
            with pytest.raises(RoundOver, match="invited in this period already") as over:
                await one.next()
            assert (over.value.outcome, over.value.round) == ("not-chosen", 1)
            other.check_in()
            ticket = other.ticket
            other.fresh()
            other.check_in()
            with pytest.raises(RoundOver, match="checked in again, with other keys") as over:
                await world.check_ins.next(other.id, ticket, 0, 0)
            assert (over.value.outcome, over.value.round) == ("left-out", 1)
            assert set(world.check_ins.waiting) == {other.id}

    run(scenario())


# -- ends ----------------------------------------------------------------------------------------------


def test_a_grace_begins_when_a_server_is_first_told_to_stop(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Deployment(tmp_path, grace_seconds=50.0) as world:
            guests = world.clients(3)
            await asked(world, guests)
            stopping = [asyncio.create_task(world.coordinator.stop())]
            await asyncio.sleep(0.01)
            world.advance(30)
            stopping.append(asyncio.create_task(world.coordinator.stop()))  # again, which changes nothing
            await asyncio.sleep(0.01)
            world.advance(15)
            await asyncio.sleep(0.05)
            assert not any(one.done() for one in stopping)
            world.advance(6)
            await asyncio.wait_for(asyncio.gather(*stopping), PATIENCE)
            with pytest.raises(RoundOver, match="told to stop before the round was over"):
                await guests[0].next()

    run(scenario())


def test_who_waits_when_a_server_ends_hears_why(tmp_path: Path) -> None:
    async def scenario() -> None:
        for rounds, says in ((0, SHUTTING), (1, "this was the last round that was planned")):
            async with Deployment(tmp_path / str(rounds), rounds=rounds) as world:
                guests = world.clients(4)
                await asked(world, guests[:3])
                guests[3].check_in()
                assert await finished(guests[:3]) == {"committed"}
                if not rounds:
                    await world.coordinator.stop()
                await asyncio.wait_for(world.task, PATIENCE)
                with pytest.raises(RoundOver, match=says) as over:
                    await guests[3].next()
                assert (over.value.outcome, over.value.round) == ("restarted", 1)
                assert world.check_ins.stopping
                assert world.coordinator.finished is bool(rounds)

    for name in ("0", "1"):
        (tmp_path / name).mkdir()
    run(scenario())


def test_what_is_being_written_is_written_before_rounds_are_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for them closes the store and the registry next."""
    begun, done = threading.Event(), []

    async def scenario() -> None:
        async with Deployment(tmp_path) as world:

            def slow(*_: Any) -> None:
                begun.set()
                time.sleep(0.1)
                done.append(1)

            monkeypatch.setattr(world.coordinator, "_begin", slow)
            for guest in world.clients(3):
                guest.check_in()
            await until(begun.is_set)
            assert done == []
            world.task.cancel()
            await asyncio.gather(world.task, return_exceptions=True)
            assert done == [1]

    run(scenario())


def test_a_store_that_cannot_say_where_it_is_has_no_round() -> None:
    def stands(store: Any) -> bool:
        return Coordinator._stands(SimpleNamespace(_service=SimpleNamespace(store=store)), 3)  # type: ignore[arg-type]

    class Fails:
        @property
        def round(self) -> int:
            raise StoreError("gone")

    assert [stands(SimpleNamespace(round=at)) for at in (2, 3, 4)] == [False, True, True]
    assert not stands(Fails())


def test_a_job_is_done_again_until_the_registry_is_free(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sfsl.carriers.https.coordinator._PAUSE_SECONDS", 0.001)
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        async with Deployment(tmp_path, grace_seconds=10.0) as world:
            coordinator, times, threads = world.coordinator, [], set()

            def job() -> str:
                times.append(coordinator.degraded)
                threads.add(threading.get_ident())
                if len(times) < 4:
                    raise StoreInUse("held")
                return "done"

            assert await coordinator._persist(job) == "done"
            why = "another process holds the registry"
            assert times == ["", why, why, why]
            assert coordinator.degraded == ""
            assert len(threads) == 1
            assert threading.get_ident() not in threads

            def never() -> None:
                raise StoreInUse("held for long")

            coordinator._give_up_at = world.clock() + 5
            waiting = asyncio.create_task(coordinator._persist(never))
            await asyncio.sleep(0.02)
            assert not waiting.done()
            world.advance(5)
            with pytest.raises(StoreInUse, match="held for long"):
                await waiting

    run(scenario())
    told = [one for one in caplog.messages if "registry" in one or "held" in one]
    assert told == [
        "held. The server waits for it, and rounds with it",
        "the registry is free again; the server goes on",
        "held for long. The server waits for it, and rounds with it",
    ]


def test_clocks_count_milliseconds() -> None:
    before, steady = time.time() * 1000, time.monotonic() * 1000
    assert before - 1 <= now_ms() <= time.time() * 1000 + 1
    assert steady - 1 <= steady_ms() <= time.monotonic() * 1000 + 1
