"""Who did how well: regrets against the best centralized training, and the choice of a default by them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite

import msgspec

from sfsl.errors import InputError
from sfsl_research.worlds.arms import CENTRALIZED, DEFAULT, FL, family_of
from sfsl_research.worlds.trial import Outcome

# Scores that are not finite are worth a coin's toss.
_TOSS = 0.5
# What a default may lose against centralized training.
ALLOWED = 0.02


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """An arm in a world, as means over seeds; of a family, each seed's best arm by its best AUC.

    ``auc`` is the best of an arm's evaluations and ``log_loss`` the model's at that moment, the ``last`` ones
    those at its end. ``regret`` is what ``auc`` lacks to that of centralized training at its best rate and
    moment, ``worst_regret`` the largest of any seed. What is not defined is None.
    """

    world: str
    arm: str
    seeds: int
    auc: float
    last_auc: float
    regret: float
    last_regret: float
    worst_regret: float
    log_loss: float | None
    last_log_loss: float | None
    base_log_loss: float | None
    popularity_auc: float | None
    popularity_log_loss: float | None
    failed: int


class LeftOut(msgspec.Struct, frozen=True):
    """The candidate that the other worlds choose, by its worst regret there, and its regret in this one."""

    world: str
    chosen: str
    worst_elsewhere: float
    regret: float


def standings_of(outcomes: Iterable[Outcome]) -> list[Standing]:
    """Return every family of arms in every world. Seeds without centralized training have no regret, and
    do not count."""
    best: dict[tuple[str, str], dict[int, Outcome]] = defaultdict(dict)
    for one in outcomes:
        of = best[one.world, family_of(one.arm)]
        if one.seed not in of or best_auc(one) > best_auc(of[one.seed]):
            of[one.seed] = one
    found = []
    for (world, family), by_seed in best.items():
        central = best.get((world, CENTRALIZED), {})
        if shared := [seed for seed in sorted(by_seed) if seed in central]:
            yardstick = {seed: best_auc(central[seed]) for seed in shared}
            found.append(_standing(world, family, {seed: by_seed[seed] for seed in shared}, yardstick))
    return found


def best_auc(outcome: Outcome) -> float:
    return max((_TOSS if one.auc is None else one.auc for one in outcome.points), default=_TOSS)


def _standing(
    world: str, family: str, by_seed: Mapping[int, Outcome], yardstick: Mapping[int, float]
) -> Standing:
    outcomes = list(by_seed.values())
    auc = [best_auc(one) for one in outcomes]
    last = [one.points[-1].auc or _TOSS if one.points and not one.failed else _TOSS for one in outcomes]
    regret = [most - own for most, own in zip(yardstick.values(), auc, strict=True)]
    at_best = [max(one.points, key=lambda point: point.auc or 0.0, default=None) for one in outcomes]
    return Standing(
        world=world,
        arm=family,
        seeds=len(outcomes),
        auc=_mean(auc),
        last_auc=_mean(last),
        regret=_mean(regret),
        last_regret=_mean([most - own for most, own in zip(yardstick.values(), last, strict=True)]),
        worst_regret=max(regret),
        log_loss=_mean_known([None if one is None else one.log_loss for one in at_best]),
        last_log_loss=_mean_known([one.points[-1].log_loss if one.points else None for one in outcomes]),
        base_log_loss=_mean_known([one.base_log_loss for one in outcomes]),
        popularity_auc=_mean_known([one.popularity_auc for one in outcomes]),
        popularity_log_loss=_mean_known([one.popularity_log_loss for one in outcomes]),
        failed=sum(one.failed is not None for one in outcomes),
    )


def shortcomings(standings: Sequence[Standing], arm: str = DEFAULT) -> dict[str, list[str]]:
    """Say for each world what an arm lacks of what a default must hold; nothing where it holds."""
    fl = {one.world: one.auc for one in standings if one.arm == FL}
    found = {}
    for one in standings:
        if one.arm != arm:
            continue
        lacks = []
        if one.regret > ALLOWED:
            lacks.append(f"{one.regret:.3f} below centralized")
        if one.world in fl and one.auc < fl[one.world]:
            lacks.append(f"{fl[one.world] - one.auc:.3f} below fl")
        for name, bound in (("base rate", one.base_log_loss), ("popularity", one.popularity_log_loss)):
            if bound is not None and (one.log_loss is None or one.log_loss >= bound):
                lacks.append(f"log loss not below that of the {name}")
        found[one.world] = lacks
    return found


def leave_one_out(standings: Sequence[Standing], candidates: Sequence[str]) -> list[LeftOut]:
    """Choose, for each world, the candidate with the least worst regret in all others."""
    regret = {(one.world, one.arm): one.regret for one in standings}
    worlds = list(dict.fromkeys(one.world for one in standings))
    if len(worlds) < 2:
        raise InputError("leaving a world out takes at least two worlds")
    for world in worlds:
        if lacking := [name for name in candidates if (world, name) not in regret]:
            raise InputError(f"{lacking[0]} was not trained in {world}; run the benchmark to its end first")
    found = []
    for left_out in worlds:
        worst = {
            name: max(regret[world, name] for world in worlds if world != left_out) for name in candidates
        }
        chosen = min(candidates, key=lambda name: worst[name])
        found.append(LeftOut(left_out, chosen, worst[chosen], regret[left_out, chosen]))
    return found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _mean_known(values: Sequence[float | None]) -> float | None:
    known = [one for one in values if one is not None and isfinite(one)]
    return _mean(known) if known else None
