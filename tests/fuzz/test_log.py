"""Wrong answers about the log of enrolled clients, at a client: a typed refusal, and what it knows stays."""

import random
from pathlib import Path
from typing import Any

import msgspec

from fuzz.campaign import SEED, Campaign, sizes
from fuzz.corpus import LIMIT
from fuzz.frames import Frame, mutated
from sfsl.client.log import MemberLog
from sfsl.errors import RemoteError
from sfsl.service.log import LogTrust, head_json
from sfsl.service.messages import CODEC, LogProof
from sfsl.service.signing import client_id
from vectors.make_log import CLIENTS, TRUST, head, proof


@sizes(quick=1500, share=0.1)
def test_mutated_proofs(cases: int, record_property: Any, tmp_path: Path) -> None:
    cohort = (0, 3, 4, 10)
    names = [client_id(CLIENTS[place].public) for place in cohort]
    valid = (Frame.of(CODEC.encode(proof(cohort, 11, 5))), Frame.of(CODEC.encode(proof((2,), 11, 8))))
    log = MemberLog(tmp_path / "log", msgspec.convert(TRUST, LogTrust))
    known = head_json(head(5))
    log.path.write_bytes(known)
    rng, campaign = random.Random(f"{SEED} log"), Campaign(cases, record_property, RemoteError)
    for number in campaign:
        data = mutated(rng, valid, sly=rng.random() < 0.7)
        with campaign.case(number, data, "log"):
            message = CODEC.decode(data, limit=LIMIT)
            if not isinstance(message, LogProof):
                continue
            if data == valid[0].data:
                continue
            try:
                log.take(message, names)
            finally:
                # Nothing was taken over, but for a signature that nobody asked for.
                assert not log.members or message.entries == proof(cohort, 11, 5).entries
                log.members.clear()
                log.path.write_bytes(known)
                log.evidence.unlink(missing_ok=True)  # with it, all that follows would be refused
    assert {"Forked", "AuthenticationFailed", "DecodeError"} <= set(campaign.outcomes)
