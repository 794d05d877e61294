"""The tables of models that predict clicks: users, items, and categories where items have them."""

from dataclasses import dataclass

import torch
from torch import nn

from sfsl.data.catalogue import CATEGORY, ITEM, Catalogue
from sfsl.errors import ParameterError
from sfsl.models.items import WIDTH, Layout, Slopes
from sfsl.submodel.tables import Table
from sfsl.training.task import Task

INITIAL = 0.05


def click_rows(catalogue: Catalogue) -> tuple[int, int, int | None]:
    """How many users, items and categories there are."""
    items = catalogue.rows(ITEM)
    if items is None or not catalogue.users:
        raise ParameterError(
            f"a model of clicks needs a catalogue with users and the table {ITEM!r}; this one has "
            f"{catalogue.users} users and {', '.join(repr(table.name) for table in catalogue.tables)}"
        )
    return catalogue.users, items, catalogue.rows(CATEGORY)


def click_task(module: nn.Module, catalogue: Catalogue, *, user: int, item: int, initial: float) -> Task:
    """``user`` and ``item`` are the widths of rows; a category's are as wide as an item's.

    A user's own row stays with the user; categories follow from items.
    """
    users, items, categories = click_rows(catalogue)
    tables = [
        Table(name="user", rows=users, width=user, kind="personal", initial=initial),
        Table(name=ITEM, rows=items, width=item, initial=initial),
    ]
    if categories is None:
        return Task(module, tuple(tables), looked_up=("user", ITEM))
    follows = catalogue.table(CATEGORY).map
    if follows is None:
        raise ParameterError(f"the table {CATEGORY!r} of a catalogue of clicks follows from {ITEM!r}")
    tables.append(
        Table(name=CATEGORY, rows=categories, width=item, kind="derived", source=ITEM, initial=initial)
    )
    return Task(module, tuple(tables), maps={CATEGORY: follows}, looked_up=("user", ITEM, CATEGORY))


@dataclass(frozen=True)
class ClickFactory:
    """Makes models of one class, whose constructor takes the numbers of users, items and categories."""

    module: type[nn.Module]

    def __call__(
        self,
        catalogue: Catalogue,
        *,
        seed: int,
        width: int = WIDTH,
        slopes: Slopes = "dice",
        layout: Layout = "wide",
        initial: float = INITIAL,
    ) -> Task:
        """A model for the users, items and categories of a catalogue; the dense part begins as ``seed`` says,
        rows within plus or minus ``initial``."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self.module(
                *click_rows(catalogue), width=width, slopes=slopes, layout=layout, device="meta"
            )
        return click_task(module, catalogue, user=width, item=width, initial=initial)
