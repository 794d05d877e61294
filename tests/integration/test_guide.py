"""The deployment guide's "Setting up" runs as written: certificate, list, catalogue, server, clients."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from clocks import PATIENCE
from commands import port, started
from sfsl.data.catalogue_file import read_catalogue

pytest.importorskip("torch")

GUIDE = Path(__file__).parents[2] / "docs/guide/deployment.md"
CLIENTS, ITEMS, SECONDS = 4, 300, 120


def shell(command: str, folder: Path) -> None:
    """A block of the guide, as someone types it."""
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    subprocess.run(  # noqa: S603
        ["/bin/bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env={"PATH": path, "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        check=True,
        timeout=PATIENCE,
    )


def own_samples(file: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    lines = [f"{rng.integers(20)},{number % 2},{number}" for number in range(40)]
    file.write_text("\n".join(["item,label,time", *lines, ""]))


def test_setting_up(tmp_path: Path) -> None:
    section = GUIDE.read_text().split("## Setting up\n", 1)[1].split("\n## ", 1)[0]
    (toml,) = re.findall(r"```toml\n(.*?)```", section, re.DOTALL)
    blocks = re.findall(r"```\n(.*?)```", section.replace(f"```toml\n{toml}```", ""), re.DOTALL)
    keys, listed, catalogue, serve, join, grow = blocks
    free = port()

    def here(text: str) -> str:
        """On this machine: its address, folders of this test, a cohort that it can make."""
        for old, new in {
            "/etc/sfsl": f"{tmp_path}/etc",
            "/var/lib/sfsl": f"{tmp_path}/state",
            "sfsl.example.org": "127.0.0.1",
            '"0.0.0.0"': '"127.0.0.1"',
            "8443": free,
            "clients = 1000 ": f"clients = {CLIENTS} ",
        }.items():
            text = text.replace(old, new)
        return text

    (tmp_path / "etc").mkdir()
    shell(here(keys), tmp_path)
    items = [f"{item},{item % 7}" for item in range(ITEMS)]
    (tmp_path / "items.csv").write_text("\n".join(["item,category", *items, ""]))
    shell(here(catalogue), tmp_path)
    homes = []
    for number in range(CLIENTS):
        home = tmp_path / f"client-{number}"
        home.mkdir()
        shell(here(listed), home)
        (home / "authority.pem").write_bytes((tmp_path / "tls/authority.pem").read_bytes())
        own_samples(home / "my.csv", number)
        homes.append(home)
    lines = (tmp_path / "etc/clients.txt").read_text().splitlines()
    assert len(lines) == CLIENTS
    assert all(re.fullmatch("[0-9a-f]{64}  # ada", line) for line in lines)
    (tmp_path / "etc/serve.toml").write_text(here(toml))

    sfsl = str(Path(sys.executable).parent / "sfsl")

    def command(block: str) -> str:
        (line,) = block.strip().splitlines()
        assert line.startswith("sfsl ")
        return sfsl + here(line).removeprefix("sfsl")

    log = tmp_path / "serve.log"
    served(command(serve), command(join), tmp_path, homes, log)
    assert f"Serving at https://127.0.0.1:{free}" in log.read_text()
    assert f"round 1 committed: {CLIENTS} of {CLIENTS} clients" in log.read_text()
    (tmp_path / "new-items.csv").write_text("item,category\n5,5\n900,3\n901,8\n")
    shell(here(grow), tmp_path)
    grown = read_catalogue(tmp_path / "etc/catalogue-2.json")
    assert (grown.version, grown.rows("item"), grown.rows("category")) == (2, ITEMS + 2, 8)


def served(serve: str, join: str, folder: Path, homes: list[Path], log: Path) -> None:
    """One round of clients that stay to its end, and a server that is then told to stop."""
    with ExitStack() as running:
        server = running.enter_context(started(serve, folder, log))
        end = time.monotonic() + SECONDS
        while "Join with" not in log.read_text():
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        joined = [
            running.enter_context(started(f"{join} --rounds 1", home, home / "join.log")) for home in homes
        ]
        for client, home in zip(joined, homes, strict=True):
            assert client.wait(SECONDS) == 0, (home / "join.log").read_text() + log.read_text()
            assert "The round is committed" in (home / "join.log").read_text()
        server.send_signal(signal.SIGTERM)
        assert server.wait(SECONDS) == 0, log.read_text()
