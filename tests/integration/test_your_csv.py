"""The tutorial "your CSV": its commands as they stand, with fewer rounds, in an empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/tutorials/your-csv.md"
SECONDS = 600


@pytest.mark.slow
def test_from_a_file_to_recommendations(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    said = ""
    for block in re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL):
        text = block.replace("--clients 60 --rounds 40", "--clients 20 --rounds 2")
        done = subprocess.run(  # noqa: S603
            ["/bin/bash", "-euo", "pipefail", "-c", text.replace("sfsl ", f"{sys.executable} -m sfsl ")],
            cwd=tmp_path,
            env=os.environ | {"NO_COLOR": "1", "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == 0, f"{text}\n{done.stderr[-2000:]}"
        said += done.stdout
    assert "Train on it: sfsl run --data ratings.csv --columns user=user_id" in said
    assert (tmp_path / "film-report/report.html").exists()
    assert (tmp_path / "films.zip").exists()
    assert len(re.findall(r"│ 17 +│ +\d+ │ 0\.\d{4} │", said)) == 10
