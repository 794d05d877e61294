"""The server's log of enrolled clients: who gets in, what waits for witnesses, what a file says."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from sfsl.crypto.secret import Identity
from sfsl.errors import AuthenticationFailed, InputError, ParameterError, Refused, StoreCorrupt, StoreError
from sfsl.service.identities import Enrolment
from sfsl.service.log import LogTrust, head_json, read_head, sign_head, signers, vouch
from sfsl.service.log_file import LOG, LogRules, RosterLog, keys_of, line_of, read_log
from sfsl.service.messages import LogEntry, LogQuery
from sfsl.service.registry import Registry
from sfsl.service.signing import client_id
from sfsl.testing import SeededRandomness

NOW = 1_800_000_000_000
RANDOM = SeededRandomness("log")
ADA, BOB, EVE, AUTHORITY, ONE, TWO = (Identity.generate(RANDOM) for _ in range(6))
DEPLOYMENT = bytes(range(16))


def opened(folder: Path, **rules: Any) -> RosterLog:
    given = LogRules(**{name: frozenset(one.public for one in some) for name, some in rules.items()})
    if given.witnesses:
        given = LogRules(given.witnesses, len(given.witnesses), given.authorities)
    return RosterLog(folder, DEPLOYMENT, given, SeededRandomness("key"), NOW)


def test_the_list_has_vouchers_and_who_has_none_stays_out(tmp_path: Path) -> None:
    listed = tmp_path / "clients.txt"
    ada = vouch(AUTHORITY, DEPLOYMENT, ADA.public)
    listed.write_text(
        f"{line_of(ada)}  # Ada\n{BOB.public.hex()}\n{line_of(vouch(EVE, DEPLOYMENT, EVE.public))}\n"
    )
    rule = Enrolment.listed(listed)
    with Registry(tmp_path / "registry") as registry, opened(tmp_path, authorities=[AUTHORITY]) as log:
        name = rule.admit(registry, ADA.public, NOW, log)
        assert rule.admit(registry, ADA.public, NOW, log) == name
        with pytest.raises(Refused, match=r"has no voucher.*sfsl keys log vouch"):
            rule.admit(registry, BOB.public, NOW, log)
        with pytest.raises(Refused, match="none of them gave"):
            rule.admit(registry, EVE.public, NOW, log)
        assert log.entries == [ada]
        assert registry.count() == 1
        # Bob is vouched for later, while the server runs.
        with listed.open("a") as file:
            file.write(line_of(vouch(AUTHORITY, DEPLOYMENT, BOB.public)) + "\n")
        rule.admit(registry, BOB.public, NOW, log)
        assert log.bars(client_id(BOB.public)) == ""
    assert set(Enrolment.listed(tmp_path / LOG).read()) == {ADA.public, BOB.public}  # a log is a list


def test_who_was_enrolled_before_there_was_an_authority_needs_a_voucher(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.enter([LogEntry(ADA.public)], NOW)
    with opened(tmp_path, authorities=[AUTHORITY]) as log:
        assert "has no voucher" in log.bars(client_id(ADA.public))
        log.enter([vouch(AUTHORITY, DEPLOYMENT, ADA.public)], NOW)
        log.enter([LogEntry(ADA.public)], NOW)
        assert log.bars(client_id(ADA.public)) == ""
        assert len(log.entries) == 2
        proof = log.prove(LogQuery(0, (client_id(ADA.public),)))
        assert proof.places == (1,)


def test_a_head_is_offered_until_all_witnesses_have_signed_it(tmp_path: Path) -> None:
    with opened(tmp_path, witnesses=[ONE, TWO]) as log:
        assert log.shown is None
        for witness in (ONE, TWO):
            log.cosign(sign_head(witness, log.offered), NOW)
        assert log.shown == log.offered
        log.enter([LogEntry(ADA.public)], NOW)
        offered = log.offered
        assert (offered.size, log.shown.size) == (1, 0)
        log.cosign(sign_head(ONE, offered), NOW)
        log.enter([LogEntry(BOB.public)], NOW)  # who waits for the next one
        assert (log.offered.size, log.shown.size) == (1, 0)
        assert log.bars(client_id(ADA.public))
    with opened(tmp_path, witnesses=[ONE, TWO]) as log:  # also over a restart
        assert signers(log.offered, {ONE.public, TWO.public}) == {ONE.public}
        log.cosign(sign_head(TWO, log.offered), NOW)
        assert log.shown is not None
        assert (log.offered.size, log.shown.size) == (2, 1)
        assert not log.bars(client_id(ADA.public))
        assert log.bars(client_id(BOB.public))
        assert log.prove(LogQuery(0, ()), offered=True).head.size == 2
        with pytest.raises(Refused, match="not in its head yet"):
            log.prove(LogQuery(0, (client_id(BOB.public),)))


def test_a_disk_that_fails_enrols_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Registry(tmp_path / "registry") as registry, opened(tmp_path) as log:
        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
            with pytest.raises(StoreError, match="nobody was enrolled"):
                Enrolment.open(5).admit(registry, ADA.public, NOW, log)
        assert registry.count() == 0
        assert log.entries == []
        Enrolment.open(5).admit(registry, ADA.public, NOW, log)  # once there is room, without a new start
        assert (registry.count(), [entry.public_key for entry in log.entries]) == (1, [ADA.public])
        assert log.shown is not None
        assert log.shown.size == 1


@pytest.mark.parametrize(
    "line", ["", "zz", "ab" * 32 + "  ", "00" * 32, "AB" * 32, "ab" * 32 + " " + "cd" * 10]
)
def test_a_line_that_is_no_entry_is_named(tmp_path: Path, line: str) -> None:
    opened(tmp_path).close()
    with (tmp_path / LOG).open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(StoreCorrupt, match="line 2"):
        read_log(tmp_path / LOG)
    with pytest.raises(StoreCorrupt):
        opened(tmp_path)


def test_another_deployments_log_is_refused(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with pytest.raises(StoreCorrupt, match="not the log of this deployment"):
        RosterLog(tmp_path, bytes(16), LogRules(), SeededRandomness("key"), NOW)


def test_settings_that_cannot_be() -> None:
    assert keys_of(f" {ADA.public.hex()}  {BOB.public.hex()} ", "x") == {ADA.public, BOB.public}
    for text in ("abc", "00" * 32, ADA.public.hex() + "00"):
        with pytest.raises(ParameterError, match=r"serve\.witnesses: .*sfsl keys show"):
            keys_of(text, "serve.witnesses")
    with pytest.raises(ParameterError, match="2 witnesses are to sign heads, but 1 are named"):
        LogRules(frozenset({ONE.public}), 2)


def test_heads_and_trust_as_files(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        head = sign_head(ONE, log.offered)
        assert read_head(head_json(head), "here") == head
        assert signers(head, {ONE.public, log.public}) == {ONE.public, log.public}
        changed = msgspec.structs.replace(head, time=NOW + 1)
        with pytest.raises(AuthenticationFailed):
            signers(changed, {ONE.public})
        trust = LogTrust(
            DEPLOYMENT.hex(), log.public.hex(), (AUTHORITY.public.hex(),), (ONE.public.hex(),), 1
        )
    assert trust.loosened() == []
    alone = msgspec.structs.replace(trust, authorities=(), least_witnesses=0)
    assert alone.loosened() == ["log without witnesses", "log without authorities"]
    (tmp_path / "log.toml").write_text(trust.written())
    assert LogTrust.read(tmp_path / "log.toml") == trust
    for wrong in (b"", b"{}", b'{"deployment": "00"}', head_json(head).replace(b'"size": 0', b'"size": -1')):
        with pytest.raises(InputError, match="here does not hold the head"):
            read_head(wrong, "here")
    own, key = f'deployment = "{DEPLOYMENT.hex()}"\n', ONE.public.hex()
    for text in (
        "",
        "log = 1",
        f'{own}log = "{key}"\nleast-witnesses = 1',
        f'{own}log = "{key}"\nwitnesses = ["{key}"]',
    ):
        (tmp_path / "log.toml").write_text(text)
        with pytest.raises(InputError, match="does not say whom to trust"):
            LogTrust.read(tmp_path / "log.toml")
    with pytest.raises(InputError, match="cannot read"):
        LogTrust.read(tmp_path / "none")
