"""Rounds of one model against one store, for any carrier: plan, admit, begin, exchange, commit. No I/O.

A carrier brings bytes. In a deployment it does so like this::

    cohort = driver.begin(check_ins, identities, tally, period=...)      # who is invited is noted durably
    frames = cohort.begin()
    while cohort.exchange:
        ... send frames; for each answer: cohort.receive(exchange, client, data) ...
        frames = cohort.close()                                   # masked sets are acknowledged durably first
    record = driver.finish(cohort, aborted=None, seconds=...)     # one commit, and the record of the round

A simulation opens several cohorts of one round (``open``) and adds up what they open.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from sfsl.crypto.secret import Randomness, SystemRandomness
from sfsl.rounds import RoundOutcome, RoundParams, RoundServer, ScoreBins
from sfsl.rounds.plan import RoundRules, plan_round, plan_session
from sfsl.rounds.record import RoundRecord, RoundTally
from sfsl.secagg.messages import Keys
from sfsl.service.cohort import CohortRound, Exposed
from sfsl.service.folder import Journal
from sfsl.service.messages import CheckIn
from sfsl.service.registry import Registry
from sfsl.submodel import Commit, ModelSpec, RowMaps, RowStore


class Driver:
    """Runs rounds as ``rules`` say. ``record`` is given the record of each round once it is committed.

    In a deployment the ``registry`` knows who was invited and whose masked sets came. ``cpu`` counts the
    seconds that the calling thread has computed. Keys, round ids and seeds come from ``randomness``.
    """

    def __init__(
        self,
        rules: RoundRules,
        model: ModelSpec,
        maps: RowMaps,
        store: RowStore,
        *,
        cpu: Callable[[], float],
        largest_set: int = 1,
        registry: Registry | None = None,
        record: Callable[[RoundRecord], None] = lambda record: None,
        randomness: Randomness | None = None,
    ) -> None:
        self.rules, self.model, self.maps, self.store = rules, model, maps, store
        self.randomness = randomness or SystemRandomness()
        self.cpu, self._largest_set, self._registry, self._record = cpu, largest_set, registry, record

    @cached_property
    def journal(self) -> Journal:
        """What is committed with each round of a deployment; a simulation's run keeps its own."""
        return Journal(self.store)

    @property
    def number(self) -> int:
        """The number of the next round."""
        return self.store.round + 1

    def plan(
        self,
        clients: int,
        *,
        largest_set: int | None = None,
        seed: bytes | None = None,
        scores: ScoreBins | None = None,
    ) -> RoundParams:
        """Plan the next round. A server does not know its clients' sets: it plans for the largest allowed."""
        return plan_round(
            self.rules,
            self.model,
            number=self.number,
            clients=clients,
            largest_set=self._largest_set if largest_set is None else largest_set,
            seed=self.randomness.bytes(32) if seed is None else seed,
            scores=scores,
        )

    def open(
        self,
        params: RoundParams,
        keys: Sequence[Keys],
        tally: RoundTally,
        *,
        identities: Mapping[str, bytes] | None = None,
        threshold: int | None = None,
        alone: bool = True,
        exposed: Exposed = lambda round_id, clients: None,
    ) -> CohortRound:
        """Open a round for the cohort with these keys. Not ``alone``, it is one of several cohorts."""
        session = plan_session(
            self.rules,
            params,
            clients=len(keys),
            round_id=self.randomness.bytes(16),
            threshold=threshold,
        )
        server = RoundServer(session, params, keys, self.store, self.maps, identities, alone=alone)
        return CohortRound(server, session, params, tally, cpu=self.cpu, exposed=exposed)

    def begin(
        self,
        check_ins: Mapping[str, CheckIn],
        identities: Mapping[str, bytes] | None,
        tally: RoundTally,
        *,
        period: int | None,
    ) -> CohortRound:
        """Begin a deployment's round, and note durably who is invited, before any invitation leaves."""
        registry, tally.cohort = self._registry, len(check_ins)
        cohort = self.open(
            self.plan(len(check_ins), scores=self.journal.kept.scores),
            [one.keys for one in check_ins.values()],
            tally,
            identities=identities,
            exposed=registry.acknowledge if registry is not None else lambda round_id, clients: None,
        )
        if registry is not None and period is not None:
            registry.invite(period, cohort.round_id, check_ins)
        return cohort

    def finish(
        self, cohort: CohortRound | None, tally: RoundTally, *, aborted: str | None, seconds: float
    ) -> RoundRecord:
        """Commit a deployment's round, which took so long; one that was aborted only counts.

        A round is never repeated. What only clients know (losses, rows unknown to the model, seconds of
        theirs) is not in its record.
        """
        number, outcome, scores = self.number, None, None
        if cohort is not None and aborted is None:
            outcome = cohort.server.outcome
            scores = next_bins(cohort.params, outcome)
            tally.samples, tally.loss = outcome.applied.samples, math.nan
        elif cohort is not None:
            cohort.expose()  # cut short, but the masked sets that came are here
        record = tally.record(number, outcome, aborted=aborted, seconds=seconds)
        self.journal.commit(outcome.applied.commit if outcome else Commit(number), record, scores)
        self._record(record)
        return record


def next_bins(params: RoundParams, outcome: RoundOutcome | None) -> ScoreBins | None:
    """Return the bins of the next round's scores, where this one's say anything about them."""
    if outcome is None or outcome.scores is None or params.scores is None:
        return None
    return params.scores.after(*outcome.scores)
