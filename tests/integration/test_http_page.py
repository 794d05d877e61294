"""The status page in a real browser, as wide as a phone: it is live, and its policy does not stop it."""

import asyncio
import itertools
import re
import shutil
from pathlib import Path

import httpx
import msgspec
import pytest

from deployment import Deployment, Wire, serve
from sfsl.engines.http import app
from sfsl.engines.http.serve import Listen
from sfsl.engines.http.serve import serve as serve_forever

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="the status page was not seen in a browser: apt install chromium"
)


async def browse(url: str, folder: Path, seconds: float) -> tuple[str, str]:
    """What the page has become after a while, and what the browser had to say about it."""
    process = await asyncio.create_subprocess_exec(
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        f"--user-data-dir={folder}", "--window-size=390,844", "--enable-logging=stderr", "--dump-dom",
        f"--timeout={round(1000 * seconds)}", f"--virtual-time-budget={round(1000 * seconds)}", url,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        out, err = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return out.decode(), err.decode()


def test_the_page_is_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_STATUS_SECONDS", -1.0)

    async def scenario() -> None:
        world = Deployment(tmp_path)
        times, status = itertools.count(), world.coordinator.status
        # Another number each time: what the browser shows in the end is not what was rendered here.
        monkeypatch.setattr(
            world.coordinator, "status", lambda: msgspec.structs.replace(status(), waiting=next(times))
        )
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        server = asyncio.create_task(
            serve_forever(serve(world), world.coordinator, Listen(port=0), ready.set_result)
        )
        url = await ready
        try:
            async with httpx.AsyncClient(base_url=url) as http:
                wires = [Wire(guest, http, world.registry.deployment) for guest in world.clients(3)]
                await asyncio.gather(*(wire.play() for wire in wires))
                shown, said = await browse(url, tmp_path / "browser", 7)
        finally:
            await world.coordinator.stop()
            await asyncio.wait_for(server, 20)
            world.registry.close()
        facts = dict(re.findall(r'<dd id="(\w+)">([^<]*)</dd>', shown))
        assert (facts["round"], facts["phase"], facts["enrolled"]) == ("1", "waiting", "3")
        assert int(facts["waiting"]) >= 1
        assert re.search("<td>1</td><td>3 of 3</td>", shown)
        assert '<span id="live">live</span>' in shown
        assert "Content Security Policy" not in said
        assert "Refused to" not in said

    asyncio.run(asyncio.wait_for(scenario(), 100))
