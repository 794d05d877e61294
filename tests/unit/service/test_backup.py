"""Backups: copied whole, read again whole, and refused where anything is not as it was."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from deployment import new_store
from sfsl.errors import InputError, SfslError, StoreCorrupt, StoreError
from sfsl.rounds.record import RoundTally
from sfsl.service.backup import MANIFEST, back_up, restore
from sfsl.service.folder import METRICS, REGISTRY, STORE, MetricsFile, read_lines
from sfsl.service.registry import Registry
from sfsl.service.versions import tag, versions
from sfsl.submodel import Commit, LmdbStore

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A server's folder after one round."""
    made = tmp_path / "server"
    made.mkdir()
    empty = new_store()
    with LmdbStore.create(made / STORE, empty.spec, empty.read_dense().values) as store:
        store.commit(Commit(1))
    Registry(made / REGISTRY).close()
    with MetricsFile(made / METRICS, []) as metrics:
        metrics.append(RoundTally(3).record(1, None))
    (made / "roster.key").write_bytes(bytes(32))
    (made / "tls").mkdir()
    (made / "tls" / "authority.pem").write_text("made anew")
    return made


def test_a_copy_is_whole_says_what_it_is_and_comes_back(tmp_path: Path, folder: Path) -> None:
    made = back_up(folder, tmp_path / "backup", now=NOW)
    assert (made.format, made.made, made.round) == (1, "2030-01-01T00:00:00+00:00", 1)
    with Registry(folder / REGISTRY) as registry:
        assert made.deployment == registry.deployment.hex()
    assert set(made.files) == {"store/data.mdb", REGISTRY, METRICS, "roster.key"}
    assert restore(tmp_path / "backup", tmp_path / "again") == made
    assert [line.round for line in read_lines(tmp_path / "again" / METRICS)] == [1]
    with LmdbStore.open(tmp_path / "again" / STORE) as store:
        assert store.round == 1


@pytest.mark.parametrize("which", [STORE, "versions/good"])
@pytest.mark.parametrize("cut", [0, 2 * 4096, 3 * 4096, None], ids=["empty", "heads", "pages", "a number"])
def test_a_damaged_model_is_not_backed_up(tmp_path: Path, folder: Path, which: str, cut: int | None) -> None:
    """Cut short, on which the engine would end this process, or with a number that is another."""
    tag(folder, "good")
    data = bytearray((folder / which / "data.mdb").read_bytes())
    if cut is None:
        dense = new_store().read_dense().values.tobytes()
        data = bytearray(bytes(data).replace(dense, bytes([dense[0] ^ 1]) + dense[1:]))
    else:
        assert cut < len(data)
        del data[cut:]
    (folder / which / "data.mdb").write_bytes(data)
    with pytest.raises(StoreError):
        back_up(folder, tmp_path / "backup", now=NOW)
    assert not (tmp_path / "backup").exists()
    with pytest.raises(StoreError):
        versions(folder)
    if which == STORE:
        with pytest.raises(StoreError):
            tag(folder, "bad")
        assert not (folder / "versions" / "bad").exists()


def test_what_is_not_as_it_was_is_refused(tmp_path: Path, folder: Path) -> None:
    backup = tmp_path / "backup"
    back_up(folder, backup, now=NOW)

    def attempt(change: Callable[[], object], error: type[SfslError], says: str) -> None:
        """Damage the copy, see it refused with nothing left, and mend it."""
        kept = {path: path.read_bytes() for path in backup.rglob("*") if path.is_file()}
        change()
        with pytest.raises(error, match=says):
            restore(backup, tmp_path / "bad")
        assert not [*tmp_path.glob("bad*")]
        for path, data in kept.items():
            path.unlink(missing_ok=True)
            path.write_bytes(data)

    def flipped(name: str) -> None:
        data = bytearray((backup / name).read_bytes())
        data[len(data) // 2] ^= 1
        (backup / name).write_bytes(data)

    def manifest() -> dict[str, Any]:
        """What it says, without a checksum, as somebody would write it who means harm."""
        told: dict[str, Any] = json.loads((backup / MANIFEST).read_bytes())
        del told["checksum"]
        return told

    def naming(name: str) -> None:
        told = manifest()
        told["files"][name] = "0" * 64
        (backup / MANIFEST).write_text(json.dumps(told))

    def said(field: str, value: object) -> None:
        (backup / MANIFEST).write_text(json.dumps(manifest() | {field: value}))

    def linked() -> None:
        (backup / METRICS).unlink()
        (backup / METRICS).symlink_to("/etc/passwd")

    for name in ("store/data.mdb", REGISTRY, METRICS, "roster.key"):
        attempt(lambda name=name: flipped(name), StoreCorrupt, "not what was backed up")
    attempt(lambda: (backup / METRICS).unlink(), StoreError, "cannot restore")
    attempt(linked, StoreError, "cannot restore")
    attempt(lambda: naming("../outside"), StoreCorrupt, "not in the backup")
    attempt(lambda: naming("/etc/passwd"), StoreCorrupt, "not in the backup")
    attempt(lambda: (backup / MANIFEST).write_text("{"), StoreCorrupt, "damaged")
    attempt(lambda: flipped(MANIFEST), InputError, "its checksum does not fit")
    attempt(lambda: said("format", 2), InputError, "has format 2, this version reads 1")
    attempt(lambda: said("round", 2), StoreCorrupt, "another deployment or round")
    attempt(lambda: said("deployment", "00"), StoreCorrupt, "another deployment or round")
    attempt(lambda: (backup / MANIFEST).unlink(), InputError, "is no backup")
    restore(backup, tmp_path / "good")
    with pytest.raises(InputError, match="not empty"):
        restore(backup, tmp_path / "good")
    with pytest.raises(InputError, match="there already"):
        back_up(folder, backup, now=NOW)
    with pytest.raises(StoreError, match="no server's folder"):
        back_up(tmp_path / "good" / STORE, tmp_path / "no", now=NOW)
    assert not [*tmp_path.glob("no*")]
