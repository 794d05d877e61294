"""What a refusal costs the server, beside a request that is in order."""

import asyncio
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deployment import HOST
from fuzz.calls import Call, Headers, Site
from sfsl.crypto.secret import SystemRandomness
from sfsl.service.messages import CODEC
from sfsl.service.signing import sign_request

REPEATS = 200
GENEROUS_SECONDS = 0.05  # a median, of this process: others on the machine do not count


def test_refusals_are_cheap_and_read_no_body(tmp_path: Path, record_property: Any) -> None:
    body = bytes(2000)

    async def run() -> dict[str, float]:
        async with Site(tmp_path, inside=False) as site:

            def signed(target: str, body: bytes, now: int) -> Headers:
                headers = sign_request(
                    site.crook.identity,
                    deployment=site.world.registry.deployment,
                    host=HOST,
                    method="POST",
                    target=target,
                    body=body,
                    now_ms=now,
                    randomness=SystemRandomness(),
                )
                return [(name.lower().encode(), value.encode()) for name, value in headers.items()]

            path, right = "/v1/check-in", CODEC.encode(site.crook.message)
            once = signed(path, right, site.now_ms)
            length = [(b"content-length", b"99999999")]
            kinds: dict[str, tuple[int, Callable[[], tuple[Headers, bytes]]]] = {
                "in order": (200, lambda: (signed(path, right, site.now_ms), right)),
                "unsigned": (401, lambda: ([], body)),
                "too old": (401, lambda: (signed(path, body, 0), body)),
                "wrongly signed": (401, lambda: (signed(path, b"other", site.now_ms), body)),
                "replayed": (401, lambda: (once, right)),
                "too long": (413, lambda: (signed(path, body, site.now_ms) + length, body)),
            }
            await site.send(Call("signed", "POST", path.encode(), once, (right,)))
            medians = {}
            for kind, (status, make) in kinds.items():
                took = []
                for _ in range(REPEATS):
                    site.now_ms += 1
                    headers, sent = make()
                    start = time.process_time()
                    answer = await site.send(Call(kind, "POST", path.encode(), headers, (sent,)))
                    took.append(time.process_time() - start)
                    assert answer.status == status, (kind, answer)
                    # A body that nobody read: the connection ends. Only a signature needs the body.
                    unread = kind in ("unsigned", "too old", "replayed", "too long")
                    assert (answer.headers.get("connection") == "close") == unread, kind
                medians[kind] = statistics.median(took)
            return medians

    medians = asyncio.run(run())
    record_property("cases", REPEATS * len(medians))
    record_property("fuzz", ", ".join(f"{kind} {1e6 * one:.0f} µs" for kind, one in medians.items()))
    assert max(medians.values()) < GENEROUS_SECONDS
