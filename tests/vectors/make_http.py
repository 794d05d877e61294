"""Makes http.json: ids, signed requests and identity files, from the code (spec network 1, 2).

python tests/vectors/make_http.py            write the file
python tests/vectors/make_http.py --check    fail if it differs from what the code gives
"""

import sys
import tempfile
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

# As a script, this finds the other makers beside it.
sys.path.insert(0, str(Path(__file__).parents[1]))

from sfsl.crypto.secret import Identity, Secret, frame
from sfsl.service.identities import write_identity
from sfsl.service.signing import LABEL, _parts, client_id, sign_request
from vectors.values import Json, Recorder, some
from vectors.vector_file import write_or_check

PLACE = Path(__file__).parent / "http.json"
NOW = 1_800_000_000_000
WINDOW_MS = 120_000
HOSTS = ("sfsl.example.org", "*.example.net", "192.0.2.7", "2001:db8::7")


def identity_file(seed: bytes) -> str:
    with tempfile.TemporaryDirectory() as folder:
        write_identity(Path(folder) / "identity", Secret(seed))
        return (Path(folder) / "identity").read_text()


def request(
    name: str, method: str, target: str, body: bytes, time_ms: int = NOW, host: str = HOSTS[0]
) -> Json:
    seed, deployment, randomness = (
        some("http identity"),
        some("http deployment", 16),
        Recorder(f"http {name}"),
    )
    identity = Identity(Secret(seed))
    headers = sign_request(
        identity,
        deployment=deployment,
        host=host,
        method=method,
        target=target,
        body=body,
        now_ms=time_ms,
        randomness=randomness,
    )
    parts = _parts(deployment, host, method, target, sha256(body).digest(), time_ms, randomness.drawn)
    return {
        "name": name,
        "seed": seed.hex(),
        "deployment": deployment.hex(),
        "host": host,
        "method": method,
        "target": target,
        "body": body.hex(),
        "time_ms": time_ms,
        "random": randomness.drawn.hex(),
        "signed": frame("sign " + LABEL, *parts).hex(),
        "headers": headers,
    }


def refusals(good: Json) -> list[Json]:
    """A good request with one thing changed, as it reaches the server at its own time, or at ``now_ms``."""
    headers = good["headers"]
    time, nonce, signature = headers["Sfsl-Time"], headers["Sfsl-Nonce"], headers["Sfsl-Signature"]
    late = {"now_ms": NOW + WINDOW_MS + 1, "error": "ClockSkew", "off_ms": -WINDOW_MS - 1}
    early = {"now_ms": NOW - WINDOW_MS - 1, "error": "ClockSkew", "off_ms": WINDOW_MS + 1}
    bad, unread = {"error": "AuthenticationFailed"}, {"error": "DecodeError"}
    other = bytes((bytes.fromhex(signature)[0] ^ 1, *bytes.fromhex(signature)[1:])).hex()
    order = 2**252 + 27742317777372353535851937790883648493
    larger = (int.from_bytes(bytes.fromhex(signature)[32:], "little") + order).to_bytes(32, "little").hex()
    cases: list[tuple[str, Json, Json]] = [
        ("too late", {}, late),
        ("too early", {}, early),
        ("another host", {"headers": {"Sfsl-Host": "example.org"}}, bad),
        ("another host of this server", {"headers": {"Sfsl-Host": "a.example.net"}}, bad),
        ("a host two labels below", {"headers": {"Sfsl-Host": "a.b.example.net"}}, bad),
        ("a host in capitals", {"headers": {"Sfsl-Host": "SFSL.example.org"}}, unread),
        ("no host", {"headers": {"Sfsl-Host": None}}, unread),
        ("a long host", {"headers": {"Sfsl-Host": "a" * 254}}, {"error": "Oversize"}),
        ("another method", {"method": "PUT"}, bad),
        ("another query", {"target": good["target"] + "0"}, bad),
        ("another body", {"body": "00"}, bad),
        ("another deployment", {"deployment": some("http elsewhere", 16).hex()}, bad),
        ("another time", {"headers": {"Sfsl-Time": str(NOW + 1)}}, bad),
        ("another nonce", {"headers": {"Sfsl-Nonce": "00" * 16}}, bad),
        ("a changed signature", {"headers": {"Sfsl-Signature": other}}, bad),
        ("a signature plus the group's order", {"headers": {"Sfsl-Signature": signature[:64] + larger}}, bad),
        ("an unknown client", {"headers": {"Sfsl-Client": "00" * 16}}, {"error": "UnknownClient"}),
        ("no time", {"headers": {"Sfsl-Time": None}}, unread),
        ("a time with a zero in front", {"headers": {"Sfsl-Time": f"0{time}"}}, unread),
        ("a time with a sign", {"headers": {"Sfsl-Time": f"+{time}"}}, unread),
        ("a nonce in capitals", {"headers": {"Sfsl-Nonce": nonce.upper()}}, unread),
        ("a nonce of 15 bytes", {"headers": {"Sfsl-Nonce": nonce[2:]}}, unread),
        ("a signature of 65 bytes", {"headers": {"Sfsl-Signature": f"{signature}00"}}, {"error": "Oversize"}),
        ("a target with a space", {"target": "/v1/a b"}, unread),
        ("a method in small letters", {"method": "post"}, unread),
    ]
    return [{"name": name, "change": change} | verdict for name, change, verdict in cases]


def content() -> Json:
    requests = [
        request("a post", "POST", "/v1/next?ticket=00ff&wait=30", b"some body"),
        request("a get without a body", "GET", "/v1/status", b"", 0, "a.example.net"),
        request("a long target", "GET", "/" + "~" * 2047, bytes(range(256)), 10**15 - 1, "2001:db8::7"),
    ]
    seeds = [some("http identity"), bytes(32), b"\xff" * 32]
    p, order_8 = 2**255 - 19, 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
    return {
        "identities": [
            {
                "seed": seed.hex(),
                "public_key": (public := Identity(Secret(seed)).public).hex(),
                "client": client_id(public),
                "file": identity_file(seed),
            }
            for seed in seeds
        ],
        "public_keys_refused": [
            (height + sign).to_bytes(32, "little").hex()
            for height in (0, 1, p - 1, order_8, p - order_8, p, p + 1, 2**255 - 1)
            for sign in (0, 2**255)
        ],
        "window_ms": WINDOW_MS,
        "hosts": HOSTS,
        "requests": requests,
        "refused": refusals(requests[0]),
    }


def main(arguments: Sequence[str]) -> int:
    return write_or_check(arguments, __doc__, PLACE, content)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
