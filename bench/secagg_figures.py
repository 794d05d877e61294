"""The figures of docs/results.md for the secure sum, in one run: ours, the raw cipher's and Flower's.

Flower's primitives run in an environment of their own (`--flower-python`), on the same machine and in
the same run, so that the ratios mean something even where the seconds do not.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from sfsl_research.bench.secagg import bench_secagg

RUNS: dict[str, dict[str, Any]] = {
    "100 x 143,534": {"clients": 100, "length": 143_534},
    "100 x 143,534, 20 % dropout": {"clients": 100, "length": 143_534, "dropout": 0.2},
    "100 x 143,534, active, 20 % dropout": {
        "clients": 100,
        "length": 143_534,
        "dropout": 0.2,
        "active": True,
    },
    "100, 18 of 33,000 rows, share 0.15": {"clients": 100, "length": 18, "rows": 33_000, "share": 0.15},
    "1,000 x 10,000, sparse, 20 % dropout": {"clients": 1000, "length": 10_000, "dropout": 0.2},
}
COLUMNS = {
    "client_seconds": "client s",
    "floor_ratio": "masks / cipher",
    "server_seconds": "server s",
    "client_bytes_up": "up",
    "client_bytes_down": "down",
    "plain_bytes": "plain",
    "protocol_seconds": "whole run s",
}


def flower(python: str, dropout: float, sample: int | None) -> dict[str, Any]:
    script = Path(__file__).with_name("flower_secagg.py")
    command = [python, str(script), "--clients", "100", "--length", "143534", "--dropout", str(dropout)]
    if sample is not None:
        command += ["--server-sample", str(sample)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flower-python", help="python of an environment with flwr; left out: no comparison")
    parser.add_argument("--flower-sample", type=int, help="combine only so many secrets and scale (quicker)")
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="folder for secagg.json and .md")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    for name, settings in RUNS.items():
        print(f"{name} …", file=sys.stderr)
        results[name] = bench_secagg(**settings)
    lines = ["| run | " + " | ".join(COLUMNS.values()) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for name, result in results.items():
        lines.append(f"| {name} | " + " | ".join(shown(result[key]) for key in COLUMNS) + " |")
    if options.flower_python:
        print("Flower's primitives, 20 % dropout (minutes) …", file=sys.stderr)
        theirs = flower(options.flower_python, 0.2, options.flower_sample)
        ours = results["100 x 143,534, 20 % dropout"]
        results["flower"] = theirs
        lines += [
            "",
            f"| 100 x 143,534, 20 % dropout | ours | flwr {theirs['flwr_version']} | ratio |",
            "|---" * 4 + "|",
        ]
        for key in ("client_seconds", "server_seconds"):
            ratio = theirs[key] / ours[key]
            lines.append(f"| {COLUMNS[key]} | {shown(ours[key])} | {shown(theirs[key])} | {ratio:.0f} |")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "secagg.json").write_text(json.dumps(results, indent=2) + "\n")
    (options.out / "secagg.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
