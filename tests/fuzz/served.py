"""A small deployment over TLS in a process of its own, so that its memory and its open files are its own.

    python served.py FOLDER TLS-FOLDER CONNECTIONS PER-ADDRESS FILES

Says its URL; runs until it is told to stop. Three clients are enrolled.
"""

import asyncio
import resource
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from deployment import Deployment, serve
from sfsl.carriers.https.app import AppLimits
from sfsl.carriers.https.listen import ConnectionLimits, Listen
from sfsl.carriers.https.listen import serve as serve_forever


async def main(folder: Path, tls: Path, most: int, per_address: int, files: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    world = Deployment(folder, poll_seconds=2.0)
    world.clients(3)
    listen = Listen(
        port=0,
        certificate=tls / "server.pem",
        key=tls / "server.key",
        connections=ConnectionLimits(most=most, most_per_address=per_address, head_seconds=30.0),
    )
    app = serve(world, AppLimits(body_seconds=30.0))
    await serve_forever(app, world.coordinator, listen, lambda url: sys.stdout.write(f"{url}\n") and None)
    world.registry.close()


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), *(int(one) for one in sys.argv[3:6])))
