"""Index privacy: randomized response with durable memory, exact accounting and tuning. And noise for sums:
a sampler, what it costs, and the same memory for what was spent.

A deployed client goes through ``ClientState``; a ``Perturber`` alone keeps no ledger. The attacks on all this
are ``sfsl_research.audit``.
"""

from sfsl.privacy.accounting import (
    NoisePlan,
    deviation_for,
    epsilon_of,
    honest_survivors,
    plan_noise,
    rho_for,
    rho_of,
)
from sfsl.privacy.ledger import Budget, Calendar, ClosedPeriod, Ledger, PeriodSelection, choose_uniformly
from sfsl.privacy.noise import DiscreteGaussian
from sfsl.privacy.parameters import (
    PAPER_OWNERS,
    PRESETS,
    Events,
    IndexPrivacy,
    Tuned,
    Workload,
    cohort_events,
    frontier,
    owner_distribution,
    tune,
)
from sfsl.privacy.response import Decoys, Perturber, Tables
from sfsl.privacy.state import ClientState

__all__ = [
    "PAPER_OWNERS", "PRESETS", "Budget", "Calendar", "ClientState", "ClosedPeriod", "Decoys",
    "DiscreteGaussian", "Events", "IndexPrivacy", "Ledger", "NoisePlan", "PeriodSelection", "Perturber",
    "Tables", "Tuned", "Workload", "choose_uniformly", "cohort_events", "deviation_for", "epsilon_of",
    "frontier", "honest_survivors", "owner_distribution", "plan_noise", "rho_for", "rho_of", "tune",
]  # fmt: skip
