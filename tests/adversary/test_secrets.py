"""Secrets do not show in a repr, an exception or a log, and no stream or nonce is used twice."""

import base64
import logging
import traceback
from collections import Counter
from typing import Any

import numpy as np
import pytest

import sfsl.crypto.secret
import sfsl.secagg.client
from sfsl.crypto import ring as prg
from sfsl.crypto import secret as aead
from sfsl.crypto.secret import Secret, SystemRandomness
from sfsl.crypto.secret import derive as honest_derive
from sfsl.errors import SfslError
from sfsl.secagg import Layout, SumParams, aggregate, aggregate_rows
from sfsl.secagg.client import Start
from world import World


class Recorder:
    """Remembers every secret that a session draws or derives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[bytes] = []
        honest = Secret.__init__

        def recording(secret: Secret, value: bytes) -> None:
            self.seen.append(value)
            honest(secret, value)

        monkeypatch.setattr(Secret, "__init__", recording)

    def bytes(self, count: int) -> bytes:
        drawn = SystemRandomness().bytes(count)
        if count != 16:  # a round id is public
            self.seen.append(drawn)
        return drawn

    def leaks(self, text: str) -> list[str]:
        shown = [
            form
            for secret in self.seen
            for form in (
                secret.hex(),
                repr(secret)[2:-1],
                base64.b64encode(secret).decode().rstrip("="),
                str(int.from_bytes(secret, "big")),
                str(list(secret))[1:-1],
            )
        ]
        return [form for form in shown if len(form) > 8 and form in text]


@pytest.mark.parametrize("active", [False, True])
def test_nothing_secret_is_logged(
    active: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(monkeypatch)
    with caplog.at_level(logging.DEBUG):
        vectors = {f"c{i}": np.arange(5) for i in range(6)}
        aggregate(vectors, active=active, dropped_before_upload={"c1"}, randomness=recorder)
        rows = {f"c{i}": np.arange(3) for i in range(6)}
        values = {name: np.ones((3, 2), int) for name in rows}
        aggregate_rows(rows, values, 3, active=active, randomness=recorder, dropped_before_unmask={"c2"})
    assert len(caplog.records) > 20
    assert len(recorder.seen) > 100
    assert recorder.leaks(caplog.text) == []
    # The detector sees what it is looking for.
    assert recorder.leaks(f"debug: {recorder.seen[0].hex()}")
    assert recorder.leaks(f"{recorder.seen[0]!r}")


def test_nothing_secret_is_in_a_repr(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(monkeypatch)
    world = World(n=4, threshold=3, active=True)
    world.randomness = recorder  # type: ignore[assignment]
    world.clients = {name: world.client(name) for name in world.names}
    world.to_unmask()
    answer = world.clients["c0"].handle_unmask(world.requests["c0"])
    recorder.seen.extend(answer.shares)

    def everything(thing: Any, depth: int = 0) -> str:
        fields = getattr(thing, "__struct_fields__", ()) if depth < 4 else ()
        return repr(thing) + "".join(everything(getattr(thing, name), depth + 1) for name in fields)

    things = [*world.clients.values(), world.server, *world.inbound.values(), *world.uploads.values()]
    shown = "".join(
        repr(thing) for thing in [*things, *world.requests.values(), answer, *world.rosters.values()]
    )
    assert recorder.leaks(shown) == []
    # One level further in: a client's state prints its secrets as redacted, too.
    for state in (world.clients["c1"].state, world.client("c2").state):
        assert recorder.leaks(everything(state)) == []
        assert "redacted" in everything(state)


def test_nothing_secret_is_in_an_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(monkeypatch)
    texts = []
    for step in ("handle_roster", "handle_inbound", "handle_unmask"):
        world = World(n=4, threshold=3)
        world.randomness = recorder  # type: ignore[assignment]
        world.clients = {name: world.client(name) for name in world.names}
        world.to_unmask()
        message = {
            "handle_roster": world.rosters,
            "handle_inbound": world.inbound,
            "handle_unmask": world.requests,
        }
        client = world.clients["c0"]
        try:
            getattr(client, step)(message[step]["c1"])
            getattr(client, step)(message[step]["c1"])
        except SfslError as error:
            texts.append("".join(traceback.format_exception(error)))
    try:
        world.unmask(drop=world.names)
    except SfslError as error:
        texts.append("".join(traceback.format_exception(error)))
    assert len(texts) == 4
    assert recorder.leaks("".join(texts)) == []


# -- every stream and every nonce once ------------------------------------------------------------


def uses(monkeypatch: pytest.MonkeyPatch) -> tuple[list[tuple[str, bytes]], list[tuple[bytes, bytes]]]:
    """Run a session of two sums; return (party, stream key) of each stream and (key, nonce) of each seal."""
    streams: list[tuple[str, bytes]] = []
    seals: list[tuple[bytes, bytes]] = []
    party = [""]
    honest_stream, honest_seal = prg.MaskStream.__init__, aead.AESGCM.encrypt

    def stream(self: prg.MaskStream, key: Secret, ring: Any) -> None:
        streams.append((party[0], key.reveal()))
        honest_stream(self, key, ring)

    class Sealing:
        def __init__(self, key: bytes) -> None:
            self._key = key

        def encrypt(self, nonce: bytes, data: bytes, header: bytes) -> bytes:
            seals.append((self._key, nonce))
            return honest_seal(real(self._key), nonce, data, header)

        def decrypt(self, nonce: bytes, data: bytes, header: bytes) -> bytes:
            return real(self._key).decrypt(nonce, data, header)

    real = aead.AESGCM
    monkeypatch.setattr(prg.MaskStream, "__init__", stream)
    monkeypatch.setattr(aead, "AESGCM", Sealing)
    sums = tuple(
        SumParams(label=label, ring="z32", min_contributors=1, layout=Layout(dense=8)) for label in ("a", "b")
    )
    world = World(n=4, threshold=3, sums=sums).share()
    for name, start in world.starts().items():
        party[0] = name
        world.server.receive(name, world.clients[name].create_masked(start, world.vectors[name]))
    party[0] = "server"
    world.requests = world.close()
    world.unmask()
    world.server.start_sum(world.names, Layout(dense=8), {})
    for name in world.names:
        party[0] = name
        start = Start(Layout(dense=8), (0, 1, 2, 3))
        world.server.receive(name, world.clients[name].create_masked(start, world.vectors[name]))
    return streams, seals


def reused(streams: list[tuple[str, bytes]], seals: list[tuple[bytes, bytes]]) -> list[Any]:
    by_client = Counter((party, key) for party, key in streams if party.startswith("c"))
    ends = Counter(key for party, key in streams if party.startswith("c"))
    return [
        *(use for use, times in by_client.items() if times > 1),
        *(key for key, times in ends.items() if times > 2),  # a pair has two ends
        *(use for use, times in Counter(seals).items() if times > 1),
    ]


def test_no_stream_and_no_nonce_is_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    streams, seals = uses(monkeypatch)
    assert len([party for party, _ in streams if party.startswith("c")]) == 2 * 4 * 4
    assert len(seals) == 4 * 3
    assert reused(streams, seals) == []


@pytest.mark.parametrize("weakness", ["both directions one key", "sums not told apart", "one key for all"])
def test_reuse_would_be_seen(weakness: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above fails against weakened copies of the key derivation."""

    def weak(secret: Secret, label: str, *context: bytes) -> Secret:
        if weakness == "both directions one key" and label == "channel":
            return honest_derive(secret, label, context[0], *sorted(context[1:]))
        if weakness == "sums not told apart" and label == "self-mask":
            return honest_derive(Secret(bytes(32)), label, context[0], context[2])
        if weakness == "one key for all" and label == "pair-mask":
            return honest_derive(Secret(bytes(32)), label)
        return honest_derive(secret, label, *context)

    monkeypatch.setattr(sfsl.crypto.secret, "derive", weak)
    monkeypatch.setattr("sfsl.secagg.messages.derive", weak)
    assert reused(*uses(monkeypatch)) != []
