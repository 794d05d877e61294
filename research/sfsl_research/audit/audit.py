"""Attacks our own output: does it keep to the epsilon it claims, and what does epsilon not cover?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sfsl.privacy.parameters import IndexPrivacy
from sfsl.privacy.response import Perturber
from sfsl_research.audit.countermeasures import AttackReport, Setting, attack_reports
from sfsl_research.audit.estimation import EpsilonBound, EventFrequency, epsilon_bounds, event_frequencies
from sfsl_research.audit.simulation import Schedule, make_fleet, play, random_cohorts


@dataclass(frozen=True)
class Audit:
    """What an audit found. ``violated``: the answers are not what the accounting says they are."""

    privacy: IndexPrivacy
    bounds: list[EpsilonBound]
    events: list[EventFrequency]
    single_owner: float
    mean_owners: float
    attacks: list[AttackReport]

    @property
    def violated(self) -> bool:
        return any(bound.violated for bound in self.bounds) or any(event.unexpected for event in self.events)


def audit(
    privacy: IndexPrivacy,
    setting: Setting,
    *,
    rounds: Sequence[int],
    trials: int,
    confidence: float,
    seed: int,
    subject: type[Perturber] = Perturber,
    progress: Callable[[str], None] = lambda stage: None,
) -> Audit:
    """Estimate epsilon and event frequencies, and try the attacks after each number of rounds.

    A sound subject is reported as violated with probability below 2 * (1 - confidence).
    """
    rng = np.random.default_rng(seed)
    progress("epsilon from below")
    bounds = epsilon_bounds(privacy, rounds, trials=trials, confidence=confidence, rng=rng, subject=subject)
    progress("events 1 and 2")
    fleet = make_fleet(setting.fleet, setting.domain, setting.set_size, setting.skew, rng)
    cohort = random_cohorts(setting.fleet, setting.cohort, 1, rng)
    _, (seen,) = play(fleet, Schedule(cohort), privacy, rng, subject)
    owners = fleet.owns[seen.members].sum(axis=0)[seen.union]
    attacks = attack_reports(
        setting, fleet, privacy, rng, checkpoints=rounds, subject=subject, progress=progress
    )
    return Audit(
        privacy=privacy,
        bounds=bounds,
        events=event_frequencies(privacy, seen, fleet, confidence),
        single_owner=float((owners == 1).mean()),
        mean_owners=float(owners.mean()),
        attacks=attacks,
    )
