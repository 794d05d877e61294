"""Rounds over hot rows on a network: a survey, rounds that train, what is fetched, what is spent."""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from hot_deployment import CLIENTS, join, served, spent, until
from sfsl.carriers.https.coordinator import now_ms
from sfsl.client.device import DeviceTrainer
from sfsl.client.link import Link, trusted
from sfsl.client.round import Lesson
from sfsl.crypto.secret import SystemRandomness
from sfsl.deploy import Serving
from sfsl.errors import InputError
from sfsl.privacy import rho_for
from sfsl.rounds.hot import blob_digest, decode_hot_set
from sfsl.service.identities import read_identity
from sfsl.service.signing import client_id, sign_request
from sfsl.settings.terms import Terms

TOTAL = rho_for(500, 1e-6)
SURVEY, TRAIN = 0.1 * TOTAL, 0.18 * TOTAL


class Killed(BaseException):
    """Stands for a process that is gone: nothing may catch it."""


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What clients fetched, as it came."""
    found: list[bytes] = []
    genuine = Link.published

    async def noted(self: Link, digest: bytes, limit: int) -> bytes:
        found.append(await genuine(self, digest, limit))
        return found[-1]

    monkeypatch.setattr(Link, "published", noted)
    return found


def test_a_survey_and_two_rounds_that_train(tmp_path: Path, fetched: list[bytes]) -> None:
    said: list[str] = []
    seen: list[Any] = []

    async def main() -> None:
        async with served(tmp_path) as serving:
            seen.append(serving.deployment.coordinator.status())
            ended = await asyncio.gather(
                *(
                    join(
                        serving,
                        tmp_path,
                        number,
                        rounds=3,
                        on_event=lambda event: said.append(event.text),
                    )
                    for number in range(CLIENTS)
                )
            )
            assert all([one.outcome for one in some] == ["committed"] * 3 for some in ended)
            seen.append(serving.deployment.coordinator.status())

    asyncio.run(main())
    for number in range(CLIENTS):
        rho, rounds, begun = spent(tmp_path, number)
        assert rho == pytest.approx(SURVEY + 2 * TRAIN, rel=1e-6)
        assert (rounds, begun) == (3, 3)
    # Hot rows once, the model once a round; all clients the same.
    sets = [one for one in fetched if one == fetched[0]]
    blobs = [one for one in fetched if one != fetched[0]]
    assert (len(sets), len(blobs)) == (CLIENTS, 2 * CLIENTS)
    assert len(set(blobs)) in (1, 2)  # under this much noise a round of four may well move nothing
    hot = decode_hot_set(fetched[0])
    assert sum(map(len, hot.rows.values())) > 0
    before, after = seen
    assert (before.scheme, before.kind, before.hot_rows) == ("hot", "survey", 0)
    assert (after.kind, after.hot_rows) == ("train", sum(map(len, hot.rows.values())) // 8)
    assert 0 < after.epsilon < 500
    assert any("a survey" in text for text in said)
    assert sum("under noise and masks; epsilon" in text for text in said) == 3 * CLIENTS


def test_what_is_published_has_a_strong_tag_and_is_for_the_round_s_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[httpx.Response] = []
    genuine, asked, looked = Link.published, asyncio.Event(), asyncio.Event()

    async def waits(self: Link, digest: bytes, limit: int) -> bytes:
        asked.set()
        await looked.wait()
        return await genuine(self, digest, limit)

    monkeypatch.setattr(Link, "published", waits)

    async def look(serving: Serving, http: httpx.AsyncClient) -> None:
        coordinator = serving.deployment.coordinator
        assert coordinator._running is not None
        blob = coordinator._running.params.blob  # type: ignore[union-attr]
        tag = f'"{blob.hex()}"'

        async def ask(number: int, digest: bytes, had: str = "") -> None:
            target = f"/v1/published/{digest.hex()}"
            signed = sign_request(
                read_identity(tmp_path / f"client-{number}" / "identity.key"),
                deployment=coordinator.registry.deployment,
                host="127.0.0.1",
                method="GET",
                target=target,
                body=b"",
                now_ms=now_ms(),
                randomness=SystemRandomness(),
            )
            answers.append(await http.get(target, headers=signed | {"If-None-Match": had}))

        await ask(0, blob)
        await ask(0, blob, tag)
        await ask(0, blob, f'"other", W/{tag}')
        await ask(0, blob, '"other"')
        await ask(CLIENTS, blob)  # enrolled, and in no round
        await ask(0, bytes(32))
        answers.append(await http.get(f"/v1/published/{blob.hex()}"))  # not signed
        answers.append(await http.get("/v1/published/xyz"))
        answers.append(await http.post(f"/v1/published/{blob.hex()}"))

    async def main() -> None:
        async with served(tmp_path, serve={"rounds": 2}) as serving:
            await until("enrolled", serving, tmp_path, CLIENTS)
            clients = [asyncio.create_task(join(serving, tmp_path, one, rounds=2)) for one in range(CLIENTS)]
            await asked.wait()
            tls = trusted(serving.authority)
            async with httpx.AsyncClient(verify=tls, base_url=serving.url, trust_env=False) as http:
                await look(serving, http)
            looked.set()
            await asyncio.gather(*clients)

    asyncio.run(main())
    assert [one.status_code for one in answers] == [200, 304, 304, 200, 404, 404, 401, 404, 405]
    whole, same, weak, other = answers[:4]
    assert whole.headers["etag"] == f'"{blob_digest(whole.content).hex()}"' == same.headers["etag"]
    assert other.content == whole.content
    assert same.content == weak.content == b""


def own_id(folder: Path, number: int) -> str:
    return client_id(read_identity(folder / f"client-{number}" / "identity.key").public)


def test_a_client_killed_between_debit_and_upload_never_counts_too_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine, doomed = Link.answer, set[str]()

    async def cut(self: Link, ticket: bytes, number: int, body: bytes) -> Any:
        if self.client in doomed and number == 2:  # its vector
            doomed.clear()
            raise Killed
        return await genuine(self, ticket, number, body)

    monkeypatch.setattr(Link, "answer", cut)

    async def main() -> None:
        async with served(tmp_path, serve={"rounds": 0}) as serving:
            registry = serving.deployment.coordinator.registry
            others = [asyncio.create_task(join(serving, tmp_path, one)) for one in range(1, CLIENTS)]
            await join(serving, tmp_path, 0, rounds=1)
            name = own_id(tmp_path, 0)
            doomed.add(name)
            with pytest.raises(Killed):
                await join(serving, tmp_path, 0, rounds=1)
            rho, rounds, begun = spent(tmp_path, 0)
            assert rho == pytest.approx(SURVEY + TRAIN, rel=1e-6)  # paid, and not sent
            assert (rounds, begun, registry.acknowledged(name)) == (2, 2, 1)
            await join(serving, tmp_path, 0, rounds=1)
            assert spent(tmp_path, 0)[0] == pytest.approx(SURVEY + 2 * TRAIN, rel=1e-6)
            assert registry.acknowledged(name) == 2
            for one in others:
                one.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    asyncio.run(main())


def test_an_old_copy_of_the_ledger_pays_for_what_it_forgot(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path, serve={"rounds": 0}) as serving:
            others = [asyncio.create_task(join(serving, tmp_path, one)) for one in range(1, CLIENTS)]
            await join(serving, tmp_path, 0, rounds=1)
            ledger = tmp_path / "client-0" / "state"
            shutil.copy(ledger, tmp_path / "old")
            await join(serving, tmp_path, 0, rounds=1)
            shutil.copy(tmp_path / "old", ledger)
            await join(serving, tmp_path, 0, rounds=1)
            for one in others:
                one.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    asyncio.run(main())
    rho, rounds, begun = spent(tmp_path, 0)
    assert rho == pytest.approx(SURVEY + 0.2 * TOTAL + TRAIN, rel=1e-6)  # the most that a round may cost
    assert (rounds, begun) == (3, 3)


def test_a_client_with_nothing_left_stops_and_lets_others_have_its_place(tmp_path: Path) -> None:
    said: list[str] = []

    async def main() -> None:
        async with served(tmp_path, serve={"rounds": 0}) as serving:
            others = [
                asyncio.create_task(
                    join(serving, tmp_path, one, terms=Terms(hot_epsilon=5000, least_cohort=3))
                )
                for one in range(1, CLIENTS)
            ]
            ended = await join(
                serving, tmp_path, 0, on_event=lambda event: said.append(f"{event.kind} {event.text}")
            )
            assert sum(one.whole for one in ended) == 6  # a survey, and the five that noise was made for
            assert [one.outcome for one in ended[-2:]] == ["declined"] * 2
            assert "is left" in ended[-1].why
            for one in others:
                one.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    asyncio.run(main())
    assert spent(tmp_path, 0)[0] <= TOTAL * (1 + 1e-9)


@pytest.mark.parametrize("fails", ["raises", "shape", "nan", "own rows"])
def test_whatever_its_data_do_to_training_a_client_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """A client that stayed away because of its data would tell the server something about them."""
    genuine = DeviceTrainer.train

    def broken(self: DeviceTrainer, download: Any, personal: Any, number: int) -> Lesson:
        lesson = genuine(self, download, personal, number)
        if fails == "raises":
            raise RuntimeError("no samples")
        if fails == "own rows":
            rows = {
                name: (own, np.full_like(values, np.nan)) for name, (own, values) in lesson.personal.items()
            }
            return Lesson(lesson.trained, rows)
        dense = np.full(np.shape(lesson.trained.dense), np.nan) if fails == "nan" else np.zeros(99)
        return Lesson(replace(lesson.trained, dense=dense), {})

    monkeypatch.setattr(DeviceTrainer, "train", broken)

    async def main() -> Any:
        async with served(tmp_path, serve={"rounds": 2}) as serving:
            await asyncio.gather(*(join(serving, tmp_path, one, rounds=2) for one in range(CLIENTS)))
            return serving.deployment.coordinator.totals.last[1]

    record = asyncio.run(main())
    assert (record.aborted, record.survivors) == (None, CLIENTS)


def test_exact_sums_are_for_the_owner_to_allow(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path, round={"scheme": "sfsl", "min_contributors": 2}) as serving:
            with pytest.raises(InputError, match=r"exact sums.*--exact-sums"):
                await join(serving, tmp_path, 0)
            assert serving.deployment.coordinator.registry.count() == 0
        async with served(tmp_path / "hot") as serving:
            with pytest.raises(InputError, match="--hot-epsilon 0 leaves nothing"):
                await join(serving, tmp_path, 0, terms=Terms(hot_epsilon=0, exact_sums=True))
            assert serving.deployment.coordinator.registry.count() == 0

    asyncio.run(main())
