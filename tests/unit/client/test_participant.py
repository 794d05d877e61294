"""A participant: what it says, what it declines, what it never does twice, and a server that lies."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from starlette.responses import JSONResponse, Response

from clocks import PATIENCE
from crowd import CLIENT_MODEL, POLICY, Crowd, close
from fake_server import DEPLOYMENT
from sfsl.client import Attempt, Lesson, Participant, Settings
from sfsl.codec import Message
from sfsl.errors import (
    AuthenticationFailed,
    BudgetExhausted,
    Declined,
    InputError,
    ParameterError,
    PeriodFrozen,
    StateError,
    WrongModel,
)
from sfsl.privacy import Budget, ClientState
from sfsl.rounds.exchanges import Invitation, Submodel
from sfsl.secagg.messages import InboundShares, Keys, UnmaskRequest
from sfsl.service.messages import CODEC, Decline
from sfsl.union.protocol import Union

VICTIM = "c0"


def play(act: Callable[[], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with asyncio.timeout(PATIENCE):
            return await act()

    return asyncio.run(main())


@pytest.mark.parametrize(("active", "pinned"), [(True, None), (False, {})])
def test_a_server_that_comes_back_in_the_other_mode_is_left(
    tmp_path: Path, active: bool, pinned: Any
) -> None:
    """It would otherwise be asked for ever."""
    crowd = Crowd(tmp_path)
    one = crowd.participant(VICTIM)
    mode = None

    async def meddle(method: str, target: str, body: bytes) -> Response | None:
        if target != "/v1/about" or mode is None:
            return None
        said = {"protocol": 1, "deployment": DEPLOYMENT.hex(), "model": CLIENT_MODEL.digest.hex()}
        return JSONResponse(said | {"round": 0, "time": round(time.time() * 1000), "active": mode})

    async def act() -> None:
        nonlocal mode
        await one.enrol()
        mode, one.pinned = active, pinned
        for step in (one.take_part, one.enrol, one.run):
            with pytest.raises(InputError, match="active mode"):
                await step()

    crowd.server.meddle = meddle
    play(act)
    close(one)
    assert not crowd.server.posts("/v1/check-in")


async def one_of(crowd: Crowd, people: dict[str, Participant], name: str = VICTIM) -> Attempt:
    """How it ends for one, while the others take part and are then stopped."""
    for one in people.values():
        await one.enrol()
    others = [asyncio.create_task(one.take_part()) for who, one in people.items() if who != name]
    try:
        return await people[name].take_part()
    finally:
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


def everyone(crowd: Crowd, victim: dict[str, Any] | None = None, **options: Any) -> dict[str, Participant]:
    """``victim``: options of the victim alone."""
    return {
        name: crowd.participant(name, **options, **((victim or {}) if name == VICTIM else {}))
        for name in crowd.names
    }


def answers_of(crowd: Crowd, client: str) -> dict[int, bytes]:
    (talk,) = (one for one in crowd.server.talks.values() if one.client == client)
    return talk.answers


# -- what its policy forbids -------------------------------------------------------------------


def session_policy(**changes: Any) -> dict[str, Any]:
    return {"session": msgspec.structs.replace(POLICY.session, **changes)}


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (session_policy(min_clients=4), "a cohort of 3, this client wants at least 4"),
        (session_policy(min_threshold=4), "a threshold of 3, this client wants 4"),
        (session_policy(min_contributors=2), "rows with 1 contributors would be opened"),
        (session_policy(max_words=100), "this client allows 100"),
        ({"max_clip": 0.5}, "clipped at more than 0.5"),
    ],
    ids=["cohort", "threshold", "contributors", "words", "clip"],
)
def test_a_round_beyond_its_policy_is_declined_and_nothing_else_said(
    tmp_path: Path, policy: dict[str, Any], says: str
) -> None:
    crowd = Crowd(tmp_path)
    people = everyone(crowd, {"policy": msgspec.structs.replace(POLICY, **policy)})
    attempt = play(lambda: one_of(crowd, people))
    assert attempt.outcome == "declined"
    assert says in attempt.why
    (said,) = answers_of(crowd, people[VICTIM].link.client).values()
    assert type(CODEC.decode(said, limit=42)) is Decline
    assert len(said) == 42  # whatever the reason
    assert people[VICTIM].memory.state.ledger.exposures == 0  # type: ignore[attr-defined]
    last = crowd.events[VICTIM][-1]
    assert last.kind == "declined"
    assert says in last.text


def test_too_many_rows_are_declined_and_no_request_leaves(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path)
    people = everyone(crowd, {"policy": msgspec.structs.replace(POLICY, max_rows=5)})
    attempt = play(lambda: one_of(crowd, people))
    assert attempt.outcome == "declined"
    assert "this client allows 5" in attempt.why
    assert set(answers_of(crowd, people[VICTIM].link.client)) == {1, 2, 3}
    assert people[VICTIM].memory.state.ledger.exposures == 1  # type: ignore[attr-defined]


def test_what_its_data_forbids_is_declined_by_silence(tmp_path: Path) -> None:
    """At the invitation too: data that changed within a period is a reason, and no business of the server."""

    def changed(number: int) -> None:
        raise PeriodFrozen("the data has changed")

    crowd = Crowd(tmp_path)
    people = everyone(crowd)
    people[VICTIM].memory.enter = changed  # type: ignore[method-assign]
    attempt = play(lambda: one_of(crowd, people))
    assert (attempt.outcome, attempt.why) == ("declined", "the data has changed")
    assert answers_of(crowd, people[VICTIM].link.client) == {}


def test_a_spent_budget_declines_before_anything_is_sent(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path)
    person = crowd.participant(VICTIM, exposures=0)
    with pytest.raises(BudgetExhausted, match="0 of 0 exposures"):
        play(person.take_part)
    assert not crowd.server.log


def test_without_waiting_it_stops_where_only_the_next_period_helps(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path)
    person = crowd.participant(VICTIM, exposures=0)
    (attempt,) = play(lambda: person.run(wait=False))
    assert attempt.outcome == "declined"
    assert crowd.kinds(VICTIM) == ["connected", "enrolled", "declined"]
    assert not crowd.server.posts("check-in")


def test_it_waits_for_the_next_period_and_takes_part_again(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path)
    clock = [datetime(2026, 11, 15, 12)]
    people = everyone(crowd)
    for one in people.values():

        async def sleep(seconds: float) -> None:
            clock[0] += timedelta(seconds=seconds)
            await asyncio.sleep(0.001)

        one.sleep, one.now = sleep, lambda: clock[0]
        one.memory.today = lambda: clock[0].date()  # type: ignore[attr-defined]
    ended = play(lambda: asyncio.gather(*(one.run(2) for one in people.values())))
    assert [[one.outcome for one in some] for some in ended] == [["committed", "declined", "committed"]] * 3
    waiting = [event for event in crowd.events[VICTIM] if event.kind == "waiting"]
    assert [event.until for event in waiting] == [date(2026, 11, 27)]
    assert clock[0] >= datetime(2026, 11, 27) + timedelta(seconds=300)  # not all at midnight sharp
    assert len(set(crowd.server.posts("check-in"))) == 6


# -- a server that lies ------------------------------------------------------------------------


def other_round(message: Any) -> Any:
    return msgspec.structs.replace(message, round_id=bytes(16))


def session(invitation: Any, **changes: Any) -> Any:
    roster = invitation.roster
    params = msgspec.structs.replace(roster.params, **changes)
    return Invitation(msgspec.structs.replace(roster, params=params), invitation.round)


def another_model(invitation: Any) -> Any:
    model = msgspec.structs.replace(invitation.round.model, dense=5)
    return Invitation(invitation.roster, msgspec.structs.replace(invitation.round, model=model))


def another_domain(invitation: Any) -> Any:
    union = msgspec.structs.replace(invitation.round.union, domain=61)
    changed = Invitation(invitation.roster, msgspec.structs.replace(invitation.round, union=union))
    return session(changed, sums=changed.round.sums())


def other_training(invitation: Any) -> Any:
    return Invitation(invitation.roster, msgspec.structs.replace(invitation.round, training={"epochs": 1e9}))


def other_keys(invitation: Any) -> Any:
    members = tuple(
        msgspec.structs.replace(one, keys=msgspec.structs.replace(one.keys, channel=bytes([i + 1] * 32)))
        for i, one in enumerate(invitation.roster.members)
    )
    return Invitation(msgspec.structs.replace(invitation.roster, members=members), invitation.round)


def flipped(inbound: Any) -> Any:
    box = inbound.boxes[0]
    return msgspec.structs.replace(inbound, boxes=(bytes([box[0] ^ 1]) + box[1:], *inbound.boxes[1:]))


def everyone_dropped(request: Any) -> Any:
    return msgspec.structs.replace(request, survivors=(), dropped=request.survivors)


def infinite(submodel: Any) -> Any:
    return msgspec.structs.replace(submodel, dense=np.full(4, np.inf, "<f4").tobytes())


@pytest.mark.parametrize(
    ("number", "change", "answered"),
    [
        (1, other_keys, 0),
        (1, another_model, 0),
        (1, another_domain, 0),
        (1, other_training, 0),
        (1, lambda one: session(one, active=True), 0),
        (2, other_round, 1),
        (2, flipped, 1),
        (3, other_round, 2),
        (3, everyone_dropped, 2),
        (4, other_round, 3),
        (5, other_round, 4),
        (5, infinite, 4),
        (6, other_round, 5),
        (6, everyone_dropped, 5),
    ],
)
def test_a_message_that_lies_is_answered_by_leaving(
    tmp_path: Path, number: int, change: Callable[[Any], Any], answered: int
) -> None:
    crowd = Crowd(tmp_path)
    people = everyone(crowd)
    victim = people[VICTIM].link.client

    def alter(client: str, at: int, message: Message) -> Message:
        changed: Message = change(message) if client == victim and at == number else message
        return changed

    crowd.server.alter = alter
    attempt = play(lambda: one_of(crowd, people))
    assert attempt.outcome == "declined"
    assert attempt.why
    said = answers_of(crowd, victim)
    declines = [at for at in said if isinstance(CODEC.decode(said[at], limit=10**7), Decline)]
    assert declines in ([], [1])
    assert set(said) - set(declines) == set(range(1, answered + 1))
    assert people[VICTIM].memory.state.ledger.exposures == (answered >= 2)  # type: ignore[attr-defined]


DUE = [Invitation, InboundShares, UnmaskRequest, Union, Submodel, UnmaskRequest, None]
OUT_OF_TURN = [
    (number, kind)
    for number in range(2, 8)
    for kind in (Keys, Invitation, InboundShares, UnmaskRequest, Union, Submodel)
    if DUE[number - 1] is not kind
]


@pytest.mark.parametrize(("number", "kind"), OUT_OF_TURN)
def test_a_message_out_of_turn_is_answered_by_leaving(
    tmp_path: Path, number: int, kind: type[Message]
) -> None:
    """Also a second union, a second invitation, a second opening; and one more when all is said."""
    crowd = Crowd(tmp_path)
    people = everyone(crowd)
    victim = people[VICTIM].link.client
    blank = {
        Keys: Keys("x", bytes(32), (bytes(32),), (bytes(32),), None),
        InboundShares: InboundShares(bytes(16), (), (), b"", ()),
        Union: Union(bytes(16), 0, b""),
        Submodel: Submodel(bytes(16), (0,), (b"", b""), b"", b"", (), bytes(20), b""),
        UnmaskRequest: UnmaskRequest(bytes(16), 0, (0, 1, 2), (), ()),
    }
    sent: dict[type[Message], Message] = dict(blank)

    def alter(client: str, at: int, message: Message) -> Message:
        if client != victim:
            return message
        sent[type(message)] = message
        return sent[kind] if at == number else message

    async def one_more(method: str, target: str, body: bytes) -> Response | None:
        if number != 7 or not target.endswith("?after=6"):
            return None
        return Response(CODEC.encode(sent[kind]), headers={"Sfsl-Sequence": "7"})

    crowd.server.alter, crowd.server.meddle = alter, one_more
    attempt = play(lambda: one_of(crowd, people))
    assert attempt.outcome == "declined"
    assert set(answers_of(crowd, victim)) == set(range(1, number))


def test_messages_of_an_old_round_are_not_answered(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path)
    people = everyone(crowd, exposures=3)
    victim = people[VICTIM].link.client
    ended = play(lambda: asyncio.gather(*(one.run(1) for one in people.values())))
    assert [some[-1].outcome for some in ended] == ["committed"] * 3
    (old,) = (one for one in crowd.server.talks.values() if one.client == victim)
    crowd.server.alter = lambda client, at, message: (
        CODEC.decode(old.messages[at - 1], limit=10**7) if client == victim else message
    )
    attempt = play(lambda: one_of(crowd, people))
    assert attempt.outcome == "declined"
    assert "own keys" in attempt.why
    assert people[VICTIM].memory.state.ledger.exposures == 1  # type: ignore[attr-defined]


def test_another_model_ends_it(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path)
    crowd.server.model = bytes(32)
    with pytest.raises(WrongModel, match="another model"):
        play(lambda: crowd.participant(VICTIM).run(1))
    assert not crowd.server.posts("check-in")


def test_a_server_that_speaks_html_is_left_alone_for_a_while(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path)

    async def meddle(method: str, target: str, body: bytes) -> Response | None:
        return Response("<html>", headers={"Sfsl-Sequence": "1"}) if "/next/" in target else None

    crowd.server.meddle = meddle

    async def main() -> Attempt:
        person = crowd.participant(VICTIM)
        await person.enrol()
        return await person.take_part()

    attempt = play(main)
    assert attempt.outcome == "declined"
    assert not crowd.server.posts("answer")


def test_a_trainer_that_cannot_go_on_adds_nothing_and_is_not_missed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Silence would say what its data made of it (tests/adversary/test_silence.py)."""
    crowd = Crowd(tmp_path)
    people = everyone(crowd)

    def broken(download: Any, personal: Any, number: int) -> Any:
        raise ParameterError("no such thing")

    crowd.trainers[VICTIM].train = broken  # type: ignore[method-assign]
    attempt = play(lambda: one_of(crowd, people))
    assert (attempt.outcome, attempt.whole) == ("committed", True)
    assert "training failed; this client sends zeros" in caplog.text
    assert "no such thing" in caplog.text


def test_messages_beyond_its_limits_are_not_read(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path)
    people = everyone(crowd, {"settings": Settings(small=500)})
    attempt = play(lambda: one_of(crowd, people))
    assert attempt.outcome == "declined"
    assert "at most 500 are taken" in attempt.why
    assert answers_of(crowd, people[VICTIM].link.client) == {}


def test_unions_and_submodels_have_a_limit_of_their_own(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path)
    people = everyone(crowd, {"settings": Settings(large=100)})
    attempt = play(lambda: one_of(crowd, people))
    assert attempt.outcome == "declined"
    assert "at most 100 are taken" in attempt.why
    assert set(answers_of(crowd, people[VICTIM].link.client)) == {1, 2, 3, 4}  # this union is short


# -- memory ------------------------------------------------------------------------------------


def test_a_round_belongs_to_the_period_in_which_it_begins(tmp_path: Path) -> None:
    """It checked in on the last day of a period whose exposure was spent no more than the next one's."""
    crowd = Crowd(tmp_path)
    people = everyone(crowd)
    memory = people[VICTIM].memory
    days = [date(2026, 11, 26), date(2026, 11, 26), date(2026, 11, 27)]
    memory.today = lambda: days.pop(0) if len(days) > 1 else days[0]  # type: ignore[attr-defined]
    first = memory.state.calendar.period(days[0])  # type: ignore[attr-defined]

    async def main() -> None:
        for one in people.values():
            await one.enrol()
        await asyncio.gather(*(one.take_part() for one in people.values()))

    play(main)
    assert memory.state.period == first + 1  # type: ignore[attr-defined]
    assert memory.state.ledger.exposures == 1  # type: ignore[attr-defined]
    assert not memory.state.ledger.closed  # type: ignore[attr-defined]


def test_a_budget_spent_between_check_in_and_invitation(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path)
    people = everyone(crowd)
    state = people[VICTIM].memory.state  # type: ignore[attr-defined]

    async def meddle(method: str, target: str, body: bytes) -> Response | None:
        checked_in = any(event.kind == "checked-in" for event in crowd.events[VICTIM])
        if "/next/" in target and checked_in and state.ledger.exposures == 0:
            state.expose(bytes([9] * 16))
        return None

    crowd.server.meddle = meddle
    attempt = play(lambda: one_of(crowd, people))
    assert attempt.outcome == "declined"
    assert "1 of 1 exposures" in attempt.why
    assert answers_of(crowd, people[VICTIM].link.client) == {}


def test_an_old_copy_of_its_state_owns_up_and_sits_out(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path)
    person = crowd.participant(VICTIM, exposures=3)
    crowd.server.acknowledged[person.link.client] = 2

    async def main() -> None:
        await person.enrol()
        await person.take_part()

    with pytest.raises(Declined, match="old copy"):
        play(main)
    assert not crowd.server.posts("answer")
    ledger = person.memory.state.ledger  # type: ignore[attr-defined]
    assert (ledger.begun, ledger.lost) == (2, 2)
    close(person)
    crowd.server.log.clear()
    again = crowd.participant(VICTIM, exposures=3)
    with pytest.raises(Declined, match="rolled back"):
        play(again.take_part)
    assert not crowd.server.log


def test_a_client_that_restarts_in_mid_round_is_a_dropout_and_stays_charged(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path, 4, threshold=3)
    people = everyone(crowd, exposures=2)
    victim = people[VICTIM].link.client
    exposed = asyncio.Event()
    people[VICTIM].notify = lambda event: exposed.set() if event.kind == "exposed" else None

    async def main() -> list[Any]:
        for one in people.values():
            await one.enrol()
        tasks = {name: asyncio.create_task(one.take_part()) for name, one in people.items()}
        await exposed.wait()
        tasks[VICTIM].cancel()
        await asyncio.wait([tasks[VICTIM]])
        assert tasks[VICTIM].cancelled()
        close(people[VICTIM])
        restarted = crowd.participant(VICTIM, exposures=2)
        assert restarted.memory.state.ledger.exposures == 1  # type: ignore[attr-defined]
        anew = asyncio.create_task(restarted.take_part())
        while len(crowd.server.posts("check-in")) < 5:
            await asyncio.sleep(0.01)
        while not crowd.server.outcomes:  # nobody waits for the one who left
            await asyncio.sleep(0.05)
            if crowd.server.round is not None and not crowd.server.outcomes:
                answered = [len(one.messages) in one.answers for one in crowd.server.live()]
                if all(answered):
                    await crowd.server.close_phase()
        anew.cancel()
        return await asyncio.gather(*(task for name, task in tasks.items() if name != VICTIM))

    ended = play(main)
    assert [one.outcome for one in ended] == ["committed"] * 3
    (outcome,) = crowd.server.outcomes
    assert victim not in outcome.survivors
    checked_in = [CODEC.decode(body, limit=10**6) for body in crowd.server.posts("check-in")]
    mine = [one.keys for one in checked_in if one.keys.client == victim]  # type: ignore[attr-defined]
    assert len(mine) == 2
    assert mine[0].channel != mine[1].channel
    assert set(mine[0].masks).isdisjoint(mine[1].masks)


def test_cancelled_while_it_waits_nothing_is_charged(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path)
    person = crowd.participant(VICTIM)

    async def main() -> None:
        task = asyncio.create_task(person.run())
        while not crowd.server.posts("check-in"):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    play(main)
    assert person.memory.state.ledger.exposures == 0  # type: ignore[attr-defined]


def test_cancelled_while_its_state_is_written_it_waits_for_the_write(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path)
    people = everyone(crowd)
    person = people[VICTIM]
    memory = person.memory
    writing, release, written = asyncio.Event(), threading.Event(), []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        real = memory.expose

        def slow(round_id: bytes) -> Any:
            loop.call_soon_threadsafe(writing.set)
            release.wait(PATIENCE)
            found = real(round_id)
            written.append(1)
            return found

        memory.expose = slow  # type: ignore[method-assign]
        task = asyncio.create_task(one_of(crowd, people))
        await writing.wait()
        task.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not task.done()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert written

    play(main)
    close(person)
    with crowd.state(VICTIM) as state:
        assert state.ledger.exposures == 1


def test_a_state_that_cannot_be_written_stops_it_and_nothing_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowd = Crowd(tmp_path)
    people = everyone(crowd)

    def broken(round_id: bytes) -> Any:
        raise StateError("the disk is full")

    people[VICTIM].memory.state.expose = broken  # type: ignore[attr-defined]
    with pytest.raises(StateError, match="disk is full"):
        play(lambda: one_of(crowd, people))
    assert set(answers_of(crowd, people[VICTIM].link.client)) == {1}


def test_what_it_learned_about_itself_is_kept_though_the_upload_never_arrived(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path)
    people = everyone(crowd)
    own = np.array([3])
    before = people[VICTIM].personal.read("user", own)

    async def meddle(method: str, target: str, body: bytes) -> Response | None:
        if method == "POST" and target.endswith("/5"):
            return JSONResponse({"error": "RoundOver", "outcome": "left-out", "message": "late"}, 410)
        return None

    crowd.server.meddle = meddle
    attempt = play(lambda: one_of(crowd, people))
    assert attempt.outcome == "left-out"
    assert not attempt.whole
    close(people[VICTIM])
    again = crowd.participant(VICTIM)
    moved = again.personal.read("user", own) - before
    assert np.allclose(moved, 1 / 1024, atol=1e-7)


def test_own_rows_stay_where_what_was_learned_cannot_be_sent(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path)
    people = everyone(crowd)
    own = np.array([3])
    before = people[VICTIM].personal.read("user", own)
    train = crowd.trainers[VICTIM].train

    def spoiled(download: Any, personal: Any, number: int) -> Lesson:
        lesson = train(download, personal, number)
        dense = np.full_like(lesson.trained.dense, np.nan)
        return replace(lesson, trained=replace(lesson.trained, dense=dense))

    crowd.trainers[VICTIM].train = spoiled  # type: ignore[method-assign]
    attempt = play(lambda: one_of(crowd, people))
    assert (attempt.outcome, attempt.whole) == ("committed", True)
    assert np.array_equal(people[VICTIM].personal.read("user", own), before)


# -- servers that come and go ------------------------------------------------------------------


def test_a_server_that_starts_again_gets_new_keys_and_no_old_round(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path)
    people = everyone(crowd, exposures=2)
    restarted = []

    async def meddle(method: str, target: str, body: bytes) -> Response | None:
        if method == "POST" and target.endswith("/3") and not restarted:
            restarted.append(1)
            await crowd.server.restart()
        return None

    crowd.server.meddle = meddle
    ended = play(lambda: asyncio.gather(*(one.run(1) for one in people.values())))
    assert [[one.outcome for one in some] for some in ended] == [["restarted", "committed"]] * 3
    keys = [CODEC.decode(body, limit=10**6).keys for body in crowd.server.posts("check-in")]  # type: ignore[attr-defined]
    assert len({one.channel for one in keys}) == len(keys) == 6
    assert crowd.server.store.round == 1
    assert people[VICTIM].memory.state.ledger.exposures == 2  # type: ignore[attr-defined]


def test_without_a_place_it_comes_back_later_and_later(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path)
    enough = asyncio.Event()

    async def meddle(method: str, target: str, body: bytes) -> Response | None:
        if "/next/" not in target:
            return None
        if len(crowd.slept[VICTIM]) == 5:
            enough.set()
        said = {"error": "RoundOver", "outcome": "not-chosen", "round": 3, "message": "full"}
        return JSONResponse(said, 410)

    async def main() -> None:
        task = asyncio.create_task(person.run())
        await enough.wait()
        task.cancel()
        await asyncio.wait([task])

    crowd.server.meddle = meddle
    person = crowd.participant(VICTIM, settings=Settings(pause_s=8, longest_pause_s=30))
    play(main)
    assert len(crowd.slept[VICTIM]) >= 5
    for place, seconds in enumerate(crowd.slept[VICTIM]):
        most = min(30, 8 * 2**place)
        assert most / 2 <= seconds <= most
    assert "Not chosen for the round: full" in [str(event) for event in crowd.events[VICTIM]]
    assert len(set(crowd.server.posts("check-in"))) == len(crowd.server.posts("check-in")) >= 5


def test_a_forgotten_client_enrols_again(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path)
    people = everyone(crowd)
    forgotten = []

    async def meddle(method: str, target: str, body: bytes) -> Response | None:
        if "check-in" in target and not forgotten:
            forgotten.append(1)
            crowd.server.enrolled.clear()
        return None

    crowd.server.meddle = meddle
    ended = play(lambda: asyncio.gather(*(one.run(1) for one in people.values())))
    assert [some[-1].outcome for some in ended] == ["committed"] * 3


def test_a_revoked_client_stops(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path)

    async def meddle(method: str, target: str, body: bytes) -> Response | None:
        if "check-in" in target:
            return JSONResponse({"error": "Revoked", "message": "withdrawn"}, 403)
        return None

    crowd.server.meddle = meddle
    with pytest.raises(AuthenticationFailed, match="withdrawn"):
        play(lambda: crowd.participant(VICTIM).run(1))
    assert len(crowd.server.posts("check-in")) == 2


def test_a_message_is_encoded_once_whatever_the_link_does(tmp_path: Path) -> None:
    """Every exchange fails at first: before the server has it, and after it took it."""
    crowd = Crowd(tmp_path)
    failed: dict[tuple[str, int], int] = {}

    class Flaky(httpx.AsyncBaseTransport):
        def __init__(self, name: str) -> None:
            self.inner, self.name = crowd.server.transport, name

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            key = (self.name, hash((request.url.path, request.url.query)))
            failed[key] = failed.get(key, 0) + 1
            if request.method == "POST" and failed[key] == 1:
                crowd.server.log.append(("POST", request.url.path, request.content))
                raise httpx.WriteError("before")
            response = await self.inner.handle_async_request(request)
            if request.method == "POST" and failed[key] == 2:
                raise httpx.ReadError("after")
            return response

    people = [crowd.participant(name, link=crowd.link(name, transport=Flaky(name))) for name in crowd.names]
    ended = play(lambda: asyncio.gather(*(one.run(1) for one in people)))
    assert [[one.outcome for one in some] for some in ended] == [["committed"]] * 3
    bodies: dict[str, list[bytes]] = {}
    for method, target, body in crowd.server.log:
        if method == "POST" and "answer" in target:
            bodies.setdefault(target, []).append(body)
    assert len(bodies) == 18
    assert all(len(sent) == 3 and len(set(sent)) == 1 for sent in bodies.values())


def test_states_of_another_client_are_refused(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path)
    close(crowd.participant(VICTIM))
    with pytest.raises(StateError, match="not of"):
        ClientState.open(tmp_path / f"{VICTIM}.state", client="c1", budget=Budget(1, 1))


def test_the_model_knows_what_may_be_said_about_its_tables() -> None:
    tables = CLIENT_MODEL.tables
    assert (tables.shared, tables.derived, tables.personal) == (("goods",), ("category",), ("user",))
