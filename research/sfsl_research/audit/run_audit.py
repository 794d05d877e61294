"""Audits a run or a data set: what is claimed, what attacks on its own rounds find, and whether that fits."""

import datetime
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from sfsl.bundle.versions import versions
from sfsl.privacy.accounting import epsilon_of
from sfsl.rounds.hot_server import honest_of
from sfsl.run.fleet import Fleet, build_fleet, scheme_privacy
from sfsl.run.folder import RunFolder
from sfsl.run.setup import resolved
from sfsl.run.start import with_whole_path
from sfsl.settings.rounds import round_rules, store_spec
from sfsl.settings.run import RunConfig
from sfsl.submodel import LmdbStore, MemoryStore, RowStore
from sfsl_research.audit.estimation import EpsilonBound, epsilon_bounds
from sfsl_research.audit.hot_canaries import HotCanary, audit_hot_rounds
from sfsl_research.audit.owners import Linking, attack_owners

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Claim:
    """What is claimed, in the units of differential privacy. ``covers``: whose epsilon it is."""

    covers: str
    epsilon: float
    delta: float
    terms: dict[str, float]


@dataclass(frozen=True)
class Effort:
    """How hard to try: ``rounds`` that are attacked, ``trials`` of canaries and rows of each kind for the
    answers; ``weaken`` divides the noise of the canaries' rounds, to see that the audit can fail."""

    rounds: int = 1
    trials: int = 20_000
    confidence: float = 0.999
    seed: int = 0
    weaken: float = 1.0


@dataclass(frozen=True)
class RunAudit:
    """All that an audit of one run found. ``subject`` says what was audited, in words and numbers."""

    scheme: str
    subject: dict[str, str]
    claim: Claim
    linking: list[Linking]
    answers: list[EpsilonBound]
    canaries: list[HotCanary]
    versions: dict[str, str]
    date: str

    @property
    def violated(self) -> bool:
        """Whether a claim is false: the paper's scheme claims nothing about its sums."""
        return (
            any(one.violated for one in self.answers)
            or any(one.bound.violated for one in self.canaries)
            or (self.scheme == "hot" and any(one.found for one in self.linking))
        )


def audit_data(config: RunConfig, effort: Effort, progress: Progress = lambda stage: None) -> RunAudit:
    """Audit the first round of a run with these settings, which keeps nothing."""
    progress("reading data")
    config = with_whole_path(config)
    fleet = build_fleet(config)
    config = resolved(config, fleet)
    store = MemoryStore(store_spec(config, fleet.task.spec, devices=True), fleet.task.initial_dense())
    return _audit(config, fleet, store, effort, progress)


def audit_run(
    folder: Path, config: RunConfig, effort: Effort, progress: Progress = lambda stage: None
) -> RunAudit:
    """Audit the next round of a run, with the model that it has come to. The run stays as it is."""
    progress("reading the run")
    where = RunFolder(folder)
    fleet = build_fleet(config)
    spec = store_spec(config, fleet.task.spec, devices=True)
    with closing(LmdbStore.open(where.store, spec)) as store:
        return _audit(config, fleet, store, effort, progress)


def _audit(config: RunConfig, fleet: Fleet, store: RowStore, effort: Effort, progress: Progress) -> RunAudit:
    scheme = config.round.scheme
    linking = attack_owners(config, fleet, store, rounds=effort.rounds, seed=effort.seed, progress=progress)
    answers: list[EpsilonBound] = []
    canaries: list[HotCanary] = []
    if scheme == "hot" and effort.trials:
        canaries = audit_hot_rounds(
            config,
            fleet,
            store,
            trials=effort.trials,
            confidence=effort.confidence,
            seed=effort.seed,
            weaken=effort.weaken,
            progress=progress,
        )
    elif scheme == "sfsl" and effort.trials:
        progress("epsilon of the answers, from below")
        answers = epsilon_bounds(
            scheme_privacy(config),
            [1, 10],
            trials=effort.trials,
            confidence=effort.confidence,
            rng=np.random.default_rng(effort.seed),
        )
    return RunAudit(
        scheme=scheme,
        subject=_subject(config, fleet, store),
        claim=_claim(config),
        linking=linking,
        answers=answers,
        canaries=canaries,
        versions=versions(),
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


def _claim(config: RunConfig) -> Claim:
    if config.round.scheme == "hot":
        rules, clients = round_rules(config, threshold=config.round.threshold_clients), config.round.clients
        hot, delta = rules.hot, config.privacy.delta
        assert hot is not None  # noqa: S101 -- rules of this scheme have it
        terms = {
            "rounds a client trains in": float(msgspec.convert(config.privacy.participations, int)),
            "rho of a round that trains": hot.rho,
            "rho of a survey": hot.survey_rho,
            "epsilon of a round that trains": epsilon_of(hot.rho, delta),
            "clients in a round": float(clients),
            "honest survivors that add noise": float(honest_of(rules, clients)),
            "share that may collude": config.privacy.corruption,
        }
        return Claim(
            "everything that leaves a client, over the whole run", config.privacy.epsilon, delta, terms
        )
    privacy = scheme_privacy(config)
    if config.round.scheme != "sfsl":
        return Claim("nothing: everyone sends the whole model, in exact sums", float("inf"), 0.0, {})
    terms = {name: getattr(privacy, name) for name in ("p1", "p2", "p3", "p4", "p5", "p6")}
    terms["epsilon for ever"] = privacy.epsilon_infinity
    return Claim("answers of one client about one row, in one round", privacy.epsilon_one, 0.0, terms)


def _subject(config: RunConfig, fleet: Fleet, store: RowStore) -> dict[str, str]:
    spec = fleet.task.spec
    tables = ", ".join(f"{table.name} {table.rows:,} x {table.width}" for table in spec.tables)
    source = config.data.source + (f":{config.data.path}" if config.data.path else f" ({config.data.world})")
    privacy = "" if config.round.scheme == "hot" else f", {config.privacy.name}"
    return {
        "data": source,
        "clients": f"{len(fleet.devices):,} with {len(fleet.train):,} samples to train on",
        "model": f"{config.model.kind}, {config.model.layout}; {tables}; dense {spec.dense:,}",
        "scheme": f"{config.round.scheme}{privacy}, {config.round.clients:,} clients in a round, "
        f"{'masked' if config.round.masked else 'plain'} sums",
        "after": f"{store.round:,} rounds",
    }
