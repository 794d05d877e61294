"""Figure "accuracies and convergencies of global model": AUC over rounds, scheme by scheme."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from sfsl.errors import InputError
from sfsl.installed import install_command
from sfsl_research.reproduce import paper
from sfsl_research.reproduce.drawing import COLORS, blank, diamonds, finish
from sfsl_research.reproduce.target import Job, Scaled, Story, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# "ours": cpp2 with this project's averaging; the others have the paper's.
SERIES = ("centralized", "cpp1", "cpp2", "cpp3", "cpp4", "cpp5", "fl", "ours")
RUNS = "fig-auc-runs"


@dataclass(frozen=True)
class Curve:
    scheme: str
    rounds: Sequence[int]
    auc: Sequence[float]


class Row(Scaled, frozen=True, kw_only=True):
    """The paper's best AUC stands in the row of ours."""

    scheme: str
    round: int
    auc: float
    best: bool
    paper_auc: float | None = None
    paper_round: int | None = None


def curves(job: Job) -> list[Curve]:
    """All on one device, on the same cohorts, as far as the time given allows; the next call goes on.

    Whichever are trained together have a folder. The figure has the curves of all folders, also of such as
    were made elsewhere and brought here: with no time given it is only drawn.
    """
    start = time.monotonic()
    try:
        import torch

        from sfsl_research.experiments.experiment import read_curves
        from sfsl_research.experiments.paper import open_paper_experiment, paper_arms
    except ImportError:
        raise InputError(
            "fig-auc trains models and needs torch and lmdb; install them with: "
            f"{install_command('train,store')}, or choose other targets"
        ) from None
    device, gpu = _device(job)
    if job.scale.name == "paper" and job.device == "auto" and not gpu and job.stop_after > 0:
        raise InputError(
            "fig-auc at the paper's scale is 40,000 rounds of 100 clients: about 40 minutes on an H200, and "
            "torch sees no GPU here. On a CPU it takes days: --device cpu, with --stop-after for "
            "stretches; or --scale small"
        )
    learning, runs, name = job.scale.learning, job.out / RUNS, f"{job.scale.name}-{job.seed}"
    arms = paper_arms(job.seed, clients=learning.clients, users=learning.users, scale=learning.world)
    if unknown := set(job.only) - arms.keys():
        raise InputError(f"--only {', '.join(sorted(unknown))}: the curves are {', '.join(arms)}")
    if job.stop_after > 0:
        with open_paper_experiment(
            runs / "-".join([name, *sorted(job.only)]),
            {arm: config for arm, config in arms.items() if not job.only or arm in job.only},
            runs / f"data-{name}",
            device=torch.device(device),
            compiled=device == "cuda",
            said=lambda text: job.progress(text, 0, learning.rounds),
        ) as experiment:
            job.progress(f"from round {experiment.round}", experiment.round, learning.rounds)
            experiment.run(
                learning.rounds,
                every=learning.every,
                stop_after=job.stop_after - (time.monotonic() - start),
                seen=lambda one: job.progress(_said(one.auc), one.round - 1, learning.rounds),
            )
    found: dict[str, list[tuple[int, float]]] = {}
    for part in (runs / name, *sorted(runs.glob(f"{name}-*"))):
        own: dict[str, list[tuple[int, float]]] = {}
        for arm, at, auc, _ in read_curves(part):
            own.setdefault(arm, []).append((at, auc))
        for arm, line in own.items():
            if arm not in found or line[-1][0] > found[arm][-1][0]:  # of several, the one that goes furthest
                found[arm] = line
    if not found:
        raise InputError(f"there is no AUC in {runs} yet; give it more time with --stop-after")
    return [Curve(scheme, *zip(*found[scheme], strict=True)) for scheme in SERIES if scheme in found]


def device_named(job: Job) -> str:
    """The GPU that trains, if one does."""
    return _device(job)[1]


def _device(job: Job) -> tuple[str, str]:
    """As torch calls it, and the name of a GPU."""
    import torch

    gpu = torch.cuda.is_available()
    if job.device not in ("auto", "cpu", "cuda") or (job.device == "cuda" and not gpu):
        raise InputError(f"--device {job.device!r}: there is cpu" + ", and cuda" * gpu)
    return ("cuda", torch.cuda.get_device_name()) if gpu and job.device != "cpu" else ("cpu", "")


def _said(auc: Mapping[str, float]) -> str:
    return ", ".join(f"{arm} {value:.4f}" for arm, value in auc.items())


def measure(job: Job) -> list[Row]:
    rows = []
    for curve in curves(job):
        best = max(range(len(curve.auc)), key=lambda place: (isfinite(curve.auc[place]), curve.auc[place]))
        quoted = paper.AUC.get(curve.scheme)
        for place, (at, auc) in enumerate(zip(curve.rounds, curve.auc, strict=True)):
            there = quoted if place == best else None
            rows.append(
                Row(
                    scheme=curve.scheme,
                    round=at,
                    auc=auc,
                    best=place == best,
                    paper_auc=there.auc if there else None,
                    paper_round=there.round if there else None,
                    scale=job.scale.name,
                    seed=job.seed,
                )
            )
    return rows


def draw(rows: Sequence[Row]) -> "Figure":
    figure, (panel,) = blank(1)
    last = max(row.round for row in rows)
    for scheme in SERIES:
        line = [(row.round, row.auc) for row in rows if row.scheme == scheme]
        if line:
            # cpp1 and cpp5 give one model: the second must not hide the first.
            style = "--" if scheme == "cpp5" else "-"
            label = paper.LABELS[scheme] if not scheme.startswith("cpp") else f"SFSL, {paper.LABELS[scheme]}"
            panel.plot(*zip(*line, strict=True), style, color=COLORS[scheme], lw=1.6, label=label)
    marked = {scheme: one for scheme, one in paper.AUC.items() if one.round and one.round <= last}
    diamonds(panel, [(one.round or 0, one.auc) for one in marked.values()])
    for scheme, one in paper.AUC.items():
        panel.axhline(one.auc, color=COLORS[scheme], lw=0.9, ls=":", alpha=0.9)
        at = "" if one.round is None else f"\nround {one.round:,}"
        # Beside the panel: inside, curves would cross the words.
        panel.annotate(
            f"paper {one.auc}{at}", (1, one.auc), (5, 0), fontsize="x-small", color=COLORS[scheme],
            xycoords=("axes fraction", "data"), textcoords="offset points", ha="left", va="center",
        )  # fmt: skip
    panel.set(
        xlabel="communication round", ylabel="AUC", title="Accuracy and convergence of the global model"
    )
    finish(panel)
    return figure


def tell(rows: Sequence[Row]) -> Story:
    best = {row.scheme: row for row in rows if row.best}
    ends = {scheme: [row for row in rows if row.scheme == scheme][-1] for scheme in best}
    table = [
        [
            paper.LABELS[scheme],
            number(row.auc, 4),
            f"{row.round:,}",
            number(ends[scheme].auc, 4),
            number(row.paper_auc, 3),
            "–" if row.paper_round is None else f"{row.paper_round:,}",
        ]
        for scheme, row in best.items()
    ]
    order = sorted(best, key=lambda scheme: -best[scheme].auc)
    small = rows[0].scale != "paper"
    world = "a smaller world" if small else "the paper's number of clients and items"
    why = (
        " In a small world a pass over all samples is a few rounds, which centralized training soon knows by "
        "heart. So few rounds do not show how FL ends: it begins slowly and rises later."
        if small
        else ""
    )
    return Story(
        paper="DIN on 30 days of Taobao clicks, 100 clients in each of 5,000 rounds: the best AUC of "
        "centralized training, of submodel learning with CPP2 and CPP4, and of full-model federated learning "
        "(FL), which diverges. CPP1 and CPP5 have the same curve.",
        ours=f"The same model on synthetic clicks with the paper's heterogeneity, in {world}, one seed, "
        f"{_lengths(ends)}. Rows move by averages over samples as in the paper's Algorithm 1, except in the "
        "last curve, which has owner weights with a floor; centralized training has Adam at 0.001 in batches "
        "of 256. SFSL and FL have the paper's batch size, rate and decay. The best AUC is the best on the "
        "test set, as in the paper. Sums are plain, of quantized updates.",
        differs=[
            "Best first: "
            + ", ".join(f"{paper.LABELS[one]} {best[one].auc:.4f}" for one in order)
            + ". The paper has centralized, CPP2, CPP4, FL in this order.",
            *_gaps(best, rows),
            "How far the last AUC is below the best: "
            + ", ".join(
                f"{paper.LABELS[one]} {best[one].auc - ends[one].auc:.3f}"
                for one in ("centralized", "cpp2", "cpp4", "fl")
                if one in best
            )
            + f".{why}",
            "AUCs are not comparable by their size: Taobao's data is not public, and the best that anybody "
            "could do on synthetic clicks is another number. What can be compared is the order, the gaps and "
            "whether a curve holds.",
        ],
        heads=("", "best AUC", "at round", "last", "paper, best", "at round"),
        table=table,
    )


def _lengths(ends: Mapping[str, Row]) -> str:
    """How many rounds, and of whom fewer than of the others."""
    most = max(row.round for row in ends.values())
    fewer = [f"{paper.LABELS[one]} {row.round:,}" for one, row in ends.items() if row.round < most]
    return f"{most:,} rounds" + (f" ({', '.join(fewer)} so far)" if fewer else "")


def _gaps(best: Mapping[str, Row], rows: Sequence[Row]) -> list[str]:
    """Of those curves that are there."""
    said = []
    for one, other, printed in (("centralized", "cpp2", 0.026), ("cpp2", "fl", 0.072)):
        if one in best and other in best:
            gap = best[one].auc - best[other].auc
            where = "below" if gap > 0 else "above"
            labels = paper.LABELS[other], paper.LABELS[one]
            said.append(f"{labels[0]} is {abs(gap):.3f} {where} {labels[1]} (paper: {printed} below).")
    first, fifth = ({row.round: row.auc for row in rows if row.scheme == one} for one in ("cpp1", "cpp5"))
    if both := first.keys() & fifth.keys():
        apart = max(abs(first[at] - fifth[at]) for at in both)
        said.append(f"CPP1 and CPP5 differ by {apart:.4f} at most.")
    return [" ".join(said)] if said else []
