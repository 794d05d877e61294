"""The tables of models that predict clicks: users, items, and categories where items have them."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import nn

from sfsl.data.interactions import Interactions
from sfsl.submodel.tables import Table
from sfsl.training.task import Task


def click_task(module: nn.Module, data: Interactions, *, user: int, item: int, initial: float) -> Task:
    """``user`` and ``item`` are the widths of rows; a category's are as wide as an item's.

    A user's own row stays with the user; categories follow from items.
    """
    tables = [
        Table(name="user", rows=len(data.users), width=user, kind="personal", initial=initial),
        Table(name="item", rows=len(data.items), width=item, initial=initial),
    ]
    if data.categories is None or data.category_of is None:
        return Task(module, tuple(tables), looked_up=("user", "item"))
    rows = len(data.categories)
    tables.append(
        Table(name="category", rows=rows, width=item, kind="derived", source="item", initial=initial)
    )
    return Task(
        module, tuple(tables), maps={"category": data.category_of}, looked_up=("user", "item", "category")
    )


def recommender(
    model: Callable[..., nn.Module],
    data: Interactions,
    *,
    seed: int,
    width: int,
    slopes: Literal["dice", "prelu"],
    initial: float,
) -> Task:
    """A model of goods for these users, items and categories; the dense part begins as ``seed`` says."""
    categories = None if data.categories is None else len(data.categories)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = model(
            len(data.users), len(data.items), categories, width=width, slopes=slopes, device="meta"
        )
    return click_task(module, data, user=width, item=width, initial=initial)
