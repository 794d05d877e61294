"""What a target is: something of the paper that is measured into rows, drawn from them and told from them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from sfsl_research.reproduce.scales import Scale

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# What is being done, how many steps are done, and of how many.
Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Job:
    """``device``, ``stop_after`` (seconds) and ``only`` (some curves) are for learning curves, which at the
    paper's scale take a GPU the better part of an hour and may be made in parts."""

    out: Path
    scale: Scale
    seed: int
    progress: Report
    device: str = "auto"
    stop_after: float = math.inf
    only: tuple[str, ...] = ()


@dataclass(frozen=True)
class Story:
    """``paper``: what it did and found; ``ours``: what was measured here and how; ``differs``: where the two
    part, and why. The table has a head and text cells."""

    paper: str
    ours: str
    differs: Sequence[str]
    heads: Sequence[str]
    table: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Target:
    """``rows`` is the struct of its CSV. ``takes``: expected time by scale, on two cores. ``repeated``: each
    setting is run as often as the scale says. ``device``: where it was measured, if not on the CPU."""

    name: str
    title: str
    about: str
    takes: dict[str, str]
    rows: type[Any]
    measure: Callable[[Job], list[Any]]
    draw: "Callable[[Sequence[Any]], Figure]"
    tell: Callable[[Sequence[Any]], Story]
    repeated: bool = False
    device: Callable[[Job], str] = lambda job: ""


class Scaled(msgspec.Struct, frozen=True, kw_only=True):
    """The first two columns of every target's CSV."""

    scale: str
    seed: int


Row = TypeVar("Row", bound=Scaled)


def row_from(kind: type[Row], job: Job, found: object, **more: Any) -> Row:
    """A target's row: the columns that ``found`` has under the same name, and ``more``."""
    same = {name: getattr(found, name) for name in kind.__struct_fields__ if hasattr(found, name)}
    return kind(**(same | {"scale": job.scale.name, "seed": job.seed} | more))


def number(value: float | None, digits: int = 2) -> str:
    """A dash for what was not measured or not printed."""
    return "–" if value is None else f"{value:,.{digits}f}"


def saved(cost: float, against: float) -> float:
    """Percent."""
    return 100 * (1 - cost / against)
