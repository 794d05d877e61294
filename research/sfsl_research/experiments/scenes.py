"""One round's clients with their samples, scored with the model before and after, whole and part by part."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad

from sfsl.arrays import Indices, Reals, Values, find
from sfsl.errors import InputError
from sfsl.rounds import Download, Trained
from sfsl.rounds.record import Learned, RoundTally
from sfsl.scores import auc, log_loss
from sfsl.simulate.population import Groups, Simulation
from sfsl.submodel import RowSet, RowStore
from sfsl.training import score_samples
from sfsl.training.local import mean_loss
from sfsl.training.task import ClientData, Task

# Histories up to so many items go together.
_HISTORIES = (5, 15, 30)
# Batches of each client whose gradients are taken.
_BATCHES = 8
_SUREST = 1e-7

Whose = Literal["before", "own", "another's", "averaged"]

# Whose dense part, shared rows and personal rows a client's samples are scored with. Where personal rows are
# rebuilt, training begins at "personal moved": "before" has those that the client kept from its last round.
LOOKS: Mapping[str, tuple[Whose, Whose, Whose]] = {
    "before": ("before", "before", "before"),
    "after": ("own", "own", "own"),
    "shared moved": ("own", "own", "before"),
    "personal moved": ("before", "before", "own"),
    "dense moved": ("own", "before", "before"),
    "rows moved": ("before", "own", "before"),
    "another's dense": ("another's", "before", "before"),
    "averaged": ("averaged", "averaged", "own"),
    "averaged shared": ("averaged", "averaged", "before"),
    "averaged dense": ("averaged", "before", "before"),
    "averaged rows": ("before", "averaged", "before"),
}


class Watched(Simulation):
    """A simulation that remembers what the clients of its last cohort were given and made of it."""

    given: Mapping[str, Download]
    trained: Mapping[str, Trained]
    learned: Mapping[str, Learned]

    def train(
        self, number: int, downloads: Mapping[str, Download], tally: RoundTally, groups: Groups
    ) -> tuple[dict[str, Trained], dict[str, Learned]]:
        trained, learned = super().train(number, downloads, tally, groups)
        self.given, self.trained, self.learned = downloads, trained, learned
        return trained, learned


@dataclass
class _Scene:
    """Some samples of one client, and the values of the rows that they need, by whose they are."""

    data: ClientData
    rows: Mapping[str, Indices]
    values: dict[Whose, dict[str, Values]]
    labels: Reals


class Scenes:
    """Everyone's samples in one round, taken before its commit."""

    def __init__(self, simulation: Watched) -> None:
        self._task, self._local = simulation.task, simulation.settings.local
        self._rate = self._local.rate(simulation.store.round)
        self._learned = {name: one for name, one in simulation.learned.items() if one.samples}
        self.names = sorted(self._learned)
        if len(self.names) < 2:
            raise InputError("fewer than two clients of this round had samples to train on")
        self._dense = simulation.given[self.names[0]].dense
        self._moves = np.stack([np.asarray(simulation.trained[name].dense) for name in self.names])
        self._pools: dict[str, list[_Scene]] = {"train": [], "held_out": []}
        for name in self.names:
            device, download = simulation.devices[name], simulation.given[name]
            shared = {one: download.asked[one].rows for one in simulation.shared}
            held_out = device.train.keep({}) if device.held_out is None else device.held_out
            for pool, data in (("train", device.train.keep(shared)), ("held_out", held_out)):
                self._pools[pool].append(_scene(simulation, name, data))

    def figures(self, store: RowStore) -> dict[str, Any]:
        """Return all that is to be said of a round, whose commit is in the store by now."""
        for scene in (one for pool in self._pools.values() for one in pool):
            scene.values["averaged"] = _read(self._task, store, scene.rows)
        averaged = store.read_dense().values
        weights = np.array([self._learned[name].samples for name in self.names], np.float64)
        during = np.array([self._learned[name].loss for name in self.names])
        histories = np.array([_lengths(one.data).mean() for one in self._pools["train"]])
        norms = np.linalg.norm(self._moves, axis=1)
        gradients = list(self._gradients())
        every = np.concatenate(gradients)
        step = averaged - self._dense
        return {
            "samples": int(weights.sum()),
            "looks": {name: self._look(how, averaged) for name, how in LOOKS.items()},
            "loss_during": float(during @ weights / weights.sum()),
            "by_history": self._by_history(),
            "dense_move": float(norms.mean()),
            "dense_move_kept": float(np.linalg.norm(weights @ self._moves) / (weights @ norms)),
            "dense_move_cosine": _mean_cosine(self._moves),
            "dense_step": float(np.linalg.norm(step)),
            "mean_dense_move_rms": float(np.sqrt(np.mean((weights @ self._moves / weights.sum()) ** 2))),
            "move_with_history": _correlation(norms, histories),
            "move_with_samples": _correlation(norms, weights),
            "gradient_with_history": _correlation([one.mean() for one in gradients], histories),
            "gradient_median": float(np.median(every)),
            "clipped": float((every > self._local.clip).mean()),
            "step_median": float(self._rate * np.median(np.minimum(every, self._local.clip))),
            **self._shift(),
        }

    def _look(self, how: tuple[Whose, Whose, Whose], averaged: Values) -> dict[str, dict[str, float | None]]:
        """Score every pool with these parts of models: log loss, AUC, spread of the log-odds, and the log
        loss that is left when log-odds are stretched and moved as fits the pool best."""
        found = {}
        for pool, scenes in self._pools.items():
            scores = np.concatenate([self._score(at, one, how, averaged) for at, one in enumerate(scenes)])
            labels = np.concatenate([one.labels for one in scenes])
            odds = _log_odds(scores)
            figures = {
                "log_loss": log_loss(scores, labels),
                "auc": auc(scores, labels),
                "spread": float(odds.std()) if len(odds) else float("nan"),
                "fitted_log_loss": _fitted(odds, labels),
            }
            found[pool] = {name: one if np.isfinite(one) else None for name, one in figures.items()}
        return found

    def _score(
        self, at: int, scene: _Scene, how: tuple[Whose, Whose, Whose], averaged: Values | None = None
    ) -> Reals:
        dense, shared, personal = how
        base = {
            "before": self._dense,
            "own": self._dense + self._moves[at],
            "another's": self._dense + self._moves[(at + 1) % len(self.names)],
            "averaged": averaged,
        }[dense]
        values = {
            table.name: scene.values[personal if table.kind == "personal" else shared][table.name]
            for table in self._task.tables
        }
        return score_samples(self._task, np.asarray(base), scene.rows, values, scene.data)

    def _shift(self) -> dict[str, float | None]:
        """Say by how much a client's dense part moves the log-odds of another's held-out samples as a whole,
        and whether it does so by how often the client clicks."""
        shifts, rates = [], []
        train = self._pools["train"]
        for at, scene in enumerate(self._pools["held_out"]):
            if len(scene.labels):
                odds = [
                    _log_odds(self._score(at, scene, LOOKS[one])) for one in ("before", "another's dense")
                ]
                shifts.append(float((odds[1] - odds[0]).mean()))
                rates.append(train[(at + 1) % len(train)].labels.mean())
        return {
            "odds_shift": float(np.std(shifts)) if shifts else None,
            "odds_shift_with_click_rate": _correlation(shifts, rates),
        }

    def _by_history(self) -> dict[str, dict[str, dict[str, float]]]:
        """Say for each pool, by the length of histories and with the model before training, how large is what
        enters the tower (the root mean square of its norm), how far log-odds spread, and the log loss."""
        found: dict[str, dict[str, dict[str, float]]] = {}
        for pool, scenes in self._pools.items():
            squares: list[Tensor] = []
            with _watching(self._task.module, squares):
                scores = [self._score(at, scene, LOOKS["before"]) for at, scene in enumerate(scenes)]
            pairs = [(_lengths(one.data), one.labels) for one in scenes]
            lengths, labels = (np.concatenate(one) for one in zip(*pairs, strict=True))
            chances, group = np.concatenate(scores), np.searchsorted(_HISTORIES, lengths)
            found[pool] = {}
            for place, low in enumerate((0, *(one + 1 for one in _HISTORIES))):
                chosen = group == place
                if chosen.any():
                    name = f"{low}-{_HISTORIES[place]}" if place < len(_HISTORIES) else f"{low}+"
                    found[pool][name] = {
                        "samples": int(chosen.sum()),
                        "spread": float(_log_odds(chances[chosen]).std()),
                        "log_loss": log_loss(chances[chosen], labels[chosen]),
                    }
                    if squares:
                        own = torch.cat(squares).numpy()[chosen]
                        found[pool][name]["entry_norm"] = float(np.sqrt(own.mean()))
        return found

    def _gradients(self) -> Iterator[Reals]:
        """Yield each client's norms of gradients on batches, over all that moves, as a clip has them."""
        task, size = self._task, self._local.batch_size
        slope = grad(mean_loss(task, task.module))
        task.module.train()
        for scene in self._pools["train"]:
            begun = dict(scene.values["before"])
            held = task.personal if self._local.rebuild else {}
            begun |= {name: scene.values["own"][name] for name in held}
            parameters = task.parameters(self._dense, begun)
            moving = {name: one for name, one in parameters.items() if name not in held.values()}
            columns = {n: torch.from_numpy(c) for n, c in scene.data.local_columns(scene.rows).items()}
            order = torch.from_numpy(np.random.default_rng(0).permutation(len(scene.data)))
            norms = []
            for chosen in torch.split(order[: _BATCHES * size], size):
                batch = {name: column[chosen] for name, column in columns.items()}
                slopes = slope(moving, parameters, batch, torch.ones(len(chosen)))
                norms.append(float(torch.stack([one.square().sum() for one in slopes.values()]).sum().sqrt()))
            yield np.array(norms)


@contextmanager
def _watching(module: nn.Module, squares: list[Tensor]) -> Iterator[None]:
    """Note the squared norm of each sample's input to the tower, if the module has one."""
    tower = getattr(module, "tower", None)
    if not isinstance(tower, nn.Module):
        yield
        return
    hook = tower.register_forward_pre_hook(lambda _, given: squares.append(given[0].square().sum(-1)))
    try:
        yield
    finally:
        hook.remove()


def _scene(simulation: Watched, name: str, data: ClientData) -> _Scene:
    task = simulation.task
    data = data.keep(task.needed_rows(data)[0])
    rows = task.needed_rows(data)[0]
    before = _read(task, simulation.store, rows)
    own = {}
    for table in task.tables:
        if table.kind == "personal":
            moved, moves = simulation.learned[name].personal[table.name]
        else:
            trained = simulation.trained[name].rows[table.name]
            moved, moves = trained.rows.rows, np.asarray(trained.deltas)
        at, there = find(rows[table.name], moved)
        own[table.name] = before[table.name].copy()
        own[table.name][there] += moves[at[there]]
    labels = np.asarray(data.local_columns({})["label"], np.float64)
    return _Scene(data, rows, {"before": before, "own": own}, labels)


def _read(task: Task, store: RowStore, rows: Mapping[str, Indices]) -> dict[str, Values]:
    return {table.name: store.read_rows(table.name, RowSet(rows[table.name])).values for table in task.tables}


def _lengths(data: ClientData) -> Indices:
    """Return how many items the history of each sample has; 0 where samples have no history."""
    history = data.local_columns({}).get("history")
    return np.zeros(len(data), np.int64) if history is None else (history >= 0).sum(axis=1)


def _log_odds(chances: Reals) -> Reals:
    inside = np.clip(chances, _SUREST, 1 - _SUREST)
    return np.asarray(np.log(inside) - np.log1p(-inside))


def _fitted(odds: Reals, labels: Reals) -> float:
    """Return the log loss of log-odds after the best line through them (a regression of two numbers)."""
    if len(np.unique(labels)) < 2:
        return float("nan")
    inputs = np.stack([np.ones_like(odds), (odds - odds.mean()) / max(odds.std(), 1e-12)], axis=1)
    line, little = np.zeros(2), 1e-3  # a little weight decay, for the few samples that a line may separate
    for _ in range(20):
        chance = 1 / (1 + np.exp(-np.clip(inputs @ line, -30, 30)))
        curve = (inputs * (chance * (1 - chance))[:, None]).T @ inputs + little * np.eye(2)
        step = np.linalg.solve(curve, inputs.T @ (chance - labels) + little * line)
        line = line - step * min(1, 2 / max(float(np.abs(step).max()), 1e-12))
    return log_loss(1 / (1 + np.exp(-np.clip(inputs @ line, -30, 30))), labels)


def _mean_cosine(moves: Values) -> float:
    """Return the mean cosine of the angle between two different clients' moves."""
    units = moves / np.maximum(np.linalg.norm(moves, axis=1, keepdims=True), 1e-30)
    count = len(units)
    return float(((units.sum(axis=0) ** 2).sum() - count) / (count * (count - 1)))


def _correlation(one: Sequence[float] | Reals, other: Sequence[float] | Reals) -> float | None:
    """Return Pearson's; None where one of the two does not vary."""
    if len(one) < 3 or not (np.std(one) > 0 and np.std(other) > 0):
        return None
    return float(np.corrcoef(one, other)[0, 1])
