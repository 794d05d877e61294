"""Wrong messages in the middle of a round, at the server's state machines, in each of their phases.

What is refused leaves the state as it was, byte for byte; what is taken is a message that this very client
could have sent now; and afterwards the honest messages give the sums that they give without a fuzzer.
"""

import pickle
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from cohort import Cohort
from fuzz.campaign import SEED, Campaign, sizes
from fuzz.corpus import LIMIT, Recorded, frames
from fuzz.frames import Frame, mutated
from sfsl.codec import Codec, Message
from sfsl.errors import Aborted, RemoteError
from sfsl.rounds import RoundServer
from sfsl.rounds.exchanges import CODEC as ROUND
from sfsl.rounds.exchanges import STEP, order
from sfsl.rounds.record import RoundTally
from sfsl.secagg.messages import CODEC as SESSION
from sfsl.service.driver import CohortRound
from sfsl.service.messages import CODEC as HTTP
from sfsl.submodel import RowSet
from world import World

CROOK, STRANGER = "c0", "nobody"
Said = Mapping[str, Mapping[str, Message]]  # by exchange and client


class Machine:
    """A server that is given bytes. ``state`` is all it has, in bytes; ``restore`` puts it back."""

    def __init__(self, server: Any, codec: Codec) -> None:
        self.server = server
        self._codec = codec

    def receive(self, step: str, client: str, data: bytes) -> None:
        self.server.receive(client, self._codec.decode(data, limit=LIMIT))

    def close(self) -> None:
        self.server.close_phase()

    def state(self) -> bytes:
        return pickle.dumps(self.server)

    def restore(self, state: bytes) -> None:
        self.server = pickle.loads(state)  # noqa: S301 -- our own


class Running(Machine):
    """As the network drives it. The bill may count what was refused, and the time that it took."""

    def __init__(self, server: RoundServer, cohort: Cohort) -> None:
        super().__init__(CohortRound(server, cohort.session, cohort.params, RoundTally(), cpu=float), ROUND)
        self.server.begin()

    def receive(self, step: str, client: str, data: bytes) -> None:
        self.server.receive(step, client, data)

    def close(self) -> None:
        self.server.close()

    def state(self) -> bytes:
        tally, self.server.tally = self.server.tally, RoundTally()
        try:
            return super().state()
        finally:
            self.server.tally = tally


class Siege:
    """Sends wrong messages to a machine, and then the right ones."""

    def __init__(
        self, machine: Machine, campaign: Campaign, rng: random.Random, others: Sequence[Frame]
    ) -> None:
        self.machine = machine
        self._campaign = campaign
        self._numbers = iter(campaign)
        self._rng = rng
        self._others = others
        self.said: dict[str, Mapping[str, bytes]] = {}  # the right answers by exchange, as far as known

    def exchange(self, step: str, answers: Mapping[str, bytes], cases: int, legitimate: Any) -> None:
        """All but the crook answer, then come the wrong ones, then the crook's right one."""
        self.said[step] = answers
        for name, data in answers.items():
            if name != CROOK:
                self.machine.receive(step, name, data)
        due = [Frame.of(data) for data in answers.values()]
        before = self.machine.state()
        for _ in range(cases):
            before = self._one(step, due, before, legitimate)
        self.machine.receive(step, CROOK, answers[CROOK])
        self.machine.close()

    def _one(self, step: str, due: Sequence[Frame], before: bytes, legitimate: Any) -> bytes:
        rng, number = self._rng, next(self._numbers)
        data = mutated(
            rng,
            [*self._others, *due],
            rng.choice(due) if rng.random() < 0.7 else None,
            sly=rng.random() < 0.8,
        )
        sender = rng.choice((CROOK, CROOK, CROOK, "c1", STRANGER))
        taken = False
        with self._campaign.case(number, data, f"{step} from {sender}"):
            self.machine.receive(step, sender, data)
            taken = True
        if self.machine.state() == before:
            return before
        assert taken, f"case {number}: refused, and yet something changed, by {data.hex()}"
        assert sender == CROOK, f"case {number}: in the name of {sender}"
        legitimate(HTTP.decode(data, limit=LIMIT))
        self._aftermath(step)
        self.machine.restore(before)
        return self.machine.state()

    def _aftermath(self, step: str) -> None:
        """What a taken lie does to the round is an abort at the worst, and never an accident."""
        with suppress(Aborted):
            self.machine.close()
            for later in [*self.said][[*self.said].index(step) + 1 :]:
                for name, data in self.said[later].items():
                    with suppress(RemoteError):
                        self.machine.receive(later, name, data)
                self.machine.close()

    def finish(self) -> None:
        assert next(self._numbers, None) is None  # which checks what the campaign measured
        assert self._campaign.outcomes["accepted"]


def _recorded(active: bool) -> tuple[Cohort, RoundServer, Said, Any]:
    """A fresh server, the answers of a whole round, and how it came out."""
    cohort = Cohort(4, active=active)
    recorded = Recorded(cohort)
    fresh: RoundServer = pickle.loads(pickle.dumps(recorded.server))  # noqa: S301 -- our own
    outcome = recorded.finish()
    exchanges = order(active)
    answers = [(name, message) for _, name, message in recorded.said if name]
    said = {step: dict(answers[4 * number : 4 * number + 4]) for number, step in enumerate(exchanges)}
    return cohort, fresh, said, outcome


def _require_same(one: Any, other: Any) -> None:
    assert one.survivors == other.survivors
    for name, rows in one.union.items():
        np.testing.assert_array_equal(rows.rows, other.union[name].rows)
    for mine, others in zip(one.scores, other.scores, strict=True):
        np.testing.assert_array_equal(mine, others)
    assert _plain(one.applied.commit) == _plain(other.applied.commit)


def _plain(value: Any) -> Any:
    """Arrays and what holds them, as something that can be compared."""
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, RowSet):
        return value.rows.tolist()
    if hasattr(value, "__dict__"):
        return _plain(vars(value))
    return value


@sizes(quick=150, share=0.003)
@pytest.mark.parametrize("through", ["machine", "network"])
@pytest.mark.parametrize("mode", ["honest-but-curious", "active"])
def test_a_round_in_each_phase(mode: str, through: str, cases: int, record_property: Any) -> None:
    cohort, server, said, outcome = _recorded(mode == "active")
    campaign = Campaign(cases * len(said), record_property, RemoteError)
    machine = Running(server, cohort) if through == "network" else Machine(server, ROUND)
    rng = random.Random(f"{SEED} {mode} {through}")
    siege = Siege(machine, campaign, rng, frames()["http"][1])
    siege.said = {
        step: {name: ROUND.encode(one) for name, one in answers.items()} for step, answers in said.items()
    }
    for step, answers in siege.said.items():
        kind, index = STEP[step].answer, STEP[step].sum

        def legitimate(taken: Any, step: str = step, kind: type = kind, index: int = index) -> None:
            if type(taken).__name__ == "Decline":
                assert (step, taken.round_id) == ("invitation", cohort.session.round_id)
                return
            assert isinstance(taken, kind)
            assert (taken.sender, taken.round_id) == (0, cohort.session.round_id)
            assert getattr(taken, "sum", index) == index

        siege.exchange(step, answers, cases, legitimate)
    siege.finish()
    ended = machine.server.server if through == "network" else machine.server
    _require_same(ended.outcome, outcome)


@sizes(quick=150, share=0.004)
def test_a_session_on_a_sparse_graph(cases: int, record_property: Any) -> None:
    world = World(n=6, threshold=3, neighbours=4).check_in()
    campaign = Campaign(3 * cases, record_property, RemoteError)
    siege = Siege(Machine(world.server, SESSION), campaign, random.Random(SEED), frames()["session"][1])

    def exchange(step: str, answers: Mapping[str, Message]) -> Mapping[str, Any]:
        def legitimate(taken: Any) -> None:
            assert (type(taken), taken.sender) == (type(answers[CROOK]), 0)

        outbound: dict[str, Any] = {}
        siege.machine.close = lambda: outbound.update(siege.machine.server.close_phase())  # type: ignore[method-assign]
        siege.exchange(step, {name: SESSION.encode(one) for name, one in answers.items()}, cases, legitimate)
        return outbound

    clients = world.clients
    inbound = exchange(
        "shares", {name: clients[name].handle_roster(one) for name, one in world.rosters.items()}
    )
    requests = exchange(
        "masked",
        {
            name: clients[name].create_masked(clients[name].handle_inbound(one), world.vectors[name])
            for name, one in inbound.items()
        },
    )
    exchange("unmask", {name: clients[name].handle_unmask(one) for name, one in requests.items()})
    siege.finish()
    total = sum(vector.astype(np.uint32) for vector in world.vectors.values())
    np.testing.assert_array_equal(siege.machine.server.opened.dense, total)
