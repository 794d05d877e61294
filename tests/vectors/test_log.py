"""log.json against the code, and against the second client, which was written from the specification."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from second_client import log as second
from second_client.wire import Refused, decode
from sfsl import errors
from sfsl.client.log import MemberLog
from sfsl.service.log import LogTrust, head_json, leaf_of
from sfsl.service.messages import CODEC, LogEntry, LogHead, LogProof
from vectors import make_log

VECTORS: dict[str, Any] = json.loads((Path(__file__).parent / "log.json").read_text())
LIMIT = 1 << 20


def names(cases: list[dict[str, Any]]) -> Any:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case["name"].replace(" ", "-"))


def test_the_file_is_what_the_code_gives() -> None:
    assert make_log.main(["--check"]) == 0


def test_leaves_and_roots() -> None:
    leaves = []
    for one in VECTORS["entries"]:
        public, voucher = bytes.fromhex(one["public_key"]), bytes.fromhex(one["voucher"])
        leaves.append(second.leaf(public, voucher))
        assert leaf_of(LogEntry(public, voucher)).hex() == leaves[-1].hex() == one["leaf"]
    assert [second.root(leaves[:size]).hex() for size in range(len(leaves) + 1)] == VECTORS["roots"]


def ours(case: dict[str, Any], folder: Path) -> dict[str, bytes]:
    log = MemberLog(folder / "log", msgspec.convert(VECTORS["trust"], LogTrust))
    if case["known"]:
        known = CODEC.decode(bytes.fromhex(case["known"]), limit=LIMIT)
        assert isinstance(known, LogHead)
        (folder / "log").write_bytes(head_json(known))
    proof = CODEC.decode(bytes.fromhex(case["proof"]), limit=LIMIT)
    assert isinstance(proof, LogProof)
    log.take(proof, case["clients"])
    return log.members


def theirs(case: dict[str, Any]) -> dict[str, bytes]:
    known = decode(bytes.fromhex(case["known"]), "log-head") if case["known"] else None
    log = second.Log(VECTORS["trust"], known)
    return log.take(decode(bytes.fromhex(case["proof"]), "log-proof"), case["clients"])


@names(VECTORS["taken"])
def test_taken(case: dict[str, Any], tmp_path: Path) -> None:
    assert ours(case, tmp_path) == theirs(case)
    assert sorted(ours(case, tmp_path)) == case["clients"]


@names(VECTORS["refused"])
def test_refused(case: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(errors.SfslError) as caught:
        ours(case, tmp_path)
    assert type(caught.value).__name__ == case["error"]
    with pytest.raises(Refused):
        theirs(case)
