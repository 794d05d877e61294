"""A federation of Flower in this process: its apps and messages, and a Grid that hands them over."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor, nn

from sfsl.data import Samples
from sfsl.flower import Node, client_app, device_member, server_app
from sfsl.submodel import Table
from sfsl.training import Task

_RUN, _SUPERLINK, _FIRST = 7, 1, 2**63 + 5
_FILMS, _SEEN = 60, 20


def run_federation(folder: Path, nodes: int, rounds: int) -> None:
    """``rounds`` rounds of ``nodes`` nodes, each with a folder of its own, on Flower's own apps."""
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = _RUN, 1, _SUPERLINK
    settings: dict[str, Any] = {"round.scheme": "sfsl", "round.clients": nodes, "round.min_contributors": 2}
    own = {"rounds": rounds, "state": str(folder / "server"), "period_days": 0, "poll_seconds": 0.05}
    settings |= {f"flower.{key}": value for key, value in own.items()}
    context = Context(
        run_id=_RUN, node_id=_SUPERLINK, node_config={}, state=RecordDict(), run_config=settings
    )
    server_app(_task)(_Grid(folder, nodes, rounds), context)


class _Ratings(nn.Module):
    """Matrix factorization: each client's own taste, and rows of films that all share."""

    def __init__(self) -> None:
        super().__init__()
        self.taste = nn.Embedding(1, 4, device="meta")
        self.film = nn.Embedding(_FILMS, 4, device="meta")
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, batch: Any) -> Tensor:
        logit: Tensor = (self.taste(batch["taste"]) * self.film(batch["film"])).sum(dim=-1) + self.bias
        return logit


def _task() -> Task:
    taste = Table(name="taste", rows=1, width=4, kind="personal", initial=1.0)
    return Task(_Ratings(), (taste, Table(name="film", rows=_FILMS, width=4, initial=1.0)))


def _samples(node: Node) -> Samples:
    rng = np.random.default_rng(node.partition)
    columns: dict[str, np.ndarray[Any, Any]] = {
        "taste": np.zeros(_SEEN, np.int64),
        "film": rng.choice(_FILMS, _SEEN, replace=False),
        "label": rng.integers(2, size=_SEEN).astype(np.float32),
    }
    return Samples(columns, tables={"taste": "taste", "film": "film"})


class _Grid(Grid):
    """Delivers a message as soon as it is pushed, and keeps the reply until it is asked for."""

    def __init__(self, folder: Path, nodes: int, rounds: int) -> None:
        self._app = client_app(
            lambda node: device_member(node, _task(), lambda state: (_samples(node), None))
        )
        self._contexts = {
            _FIRST + place: Context(
                run_id=_RUN,
                node_id=_FIRST + place,
                node_config={
                    "state": str(folder / f"node-{place}"),
                    "partition-id": place,
                    "exposures": rounds,
                    "exact-sums": True,
                    "least-cohort": nodes,
                    "least-contributors": 2,
                },
                state=RecordDict(),
                run_config={},
            )
            for place in range(nodes)
        }
        self._replies: dict[str, Message] = {}
        self._sent = 0

    def get_node_ids(self) -> Iterable[int]:
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            self._sent += 1
            identity = f"message-{self._sent}"
            message.metadata.__dict__["_message_id"] = identity
            self._replies[identity] = self._app(message, self._contexts[message.metadata.dst_node_id])
            ids.append(identity)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(one) for one in message_ids if one in self._replies]

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *given: Any, **named: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Any:
        raise NotImplementedError
