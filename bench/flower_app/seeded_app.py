"""A Flower app whose clients follow from a seed, for ``bench/flower_round.py`` and the tests.

``SFSL_FLOWER_RUN`` names the run file that says what data and model there are, the same for everyone. With
``SFSL_FLOWER_TIMES`` each message leaves a line there: how old its process was when Python and Flower were
there, when this app was loaded, and when the message was; seconds of making data and of answering; and the
same in CPU seconds, which a busy machine changes less.
"""

import json
import os
import time
from functools import cache
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def _age() -> float:
    """Seconds since this process began."""
    began = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / _TICKS
    return float(Path("/proc/uptime").read_text().split()[0]) - began


STARTED, CPU_STARTED = _age(), time.process_time()

from flwr.app import Context, Message  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402

from sfsl.flower import client_app, server_app  # noqa: E402
from sfsl.run.fleet import Fleet, build_fleet  # noqa: E402
from sfsl.settings.run import RunConfig, from_sections  # noqa: E402
from sfsl.settings.toml import read_sections  # noqa: E402
from sfsl_research.flower_members import seeded_members  # noqa: E402

LOADED, CPU_LOADED = _age(), time.process_time()


@cache
def world() -> tuple[RunConfig, Fleet]:
    run = from_sections(read_sections(Path(os.environ["SFSL_FLOWER_RUN"])))
    return run, build_fleet(run)


server = server_app(lambda: world()[1].task)


class Timed(ClientApp):
    def __init__(self) -> None:
        super().__init__()
        self._app = client_app(lambda node: seeded_members(*world())(node))

    def __call__(self, message: Message, context: Context) -> Message:
        began, at, cpu = _age(), time.perf_counter(), time.process_time()
        world()
        data, cpu_data = time.perf_counter() - at, time.process_time() - cpu
        reply = self._app(message, context)
        line = {
            "started": STARTED,
            "loaded": LOADED,
            "began": began,
            "data": data,
            "answered": time.perf_counter() - at - data,
            "cpu_started": CPU_STARTED,
            "cpu_loaded": CPU_LOADED - CPU_STARTED,
            "cpu_data": cpu_data,
            "cpu_answered": time.process_time() - cpu - cpu_data,
        }
        folder = os.environ.get("SFSL_FLOWER_TIMES")
        if folder:
            with open(Path(folder) / f"{os.getpid()}.jsonl", "a") as file:
                file.write(json.dumps(line) + "\n")
        return reply


client = Timed()
