"""Every kind of model that a run trains and a server serves, by name: a new one is a file and a line here."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import nn

from sfsl.data.catalogue import Catalogue
from sfsl.errors import ParameterError
from sfsl.models.bst import BST
from sfsl.models.click_task import ClickFactory, Slopes, recommender
from sfsl.models.dien import DIEN
from sfsl.models.din import DIN
from sfsl.models.logistic import LogisticRegression, logistic_regression
from sfsl.models.lstm import NextWordLSTM, next_word_lstm
from sfsl.training.task import Task

din, dien, bst = recommender(DIN), recommender(DIEN), recommender(BST)


class ModelValues(Protocol):
    """What settings, or a package, say of a model besides its catalogue. A kind ignores what it lacks."""

    @property
    def kind(self) -> str: ...
    @property
    def width(self) -> int: ...
    @property
    def slopes(self) -> Slopes: ...
    @property
    def initial(self) -> float: ...


@dataclass(frozen=True)
class Kind:
    """``about`` says which tables its catalogue has and how its package is written."""

    module: type[nn.Module]
    about: Literal["clicks", "words"]
    make: Callable[[Catalogue, ModelValues, int], Task]


def _clicks(module: type[nn.Module], factory: ClickFactory) -> Kind:
    return Kind(
        module,
        "clicks",
        lambda catalogue, values, seed: factory(
            catalogue, seed=seed, width=values.width, slopes=values.slopes, initial=values.initial
        ),
    )


KINDS = {
    "din": _clicks(DIN, din),
    "dien": _clicks(DIEN, dien),
    "bst": _clicks(BST, bst),
    "logistic": Kind(LogisticRegression, "clicks", lambda catalogue, _, __: logistic_regression(catalogue)),
    "lstm": Kind(
        NextWordLSTM,
        "words",
        lambda catalogue, values, seed: next_word_lstm(
            catalogue, seed=seed, width=values.width, initial=values.initial
        ),
    ),
}


def build_task(catalogue: Catalogue, values: ModelValues, seed: int) -> Task:
    """The model that these settings name, for this catalogue; the dense part begins as ``seed`` says."""
    if values.kind not in KINDS:
        raise ParameterError(f"there is no model {values.kind!r}; there are {', '.join(KINDS)}")
    return KINDS[values.kind].make(catalogue, values, seed)


def kind_of(task: Task) -> str | None:
    """The name of a task's kind, None for a model of someone's own."""
    return next((name for name, kind in KINDS.items() if type(task.module) is kind.module), None)
