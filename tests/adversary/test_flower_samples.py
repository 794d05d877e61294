"""An app of Flower that hands over the same samples in each period, though no operator has allowed it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("flwr")

from sfsl.carriers.flower.node import Node, open_node
from sfsl.data import Samples
from sfsl.data.catalogue import Catalogue
from sfsl.errors import InputError
from sfsl.flower import device_member
from sfsl.models import logistic_regression
from sfsl.privacy import ClientState

TASK = logistic_regression(Catalogue.sized(1, item=9))


def node(folder: Path, **terms: Any) -> Node:
    return open_node(1, 2, {"state": str(folder)} | terms, {})


def joined(own: Node, *, asks: bool) -> bool:
    columns = {"user": np.zeros(9, np.int64), "item": np.arange(9), "history": np.arange(9)[:, None]}
    given = Samples(
        columns | {"label": np.ones(9, np.float32)}, {"user": "user", "item": "item", "history": "item"}
    )

    def load(state: ClientState) -> tuple[Samples, None]:
        if not asks:
            return given, None
        new = own.home.exposed.fresh([bytes([one]) for one in range(9)], state, own.today())
        return given.at(np.flatnonzero(new)), None

    with device_member(own, TASK, load) as member:
        return bool(len(member.trainer.device.train))  # type: ignore[attr-defined]


def test_in_exact_sums_an_app_has_to_ask_which_samples_are_new(tmp_path: Path) -> None:
    own = node(tmp_path, **{"exact-sums": True})
    with pytest.raises(InputError, match="without asking which of them"):
        joined(own, asks=False)
    assert joined(own, asks=True)
    with pytest.raises(InputError, match="without asking which of them"):  # another app, in the same folder
        joined(node(tmp_path, **{"exact-sums": True}), asks=False)


@pytest.mark.parametrize("terms", [{}, {"exact-sums": True, "repeat-samples": True}])
def test_where_noise_covers_them_or_its_operator_allows_it_it_has_not(
    tmp_path: Path, terms: dict[str, Any]
) -> None:
    assert joined(node(tmp_path, **terms), asks=False)
