"""The commands of clients against a whole deployment, over TLS on real sockets."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from typer.testing import CliRunner

import sfsl.client.join
import sfsl.models.package
from clocks import PATIENCE
from sfsl.carriers.https.authority import create_authority, issue_server
from sfsl.cli import app, join
from sfsl.cli.output import Stopped, progress_console, run_until_stopped
from sfsl.client.home import Home
from sfsl.client.join import join_async
from sfsl.client.link import Link
from sfsl.crypto.secret import SystemRandomness
from sfsl.deploy import open_deployment
from sfsl.errors import AuthenticationFailed, InputError, InvalidMessage, StateError
from sfsl.service.folder import read_lines
from sfsl.settings.serve import from_all_sections
from sfsl.settings.terms import Terms
from sfsl_research.cli import swarm
from sfsl_research.swarm.faults import KINDS, NetworkFaults
from sfsl_research.swarm.swarm import SwarmReport

CONFIG: dict[str, Any] = {
    "data": {"users": 12, "scale": 0.03},
    "model": {"kind": "logistic"},
    "round": {"scheme": "sfsl", "clients": 5, "min_contributors": 2},
}


class Place:
    """A deployment over TLS in this process, in ``folder``."""

    def __init__(self, folder: Path, **serve: Any) -> None:
        self.folder, now = folder, datetime.now(UTC)
        create_authority(folder / "tls", "test", 10, now=now)
        issue_server(folder / "tls", ["localhost"], 5, now=now)
        self.ca = folder / "tls/authority.pem"
        files = {"certificate": str(folder / "tls/server.pem"), "key": str(folder / "tls/server.key")}
        open_to_all = {"enrolment": "open", "port": 0, "period_days": 0, "largest_set": 300}
        self.config = from_all_sections(CONFIG | {"serve": files | open_to_all | serve})

    async def __aenter__(self) -> str:
        self._deployment = open_deployment(self.config, self.folder / "state")
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._serving = asyncio.create_task(self._deployment.run(ready.set_result))
        url = await asyncio.wait_for(ready, PATIENCE)
        return url.replace("127.0.0.1", "localhost")

    async def __aexit__(self, *_: object) -> None:
        await self._deployment.coordinator.stop()
        await asyncio.wait([self._serving], timeout=PATIENCE)
        self._deployment.close()


def terms(**changes: Any) -> Terms:
    loose = {"exact_sums": True, "privacy": "cpp3", "epsilon": 1000, "least_cohort": 3}
    return Terms(**(loose | {"least_contributors": 2} | changes))


def samples(path: Path, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    lines = [f"{rng.integers(80)},{rng.integers(2)},{moment}" for moment in range(30)]
    path.write_text("\n".join(["item,label,time", *lines, "123456789,1,99"]))
    return path


def test_five_joins_make_a_round_and_their_budget_is_spent(tmp_path: Path) -> None:
    place = Place(tmp_path)
    said: dict[int, list[tuple[str, str]]] = {number: [] for number in range(5)}

    async def one(url: str, number: int, **changes: Any) -> Any:
        return await join_async(
            url,
            samples(tmp_path / f"{number}.csv", number),
            tmp_path / f"me{number}",
            ca=place.ca,
            terms=terms(**changes),
            wait=False,
            on_event=lambda event: said[number].append((event.kind, event.text)),
        )

    async def main() -> None:
        async with place as url, asyncio.timeout(PATIENCE):
            ended = await asyncio.gather(*(one(url, number) for number in range(5)))
            assert [[each.outcome for each in some] for some in ended] == [["committed", "declined"]] * 5
            before = len(said[0])
            (again,) = await one(url, 0)
            assert again.outcome == "declined"
            assert [kind for kind, _ in said[0][before:]] == [
                "terms",
                "data",
                "connected",
                "enrolled",
                "declined",
            ]
            with pytest.raises(InputError, match="periods of 7 days"):
                await one(url, 0, period_days=1)
            (tmp_path / "me0/deployment").write_text("ab" * 16)
            with pytest.raises(AuthenticationFailed, match="this client joined abab"):
                await one(url, 0)

    asyncio.run(main())
    assert "1 x item is not in the model" in dict(said[0])["data"]
    assert "1 of 1 exposures" in said[0][-1][1] or "exposures" in dict(said[0])["declined"]
    (line,) = read_lines(tmp_path / "state/metrics.jsonl")
    assert (line.cohort, line.survivors) == (5, 5)


def test_a_model_that_is_not_the_announced_one_is_not_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever serves another package than it names would train this client on something else."""
    place, genuine, built = Place(tmp_path), Link.model, []

    async def another(self: Link) -> bytes:
        package = await genuine(self)
        return package[:-1] + bytes([package[-1] ^ 1])

    monkeypatch.setattr(Link, "model", another)
    monkeypatch.setattr(sfsl.models.package, "build", lambda package: built.append(package))

    async def main() -> None:
        async with place as url, asyncio.timeout(PATIENCE):
            data, home = samples(tmp_path / "0.csv", 0), tmp_path / "me"
            with pytest.raises(InvalidMessage, match="not the one that it announces"):
                await join_async(url, data, home, terms=terms(), ca=place.ca, wait=False)
            assert place._deployment.coordinator.registry.count() == 0

    asyncio.run(main())
    assert not built
    assert not (tmp_path / "me/deployment").exists()  # it has joined nobody


@pytest.mark.parametrize(
    ("active", "says"),
    [
        (True, "^this server runs in active mode; give --log FILE or --roster FILE$"),
        (False, "^this server does not run in active mode, which --log and --roster insist on$"),
    ],
)
def test_a_join_in_the_other_mode_than_the_server_s_ends_in_one_sentence(
    tmp_path: Path, active: bool, says: str
) -> None:
    place = Place(tmp_path, active=active)
    own = Home(tmp_path / "me", SystemRandomness()).identity()
    (tmp_path / "roster").write_text(own.public.hex() + "\n")
    wanted = terms(roster="" if active else str(tmp_path / "roster"))
    said: list[str] = []

    async def main() -> None:
        async with place as url, asyncio.timeout(PATIENCE):
            data, home = samples(tmp_path / "0.csv", 0), tmp_path / "me"
            with pytest.raises(InputError, match=says):
                await join_async(
                    url, data, home, ca=place.ca, terms=wanted, on_event=lambda event: said.append(event.kind)
                )
            assert place._deployment.coordinator.registry.count() == 0

    asyncio.run(main())
    assert not said
    assert not (tmp_path / "me/deployment").exists()


def test_a_swarm_in_active_mode_pins_its_own_clients(tmp_path: Path) -> None:
    place = Place(tmp_path, active=True)

    async def main() -> Any:
        async with place as url, asyncio.timeout(PATIENCE):
            made = swarm._swarm(
                progress_console(), place.config.run, url, 5, 1, place.ca, None, NetworkFaults(), 2, False
            )
            return await made.run()

    report = asyncio.run(main())
    assert (report.failed, report.ended) == ({}, {1: "committed"})
    assert "survivors" in " ".join(report.exchanges())


def test_a_swarm_under_every_fault(tmp_path: Path) -> None:
    """Four in ten clients of a round suffer something: many rounds commit all the same, every one ends, and
    nothing is counted twice."""
    rounds = 4
    place = Place(
        tmp_path,
        min_cohort=4,
        check_in_seconds=2.0,
        phase_seconds=4.0,
        training_seconds=8.0,
        poll_seconds=1.0,
    )
    faults = NetworkFaults(dict.fromkeys(KINDS, 0.4 / len(KINDS)), seed=4, delay_s=0.3)

    async def main() -> Any:
        async with place as url, asyncio.timeout(PATIENCE):
            made = swarm._swarm(
                progress_console(), place.config.run, url, 8, rounds, place.ca, None, faults, 2, False
            )
            return await made.run()

    report = asyncio.run(main())
    assert not report.failed
    assert len(report.ended) >= rounds
    assert list(report.ended.values()).count("committed") >= 2
    assert sum(report.traffic.faults.values()) >= 6
    lines = read_lines(tmp_path / "state/metrics.jsonl")
    assert [line.round for line in lines] == list(range(1, len(lines) + 1))
    for number, outcome in report.ended.items():
        if number <= len(lines):
            assert (lines[number - 1].aborted is None) == (outcome == "committed")
    summary = swarm.summary(report, 8, 1.0)
    assert json.loads(json.dumps(summary)) == summary
    assert set(summary["latencies"]) == {"about", "answer", "check-in", "enrol", "next"}
    for taken in summary["latencies"].values():
        assert 0 < taken["p50"] <= taken["p95"] <= taken["p99"]
    swarm._print(progress_console(), summary)


# -- the commands themselves -------------------------------------------------------------------


def invoke(*words: str) -> Any:
    result = CliRunner().invoke(app, list(words))
    return result.exception if result.exception is not None else result


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--server", "http://x", "--data", "d.csv"], "not encrypted"),
        (["--server", "https://127.0.0.1:99999", "--data", "d.csv"], "a port from 1 to 65535"),
        (["--server", "https://127.0.0.1:abc", "--data", "d.csv"], "a port from 1 to 65535"),
        (["--server", "https://x", "--data", "d.csv", "--privacy", "cpp9"], "cpp9"),
        (["--server", "https://x", "--data", "d.csv", "--ca", "none.pem"], "none.pem"),
        (["--server", "https://x", "--data", "d.csv", "--identity", "none.key"], "none.key"),
        (["--server", "https://x", "--data", "none.csv"], "cannot read none.csv: No such file or directory"),
        (["--server", "https://x", "--data", __file__, "--roster", "none.txt"], "none.txt"),
        (["--server", "https://x", "--data", "d.csv", "--held-out", "1.5"], "--held-out 1.5: a share"),
        (["--server", "https://x", "--data", "d.csv", "--held-out", "nan"], "--held-out nan: a share"),
        (["--server", "https://x", "--data", "d.csv", "--epsilon", "-1"], "--epsilon -1: a number from 0 up"),
        (["--server", "https://x", "--data", "d.csv", "--epsilon", "nan"], "--epsilon nan: a number"),
        (
            ["--server", "https://x", "--data", "d.csv", "--max-clip", "nan"],
            "--max-clip nan: a number above 0",
        ),
        (["--server", "https://x", "--data", "d.csv", "--max-clip", "0"], "--max-clip 0: a number above 0"),
    ],
)
def test_join_with_settings_that_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], says: str
) -> None:
    """And nobody is asked for anything."""
    asked: list[str] = []

    async def once(self: Link, *_: object) -> None:
        asked.append("asked")
        raise InvalidMessage("asked")

    monkeypatch.setattr(Link, "_once", once)
    error = invoke("join", "--state", str(tmp_path / "me"), *words)
    assert says in str(error)
    assert not asked


def test_an_error_that_ends_a_command_is_also_a_line_of_json(tmp_path: Path) -> None:
    def last_line(*words: str) -> Any:
        result = CliRunner().invoke(app, list(words))
        assert isinstance(result.exception, InputError)  # which ``main`` says on stderr, with status 1
        return json.loads(result.stdout.splitlines()[-1])

    given = ["--server", "https://x", "--json"]
    said = last_line("join", "--state", str(tmp_path), "--data", str(tmp_path / "none.csv"), *given)
    message = f"cannot read {tmp_path / 'none.csv'}: No such file or directory"
    assert said == {"event": "failed", "error": "InputError", "message": message}
    said = last_line("swarm", str(tmp_path / "none.toml"), "--clients", "3", *given)
    assert (said["event"], said["error"]) == ("failed", "InputError")
    assert "none.toml" in said["message"]
    quiet = CliRunner().invoke(app, ["swarm", str(tmp_path / "none.toml"), "--clients", "3", *given[:2]])
    assert not quiet.stdout


def test_data_errors_name_the_file_that_was_given(tmp_path: Path) -> None:
    place = Place(tmp_path)
    (tmp_path / "mine.csv").write_bytes(b"\x7fELF\x00\xff")

    async def main() -> None:
        async with place as url, asyncio.timeout(PATIENCE):
            data, home = tmp_path / "mine.csv", tmp_path / "me"
            with pytest.raises(InputError, match=r"mine\.csv is not text in UTF-8"):
                await join_async(url, data, home, terms=terms(), ca=place.ca, wait=False)

    asyncio.run(main())


# -- stopped -----------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def hears_ctrl_c() -> Iterator[None]:
    """Whatever started the tests may have ignored it, as a shell does for what it runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


async def stopped_by(number: int) -> None:
    os.kill(os.getpid(), number)
    await asyncio.sleep(10)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_join_that_is_stopped_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, status: int
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(sfsl.client.join, "join_async", lambda *_, **__: stopped_by(number))
    given = ["--server", "https://x", "--state", str(tmp_path), "--data", "d.csv", "--json"]
    result = CliRunner().invoke(app, ["join", *given])
    assert result.exit_code == status
    assert json.loads(result.stdout)["event"] == "stopped"
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_swarm_that_is_stopped_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, status: int
) -> None:
    class Half:
        report = SwarmReport(ended={1: "committed"})

        async def run(self) -> None:
            await stopped_by(number)

    monkeypatch.setattr(swarm, "_swarm", lambda *_: Half())
    (tmp_path / "run.toml").write_text("")
    given = ["--server", "https://x", "--clients", "3", "--json"]
    result = CliRunner().invoke(app, ["swarm", str(tmp_path / "run.toml"), *given])
    assert result.exit_code == status
    assert json.loads(result.stdout)["rounds"] == {"committed": 1, "aborted": 0}


def test_sigterm_stops_also_where_a_shell_ignores_sigint() -> None:
    """As it does for what a script starts in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(Stopped) as caught:
            run_until_stopped(stopped_by(signal.SIGTERM))
    finally:
        signal.signal(signal.SIGINT, before)
    assert caught.value.status == 143


def test_a_state_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    error = invoke("join", "--state", str(tmp_path / "file"), "--server", "https://x", "--data", "d.csv")
    assert isinstance(error, StateError)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--clients", "13"], "12 clients"),
        (["--clients", "3", "--faults", "1.5"], "more than 1"),
        (["--clients", "3", "--fault", "drop-after"], "KIND=SHARE"),
        (["--clients", "3", "--fault", "eclipse=0.1"], "eclipse"),
        (["--clients", "3", "--server", "https://127.0.0.1:99999"], "a port from 1 to 65535"),
        (["--clients", "3", "--server", "https://127.0.0.1:abc"], "a port from 1 to 65535"),
    ],
)
def test_a_swarm_with_settings_that_cannot_be(tmp_path: Path, words: list[str], says: str) -> None:
    run = tmp_path / "run.toml"
    run.write_text("[data]\nusers = 12\nscale = 0.03\n[round]\nclients = 5\n[serve]\nport = 1\n")
    error = invoke("swarm", str(run), "--server", "http://x", "--plain", *words)
    assert says in str(error)


def test_the_keys_of_a_swarm_can_be_kept(tmp_path: Path) -> None:
    first = swarm._identity(tmp_path / "keys", "user-1")
    assert swarm._identity(tmp_path / "keys", "user-1").public == first.public
    assert swarm._identity(tmp_path / "keys", "user-2").public != first.public
    assert swarm._identity(None, "user-1").public != first.public


def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    join._as_json("waiting", "Waiting", round=None, until=datetime(2026, 11, 22).date())
    said = json.loads(capsys.readouterr().out)
    assert said == {"event": "waiting", "text": "Waiting", "until": "2026-11-22"}
