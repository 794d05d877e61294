"""Many rounds over HTTPS in a row: does one of them take much longer than the others?

    python bench/steady_rounds.py --rounds 500
    python bench/steady_rounds.py --rounds 100 --clock-seconds 3600

``sfsl serve`` and ``sfsl swarm`` run in processes of their own, on loopback, with limits as they are by
default but for the rates by address, since all clients have one. A round counts from the one before it in the
store to itself, with all that is between: check-ins, refusals, pauses. Prints JSON; the exit status is 1 if a
round took more than ``--most`` times the median, came to nothing or went on without someone. On a machine
that does other things it measures those.
"""

import argparse
import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from sfsl.service.folder import read_lines

_SFSL = (sys.executable, "-m", "sfsl")
_SERVING = re.compile(r"Serving at (https://\S+)")
_COMMITTED = re.compile(r"^(\S+ \S+) INFO round (\d+) committed", re.MULTILINE)
_START_SECONDS = 300.0
_WARM_UP = 3  # rounds in which processes take what they then keep


def settings(clients: int, rounds: int, clock_seconds: float, scheme: str) -> str:
    return f"""
[data]
users = {max(12, clients)}
scale = 0.03
[model]
kind = "logistic"
[round]
scheme = "{scheme}"
clients = {clients}
min_contributors = 2
[serve]
port = 0
rounds = {rounds}
min_cohort = {clients}
enrolment = "open"
period_days = 0
largest_set = 300
clock_seconds = {clock_seconds}
address_rate = 100000
address_burst = 100000
"""


def rounds_in_a_row(
    folder: Path, clients: int, rounds: int, clock_seconds: float, scheme: str
) -> tuple[list[float], dict[str, Any]]:
    """The seconds from one committed round to the next, and what else is worth knowing."""
    config, state, log = folder / "serve.toml", folder / "state", folder / "serve.log"
    config.write_text(settings(clients, rounds, clock_seconds, scheme))
    with open(log, "wb") as said:
        server = subprocess.Popen(
            [*_SFSL, "serve", str(config), "--out", str(state)], stdout=said, stderr=said
        )
    swarm = None
    try:
        url, ca = _url(server, log), state / "tls/authority.pem"
        command = [*_SFSL, "swarm", str(config), "--server", url, "--ca", str(ca)]
        command += ["--clients", str(clients), "--json"]
        with open(folder / "swarm.log", "wb") as heard:
            swarm = subprocess.Popen(command, stdout=heard, stderr=heard)
        refused: dict[str, float] = {}
        while server.poll() is None and swarm.poll() is None:
            refused = _refused(url, ca) or refused
            time.sleep(1.0)
    finally:
        for process in (swarm, server):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
    at = [
        datetime.strptime(one, "%Y-%m-%d %H:%M:%S,%f").timestamp()
        for one, _ in _COMMITTED.findall(log.read_text())
    ]
    lines = read_lines(state / "metrics.jsonl")
    return [after - before for before, after in pairwise(at[_WARM_UP:])], {
        "rounds": len(lines),
        "aborted": [line.aborted for line in lines if line.aborted is not None],
        "without someone": sum(line.survivors < clients for line in lines),
        "in the round itself, longest": max((line.wall_seconds for line in lines), default=0.0),
        "refused": {kind: count for kind, count in refused.items() if count},
    }


def _refused(url: str, ca: Path) -> dict[str, float]:
    try:
        text = httpx.get(f"{url}/metrics", verify=str(ca), trust_env=False).text
    except httpx.HTTPError:  # it has just stopped
        return {}
    found = re.findall(r'^sfsl_refused_total\{error="(\w+)"\} (\S+)$', text, re.MULTILINE)
    return {kind: float(count) for kind, count in found}


def _url(server: "subprocess.Popen[bytes]", log: Path) -> str:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end and server.poll() is None:
        if found := _SERVING.search(log.read_text()):
            return found[1]
        time.sleep(0.1)
    sys.exit(f"the server did not start:\n{log.read_text()}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--clock-seconds", type=float, default=120.0, help="serve.clock_seconds")
    parser.add_argument("--scheme", choices=("sfsl", "hot"), default="sfsl")
    parser.add_argument("--most", type=float, default=10.0, help="times the median")
    chosen = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="sfsl-steady-") as folder:
        took, more = rounds_in_a_row(
            Path(folder), chosen.clients, chosen.rounds, chosen.clock_seconds, chosen.scheme
        )
    if not took:
        sys.exit("no rounds")
    median, longest = statistics.median(took), max(took)
    result = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}, load {load:.1f}",
        "clients": chosen.clients,
        "clock_seconds": chosen.clock_seconds,
        "median": median,
        "p99": statistics.quantiles(took, n=100)[98],
        "longest": longest,
        "longest, times the median": longest / median,
        "more than that": sum(one > chosen.most * median for one in took),
        **more,
    }
    print(json.dumps(result, indent=2))
    short = more["rounds"] < chosen.rounds
    if longest > chosen.most * median or more["aborted"] or more["without someone"] or short:
        sys.exit(1)


if __name__ == "__main__":
    main()
