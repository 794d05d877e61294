"""What a server plans from the statistics of its catalogue, as ``planning`` does from samples."""

import numpy as np

from sfsl.arrays import Indices
from sfsl.data.catalogue import Catalogue, CatalogueStatistics
from sfsl.errors import ParameterError
from sfsl.privacy import IndexPrivacy
from sfsl.run.fleet import scheme_privacy
from sfsl.run.planning import ROUNDS, planned_dropout
from sfsl.secagg.graph import default_min_contributors
from sfsl.settings.run import RunConfig


def plan_min_contributors(config: RunConfig, catalogue: Catalogue) -> int:
    """The least that keeps rows opened alone below the bound in each of a few cohorts drawn."""
    known = _statistics(catalogue, "round.min_contributors")
    rng, dropout = np.random.default_rng(config.run.seed), planned_dropout(config)
    privacy, clients = scheme_privacy(config), config.round.clients
    return max(
        default_min_contributors(drawn_requesters(known, clients, privacy, rng), dropout=dropout)
        for _ in range(ROUNDS)
    )


def largest_set(catalogue: Catalogue) -> int:
    """The most rows that any client had."""
    return max(1, _statistics(catalogue, "serve.largest_set").rows["most"])


def drawn_requesters(
    known: CatalogueStatistics, clients: int, privacy: IndexPrivacy, rng: np.random.Generator
) -> Indices:
    """How many of a cohort ask for each row of its union, drawn for rows with as many owners as are known.

    A row that follows from others counts as if one row of the union led to it. More would only add to those
    who ask for it, and so make it less likely that a row is opened alone.
    """
    counts = []
    for table in known.owners.values():
        owners = np.repeat(*np.array(table, np.int64).reshape(-1, 2).T)
        if clients <= known.clients:
            here = rng.hypergeometric(owners, known.clients - owners, clients)
        else:
            here = rng.binomial(clients, owners / known.clients)
        here = here[here > 0]
        counts.append(rng.binomial(here, privacy.p5) + rng.binomial(clients - here, privacy.p6))
    return np.concatenate([np.zeros(0, np.int64), *counts])


def _statistics(catalogue: Catalogue, key: str) -> CatalogueStatistics:
    if catalogue.statistics is None:
        raise ParameterError(
            f'{key} = "auto" is computed from the statistics of the catalogue, and this one has none. Write '
            "a number, or make the catalogue from data with samples (sfsl catalogue make)"
        )
    return catalogue.statistics
