"""What a server gives to clients so that each can build the model: public, canonical, bounded.

The package says how large everything is and which category each item has. No values are in it: dense
parameters and rows come with each round. Its digest is the model's name.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from msgspec import Meta

from sfsl.codec import Codec, Message
from sfsl.crypto.secret import digest
from sfsl.data.catalogue import CATEGORY, ITEM, WORD, Catalogue, CatalogueTable
from sfsl.errors import InputError, InvalidMessage, ParameterError
from sfsl.models.kinds import KINDS, build_task, kind_of
from sfsl.models.lstm import UNITS
from sfsl.submodel import ModelSpec
from sfsl.training.task import Task

Count = Annotated[int, Meta(ge=0, lt=2**62)]
KindName = Annotated[str, Meta(min_length=1, max_length=64)]
Width = Annotated[int, Meta(ge=1, le=4096)]
Initial = Annotated[float, Meta(ge=0, le=10)]


class Package(Message, frozen=True, tag="model-package", omit_defaults=True):
    """A model of clicks. ``categories`` is 0 where items have none. ``category_of``: the category of each
    item in turn, each as a little-endian number of as few bytes (1, 2, 4 or 8) as the number of categories
    allows. Logistic regression has width 2, no slopes and rows that begin at 0. ``model`` repeats what
    follows from the rest, so that a misunderstanding shows at once. ``layout`` is left out where it is the
    paper's, the only one that older servers know, and in logistic regression, which has none."""

    about: ClassVar = "clicks"
    kind: KindName
    width: Width
    slopes: Literal["dice", "prelu", ""]
    initial: Initial
    users: Count
    items: Count
    categories: Count
    category_of: bytes
    model: ModelSpec
    layout: Literal["paper", "wide"] = "paper"

    @property
    def catalogue(self) -> Catalogue:
        tables = [CatalogueTable(ITEM, self.items)]
        if self.categories:
            follows = np.frombuffer(self.category_of, _number(self.categories))
            follows = follows.astype(np.int32 if self.categories < 2**31 else np.int64)
            tables.append(CatalogueTable(CATEGORY, self.categories, source=ITEM, map=follows))
        return Catalogue(tuple(tables), self.users)

    def require_possible(self) -> None:
        """Raise ``InvalidMessage`` where parts of it contradict each other."""
        if self.kind == "logistic":
            if (self.width, self.slopes, self.initial, self.layout) != (2, "", 0, "paper"):
                raise InvalidMessage(
                    "logistic regression has rows of width 2 that begin at 0, and neither slopes nor layout"
                )
        elif not self.slopes:
            raise InvalidMessage(f"a {self.kind} without slopes")
        rows = max(self.users, self.items, self.categories)
        if not (self.users and self.items) or rows * self.width >= 2**62:
            raise InvalidMessage(f"tables of {self.users} users and {self.items} items cannot be")
        expected = self.items * _number(self.categories).itemsize if self.categories else 0
        if (given := len(self.category_of)) != expected:
            raise InvalidMessage(f"{given} bytes of categories for {self.items} items; {expected} are due")


class WordPackage(Message, frozen=True, tag="word-model-package"):
    """A model of words, of which there are ``words``. A row is ``width`` numbers and a bias; ``units`` is the
    size of the state. ``model`` repeats what follows from the rest."""

    about: ClassVar = "words"
    slopes: ClassVar[str] = ""
    layout: ClassVar[str] = ""
    kind: KindName
    width: Width
    units: Width
    initial: Initial
    words: Count
    model: ModelSpec

    @property
    def catalogue(self) -> Catalogue:
        return Catalogue.sized(word=self.words)

    def require_possible(self) -> None:
        """Raise ``InvalidMessage`` for what this version cannot build."""
        if self.units != UNITS:
            raise InvalidMessage(f"a model of words with {self.units} units; this client knows {UNITS}")
        if not self.words or self.words * (self.width + 1) >= 2**62:
            raise InvalidMessage(f"a table of {self.words} words cannot be")


@dataclass(frozen=True)
class Limits:
    """What a client is ready to hold. Rows of a table take no memory until they are downloaded, so they
    are bounded only where numbers would overflow."""

    bytes: int = 64 << 20
    width: int = 512


_CODEC = Codec(Package, WordPackage)


def package_digest(data: bytes) -> bytes:
    """The name of the model that a package describes."""
    return digest("model package", data)


def describe(task: Task) -> bytes:
    """The package of a task of one of the ``KINDS``."""
    kind, tables = kind_of(task), {table.name: table for table in task.tables}
    given = task.maps.get(CATEGORY, np.zeros(0, np.int64))
    if kind is None or callable(given):
        raise InputError(
            f"{type(task.module).__name__} cannot be sent to clients: a package describes "
            f"{', '.join(KINDS)} with an explicit map of categories. Ship your own model with the app that "
            "joins"
        )
    if KINDS[kind].about == "words":
        word, units = tables[WORD], int(task.module.units)  # type: ignore[arg-type]
        return _CODEC.encode(WordPackage(kind, word.width - 1, units, word.initial, word.rows, task.spec))
    categories = tables[CATEGORY].rows if CATEGORY in tables else 0
    return _CODEC.encode(
        Package(
            kind=kind,
            width=tables[ITEM].width,
            slopes=getattr(task.module, "slopes", ""),
            initial=tables[ITEM].initial,
            users=tables["user"].rows,
            items=tables[ITEM].rows,
            categories=categories,
            category_of=np.asarray(given).astype(_number(categories)).tobytes(),
            model=task.spec,
            layout=getattr(task.module, "layout", "paper"),
        )
    )


def read_package(data: bytes, limits: Limits | None = None) -> Package | WordPackage:
    """A package that can be built, or ``InvalidMessage``; checked before anything of its size is made."""
    limits = limits or Limits()
    package = _CODEC.decode(data, limit=limits.bytes)
    assert isinstance(package, Package | WordPackage)  # noqa: S101 -- the codec knows no other type
    if package.kind not in KINDS or KINDS[package.kind].about != package.about:
        raise InvalidMessage(
            f"a package of {package.about} for a model that this client does not know; it knows "
            f"{', '.join(KINDS)}. Is it older than the server?"
        )
    if package.width > limits.width:
        raise InvalidMessage(f"a model of width {package.width}; this client takes up to {limits.width}")
    package.require_possible()
    return package


def build(data: bytes, limits: Limits | None = None) -> Task:
    """The task that a package describes. Its tables have no memory, and its dense part no meaning."""
    package = read_package(data, limits)
    try:
        task = build_task(package.catalogue, package, seed=0)
        _ = task.row_maps  # reads the map: a category that is not there shows here
    except (ParameterError, InputError) as error:
        raise InvalidMessage(f"a package that describes no model: {error}") from None
    if task.spec != package.model:
        raise InvalidMessage("a package whose parts do not make the model that it names")
    return task


def _number(count: int) -> np.dtype[np.unsignedinteger]:
    size = next(size for size in (1, 2, 4, 8) if count <= 256**size)
    return np.dtype(f"<u{size}")
