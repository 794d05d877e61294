"""The example with a model that is not ours: it runs, it learns, and it stays short."""

import runpy
from pathlib import Path

import torch

torch.set_num_threads(1)  # steps this small only wait for each other
EXAMPLE = Path(__file__).parents[2] / "examples" / "own_model.py"


def test_the_example_learns() -> None:
    names = runpy.run_path(str(EXAMPLE))
    assert names["test_auc"]() < 0.6
    for number in range(14):
        names["train_round"](number)
    assert names["test_auc"]() > 0.7


def test_what_a_user_writes_is_about_forty_lines() -> None:
    text = EXAMPLE.read_text()
    brought = text[text.index("# 1.") : text.index("# That is all")]
    assert len(brought.strip().splitlines()) <= 40
