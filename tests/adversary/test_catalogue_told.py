"""A server that shows a newcomer a catalogue of a few items, to find out who has one of them: whoever has
none used to stop before it enrolled, with a message to its owner, and whoever has one went on."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from adversary.test_catalogue_growth import FIRST, catalogue, served
from hot_deployment import served as deployed
from hot_deployment import until
from sfsl.client import following
from sfsl.client.device import DeviceTrainer
from sfsl.client.following import build_device, source_of
from sfsl.data import Samples
from sfsl.data.assemble import require_usable
from sfsl.data.catalogue import Catalogue
from sfsl.data.own import load_own
from sfsl.errors import InputError
from sfsl.models import din, logistic_regression, next_word_lstm
from sfsl.rounds import Download, ScoreBins
from sfsl.submodel import RowSet
from sfsl.submodel.store import initial_rows

TELLTALE = 25  # an item of the first client alone


def tell_few(monkeypatch: pytest.MonkeyPatch, *, refused: bool = False) -> None:
    """The server's catalogue is a single item, whatever it trains: all others are unknown to its clients.
    ``refused``: as it was, a client refuses to go on with a file of which nothing is known."""

    def few(path: Any, catalogue: Catalogue, **more: Any) -> Any:
        data, report = load_own(path, catalogue, **more)
        if TELLTALE not in data.item:
            data, report = load_own(path, FIRST, **more)
        if refused:
            require_usable(report, data.item)
        return data, report

    monkeypatch.setattr(following, "load_own", few)


def gone_on(folder: Path) -> list[bool]:
    """Which of two clients check in, of whom the first alone has the item."""

    async def main() -> list[bool]:
        async with deployed(folder) as serving:
            found = []
            for number in (1, 2):
                try:
                    said = await until("checked-in", serving, folder, number)
                except InputError:
                    said = []
                found.append("checked-in" in [event.kind for event in said])
            assert serving.deployment.coordinator.registry.count() == sum(found)
            return found

    return asyncio.run(main())


def test_who_has_none_of_the_items_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tell_few(monkeypatch)
    assert gone_on(tmp_path) == [True, True]


def test_as_it_was_staying_away_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tell_few(monkeypatch, refused=True)
    assert gone_on(tmp_path) == [True, False]


def clicks(path: Path) -> Any:
    path.write_text("item,label,time,category\nfoo,1,1,z\nbar,0,2,z\n")
    return path


def words(path: Path) -> Any:
    path.write_text("nothing known\n")
    return path


def numbers(path: Path) -> Any:
    columns = {
        "user": np.zeros(5, np.int64),
        "item": np.full(5, 99),
        "history": np.full((5, 2), 98),
        "label": np.ones(5, np.float32),
    }
    return Samples(columns, {"user": "user", "item": "item", "history": "item"})


@pytest.mark.parametrize("hot", [False, True])
@pytest.mark.parametrize(
    ("about", "task", "data"),
    [
        (FIRST, logistic_regression, clicks),
        (catalogue("one", "two"), lambda about: din(about, seed=0), clicks),
        (Catalogue.of_words(["cat", "mat"]), lambda about: next_word_lstm(about, seed=0), words),
        (Catalogue.sized(1, item=4), logistic_regression, numbers),
    ],
)
def test_who_has_none_of_the_rows_sends_zeros(
    tmp_path: Path, about: Catalogue, task: Any, data: Callable[[Path], Any], hot: bool
) -> None:
    model = served(about, task)
    source = source_of(data(tmp_path / "mine"))
    frozen = tmp_path / "mine"
    if isinstance(source, bytes):
        frozen.write_bytes(source)
    device, _ = build_device(model, model.shared_rows, frozen, source, 0.2)
    assert not any(len(device.needed[name]) for name in model.shared_rows)
    spec, none = model.task.spec, RowSet(np.zeros(0, np.int64))
    download = Download(
        {table.name: none for table in spec.summed},
        {table.name: np.zeros((0, table.width), np.float32) for table in spec.summed},
        model.task.initial_dense(),
        {"rate": 0.1, "rebuild": 0.5, "max_samples": 16.0},
        ScoreBins(bins=8),
        (lambda name, rows: initial_rows(bytes(32), spec.table(name), rows)) if hot else None,
    )
    own = {name: initial_rows(bytes(32), spec.table(name), rows) for name, rows in device.personal.items()}
    trained = DeviceTrainer(device, lambda number: number).train(download, own, 1).trained
    assert trained.samples == 0
    assert not np.any(trained.dense)
    assert not any(len(rows.rows) for rows in trained.rows.values())
    assert trained.scores is not None
    assert not any(np.any(counts) for counts in trained.scores)
