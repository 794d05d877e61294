"""Knobs of a round that a server turns to learn about one client, and where each stops (spec limits)."""

import math
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any

import msgspec
import numpy as np
import pytest
from attacks import Attack, assert_gains_when_weakened, assert_stopped, collector, remove

from cohort import GOODS, WIDTH, Cohort, Stepper
from hot_cohort import HotCohort
from sfsl.client.device import DeviceTrainer, TrainingLimits
from sfsl.codec import read_bits
from sfsl.errors import InputError, Refused
from sfsl.rounds import RoundClient, RoundPolicy, ScoreBins, Trained
from sfsl.rounds.hot import SAMPLE_SHARE, HotParams
from sfsl.rounds.params import ANYTHING, ExactLimits, HotLimits
from sfsl.secagg.client import Client
from sfsl.union import UnionParams

ATTACKS, attack = collector()
changed = msgspec.structs.replace
TARGET = "c0"


@pytest.mark.parametrize("one", ATTACKS, ids=repr)
def test_stopped(one: Attack) -> None:
    assert_stopped(one)


@pytest.mark.parametrize("one", ATTACKS, ids=repr)
def test_gains_against_weakened_code(one: Attack) -> None:
    assert_gains_when_weakened(one)


def careful(kind: type[Cohort] = Cohort, **limits: Any) -> Cohort:
    """Clients that allow what a client of a deployment allows."""
    cohort = kind(active=True, least=2, everything=False)
    allowed = {"least_set": 1, "row_samples": cohort.params.update.rows.max_weight}
    cohort.policy = changed(cohort.policy, limits=ExactLimits(**allowed | limits))
    return cohort


def told(cohort: Cohort, **params: Any) -> Stepper:
    cohort.params = changed(cohort.params, **params)
    cohort.session = changed(cohort.session, sums=cohort.params.sums())
    return Stepper(cohort)


class OfManySizes(Cohort):
    """Clients that differ in how many samples they have."""

    def train(self, name: str, download: Any) -> Trained:
        trained = super().train(name, download)
        return replace(trained, samples=7 + 3 * int(name[1:]))


@attack(refusal=Refused, weaken=remove(RoundPolicy, "require"))
def weights_that_tell_how_many_samples_each_client_has() -> bool:
    """Every row's weight is then a sum of sample counts over known askers: a linear system, which gives the
    number of each of them exactly."""
    cohort = careful(OfManySizes)
    update = cohort.params.update
    weights = changed(update, averaging=changed(update.averaging, weights="dataset"))
    step = told(cohort, update=weights).until("submodel")
    state = step.server.state
    rows = len(state.unions["goods"])
    asked = np.stack([read_bits(state.requests[name].bitmaps[0], rows) for name in cohort.names])
    step.finish()
    opened = asked.sum(axis=0) >= 2
    weight = step.server.sums.model.rows["goods"].weights[opened]
    found = np.linalg.lstsq(asked[:, opened].T.astype(float), weight.astype(float), rcond=None)[0]
    sizes = [cohort.trained[name].samples for name in cohort.names]
    return len(set(sizes)) == len(sizes) and bool(np.allclose(found, sizes))


class OfManyTouches(Cohort):
    """Clients that differ in how many of their samples touch each of their rows."""

    def train(self, name: str, download: Any) -> Trained:
        trained, times = super().train(name, download), 7 + 3 * int(name[1:])
        rows = {
            table: replace(own, counts=np.full(len(own.rows), times)) for table, own in trained.rows.items()
        }
        return replace(trained, rows=rows)


@attack(refusal=Refused, weaken=remove(ExactLimits, "require_weights"))
def weights_that_tell_how_many_samples_touch_each_row() -> bool:
    """A row that one client alone trained weighs as many samples as this client has that touch it, and other
    attacks name the owners of most such rows. By the settings servers come with, two are counted at most."""
    cohort = careful(OfManyTouches, row_samples=2)
    for one in cohort.answers.values():
        one.everything = True  # others ask too, and have no sample
    step = told(cohort)
    step.finish()
    sums, owners = step.server.sums.model, dict[int, list[str]]()
    for name in cohort.names:
        for row in cohort.trained[name].rows["goods"].rows.rows.tolist():
            owners.setdefault(row, []).append(name)
    weights = dict(zip(sums.unions["goods"].rows.tolist(), sums.rows["goods"].weights.tolist(), strict=True))
    alone = {row: names[0] for row, names in owners.items() if len(names) == 1 and weights[row]}
    return bool(alone) and all(weights[row] == 7 + 3 * int(name[1:]) for row, name in alone.items())


@attack(refusal=Refused, weaken=remove(RoundPolicy, "require"))
def a_union_so_small_that_larger_sets_fall_silent() -> bool:
    """A client with more rows than the capacity used to fail, and its silence told the size of its set."""
    cohort = careful(least_set=8)
    step = told(cohort, union=changed(cohort.params.union, capacity=4))
    return bool(step.clients[TARGET].handle_invitation(step.outbound[TARGET]).boxes)


def falling_silent(patch: pytest.MonkeyPatch) -> None:
    """As it was: no room asked for at the invitation, and a set that does not fit is not sent."""
    patch.setattr(RoundPolicy, "require", lambda *_: None)
    sends = RoundClient.handle_inbound

    def silent(self: RoundClient, inbound: Any) -> Any:
        if len(self._own.memory.real) > self.state.encoding.capacity:  # type: ignore[attr-defined]
            raise InputError("more rows than there is room for")
        return sends(self, inbound)

    patch.setattr(RoundClient, "handle_inbound", silent)


@attack(refusal=None, weaken=falling_silent)
def who_falls_silent_has_more_rows_than_there_is_room_for() -> bool:
    """One bit about each client in a round. Even a client whose owner asks for no room at all gives none."""
    cohort = careful(least_set=1)
    for place, name in enumerate(cohort.names):
        cohort.answers[name].real = np.arange(10 * place, 10 * place + 3 * (place + 1))
    room = 10
    step = told(cohort, union=changed(cohort.params.union, capacity=room)).until("inbound")
    silent = set()
    for name, message in step.outbound.items():
        try:
            step.clients[name].handle_inbound(message)
        except InputError:
            silent.add(name)
    larger = {name for name in cohort.names if len(cohort.answers[name].real) > room}
    return bool(silent) and silent == larger


def one_bin_per_sample(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ExactLimits, "scores", lambda self, told: told)
    patch.setattr(ExactLimits, "counted", lambda self, told, scores: scores)


@attack(refusal=None, weaken=one_bin_per_sample)
def counting_scores_of_clients_that_come_as_they_are() -> bool:
    """An evaluation as honest servers make it: 256 bins, of which most that are hit hold one sample."""
    step = told(careful(), scores=ScoreBins(bins=8))
    return bool(np.sum(step.finish().scores))


@attack(refusal=None, weaken=one_bin_per_sample)
def bins_so_fine_that_each_holds_one_sample() -> bool:
    step = told(careful(bins=4), scores=ScoreBins(bins=8, scale=1.0))
    return bool(np.sum(step.finish().scores))


@attack(refusal=None, weaken=one_bin_per_sample)
def bins_that_are_put_where_one_client_has_its_scores() -> bool:
    step = told(careful(bins=8), scores=ScoreBins(bins=8, centre=0.3, scale=1e-4))
    return bool(np.sum(step.finish().scores))


@attack(refusal=None, weaken=one_bin_per_sample)
def counting_the_scores_of_clients_that_have_very_few() -> bool:
    step = told(careful(bins=8, least_samples=1000), scores=ScoreBins(bins=8))
    return bool(np.sum(step.finish().scores))


def counted_under(**rules: Any) -> bool:
    """Whether clients that come as they are, but allow rounds over hot rows without noise, count scores."""
    one = HotCohort(6, exact=ExactLimits(), limits=HotLimits(max_rho=math.inf, corruption=0.0), **rules)
    one.finish()
    params = one.params
    counts = one.server.sums.words[-1 - 2 * params.bins : -1] / (SAMPLE_SHARE * params.levels)
    return bool(np.abs(counts).max() > 5)


def in_every_round_over_hot_rows(patch: pytest.MonkeyPatch) -> None:
    one_bin_per_sample(patch)
    patch.setattr(HotParams, "hides_samples", lambda *_: True)


@attack(refusal=None, weaken=in_every_round_over_hot_rows)
def counting_scores_over_hot_rows_without_noise() -> bool:
    """An owner who allows rounds without noise (hot-epsilon inf) has not allowed scores in exact sums."""
    return counted_under()


@attack(refusal=None, weaken=in_every_round_over_hot_rows)
def counting_scores_over_hot_rows_with_next_to_no_noise() -> bool:
    """Noise that has a price, and in which each sample is seen."""
    return counted_under(rho=2000.0)


def test_under_noise_scores_are_counted() -> None:
    """Of noise that hides them there is no need to ask; at a rho of 1,000, one sample is nearly the noise."""
    one = HotCohort(6, exact=ExactLimits(), limits=HotLimits(max_rho=math.inf, corruption=0.0), rho=1000.0)
    one.finish()
    assert all(trained.scores is not None for trained in one.trained.values())


def test_histograms_that_are_none_are_an_error_of_the_trainer() -> None:
    for bad in (["many"], [object()]):
        with pytest.raises(InputError, match="score histograms"):
            ANYTHING.counted(ScoreBins(bins=1), (bad, bad))
    assert ANYTHING.counted(ScoreBins(bins=1), ([math.nan], [1.0])) is None


@attack(refusal=Refused, weaken=remove(Client, "_require_company"))
def leaving_a_client_alone_on_its_rows_by_chosen_dropouts() -> bool:
    """The server knows who asked for what, and says that the others who asked for a row dropped out."""
    cohort = careful()
    cohort.policy = changed(cohort.policy, session=changed(cohort.policy.session, company=True))
    for session in cohort.sessions.values():
        session._policy = cohort.policy.session
    asked = {row: [name for name in cohort.names if row in cohort.real[name]] for row in range(GOODS)}
    row, other = next(
        (row, next(name for name in names if name != TARGET))
        for row, names in asked.items()
        if len(names) == 2 and TARGET in names
    )
    step = Stepper(cohort, {"submodel": {other}})
    step.finish()
    sums, trained = step.server.sums.model, cohort.trained[TARGET].rows["goods"]
    found = np.zeros((GOODS, WIDTH))
    found[sums.unions["goods"].rows] = sums.rows["goods"].values
    place = trained.rows.positions_of(np.array([row]))[0]
    return bool(np.allclose(found[row], trained.deltas[place] * np.asarray(trained.counts)[place]))


@pytest.mark.parametrize("gone", [set(), {"c1"}, {"c1", "c2"}])
def test_as_many_may_drop_out_as_leave_company_on_every_row(gone: set[str]) -> None:
    """Rows of three contributors: of three who asked one may be gone, and nobody is alone."""
    cohort = Cohort(9, active=True, everything=True, least=3)
    cohort.policy = changed(cohort.policy, session=changed(cohort.policy.session, company=True))
    for session in cohort.sessions.values():
        session._policy = cohort.policy.session
    step = Stepper(cohort, {"submodel": gone})
    if len(gone) > 1:
        with pytest.raises(Refused, match="this client allows 1"):
            step.finish()
    else:
        assert set(step.finish().survivors) == set(cohort.names) - gone


def test_a_set_that_is_too_large_is_sent_as_empty() -> None:
    """Nobody falls silent, nothing of the set is in the union, and the others' rows are."""
    cohort = Cohort(everything=False)
    union = UnionParams(domain=GOODS, encoding="sketch", capacity=20, seed=bytes(32))
    for name in cohort.names:
        cohort.answers[name].real = np.arange(40, 43)
    cohort.answers[TARGET].real = np.arange(30)
    step = told(cohort, union=union).until("union")
    assert TARGET in step.outbound
    rows = step.server.state.unions["goods"].rows
    assert rows.tolist() == [40, 41, 42]


def test_the_room_of_a_union_is_checked_without_a_look_at_the_data() -> None:
    for real in (1, 40):
        cohort = careful(least_set=8)
        cohort.answers[TARGET].real = np.arange(real)
        step = told(cohort, union=changed(cohort.params.union, capacity=47))
        with pytest.raises(Refused, match="room for 47 rows; of 6 clients this one wants room for 48"):
            step.clients[TARGET].handle_invitation(step.outbound[TARGET])
    step = told(careful(least_set=8), union=changed(cohort.params.union, capacity=48))
    assert step.clients[TARGET].handle_invitation(step.outbound[TARGET]).boxes


def test_what_is_allowed_is_counted() -> None:
    step = told(careful(bins=8, least_samples=36), scores=ScoreBins(bins=8))  # each client has 28 + 8
    assert np.sum(step.finish().scores) == 6 * 36
    assert ANYTHING.scores(ScoreBins(bins=4096, scale=1e-6)) is not None


def fewest_learned(limits: TrainingLimits) -> int:
    """From how few samples a server has a client of many learn, by several parameters that each are within
    their limits."""
    trainer, found = DeviceTrainer(None, lambda number: number, limits=limits), []  # type: ignore[arg-type]
    for most, rebuild, batch in product((0.0, 16.0, 17.0, 64.0), (0.0, 0.5, 0.6, 0.9), (1.0, 2.0, 8.0)):
        with suppress(Refused):
            local = trainer._local(
                {"max_samples": most, "rebuild": rebuild, "batch_size": batch, "rate": 0.1}
            )
            found.append(int(local.parts(np.array([20]))[1][0]))
    return min(found)


def test_parameters_within_their_limits_do_not_add_up_to_updates_of_single_samples() -> None:
    assert fewest_learned(TrainingLimits(least_learned=0)) == 1
    assert fewest_learned(TrainingLimits()) == 8


@pytest.mark.parametrize("asked", [{"max_samples": 1.0}, {"max_samples": 15.0}, {"rebuild": 0.99}])
def test_updates_of_single_samples_are_declined(asked: dict[str, float]) -> None:
    trainer = DeviceTrainer(None, lambda number: number)  # type: ignore[arg-type]
    trainer.require({"rate": 0.1, "max_samples": 16.0, "rebuild": 0.5})
    trainer.require({"rate": 0.1, "max_samples": 0.0})
    with pytest.raises(Refused, match=r"max_samples|rebuild"):
        trainer.require({"rate": 0.1} | asked)
