"""What a round's line says about how it ended."""

import math
from typing import Any

import numpy as np

from sfsl.rounds import RoundOutcome

# Where it could be farther off than this, an AUC from histograms says nothing, and is not shown.
WORST_AUC_ERROR = 0.1


def ending(outcome: RoundOutcome | None) -> dict[str, Any]:
    """The fields of a round's line that follow from its outcome, if it has one."""
    auc, error = secure_auc(outcome)
    return {
        "survivors": len(outcome.survivors) if outcome else 0,
        "auc_secure": auc,
        "auc_secure_error": error,
        "union": {name: len(rows) for name, rows in outcome.union.items()} if outcome else {},
        "opened": {name: int(np.count_nonzero(one)) for name, one in outcome.contributors.items()}
        if outcome
        else {},
        "moved": outcome.applied.moved if outcome else {},
        "refused": refused(outcome),
    }


def secure_auc(outcome: RoundOutcome | None) -> tuple[float | None, float | None]:
    """The AUC of the cohort's held-out samples, and how far it may be off."""
    if outcome is None or outcome.scores is None:
        return None, None
    from sfsl.training.evaluate import auc_error_bound, auc_from_histograms  # torch, which clients may lack

    auc, error = auc_from_histograms(*outcome.scores), auc_error_bound(*outcome.scores)
    if not math.isfinite(error):
        return None, None
    return (auc if error <= WORST_AUC_ERROR else None), error


def refused(outcome: RoundOutcome | None) -> dict[str, int]:
    """Rows whose sums no honest cohort can make, by table; ``dense``: 1 where the dense part's was one."""
    if outcome is None:
        return {}
    return outcome.applied.refused | ({"dense": 1} if outcome.applied.dense_refused else {})
