"""http.json against the code, and against a second implementation written from the specification."""

import json
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from sfsl import errors
from sfsl.crypto.secret import Identity, Secret
from sfsl.errors import ClockSkew, InvalidMessage, UnknownClient
from sfsl.service.identities import read_identity
from sfsl.service.signing import Verifier, client_id, require_public, sign_request
from vectors import make_http
from vectors import reference_http as reference

HERE = Path(__file__).parent
VECTORS: dict[str, Any] = json.loads((HERE / "http.json").read_text())
KEYS = {one["client"]: bytes.fromhex(one["public_key"]) for one in VECTORS["identities"]}
REQUESTS, REFUSED = VECTORS["requests"], VECTORS["refused"]
MEANING = {
    "ClockSkew": "clock",
    "AuthenticationFailed": "signature",
    "UnknownClient": "unknown",
    "DecodeError": "malformed",
    "Oversize": "malformed",
}


class Tape:
    def __init__(self, data: str) -> None:
        self.rest = bytes.fromhex(data)

    def bytes(self, count: int, /) -> bytes:
        taken, self.rest = self.rest[:count], self.rest[count:]
        assert len(taken) == count
        return taken


def key_of(client: str) -> bytes:
    if client not in KEYS:
        raise UnknownClient("no such client")
    return KEYS[client]


def test_the_file_is_what_the_code_gives() -> None:
    assert make_http.main(["--check"]) == 0


def test_the_reference_stands_alone() -> None:
    assert "import sfsl" not in (text := Path(reference.__file__).read_text())
    assert "from sfsl" not in text


def test_the_request_that_the_specification_writes_out() -> None:
    page = (HERE.parents[1] / "docs" / "spec" / "network.md").read_text()
    lines = page[page.index("    00000018 ") : page.index("and the headers")].splitlines()
    assert "".join(re.sub(r"(?<=\S)  +.*| ", "", line.lstrip()) for line in lines) == REQUESTS[0]["signed"]
    assert all(f"    {name}: {value}\n" in page for name, value in REQUESTS[0]["headers"].items())


@pytest.mark.parametrize("one", VECTORS["identities"], ids=lambda one: one["client"])
def test_identities(one: dict[str, str], tmp_path: Path) -> None:
    seed, public = bytes.fromhex(one["seed"]), bytes.fromhex(one["public_key"])
    assert Identity(Secret(seed)).public == reference.public_key(seed) == public
    assert client_id(public) == reference.client_id(public) == one["client"]
    assert reference.identity_file(seed) == one["file"]
    assert reference.may_enrol(public)
    (tmp_path / "identity").write_text(one["file"])
    (tmp_path / "identity").chmod(0o600)
    assert read_identity(tmp_path / "identity").public == public


@pytest.mark.parametrize("key", VECTORS["public_keys_refused"])
def test_keys_that_may_not_enrol(key: str) -> None:
    assert not reference.may_enrol(bytes.fromhex(key))
    with pytest.raises(InvalidMessage):
        require_public(bytes.fromhex(key))


def parts(one: dict[str, Any]) -> dict[str, Any]:
    return {
        "deployment": bytes.fromhex(one["deployment"]),
        "host": one["host"],
        "method": one["method"],
        "target": one["target"],
        "body": bytes.fromhex(one["body"]),
    }


@pytest.mark.parametrize("one", REQUESTS, ids=lambda one: one["name"].replace(" ", "-"))
def test_requests(one: dict[str, Any]) -> None:
    seed, nonce, time = bytes.fromhex(one["seed"]), bytes.fromhex(one["random"]), one["time_ms"]
    assert reference.to_sign(**parts(one), time_ms=time, nonce=nonce).hex() == one["signed"]
    assert reference.headers(seed, **parts(one), time_ms=time, nonce=nonce) == one["headers"]
    made = sign_request(Identity(Secret(seed)), **parts(one), now_ms=time, randomness=Tape(one["random"]))
    assert made == one["headers"]
    assert judge(one, one["headers"], time) == one["headers"]["Sfsl-Client"]
    assert (
        reference.verdict(KEYS, VECTORS["hosts"], VECTORS["window_ms"], one, one["headers"], time) == "taken"
    )


def judge(one: dict[str, Any], headers: dict[str, str], now: int) -> str:
    options = {"window_ms": VECTORS["window_ms"], "hosts": VECTORS["hosts"]}
    verifier = Verifier(bytes.fromhex(one["deployment"]), key_of, **options)
    body = sha256(bytes.fromhex(one["body"])).digest()
    return verifier.check(headers, one["method"], one["target"], body, now)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["name"].replace(" ", "-"))
def test_refusals(case: dict[str, Any]) -> None:
    changed = REQUESTS[0] | {key: value for key, value in case["change"].items() if key != "headers"}
    given = REQUESTS[0]["headers"] | case["change"].get("headers", {})
    headers = {name: value for name, value in given.items() if value is not None}
    now = case.get("now_ms", REQUESTS[0]["time_ms"])
    with pytest.raises(errors.SfslError) as caught:
        judge(changed, headers, now)
    assert type(caught.value).__name__ == case["error"]
    if isinstance(caught.value, ClockSkew):
        assert caught.value.off_ms == case["off_ms"]
    assert (
        reference.verdict(KEYS, VECTORS["hosts"], VECTORS["window_ms"], changed, headers, now)
        == MEANING[case["error"]]
    )
