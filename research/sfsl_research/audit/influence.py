"""How far liars among the clients push the score of one item, under each defence.

    python -m sfsl_research.audit.influence --rounds 10

A liar in a round of exact sums adds any words to the rows it asks for; masks hide which. The strongest liar
makes the sum of the target's row as large as decoding lets pass: the weight of all who asked for it, each at
the clip, in the direction that raises the item's score the most. One such liar in a cohort is as good as
many.
A *checked* liar is what is left where clients prove that their own words are in bounds (docs/decisions/0017):
a weight of one and a clipped row. Rounds are those of ``sfsl run``, with plain sums.

In rounds over hot rows (defences that begin with "hot") a liar adds a thousand clips to the target's row, and
a checked one all that an honest client may add, to that row alone. In surveys a checked liar marks the target
once; another says that all clients have it, which makes it hot and its bound the widest. ``--epsilon``: how
much noise the others add.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from unittest.mock import patch

import msgspec
import numpy as np
import torch

from sfsl.arrays import Reals
from sfsl.carriers.local.engine import Cohort, PopulationEngine
from sfsl.data.samples import Samples
from sfsl.rounds import IndexSpace, RoundSums
from sfsl.rounds.hot import UPDATE_SHARE
from sfsl.rounds.hot_bounds import Bounds
from sfsl.rounds.hot_server import HotRound, HotSums
from sfsl.rounds.record import RoundTally
from sfsl.run.fleet import Fleet, build_fleet
from sfsl.run.planning import choose_cohort
from sfsl.run.setup import build_simulation, resolved
from sfsl.run.validation import split_held_out
from sfsl.scores import evaluate
from sfsl.settings.rounds import store_spec
from sfsl.settings.run import RunConfig
from sfsl.simulate.engine import item_column, score_pool
from sfsl.submodel import MemoryStore, RowSet
from sfsl.submodel.quantize import WeightedSums
from sfsl.training import score_samples

TABLE = "item"
_PROBES = 256  # samples on which a liar looks for its direction, and on which the target is scored
DEFENCES: dict[str, dict[str, object]] = {
    "the paper's average": {"row_step": "add", "row_rate": 1.0, "kappa": 1.0, "max_move": 0.0},
    "add, kappa 10": {"row_step": "add", "row_rate": 1.0, "kappa": 10.0, "kappa_rounds": 0, "max_move": 0.0},
    "heat": {"max_move": 0.0},
    "heat, max_move": {},
    "hot, no limit": {"max_move": 0.0},
    "hot, max_move": {},
    "hot, sums cut": {"max_move": 0.0},
    "hot, sums cut, max_move": {},
}
_CLIPS = 1000  # of a liar whom nothing checks, in rounds over hot rows
_SURVEYS = 2


@dataclass
class Liars(PopulationEngine):
    """Runs rounds with plain sums, into which liars put what they like."""

    config: RunConfig
    fleet: Fleet
    target: int
    share: float
    checked: bool
    lied: int = 0
    longest: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        spec = store_spec(self.config, self.fleet.task.spec, devices=True)
        store = MemoryStore(spec, self.fleet.task.initial_dense())
        PopulationEngine.__init__(self, build_simulation(self.config, self.fleet, store))
        names = sorted(self.fleet.devices)
        rng = np.random.default_rng(7)
        self.liars = set(rng.permutation(names)[: round(self.share * len(names))].tolist())
        pool = split_held_out(self.config, self.fleet)["test"]
        probe = pool.samples(np.arange(min(_PROBES, len(pool))))
        assert isinstance(probe, Samples)  # noqa: S101 -- simulated data are
        self._probe = probe
        self._column = item_column(self.fleet.task, pool)
        self.pools = {"test": pool}

    def _run_all(self, number: int, cohorts: Sequence[Cohort], tally: RoundTally) -> None:
        for one in cohorts:
            one.run(self.simulation, self.driver, None)
            lying = self.liars & set(one.names)
            if lying and isinstance(one.sums, RoundSums):
                self._lie(one.sums, len(lying))
            if lying and isinstance(one.sums, HotSums) and isinstance(one.plan, HotRound):
                one.sums = self._lie_hot(one.plan, one.sums, len(lying))

    def _lie(self, sums: RoundSums, liars: int) -> None:
        union, rows = sums.model.unions[TABLE], sums.model.rows[TABLE]
        place = int(np.searchsorted(union.rows, self.target))
        if place == len(union) or union.rows[place] != self.target:
            return  # a liar could bring it to the union; so this is a little less than it can do
        clip, asking = self.config.round.clip, int(sums.contributors[TABLE][place])
        weight = rows.weights.copy()
        values = rows.values.copy()
        if self.checked:
            weight[place] += liars
            values[place] += liars * clip * self.direction()
        else:
            weight[place] = max(1, asking)
            values[place] = weight[place] * clip * self.direction()
        sums.model.rows[TABLE] = WeightedSums(values, weight, rows.refused)
        self.lied += 1

    def _lie_hot(self, plan: HotRound, sums: HotSums, liars: int) -> HotSums:
        params, words, target = plan.params, sums.words.copy(), np.array([self.target])
        if plan.published is None:
            nothing = {one.name: np.zeros(0, np.int64) for one in params.model.tables if one.kind == "shared"}
            marks = liars if self.checked else len(sums.survivors)
            words[IndexSpace(params.model).indices(nothing | {TABLE: target})] += marks * params.levels
            return replace(sums, words=words)
        start, sets = params.model.dense, plan.published.hot.sets(params.model)
        for table in params.model.summed:
            if table.name == TABLE and sets[TABLE].holds(target)[0]:
                at = start + int(sets[TABLE].positions_of(target)[0]) * table.width
                clips = liars * UPDATE_SHARE if self.checked else _CLIPS
                told = clips * params.levels / np.sqrt(table.width) * self.direction()
                words[at : at + table.width] += np.rint(told).astype(np.int64)
                self.lied += 1
            start += len(sets[table.name]) * table.width
        return replace(sums, words=words)

    def direction(self) -> Reals:
        """Return the signs with which a small move of the target's row raises its score the most."""
        width = self.task.spec.table(TABLE).width
        base = self.target_scores()
        gains = [self.target_scores(np.eye(width)[one] * 0.05).mean() - base.mean() for one in range(width)]
        return np.sign(gains)

    def target_scores(self, moved: Reals | float = 0.0) -> Reals:
        """Return what the model scores the target for users of the test set."""
        samples = self._with_target()
        rows, _ = self.task.needed_rows(samples)
        values = {name: self.store.read_rows(name, RowSet(one)).values.copy() for name, one in rows.items()}
        place = np.searchsorted(rows[TABLE], self.target)
        values[TABLE][place] += np.asarray(moved, np.float32)
        return np.asarray(score_samples(self.task, self.store.read_dense().values, rows, values, samples))

    def _with_target(self) -> Samples:
        columns = dict(self._probe.columns)
        columns[self._column] = np.full_like(columns[self._column], self.target)
        for column, name in self._probe.tables.items():
            table = self.task.spec.table(name)
            if table.source == TABLE and columns[column].ndim == 1:
                follows = self.task.row_maps.rows_of(name, np.array([self.target]))[0]
                columns[column] = np.full_like(columns[column], follows)
        return replace(self._probe, columns=columns)


def play(config: RunConfig, fleet: Fleet, target: int, share: float, checked: bool) -> dict[str, float]:
    """Run all rounds, and return what became of the target, of rows at large and of the model."""
    engine = Liars(config, fleet, target, share, checked)
    names, steps, hot = sorted(fleet.devices), [], None
    before = engine.store.read_rows(TABLE, RowSet(np.array([target]))).values[0]
    for number in range(1, config.run.rounds + 1):
        cohort = choose_cohort(names, config.round.all_clients, config.run.seed, number)
        result = engine.run(cohort, hot=hot)
        hot = result.outcome.hot if result.outcome is not None else hot
        block = result.commit.tables.get(TABLE)
        if block is not None and len(block.rows):
            old = engine.store.read_rows(TABLE, block.rows).values
            steps.append(np.linalg.norm(block.values - old, axis=1))
        engine.store.commit(result.commit)
    after = engine.store.read_rows(TABLE, RowSet(np.array([target]))).values[0]
    every = np.concatenate(steps)
    found = evaluate(score_pool(engine.task, engine.pools["test"], engine.store))
    return {
        "score": float(engine.target_scores().mean()),
        "moved": float(np.linalg.norm(after - before)),
        "lied": engine.lied,
        "longest": float(every.max()),
        "p999": float(np.quantile(every, 0.999)),
        "p50": float(np.median(every)),
        "auc": found.auc or 0.0,
        "log_loss": found.log_loss or 0.0,
    }


@contextmanager
def limited(defence: str) -> Iterator[None]:
    """Take sums over hot rows as they come, unless the defence cuts them."""
    if "sums cut" in defence:
        yield
        return
    with patch.object(Bounds, "model", lambda self, parts: [one.sums for one in parts]):
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--users", type=int, default=400)
    parser.add_argument("--clients", type=int, default=80)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.0, 0.01, 0.05, 0.10])
    parser.add_argument("--defences", nargs="+", default=list(DEFENCES))
    parser.add_argument("--max-move", type=float, default=None)
    parser.add_argument("--world", default="films")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epsilon", type=float, default=float("inf"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name in given.defences:
        server = dict(DEFENCES[name])
        if given.max_move is not None and "max_move" in name:
            server["max_move"] = given.max_move
        hot = name.startswith("hot")
        config = msgspec.convert(
            {
                "data": {"users": given.users, "scale": 0.02, "world": given.world},
                "round": {
                    "clients": given.clients,
                    "sums": "plain",
                    "bins": 0,
                    "scheme": "hot" if hot else "sfsl",
                },
                "run": {"rounds": given.rounds + (_SURVEYS if hot else 0), "seed": given.seed},
                "hot": {"surveys": _SURVEYS, "bins": 0},
                "privacy": {"epsilon": given.epsilon},
                "server": server,
            },
            RunConfig,
        )
        fleet = build_fleet(config)
        config = resolved(config, fleet)
        owners = np.bincount(np.concatenate([one.needed[TABLE] for one in fleet.devices.values()]))
        target = int(np.argsort(owners)[len(owners) * 3 // 4])
        for share in given.shares:
            for checked in (False, True) if share else (False,):
                with limited(name):
                    found = play(config, fleet, target, share, checked)
                line: dict[str, object] = {"defence": name, "liars": share, "checked": checked, **found}
                sys.stdout.write(json.dumps(line) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
