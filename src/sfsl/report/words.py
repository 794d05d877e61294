"""What runs come to in plain words: what was trained, how well, what it cost, what it protects."""

from typing import Any

from sfsl.report.runs import Run

_MODELS = {
    "din": "a deep interest network (DIN)",
    "dien": "a deep interest evolution network (DIEN)",
    "bst": "a behaviour sequence transformer (BST)",
    "logistic": "a logistic regression",
    "lstm": "an LSTM that guesses the next word",
}
_HIDES = {
    "fl": "Nothing is hidden: with scheme fl the server sees every client's whole update.",
    "fsl": "Nothing is hidden: with scheme fsl the server sees a client's rows and its update.",
    "centralized": "Nothing is hidden: all samples lie in one place.",
}


def opening(run: Run, one: dict[str, Any]) -> dict[str, str]:
    """Return four sentences or so on a run, by what they are about."""
    return {
        "Trained": _trained(run, one),
        "Quality": _quality(run, one),
        "Cost": _cost(run, one),
        "Protection": _protection(run, one),
    }


def size(count: float) -> str:
    """Write a number of bytes for people."""
    for unit, bytes_ in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= bytes_:
            scaled = count / bytes_
            return f"{scaled:,.0f} {unit}" if scaled >= 100 else f"{scaled:.3g} {unit}"
    return f"{count:.0f} bytes"


def duration(seconds: float) -> str:
    if seconds < 0.1:
        return f"{1000 * seconds:.2g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _trained(run: Run, one: dict[str, Any]) -> str:
    kind = str(run.setting("model", "kind") or "din")
    source = run.setting("data", "source") or "synthetic"
    model = "a model of its own" if source == "python" else _MODELS.get(kind, kind)
    path = str(run.setting("data", "path") or "").rpartition("/")[2]
    world = run.setting("data", "world")
    data = f"simulated clicks (world “{world}”)" if world else "simulated clicks"
    if source != "synthetic":
        data = "data handed over in Python" if path.startswith("<") else path or str(source)
    rounds = f"{one['rounds']:,} round{'' if one['rounds'] == 1 else 's'}"
    if not run.asked:
        said = f"{model[0].upper()}{model[1:]} on {data}, in one place, in {rounds}"
    else:
        fleet = run.summary.get("clients")
        of = f" of {fleet:,}" if isinstance(fleet, int) else ""
        each = f"{one['clients_per_round']:,}{of} clients"
        said = f"{model[0].upper()}{model[1:]} on {data}: {rounds}, each with {each}"
    if run.aborted:
        said += f"; {run.aborted:,} of them {'was' if run.aborted == 1 else 'were'} aborted"
    wanted = run.summary.get("rounds_planned")
    if not run.summary:
        said += "; it has not ended yet"
    elif not one["complete"] and isinstance(wanted, int):
        said += f"; {wanted:,} were planned"
    return f"{said}."


def _quality(run: Run, one: dict[str, Any]) -> str:
    if run.verdict:
        return run.verdict
    if one["auc"] is not None:
        return f"The {one['which']} model, of round {one['round']:,}, reaches AUC {one['auc']:.4f}."
    if one["auc_secure"] is not None:
        return f"Samples that cohorts held out give AUC {one['auc_secure']:.4f}; there was no test set."
    return "The model was not evaluated."


def _cost(run: Run, one: dict[str, Any]) -> str:
    took = ""
    if each := one["wall_seconds"]:
        took = f"a round took {duration(each)} on this machine, {duration(each * len(run.done))} in all"
    if not run.asked or not one["bytes"]:
        return f"{took[:1].upper()}{took[1:]}." if took else "No round came to its end."
    up, down = (size(sum(one[name].values())) for name in ("bytes_up", "bytes_down"))
    sends, gets, computes = ("would send", "receive", "") if run.predicted else ("sent", "received", "")
    if seconds := sum(one["client_seconds"].values()):
        computes = f", and computed {duration(seconds)} besides training"
    said = f"A client {sends} {up} and {gets} {down} in a round{computes}"
    if one["full_model_bytes"]:
        said += f" (the full model: {size(one['full_model_bytes'])})"
    if run.predicted:
        said += "; that is what the plan predicts for masked sums, since plain ones were not measured"
    return f"{said}; {took}." if took else f"{said}."


def _protection(run: Run, one: dict[str, Any]) -> str:
    if run.sums == "none":
        return _HIDES.get(run.scheme, "Nothing is hidden.")
    said = _hot(one["hot_privacy"]) if run.scheme == "hot" else _masked(run, one["privacy"])
    if run.sums == "plain":
        return (
            "PLAIN SUMS: this simulation hid nothing. Masked sums give the same model, and then: "
            f"{said[0].lower()}{said[1:]}"
        )
    return said


def _masked(run: Run, privacy: dict[str, Any] | None) -> str:
    if not privacy:
        return "The server sees sums under masks only; what that is worth is summed up when the run ends."
    most = privacy.get("exposures_at_most")
    in_them = f" (a client was in {most:,} at most)" if isinstance(most, int) else ""
    not_covered = f"Not covered: what the exact sums of each round reveal{in_them}."
    if run.scheme == "sfl":
        return f"The server sees no client's update, only sums of whole models under masks. {not_covered}"
    least = privacy.get("min_contributors") or 1
    sums = "the union of a cohort's rows, and sums under masks"
    said = f"The server sees no client's update by itself, but {sums}"
    said += f" of rows with {least:,} contributors or more" if least > 1 else ""
    epsilon, preset = privacy.get("epsilon"), privacy.get("preset")
    after = "over several rounds" if epsilon == 0 else "in one round"
    if epsilon == 0:
        asked = f"every client asks for the whole union ({preset}), so its requests tell nothing (ε = 0)"
    elif epsilon is None:
        asked = f"requests show which rows of the union a client has ({preset}, ε = ∞)"
    else:
        ever = privacy.get("epsilon_infinity")
        bound = "" if ever is None else f", {ever:.3g} for any number of rounds"
        asked = f"requests are randomized ({preset}): ε = {epsilon:.3g} for one row so far{bound}"
    return (
        f"{said}; {asked}. NOT covered: the unions and the exact sums{in_them}, which name the owners of "
        f"most rows that one client alone trained, {after} (docs/privacy.md); the scheme hot is made "
        "against that."
    )


def _hot(spent: dict[str, Any] | None) -> str:
    if not spent:
        return "Everything that leaves a client is under noise; how much is summed up when the run ends."
    epsilon, allowed = spent.get("epsilon"), spent.get("epsilon_allowed")
    if epsilon is None:
        return (
            "The server sees sums under masks only, but NO NOISE was added (ε = ∞): exact sums can betray "
            "their owners."
        )
    of = "" if allowed is None else f" of {allowed:.3g} allowed"
    return (
        "Everything that left a client, over all rounds, is under user-level differential privacy: "
        f"ε = {epsilon:.3g}{of} at δ = {spent.get('delta', 0):g}, against a curious server and up to "
        f"{spent.get('corruption', 0):.0%} of a cohort that collude with it. Not covered: that a client took "
        "part, and when."
    )
