"""A client inside a program of your own: a shop's app, which goes on selling while its client takes part.

The program also runs a server and two more clients, so that it shows something alone:
`python examples/embedded_client.py`, where sfsl[network,store,train] is installed.
"""

import asyncio
import tempfile
from pathlib import Path

import sfsl

SETTINGS = {
    "data": {"users": 12, "scale": 0.03},
    "model": {"kind": "logistic"},
    "round": {"clients": 3, "threshold": 3},
    "privacy": {"epsilon": 2.0, "participations": 10},  # noise for which three clients are far too few
    "serve": {"enrolment": "open", "port": 0, "rounds": 1, "period_days": 0},
}


# The whole of a client: what it insists on, its data, its folder, and what to do with what it tells.
async def take_part(server: str, ca: Path | None, data: Path, folder: Path) -> list[sfsl.Attempt]:
    return await sfsl.join_async(
        server,
        data,
        folder,
        ca=ca,
        # For all its rounds together; dearer ones go on without it. Cohorts of three are for this trial only.
        terms=sfsl.Terms(hot_epsilon=2.0, least_cohort=3),
        rounds=1,
        on_event=lambda event: print(f"{folder.name}: {event}"),
    )


async def app(folder: Path) -> None:
    ready: asyncio.Future[sfsl.Serving] = asyncio.get_running_loop().create_future()
    server = asyncio.create_task(sfsl.serve_async(SETTINGS, out=folder / "server", ready=ready.set_result))
    serving = await ready
    data = folder / "clicks.csv"
    data.write_text("item,label,time\n" + "".join(f"{item},{item % 2},{item}\n" for item in range(20)))
    clients = [
        asyncio.create_task(take_part(serving.url, serving.authority, data, folder / name))
        for name in ("ann", "bob", "cyd")
    ]
    while not all(one.done() for one in clients):
        await asyncio.sleep(0.2)  # the app's own work; to leave a round, cancel the client's task
    ended = [attempt for one in clients for attempt in one.result()]
    print(f"{sum(one.whole for one in ended)} clients went through round {await server}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        asyncio.run(app(Path(place)))
