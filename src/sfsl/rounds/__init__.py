"""The whole round as two state machines without I/O: union, perturbation, download, upload (spec round)."""

from sfsl.rounds.client import Download, RoundClient, Trained, histogram_words
from sfsl.rounds.params import IndexSpace, RoundParams, RoundPolicy, ScoreBins
from sfsl.rounds.record import RoundOutcome, RoundSums, conclude, read_sums
from sfsl.rounds.server import RoundServer, as_downloaded, require_rows

__all__ = [
    "Download", "IndexSpace", "RoundClient", "RoundOutcome", "RoundParams", "RoundPolicy",
    "RoundServer", "RoundSums", "ScoreBins", "Trained", "as_downloaded", "conclude", "histogram_words",
    "read_sums", "require_rows",
]  # fmt: skip
