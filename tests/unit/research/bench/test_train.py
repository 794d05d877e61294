"""The bench of training: what it reports, that both sides train everything, and what it refuses."""

import json
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from sfsl.cli import app
from sfsl.errors import InputError
from sfsl_research.bench.train import MODELS, OnDevice, OnHost, TrainingCohort, Turn, _medians, bench_train

SMALL = TrainingCohort(clients=4, scale=0.02)
KEYS = [
    "clients", "scale", "model", "seed", "device", "engine", "compiled", "threads", "torch", "batch_size",
    "samples", "longest_client_steps", "repeats", "loop_device", "loop_threads", "loop_clients_timed",
    "loop_samples_per_second",
    "batched_samples_per_second", "speedup", "speedup_least", "speedup_most", "loop_seconds",
    "loop_training_share", "batched_seconds", "batched_training_share", "load",
]  # fmt: skip


def kept(cohort: TrainingCohort) -> int:
    """A sample without a history cannot be trained, whoever asks for which rows."""
    return sum(len(device.train.keep(device.needed)) for device in cohort.devices.values())


def test_the_command_prints_one_object() -> None:
    arguments = (
        "bench train --clients 4 --scale 0.02 --repeats 1 --device cpu --threads 1 --loop-clients 2 "
        "--no-compiled --json"
    )
    before = torch.get_num_threads()
    ran = CliRunner().invoke(app, arguments.split())
    assert ran.exit_code == 0, ran.output
    result = json.loads(ran.stdout)
    assert list(result) == KEYS
    assert result["samples"] == kept(SMALL)
    assert (result["device"], result["engine"], result["loop_clients_timed"]) == ("cpu", "local", 2)
    assert result["speedup"] == pytest.approx(result["loop_seconds"] / result["batched_seconds"])
    assert 0 < result["batched_training_share"] < 1
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("model", MODELS)
def test_every_side_trains_every_sample(model: str) -> None:
    cohort = TrainingCohort(clients=3, scale=0.01, model=model)
    names = list(cohort.devices)
    sides: list[OnHost | OnDevice] = [
        OnHost(cohort, names, alone=True, threads=1),
        OnHost(cohort, names, alone=False, threads=1),
    ]
    if not cohort.speaks:
        sides.append(OnDevice(cohort, "cpu", threads=1, compiled=False))
    assert {side.turn().samples for side in sides} == {kept(cohort)}


def test_words_are_timed_too() -> None:
    cohort = TrainingCohort(clients=3, scale=0.02, model="lstm")
    found = bench_train(cohort, device="cpu", threads=1, repeats=1)
    assert (found["model"], found["engine"], found["compiled"]) == ("lstm", "local", False)
    assert found["samples"] == len(cohort.windows) == kept(cohort)
    assert found["speedup"] > 0
    with pytest.raises(InputError, match="local engine"):
        bench_train(cohort, device="cpu", engine="resident")


def test_what_counts_is_the_median_of_ratios() -> None:
    turns = [
        (Turn(1, 10, 0.5), Turn(1, 100, 0.9)),
        (Turn(4, 10, 2), Turn(2, 100, 1.8)),
        (Turn(1, 10), Turn(5, 100)),
    ]
    found = _medians(turns[:2])
    assert (found["speedup_least"], found["speedup"], found["speedup_most"]) == (10, 15, 20)
    assert (found["loop_seconds"], found["loop_training_share"]) == (25, 0.5)
    assert found["batched_training_share"] == 0.9
    assert _medians(turns[2:])["batched_training_share"] is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"device": "tpu"}, "there is cpu"),
        ({"engine": "fast"}, "none of auto"),
        ({"device": "cuda"}, "cuda"),
        ({"threads": 0}, "--threads 0"),
        ({"loop_clients": -2}, "--loop-clients -2"),
        ({"repeats": 0}, "--repeats 0"),
    ],
)
def test_what_is_refused(given: dict[str, Any], message: str) -> None:
    if given.get("device") == "cuda" and torch.cuda.is_available():
        given = given | {"engine": "local"}
        message = "trains on the CPU"
    with pytest.raises(InputError, match=message):
        bench_train(SMALL, **given)


@pytest.mark.parametrize(
    "given", [{"clients": 1}, {"scale": 0.0}, {"scale": 2.0}, {"model": "gpt"}, {"seed": -1}]
)
def test_cohorts_that_make_no_sense(given: dict[str, object]) -> None:
    with pytest.raises(InputError):
        TrainingCohort(**given)


def test_clients_without_samples_are_refused() -> None:
    with pytest.raises(InputError, match="without a usable sample"):
        bench_train(TrainingCohort(clients=2, scale=0.0001))
