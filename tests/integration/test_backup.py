"""A server's folder is copied while it runs, and served again from the copy; damaged copies are refused."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from hot_deployment import CLIENTS, join, served, spent
from sfsl.errors import InputError, SfslError, StoreCorrupt, StoreError
from sfsl.service.backup import MANIFEST, back_up, restore
from sfsl.service.folder import METRICS, REGISTRY, read_lines


async def command(*words: object) -> dict[str, Any]:
    """Another process, as an operator's cron starts one."""
    line = [sys.executable, "-m", "sfsl", *map(str, words), "--json"]
    done = await asyncio.to_thread(subprocess.run, line, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_a_copy_of_a_running_server_goes_on_where_it_was(tmp_path: Path) -> None:
    folder, backup, again = tmp_path / "server", tmp_path / "backup", tmp_path / "again"

    async def round_of_all(serving: Any) -> list[str]:
        ended = await asyncio.gather(*(join(serving, tmp_path, one, rounds=1) for one in range(CLIENTS)))
        return [attempt.outcome for some in ended for attempt in some]

    async def scenario() -> None:
        async with served(tmp_path, serve={"rounds": 9}) as serving:
            assert await round_of_all(serving) == ["committed"] * CLIENTS
            made = await command("backup", folder, backup)
            assert made["round"] == 1
            assert made["deployment"] == serving.deployment.coordinator.registry.deployment.hex()
            assert await round_of_all(serving) == ["committed"] * CLIENTS
        assert {"store/data.mdb", REGISTRY, METRICS, "roster.log", "roster.key"} < set(made["files"])
        assert not [name for name in made["files"] if name.endswith((".lock", "lock.mdb")) or "tls" in name]
        assert {path.stat().st_mode & 0o077 for path in [backup, *backup.rglob("*")]} == {0}
        again.mkdir()
        assert (await command("restore", backup, again / "server"))["round"] == 1
        before = spent(tmp_path, 0)
        async with served(again, serve={"rounds": 9}) as serving:
            assert serving.round == 1
            assert await round_of_all(serving) == ["committed"] * CLIENTS
        assert [line.round for line in read_lines(again / "server" / METRICS)] == [1, 2]
        assert spent(tmp_path, 0)[0] > before[0]  # what was shown twice is paid for twice

    asyncio.run(scenario())
    refuses(tmp_path, folder, backup)


def refuses(tmp_path: Path, folder: Path, backup: Path) -> None:
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

    def naming(name: str) -> None:
        said = json.loads((backup / MANIFEST).read_bytes())
        said["files"][name] = "0" * 64
        (backup / MANIFEST).write_text(json.dumps(said))

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
    attempt(lambda: (backup / MANIFEST).unlink(), InputError, "is no backup")
    restore(backup, tmp_path / "good")
    with pytest.raises(InputError, match="not empty"):
        restore(backup, tmp_path / "good")
    now = datetime(2030, 1, 1, tzinfo=UTC)
    with pytest.raises(InputError, match="there already"):
        back_up(folder, backup, now=now)
    with pytest.raises(StoreError, match="no server's folder"):
        back_up(tmp_path / "client-0", tmp_path / "no", now=now)
    assert not [*tmp_path.glob("no*")]
