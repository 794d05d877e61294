"""models.json against the code, where there is torch, and against the second client."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from second_client.models import Sample, din_logit, logistic_logit, succinct, train_logistic
from second_client.rounds import Model
from second_client.wire import Refused, decode, encode

VECTORS: Any = json.loads((Path(__file__).parent / "models.json").read_text())
CASES = [pytest.param(one, id=one["name"]) for one in VECTORS["models"]]


def values(count: int, shift: int) -> Any:
    return (((7919 * np.arange(count) + shift) % 2003 - 1001) / 4004).astype(np.float32)


def told(case: Any) -> Any:
    """The package, the model it makes, its dense part and all rows."""
    data = bytes.fromhex(case["package"])
    model = Model.read(data)
    rows = {
        table["name"]: dict(
            enumerate(values(table["rows"] * table["width"], place + 1).reshape(-1, table["width"]))
        )
        for place, table in enumerate(model.tables)
    }
    samples = [Sample(one["user"], one["item"], one["history"], one["label"]) for one in case["samples"]]
    return decode(data, "model-package"), model, values(model.dense, 0), rows, samples


def test_the_file_is_what_the_code_gives() -> None:
    pytest.importorskip("torch")
    from vectors import make_models

    assert make_models.main(["--check"]) == 0


@pytest.mark.parametrize("case", CASES)
def test_the_second_client_scores_alike(case: Any) -> None:
    package, model, dense, rows, samples = told(case)
    for one, sample in zip(case["samples"], samples, strict=True):
        if package["kind"] == "din":
            found = din_logit(dense, rows, model.category_of, sample, package)
        else:
            found = logistic_logit(dense, rows, model.category_of, sample)
        assert found == pytest.approx(one["logit"], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("case", CASES[:2])
def test_the_second_client_trains_alike(case: Any) -> None:
    _, model, dense, rows, samples = told(case)
    rng = np.random.default_rng(0)
    moved, by_row = train_logistic(dense, rows, model.category_of, samples, case["training"], rng)
    np.testing.assert_allclose(moved, case["update"]["dense"], rtol=1e-4, atol=1e-6)
    for table, expected in case["update"]["rows"].items():
        assert sorted(by_row[table]) == [row for row, *_ in expected]
        for row, count, moves in expected:
            assert by_row[table][row][1] == count
            np.testing.assert_allclose(by_row[table][row][0], moves, rtol=1e-4, atol=1e-6)


def test_a_package_whose_parts_do_not_fit_is_refused() -> None:
    package = decode(bytes.fromhex(VECTORS["models"][0]["package"]), "model-package")
    fields = {name: value for name, value in package.items() if name != "type"}
    Model.read(encode("model-package", **fields))
    for change in (
        {"items": fields["items"] + 1},
        {"users": fields["users"] + 1},
        {"category_of": b"\x03" + fields["category_of"][1:]},
        {"model": fields["model"] | {"dense": 2}},
        {"kind": "din", "slopes": "dice"},
        {"slopes": "dice"},
    ):
        with pytest.raises(Refused):
            Model.read(encode("model-package", **fields | change))


def test_samples_that_rows_allow() -> None:
    samples = [Sample(0, 1, [2, 3, 2], 1), Sample(0, 2, [3], 0), Sample(0, 3, [1], 0), Sample(0, 1, [], 1)]
    assert succinct(samples, [1, 2]) == [Sample(0, 1, [2, 2], 1)]
