"""Frames over Flower's Grid: each in a ``ConfigRecord`` of its own, which nobody on the way looks into."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import httpx
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from sfsl.carriers.flower.rounds import Take
from sfsl.crypto.secret import SystemRandomness
from sfsl.errors import DecodeError

log = logging.getLogger(__name__)

ACTION = "sfsl"
TYPE = f"train.{ACTION}"
RECORD, FRAME = "sfsl", "frame"
_A_WHILE = 60.0  # seconds that a message which needs no answer may wait for its node


def packed(frame: bytes) -> RecordDict:
    return RecordDict({RECORD: ConfigRecord({FRAME: frame})})


def unpacked(content: RecordDict) -> bytes:
    """Return the frame of one record and nothing else, or raise ``DecodeError``."""
    record = content.get(RECORD)
    if len(content) != 1 or not isinstance(record, ConfigRecord) or len(record) != 1:
        raise DecodeError("a message that is not one frame")
    if not isinstance(frame := record.get(FRAME), bytes):
        raise DecodeError("a frame that is not bytes")
    return frame


class GridPost:
    """Brings frames over a ``grid``. ``poll_seconds``: how often the SuperLink is asked for replies."""

    def __init__(
        self,
        grid: Grid,
        poll_seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._grid, self._poll_seconds, self._clock, self._sleep = grid, poll_seconds, clock, sleep
        self._randomness = SystemRandomness()

    def nodes(self) -> Iterable[int]:
        return list(self._grid.get_node_ids())

    def exchange(self, frames: Mapping[int, bytes], seconds: float, take: Take) -> None:
        deadline = self._clock() + seconds
        awaited = self._push(frames, seconds)
        while awaited:
            for identity, node in list(awaited.items()):
                for reply in self._pulled(identity, node):
                    del awaited[identity]
                    if reply is not None:
                        self._take(node, reply, take)
            if not awaited or self._clock() >= deadline:
                return
            self._sleep(self._poll_seconds)

    def tell(self, frames: Mapping[int, bytes]) -> None:
        self._push(frames, _A_WHILE)

    def _push(self, frames: Mapping[int, bytes], seconds: float) -> dict[str, int]:
        """Send, and return which node each message is for, by id. One that the SuperLink does not take is one
        not answered.

        A SuperLink takes a reply from whoever knows the id of the message, which is a digest of it. So each
        has something in it that only its own node sees.
        """
        messages = [
            Message(
                packed(frame),
                dst_node_id=node,
                message_type=TYPE,
                ttl=seconds,
                group_id=self._randomness.bytes(16).hex(),
            )
            for node, frame in frames.items()
        ]
        ids = list(self._grid.push_messages(messages)) if messages else []
        return {found: node for found, node in zip(ids, frames, strict=False) if found}

    def _pulled(self, identity: str, node: int) -> Sequence[Message | None]:
        """Return the reply to one message, once it is there; None if it cannot be read.

        Asked for one by one: what a reply says of itself is its sender's to write, also whose answer it is,
        and one that Flower cannot decode takes all that are pulled with it along.
        """
        try:
            return [*self._grid.pull_messages([identity])][:1]
        except httpx.HTTPError:  # the SuperLink's doing, not a node's
            raise
        except Exception as error:
            log.warning("node %d replies with something that Flower cannot read: %s", node, error)
            return [None]

    def _take(self, node: int, reply: Message, take: Take) -> None:
        if reply.has_error():
            log.warning("node %d does not answer: error %d of Flower", node, reply.error.code)
        elif reply.metadata.src_node_id != node:
            log.warning("a reply to node %d by node %d", node, reply.metadata.src_node_id)
        else:
            try:
                frame = unpacked(reply.content)
            except DecodeError as error:
                log.warning("node %d: %s", node, error)
                return
            take(node, frame)
