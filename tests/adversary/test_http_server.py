"""What clients and strangers could gain at a server on a network, each with the check that stops it."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from attacks import Attack, Weaken, assert_gains_when_weakened, assert_stopped, collector, remove

from clocks import PATIENCE
from deployment import Deployment, Guest, Wire, serve
from sfsl.carriers.https.app import AppLimits
from sfsl.carriers.https.conversation import Conversation, Conversations
from sfsl.carriers.https.coordinator import CheckIns
from sfsl.codec import Message
from sfsl.errors import (
    AuthenticationFailed,
    ConflictingMessage,
    RoundOver,
    UnexpectedSender,
    WrongPhase,
    WrongRound,
)
from sfsl.rounds.exchanges import EXPOSES, STEP, Course
from sfsl.service import members
from sfsl.service.driver import CohortRound
from sfsl.service.messages import CODEC, Decline
from sfsl.service.signing import Nonces, Verifier

ATTACKS, attack = collector()
changed = msgspec.structs.replace


@pytest.mark.parametrize("one", ATTACKS, ids=repr)
def test_stopped(one: Attack) -> None:
    assert_stopped(one)


@pytest.mark.parametrize("one", ATTACKS, ids=repr)
def test_gains_against_weakened_code(one: Attack) -> None:
    assert_gains_when_weakened(one)


def at(act: Callable[..., Awaitable[bool]], guests: int = 3, **changes: Any) -> bool:
    async def scenario() -> bool:
        with tempfile.TemporaryDirectory() as folder:
            async with Deployment(Path(folder), **changes) as world:
                return await act(world, world.clients(guests))

    return asyncio.run(asyncio.wait_for(scenario(), PATIENCE))


def over_http(act: Callable[..., Awaitable[bool]], limits: AppLimits | None = None, **changes: Any) -> bool:
    async def wired(world: Deployment, guests: list[Guest]) -> bool:
        transport = httpx.ASGITransport(serve(world, limits))
        async with httpx.AsyncClient(transport=transport, base_url="https://test") as http:
            return await act(world, [Wire(guest, http, world.registry.deployment) for guest in guests])

    return at(wired, **changes)


def replaced(target: object, name: str, value: object) -> Weaken:
    return lambda patch: patch.setattr(target, name, value)


def by_ticket_alone(self: Conversations, client: str, ticket: bytes) -> Conversation | None:
    return next((one for one in self._of.values() if one.ticket == ticket), None)


@attack(refusal=RoundOver, weaken=replaced(Conversations, "find", by_ticket_alone))
def reading_what_is_meant_for_another() -> bool:
    """With a victim's ticket, from a log or a screen: a submodel tells which rows its client asked for."""

    async def act(world: Deployment, guests: list[Guest]) -> bool:
        victim, crook = guests[:2]
        for guest in guests:
            guest.check_in()
        await victim.until(1)
        return await world.check_ins.next(crook.id, victim.ticket, 0, 0) is not None

    return at(act)


@attack(refusal=RoundOver, weaken=replaced(Conversations, "find", by_ticket_alone))
def throwing_another_out_of_its_round() -> bool:
    """A first answer in the victim's place makes its own a second, different one."""

    async def act(world: Deployment, guests: list[Guest]) -> bool:
        victim, crook = guests[:2]
        for guest in guests:
            guest.check_in()
        frame = await victim.until(1)
        await world.check_ins.answer(crook.id, victim.ticket, 1, crook.answer_to(await crook.until(1)))
        try:
            await victim.answer(victim.answer_to(frame))
        except ConflictingMessage:
            return True
        return False

    return at(act)


def known_or_not(self: Conversations, client: str, ticket: bytes) -> Conversation | None:
    found = by_ticket_alone(self, client, ticket)
    if found is not None and found.client != client:
        raise UnexpectedSender("this ticket is someone else's")
    return found


@attack(refusal=None, weaken=replaced(Conversations, "find", known_or_not))
def finding_out_whether_a_ticket_is_anyones() -> bool:
    async def act(world: Deployment, guests: list[Guest]) -> bool:
        victim, crook = guests[:2]
        victim.check_in()
        told = []
        for ticket in (victim.ticket, bytes(16)):
            with pytest.raises(Exception) as error:  # noqa: PT011 -- whatever it is, it is compared
                await world.check_ins.next(crook.id, ticket, 0, 0)
            told.append(str(error.value))
        return told[0] != told[1]

    return at(act)


async def spoils(world: Deployment, guests: list[Guest], message: Any) -> bool:
    """Whether a check-in of the first client keeps everyone's round from beginning."""
    world.check_ins.check_in(guests[0].id, message)
    guests[0].ticket = world.check_ins._conversations.latest(guests[0].id).ticket  # type: ignore[union-attr]
    for guest in guests[1:]:
        guest.check_in()
    try:
        await guests[1].until(1)
    except RoundOver as over:
        return over.outcome == "aborted"
    return False


@attack(refusal=ConflictingMessage, weaken=remove(Conversations, "holder"))
def checking_in_with_the_keys_of_another() -> bool:
    """A roster that lists a key twice is refused as a whole, so one copy would cost everyone the round."""

    async def act(world: Deployment, guests: list[Guest]) -> bool:
        guests[1].check_in()
        keys = changed(guests[0].message.keys, channel=guests[1].message.keys.channel)
        return await spoils(world, guests, changed(guests[0].message, keys=keys))

    return at(act)


@attack(refusal=AuthenticationFailed, weaken=remove(members, "require_contributory"))
def checking_in_with_a_key_that_nobody_can_agree_with() -> bool:
    async def act(world: Deployment, guests: list[Guest]) -> bool:
        keys = changed(guests[0].message.keys, channel=bytes(32))
        return await spoils(world, guests, changed(guests[0].message, keys=keys))

    return at(act)


@attack(refusal=UnexpectedSender, weaken=remove(CheckIns, "_require_check_in"))
def checking_in_as_another() -> bool:
    async def act(world: Deployment, guests: list[Guest]) -> bool:
        keys = changed(guests[0].message.keys, client=guests[1].id)
        return await spoils(world, guests, changed(guests[0].message, keys=keys))

    return at(act)


_WEAK = {EXPOSES: replace(STEP[EXPOSES], answer=Message)}


@attack(
    refusal=WrongPhase,
    weaken=lambda patch: patch.setattr(
        Course, "step", lambda _, exchange: _WEAK.get(exchange, STEP[exchange])
    ),
)
def answering_with_what_was_said_before() -> bool:
    """The round takes a repetition silently; counted as an answer it would close the exchange too early."""

    async def act(world: Deployment, guests: list[Guest]) -> bool:
        for guest in guests:
            guest.check_in()
        await asyncio.gather(*(guest.until(2) for guest in guests))
        await guests[0].answer(guests[0].answers[-1])
        return world.coordinator.status().heard == 1

    return at(act)


@attack(refusal=RoundOver, weaken=remove(members.Members, "had_their_turn", ()))
def being_invited_twice_in_a_period() -> bool:
    """Two unions with the same data say more than one; a server that keeps to the rule asks once."""

    async def act(world: Deployment, guests: list[Guest]) -> bool:
        for _ in range(2):
            for guest in guests:
                guest.fresh()
                guest.check_in()
            ends = await asyncio.gather(*(guest.play() for guest in guests))
            if ends[0].outcome == "not-chosen":
                raise ends[0]
        return True

    return at(act, period_days=1)


def everyone(self: CheckIns) -> Any:
    return self.waiting.keys()


@attack(refusal=None, weaken=replaced(CheckIns, "eligible", everyone))
def filling_a_cohort_with_clients_that_are_gone() -> bool:
    """Each would cost everyone a deadline, and too many of them the round."""

    async def act(world: Deployment, guests: list[Guest]) -> bool:
        guests[0].check_in()
        world.advance(3600)
        for guest in guests[1:3]:
            guest.check_in()
        for _ in range(100):
            if world.coordinator.status().cohort == 3:
                return True
            await asyncio.sleep(0.001)
        return False

    return at(act, guests=4)


@attack(refusal=None, weaken=replaced(CheckIns, "answer_limit", lambda *_: 1 << 40))
def making_the_server_hold_a_body_of_any_size() -> bool:
    async def act(world: Deployment, wires: list[Wire]) -> bool:
        sent = 0

        async def endless() -> AsyncIterator[bytes]:
            nonlocal sent
            while sent < 8 << 20:
                sent += 1 << 16
                yield bytes(1 << 16)

        for wire in wires:
            await wire.check_in()
        await wires[0].next()
        target = f"/v1/answer/{wires[0].guest.ticket.hex()}/1"
        headers = wires[0].headers("POST", target)
        await wires[0].http.post(target, content=endless(), headers=headers)
        return sent > 1 << 20

    return over_http(act)


@attack(refusal=None, weaken=remove(Verifier, "_require_signature"))
def using_up_what_another_may_ask() -> bool:
    """Forged requests in the victim's name, until the server has had enough of the victim."""

    async def act(world: Deployment, wires: list[Wire]) -> bool:
        victim = wires[0]
        for _ in range(5):
            forged = victim.headers("POST", "/v1/check-in") | {"Sfsl-Signature": "0" * 128}
            await victim.http.post("/v1/check-in", headers=forged)
        return bool((await victim.check_in()).status_code == 429)

    return over_http(act, AppLimits(client_rate=0.01, client_burst=3))


# -- declining -------------------------------------------------------------------------------------


def declined(world: Deployment) -> set[str]:
    assert world.coordinator._running is not None
    return world.coordinator._running.declined


def decline(world: Deployment) -> bytes:
    assert world.coordinator._running is not None
    return CODEC.encode(Decline(world.coordinator._running.round_id))


def unchecked(self: CohortRound, client: str, message: Decline) -> None:
    self.declined.add(client)


def taken_at_any_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CohortRound, "_decline", unchecked)
    patch.setattr(Conversation, "took", lambda *_: False)
    patch.setattr(Conversation, "require_due", lambda *_: None)

    def receive(self: CohortRound, exchange: str, client: str, data: bytes) -> None:
        if isinstance(message := CODEC.decode(data, limit=10**7), Decline):
            self._decline(client, message)
        else:
            self.server.receive(client, message)
            self.answered.add(client)

    patch.setattr(CohortRound, "receive", receive)


@attack(refusal=RoundOver, weaken=replaced(Conversations, "find", by_ticket_alone))
def declining_for_another() -> bool:
    """Whoever could, would choose who is left in a cohort."""

    async def act(world: Deployment, guests: list[Guest]) -> bool:
        victim, crook = guests[:2]
        for guest in guests:
            guest.check_in()
        await victim.until(1)
        await world.check_ins.answer(crook.id, victim.ticket, 1, decline(world))
        return bool(declined(world))

    return at(act)


@attack(refusal=AuthenticationFailed, weaken=remove(Verifier, "_require_signature"))
def declining_for_another_over_http() -> bool:
    """The ticket and the name of the victim are no secrets; its signature is."""

    async def act(world: Deployment, wires: list[Wire]) -> bool:
        victim, crook = wires[:2]
        for wire in wires:
            await wire.check_in()
        await victim.next()
        target, body = f"/v1/answer/{victim.guest.ticket.hex()}/1", decline(world)
        forged = crook.headers("POST", target, body) | {"Sfsl-Client": victim.guest.id}
        answer = await crook.http.post(target, content=body, headers=forged)
        if answer.status_code == 401:
            raise AuthenticationFailed(answer.json()["message"])
        return True

    return over_http(act)


@attack(refusal=WrongRound, weaken=replaced(CohortRound, "_decline", unchecked))
def declining_with_the_decline_of_another_round() -> bool:
    async def act(world: Deployment, guests: list[Guest]) -> bool:
        for guest in guests:
            guest.check_in()
        await guests[0].until(1)
        await guests[0].answer(CODEC.encode(Decline(bytes(16))))
        return bool(declined(world))

    return at(act)


def always_the_latest(self: Conversations, client: str, ticket: bytes) -> Conversation | None:
    return self._of.get(client)


def heedless(patch: pytest.MonkeyPatch) -> None:
    """Each of nonces, tickets and round ids would do."""
    patch.setattr(Nonces, "require_new", lambda *_: None)
    patch.setattr(Conversations, "find", always_the_latest)
    patch.setattr(CohortRound, "_decline", unchecked)


@attack(refusal=None, weaken=heedless)
def replaying_a_decline() -> bool:
    """A recorded request, sent again when the client is in the next round under a new ticket."""

    async def act(world: Deployment, wires: list[Wire]) -> bool:
        victim = wires[0]
        for wire in wires:
            await wire.check_in()
        await victim.next()
        target, body = f"/v1/answer/{victim.guest.ticket.hex()}/1", decline(world)
        recorded = victim.headers("POST", target, body)
        assert (await victim.http.post(target, content=body, headers=recorded)).status_code == 204
        world.advance(2000)
        for wire in wires:
            wire.guest.fresh()
            await wire.check_in()
        await victim.next()
        await victim.http.post(target, content=body, headers=recorded)
        return victim.guest.id in declined(world)

    return over_http(act)


@attack(refusal=WrongPhase, weaken=taken_at_any_time)
def declining_when_the_invitation_is_closed() -> bool:
    """Others have masked with this client by now: it is a dropout whose masks are opened, nothing less."""

    async def act(world: Deployment, guests: list[Guest]) -> bool:
        for guest in guests:
            guest.check_in()
        await guests[0].until(1)
        for guest in guests[1:]:
            await guest.until(1)
            await guest.answer(guest.answer_to(guest.frames[-1]))
        frame = decline(world)
        world.advance(1001)
        await guests[1].until(2)
        await guests[0].answer(frame, number=1)
        return bool(declined(world))

    return at(act, cohort=3, threshold=2)


@attack(refusal=ConflictingMessage, weaken=taken_at_any_time)
def declining_after_having_answered() -> bool:
    """Its shares are dealt: it would be counted twice, as heard and as gone."""

    async def act(world: Deployment, guests: list[Guest]) -> bool:
        for guest in guests:
            guest.check_in()
        frame = await guests[0].until(1)
        await guests[0].answer(guests[0].answer_to(frame))
        await guests[0].answer(decline(world))
        return guests[0].id in declined(world)

    return at(act)
