"""Index privacy: randomized response with durable memory, exact accounting, tuning and an audit.

A deployed client goes through ``ClientState``; a ``Perturber`` alone keeps no ledger.
"""

from sfsl.privacy.accounting import Events, owner_distribution
from sfsl.privacy.audit import Audit, audit
from sfsl.privacy.countermeasures import AttackReport, Setting
from sfsl.privacy.estimation import EpsilonBound, EventFrequency
from sfsl.privacy.ledger import Budget, ClosedPeriod, Ledger
from sfsl.privacy.parameters import PAPER_OWNERS, PRESETS, IndexPrivacy, cohort_events
from sfsl.privacy.period import Calendar
from sfsl.privacy.response import Decoys, Perturber
from sfsl.privacy.selection import PeriodSelection, choose_uniformly
from sfsl.privacy.state import ClientState
from sfsl.privacy.tables import Tables
from sfsl.privacy.tuning import Tuned, Workload, frontier, tune

__all__ = [
    "PAPER_OWNERS",
    "PRESETS",
    "AttackReport",
    "Audit",
    "Budget",
    "Calendar",
    "ClientState",
    "ClosedPeriod",
    "Decoys",
    "EpsilonBound",
    "EventFrequency",
    "Events",
    "IndexPrivacy",
    "Ledger",
    "PeriodSelection",
    "Perturber",
    "Setting",
    "Tables",
    "Tuned",
    "Workload",
    "audit",
    "choose_uniformly",
    "cohort_events",
    "frontier",
    "owner_distribution",
    "tune",
]
