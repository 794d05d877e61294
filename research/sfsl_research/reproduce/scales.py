"""How much is measured. Costs are always those of the paper's model and clients: ``small`` has fewer points
and one run of each, ``paper`` all of them. Learning curves are of a smaller world in ``small``."""

from dataclasses import dataclass, field, replace

from sfsl.errors import InputError
from sfsl_research.bench.simulated import Sizes

# Rows of the paper's third table, one for each user. A submodel never has more than one of them, and that
# stays on its client; full-model learning moves them all.
USERS = 49_023


@dataclass(frozen=True)
class Learning:
    """The world of the curves, and how long they are. ``world`` scales it; 1 is the paper's."""

    users: int
    world: float
    clients: int
    rounds: int
    every: int


@dataclass(frozen=True)
class Scale:
    """``clients``: sizes of the cohort; the largest is that of dropouts and memory. ``repeats``: runs of a
    setting, with seeds of their own; the median counts. ``cohorts``: drawn to count what answers betray."""

    name: str
    clients: tuple[int, ...]
    dropouts: tuple[float, ...]
    repeats: int
    cohorts: int
    remembered: tuple[str, ...]
    learning: Learning
    sizes: Sizes = field(default_factory=Sizes)
    users: int = USERS

    @property
    def most_clients(self) -> int:
        return max(self.clients)

    def sizes_of(self, scheme: str, clients: int) -> Sizes:
        """Full-model learning sums every row of the three tables, as one table here."""
        sizes = replace(self.sizes, clients=clients)
        if scheme != "sfl":
            return sizes
        return replace(sizes, rows=sizes.rows + self.users + sizes.categories - 1, categories=1)


SCALES = {
    "small": Scale(
        name="small",
        clients=(20, 60, 100),
        dropouts=(0.0, 0.1, 0.2),
        repeats=1,
        cohorts=1,
        remembered=("cpp2", "cpp5", "sfl"),
        learning=Learning(users=600, world=0.1, clients=60, rounds=60, every=5),
    ),
    "paper": Scale(
        name="paper",
        clients=(20, 40, 60, 80, 100),
        dropouts=(0.0, 0.05, 0.1, 0.15, 0.2),
        repeats=3,
        cohorts=10,
        remembered=("cpp1", "cpp2", "cpp3", "cpp4", "cpp5", "sfl"),
        learning=Learning(users=USERS, world=1.0, clients=100, rounds=5000, every=100),
    ),
}


def scale_named(name: str) -> Scale:
    if name not in SCALES:
        raise InputError(f"--scale {name!r}: there are {' and '.join(SCALES)}")
    return SCALES[name]
