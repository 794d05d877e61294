"""Public parameters of a session, and what a client insists on before it takes part."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Literal

from msgspec import Meta

from sfsl.codec import Checked
from sfsl.errors import ParameterError, Refused

MAX_COMPLETE = 512  # clients on a complete graph; a larger fleet runs several cohorts
MAX_CLIENTS = 65_535
MAX_SUMS = 8

RoundId = Annotated[bytes, Meta(min_length=16, max_length=16)]
Count = Annotated[int, Meta(ge=0, le=2**40)]


class TableShape(Checked, frozen=True):
    """A table of rows, of which each client uploads the ones it asked for."""

    rows: Count
    width: Annotated[int, Meta(ge=1, le=2**24)]


class Layout(Checked, frozen=True):
    """What one summed vector is made of: dense words, then tables in declared order."""

    dense: Count
    tables: Annotated[tuple[TableShape, ...], Meta(max_length=64)] = ()

    @property
    def words(self) -> int:
        return self.dense + sum(table.rows * table.width for table in self.tables)


class SumParams(Checked, frozen=True):
    """One sum of the session. ``layout`` is absent where it is known only when the sum starts."""

    label: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9-]{0,31}\Z")]
    ring: Literal["z32", "z64", "f31"]
    min_contributors: Annotated[int, Meta(ge=1, le=MAX_CLIENTS)]
    layout: Layout | None


class SessionParams(Checked, frozen=True):
    """Everything about a session that its members must agree on (spec 4.1). ``clients`` is the size of the
    roster, ``threshold`` the number of shares that open a secret; ``neighbours`` is None on the complete
    graph and the degree aimed at on a sparse one."""

    round_id: RoundId
    clients: Annotated[int, Meta(ge=2, le=MAX_CLIENTS)]
    threshold: Annotated[int, Meta(ge=2, le=MAX_CLIENTS)]
    neighbours: Annotated[int, Meta(ge=2, le=MAX_CLIENTS)] | None
    active: bool
    sums: Annotated[tuple[SumParams, ...], Meta(min_length=1, max_length=MAX_SUMS)]

    @property
    def first_layout(self) -> Layout:
        """The layout of the first sum, which is always announced."""
        layout = self.sums[0].layout
        assert layout is not None  # noqa: S101 - __post_init__ has seen to it
        return layout

    def __post_init__(self) -> None:
        super().__post_init__()
        labels = [one.label for one in self.sums]
        if len(set(labels)) != len(labels):
            raise ParameterError(f"two sums of one session have the same label: {labels}")
        if self.sums[0].layout is None:
            raise ParameterError("the first sum starts with the session, so its layout must be announced")
        if self.threshold > self.clients:
            raise ParameterError(f"threshold {self.threshold} is more than all {self.clients} clients")
        if self.neighbours is None:
            if self.clients > MAX_COMPLETE:
                raise ParameterError(
                    f"{self.clients} clients on a complete graph; above {MAX_COMPLETE} run several cohorts, "
                    "or one aligned sum on a sparse graph (neighbours=…)"
                )
            if self.active and self.threshold < default_threshold(self.clients):
                raise ParameterError(
                    f"active mode needs a threshold above two thirds: at least "
                    f"{default_threshold(self.clients)} of {self.clients}, not {self.threshold}"
                )
            return
        if self.neighbours % 2 or self.neighbours >= self.clients:
            raise ParameterError(
                f"{self.neighbours} neighbours among {self.clients} clients: "
                "an even number below the cohort size is needed"
            )
        if self.active:
            raise ParameterError("active mode needs the complete graph: a server must not choose neighbours")
        if any(one.layout is None or one.layout.tables for one in self.sums):
            raise ParameterError("misaligned rows need the complete graph (spec 5.2)")


class Policy(Checked, frozen=True):
    """What a client insists on, whatever the server says. It declines a session that does not fit."""

    min_clients: Annotated[int, Meta(ge=2, le=MAX_CLIENTS)]
    min_threshold: Annotated[int, Meta(ge=2, le=MAX_CLIENTS)]
    min_contributors: Annotated[int, Meta(ge=1, le=MAX_CLIENTS)]
    max_words: Count


def default_threshold(group: int) -> int:
    """More than two thirds of those who hold shares of one secret (Bonawitz et al. 2017, §4)."""
    return 2 * group // 3 + 1


def require_policy(params: SessionParams, policy: Policy, sums: int, *, active: bool) -> None:
    """Decline a session that does not fit the client's own terms; they are never negotiated."""
    if params.active != active:
        raise Refused("the server and this client disagree about active mode")
    if len(params.sums) != sums:
        raise Refused(f"keys for {sums} sums, a session of {len(params.sums)}")
    if params.clients < policy.min_clients:
        raise Refused(f"a cohort of {params.clients}, this client wants at least {policy.min_clients}")
    if params.threshold < policy.min_threshold:
        raise Refused(f"a threshold of {params.threshold}, this client wants {policy.min_threshold}")
    for one in params.sums:
        tables = one.layout.tables if one.layout else ()
        dense = one.layout.dense if one.layout else 0
        # Before anything of that size is allocated. Rows are asked for in a bitmap over all of them.
        largest = max(dense, sum(table.rows for table in tables) // 32)
        if largest > policy.max_words:
            raise Refused(f"a sum of {largest} words or more, this client allows {policy.max_words}")
        if (one.layout is None or tables) and one.min_contributors < policy.min_contributors:
            raise Refused(
                f"rows with {one.min_contributors} contributors would be opened, "
                f"this client wants at least {policy.min_contributors}"
            )


def ascending(positions: Sequence[int]) -> bool:
    return all(one < other for one, other in pairwise(positions))
