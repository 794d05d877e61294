"""Arrays in one file, a checkpoint: every byte is checked before anything is read from it."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfsl.checksums import require_last_line
from sfsl.errors import InputError


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read what ``np.savez`` put into ``written_whole(path, checksum=True)``, or raise ``InputError``."""
    try:
        with path.open("rb") as file:
            require_last_line(file, str(path))
            with np.load(file, allow_pickle=False) as found:
                return dict(found)
    except InputError:
        raise
    # Earlier versions wrote no checksum, and readers of zip files raise whatever a damaged byte makes them.
    except Exception as error:
        raise InputError(f"{path} cannot be read or is damaged: {error}") from None
