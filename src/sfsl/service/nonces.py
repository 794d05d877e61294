"""Which nonces were taken, for as long as a copy of their request could pass, in bounded memory."""

from sfsl.errors import ParameterError, Replayed, TooMany

_PIECES = 8


class Nonces:
    """Remembers (client, nonce) until ``kept_ms`` after the time that the request *claims*, which may lie
    ahead of when it came.

    Time is cut into pieces, forgotten one at a time. What is older than the last forgotten piece is refused
    whatever the clock says, so a clock that is set back makes no old nonce new.
    """

    def __init__(self, *, kept_ms: int, per_client: int, most_clients: int, most: int) -> None:
        if min(kept_ms, per_client, most_clients, most) < 1:
            raise ParameterError("the limits on remembered requests are 1 at the least")
        self._kept_ms = kept_ms
        self._width_ms = -(-kept_ms // _PIECES)
        self._per_client = per_client
        self._most_clients = most_clients
        self._most = most
        self._pieces: dict[int, dict[str, set[bytes]]] = {}
        self._counts: dict[str, int] = {}
        self._total = 0
        self._forgotten = -1  # the latest piece that was forgotten

    def __len__(self) -> int:
        return self._total

    def require_new(self, client: str, nonce: bytes, time_ms: int, now_ms: int) -> None:
        """Raise unless this nonce is new and there is room to remember it."""
        self._forget(now_ms)
        piece = time_ms // self._width_ms
        if piece <= self._forgotten or time_ms < now_ms - self._kept_ms:
            raise Replayed(f"client {client} sent a request so old that it may be a copy; sign again")
        if nonce in self._pieces.get(piece, {}).get(client, ()):
            raise Replayed(f"client {client} sent a request that was taken before; a retry is signed again")
        if self._counts.get(client, 0) >= self._per_client:
            raise TooMany(
                f"client {client} sent {self._per_client} requests within {self._kept_ms / 1000:g} s; "
                "slow down",
                wait_ms=self._wait(client, now_ms),
            )
        if self._total >= self._most or (
            client not in self._counts and len(self._counts) >= self._most_clients
        ):
            raise TooMany(
                f"{self._total} requests of {len(self._counts)} clients are remembered, and there is no room "
                "for more",
                wait_ms=self._wait(None, now_ms),
            )

    def remember(self, client: str, nonce: bytes, time_ms: int) -> None:
        """Take a nonce that ``require_new`` let pass."""
        self._pieces.setdefault(time_ms // self._width_ms, {}).setdefault(client, set()).add(nonce)
        self._counts[client] = self._counts.get(client, 0) + 1
        self._total += 1

    def _forget(self, now_ms: int) -> None:
        """Drop the pieces that lie wholly before what is kept."""
        last = (now_ms - self._kept_ms) // self._width_ms - 1
        for piece in [piece for piece in self._pieces if piece <= last]:
            for client, nonces in self._pieces.pop(piece).items():
                self._total -= len(nonces)
                self._counts[client] -= len(nonces)
                if not self._counts[client]:
                    del self._counts[client]
            self._forgotten = max(self._forgotten, piece)

    def _wait(self, client: str | None, now_ms: int) -> int:
        """Until the first piece (of this client) is forgotten."""
        pieces = [piece for piece, taken in self._pieces.items() if client is None or client in taken]
        return max(1, (min(pieces) + 1) * self._width_ms + self._kept_ms - now_ms)
