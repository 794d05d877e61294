"""A server that lies about rounds over hot rows, over real sockets: each lie is refused before anything of
the client's data leaves it, and its ledger stays as it was."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import sfsl.service.driver as driver
from hot_deployment import CLIENTS, TERMS, join, served, spent, until
from sfsl.client.events import Event
from sfsl.deploy import Serving
from sfsl.rounds.hot import HotParams
from sfsl.rounds.hot_server import HotRound
from sfsl.secagg import SessionParams
from sfsl.settings.terms import Terms

Lie = Callable[[HotParams], HotParams]


def replaced(**changes: Any) -> Lie:
    return lambda params: msgspec.structs.replace(params, **changes)


def noise(factor: float) -> Lie:
    return lambda params: msgspec.structs.replace(params, deviation=params.deviation * factor)


def louder(factor: int) -> Lie:
    """The same noise, and a larger norm to hide in it."""
    return lambda params: msgspec.structs.replace(params, levels=params.levels * factor)


class Liar:
    """Plans rounds of one kind with other parameters than it should, and notes what comes of it."""

    def __init__(self, patch: pytest.MonkeyPatch, kind: str, lie: Lie) -> None:
        genuine = driver.plan_hot

        def planned(*given: Any, **more: Any) -> HotRound:
            plan = genuine(*given, **more)
            if plan.params.kind != kind:
                return plan
            return HotRound(lie(plan.params), plan.state, plan.rules, plan.published)

        patch.setattr(driver, "plan_hot", planned)


def declined(folder: Path, rounds: int, terms: Terms = TERMS, **changes: Any) -> tuple[str, Any]:
    """What all clients say of the round after the first ``rounds``, which no vector came for."""
    said: list[list[Event]] = []

    async def main() -> Any:
        changes["serve"] = {"rounds": 0} | changes.get("serve", {})
        async with served(folder, **changes) as serving:
            if rounds:
                await asyncio.gather(
                    *(join(serving, folder, one, rounds=rounds, terms=terms) for one in range(CLIENTS))
                )
            said.extend(
                await asyncio.gather(
                    *(until("declined", serving, folder, one, terms=terms) for one in range(CLIENTS))
                )
            )
            return await _next_record(serving, rounds)

    record = asyncio.run(main())
    assert all(some[-1].kind == "declined" for some in said)
    assert not [event for some in said for event in some if event.kind in ("training", "uploaded")]
    (why,) = {some[-1].text for some in said}
    return why, record


async def _next_record(serving: Serving, rounds: int) -> Any:
    coordinator = serving.deployment.coordinator
    while coordinator.check_ins.round <= rounds:
        await asyncio.sleep(0.01)
    return coordinator.totals.last[rounds]


@pytest.mark.parametrize(
    ("kind", "lie", "says"),
    [
        ("survey", noise(0.5), "costs rho"),
        ("survey", noise(0.0), "costs rho = inf"),
        ("survey", noise(1e-9), "noise that covers nothing"),
        ("survey", louder(2), "costs rho"),
        ("survey", replaced(marks=5000), "costs rho"),
        (
            "survey",
            lambda params: msgspec.structs.replace(params, marks=5000, deviation=params.deviation * 10),
            "a survey of 5000 marks, this client allows 1024",
        ),
        ("train", noise(0.9), "costs rho"),
        ("train", noise(0.0), "costs rho = inf"),
        ("train", louder(2), "costs rho"),
        ("train", replaced(clip=11.0), "updates of a norm up to 11, this client allows 10"),
        ("train", replaced(training={"rate": 1e9}), "learning rates"),
    ],
)
def test_a_server_that_claims_other_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, lie: Lie, says: str
) -> None:
    Liar(monkeypatch, kind, lie)
    rounds = int(kind == "train")
    why, record = declined(tmp_path, rounds)
    assert says in why
    assert record.aborted is not None
    assert record.survivors == 0
    assert [spent(tmp_path, one)[1:] for one in range(CLIENTS)] == [(rounds, rounds)] * CLIENTS


def test_a_server_that_opens_sums_of_fewer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise for four that are certain, where three can open the sum."""
    genuine = driver.plan_session

    def fewer(*given: Any, **more: Any) -> SessionParams:
        return genuine(*given, **more | {"threshold": 3})

    monkeypatch.setattr(driver, "plan_session", fewer)
    more = {"round": {"threshold": 4}, "serve": {"min_cohort": 4}, "hot": {"survey_share": 0.18}}
    why, _ = declined(tmp_path, 0, **more)
    assert "costs rho" in why
    assert [spent(tmp_path, one)[1] for one in range(CLIENTS)] == [0] * CLIENTS


def test_a_round_larger_than_its_owner_allows(tmp_path: Path) -> None:
    terms = msgspec.structs.replace(TERMS, max_megabytes=0.0005)
    why, _ = declined(tmp_path, 0, terms)
    assert "bytes, this client allows 524" in why


@pytest.mark.parametrize("what", ["hot", "blob"])
@pytest.mark.parametrize("how", ["another", "longer", "nothing"])
def test_a_server_that_publishes_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, how: str
) -> None:
    """All clients are told one digest; one that fetches other bytes under it has nothing to train with."""

    genuine = HotRound.contents

    def other(self: HotRound) -> dict[bytes, bytes]:
        found = genuine(self)
        digest = getattr(self.params, what)
        if digest in found:
            data = found[digest]
            found[digest] = {"another": data[:-1] + bytes([data[-1] ^ 1]), "longer": data + b"x"}.get(
                how, b""
            )
        return found

    monkeypatch.setattr(HotRound, "contents", other)
    said: list[list[Event]] = []
    urls: list[str] = []

    async def main() -> None:
        async with served(tmp_path, serve={"rounds": 0, "training_seconds": 5}) as serving:
            urls.append(serving.url)
            await asyncio.gather(*(join(serving, tmp_path, one, rounds=1) for one in range(CLIENTS)))
            said.extend(
                await asyncio.gather(
                    *(until("declined deceived", serving, tmp_path, one) for one in range(CLIENTS))
                )
            )

    asyncio.run(main())
    for number, some in enumerate(said):
        assert some[-1].kind == "deceived" or how == "longer"  # more bytes than were announced are not read
        assert "training" not in [event.kind for event in some]
        assert urls[0] in some[-1].text
        assert spent(tmp_path, number)[1] == 1  # the survey
