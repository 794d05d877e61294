"""Settings of simulations for tests, from flat keywords: those of the rules, and those of the simulation."""

from dataclasses import fields
from typing import Any

from sfsl.rounds.params import RoundRules
from sfsl.simulate.settings import SimulationSettings


def simulation_of(**given: Any) -> SimulationSettings:
    names = {field.name for field in fields(RoundRules)}
    rules = {name: value for name, value in given.items() if name in names}
    local = given["local"]
    rules.setdefault("training", lambda number: {"rate": local.rate(number - 1)})
    rest = {name: value for name, value in given.items() if name not in names}
    return SimulationSettings(RoundRules(**rules), **rest)
