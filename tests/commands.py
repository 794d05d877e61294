"""Commands of the documentation, run as someone would type them."""

import shlex
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clocks import PATIENCE

PORT = "8443"


@contextmanager
def started(command: str, folder: Path, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with open(log, "wb") as output:
        process = subprocess.Popen(shlex.split(command), cwd=folder, stdout=output, stderr=output)  # noqa: S603
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(PATIENCE)


def port() -> str:
    """The documentation's, or another where something else listens there."""
    for wanted in (int(PORT), 0):
        try:
            with socket.create_server(("127.0.0.1", wanted)) as free:
                return str(free.getsockname()[1])
        except OSError:
            continue
    raise AssertionError("no port is free")
