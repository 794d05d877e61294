"""The page on guarantees names attacks that are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/spec/guarantees.md"


def test_every_attack_that_was_tried_is_a_test() -> None:
    tried = PAGE.read_text().partition("## 4 Attacks that were tried")[2].splitlines()
    rows = [line for line in tried if line.startswith("|")][2:]
    assert len(rows) >= 10
    for row in rows:
        named = re.findall(r"`(tests/[^`]+)`", row.split("|")[4])
        assert named, row
        assert all("def test_" in (ROOT / one).read_text() for one in named), row
