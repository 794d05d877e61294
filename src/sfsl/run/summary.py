"""What a run came to: learning, costs per client and round, privacy, and full-model secure FL beside it."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Literal

import msgspec

from sfsl.correction import Correction
from sfsl.errors import NotFinite
from sfsl.privacy import PRESETS, IndexPrivacy
from sfsl.privacy.accounting import epsilon_of
from sfsl.rounds.exchanges import Exchange
from sfsl.rounds.record import RoundRecord
from sfsl.scores import CalibrationBin, Evaluation, unbeaten, verdict
from sfsl.service.driver import Kept
from sfsl.settings.rounds import hot_rules
from sfsl.settings.run import RunConfig
from sfsl.submodel import ModelSpec

WORD_BYTES = 4
# What secure aggregation of a full model would send as well: keys and shares, by exchange.
KEYS_UP = (Exchange.CHECK_IN, Exchange.INVITATION, Exchange.UNMASK_UPDATE)
KEYS_DOWN = (Exchange.INVITATION, Exchange.INBOUND, Exchange.UNMASK_UPDATE)
MODEL_EXCHANGE = Exchange.SUBMODEL

ByExchange = dict[str, float]


class Learning(msgspec.Struct, frozen=True):
    """AUCs and log losses with the round after which they were measured; None where there was none.
    ``auc_secure`` is at most ``auc_secure_error`` from that of the scores themselves. ``ndcg`` and ``recall``
    are of the first ten, measured with ``auc``. What is secure is explained by ``RoundRecord``."""

    auc: float | None
    auc_round: int | None
    auc_best: float | None
    auc_best_round: int | None
    auc_secure: float | None
    auc_secure_round: int | None
    auc_secure_error: float | None
    loss: float | None
    log_loss: float | None = None
    log_loss_best: float | None = None
    log_loss_best_round: int | None = None
    ndcg: float | None = None
    recall: float | None = None
    log_loss_secure: float | None = None
    log_loss_secure_error: float | None = None
    base_log_loss_secure: float | None = None


class BaseRate(msgspec.Struct, frozen=True):
    """What it is worth on the test set to say always the training samples' click rate."""

    rate: float | None
    log_loss: float | None


class Popularity(msgspec.Struct, frozen=True):
    """What it is worth on the test set to know of each item its click rate among training samples, smoothed
    by ten samples at the base rate."""

    auc: float | None
    log_loss: float | None
    ndcg: float | None
    recall: float | None


class BaselineFigures(msgspec.Struct, frozen=True):
    base_rate: BaseRate
    popularity: Popularity


class Costs(msgspec.Struct, frozen=True):
    """Means over rounds that were not aborted: per client and exchange, and the server's by exchange.

    ``training_seconds_per_client`` is wall time: a cohort trains in one process. None where there was no
    such round, or nobody to divide by.
    """

    bytes_up: ByExchange
    bytes_down: ByExchange
    client_seconds: ByExchange
    server_seconds: ByExchange
    training_seconds_per_client: float | None
    wall_seconds_per_round: float | None
    peak_memory_bytes: int


class Predicted(msgspec.Struct, frozen=True):
    """Bytes of a client in a round with masked sums, by exchange, as the plan has them: where plain sums
    stand in for masked ones, none are measured."""

    bytes_up: ByExchange
    bytes_down: ByExchange


class Privacy(msgspec.Struct, frozen=True):
    """``rounds_at_most`` and ``exposures_at_most`` are those of the client invited most often. In a mix
    of choices the probabilities are those of the least private.

    An exposure is a round whose union and sums may have been opened. ``epsilon`` is exact for the answers
    of so many rounds about one row; None stands for infinity. It covers neither unions nor sums.
    """

    preset: str
    p1: float
    p2: float
    p3: float
    p4: float
    rounds_at_most: int
    epsilon: float | None
    epsilon_infinity: float | None
    exposures_at_most: int
    clients_exposed: int
    min_contributors: int


class HotPrivacy(msgspec.Struct, frozen=True):
    """User-level differential privacy of everything that left clients of rounds over hot rows: ``epsilon`` at
    ``delta`` is that of whoever has spent most by now, ``epsilon_allowed`` what the noise was made for. None
    stands for infinity: no noise. It holds against a curious server with which at most the share
    ``corruption`` of a cohort colludes. ``hot_rows`` are those that are trained together, by table."""

    epsilon: float | None
    delta: float
    epsilon_allowed: float | None
    rho_survey: float | None
    rho_round: float | None
    participations: int
    rounds_at_most: int
    clients_exposed: int
    corruption: float
    hot_rows: dict[str, int]


class FullModel(msgspec.Struct, frozen=True):
    """What secure FL of the whole model would take with the same cohort and keys; computed, not run.

    Seconds are those of masking alone, at the speed measured here: a client masks every parameter with
    every other client, the server removes one mask per client, and of each client that vanished before its
    update all it shared; None where no cohort finished a round. Memory: the model, an update and its words;
    at the server, one sum.
    """

    parameters: int
    bytes_up: ByExchange
    bytes_down: ByExchange
    client_seconds: float | None
    server_seconds: float | None
    client_memory_bytes: int
    server_memory_bytes: int


class Best(msgspec.Struct, frozen=True):
    """The model that is exported: of which round, and what it is worth to the test set and to validation
    devices, by which it was chosen, under the correction that these fit."""

    round: int
    auc: float | None
    log_loss: float | None
    auc_valid: float | None
    log_loss_valid: float | None
    correction: Correction | None


class Summary(msgspec.Struct, frozen=True):
    """``sums``: ``masked``, or ``plain`` where plain ones stand in for them, or ``none``. ``privacy`` is
    None where the scheme has none. ``unknown_rows``: rows that clients' data named and the model lacks.
    ``refused_rows``: rows whose sum no honest cohort can make, and which did not move; a dense part counts
    as one. ``baselines`` are None and ``calibration`` is empty where scores are no chances, or nothing was
    evaluated; ``verdict`` says in a sentence whether the model beats the baselines. ``best`` is None where no
    devices were there to choose a model; then the last is exported. ``calibration``, ``verdict`` and
    ``beats_baselines`` are of the model that is exported. ``stopped`` says why there are fewer rounds than
    planned: "patience", the privacy "budget" of the clients is spent, or somebody "asked" for it.
    ``hot_privacy`` is there instead of ``privacy`` for rounds over hot rows. ``predicted`` has the bytes that
    plain sums stand in for.
    """

    scheme: str
    sums: str
    complete: bool
    rounds: int
    rounds_planned: int
    aborted: int
    clients_per_round: int
    clients: int
    dropped: int
    late: int
    declined: dict[str, int]
    diverged: int
    unknown_rows: int
    refused_rows: int
    data_problems: dict[str, int]
    learning: Learning
    costs: Costs
    privacy: Privacy | None
    full_model: FullModel
    baselines: BaselineFigures | None = None
    calibration: tuple[CalibrationBin, ...] = ()
    verdict: str = ""
    beats_baselines: bool | None = None
    best: Best | None = None
    stopped: Literal["patience", "budget", "asked"] | None = None
    hot_privacy: HotPrivacy | None = None
    predicted: Predicted | None = None


def summarize(
    config: RunConfig,
    model: ModelSpec,
    lines: Sequence[RoundRecord],
    *,
    clients: int,
    invited: Mapping[str, int],
    data_problems: Mapping[str, int],
    peak_memory: int,
    mask_seconds: float,
    evaluation: Evaluation | None = None,
    best: RoundRecord | None = None,
    out_of_patience: bool = False,
    out_of_budget: bool = False,
    kept: Kept | None = None,
    predicted: Predicted | None = None,
) -> Summary:
    """``invited``: to how many rounds, by client. ``mask_seconds``: CPU time for one word of a mask.
    ``evaluation``: that of the model that is exported. ``best``: the line of the best round, if one was
    chosen. ``kept`` has what clients of hot rows have spent."""
    learning, baselines, complete = _learning(lines), _baselines(evaluation), len(lines) >= config.run.rounds
    exported = best.round if best else learning.auc_round or len(lines)
    done = [line for line in lines if line.aborted is None and not line.lost]
    costs = _costs(done, peak_memory)
    return Summary(
        scheme=config.round.scheme,
        sums="masked" if config.round.masked else "plain" if config.round.stands_in else "none",
        complete=complete,
        rounds=len(lines),
        rounds_planned=config.run.rounds,
        aborted=sum(line.aborted is not None for line in lines),
        clients_per_round=config.round.all_clients,
        clients=clients,
        dropped=sum(sum(line.dropped.values()) for line in lines),
        late=sum(line.late for line in lines),
        declined=_total([line.declined for line in lines]),
        diverged=sum(line.diverged for line in lines),
        unknown_rows=sum(line.unknown_rows for line in lines),
        refused_rows=sum(sum(line.refused.values()) for line in lines),
        data_problems=dict(data_problems),
        learning=learning,
        costs=costs,
        privacy=_privacy(config, invited) if config.round.scheme in ("sfsl", "sfl") else None,
        hot_privacy=_hot_privacy(config, model, invited, kept) if config.round.scheme == "hot" else None,
        predicted=predicted,
        full_model=_full_model(model, costs, done, mask_seconds),
        baselines=baselines,
        calibration=evaluation.calibration if evaluation else (),
        verdict=verdict(evaluation, exported, of=len(lines) if best else 0) if evaluation else "",
        beats_baselines=None if baselines is None or evaluation is None else not unbeaten(evaluation),
        best=None if best is None else Best(**{key: getattr(best, key) for key in Best.__struct_fields__}),
        stopped=None if complete else _stopped(out_of_patience, out_of_budget),
    )


def _stopped(out_of_patience: bool, out_of_budget: bool) -> Literal["patience", "budget", "asked"]:
    return "patience" if out_of_patience else "budget" if out_of_budget else "asked"


def _baselines(found: Evaluation | None) -> BaselineFigures | None:
    if found is None or found.base_rate is None:
        return None
    popular = found.popularity_auc, found.popularity_log_loss, found.popularity_ndcg, found.popularity_recall
    return BaselineFigures(BaseRate(found.base_rate, found.base_log_loss), Popularity(*popular))


def _learning(lines: Sequence[RoundRecord]) -> Learning:
    central = [(line.auc, line.round) for line in lines if line.auc is not None]
    secure = [line for line in lines if line.auc_secure is not None]
    losses = [line.loss for line in lines if line.loss is not None]
    last = central[-1] if central else (None, None)
    best = max(central) if central else (None, None)
    cohort = secure[-1] if secure else None
    losses_held = [(line.log_loss, line.round) for line in lines if line.log_loss is not None]
    least = min(losses_held, default=(None, None))
    ranked = next((line for line in reversed(lines) if line.ndcg is not None), None)
    summed = next((line for line in reversed(lines) if line.log_loss_secure is not None), None)
    return Learning(
        auc=last[0],
        auc_round=last[1],
        auc_best=best[0],
        auc_best_round=best[1],
        auc_secure_round=cohort.round if cohort else None,
        loss=losses[-1] if losses else None,
        log_loss=losses_held[-1][0] if losses_held else None,
        log_loss_best=least[0],
        log_loss_best_round=least[1],
        **_of(cohort, "auc_secure", "auc_secure_error"),
        **_of(ranked, "ndcg", "recall"),
        **_of(summed, "log_loss_secure", "log_loss_secure_error", "base_log_loss_secure"),
    )


def _of(line: RoundRecord | None, *names: str) -> dict[str, float | None]:
    """Return these figures of a round; None of each where there is no such round."""
    return {name: getattr(line, name, None) for name in names}


def _costs(done: Sequence[RoundRecord], peak_memory: int) -> Costs:
    trained = [line.training_seconds / _trainers(line) for line in done if _trainers(line)]
    return Costs(
        bytes_up=_mean([line.bytes_up for line in done]),
        bytes_down=_mean([line.bytes_down for line in done]),
        client_seconds=_mean([line.client_seconds for line in done]),
        server_seconds=_mean([line.server_seconds for line in done]),
        training_seconds_per_client=fmean(trained) if trained else None,
        wall_seconds_per_round=fmean(line.wall_seconds for line in done) if done else None,
        peak_memory_bytes=peak_memory,
    )


def _trainers(line: RoundRecord) -> int:
    """Clients that trained: those in the sum, and those whose update was not fit for it.

    Who vanishes at the submodel does so before training; who vanishes later is in the sum. Who trained and
    sent it too late is not counted: a line does not say which exchange the late ones were in.
    """
    return line.survivors + line.declined.get(NotFinite.__name__, 0)


def _privacy(config: RunConfig, invited: Mapping[str, int]) -> Privacy:
    full = config.round.scheme == "sfl"
    privacy: IndexPrivacy = PRESETS["cpp5"] if full else config.privacy.index_privacy
    most = max(invited.values(), default=0)
    # In a period of its own each round is answered anew, and epsilons add up.
    epsilon = most * privacy.epsilon(1) if config.run.period and most else privacy.epsilon(most)
    contributors = config.round.min_contributors
    return Privacy(
        "every row" if full else config.privacy.name,
        *(privacy.p1, privacy.p2, privacy.p3, privacy.p4),
        rounds_at_most=most,
        epsilon=_finite(epsilon),
        epsilon_infinity=_finite(privacy.epsilon_infinity),
        exposures_at_most=most,
        clients_exposed=len(invited),
        min_contributors=0 if contributors == "auto" else contributors,
    )


def _hot_privacy(
    config: RunConfig, model: ModelSpec, invited: Mapping[str, int], kept: Kept | None
) -> HotPrivacy:
    rules, privacy, kept = hot_rules(config), config.privacy, kept or Kept()
    hot = kept.hot.hot_set()
    assert privacy.participations != "auto"  # noqa: S101 -- hot_rules has seen to it
    return HotPrivacy(
        epsilon=_finite(epsilon_of(max(kept.spent.values(), default=0.0), privacy.delta)),
        delta=privacy.delta,
        epsilon_allowed=_finite(privacy.epsilon),
        rho_survey=_finite(rules.survey_rho),
        rho_round=_finite(rules.rho),
        participations=privacy.participations,
        rounds_at_most=max(invited.values(), default=0),
        clients_exposed=len(invited),
        corruption=privacy.corruption,
        hot_rows={} if hot is None else {name: len(rows) for name, rows in hot.sets(model).items()},
    )


def _full_model(
    model: ModelSpec, costs: Costs, done: Sequence[RoundRecord], mask_seconds: float
) -> FullModel:
    """Every parameter down and up in 4-byte words, as the paper counts it, and the keys' traffic."""
    parameters = model.dense + sum(table.rows * table.width for table in model.tables)
    words = float(WORD_BYTES * parameters)
    up: ByExchange = {name: costs.bytes_up.get(name, 0.0) for name in KEYS_UP}
    down: ByExchange = {name: costs.bytes_down.get(name, 0.0) for name in KEYS_DOWN}
    rounds = max(1, len(done))
    clients = sum(line.cohort for line in done) / rounds
    lost = sum(line.dropped.get(MODEL_EXCHANGE, 0) * line.survivors for line in done) / rounds
    survivors = sum(line.survivors for line in done) / rounds
    masked = parameters * mask_seconds
    return FullModel(
        parameters,
        up | {MODEL_EXCHANGE: words},
        down | {MODEL_EXCHANGE: words},
        client_seconds=clients * masked if clients else None,
        server_seconds=(survivors + lost) * masked if clients else None,
        client_memory_bytes=round(3 * words),
        server_memory_bytes=round(2 * words),
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _total(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    names = dict.fromkeys(name for one in counts for name in one)
    return {name: sum(one.get(name, 0) for one in counts) for name in names}


def _mean(costs: Sequence[Mapping[str, float]]) -> ByExchange:
    names = dict.fromkeys(name for one in costs for name in one)
    return {name: sum(one.get(name, 0.0) for one in costs) / len(costs) for name in names}
