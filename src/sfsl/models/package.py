"""What a server gives to clients so that each can build the model: public, canonical, bounded.

The package says how large everything is and which category each item has. No values are in it: dense
parameters and rows come with each round. Its digest is the model's name.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from sfsl.codec import Codec, Message
from sfsl.crypto.kdf import digest
from sfsl.data.interactions import Interactions
from sfsl.errors import InputError, InvalidMessage, ParameterError
from sfsl.models.activations import Dice
from sfsl.models.din import DIN, din
from sfsl.models.logistic import LogisticRegression, logistic_regression
from sfsl.submodel import ModelSpec
from sfsl.training.task import Task

Count = Annotated[int, Meta(ge=0, lt=2**62)]


class Package(Message, frozen=True, tag="model-package"):
    """``categories`` is 0 where items have none. ``category_of``: the category of each item in turn, each
    as a little-endian number of as few bytes (1, 2, 4 or 8) as the number of categories allows. ``width``,
    ``slopes`` and ``initial`` are DIN's; logistic regression has width 2, no slopes and rows that begin
    at 0. ``model`` repeats what follows from the rest, so that a misunderstanding shows at once."""

    kind: Literal["din", "logistic"]
    width: Annotated[int, Meta(ge=1, le=4096)]
    slopes: Literal["dice", "prelu", ""]
    initial: Annotated[float, Meta(ge=0, le=10)]
    users: Count
    items: Count
    categories: Count
    category_of: bytes
    model: ModelSpec


@dataclass(frozen=True)
class Limits:
    """What a client is ready to hold. Rows of a table take no memory until they are downloaded, so they
    are bounded only where numbers would overflow."""

    bytes: int = 64 << 20
    width: int = 512


_CODEC = Codec(Package)


def package_digest(data: bytes) -> bytes:
    return digest("model package", data)


def describe(task: Task) -> bytes:
    """The package of a task that ``din`` or ``logistic_regression`` made."""
    module, tables = task.module, {table.name: table for table in task.tables}
    given = task.maps.get("category", np.zeros(0, np.int64))
    if not isinstance(module, DIN | LogisticRegression) or callable(given):
        raise InputError(
            f"{type(module).__name__} cannot be sent to clients: a package describes din or logistic with an "
            "explicit map of categories. Ship your own model with the app that joins"
        )
    categories = tables["category"].rows if "category" in tables else 0
    slopes: Literal["dice", "prelu", ""] = ""
    if isinstance(module, DIN):
        slopes = "dice" if any(isinstance(layer, Dice) for layer in module.tower) else "prelu"
    return _CODEC.encode(
        Package(
            kind="din" if isinstance(module, DIN) else "logistic",
            width=tables["item"].width,
            slopes=slopes,
            initial=tables["item"].initial,
            users=tables["user"].rows,
            items=tables["item"].rows,
            categories=categories,
            category_of=np.asarray(given).astype(_number(categories)).tobytes(),
            model=task.spec,
        )
    )


def read_package(data: bytes, limits: Limits | None = None) -> Package:
    """A package that can be built, or ``InvalidMessage``; checked before anything of its size is made."""
    limits = limits or Limits()
    package = _CODEC.decode(data, limit=limits.bytes)
    assert isinstance(package, Package)  # noqa: S101 -- the codec knows no other type
    width = package.width
    if package.kind == "logistic" and (width, package.slopes, package.initial) != (2, "", 0):
        raise InvalidMessage("logistic regression has rows of width 2 that begin at 0, and no slopes")
    if package.kind == "din" and (not package.slopes or width > limits.width):
        raise InvalidMessage(f"a DIN of width {width}; this client takes up to {limits.width}, with slopes")
    rows = max(package.users, package.items, package.categories)
    if not (package.users and package.items) or rows * width >= 2**62:
        raise InvalidMessage(f"tables of {package.users} users and {package.items} items cannot be")
    expected = package.items * _number(package.categories).itemsize if package.categories else 0
    if len(package.category_of) != expected:
        raise InvalidMessage(
            f"{len(package.category_of)} bytes of categories for {package.items} items; {expected} are due"
        )
    return package


def build(data: bytes, limits: Limits | None = None) -> Task:
    """The task that a package describes. Its tables have no memory, and its dense part no meaning."""
    package = read_package(data, limits)
    known = _vocabulary(package)
    try:
        if package.kind == "logistic":
            task = logistic_regression(known)
        else:
            task = din(
                known,
                seed=0,
                width=package.width,
                slopes="dice" if package.slopes == "dice" else "prelu",
                initial=package.initial,
            )
        _ = task.row_maps  # reads the map: a category that is not there shows here
    except (ParameterError, InputError) as error:
        raise InvalidMessage(f"a package that describes no model: {error}") from None
    if task.spec != package.model:
        raise InvalidMessage("a package whose parts do not make the model that it names")
    return task


def _vocabulary(package: Package) -> Interactions:
    """As many users, items and categories as the package says, of nobody's data. Names take no memory."""
    none, categories = np.zeros(0, np.int64), package.categories
    category_of = np.frombuffer(package.category_of, _number(categories))
    return Interactions(
        users=_names(package.users),
        items=_names(package.items),
        offsets=np.zeros(1, np.int64),
        item=none.astype(np.int32),
        label=none.astype(np.int8),
        time=none.astype(np.float64),
        click_offsets=np.zeros(1, np.int64),
        clicks=none.astype(np.int32),
        history_start=none.astype(np.int32),
        history_stop=none.astype(np.int32),
        category_of=category_of.astype(np.int32 if categories < 2**31 else np.int64) if categories else None,
        categories=_names(categories) if categories else None,
    )


def _names(count: int) -> NDArray[np.int8]:
    """An array of so many names, none of which has a place of its own."""
    return np.broadcast_to(np.int8(0), (count,))


def _number(count: int) -> np.dtype[np.unsignedinteger]:
    size = next(size for size in (1, 2, 4, 8) if count <= 256**size)
    return np.dtype(f"<u{size}")
