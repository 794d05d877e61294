"""What a user's own model must look like, and what is said when it does not."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sfsl.data import Samples
from sfsl.errors import InputError, ParameterError
from sfsl.submodel import Table
from sfsl.training import Task, score_parts
from sfsl.training.task import Batch


class Factors(nn.Module):
    def __init__(self, *extra: nn.Module) -> None:
        super().__init__()
        self.user = nn.Embedding(5, 3)
        self.film = nn.Embedding(10, 3, device="meta")
        self.genre = nn.Embedding(4, 3)
        self.first, self.last = nn.Linear(3, 2), nn.Parameter(torch.ones(1))
        self.extra = nn.ModuleList(extra)


USER = Table(name="user", rows=5, width=3, kind="personal")
FILM = Table(name="film", rows=10, width=3)
GENRE = Table(name="genre", rows=4, width=3, kind="derived", source="film")
GENRES = np.arange(10) % 4


def task() -> Task:
    return Task(Factors(), (USER, FILM, GENRE), maps={"genre": GENRES})


def test_dense_is_what_is_not_a_table() -> None:
    assert task().spec.dense == 3 * 2 + 2 + 1
    assert list(task().dense_shapes) == ["last", "first.weight", "first.bias"]


def test_parameters_and_dense_vector_are_inverse() -> None:
    one = task()
    dense = np.arange(1, 10, dtype=np.float32)
    rows = {"user": np.ones((1, 3)), "film": np.zeros((4, 3)), "genre": np.zeros((2, 3))}
    parameters = one.parameters(dense, {name: block.astype(np.float32) for name, block in rows.items()})
    assert np.array_equal(one.dense_vector(parameters), dense)
    assert parameters["film.weight"].shape == (4, 3)
    dense[:] = 0
    assert parameters["last"] == 1
    assert parameters["first.bias"].tolist() == [8, 9]  # a copy: the caller's array is not shared


def test_shapes_are_checked() -> None:
    rows = {"user": np.ones((1, 3)), "film": np.zeros((4, 2)), "genre": np.zeros((2, 3))}
    with pytest.raises(InputError, match="9 numbers"):
        task().parameters(np.zeros(8, dtype=np.float32), rows)
    with pytest.raises(InputError, match="'film': rows are 3 wide"):
        task().parameters(np.zeros(9, dtype=np.float32), rows)


def test_a_table_without_its_parameter_is_refused() -> None:
    with pytest.raises(ParameterError, match=r"'film\.weight' of 11 x 3, and has"):
        Task(Factors(), (USER, Table(name="film", rows=11, width=3)))
    with pytest.raises(ParameterError, match=r"'song\.weight' of 10 x 3, and has none"):
        Task(Factors(), (Table(name="song", rows=10, width=3),))


def test_running_statistics_are_refused() -> None:
    with pytest.raises(ParameterError, match="running statistics"):
        Task(Factors(nn.BatchNorm1d(3)), (FILM,))
    Task(Factors(nn.BatchNorm1d(3, track_running_stats=False)), (FILM,))


def test_unknown_rows_are_left_out_and_counted() -> None:
    columns = {"user": np.array([2, 2, 2]), "film": np.array([1, 12, 6]), "past": np.array([[5], [99], [1]])}
    data = Samples(columns, {"user": "user", "film": "film", "past": "film"})
    rows, unknown = task().needed_rows(data)
    assert unknown == 2
    assert {name: some.tolist() for name, some in rows.items()} == {
        "user": [2],
        "film": [1, 5, 6],
        "genre": [1, 2],
    }
    assert data.keep(rows).columns["film"].tolist() == [1, 6]


def test_derived_rows_follow_the_succinct_set() -> None:
    rows = task().with_derived({"user": np.array([2]), "film": np.array([4, 8])})
    assert rows["genre"].tolist() == [0]


class Parted(nn.Module):
    """Log-odds that are the sum of three parts, or are said to be."""

    def __init__(self, named: object, wrong: str = "") -> None:
        super().__init__()
        self.film, self.bias = nn.Embedding(10, 1, device="meta"), nn.Parameter(torch.ones(1))
        self.logit_parts, self.wrong = named, wrong

    def forward(self, batch: Batch, apart: bool = False) -> Tensor:
        film: Tensor = self.film(batch["film"])[..., 0]
        whole, parts = film + 2 * self.bias, [film, self.bias.expand_as(film), self.bias.expand_as(film)]
        if not apart:
            return whole
        if self.wrong == "flat":
            return whole
        if self.wrong == "sum":
            parts[0] = 3 * film
        return torch.stack(parts[: 2 if self.wrong == "fewer" else 3], dim=-1)


class Silent(Parted):
    def forward(self, batch: Batch) -> Tensor:  # type: ignore[override]
        whole: Tensor = super().forward(batch)
        return whole


FILMS = Table(name="film", rows=10, width=1)


@pytest.mark.parametrize("named", ["abc", (1, 2, 3), 3, ("a", "b", "a")])
def test_parts_have_names(named: object) -> None:
    with pytest.raises(ParameterError, match="logit_parts of the module"):
        Task(Parted(named), (FILMS,))
    assert Task(Parted(()), (FILMS,)).parts == ()
    assert Task(Parted(["a", "b", "c"]), (FILMS,)).parts == ("a", "b", "c")


def test_biases_are_among_the_parts() -> None:
    module = Parted(("a", "b", "c"))
    assert Task(module, (FILMS,)).biases == ()
    module.bias_parts = ("c", "a")
    assert Task(module, (FILMS,)).biases == (2, 0)
    # A module whose scores are no chances has no parts, and so nothing that explains labels by itself.
    assert Task(module, (FILMS,), loss=lambda output, batch: output).biases == ()
    for named, wrong, said in (
        (("a", "b", "c"), ("a", "d"), r"\('a', 'd'\), and not some of its logit_parts: a, b, c"),
        (("a", "b", "c"), "a", "'a', and not some"),
        ((), ("a",), "it has none"),
    ):
        module = Parted(named)
        module.bias_parts = wrong
        with pytest.raises(ParameterError, match=said):
            Task(module, (FILMS,))


def test_a_module_with_parts_can_be_asked_for_them() -> None:
    with pytest.raises(ParameterError, match=r"forward\(batch, apart=True\) cannot be called: got an unexp"):
        Task(Silent(("a", "b", "c")), (FILMS,))
    Task(Silent(()), (FILMS,))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [("fewer", r"\[5, 3\] numbers, not \[5, 2\]"), ("flat", r"not \[5\]"), ("sum", "add up")],
)
def test_parts_are_those_of_the_log_odds(wrong: str, said: str) -> None:
    data = Samples({"film": np.arange(5), "label": np.zeros(5, np.float32)}, {"film": "film"})
    rows, values = {"film": np.arange(5)}, {"film": np.arange(1, 6, dtype=np.float32)[:, None]}
    dense = np.ones(1, np.float32)
    _, parts = score_parts(Task(Parted(("a", "b", "c")), (FILMS,)), dense, rows, values, data)
    assert parts.tolist() == [[one, 1, 1] for one in range(1, 6)]
    with pytest.raises(ParameterError, match=said):
        score_parts(Task(Parted(("a", "b", "c"), wrong), (FILMS,)), dense, rows, values, data)
    values["film"][2] = np.inf  # a model that has diverged is no wrong module
    score_parts(Task(Parted(("a", "b", "c")), (FILMS,)), dense, rows, values, data)
