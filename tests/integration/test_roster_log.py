"""Active mode with a log of enrolled identities, over TLS: an authority, a witness, clients."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from clocks import PATIENCE
from logged_deployment import COHORT, LoggedDeployment, log_command


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
