"""A server's folder is copied while it runs, and served again from the copy"""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from hot_deployment import CLIENTS, join, served, spent
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
