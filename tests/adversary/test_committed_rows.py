"""A server that shows its clients different models, so that a sum is one client's own update."""

from typing import Any

import msgspec
import numpy as np
import pytest
from attacks import Attack, assert_gains_when_weakened, assert_stopped, collector, remove

import sfsl.rounds.client
import sfsl.rounds.server
from cohort import GOODS, WIDTH, Cohort, Stepper
from sfsl.errors import Deceived, InvalidMessage
from sfsl.rounds.client import Trained
from sfsl.rounds.commitment import CommittedRows, update_context
from sfsl.submodel import RowSet, TrainedRows

ATTACKS, attack = collector()
changed = msgspec.structs.replace
TARGET = "c0"


@pytest.mark.parametrize("one", ATTACKS, ids=repr)
def test_stopped(one: Attack) -> None:
    assert_stopped(one)


@pytest.mark.parametrize("one", ATTACKS, ids=repr)
def test_gains_against_weakened_code(one: Attack) -> None:
    assert_gains_when_weakened(one)


class Followers(Cohort):
    """Clients whose update follows what they download, as training does: dead rows learn nothing."""

    def train(self, name: str, download: Any) -> Trained:
        rng = np.random.default_rng(int(name[1:]))
        rows = {}
        for table, values in download.rows.items():
            own = RowSet.of(sorted(self.real[name])) if table == "goods" else download.asked[table]
            own = own.common(download.asked[table])
            alive = np.any(values[download.asked[table].positions_of(own.rows)], axis=1, keepdims=True)
            deltas = rng.integers(-100, 100, (len(own), values.shape[1])) / 1024 * alive
            rows[table] = TrainedRows(own, deltas, np.ones(len(own), int))
        return Trained(np.zeros(4), 1, rows)


def finish_and_compare(step: Stepper) -> bool:
    """Whether the opened rows are the target's own update on nearly all of its rows."""
    step.finish()
    sums = step.server.sums.model
    trained = step.cohort.trained[TARGET].rows["goods"]
    found = np.zeros((GOODS, WIDTH))
    found[sums.unions["goods"].rows] = sums.rows["goods"].values
    return bool(np.mean(np.all(np.isclose(found[trained.rows.rows], trained.deltas), axis=1)) > 0.9)


def dead(step: Stepper, name: str) -> Any:
    honest = step.outbound[name]
    return changed(honest, rows=tuple(bytes(len(data)) for data in honest.rows))


@attack(refusal=Deceived, weaken=remove(sfsl.rounds.client, "require_committed"))
def dead_rows_for_all_but_one() -> bool:
    """Everyone gets the same dense part; only the target gets rows that learn anything."""
    step = Stepper(Followers(active=True)).until("submodel")
    step.outbound |= {name: dead(step, name) for name in step.outbound if name != TARGET}
    return finish_and_compare(step)


def without_root(patch: pytest.MonkeyPatch) -> None:
    for side in (sfsl.rounds.client, sfsl.rounds.server):
        patch.setattr(
            side, "update_context", lambda told, union, dense, root: update_context(told, union, dense, b"")
        )


@attack(refusal=None, weaken=without_root)
def another_commitment_for_all_but_one() -> bool:
    """The dead rows are proved too, in a tree of their own: each client finds its own download in order."""
    step = Stepper(Followers(active=True)).until("submodel")
    unions = step.server.state.unions
    tables = [
        np.zeros((len(unions[table]), width), "<f4") for table, width in (("goods", 3), ("category", 2))
    ]
    other = CommittedRows(tables, step.clients[TARGET].session.binding, proves=True)
    everything = [np.ones(len(table), np.bool_) for table in tables]
    for name in step.outbound:
        if name != TARGET:
            proof = other.proof(everything)  # of these cohorts everyone asks for everything
            step.outbound[name] = changed(dead(step, name), root=other.root, proof=proof)
    return finish_and_compare(step)


def test_proofs_of_some_rows_are_taken_and_altered_ones_are_not() -> None:
    step = Stepper(Cohort(active=True, everything=False)).until("submodel")
    honest, client = step.outbound[TARGET], step.clients[TARGET]
    assert honest.proof
    goods, category = honest.rows
    for bad in (
        changed(honest, rows=(bytes((goods[0] ^ 1,)) + goods[1:], category)),
        changed(honest, rows=(goods[12:24] + goods[:12] + goods[24:], category)),
        changed(honest, root=bytes(20)),
        changed(honest, proof=honest.proof[:-20]),
        changed(honest, proof=honest.proof + bytes(20)),
        changed(honest, proof=honest.proof[:-1]),
        changed(honest, proof=b""),
    ):
        with pytest.raises(InvalidMessage):
            client.handle_submodel(bad)
    client.handle_submodel(honest)


def test_a_proof_outside_active_mode_is_refused() -> None:
    step = Stepper(Cohort()).until("submodel")
    honest = step.outbound[TARGET]
    assert not honest.proof
    with pytest.raises(InvalidMessage, match="outside active mode"):
        step.clients[TARGET].handle_submodel(changed(honest, proof=bytes(20)))


def test_a_root_for_one_client_alone_gives_noise_in_every_mode() -> None:
    step = Stepper(Cohort()).until("submodel")
    step.outbound[TARGET] = changed(step.outbound[TARGET], root=bytes(20))
    outcome, honest = step.finish(), Stepper(Cohort()).finish()
    ours, theirs = outcome.applied.commit.dense, honest.applied.commit.dense
    assert outcome.applied.dense_refused or not np.allclose(ours.values, theirs.values, atol=0.05)


def test_a_client_that_asks_for_nothing_needs_no_proof() -> None:
    committed = CommittedRows([np.ones((3, 2), "<f4")], bytes(32), proves=True)
    assert committed.proof([np.zeros(3, np.bool_)]) == b""
