"""What a client knows of the model, and what an app brings to train it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from sfsl.arrays import Indices, Values
from sfsl.privacy import Tables
from sfsl.rounds import Download, Trained
from sfsl.submodel import ModelSpec, RowMaps


@dataclass(frozen=True)
class ClientModel:
    """``digest`` is that of the package from which ``spec`` and ``maps`` were built, ``names`` that of what a
    catalogue calls its rows; empty where there is none."""

    digest: bytes
    spec: ModelSpec
    maps: RowMaps
    names: bytes = b""

    @property
    def tables(self) -> Tables:
        """The model's tables by what a client may say about them."""
        kinds = ("shared", "derived", "personal")
        named = {kind: tuple(one.name for one in self.spec.tables if one.kind == kind) for kind in kinds}
        return Tables(**named)


@dataclass(frozen=True)
class Lesson:
    """What goes into the sum, and what stays: per personal table the rows and their new values."""

    trained: Trained
    personal: Mapping[str, tuple[Indices, Values]]


class Trainer(Protocol):
    """Called in another thread than the event loop's, for one round at a time. Trainers that share a torch
    module must not run side by side."""

    @property
    def personal(self) -> Mapping[str, Indices]:
        """The rows that it keeps of each personal table, ascending."""

    def require(self, training: Mapping[str, float]) -> None:
        """Raise ``Refused`` where it does not take a round's hyperparameters; before anything leaves.

        The server is told that this client declines, so it must not depend on the client's data."""

    def train(self, download: Download, personal: Mapping[str, Values], number: int) -> Lesson:
        """Train a submodel in round ``number``. ``personal`` are the values of its personal rows."""
