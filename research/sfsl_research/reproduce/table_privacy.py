"""Table "Choices of Probability Parameters (CPPs) and resulting privacy levels"."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from sfsl.arrays import Indices
from sfsl.crypto.secret import Randomness, Secret, SystemRandomness
from sfsl.privacy import PAPER_OWNERS, PRESETS, IndexPrivacy, Perturber, Tables
from sfsl_research.bench.simulated import Answers
from sfsl_research.bench.union import simulated_sets
from sfsl_research.reproduce import paper
from sfsl_research.reproduce.drawing import COLORS, blank, diamonds, finish
from sfsl_research.reproduce.target import Job, Scaled, Story

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHARES = ("p5", "p6", "p7", "p8")
_COUNTED = {"p5": "asked_real", "p6": "asked_other", "p7": "opened_alone", "p8": "opened_zero"}


class Row(Scaled, frozen=True, kw_only=True):
    """Computed by the exact accounting, then counted among real answers: the share of real rows asked for
    (p5), of other rows of the union (p6), of rows that one owner alone asked for (p7), and that clients
    asked for but no owner (p8). Epsilon is infinite at cpp1."""

    scheme: str
    p1: float
    p2: float
    p5: float
    p6: float
    epsilon_one: float
    epsilon_infinity: float
    p7: float
    p8: float
    asked_real: float
    asked_other: float
    opened_alone: float
    opened_zero: float
    paper_p5: float
    paper_p6: float
    paper_epsilon_one: float
    paper_epsilon_infinity: float
    paper_p7: float
    paper_p8: float


def measure(job: Job) -> list[Row]:
    rows, sizes = [], job.scale.sizes
    for place, (scheme, privacy) in enumerate(PRESETS.items()):
        counted = []
        for number in range(job.scale.cohorts):
            job.progress(
                f"{scheme}, cohort {number + 1}",
                place * job.scale.cohorts + number,
                len(PRESETS) * job.scale.cohorts,
            )
            rng = np.random.default_rng([job.seed, number])
            sets = simulated_sets(rng, job.scale.most_clients, sizes.rows, sizes.set_size, sizes.unique)
            counted.append(_count(sets, privacy, SystemRandomness()))
        events = privacy.events(PAPER_OWNERS)
        rows.append(
            Row(
                scheme=scheme,
                p1=privacy.p1,
                p2=privacy.p2,
                p5=privacy.p5,
                p6=privacy.p6,
                epsilon_one=privacy.epsilon_one,
                epsilon_infinity=privacy.epsilon_infinity,
                p7=events.p7,
                p8=events.p8,
                **{name: fmean(one[name] for one in counted) for name in _COUNTED.values()},
                **{f"paper_{name}": float(value) for name, value in paper.PRIVACY[scheme].items()},
                scale=job.scale.name,
                seed=job.seed,
            )
        )
    job.progress("", 1, 1)
    return rows


def _count(sets: Mapping[str, Indices], privacy: IndexPrivacy, randomness: Randomness) -> dict[str, float]:
    """What one cohort of real perturbers asks for, row by row of the union."""
    union = np.unique(np.concatenate([*sets.values()]))
    owners, asked, owners_asked = (np.zeros(len(union), np.int64) for _ in range(3))
    for rows in sets.values():
        own = np.isin(union, rows)
        perturber = Perturber(
            Secret(randomness.bytes(32)), privacy, Tables(shared=("goods",)), {"goods": rows}
        )
        answer = Answers(perturber).answer(b"", {"goods": union}, randomness)["goods"]
        owners += own
        asked += answer
        owners_asked += own & answer
    others = len(sets) * len(union) - owners.sum()
    alone = (asked == 1) & (owners_asked == 1)
    return {
        "asked_real": float(owners_asked.sum() / owners.sum()),
        "asked_other": float((asked - owners_asked).sum() / max(1, others)),
        "opened_alone": float(np.mean(alone / owners)),  # of a given owner, as the paper's formula has it
        "opened_zero": float(np.mean((asked > 0) & (owners_asked == 0))),
    }


def draw(rows: Sequence[Row]) -> "Figure":
    figure, (upper, lower) = blank(2)
    width = 0.84 / len(rows)
    for place, row in enumerate(rows):
        shift = (place - (len(rows) - 1) / 2) * width
        at = [number + shift for number in range(len(_SHARES))]
        heights = [100 * getattr(row, _COUNTED[name]) for name in _SHARES]
        upper.bar(at, heights, width * 0.94, color=COLORS[row.scheme], label=paper.LABELS[row.scheme])
    middle = (len(rows) - 1) / 2
    diamonds(
        upper,
        [
            (number + (place - middle) * width, 100 * getattr(row, f"paper_{name}"))
            for number, name in enumerate(_SHARES)
            for place, row in enumerate(rows)
        ],
    )
    names = ("p5: real rows asked for", "p6: other rows", "p7: Event 1", "p8: Event 2")
    upper.set_xticks(range(len(_SHARES)), names, fontsize="small")
    upper.set(ylabel="%", title="Counted among real answers")
    finite = [row for row in rows if np.isfinite(row.epsilon_infinity)]
    places = range(len(finite))
    for kind, shift, color in (("one", -0.2, "#8fb8de"), ("infinity", 0.2, "#2a5d8f")):
        heights = [getattr(row, f"epsilon_{kind}") for row in finite]
        label = "one round" if kind == "one" else "any number of rounds"
        lower.bar([place + shift for place in places], heights, 0.36, color=color, label=label)
    diamonds(
        lower,
        [
            (place + shift, getattr(row, f"paper_epsilon_{kind}"))
            for place, row in enumerate(finite)
            for kind, shift in (("one", -0.2), ("infinity", 0.2))
        ],
    )
    lower.set_xticks(places, [paper.LABELS[row.scheme] for row in finite])
    lower.set(ylabel="epsilon", title="Epsilon, exact (infinite at CPP1)")
    for panel in (upper, lower):
        finish(panel)
    return figure


def tell(rows: Sequence[Row]) -> Story:
    off = max(
        abs(round(100 * getattr(row, name), 1) - 100 * getattr(row, f"paper_{name}"))
        for row in rows
        for name in _SHARES
    )
    drift = max(abs(getattr(row, _COUNTED[name]) - getattr(row, name)) for row in rows for name in _SHARES)
    return Story(
        paper="Five choices of probability parameters and what follows from them: p5 and p6, the chance that "
        "a real row and any other row of the union is asked for; epsilon of one round and of any number; p7 "
        "and p8, how likely an opened row tells that one client has it, or that some do not.",
        ours="Each number twice: computed by the exact accounting, and counted among the answers of 100 real "
        "perturbers on simulated sets like the paper's (p5 to p8).",
        differs=[
            f"Computed and printed differ by {off:.1f} percentage points at most: it is the paper's table.",
            f"Counted and computed differ by {100 * drift:.2f} points at most: simulated sets, and chance.",
            "p7 is zero at CPP2 to CPP4 to the table's digits, not exactly; and neither number speaks of "
            "several rounds, in which unions tell more (docs/privacy.md).",
        ],
        heads=("", "", "p5, %", "p6, %", "p7, %", "p8, %", "ε₁", "ε∞"),
        table=[
            line
            for row in rows
            for line in (
                _line(row, "computed", _SHARES, ("epsilon_one", "epsilon_infinity")),
                _line(
                    row,
                    "paper",
                    [f"paper_{name}" for name in _SHARES],
                    ("paper_epsilon_one", "paper_epsilon_infinity"),
                ),
                _line(row, "counted", [*_COUNTED.values()], ()),
            )
        ],
    )


def _line(row: Row, source: str, shares: Sequence[str], epsilons: Sequence[str]) -> list[str]:
    """Epsilon cannot be counted."""
    return [
        paper.LABELS[row.scheme],
        source,
        *(f"{100 * getattr(row, name):.1f}" for name in shares),
        *([_epsilon(getattr(row, name)) for name in epsilons] or ["–", "–"]),
    ]


def _epsilon(value: float) -> str:
    return f"{value:.2f}" if np.isfinite(value) else "∞"
