"""Flower without its processes: real apps and messages, a Grid that hands them over in this process."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import context_from_proto, context_to_proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from sfsl.carriers.flower.apps import client_app, unpacked, unpacked_at_node
from sfsl.carriers.flower.node import Member, Node
from sfsl.client.home import Home
from sfsl.crypto.secret import SystemRandomness

SUPERLINK = 1
FIRST = 2**63 + 5  # node ids are 64 bits, and often large

Join = Callable[[Node], AbstractContextManager[Member]]
Meddle = Callable[[Message], Message | None]


class LoopGrid(Grid):
    """``nodes`` nodes, each with a folder of its own. ``lost`` says which message of which node never
    arrives, counted from 1; ``meddle`` sees every reply, and may replace it or swallow it. ``contexts`` are
    what each SuperNode remembers, taken through Flower's own encoding."""

    def __init__(
        self,
        join: Join,
        folder: Path,
        nodes: int,
        node_config: Mapping[str, Any] | None = None,
        meddle: Meddle | None = None,
        lost: Callable[[int, int], bool] = lambda node, count: False,
    ) -> None:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 7, 1, SUPERLINK
        self.app: ClientApp = client_app(join, sleep=self._slept)
        self.silences: list[float] = []
        self.meddle = meddle
        self.lost = lost
        self.contexts = {
            FIRST + place: Context(
                run_id=7,
                node_id=FIRST + place,
                node_config={"state": str(folder / f"node-{place}"), "partition-id": place}
                | {"least-cohort": 3, "least-contributors": 1}
                | dict(node_config or {}),
                state=RecordDict(),
                run_config={},
            )
            for place in range(nodes)
        }
        self.sent: list[tuple[int, bytes]] = []
        self.said: list[tuple[int, bytes | None]] = []
        self._replies: dict[str, Message] = {}

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *given: Any, **named: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Any:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            identity = f"message-{len(self.sent)}"
            message.metadata.__dict__["_message_id"] = identity
            node = message.metadata.dst_node_id
            self.sent.append((node, unpacked_at_node(message.content)[0]))
            ids.append(identity)
            if self.lost(node, sum(one == node for one, _ in self.sent)):
                continue
            reply = self.deliver(node, message)
            self.said.append((node, None if reply.has_error() else unpacked(reply.content)))
            kept = reply if self.meddle is None else self.meddle(reply)
            if kept is not None:
                self._replies[identity] = kept
        return ids

    def deliver(self, node: int, message: Message) -> Message:
        """One process of the node: it sees what its SuperNode remembers, and leaves something behind."""
        context = context_from_proto(context_to_proto(self.contexts[node]))
        reply = self.app(message, context)
        self.contexts[node] = context_from_proto(context_to_proto(context))
        return reply

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(one) for one in message_ids if one in self._replies]

    def _slept(self, seconds: float) -> None:
        self.silences.append(seconds)


def home_of(grid: LoopGrid, node: int) -> Home:
    return Home(Path(str(grid.contexts[node].node_config["state"])), SystemRandomness())


def refusal(reply: Message) -> Message:
    return Message(Error(0, "no"), reply_to=reply)
