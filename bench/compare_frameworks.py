"""The same model, clients and rounds here, in Flower's simulation and in pfl-research: seconds and memory.

    python bench/compare_frameworks.py --out out/frameworks

Each framework has an environment of its own below ``--out``, made on the first run. They take turns, since
the machine is not equally fast all the time; ratios are between neighbours. CPU seconds depend less on who
else uses the machine: with all cores free, they are what decides.

Work is alike: our DIN module, one epoch of batches of 2 at every client, gradients clipped to the same norm,
two workers. Theirs average the whole model, which is what they have; ours are whole rounds with quantized
sums and a store. Both are given sparse gradients of embeddings.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

from clients_file import ClientsFile
from sfsl_research.bench.train import OnHost, TrainingCohort

HERE = Path(__file__).parent
# Torch is pinned to a release with a CPU build; the last three are what our DIN imports.
WITH = ["torch==2.13.0", "numpy", "msgspec", "cryptography"]
PACKAGES = {"flower": "flwr[simulation]==1.41.0", "pfl": "pfl[pytorch]==0.6.0"}
OURS = ("sfsl", "sfsl, not compiled")
DONE = {
    "sfsl": "sums='plain': gather, training, clipping, quantized sums, averaging, store; a thread per "
    "worker; training.compiled = true, compiled in a round that is left out",
    "sfsl, not compiled": "likewise, as it is by default",
    "flower": "FedAvg, Ray backend, one actor per worker with one thread; model and data stay in the actor; "
    "whole models travel; sparse embedding gradients, clipped alike",
    "pfl": "FederatedAveraging, torchrun with one process per worker and one thread each, users dealt by "
    "samples; sparse embedding gradients, clipped alike; the first iteration, which evaluates, is left out",
    "pfl, one process": "likewise, in one process with as many threads as workers",
}


def environment(name: str, folder: Path) -> Path:
    """The Python of an environment with a framework in it."""
    python = folder / name / "bin" / "python"
    installed = folder / name / ".installed"
    wanted = "\n".join([PACKAGES[name], *WITH])
    if not installed.exists() or installed.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", folder / name], check=True)
        quietly = ("--quiet", "--disable-pip-version-check")
        subprocess.run([python, "-m", "pip", "install", *quietly, PACKAGES[name], *WITH], check=True)
        installed.write_text(wanted)
    return python


def write_clients(cohort: TrainingCohort, path: Path) -> None:
    """Samples that can be trained, as a round of ours keeps them."""
    rows = {table.name: table.rows for table in cohort.task.tables}
    sizes = {"users": rows["user"], "items": rows["item"], "categories": rows["category"]}
    kept = (device.train.keep(device.needed) for device in cohort.devices.values())
    ClientsFile.write(path, sizes, (one.columns for one in kept))  # type: ignore[attr-defined]


def ours(cohort: TrainingCohort, rounds: int, workers: int, compiled: bool, out: Path) -> None:
    """In a process of its own, as theirs are. The first round warms up."""
    side = OnHost(cohort, list(cohort.devices), alone=False, threads=workers, compiled=compiled)
    side.turn()
    turns, cpu = [], []
    for _ in range(rounds):
        start = time.process_time()
        turns.append(side.turn())
        cpu.append(time.process_time() - start)
    found = {"seconds": [one.seconds for one in turns], "samples": [one.samples for one in turns]}
    out.write_text(json.dumps({"version": "this commit", "cpu_seconds": cpu, **found}))


class PeakMemory:
    """Of a process and all that it starts; pages that several share count once."""

    def __init__(self, process: int) -> None:
        self.bytes = 0
        self._process, self._stop = process, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def close(self) -> int:
        self._stop.set()
        self._thread.join()
        return self.bytes

    def _watch(self) -> None:
        while not self._stop.wait(0.5):
            self.bytes = max(self.bytes, sum(map(_resident, _tree(self._process))))


def _tree(process: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            status = Path("/proc", name, "stat").read_text()
        except OSError:  # it has ended
            continue
        parents.setdefault(int(status.rpartition(")")[2].split()[1]), []).append(int(name))
    found = [process]
    for one in found:
        found += parents.get(one, [])
    return found


def _resident(process: int) -> int:
    try:
        lines = Path("/proc", str(process), "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def turn(name: str, command: list[str | Path], folder: Path, workers: int) -> dict[str, Any]:
    result, log = folder / f"{name}.json", folder / f"{name}.log"
    result.unlink(missing_ok=True)
    paths = os.pathsep.join(str(one) for one in (HERE.parent / "src", HERE.parent / "research", HERE))
    threads = str(1 if name in PACKAGES else workers)
    given = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": threads}
    with log.open("w") as output:
        running = subprocess.Popen(command, env=given, stdout=output, stderr=subprocess.STDOUT)
        memory = PeakMemory(running.pid)
        running.wait()
    if not result.exists():
        sys.exit(f"{name} made no result; its output is in {log}")
    found: dict[str, Any] = json.loads(result.read_text())
    return found | {"peak_bytes": memory.close(), "load": os.getloadavg()[0]}


def compared(turns: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Medians over turns; ratios within a turn."""
    found = {}
    for name in turns[0]:
        own = [one[name] for one in turns]
        ratios = [_ratio(one, name, "seconds") for one in turns]
        found[name] = {
            "version": own[0]["version"],
            "done": DONE[name],
            "samples": own[0]["samples"][0],
            "seconds": [one["seconds"] for one in own],
            "seconds_per_round": median(second for one in own for second in one["seconds"]),
            "times_ours": median(ratios),
            "times_ours_least": min(ratios),
            "times_ours_most": max(ratios),
            "cpu_seconds_per_round": median(second for one in own for second in one["cpu_seconds"]),
            "times_our_cpu": median(_ratio(one, name, "cpu_seconds") for one in turns),
            "peak_mib": max(one["peak_bytes"] for one in own) / 2**20,
            "load": [one["load"] for one in own],
        }
    return found


def _ratio(turn: dict[str, dict[str, Any]], name: str, key: str) -> float:
    return float(median(turn[name][key]) / median(turn["sfsl"][key]))


def table(found: dict[str, Any]) -> str:
    lines = [
        "| | seconds a round | times ours | least, most | CPU seconds | times ours | peak memory, MiB |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, one in found.items():
        between = f"{one['times_ours_least']:.1f}, {one['times_ours_most']:.1f}"
        seconds = f"{one['seconds_per_round']:.1f} | {one['times_ours']:.1f} | {between}"
        cpu = f"{one['cpu_seconds_per_round']:.1f} | {one['times_our_cpu']:.1f}"
        lines.append(f"| {name} {one['version']} | {seconds} | {cpu} | {one['peak_mib']:.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("out/frameworks"))
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=2, help="timed rounds of each turn")
    parser.add_argument("--repeats", type=int, default=2, help="turns of each")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=list(PACKAGES), choices=list(PACKAGES))
    parser.add_argument("--ours", choices=OURS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    folder = given.out.resolve()
    cohort = TrainingCohort(given.clients, given.scale)
    if given.ours:
        ours(cohort, given.rounds, given.workers, given.ours == "sfsl", folder / f"{given.ours}.json")
        return
    folder.mkdir(parents=True, exist_ok=True)
    pythons = {name: environment(name, folder) for name in given.only}
    clients = folder / "clients.npz"
    write_clients(cohort, clients)
    rounds, workers = str(given.rounds), str(given.workers)
    sizes = ["--clients", str(given.clients), "--scale", str(given.scale), "--rounds", rounds]
    commands: dict[str, list[str | Path]] = {
        name: [sys.executable, __file__, "--ours", name, *sizes, "--workers", workers, "--out", folder]
        for name in OURS
    }
    for name, python in pythons.items():
        result = folder / f"{name}.json"
        if name == "flower":  # its first round starts the actors, and does not count
            more = str(given.rounds + 1)
            commands[name] = [python, HERE / "flower_training.py", clients, more, workers, result]
        else:
            run = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}")
            commands[name] = [python, *run, HERE / "pfl_training.py", clients, rounds, result]
            alone = folder / "pfl, one process.json"
            commands[alone.stem] = [python, HERE / "pfl_training.py", clients, rounds, alone]
    turns = []
    for number in range(given.repeats):
        turns.append({name: turn(name, command, folder, given.workers) for name, command in commands.items()})
        if "flower" in turns[-1]:
            for key in ("seconds", "cpu_seconds", "samples"):
                turns[-1]["flower"][key] = turns[-1]["flower"][key][1:]
        print(f"turn {number + 1} of {given.repeats}:", {n: one["seconds"] for n, one in turns[-1].items()})
    found = compared(turns)
    settings = {"clients": given.clients, "scale": given.scale, "model": "din", "workers": given.workers}
    result = {**settings, "date": time.strftime("%Y-%m-%d"), "frameworks": found}
    (folder / "comparison.json").write_text(json.dumps(result, indent=2) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
