"""hot.json against the second client, which was written from docs/spec."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from second_client import hot
from second_client.hot import HotDownload, HotRound, Limits, read_blob, read_hot_set
from second_client.noise import gaussian
from second_client.rounds import Model, Update
from second_client.secagg import Policy, Session
from second_client.wire import Refused, digest, encode, pack
from sfsl import errors, secagg
from sfsl.crypto.secret import Identity, Secret
from sfsl.rounds import RoundPolicy
from sfsl.rounds.client import Own
from sfsl.rounds.exchanges import CODEC
from sfsl.rounds.hot_client import HotClient
from sfsl.rounds.params import HotLimits
from vectors import make_hot
from vectors.make_network import MAPS, MODEL
from vectors.test_network import Tape, named

HOT = json.loads((Path(__file__).parent / "hot.json").read_text())
BYTES = ("hot", "blob", "seed")


def test_the_file_is_what_the_code_gives() -> None:
    assert make_hot.main(["--check"]) == 0


def params_of(case: Any) -> dict[str, Any]:
    given = dict(case["params"])
    return given | {name: bytes.fromhex(given[name]) for name in BYTES}


@pytest.mark.parametrize("case", named(HOT["params"]))
def test_parameters(case: Any) -> None:
    params = params_of(case)
    hot.require_parameters(params)
    assert pack(params).hex() == case["bytes"]
    assert hot.context(params).hex() == case["context"]
    assert hot.length(params) == case["length"]
    assert hot.sensitivity(params) == case["sensitivity"]


def test_hot_rows() -> None:
    given = HOT["hot_set"]
    made = encode(
        "hot-set",
        version=given["version"],
        surveyed=given["surveyed"],
        rows={name: np.array(rows, "<i8").tobytes() for name, rows in given["rows"].items()},
        owners={name: np.array(owners, "<f4").tobytes() for name, owners in given["owners"].items()},
    )
    assert made.hex() == given["bytes"]
    assert digest("hot set", made).hex() == given["digest"]


@pytest.mark.parametrize("case", HOT["blobs"], ids=lambda case: case["precision"])
def test_blobs(case: Any) -> None:
    params = params_of(HOT["params"][2]) | {"precision": case["precision"]}
    params |= {"blob": bytes.fromhex(case["digest"])}
    rows = read_hot_set(bytes.fromhex(HOT["hot_set"]["bytes"]), params)
    found = read_blob(bytes.fromhex(case["bytes"]), params, rows)
    np.testing.assert_array_equal(found.dense, np.array(HOT["downloaded"]["dense"], np.float32))
    for name, some in found.rows.items():
        assert list(some) == HOT["hot_set"]["rows"][name]
        exact = np.array(HOT["downloaded"]["rows"][name])
        np.testing.assert_allclose(list(some.values()), exact, atol=1e-3)
        if case["precision"] == "float32":
            np.testing.assert_array_equal(list(some.values()), exact.astype(np.float32))
    for row, values in zip(HOT["cold"]["rows"], HOT["cold"]["values"], strict=True):
        np.testing.assert_array_equal(found.first("item", row), np.array(values, np.float32))
    with pytest.raises(Refused):
        read_blob(bytes.fromhex(case["bytes"])[:-1], params, rows)
    with pytest.raises(Refused):
        read_hot_set(bytes.fromhex(HOT["hot_set"]["bytes"])[:-1] + b"\0", params)


@pytest.mark.parametrize("case", named(HOT["surveys"]))
def test_surveys(case: Any) -> None:
    tape = Tape(case["random"])
    assert hot.marked(params_of(case), {"item": case["real"]}, tape).tolist() == case["words"]
    assert not tape.rest


def update_of(given: Any) -> Update:
    rows = {
        table: {row: (np.array(moves), 1) for row, moves in some} for table, some in given["rows"].items()
    }
    histograms = np.concatenate(given["histograms"]) if given["histograms"] else None
    return Update(np.array(given["dense"]), 9, rows, histograms)


@pytest.mark.parametrize("case", named(HOT["updates"]))
def test_updates(case: Any) -> None:
    tape = Tape(case["random"])
    words = hot.updated(params_of(case), HOT["hot_set"]["rows"], update_of(case["update"]), tape)
    assert words.tolist() == case["words"]
    assert not tape.rest


@pytest.mark.parametrize("case", HOT["noise"], ids=lambda case: str(case["deviation"]))
def test_noise(case: Any) -> None:
    drawn = gaussian(case["deviation"], len(case["draws"]), Tape(case["key"]))
    assert drawn.tolist() == case["draws"]


def round_of(case: Any, **limits: Any) -> tuple[HotRound, Tape]:
    tape = Tape(case["random"])
    known = case["known"] and {client: bytes.fromhex(key) for client, key in case["known"].items()}
    identity = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(case["seed"]))
    session = Session(case["client"], Policy(), sums=1, identity=identity, known=known, draw=tape)
    model_digest = bytes.fromhex(HOT["model_digest"])
    assert encode("check-in", model=model_digest, keys=session.keys).hex() == case["check_in"]
    model = Model(model_digest, HOT["model"]["tables"], HOT["model"]["dense"], np.array(HOT["category_of"]))

    def train(download: HotDownload) -> Update:
        assert list(download.rows["item"]) == HOT["hot_set"]["rows"]["item"]
        return update_of(case["update"])

    def fetch(key: bytes) -> bytes:
        return bytes.fromhex(case["published"][key.hex()])

    allowed = Limits(corrupt=case["corrupt"], clip=2.0, **limits)
    return HotRound(session, model, {"item": case["real"]}, train, fetch, allowed), tape


@pytest.mark.parametrize("case", named(HOT["rounds"]))
def test_a_round_byte_for_byte(case: Any) -> None:
    round_, tape = round_of(case)
    assert len(case["exchanges"]) == (4 if case["known"] else 3)
    for exchange in case["exchanges"]:
        assert round_.answer(bytes.fromhex(exchange["message"])).hex() == exchange["answer"]
    assert not tape.rest
    assert math.isclose(round_.spent, case["rho"], rel_tol=1e-12)


@pytest.mark.parametrize(
    ("case", "refused"),
    [
        pytest.param(case, refused, id=f"{case['name']}: {refused['name']}")
        for case in HOT["rounds"]
        for refused in case["refused"]
    ],
)
def test_what_is_refused(case: Any, refused: Any) -> None:
    """By the second client, and by ours."""
    round_, _ = round_of(case, rho=case["rho"] * 1.001)
    message = bytes.fromhex(refused["message"])
    if refused["declined"]:
        assert b"decline" in round_.answer(message)
    else:
        with pytest.raises(Refused):
            round_.answer(message)
    assert not round_.spent
    client = ours(case)
    before = client.state
    with pytest.raises(errors.RemoteError) as caught:
        client.handle_invitation(CODEC.decode(message, limit=10**6))  # type: ignore[arg-type]
    if refused["declined"]:
        assert isinstance(caught.value, errors.Refused)
    assert client.state is before


def ours(case: Any) -> HotClient:
    """Our own client with the same bytes and limits."""

    class Drawn:
        tape = Tape(case["random"])

        def bytes(self, count: int, /) -> bytes:
            return self.tape(count)

    known = case["known"] and {client: bytes.fromhex(key) for client, key in case["known"].items()}
    policy = RoundPolicy(
        session=secagg.Policy(min_clients=3, min_threshold=2, min_contributors=1, max_words=10**5),
        max_clip=2.0,
        max_rows=1000,
        hot=HotLimits(max_rho=case["rho"] * 1.001, corruption=case["corrupt"]),
    )
    identity = Identity(Secret(bytes.fromhex(case["seed"]))) if known else None
    own = Own(NoPurse(), MODEL, MAPS, policy, Drawn(), identity=identity, identities=known)
    client = HotClient.join(case["client"], own)
    client.create_keys()
    return client


class NoPurse:
    def spend(self, round_id: bytes, rho: float) -> None:
        raise AssertionError("paid for a round that was refused")

    def owned(self) -> Any:
        raise AssertionError("asked for rows in a round that was refused")
