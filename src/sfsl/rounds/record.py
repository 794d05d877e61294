"""What is written down about a round. Other fields in a file are of another version, and left alone."""

from typing import Annotated

import msgspec
from msgspec import Meta

Share = Annotated[float, Meta(ge=0, le=1)]
Number = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]


class RoundLine(msgspec.Struct, frozen=True):
    """What one round did and cost. Bytes and client seconds are per client that answered, by exchange.

    ``late``: messages that came when their phase was over. ``declined``: clients by why they took no part;
    a server on a network knows only of those that said so ("Decline"). ``auc`` is that of the central test
    set after the round, where it was evaluated; ``auc_secure`` that of the cohort's own held-out samples
    before it, from securely summed histograms, and at most ``auc_secure_error`` from that of the scores
    themselves; None where that is a lot, as in the first round, whose bins are too wide.
    ``unknown_rows``: rows that clients' data names and the model does not have. ``opened``: rows with at
    least one contributor. ``training_seconds`` are those of all places that train, ``wall_seconds`` those of
    this process; ``exchange_seconds``, on a network: from when an exchange's messages are there until it is
    closed.
    ``cohorts_aborted``: of a round of several cohorts, those that added nothing. ``workers_lost``: of a
    cluster, each with the clients it had.

    >>> import sfsl
    >>> def show(line: sfsl.RoundLine):
    ...     print(line.round, line.aborted, line.survivors)
    >>> run = sfsl.train(rounds=1, clients=4, on_round=show, settings={
    ...     "data.users": 12, "data.scale": 0.03, "model.kind": "logistic", "round.min_contributors": 1})
    1 None 4
    """

    round: Annotated[int, Meta(ge=1)]
    aborted: str | None
    cohort: Count
    survivors: Count
    dropped: dict[str, Count]
    late: Count
    declined: dict[str, Count]
    diverged: Count
    samples: Count
    unknown_rows: Count
    loss: float | None
    auc: Share | None
    auc_secure: Share | None
    auc_secure_error: Share | None
    union: dict[str, Count]
    opened: dict[str, Count]
    moved: dict[str, Count]
    refused: dict[str, Count]
    bytes_up: dict[str, Number]
    bytes_down: dict[str, Number]
    client_seconds: dict[str, Number]
    server_seconds: dict[str, Number]
    training_seconds: Number
    wall_seconds: Number
    exchange_seconds: dict[str, Number] = {}
    cohorts_aborted: Count = 0
    workers_lost: Count = 0

    def encode(self) -> bytes:
        """JSON; what is not a number is null there."""
        return msgspec.json.encode(self)
