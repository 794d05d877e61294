"""The attack by which rows came to be committed to, as it was first shown: of twenty clients that train a
DIN all but one are sent dead rows, and what is opened is that client's own update."""

import dataclasses
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from msgspec.structs import replace

import sfsl.rounds.client
from cohort import AsIs, Cohort, Stepper
from sfsl.client.device import Device, DeviceTrainer
from sfsl.data import hold_out_last
from sfsl.data.catalogue import Catalogue
from sfsl.data.synthetic import SyntheticSettings, SyntheticTaobao
from sfsl.errors import Deceived
from sfsl.models import din
from sfsl.rounds import IndexSpace, ScoreBins
from sfsl.submodel import MemoryStore, Quantization, StoreSpec
from sfsl.training import LocalSettings
from sfsl.union import UnionParams

CLIENTS, TARGET, MOST = 20, "c0", 50
SETTINGS = LocalSettings(batch_size=32, learning_rate=0.5, clip=1.0)
torch.set_num_threads(1)


def crafted(task: Any) -> Any:
    """A dense part, the same for all, whose units are dead where an item's rows are zero: whatever else the
    tower reads is not looked at, and what is not above zero is cut off."""
    parts = {name: one.clone() for name, one in task.dense_parts(torch.tensor(task.initial_dense())).items()}
    width = task.module.width
    parts["scale"][:width] = 0  # the user's own row
    for name in parts:
        if name.startswith("tower") and (name.endswith("bias") or parts[name].dim() == 1):
            parts[name].zero_()  # biases, and the slopes below zero
    return task.dense_vector(parts)


class OfItems(AsIs):
    """Brings its items into the union, and asks for its own and for one in eight of the others'."""

    def __init__(self, real: Any) -> None:
        super().__init__(real, everything=False)

    def expose(self, round_id: bytes) -> Any:
        return {"item": self.real}

    def answer(self, round_id: bytes, unions: Any, randomness: Any) -> Any:
        union = unions["item"]
        return {"item": np.isin(union, self.real) | ((union + len(self.real)) % 8 == 0)}


class Twenty(Cohort):
    """Real clients with data, of a model without categories: 44,023 dense parameters, as in the attack."""

    def __init__(self) -> None:
        data = SyntheticTaobao(SyntheticSettings().scaled(0.2, users=CLIENTS), seed=5).interactions()
        data = dataclasses.replace(data, category_of=None, categories=None)
        train, test = hold_out_last(data, 0.2)
        self.task = din(Catalogue.of(train), seed=1, slopes="prelu", layout="paper")
        super().__init__(CLIENTS, active=True, model=self.task.spec, maps=self.task.row_maps)
        self.devices = {
            name: Device(self.task, train.client(user), test.client(user))
            for user, name in enumerate(self.names)
        }
        domain = IndexSpace(self.task.spec).domain
        union = UnionParams(domain=domain, encoding="identity", capacity=domain, seed=bytes(32))
        fine = Quantization.finest("z32", cohort=CLIENTS, clip=1.0, max_weight=MOST)
        update = replace(self.params.update, rows=fine, dense=fine)
        self.params = replace(self.params, update=update)
        self.params = replace(self.params, model=self.task.spec, union=union, scores=ScoreBins(bins=256))
        self.session = replace(self.session, sums=self.params.sums())
        self.policy = replace(
            self.policy, max_rows=10**6, session=replace(self.policy.session, max_words=10**7)
        )
        for session in self.sessions.values():
            session._policy = self.policy.session
        self.answers = {name: OfItems(device.needed["item"]) for name, device in self.devices.items()}
        self.store = MemoryStore(StoreSpec(model=self.task.spec, seed=bytes(32)), dense=crafted(self.task))

    def train(self, name: str, download: Any) -> Any:
        device = self.devices[name]
        own = {"user": np.full((len(device.personal["user"]), self.task.module.width), 0.05, np.float32)}
        return DeviceTrainer(device, lambda number: 7, SETTINGS).train(download, own, 1).trained


def coordinates_of_the_target() -> tuple[int, int, int, int]:
    """How many coordinates of the opened dense part are the target's own update, and how many rows; and of
    how many."""
    cohort = Twenty()
    step = Stepper(cohort).until("submodel")
    for name, message in step.outbound.items():
        if name != TARGET:
            step.outbound[name] = replace(message, rows=tuple(bytes(len(rows)) for rows in message.rows))
    step.finish()
    sums, own = step.server.sums.model, cohort.trained[TARGET]
    rounded = CLIENTS * cohort.params.update.dense.unit
    found = sums.dense.values[0] / min(own.samples, MOST)
    dense = int((np.abs(found - own.dense) <= rounded).sum())
    trained = own.rows["item"]
    places = sums.unions["item"].positions_of(trained.rows.rows)
    moved = sums.rows["item"].values[places] / np.minimum(trained.counts, MOST)[:, None]
    rows = int(np.all(np.abs(moved - trained.deltas) <= rounded, axis=1).sum())
    assert np.count_nonzero(np.abs(own.dense) > rounded) > 1000  # it did learn
    return dense, len(found), rows, len(trained.rows)


def test_dead_rows_for_nineteen_of_twenty() -> None:
    with pytest.raises(Deceived, match="rows that are not those of the model it committed to"):
        coordinates_of_the_target()


def test_without_the_check_the_sum_is_one_clients_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sfsl.rounds.client, "require_committed", lambda *_: None)
    dense, of, rows, asked = coordinates_of_the_target()
    assert (dense, of) == (44_021, 44_023)
    assert rows == asked > 20
