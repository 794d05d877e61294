"""The ServerApp of the example, but from its second round on it sends one node, ``lie.victim``, other rows of
the model than it has committed to. A copy of this file takes the place of ``films/server.py``."""

from collections.abc import Iterable

from films.model import task
from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from lying_proxy import other_rows
from sfsl.carriers.flower.apps import FRAME, RECORD
from sfsl.carriers.flower.messages import CODEC
from sfsl.flower import server_app
from sfsl.rounds.exchanges import Submodel

honest = server_app(task)
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    victim, push, seen = int(str(context.run_config["lie.victim"])), grid.push_messages, 0

    def lying(messages: Iterable[Message]) -> Iterable[str]:
        nonlocal seen
        some = list(messages)
        for message in some:
            record = message.content[RECORD]
            told = CODEC.decode(record[FRAME], limit=1 << 28)
            if message.metadata.dst_node_id == victim and isinstance(told, Submodel):
                seen += 1
                if seen > 1:
                    record[FRAME] = CODEC.encode(other_rows(told))
        return push(some)

    grid.push_messages = lying  # type: ignore[method-assign]
    honest(grid, context)
