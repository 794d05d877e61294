"""A model at rest: from the folder of a run, from that of a server, which has no users' rows, or a bundle."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfsl.bundle.contents import MANIFEST
from sfsl.correction import Correction
from sfsl.durable import FileLock
from sfsl.errors import InputError
from sfsl.run.folder import BEST, RunFolder
from sfsl.scores import Evaluation
from sfsl.service.folder import METRICS, scan_metrics
from sfsl.service.versions import version_path
from sfsl.settings.run import RunConfig
from sfsl.submodel import LmdbStore, ModelSpec, RowSet, RowStore, StoreSpec
from sfsl.submodel.store import require_same
from sfsl.submodel.tables import row_numbers

# Tables and the dense part can be read where torch is not installed.
if TYPE_CHECKING:
    from torch import Tensor

    from sfsl.bundle.described import Described
    from sfsl.bundle.model import Bundle
    from sfsl.data.catalogue import Catalogue
    from sfsl.run.fleet import Fleet
    from sfsl.simulate.engine import Pool
    from sfsl.training.task import Task

STORE = "store"


def state_dict(task: "Task", store: RowStore, max_bytes: int) -> "Mapping[str, Tensor]":
    """Return all parameters as ``load_state_dict`` takes them; rows never touched are as they begin."""
    sizes = {table.name: 4 * table.rows * table.width for table in task.tables}
    if sum(sizes.values()) > max_bytes:
        largest = max(sizes, key=lambda name: sizes[name])
        raise InputError(
            f"the tables take {sum(sizes.values()) / 2**30:,.2f} GiB as plain tensors, {largest!r} alone "
            f"{sizes[largest] / 2**30:,.2f}; the limit is {max_bytes / 2**30:,.2f}. Raise it with --max-gib, "
            "or read the rows you need from the run's store"
        )
    tables = {
        table.name: store.read_rows(table.name, RowSet(np.arange(table.rows))).values for table in task.tables
    }
    parameters = task.parameters(store.read_dense().values, tables)
    buffers = {name: one.clone() for name, one in task.module.named_buffers()}
    return {name: parameters[name] for name, _ in task.module.named_parameters()} | buffers


class Model:
    """A trained model in a folder. The folder is open only while something is read from it.

    A run keeps its best model beside the last one: ``which`` says whether this is "best" or "last", and
    ``round`` after which round it was; ``spec`` has its tables and the size of its dense part. A run's folder
    holds users' personal rows too, which a simulation knows and a real server never does.

    >>> import sfsl
    >>> run = sfsl.train(rounds=1, clients=4, settings={
    ...     "data.users": 12, "data.scale": 0.03, "model.kind": "logistic", "round.min_contributors": 1})
    >>> model = sfsl.load(run.path)
    >>> model.which, model.round, [table.name for table in model.spec.tables], model.dense.shape
    ('last', 1, ['user', 'item', 'category'], (1,))
    >>> model.rows("item", [0, 5]).shape
    (2, 2)
    """

    def __init__(
        self,
        path: Path,
        task: "Task | None" = None,
        fleet: "Fleet | None" = None,
        keeps: object = None,
        *,
        last: bool = False,
        version: str = "",
    ) -> None:
        """``keeps`` is what the folder lasts as long as, where it is temporary. ``last``: not the best.
        ``version``: one that was tagged on a server."""
        self._version = version_path(path, version) if version else None
        self.which: Literal["best", "last"] = "best" if not last and (path / BEST).exists() else "last"
        self.path, self._fleet, self._keeps = path, fleet, keeps
        self._task = fleet.task if fleet is not None else task
        with self._store(check=True) as store:
            self._stored: StoreSpec = store.spec
            self.round: int = store.round
        if self._task is not None:
            self._require_same(self._task)

    @property
    def spec(self) -> ModelSpec:
        return self._stored.model

    @cached_property
    def config(self) -> RunConfig | None:
        """The settings of its run; None where the folder has none."""
        return RunFolder(self.path).config() if (self.path / "config.toml").is_file() else None

    @cached_property
    def correction(self) -> Correction | None:
        """What validation devices correct its scores by; None where none did, or the metrics of its round are
        lost."""
        lines = scan_metrics(self.path / METRICS)
        return next((line.correction for line in lines if line.round == self.round), None)

    @cached_property
    def fleet(self) -> "Fleet":
        """The model and its clients, made again from the run's settings."""
        if self._fleet is not None:
            return self._fleet
        if self.config is None:
            raise InputError(
                f"{self.path} does not say what its model was trained on; only a run's folder does"
            )
        from sfsl.run.fleet import build_fleet

        fleet = build_fleet(self.config)
        self._require_same(fleet.task)
        return fleet

    @cached_property
    def task(self) -> "Task | None":
        """The torch module and its tables; None where the folder does not say how to build it."""
        if self._task is not None or self.config is None:
            return self._task
        return self.fleet.task

    @property
    def test(self) -> "Pool":
        """The test set of its run; everyone's held-out samples where the folder has no settings."""
        from sfsl.run.validation import TEST, split_held_out

        return self.fleet.test if self.config is None else split_held_out(self.config, self.fleet)[TEST]

    @cached_property
    def described(self) -> "tuple[Described, Catalogue | None]":
        """What its model is, and what its rows are called, where anything is known of that."""
        from sfsl.bundle.described import read_described

        if (found := read_described(self.path)) is not None:
            return found
        if self.config is None:
            raise InputError(
                f"{self.path} does not say what its model is: an older version made it. Start its server "
                "once with this one, which writes it down"
            )
        from sfsl.bundle.describe import describe

        return describe(self.fleet.task, self.config, "run", history_of(self.config)), self.fleet.catalogue

    @contextmanager
    def open(self) -> Iterator[LmdbStore]:
        """Open the store that holds it, to read."""
        with self._store() as store:
            yield store

    @property
    def dense(self) -> NDArray[np.float32]:
        """The parameters outside the tables, as one vector."""
        with self._store() as store:
            return store.read_dense().values

    def rows(self, table: str, numbers: ArrayLike) -> NDArray[np.float32]:
        """Return these rows [n, width] of a table in the order asked for; untrained ones as they began."""
        wanted = row_numbers(numbers, self._stored.table(table).rows)
        distinct, places = np.unique(wanted, return_inverse=True)
        with self._store() as store:
            return np.asarray(store.read_rows(table, RowSet(distinct)).values[places.reshape(-1)])

    def state_dict(self, max_gib: float = 4.0) -> "dict[str, Tensor]":
        """Return all parameters as ``load_state_dict`` takes them; refuse tables larger than ``max_gib``."""
        if self.task is None:
            raise InputError(
                f"{self.path} has the numbers of a model, not its shape; give the task that it was trained "
                "with: sfsl.load(folder, task=...)"
            )
        with self._store() as store:
            return dict(state_dict(self.task, store, int(max_gib * 2**30)))

    def export(self, out: str | Path, *, onnx: bool = False) -> Path:
        """Write it as a bundle, a zip if the name ends so, else a folder; ``onnx``: with the scoring function
        as ONNX in it. Returns where it is."""
        from sfsl.run.export import export_model

        export_model(self, Path(out), onnx=onnx)
        return Path(out)

    def evaluate(self) -> Evaluation:
        """Return what its scores of the test set of its run are worth, beside the baselines."""
        from sfsl.run.best import evaluate_store

        fleet = self.fleet
        with self._store() as store:
            return evaluate_store(self.config, fleet, store)

    def auc(self) -> float | None:
        """Return the AUC on the test set of its run; None where there are no samples of one kind."""
        return self.evaluate().auc

    def _require_same(self, task: "Task") -> None:
        wanted = msgspec.structs.replace(self._stored, model=task.spec)
        require_same(self._stored, wanted, str(self.path / STORE))

    @contextmanager
    def _store(self, *, check: bool = False) -> Iterator[LmdbStore]:
        with ExitStack() as held:
            if self.which == "best":  # a run that goes on may replace it
                held.enter_context(FileLock(self.path / STORE))
            where = self._version or self.path / (STORE if self.which == "last" else BEST)
            yield held.enter_context(LmdbStore.open(where, check=check))


def history_of(config: RunConfig) -> int:
    """Return how many clicks or words before a sample a run's model sees."""
    return config.data.context if config.model.kind == "lstm" else config.data.max_history


def load(
    path: str | Path, *, task: "Task | None" = None, last: bool = False, version: str = ""
) -> "Model | Bundle":
    """Load the model in the folder of a run, of a server or of a Flower run, or a bundle of one, which scores
    and recommends. Nothing else may be writing it.

    Of a run it is the best model, if one was chosen on validation devices; ``last``: that of the last round.
    ``version``: of a server, one that was tagged (``sfsl models``). ``task`` is for folders that do not say
    how the model is built: those of apps with a model of their own, and of a run that was given its fleet in
    Python. Without it, tables and the dense part can still be read.

    >>> import sfsl
    >>> sfsl.load("no/such/folder")
    Traceback (most recent call last):
    sfsl.errors.InputError: no model at no/such/folder: it has no store
    """
    folder = Path(path)
    if (folder / MANIFEST).is_file() or folder.is_file():
        from sfsl.bundle.model import Bundle

        return Bundle(folder)
    if not (folder / STORE).exists():
        if (folder / "config.toml").is_file():
            raise InputError(f"{folder} has no store yet; go on with it: sfsl run --out {folder} --resume")
        raise InputError(f"no model at {folder}: it has no store")
    return Model(folder, task, last=last, version=version)
