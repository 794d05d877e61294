"""Every kind of model trains through ``sfsl run``'s own path, under real masks, and plain sums agree."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfsl.models import BST, DIEN, NextWordLSTM
from sfsl.models.package import build, describe
from sfsl.run import start
from sfsl.run.fleet import build_fleet
from sfsl.settings.run import RunConfig, from_sections

WORDS = [chr(97 + place) for place in range(18)]


@pytest.fixture(scope="module")
def roles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve roles of a language in which each word has one that follows it most of the time."""
    draw, file = random.Random(5), tmp_path_factory.mktemp("roles") / "roles.jsonl"
    with file.open("w") as out:
        for number in range(12):
            said, place = [], 0
            for _ in range(30 + 10 * number):
                place = (place + 1) % len(WORDS) if draw.random() < 0.9 else draw.randrange(len(WORDS))
                said.append(WORDS[place])
            out.write(json.dumps({"play": "p", "role": str(number), "lines": [" ".join(said)]}) + "\n")
    return file


def config(kind: str, roles: Path, **changes: dict[str, Any]) -> RunConfig:
    lstm = kind == "lstm"
    data = {"source": "shakespeare", "path": str(roles)} if lstm else {"users": 30, "scale": 0.02}
    sections: dict[str, dict[str, Any]] = {
        "data": data,
        "model": {"kind": kind, "width": 6},
        "round": {"clients": 8, "bins": 16, "min_contributors": 1},
        "run": {"rounds": 2, "evaluate_every": 2, "threads": 1},
    }
    named = {**{key: {} for key in changes}, **sections}
    return from_sections({name: content | changes.get(name, {}) for name, content in named.items()})


def trained(path: Path, settings: RunConfig) -> tuple[np.ndarray, float | None]:
    with start.begin(path, settings) as runner:
        runner.run(stop=lambda: False, seen=lambda line: None)
        return runner.store.read_dense().values, runner.lines[-1].auc


@pytest.mark.parametrize(("kind", "module"), [("dien", DIEN), ("bst", BST), ("lstm", NextWordLSTM)])
def test_masked_and_plain_rounds_train_the_same_model(
    kind: str, module: type, roles: Path, tmp_path: Path
) -> None:
    settings = config(kind, roles)
    task = build_fleet(settings).task
    assert type(task.module) is module
    masked, auc = trained(tmp_path / "masked", settings)
    plain, other = trained(tmp_path / "plain", config(kind, roles, round={"sums": "plain"}))
    assert np.array_equal(masked, plain)
    assert auc == other is not None
    assert np.abs(masked - task.initial_dense()).max() > 5e-4


def test_next_words_are_learned(roles: Path, tmp_path: Path) -> None:
    training = {"batch_size": 4, "clip": 1.0, "epochs": 4}
    settings = config(
        "lstm",
        roles,
        model={"width": 12, "initial": 0.3},
        round={"sums": "plain"},
        training=training,
        run={"rounds": 12, "evaluate_every": 12},
    )
    auc = trained(tmp_path / "run", settings)[1]
    assert auc is not None
    assert auc > 0.85  # nine in ten words follow from the last; who knows only how common they are has 0.5


@pytest.mark.parametrize("kind", ["din", "dien", "bst", "logistic", "lstm"])
def test_every_model_that_a_run_trains_can_be_served(kind: str, roles: Path) -> None:
    task = build_fleet(config(kind, roles)).task
    assert build(describe(task)).spec == task.spec
