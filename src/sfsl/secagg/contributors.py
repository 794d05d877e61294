"""How many clients must ask for a row before anyone uploads it (spec 5.3).

The server sees a row's sum. With one contributor the sum *is* that client's row, and a row with c
requesters becomes such a row when c - 1 of them drop out after asking. So rows with fewer than
``min_contributors`` requesters are left out by everyone. With m, a row still hides each honest
requester if up to m - 2 of the others collude with the server.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sfsl.errors import ParameterError

DEFAULT_DROPOUT = 0.1
DEFAULT_BOUND = 0.05


def opened_alone(requesters: ArrayLike, dropout: float) -> NDArray[np.float64]:
    """Per row with c requesters: the probability that exactly one of them uploads, c (1-d) d^(c-1)."""
    counts = np.asarray(requesters, np.float64)
    if not 0 <= dropout < 1:
        raise ParameterError(f"a dropout of {dropout} is not a fraction below 1")
    if counts.size and counts.min() < 0:
        raise ParameterError("a row cannot have fewer than 0 requesters")
    with np.errstate(divide="ignore"):
        # d^(c-1) is 1 for c = 1 and 0 beyond when nobody drops; rows nobody asked for open nothing.
        alone = counts * (1 - dropout) * np.power(dropout, np.maximum(counts - 1, 0))
    result: NDArray[np.float64] = np.where(counts > 0, alone, 0.0)
    return result


def default_min_contributors(
    requesters: ArrayLike, *, dropout: float = DEFAULT_DROPOUT, bound: float = DEFAULT_BOUND
) -> int:
    """The least m >= 2 for which at most ``bound`` rows are expected to be opened alone.

    ``requesters`` holds the number of requesters of each row, as counted or as planned for.
    """
    if not bound > 0:
        raise ParameterError(f"the bound on rows opened alone must be above 0, not {bound}")
    counts = np.asarray(requesters, np.int64).ravel()
    alone = opened_alone(counts, dropout)
    if counts.size == 0:
        return 2
    by_count = np.bincount(counts, weights=alone)
    # expected[m]: rows opened alone if rows with fewer than m requesters are left out
    expected = np.append(np.cumsum(by_count[::-1])[::-1], 0.0)
    enough = np.flatnonzero(expected <= bound)
    return max(2, int(enough[0]))
