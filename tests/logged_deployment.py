"""A deployment in active mode over TLS, in this process, with a log of enrolled identities: an authority that
vouches, a witness that signs, and clients. Each has its own key."""

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner

from clocks import PATIENCE
from sfsl.carriers.https.authority import create_authority, issue_server
from sfsl.cli import app
from sfsl.client.join import join_async
from sfsl.crypto.secret import Identity, Secret
from sfsl.deploy import open_deployment
from sfsl.service.identities import write_identity
from sfsl.settings.serve import from_all_sections
from sfsl.settings.terms import Terms

COHORT = 4
CONFIG: dict[str, Any] = {
    "data": {"users": 12, "scale": 0.03},
    "model": {"kind": "logistic"},
    "round": {"scheme": "sfsl", "clients": COHORT, "min_contributors": 2},
}


def log_command(*words: Any) -> Any:
    ran = CliRunner().invoke(app, ["keys", "log", *map(str, words)])
    assert ran.exit_code == 0, (ran.output, ran.exception)
    return ran.stdout


class LoggedDeployment:
    """``async with`` it serves; ``trusted`` is the file that clients and witnesses are given."""

    def __init__(self, folder: Path, *, contributors: int = 2, **serve: Any) -> None:
        self.folder, self.state, self.trusted = folder, folder / "state", folder / "log.toml"
        self.authority = write_identity(folder / "authority.key", Secret(b"a" * 32))
        self.witness = write_identity(folder / "witness.key", Secret(b"w" * 32))
        self.clients = [
            write_identity(folder / f"{number}.key", Secret(bytes([number + 1]) * 32))
            for number in range(COHORT)
        ]
        self.said: dict[int, list[tuple[str, str]]] = {number: [] for number in range(COHORT)}
        now = datetime.now(UTC)
        create_authority(folder / "tls", "test", 10, now=now)
        issue_server(folder / "tls", ["localhost"], 5, now=now)
        self.ca, self.list = folder / "tls/authority.pem", folder / "clients.txt"
        self.list.write_text("# nobody yet\n")
        given = {
            "certificate": str(folder / "tls/server.pem"),
            "key": str(folder / "tls/server.key"),
            "port": 0,
            "period_days": 0,
            "largest_set": 300,
            "active": True,
            "enrolment": "list",
            "clients": str(self.list),
            "authorities": self.authority.public.hex(),
            "witnesses": self.witness.public.hex(),
        }
        one = CONFIG["round"] | {"min_contributors": contributors}
        self._config = from_all_sections(CONFIG | {"serve": given | serve, "round": one})

    async def __aenter__(self) -> str:
        self.deployment = open_deployment(self._config, self.state)
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._serving = asyncio.create_task(self.deployment.run(ready.set_result))
        url = await asyncio.wait_for(ready, PATIENCE)
        keys = ["--authority", self.authority.public.hex(), "--witness", self.witness.public.hex()]
        if self._config.serve.least_witnesses == 0:
            keys += ["--least-witnesses", "0"]
        self.trusted.write_text(log_command("trust", self.state, *keys))
        return url.replace("127.0.0.1", "localhost")

    async def __aexit__(self, *_: object) -> None:
        await self.deployment.coordinator.stop()
        await asyncio.wait([self._serving], timeout=PATIENCE)
        self.deployment.close()

    def vouch(self, *clients: Identity, key: str = "authority.key") -> None:
        """As an authority, put clients on the server's list."""
        deployment = json.loads(log_command("show", self.state, "--json"))["deployment"]
        given = ("--key", self.folder / key, "--deployment", deployment)
        with self.list.open("a") as file:
            file.write(log_command("vouch", *given, *(one.public.hex() for one in clients)))

    def witnessed(self, url: str) -> Any:
        """What becomes of the witness's command."""
        state = self.folder / "witnessed.json"
        first = [] if state.exists() else ["--first"]
        return CliRunner().invoke(
            app,
            ["keys", "log", "witness", "--server", url, "--ca", str(self.ca), "--log", str(self.trusted),
             "--key", str(self.folder / "witness.key"), "--state", str(state), *first],
        )  # fmt: skip

    async def joined(self, url: str, *numbers: int) -> list[Any]:
        """What becomes of these clients, while the witness comes again and again."""
        joining = asyncio.gather(*(self.join(url, number) for number in numbers), return_exceptions=True)
        while not joining.done():
            ran = await asyncio.to_thread(self.witnessed, url)
            assert ran.exit_code == 0, (ran.output, ran.exception)
            await asyncio.wait([joining], timeout=0.1)
        return await joining

    async def join(self, url: str, number: int, **changes: Any) -> Any:
        options = {"exact_sums": True, "log": str(self.trusted), "exposures": 3, "privacy": "cpp3"}
        options |= {"epsilon": 1000, "least_cohort": 3, "least_contributors": 2, **changes}
        return await join_async(
            url,
            samples(self.folder / f"{number}.csv", number),
            self.folder / f"me{number}",
            ca=self.ca,
            terms=Terms(**options),
            identity=self.folder / f"{number}.key",
            rounds=1,
            on_event=lambda event: self.said[number].append((event.kind, event.text)),
        )


def samples(path: Path, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    lines = [f"{rng.integers(80)},{rng.integers(2)},{moment}" for moment in range(30)]
    path.write_text("\n".join(["item,label,time", *lines]))
    return path
