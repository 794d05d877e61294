"""Tables and JSON of ``sfsl privacy …``."""

import math
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec

from sfsl.cli.output import console, table
from sfsl.privacy import AttackReport, Audit, Events, IndexPrivacy, Tuned


def print_levels(
    levels: Mapping[str, IndexPrivacy], events: Mapping[str, Events], counts: list[int], cohort: int
) -> None:
    console().print(
        table(
            "Probabilities",
            ("", "p1", "p2", "p3", "p4", "p5", "p6"),
            [
                (
                    name,
                    *(str(Fraction(p).limit_denominator(10_000)) for p in (x.p1, x.p2, x.p3, x.p4)),
                    *(f"{p:.1%}" for p in (x.p5, x.p6)),
                )
                for name, x in levels.items()
            ],
        )
    )
    console().print(
        table(
            f"What they give away, in a cohort of {cohort}",
            ("", "p7", "p8", "ε₁", "ε∞", *(f"ε({count})" for count in counts)),
            [
                (
                    name,
                    *(f"{p:.1%}" for p in (events[name].p7, events[name].p8)),
                    *(f"{e:.2f}" for e in (x.epsilon_one, x.epsilon_infinity)),
                    *(f"{x.epsilon(count):.3f}" for count in counts),
                )
                for name, x in levels.items()
            ],
        )
    )


def print_tuned(best: Tuned, rounds: int | None, full: float) -> None:
    span = "for ever" if rounds is None else f"over {rounds} rounds"
    rows = [(name, f"{getattr(best.privacy, name):.6g}") for name in ("p1", "p2", "p3", "p4", "p5", "p6")]
    rows += [
        (f"epsilon {span}", f"{best.epsilon:.4g}"),
        ("rows asked for per round", f"{best.rows:,.0f}"),
        ("bytes per client and round", f"{best.bytes_per_round:,.0f}"),
        ("… for the whole union", f"{full:,.0f}"),
        ("p7, p8", f"{best.events.p7:.2%}, {best.events.p8:.2%}"),
    ]
    console().print(table("Fewest bytes", ("", ""), rows))
    if rounds is None or rounds > 1:
        console().print(
            "Noise in each round (--flip) never lowers epsilon for its bytes; see docs/privacy.md."
        )


def print_audit(found: Audit) -> None:
    out = console()
    out.print(
        table(
            "Epsilon of the answers",
            ("rounds", "claimed", "at least", "shown by", ""),
            [
                (
                    str(bound.rounds),
                    f"{bound.claimed:.3f}",
                    f"{bound.lower:.3f}",
                    bound.event,
                    "VIOLATED" if bound.violated else "kept",
                )
                for bound in found.bounds
            ],
        )
    )
    out.print(
        table(
            f"Opened rows of one round ({found.single_owner:.1%} with one owner, "
            f"{found.mean_owners:.2f} owners on average)",
            ("", "rows", "happened", "between", "predicted", ""),
            [
                (
                    event.event,
                    f"{event.rows:,}",
                    f"{event.happened:,}",
                    f"{event.lower:.3%} and {event.upper:.3%}",
                    f"{event.predicted:.3%}",
                    "UNEXPECTED" if event.unexpected else "as predicted",
                )
                for event in found.events
            ],
        )
    )
    out.print(
        table(
            "Unions and counts over rounds: (client, row) found by each attack",
            ("countermeasure", "rounds", "unions", "proved", "named", "right"),
            [
                (
                    report.countermeasure,
                    str(report.rounds),
                    _percent(report.intersection.precision),
                    _percent(report.proved.recall),
                    _percent(report.named.recall),
                    _percent(report.named.precision),
                )
                for report in _last(found)
            ],
        )
    )
    out.print(
        "unions: of the rows in all unions of a client, the share that is its own. proved: owners found for "
        "certain. named: with guesses added. right: share of those named that is true."
    )
    for report in _last(found):
        if report.linked is not None:
            out.print(f"Pseudonyms linked to the client's earlier ones: {report.linked:.1%}.")


def _last(found: Audit) -> list[AttackReport]:
    """Each countermeasure after the most rounds; --json and --plot have the others."""
    return list({report.countermeasure: report for report in found.attacks}.values())


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def level_figures(privacy: IndexPrivacy, events: Events, counts: list[int]) -> dict[str, Any]:
    return {
        **msgspec.to_builtins(privacy),
        "p5": privacy.p5,
        "p6": privacy.p6,
        "epsilon_one": plain(privacy.epsilon_one),
        "epsilon_infinity": plain(privacy.epsilon_infinity),
        **msgspec.to_builtins(events),
        "epsilon": {str(count): plain(privacy.epsilon(count)) for count in counts},
    }


def tuned_figures(tuned: Tuned) -> dict[str, Any]:
    privacy = tuned.privacy
    return {
        **msgspec.to_builtins(privacy),
        "p5": privacy.p5,
        "p6": privacy.p6,
        "epsilon": plain(tuned.epsilon),
        "rows": tuned.rows,
        "bytes_per_round": tuned.bytes_per_round,
        **msgspec.to_builtins(tuned.events),
    }


def plain(value: Any) -> Any:
    """JSON has no infinity: it is written as a string."""
    value = msgspec.to_builtins(value)
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return "infinity" if isinstance(value, float) and math.isinf(value) else value


def say_where(plot: Path | None) -> None:
    if plot is not None:
        console().print(f"Plot: {plot}")
