"""Clocks as faults: a real server and real clients whose clocks are wrong, set, or drift.

    python bench/clock_faults.py --out out/clocks
    python bench/clock_faults.py --steps 1h --scenes server client --out out/clocks

Every process has a clock of its own (libfaketime; ``apt-get install faketime``), which this script sets: an
hour, ten days and 4,000 days forward and back, while a process runs and before it starts, on the server, on
one client and on all; a drift of days; and midnights, which are the boundaries of periods, both ways.
Steady clocks are left alone, as they are by those who set clocks. What must hold is judged after each fault
(rounds go on by themselves with everybody, no process has ended, someone has said what was wrong) and at the
end from what is on disk (one budget a period, no client in another period than today's, no request taken
twice). Verdicts are printed as JSON; the exit status is 1 if something does not hold.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from false_clock import false_clock, library, set_clock
from sfsl.carriers.https.authority import create_authority, issue_server
from sfsl.crypto.secret import Identity, SystemRandomness
from sfsl.privacy.state import StateRecord, read_state
from sfsl.service.folder import read_lines
from sfsl.service.messages import CODEC, Enrol
from sfsl.service.registry import Registry
from sfsl.service.signing import sign_request
from sfsl.settings.terms import PERIODS_FROM

HOUR, DAY = 3600, 86_400
STEPS = {"1h": HOUR, "10d": 10 * DAY, "4000d": 4000 * DAY}
SCENES = ("server", "restart", "client", "start", "everybody", "drift", "midnight")
_LOOK_SECONDS = 0.1
_PATIENCE_SECONDS = 180.0  # for a busy machine; a fault that is mended takes a fraction of it
_FAULT_SECONDS = 6.0
_CLIENTS = 4


class Machine:
    """A process and its clock."""

    def __init__(self, folder: Path, name: str, words: Sequence[str]) -> None:
        self.name, self.log = name, folder / f"{name}.log"
        self._clock, self._words = folder / f"{name}.clock", words
        self._process: subprocess.Popen[bytes] | None = None
        self.set(0)

    def set(self, seconds: float) -> None:
        """Set its clock so much off the true time."""
        set_clock(self._clock, seconds)

    def start(self) -> None:
        own = false_clock(self._clock) | {"OMP_NUM_THREADS": "1"}
        with open(self.log, "ab") as log:
            command = [sys.executable, "-m", "sfsl", *self._words]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | own)

    def stop(self, how: int = signal.SIGTERM) -> int:
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self._process.send_signal(how)
        return self._process.wait(_PATIENCE_SECONDS)

    def stop_by_itself(self) -> int:
        """Wait until it has ended; return its exit status, -1 if it does not end."""
        try:
            return 0 if self._process is None else self._process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.stop(signal.SIGKILL)
            return -1

    @property
    def ended(self) -> int | None:
        return None if self._process is None else self._process.poll()

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


@dataclass
class Probe:
    """An enrolled client that keeps what it signed, and sends it again: nothing may be taken twice."""

    url: str
    ca: Path
    identity: Identity = field(default_factory=lambda: Identity.generate(SystemRandomness()))
    sent: list[dict[str, str]] = field(default_factory=list)

    _TARGET = "/v1/published/" + 64 * "0"

    def _about(self, http: httpx.Client) -> dict[str, Any]:
        told: dict[str, Any] = http.get(f"{self.url}/v1/about").json()
        return told

    def _sign(self, about: dict[str, Any], method: str, target: str, body: bytes = b"") -> dict[str, str]:
        return sign_request(
            self.identity,
            deployment=bytes.fromhex(about["deployment"]),
            host="localhost",
            method=method,
            target=target,
            body=body,
            now_ms=about["time"],
            randomness=SystemRandomness(),
        )

    @contextmanager
    def _http(self) -> Iterator[httpx.Client]:
        with httpx.Client(verify=str(self.ca), trust_env=False, timeout=30) as http:
            yield http

    def ask(self) -> str:
        """Send a request, which is taken (there is no such thing: 404), and keep it."""
        with self._http() as http:
            about = self._about(http)
            body = CODEC.encode(Enrol(self.identity.public))
            http.post(
                f"{self.url}/v1/enrol", content=body, headers=self._sign(about, "POST", "/v1/enrol", body)
            ).raise_for_status()
            headers = self._sign(about, "GET", self._TARGET)
            answer = http.get(self.url + self._TARGET, headers=headers)
        self.sent.append(headers)
        return "" if answer.status_code == 404 else f"a request signed now was refused: {answer.text}"

    def replay(self) -> list[str]:
        """Send all of them once more."""
        try:
            with self._http() as http:
                answers = [http.get(self.url + self._TARGET, headers=one) for one in self.sent]
        except httpx.HTTPError as error:
            return [f"the server does not answer: {error}"]
        return [f"taken twice: {one.text}" for one in answers if one.status_code != 401]


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        now = datetime.now(UTC)
        create_authority(folder / "tls", "clocks", 3650, now=now)
        issue_server(folder / "tls", ["localhost"], 397, now=now)
        self.ca = folder / "tls/authority.pem"
        self._port = free_port()
        self.url = f"https://localhost:{self._port}"
        (folder / "serve.toml").write_text(self._settings())
        self.server = Machine(folder, "server", ["serve", str(folder / "serve.toml")])
        self.clients = [self._client(number) for number in range(_CLIENTS)]
        self.probe = Probe(self.url, self.ca)
        self.verdicts: dict[str, list[str]] = {}
        self.took: dict[str, float] = {}

    def _settings(self) -> str:
        return f"""
[data]
users = 12
scale = 0.03
[model]
kind = "logistic"
[round]
scheme = "sfsl"
clients = {_CLIENTS}
min_contributors = 2
[serve]
host = "127.0.0.1"
port = {self._port}
state = "{self.state}"
certificate = "{self.folder / "tls/server.pem"}"
key = "{self.folder / "tls/server.key"}"
enrolment = "open"
period_days = 0
largest_set = 300
min_cohort = 3
check_in_seconds = 2
phase_seconds = 20
training_seconds = 30
poll_seconds = 4
grace_seconds = 2
"""

    def _client(self, number: int, *more: str) -> Machine:
        data = self.folder / f"{number}.csv"
        lines = [f"{(7 * number + 3 * row) % 80},{row % 2},{row}" for row in range(30)]
        data.write_text("\n".join(["item,label,time", *lines]) + "\n")
        flags = more or ("--exposures", "1000000")
        words = [
            "join", "--server", self.url, "--ca", str(self.ca), "--data", str(data),
            "--state", str(self.folder / f"client-{number}"), "--exact-sums", "--privacy", "cpp3",
            "--epsilon", "inf", "--period-days", "1", "--patience-hours", "2", "--json",
            "--least-cohort", "3", "--least-contributors", "2", "--repeat-samples", *flags,
        ]  # fmt: skip
        return Machine(self.folder, f"client-{number}", words)

    @property
    def machines(self) -> list[Machine]:
        return [self.server, *self.clients]

    # -- what there is --------------------------------------------------------------------------

    def committed(self, least: int) -> int:
        """Rounds in the store with so many clients to the end."""
        lines = read_lines(self.state / "metrics.jsonl") if self.state.exists() else []
        return sum(line.aborted is None and line.survivors >= least for line in lines)

    def record(self, number: int) -> StateRecord:
        return read_state(self.folder / f"client-{number}" / "state")

    def wait(self, so: Callable[[], bool], what: str) -> list[str]:
        """Wait until it is so; return what is wrong if it never is, or a process ends."""
        end = time.monotonic() + _PATIENCE_SECONDS
        while not so():
            if gone := [one.name for one in self.machines if one.ended is not None]:
                return [f"{what}: {', '.join(gone)} ended"]
            if time.monotonic() > end:
                return [f"{what}: not within {_PATIENCE_SECONDS:.0f} s"]
            time.sleep(_LOOK_SECONDS)
        return []

    def goes_on(self, what: str, least: int = _CLIENTS) -> list[str]:
        """Wait for a round that begins and ends from now on, with so many clients."""
        known = self.committed(least)
        return self.wait(lambda: self.committed(least) > known + 1, what)

    # -- faults -------------------------------------------------------------------------------------

    def start(self) -> list[str]:
        for one in self.machines:
            one.start()
        wrong = self.goes_on("the start")
        return [*wrong, *filter(None, [self.probe.ask() if not wrong else ""])]

    def fault(
        self,
        name: str,
        struck: Sequence[Machine],
        seconds: float,
        *,
        least: int,
        says: str,
        around: Callable[[Callable[[], None]], None] = lambda set_clocks: set_clocks(),
        mend: Callable[[Callable[[], None]], None] = lambda set_clocks: set_clocks(),
        again: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        """Set clocks, look, set them right, look. ``least``: clients in rounds meanwhile, 0 where there may
        be none; ``says``: what someone struck must say, in its log. ``around`` stops and starts what has to
        be, around setting a clock, ``mend`` around setting it right, and ``again`` after that."""
        began = time.monotonic()
        before = [len(one.said) for one in struck]

        def put(off: float) -> Callable[[], None]:
            def set_clocks() -> None:
                for one in struck:
                    one.set(off)

            return set_clocks

        around(put(seconds))
        wrong = self.goes_on("while clocks were wrong", least) if least else []
        if not least:
            time.sleep(_FAULT_SECONDS)
        if struck[0] is self.server and self.server.ended is None:
            wrong += filter(None, [self._asked()])
        elif struck[0] is self.server and "sfsl: the certificate" not in self.server.said[before[0] :]:
            wrong.append("the server ended and did not say why")
        if says and not any(says in one.said[start:] for one, start in zip(struck, before, strict=True)):
            wrong += self.wait(
                lambda: any(says in one.said[at:] for one, at in zip(struck, before, strict=True)),
                f"nobody said {says!r}",
            )
        mend(put(0))
        wrong += self.goes_on("once clocks were right")
        if again is not None:
            wrong += self.probe.replay()
            again(put(0))
            wrong += self.goes_on("once it was started again")
        wrong += filter(None, [self._asked()])
        wrong += self.probe.replay()
        self.verdicts[name], self.took[name] = wrong, round(time.monotonic() - began, 1)
        print(f"{name:40} {self.took[name]:6.1f} s  {wrong or 'ok'}", file=sys.stderr, flush=True)

    def _asked(self) -> str:
        try:
            return self.probe.ask()
        except httpx.HTTPError as error:
            return f"a request was not answered: {error}"

    def again(self, one: Machine, how: int) -> Callable[[Callable[[], None]], None]:
        """Stop it, set its clock, start it."""

        def around(set_clocks: Callable[[], None]) -> None:
            one.stop(how)
            set_clocks()
            one.start()
            if one is self.server:
                self.wait(lambda: self._listens(), "the server's start")

        return around

    def by_its_unit(self, set_clocks: Callable[[], None]) -> None:
        """Set the clock right. By a clock that its certificate is not valid at a server does not start, and
        its unit starts it until it does."""
        set_clocks()
        if self.server.ended is not None:
            self.server.start()
            self.wait(self._listens, "the server's start")

    def _listens(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1):
                return True
        except OSError:
            return False

    def steps(self, scenes: Sequence[str], steps: Sequence[str]) -> None:
        one = self.clients[0]
        for name in steps:
            for way, sign in (("forward", 1), ("back", -1)):
                off, days = sign * STEPS[name], STEPS[name] >= DAY
                said = "clock is" if days else ""
                if "server" in scenes:
                    # Clients do not know who is right: where sums are exact, they wait.
                    self.fault(
                        f"server, set {way} {name}", [self.server], off,
                        least=0 if days else _CLIENTS, says="clock was set",
                    )  # fmt: skip
                if "restart" in scenes:
                    self.fault(
                        f"server, started {name} {way}", [self.server], off, least=0 if days else _CLIENTS,
                        says="", around=self.again(self.server, signal.SIGKILL), mend=self.by_its_unit,
                        again=self.again(self.server, signal.SIGKILL),
                    )  # fmt: skip
                if "client" in scenes:
                    least = _CLIENTS - 1 if days else _CLIENTS
                    self.fault(f"client, set {way} {name}", [one], off, least=least, says=said)
                if "start" in scenes:
                    least = _CLIENTS - 1 if days else _CLIENTS
                    # By a clock of before its day, or after its last, a certificate is not valid.
                    invalid = name == "4000d" or (days and off < 0)
                    words = "by this device's clock" if invalid else said
                    self.fault(
                        f"client, started {name} {way}", [one], off, least=least, says=words,
                        around=self.again(one, signal.SIGTERM), mend=self.again(one, signal.SIGTERM),
                    )  # fmt: skip
                if "everybody" in scenes and name != "4000d":  # where no certificate would be valid
                    self.fault(
                        f"everybody, set {way} {name}", self.machines, off,
                        least=_CLIENTS if off > 0 or not days else 0, says="clock was set",
                    )  # fmt: skip

    def drift(self) -> None:
        """A client's clock runs away, by two days in some seconds, and comes back."""
        one, began = self.clients[1], time.monotonic()
        wrong: list[str] = []
        known = self.committed(_CLIENTS - 1)
        for hour in [*range(0, 49, 2), *range(48, -1, -2)]:
            one.set(HOUR * hour)
            time.sleep(0.25)
        wrong += self.goes_on("after a drift")
        if self.committed(_CLIENTS - 1) == known:
            wrong.append("no round while a clock drifted")
        self.verdicts["client, drift of two days and back"] = wrong
        self.took["client, drift of two days and back"] = round(time.monotonic() - began, 1)

    def midnights(self) -> None:
        """One round a day for each client, which is started for every try: a day begins, is set back, begins
        again. Whatever the clock does, each day has one exposure, and a day that is over none. The others go
        on meanwhile, so that who is late, on a busy machine, does not wait alone."""
        began, wrong = time.monotonic(), []
        machines = [self._client(10 + number, "--exposures", "1", "--no-wait", "--rounds", "1")
                    for number in range(_CLIENTS)]  # fmt: skip
        now = datetime.now(UTC)
        midnight = (now + timedelta(days=1)).replace(hour=0, minute=0, second=0) - now
        to_midnight = midnight.total_seconds()
        # Seconds off the true time, less than a day, and how many exposures each client has by then.
        tries = [(0.0, 1), (to_midnight - 3600, 1), (to_midnight + 60, 2), (0.0, 2), (to_midnight + 120, 2)]
        for off, exposures in tries:
            for one in machines:
                one.set(off)
                one.start()
            for one in machines:
                if status := one.stop_by_itself():
                    wrong.append(f"{one.name} ended with {status}: {one.said[-300:]}")
            counts = [self.record(10 + number).ledger.begun for number in range(_CLIENTS)]
            if counts != [exposures] * _CLIENTS:
                wrong.append(f"{counts} exposures at {off:+.0f} s, where there should be {exposures} each")
        self.verdicts["midnights, to and fro"] = wrong
        self.took["midnights, to and fro"] = round(time.monotonic() - began, 1)

    # -- the end ------------------------------------------------------------------------------------

    def close(self) -> None:
        for one in self.machines:
            one.stop(signal.SIGKILL)

    def judge(self) -> None:
        """What must hold on disk, when all have ended."""
        today = (datetime.now(UTC).date() - PERIODS_FROM).days
        wrong, registry = [], Registry.beside(self.state / "registry.sqlite")
        for number in range(_CLIENTS):
            record = self.record(number)
            counted = registry.acknowledged(record.client)
            if counted > record.ledger.begun:
                wrong.append(f"client {number}: {counted} rounds counted, {record.ledger.begun} debited")
            if record.ledger.lost:
                wrong.append(f"client {number} was taken for one that lost its state")
            # Everybody's clocks were ten days ahead, together: those periods were entered, and are spent.
            if record.period is None or record.period.number > today + 11:
                wrong.append(f"client {number} is in period {record.period}, today is {today}")
            numbers = [one.number for one in record.ledger.closed]
            if numbers != sorted(set(numbers)):
                wrong.append(f"client {number} closed periods {numbers}")
        registry.close()
        self.verdicts["ledgers"] = wrong
        lines = read_lines(self.state / "metrics.jsonl")
        bad = [line for one in self.machines for line in one.said.splitlines() if "Traceback" in line]
        self.verdicts["no mistake of the program in any log"] = bad
        self.rounds = {
            "committed": sum(line.aborted is None for line in lines),
            "aborted": sorted({line.aborted for line in lines if line.aborted is not None})[:5],
        }


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def clock_faults(folder: Path, scenes: Sequence[str], steps: Sequence[str]) -> dict[str, Any]:
    folder.mkdir(mode=0o700, parents=True)
    world, began = World(folder), time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing that was started is left
    try:
        world.verdicts["start"] = world.start()
        if not world.verdicts["start"]:
            world.steps(scenes, steps)
            if "drift" in scenes:
                world.drift()
            if "midnight" in scenes:
                world.midnights()
    finally:
        world.close()
    world.judge()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - began),
        "verdicts": {name: wrong or "ok" for name, wrong in world.verdicts.items()},
        "took, seconds": world.took,
        "rounds": world.rounds,
        "replays tried": len(world.probe.sent),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scenes", nargs="+", choices=SCENES, default=SCENES)
    parser.add_argument("--steps", nargs="+", choices=tuple(STEPS), default=tuple(STEPS))
    parser.add_argument("--out", type=Path, default=Path("out/clocks"), help="a folder that is not there yet")
    options = parser.parse_args()
    if library() is None:
        sys.exit("libfaketime is not installed here (apt-get install faketime)")
    result = clock_faults(options.out, options.scenes, options.steps)
    text = json.dumps(result, indent=2)
    (options.out / "clocks.json").write_text(text + "\n")
    print(text)
    if any(wrong != "ok" for wrong in result["verdicts"].values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
