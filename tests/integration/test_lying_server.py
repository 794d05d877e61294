"""A server that shows one client other rows than the rest, in active mode over TLS: the client finds out,
says so and leaves; the others go on without it."""

import asyncio
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from clocks import PATIENCE
from commands import port, started
from logged_deployment import COHORT, LoggedDeployment, log_command, samples
from lying_proxy import lying_proxy
from sfsl.service.folder import read_lines

ROOT = Path(__file__).parents[2]
VICTIM = COHORT - 1
NAMED = "lies, or somebody between: the server sent rows that are not those of the model it committed to"


def test_a_client_that_is_sent_other_rows_says_so_and_leaves(tmp_path: Path) -> None:
    place = LoggedDeployment(tmp_path, contributors=3, min_cohort=COHORT, training_seconds=5)

    async def main() -> tuple[list[Any], str]:
        async with place as url, asyncio.timeout(PATIENCE), lying_proxy(url, tmp_path / "tls") as liar:
            place.vouch(*place.clients)
            victim = asyncio.create_task(place.join(liar, VICTIM))
            ended = await place.joined(url, *range(VICTIM))
            victim.cancel()
            await asyncio.wait([victim])
            return ended, liar

    ended, liar = asyncio.run(main())
    assert [some[-1].outcome for some in ended] == ["committed"] * VICTIM
    said = place.said[VICTIM]
    assert f"{liar} {NAMED}" in dict(said)["deceived"]
    assert [kind for kind, _ in said if kind in ("exposed", "training", "uploaded")] == ["exposed"]
    (line,) = read_lines(tmp_path / "state/metrics.jsonl")
    assert (line.cohort, line.survivors) == (COHORT, VICTIM)


def serve_file(place: LoggedDeployment, free: str) -> Path:
    """Settings as the guide has them for active mode."""
    file = place.folder / "serve.toml"
    own = {
        "certificate": place.folder / "tls/server.pem",
        "key": place.folder / "tls/server.key",
        "clients": place.list,
        "state": place.state,
        "authorities": place.authority.public.hex(),
        "witnesses": place.witness.public.hex(),
        "enrolment": "list",
    }
    written = "".join(f'{key} = "{value}"\n' for key, value in own.items())
    file.write_text(
        '[data]\nusers = 12\nscale = 0.03\n[model]\nkind = "logistic"\n[round]\nscheme = "sfsl"\n'
        f"clients = {COHORT}\nmin_contributors = 3\n[serve]\nactive = true\nport = {free}\nperiod_days = 0\n"
        f"min_cohort = {COHORT}\nlargest_set = 300\ntraining_seconds = 10\n{written}"
    )
    return file


@pytest.mark.slow  # a server, a liar, four clients and a witness, each a process of its own
def test_the_same_with_processes_as_the_guide_starts_them(tmp_path: Path) -> None:
    place, free = LoggedDeployment(tmp_path), port()
    sfsl, url = str(Path(sys.executable).parent / "sfsl"), f"https://localhost:{free}"
    logs = {name: tmp_path / f"{name}.log" for name in ("serve", "liar", *map(str, range(COHORT)))}
    trust = ("--authority", place.authority.public.hex(), "--witness", place.witness.public.hex())

    def said(name: str) -> str:
        return logs[name].read_text() if logs[name].exists() else ""

    def until(name: str, words: str, meanwhile: Any = lambda: None) -> None:
        end = time.monotonic() + 10 * PATIENCE
        while words not in said(name):
            assert time.monotonic() < end, (words, *map(said, logs))
            meanwhile()
            time.sleep(0.1)

    def witness() -> None:
        ran = place.witnessed(url)
        assert ran.exit_code == 0, ran.output

    with ExitStack() as running:

        def start(name: str, command: str) -> None:
            running.enter_context(started(command, tmp_path, logs[name]))

        start("serve", f"{sfsl} serve {serve_file(place, free)}")
        until("serve", "Join with")
        place.trusted.write_text(log_command("trust", place.state, *trust))
        place.vouch(*place.clients)
        start("liar", f"{sys.executable} {ROOT / 'tests/lying_proxy.py'} {url} 0 {tmp_path / 'tls'}")
        until("liar", "Lying at https://localhost:")
        liar = said("liar").split()[-1]
        for number in range(COHORT):
            data = samples(tmp_path / f"{number}.csv", number)
            start(
                str(number),
                f"{sfsl} join --server {liar if number == VICTIM else url} --ca {place.ca} --data {data} "
                f"--state me{number} --identity {number}.key --log {place.trusted} --exact-sums --rounds 1 "
                "--least-cohort 3 --least-contributors 3",
            )
        for number in range(VICTIM):
            until(str(number), "The round is committed", witness)
        assert f"{liar} {NAMED}" in said(str(VICTIM)).replace("\n", " ")
        assert "Uploaded" not in said(str(VICTIM))
        assert f"round 1 committed: {VICTIM} of {COHORT} clients" in said("serve")
