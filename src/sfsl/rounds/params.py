"""Public parameters of a round, and what a client insists on (spec round 3)."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from sfsl.codec import Checked
from sfsl.crypto.kdf import digest
from sfsl.errors import ParameterError, Refused
from sfsl.rounds.score_bins import ScoreBins
from sfsl.secagg.params import Layout, Policy, SumParams, TableShape
from sfsl.submodel import ModelSpec, RowSet, UpdateParams
from sfsl.union.params import UnionParams

UPDATE_LABEL = "update"


class RoundParams(Checked, frozen=True):
    """What a round is about. ``training`` holds hyperparameters for the clients, by name.

    ``precision`` is that of downloaded rows; the dense part always comes whole. ``scores`` are the
    bins of the two score histograms of the secure evaluation; None leaves it out.
    """

    number: Annotated[int, Meta(ge=1)]
    model: ModelSpec
    union: UnionParams
    update: UpdateParams
    min_contributors: Annotated[int, Meta(ge=1, le=65_535)]
    training: dict[Annotated[str, Meta(max_length=64)], float]
    precision: Literal["float32", "float16"] = "float32"
    scores: ScoreBins | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.training) > 64:
            raise ParameterError("at most 64 hyperparameters")

    @property
    def bins(self) -> int:
        """Of each of the two histograms."""
        return 0 if self.scores is None else self.scores.bins

    def sums(self) -> tuple[SumParams, SumParams]:
        """The two sums of the round's session: the union, and the update, whose layout is known later."""
        update = SumParams(
            label=UPDATE_LABEL,
            ring=self.update.rows.ring,
            min_contributors=self.min_contributors,
            layout=None,
        )
        return self.union.sum_params(), update

    def layout(self, unions: dict[str, RowSet]) -> Layout:
        """What is summed: the dense part and its weight, the histograms, and per table rows and weights."""
        return Layout(
            dense=self.model.dense_words + 2 * self.bins,
            tables=tuple(
                TableShape(rows=len(unions[table.name]), width=table.words) for table in self.model.summed
            ),
        )

    def context(self) -> bytes:
        """Everything a client was told about the round; bound into the masks of both sums."""
        return digest("round", msgspec.msgpack.encode(self))


class RoundPolicy(Checked, frozen=True):
    """What a client insists on beyond the session's policy. It declines a round that does not fit."""

    session: Policy
    max_clip: Annotated[float, Meta(gt=0)]
    max_rows: Annotated[int, Meta(ge=1)]

    def require(self, params: RoundParams, own: ModelSpec) -> None:
        if params.model != own:
            raise Refused("the round is for another model than this client has")
        if max(params.update.rows.clip, params.update.dense.clip) > self.max_clip:
            raise Refused(f"updates clipped at more than {self.max_clip}, which this client allows")
