"""Rounds in Flower's simulation, run in an environment that has it: ``compare_frameworks.py`` makes one.

Its FedAvg as shipped, on its Ray backend with as many actors as workers and one thread each. An actor reads
the clients and builds the model once. Whole models travel, as FedAvg wants them: 2.7 million parameters.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}

import flwr
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from clients_file import ClientsFile, at_hand, train

PATH, ROUNDS, WORKERS, OUT = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])


client_app = ClientApp()


@client_app.train()
def train_client(message: Message, context: Context) -> Message:
    start = time.process_time()
    file, module = at_hand(PATH)
    module.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    samples = train(module, file.clients[int(context.node_config["partition-id"])])
    arrays = ArrayRecord(module.state_dict())
    metrics = MetricRecord({"num-examples": samples, "cpu": time.process_time() - start})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


class Timed(FedAvg):
    """A round lasts from its configuration to the new model."""

    def configure_train(self, *given, **named):  # type: ignore[no-untyped-def]
        self._start, self._cpu = time.perf_counter(), time.process_time()
        return super().configure_train(*given, **named)

    def aggregate_train(self, server_round, replies):  # type: ignore[no-untyped-def]
        replies = list(replies)
        done = super().aggregate_train(server_round, replies)
        seconds.append(time.perf_counter() - self._start)
        there = sum(one.content["metrics"]["cpu"] for one in replies)
        cpu.append(time.process_time() - self._cpu + there)
        samples.append(sum(one.content["metrics"]["num-examples"] for one in replies))
        return done


seconds: list[float] = []
samples: list[int] = []
cpu: list[float] = []  # of the server and of clients in their actors; Ray's own is not in it
server_app = ServerApp()


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    file, module = at_hand(PATH)
    clients = len(file.clients)
    strategy = Timed(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
    strategy.start(grid, initial_arrays=ArrayRecord(module.state_dict()), num_rounds=ROUNDS)
    found = {"version": flwr.__version__, "seconds": seconds, "cpu_seconds": cpu, "samples": samples}
    OUT.write_text(json.dumps(found))


if __name__ == "__main__":
    resources = {"num_cpus": 1, "num_gpus": 0.0}
    backend: Any = {"init_args": {"num_cpus": WORKERS, "num_gpus": 0}, "client_resources": resources}
    clients = len(ClientsFile(PATH).clients)
    run_simulation(server_app, client_app, clients, backend_config=backend)
