"""From settings to the rules of rounds and the shape of their store: here, and nowhere else."""

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from sfsl.codec import Checked
from sfsl.crypto.secret import digest
from sfsl.errors import ParameterError
from sfsl.privacy.accounting import plan_noise
from sfsl.rounds.params import HotRules, RoundRules
from sfsl.service.members import ServiceSettings
from sfsl.settings.run import RunConfig
from sfsl.submodel import Averaging, ModelSpec, Quantization, ServerStep, StoreSpec, UpdateParams

# What a server is told in the same words, whatever carries its messages.
_WAITING = ("check_in_seconds", "phase_seconds", "training_seconds", "rounds")


def round_rules(config: RunConfig, *, active: bool = False, threshold: int | None = None) -> RoundRules:
    """Return the rules that a run file asks for; ``threshold`` None is a share of whoever is in a round."""
    one, server = config.round, config.server
    # What nobody asked for begins with the second pass, and nobody knows when that is.
    never = server.row_pull == server.row_pull_rounds == "auto"
    averaging = Averaging(weights=config.weights, kappa=server.kappa, max_move=_longest_move(config))
    rows, dense = (
        Quantization.finest(one.ring, cohort=one.clients, clip=one.clip, max_weight=weight)
        for weight in (averaging.largest_weight(config.row_samples), one.max_samples)
    )
    return RoundRules(
        update=UpdateParams(
            rows=rows,
            dense=dense,
            averaging=averaging,
            row_step=server_step(
                server.row_step,
                config.row_rate,
                math.sqrt(config.row_prior),
                0.0 if never else config.row_pull,
            ),
            dense_step=server_step(server.dense_step, config.dense_rate),
        ),
        training=lambda number: _hyperparameters(config, number),
        hot=hot_rules(config) if one.scheme == "hot" else None,
        min_contributors=1 if one.min_contributors == "auto" else one.min_contributors,
        kappa_rounds=server.kappa_rounds,
        row_halving=0 if server.row_halving == "auto" else server.row_halving,
        pull_rounds=0 if server.row_pull_rounds == "auto" else server.row_pull_rounds,
        threshold=threshold,
        encoding="whole" if one.scheme in ("sfl", "fl") else one.encoding,
        bins=config.hot.bins if one.scheme == "hot" else one.bins,
        precision=config.hot.precision if one.scheme == "hot" else one.precision,
        active=active,
    )


def _longest_move(config: RunConfig) -> float | None:
    """Return how far a row may move in a round. By heat, what one client of usual size moves a new row by is
    rate / sqrt(1 + prior) in each number; a tenth is added for those who are a little larger."""
    server = config.server
    if server.max_move != "auto":
        return server.max_move or None
    if server.row_step != "heat" or config.round.scheme not in ("sfsl", "fsl", "hot"):
        return None
    # Rows of 18 numbers and a bias. Not this model's width: a server of an app's own model knows no other.
    return 1.1 * config.row_rate * math.sqrt(19 / (1 + config.row_prior))


def hot_rules(config: RunConfig) -> HotRules:
    """Return how rounds over hot rows are planned. "auto" participations must be a number by now."""
    hot, privacy = config.hot, config.privacy
    if privacy.participations == "auto" or hot.surveys == "auto":
        raise ParameterError(
            'privacy.participations = "auto" and hot.surveys = "auto" are computed from how many clients '
            "there are, which is not known here; write the numbers of rounds"
        )
    noise = plan_noise(privacy.epsilon, privacy.delta, privacy.participations, survey_share=hot.survey_share)
    return HotRules(
        rho=noise.rho_train,
        survey_rho=noise.rho_survey,
        marks=hot.marks,
        surveys=hot.surveys,
        megabytes=hot.megabytes,
        corruption=privacy.corruption,
        clip=hot.clip,
        delta=privacy.delta,
    )


def service_settings(
    run: RunConfig, own: Checked, *, threshold: int | None, active: bool, **more: Any
) -> ServiceSettings:
    """Return a server's settings. ``run`` has numbers for "auto"; ``own`` (the section of its carrier) and
    ``more`` say what no run file does."""
    rules = round_rules(run, active=active, threshold=threshold)
    waiting = {name: getattr(own, name) for name in _WAITING}
    return ServiceSettings(rules, cohort=run.round.clients, **waiting, **more)


def _hyperparameters(config: RunConfig, number: int) -> Mapping[str, float]:
    """Return what clients are told about training in round ``number``; not what is off."""
    own = config.training
    told = {
        "rate": own.learning_rate * own.decay ** (number - 1),
        "batch_size": own.batch_size,
        "epochs": own.epochs,
        "clip": own.clip,
    }
    if own.max_samples:
        told["max_samples"] = own.max_samples
    if own.rebuild:
        told |= {
            "rebuild": own.rebuild,
            "rebuild_rate": own.rebuild_rate,
            "rebuild_epochs": own.rebuild_epochs,
        }
    return told


def store_spec(config: RunConfig, model: ModelSpec, *, devices: bool) -> StoreSpec:
    """Return the shape of the store; ``devices``: it also holds the personal rows of simulated clients."""
    return StoreSpec(
        model=model,
        seed=run_seed(config.run.seed),
        row_slots=_slots(config, config.server.row_step),
        dense_slots=_slots(config, config.server.dense_step),
        devices=devices,
    )


def run_seed(seed: int) -> bytes:
    """Return the seed of first values: the same in a simulation and in a deployment with this number."""
    return digest("seed of a run", str(seed).encode())


def _slots(config: RunConfig, kind: str) -> int:
    """Return how many numbers of optimizer state the store keeps for each parameter."""
    if config.round.scheme == "centralized":
        return 2 if config.centralized.optimizer == "adam" else 0
    return server_step(kind, 1.0).slots


def server_step(kind: str, rate: float, heat: float = 1.0, pull: float = 0.0) -> ServerStep:
    """Return a step of this kind. ``heat`` is the tau of a step by heat, ``pull`` its pull."""
    more = {"tau": heat, "pull": pull} if kind == "heat" else {}
    return msgspec.convert({"kind": kind, "rate": rate, **more}, ServerStep)
