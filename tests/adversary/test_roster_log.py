"""What an operator would try on the list of clients that others are to trust: to invent clients, to show each
client another list, to rewrite it, to forget. Every attack is run against the code, and against a copy in
which one check is missing."""

import json
import tempfile
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import pytest
from attacks import Attack, assert_gains_when_weakened, assert_stopped, collector, remove
from typer.testing import CliRunner

from sfsl.cli import app
from sfsl.cli.log import witness as witness_command
from sfsl.client.home import read_roster
from sfsl.client.log import MemberLog
from sfsl.crypto import merkle
from sfsl.crypto.secret import Identity, Secret
from sfsl.errors import (
    AuthenticationFailed,
    ConflictingMessage,
    Forked,
    InputError,
    InvalidMessage,
    Refused,
    StateError,
    StoreCorrupt,
    Unavailable,
)
from sfsl.service import log, log_file
from sfsl.service.identities import write_identity
from sfsl.service.log import LogTrust, head_json, sign_head, vouch
from sfsl.service.log_file import LogRules, RosterLog
from sfsl.service.messages import LogEntry, LogHead, LogProof, LogQuery
from sfsl.service.signing import client_id
from sfsl.testing import SeededRandomness

NOW = 1_800_000_000_000
DEPLOYMENT, ELSEWHERE = bytes(range(16)), bytes(16)
RANDOM = SeededRandomness("roster log")
AUTHORITY, WITNESS, OPERATOR = (Identity.generate(RANDOM) for _ in range(3))
HONEST = [Identity.generate(RANDOM) for _ in range(6)]
SYBILS = [Identity.generate(RANDOM) for _ in range(6)]

ATTACKS, attack = collector()


@pytest.fixture(autouse=True)
def _a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def names(identities: list[Identity]) -> list[str]:
    return [client_id(one.public) for one in identities]


def vouched(identities: list[Identity], by: Identity = AUTHORITY, at: bytes = DEPLOYMENT) -> list[LogEntry]:
    return [vouch(by, at, one.public) for one in identities]


class Operator:
    """Has the server's folder and the log's key, and does as it likes with both."""

    def __init__(
        self,
        entries: list[LogEntry],
        seed: str = "the log's key",
        *,
        witnessed: bool = True,
        least: int = 1,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp())
        rules = LogRules(frozenset({WITNESS.public}), least)
        self.log = RosterLog(self.folder, DEPLOYMENT, rules, SeededRandomness(seed), NOW)
        self.add(entries, witnessed=witnessed)

    def add(self, entries: list[LogEntry], *, witnessed: bool = True) -> None:
        if witnessed:
            self.witness()
        self.log.enter(entries, NOW)
        if witnessed:
            self.witness()

    def witness(self) -> None:
        while self.log.shown != self.log.offered:
            self.log.cosign(sign_head(WITNESS, self.log.offered), NOW)

    def prove(self, member: MemberLog, clients: list[Identity]) -> LogProof:
        return self.log.prove(member.query(names(clients)))


def victim(of: Operator, *, authority: bool = True, witness: bool = True) -> MemberLog:
    trust = LogTrust(
        DEPLOYMENT.hex(),
        of.log.public.hex(),
        (AUTHORITY.public.hex(),) if authority else (),
        (WITNESS.public.hex(),),
        int(witness),
    )
    return MemberLog(Path(tempfile.mkdtemp()) / "log", trust)


def taken(member: MemberLog, proof: LogProof, cohort: list[Identity]) -> bool:
    """Whether the victim goes on, in a cohort that is all the server's but for itself."""
    member.take(proof, names(cohort))
    return member.members == dict(zip(names(cohort), (one.public for one in cohort), strict=True))


def test_a_roster_file_is_whatever_the_operator_writes(tmp_path: Path) -> None:
    """What the log is for: without one, clients believe a file, and it says what its author likes."""
    cohort = [HONEST[0], *SYBILS]
    (tmp_path / "roster").write_text("".join(f"{one.public.hex()}\n" for one in cohort))
    assert set(read_roster(tmp_path / "roster")) == set(names(cohort))


def test_an_honest_cohort_is_proved() -> None:
    operator = Operator(vouched(HONEST))
    member = victim(operator)
    assert taken(member, operator.prove(member, HONEST), HONEST)
    known = member.known()
    assert known is not None
    assert known.size == len(HONEST)
    operator.add(vouched(SYBILS[:1]))  # whom the authority has enrolled: no Sybil after all
    assert taken(member, operator.prove(member, [HONEST[2], SYBILS[0]]), [HONEST[2], SYBILS[0]])
    grown = member.known()
    assert grown is not None
    assert grown.size == len(HONEST) + 1


# -- clients that the operator invents -------------------------------------------------------------------


@attack(refusal=AuthenticationFailed, weaken=remove(log, "require_voucher"))
def sybils_in_the_open() -> bool:
    """They are in the log for all to see, and nobody but the operator has enrolled them."""
    operator = Operator([*vouched(HONEST[:1]), *(LogEntry(one.public) for one in SYBILS)])
    member, cohort = victim(operator), [HONEST[0], *SYBILS]
    return taken(member, operator.prove(member, cohort), cohort)


@attack(refusal=AuthenticationFailed, weaken=remove(log, "require_voucher"))
def sybils_vouched_for_by_the_log() -> bool:
    """The server's own key is no authority."""
    operator = Operator([])
    own = operator.log._identity
    operator.add([*vouched(HONEST[:1]), *vouched(SYBILS, by=own)])
    member, cohort = victim(operator), [HONEST[0], *SYBILS]
    return taken(member, operator.prove(member, cohort), cohort)


@attack(
    refusal=AuthenticationFailed,
    weaken=lambda patch: patch.setattr(log, "verify", lambda key, signature, *_: None),
)
def vouchers_of_another_deployment() -> bool:
    operator = Operator([*vouched(HONEST[:1]), *vouched(SYBILS, at=ELSEWHERE)])
    member, cohort = victim(operator), [HONEST[0], *SYBILS]
    return taken(member, operator.prove(member, cohort), cohort)


def trusting_roots(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(merkle, "root_of", lambda leaves, size, proof: HEADS[-1].root)


HEADS: list[LogHead] = []


@attack(refusal=AuthenticationFailed, weaken=trusting_roots)
def a_client_that_is_not_in_the_log() -> bool:
    """Vouched for, as it was taken in at the office, and kept out of the log that others look at."""
    operator = Operator(vouched(HONEST))
    member, cohort = victim(operator), [HONEST[0], SYBILS[0]]
    honest = operator.prove(member, [HONEST[0], HONEST[1]])
    HEADS.append(honest.head)
    entries = (honest.entries[0], *vouched(SYBILS[:1]))
    return taken(member, msgspec.structs.replace(honest, entries=entries), cohort)


@attack(refusal=AuthenticationFailed, weaken=lambda patch: patch.setattr(MemberLog, "take", believing))
def a_proof_about_someone_else() -> bool:
    """Sound, and of other clients than those in the cohort."""
    operator = Operator(vouched(HONEST))
    member = victim(operator)
    proof = operator.prove(member, HONEST[:2])
    member.take(proof, names([HONEST[0], *SYBILS]))
    return True


def believing(self: MemberLog, proof: LogProof, clients: Any) -> None:
    self.trust.require_head(proof.head, self.known(), proof.consistency)


# -- another log for each client -------------------------------------------------------------------------


@attack(refusal=Refused, weaken=lambda patch: patch.setattr(log, "signers", lambda head, keys: keys))
def a_log_for_one_client() -> bool:
    """At first contact a client knows no head. A log made for it alone is sound in itself; but no witness who
    has signed the real one signs it."""
    operator = Operator([*vouched(HONEST[:1]), *vouched(SYBILS)], witnessed=False, least=0)
    member, cohort = victim(operator), [HONEST[0], *SYBILS]
    return taken(member, operator.prove(member, cohort), cohort)


def rewritten() -> tuple[MemberLog, LogProof, list[Identity]]:
    """A victim that saw the real log, and a proof of one that was rewritten since, with the same key, and
    which a witness without a memory has signed."""
    operator = Operator(vouched(HONEST))
    member = victim(operator)
    assert taken(member, operator.prove(member, HONEST), HONEST)
    other = Operator([*vouched(HONEST[:1]), *vouched(SYBILS), *vouched(HONEST[1:])])
    cohort = [HONEST[0], *SYBILS]
    return member, other.prove(member, cohort), cohort


@attack(refusal=Forked, weaken=remove(log, "require_continues"))
def a_log_that_is_rewritten() -> bool:
    return taken(*rewritten())


@attack(refusal=Forked, weaken=remove(log, "require_continues"))
def a_log_that_is_rewritten_at_the_same_size() -> bool:
    operator = Operator(vouched(HONEST))
    member = victim(operator)
    assert taken(member, operator.prove(member, HONEST), HONEST)
    other = Operator([*vouched(HONEST[:1]), *vouched(SYBILS[:5])])
    cohort = [HONEST[0], *SYBILS[:5]]
    return taken(member, other.prove(member, cohort), cohort)


@attack(refusal=Forked, weaken=remove(log, "require_continues"))
def a_log_that_forgets() -> bool:
    """An older state of the same log, from before others came, who would see that they are left out."""
    operator = Operator(vouched(HONEST[:2]))
    member = victim(operator)
    early = operator.prove(member, HONEST[:2])
    operator.add(vouched(HONEST[2:]))
    assert taken(member, operator.prove(member, HONEST), HONEST)
    return taken(member, early, HONEST[:2])


@attack(
    refusal=AuthenticationFailed, weaken=lambda patch: patch.setattr(log, "signers", lambda head, keys: keys)
)
def a_head_by_another_key() -> bool:
    operator = Operator(vouched(HONEST))
    member = victim(operator)
    other = Operator([*vouched(HONEST[:1]), *vouched(SYBILS)], "another key")
    cohort = [HONEST[0], *SYBILS]
    return taken(member, other.prove(member, cohort), cohort)


@attack(
    refusal=AuthenticationFailed,
    weaken=lambda patch: patch.setattr(log, "verify", lambda key, signature, *_: None),
)
def a_head_with_a_signature_of_an_older_one() -> bool:
    operator = Operator(vouched(HONEST))
    member = victim(operator)
    old = operator.prove(member, HONEST).head
    other = Operator([*vouched(HONEST[:1]), *vouched(SYBILS)])
    cohort = [HONEST[0], *SYBILS]
    proof = other.prove(member, cohort)
    head = msgspec.structs.replace(proof.head, signatures=old.signatures)
    return taken(member, msgspec.structs.replace(proof, head=head), cohort)


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_attack_is_stopped(attack: Attack) -> None:
    assert_stopped(attack)


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_attack_works_against_a_weakened_client(attack: Attack) -> None:
    assert_gains_when_weakened(attack)


def test_a_fork_is_named_and_its_evidence_kept() -> None:
    member, proof, cohort = rewritten()
    before = member.path.read_bytes()
    for _ in range(2):
        with pytest.raises(Forked) as caught:
            member.take(proof, names(cohort))
    said = str(caught.value)
    assert DEPLOYMENT.hex() in said
    assert "rewritten" in said
    assert "log-fork.json" in said
    assert member.path.read_bytes() == before
    *evidence, _ = json.loads(member.path.with_name("log-fork.json").read_bytes())  # the last is a checksum
    assert [one["size"] for one in evidence] == [6, 12]
    assert all(member.trust.log in one["signatures"] for one in evidence)


def gone_back() -> bool:
    """The server shows the fork, is found out, and shows the old log again to the client's next start."""
    operator = Operator(vouched(HONEST))
    member = victim(operator)
    assert taken(member, operator.prove(member, HONEST), HONEST)
    other = Operator([*vouched(HONEST[:1]), *vouched(SYBILS), *vouched(HONEST[1:])])
    with pytest.raises(Forked, match="rewritten"):
        member.take(other.prove(member, HONEST[:1]), names(HONEST[:1]))
    again = MemberLog(member.path, member.trust)
    return taken(again, operator.prove(again, HONEST), HONEST)


def test_a_client_that_was_shown_a_fork_takes_no_more_part() -> None:
    with pytest.raises(Forked, match=r"takes no more part.*move that file away"):
        gone_back()


def test_without_the_check_it_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemberLog, "_require_no_fork", lambda _: None)
    assert gone_back()


def test_where_the_evidence_is_moved_away_it_goes_on() -> None:
    member, proof, cohort = rewritten()
    with pytest.raises(Forked):
        member.take(proof, names(cohort))
    member.evidence.rename(member.evidence.with_name("seen.json"))
    with pytest.raises(Forked, match="rewritten"):  # of the log that it knows
        member.take(proof, names(cohort))


@pytest.mark.parametrize(
    "change",
    [
        {"places": (0, 0)},
        {"places": (1, 0)},
        {"places": (0,)},
        {"places": (0, 2**40)},
        {"entries": ()},
        {"inclusion": b""},
        {"inclusion": bytes(31)},
        {"inclusion": bytes(32 * 500)},
    ],
    ids=str,
)
def test_a_malformed_proof_changes_nothing(change: dict[str, Any]) -> None:
    operator = Operator(vouched(HONEST))
    member = victim(operator)
    proof = msgspec.structs.replace(operator.prove(member, HONEST[:2]), **change)
    with pytest.raises((InvalidMessage, AuthenticationFailed)):
        member.take(proof, names(HONEST[:2]))
    assert not member.members


# -- the witness -----------------------------------------------------------------------------------------


def test_a_witness_signs_no_fork(tmp_path: Path) -> None:
    """It keeps what it signed, like a client, and asks for no witness."""
    operator = Operator(vouched(HONEST))
    trust = msgspec.structs.replace(victim(operator).trust, least_witnesses=0)
    witness = MemberLog(tmp_path / "witnessed.json", trust)
    witness.take(operator.log.prove(witness.query(), offered=True))
    other = Operator([*vouched(SYBILS), *vouched(HONEST)])
    with pytest.raises(Forked):
        witness.take(other.log.prove(witness.query(), offered=True))
    operator.add(vouched(SYBILS[:1]), witnessed=False)
    with pytest.raises(Forked):  # whoever runs it looks first
        witness.query()
    witness.evidence.unlink()
    assert witness.take(operator.log.prove(witness.query(), offered=True)).size == 7


class Unlocked:
    """The file of a witness that keeps nobody out."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def exists(self) -> bool:
        return self.path.exists()

    def replace(self, data: bytes) -> None:
        self.path.write_bytes(data)

    def __enter__(self) -> "Unlocked":
        return self

    def __exit__(self, *_: object) -> None: ...


def signed_by_two_runs(folder: Path, patch: pytest.MonkeyPatch) -> list[LogHead | Exception]:
    """A witness is started every minute, and a server that keeps one run waiting has two of them at once. It
    offers each another log, both of which continue the last head that was signed."""
    logs = {name: Operator(vouched(HONEST)) for name in "ab"}
    witness = write_identity(folder / "witness.key", Secret(bytes(32))).public.hex()
    trust = msgspec.structs.replace(victim(logs["a"]).trust, witnesses=(witness,), least_witnesses=0)
    (folder / "log.toml").write_text(trust.written())
    before = MemberLog(folder / "witnessed.json", trust)
    before.take(logs["a"].log.prove(before.query(), offered=True))
    for one, sybil in zip(logs.values(), SYBILS, strict=False):
        one.add(vouched([sybil]), witnessed=False)
    given: list[LogHead | Exception] = []

    class Server:
        def __init__(self, url: str, *_: object, **__: object) -> None:
            self.roster = logs[url[-1]].log

        async def __aenter__(self) -> "Server":
            return self

        async def __aexit__(self, *_: object) -> None: ...

        async def log(self, query: LogQuery, *, offered: bool) -> LogProof:
            return self.roster.prove(query, offered=offered)

        async def cosign(self, head: LogHead) -> bool:
            given.append(head)
            return True

    def run(name: str) -> None:
        try:
            witness_command(
                f"https://{name}", folder / "log.toml", folder / "witness.key", folder / "witnessed.json"
            )
        except (StateError, Forked) as error:
            given.append(error)

    patch.setattr("sfsl.client.link.Link", Server)
    check, waiting = LogTrust.require_head, ["b"]

    def at_the_worst_moment(self: LogTrust, *told: Any) -> None:
        check(self, *told)
        while waiting:
            other = Thread(target=run, args=(waiting.pop(),))
            other.start()
            other.join()

    patch.setattr(LogTrust, "require_head", at_the_worst_moment)
    run("a")
    return given


def test_two_runs_of_a_witness_sign_one_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused, head = signed_by_two_runs(tmp_path, monkeypatch)
    assert isinstance(refused, StateError)
    assert "in use by another process" in str(refused)
    assert isinstance(head, LogHead)


def test_a_witness_without_its_last_head_signs_only_where_it_is_told_that_it_never_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a server whose witness lost a file, or looks for it in another folder, has a second log signed."""
    _, head = signed_by_two_runs(tmp_path, monkeypatch)
    assert isinstance(head, LogHead)
    log, key, state = (tmp_path / name for name in ("log.toml", "witness.key", "witnessed.json"))
    state.rename(tmp_path / "away")
    with pytest.raises(InputError, match=r"there is no .*witnessed.json.*--first is for"):
        witness_command("https://b", log, key, state)
    assert not state.exists()
    (tmp_path / "away").rename(state)
    with pytest.raises(InputError, match="leave --first out"):
        witness_command("https://a", log, key, state, first=True)


def test_nobody_signs_who_is_no_witness(tmp_path: Path) -> None:
    """Its signature would be worth nothing, and it would be told that it signed."""
    (tmp_path / "log.toml").write_text(victim(Operator([])).trust.written())
    write_identity(tmp_path / "other.key", Secret(bytes(32)))
    state = tmp_path / "witnessed.json"
    with pytest.raises(InputError, match=r"not the key of a witness that .*log.toml names"):
        witness_command("https://nobody", tmp_path / "log.toml", tmp_path / "other.key", state)
    assert not state.exists()


def test_without_its_lock_they_sign_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sfsl.cli.log.DurableFile", Unlocked)
    one, other = signed_by_two_runs(tmp_path, monkeypatch)
    assert isinstance(one, LogHead)
    assert isinstance(other, LogHead)
    assert one.size == other.size == len(HONEST) + 1
    assert one.root != other.root


def test_the_head_of_another_deployment_is_no_fork() -> None:
    """A witness of two that mixes up their files accuses nobody."""
    operator = Operator(vouched(HONEST))
    member = victim(operator)
    member.take(operator.prove(member, HONEST), names(HONEST))
    other = MemberLog(member.path, msgspec.structs.replace(member.trust, deployment=ELSEWHERE.hex()))
    with pytest.raises(StateError, match=f"a head of deployment {DEPLOYMENT.hex()}, not {ELSEWHERE.hex()}"):
        other.query()
    assert not member.evidence.exists()


def test_only_the_witnesses_of_a_log_add_to_its_heads() -> None:
    operator = Operator(vouched(HONEST), witnessed=False)
    offered = operator.log.offered
    with pytest.raises(Refused):
        operator.log.cosign(sign_head(OPERATOR, offered), NOW)
    with pytest.raises(ConflictingMessage):
        operator.log.cosign(sign_head(WITNESS, msgspec.structs.replace(offered, size=9)), NOW)
    signed = sign_head(WITNESS, offered)
    wrong = msgspec.structs.replace(signed.signatures[-1], signature=bytes(64))
    with pytest.raises(AuthenticationFailed):
        operator.log.cosign(msgspec.structs.replace(signed, signatures=(wrong,)), NOW)
    assert operator.log.offered == offered
    assert operator.log.bars(names(HONEST)[0]) == "this client's enrolment waits for the witnesses of the log"
    with pytest.raises(Unavailable, match="witnesses"):  # clients wait
        operator.log.prove(LogQuery(0, ()))


def test_an_audit_finds_two_heads_of_different_logs(tmp_path: Path) -> None:
    operator, other = Operator(vouched(HONEST)), Operator(vouched(SYBILS))
    assert operator.log.shown is not None
    assert other.log.shown is not None
    (tmp_path / "theirs.json").write_bytes(head_json(other.log.shown))
    (tmp_path / "ours.json").write_bytes(head_json(operator.log.shown))
    state, runner = str(operator.folder), CliRunner()
    sound = runner.invoke(app, ["keys", "log", "verify", state, "--head", str(tmp_path / "ours.json")])
    assert sound.exit_code == 0, sound.exception
    forked = ["keys", "log", "verify", state, "--head", str(tmp_path / "theirs.json")]
    found = runner.invoke(app, forked).exception
    assert isinstance(found, Forked)
    assert "theirs.json" in str(found)


# -- the server's own files ------------------------------------------------------------------------------


def reopened(operator: Operator) -> RosterLog:
    operator.log.close()
    return RosterLog(operator.folder, DEPLOYMENT, operator.log.rules, SeededRandomness("other"), NOW)


def test_a_log_that_was_cut_or_changed_is_refused_by_its_own_server() -> None:
    operator = Operator(vouched(HONEST))
    path, whole = operator.folder / log_file.LOG, (operator.folder / log_file.LOG).read_bytes()
    lines = whole.splitlines(keepends=True)
    for changed in (b"".join(lines[:-1]), b"".join([lines[0], *lines[2:], lines[1]]), lines[0], b""):
        path.write_bytes(changed)
        with pytest.raises(StoreCorrupt):
            reopened(operator)
    for name in (log_file.LOG, log_file.KEY, log_file.HEADS):
        path.write_bytes(whole)
        (operator.folder / name).rename(operator.folder / "away")
        with pytest.raises(StoreCorrupt):
            reopened(operator)
        (operator.folder / "away").rename(operator.folder / name)
    with reopened(operator) as log:
        assert [one.public_key for one in log.entries] == [one.public for one in HONEST]


def test_a_line_that_a_crash_cut_short_goes() -> None:
    operator = Operator(vouched(HONEST))
    path, whole = operator.folder / log_file.LOG, (operator.folder / log_file.LOG).read_bytes()
    for torn in (b"a", b"ab" * 32, b"ab" * 32 + b" " + b"cd" * 20):
        with path.open("ab") as file:
            file.write(torn)
        with reopened(operator) as log:
            assert len(log.entries) == len(HONEST)
        assert path.read_bytes() == whole


def test_an_entry_that_is_on_disk_without_a_head_is_kept() -> None:
    """The power went between the two."""
    operator = Operator(vouched(HONEST[:2]))
    line = log_file.line_of(vouched(HONEST[2:3])[0])
    with (operator.folder / log_file.LOG).open("a") as file:
        file.write(log_file.with_sum(line))
    with reopened(operator) as log:
        assert len(log.entries) == 3
        assert log.offered.size == 3
        assert log.shown is not None
        assert log.shown.size == 2
