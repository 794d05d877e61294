"""The notebooks run from their first cell to their last, and are kept without output."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs/notebooks").glob("*.ipynb"))
SECONDS = 900


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == kind]


def test_there_are_two() -> None:
    assert len(NOTEBOOKS) >= 2


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_plain_python_without_output(path: Path) -> None:
    """So that a diff shows what changed, and nothing is claimed that the next run does not show."""
    read = json.loads(path.read_text())
    assert read["nbformat"] == 4
    assert len({cell["id"] for cell in read["cells"]}) == len(read["cells"])
    for cell in cells(path, "code"):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
        assert not "".join(cell["source"]).startswith(("!", "%"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path) -> None:
    """In one process, cell by cell, with the last lines of each shown if one fails."""
    pytest.importorskip("torch")
    code = ["".join(cell["source"]) for cell in cells(path, "code")]
    program = f"names = {{'__name__': '__main__'}}\nfor number, cell in enumerate({code!r}):\n"
    program += (
        "    print('cell', number, flush=True)\n    exec(compile(cell, f'cell {number}', 'exec'), names)\n"
    )
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]
    assert f"cell {len(code) - 1}" in done.stdout
