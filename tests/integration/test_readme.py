"""The README's example runs and prints what it says."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


def test_ten_lines(capsys: pytest.CaptureFixture[str]) -> None:
    found = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert found is not None
    exec(found.group(1), {})  # noqa: S102
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith("[101 202]")
    assert "ann" in first
    assert "bob" not in first
    assert second == "[14] 3"
    assert third.split() == ["[", "3", "17", "2000000000]", "sketch"]
