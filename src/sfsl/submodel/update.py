"""One client's update in words of the ring, what the sum of all comes to, and how the server steps.

Numbers at rest (rows, dense part, optimizer state) are float32. A step is computed in float64 and rounded
once, when its result is stored.

The order of a client's words, and of the sum (spec submodel 3.3): the dense part, then the tables in
declared order; of each row, and of the dense part, the parameters and then the weight.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self

import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike

from sfsl.arrays import Counts, Reals, Values, whole_numbers
from sfsl.codec import Checked
from sfsl.crypto.ring import Words
from sfsl.crypto.secret import Randomness
from sfsl.errors import InputError, ParameterError
from sfsl.submodel.quantize import Quantization, WeightedSums
from sfsl.submodel.store import Commit, DenseBlock, RowBlock, RowStore
from sfsl.submodel.tables import ModelSpec, RowSet


class Averaging(Checked, frozen=True):
    """A row moves by the sum of weight x delta over max(sum of weights, ``kappa``).

    ``weights``: ``samples``, a client counts as often as its samples touch the row (paper Alg. 1);
    ``owners``, each client that trained the row counts once; ``dataset``, a client counts on every row it
    asked for as often as it has samples, as in federated averaging of a full model. ``kappa`` holds back
    rows that few clients trained: they are the noisy ones, and the ones a single client can poison.
    ``max_move`` bounds the Euclidean length of a row's move in one round.
    """

    weights: Literal["samples", "owners", "dataset"] = "owners"
    kappa: Annotated[float, Meta(ge=1)] = 5
    max_move: Annotated[float, Meta(gt=0)] | None = None

    def require_sound(self) -> None:
        if not math.isfinite(self.kappa) or not math.isfinite(self.max_move or 0):
            raise ParameterError("Averaging: kappa and max_move are finite numbers")

    def row_weights(self, counts: ArrayLike, samples: int) -> Counts:
        """Return what a client says its rows weigh, from how many of its samples touch each, and has."""
        touching = whole_numbers(counts, "counts")
        if self.weights == "dataset":
            return np.full_like(touching, samples)
        return touching if self.weights == "samples" else (touching > 0).astype(np.int64)

    def idle_weight(self, samples: int) -> int:
        """Return what a row weighs that a client asked for and did not train."""
        return samples if self.weights == "dataset" else 0

    def largest_weight(self, max_count: int) -> int:
        return 1 if self.weights == "owners" else max_count

    def moves(self, sums: WeightedSums) -> Reals:
        """Return the move of each row; one whose weights sum to zero does not move."""
        moves = sums.values / np.maximum(sums.weights, self.kappa)[:, None]
        moves[sums.weights == 0] = 0
        return self.limited(moves)

    def limited(self, moves: Reals) -> Reals:
        """Return the moves, those that are too long cut down to ``max_move``."""
        if self.max_move is None:
            return moves
        length = np.linalg.norm(moves, axis=1, keepdims=True)
        cut: Reals = moves * (self.max_move / np.maximum(length, self.max_move))
        return cut


# Algorithm 1 of the paper for rows, and everybody's choice for the dense part, which all clients train.
PAPER = Averaging(weights="samples", kappa=1)

_SLOTS = {"add": 0, "adagrad": 1, "adam": 2, "heat": 1}
# What keeps a quotient from being that of two zeros.
_LEAST = 1e-30
MOST_PULL = 1e6
# Honest rows are hardly ever that far above the median (decision 17).
LOUDEST = 16.0


def evidence(sums: WeightedSums) -> Reals:
    """Return the sums in units of what one owner's move comes to in this round, over all rows with weight.

    In these units n owners that agree make n, and n that do not about the root of n, however large the moves
    of this model, of these clients or at this learning rate are. Of noisy sums the unit is what owners are
    known to have said, and they are shrunk to what is to be believed of them (``row_trust``).
    """
    there, said = sums.weights > 0, sums.said
    square = _usual_square(sums) if said is None else float(said.mean())
    found = sums.values / max(math.sqrt(square), _LEAST)
    found[~there] = 0
    return found * row_trust(sums) if sums.noise else found


def _usual_square(sums: WeightedSums) -> float:
    """Return the mean square of one owner's move. A row counts ``LOUDEST`` times the median row at the most:
    else a liar who shouts in its rows makes everybody's evidence small, and no other row moves."""
    weights = sums.weights[sums.weights > 0]
    squares = np.square(sums.values[sums.weights > 0]).mean(axis=1) / weights
    if not squares.any():
        return 0.0
    usual = np.minimum(squares, LOUDEST * np.median(squares[squares > 0]))
    return float((usual * weights).sum() / max(1.0, float(weights.sum())))


def row_trust(sums: WeightedSums) -> Reals:
    """Return which share of each number of noisy sums is to be believed, after Wiener: the square of what
    these owners say together where they do not agree, over that and the noise's."""
    said = sums.weights[:, None] * (1.0 if sums.said is None else sums.said)
    share: Reals = said / np.maximum(said + sums.noise**2, _LEAST)
    return share


class ServerStep(Checked, frozen=True):
    """How the server moves rows. ``add`` with rate 1 is the paper. ``adagrad`` and ``adam`` are FedAdagrad
    and FedAdam (Reddi et al. 2021, Alg. 2), the move standing for the gradient; their ``tau`` is a share of
    the root mean square of what it is added to, over the row, so that small moves make no smaller steps.

    ``heat`` is for rows: AdaGrad on ``evidence``, to whose squares ``tau`` squared is added from the start. A
    row moves by about rate x n / tau for each of its first few owners, and by rate x 1 at the most: a row
    that one client has does not follow its noise, and a row that many have is not held back. Where it moves,
    it is drawn back to zero as if ``pull`` owners said so for each unit that it has come, times the share
    that this round has of all that was ever said of it, and no more than one owner: what only few say again
    and again is learned by heart, and forgotten.

    Optimizer state is a row's own, kept beside it, and changes only when the row moves: a row that nobody
    trained in a round costs nothing, and keeps its momentum for the round in which somebody does.
    """

    kind: Literal["add", "adagrad", "adam", "heat"]
    rate: Annotated[float, Meta(gt=0, le=1e6)]
    beta1: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Meta(ge=0, lt=1)] = 0.99
    tau: Annotated[float, Meta(gt=0, le=1e6)] = 1e-3
    pull: Annotated[float, Meta(ge=0, le=MOST_PULL)] = 0.0

    def require_sound(self) -> None:
        if self.pull and self.kind != "heat":
            raise ParameterError(f"a step by {self.kind} draws nothing back: pull is for steps by heat")

    @property
    def slots(self) -> int:
        """How many numbers of state each parameter has. They begin at zero."""
        return _SLOTS[self.kind]

    def apply(
        self, values: Values, state: Values, moves: Reals, trust: Reals | float = 1.0
    ) -> tuple[Values, Values]:
        """Return new values [n, width] and new state [n, slots, width] of the rows that moved. ``trust``: the
        share of noisy moves that is to be believed; their size, by which steps are scaled, is all of it."""
        if moves.shape != values.shape or state.shape != (len(values), self.slots, values.shape[1]):
            raise InputError(
                f"rows of shape {values.shape} with state of shape {state.shape} and moves of shape "
                f"{moves.shape}; {self.kind} keeps {self.slots} numbers for each parameter"
            )
        if self.kind == "add":
            return (values + self.rate * trust * moves).astype(np.float32), state.astype(np.float32)
        old = state.astype(np.float64)
        if self.pull:
            moves = moves - self._drawn_back(old[:, 0], moves) * values
        if self.kind in ("adagrad", "heat"):
            first, second = trust * moves, old[:, 0] + moves**2
            new = second[:, None]
        else:
            first = self.beta1 * old[:, 0] + (1 - self.beta1) * trust * moves
            second = self.beta2 * old[:, 1] + (1 - self.beta2) * moves**2
            new = np.stack([first, second], axis=1)
        if self.kind == "heat":
            size = np.sqrt(second + self.tau**2)
        else:
            # A model may have no dense part at all, which has no mean.
            own = np.sqrt(second.sum(axis=1, keepdims=True) / max(1, second.shape[1]))
            size = np.sqrt(second) + np.maximum(self.tau * own, _LEAST)
        return (values + self.rate * first / size).astype(np.float32), new.astype(np.float32)

    def _drawn_back(self, said: Reals, moves: Reals) -> Reals:
        """Return by how many owners each row is drawn back, of which ``said`` sums what there was before."""
        now, before = (one.sum(axis=1, keepdims=True) for one in (moves**2, said))
        return np.asarray(np.minimum(1.0, self.pull * now / np.maximum(now + before, _LEAST)))


# Line 9 of Algorithm 1.
ADDITION = ServerStep(kind="add", rate=1)


class UpdateParams(Checked, frozen=True):
    """Everything about the update that client and server must agree on, and how the server steps."""

    rows: Quantization
    dense: Quantization
    averaging: Averaging = Averaging()
    row_step: ServerStep = ADDITION
    dense_step: ServerStep = ADDITION

    def require_sound(self) -> None:
        if (self.rows.ring, self.rows.cohort) != (self.dense.ring, self.dense.cohort):
            raise ParameterError("rows and dense part are one sum: they have one ring and one cohort")
        if self.averaging.weights == "owners" and self.rows.max_weight != 1:
            raise ParameterError("with owner weights a client weighs 1 on a row: rows.max_weight is 1")
        if self.dense_step.kind == "heat":
            raise ParameterError(
                "a step by heat is for rows, which few clients or many train, not for the dense part"
            )

    def row_moves(self, sums: WeightedSums) -> Reals:
        """Return the moves of rows, as ``row_step`` takes them."""
        return evidence(sums) if self.row_step.kind == "heat" else self.averaging.moves(sums)


@dataclass(frozen=True)
class TrainedRows:
    """What a client trained of one table: the rows, how far each moved, how many samples touch each."""

    rows: RowSet
    deltas: ArrayLike
    counts: ArrayLike


@dataclass(frozen=True)
class UpdateWords:
    """A client's update as words of the ring: [dense + 1], and per table [rows trained, width + 1].

    ``idle`` is the weight of rows that it asked for and did not train; their moves are zero.
    """

    dense: Words
    trained: tuple[Words, ...]
    rows: tuple[RowSet, ...]
    idle: int

    def over(self, asked: Sequence[RowSet]) -> tuple[Words, ...]:
        """Return, per table, words for exactly the rows asked for, which is what a client uploads."""
        tables = []
        for words, own, wanted in zip(self.trained, self.rows, asked, strict=True):
            padded = np.zeros((len(wanted), words.shape[1]), words.dtype)
            padded[:, -1] = self.idle
            padded[wanted.positions_of(own.rows)] = words
            tables.append(padded)
        return tuple(tables)


@dataclass(frozen=True)
class Applied:
    """The next commit, and what it came from, by table: rows that moved, and rows whose sums were refused.

    ``dense_refused``: the dense part's sum is one that no honest cohort can make, so it does not move.
    ``samples``: the weight of the dense part's sum, to which each client adds the samples it trained on, up
    to the largest weight.
    """

    commit: Commit
    moved: dict[str, int]
    refused: dict[str, int]
    dense_refused: bool
    samples: int = 0


def encode_update(
    model: ModelSpec,
    params: UpdateParams,
    *,
    dense: ArrayLike,
    samples: int,
    trained: Mapping[str, TrainedRows],
    randomness: Randomness,
) -> UpdateWords:
    """Encode a client's update in words. ``samples`` is the size of the succinct training set.

    Words of untrained rows have no move, as have those of a client without samples: under masks nobody
    can tell.
    """
    _require_tables(model, trained, "trained rows")
    tables = []
    for table in model.summed:
        own = trained[table.name]
        weights = params.averaging.row_weights(own.counts, samples)
        words = params.rows.encode(own.deltas, weights, randomness)
        if words.shape != (len(own.rows), table.words):
            raise InputError(
                f"table {table.name!r}: {len(own.rows)} rows of width {table.width} were trained, the update "
                f"has shape {words.shape[0]} x {words.shape[1] - 1}"
            )
        tables.append(words)
    dense_words = params.dense.encode_dense(dense, samples, randomness)
    if len(dense_words) != model.dense_words:
        raise InputError(f"a dense part of {len(dense_words) - 1} parameters; the model has {model.dense}")
    rows = tuple(trained[table.name].rows for table in model.summed)
    idle = min(params.averaging.idle_weight(samples), params.rows.max_weight)
    return UpdateWords(dense_words, tuple(tables), rows, idle)


@dataclass(frozen=True)
class ModelSums:
    """Opened sums in numbers: per table over its union, and of the dense part.

    Sums of cohorts that have no client in common add up to that of all of them.
    """

    unions: dict[str, RowSet]
    rows: dict[str, WeightedSums]
    dense: WeightedSums

    def __add__(self, other: Self) -> Self:
        unions = {name: union.with_rows(other.unions[name]) for name, union in self.unions.items()}
        rows = {
            name: self.rows[name].over(self.unions[name], union)
            + other.rows[name].over(other.unions[name], union)
            for name, union in unions.items()
        }
        return type(self)(unions, rows, self.dense + other.dense)


def decode_sums(
    model: ModelSpec,
    params: UpdateParams,
    *,
    unions: Mapping[str, RowSet],
    dense: Words,
    tables: Sequence[Words],
    contributors: Sequence[ArrayLike] | None = None,
) -> ModelSums:
    """Decode opened sums. ``contributors`` has, per table, how many clients are in each row's sum: known, it
    keeps a liar from claiming more weight for a row than its contributors together can have."""
    counts = [None] * len(tables) if contributors is None else contributors
    _require_tables(model, unions, "unions")
    if not len(tables) == len(counts) == len(model.summed):
        raise InputError(f"sums of {len(tables)} tables; {len(model.summed)} tables of this model are summed")
    rows = {}
    for table, words, clients in zip(model.summed, tables, counts, strict=True):
        sums = rows[table.name] = params.rows.decode(words, clients)
        if sums.values.shape != (len(unions[table.name]), table.width):
            raise InputError(
                f"table {table.name!r}: a sum of shape {np.shape(words)} over {len(unions[table.name])} rows "
                f"of width {table.width}"
            )
    return ModelSums(dict(unions), rows, params.dense.decode(dense[None]))


def apply_sums(store: RowStore, params: UpdateParams, sums: ModelSums, *, selection: bytes) -> Applied:
    """Return what sums make of the model: the commit of the next round. The store is only read."""
    blocks = {
        name: _moved_rows(store, params, name, union, sums.rows[name]) for name, union in sums.unions.items()
    }
    return Applied(
        Commit(store.round + 1, blocks, _moved_dense(store, params, sums.dense), selection),
        {name: len(block.rows) for name, block in blocks.items()},
        {name: one.refused for name, one in sums.rows.items()},
        bool(sums.dense.refused),
        int(sums.dense.weights[0]),
    )


def _require_tables(model: ModelSpec, given: Mapping[str, object], what: str) -> None:
    names = {table.name for table in model.summed}
    if given.keys() != names:
        raise InputError(f"{what} are given for {sorted(given)}, the tables that are summed: {sorted(names)}")


def _moved_rows(
    store: RowStore, params: UpdateParams, table: str, union: RowSet, sums: WeightedSums
) -> RowBlock:
    """Move rows. Those that nobody moved are left alone: they are neither read nor stored."""
    trained = (sums.weights > 0) & (sums.values != 0).any(axis=1)
    old = store.read_rows(table, union.at(trained))
    trust: Reals | float = 1.0
    if sums.noise and params.row_step.kind != "heat":  # whose evidence is shrunk already
        trust = row_trust(sums)[trained]
    values, state = params.row_step.apply(old.values, old.state, params.row_moves(sums)[trained], trust)
    if params.row_step.kind == "heat":  # the others step by moves that are limited already
        step = params.averaging.limited((values - old.values).astype(np.float64))
        values = (old.values + step).astype(np.float32)
    return RowBlock(old.rows, values, state)


def _moved_dense(store: RowStore, params: UpdateParams, total: WeightedSums) -> DenseBlock | None:
    if total.weights[0] == 0:
        return None
    old = store.read_dense()
    if total.values.shape != (1, len(old.values)):
        raise InputError(
            f"a dense sum of {total.values.shape[1]} parameters; the model has {len(old.values)}"
        )
    moves = PAPER.moves(total)
    trust = row_trust(total) if total.noise else 1.0
    values, state = params.dense_step.apply(old.values[None], old.state[None], moves, trust)
    return DenseBlock(values[0], state[0])
