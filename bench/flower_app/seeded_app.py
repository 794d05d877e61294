"""A Flower app whose clients follow from a seed, for ``bench/flower_round.py`` and the tests.

The run's sections ``data``, ``model``, ``privacy`` and so on are those of a run file.
"""

import os
from functools import cache
from pathlib import Path

from sfsl.flower import client_app, server_app
from sfsl.flower.simulated import seeded_members
from sfsl.run.config import RunConfig, from_sections
from sfsl.run.fleet import Fleet, build_fleet
from sfsl.run.toml import read_sections


@cache
def world() -> tuple[RunConfig, Fleet]:
    """From the run file that ``SFSL_FLOWER_RUN`` names, the same for everyone."""
    run = from_sections(read_sections(Path(os.environ["SFSL_FLOWER_RUN"])))
    return run, build_fleet(run)


server = server_app(lambda: world()[1].task)
client = client_app(lambda node: seeded_members(*world())(node))
