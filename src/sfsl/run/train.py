"""A training run from Python: your own model and data, or those of settings, and a word in every round."""

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfsl.data import Samples
from sfsl.errors import InputError
from sfsl.rounds.record import RoundRecord
from sfsl.run import start
from sfsl.run.callbacks import Callback, StopTraining
from sfsl.run.fleet import Fleet
from sfsl.run.load import Model
from sfsl.run.summary import Summary
from sfsl.scores import Evaluation
from sfsl.settings.run import RoundSettings, from_sections
from sfsl.settings.toml import Sections, read_run_sections, with_settings
from sfsl.training.task import Task

if TYPE_CHECKING:
    from torch import Tensor

OnRound = Callable[[RoundRecord], object]


@dataclass(frozen=True)
class TrainedRun:
    """A run that came to its end, or was stopped. Its folder is at ``path``, with all that ``sfsl run``
    writes; where ``train`` was given none, it lasts as long as this object.

    ``records`` has one line for each round: what it did, cost and learned. ``summary`` is what they come to.

    >>> import sfsl
    >>> run = sfsl.train(rounds=2, clients=4, settings={
    ...     "data.users": 12, "data.scale": 0.03, "model.kind": "logistic", "round.min_contributors": 1})
    >>> [line.survivors for line in run.records], run.summary.complete, (run.path / "summary.json").exists()
    ([4, 4], True, True)
    >>> sorted(run.state_dict()), 0 <= run.auc <= 1
    (['bias', 'category.weight', 'item.weight', 'user.weight'], True)
    """

    path: Path
    records: tuple[RoundRecord, ...]
    summary: Summary
    fleet: Fleet = field(repr=False)
    _keeps: object = field(default=None, repr=False)

    @cached_property
    def model(self) -> Model:
        """The trained model: the best on validation devices, or the last where none was chosen."""
        return Model(self.path, fleet=self.fleet, keeps=self._keeps)

    @cached_property
    def last_model(self) -> Model:
        """The model after the last round."""
        return Model(self.path, fleet=self.fleet, keeps=self._keeps, last=True)

    @cached_property
    def auc(self) -> float | None:
        """That of ``model`` on the central test set; None without held-out samples of both kinds."""
        number = self.model.round
        known = self.records[number - 1].auc if number else None
        return self.model.auc() if known is None else known

    @cached_property
    def evaluation(self) -> Evaluation:
        """AUC, log loss, rankings and calibration of ``model`` on the central test set, beside baselines."""
        return self.model.evaluate()

    def state_dict(self, max_gib: float = 4.0) -> "dict[str, Tensor]":
        """All parameters as ``module.load_state_dict`` takes them."""
        return self.model.state_dict(max_gib)


def train(
    model: Fleet | Task | None = None,
    samples: Mapping[str, Samples] | None = None,
    held_out: Mapping[str, Samples] | None = None,
    *,
    rounds: int | None = None,
    clients: int | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | str | Path | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    on_round: OnRound | Iterable[OnRound] = (),
    callbacks: Iterable[Callback] = (),
) -> TrainedRun:
    """Train over simulated clients on the real protocol: secure sums, private rows, dropouts.

    ``model``: a task with everyone's ``samples`` and ``held_out`` by client, or a ``Fleet`` of them; without
    it, the data and the model are those of ``settings``. ``settings`` are those of a run file (``sfsl init``
    explains each): its path, its sections, or keys such as ``{"privacy.preset": "cpp3"}``; ``rounds``,
    ``clients`` (in a round) and ``seed`` win over it. ``out``: the run's folder, which ``sfsl report`` reads
    and ``resume`` goes on with; without one a temporary folder lasts as long as the result.

    ``on_round`` is called with each round's record, once it is committed. It stops the run by returning True
    or raising ``StopTraining``; any other error ends the run too, and is raised here. ``callbacks`` hear of
    the start, rounds, evaluations and the end (``sfsl.Callback``); one that fails ends nothing.

    >>> import numpy as np, sfsl, torch
    >>> class Rating(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.film = torch.nn.Embedding(10, 1, device="meta")
    ...     def forward(self, batch):
    ...         return self.film(batch["film"]).sum(dim=-1)
    >>> task = sfsl.Task(Rating(), (sfsl.Table(name="film", rows=10, width=1),))
    >>> films = np.arange(10)
    >>> liked = sfsl.Samples({"film": films, "label": np.float32(films > 4)}, {"film": "film"})
    >>> everyone = {f"user-{number}": liked for number in range(8)}
    >>> run = sfsl.train(task, everyone, everyone, rounds=12, clients=6, on_round=lambda line: None,
    ...                  settings={"round.min_contributors": 2})
    >>> run.auc, len(run.records), run.state_dict()["film.weight"].shape
    (1.0, 12, torch.Size([10, 1]))
    """
    fleet = _fleet(model, samples, held_out)
    sections = _sections(settings)
    if fleet is not None and clients is None and "clients" not in sections.get("round", {}):
        clients = min(len(fleet.devices), RoundSettings().clients)
    flags = {"run.rounds": rounds, "round.clients": clients, "run.seed": seed}
    given = {name: value for name, value in flags.items() if value is not None}
    wanted = from_sections(with_settings(sections, given))
    hooks = [on_round] if callable(on_round) else list(on_round)
    stopped = False

    def seen(line: RoundRecord) -> None:
        nonlocal stopped
        for hook in hooks:
            try:
                stopped |= hook(line) is True
            except StopTraining:
                stopped = True

    if resume and out is None:
        raise InputError("resume=True goes on with the run in a folder; give it with out=")
    temporary = _Temporary() if out is None else None
    path = temporary.path if temporary else Path(out or "")
    with (start.resume if resume else start.begin)(path, wanted, fleet) as runner:
        summary = runner.run(stop=lambda: stopped, seen=seen, callbacks=callbacks)
    return TrainedRun(path, tuple(runner.lines), summary, runner.fleet, temporary)


class _Temporary:
    """A folder that is removed with the last thing that needs it."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="sfsl-run-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def _fleet(
    model: Fleet | Task | None, samples: Mapping[str, Samples] | None, held_out: Mapping[str, Samples] | None
) -> Fleet | None:
    if isinstance(model, Task):
        if samples is None:
            raise InputError("a task is trained on samples: train(task, samples, held_out), each by client")
        return Fleet.of(model, samples, held_out or {})
    if samples is not None or held_out is not None:
        raise InputError("samples and held_out go with a task; a fleet has its own")
    if model is not None and not isinstance(model, Fleet):
        raise InputError(f"a {type(model).__name__} cannot be trained; give an sfsl.Task or an sfsl.Fleet")
    return model


def _sections(settings: Mapping[str, Any] | str | Path | None) -> Sections:
    if isinstance(settings, str | Path):
        return read_run_sections(Path(settings))
    return with_settings({}, settings or {})
