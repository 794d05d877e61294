"""The rules of a deployment's or a simulation's rounds, and the only builder of a round's parameters."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from sfsl.rounds.params import IndexSpace, RoundParams, ScoreBins
from sfsl.secagg import SessionParams, default_threshold
from sfsl.submodel import ModelSpec, UpdateParams
from sfsl.union import UnionParams, choose, planned_capacity


@dataclass(frozen=True)
class RoundRules:
    """What stays the same from round to round, whoever carries it.

    Over the first ``kappa_rounds`` rounds the floor of averages rises from 1 to the update's kappa: at the
    start there is nothing yet to hold back. ``training`` gives the clients' hyperparameters by the number of
    the round. ``threshold`` None is a little over two thirds of whoever is in a round. ``encoding`` is that
    of the union; ``whole`` makes it the full model. ``bins`` 0 leaves the secure evaluation out.
    """

    update: UpdateParams
    training: Callable[[int], Mapping[str, float]]
    min_contributors: int
    kappa_rounds: int = 0
    threshold: int | None = None
    encoding: str = "auto"
    bins: int = 256
    precision: Literal["float32", "float16"] = "float32"
    active: bool = False

    def update_in(self, number: int) -> UpdateParams:
        """Return the parameters of the update in round ``number``, counted from 1."""
        averaging = self.update.averaging
        if number > self.kappa_rounds:
            return self.update
        kappa = 1 + (averaging.kappa - 1) * (number - 1) / self.kappa_rounds
        return msgspec.structs.replace(self.update, averaging=msgspec.structs.replace(averaging, kappa=kappa))

    def threshold_of(self, clients: int) -> int:
        """Return how many of so many clients must last through a round."""
        least = default_threshold(clients)
        if self.threshold is None:
            return least
        return max(self.threshold, least) if self.active else self.threshold

    def score_bins(self, kept: ScoreBins | None) -> ScoreBins | None:
        """Return the bins of the next round: those that were kept, unless the rules want another number."""
        if not self.bins:
            return None
        return kept if kept is not None and kept.bins == self.bins else ScoreBins(bins=self.bins)


def plan_round(
    rules: RoundRules,
    model: ModelSpec,
    *,
    number: int,
    clients: int,
    largest_set: int,
    seed: bytes,
    scores: ScoreBins | None,
) -> RoundParams:
    """Plan round ``number`` for so many clients, none of which brings more than ``largest_set`` rows.

    ``seed`` is public randomness for the union's hash functions; ``scores`` the bins that the last round
    left.
    """
    domain = IndexSpace(model).domain
    capacity = planned_capacity(domain, clients, largest_set)
    union = UnionParams(
        domain=domain,
        encoding=choose(rules.encoding, domain, capacity, seed).name,  # type: ignore[arg-type]
        capacity=capacity,
        seed=seed,
    )
    return RoundParams(
        number=number,
        model=model,
        union=union,
        update=rules.update_in(number),
        min_contributors=rules.min_contributors,
        training=dict(rules.training(number)),
        precision=rules.precision,
        scores=rules.score_bins(scores),
    )


def plan_session(
    rules: RoundRules, params: RoundParams, *, clients: int, round_id: bytes, threshold: int | None = None
) -> SessionParams:
    """Plan the session of a round for the clients that checked in; ``threshold`` None follows the rules."""
    return SessionParams(
        round_id=round_id,
        clients=clients,
        threshold=rules.threshold_of(clients) if threshold is None else threshold,
        neighbours=None,
        active=rules.active,
        sums=params.sums(),
    )
