"""What a round will take, before anything runs: bytes, CPU seconds, memory, epsilon, rows lost."""

from sfsl.plan.plan import Plan, make_plan, rounds_per_day
from sfsl.plan.settings import (
    DerivedLoad,
    Load,
    PlanSettings,
    SharedLoad,
    derived_load,
    measured_loads,
    shared_load,
)

__all__ = [
    "DerivedLoad", "Load", "Plan", "PlanSettings", "SharedLoad", "derived_load", "make_plan",
    "measured_loads", "rounds_per_day", "shared_load",
]  # fmt: skip
