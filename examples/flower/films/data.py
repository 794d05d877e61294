"""Your data: what a node has, as columns, and which of them are row numbers of which table."""

import csv
from pathlib import Path

import numpy as np

from films.model import FILMS
from sfsl.data import Samples
from sfsl.errors import InputError
from sfsl.flower import Node
from sfsl.privacy import ClientState

SEEN, HELD_OUT = 60, 15


def load(node: Node, state: ClientState) -> tuple[Samples, Samples]:
    """To train on, and held out. A period keeps the data that it began with: ``samples`` sees to it."""
    if node.simulated:
        seen, liked = simulated(node.partition)
    else:
        copy, _ = node.home.samples(Path(node.terms.data), state, node.today())
        seen, liked = read(copy)
        names, repeat = [str(film).encode() for film in seen], node.terms.repeat_samples
        new = node.home.exposed.fresh(names, state, node.today(), repeat=repeat)  # to exact sums
        seen, liked = seen[new], liked[new]
    kept = len(seen) * (SEEN - HELD_OUT) // SEEN
    return columns(seen[:kept], liked[:kept]), columns(seen[kept:], liked[kept:])


def read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """A CSV file with the columns film (a number below 300) and liked (0 or 1)."""
    with open(path, newline="") as file:
        try:
            rows = [(int(row["film"]), int(row["liked"])) for row in csv.DictReader(file)]
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path} needs the columns film and liked, both numbers: {error}") from None
    found = np.array(rows, np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def columns(films: np.ndarray, liked: np.ndarray) -> Samples:
    own = {"taste": np.zeros(len(films), np.int64), "film": films, "label": liked.astype(np.float32)}
    return Samples(own, tables={"taste": "taste", "film": "film"})


def simulated(node: int) -> tuple[np.ndarray, np.ndarray]:
    """For a simulation: films have two kinds of appeal, nodes a taste for each."""
    kind = np.random.default_rng(0).standard_normal((FILMS, 2))
    rng = np.random.default_rng([1, node])
    taste, seen = rng.standard_normal(2), rng.choice(FILMS, SEEN, replace=False)
    return seen, (rng.random(SEEN) < 1 / (1 + np.exp(-3 * kind[seen] @ taste))).astype(np.int64)
