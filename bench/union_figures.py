"""The figures of docs/results.md for the private set union, in one run, next to the paper's table.

The paper's settings: 301 indices per client, 86.7 % of the union held by one client. Its "MB" are MiB.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from sfsl_research.bench.union import bench_union

# Paper, Table "overheads … in private set union": MiB per client, client s, server s (no dropout).
PAPER = {
    20: (0.63, 5.04, 1.12),
    40: (0.70, 10.09, 1.68),
    60: (0.77, 15.53, 2.40),
    80: (0.84, 26.49, 3.13),
    100: (0.91, 33.69, 4.19),
}
PAPER_DROPOUT_SERVER = 37.66  # seconds at 100 clients and 20 % dropout
DOMAINS = (143_534, 2_000_000_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/bench"), help="folder for union.json and .md")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each setting; the median is reported")
    options = parser.parse_args()
    results: list[dict[str, Any]] = []
    for domain in DOMAINS:
        for clients in PAPER:
            for dropout in (0.0, 0.2):
                print(f"{clients} clients, domain {domain:,}, dropout {dropout} …", file=sys.stderr)
                runs = [
                    bench_union(clients, domain, 301, 0.867, dropout=dropout, seed=seed)
                    for seed in range(options.repeat)
                ]
                runs.sort(key=lambda run: float(run["server_seconds"]))
                results.append(runs[len(runs) // 2])
    lines = [
        "| domain | n | dropout | up + down, MiB | paper | client s | paper | server s | paper "
        "| union | bytes per index |",
        "|---" * 11 + "|",
    ]
    for result in results:
        size, client, server = PAPER[result["clients"]]
        shown_server = f"{server}" if not result["dropout"] else "–"
        if result["dropout"] and result["clients"] == 100:
            shown_server = f"{PAPER_DROPOUT_SERVER}"
        small = result["domain"] == DOMAINS[0]
        cells = (
            f"{result['domain']:,}",
            result["clients"],
            f"{result['dropout']:.0%}",
            f"{result['client_mib']:.3f}",
            size if small else "–",
            f"{result['client_seconds']:.3f}",
            client if small else "–",
            f"{result['server_seconds']:.2f}",
            shown_server if small else "–",
            f"{result['union_size']:,}",
            f"{result['union_bytes_per_index']:.2f}",
        )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "union.json").write_text(json.dumps(results, indent=2) + "\n")
    (options.out / "union.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
