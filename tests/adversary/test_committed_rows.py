"""A server that shows its clients different models, so that a sum is one client's own update."""

from typing import Any

import msgspec
import numpy as np
import pytest
from attacks import Attack, Weaken, assert_gains_when_weakened, assert_stopped, collector, remove

import sfsl.rounds.client
import sfsl.rounds.server
from cohort import GOODS, WIDTH, Cohort, Stepper
from sfsl.codec import pack
from sfsl.errors import Deceived, InvalidMessage, Refused, UnionFailed
from sfsl.rounds.client import Trained
from sfsl.rounds.commitment import CommittedRows, _Hashes, update_context
from sfsl.rounds.params import RoundParams
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


@attack(refusal=Deceived, weaken=remove(sfsl.rounds.client, "require_committed"))
def dead_rows_of_a_derived_table_alone() -> bool:
    step = Stepper(Followers(active=True)).until("submodel")
    goods, category = step.outbound[TARGET].rows
    lied = changed(step.outbound[TARGET], rows=(goods, bytes(len(category))))
    assert any(category)
    return bool(step.clients[TARGET].handle_submodel(lied).rows)


def one_key_for_all_rounds(patch: pytest.MonkeyPatch) -> None:
    honest = _Hashes.__init__
    patch.setattr(_Hashes, "__init__", lambda self, binding: honest(self, bytes(32)))


@attack(refusal=Deceived, weaken=one_key_for_all_rounds)
def the_commitment_of_another_round() -> bool:
    """Rows, root and proof as they were in an earlier round, which is long over: all of it fits together."""
    earlier = Cohort(active=True, everything=False)
    earlier.session = changed(earlier.session, round_id=b"round-0000000000")
    old = Stepper(earlier).until("submodel").outbound[TARGET]
    step = Stepper(Cohort(active=True, everything=False)).until("submodel")
    assert old.proof
    lied = changed(step.outbound[TARGET], rows=old.rows, root=old.root, proof=old.proof)
    return bool(step.clients[TARGET].handle_submodel(lied).rows)


# -- one client is told another story, and everything it is shown fits together --------------------------


def opens(step: Stepper) -> bool:
    """Whether the sum is what it is when nobody is told anything else."""
    honest, outcome = Stepper(Followers(active=True)).finish(), step.finish()
    ours, theirs = outcome.applied.commit.dense, honest.applied.commit.dense
    return not outcome.applied.dense_refused and np.allclose(ours.values, theirs.values, atol=0.05)


def without(part: str) -> Weaken:
    """Masks that are not bound to one part of the context of the update."""

    def unbound(told: bytes, union: bytes, dense: bytes, root: bytes) -> bytes:
        parts = {"told": told, "union": union, "dense": dense, "root": root} | {part: b""}
        return update_context(**parts)

    def weaken(patch: pytest.MonkeyPatch) -> None:
        for side in (sfsl.rounds.client, sfsl.rounds.server):
            patch.setattr(side, "update_context", unbound)

    return weaken


@attack(refusal=None, weaken=without("dense"))
def another_dense_part_for_one() -> bool:
    step = Stepper(Followers(active=True)).until("submodel")
    dense = np.frombuffer(step.outbound[TARGET].dense, "<f4") + np.float32(1)
    step.outbound[TARGET] = changed(step.outbound[TARGET], dense=dense.tobytes())
    return opens(step)


@attack(refusal=None, weaken=without("union"))
def another_union_for_one() -> bool:
    """One row has another number, of the same category: whoever answers for it says whether it has that."""
    step = Stepper(Followers(active=True)).until("union")
    rows = step.server.state.unions["goods"].rows.copy()
    place = next(at for at, row in enumerate(rows[:-1].tolist()) if row + 6 < rows[at + 1])
    rows[place] += 6
    step.outbound[TARGET] = changed(step.outbound[TARGET], packed=pack(rows, GOODS))
    return opens(step)


@attack(refusal=UnionFailed, weaken=remove(RoundParams, "context", bytes(32)))
def other_hyperparameters_for_one() -> bool:
    """An update after so many steps, or so long ones, is told from the others' in their sum."""
    step = Stepper(Followers(active=True))
    told = step.outbound[TARGET]
    step.outbound[TARGET] = changed(told, round=changed(told.round, training={"rate": 2.0}))
    return opens(step)


def test_other_participants_for_one_client_give_noise() -> None:
    step = Stepper(Followers(active=True)).until("submodel")
    told = step.outbound[TARGET]
    gone = told.participants[-1]
    others = [place for place in told.participants if place != step.clients[TARGET].session.position]
    kept = tuple(one for place, one in zip(others, told.requests, strict=True) if place != gone)
    step.outbound[TARGET] = changed(told, participants=told.participants[:-1], requests=kept)
    with pytest.raises(Refused):  # the lists to open are not of those whom it masked with
        opens(step)


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
        with pytest.raises(Deceived):  # it is named, also where the proof is cut so that it cannot be read
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
