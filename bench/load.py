"""Load: how many clients one server process holds before its answers are late.

    python bench/load.py --clients 100 250 500 1000 2000 4000 --cohorts 50 100 200 400
    python bench/load.py --scheme hot --clients --cohorts 100 1000 --pool 1000 --rounds 2 --seconds 1800

``sfsl serve`` runs over TLS on loopback in a process of its own, whose CPU and memory are read from /proc;
the clients of ``sfsl_research.swarm.swarm`` in several others, so that they are not what is measured. First
**check-ins**: more and more clients enrol, check in and wait, while a round is held up by two clients that
never answer their invitation, so that no other begins. Then **rounds** of growing cohorts, drawn from a pool
that waits. All the while a client of this process asks: a signed check-in, /healthz, a new TLS connection,
each every 50 ms (``--probe-seconds``) whether the last one was answered or not. It stops growing when one in
a hundred of these takes longer than a second, or a round comes to nothing. A table goes to stderr, one JSON
object to stdout.

With ``--light`` those that wait are bare sockets that sign and poll, of which ten thousand fit into a
machine; otherwise whole clients. Requests are timed by endpoint, too, as the clients saw them.

With ``--server-cores 0,1`` the server has these cores, and the swarm and the probe have all others.

Limits of the server (connections, rates, clients) are set so high that they are not what is measured.
"""

import argparse
import asyncio
import json
import os
import platform
import resource
import signal
import ssl
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from load_parts import (
    LOOK_SECONDS,
    OWN,
    PROBES,
    Holder,
    Played,
    Probe,
    Served,
    Swarming,
    Usage,
    only_on,
    served,
)
from sfsl.client.link import trusted
from sfsl.durable import write_whole
from sfsl.rounds.record import RoundRecord
from sfsl.service.folder import read_lines

_BASE_SECONDS = 3.0
_WAITING_SHARE = 0.6  # of the time, at the most
_CLEAN_UP_SECONDS = 6.0
_SPARE = 1000
_Report = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """``clients``: how many wait, growing. ``cohorts`` are drawn out of ``pool`` that wait, for ``rounds``
    rounds each. ``wait_seconds``: how long waiting is watched; a whole number of polls counts each client's
    renewals evenly."""

    clients: tuple[int, ...]
    cohorts: tuple[int, ...]
    pool: int
    rounds: int
    processes: int
    seconds: float
    wait_seconds: float
    poll_seconds: float
    phase_seconds: float
    late_seconds: float
    scheme: str = "sfsl"
    light: bool = False
    probe_seconds: float = 0.05
    server_cores: tuple[int, ...] = ()

    @property
    def users(self) -> int:
        """Of the data: a server wants as many as a cohort has; more clients than that share their data."""
        return max(16, *self.cohorts, 0)

    def settings(self, cohort: int, phase_seconds: float) -> str:
        most = 2 * max(*self.clients, self.pool, 0) + _SPARE
        return f"""
[data]
users = {self.users}
scale = 0.01
[model]
kind = "logistic"
[round]
scheme = "{self.scheme}"
clients = {cohort}
min_contributors = 2
[run]
threads = 1
[serve]
port = 0
min_cohort = 2
check_in_seconds = 1
phase_seconds = {phase_seconds}
training_seconds = {phase_seconds}
poll_seconds = {self.poll_seconds}
largest_set = 300
enrolment = "open"
period_days = 0
most_enrolled = {most}
most_clients = {most}
most_connections = {most}
most_per_address = {most}
client_rate = 1000
client_burst = 10000
address_rate = 1000000
address_burst = 1000000
"""


# -- what is measured ----------------------------------------------------------------------------


@dataclass
class Watch:
    """A stretch of time: what the server and the swarm spent in it, and what the probe met."""

    server: Served
    swarm: Swarming
    probe: Probe
    before: Usage = field(init=False)
    swarm_before: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.before, self.swarm_before = self.server.usage(), self.swarm.cpu()

    def end(self) -> tuple[Usage, _Report]:
        """What was used since, as in ``Usage``; and all that is told of it."""
        now = self.server.usage()
        seconds = now.at - self.before.at
        used = Usage(seconds, now.cpu - self.before.cpu, now.loop - self.before.loop, now.mib)
        swarm = [after - before for before, after in zip(self.swarm_before, self.swarm.cpu(), strict=True)]
        return used, {
            "seconds": seconds,
            "cpu_seconds": used.cpu,
            "loop_busy": used.loop / seconds,
            "mib": now.mib,
            "busiest_swarm_process": max(swarm) / seconds,
            "probe": self.probe.seen(self.before.at, now.at),
        }


@dataclass(frozen=True)
class Held:
    """A server whose round is held up, and who asks it meanwhile."""

    server: Served
    probe: Probe
    holders: Sequence[Holder]

    async def release(self) -> None:
        for holder in self.holders:
            await holder.release()


class Load:
    """``out`` has the result so far, from every stage on; None keeps none."""

    def __init__(self, plan: Plan, folder: Path, out: Path | None = None) -> None:
        self.plan, self.folder, self._out = plan, folder, out
        self.waiting: list[_Report] = []
        self.rounds: list[_Report] = []
        self.met: dict[str, _Report] = {}
        self.stopped: dict[str, str] = {}
        self.base: _Report = {}
        self.so_far: _Report = {}
        self._computed: list[dict[int, list[float]]] = []

    async def run(self) -> None:
        start, seconds = asyncio.get_running_loop().time(), self.plan.seconds - _CLEAN_UP_SECONDS
        path = self.folder / "swarm.toml"
        path.write_text(self.plan.settings(max(2, *self.plan.cohorts, 0), self.plan.phase_seconds))
        swarm = Swarming(self.plan.processes, path)
        try:
            async with asyncio.timeout_at(start + seconds):
                await swarm.ready()
            most = _WAITING_SHARE if self.plan.cohorts else 1.0
            for name, part, share in (("waiting", self._wait, most), ("rounds", self._rounds, 1.0)):
                try:
                    async with asyncio.timeout_at(start + share * seconds):
                        self.stopped[name] = await part(swarm)
                except TimeoutError:
                    self.stopped[name] = "the time given is over"
                self._keep()
        finally:
            swarm.close()

    def _keep(self) -> None:
        if self._out is not None:
            write_whole(self._out, json.dumps(self.result(), indent=2).encode())

    @asynccontextmanager
    async def _held(self, name: str, swarm: Swarming, settings: str) -> AsyncIterator[Held]:
        """What clients met is written down when they have left."""
        async with served(self.folder / name, settings, self.plan.server_cores) as server:
            tls = trusted(server.ca)
            holders = [Holder(server.url, tls) for _ in range(2)]
            for holder in holders:
                await holder.check_in()
            for holder in holders:
                await holder.hold()
            probe = Probe(holders[0], server.url, tls, self.plan.probe_seconds)
            probing = asyncio.create_task(probe.run())
            try:
                yield Held(server, probe, holders)
                self.met[name] = {"refused": await refused(server.url, tls)}
            finally:
                played = await swarm.leave()
                self.met[name] = self.met.get(name, {}) | met(played)
                self._computed = [one.computed for one in played]
                probing.cancel()
                await asyncio.wait([probing])
                for holder in holders:
                    await holder.link.close()

    # -- check-ins

    async def _wait(self, swarm: Swarming) -> str:
        plan, known = self.plan, 0
        if not plan.clients:
            return "not asked for"
        # No deadline ends the round that is held up.
        async with self._held("waiting", swarm, plan.settings(2, 86_400)) as held:
            server, probe = held.server, held.probe
            base = Watch(server, swarm, probe)
            await asyncio.sleep(_BASE_SECONDS)
            idle, self.base = base.end()
            for clients in plan.clients:
                names = [f"{number:06}" for number in range(known, clients)]
                coming = Watch(server, swarm, probe)
                took = await swarm.join(server, names, light=plan.light)
                came, arrival = coming.end()
                known = clients
                p50, p99 = (float(value) for value in np.percentile(took or [0.0], [50, 99]))
                one: _Report = {
                    "clients": clients,
                    "arrival": arrival
                    | {
                        "clients": len(names),
                        "came": len(took),
                        "client_p50": p50,
                        "client_p99": p99,
                        "per_second": len(names) / came.at,
                        "cpu_ms_per_client": 1000 * (came.cpu - idle.cpu / idle.at * came.at) / len(names),
                    },
                }
                self.waiting.append(one)
                show_part(one, "arrival")
                self._keep()
                await asyncio.sleep(1.0)
                watch = Watch(server, swarm, probe)
                await asyncio.sleep(plan.wait_seconds)
                used, waited = watch.end()
                spent = used.cpu - idle.cpu / idle.at * used.at
                one["waiting"] = waited | {
                    "cpu_ms_per_client_and_second": 1000 * spent / used.at / clients,
                    "cpu_ms_per_renewal": 1000 * spent / used.at / clients * plan.poll_seconds,
                    "kib_per_client": 1024 * (used.mib - idle.mib) / clients,
                }
                show_part(one, "waiting")
                self._keep()
                if self._late(waited):
                    return f"latency broke with {clients} waiting"
        return "all that was asked for"

    # -- rounds

    async def _rounds(self, swarm: Swarming) -> str:
        plan = self.plan
        for cohort in plan.cohorts:
            one = await self._cohort(swarm, cohort)
            self.rounds.append(one)
            self.so_far = {}
            show_rounds(one)
            self._keep()
            if one["aborted"]:
                return f"rounds of {cohort} came to nothing"
            if self._late(one):
                return f"latency broke with cohorts of {cohort}"
        return "all that was asked for" if plan.cohorts else "not asked for"

    async def _cohort(self, swarm: Swarming, cohort: int) -> _Report:
        plan, name = self.plan, f"cohort {cohort}"
        pool = max(plan.pool, cohort)
        async with self._held(name, swarm, plan.settings(cohort, plan.phase_seconds)) as held:
            server = held.server
            await swarm.join(server, [f"{number:06}" for number in range(pool)])
            await asyncio.sleep(1.0)
            watch, known = Watch(server, swarm, held.probe), server.ended
            await held.release()
            for ended in range(1, plan.rounds + 2):  # the one that was held up comes first
                while server.ended < known + ended:
                    server.require_alive()
                    await asyncio.sleep(LOOK_SECONDS)
                lines = read_lines(server.folder / "state/metrics.jsonl")[known + 1 : known + ended]
                self._note(cohort, lines)
            used, told = watch.end()
        done = [line for line in lines if line.aborted is None]
        exchanges = list(done[0].exchange_seconds) if done else []
        computed: dict[int, list[list[float]]] = {}
        for one in self._computed:
            for number, steps in one.items():
                computed.setdefault(number, []).append(steps)
        busiest = [np.max(some, axis=0) for number, some in computed.items() if number in _numbers(done)]
        by_exchange = {
            exchange: {
                "wall": statistics.fmean(line.exchange_seconds[exchange] for line in done),
                "server_cpu": statistics.fmean(line.server_seconds.get(exchange, 0.0) for line in done),
                "busiest_swarm_process": float(np.mean(busiest, axis=0)[place]) if busiest else 0.0,
            }
            for place, exchange in enumerate(exchanges)
        }
        return told | {
            "cohort": cohort,
            "cohorts": [line.cohort for line in lines],
            "pool": pool,
            "rounds": len(lines),
            "aborted": [line.aborted for line in lines if line.aborted is not None],
            "wall_seconds": [line.wall_seconds for line in lines],
            "made_it": sum(line.survivors for line in done) / max(1, sum(line.cohort for line in lines)),
            "cpu_seconds_per_round": used.cpu / max(1, len(lines)),
            "loop_seconds_per_round": used.loop / max(1, len(lines)),
            "exchanges": by_exchange,
        }

    def _note(self, cohort: int, lines: Sequence[RoundRecord]) -> None:
        """Keep what is known of a cohort whose rounds are not over."""
        self.so_far = {
            "cohort": cohort,
            "cohorts": [line.cohort for line in lines],
            "survivors": [line.survivors for line in lines],
            "wall_seconds": [line.wall_seconds for line in lines],
            "aborted": [line.aborted for line in lines if line.aborted is not None],
        }
        for line in lines[-1:]:
            end = f"{line.survivors} clients made it" if line.aborted is None else line.aborted
            show(cohort, f"a round of {line.wall_seconds:.1f} s: {end}")
        self._keep()

    def _late(self, part: _Report) -> bool:
        probe: Mapping[str, Mapping[str, float]] = part["probe"]
        return any(
            probe[kind]["p99"] > self.plan.late_seconds or probe[kind]["failed"]
            for kind in PROBES
            if kind in probe
        )

    def result(self) -> _Report:
        plan = self.plan
        waits, rounds = self.waiting, self.rounds
        held = {
            "arriving at once": [(one["arrival"]["clients"], self._late(one["arrival"])) for one in waits],
            "waiting": [(one["clients"], self._late(one["waiting"])) for one in waits if "waiting" in one],
            "cohort": [(one["cohort"], self._late(one) or bool(one["aborted"])) for one in rounds],
        }
        return {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}",
            "python": platform.python_version(),
            "limits": limits(plan),
            "late_seconds": plan.late_seconds,
            "last_that_held": {name: _last(some) for name, some in held.items()},
            "stopped": self.stopped,
            "server_alone": self.base,
            "waiting": self.waiting,
            "rounds": self.rounds,
            "rounds, not over": self.so_far,
            "met": self.met,
        }


def _last(sizes: Iterable[tuple[int, bool]]) -> int | None:
    """The largest before the first that was too much."""
    good = [size for size, _ in takewhile(lambda one: not one[1], sizes)]
    return max(good) if good else None


def _numbers(lines: Iterable[Any]) -> set[int]:
    return {line.round for line in lines}


def met(played: Sequence[Played]) -> _Report:
    """What was in clients' way: with limits so high, nothing should be."""
    errors: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    for one in played:
        errors += one.errors
        outcomes += one.outcomes
    return {
        "errors": dict(errors.most_common(10)),
        "outcomes": dict(outcomes),
        "endpoints": endpoints(played),
        "gave_up": sum(len(one.failed) for one in played),
        "why": dict(Counter(text for one in played for text in one.failed.values()).most_common(3)),
    }


def endpoints(played: Sequence[Played]) -> _Report:
    """How long requests took, by endpoint, as clients saw it: also with how late they were themselves."""
    found: _Report = {}
    for name in sorted({name for one in played for name in one.seconds}):
        took = [second for one in played for second in one.seconds.get(name, ())]
        p50, p99 = (float(value) for value in np.percentile(took, [50, 99]))
        found[name] = {"asked": len(took), "p50": p50, "p99": p99, "max": max(took)}
    return found


async def refused(url: str, tls: ssl.SSLContext) -> dict[str, float]:
    async with httpx.AsyncClient(verify=tls, trust_env=False) as http:
        text = (await http.get(f"{url}/metrics")).text
    name = "sfsl_refused_total{error="
    found = [line.removeprefix(name).split("} ") for line in text.splitlines() if line.startswith(name)]
    return {kind.strip('"'): float(count) for kind, count in found}


# -- limits, and what is shown -------------------------------------------------------------------


def allow_files(wanted: int) -> None:
    """Every connection is an open file, here and in the processes that are started from here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), max(hard, wanted)))
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, wanted)), hard))


def limits(plan: Plan) -> _Report:
    def of(path: str) -> str:
        return " ".join(Path(path).read_text().split()) if Path(path).exists() else "unknown"

    settings = (
        line.split(" = ") for line in plan.settings(2, plan.phase_seconds).splitlines() if " = " in line
    )
    shown = ("most_", "client_", "address_", "poll_", "phase_")
    return {
        "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "somaxconn": of("/proc/sys/net/core/somaxconn"),
        "ports": of("/proc/sys/net/ipv4/ip_local_port_range"),
        "fsync_ms": fsync_ms(),  # an enrolment waits for the disk
        "swarm_processes": plan.processes,
        "server_cores": list(plan.server_cores) or "any",
        "serve": {key: float(value) for key, value in settings if key.startswith(shown)},
    }


def fsync_ms() -> float:
    took = []
    with tempfile.TemporaryFile() as file:
        for _ in range(20):
            start = time.perf_counter()
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
            took.append(time.perf_counter() - start)
    return 1000 * statistics.median(took)


def show(*cells: object) -> None:
    print(*(f"{cell:>9}" for cell in cells), file=sys.stderr, flush=True)


def show_part(one: _Report, kind: str) -> None:
    part, what = one[kind], "arriving" if kind == "arrival" else kind
    each = part["cpu_ms_per_client" if kind == "arrival" else "cpu_ms_per_renewal"]
    show(one["clients"], what, *_common(part), f"{each:.2f}")


def show_rounds(one: _Report) -> None:
    each = 1000 * one["cpu_seconds_per_round"] / one["cohort"]
    show(one["cohort"], "rounds", *_common(one), f"{each:.2f}")
    median = statistics.median(one["wall_seconds"])
    show("", f"{one['rounds']} of {median:.2f} s, {one['made_it']:.1%} of the clients made it")
    for name, spent in one["exchanges"].items():
        show("", f"{name:>14}", *(f"{key} {value:.3f}" for key, value in spent.items()))


_HEAD = ("clients", "doing", "s", "loop", "swarm", "MiB", *PROBES, OWN, "CPU ms")
_ABOUT = """loop, swarm: how busy the server's event loop and the busiest swarm process were. Then p99 of the
probes in seconds, and CPU ms of the server for each client: to arrive, for a renewed poll, for a round."""


def _common(part: _Report) -> list[str]:
    probed = [
        f"{part['probe'][kind]['p99']:.3f}" if kind in part["probe"] else "-" for kind in (*PROBES, OWN)
    ]
    busy = [f"{part[key]:.0%}" for key in ("loop_busy", "busiest_swarm_process")]
    return [f"{part['seconds']:.1f}", *busy, f"{part['mib']:.0f}", *probed]


def load(plan: Plan, out: Path | None = None) -> _Report:
    """Everything that was started has ended when this returns."""

    async def run() -> None:
        task = asyncio.current_task()
        if task is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        await made.run()

    allow_files(2 * max(*plan.clients, plan.pool, 0) + 2 * _SPARE)
    if plan.server_cores:
        only_on(sorted(os.sched_getaffinity(0) - set(plan.server_cores)))
    show(_ABOUT)
    show(*_HEAD)
    with tempfile.TemporaryDirectory(prefix="sfsl-load-") as folder:
        made = Load(plan, Path(folder), out)
        try:
            asyncio.run(run())
        except asyncio.CancelledError:
            made.stopped["all"] = "told to stop"
        return made.result()


def cores(text: str) -> tuple[int, ...]:
    """Read a list of cores, of which others must be left for the clients."""
    wanted, ours = {int(one) for one in text.split(",")}, os.sched_getaffinity(0)
    if not wanted < ours:
        raise argparse.ArgumentTypeError(f"{text}: some, but not all, of {sorted(ours)}")
    return tuple(sorted(wanted))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--clients", type=int, nargs="*", default=[100, 250, 500, 1000, 2000, 4000], help="that wait")
    add("--cohorts", type=int, nargs="*", default=[50, 100, 200, 400], help="clients in a round")
    add("--scheme", choices=("sfsl", "hot"), default="sfsl", help="of the rounds")
    add("--pool", type=int, default=1024, help="how many wait while there are rounds")
    add("--rounds", type=int, default=3, help="for each cohort")
    add("--swarm-processes", type=int, default=max(1, (os.cpu_count() or 1) - 4))
    add("--seconds", type=float, default=300.0, help="for everything; 60 %% of it for check-ins at most")
    add("--wait-seconds", type=float, default=10.0, help="that waiting is watched")
    add("--poll-seconds", type=float, default=10.0, help="serve.poll_seconds")
    add("--phase-seconds", type=float, default=30.0, help="serve.phase_seconds and training_seconds")
    add("--light", action="store_true", help="those that wait are bare sockets, not whole clients")
    add("--probe-seconds", type=float, default=0.05, help="between two probes")
    add("--late-seconds", type=float, default=1.0, help="p99 of a probe beyond which latency is broken")
    add("--server-cores", type=cores, default=(), help="that the server has to itself, as in 0,1")
    add("--out", type=Path, help="a file for the result, written anew after each stage")
    chosen = parser.parse_args()
    plan = Plan(
        tuple(sorted(chosen.clients)),
        tuple(sorted(chosen.cohorts)),
        chosen.pool,
        chosen.rounds,
        chosen.swarm_processes,
        chosen.seconds,
        chosen.wait_seconds,
        chosen.poll_seconds,
        chosen.phase_seconds,
        chosen.late_seconds,
        chosen.scheme,
        chosen.light,
        chosen.probe_seconds,
        chosen.server_cores,
    )
    result = load(plan, chosen.out)
    show(f"held to the last: {result['last_that_held']}; stopped: {result['stopped']}")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
