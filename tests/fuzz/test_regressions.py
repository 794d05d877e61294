"""What the fuzzers found, each by itself."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from cohort import Cohort, Stepper
from fuzz.calls import Call, Site
from sfsl.errors import InvalidMessage


def test_a_signature_that_nobody_asked_for_does_not_end_the_round() -> None:
    """One signed request outside active mode made the server look for everyone's, and fail."""
    stepper = Stepper(Cohort(4)).until("union")
    request = stepper.clients["c0"].handle_union(stepper.outbound["c0"])
    with pytest.raises(InvalidMessage, match="outside active mode"):
        stepper.server.receive("c0", msgspec.structs.replace(request, signature=bytes(64)))
    stepper.server.receive("c0", request)
    del stepper.outbound["c0"]
    for name, message in stepper.outbound.items():
        stepper.server.receive(name, stepper.clients[name].handle_union(message))
    assert set(stepper.server.close_phase()) == set(stepper.clients)


async def _statuses(folder: Path, *requests: tuple[str, str]) -> list[int]:
    """By method and path, of someone who signs nothing."""
    found = []
    async with Site(folder, inside=False) as site:
        for method, path in requests:
            found.append((await site.send(Call("unsigned", method, path.encode(), []))).status)
    return found


def test_head_is_no_way_to_ask_for_a_message(tmp_path: Path) -> None:
    """The framework answers HEAD wherever there is a GET; a message would count as delivered."""
    asked = [
        ("HEAD", "/v1/about"),
        ("HEAD", "/v1/model"),
        ("HEAD", f"/v1/next/{'0' * 32}"),
        ("HEAD", "/healthz"),
    ]
    assert asyncio.run(_statuses(tmp_path, *asked)) == [405, 405, 405, 200]


def test_another_spelling_of_a_path_is_not_that_path(tmp_path: Path) -> None:
    """A proxy that keeps strangers from /metrics would let /metrics%0a pass, and the router took it."""
    asked = ("/metrics", "/metrics%0a", "/%6detrics", "/v1/about", "/v1/%61bout", "/v1/about%0A")
    found = asyncio.run(_statuses(tmp_path, *(("GET", path) for path in asked)))
    assert found == [200, 404, 404, 200, 404, 404]
