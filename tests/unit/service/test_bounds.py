"""What a server keeps and takes, at its bounds: signed requests, identities, the log, the registry, versions,
backups, and how large answers may be."""

import hashlib
import math
import stat
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cohort import Cohort, Stepper
from deployment import HOST, new_store
from sfsl.checksums import with_json_sum, without_json_sum
from sfsl.crypto.secret import Identity, Secret
from sfsl.errors import (
    AuthenticationFailed,
    ClockSkew,
    Forked,
    InputError,
    InvalidMessage,
    KeyFileError,
    ParameterError,
    Replayed,
    StoreCorrupt,
    StoreError,
    TooMany,
)
from sfsl.rounds.record import RoundTally
from sfsl.service import log as logs
from sfsl.service import messages as said
from sfsl.service.backup import MANIFEST, back_up, restore
from sfsl.service.driver import CohortRound, Journal, Kept, Told, next_bins
from sfsl.service.folder import METRICS, REGISTRY, STORE, MetricsFile, recover_lines
from sfsl.service.identities import Enrolment, names_on, read_identity, write_identity
from sfsl.service.log import LogTrust
from sfsl.service.log_file import LogRules, read_deployment, read_heads, with_sum
from sfsl.service.messages import LogEntry, LogHead, LogProof
from sfsl.service.registry import Registry
from sfsl.service.signing import (
    Nonces,
    Verifier,
    client_id,
    host_name,
    nonces_needed,
    require_public,
    sign_request,
)
from sfsl.service.versions import tag, version_path, versions
from sfsl.submodel import Commit, LmdbStore
from sfsl.testing import SeededRandomness
from sfsl.union.protocol import Union

NOW = 1_800_000_000_000
RANDOM = SeededRandomness("bounds")
ADA, BOB = (Identity.generate(RANDOM) for _ in range(2))
DEPLOYMENT = bytes(range(16))
NO_BODY = hashlib.sha256(b"").digest()


# -- signed requests -----------------------------------------------------------------------------------


def headers(now: int = NOW, host: str = HOST, **changes: Any) -> dict[str, str]:
    given: dict[str, Any] = {"deployment": DEPLOYMENT, "method": "GET", "target": "/", "body": b""} | changes
    return sign_request(ADA, host=host, now_ms=now, randomness=RANDOM, **given)


def verifier(**changes: Any) -> Verifier:
    return Verifier(DEPLOYMENT, lambda _: ADA.public, **{"hosts": (HOST,)} | changes)


def test_how_far_a_clock_may_be_off() -> None:
    taker = verifier(window_ms=1000)
    for off in (-1000, 1000):
        assert taker.check(headers(NOW + off), "GET", "/", NO_BODY, NOW) == client_id(ADA.public)
    for off, which in ((-1001, "1.0 s behind"), (1001, "1.0 s ahead of")):
        with pytest.raises(ClockSkew, match=which) as caught:
            taker.check(headers(NOW + off), "GET", "/", NO_BODY, NOW)
        assert caught.value.off_ms == off
    usual = verifier()
    usual.check(headers(NOW + 120_000), "GET", "/", NO_BODY, NOW)
    with pytest.raises(ClockSkew):
        usual.check(headers(NOW + 120_001), "GET", "/", NO_BODY, NOW)
    late = verifier(not_before_ms=NOW)
    late.check(headers(NOW), "GET", "/", NO_BODY, NOW)
    with pytest.raises(ClockSkew, match="before this server started"):
        late.check(headers(NOW - 1), "GET", "/", NO_BODY, NOW)


def test_what_can_be_signed() -> None:
    headers(0)
    headers(10**15 - 1)
    headers(target="/" + "x" * 2047)
    headers(method="A" * 16)
    for wrong in (
        {"now": -1},
        {"now": 10**15},
        {"target": "/" + "x" * 2048},
        {"target": "x"},
        {"target": "/ "},
        {"method": "A" * 17},
        {"method": "get"},
        {"deployment": bytes(15)},
        {"deployment": bytes(17)},
        {"host": "x" * 254},
    ):
        with pytest.raises(InputError):
            headers(**wrong)
    assert host_name("Server.Example.") == "server.example"
    assert host_name("0:0::1") == "::1"
    assert host_name("a." * 126 + "a") == "a." * 126 + "a"


def test_a_server_is_called_by_its_names() -> None:
    taker = verifier(hosts=("*.example", "server"))
    for host in ("a.example", "server"):
        taker.check_headers(headers(host=host), NOW)
    for host in ("example", "a.b.example", "other"):
        with pytest.raises(AuthenticationFailed, match="another host"):
            taker.check_headers(headers(host=host), NOW)
    with pytest.raises(AuthenticationFailed, match=r"\(a, b, c\)"):
        verifier(hosts="dcba").check_headers(headers(), NOW)


def test_how_many_requests_are_remembered() -> None:
    """The window and the body's time, the window again ahead of it, and two pieces of an eighth each."""
    assert nonces_needed(20.0, 100, 120_000, 120_000) == 100 + 20 * (120 + 240 + 60)
    assert nonces_needed(0.001, 5, 1000, 0) == 5 + 1
    assert nonces_needed(1.0, 0, 9, 8) == math.ceil((9 + 17 + 2 * 3) / 1000)
    for name in ("kept_ms", "per_client", "most_clients", "most"):
        with pytest.raises(ParameterError, match="1 at the least"):
            Nonces(**{"kept_ms": 1, "per_client": 1, "most_clients": 1, "most": 1, name: 0})


def test_what_is_remembered_is_refused_and_forgotten_in_pieces() -> None:
    nonces = Nonces(kept_ms=800, per_client=2, most_clients=2, most=3)  # pieces of 100 ms
    nonces.require_new("a", b"1", 1000, 1000)
    nonces.remember("a", b"1", 1000)
    with pytest.raises(Replayed, match="taken before"):
        nonces.require_new("a", b"1", 1000, 1000)
    nonces.require_new("b", b"1", 1000, 1000)
    nonces.remember("a", b"2", 1050)
    with pytest.raises(TooMany, match=r"2 requests within 0\.8 s") as caught:
        nonces.require_new("a", b"3", 1200, 1200)
    assert caught.value.wait_ms == 1100 + 800 - 1200
    nonces.remember("b", b"1", 1250)
    with pytest.raises(TooMany, match="3 requests of 2 clients") as caught:
        nonces.require_new("b", b"2", 1250, 1300)
    assert caught.value.wait_ms == 600
    nonces.require_new("a", b"x", 1300, 1900)  # the first piece is gone
    assert len(nonces) == 1
    with pytest.raises(Replayed, match="so old"):
        nonces.require_new("a", b"1", 1099, 1000)  # whatever a clock that was set back says
    with pytest.raises(Replayed, match="so old"):
        nonces.require_new("a", b"9", 1099, 1900)
    nonces.require_new("a", b"9", 1100, 1900)
    nonces.remember("a", b"9", 1300)
    with pytest.raises(TooMany):
        nonces.require_new("c", b"1", 1900, 1900)  # as many clients as there may be


def test_room_for_sixteen_busy_clients() -> None:
    def most(**changes: Any) -> int:
        return int(verifier(**changes)._nonces._most)

    assert most(nonces_per_client=10) == 2_000_000
    assert most(nonces_per_client=200_000) == 3_200_000
    assert most(nonces_per_client=10, most_nonces=7) == 7
    assert verifier()._nonces._per_client == nonces_needed(20.0, 100, 120_000, 120_000)
    assert verifier()._nonces._most_clients == 100_000
    for wrong in ({"window_ms": 0}, {"body_ms": -1}):
        with pytest.raises(ParameterError, match="1 ms at the least"):
            verifier(**wrong)
    verifier(window_ms=1, body_ms=0)


def test_keys_under_which_anyone_can_sign_are_none() -> None:
    p = 2**255 - 19
    for height in (0, 1, p - 1, p, p + 1, 2**255 - 1):
        for sign in (0, 1 << 255):
            with pytest.raises(InvalidMessage, match="not canonical or of small order"):
                require_public((height | sign).to_bytes(32, "little"))
    require_public((2).to_bytes(32, "little"))
    require_public((p - 2).to_bytes(32, "little"))
    for size in (31, 33):
        with pytest.raises(InvalidMessage, match=f"not {size}"):
            require_public(bytes(size))
    assert len(client_id(ADA.public)) == 32


# Of Ed25519, as keys are written.
SMALL_ORDER = (
    "0100000000000000000000000000000000000000000000000000000000000000",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
)


@pytest.mark.parametrize("point", SMALL_ORDER)
def test_the_eight_points_of_small_order_are_no_keys(point: str) -> None:
    with pytest.raises(InvalidMessage, match="small order"):
        require_public(bytes.fromhex(point))
    height = int.from_bytes(bytes.fromhex(point), "little") & (2**255 - 1)
    for near in {height - 1, height + 1} - {-1, 0, 1, 2**255 - 20, 2**255 - 19}:
        require_public(near.to_bytes(32, "little"))


def test_an_enrolment_is_signed_by_its_own_key() -> None:
    taker = verifier()
    given = ("POST", "/v1/enrol", NO_BODY, NOW)
    signed = headers(method="POST", target="/v1/enrol")
    assert taker.check_enrolment(signed, *given, ADA.public) == client_id(ADA.public)
    with pytest.raises(AuthenticationFailed, match="does not follow"):
        taker.check_enrolment(signed, *given, BOB.public)
    with pytest.raises(AuthenticationFailed, match="another host"):
        taker.check_enrolment(headers(host="other", method="POST"), *given, ADA.public)
    with pytest.raises(ClockSkew):
        taker.check_enrolment(headers(NOW - 10**6, method="POST"), *given, ADA.public)
    assert taker.remembered == 0


@pytest.mark.parametrize(
    ("kind", "fits", "beyond"),
    [
        ("Ticket", (bytes(16),), (bytes(15), bytes(17))),
        ("RoundId", (bytes(16),), (bytes(15), bytes(17))),
        ("Digest", (bytes(32),), (bytes(31), bytes(33))),
        ("Signature", (bytes(64),), (bytes(63), bytes(65))),
        ("ClientId", ("0" * 32,), ("0" * 31, "0" * 33, "g" * 32, "0" * 32 + "\n")),
        ("Size", (0, 2**40), (-1, 2**40 + 1)),
    ],
)
def test_what_a_message_may_hold(kind: str, fits: Any, beyond: Any) -> None:
    for one in fits:
        assert msgspec.convert(one, getattr(said, kind)) == one
    for one in beyond:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(one, getattr(said, kind))
    assert said.MOST_PROVEN == 1024


# -- identities ----------------------------------------------------------------------------------------


def test_files_of_identities(tmp_path: Path) -> None:
    path = tmp_path / "key"
    made = write_identity(path, Secret(bytes(range(32))))
    assert read_identity(path).public == made.public
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    assert len(text.splitlines()[2]) == 16
    for wrong, says in (
        (text.replace("identity 1", "identity 2"), "another version"),
        ("hello\n" + text, "holds no identity"),
        (text.replace("00", "01", 1), "damaged"),
        (text + "x", "damaged"),
        (text.upper().replace("SFSL IDENTITY", "sfsl identity"), "damaged"),
        ("x" * (2**16 + 1), "more than 65536 bytes"),
    ):
        path.write_text(wrong)
        with pytest.raises(KeyFileError, match=says):
            read_identity(path)
    path.write_text(text)
    path.chmod(0o640)
    with pytest.raises(KeyFileError, match="others may read or change it"):
        read_identity(path)
    with pytest.raises(KeyFileError, match="is not a file"):
        read_identity(tmp_path)
    for size in (31, 33):
        with pytest.raises(InputError, match=f"not {size}"):
            write_identity(tmp_path / "other", Secret(bytes(size)))
    with pytest.raises(KeyFileError, match="never overwritten"):
        write_identity(path, Secret(bytes(32)))


def test_lists_of_clients(tmp_path: Path) -> None:
    path, key = tmp_path / "list", ADA.public.hex()
    room = 4096 - len(key) - 2
    path.write_text(
        f"{key} #{'x' * (room - 1)}\n\n  # only a comment\n{BOB.public.hex().upper()} {'ab' * 64}\n"
    )
    assert Enrolment.listed(path).read() == {ADA.public: b"", BOB.public: b"\xab" * 64}
    for wrong, says in (
        (f"{key} #{'x' * room}\n", "line 1: longer than 4096"),
        (f"\n{key[:-2]}\n", "line 2: a public key has 64"),
        (f"{key} abcd\n", "line 1: a public key"),
        (f"{'00' * 32}\n", "line 1: an Ed25519"),
    ):
        path.write_text(wrong)
        with pytest.raises(InputError, match=says):
            Enrolment.listed(path)
    path.write_text(f"{key} # Ada \x1b[1m{'y' * 80}\nnonsense # no\n")
    assert names_on(path) == {ADA.public: ("Ada [1m" + "y" * 80)[:64]}
    with pytest.raises(ParameterError, match="admits nobody"):
        Enrolment.open(0)
    with Registry(tmp_path / "r") as registry:
        rule = Enrolment.open(1)
        rule.admit(registry, ADA.public, NOW)
        rule.admit(registry, ADA.public, NOW)
        with pytest.raises(Exception, match="takes 1 clients and has them"):
            rule.admit(registry, BOB.public, NOW)
    with pytest.raises(InputError, match='only mode "list"'):
        rule.read()


# -- the registry --------------------------------------------------------------------------------------


def test_numbers_that_a_registry_can_keep(tmp_path: Path) -> None:
    with Registry(tmp_path / "r") as registry:
        ada = registry.enrol(ADA.public, -(2**63))
        registry.enrol(BOB.public, 2**63 - 1)
        for wrong in (-(2**63) - 1, 2**63):
            with pytest.raises(InputError, match="no period or time"):
                registry.revoke(ada, wrong)
            with pytest.raises(InputError, match="no period or time"):
                registry.invite(wrong, b"r", [ada])
        registry.acknowledge(b"x", [ada])
        registry.acknowledge(bytes(64), [ada])
        registry.acknowledge(bytes(64), [ada])
        for wrong_id in (b"", bytes(65)):
            with pytest.raises(InputError, match=f"not {len(wrong_id)}"):
                registry.acknowledge(wrong_id, [ada])
        assert registry.acknowledged(ada) == 2
        assert registry.exposures() == ((0, 1), (2, 1))
        registry.invite(3, b"r", [ada])
        assert registry.invited(3) == {ada}
        assert registry.invited(4) == frozenset()
        registry.revoke(ada, 7)
        registry.revoke(ada, 8)
        assert registry.client(ada).revoked_ms == 7
        assert (registry.count(), registry.exposures()) == (1, ((0, 1),))


def test_a_registry_that_was_closed_says_so(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "r")
    registry.close()
    for act in (
        lambda: registry.count(),
        lambda: registry.revoke("x", 1),
        lambda: registry.copy_to(tmp_path / "copy"),
    ):
        with pytest.raises(StoreError, match="was closed"):
            act()
    assert not (tmp_path / "copy").exists()


def test_a_registry_of_more_than_a_page(tmp_path: Path) -> None:
    with Registry(tmp_path / "r") as registry:
        with registry._file.write() as db:
            for number in range(2, 1004):
                public = number.to_bytes(32, "little")
                row = (client_id(public), public, number)
                db.execute("INSERT INTO clients (id, public, enrolled_ms) VALUES (?, ?, ?)", row)
        found = [one.id for one in registry.clients()]
        assert (len(found), found) == (1002, sorted(set(found)))
        assert not registry.locked
    with Registry(tmp_path / "r") as registry:
        assert registry.count() == 1002


# -- the log -------------------------------------------------------------------------------------------

LOG_KEY, ONE, TWO = (Identity.generate(RANDOM) for _ in range(3))


def trust(**changes: Any) -> LogTrust:
    return LogTrust(**{"deployment": DEPLOYMENT.hex(), "log": LOG_KEY.public.hex()} | changes)


def test_whom_a_client_trusts_about_a_log(tmp_path: Path) -> None:
    bare = trust()
    assert (bare.authorities, bare.witnesses, bare.least_witnesses) == ((), (), 0)
    one = ONE.public.hex()
    full = trust(witnesses=(one,), least_witnesses=1, authorities=(TWO.public.hex(),))
    (tmp_path / "trust").write_text(full.written())
    assert LogTrust.read(tmp_path / "trust") == full
    for wrong in (
        {"witnesses": (one, one), "least_witnesses": 2},
        {"least_witnesses": 1},
        {"witnesses": (LOG_KEY.public.hex(),)},
        {"authorities": (LOG_KEY.public.hex(),)},
    ):
        with pytest.raises(ValueError, match="witness"):
            trust(**wrong)
    with pytest.raises(ParameterError, match="2 witnesses are to sign heads, but 1"):
        LogRules(frozenset({ONE.public}), 2)
    LogRules(frozenset({ONE.public}), 1)


def head(size: int = 0, root: bytes = logs.merkle.EMPTY, **changes: Any) -> LogHead:
    return msgspec.structs.replace(LogHead(DEPLOYMENT, size, root, 5), **changes)


def test_heads_that_are_not_the_logs() -> None:
    signed = logs.sign_head(LOG_KEY, head())
    trust().require_head(signed, None, b"")
    with pytest.raises(AuthenticationFailed, match="a head of deployment"):
        trust().require_head(logs.sign_head(LOG_KEY, head(deployment=bytes(16))), None, b"")
    with pytest.raises(AuthenticationFailed, match="has not signed"):
        trust().require_head(head(), None, b"")
    witnessed = trust(witnesses=(ONE.public.hex(), TWO.public.hex()), least_witnesses=2)
    half = logs.sign_head(ONE, signed)
    with pytest.raises(Exception, match="that 1 of this client's witnesses have signed, where it wants 2"):
        witnessed.require_head(half, None, b"")
    witnessed.require_head(logs.sign_head(TWO, half), None, b"")
    assert len(logs.sign_head(ONE, half).signatures) == 2  # again, in the place of the first
    assert logs.signers(half, {ONE.public, TWO.public}) == {ONE.public}
    forged = msgspec.structs.replace(half, time=6)
    with pytest.raises(AuthenticationFailed):
        logs.signers(forged, {ONE.public})


def test_logs_that_do_not_continue() -> None:
    tree = logs.merkle.Tree([bytes([n]) * 32 for n in range(3)])
    two, three = (head(n, tree.root_at(n)) for n in (2, 3))
    logs.require_continues(head(), three, b"")
    logs.require_continues(two, three, tree.consistency(2, 3))
    logs.require_continues(three, three, b"")
    with pytest.raises(Forked, match="rolled back"):
        logs.require_continues(three, two, b"")
    for known, new, proof in (
        (two, msgspec.structs.replace(three, root=bytes(32)), tree.consistency(2, 3)),
        (two, three, b""),
        (three, msgspec.structs.replace(three, root=bytes(32)), b""),
        (head(), head(root=bytes(32)), b""),
    ):
        with pytest.raises(Forked, match="rewritten"):
            logs.require_continues(known, new, proof)


def test_members_of_a_log() -> None:
    entries = [logs.vouch(TWO, DEPLOYMENT, one.public) for one in (ADA, BOB)]
    tree = logs.merkle.Tree([logs.leaf_of(one) for one in entries])
    proof = LogProof(head(2, tree.root), b"", (0, 1), tuple(entries), tree.proof([0, 1], 2))
    clients = [client_id(one.public) for one in (ADA, BOB)]
    keyed = trust(authorities=(TWO.public.hex(),))
    assert keyed.require_members(proof, clients) == {client_id(one.public): one.public for one in (ADA, BOB)}
    with pytest.raises(AuthenticationFailed, match="none of them gave"):
        trust(authorities=(ONE.public.hex(),)).require_members(proof, clients)
    replaced = msgspec.structs.replace
    for wrong, error, says in (
        (replaced(proof, places=(1, 0)), InvalidMessage, "order of their places"),
        (replaced(proof, places=(0, 0)), InvalidMessage, "order of their places"),
        (replaced(proof, places=(0,)), InvalidMessage, "order of their places"),
        (replaced(proof, entries=(entries[0], entries[0])), AuthenticationFailed, "other clients"),
        (replaced(proof, head=head(2, bytes(32))), AuthenticationFailed, "not in the log"),
    ):
        with pytest.raises(error, match=says):
            keyed.require_members(wrong, clients)
    with pytest.raises(AuthenticationFailed, match="other clients"):
        keyed.require_members(proof, clients[:1])
    assert keyed.require_members(LogProof(head(), b""), []) == {}
    with pytest.raises(AuthenticationFailed, match="has no voucher"):
        logs.require_voucher(LogEntry(ADA.public), DEPLOYMENT, [TWO.public])


def test_files_of_a_log(tmp_path: Path) -> None:
    line = with_sum("abc")
    assert line == f"abc # {hashlib.sha256(b'abc').hexdigest()[:16]}\n"
    (tmp_path / "log").write_text(f"# sfsl log 1 {DEPLOYMENT.hex()}\n")
    assert read_deployment(tmp_path / "log") == DEPLOYMENT
    for other in ("# sfsl log 1 xyz\n", "# else\n", ""):
        (tmp_path / "log").write_text(other)
        assert read_deployment(tmp_path / "log") == b""
    one = logs.sign_head(LOG_KEY, head())
    data = logs.head_json(one)
    assert logs.read_head(data, "x") == one
    (tmp_path / "heads").write_bytes(data)
    assert read_heads(tmp_path / "heads") == [one]
    (tmp_path / "heads").write_bytes(b"[" + data + b"," + data + b"]")
    assert read_heads(tmp_path / "heads") == [one, one]
    (tmp_path / "heads").write_bytes(b"[]")
    with pytest.raises(InputError, match="no heads"):
        read_heads(tmp_path / "heads")


# -- folders, versions ---------------------------------------------------------------------------------


def served(folder: Path) -> Path:
    Registry(folder / REGISTRY).close()
    empty = new_store()
    LmdbStore.create(folder / STORE, empty.spec, empty.read_dense().values).close()
    return folder


def test_names_of_versions(tmp_path: Path) -> None:
    folder = served(tmp_path)
    with pytest.raises(InputError, match="there are none yet"):
        version_path(folder, "a")
    longest = "a" * 64
    tag(folder, longest)
    tag(folder, "B.1_2-3")
    assert stat.S_IMODE((folder / "versions").stat().st_mode) == 0o700
    assert version_path(folder, longest) == folder / "versions" / longest
    (folder / "versions" / "file").write_text("")
    (folder / "versions" / "-x").mkdir()
    assert [one.name for one in versions(folder)] == ["B.1_2-3", longest, "current"]
    with pytest.raises(InputError, match=f"there are B.1_2-3, {longest}"):
        version_path(folder, "file")


def test_a_last_line_that_nobody_has_is_marked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal = Journal(new_store())
    record = RoundTally(3).record(1, None)
    journal.commit(Commit(1), record, None)
    journal.kept = Kept(line=b"torn")
    path = tmp_path / METRICS
    MetricsFile(path, []).close()
    assert [line.lost for line in recover_lines(path, journal)] == [True]
    assert "round 1 is marked as lost" in caplog.text
    journal.kept = Kept(line=record.encode())
    MetricsFile(path, [record, RoundTally(3).record(2, None)]).close()
    assert recover_lines(path, journal) == [record]  # a round that is not in the store has no line


def test_backups_go_into_folders_of_their_own(tmp_path: Path) -> None:
    """Into one that is not there or is empty; a file of another program's in it is enough to refuse."""
    (tmp_path / "server").mkdir()
    folder = served(tmp_path / "server")
    for name in ("backup", "again"):
        (tmp_path / name).mkdir()
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    made = back_up(folder, tmp_path / "backup", now=moment)
    assert restore(tmp_path / "backup", tmp_path / "again") == made
    for one in ("backup", "again"):
        assert stat.S_IMODE((tmp_path / one).stat().st_mode) == 0o700
        assert {
            stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / one).rglob("*") if path.is_file()
        } == {0o600}
    with pytest.raises(InputError, match="there already"):
        back_up(folder, tmp_path / "backup", now=moment)
    with pytest.raises(InputError, match="not empty"):
        restore(tmp_path / "backup", tmp_path / "again")
    manifest = tmp_path / "backup" / MANIFEST
    whole = without_json_sum(manifest.read_bytes(), MANIFEST).decode()
    for wrong, error, says in (
        (whole.replace('"format": 1', '"format": 2'), InputError, "has format 2, this version reads 1"),
        (whole.replace('"round": 0', '"round": 1'), StoreCorrupt, "another deployment or round"),
        (whole.replace(f'"{REGISTRY}"', '"../registry"'), StoreCorrupt, "not in the backup"),
        (whole.replace(f'"{REGISTRY}"', '"/etc/registry"'), StoreCorrupt, "not in the backup"),
        (whole[:-5], StoreCorrupt, "is damaged"),
    ):
        manifest.write_bytes(with_json_sum(wrong.encode()))
        with pytest.raises(error, match=says):
            restore(tmp_path / "backup", tmp_path / "other")
        assert not (tmp_path / "other").exists()


# -- answers -------------------------------------------------------------------------------------------


def test_how_large_an_answer_may_be() -> None:
    """512 bytes and what the exchange needs; each answer of an honest client fits."""
    cohort = Cohort(4)
    step = Stepper(cohort)
    running = CohortRound(step.server, cohort.session, cohort.params, RoundTally(4), cpu=lambda: 0.0)
    outbound: Any = running.begin()
    assert running.limit("c0") == 512 + 4 * (2 * 33 * 2 + 16 + 16)
    assert running.limit("nobody") == 0
    limits, sizes = [], []
    while running.exchange:
        answers = {}
        for name, frame in outbound.items():
            message = said.CODEC.decode(frame, limit=10**7)
            handler = running.course.step(running.exchange).handler
            client = step.clients[name]
            if handler == "handle_submodel":
                answer = client.create_update(cohort.train(name, client.handle_submodel(message)))
            else:
                answer = getattr(client, handler)(message)
            answers[name] = said.CODEC.encode(answer)
        for name, data in answers.items():
            assert len(data) <= running.limit(name)
            running.receive(running.exchange, name, data)
        limits.append(running.limit("c0") - 512)
        sizes.append(len(answers["c0"]))
        outbound = running.close()
    union = cohort.params.union.build()
    assert limits[1] == 4 * union.length
    assert limits[2] == limits[5] == 4 * (33 + 16)
    unions = step.server.sums.model.unions
    assert limits[3] == sum(
        (min(table.rows, len(unions["goods"])) + 7) // 8 + 16 for table in cohort.model.summed
    )
    rows = sum(len(unions[table.name]) * table.words for table in cohort.model.summed)
    assert limits[4] == 4 * (cohort.model.dense_words + 2 * 8 + rows)
    assert running.finished == set(cohort.names)
    assert running.tally.bytes_up["inbound"] == 4 * sizes[1]
    assert next_bins(cohort.params, step.server.outcome) != cohort.params.scores
    assert next_bins(cohort.params, None) is None
    assert next_bins(msgspec.structs.replace(cohort.params, scores=None), step.server.outcome) is None
    assert next_bins(cohort.params, replace(step.server.outcome, scores=None)) is None


@pytest.mark.parametrize(
    ("count", "size"), [(0, 0), (1, 2), (6, 2), (8, 2), (9, 3), (16, 3), (17, 4), (99, 9)]
)
def test_a_bitmap_has_a_bit_for_each_row_of_the_union(count: int, size: int) -> None:
    """Of 60 goods, and of 6 categories that follow from them."""
    cohort = Cohort(4)
    server: Any = SimpleNamespace(invitations=lambda: {"c0": Union(bytes(16), count, b"")})
    running = CohortRound(server, cohort.session, cohort.params, RoundTally(4), cpu=lambda: 0.0)
    running.begin()
    assert running.limit("c0") == 512 + 2 * 16 + size


def test_what_may_be_told_of_a_round() -> None:
    assert str(Told("sfsl")) == "submodels"
    assert str(Told("hot", "survey", 1.234, 1e-6)) == "a survey, epsilon 1.23 at delta 1e-06 for each"
    assert str(Told("hot", "train", 2.0, 1e-6, 1234)) == "1,234 hot rows, epsilon 2 at delta 1e-06 for each"
    assert (Told("sfsl").kind, Told("sfsl").epsilon, Told("sfsl").hot_rows) == ("", None, 0)
    with pytest.raises(StoreCorrupt, match="record of the last round"):
        Kept(line=b"x").record()
    assert Kept().record() is None
