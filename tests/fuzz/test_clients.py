"""A server that says wrong things, at a client's state machine, in each of its phases.

The client declines with a typed error, whatever it is told, and has then either not moved or left the
round. What it is told cannot make it compute or hold more than its policy allows.
"""

import random
from typing import Any

import pytest

from cohort import Cohort, Stepper
from fuzz.campaign import SEED, Campaign, sizes
from fuzz.corpus import LIMIT, frames
from fuzz.frames import Frame, mutated
from hot_cohort import HotCohort
from sfsl.errors import SfslError, WrongPhase
from sfsl.rounds.client import Phase
from sfsl.rounds.exchanges import CODEC

VICTIM = "c0"
HANDLERS = {
    "Invitation": "handle_invitation",
    "InboundShares": "handle_inbound",
    "Survivors": "handle_survivors",
    "UnmaskRequest": "handle_unmask",
    "Union": "handle_union",
    "Submodel": "handle_submodel",
}
STEPS = ("invitation", "inbound", "unmask-union", "union", "submodel", "unmask-update")


def _told(client: Any, message: Any) -> Any:
    handler = HANDLERS.get(type(message).__name__)
    if handler is None:
        raise WrongPhase("which no server sends")
    return getattr(client, handler)(message)


@sizes(quick=60, share=0.002)
@pytest.mark.parametrize("mode", ["honest-but-curious", "active"])
@pytest.mark.parametrize("step", STEPS)
def test_a_client_in_each_phase(step: str, mode: str, cases: int, record_property: Any) -> None:
    rng = random.Random(f"{SEED} {step} {mode}")
    campaign = Campaign(cases, record_property, SfslError)
    others = frames()["round"][1]

    def begin() -> Stepper:
        # Clients that ask for some rows only are sent proofs.
        active = mode == "active"
        return Stepper(Cohort(4, active=active, everything=not active)).until(step)

    stepper = begin()
    for number in campaign:
        client = stepper.clients[VICTIM]
        due = Frame.of(CODEC.encode(stepper.outbound[VICTIM]))
        data = mutated(rng, others, due if rng.random() < 0.8 else None, sly=rng.random() < 0.85)
        before = client.phase
        with campaign.case(number, data, f"{step}, {mode}"):
            _told(client, CODEC.decode(data, limit=LIMIT))
            before = None  # it has answered, and goes on
        if client.phase is not before:
            assert before is None or client.phase is Phase.LEFT, f"case {number}: {before} -> {client.phase}"
            stepper = begin()
    assert len(stepper.finish().survivors) == 4


@sizes(quick=60, share=0.002)
@pytest.mark.parametrize("kind", ["survey", "train"])
@pytest.mark.parametrize("step", ["invitation", "inbound", "unmask-update"])
def test_a_client_of_hot_rows_in_each_phase(step: str, kind: str, cases: int, record_property: Any) -> None:
    rng = random.Random(f"{SEED} {step} {kind}")
    campaign = Campaign(cases, record_property, SfslError)
    others = frames()["round"][1]

    def begin() -> HotCohort:
        return HotCohort(4, kind, rho=0.5, survey_rho=0.1).until(step)

    cohort = begin()
    for number in campaign:
        client = cohort.clients["c000"]
        due = Frame.of(CODEC.encode(cohort.outbound["c000"]))
        data = mutated(rng, others, due if rng.random() < 0.8 else None, sly=rng.random() < 0.85)
        before, spent = client.phase, dict(cohort.purses["c000"].spent)
        with campaign.case(number, data, f"{step}, {kind}"):
            _told_of_hot_rows(cohort, CODEC.decode(data, limit=LIMIT))
            before = None  # it has answered, and goes on
        if client.phase is not before:
            assert before is None or client.phase is Phase.LEFT, f"case {number}: {before} -> {client.phase}"
            cohort = begin()
        else:
            assert cohort.purses["c000"].spent == spent, f"case {number}: debited, and nothing was sent"
    assert len(cohort.finish().survivors) == 4


def _told_of_hot_rows(cohort: HotCohort, message: Any) -> None:
    found = [step for step in cohort.course.steps if step.message is type(message)]
    if not found:
        raise WrongPhase("which no server sends")
    cohort.answer("c000", found[0].exchange, message)
