"""The same cohort on every engine: seconds and bytes of a round, and what the engine adds.

    python bench/engines.py --out out/engines

Runs ``ray_scaling.py`` (which also has the local engine), ``tls_round.py`` and ``flower_round.py`` one after
another with the same data, seed and settings; each compares its model with the local engine's, bit for bit,
and fails if it differs. All clients are on this machine and share its cores, so this says what an engine
costs, not how fast a federation is. Prints JSON, and a table to standard error.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from sfsl.run.fleet import build_fleet
from sfsl.settings.run import from_sections
from sfsl.settings.toml import overridden

HERE = Path(__file__).parent
_KIB = 1024
# What one computation for all clients of a process saves is no matter of engines: here each trains alone.
_SETTINGS = ("round.min_contributors=2", "run.threads=1", "run.together=1")


def ran(script: str, arguments: Sequence[str], log: Path) -> dict[str, Any]:
    with log.open("w") as said:
        done = subprocess.run(
            [sys.executable, HERE / script, *arguments],
            stdout=subprocess.PIPE, stderr=said, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False,
        )  # fmt: skip
    if done.returncode:
        sys.exit(f"{script} failed, or its model differs; its output is in {log}:\n{done.stdout.decode()}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def row(seconds: Sequence[float], up: float, down: float, **more: Any) -> dict[str, Any]:
    """Bytes are of our messages, per client."""
    return {"seconds_a_round": median(seconds), "seconds": list(seconds), "up": up, "down": down, **more}


def of_simulation(found: Mapping[str, Any]) -> dict[str, Any]:
    up, down = (sum(found[f"bytes_{way}_per_client"].values()) for way in ("up", "down"))
    spent = {name: found["median"][name] for name in ("clients_cpu", "training", "server_cpu", "commit")}
    return row(found["seconds"], up, down, of_which=spent)


def of_flower(found: Mapping[str, Any]) -> dict[str, Any]:
    up, down = (found[f"bytes_{way}_per_client"]["all"] for way in ("up", "down"))
    return row(found["seconds_a_round"], up, down, of_a_message=found["seconds_a_message"])


def largest_set(settings: Sequence[str]) -> int:
    """The most rows that a client brings to the union."""
    fleet = build_fleet(from_sections(overridden({}, settings)))
    shared = [table.name for table in fleet.task.tables if table.kind == "shared"]
    return max(sum(len(one.needed[name]) for name in shared) for one in fleet.devices.values())


def measured(clients: int, rounds: int, scale: float, modes: Sequence[str], out: Path) -> dict[str, Any]:
    settings = [f"data.users={clients}", f"data.scale={scale:g}", f"round.clients={clients}", *_SETTINGS]
    given = [word for one in settings for word in ("--set", one)]
    many = ["--clients", str(clients), "--rounds", str(rounds), *given]
    served = [*many, "--set", f"serve.largest_set={largest_set(settings)}"]  # which a simulation sees
    ray = ran("ray_scaling.py", [*many, "--workers", "2"], out / "ray.log")
    plain = ["--set", "data.source=synthetic", "--set", "data.path="]
    tls = ran("tls_round.py", [*served, *plain, "--out", str(out / "tls")], out / "tls.log")
    flower = ran(
        "flower_round.py", [*served, "--modes", *modes, "--out", str(out / "flower")], out / "flower.log"
    )
    return {
        "local": of_simulation(ray["engines"]["local"]),
        "ray, two workers": of_simulation(ray["engines"]["ray-2"]),
        "https": row(
            tls["seconds_a_round"], tls["bytes_up"], tls["bytes_down"], of_which=tls["seconds"]["together"]
        ),
        **{f"flower, {mode}": of_flower(flower[mode]) for mode in modes},
    }


def table(engines: Mapping[str, Mapping[str, Any]]) -> str:
    """Beside the local engine, which has no network and no processes: what is beyond it is the engine's."""
    base = engines["local"]["seconds_a_round"]
    lines = ["| engine | seconds a round | beyond local | KiB up | KiB down |", "|---|---|---|---|---|"]
    for name, one in engines.items():
        seconds = one["seconds_a_round"]
        sizes = f"{one['up'] / _KIB:.1f} | {one['down'] / _KIB:.1f}"
        lines.append(f"| {name} | {seconds:.2f} | {seconds - base:.2f} | {sizes} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=0.1, help="of the synthetic world, 1 is the paper's")
    parser.add_argument(
        "--flower",
        nargs="+",
        default=["simulation", "deployment"],
        help="deployment starts a process for every message: for few clients only",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("out/engines"), help="a folder that is not there yet"
    )
    given = parser.parse_args()
    out = given.out.resolve()
    out.mkdir(parents=True)
    engines = measured(given.clients, given.rounds, given.scale, given.flower, out)
    sizes = {"clients": given.clients, "rounds": given.rounds, "scale": given.scale}
    result = {**sizes, "date": time.strftime("%Y-%m-%d"), "load": os.getloadavg()[0], "engines": engines}
    (out / "engines.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    print(table(engines), file=sys.stderr)


if __name__ == "__main__":
    main()
