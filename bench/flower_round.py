"""Rounds of a whole cohort on Flower, by exchange, and the same rounds in one process: the same model?

    python bench/flower_round.py --clients 5 --rounds 2 --set data.users=5 --out out/flower

``deployment``: a SuperLink and a SuperNode for each client, processes on loopback with TLS and SuperNode
authentication; Flower starts a process for every message. ``simulation``: Flower's own, whose workers last.
Afterwards the local engine runs as many rounds with the same seed and clients, and the stores are compared
bit for bit. Prints JSON; the exit status is 1 if a round was not committed by everyone or anything differs.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity

from flower_parts import Federation, wait_until, write_app
from sfsl.rounds.record import RoundRecord
from sfsl.run.fleet import build_fleet
from sfsl.service.folder import read_lines
from sfsl.settings.serve import from_all_sections
from sfsl.settings.toml import overridden
from tls_round import differences, in_one_process

_SECTIONS: dict[str, dict[str, Any]] = {
    "data": {"users": 5, "scale": 0.03},
    "round": {"scheme": "sfsl", "min_contributors": 2},
    "server": {"kappa_rounds": 10},
    "serve": {"plain": True, "enrolment": "open", "period_days": 0},  # of in_one_process; nothing is served
}
_OF_A_RUN = ("round", "training", "server", "run")


def on_flower(
    mode: str, sections: Mapping[str, Any], clients: int, rounds: int, seconds: float, out: Path
) -> list[RoundRecord]:
    """The lines of the rounds' metrics."""
    times = out / "times"
    times.mkdir(parents=True)
    (out / "run.toml").write_text(
        "\n".join(
            f"[{name}]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in content.items())
            for name, content in sections.items()
            if name != "serve"
        )
    )
    own = {
        "state": str(out / "server"),
        "rounds": rounds,
        "min_cohort": clients,
        "period_days": 0,
        "poll_seconds": 0.1,
        "wait_seconds": seconds,
        "largest_set": sections["serve"].get("largest_set", 1000),
        **{f"{name}_seconds": seconds for name in ("check_in", "phase", "training")},
    }
    config = {f"flower.{key}": value for key, value in own.items()}
    config |= {f"{name}.{key}": value for name in _OF_A_RUN for key, value in sections.get(name, {}).items()}
    config["simulation.folder"] = str(out / "nodes")
    app = write_app(out / "app", config)
    environment = {
        "SFSL_FLOWER_RUN": str(out / "run.toml"),
        "SFSL_FLOWER_TIMES": str(times),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    metrics = out / "server" / "metrics.jsonl"
    with Federation(out, environment, simulation=mode == "simulation") as federation:
        federation.start_superlink()
        cores = len(os.sched_getaffinity(0))
        options = [f"num-supernodes={clients} client-resources-num-cpus=1 init-args-num-cpus={cores}"]
        if mode == "deployment":
            for place in range(clients):
                federation.start_node(f"node-{place}", **{"partition-id": place})
            federation.run(app)
        else:
            federation.run(app, "--federation-config", *options)
        wait_until(lambda: len(read_lines(metrics)) >= rounds, 10 * rounds * seconds, "all rounds")
        time.sleep(2)  # the last processes write their times
    return read_lines(metrics)


def per_message(folder: Path) -> dict[str, float]:
    """Means over all messages, in seconds: from the start of a process to Flower's, to this app's being
    loaded and to the message being there; making the benchmark's data; answering."""
    lines = [json.loads(line) for file in folder.iterdir() for line in file.read_text().splitlines()]
    first = [json.loads(file.read_text().splitlines()[0]) for file in folder.iterdir()]
    once = ("started", "loaded", "began", "cpu_started", "cpu_loaded")
    return {
        "messages": len(lines),
        "processes": len(first),
        **{f"process_{key}": float(np.mean([line[key] for line in first])) for key in once},
        **{
            key: float(np.mean([line[key] for line in lines]))
            for key in ("data", "answered", "cpu_data", "cpu_answered")
        },
        "answered_median": float(np.median([line["answered"] for line in lines])),
    }


def added_bytes(size: int) -> dict[str, int]:
    """What Flower sends for a frame of so many bytes beyond the frame, before HTTP and TLS."""
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    content = RecordDict({"sfsl": ConfigRecord({"frame": os.urandom(size)})})
    message = Message(content, dst_node_id=2**63, message_type="train.sfsl", ttl=60.0)
    message.metadata.__dict__["_message_id"] = message.object_id
    objects = get_all_nested_objects(message)
    head = message_to_proto(remove_content_from_message(message)).ByteSize()
    tree = get_object_tree(message).ByteSize()
    body = sum(len(one.deflate()) for one in objects.values())
    return {"frame": size, "objects": len(objects), "added": head + tree + body - size}


def summary(lines: Sequence[RoundRecord], clients: int) -> dict[str, Any]:
    whole = [line for line in lines if line.aborted is None and line.survivors == clients]
    exchanges = list(whole[0].exchange_seconds) if whole else []
    mean = {
        kind: {name: float(np.mean([getattr(line, kind)[name] for line in whole])) for name in exchanges}
        for kind in ("exchange_seconds", "bytes_up", "bytes_down")
    }
    return {
        "rounds": {"all": len(lines), "committed_by_everyone": len(whole)},
        "seconds_a_round": [sum(line.exchange_seconds.values()) for line in lines],
        "exchange_seconds": mean["exchange_seconds"],
        "bytes_up_per_client": mean["bytes_up"] | {"all": sum(mean["bytes_up"].values())},
        "bytes_down_per_client": mean["bytes_down"] | {"all": sum(mean["bytes_down"].values())},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--modes", nargs="+", default=["deployment", "simulation"])
    parser.add_argument("--seconds", type=float, default=300.0, help="for one exchange, at the most")
    parser.add_argument("--set", dest="changed", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--out", type=Path, default=Path("out/flower"), help="a folder that is not there yet")
    options = parser.parse_args()
    clients, rounds, out = options.clients, options.rounds, options.out.resolve()
    out.mkdir(parents=True)
    sections = overridden(_SECTIONS, [f"round.clients={clients}", *options.changed])
    chosen = from_all_sections(sections)
    torch.set_num_threads(1)
    fleet = build_fleet(chosen.run)
    start = time.perf_counter()
    local = in_one_process(chosen, fleet, clients, rounds)
    result: dict[str, Any] = {
        "machine": {"cores": len(os.sched_getaffinity(0)), "python": platform.python_version()},
        "flwr": version("flwr"),
        "clients": clients,
        "local": {"seconds_a_round": (time.perf_counter() - start) / rounds},
        "flower_adds_bytes_to_a_frame": [added_bytes(size) for size in (100, 10_000, 1_000_000)],
    }
    good = True
    for mode in options.modes:
        lines = on_flower(mode, sections, clients, rounds, options.seconds, out / mode)
        compared = differences(local, out / mode / "server" / "store", fleet)
        found = summary(lines, clients)
        result[mode] = found | {"seconds_a_message": per_message(out / mode / "times")} | compared
        good &= found["rounds"]["committed_by_everyone"] == rounds and not any(compared["different"].values())
    text = json.dumps(result, indent=2)
    (out / "flower_round.json").write_text(text + "\n")
    print(text)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
