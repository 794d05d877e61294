"""Chaos: a real server process, struck again and again, and real clients on a bad network.

    python bench/chaos.py --rounds 200 --clients 40 --kills 10 --disks 6 --damages 6 --faults 0.2 --seed 1

``sfsl serve`` runs over TLS on loopback in a process of its own; the clients, with their ledgers on disk, in
this one. The server is killed, its disk is full for a while, its metrics are damaged while it is down, its
clock is wrong for a while (``chaos_plan``), at moments that follow from the seed, at any point of a round;
whenever it ends, it is started again, and nothing else is done. By itself it may end only where it refuses to
start on a full disk. Afterwards what must hold is checked from
what is on disk and in the logs (``chaos_checks``); the verdicts are printed as JSON, and the exit status is 1
if something does not hold. Then fewer strikes are tried, to find the fewest with which it fails (--shrink).
A small disk needs root to mount it, a false clock libfaketime; what cannot be had is left out, and said.
"""

import argparse
import asyncio
import json
import math
import os
import platform
import re
import shutil
import signal
import socket
import statistics
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import torch

from chaos_checks import Evidence, quarters, verdicts
from chaos_plan import KINDS as STRIKES
from chaos_plan import SmallDisk, Strike, as_json, draw, harm, read_strikes, shrink
from false_clock import false_clock, set_clock
from sfsl.arrays import Indices
from sfsl.client.events import Event
from sfsl.client.link import trusted
from sfsl.client.round import ClientModel, DurableMemory
from sfsl.crypto.secret import Identity, SystemRandomness, digest
from sfsl.errors import InputError
from sfsl.models.package import describe, package_digest
from sfsl.privacy import Budget, Calendar, ClientState
from sfsl.rounds.record import RoundRecord
from sfsl.run.fleet import build_fleet, client_privacy
from sfsl.service.folder import read_lines, scan_metrics
from sfsl.service.registry import Registry
from sfsl.service.signing import client_id
from sfsl.settings.serve import from_all_sections
from sfsl.settings.toml import read_sections
from sfsl.simulate.chance import Chance
from sfsl.submodel import LmdbStore
from sfsl.training import LocalSettings
from sfsl_research.swarm.faults import KINDS, LOSSES, NetworkFaults
from sfsl_research.swarm.swarm import Swarm, SwarmReport, SwarmSettings

_INVITED = re.compile(r" round (\d+) \(([0-9a-f]{32})\): \d+ clients invited")
_SAMPLE_SECONDS = 0.5
_STALL_SECONDS = 600.0  # without a line about a round, which takes minutes where others have the machine
_AGAIN_SECONDS = 1.0  # until a server that ended by itself is started again, as a supervisor would
_MOST_ENDS = 50
_KEPT = ("checked-in", "invited", "committed", "aborted")
_BUDGET = Budget(math.inf, math.inf, 10**6)  # made-up devices; a person's is asked once
_CALENDAR = Calendar(start=date(2026, 1, 1), days=3650)


@dataclass(frozen=True)
class Plan:
    rounds: int
    clients: int
    faults: float
    seed: int
    strikes: tuple[Strike, ...] = ()


class CountedMemory(DurableMemory):
    """A client's real ledger, and how often it was asked for the client's set."""

    exposed = 0

    def expose(self, round_id: bytes) -> dict[str, Indices]:
        self.exposed += 1
        return super().expose(round_id)


class Processes:
    """The server, started as often as it is killed, and how much memory each of its processes had."""

    def __init__(self, folder: Path, *, false_clocks: bool) -> None:
        self.log, self._clock = folder / "log.txt", folder / "clock"
        self.clock = false_clock(self._clock) if false_clocks else {}
        if self.clock:
            self.set_clock(0)
        self.starts = 0
        self.memory: list[list[tuple[float, float]]] = []
        self.kills: list[float] = []
        self._command = [sys.executable, "-m", "sfsl", "serve", str(folder / "serve.toml")]
        self._process: asyncio.subprocess.Process | None = None

    @property
    def running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise RuntimeError("the server was not started")
        return self._process

    async def start(self) -> None:
        self.starts += 1
        with open(self.log, "a") as log:
            log.write(f"=== start {self.starts}\n")
            log.flush()
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdout=log, stderr=log, env=os.environ | self.clock
            )
        self.memory.append([])

    def set_clock(self, seconds: int) -> None:
        set_clock(self._clock, seconds)

    async def kill(self) -> None:
        with suppress(ProcessLookupError):  # it may be on its way out, for another reason
            self.running.send_signal(signal.SIGKILL)
        self.kills.append(time.time())
        await self.running.wait()

    @property
    def ended(self) -> bool:
        return self.running.returncode is not None

    def measure(self) -> None:
        if self.running.returncode is None:
            self.memory[-1].append((time.time(), resident(self.running.pid)))

    @property
    def served(self) -> bool:
        """Whether it came as far as serving since it was last started."""
        return "Serving at" in self.log.read_text().rpartition("=== start ")[2]

    async def close(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()  # it holds what is looked at next


class Chaos:
    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan, self.folder = plan, folder
        self.memories: dict[str, CountedMemory] = {}
        self.mine: list[tuple[float, float]] = []
        self.unhandled: list[str] = []
        self.server = Processes(folder, false_clocks=any(one.kind == "clock" for one in plan.strikes))
        self.disk = SmallDisk(folder / "state")
        self.begun: dict[str, float] = {}
        self.damaged: list[int] = []
        self.left_out: list[str] = []
        self._ends = 0
        self._port = free_port()
        (folder / "serve.toml").write_text(self._settings())
        self._config = from_all_sections(read_sections(folder / "serve.toml"))
        self._fleet = build_fleet(self._config.run)
        self._names = sorted(self._fleet.devices)[: plan.clients]
        self.told: dict[str, list[tuple[float, str, int | None]]] = {name: [] for name in self._names}
        self.waits: dict[str, list[tuple[float, float]]] = {name: [] for name in self._names}
        randomness = SystemRandomness()
        self.identities = {name: Identity.generate(randomness) for name in self._names}

    def _settings(self) -> str:
        plan = self.plan
        return f"""
[data]
users = {plan.clients}
scale = 0.03
[model]
width = 8
[round]
scheme = "sfsl"
clients = {plan.clients}
min_contributors = 2
[serve]
port = {self._port}
state = "{self.folder / "state"}"
rounds = {plan.rounds}
enrolment = "open"
period_days = 0
largest_set = 300
check_in_seconds = 8
phase_seconds = 5
training_seconds = 10
poll_seconds = 4
grace_seconds = 2
"""

    # -- running -------------------------------------------------------------------------------

    async def run(self) -> SwarmReport:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self.unhandled.append(str(context)))
        if (task := asyncio.current_task()) is not None:  # so that no server and no disk is left
            loop.add_signal_handler(signal.SIGTERM, task.cancel)
        await self.server.start()
        while not (self.folder / "state/tls/authority.pem").exists():
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.5)
        swarm = self._swarm()
        playing = asyncio.create_task(swarm.run())
        watching = [asyncio.create_task(one) for one in (self._measure(), self._watch())]
        try:
            await self._torment(playing)
        finally:
            await self.server.close()
            await asyncio.sleep(0.1)  # for the last line of the log
            for task in (playing, *watching):
                task.cancel()
            for ended in await asyncio.gather(playing, *watching, return_exceptions=True):
                if isinstance(ended, Exception):
                    self.unhandled.append(repr(ended))
            for memory in self.memories.values():
                memory.state.close()
            self.disk.keep_and_close(self.folder / "kept")
        return swarm.report

    async def _torment(self, playing: "asyncio.Task[SwarmReport]") -> None:
        """Strike as planned, start again; until the server has had its rounds, or nothing goes on."""
        left = {one.round: one for one in self.plan.strikes}
        latest = 0
        since = changed = time.monotonic()
        took = [2.0]
        with open(self.server.log) as log:
            while True:  # rounds that were cut short begin again: how many begun says nothing of the end
                for line in log.readlines():
                    if " round " in line:
                        changed = time.monotonic()
                    if begun := _INVITED.search(line):
                        took = [*took[-9:], changed - since]
                        latest, since = int(begun[1]), changed
                if latest in left and not self.server.ended:
                    await self._strike(left.pop(latest), statistics.median(took))
                    since = changed = time.monotonic()
                if self.server.ended and (code := self.server.running.returncode) != 0:
                    self._ends += 1
                    if self._ends > _MOST_ENDS:
                        self.unhandled.append(f"the server ended {self._ends} times by itself")
                        return
                    if code != 1 or self.server.served:
                        self.unhandled.append(f"the server ended with {code} in round {latest}")
                    self.server.kills.append(time.time())
                    await asyncio.sleep(_AGAIN_SECONDS)
                    await self.server.start()
                    since = changed = time.monotonic()
                if self.server.ended:
                    return
                if playing.done() or time.monotonic() - changed > _STALL_SECONDS:
                    self.unhandled.append("the clients stopped, or nothing went on for long")
                    return
                await asyncio.sleep(0.02)

    async def _watch(self) -> None:
        """Note when rounds begin, by a clock that is right, also while something is struck."""
        with open(self.server.log) as log:
            while True:
                for line in log.readlines():
                    if begun := _INVITED.search(line):
                        self.begun[begun[2]] = time.time()
                await asyncio.sleep(0.02)

    async def _strike(self, strike: Strike, usual: float) -> None:
        """Do to the server what is planned; start it again if it has ended by then."""
        await asyncio.sleep(strike.part * usual)
        match strike.kind:
            case "kill":
                await self.server.kill()
            case "damage":
                await self.server.kill()
                if harm(self.folder / "state/metrics.jsonl", strike):
                    self.damaged.append(self.server.starts + 1)
            case "disk" if self.disk.mounted:
                self.disk.fill(strike.room)
                await asyncio.sleep((1 + 2 * strike.shape) * usual)
                self.disk.free()
            case "clock" if self.server.clock:
                self.server.set_clock(strike.step)
                await asyncio.sleep(max(5.0, 2 * usual))
                self.server.set_clock(0)
            case _:
                self.left_out.append(str(strike))
        if self.server.ended and strike.kind in ("kill", "damage"):
            await self.server.start()

    async def _measure(self) -> None:
        while True:
            self.server.measure()
            self.mine.append((time.time(), resident(os.getpid())))
            await asyncio.sleep(_SAMPLE_SECONDS)

    def _swarm(self) -> Swarm:
        run, task = self._config.run, self._fleet.task
        model = ClientModel(package_digest(describe(task)), task.spec, task.row_maps)
        privacy = client_privacy(run, self._names)
        training = run.training

        def seen(name: str, event: Event) -> None:
            if event.kind in _KEPT:
                self.told[name].append((time.time(), event.kind, event.round))
            if event.seconds is not None:
                self.waits[name].append((time.time(), time.time() + event.seconds))

        def memory(name: str) -> CountedMemory:
            home = self.folder / "clients" / name
            home.mkdir(parents=True)
            client = client_id(self.identities[name].public)
            state = ClientState.create(home / "state", client=client, calendar=_CALENDAR, budget=_BUDGET)
            needed = self._fleet.devices[name].needed
            shared = {table: needed[table] for table in model.tables.shared}
            made = self.memories[name] = CountedMemory(
                state, privacy[name], model.tables, shared,
                today=lambda: datetime.now(UTC).date(), randomness=SystemRandomness(),
            )  # fmt: skip
            return made

        share = self.plan.faults / len(KINDS)
        return Swarm(
            f"https://127.0.0.1:{self._port}",
            model,
            self._fleet.devices,
            self.identities,
            privacy,
            Chance(task, self._fleet.devices, run.run.seed),
            SwarmSettings(
                rounds=None,
                every=0,
                row_seed=digest("seed of a run", str(run.run.seed).encode()),
                local=LocalSettings(
                    training.batch_size,
                    training.epochs,
                    training.learning_rate,
                    training.decay,
                    training.clip,
                ),
                faults=NetworkFaults(dict.fromkeys(KINDS, share), self.plan.seed),
                longest_pause_s=2.0,
            ),
            tls=trusted(self.folder / "state/tls/authority.pem"),
            seen=seen,
            memories=memory,
        )

    # -- what there is afterwards --------------------------------------------------------------

    def evidence(self, report: SwarmReport) -> Evidence:
        """From the disk, where it is about what is durable."""
        state = self.folder / "state"
        ids = {name: client_id(identity.public) for name, identity in self.identities.items()}
        ledgers = {}
        for name in self.memories:
            with ClientState.open(
                self.folder / "clients" / name / "state", client=ids[name], budget=_BUDGET
            ) as own:
                ledgers[name] = own.ledger
        with Registry(state / "registry.sqlite") as registry:
            counted = {name: registry.acknowledged(client) for name, client in ids.items()}
        with LmdbStore.open(state / "store") as store:
            store_round = store.round
        waits = {name: sorted([*waits, *report.paused.get(name, ())]) for name, waits in self.waits.items()}
        found = Evidence(
            rounds=self.plan.rounds,
            log=self.server.log.read_text(),
            kills=self.server.kills,
            seen=self.begun,
            damaged=self.damaged,
            lines=self._lines(state / "metrics.jsonl"),
            store_round=store_round,
            told=self.told,
            vanished=report.vanished,
            waits=waits,
            whole=self._whole(report),
            exposed={name: memory.exposed for name, memory in self.memories.items()},
            ledgers=ledgers,
            acknowledged=counted,
            server=self.server.memory,
            swarm=self.mine,
            unhandled=self.unhandled,
            failed=report.failed,
        )
        self._keep_told(found)
        return found

    def _keep_told(self, found: Evidence) -> None:
        """What every client said and when, for who asks how a verdict came about."""
        begun = [asdict(one) for one in found.begun()]
        said = {"begun": begun, "told": found.told, "vanished": found.vanished, "waits": found.waits}
        (self.folder / "told.json").write_text(json.dumps(said) + "\n")

    def _lines(self, path: Path) -> list[RoundRecord]:
        try:
            return read_lines(path)
        except InputError as error:  # damaged, and no server came to mend it
            self.unhandled.append(str(error))
            return list(scan_metrics(path))

    def _whole(self, report: SwarmReport) -> dict[str, int]:
        return {name: report.whole[name] for name in self._names}


def resident(pid: int) -> float:
    """MiB of a process in memory; of one that has just ended, none."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def summary(plan: Plan, found: Evidence, report: SwarmReport, seconds: float) -> dict[str, Any]:
    judged = verdicts(found)
    begun = found.begun()
    aborted = Counter(
        " ".join("N" if word.isdigit() else word for word in (line.aborted or "").split()[:7])
        for line in found.lines
        if line.aborted is not None
    )
    check_ins = sum(report.attempts.values())
    struck = sum(report.traffic.faults.values())
    known = [line for line in found.lines if not line.lost]
    walls = [line.wall_seconds for line in known]
    return {
        "plan": {name: value for name, value in asdict(plan).items() if name != "strikes"},
        "strikes": as_json(plan.strikes),
        "strikes, in words": [str(one) for one in plan.strikes],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}",
        "seconds": seconds,
        "verdicts": {name: "ok" if not wrong else wrong[:20] for name, wrong in judged.items()},
        "rounds": {
            "begun": len(begun),
            "cut short by a kill": len(begun) - len(found.lines),
            "committed": sum(line.aborted is None for line in found.lines),
            "with their line of metrics lost": sum(line.lost for line in found.lines),
            "aborted": dict(aborted),
            "seconds, median": statistics.median(walls) if walls else None,
        },
        "clients": {
            "check-ins": dict(report.attempts),
            "struck": struck,
            "struck, share of check-ins": struck / max(1, check_ins),
            "faults": dict(report.traffic.faults),
            "lost to their round": sum(report.traffic.faults[kind] for kind in LOSSES),
            "in the sum, mean": statistics.fmean(
                [line.survivors for line in known if line.aborted is None] or [0]
            ),
            "exposures": sum(found.exposed.values()),
            "counted by the server": sum(found.acknowledged.values()),
            "errors": dict(report.errors.most_common(12)),
        },
        "ends of the server": len(found.kills),
        "waited for room": found.log.count("The server waits for room"),
        "starts of the server": len(found.server),
        "metrics mended": len(found.damaged),
        "MiB, median of each quarter": quarters(found),
        "exchanges": report.exchanges(),
    }


def chaos(plan: Plan, folder: Path) -> tuple[dict[str, Any], Evidence]:
    folder.mkdir(mode=0o700, parents=True)
    torch.set_num_threads(1)
    start = time.perf_counter()
    run = Chaos(plan, folder)
    report = asyncio.run(run.run())
    found = run.evidence(report)
    result = summary(plan, found, report, time.perf_counter() - start)
    return result | {"left out": run.left_out}, found


def failed(result: Mapping[str, Any]) -> list[str]:
    return [name for name, wrong in result["verdicts"].items() if wrong != "ok"]


def shrunk(plan: Plan, folder: Path, wrong: Sequence[str], most: int) -> dict[str, Any]:
    """Find the fewest strikes with which one of these verdicts fails again."""
    tried = 0

    def fails(strikes: Sequence[Strike]) -> bool:
        nonlocal tried
        tried += 1
        last = max((one.round for one in strikes), default=10)
        fewer = replace(plan, strikes=tuple(strikes), rounds=min(plan.rounds, last + 8))
        result, _ = chaos(fewer, folder / f"shrunk-{tried}")
        again = set(failed(result)) & set(wrong)
        print(f"{len(strikes)} strikes: {', '.join(again) or 'ok'}", file=sys.stderr)
        if not again:
            shutil.rmtree(folder / f"shrunk-{tried}")
        return bool(again)

    found, runs = shrink(plan.strikes, fails, most)
    return {"strikes": as_json(found), "in words": [str(one) for one in found], "runs": runs}


def _keep(result: dict[str, Any], out: Path) -> None:
    (out / "chaos.json").write_text(json.dumps(result, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--kills", type=int, default=10, help="of the server, with SIGKILL")
    parser.add_argument("--disks", type=int, default=6, help="times that its disk is full")
    parser.add_argument("--damages", type=int, default=6, help="kills with damage to its metrics")
    parser.add_argument("--clocks", type=int, default=0, help="times that its clock is wrong")
    parser.add_argument("--strikes", type=Path, help="play those of this result (chaos.json) again instead")
    parser.add_argument("--shrink", type=int, default=8, help="runs to find the fewest strikes that fail")
    parser.add_argument("--faults", type=float, default=0.2, help="share of a round's clients, of all kinds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out/chaos"), help="a folder that is not there yet")
    options = parser.parse_args()
    counts = {kind: getattr(options, f"{kind}s") for kind in STRIKES}
    strikes = read_strikes(options.strikes) if options.strikes else draw(options.rounds, counts, options.seed)
    plan = Plan(options.rounds, options.clients, options.faults, options.seed, tuple(strikes))
    result, _ = chaos(plan, options.out)
    wrong = failed(result)
    _keep(result, options.out)
    if wrong and options.shrink:
        print(f"does not hold: {', '.join(wrong)} (chaos.json); trying fewer strikes", file=sys.stderr)
        result["fewest strikes that fail"] = shrunk(plan, options.out, wrong, options.shrink)
        _keep(result, options.out)
    print(json.dumps(result, indent=2))
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
