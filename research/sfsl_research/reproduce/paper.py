"""What the paper printed in its evaluation, with its place there. Nothing is read off a picture.

Its text gives most costs for 100 clients and some as savings against secure federated learning (SFL) only;
what follows from such a percentage is marked ``derived`` and is as exact as its two decimals. "MB" and "GB"
of the paper are MiB and GiB: its 0.27 MB are 71,869 words of 32 bits.
"""

from collections.abc import Mapping
from dataclasses import dataclass

TITLE = "Secure Federated Submodel Learning (Niu et al., arXiv 1911.02254)"
CLIENTS = 100
SCHEMES = ("cpp1", "cpp2", "cpp3", "cpp4", "cpp5", "sfl")
LABELS = {
    **{name: name.upper() for name in SCHEMES},
    "psu": "PSU",
    "fl": "FL",
    "centralized": "Centralized",
    "ours": "CPP2, our averaging",
}


@dataclass(frozen=True)
class Quoted:
    value: float
    derived: bool = False


def printed(numbers: Mapping[str, Quoted], scheme: str, clients: int) -> float | None:
    """What the paper says of a scheme with so many clients."""
    return numbers[scheme].value if clients == CLIENTS and scheme in numbers else None


def _saved(against: float, percent: float) -> float:
    """A cost that saves so much of another."""
    return against * (1 - percent / 100)


# Table "Choices of Probability Parameters (CPPs) and resulting privacy levels", 100 clients; shares, not %.
PRIVACY: Mapping[str, Mapping[str, float]] = {
    name: dict(zip(("p5", "p6", "epsilon_one", "epsilon_infinity", "p7", "p8"), values, strict=True))
    for name, values in {
        "cpp1": (1, 0, float("inf"), float("inf"), 0.867, 0),
        "cpp2": (0.883, 0.117, 2.02, 2.71, 0, 0.103),
        "cpp3": (0.781, 0.219, 1.27, 1.95, 0, 0.195),
        "cpp4": (0.625, 0.375, 0.51, 1.10, 0, 0.342),
        "cpp5": (1, 1, 0, 0, 0, 0),
    }.items()
}


@dataclass(frozen=True)
class BestAuc:
    """``round``: where the text says in which round it was reached."""

    auc: float
    round: int | None


# §V-A: "the highest AUC of …"; cpp1 and cpp5 have "identical model performance", without a number.
AUC: Mapping[str, BestAuc] = {
    "centralized": BestAuc(0.641, 803),
    "cpp2": BestAuc(0.615, 4908),
    "cpp4": BestAuc(0.601, None),
    "fl": BestAuc(0.543, 867),
}

# §V-B, MiB per client and round, both directions, n = 100.
COMMUNICATION: Mapping[str, Quoted] = {
    "cpp1": Quoted(1.76),
    "cpp2": Quoted(2.33),
    "cpp3": Quoted(2.78),
    "cpp4": Quoted(3.40),
    "cpp5": Quoted(5.57),
    "sfl": Quoted(27.94),
}
COMMUNICATION_SAVED = {"cpp1": 93.72, "cpp2": 91.65, "cpp3": 90.06, "cpp4": 87.81, "cpp5": 80.05}

# §V-C, seconds per round at n = 100: cpp2 is printed, the others follow from "reduces … %" against SFL.
CLIENT_SAVED = {"cpp2": 98.77, "cpp5": 85.02}
SERVER_SAVED = {"cpp2": 86.70, "cpp5": 72.51}
_SFL_CLIENT, _SFL_SERVER = 71.80 / (1 - 0.9877), 11.31 / (1 - 0.8670)
CLIENT_SECONDS: Mapping[str, Quoted] = {
    "cpp2": Quoted(71.80),
    "cpp5": Quoted(_saved(_SFL_CLIENT, CLIENT_SAVED["cpp5"]), derived=True),
    "sfl": Quoted(_SFL_CLIENT, derived=True),
}
SERVER_SECONDS: Mapping[str, Quoted] = {
    "cpp2": Quoted(11.31),
    "cpp5": Quoted(_saved(_SFL_SERVER, SERVER_SAVED["cpp5"]), derived=True),
    "sfl": Quoted(_SFL_SERVER, derived=True),
}


@dataclass(frozen=True)
class UnionCost:
    mib: float
    client_seconds: float
    server_seconds: float


# Table "… overheads of the client and the cloud server per round in private set union", by clients.
UNION: Mapping[int, UnionCost] = {
    20: UnionCost(0.63, 5.04, 1.12),
    40: UnionCost(0.70, 10.09, 1.68),
    60: UnionCost(0.77, 15.53, 2.40),
    80: UnionCost(0.84, 26.49, 3.13),
    100: UnionCost(0.91, 33.69, 4.19),
}

# §V-C, the server's seconds at n = 100 by dropout: of the union alone, and what submodels save of SFL.
UNION_SERVER_BY_DROPOUT: Mapping[float, float] = {0.0: 4.19, 0.2: 37.66}
DROPOUT_SAVED: Mapping[str, float] = {"cpp2": 91.33, "cpp5": 73.55}  # at 20 %

# §V-D, n = 100, no dropout: MiB of a client's process and of the server's.
CLIENT_MEMORY_SAVED = {"cpp2": 59.40, "cpp5": 45.43}
SERVER_MEMORY_SAVED = {"cpp2": 81.88, "cpp5": 63.77}
CLIENT_MEMORY: Mapping[str, Quoted] = {
    "cpp2": Quoted(209),
    "cpp5": Quoted(281),
    "sfl": Quoted(209 / (1 - CLIENT_MEMORY_SAVED["cpp2"] / 100), derived=True),
}
SERVER_MEMORY: Mapping[str, Quoted] = {
    "cpp2": Quoted(1.58 * 1024),
    "cpp5": Quoted(3.15 * 1024),
    "sfl": Quoted(1.58 * 1024 / (1 - SERVER_MEMORY_SAVED["cpp2"] / 100), derived=True),
}
