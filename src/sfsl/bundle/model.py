"""A bundle in use: scores of pairs, and what to recommend to whom."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from sfsl.arrays import Bits, Indices, Reals, Values
from sfsl.bundle.contents import CATALOGUE, OWN, WEIGHTS
from sfsl.bundle.described import config_of
from sfsl.bundle.file import read_bundle
from sfsl.bundle.rows import AtRest, BundleRows
from sfsl.bundle.scorer import NO_ROW, Scorer, WordScorer, scorer_of
from sfsl.correction import Correction
from sfsl.data import Interactions, Samples
from sfsl.data.catalogue import ITEM, WORD, Catalogue, CatalogueTable
from sfsl.data.catalogue_file import decode_catalogue
from sfsl.data.lines import BadField
from sfsl.data.own import in_rows
from sfsl.errors import BundleError, InputError
from sfsl.models import build_task
from sfsl.models.kinds import KINDS
from sfsl.settings.run import RunConfig
from sfsl.submodel import ModelSpec, RowSet
from sfsl.submodel.tables import row_numbers
from sfsl.training import ClientWork, LocalSettings, rebuild_cohort
from sfsl.training.task import Task

if TYPE_CHECKING:
    from torch import Tensor

_PAIRS_AT_ONCE = 8192
_PEOPLE_AT_ONCE = 400
_WIDEST = 4096  # of a setting model.width
_SEED = 0  # of the order of samples: whoever else is asked about changes nothing
Seen = Callable[[int], None]
Ids = Sequence[object]


def _unseen(done: int) -> None:
    """Show no progress."""


@dataclass(frozen=True)
class Person:
    """Somebody to predict for: rows that they clicked (or words that they said), the oldest first, and their
    personal row. Of somebody without samples, and without a client's home, that is zero."""

    history: Indices
    row: Values | None = None


class Bundle:
    """A model to take away, which ``sfsl export`` wrote. ``manifest`` says all that is known of it.

    Items (or words) are called as in its ``catalogue``. No bundle has the rows of people: with ``rated``, the
    items that somebody was shown in order and whether they clicked each, their row is rebuilt, as evaluations
    do; without, it is zero.

    >>> import sfsl, tempfile
    >>> run = sfsl.train(rounds=1, clients=4, settings={
    ...     "data.users": 12, "data.scale": 0.03, "model.kind": "logistic", "round.min_contributors": 1})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     bundle = sfsl.load(run.model.export(f"{folder}/films.zip"))
    >>> bundle.round, bundle.score([3, 5], history=[1]).shape, len(bundle.recommend(history=[1], top=2))
    (1, (2,), 2)
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.manifest, self._files = read_bundle(self.path)
        if WEIGHTS not in self._files:
            raise BundleError(f"{self.path} has no {WEIGHTS}; export it again")
        self._rows = BundleRows(self.manifest, self._files[WEIGHTS], str(self.path))

    @property
    def round(self) -> int:
        return self.manifest.provenance.round

    @property
    def which(self) -> Literal["best", "last"]:
        return self.manifest.provenance.which

    @property
    def correction(self) -> Correction | None:
        """What its scores are corrected by; None where nobody corrected them."""
        about = self.manifest.architecture
        found = Correction(about.scale, about.shift, about.parts)
        return None if found == Correction(1.0, 0.0) else found

    @property
    def spec(self) -> ModelSpec:
        return self._rows.model

    @cached_property
    def config(self) -> RunConfig:
        try:
            return config_of(self.manifest.provenance.settings, str(self.path))
        except InputError as error:
            raise BundleError(str(error)) from None

    @cached_property
    def catalogue(self) -> Catalogue:
        """What its rows are called."""
        if CATALOGUE not in self._files:
            raise InputError(f"{self.path} does not say what its rows are: it is of an app's own model")
        try:
            found = decode_catalogue(self._files[CATALOGUE], f"{self.path}, {CATALOGUE}")
        except InputError as error:
            raise BundleError(str(error)) from None
        rows = {table.name: table.rows for table in self.spec.summed}
        if rows != {table.name: table.rows for table in found.tables}:
            raise BundleError(f"{self.path}: its catalogue has other tables than its architecture")
        return found

    @property
    def dense(self) -> NDArray[np.float32]:
        """The parameters outside the tables, as one vector."""
        return self._rows.dense

    def rows(self, table: str, numbers: ArrayLike) -> NDArray[np.float32]:
        """Return these rows [n, width] of a table in the order asked for; untrained ones as they began."""
        return self._rows.rows(table, row_numbers(numbers, self.spec.table(table).rows))

    def store(self, model: ModelSpec) -> AtRest:
        """Return its numbers as a store has them, for a model that may have more people."""
        return AtRest(model, self.dense, lambda table, rows: self.rows(table, rows.rows), self.round)

    @cached_property
    def scorer(self) -> Scorer:
        """The scoring function, a ``torch.nn.Module`` on row numbers."""
        about = self.manifest.architecture
        if about.kind == OWN or about.kind not in KINDS:
            raise InputError(
                f"{self.path} is of a model {about.network!r} of an app's own, whose code no bundle has; "
                "load its weights into that class, or score it where it was trained"
            )
        sizes = [one for name, one in about.arguments.items() if isinstance(one, int) and name != "words"]
        words = [table.rows for table in about.tables if table.name == WORD]
        if max(sizes, default=0) > _WIDEST or about.arguments.get("words") not in (None, *words):
            raise BundleError(f"{self.path}: its network is larger than any that sfsl makes")
        try:
            content = msgspec.json.decode(self.catalogue.public)
            net, told = KINDS[about.kind].module, msgspec.to_builtins(about)
            return scorer_of(net, told, content, self._files[WEIGHTS])
        except (RuntimeError, KeyError, TypeError, AttributeError) as error:
            raise BundleError(f"{self.path}: its parts do not make a model: {error}") from None

    def task(self, people: int = 1) -> Task:
        """Return the model as it is trained, with rows for so many people."""
        return build_task(replace(self.catalogue, users=people), self.config.model, seed=0)

    @property
    def named(self) -> CatalogueTable:
        """The table whose rows are recommended: items, or words."""
        return self.catalogue.table(WORD if isinstance(self.scorer, WordScorer) else ITEM)

    def find(self, ids: Ids) -> Indices:
        """Return the rows of these ids."""
        table, found = self.named, []
        for one in ids:
            try:
                found.append(table.find(str(one)))
            except BadField as bad:
                like = ", ".join(table.name_of(row) for row in range(min(3, table.rows)))
                raise InputError(
                    f"{str(one)[:80]!r}: {bad.problem}; its ids are those of its catalogue, such as {like}"
                ) from None
        rows = np.array(found, np.int64)
        if not (held := self.holds(rows)).all():
            lost = table.name_of(int(rows[~held][0]))
            raise InputError(f"{lost!r} is not among what this client has downloaded; score it with a bundle")
        return rows

    def holds(self, rows: Indices) -> Bits:
        """Say of which rows something is known: of all, but in what a client keeps of a download."""
        stored = next(one for one in self.manifest.architecture.tables if one.name == self.named.name)
        if stored.stored == "whole" or stored.key:
            return np.ones(len(rows), np.bool_)
        return np.isin(rows, self._candidates)

    def person(self, history: Ids = (), rated: Sequence[tuple[object, object]] = ()) -> Person:
        """Return somebody by what they clicked, or by what they were shown and whether they clicked it."""
        if not rated:
            return Person(self.find(history))
        if isinstance(self.scorer, WordScorer):
            raise InputError("a model of words has no personal rows to rebuild: give the words before alone")
        items, labels = self.find([item for item, _ in rated]), np.array([int(bool(one)) for _, one in rated])
        data = in_rows(self.catalogue, np.zeros(len(items)), items, labels, np.arange(len(items)))
        return next(self.people(data))

    def people(
        self, data: Interactions, users: Indices | None = None, seen: Seen = _unseen
    ) -> Iterator[Person]:
        """Return the users of these interactions, which are in rows of the catalogue's; rows of their own are
        rebuilt on all their samples. ``seen`` hears after how many."""
        wanted = np.arange(len(data.users)) if users is None else users
        for start in range(0, len(wanted), _PEOPLE_AT_ONCE):
            some = wanted[start : start + _PEOPLE_AT_ONCE]
            rows = self._rebuilt([data.client(int(one), self.history) for one in some], some)
            for user, row in zip(some, rows, strict=True):
                clicks = slice(data.click_offsets[user], data.click_offsets[user + 1])
                yield Person(data.clicks[clicks].astype(np.int64), row)
            seen(start + len(some))

    @property
    def history(self) -> int:
        """How many clicks, or words, before a sample it was trained with at most."""
        return self.manifest.architecture.history

    def _rebuilt(self, samples: Sequence[Samples], users: Indices) -> list[Values | None]:
        task = self.task(int(users.max()) + 1)
        store, works = self.store(task.spec), []
        for own in samples:
            kept = own.keep(task.needed_rows(own)[0])
            rows = task.needed_rows(kept)[0]
            values = {name: store.read_rows(name, RowSet(one)).values for name, one in rows.items()}
            works.append(ClientWork(rows, values, kept, _SEED))
        settings = LocalSettings(**msgspec.structs.asdict(self.config.training))
        settings = replace(settings, compiled=False)
        found = rebuild_cohort(task, self.dense, works, settings)
        return [next((one[0] for one in rows.values() if len(one)), None) for rows in found]

    def score(
        self, items: Ids, history: Ids = (), rated: Sequence[tuple[object, object]] = ()
    ) -> NDArray[np.float64]:
        """Return the chance that somebody clicks each item, or that each word comes next."""
        return self.score_pairs(
            [self.person(history, rated)], np.zeros(len(items), np.int64), self.find(items)
        )

    def recommend(
        self, history: Ids = (), top: int = 10, rated: Sequence[tuple[object, object]] = ()
    ) -> list[tuple[str, float]]:
        """Return the ids and scores of the best items that somebody has not clicked, or of the next words."""
        return self.best_for(self.person(history, rated), top)

    def best_for(self, person: Person, top: int) -> list[tuple[str, float]]:
        if top < 1:
            raise InputError(f"the best {top} items: at least 1")
        candidates = self._candidates
        if not isinstance(self.scorer, WordScorer):
            candidates = candidates[~np.isin(candidates, person.history)]
        scores = self.score_pairs([person], np.zeros(len(candidates), np.int64), candidates)
        order = np.lexsort((candidates, -scores))[:top]
        return [(self.named.name_of(int(candidates[one])), float(scores[one])) for one in order]

    @cached_property
    def _candidates(self) -> Indices:
        """The rows that may be recommended; of a table too large to be stored whole, those that moved."""
        moved = self._rows.tensors.get(f"{self.named.name}.numbers")
        return np.arange(self.named.rows) if moved is None else np.asarray(moved, np.int64)

    def score_pairs(
        self, people: Sequence[Person], who: Indices, items: Indices, seen: Seen = _unseen
    ) -> Reals:
        """Score rows ``items``, each for the person at the place ``who``; ``seen`` hears after how many."""
        scores, scorer = np.zeros(len(items)), self.scorer
        with torch.no_grad():
            for start in range(0, len(items), _PAIRS_AT_ONCE):
                some = slice(start, start + _PAIRS_AT_ONCE)
                present, places = np.unique(who[some], return_inverse=True)
                own = [people[one] for one in present]
                given = torch.from_numpy(self._histories(own)), torch.from_numpy(places)
                wanted = torch.from_numpy(items[some])
                if isinstance(scorer, WordScorer):
                    found: Tensor = scorer.chances(given[0])[given[1], wanted]
                else:
                    rows = torch.zeros(len(own), scorer.width)
                    for place, person in enumerate(own):
                        if person.row is not None:
                            rows[place] = torch.from_numpy(person.row)
                    found = scorer(rows[given[1]], wanted, given[0][given[1]])
                scores[some] = found.numpy()
                seen(min(start + _PAIRS_AT_ONCE, len(items)))
        return scores

    def _histories(self, people: Sequence[Person]) -> Indices:
        """Return the last of everybody's history side by side, filled up behind."""
        last = [person.history[-self.history :] for person in people]
        filled = np.full((len(last), max(1, *map(len, last), 1)), NO_ROW, np.int64)
        for place, one in enumerate(last):
            filled[place, : len(one)] = one
        return filled
