"""Does it learn? Runs of `sfsl run` side by side: schemes, weights, floors, learning rates, models, by seed.

Sums are plain, which gives the model that masked sums give, word for word. A run that is there already is
resumed, so that a grid can be stopped at any time and started again. Prints a table; writes every curve
to curves.json and, with `--draw`, a picture. `--curves FILE` shows curves that were written before.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

# By name and seed: rounds and AUCs.
Curves = dict[str, dict[str, list[tuple[int, float]]]]

# What is compared, by name: shipped defaults but for what is named, and three learning rates where a scheme
# has none of its own.
FLAT = "--set server.kappa_rounds=0"
COMMON = {
    **{f"fl, rate {rate}": f"--scheme fl --set training.learning_rate={rate}" for rate in ("1", "2", "4")},
    **{
        f"centralized {kind} {rate}": f"--scheme centralized --set centralized.optimizer={kind} "
        f"--set centralized.learning_rate={rate}"
        for kind, rates in {"adam": ("0.0001", "0.0003", "0.001"), "sgd": ("1", "3", "10")}.items()
        for rate in rates
    },
}
AMAZON = {
    "sfsl cpp2": "--privacy cpp2",
    **COMMON,
    "sfsl cpp2, owners, no floor": "--privacy cpp2 --set server.kappa=1",
    "sfsl cpp2, samples, no floor (the paper's)": "--privacy cpp2 --set server.weights=samples "
    "--set server.kappa=1 --set server.dense_rate=1",
    "sfsl cpp2, samples, floor": "--privacy cpp2 --set server.weights=samples",
    "sfsl cpp2, owners, floor 5, dense rate 1": f"--privacy cpp2 --set server.kappa=5 {FLAT} "
    "--set server.dense_rate=1",
}
# As in the paper, no row is left out for having few contributors: at cpp1 most have one.
SYNTHETIC = {
    **{
        f"sfsl {preset}": f"--privacy {preset} --set round.min_contributors=1"
        for preset in ("cpp1", "cpp2", "cpp4", "cpp5")
    },
    **COMMON,
}
# Other models on the file of amazon, at sizes that two cores train in minutes.
SMALL = "--clients 50 --set data.max_history=20"
RECOMMENDERS = {kind: f"{SMALL} --set model.kind={kind}" for kind in ("din", "dien", "bst", "logistic")}
# Adam at the server, since words differ a thousandfold in how often they are said.
SHAKESPEARE = {
    "lstm": "--clients 30 --set model.kind=lstm --set model.initial=0.3 --set training.batch_size=8 "
    "--set training.learning_rate=0.5 --set training.clip=1 --set server.kappa=1 "
    "--set server.row_step=adam --set server.row_rate=0.1 --set server.dense_step=adam "
    "--set server.dense_rate=0.02"
}
GRIDS = {
    "amazon": AMAZON,
    "synthetic": SYNTHETIC,
    "recommenders": RECOMMENDERS,
    "shakespeare": SHAKESPEARE,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", choices=GRIDS)
    parser.add_argument("--path", type=Path, help="the file; synthetic has none")
    parser.add_argument("--scale", type=float, default=0.1, help="synthetic: data.scale")
    parser.add_argument("--users", type=int, default=1000, help="synthetic: data.users")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--every", type=int, default=5, help="rounds between evaluations")
    parser.add_argument("--only", nargs="*", default=None, help="names of the grid; default: all")
    parser.add_argument("--extra", nargs="*", default=[], metavar="NAME=FLAGS", help="runs besides")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--stop-after", type=float, default=float("inf"), help="seconds; runs are resumable")
    parser.add_argument("--out", type=Path, default=Path("out/learning"))
    parser.add_argument("--curves", type=Path, help="show these curves instead of running anything")
    parser.add_argument("--draw", type=Path, help="the picture to write, .png or .svg")
    options = parser.parse_args()
    curves = json.loads(options.curves.read_text()) if options.curves else trained(options)
    if options.draw:
        draw(curves, options.draw)
    print(table(curves))


def trained(options: argparse.Namespace) -> Curves:
    grid = GRIDS[options.data]
    chosen = {name: grid[name] for name in (grid if options.only is None else options.only)}
    chosen |= dict(one.split("=", 1) for one in options.extra)
    jobs = [
        (name, seed, command(options, name, flags, seed))
        for seed in options.seeds
        for name, flags in chosen.items()
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    run_all([one for _, _, one in jobs], options.jobs, time.monotonic() + options.stop_after)
    curves: Curves = {}
    for name, seed, _ in jobs:
        curves.setdefault(name, {})[str(seed)] = list(curve(folder(options, name, seed)))
    (options.out / "curves.json").write_text(json.dumps(curves))
    return curves


def folder(options: argparse.Namespace, name: str, seed: int) -> Path:
    plain = "".join(one if one.isalnum() or one in "-." else "-" for one in f"{options.data}-{name}-{seed}")
    found: Path = options.out / plain
    return found


def command(options: argparse.Namespace, name: str, flags: str, seed: int) -> list[str]:
    source = "amazon" if options.data == "recommenders" else options.data
    data = [source if options.path is None else f"{source}:{options.path}"]
    if source == "synthetic":
        data += ["--set", "data.world=paper"]
        data += ["--set", f"data.users={options.users}", "--set", f"data.scale={options.scale}"]
    if "--scheme" not in flags:
        flags += " --sums plain"
    out = folder(options, name, seed)
    words = [sys.executable, "-m", "sfsl", "run", "--out", str(out), "--json"]
    words += ["--rounds", str(options.rounds), "--set", f"run.evaluate_every={options.every}"]
    if (out / "config.toml").exists():
        return [*words, "--resume"]
    whole = ["--set", "data.validation=0"]  # curves of the whole test set, as in the results
    return [*words, "--data", *data, *whole, "--set", f"run.seed={seed}", *shlex.split(flags)]


def run_all(commands: list[list[str]], jobs: int, deadline: float) -> None:
    """So many at a time, in order; at the deadline each finishes its round and stops."""
    waiting, running = list(commands), dict[subprocess.Popen[bytes], str]()
    while waiting or running:
        while waiting and len(running) < jobs and time.monotonic() < deadline:
            words = waiting.pop(0)
            log = open(f"{words[5]}.log", "ab")  # noqa: SIM115 -- the process's own
            running[subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=log)] = words[5]
        if time.monotonic() >= deadline:
            waiting.clear()
            for process in running:
                process.send_signal(signal.SIGINT)
            for process in running:
                process.wait(60)
        for process in [one for one in running if one.poll() is not None]:
            name = running.pop(process)
            print(f"{name}: exit {process.returncode}", file=sys.stderr, flush=True)
        time.sleep(0.2)


def curve(run: Path) -> Iterator[tuple[int, float]]:
    """Rounds and AUCs of the central test set."""
    file = run / "metrics.jsonl"
    for text in file.read_text().splitlines() if file.exists() else ():
        line = json.loads(text)
        if line["auc"] is not None:
            yield line["round"], line["auc"]


def draw(curves: Curves, file: Path) -> None:
    """Each scheme's mean over the seeds that have come as far, and the band between them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 5.0), layout="constrained")
    panel = figure.add_subplot()
    for name, by_seed in curves.items():
        points: dict[int, list[float]] = {}
        for number, auc in (point for one in by_seed.values() for point in one):
            points.setdefault(number, []).append(auc)
        whole = sorted(number for number, values in points.items() if len(values) == len(by_seed))
        (line,) = panel.plot(whole, [mean(points[number]) for number in whole], lw=1.5, label=name)
        low, high = ([side(points[number]) for number in whole] for side in (min, max))
        panel.fill_between(whole, low, high, alpha=0.15, color=line.get_color(), lw=0)
    panel.set(xlabel="round", ylabel="AUC of the central test set")
    panel.grid(alpha=0.3)
    panel.legend(fontsize="small")
    figure.savefig(file, dpi=120)


def table(curves: Curves) -> str:
    """Markdown: means over seeds, and each seed's best."""
    rows = ["| | best | at round | last | 0.65 at round | best by seed |", "|---|---|---|---|---|---|"]
    for name, by_seed in curves.items():
        known = [one for one in by_seed.values() if one]
        if not known:
            continue
        best = [max(one, key=lambda point: point[1]) for one in known]
        reached = [crossing(one, 0.65) for one in known]
        rows.append(
            f"| {name} | {mean(auc for _, auc in best):.4f} | {mean(number for number, _ in best):.0f} | "
            f"{mean(one[-1][1] for one in known):.4f} (round {max(one[-1][0] for one in known)}) | "
            f"{_mean(reached)} | {', '.join(f'{auc:.4f}' for _, auc in best)} |"
        )
    return "\n".join(rows)


def crossing(points: list[tuple[int, float]], level: float) -> float | None:
    """The round in which the curve passes this level, between evaluations as the crow flies."""
    before = (0, 0.5)
    for number, auc in points:
        if auc >= level:
            return before[0] + (number - before[0]) * (level - before[1]) / (auc - before[1])
        before = (number, auc)
    return None


def _mean(values: list[Any]) -> str:
    return "never" if None in values else f"{mean(values):.1f}"


if __name__ == "__main__":
    main()
