"""Successive halving: when arms are compared, which go on, and what each of them cost."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import msgspec

from sfsl.scores import Evaluation

By = Literal["log_loss", "auc"]
DEFAULT = "default"
_MOST_HALVINGS = 3


class Cost(msgspec.Struct, frozen=True):
    """What an arm took: ``client_rounds`` are rounds times the clients in them. ``seconds`` of a pass that
    several arms share are divided among them, and include evaluations."""

    rounds: int = 0
    client_rounds: int = 0
    samples: int = 0
    seconds: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.rounds + other.rounds,
            self.client_rounds + other.client_rounds,
            self.samples + other.samples,
            self.seconds + other.seconds,
        )


class Point(msgspec.Struct, frozen=True):
    """What validation devices said after a round."""

    round: int
    found: Evaluation


class ArmState(msgspec.Struct, frozen=True):
    """How far an arm came. ``dropped``: the rung, as its last round, after which it did not go on; ``test``:
    what test devices say about its best round, known once the arm has ended."""

    points: tuple[Point, ...] = ()
    cost: Cost = Cost()
    dropped: int | None = None
    test: Evaluation | None = None

    def with_point(self, number: int, found: Evaluation) -> "ArmState":
        return msgspec.structs.replace(
            self, points=(*self.points, Point(number, replace(found, calibration=())))
        )

    def best(self, by: By) -> Point | None:
        """Return the best round so far, the first of equals."""
        return max(self.points, key=lambda one: worth(one.found, by), default=None)


def worth(found: Evaluation, by: By) -> float:
    """Return a number that is larger for a better model; one without figures, as if it diverged, is worst."""
    if by == "auc":
        return -math.inf if found.auc is None else found.auc
    return -math.inf if found.log_loss is None else -found.log_loss


def plan_rungs(rounds: int, arms: int) -> list[int]:
    """Return the rounds after which arms are compared: an eighth, a quarter, half and all of them for sixteen
    arms, and fewer for fewer arms."""
    halvings = max(1, min(_MOST_HALVINGS, int(math.log2(arms)) - 1))
    return sorted({-(-rounds // 2**halving) for halving in range(halvings + 1)})


def ordered(arms: Mapping[str, ArmState], by: By) -> list[str]:
    """Name the arms, the best first; the default comes before its equals, others stay in their order."""

    def place(name: str) -> tuple[float, bool]:
        point = arms[name].best(by)
        return (-worth(point.found, by) if point else math.inf), name != DEFAULT

    return sorted(arms, key=place)


def keep_half(arms: Mapping[str, ArmState], by: By) -> list[str]:
    """Name the arms that go on: the better half, and the default, which is there until the end. So whatever
    is chosen is no worse than the default by what validation devices say."""
    best = ordered(arms, by)
    kept = best[: -(-len(best) // 2)]
    return [name for name in arms if name in kept or name == DEFAULT]


def total(costs: Sequence[Cost]) -> Cost:
    return sum(costs, Cost())
