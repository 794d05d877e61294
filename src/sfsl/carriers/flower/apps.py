"""All that knows Flower: the ServerApp, the ClientApp, and frames over its Grid, each in a ``ConfigRecord``
of its own, which nobody on the way looks into.

Flower starts a process for every message to a client. What a round's client must know until the next one
(keys, shares, what it asked for) is in ``Context.state``: the SuperNode's memory, which is not written to
disk and not sent to the SuperLink. What it must never forget is in the node's folder.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

import httpx
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp

from sfsl.bundle.describe import describe as describe_model
from sfsl.bundle.describe import write_described
from sfsl.carriers.flower.messages import read_roster
from sfsl.carriers.flower.node import Member, Node, SatOut, answer, model_of, open_node
from sfsl.carriers.flower.rounds import Post, Published, Rounds, Take
from sfsl.crypto.secret import Randomness, SystemRandomness
from sfsl.data.catalogue import Catalogue
from sfsl.data.interactions import MAX_HISTORY
from sfsl.errors import DecodeError, SfslError
from sfsl.service.driver import Service
from sfsl.service.folder import open_server_folder
from sfsl.settings.flower import FlowerConfig, read_config
from sfsl.settings.rounds import store_spec
from sfsl.training.task import Task

log = logging.getLogger(__name__)

ACTION = "sfsl"
TYPE = f"train.{ACTION}"
RECORD, FRAME = "sfsl", "frame"
# What everybody downloads has a record of its own: Flower takes it for one object, whoever it is sent to.
PUBLISHED = "sfsl-published"
# Seconds that a message which needs no answer may wait for its node, and that a client is silent where a
# server leaves no time for an answer, or says nonsense.
_A_WHILE = 60.0
KEPT = "kept"
_LONGEST_SILENCE, _SHORTEST = 3600.0, 0.1
Join = Callable[[Node], AbstractContextManager[Member]]


def packed(frame: bytes, published: Published | None = None) -> RecordDict:
    """Put a frame into a record of its own, and what is ``published`` into one beside it, by digest."""
    content = RecordDict({RECORD: ConfigRecord({FRAME: frame})})
    if published:
        content[PUBLISHED] = ConfigRecord({digest.hex(): data for digest, data in published.items()})
    return content


def unpacked(content: RecordDict, *beside: str) -> bytes:
    """Return the frame, which has no other record with it than those ``beside``; or raise ``DecodeError``."""
    record = content.get(RECORD)
    if content.keys() != {RECORD, *beside} or not isinstance(record, ConfigRecord) or len(record) != 1:
        raise DecodeError("a message that is not one frame")
    if not isinstance(frame := record.get(FRAME), bytes):
        raise DecodeError("a frame that is not bytes")
    return frame


def unpacked_at_node(content: RecordDict) -> tuple[bytes, Published]:
    """Return the frame, and by digest what came beside it; nothing of that is checked yet."""
    record = content.get(PUBLISHED)
    if not isinstance(record, ConfigRecord):
        return unpacked(content), {}
    try:
        found = {bytes.fromhex(name): data for name, data in record.items() if isinstance(data, bytes)}
    except ValueError:
        raise DecodeError("something published under no digest") from None
    return unpacked(content, PUBLISHED), found


@dataclass(eq=False)
class GridPost:
    """Brings frames over a ``grid``. ``poll_seconds``: how often the SuperLink is asked for replies."""

    grid: Grid
    poll_seconds: float
    _: KW_ONLY
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    randomness: Randomness = field(default_factory=SystemRandomness)

    def nodes(self) -> Iterable[int]:
        return list(self.grid.get_node_ids())

    def exchange(
        self, frames: Mapping[int, bytes], seconds: float, take: Take, published: Published | None = None
    ) -> None:
        deadline = self.clock() + seconds
        awaited = self._push(frames, seconds, published)
        while awaited:
            for identity, node in list(awaited.items()):
                for reply in self._pulled(identity, node):
                    del awaited[identity]
                    if reply is not None:
                        self._take(node, reply, take)
            if not awaited or self.clock() >= deadline:
                return
            self.sleep(self.poll_seconds)

    def tell(self, frames: Mapping[int, bytes]) -> None:
        self._push(frames, _A_WHILE)

    def _push(
        self, frames: Mapping[int, bytes], seconds: float, published: Published | None = None
    ) -> dict[str, int]:
        """Send, and return which node each message is for, by id. One that the SuperLink does not take is one
        not answered. A SuperLink takes a reply from whoever knows the id of the message, which is a digest of
        it. So each has something in it that only its own node sees."""
        messages = [
            Message(
                packed(frame, published),
                dst_node_id=node,
                message_type=TYPE,
                ttl=seconds,
                group_id=self.randomness.bytes(16).hex(),
            )
            for node, frame in frames.items()
        ]
        ids = list(self.grid.push_messages(messages)) if messages else []
        return {found: node for found, node in zip(ids, frames, strict=False) if found}

    def _pulled(self, identity: str, node: int) -> Sequence[Message | None]:
        """Return the reply to one message, once it is there; None if it cannot be read. Asked for one by one:
        what a reply says of itself is its sender's to write, also whose answer it is, and one that Flower
        cannot decode takes all that are pulled with it along."""
        try:
            return [*self.grid.pull_messages([identity])][:1]
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


def server_app(task: Callable[[], Task], catalogue: Callable[[], Catalogue] | None = None) -> ServerApp:
    """Return the app of a run. ``task`` builds the model that its clients build too; ``catalogue`` says what
    its rows are called, for those who use the model later."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        _log_as_flower_does()
        config = read_config(context.run_config)
        names = None if catalogue is None else catalogue()
        run_rounds(config, task(), GridPost(grid, config.flower.poll_seconds), names)

    return app


def _log_as_flower_does() -> None:
    """Have what is said of rounds stand in the run's log, which ``flwr log`` shows."""
    own, flower = logging.getLogger("sfsl"), logging.getLogger("flwr")
    own.setLevel(logging.INFO)
    for handler in flower.handlers:
        if handler not in own.handlers:
            own.addHandler(handler)
    own.propagate = not flower.handlers


def run_rounds(config: FlowerConfig, task: Task, post: Post, catalogue: Catalogue | None = None) -> None:
    """Run all rounds that are not in the store yet; a run that was killed goes on where its store is."""
    own, folder = config.flower, Path(config.flower.state).expanduser()
    with ExitStack() as held:
        spec = store_spec(config.run, task.spec, devices=False)
        registry, store, metrics, _ = open_server_folder(folder, spec, task.initial_dense, held)
        write_described(folder, task, describe_model(task, config.run, "flower", MAX_HISTORY), catalogue)
        log.info("round %d of %d is in the store", store.round, own.rounds)
        service = Service(
            config.rounds(),
            task.spec,
            task.row_maps,
            store,
            registry,
            model_digest=model_of(task).digest,
            binds_model=True,
            record=metrics.append,
            cpu=time.thread_time,
            clock=time.monotonic,
            today=lambda: time.time_ns() // 1_000_000,
            # Whoever ends a round for all is left out for the rest of this run: that is no verdict.
            first_rest=math.inf,
        )
        Rounds(
            service,
            post,
            identities=read_roster(Path(own.roster).expanduser()) if own.roster else None,
            spare=own.spare,
            wait_seconds=own.wait_seconds,
        ).run()


def client_app(join: Join, *, sleep: Callable[[float], None] = time.sleep) -> ClientApp:
    """Return the app of a node. ``join`` makes its client for one message, usually with ``device_member``. An
    app that has other work for its nodes registers it with the app this returns."""
    app = ClientApp()

    @app.train(ACTION)
    def exchange(message: Message, context: Context) -> Message:
        """Answer one message. Reasons stay in this node's log: Flower would send the text of an exception to
        the SuperLink."""
        simulated, aloud, start = False, False, time.monotonic()
        try:
            frame, published = unpacked_at_node(message.content)
            node = open_node(context.node_id, context.run_id, context.node_config, context.run_config)
            simulated = node.simulated
            with join(node) as member:
                answered = answer(member, frame, _kept(context), published)
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
