"""How well a run of the LSTM guesses: top-1 and top-3 recall and perplexity on what each role says last.

`sfsl run` reports the AUC; this reads the model of such a run. A role's own words, those of its training
part, are what may come next; held-out windows with other words are left out. Beside it stand a blind guess
among these words, and how common each of them is in everyone's training parts together.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from sfsl.data.words import Windows
from sfsl.models import NextWordLSTM
from sfsl.run.fleet import Fleet, build_fleet
from sfsl.run.folder import RunFolder
from sfsl.run.setup import open_store
from sfsl.submodel import RowSet, RowStore
from sfsl.training.task import Batch

CHUNK = 512
TOP = 3


class Chances(nn.Module):
    def __init__(self, model: NextWordLSTM) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> Tensor:
        return self.model.chances(batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="a folder that sfsl run made with model.kind = lstm")
    options = parser.parse_args()
    folder = RunFolder(options.run)
    config = folder.config()
    torch.set_num_threads(1)
    fleet = build_fleet(config)
    store = open_store(folder, config, fleet)
    try:
        print(json.dumps({"round": store.round, **measured(fleet, store)}, indent=1))
    finally:
        store.close()


def measured(fleet: Fleet, store: RowStore) -> dict[str, object]:
    """Means over all windows of all roles."""
    train = fleet.train
    assert isinstance(train, Windows)  # noqa: S101
    common = 1 + np.bincount(train.speech.spoken[train.at], minlength=fleet.task.tables[0].rows)
    dense = store.read_dense().values
    assert isinstance(fleet.task.module, NextWordLSTM)  # noqa: S101
    model, seen = Chances(fleet.task.module), 0
    sums = {name: np.zeros(3) for name in ("lstm", "how common words are")}
    blind = 0.0
    for name in fleet.devices:
        device = fleet.devices[name]
        rows = device.needed
        assert device.held_out is not None  # noqa: S101
        own = device.held_out.keep(rows).local_columns(rows)
        right = own["label"] == 1
        columns = {key: torch.from_numpy(one[right]) for key, one in own.items()}
        values = {"word": store.read_rows("word", RowSet(rows["word"])).values}
        parameters = {f"model.{key}": one for key, one in fleet.task.parameters(dense, values).items()}
        unigram = torch.from_numpy(np.log(common[rows["word"]] / common[rows["word"]].sum()))
        for start in range(0, int(right.sum()), CHUNK):
            batch = {key: one[start : start + CHUNK] for key, one in columns.items()}
            with torch.no_grad():
                chances = functional_call(model, parameters, (batch,))
            sums["lstm"] += judged(chances, batch["target"])
            sums["how common words are"] += judged(unigram.expand(len(chances), -1), batch["target"])
            blind += len(chances) * np.log(len(unigram))
            seen += len(chances)
    figures = {
        name: {
            "top-1": one[0] / seen,
            f"top-{TOP}": one[1] / seen,
            "perplexity": float(np.exp(one[2] / seen)),
        }
        for name, one in sums.items()
    }
    return {"windows": seen, **figures, "perplexity of a blind guess": float(np.exp(blind / seen))}


def judged(chances: Tensor, target: Tensor) -> np.ndarray:
    """How often the right word is first, how often among the first, and the sum of its surprise."""
    own = chances.gather(1, target.unsqueeze(1))
    rank = (chances > own).sum(dim=1)
    return np.array([int((rank == 0).sum()), int((rank < TOP).sum()), -float(own.sum())])


if __name__ == "__main__":
    main()
