"""Every illegal (phase, message) pair of a round raises and leaves the state what it was, on both sides."""

from typing import Any

import pytest

from cohort import Cohort, Stepper
from sfsl.errors import RemoteError, WrongPhase
from sfsl.rounds.exchanges import STEP, STEPS, UNION_SUM, Exchange, order
from sfsl.rounds.states import CLIENT_MOVES, SERVER_MOVES, Phase, ServerPhase
from sfsl.secagg.messages import Survivors
from world import frozen

NAME = "c0"
ORDER = order(active=False)
# The message that a client waits for in each phase.
DUE = {
    Phase.CHECKED_IN: Exchange.INVITATION,
    Phase.SHARED: Exchange.INBOUND,
    Phase.UNITING: Exchange.UNMASK_UNION,
    Phase.AWAITS_UNION: Exchange.UNION,
    Phase.REQUESTED: Exchange.SUBMODEL,
    Phase.UPLOADED: Exchange.UNMASK_UPDATE,
}


def sent(active: bool) -> dict[Exchange, Any]:
    """What the server of an honest round says to the client, by exchange."""
    step, found = Stepper(Cohort(4, active=active)), {}
    for exchange in order(active):
        found[exchange] = step.outbound[NAME]
        step._exchange()
    return found


def client_in(phase: Phase, active: bool) -> Any:
    step = Stepper(Cohort(4, active=active))
    if phase is Phase.FINISHED:
        step.finish()
        return step.clients[NAME]
    step.until(DUE.get(phase, Exchange.SUBMODEL).value)
    if phase is Phase.TRAINING:
        step.clients[NAME].handle_submodel(step.outbound[NAME])
    return step.clients[NAME]


@pytest.mark.parametrize("active", [False, True], ids=["curious", "active"])
@pytest.mark.parametrize("phase", [*DUE, Phase.TRAINING, Phase.FINISHED], ids=lambda phase: phase.name)
def test_client(phase: Phase, active: bool) -> None:
    """All that does not belong, one after the other, at one client: it is what it was after each."""
    client, messages = client_in(phase, active), sent(active)
    assert client.phase is phase
    before, session, picture = client.state, client.session.state, frozen(client)

    def refused(handler: str, *given: Any) -> None:
        with pytest.raises(RemoteError):
            getattr(client, handler)(*given)
        assert client.state is before
        assert client.session.state is session
        assert frozen(client) == picture

    for exchange, message in messages.items():
        if exchange is not DUE.get(phase):
            refused(STEP[exchange].handler, message)
    refused("handle_survivors", Survivors(messages[Exchange.INBOUND].round_id, UNION_SUM, (0, 1, 2, 3), ()))
    refused("create_keys")
    if phase is not Phase.TRAINING:
        refused("create_update", None)


@pytest.mark.parametrize("exchange", ORDER)
def test_server(exchange: Exchange) -> None:
    """Answers of all other exchanges, while the server waits for those of one."""
    honest, said = Stepper(Cohort(4)), {}
    receive = honest.server.receive

    def listening(name: str, message: Any) -> None:
        if name == NAME:
            said[ORDER[len(said)]] = message
        receive(name, message)

    honest.server.receive = listening  # type: ignore[method-assign]
    honest.finish()
    server = Stepper(Cohort(4)).until(exchange.value).server
    before, picture = server.state, frozen(server)
    now = ORDER.index(exchange)
    for early in ORDER[now + 1 :]:
        with pytest.raises(RemoteError):
            server.receive(NAME, said[early])
        assert server.state is before
        assert frozen(server) == picture
    for again in ORDER[:now]:
        server.receive(NAME, said[again])  # silently
        assert frozen(server) == picture


def test_a_round_that_is_over_cannot_be_continued() -> None:
    step = Stepper(Cohort(4))
    step.finish()
    before = step.server.state
    with pytest.raises(WrongPhase):
        step.server.close_phase()
    assert step.server.state is before


def test_the_tables_lead_from_the_first_phase_to_every_other() -> None:
    for moves, phases in ((CLIENT_MOVES, Phase), (SERVER_MOVES, ServerPhase)):
        reached = {next(iter(phases)).name}
        for move in moves:
            assert move.phase.name in reached
            reached.update(after.name for after in move.after)
        assert reached == set(phases.__members__)
    assert {step.message for step in STEPS} <= {move.takes for move in CLIENT_MOVES}
