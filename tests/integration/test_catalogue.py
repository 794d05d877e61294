"""Deployments that start from a catalogue: any model, and one that grows while clients take part."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from sfsl.client.join import join_async
from sfsl.client.link import Link
from sfsl.data.catalogue import Catalogue, catalogue_digest
from sfsl.data.catalogue_file import write_catalogue
from sfsl.deploy import open_deployment
from sfsl.errors import InvalidMessage, ParameterError, WrongModel
from sfsl.service.folder import read_lines
from sfsl.settings.serve import from_all_sections
from sfsl.settings.terms import Terms

CLIENTS, SECONDS = 4, 120
SENTENCE = "the cat sat on a mat and a dog ran after the cat over the mat to the old house by the sea"
WORDS = SENTENCE.split(" ")
SHOP = [f"sku-{number}" for number in range(30)]


def shop(items: int = 30) -> Catalogue:
    """Items called by texts, in an order that is not theirs by name."""
    names = np.array([f"sku-{number}" for number in range(items)])
    return Catalogue.of_items(names, np.array(["a", "b", "c"]), np.arange(items) % 3)


class Place:
    """A deployment in the clear on loopback, in this process; opened again it is the same."""

    def __init__(self, folder: Path, kind: str, **rest: Any) -> None:
        self.folder = folder
        self._sections: dict[str, Any] = {
            "model": {"kind": kind, "width": 4},
            "round": {"scheme": "sfsl", "clients": CLIENTS, "min_contributors": 2} | rest.pop("round", {}),
            "serve": {
                "plain": True,
                "enrolment": "open",
                "port": 0,
                "period_days": 0,
                "largest_set": 40,
                "catalogue": str(folder / "catalogue.json"),
            }
            | rest.pop("serve", {}),
        } | rest

    def config(self) -> Any:
        return from_all_sections(self._sections)

    async def __aenter__(self) -> str:
        self.deployment = open_deployment(self.config(), self.folder / "state")
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._serving = asyncio.create_task(self.deployment.run(ready.set_result))
        return await asyncio.wait_for(ready, SECONDS)

    async def __aexit__(self, *_: object) -> None:
        await self.deployment.coordinator.stop()
        await asyncio.wait([self._serving], timeout=SECONDS)
        self.deployment.close()


class Client:
    """One ``sfsl join``, with a folder of its own and what it said."""

    def __init__(self, folder: Path, data: Path, exposures: int = 1000) -> None:
        self.folder, self.data, self.exposures = folder, data, exposures
        self.said: list[tuple[str, str]] = []

    async def join(self, url: str, rounds: int | None) -> Any:
        return await join_async(
            url,
            self.data,
            self.folder,
            terms=Terms(
                exact_sums=True,
                privacy="cpp3",
                exposures=self.exposures,
                least_cohort=3,
                least_contributors=2,
            ),
            rounds=rounds,
            wait=False,
            plain=True,
            on_event=lambda event: self.said.append((event.kind, event.text)),
        )


def clicks(path: Path, seed: int, items: list[str]) -> Path:
    rng = np.random.default_rng(seed)
    chosen = [items[at] for at in rng.integers(0, len(items), 24)]
    lines = [f"{item},{number % 2},{number}" for number, item in enumerate(chosen)]
    path.write_text("\n".join(["item,label,time", *lines, ""]))
    return path


def speech(path: Path, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    spoken = " ".join(rng.permutation(WORDS * 3))
    path.write_text(f'{{"lines": ["{spoken}"]}}\n' if seed % 2 else f"{spoken}!\nQuite unheard-of words.\n")
    return path


@pytest.mark.parametrize("kind", ["dien", "bst", "lstm"])
def test_any_model_is_served_to_clients_with_their_own_ids(kind: str, tmp_path: Path) -> None:
    words = sorted(set(WORDS))
    write_catalogue(Catalogue.of_words(words) if kind == "lstm" else shop(), tmp_path / "catalogue.json")
    clients = [
        Client(
            tmp_path / f"me{number}",
            speech(tmp_path / f"{number}.txt", number)
            if kind == "lstm"
            else clicks(tmp_path / f"{number}.csv", number, SHOP[:12]),
        )
        for number in range(CLIENTS)
    ]
    place = Place(tmp_path, kind)

    async def main() -> None:
        async with place as url, asyncio.timeout(SECONDS):
            ended = await asyncio.gather(*(client.join(url, 1) for client in clients))
            assert all(some[-1].whole for some in ended), [one.said for one in clients]

    asyncio.run(main())
    (line,) = read_lines(tmp_path / "state/metrics.jsonl")
    assert line.survivors == CLIENTS
    assert line.samples > 0
    table = "word" if kind == "lstm" else "item"
    moved = _touched(place, table)
    assert len(moved)
    assert moved.max() < (len(words) if kind == "lstm" else 12)


def _touched(place: Place, table: str) -> Any:
    with open_store_of(place) as store:
        return store.touched(table).rows


def open_store_of(place: Place) -> Any:
    from sfsl.submodel import LmdbStore

    return LmdbStore.open(place.folder / "state/store")


def test_a_catalogue_grows_under_clients_that_go_on(tmp_path: Path) -> None:
    """Rows, optimizer state and round stay; clients that run fetch the model again by themselves."""
    old = shop(20)
    write_catalogue(old, tmp_path / "catalogue.json")
    clients = [
        Client(tmp_path / f"me{number}", clicks(tmp_path / f"{number}.csv", number, SHOP[10:24]))
        for number in range(CLIENTS)
    ]
    place = Place(tmp_path, "din", server={"row_step": "adagrad"}, serve={"rounds": 1})

    async def main() -> None:
        async with asyncio.timeout(SECONDS):
            async with place as url:
                place._sections["serve"] |= {"port": httpx.URL(url).port, "rounds": 2}
                running = [asyncio.create_task(client.join(url, None)) for client in clients]
                await place._serving  # to the end of its one round
            with open_store_of(place) as store:
                before = store.read_rows("item", store.touched("item"))
            write_catalogue(old.grown(shop()), tmp_path / "catalogue.json")
            async with place as url:
                await place._serving  # every cohort has all clients: each has followed
            for one in running:
                one.cancel()
            await asyncio.wait(running)
            with open_store_of(place) as store:
                assert store.spec.model.table("item").rows == 30
                assert store.round == 2
                assert set(before.rows.rows) <= set(store.touched("item").rows)
                assert store.touched("item").rows.max() < 20  # the new rows wait for the next period

    asyncio.run(main())
    for client in clients:
        assert ("model", "The catalogue has grown to version 2") in client.said
        texts = [text for kind, text in client.said if kind == "data"]
        assert "item is not in the model" in texts[0]
        assert "item is newer than this period" in texts[-1]


def test_a_store_is_not_opened_for_a_catalogue_that_contradicts_its_own(tmp_path: Path) -> None:
    place, file = Place(tmp_path, "logistic"), tmp_path / "catalogue.json"
    write_catalogue(shop(20), file)
    open_deployment(place.config(), tmp_path / "state").close()
    others = {
        "fewer rows": shop(19),
        "other categories": Catalogue.of_items(
            np.array(SHOP[:20]), np.array(["a", "b", "c"]), np.arange(20) // 7
        ),
        "other ids": Catalogue.of_items(np.array(SHOP[1:21]), np.array(["a", "b", "c"]), np.arange(20) % 3),
        "no categories": Catalogue.of_items(np.array(SHOP[:20])),
    }
    for other in others.values():
        write_catalogue(other, file)
        with pytest.raises(WrongModel, match="made with another catalogue"):
            open_deployment(place.config(), tmp_path / "state")
    write_catalogue(shop(20).grown(shop(30)), file)
    open_deployment(place.config(), tmp_path / "state").close()
    write_catalogue(shop(20), file)
    with pytest.raises(WrongModel):
        open_deployment(place.config(), tmp_path / "state")


def test_planning_needs_statistics_or_numbers(tmp_path: Path) -> None:
    write_catalogue(shop(), tmp_path / "catalogue.json")
    with pytest.raises(ParameterError, match=r"round\.min_contributors = \"auto\".*Write a number"):
        open_deployment(Place(tmp_path, "din", round={"min_contributors": "auto"}).config(), tmp_path / "s")
    with pytest.raises(ParameterError, match=r"serve\.largest_set = \"auto\""):
        open_deployment(Place(tmp_path, "din", serve={"largest_set": "auto"}).config(), tmp_path / "s")
    with pytest.raises(ParameterError, match="the table 'word'"):
        open_deployment(Place(tmp_path, "lstm").config(), tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_what_rows_are_called_is_public_and_must_be_what_was_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogue = shop()
    write_catalogue(catalogue, tmp_path / "catalogue.json")
    genuine = Link.catalogue
    client = Client(tmp_path / "me", clicks(tmp_path / "0.csv", 0, SHOP))

    async def main() -> None:
        async with Place(tmp_path, "din") as url, httpx.AsyncClient() as http, asyncio.timeout(SECONDS):
            about = (await http.get(f"{url}/v1/about")).json()
            public = (await http.get(f"{url}/v1/catalogue")).content
            assert public == catalogue.public
            assert about["catalogue"] == catalogue_digest(public).hex()
            for lie, why in {
                public.replace(b"sku-3", b"sku-x"): "not the one that it announces",
                public + b" ": "not the one that it announces",
            }.items():

                async def another(self: Link, lie: bytes = lie) -> bytes:
                    await genuine(self)
                    return lie

                monkeypatch.setattr(Link, "catalogue", another)
                with pytest.raises(InvalidMessage, match=why):
                    await client.join(url, 1)

    asyncio.run(main())


def test_without_a_catalogue_items_are_numbers_and_nothing_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(
        tmp_path, "logistic", data={"users": 8, "scale": 0.02}, serve={"catalogue": "", "largest_set": 40}
    )

    async def main() -> None:
        with caplog.at_level("INFO"):
            async with place as url, httpx.AsyncClient() as http:
                assert "catalogue" not in (await http.get(f"{url}/v1/about")).json()
                assert (await http.get(f"{url}/v1/catalogue")).status_code == 404

    asyncio.run(main())
    (line,) = [one.message for one in caplog.records if "serve.catalogue" in one.message]
    assert "sfsl catalogue make" in line
