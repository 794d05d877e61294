"""The ClientApp: a message in, a frame out; in between one client, which lives in its node's folder.

Flower starts a process for every message. What a round's client must know until the next one (keys, shares,
what it asked for) is in ``Context.state``: the SuperNode's memory, which is not written to disk and not sent
to the SuperLink. What it must never forget is in the node's folder.
"""

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from flwr.app import ConfigRecord, Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from sfsl.carriers.flower.node import Member, Node, SatOut, answer, open_node
from sfsl.carriers.flower.post import ACTION, RECORD, packed, unpacked
from sfsl.errors import SfslError

log = logging.getLogger(__name__)

KEPT = "kept"
_LONGEST_SILENCE, _SHORTEST = 3600.0, 0.1
_A_WHILE = 60.0  # where a server leaves no time for an answer, or says nonsense
Join = Callable[[Node], AbstractContextManager[Member]]


def client_app(join: Join, *, sleep: Callable[[float], None] = time.sleep) -> ClientApp:
    """Return the app of a node. ``join`` makes its client for one message, usually with ``device_member``.

    An app that has other work for its nodes registers it with the app this returns.
    """
    app = ClientApp()

    @app.train(ACTION)
    def exchange(message: Message, context: Context) -> Message:
        """Answer one message. Reasons stay in this node's log: Flower would send the text of an exception to
        the SuperLink."""
        simulated, aloud, start = False, False, time.monotonic()
        try:
            frame = unpacked(message.content)
            node = open_node(context.node_id, context.run_id, context.node_config, context.run_config)
            simulated = node.simulated
            with join(node) as member:
                answered = answer(member, frame, _kept(context))
            _keep(context, answered.kept)
            return Message(packed(answered.frame), reply_to=message)
        except SatOut as reason:
            _keep(context, reason.kept)
            aloud = reason.aloud
            log.warning("sits out: %s", reason)
        except SfslError as reason:
            log.warning("sits out: %s: %s", type(reason).__name__, reason)
        except Exception:
            log.exception("sits out, by a mistake of this program or its machine")
        if not (aloud or simulated):
            # Silence, as far as Flower allows it: a reason that depends on data must look like a bad link.
            # It lasts from the message on, however long it took to find out.
            ttl = message.metadata.ttl
            silence = min(ttl, _LONGEST_SILENCE) if ttl >= _SHORTEST else _A_WHILE
            sleep(max(0.0, start + silence - time.monotonic()))
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "sits out"), reply_to=message)

    return app


def _kept(context: Context) -> bytes | None:
    record = context.state.get(RECORD)
    found = record.get(KEPT) if isinstance(record, ConfigRecord) else None
    return found if isinstance(found, bytes) else None


def _keep(context: Context, kept: bytes | None) -> None:
    if kept is not None:
        context.state[RECORD] = ConfigRecord({KEPT: kept})
    elif RECORD in context.state:
        del context.state[RECORD]
