"""Rounds of a whole cohort over TLS, by exchange, and the same rounds in one process: the same model?

    python bench/tls_round.py --set data.path=amazon-electronics/interactions.tsv.gz --rounds 5 --out out/tls

``sfsl serve`` and ``sfsl swarm`` run in processes of their own, on loopback. Afterwards the local engine runs
as many rounds with the same seed and clients, each trained alone, and what the server's store holds is
compared with what that gives, bit for bit. Prints JSON; the exit status is 1 if a round was not committed by
everyone or if anything differs.
"""

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sfsl.carriers.local.engine import LocalEngine
from sfsl.rounds.record import RoundRecord
from sfsl.run.fleet import Fleet, build_fleet, client_privacy
from sfsl.run.setup import resolved, simulation_settings
from sfsl.service.folder import read_lines
from sfsl.settings.rounds import store_spec
from sfsl.settings.serve import ServeConfig, from_all_sections
from sfsl.settings.toml import overridden, read_sections
from sfsl.simulate.population import Simulation
from sfsl.submodel import LmdbStore, MemoryStore, RowSet

_START_SECONDS = 300
_STOP_SECONDS = 60
_SERVING = re.compile(r"Serving at (https://\S+)")
_SFSL = (sys.executable, "-m", "sfsl")


def over_tls(config: Path, changed: Sequence[str], clients: int, rounds: int, out: Path) -> dict[str, Any]:
    """What the swarm reports."""
    settings = [word for one in changed for word in ("--set", one)]
    state, log = out / "state", out / "serve.log"
    with open(log, "wb") as said:
        server = subprocess.Popen(
            [*_SFSL, "serve", str(config), "--out", str(state), *settings], stdout=said, stderr=said
        )
        try:
            url = _url(server, log)
            swarm = subprocess.run(
                [*_SFSL, "swarm", str(config), "--server", url, "--ca", str(state / "tls/authority.pem"),
                 "--clients", str(clients), "--rounds", str(rounds), *settings, "--json"],
                stdout=subprocess.PIPE, check=True,
            )  # fmt: skip
            server.wait(_STOP_SECONDS)  # it stops by itself after its last round
        finally:
            if server.poll() is None:
                server.send_signal(signal.SIGTERM)
                server.wait(_STOP_SECONDS)
    found: dict[str, Any] = json.loads(swarm.stdout)
    return found


def _url(server: "subprocess.Popen[bytes]", log: Path) -> str:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end and server.poll() is None:
        if found := _SERVING.search(log.read_text()):
            return found[1]
        time.sleep(0.1)
    sys.exit(f"the server did not start:\n{log.read_text()}")


def in_one_process(chosen: ServeConfig, fleet: Fleet, clients: int, rounds: int) -> MemoryStore:
    """The store after the same rounds of the local engine."""
    run = resolved(chosen.run, fleet)
    spec = store_spec(run, fleet.task.spec, devices=True)
    store = MemoryStore(spec, fleet.task.initial_dense())
    names = sorted(fleet.devices)
    settings = simulation_settings(run, client_privacy(run, names))
    engine = LocalEngine(
        Simulation(fleet.task, fleet.devices, store, settings, seed=run.run.seed, alone=True)
    )
    for _ in range(rounds):
        store.commit(engine.run(names[:clients]).commit)
    return store


def differences(local: MemoryStore, path: Path, fleet: Fleet) -> dict[str, Any]:
    """Rows that were compared, and numbers that differ, of everything that either store has touched."""
    rows, differ = {}, {}
    with LmdbStore.open(path) as remote:
        differ["round"] = int(remote.round != local.round)
        for part in ("values", "state"):
            ours, theirs = (getattr(store.read_dense(), part) for store in (local, remote))
            differ[f"dense {part}"] = _different(ours, theirs)
        moved = _different(remote.read_dense().values, fleet.task.initial_dense())
        for table in fleet.task.spec.summed:
            ours, theirs = (store.touched(table.name).rows for store in (local, remote))
            differ[f"{table.name} touched"] = len(np.setxor1d(ours, theirs))
            every = RowSet(np.union1d(ours, theirs))
            rows[table.name] = len(every)
            for part in ("values", "state"):
                ours, theirs = (
                    getattr(store.read_rows(table.name, every), part) for store in (local, remote)
                )
                differ[f"{table.name} {part}"] = _different(ours, theirs)
    return {"rows_compared": rows, "dense_moved": moved, "different": differ}


def _different(one: Any, other: Any) -> int:
    """How many bit patterns differ; what has another shape differs in all."""
    one, other = (np.ascontiguousarray(value) for value in (one, other))
    if one.shape != other.shape or one.dtype != other.dtype:
        return int(max(one.size, other.size, 1))
    words = np.dtype(f"u{one.dtype.itemsize}")
    return int(np.count_nonzero(one.view(words) != other.view(words)))


def by_exchange(lines: Sequence[RoundRecord], swarm: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Means over rounds, in seconds: wall at the server, the slowest client's computing, the rest."""
    found = {}
    for name, spent in swarm["exchanges"].items():
        wall = float(np.mean([line.exchange_seconds[name] for line in lines]))
        found[name] = {
            "wall": wall,
            "slowest_client": spent["slowest"],
            "overhead": wall - spent["slowest"],
            "all_clients": spent["all"],
            "server_cpu": float(np.mean([line.server_seconds[name] for line in lines])),
        }
    keys = next(iter(found.values()), {})
    return found | {"together": {key: sum(one[key] for one in found.values()) for key in keys}}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", type=Path, default=Path(__file__).with_suffix(".toml"))
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--set", dest="changed", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--out", type=Path, default=Path("out/tls"), help="a folder that is not there yet")
    options = parser.parse_args()
    clients, rounds = options.clients, options.rounds
    options.out.mkdir(parents=True)
    changed = [
        *(f"{key}={clients}" for key in ("round.clients", "serve.min_cohort")),
        f"serve.rounds={rounds}",
        *options.changed,
    ]
    chosen = from_all_sections(overridden(read_sections(options.config), changed))
    swarm = over_tls(options.config, changed, clients, rounds, options.out)
    lines = read_lines(options.out / "state/metrics.jsonl")
    torch.set_num_threads(chosen.run.run.threads or 1)
    fleet = build_fleet(chosen.run)
    compared = differences(in_one_process(chosen, fleet, clients, rounds), options.out / "state/store", fleet)
    whole = [line.aborted is None and line.survivors == clients for line in lines]
    result = {
        "machine": {"cores": len(os.sched_getaffinity(0)), "python": platform.python_version()},
        "clients": clients,
        "rounds": {"all": len(lines), "committed_by_everyone": sum(whole)},
        "seconds_a_round": [line.wall_seconds for line in lines],
        "bytes_up": float(np.mean([sum(line.bytes_up.values()) for line in lines])),
        "bytes_down": float(np.mean([sum(line.bytes_down.values()) for line in lines])),
        "seconds": by_exchange(lines, swarm),
        "swarm": {key: swarm[key] for key in ("check_ins", "statuses", "errors", "failed")},
        **compared,
    }
    text = json.dumps(result, indent=2)
    (options.out / "tls_round.json").write_text(text + "\n")
    print(text)
    if sum(whole) != rounds or len(lines) != rounds or any(compared["different"].values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
