"""One frame, at least, of every message that travels, by the codec that reads it."""

from collections.abc import Iterable
from functools import cache
from typing import Any

import msgspec

from cohort import Cohort, Stepper
from fuzz.frames import Frame
from hot_cohort import HotCohort
from sfsl.codec import Codec, Message
from sfsl.crypto.merkle import Tree
from sfsl.crypto.secret import Identity
from sfsl.rounds.exchanges import CODEC as ROUND
from sfsl.secagg.messages import CODEC as SECAGG
from sfsl.secagg.messages import Roster
from sfsl.service.log import leaf_of, sign_head, vouch
from sfsl.service.messages import CODEC as HTTP
from sfsl.service.messages import CheckedIn, CheckIn, Decline, Enrol, LogEntry, LogHead, LogProof, LogQuery
from sfsl.service.signing import client_id
from sfsl.testing import SeededRandomness
from sfsl.union.protocol import CODEC as UNION
from sfsl.union.protocol import Invitation as UnionInvitation
from world import World

LIMIT = 1 << 20


class Recorded(Stepper):
    """A round whose messages are kept, by who sent them ('' is the server) and in order."""

    def __init__(self, cohort: Cohort) -> None:
        self.said: list[tuple[str, str, Message]] = []
        super().__init__(cohort)

    def _exchange(self) -> None:
        step, sent = self._steps[0][0], dict(self.outbound)
        receive = self.server.receive

        def kept(name: str, message: Any) -> None:
            self.said.append((step, name, message))
            receive(name, message)

        self.said += [(step, "", message) for message in sent.values()]
        self.server.receive = kept  # type: ignore[method-assign]
        super()._exchange()
        self.server.receive = receive  # type: ignore[method-assign]


@cache
def round_messages() -> tuple[Message, ...]:
    """Of a whole round, honest-but-curious and active."""
    found: list[Message] = []
    for active in (False, True):
        recorded = Recorded(Cohort(4, active=active))
        found += [one.keys for one in recorded.outbound["c0"].roster.members]
        recorded.finish()
        found += [message for _, name, message in recorded.said if name in ("", "c0")]
    return tuple(found)


@cache
def hot_messages() -> tuple[Message, ...]:
    """Of a survey and of a round over hot rows that trains."""
    found: list[Message] = []

    def kept(exchange: str, name: str, message: Any) -> Any:
        found.append(message)
        return message

    for kind, active in (("survey", False), ("train", False), ("train", True)):
        cohort = HotCohort(4, kind, active=active, rho=0.5, survey_rho=0.1, meddle=kept)
        found += cohort.keys.values()
        cohort.finish()
        found += [ROUND.decode(data, limit=LIMIT) for data in cohort.sent["c000"]]
    return tuple(found)


def _session_messages() -> Iterable[Message]:
    for options in ({"active": True}, {"n": 6, "threshold": 3, "neighbours": 4}):
        world = World(**({"n": 3, "threshold": 3} | options)).to_unmask()  # type: ignore[arg-type]
        yield from (*world.rosters.values(), *world.inbound.values(), *world.uploads.values())
        yield from (*world.keys.values(), *world.requests.values())
        yield world.clients["c0"].handle_unmask(world.requests["c0"])


def _log_messages() -> Iterable[Message]:
    """Of a log with entries with and without a voucher, and a head with two signatures."""
    source, deployment = SeededRandomness("a log"), bytes(range(16))
    signers = [Identity.generate(source) for _ in range(5)]
    entries = [vouch(signers[0], deployment, signers[1].public), LogEntry(signers[2].public)]
    tree = Tree(map(leaf_of, entries))
    head = LogHead(deployment, 2, tree.root, 1_800_000_000_000)
    signed = sign_head(signers[4], sign_head(signers[3], head))
    names = tuple(sorted(client_id(one.public_key) for one in entries))
    yield from (head, signed, LogQuery(0, ()), LogQuery(1, names), LogProof(signed, b""))
    yield LogProof(signed, tree.consistency(1, 2), (0, 1), tuple(entries))
    yield LogProof(signed, b"", (1,), (entries[1],), tree.proof([1]))


@cache
def frames() -> dict[str, tuple[Codec, tuple[Frame, ...]]]:
    """By protocol. Each type of each codec is there."""
    rounds = (*round_messages(), *hot_messages())
    keys = next(one for one in rounds if type(one).__name__ == "Keys")
    invitation: Any = next(one for one in rounds if type(one).__name__ == "Invitation")
    http = [
        Enrol(bytes(range(32))),
        *(CheckIn(bytes(32), one) for one in rounds if type(one).__name__ == "Keys"),
        CheckedIn(bytes(16), 0),
        CheckedIn(bytes(range(16)), 2**63 - 1),
        Decline(bytes(range(16))),
        *_log_messages(),
        *(kind(b"round-0000000001") for kind in HTTP.types if kind.__name__ == "Decline"),  # type: ignore[call-arg]
    ]
    united = [UnionInvitation(invitation.roster, invitation.round.union)]
    of_union = [one for one in (*united, *rounds) if isinstance(one, UNION.types)]
    of_session = [*_session_messages(), *(one for one in rounds if isinstance(one, SECAGG.types))]
    of_session.append(Roster(invitation.roster.params, ()))
    assert isinstance(keys, SECAGG.types)
    return {
        name: (codec, tuple(Frame.of(data) for data in sorted({codec.encode(one) for one in messages})))
        for name, codec, messages in (
            ("session", SECAGG, of_session),
            ("union", UNION, of_union),
            ("round", ROUND, rounds),
            ("http", HTTP, (*http, *rounds)),
        )
    }


def type_of(frame: Frame) -> str:
    """The tag of a frame's message."""
    tag: str = msgspec.msgpack.decode(frame.data[1:])["type"]
    return tag
