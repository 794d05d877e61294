"""rows.json against the code, and against the second client, which was written from the specification."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from second_client.rounds import require_committed as second
from second_client.wire import Refused, digest
from sfsl import errors
from sfsl.rounds.commitment import require_committed
from sfsl.rounds.exchanges import Submodel
from sfsl.secagg.messages import Layout, TableShape
from vectors import make_rows

VECTORS: dict[str, Any] = json.loads((Path(__file__).parent / "rows.json").read_text())
BINDING = bytes.fromhex(VECTORS["binding"])


def names(cases: list[dict[str, Any]]) -> Any:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case["name"].replace(" ", "-"))


def ours(case: dict[str, Any]) -> None:
    rows, root, proof = tuple(map(bytes.fromhex, case["rows"])), *map(bytes.fromhex, told(case))
    submodel = Submodel(bytes(16), (0, 1), rows, b"", b"", (), root, proof)
    layout = Layout(dense=0, tables=tuple(TableShape(**shape) for shape in case["shapes"]))
    require_committed(submodel, BINDING, layout, [np.array(one, np.intp) for one in case["places"]])


def theirs(case: dict[str, Any]) -> None:
    rows, unions = map(bytes.fromhex, case["rows"]), [one["rows"] for one in case["shapes"]]
    root, proof = map(bytes.fromhex, told(case))
    second(BINDING, list(zip(rows, case["places"], unions, strict=True)), root, proof)


def told(case: dict[str, Any]) -> tuple[str, str]:
    return case["root"], case["proof"]


def test_the_file_is_what_the_code_gives() -> None:
    assert make_rows.main(["--check"]) == 0


@names(VECTORS["taken"])
def test_taken(case: dict[str, Any]) -> None:
    ours(case)
    theirs(case)


@names(VECTORS["taken"])
def test_every_row_by_the_second_client_has_the_same_root(case: dict[str, Any]) -> None:
    everything = [list(range(one["rows"])) for one in case["shapes"]]
    theirs(case | {"rows": case["union"], "places": everything, "proof": ""})


@names(VECTORS["digests"])
def test_digests(case: dict[str, Any]) -> None:
    union = map(bytes.fromhex, case["union"])
    assert (digest("rows", BINDING, *union)[:20].hex(), "") == told(case)


@names(VECTORS["refused"])
def test_refused(case: dict[str, Any]) -> None:
    with pytest.raises(errors.Deceived):
        ours(case)
    with pytest.raises(Refused):
        theirs(case)
