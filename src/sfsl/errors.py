"""Every error this package raises, in one tree.

::

    SfslError
    ├── LocalError                    the caller's own input or settings
    │   ├── InputError                a vector, id or set that cannot be used (also a ValueError)
    │   │   ├── NotFinite             an update with NaN or infinity in it; it never reaches the ring
    │   │   └── UnknownRow            a row that the table or the set does not have
    │   ├── ParameterError            settings that are unsafe or contradict each other (also a ValueError)
    │   ├── StateError                a client's durable state cannot be read, written or trusted
    │   │   └── RolledBack            it is older than what this client has already sent
    │   ├── KeyFileError              a key or certificate file cannot be read, written or trusted
    │   ├── BundleError               a bundle is missing a file, or one is not as it was written
    │   └── StoreError                a row store or registry cannot be used; what was committed stands
    │       ├── StoreInUse            another process has it open
    │       ├── StoreFull             no room on its disk
    │       ├── StoreCorrupt          its bytes are not what was written
    │       └── WrongModel            it holds another model, or was made with other settings
    ├── Declined                      this client's own limits say no; nothing has left the device
    │   ├── BudgetExhausted           an epsilon or an exposure limit is reached
    │   └── PeriodFrozen              data or parameters changed within a period: they wait for the next
    ├── RemoteError                   the other party's fault; our state is as it was before
    │   ├── DecodeError               bytes that are not one whole, canonical message
    │   │   ├── Oversize              more bytes than this message may have
    │   │   └── WrongVersion          another version of the protocol
    │   ├── WrongPhase                a message that does not belong here and now
    │   ├── WrongRound                a message of another round or another sum
    │   ├── UnexpectedSender          someone who has no place in this phase
    │   ├── ConflictingMessage        a second, different message where one was accepted
    │   ├── InvalidMessage            well-formed bytes with impossible content
    │   ├── AuthenticationFailed      a seal, signature or key that does not verify
    │   │   ├── UnknownClient         an id that nobody enrolled
    │   │   ├── Forked                two heads of one log that cannot both be true
    │   │   ├── ClockSkew             a request signed too long ago or in the future; says by how much
    │   │   └── Replayed              a request that was taken before
    │   ├── RoundOver                 a conversation about a round that has ended, and how
    │   ├── ShuttingDown              a server that takes nothing new; come back later
    │   ├── Unavailable               it cannot be reached, or says to come back later
    │   └── Refused                   a request that our policy or the protocol's safety forbids
    │       ├── Revoked               a client whose enrolment was withdrawn
    │       └── TooMany               more requests than a limit allows; says how long to wait
    └── Aborted                       the round is over and opened no sum
        ├── TooFewClients             fewer clients are left than the threshold
        ├── KeyMismatch               a reconstructed secret is not the one that was published
        └── UnionFailed               the sum does not decode to a union; nothing partial is returned

``LocalError``: fix the call. ``Declined``: sit this round out. ``RemoteError``: drop the message, keep
going. ``Aborted``: start a new round with new keys; a round is never continued or repeated (spec 4.5).
"""


class SfslError(Exception):
    """Every error that this package raises; ``sfsl.errors`` draws the tree.

    >>> import sfsl
    >>> try:
    ...     sfsl.aggregate({"ann": [1, 2], "bob": [1, 2, 3]})
    ... except sfsl.SfslError as error:
    ...     print(type(error).__name__)
    InputError
    """


class LocalError(SfslError):
    """The caller's own input or settings are at fault."""


class InputError(LocalError, ValueError):
    """A vector, id or set cannot be used."""


class NotFinite(InputError):
    """An update has NaN or infinity in it; it never reaches the ring."""


class UnknownRow(InputError):
    """The table or the set does not have this row."""


class ParameterError(LocalError, ValueError):
    """Settings are unsafe or contradict each other."""


class StateError(LocalError):
    """A client's durable state cannot be read, written or trusted."""


class RolledBack(StateError):
    """The state is older than what this client has already sent."""


class KeyFileError(LocalError):
    """A key or certificate file cannot be read, written or trusted."""


class BundleError(LocalError):
    """A bundle cannot be read: a file is missing, cut short or altered, or it has another format."""


class StoreError(LocalError):
    """A row store or a registry cannot be read or written; what was committed stands."""


class StoreInUse(StoreError):
    """Another process has the store open."""


class StoreFull(StoreError):
    """The store's disk has no room."""


class StoreCorrupt(StoreError):
    """The store's bytes are not what was written."""


class WrongModel(StoreError):
    """The store holds another model, or was made with other settings."""


class Declined(SfslError):
    """This client's own limits say no; nothing has left the device."""


class BudgetExhausted(Declined):
    """An epsilon or an exposure limit is reached."""


class PeriodFrozen(Declined):
    """Data or parameters changed within a period: they wait for the next."""


class RemoteError(SfslError):
    """The other party is at fault; our state is as it was before."""


class DecodeError(RemoteError):
    """The bytes are not one whole, canonical message."""


class Oversize(DecodeError):
    """The message has more bytes than it may have."""


class WrongVersion(DecodeError):
    """The other party speaks another version of the protocol."""


class WrongPhase(RemoteError):
    """The message does not belong here and now."""


class WrongRound(RemoteError):
    """The message is of another round or another sum."""


class UnexpectedSender(RemoteError):
    """The sender has no place in this phase."""


class ConflictingMessage(RemoteError):
    """A second message differs from the one that was accepted."""


class InvalidMessage(RemoteError):
    """The bytes are well-formed and their content is impossible."""


class AuthenticationFailed(RemoteError):
    """A seal, signature or key does not verify."""


class UnknownClient(AuthenticationFailed):
    """Nobody enrolled this id."""


class Forked(AuthenticationFailed):
    """A log was rewritten, or is shown differently to different clients."""


class ClockSkew(AuthenticationFailed):
    """The request was signed too long ago or in the future. ``off_ms``: its clock minus ours."""

    def __init__(self, message: str, *, off_ms: int) -> None:
        super().__init__(message)
        self.off_ms = off_ms


class Replayed(AuthenticationFailed):
    """The request was taken before."""


class RoundOver(RemoteError):
    """The round of this conversation has ended. ``outcome``: committed, aborted, left-out, not-chosen or
    restarted; ``round``: the round's number, or the last one's where it was in none."""

    def __init__(self, message: str, *, outcome: str, round_number: int) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.round = round_number


class ShuttingDown(RemoteError):
    """The server takes nothing new; come back later."""


class Unavailable(RemoteError):
    """The other party cannot be reached, or says to come back later. ``wait_s``: in so many seconds."""

    def __init__(self, message: str, *, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class Refused(RemoteError):
    """Our policy or the protocol's safety forbids the request."""


class Revoked(Refused):
    """The client's enrolment was withdrawn."""


class TooMany(Refused):
    """There were more requests than a limit allows. ``wait_ms``: how long until there is room again."""

    def __init__(self, message: str, *, wait_ms: int) -> None:
        super().__init__(message)
        self.wait_ms = wait_ms


class Aborted(SfslError):
    """The round is over and opened no sum. Whoever had sent shares counts it as opened (spec 4.5)."""


class TooFewClients(Aborted):
    """Fewer clients are left than the threshold."""


class KeyMismatch(Aborted):
    """A reconstructed secret is not the one that was published. ``clients`` are those that dealt such
    secrets, where that can be told."""

    def __init__(self, message: str, clients: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.clients = clients


class UnionFailed(Aborted):
    """The sum does not decode to a union; nothing partial is returned. ``capacity`` is one that would do."""

    def __init__(self, message: str, *, capacity: int) -> None:
        super().__init__(message)
        self.capacity = capacity


class SlowerTraining(UserWarning):
    """Clients are trained as well as ever, in a way that takes longer than the one asked for."""
