"""The figures of docs/results.md for one whole round, in one run, next to the paper's.

The paper's settings: 100 clients, 301 goods of 117 categories each, DIN with 64,327 dense parameters, rows
that a single client asked for are summed too (min_contributors 1). Its "MB" are MiB.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from sfsl_research.bench.round import bench_round
from sfsl_research.bench.simulated import Sizes

# MiB per client and round: ours at most, and the paper's (Fig. "communication overhead", 100 clients).
MIB = {
    "cpp1": (1.2, 1.76),
    "cpp2": (1.9, 2.33),
    "cpp3": (2.4, 2.78),
    "cpp4": (3.1, 3.40),
    "cpp5": (5.2, 5.57),
}
# At cpp2: client and server CPU seconds, ours at most and the paper's, which are without dropout.
CLIENT_SECONDS, SERVER_SECONDS, SERVER_SECONDS_DROPOUT = (0.4, 71.8), (2.0, 11.3), 4.0
# Client MiB and server GiB of the whole process.
PAPER_MEMORY = {"cpp2": (209, 1.58), "cpp5": (281, 3.15)}
# Rows of the table and goods per client: the table grows; then the union is halved.
SCAN = ((10**5, 301), (10**7, 301), (2 * 10**9, 301), (2 * 10**9, 150))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="folder for round.json and .md")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each setting; the median is reported")
    options = parser.parse_args()
    presets = {privacy: _median(options.repeat, privacy=privacy) for privacy in MIB}
    half = {privacy: _median(1, privacy=privacy, precision="float16", memory=False) for privacy in MIB}
    dropout = {
        before: _median(options.repeat, privacy="cpp2", dropout=0.2, dropout_before=before)
        for before in ("update", "set")
    }
    # One encoding for all sizes; "auto" has a shorter one for the smallest table.
    scan = [
        _median(options.repeat, Sizes(rows=rows, set_size=goods), privacy="cpp2", encoding="sketch")
        for rows, goods in SCAN
    ]
    text = "\n\n".join([_presets(presets, half), _dropout(presets["cpp2"], dropout), _scan(scan)]) + "\n"
    options.out.mkdir(parents=True, exist_ok=True)
    results = {"presets": presets, "float16": half, "dropout": dropout, "scan": scan}
    (options.out / "round.json").write_text(json.dumps(results, indent=2) + "\n")
    (options.out / "round.md").write_text(text)
    print(text, end="")


def _median(
    repeat: int, sizes: Sizes | None = None, *, memory: bool = True, **settings: Any
) -> dict[str, Any]:
    """The run with the median server time, and the median of the clients' times; memory from the first."""
    print(f"{sizes or 'paper size'}, {settings} …", file=sys.stderr)
    runs = [
        bench_round(sizes or Sizes(), seed=seed, memory=memory and not seed, **settings)
        for seed in range(repeat)
    ]
    traced = {
        key: value
        for key, value in runs[0].items()
        if key.endswith(("_peak_bytes", "_peak_bytes_max", "process_bytes"))
    }
    client = sorted(float(run["client_seconds"]) for run in runs)[repeat // 2]
    runs.sort(key=lambda run: float(run["server_seconds"]))
    return runs[repeat // 2] | traced | {"client_seconds": client}


def _presets(presets: dict[str, dict[str, Any]], half: dict[str, dict[str, Any]]) -> str:
    lines = [
        _header(
            "", "rows asked", "MiB up", "down", "**both**", "at most", "paper", "both, float16", "client s",
            "server s", "client peak, MiB", "server peak, MiB",
        )
    ]  # fmt: skip
    for privacy, one in presets.items():
        bound, paper = MIB[privacy]
        lines.append(
            _line(
                privacy,
                f"{one['rows_asked']:,.0f} + {one['categories_asked']:,.0f}",
                _mib(one["client_bytes_up"]),
                _mib(one["client_bytes_down"]),
                f"**{one['client_mib']:.2f}**",
                bound,
                f"{paper:.2f}",
                f"{half[privacy]['client_mib']:.2f}",
                f"{one['client_seconds']:.3f}",
                f"{one['server_seconds']:.2f}",
                _client_peak(one),
                _mib(one["server_peak_bytes"], 0),
            )
        )
    return "\n".join(lines)


def _dropout(cpp2: dict[str, Any], dropout: dict[str, dict[str, Any]]) -> str:
    update, masked_set = dropout["update"], dropout["set"]
    base = cpp2["bare_process_bytes"] or 0
    client, server = PAPER_MEMORY["cpp2"]
    lines = [
        _header("at cpp2", "measured", "at most", "paper"),
        _line("client CPU, s", f"{cpp2['client_seconds']:.3f}", *CLIENT_SECONDS),
        _line("server CPU, s", f"{cpp2['server_seconds']:.2f}", *SERVER_SECONDS),
        _line(
            "… 20 % vanish before the update",
            f"{update['server_seconds']:.2f}",
            SERVER_SECONDS_DROPOUT,
            "–",
        ),
        _line("… before the masked set", f"{masked_set['server_seconds']:.2f}", SERVER_SECONDS_DROPOUT, "–"),
        _line("client process, MiB", _mib(base + cpp2["client_peak_bytes_max"], 0), "–", client),
        _line("server process, MiB", _mib(base + cpp2["server_peak_bytes"], 0), "–", f"{server * 1024:,.0f}"),
        _line("of which a bare process", _mib(base, 0), "–", "–"),
    ]
    return "\n".join(lines)


def _scan(scan: list[dict[str, Any]]) -> str:
    lines = [
        _header(
            "rows of the table", "union", "MiB up", "down", "of which the union", "client s", "server s",
            "client peak, MiB", "server peak, MiB",
        )
    ]  # fmt: skip
    lines += [
        _line(
            f"{one['rows']:,}",
            f"{one['union_size']:,}",
            _mib(one["client_bytes_up"], 3),
            _mib(one["client_bytes_down"], 3),
            _mib(one["exchanges"]["union"]["bytes_down"], 3),
            f"{one['client_seconds']:.3f}",
            f"{one['server_seconds']:.2f}",
            _client_peak(one),
            _mib(one["server_peak_bytes"], 0),
        )
        for one in scan
    ]
    return "\n".join(lines)


def _client_peak(one: dict[str, Any]) -> str:
    """The median client's, and the largest."""
    return f"{_mib(one['client_peak_bytes'], 1)} ({_mib(one['client_peak_bytes_max'], 1)})"


def _header(*cells: str) -> str:
    return _line(*cells) + "\n" + "|---" * len(cells) + "|"


def _line(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _mib(size: float, digits: int = 2) -> str:
    return f"{size / 2**20:.{digits}f}"


if __name__ == "__main__":
    main()
