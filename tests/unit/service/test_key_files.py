"""Identities in files that only their owner reads, found damaged wherever they are, never overwritten."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from sfsl.crypto.secret import Identity, Secret
from sfsl.errors import InputError, KeyFileError
from sfsl.service.identities import read_identity, write_identity
from sfsl.testing import SeededRandomness

SEED = SeededRandomness("keys").bytes(32)


def test_an_identity_comes_back(tmp_path: Path) -> None:
    made = write_identity(tmp_path / "ada.key", Secret(SEED))
    assert (tmp_path / "ada.key").stat().st_mode & 0o777 == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["ada.key"]
    read = read_identity(tmp_path / "ada.key")
    assert read.public == made.public == Identity(Secret(SEED)).public
    with pytest.raises(KeyFileError, match="never overwritten"):
        write_identity(tmp_path / "ada.key", Secret(bytes(32)))
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(KeyFileError, match="never overwritten"):
        write_identity(tmp_path / "link", Secret(SEED))
    assert read_identity(tmp_path / "ada.key").public == made.public
    assert {file.name for file in tmp_path.iterdir()} == {"ada.key", "link"}  # nothing is left lying about
    with pytest.raises(InputError):
        write_identity(tmp_path / "short", Secret(b"short"))
    with pytest.raises(KeyFileError, match="folder must exist"):
        write_identity(tmp_path / "no" / "such", Secret(SEED))


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o640, 0o660, 0o602, 0o777])
def test_a_file_that_others_may_read_is_refused_and_how_to_mend_it_said(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "ada.key"
    write_identity(file, Secret(SEED))
    file.chmod(mode)
    with pytest.raises(KeyFileError, match=rf"mode {mode:04o}.*chmod 600 {file}"):
        read_identity(file)
    file.chmod(0o400)
    assert read_identity(file)


def test_damage_is_found_wherever_it_is(tmp_path: Path) -> None:
    file = tmp_path / "ada.key"
    write_identity(file, Secret(SEED))
    whole = file.read_bytes()
    damaged = [whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :] for place in range(len(whole))]
    damaged += [whole[:length] for length in range(len(whole))]
    lines = whole.split(b"\n")
    damaged += [whole + b"x", b"\n".join([lines[0], lines[1].upper(), *lines[2:]])]
    damaged += [
        whole + b"\n",
        whole.upper(),
        whole.replace(b"\n", b"\r\n"),
        whole + bytes(70_000),
        b"\xff" * 90,
    ]
    for content in damaged:
        file.write_bytes(content)
        with pytest.raises(KeyFileError) as caught:
            read_identity(file)
        assert SEED.hex()[:12] not in str(caught.value)
    file.write_bytes(whole + bytes(70_000))
    with pytest.raises(KeyFileError, match="more than 65536 bytes"):
        read_identity(file)
    file.write_bytes(whole.replace(b"identity 1", b"identity 2"))
    with pytest.raises(KeyFileError, match="another version"):
        read_identity(file)
    file.write_bytes(whole)
    assert read_identity(file)


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(KeyFileError, match="is not a file"):
            read_identity(path)
    with pytest.raises(KeyFileError, match="No such file"):
        read_identity(tmp_path / "none")


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    code = (
        "import resource, sys\n"
        "from sfsl.crypto.secret import Secret\n"
        "from sfsl.service.identities import write_identity\n"
        "from sfsl.errors import KeyFileError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))\n"
        "try: write_identity(sys.argv[1], Secret(bytes(32)))\n"
        "except KeyFileError as error: print(error)\n"
    )
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code, str(tmp_path / "ada.key")], capture_output=True, text=True, check=True
    )
    assert "free some space" in done.stdout
    assert not list(tmp_path.iterdir())
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 10


def test_a_key_that_was_read_is_closed_again(tmp_path: Path) -> None:
    write_identity(tmp_path / "ada.key", Secret(SEED))
    before = len(os.listdir("/proc/self/fd"))
    read_identity(tmp_path / "ada.key")
    (tmp_path / "ada.key").chmod(0o644)
    with pytest.raises(KeyFileError):
        read_identity(tmp_path / "ada.key")
    assert len(os.listdir("/proc/self/fd")) == before
