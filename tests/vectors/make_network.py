"""Makes network.json from the code: rounds as one client sees them, frame by frame, and encoded sets.

python tests/vectors/make_network.py            write the file
python tests/vectors/make_network.py --check    fail if it differs from what the code gives
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

# As a script, this finds the other makers beside it.
sys.path.insert(0, str(Path(__file__).parents[1]))

from sfsl.crypto.secret import Identity, Secret
from sfsl.privacy import PRESETS, IndexPrivacy, Tables
from sfsl.privacy.response import Perturber
from sfsl.rounds import RoundClient, RoundParams, RoundPolicy, RoundServer, ScoreBins, Trained
from sfsl.rounds.client import Own
from sfsl.rounds.params import ANYTHING
from sfsl.secagg import Client, Policy, SessionParams
from sfsl.service import messages as network
from sfsl.service.signing import client_id
from sfsl.submodel import (
    Averaging,
    MemoryStore,
    ModelSpec,
    Quantization,
    RowMaps,
    RowSet,
    StoreSpec,
    Table,
    TrainedRows,
    UpdateParams,
)
from sfsl.union import UnionParams
from vectors.values import Json, Recorder, plain, some
from vectors.vector_file import write_or_check

PLACE = Path(__file__).parent / "network.json"
ABOUT = (
    "What a client (`seed`: its identity's) sends and receives in a round: its check-in, then by turns the "
    "server's message and its answer. It draws `random` in the order of the specification (pages "
    "secure-aggregation 2.1, private-set-union 9.8, privacy 3.2, submodel 3.2). It holds the rows `real` of "
    "table item and asks by `p` and `period_key`; `update` is what training makes of the submodel, of which "
    "only rows that it asked for count: [row, samples that touch it, moves]. `known` are the public keys of "
    "all clients in active mode."
)
ITEMS, CATEGORIES = 40, 5
CATEGORY_OF = [(3 * item) % CATEGORIES for item in range(ITEMS)]
MODEL = ModelSpec(
    tables=(
        Table(name="user", rows=10, width=1, kind="personal", initial=0.0),
        Table(name="item", rows=ITEMS, width=2, initial=0.25),
        Table(name="category", rows=CATEGORIES, width=2, kind="derived", source="item", initial=0.25),
    ),
    dense=3,
)
MAPS = RowMaps(MODEL, {"category": np.array(CATEGORY_OF)})
REAL = ([0, 3, 7, 12, 39], [3, 7, 8, 12], [0, 3, 20], [3, 12, 21, 22])
HANDLERS = {
    "Invitation": "handle_invitation",
    "InboundShares": "handle_inbound",
    "Survivors": "handle_survivors",
    "UnmaskRequest": "handle_unmask",
    "Union": "handle_union",
}


class Answers:
    """Randomized response without a ledger."""

    def __init__(self, key: bytes, privacy: IndexPrivacy, real: Sequence[int]) -> None:
        tables = Tables(shared=("item",), derived=("category",), personal=("user",))
        self._perturber = Perturber(Secret(key), privacy, tables, {"item": real})

    def expose(self, round_id: bytes) -> Mapping[str, Any]:
        return self._perturber.union_input()

    def answer(self, round_id: bytes, unions: Mapping[str, Any], randomness: Any) -> Mapping[str, Any]:
        return self._perturber.answer(unions, randomness)


def numbers(seed: str, *shape: int) -> Any:
    """Numbers from -1.28 to 1.27 that mostly fall between two steps; some are clipped."""
    drawn = np.frombuffer(some(seed, int(np.prod(shape))), np.int8)
    return (drawn / 100.0).reshape(shape)


class Member:
    def __init__(self, case: str, number: int, active: bool, known: Any, privacy: IndexPrivacy) -> None:
        self.name, self.real = f"{case} {number}", REAL[number]
        self.seed = some(f"network identity {number}")
        self.period_key = some(f"network period {self.name}")
        identity = Identity(Secret(self.seed))
        self.id = client_id(identity.public)
        self.randomness = Recorder(f"network {self.name}")
        policy = Policy(min_clients=3, min_threshold=2, min_contributors=1, max_words=10**5)
        session = Client(
            self.id,
            policy,
            self.randomness,
            sums=2,
            identity=identity if active else None,
            identities=known,
        )
        own = Own(
            Answers(self.period_key, privacy, self.real),
            MODEL,
            MAPS,
            RoundPolicy(session=policy, max_clip=2.0, max_rows=1000, limits=ANYTHING),
            self.randomness,
        )
        self.machine = RoundClient(session, own)
        self.keys = self.machine.create_keys()
        self.exchanges: list[Json] = []

    def answer(self, frame: bytes) -> bytes:
        message = network.CODEC.decode(frame, limit=10**7)
        handler = HANDLERS.get(type(message).__name__)
        if handler:
            answer = getattr(self.machine, handler)(message)
        else:
            download = self.machine.handle_submodel(message)  # type: ignore[arg-type]
            bins = download.scores.bins if download.scores else 0
            answer = self.machine.create_update(self.trained(bins, download.asked))
        data = network.CODEC.encode(answer)
        self.exchanges.append({"message": frame.hex(), "answer": data.hex()})
        return data

    def trained(self, bins: int, asked: Mapping[str, RowSet] | None = None) -> Trained:
        """Of all its rows, or of those ``asked`` for."""
        rows = {"item": self.real, "category": sorted({CATEGORY_OF[item] for item in self.real})}
        made = {}
        for table, own in rows.items():
            held = np.isin(own, own if asked is None else asked[table].rows)
            moves, counts = numbers(f"{self.name} {table}", len(own), 2), np.arange(1, len(own) + 1)
            made[table] = TrainedRows(RowSet.of(np.array(own)[held]), moves[held], counts[held])
        scores = (np.arange(bins), np.arange(bins)[::-1].copy()) if bins else None
        return Trained(numbers(f"{self.name} dense", 3), 9, made, scores)

    def update(self, bins: int) -> Json:
        trained = self.trained(bins)
        return {
            "dense": plain(trained.dense),
            "samples": trained.samples,
            "rows": {
                table: [
                    [row, count, moves]
                    for row, count, moves in zip(
                        own.rows.rows.tolist(),
                        np.asarray(own.counts).tolist(),
                        np.asarray(own.deltas).tolist(),
                        strict=True,
                    )
                ]
                for table, own in trained.rows.items()
            },
            "histograms": [] if trained.scores is None else [plain(one) for one in trained.scores],
        }


def conversation(
    name: str,
    about: str,
    *,
    encoding: Any,
    weights: Any,
    ring: Any = "z32",
    least: int = 1,
    bins: int = 0,
    precision: Any = "float32",
    active: bool = False,
    gone: tuple[int, str] = (-1, ""),
) -> Json:
    """``gone``: who falls silent at which message."""
    one = Quantization(ring=ring, cohort=8, clip=1.0, levels=1000, max_weight=1 if weights == "owners" else 4)
    dense = Quantization(ring=ring, cohort=8, clip=0.5, levels=3000, max_weight=8)
    params = RoundParams(
        number=7,
        model=MODEL,
        union=UnionParams(domain=ITEMS, encoding=encoding, capacity=20, seed=some(f"{name} union")),
        update=UpdateParams(rows=one, dense=dense, averaging=Averaging(weights=weights)),
        min_contributors=least,
        training={"rate": 0.5, "epochs": 2.0, "batch_size": 16.0},
        precision=precision,
        scores=ScoreBins(bins=bins, centre=-0.5, scale=1.5) if bins else None,
    )
    known = None
    if active:
        publics = [Identity(Secret(some(f"network identity {k}"))).public for k in range(4)]
        known = {client_id(public): public for public in publics}
    privacy = PRESETS["cpp5" if encoding == "whole" else "cpp3"]
    members = [Member(name, number, active, known, privacy) for number in range(4)]
    session = SessionParams(
        round_id=some(f"{name} round", 16),
        clients=4,
        threshold=3,
        neighbours=None,
        active=active,
        sums=params.sums(),
    )
    store = MemoryStore(StoreSpec(model=MODEL, seed=bytes(32)), dense=np.array([0.5, -1, 3], np.float32))
    server = RoundServer(session, params, [member.keys for member in members], store, MAPS, known)
    outbound: Mapping[str, Any] = server.invitations()
    away: set[str] = set()
    while outbound:
        for number, member in enumerate(members):
            message = outbound.get(member.id)
            if message is None or member.id in away:
                continue
            if (number, type(message).__name__) == gone:
                away.add(member.id)
                continue
            answer = member.answer(network.CODEC.encode(message))
            server.receive(member.id, network.CODEC.decode(answer, limit=10**7))
        outbound = server.close_phase()
    assert server.outcome is not None
    first = members[0]
    check_in = network.CheckIn(some("network model"), first.keys)
    return {
        "name": name,
        "about": about,
        "seed": first.seed.hex(),
        "client": first.id,
        "known": None if known is None else {client: public.hex() for client, public in known.items()},
        "random": first.randomness.drawn.hex(),
        "real": list(first.real),
        "period_key": first.period_key.hex(),
        "p": [privacy.p1, privacy.p2, privacy.p3, privacy.p4],
        "update": first.update(bins),
        "check_in": network.CODEC.encode(check_in).hex(),
        "exchanges": first.exchanges,
    }


def encoded(name: str, indices: Sequence[int], **params: Any) -> Json:
    union = UnionParams(seed=some(f"set {name}"), **params)
    randomness = Recorder(f"set {name}")
    encoding = union.build()
    words = encoding.encode(np.array(indices, np.int64), randomness)
    return {
        "name": name,
        "union": plain(union),
        "indices": list(indices),
        "random": randomness.drawn.hex(),
        "ring": encoding.ring.name,
        "words": words.tobytes().hex(),
    }


def content() -> Json:
    key = bytes(range(32))
    return {
        "about": ABOUT,
        "messages": [
            {"name": "enrol", "bytes": network.CODEC.encode(network.Enrol(key)).hex()},
            {"name": "checked-in", "bytes": network.CODEC.encode(network.CheckedIn(key[:16], 3)).hex()},
            {"name": "decline", "bytes": network.CODEC.encode(network.Decline(key[:16])).hex()},
        ],
        "sets": [
            encoded("identity", [0, 3, 4], domain=6, encoding="identity", capacity=2),
            encoded("sketch", [0, 3, 39], domain=40, encoding="sketch", capacity=3),
            encoded("sketch, a small domain", [1, 4], domain=5, encoding="sketch", capacity=1000),
            encoded(
                "sketch, two digits", [0, 2**31 - 1, 2**63 - 1], domain=2**63, encoding="sketch", capacity=3
            ),
            encoded(
                "sketch, a top digit that is tried", [2**33 - 5], domain=2**33, encoding="sketch", capacity=1
            ),
            encoded("bloom", [0, 3, 39], domain=40, encoding="bloom", capacity=5, false_positive_rate=0.01),
            encoded(
                "bloom, partitions", [0, 7, 2**30, 2**31 - 1], domain=2**31, encoding="bloom", capacity=10
            ),
        ],
        "model": plain(MODEL),
        "category_of": CATEGORY_OF,
        "model_digest": some("network model").hex(),
        "rounds": [
            conversation(
                "sketch",
                "the second client leaves before its first upload; rows of fewer than three stay out",
                encoding="sketch",
                weights="samples",
                least=3,
                bins=4,
                gone=(1, "InboundShares"),
            ),
            conversation(
                "active",
                "with signatures; the third client leaves before its second upload",
                encoding="identity",
                weights="owners",
                ring="z64",
                precision="float16",
                active=True,
                gone=(2, "Submodel"),
            ),
            conversation(
                "bloom",
                "nobody leaves; weights are whole data sets",
                encoding="bloom",
                weights="dataset",
                bins=2,
            ),
            conversation("whole", "the full model", encoding="whole", weights="dataset"),
        ],
    }


def main(arguments: Sequence[str]) -> int:
    return write_or_check(arguments, __doc__, PLACE, content)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
