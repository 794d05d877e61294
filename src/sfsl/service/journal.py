"""What is committed with a round besides its rows: what the next round needs, and the round's record."""

from dataclasses import replace
from typing import Self

import msgspec

from sfsl.errors import StoreCorrupt
from sfsl.privacy import PeriodSelection
from sfsl.rounds import ScoreBins
from sfsl.rounds.record import RoundRecord
from sfsl.submodel import Commit, RowStore


class Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What survives a crash between two rounds.

    ``line`` is the last round's record, which a crash right after the commit so cannot lose. ``scores`` are
    the bins of the next round's scores, which follow from the last one's; None before there were any. A
    simulation also counts the ``rounds`` each client was invited to, and keeps who had a turn in its
    ``period``.
    """

    rounds: dict[str, int] = {}
    line: bytes = b""
    scores: ScoreBins | None = None
    period: PeriodSelection = PeriodSelection()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        try:
            return msgspec.msgpack.decode(data, type=cls) if data else cls()
        except msgspec.MsgspecError as error:
            raise StoreCorrupt(
                f"what the store keeps between rounds (its selection state) cannot be read: {error}"
            ) from None

    def record(self) -> RoundRecord | None:
        """Return the last round's record, if there is one."""
        try:
            return msgspec.json.decode(self.line, type=RoundRecord) if self.line else None
        except msgspec.MsgspecError as error:
            raise StoreCorrupt(f"the store's record of the last round cannot be read: {error}") from None


class Journal:
    """Commits rounds to a store: rows, what the next round needs and the record, in one transaction."""

    def __init__(self, store: RowStore) -> None:
        self.store = store
        self.kept = Kept.decode(store.selection)

    def commit(
        self, commit: Commit, record: RoundRecord, scores: ScoreBins | None, **changes: object
    ) -> None:
        """Write the round. ``scores`` None leaves the bins as they are; ``changes`` go into ``Kept``."""
        kept = msgspec.structs.replace(
            self.kept, line=record.encode(), scores=scores or self.kept.scores, **changes
        )
        self.store.commit(replace(commit, selection=msgspec.msgpack.encode(kept)))
        self.kept = kept
