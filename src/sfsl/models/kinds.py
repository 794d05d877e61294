"""Every kind of model that a run trains and a server serves, by name: a new one is a file and a line here."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import nn

from sfsl.data.catalogue import Catalogue
from sfsl.errors import ParameterError
from sfsl.models.bst import BST
from sfsl.models.click_task import ClickFactory
from sfsl.models.dien import DIEN
from sfsl.models.din import DIN
from sfsl.models.items import Layout, Slopes
from sfsl.models.logistic import LogisticRegression, logistic_regression
from sfsl.models.lstm import NextWordLSTM, next_word_lstm
from sfsl.training.task import Task

din, dien, bst = ClickFactory(DIN), ClickFactory(DIEN), ClickFactory(BST)


class ModelValues(Protocol):
    """What settings, or a package, say of a model besides its catalogue. A kind ignores what it lacks; its
    slopes are those of Dice unless ``prelu`` is said, and its layout is the paper's unless ``wide`` is."""

    @property
    def kind(self) -> str: ...
    @property
    def width(self) -> int: ...
    @property
    def slopes(self) -> str: ...
    @property
    def layout(self) -> str: ...
    @property
    def initial(self) -> float: ...


@dataclass(frozen=True)
class Kind:
    """``about`` says which tables its catalogue has and how its package is written."""

    module: type[nn.Module]
    about: Literal["clicks", "words"]
    make: Callable[[Catalogue, ModelValues, int], Task]


def _clicks(factory: ClickFactory) -> Kind:
    def make(catalogue: Catalogue, values: ModelValues, seed: int) -> Task:
        slopes: Slopes = "prelu" if values.slopes == "prelu" else "dice"
        layout: Layout = "wide" if values.layout == "wide" else "paper"
        return factory(
            catalogue, seed=seed, width=values.width, slopes=slopes, layout=layout, initial=values.initial
        )

    return Kind(factory.module, "clicks", make)


def _words(catalogue: Catalogue, values: ModelValues, seed: int) -> Task:
    return next_word_lstm(catalogue, seed=seed, width=values.width, initial=values.initial)


KINDS = {
    "din": _clicks(din),
    "dien": _clicks(dien),
    "bst": _clicks(bst),
    "logistic": Kind(LogisticRegression, "clicks", lambda catalogue, _, __: logistic_regression(catalogue)),
    "lstm": Kind(NextWordLSTM, "words", _words),
}


def build_task(catalogue: Catalogue, values: ModelValues, seed: int) -> Task:
    """The model that these settings name, for this catalogue; the dense part begins as ``seed`` says."""
    if values.kind not in KINDS:
        raise ParameterError(f"there is no model {values.kind!r}; there are {', '.join(KINDS)}")
    return KINDS[values.kind].make(catalogue, values, seed)


def kind_of(task: Task) -> str | None:
    """The name of a task's kind, None for a model of someone's own."""
    return next((name for name, kind in KINDS.items() if type(task.module) is kind.module), None)
