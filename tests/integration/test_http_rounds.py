"""A whole deployment with real clients: the model of the local engine word for word, and crashes."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from clocks import PATIENCE
from same_model import local_rounds, require_same_model
from sfsl.client.events import Event
from sfsl.client.round import ClientModel
from sfsl.crypto.secret import (
    Identity,
    SystemRandomness,
    digest,
)
from sfsl.deploy import open_deployment
from sfsl.models.package import describe, package_digest
from sfsl.rounds.exchanges import order
from sfsl.run.fleet import Fleet, build_fleet, client_privacy
from sfsl.service.driver import Kept
from sfsl.service.folder import read_lines
from sfsl.service.registry import Registry
from sfsl.service.signing import client_id
from sfsl.settings.serve import ServeConfig, from_all_sections
from sfsl.settings.toml import read_sections
from sfsl.simulate.chance import Chance
from sfsl.submodel import LmdbStore
from sfsl.training import LocalSettings
from sfsl_research.swarm.swarm import Swarm, SwarmSettings

CLIENTS, ROUNDS = 6, 2
CONFIG: dict[str, Any] = {
    "data": {"users": CLIENTS, "scale": 0.03},
    "privacy": {"preset": "cpp2"},
    "round": {"scheme": "sfsl", "clients": CLIENTS, "min_contributors": 2},
    "server": {"row_step": "adagrad", "kappa_rounds": 10},
    "serve": {"plain": True, "enrolment": "open", "port": 0, "period_days": 0, "largest_set": 300},
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def config(training: dict[str, Any] | None = None, **serve: Any) -> ServeConfig:
    return from_all_sections(CONFIG | {"serve": CONFIG["serve"] | serve, "training": training or {}})


def swarm(
    chosen: ServeConfig,
    fleet: Fleet,
    url: str,
    rounds: int,
    identities: dict[str, Identity],
    seen: Callable[[str, Event], None] = lambda name, event: None,
) -> Swarm:
    run, task = chosen.run, fleet.task
    return Swarm(
        url,
        ClientModel(package_digest(describe(task)), task.spec, task.row_maps),
        fleet.devices,
        identities,
        client_privacy(run, sorted(fleet.devices)),
        Chance(task, fleet.devices, run.run.seed),
        SwarmSettings(
            rounds=rounds,
            every=0,
            row_seed=digest("seed of a run", str(run.run.seed).encode()),
            local=LocalSettings(),
            pause_s=0.05,
            longest_pause_s=0.5,
        ),
        plain=True,
        seen=seen,
    )


def new_identities(fleet: Fleet) -> dict[str, Identity]:
    return {name: Identity.generate(SystemRandomness()) for name in sorted(fleet.devices)}


@pytest.mark.parametrize("training", [{}, {"rebuild": 0.4, "rebuild_rate": 3.0, "max_samples": 16}])
def test_the_model_is_the_local_engines_word_for_word(tmp_path: Path, training: dict[str, Any]) -> None:
    chosen = config(rounds=ROUNDS, training=training)
    fleet = build_fleet(chosen.run)

    async def over_the_network() -> None:
        deployment = open_deployment(chosen, tmp_path / "state")
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        try:
            serving = asyncio.create_task(deployment.run(ready.set_result))
            report = await swarm(chosen, fleet, await ready, ROUNDS, new_identities(fleet)).run()
            await serving
        finally:
            deployment.close()
        assert report.ended == dict.fromkeys(range(1, ROUNDS + 1), "committed")

    asyncio.run(asyncio.wait_for(over_the_network(), PATIENCE))

    local = local_rounds(chosen.run, fleet, [sorted(fleet.devices)] * ROUNDS)
    require_same_model(tmp_path / "state" / "store", local)
    lines = read_lines(tmp_path / "state" / "metrics.jsonl")
    assert [(line.round, line.survivors) for line in lines] == [(1, CLIENTS), (2, CLIENTS)]
    assert [line.samples for line in lines] == local.samples
    assert [line.union for line in lines] == local.unions
    assert all(local.samples)
    for line in lines:
        assert list(line.exchange_seconds) == list(order(active=False))
        assert 0 < sum(line.exchange_seconds.values()) < line.wall_seconds


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.parametrize(
    "moments", [("training",), pytest.param(("invited", "exposed", "uploaded"), marks=pytest.mark.slow)]
)
def test_killed_in_mid_round_it_comes_back_with_whole_rounds(
    tmp_path: Path, moments: tuple[str, ...]
) -> None:
    """SIGKILL as soon as the first client is at a point of a round: no round is lost, doubled or gone on
    with, and counts agree."""
    port, rounds = free_port(), 3
    url = f"http://127.0.0.1:{port}"
    chosen = config(port=port)
    fleet = build_fleet(chosen.run)
    identities = new_identities(fleet)
    file, state = tmp_path / "serve.toml", tmp_path / "state"
    file.write_text(
        "\n".join(
            f"[{section}]\n" + "\n".join(f"{key} = {_toml(value)}" for key, value in content.items())
            for section, content in (CONFIG | {"serve": CONFIG["serve"] | {"port": port}}).items()
        )
    )
    assert from_all_sections(read_sections(file)) == chosen

    async def start() -> asyncio.subprocess.Process:
        log = open(tmp_path / "log.txt", "a")  # noqa: SIM115 -- the process has it
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "sfsl", "serve", str(file), "--out", str(state), stderr=log, stdout=log
        )
        log.close()
        return process

    async def scenario() -> None:
        server, events = await start(), asyncio.Queue[str]()
        playing = asyncio.create_task(
            swarm(
                chosen, fleet, url, rounds, identities, lambda name, event: events.put_nowait(event.kind)
            ).run()
        )
        try:
            for moment in moments:
                while await events.get() != moment:
                    assert not playing.done()
                os.kill(server.pid, signal.SIGKILL)
                await server.wait()
                while not events.empty():
                    events.get_nowait()
                server = await start()
            report = await playing
        finally:
            playing.cancel()
            if server.returncode is None:
                os.kill(server.pid, signal.SIGTERM)
            assert await asyncio.wait_for(server.wait(), PATIENCE) == 0
        assert report.failed == {}
        assert report.attempts["restarted"] > 0

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))
    said = (tmp_path / "log.txt").read_text()
    assert "Traceback" not in said
    lines = read_lines(state / "metrics.jsonl")
    with LmdbStore.open(state / "store") as store:
        assert store.round == len(lines) >= rounds
        last = Kept.decode(store.selection).record()
        assert last is not None
        assert last.round == store.round
    assert all(line.aborted is None or "stop" in line.aborted for line in lines)
    ids = [line.split("(")[1].split(")")[0] for line in said.splitlines() if "clients invited" in line]
    assert len(set(ids)) == len(ids) > len(lines)  # some were cut short, and never begun again
    with Registry(state / "registry.sqlite") as registry:
        for identity in identities.values():
            counted = registry.acknowledged(client_id(identity.public))
            assert sum(line.aborted is None for line in lines) <= counted <= len(ids)


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')
