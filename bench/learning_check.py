"""Does it learn? Federated submodel learning with perfect sums: no masks, no quantization, no dropouts.

Shows early whether the learning targets are in reach, and which weights and floors do it. One JSON line
per evaluation. Centralized training sees, per round, as many samples as a cohort has.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.func import functional_call

from sfsl.data import Interactions, hold_out_last, load_amazon, load_taobao, with_negatives
from sfsl.data.synthetic import SyntheticSettings, SyntheticTaobao, bayes_auc
from sfsl.models import din, logistic_regression
from sfsl.privacy.parameters import IndexPrivacy
from sfsl.submodel.initial import initial_rows
from sfsl.training import ClientWork, LocalSettings, LocalUpdate, Task, auc, score_samples, train_cohort
from sfsl.training.task import Indices, Values, parameter_of

# Adam's batches, and the batches of centralized SGD.
CENTRAL_BATCH = 32


@dataclass
class Model:
    dense: Values
    tables: dict[str, Values]


def initial_model(task: Task, seed: int) -> Model:
    key = seed.to_bytes(32, "big")
    tables = {table.name: initial_rows(key, table, np.arange(table.rows)) for table in task.tables}
    return Model(task.initial_dense(), tables)


def test_auc(task: Task, model: Model, test: Interactions) -> float:
    scores = [score_samples(task, model.dense, {}, model.tables, chunk) for chunk in test.chunks()]
    return auc(np.concatenate(scores), test.label)


class Federated:
    """One round after another on the clients of ``train``, by the rules of a scheme."""

    def __init__(self, task: Task, train: Interactions, options: argparse.Namespace) -> None:
        self.task, self.options = task, options
        self.settings = LocalSettings(learning_rate=options.rate)
        self.rng = np.random.default_rng([options.seed, 1])
        self.privacy = IndexPrivacy.preset(options.cpp)
        self.clients = train.clients
        self.data = {int(user): train.client(int(user)) for user in self.clients}
        self.real = {user: task.needed_rows(data)[0] for user, data in self.data.items()}
        # Permanent answers about real rows; the others do not matter to learning.
        self.permanent = {
            user: self.rng.random(len(rows["item"])) < self.privacy.p1 for user, rows in self.real.items()
        }

    def round(self, model: Model, number: int) -> float:
        cohort = self.rng.choice(self.clients, min(self.options.cohort, len(self.clients)), replace=False)
        works = [self._work(model, int(user), number) for user in cohort]
        updates = train_cohort(self.task, model.dense, works, self.settings, round_number=number)
        samples = np.array([one.samples for one in updates])
        moves = sum(one.samples * one.dense for one in updates) / max(samples.sum(), 1)
        model.dense = (model.dense + moves).astype(np.float32)
        for table in self.task.tables:
            self._move_rows(model.tables[table.name], table.name, table.kind, works, updates)
        return float(np.nansum([one.loss * one.samples for one in updates]) / max(samples.sum(), 1))

    def _work(self, model: Model, user: int, number: int) -> ClientWork:
        rows = self.real[user]
        data = self.data[user]
        if self.options.scheme == "sfsl":
            chance = np.where(self.permanent[user], self.privacy.p3, self.privacy.p4)
            perturbed = self.rng.random(len(chance)) < chance
            rows = self.task.with_derived(dict(rows, item=rows["item"][perturbed]))
            data = data.keep(rows)
        values = {name: model.tables[name][some] for name, some in rows.items()}
        return ClientWork(rows, values, data, seed=number * 1_000_003 + user)

    def _move_rows(
        self, values: Values, name: str, kind: str, works: list[ClientWork], updates: list[LocalUpdate]
    ) -> None:
        rows = np.concatenate([work.rows[name] for work in works])
        deltas = np.concatenate([one.rows[name] for one in updates])
        if kind == "personal":
            values[rows] += deltas
            return
        counts = [one.counts[name] for one in updates]
        if self.options.scheme == "fl":
            weights = np.repeat([one.samples for one in updates], [len(own) for own in counts])
            divisor: Any = max(sum(one.samples for one in updates), 1)
        else:
            weights = np.concatenate(counts)
            if self.options.weights == "owners":
                weights = (weights > 0).astype(np.int64)
            totals = np.bincount(rows, weights, minlength=len(values))
            divisor = np.maximum(totals, self.options.kappa)[:, None]
        moved = np.zeros(values.shape)
        np.add.at(moved, rows, weights[:, None] * deltas)
        values += (moved / divisor).astype(np.float32)


class Centralized:
    """Adam or SGD on everyone's samples, shuffled."""

    def __init__(self, task: Task, train: Interactions, options: argparse.Namespace, model: Model) -> None:
        self.task, self.train = task, train
        self.rng = np.random.default_rng([options.seed, 1])
        self.parameters = {
            name: one.requires_grad_() for name, one in task.parameters(model.dense, model.tables).items()
        }
        kind: Any = torch.optim.Adam if options.optimizer == "adam" else torch.optim.SGD
        self.optimizer = kind(self.parameters.values(), lr=options.rate)
        self.clip = LocalSettings().clip if options.optimizer == "sgd" else None
        self.per_round = round(len(train) / len(train.clients) * options.cohort)
        self.order = np.zeros(0, dtype=np.int64)

    def round(self, model: Model, number: int) -> float:
        while len(self.order) < self.per_round:
            self.order = np.concatenate([self.order, self.rng.permutation(len(self.train))])
        chosen, self.order = self.order[: self.per_round], self.order[self.per_round :]
        losses = [self._step(some) for some in np.array_split(chosen, -(-len(chosen) // CENTRAL_BATCH))]
        with torch.no_grad():
            model.dense = self.task.dense_vector(self.parameters)
            for table in self.task.tables:
                model.tables[table.name] = self.parameters[parameter_of(table)].numpy(force=True)
        return float(np.mean(losses))

    def _step(self, positions: Indices) -> float:
        batch = {name: torch.from_numpy(one) for name, one in self.train.samples(positions).columns.items()}
        loss = self.task.loss(functional_call(self.task.module, self.parameters, (batch,)), batch).mean()
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.clip)
        self.optimizer.step()
        return float(loss)


def load(options: argparse.Namespace) -> Interactions:
    if options.data == "synthetic":
        settings = SyntheticSettings().scaled(options.factor, options.users)
        return SyntheticTaobao(settings, seed=options.seed).interactions()
    loaders: dict[str, Callable[[Path], tuple[Interactions, Any]]] = {
        "amazon": load_amazon,
        "taobao": load_taobao,
    }
    data, report = loaders[options.data](options.path)
    print(report, file=sys.stderr)
    return with_negatives(data, seed=options.seed) if options.data == "taobao" else data


def say(**line: Any) -> None:
    rounded = {name: round(one, 4) if isinstance(one, float) else one for name, one in line.items()}
    print(json.dumps(rounded), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", choices=("amazon", "taobao", "synthetic"))
    parser.add_argument("--path", type=Path, help="the data file; not for synthetic data")
    parser.add_argument("--factor", type=float, default=0.1, help="synthetic: size relative to the paper's")
    parser.add_argument("--users", type=int, default=2000, help="synthetic: number of users")
    parser.add_argument("--model", choices=("din", "logistic"), default="din")
    parser.add_argument("--slopes", choices=("dice", "prelu"), default="dice")
    parser.add_argument("--initial", type=float, default=None, help="rows begin uniform in ± this")
    parser.add_argument("--scheme", choices=("sfsl", "fl", "centralized"), default="sfsl")
    parser.add_argument("--cpp", default="cpp2")
    parser.add_argument("--weights", choices=("owners", "samples"), default="owners")
    parser.add_argument("--kappa", type=float, default=5.0)
    parser.add_argument("--rate", type=float, default=1.0, help="learning rate")
    parser.add_argument("--optimizer", choices=("sgd", "adam"), default="sgd", help="centralized only")
    parser.add_argument("--cohort", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--every", type=int, default=25, help="rounds between evaluations")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    train, test = hold_out_last(load(options))
    initial = {} if options.initial is None else {"initial": options.initial}
    task = (
        din(train, seed=options.seed, slopes=options.slopes, **initial)
        if options.model == "din"
        else logistic_regression(train)
    )
    model = initial_model(task, options.seed)
    say(
        **{name: str(value) for name, value in vars(options).items()},
        train=len(train),
        test=len(test),
        dense=task.spec.dense,
        bayes_auc=None if test.probability is None else bayes_auc(test.probability),
    )
    trainer = (
        Centralized(task, train, options, model)
        if options.scheme == "centralized"
        else Federated(task, train, options)
    )
    started, loss = time.process_time(), float("nan")
    for number in range(options.rounds + 1):
        if number % options.every == 0 or number == options.rounds:
            seconds = time.process_time() - started
            say(round=number, auc=test_auc(task, model, test), loss=loss, cpu_seconds=seconds)
        if number < options.rounds:
            loss = trainer.round(model, number)


if __name__ == "__main__":
    main()
