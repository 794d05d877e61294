"""Real worlds, from the folder in which they lie; none of them is part of this project."""

from collections.abc import Callable, Mapping
from pathlib import Path

from sfsl.data.amazon import load_amazon
from sfsl.data.assemble import with_negatives
from sfsl.data.interactions import Interactions
from sfsl.data.plain import load_taobao
from sfsl.data.words import Speech, load_shakespeare, speech_of
from sfsl.errors import ParameterError
from sfsl_research.worlds.world import World


def _amazon(path: Path, seed: int) -> Interactions:
    return load_amazon(path)[0]


def _taobao(path: Path, seed: int) -> Interactions:
    return with_negatives(load_taobao(path)[0], seed=seed)


def _shakespeare(path: Path, seed: int) -> Speech:
    return speech_of(load_shakespeare(path)[0])


# The file below the folder, who reads it, and the model that fits it.
REAL: Mapping[str, tuple[str, Callable[[Path, int], Interactions | Speech], str]] = {
    "amazon-electronics": ("amazon-electronics/interactions.tsv.gz", _amazon, "din"),
    "taobao-userbehavior": ("taobao-userbehavior/UserBehavior.csv.gz", _taobao, "din"),
    "shakespeare-roles": ("shakespeare-roles/roles.jsonl.gz", _shakespeare, "lstm"),
}


def load_real(name: str, folder: Path, *, seed: int = 0) -> World:
    """Read the world of this name; ``seed`` draws the negatives where only clicks are recorded."""
    if name not in REAL:
        raise ParameterError(f"there is no real world {name!r}; there are {', '.join(REAL)}")
    path, load, model = REAL[name]
    return World(name, load(folder / path, seed), model=model)
