"""Runs side by side, in figures: what the page, the terminal and the JSON output all show."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from sfsl.report.runs import EXCHANGES, Run
from sfsl.report.words import duration, size

_MIB = 2**20
_OF_A_MODEL = ("log_loss", "ndcg", "recall", "auc_valid", "log_loss_valid")


def figures(run: Run) -> dict[str, Any]:
    """Sum up one run in plain values; None stands for what it does not have."""
    auc, secure = run.curve("auc"), run.curve("auc_secure")
    best = max(auc, key=lambda point: point[1]) if auc else None
    up, down = run.traffic("bytes_up"), run.traffic("bytes_down")
    privacy = run.summary.get("privacy") or {}
    full = run.summary.get("full_model", {}) if run.asked else {}
    done, judged = run.done, run.judged
    return {
        "name": run.name,
        "scheme": run.scheme,
        "sums": run.sums,
        "complete": run.summary.get("complete"),
        "rounds": len(run.lines),
        "aborted": run.aborted,
        "clients_per_round": run.lines[-1].cohort or None,
        "asked": run.asked,
        "in_the_sum": sum(line.survivors for line in run.lines),
        "dropped": run.dropped,
        "late": run.late,
        "declined": run.declined,
        "diverged": sum(line.diverged for line in run.lines),
        "refused_rows": sum(sum(line.refused.values()) for line in run.lines),
        "round": judged.round,
        "which": "best" if run.best and not run.last else "last",
        "auc": _figure(run, "auc"),
        "auc_best": best[1] if best else None,
        "auc_best_round": best[0] if best else None,
        "auc_secure": secure[-1][1] if secure else None,
        **{name: _figure(run, name) for name in _OF_A_MODEL},
        "baselines": run.summary.get("baselines"),
        "base_log_loss": run.baseline("base_rate", "log_loss"),
        "popularity_auc": run.baseline("popularity", "auc"),
        "popularity_log_loss": run.baseline("popularity", "log_loss"),
        "verdict": run.verdict,
        "bytes_up": up,
        "bytes_down": down,
        "bytes": sum(up.values()) + sum(down.values()),
        "bytes_predicted": run.predicted and bool(up),
        "full_model_bytes": _sum(full.get("bytes_up")) + _sum(full.get("bytes_down")) or None,
        "client_seconds": run.mean("client_seconds"),
        "server_seconds": run.mean("server_seconds"),
        "wall_seconds": fmean(line.wall_seconds for line in done) if done else None,
        "peak_memory_bytes": run.summary.get("costs", {}).get("peak_memory_bytes"),
        "privacy": privacy or None,
        "hot_privacy": run.summary.get("hot_privacy"),
    }


def _figure(run: Run, name: str) -> float | None:
    """Return a figure of the best model where the run is judged by that, or else the last measured."""
    if run.judged is run.best:
        return getattr(run.best, name, None)
    curve = run.curve(name)
    return curve[-1][1] if curve else None


def glance_table(runs: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Set runs side by side: what the models are worth, what a client paid, what it is told of privacy."""
    heads = ["run", "scheme", "AUC", "log loss", "bytes of a client", "time of a round", "ε"]
    rows = []
    for one in runs:
        marked = " (predicted)" if one["bytes_predicted"] else ""
        spent = one["hot_privacy"] or one["privacy"] or {}
        rows.append(
            [
                one["name"],
                one["scheme"],
                _number(one["auc"], ".4f"),
                _number(one["log_loss"], ".4f"),
                f"{size(one['bytes'])}{marked}" if one["bytes"] else "–",
                duration(one["wall_seconds"]) if one["wall_seconds"] else "–",
                "hides nothing" if one["sums"] == "none" else _epsilon(spent, "epsilon", ".3g"),
            ]
        )
    return heads, rows


def learning_table(runs: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    heads = ["run", "scheme", "rounds", "aborted", "AUC", "of round", "highest", "at", "cohorts"]
    rows = [
        [
            one["name"],
            one["scheme"],
            f"{one['rounds']:,}",
            f"{one['aborted']:,}",
            _number(one["auc"], ".4f"),
            f"{one['round']:,}",
            _number(one["auc_best"], ".4f"),
            _number(one["auc_best_round"], ",d"),
            _number(one["auc_secure"], ".4f"),
        ]
        for one in runs
    ]
    return heads, rows


def baseline_table(runs: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Set models beside what needs none; runs without a log loss have no row."""
    heads = ["run", "AUC", "of popularity", "log loss", "of base rate", "of popularity", "NDCG", "recall"]
    keys = ("auc", "popularity_auc", "log_loss", "base_log_loss", "popularity_log_loss", "ndcg", "recall")
    measured = [one for one in runs if one["log_loss"] is not None]
    return heads, [[one["name"], *(_number(one[key], ".4f") for key in keys)] for one in measured]


def client_table(runs: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Tell what became of clients; runs without clients have no row."""
    heads = ["run", "asked", "in the sum", "dropped", "late", "declined"]
    keys = ("asked", "in_the_sum", "dropped", "late", "declined")
    return heads, [[one["name"], *(f"{one[key]:,}" for key in keys)] for one in runs if one["asked"]]


def cost_table(runs: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    heads = ["run", "MiB up", "MiB down", "full model", "client s", "server s", "wall s"]
    rows = [
        [
            one["name"],
            *(
                _measured(_sum(one[key]) / _MIB, ",.3f") + (" (predicted)" if one["bytes_predicted"] else "")
                for key in ("bytes_up", "bytes_down")
            ),
            _number(one["full_model_bytes"] and one["full_model_bytes"] / _MIB, ",.2f"),
            _measured(_sum(one["client_seconds"]), ",.4f"),
            _measured(_sum(one["server_seconds"]), ",.3f"),
            _number(one["wall_seconds"], ",.2f"),
        ]
        for one in runs
    ]
    return heads, rows


def exchange_table(one: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Break down one run; a dash where nothing was sent, and where nothing was measured."""
    heads = ["exchange", "bytes up", "bytes down", "client CPU s", "server CPU s"]
    rows = [
        [
            exchange,
            *(_measured(one[key].get(exchange, 0), ",.0f") for key in ("bytes_up", "bytes_down")),
            *(_number(one[key].get(exchange), ".4f") for key in ("client_seconds", "server_seconds")),
        ]
        for exchange in EXCHANGES
    ]
    return heads, rows


def privacy_table(runs: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Tell what was given away; runs without a summary have no row, unless they hide nothing in any case."""
    heads = ["run", "preset", "p1 to p4", "ε", "ε∞", "exposures", "clients", "least"]
    rows = []
    for one in runs:
        privacy = one["privacy"]
        if one["sums"] == "none":
            rows.append([one["name"], "hides nothing", *["–"] * (len(heads) - 2)])
        elif privacy:
            chances = ", ".join(_number(privacy.get(name), "g") for name in ("p1", "p2", "p3", "p4"))
            rows.append(
                [
                    one["name"],
                    str(privacy.get("preset", "–")),
                    chances,
                    _epsilon(privacy, "epsilon"),
                    _epsilon(privacy, "epsilon_infinity"),
                    _number(privacy.get("exposures_at_most"), ",d"),
                    _number(privacy.get("clients_exposed"), ",d"),
                    _number(privacy.get("min_contributors"), ",d"),
                ]
            )
    return heads, rows


def hot_privacy_table(runs: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Tell what clients of rounds over hot rows have spent, of all that they may."""
    heads = ["run", "ε in all", "of", "at δ", "rounds at most", "clients", "colluding", "hot rows"]
    rows = []
    for one in runs:
        if spent := one["hot_privacy"]:
            hot = spent.get("hot_rows") or {}
            rows.append(
                [
                    one["name"],
                    _epsilon(spent, "epsilon"),
                    _epsilon(spent, "epsilon_allowed"),
                    _number(spent.get("delta"), "g"),
                    _number(spent.get("rounds_at_most"), ",d"),
                    _number(spent.get("clients_exposed"), ",d"),
                    _number(spent.get("corruption"), ".0%"),
                    ", ".join(f"{count:,} of {name}" for name, count in hot.items()) or "–",
                ]
            )
    return heads, rows


def without_privacy(runs: Sequence[dict[str, Any]]) -> str:
    """Return a sentence about runs whose privacy is not known yet; empty where there are none."""
    names = [
        one["name"] for one in runs if one["sums"] != "none" and not (one["privacy"] or one["hot_privacy"])
    ]
    if not names:
        return ""
    who = "No run has a summary" if len(names) == len(runs) else f"No summary of {', '.join(names)}"
    return f"{who} yet; privacy is summed up when a run ends."


def _epsilon(privacy: dict[str, Any], key: str, form: str = ".3f") -> str:
    """A summary writes infinity as null."""
    return "∞" if key in privacy and privacy[key] is None else _number(privacy.get(key), form)


def _measured(value: float, form: str) -> str:
    """Write a dash for zero: without the protocol there is nothing to measure."""
    return _number(value or None, form)


def _number(value: object, form: str) -> str:
    """Write a dash for what was not measured; a summary that holds something odd is shown as it is."""
    if value is None:
        return "–"
    try:
        return format(value, form)
    except (TypeError, ValueError):
        return str(value)


def _sum(by_exchange: object) -> float:
    return float(sum(by_exchange.values())) if isinstance(by_exchange, dict) else 0.0
