"""A trainer takes the hyperparameters of a round within its own limits."""

from typing import Any

import numpy as np
import pytest

from sfsl.errors import Refused

pytest.importorskip("torch")

from sfsl.client import device as training
from sfsl.client.device import DeviceTrainer
from sfsl.training import LocalSettings

ASKED = {"rate": 0.25, "batch_size": 4.0, "epochs": 3.0, "clip": 0.5}


class Trained(Exception):
    pass


class Anything:
    """A device whose work nobody looks at."""

    task = None
    personal: dict[str, Any] = {}  # noqa: RUF012

    def work(self, *given: Any) -> None:
        return None


@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        (ASKED, LocalSettings(4, 3, 0.25, 1.0, 0.5)),
        ({"rate": 0.25}, LocalSettings(2, 1, 0.25, 1.0, 0.1)),
        (
            ASKED | {"rebuild": 0.5, "rebuild_rate": 2.0, "rebuild_epochs": 4.0, "max_samples": 64.0},
            LocalSettings(
                4,
                3,
                0.25,
                1.0,
                0.5,
                rebuild=0.5,
                rebuild_rate=2.0,
                rebuild_epochs=4,
                max_samples=64,
            ),
        ),
    ],
)
def test_what_is_asked_is_what_is_trained_with(
    asked: dict[str, float], taken: LocalSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train_client(task: Any, dense: Any, work: Any, settings: LocalSettings) -> None:
        assert settings == taken
        raise Trained

    class Download:
        dense, training = None, asked

    monkeypatch.setattr(training, "train_client", train_client)
    with pytest.raises(Trained):
        DeviceTrainer(Anything(), lambda number: 0).train(Download(), {}, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("rate", [0.0, -1.0, 1e4, np.nan, np.inf]),
        ("batch_size", [0.0, 2.5, 1e9, np.nan, np.inf]),
        ("epochs", [0.0, 1.5, 21.0, np.nan, np.inf]),
        ("clip", [0.0, -1.0, np.nan, np.inf]),
        ("rebuild", [-0.1, 1.0, np.nan, np.inf]),
        ("rebuild_rate", [0.0, -1.0, 1e4, np.nan, np.inf]),
        ("rebuild_epochs", [0.0, 1.5, 1e9, np.nan, np.inf]),
        ("max_samples", [-1.0, 1.5, 1e300, np.nan, np.inf]),
    ],
)
def test_what_cannot_be_trained_with_is_refused(name: str, values: list[float]) -> None:
    trainer = DeviceTrainer(None, lambda number: 0)  # type: ignore[arg-type]
    trainer.require(ASKED)
    for value in values:
        with pytest.raises(Refused):
            trainer.require(ASKED | {name: value})
