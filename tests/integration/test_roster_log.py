"""Active mode with a log of enrolled identities, over TLS: an authority, a witness, clients."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from clocks import PATIENCE
from logged_deployment import COHORT, LoggedDeployment, log_command
from sfsl.client.home import read_loosened
from sfsl.crypto.secret import Identity, Secret
from sfsl.errors import AuthenticationFailed, Forked, InputError
from sfsl.service.identities import write_identity
from sfsl.service.log_file import HEADS, LOG
from sfsl.service.registry import Registry


def test_a_round_whose_members_the_log_proves(tmp_path: Path) -> None:
    place = LoggedDeployment(tmp_path)

    async def main() -> Any:
        async with place as url, asyncio.timeout(PATIENCE):
            place.vouch(*place.clients)
            return await place.joined(url, *range(COHORT))

    ended = asyncio.run(main())
    assert [some[-1].outcome for some in ended] == ["committed"] * COHORT
    assert all("log" in dict(said) for said in place.said.values())
    # What everyone kept is of one log, which anybody can audit.
    kept = [word for number in range(COHORT) for word in ("--head", tmp_path / f"me{number}/log")]
    files = [*kept, "--head", tmp_path / "witnessed.json", "--log", place.trusted]
    assert json.loads(log_command("verify", place.state, *files, "--json"))["sound"]
    shown = json.loads(log_command("show", place.state, "--json"))
    assert (shown["entries"], shown["vouched"]) == (COHORT, COHORT)
    proof = json.loads(log_command("prove", place.state, shown["clients"][0], "--json"))
    assert (proof["root"], proof["place"]) == (shown["root"], 0)


def test_clients_that_come_before_the_first_witness_wait_for_it(tmp_path: Path) -> None:
    place = LoggedDeployment(tmp_path)

    def waits(number: int) -> bool:
        return any("has its witnesses yet" in text for _, text in place.said[number])

    async def main() -> Any:
        async with place as url, asyncio.timeout(PATIENCE):
            place.vouch(*place.clients)
            joining = asyncio.gather(*(place.join(url, number) for number in range(COHORT)))
            while not all(map(waits, range(COHORT))):
                await asyncio.wait([joining], timeout=0.05)
                assert not joining.done()
            while not joining.done():
                await asyncio.to_thread(place.witnessed, url)
                await asyncio.wait([joining], timeout=0.1)
            return await joining

    assert [some[-1].outcome for some in asyncio.run(main())] == ["committed"] * COHORT


def test_a_server_that_rewrites_its_log_is_named_by_its_clients_and_its_witness(tmp_path: Path) -> None:
    place = LoggedDeployment(tmp_path, least_witnesses=0)

    async def first() -> list[Any]:
        async with place as url, asyncio.timeout(PATIENCE):
            place.vouch(*place.clients)
            ended = await place.joined(url, *range(COHORT))
            with pytest.raises(AuthenticationFailed, match="not on this server's list"):
                await place.join(url, COHORT)
            return ended

    async def again() -> tuple[list[Any], Any]:
        async with place as url, asyncio.timeout(PATIENCE):
            ended = await asyncio.gather(place.join(url, 0), return_exceptions=True)
            return ended, await asyncio.to_thread(place.witnessed, url)

    place.said[COHORT] = []
    write_identity(tmp_path / f"{COHORT}.key", Secret(b"s" * 32))
    assert [some[-1].outcome for some in asyncio.run(first())] == ["committed"] * COHORT
    assert dict(place.said[0])["terms"].endswith("; log without witnesses")
    assert "log without witnesses" in (read_loosened(tmp_path / "me0") or [])
    # The operator puts a Sybil among its clients, and its log together anew, with the log's key.
    with Registry(place.state / "registry.sqlite") as registry:
        registry.enrol(Identity(Secret(b"s" * 32)).public, 0)
    for name in (LOG, HEADS):
        (place.state / name).unlink()
    (error,), witnessed = asyncio.run(again())
    assert isinstance(error, Forked)
    assert "log-fork.json" in str(error)
    assert isinstance(witnessed.exception, Forked)
    *heads, _ = json.loads((tmp_path / "me0/log-fork.json").read_bytes())  # the last is a checksum
    assert len(heads) == 2


def test_the_roster_of_before_still_pins_and_says_what_is_new(tmp_path: Path) -> None:
    place = LoggedDeployment(tmp_path, authorities="", witnesses="")
    lines = "".join(f"{one.public.hex()}  # {number}\n" for number, one in enumerate(place.clients))

    async def main() -> Any:
        async with place as url, asyncio.timeout(PATIENCE):
            place.list.write_text(lines)
            given = {"log": "", "roster": str(place.list)}
            return await asyncio.gather(*(place.join(url, number, **given) for number in range(COHORT)))

    assert [some[-1].outcome for some in asyncio.run(main())] == ["committed"] * COHORT
    assert "--log FILE checks them" in dict(place.said[0])["log"]


def test_a_list_without_this_client_is_refused_at_once(tmp_path: Path) -> None:
    """It would decline every cohort that it is in, and say so each time."""
    place = LoggedDeployment(tmp_path)
    place.list.write_text(f"{place.clients[1].public.hex()}\n")
    with pytest.raises(InputError, match=f"no line for this client itself .{place.clients[0].public.hex()}"):
        asyncio.run(place.join("https://localhost:9", 0, log="", roster=str(place.list)))
