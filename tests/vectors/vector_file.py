"""How a maker of vectors writes its file, or says that it is not what the code gives."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from vectors.values import Json


def write_or_check(
    arguments: Sequence[str],
    usage: str | None,
    path: Path,
    content: Callable[[], Json],
    same: Callable[[Json, Json], bool] | None = None,
) -> int:
    """Write the file, or with ``--check`` compare it: byte by byte, or as ``same`` says of both contents.
    Return what the process should. The maker is named in the file by its own name."""
    if arguments not in ([], ["--check"]):
        sys.stderr.write(f"{usage}\n")
        return 2
    made = {"version": 1, "origin": f"sfsl, made by tests/vectors/make_{path.stem}.py"} | content()
    text = json.dumps(made, indent=1, ensure_ascii=True) + "\n"
    if not arguments:
        path.write_text(text)
        return 0
    there = path.read_text() if path.exists() else ""
    if there == text or (there and same is not None and same(json.loads(there), json.loads(text))):
        return 0
    sys.stderr.write(f"{path.name} differs from what the code gives\n")
    return 1
