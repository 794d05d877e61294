"""What a simulation is given besides the rules of its rounds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sfsl.errors import ParameterError
from sfsl.privacy import IndexPrivacy
from sfsl.rounds.plan import RoundRules
from sfsl.simulate.faults import FaultPlan
from sfsl.training import LocalSettings

# How the sums are made: on the real protocol, or in the open, which is for experiments only.
Sums = Literal["masked", "plain"]


@dataclass(frozen=True)
class SimulationSettings:
    """What stays the same from round to round. ``privacy`` is each client's own choice.

    After every ``period`` rounds devices draw their permanent answers anew; 0 means never. ``max_rows`` is
    the largest submodel a client accepts. A round has ``cohorts``, each with keys, a union and sums of its
    own. ``together``: clients that train in one pass; which ones they are depends on nothing else, so that
    every carrier makes the same model bit for bit.
    """

    rules: RoundRules
    local: LocalSettings
    privacy: Mapping[str, IndexPrivacy]
    sums: Sums = "masked"
    period: int = 0
    max_rows: int = 2**32
    cohorts: int = 1
    together: int = 50
    faults: FaultPlan = field(default_factory=FaultPlan)

    def __post_init__(self) -> None:
        whole = self.rules.encoding == "whole"
        if whole and any(min(one.p5, one.p6) < 1 for one in {*self.privacy.values()}):
            raise ParameterError("with the full model everyone asks for every row: all probabilities are 1")
