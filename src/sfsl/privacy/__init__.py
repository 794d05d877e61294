"""Index privacy: randomized response with durable memory, exact accounting and tuning.

A deployed client goes through ``ClientState``; a ``Perturber`` alone keeps no ledger. The attacks on all this
are ``sfsl_research.audit``.
"""

from sfsl.privacy.ledger import Budget, Calendar, ClosedPeriod, Ledger, PeriodSelection, choose_uniformly
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
    "PAPER_OWNERS", "PRESETS", "Budget", "Calendar", "ClientState", "ClosedPeriod", "Decoys", "Events",
    "IndexPrivacy", "Ledger", "PeriodSelection", "Perturber", "Tables", "Tuned", "Workload",
    "choose_uniformly", "cohort_events", "frontier", "owner_distribution", "tune",
]  # fmt: skip
