"""The status page in a real browser, as wide as a phone: it is live, its policy does not stop it, and it says
how rounds ended."""

import asyncio
import itertools
import json
import re
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from clocks import PATIENCE
from deployment import Deployment, Wire, serve
from sfsl.carriers.https import app
from sfsl.carriers.https.listen import Listen
from sfsl.carriers.https.listen import serve as serve_forever

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
REASON = (
    "fewer clients are left than the threshold: 26 of 40 answered 'submodel', and 27 are needed to open a sum"
)
# Where the heads and the cells of the second column are, and whether a script of the page put them there.
ENDS = """JSON.stringify({
  width: innerWidth, page: document.documentElement.scrollWidth,
  waiting: Number(document.getElementById("waiting").textContent),
  cells: [...document.querySelectorAll("th:nth-child(2), #rounds .why")].map(cell => {
    const box = cell.getBoundingClientRect();
    return { text: cell.textContent, left: box.left, right: box.right };
  }) })"""

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="the status page was not seen in a browser: apt install chromium"
)


def chromium(folder: Path, *more: str) -> list[str]:
    return [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        f"--user-data-dir={folder}", "--window-size=390,844", *more,
    ]  # fmt: skip


async def browse(url: str, folder: Path, seconds: float) -> tuple[str, str]:
    """What the page has become after a while, and what the browser had to say about it."""
    waits = (f"--{name}={round(1000 * seconds)}" for name in ("timeout", "virtual-time-budget"))
    process = await asyncio.create_subprocess_exec(
        *chromium(folder, "--enable-logging=stderr", "--dump-dom", *waits, url),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), PATIENCE)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return out.decode(), err.decode()


async def measure(url: str, folder: Path, seconds: float) -> list[dict[str, Any]]:
    """``ENDS`` on a phone's screen, as the page is rendered and after a while.

    The browser is asked over a pipe: its file 3 is what it is told, 4 what it says."""
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", 'exec "$@" 3<&0 4>&1', "sh", *chromium(folder, "--remote-debugging-pipe", "about:blank"),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    told, says, numbers = process.stdin, process.stdout, itertools.count(1)
    assert told is not None
    assert says is not None

    async def ask(method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        number = next(numbers)
        asked = {"id": number, "method": method, "params": params} | (
            {"sessionId": session} if session else {}
        )
        told.write(json.dumps(asked).encode() + b"\0")
        while True:
            said = json.loads((await says.readuntil(b"\0"))[:-1])
            if said.get("id") == number:
                assert "error" not in said, said
                result: dict[str, Any] = said["result"]
                return result

    async def look() -> list[dict[str, Any]]:
        target = (await ask("Target.createTarget", url="about:blank"))["targetId"]
        session = (await ask("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        await ask("Emulation.setDeviceMetricsOverride", session, **PHONE)
        await ask("Page.navigate", session, url=url)
        found = []
        for wait in (1.0, seconds):
            await asyncio.sleep(wait)
            answer = await ask("Runtime.evaluate", session, expression=ENDS, returnByValue=True)
            found.append(json.loads(answer["result"]["value"]))
        return found

    try:
        return await asyncio.wait_for(look(), PATIENCE)
    finally:
        process.kill()
        await process.wait()


def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[..., Awaitable[None]]) -> None:
    """Run ``act`` with the URL of a deployment after its first round."""
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
                await act(world, url)
        finally:
            await world.coordinator.stop()
            await asyncio.wait_for(server, PATIENCE)
            world.registry.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))


def test_the_page_is_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(world: Deployment, url: str) -> None:
        page, said = await browse(url, tmp_path / "browser", 7)
        facts = dict(re.findall(r'<dd id="(\w+)">([^<]*)</dd>', page))
        assert (facts["round"], facts["phase"], facts["enrolled"]) == ("1", "waiting", "3")
        assert int(facts["waiting"]) >= 1
        assert re.search('<td>1</td><td class="why">committed</td><td>3 of 3</td>', page)
        assert '<span id="live">live</span>' in page
        assert "Content Security Policy" not in said
        assert "Refused to" not in said

    shown(tmp_path, monkeypatch, act)


def test_a_phone_shows_how_rounds_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(world: Deployment, url: str) -> None:
        world.coordinator.totals.show(msgspec.structs.replace(world.lines[0], round=2, aborted=REASON))
        rendered, live = await measure(url, tmp_path / "browser", 4)
        assert live["waiting"] > rendered["waiting"]  # the second is the script's work
        for found in (rendered, live):
            assert (found["width"], found["page"]) == (390, 390)  # the page itself is not wider
            assert [cell["text"] for cell in found["cells"]] == ["End", REASON, "committed"]
            for cell in found["cells"]:
                assert 0 <= cell["left"] < cell["right"] <= 390

    shown(tmp_path, monkeypatch, act)
