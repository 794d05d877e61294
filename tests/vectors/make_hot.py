"""Makes hot.json from the code: parameters, hot rows, vectors, noise, and rounds as one client sees them.

python tests/vectors/make_hot.py            write the file
python tests/vectors/make_hot.py --check    fail if it differs from what the code gives
"""

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

# As a script, this finds the other makers beside it.
sys.path.insert(0, str(Path(__file__).parents[1]))

from sfsl.crypto.secret import Identity, Secret
from sfsl.privacy.noise import DiscreteGaussian
from sfsl.rounds import RoundPolicy, ScoreBins, Trained
from sfsl.rounds.client import Own
from sfsl.rounds.exchanges import CODEC, HotInvitation
from sfsl.rounds.hot import HotParams, HotSet, Published, blob_digest
from sfsl.rounds.hot_client import HotClient, open_published, survey_vector, update_vector
from sfsl.rounds.params import HotLimits
from sfsl.secagg import Policy, Server, SessionParams
from sfsl.service import messages as network
from sfsl.service.signing import client_id
from sfsl.submodel import RowSet, TrainedRows
from sfsl.submodel.store import initial_rows
from vectors.make_network import CATEGORY_OF, MAPS, MODEL, REAL, numbers
from vectors.values import Json, Recorder, plain, some
from vectors.vector_file import write_or_check

PLACE = Path(__file__).parent / "hot.json"
ABOUT = (
    "`params`: parameters, their MessagePack, the context of the masks, the length of a vector and its "
    "sensitivity. `surveys` and `updates`: a client's words before noise, with the bytes `random` that it "
    "drew. `noise`: draws of the discrete Gaussian under a key. `rounds`: what a client (`seed`: its "
    "identity's) sends and receives, its check-in and then by turns the server's message and its answer; it "
    "draws `random` in the order of the specification (secure-aggregation 2.1, hot 3, 6 and 7). `published` "
    "is what it fetches, by digest, `rho` what it pays if a share of `corrupt` of all works with the server. "
    "`refused`: invitations that it must not accept (`declined`: aloud)."
)
HOT_ROWS = {"item": [0, 3, 7, 12, 21, 39], "category": [0, 1, 4]}
OWNERS = {"item": [40.5, 100.0, 61.25, 20.0, 3.5, 77.0], "category": [100.0, 12.0, 99.5]}
CORRUPT = 0.25
DENSE = np.array([0.5, -1, 3], np.float32)


def hot_set() -> HotSet:
    rows = {name: np.array(some) for name, some in HOT_ROWS.items()}
    return HotSet.of(1, 100, rows, {name: np.array(some) for name, some in OWNERS.items()})


def blob(precision: str) -> bytes:
    parts = [DENSE.astype("<f4").tobytes()]
    for table in MODEL.summed:
        values = numbers(f"hot blob {table.name}", len(HOT_ROWS[table.name]), table.width)
        parts.append(values.astype(np.dtype(precision).newbyteorder("<")).tobytes())
    return b"".join(parts)


def survey(**changes: Any) -> HotParams:
    return HotParams(
        **({"number": 3, "kind": "survey", "model": MODEL, "deviation": 0, "marks": 4} | changes)
    )


def train(precision: Any = "float16", **changes: Any) -> HotParams:
    given = {
        "number": 4,
        "kind": "train",
        "model": MODEL,
        "deviation": 0,
        "levels": 1000,
        "clip": 0.5,
        "rows": {name: len(rows) for name, rows in HOT_ROWS.items()},
        "hot": hot_set().digest(),
        "blob": blob_digest(blob(precision)),
        "seed": some("hot seed"),
        "training": {"rate": 0.5, "epochs": 2.0},
        "precision": precision,
        "scores": ScoreBins(bins=4, centre=-0.5, scale=1.5),
    }
    return HotParams(**(given | changes))


def described(name: str, params: HotParams) -> Json:
    return {
        "name": name,
        "params": plain(params),
        "bytes": msgspec.msgpack.encode(params).hex(),
        "context": params.context().hex(),
        "length": params.length,
        "sensitivity": params.sensitivity,
    }


def trained(seed: str, rows: Mapping[str, Sequence[int]], bins: int, size: float) -> Trained:
    made = {}
    for table in MODEL.summed:
        own = [row for row in rows[table.name] if row in HOT_ROWS[table.name]]
        moves = size * numbers(f"{seed} {table.name}", len(own), table.width)
        made[table.name] = TrainedRows(RowSet.of(own), moves, np.ones(len(own), int))
    scores = (np.arange(bins), np.arange(bins)[::-1].copy()) if bins else None
    return Trained(size * numbers(f"{seed} dense", 3), 9, made, scores)


def update_of(one: Trained) -> Json:
    return {
        "dense": plain(one.dense),
        "rows": {
            table: [
                [row, moves]
                for row, moves in zip(own.rows.rows.tolist(), np.asarray(own.deltas).tolist(), strict=True)
            ]
            for table, own in one.rows.items()
        },
        "histograms": [] if one.scores is None else [plain(counts) for counts in one.scores],
    }


def with_categories(items: Sequence[int]) -> dict[str, Sequence[int]]:
    return {"item": items, "category": sorted({CATEGORY_OF[item] for item in items})}


def survey_case(name: str, real: Sequence[int], **changes: Any) -> Json:
    params, randomness = survey(**changes), Recorder(f"hot survey {name}")
    words = survey_vector(params, {"item": np.array(real, np.int64)}, randomness)
    return {
        "name": name,
        "params": plain(params),
        "real": list(real),
        "random": randomness.drawn.hex(),
        "words": plain(words),
    }


def update_case(name: str, real: Sequence[int], size: float, **changes: Any) -> Json:
    params, randomness = train(**changes), Recorder(f"hot update {name}")
    one = trained(name, with_categories(real), params.bins, size)
    sets = {table: RowSet.of(rows) for table, rows in HOT_ROWS.items()}
    words = update_vector(params, sets, one, randomness)
    assert math.sqrt(sum(int(word) ** 2 for word in words)) <= params.sensitivity
    return {
        "name": name,
        "params": plain(params),
        "update": update_of(one),
        "random": randomness.drawn.hex(),
        "words": plain(words),
    }


def noise_case(deviation: float, count: int = 24) -> Json:
    randomness = Recorder(f"hot noise {deviation}")
    drawn = DiscreteGaussian(deviation).draw(count, randomness)
    return {"deviation": deviation, "key": randomness.drawn.hex(), "draws": plain(drawn)}


class Member:
    def __init__(self, case: str, number: int, params: HotParams, active: bool, known: Any) -> None:
        self.name, self.real, self.params = f"{case} {number}", REAL[number], params
        self.seed = some(f"hot identity {number}")
        identity = Identity(Secret(self.seed))
        self.id = client_id(identity.public)
        self.randomness, self.rho = Recorder(f"hot {self.name}"), 0.0
        policy = RoundPolicy(
            session=Policy(min_clients=3, min_threshold=2, min_contributors=1, max_words=10**5),
            max_clip=2.0,
            max_rows=1000,
            hot=HotLimits(max_rho=math.inf, corruption=CORRUPT),
        )
        self.machine = HotClient.join(
            self.id,
            Own(
                self,
                MODEL,
                MAPS,
                policy,
                self.randomness,
                identity=identity if active else None,
                identities=known,
            ),
        )
        self.keys = self.machine.create_keys()
        self.exchanges: list[Json] = []

    def spend(self, round_id: bytes, rho: float) -> None:
        self.rho += rho

    def owned(self) -> Mapping[str, Any]:
        return {"item": np.array(self.real)}

    def learned(self) -> Trained:
        return trained(self.name, with_categories(self.real), self.params.bins, 0.25)

    def answer(self, frame: bytes, published: Published) -> bytes:
        message: Any = network.CODEC.decode(frame, limit=10**7)
        match type(message).__name__:
            case "HotInvitation":
                answer: Any = self.machine.handle_invitation(message)
            case "InboundShares" if self.params.kind == "survey":
                answer = self.machine.handle_survey(message)
            case "InboundShares":
                self.machine.handle_model(message, published)
                answer = self.machine.create_update(self.learned())
            case "Survivors":
                answer = self.machine.handle_survivors(message)
            case _:
                answer = self.machine.handle_unmask(message)
        data = network.CODEC.encode(answer)
        self.exchanges.append({"message": frame.hex(), "answer": data.hex()})
        return data


def conversation(
    name: str, about: str, params: HotParams, *, active: bool = False, gone: tuple[int, str] = (-1, "")
) -> Json:
    """``gone``: who falls silent at which message."""
    known = None
    if active:
        publics = [Identity(Secret(some(f"hot identity {k}"))).public for k in range(4)]
        known = {client_id(public): public for public in publics}
    members = [Member(name, number, params, active, known) for number in range(4)]
    session = SessionParams(
        round_id=some(f"hot round {name}", 16),
        clients=4,
        threshold=3,
        neighbours=None,
        active=active,
        sums=params.sums(),
    )
    published = Published(hot_set(), blob(params.precision))
    server = Server(session, [member.keys for member in members], known, context=params.context())
    outbound: Mapping[str, Any] = server.invitations(lambda roster: HotInvitation(roster, params))
    away: set[str] = set()
    while outbound:
        for number, member in enumerate(members):
            message = outbound.get(member.id)
            if message is None or member.id in away:
                continue
            if (number, type(message).__name__) == gone:
                away.add(member.id)
                continue
            answer = member.answer(network.CODEC.encode(message), published)
            server.receive(member.id, network.CODEC.decode(answer, limit=10**7))
        outbound = server.close_phase()
    first = members[0]
    contents = {params.hot: published.hot.encode(), params.blob: published.blob}
    return {
        "name": name,
        "about": about,
        "seed": first.seed.hex(),
        "client": first.id,
        "known": None if known is None else {client: public.hex() for client, public in known.items()},
        "random": first.randomness.drawn.hex(),
        "real": list(first.real),
        "update": update_of(first.learned()) if params.kind == "train" else None,
        "published": {key.hex(): data.hex() for key, data in contents.items()} if params.hot else {},
        "check_in": network.CODEC.encode(network.CheckIn(some("network model"), first.keys)).hex(),
        "exchanges": first.exchanges,
        "corrupt": CORRUPT,
        "rho": first.rho if math.isfinite(first.rho) else None,
        "sum": plain(server.opened.dense),
        "refused": refusals(CODEC.decode(bytes.fromhex(first.exchanges[0]["message"]), limit=10**6)),
    }


def refusals(invitation: Any) -> list[Json]:
    """What a client with the limits of ``tests/vectors/test_hot.py`` does not take part in."""
    fields = msgspec.msgpack.decode(CODEC.encode(invitation)[1:])

    def changed(**changes: Any) -> bytes:
        return b"\x01" + msgspec.msgpack.encode(fields | {"round": fields["round"] | changes})

    noisy = replace(invitation.round, deviation=invitation.round.deviation / 10)
    one = fields["roster"]["params"]["sums"][0]

    def in_session(**changes: Any) -> bytes:
        roster = fields["roster"] | {"params": fields["roster"]["params"] | changes}
        return b"\x01" + msgspec.msgpack.encode(fields | {"roster": roster})

    cases = {
        "a tenth of the noise": (changed(deviation=noisy.deviation), True),
        "no noise": (changed(deviation=0.0), True),
        "noise beyond all bounds": (changed(deviation=2.0**29), True),
        "another model": (changed(model=fields["round"]["model"] | {"dense": 4}), False),
        "digests of half the length": (changed(hot=bytes(16)), False),
        "a longer sum": (
            in_session(sums=[one | {"layout": {"dense": one["layout"]["dense"] + 1, "tables": []}}]),
            False,
        ),
        "a sum of another name": (in_session(sums=[one | {"label": "hot-round"}]), False),
        "a field too many": (changed(more=1), False),
        "noise below zero": (changed(deviation=-1.0), False),
    }
    if not invitation.roster.params.active:  # where it could not even be read
        cases["a lower threshold"] = (in_session(threshold=2), True)
    if invitation.round.kind == "train":
        cases["a wider clip"] = (changed(clip=3.0), True)
        cases["rows of a personal table"] = (changed(rows=fields["round"]["rows"] | {"user": 1}), False)
    else:
        cases["more marks"] = (changed(marks=2**20), True)
        cases["a survey with rows"] = (changed(rows={"item": 1, "category": 1}), False)
    return [
        {"name": name, "message": data.hex(), "declined": declined}
        for name, (data, declined) in cases.items()
    ]


def content() -> Json:
    hot, whole = hot_set(), open_published(train("float32"), Published(hot_set(), blob("float32")))
    cold = np.array([1, 2, 38])
    return {
        "about": ABOUT,
        "model": plain(MODEL),
        "category_of": CATEGORY_OF,
        "model_digest": some("network model").hex(),
        "hot_set": {
            "version": 1,
            "surveyed": 100,
            "rows": HOT_ROWS,
            "owners": OWNERS,
            "bytes": hot.encode().hex(),
            "digest": hot.digest().hex(),
        },
        "blobs": [
            {
                "precision": precision,
                "bytes": blob(precision).hex(),
                "digest": blob_digest(blob(precision)).hex(),
            }
            for precision in ("float32", "float16")
        ],
        "downloaded": {
            "dense": plain(whole.dense),
            "rows": {name: plain(values) for name, values in whole.rows.items()},
        },
        "cold": {
            "seed": some("hot seed").hex(),
            "rows": plain(cold),
            "values": plain(initial_rows(some("hot seed"), MODEL.table("item"), cold)),
        },
        "params": [
            described("survey", survey()),
            described("survey, noise", survey(deviation=17.25, levels=3, marks=256)),
            described("train", train()),
            described("train, noise, float32", train("float32", deviation=1234.5, clip=1.0)),
            described("train, no scores", train(scores=None, training={})),
        ],
        "surveys": [
            survey_case("fewer rows than marks", [3, 39]),
            survey_case("as many", [0, 3, 7, 39], levels=5),
            survey_case("more, so that a choice is due", [0, 3, 7, 12, 20, 21, 22, 39], levels=5),
            survey_case("nothing", []),
        ],
        "updates": [
            update_case("inside the clip", [0, 3, 12], 0.02),
            update_case("cut", [0, 3, 7, 12, 21, 39], 1.0),
            update_case("no rows", [], 0.05, scores=None),
            update_case("cold rows only", [1, 2, 38], 0.05),
            update_case("one level", [0, 39], 1.0, levels=1),
        ],
        "noise": [noise_case(one) for one in (0.25, 0.5, 2.5, 20.0, 128.0, 128.5, 1000.0, 54321.5)],
        "rounds": [
            conversation(
                "survey",
                "a survey with noise; the second client leaves before its upload",
                survey(deviation=20.5, levels=9),
                gone=(1, "InboundShares"),
            ),
            conversation(
                "train",
                "a round that trains, with noise; nobody leaves",
                train(deviation=900.0),
            ),
            conversation(
                "active",
                "with signatures; the third client leaves before it opens anything",
                train("float32", deviation=40.0, scores=None),
                active=True,
                gone=(2, "Survivors"),
            ),
        ],
    }


def main(arguments: Sequence[str]) -> int:
    return write_or_check(arguments, __doc__, PLACE, content)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
