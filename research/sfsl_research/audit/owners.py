"""How many owners the linking attack names, on a run's own data: figures with errors, beside guessing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from sfsl.arrays import Reals
from sfsl.errors import InputError
from sfsl.privacy import PRESETS
from sfsl.run.fleet import Fleet
from sfsl.run.planning import choose_cohort
from sfsl.secagg import default_threshold
from sfsl.settings.run import SECURE, RunConfig
from sfsl.submodel import RowStore
from sfsl_research.audit.linking import CERTAIN, Beliefs, Named, link
from sfsl_research.audit.watched import WatchedRound, watch_round

_DRAWS = 2000  # of the bootstrap
_DEVIATIONS = 3.0
_MOST_CLIENTS = 256  # of whom each may be a row's owner


@dataclass(frozen=True)
class OwnersNamed:
    """What became of the rows of one table that a single client moved, over all rounds attacked.

    ``guess``: the chance of naming a row's owner by drawing one of those who asked for it (all clients, where
    nobody asks). ``by_requests``: named from requests alone, without the sums: clients that have many rows
    are the likelier owners. ``named``: with the sums. ``certain``: named with a certainty of at least 95 %,
    and ``certain_right``, how many of those rightly. Errors are standard errors by bootstrap over clients;
    ``gain_error`` is that of named - by_requests.
    """

    table: str
    rounds: int
    clients: int
    rows: int
    single: float
    askers: float
    guess: float
    by_requests: float
    by_requests_error: float
    named: float
    named_error: float
    gain_error: float
    certain: float
    certain_error: float
    certain_right: float | None

    @property
    def found(self) -> bool:
        """Whether owners are named better than by guessing or by requests, beyond three standard errors."""
        return (
            self.named > self.guess + _DEVIATIONS * self.named_error
            and self.named > self.by_requests + _DEVIATIONS * self.gain_error
        )


@dataclass(frozen=True)
class Linking:
    """What the attack finds in one ``case``: the run as it is, or one that is made easier for the server."""

    case: str
    tables: list[OwnersNamed]

    @property
    def found(self) -> bool:
        return any(one.found for one in self.tables)


AS_IT_IS = "as it runs"
EASIER = "every row hot, and requests as of cpp2 handed to the server"


def attack_owners(
    config: RunConfig,
    fleet: Fleet,
    store: RowStore,
    *,
    rounds: int,
    seed: int,
    progress: Callable[[str], None] = lambda stage: None,
) -> list[Linking]:
    """Run the next round of a run with ``rounds`` different cohorts, attack each, and commit none.

    A run over hot rows is also attacked where all rows are hot and the server has requests to go by: nobody
    makes any there, so that names are guesses however much the sums give away.
    """
    if config.round.scheme not in SECURE:
        raise InputError(
            f'round.scheme = "{config.round.scheme}" hides nothing from its server, so there is nothing to '
            f"attack; {', '.join(SECURE)} do"
        )
    cases: dict[str, tuple[RunConfig, dict[str, Any]]] = {AS_IT_IS: (config, {})}
    if config.round.scheme == "hot":
        cases[EASIER] = _of_few(config), {"everything": True, "given": PRESETS["cpp2"]}
    rng, names, found = np.random.default_rng(seed), sorted(fleet.devices), []
    for case, (own, how) in cases.items():
        attacked: list[tuple[WatchedRound, dict[str, Named]]] = []
        for number in range(1, rounds + 1):
            progress(f"{case}: round {number} of {rounds}, clients train")
            cohort = choose_cohort(names, own.round.all_clients, own.run.seed, store.round + number)
            for seen in watch_round(own, fleet, store, cohort, **how):
                progress(f"{case}: round {number} of {rounds}, the server links rows")
                attacked.append((seen, link(seen, rng)))
        found.append(Linking(case, owners_named(attacked, rng)))
    return found


def _of_few(config: RunConfig) -> RunConfig:
    """Return the same run with no more clients in a round than the attack has memory for. The noise in a sum
    is for one client, and hardly depends on how many there are."""
    clients = min(config.round.clients, _MOST_CLIENTS)
    few = msgspec.structs.replace(config.round, clients=clients, threshold=default_threshold(clients))
    return config if clients == config.round.clients else msgspec.structs.replace(config, round=few)


def owners_named(
    attacked: Sequence[tuple[WatchedRound, Mapping[str, Named]]], rng: np.random.Generator
) -> list[OwnersNamed]:
    """Score what was named against the truth, table by table, all rounds together."""
    return [_score(name, attacked, rng) for name in attacked[0][0].tables]


def _score(
    table: str, attacked: Sequence[tuple[WatchedRound, Mapping[str, Named]]], rng: np.random.Generator
) -> OwnersNamed:
    # By client and round: rows that it alone moved; sums over them of askers, guess, by requests, named,
    # certain, certain and right.
    tallies, moved, opened = [], 0, 0
    for seen, found in attacked:
        one = found[table]
        trainers = seen.trained[table][:, one.places]
        single = np.flatnonzero(trainers.sum(axis=0) == 1)
        owner = trainers[:, single].argmax(axis=0)
        askers = seen.tables[table].asked[:, one.places[single]].sum(axis=0)
        right = _top(one.beliefs[single], rng) == owner
        certain = one.beliefs[single].max(axis=1, initial=0) >= CERTAIN
        columns = (
            np.ones(len(single)),
            askers,
            1 / np.maximum(askers, 1),
            _top(one.by_requests[single], rng) == owner,
            right,
            certain,
            certain & right,
        )
        clients = len(seen.clients)
        tallies.append(np.stack([np.bincount(owner, column, clients) for column in columns], axis=1))
        moved += int((seen.trained[table].sum(axis=0) > 0).sum())
        opened += int((seen.trained[table].sum(axis=0) == 1).sum())
    tally = np.concatenate(tallies).astype(np.float64)
    rows, total = max(1.0, tally[:, 0].sum()), tally.sum(axis=0)
    errors = _errors(tally, rng)
    return OwnersNamed(
        table=table,
        rounds=len(attacked),
        clients=len(attacked[0][0].clients),
        rows=int(total[0]),
        single=opened / max(1, moved),
        askers=float(total[1] / rows),
        guess=float(total[2] / rows),
        by_requests=float(total[3] / rows),
        by_requests_error=float(errors[3]),
        named=float(total[4] / rows),
        named_error=float(errors[4]),
        gain_error=float(errors[-1]),
        certain=float(total[5] / rows),
        certain_error=float(errors[5]),
        certain_right=float(total[6] / total[5]) if total[5] else None,
    )


def _top(beliefs: Beliefs, rng: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Name the likeliest client of each row; of several that are equally likely, any."""
    best = beliefs >= beliefs.max(axis=1, keepdims=True, initial=0) * (1 - 1e-5)
    return np.asarray((best * rng.random(beliefs.shape)).argmax(axis=1), np.int64)


def _errors(tally: Reals, rng: np.random.Generator) -> Reals:
    """Return standard errors of each column's share of the rows, and of named less by requests, last."""
    clients = len(tally)
    draws = rng.multinomial(clients, np.full(clients, 1 / clients), size=_DRAWS).astype(np.float64) @ tally
    shares = draws / np.maximum(draws[:, :1], 1)
    gain = shares[:, 4] - shares[:, 3]
    return np.concatenate([shares.std(axis=0), [gain.std()]])
