"""Every attack against every countermeasure of the paper's last appendix (spec privacy 8)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sfsl.arrays import Bits
from sfsl.errors import ParameterError
from sfsl.privacy.parameters import IndexPrivacy
from sfsl.privacy.response import Decoys, Perturber
from sfsl_research.audit.attacks import deduce, intersection, link_pseudonyms
from sfsl_research.audit.simulation import (
    TABLE,
    Fleet,
    Schedule,
    SeenRound,
    fixed_group,
    play,
    random_cohorts,
)


@dataclass(frozen=True)
class Success:
    """Claims (client, row) of one attack: how many, the share that is true, the share of truth found."""

    claims: int
    precision: float | None
    recall: float


@dataclass(frozen=True)
class AttackReport:
    """One countermeasure after so many rounds.

    ``intersection`` claims every row in all of a client's unions. ``proved`` claims only what unions and
    counts leave no doubt about; ``named`` adds the guess that any other row has one owner, where one client
    alone fits. ``possible``: clients per row not ruled out as owners. ``linked``: the share of later
    appearances under a pseudonym that the server put down to the right earlier ones.
    """

    countermeasure: str
    rounds: int
    intersection: Success
    proved: Success
    named: Success
    possible: float
    linked: float | None


@dataclass(frozen=True)
class Setting:
    """The simulated deployment that the attacks over rounds are tried on."""

    fleet: int = 300
    cohort: int = 100
    domain: int = 143_534
    set_size: int = 301
    skew: float = 0.6
    rounds: int = 10
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if not 2 <= self.cohort <= self.fleet:
            raise ParameterError(f"cannot take cohorts of {self.cohort} from a fleet of {self.fleet}")
        if self.rounds < 1 or not 0 <= self.dropout < 1:
            raise ParameterError("attacks need at least one round and a dropout that is a fraction below 1")


def attack_reports(
    setting: Setting,
    fleet: Fleet,
    privacy: IndexPrivacy,
    rng: np.random.Generator,
    *,
    checkpoints: Sequence[int],
    subject: type[Perturber] = Perturber,
    progress: Callable[[str], None] = lambda stage: None,
) -> list[AttackReport]:
    """Try every attack against every countermeasure, after each number of rounds in ``checkpoints``."""
    reports = []
    for trial in _trials(setting, privacy, rng):
        progress(trial.countermeasure)
        wide, rounds = play(fleet, trial.schedule, privacy, rng, subject)
        known_as = link_pseudonyms(rounds) if trial.pseudonyms else rounds
        for count in sorted({min(count, len(rounds)) for count in checkpoints}):
            reports.append(_report(trial, rounds[:count], known_as[:count], wide))
    return reports


@dataclass(frozen=True)
class _Trial:
    countermeasure: str
    schedule: Schedule
    pseudonyms: bool = False
    watched: int | None = None  # score only so many of the first clients


def _trials(setting: Setting, privacy: IndexPrivacy, rng: np.random.Generator) -> list[_Trial]:
    size, cohort, rounds = setting.fleet, setting.cohort, setting.rounds
    cohorts = random_cohorts(size, cohort, rounds, rng)
    following = random_cohorts(size, cohort, rounds, rng, always=1)
    # As many decoys as real rows, on average.
    draws = round(setting.set_size / privacy.p2) if privacy.p2 else 0
    decoys = Decoys(draws, {TABLE: setting.domain})
    return [
        _Trial("none", Schedule(cohorts)),
        _Trial("none, one client followed", Schedule(following), watched=1),
        _Trial("once per period", Schedule(cohorts[:1])),
        _Trial("once per period, same data", Schedule(cohorts, new_period_each_round=True)),
        _Trial("perturbed union input", Schedule(cohorts, decoys=decoys)),
        _Trial("fixed group", Schedule(fixed_group(cohort, rounds, 0, rng))),
        _Trial("fixed group, dropouts", Schedule(fixed_group(cohort, rounds, setting.dropout, rng))),
        _Trial("pseudonyms", Schedule(cohorts), pseudonyms=True),
    ]


def _report(
    trial: _Trial, rounds: Sequence[SeenRound], known_as: Sequence[SeenRound], fleet: Fleet
) -> AttackReport:
    """Attack under the names the server uses; score against the client who first bore each name."""
    true = np.concatenate([seen.members for seen in rounds])
    used = np.concatenate([seen.members for seen in known_as])
    clients = int(used.max()) + 1
    bearer = np.full(clients, -1)
    bearer[used[::-1]] = true[::-1]  # the first appearance is written last and stays
    name = np.full(int(true.max()) + 1, -1)
    name[true[::-1]] = used[::-1]
    owns = fleet.owns[bearer] & (bearer >= 0)[:, None]
    watched = slice(0, trial.watched)
    deduction = deduce(known_as, clients, unions_exact=trial.schedule.decoys is None)
    union = np.any([seen.union for seen in rounds], axis=0)
    again = np.ones(len(true), np.bool_)
    again[np.unique(true, return_index=True)[1]] = False
    linked = (name[true] == used)[again]
    return AttackReport(
        countermeasure=trial.countermeasure,
        rounds=len(rounds),
        intersection=_success(intersection(known_as, clients)[watched], owns[watched]),
        proved=_success(deduction.proved[watched], owns[watched]),
        named=_success(deduction.named[watched], owns[watched]),
        possible=float(deduction.possible[:, union].sum(axis=0).mean()),
        linked=float(linked.mean()) if trial.pseudonyms and len(linked) else None,
    )


def _success(claimed: Bits, owns: Bits) -> Success:
    hits, claims, truth = int((claimed & owns).sum()), int(claimed.sum()), int(owns.sum())
    return Success(claims, hits / claims if claims else None, hits / truth if truth else 0.0)
