"""One process at a time, however the other one ends; and files that only the lock's holder replaces."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sfsl import durable
from sfsl.durable import DurableFile, FileLock
from sfsl.errors import KeyFileError, LocalError, StateError, StoreError, StoreInUse

HOLD = """
import sys
from sfsl.durable import FileLock
lock = FileLock(sys.argv[1])
print("held", flush=True)
input()
"""


@contextmanager
def held_elsewhere(path: Path) -> Iterator[None]:
    other = subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        yield
    finally:
        other.kill()
        other.communicate()


def in_a_fork(check: str, path: Path) -> str:
    """What a child says after a fork; a fresh interpreter forks, since a test runner may have threads."""
    code = f"""
import os, sys
from sfsl.durable import FileLock
from sfsl.durable import DurableFile
path = sys.argv[1]
{check}
"""
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60)  # noqa: S603
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_another_process_is_kept_out_until_the_first_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "store"
    (tmp_path / "alias").symlink_to(path)
    with held_elsewhere(path):
        for name in (path, tmp_path / "alias"):
            with pytest.raises(StoreInUse, match=f"{path} is open elsewhere"):
                FileLock(name)
            with pytest.raises(StateError, match=f"{path} is in use by another process"):
                DurableFile(name)
    with FileLock(path) as lock:  # it was killed and cleaned nothing up
        lock.require()


def test_one_process_is_kept_out_twice_and_let_in_after_close(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "store")
    with pytest.raises(StoreInUse):
        FileLock(tmp_path / "store")
    lock.close()
    lock.close()
    with pytest.raises(StoreError, match="was closed"):
        lock.require()
    FileLock(tmp_path / "store").close()


def test_a_fork_has_no_use_of_the_lock(tmp_path: Path) -> None:
    said = in_a_fork(
        """
lock, file = FileLock(path), DurableFile(path + ".state")
if os.fork() == 0:
    for call in (lock.require, lambda: file.replace(b"data")):
        try:
            call()
        except Exception as error:
            print(type(error).__name__, "fork" in str(error), flush=True)
    os._exit(0)
os.wait()
lock.require()
file.replace(b"data")
print("parent", flush=True)
""",
        tmp_path / "store",
    )
    assert said == "StoreInUse True\nStateError True\nparent\n"


@pytest.mark.parametrize(("error", "in_use"), [(KeyFileError, LocalError)])
def test_the_caller_chooses_the_errors(
    tmp_path: Path, error: type[LocalError], in_use: type[LocalError]
) -> None:
    def lock(path: Path) -> FileLock:
        return FileLock(path, error=error, in_use=in_use, busy="is taken")

    with pytest.raises(error, match="its folder must exist"):
        lock(tmp_path / "missing" / "store")
    with lock(tmp_path / "store") as held, pytest.raises(in_use, match="store is taken"):
        lock(tmp_path / "store")
    with pytest.raises(error, match="was closed"):
        held.require()


def test_a_lock_and_a_secret_are_for_their_owner(tmp_path: Path) -> None:
    with DurableFile(tmp_path / "state") as file:
        file.replace(b"secret")
    for name in ("state", "state.lock"):
        assert (tmp_path / name).stat().st_mode & 0o077 == 0


def test_after_a_failed_write_a_file_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(5, os.strerror(5))

    path = tmp_path / "state"
    with DurableFile(path) as file:
        file.replace(b"old")
        with monkeypatch.context() as patch:
            patch.setattr(durable, "write_whole", fail)
            with pytest.raises(StateError, match="cannot write"):
                file.replace(b"new")
        with pytest.raises(StateError, match="earlier write"):
            file.replace(b"newer")
    with pytest.raises(StateError, match="was closed"):
        file.replace(b"newest")
    with DurableFile(path) as file:
        assert file.read(3) == b"old"
        with pytest.raises(StateError, match="more than 2 bytes"):
            file.read(2)
        file.replace(b"new")
    assert path.read_bytes() == b"new"
