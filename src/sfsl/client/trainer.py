"""What an app brings: something that trains. ``sfsl.client.training`` has one for torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from sfsl.arrays import Indices, Values
from sfsl.rounds import Download, Trained


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
