"""Twenty clients, five of which vanish, and a sum that nobody could have peeked into.

Run it with `make demo`, or `python examples/secure_sum.py` where sfsl is installed.
"""

import numpy as np
from rich.console import Console
from rich.table import Table

from sfsl.secagg import aggregate, aggregate_rows

rng = np.random.default_rng(0)
console = Console()
clients = [f"phone-{number:02d}" for number in range(20)]

# 1. Every client has a vector; the server learns the sum of those who uploaded, and nothing else.
vectors = {name: rng.integers(0, 1000, 10_000) for name in clients}
before, after = clients[:3], clients[3:5]
summed = aggregate(vectors, dropped_before_upload=before, dropped_before_unmask=after)
plain = sum(vectors[name] for name in summed.survivors)
console.print(
    f"[bold]A secure sum[/bold] of {len(clients)} vectors of 10,000 words: {len(before)} clients vanished "
    f"before they uploaded, {len(after)} after. Every word is right: {np.array_equal(summed.total, plain)}."
)

# 2. The same for rows of a table of which each client touches a few. Rows that too few ask for stay closed.
asked = {name: np.flatnonzero(rng.random(1000) < 0.3) for name in clients}
values = {name: rng.integers(0, 1000, (len(rows), 18)) for name, rows in asked.items()}
rows = aggregate_rows(asked, values, rows=1000, dropped_before_upload=before)
console.print(
    f"[bold]Misaligned rows[/bold]: {int((rows.contributors > 0).sum())} of 1,000 rows were opened; the "
    f"others had fewer than {rows.min_contributors} requesters and nobody uploaded them."
)

table = Table(title="What it cost", title_justify="left")
for column, side in (("", "left"), ("vectors", "right"), ("rows", "right")):
    table.add_column(column, justify=side)  # type: ignore[arg-type]
costs = (summed.cost, rows.cost)
table.add_row("client CPU, ms", *(f"{1000 * max(cost.client_seconds.values()):.1f}" for cost in costs))
table.add_row("server CPU, ms", *(f"{1000 * cost.server_seconds:.1f}" for cost in costs))
table.add_row("client up, bytes", *(f"{max(cost.client_bytes_up.values()):,}" for cost in costs))
table.add_row("client down, bytes", *(f"{max(cost.client_bytes_down.values()):,}" for cost in costs))
console.print(table)
console.print("Next: [bold].venv/bin/sfsl bench secagg --clients 100 --length 143534 --dropout 0.2[/bold]")
