"""Parties of a protocol in one process: real messages, encoded and decoded, and what they cost."""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ParamSpec, Protocol, TypeVar

from sfsl.codec import Codec, Message
from sfsl.crypto.ring import Ring
from sfsl.crypto.secret import Secret
from sfsl.errors import Refused
from sfsl.secagg.masking import Masker
from sfsl.secagg.messages import Layout

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M", bound=Message)

_TRIES = 3
_WORDS = 1 << 18


@dataclass
class Cost:
    """What the protocol took: CPU seconds and encoded bytes, per client, and the server's CPU seconds."""

    client_seconds: dict[str, float] = field(default_factory=dict)
    client_bytes_up: dict[str, int] = field(default_factory=dict)
    client_bytes_down: dict[str, int] = field(default_factory=dict)
    server_seconds: float = 0.0


class Receiver(Protocol):
    def receive(self, client: str, message: Message, /) -> None: ...


class Meter:
    """Carries messages between clients and a server, and keeps the bill."""

    def __init__(self, names: Iterable[str], codec: Codec, limit: int) -> None:
        self._names = list(names)
        self._codec = codec
        self._limit = limit
        self.cost = self._blank()

    def _blank(self) -> Cost:
        names = self._names
        return Cost(dict.fromkeys(names, 0.0), dict.fromkeys(names, 0), dict.fromkeys(names, 0))

    def take(self) -> Cost:
        """The bill so far; a new one begins."""
        cost, self.cost = self.cost, self._blank()
        return cost

    def at_client(self, name: str, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        start = time.thread_time()
        try:
            return work(*args, **options)
        finally:
            self.cost.client_seconds[name] += time.thread_time() - start

    def at_server(self, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        start = time.thread_time()
        try:
            return work(*args, **options)
        finally:
            self.cost.server_seconds += time.thread_time() - start

    def up(self, name: str, kind: type[M], message: Message) -> M:
        data = self.at_client(name, self._codec.encode, message)
        self.cost.client_bytes_up[name] += len(data)
        received = self.at_server(self._codec.decode, data, limit=self._limit)
        assert isinstance(received, kind)  # noqa: S101 - our own client made it
        return received

    def down(
        self, outbound: Mapping[str, Message], kind: type[M], gone: Collection[str] = ()
    ) -> Iterable[tuple[str, M]]:
        """Encode each message once, and deliver it to those who are still there."""
        encoded: dict[int, bytes] = {}
        for name, message in outbound.items():
            if name in gone:
                continue
            if id(message) not in encoded:
                encoded[id(message)] = self.at_server(self._codec.encode, message)
            data = encoded[id(message)]
            self.cost.client_bytes_down[name] += len(data)
            received = self.at_client(name, self._codec.decode, data, limit=self._limit)
            assert isinstance(received, kind)  # noqa: S101 - our own server made it
            yield name, received

    def answer(
        self, server: Receiver, name: str, work: Callable[P, Message], *args: P.args, **options: P.kwargs
    ) -> None:
        """Let a client answer. One that refuses (too few of its neighbours are left) is a dropout."""
        try:
            message = self.at_client(name, work, *args, **options)
        except Refused as reason:
            log.debug("client %s declined: %s", name, reason)
            return
        self.at_server(server.receive, name, self.up(name, Message, message))


def mask_seconds(ring: Ring) -> float:
    """CPU time for one word of a vector that is masked as a whole, measured here and now."""
    masker = Masker(ring, ring.zeros(_WORDS), Layout(dense=_WORDS))
    key = Secret(bytes(32))
    return cpu_seconds(lambda: masker.add(key), 1) / _WORDS


def cpu_seconds(work: Callable[[], object], times: int) -> float:
    """CPU time of this thread for one call: the best of a few tries, since others use this machine too."""
    best = float("inf")
    for _ in range(_TRIES):
        start = time.thread_time()
        for _ in range(times):
            work()
        best = min(best, (time.thread_time() - start) / times)
    return best
