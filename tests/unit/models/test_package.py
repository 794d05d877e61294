"""The package of a model: what goes in comes out, and a liar gets nothing built."""

import tracemalloc
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from sfsl.codec import Codec
from sfsl.data.catalogue import Catalogue
from sfsl.data.interactions import Interactions
from sfsl.data.synthetic import SyntheticSettings, SyntheticTaobao
from sfsl.errors import InputError, InvalidMessage, RemoteError
from sfsl.models import bst, dien, din, logistic_regression, next_word_lstm
from sfsl.models.kinds import KINDS
from sfsl.models.package import (
    Limits,
    Package,
    WordPackage,
    build,
    describe,
    package_digest,
    read_package,
)
from sfsl.submodel import ModelSpec, Table
from sfsl.training.task import Task

CODEC = Codec(Package, WordPackage)


def interactions(categories: bool = True) -> Interactions:
    data = SyntheticTaobao(SyntheticSettings().scaled(0.02, users=8), seed=1).interactions()
    if categories:
        return data
    return Interactions(
        **{
            **{name: getattr(data, name) for name in data.__dataclass_fields__},
            "category_of": None,
            "categories": None,
        }
    )


TASKS = {
    "dice": lambda: din(Catalogue.of(interactions()), seed=1),
    "prelu": lambda: din(Catalogue.of(interactions()), seed=1, slopes="prelu", width=7, initial=0.5),
    "no categories": lambda: din(Catalogue.of(interactions(False)), seed=1),
    "logistic": lambda: logistic_regression(Catalogue.of(interactions())),
    "dien": lambda: dien(Catalogue.of(interactions()), seed=1, width=5),
    "dien, no categories": lambda: dien(Catalogue.of(interactions(False)), seed=1, slopes="prelu"),
    "bst": lambda: bst(Catalogue.of(interactions()), seed=1, width=5, slopes="prelu"),
    "lstm": lambda: next_word_lstm(Catalogue.sized(word=70), seed=1, width=5, initial=0.5),
    "logistic, no categories": lambda: logistic_regression(Catalogue.of(interactions(False))),
}


def package(**changes: Any) -> Package:
    found = CODEC.decode(describe(din(Catalogue.of(interactions()), seed=1)), limit=10**6)
    return msgspec.structs.replace(found, **changes)


def words(**changes: Any) -> WordPackage:
    found = CODEC.decode(describe(TASKS["lstm"]()), limit=10**6)
    return msgspec.structs.replace(found, **changes)


def logistic(**changes: Any) -> Package:
    found = CODEC.decode(describe(logistic_regression(Catalogue.of(interactions()))), limit=10**6)
    return msgspec.structs.replace(found, **changes)


@pytest.mark.parametrize("name", TASKS)
def test_what_is_described_is_built(name: str) -> None:
    task = TASKS[name]()
    data = describe(task)
    built = build(data)
    assert built.spec == task.spec
    assert type(built.module) is type(task.module)
    assert [type(one) for one in built.module.modules()] == [type(one) for one in task.module.modules()]
    assert built.dense_shapes == task.dense_shapes
    assert describe(built) == data
    if "category" in task.maps:
        rows = np.arange(task.spec.table("item").rows)
        assert np.array_equal(
            built.row_maps.rows_of("category", rows), task.row_maps.rows_of("category", rows)
        )
    assert all(one.is_meta for key, one in built.module.named_parameters() if key not in built.dense_shapes)


def test_every_model_has_a_digest_of_its_own() -> None:
    packages = [describe(make()) for make in TASKS.values()]
    assert len({package_digest(one) for one in packages}) == len(TASKS)
    assert len(package_digest(packages[0])) == 32


def test_dense_parameters_are_not_in_it() -> None:
    assert describe(din(Catalogue.of(interactions()), seed=1)) == describe(
        din(Catalogue.of(interactions()), seed=2)
    )


def test_a_model_of_ones_own_cannot_be_described() -> None:
    class Own(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.item = torch.nn.Embedding(5, 2)

    with pytest.raises(InputError, match="Own cannot be sent"):
        describe(Task(Own(), (Table(name="item", rows=5, width=2),)))


def lies() -> dict[str, Package | WordPackage]:
    honest = package()
    model = honest.model
    item = model.table("item")
    return {
        "more dense parameters": package(model=msgspec.structs.replace(model, dense=model.dense + 1)),
        "a table less": package(model=ModelSpec(tables=model.tables[:2], dense=model.dense)),
        "wider rows": package(width=19),
        "another start": package(initial=0.25),
        "more items": package(items=item.rows + 1),
        "more users": package(users=honest.users + 1),
        "more categories": package(categories=honest.categories + 1),
        "no users": package(users=0),
        "no items": package(items=0, category_of=b""),
        "no slopes": package(slopes=""),
        "a map cut short": package(category_of=honest.category_of[:-1]),
        "a category that is not there": package(category_of=b"\xff" * len(honest.category_of)),
        "logistic of another width": logistic(width=18),
        "logistic with slopes": logistic(slopes="dice"),
        "logistic that begins elsewhere": logistic(initial=0.05),
        "a map without categories": package(categories=0),
        "another model of as many tables": package(kind="dien"),
        "a model that nobody knows": package(kind="oracle"),
        "a model of words with items": package(kind="lstm"),
        "a model of clicks with words": words(kind="din"),
        "more words": words(words=71),
        "no words": words(words=0),
        "words beyond any machine": words(words=2**61),
        "wider words": words(width=6),
        "other units": words(units=65),
        "words that begin elsewhere": words(initial=0.25),
    }


@pytest.mark.parametrize("name", lies())
def test_a_package_that_contradicts_itself(name: str) -> None:
    with pytest.raises(InvalidMessage):
        build(CODEC.encode(lies()[name]))


def test_a_width_beyond_the_clients_limit() -> None:
    data = describe(din(Catalogue.of(interactions()), seed=1, width=40))
    assert build(data).spec.table("item").width == 40
    with pytest.raises(InvalidMessage, match="width 40"):
        build(data, Limits(width=39))


def test_more_bytes_than_the_clients_limit() -> None:
    data = describe(din(Catalogue.of(interactions()), seed=1))
    with pytest.raises(RemoteError):
        build(data, Limits(bytes=len(data) - 1))


def test_huge_tables_take_no_memory() -> None:
    """A hundred billion rows of each: told in a few bytes, built in a few more."""
    rows = 10**11
    tables = (
        Table(name="user", rows=rows, width=18, kind="personal"),
        Table(name="item", rows=rows, width=18),
    )
    small = build(describe(din(Catalogue.of(interactions(False)), seed=1)))
    honest = Package(
        "din", 18, "dice", 0.05, rows, rows, 0, b"", ModelSpec(tables=tables, dense=small.spec.dense)
    )
    tracemalloc.start()
    built = build(CODEC.encode(honest))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert built.spec.table("item").rows == rows
    assert peak < 10**7


@pytest.mark.parametrize("rows", [2**58, 2**62 - 1])
def test_tables_beyond_any_machine_are_refused(rows: int) -> None:
    with pytest.raises(InvalidMessage, match="cannot be"):
        read_package(CODEC.encode(package(users=rows, categories=0, category_of=b"")))


def test_a_map_of_a_hundred_billion_items_is_refused_before_it_is_made() -> None:
    with pytest.raises(InvalidMessage, match="bytes of categories"):
        read_package(CODEC.encode(package(items=10**11)))


@settings(max_examples=300, deadline=None)
@given(place=st.integers(0, 10**6), value=st.integers(0, 255))
def test_one_other_byte(place: int, value: int) -> None:
    """Either refused in a typed way, or the very model that its own words describe."""
    data = bytearray(HONEST)
    data[place % len(data)] = value
    try:
        built = build(bytes(data))
    except RemoteError:
        return
    assert describe(built) == bytes(data)


@settings(max_examples=300, deadline=None)
@given(
    st.builds(
        Package,
        kind=st.sampled_from([*KINDS, "oracle"]),
        width=st.integers(1, 4096),
        slopes=st.sampled_from(["dice", "prelu", ""]),
        initial=st.floats(0, 10),
        users=st.integers(0, 2**62 - 1),
        items=st.integers(0, 2**62 - 1),
        categories=st.integers(0, 2**62 - 1),
        category_of=st.binary(max_size=64),
        model=st.just(ModelSpec(tables=(Table(name="item", rows=5, width=2),), dense=3)),
    )
)
def test_any_package_is_refused_in_a_typed_way(made: Package) -> None:
    with pytest.raises(RemoteError):
        build(CODEC.encode(made))


HONEST = describe(din(Catalogue.of(interactions()), seed=1))
