"""The ServerApp: rounds with whoever is in the federation, a model in a folder."""

import logging
import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from sfsl.carriers.flower.messages import read_roster
from sfsl.carriers.flower.node import model_of
from sfsl.carriers.flower.post import GridPost
from sfsl.carriers.flower.rounds import Post, Rounds
from sfsl.service.driver import Service
from sfsl.service.folder import open_server_folder
from sfsl.settings.flower import FlowerConfig, read_config
from sfsl.settings.rounds import store_spec
from sfsl.training.task import Task

log = logging.getLogger(__name__)


def server_app(task: Callable[[], Task]) -> ServerApp:
    """Return the app of a run. ``task`` builds the model that its clients build too."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        _log_as_flower_does()
        config = read_config(context.run_config)
        run_rounds(config, task(), GridPost(grid, config.flower.poll_seconds))

    return app


def _log_as_flower_does() -> None:
    """Have what is said of rounds stand in the run's log, which ``flwr log`` shows."""
    own, flower = logging.getLogger("sfsl"), logging.getLogger("flwr")
    own.setLevel(logging.INFO)
    for handler in flower.handlers:
        if handler not in own.handlers:
            own.addHandler(handler)
    own.propagate = not flower.handlers


def run_rounds(config: FlowerConfig, task: Task, post: Post) -> None:
    """Run all rounds that are not in the store yet; a run that was killed goes on where its store is."""
    own, folder = config.flower, Path(config.flower.state).expanduser()
    with ExitStack() as held:
        spec = store_spec(config.run, task.spec, devices=False)
        registry, store, metrics, _ = open_server_folder(folder, spec, task.initial_dense, held)
        log.info("round %d of %d is in the store", store.round, own.rounds)
        service = Service(
            config.rounds(),
            task.spec,
            task.row_maps,
            store,
            registry,
            model_digest=model_of(task).digest,
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
