"""A server that sends one client another model package than the rest: the same tables, and other maps or
another kind of model over them. Rows, dense part and parameters are the same for all."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attacks import Attack, assert_gains_when_weakened, assert_stopped, collector

import sfsl.client.round
from cohort import CATEGORY_OF, MODEL, Cohort, Stepper
from sfsl.client.events import About
from sfsl.client.join import _Client
from sfsl.client.round import ClientModel
from sfsl.errors import InputError, InvalidMessage, UnionFailed
from sfsl.rounds import RoundServer, Trained
from sfsl.rounds.commitment import model_context
from sfsl.settings.terms import Terms
from sfsl.submodel import RowMaps, RowSet, TrainedRows

ATTACKS, attack = collector()
TARGET, SERVERS_OWN = "c0", "c1"
PACKAGE, OTHER = b"the package that all were told of", b"and that of one"
# Of the target's rows MARKED alone leads to the last category; of the others' rows one does that only the
# server's own client brings, which trains nothing.
LAST, MARKED, HOLLOW = 5, 9, 11


@pytest.mark.parametrize("one", ATTACKS, ids=repr)
def test_stopped(one: Attack) -> None:
    assert_stopped(one)


@pytest.mark.parametrize("one", ATTACKS, ids=repr)
def test_gains_against_weakened_code(one: Attack) -> None:
    assert_gains_when_weakened(one)


def led_by(row: int) -> Any:
    category_of = CATEGORY_OF % LAST
    category_of[row] = LAST
    return RowMaps(MODEL, {"category": category_of})


class Mapped(Cohort):
    def __init__(self) -> None:
        super().__init__(20, active=True)
        for name, rows in self.real.items():
            rows -= {HOLLOW, MARKED}
            rows |= {MARKED} if int(name[1:]) % 2 == 0 else set()
            rows |= {HOLLOW} if name == SERVERS_OWN else set()
            self.answers[name].real = np.array(sorted(rows), np.int64)
        self.maps_of = dict.fromkeys(self.names, led_by(HOLLOW)) | {TARGET: led_by(MARKED)}

    def train(self, name: str, download: Any) -> Trained:
        goods = RowSet.of(sorted(self.real[name] if name != SERVERS_OWN else ()))
        category = self.maps_of[name].with_derived({"goods": goods})["category"]
        rows = {
            table: TrainedRows(own, np.full((len(own), width), 0.25), np.ones(len(own), int))
            for table, own, width in (("goods", goods, 3), ("category", category, 2))
        }
        return Trained(np.zeros(4), 1, rows)


def told(cohort: Cohort, packages: dict[str, bytes], maps: dict[str, RowMaps]) -> Stepper:
    """A round in which each client was told of its package and maps, at a server that was told of PACKAGE."""
    step = Stepper(cohort)
    for name, client in step.clients.items():
        model = ClientModel(packages[name], MODEL, maps[name], bound=True)
        own = client._own
        more = (own.randomness, None, own.identity or object(), cohort.pinned)
        client._own = model.own(own.memory, own.policy, *more)  # type: ignore[arg-type]
        client._maps = maps[name]
    names = sfsl.client.round.model_context(PACKAGE, b"")
    keys = [step.clients[name].session._state.keys for name in cohort.names]  # type: ignore[union-attr]
    step.server = RoundServer(
        cohort.session, cohort.params, keys, cohort.store, led_by(HOLLOW), cohort.pinned, names=names
    )
    step.outbound = dict(step.server.invitations())
    return step


def unbound(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sfsl.client.round, "model_context", lambda package, names: names)


@attack(refusal=UnionFailed, weaken=unbound)
def other_maps_for_one() -> bool:
    """The row of a category that others are led to by nothing that they have is the target's alone."""
    cohort = Mapped()
    step = told(cohort, dict.fromkeys(cohort.names, PACKAGE) | {TARGET: OTHER}, cohort.maps_of)
    step.finish()
    sums = step.server.sums.model
    place = int(sums.unions["category"].positions_of(np.array([LAST]))[0])
    weight = int(sums.rows["category"].weights[place])
    return weight == 1 and MARKED in cohort.real[TARGET]


def test_where_all_were_told_the_same_their_sum_opens() -> None:
    cohort = Mapped()
    step = told(cohort, dict.fromkeys(cohort.names, PACKAGE), dict.fromkeys(cohort.names, led_by(HOLLOW)))
    assert not step.finish().applied.dense_refused


def joining(tmp_path: Path, **told: Any) -> Any:
    """A client that insists on active mode, and hears this of a server."""

    class Link:
        async def about(self) -> About:
            ids: dict[str, Any] = {"deployment": "0" * 32, "model": "0" * 64}
            return About(protocol=1, round=0, time=0, active=True, **ids, **told)

        async def model(self) -> bytes:
            raise InvalidMessage("asked for the model")

    terms = Terms(roster=str(tmp_path / "roster"), exact_sums=True)
    nobody: Any = None
    return _Client(Link(), nobody, nobody, nobody, terms, 0.2, nobody, nobody)  # type: ignore[arg-type]


def test_a_server_that_does_not_bind_the_model_is_not_joined_in_active_mode(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not bind its rounds to the model"):
        asyncio.run(joining(tmp_path).model())
    with pytest.raises(InvalidMessage, match="asked for the model"):
        asyncio.run(joining(tmp_path, scheme="hot", binds_model=True).model())


def test_the_digest() -> None:
    assert len({model_context(*one) for one in ((b"a", b""), (b"", b"a"), (b"a", b"b"), (b"b", b"a"))}) == 4
