"""Files that are always whole, whatever ends the process that writes them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of ``path`` once all of it is on disk; until then nothing changes there."""
    aside = path.with_name(path.name + ".new")
    try:
        with open(aside, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        with suppress(OSError):
            aside.unlink()
        raise


def write_whole(path: Path, data: bytes) -> None:
    with written_whole(path) as file:
        file.write(data)
