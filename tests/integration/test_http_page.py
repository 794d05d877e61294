"""The status page in a real browser, on a phone and a wide screen, light and dark: it is live, its policy
does not stop it, nothing sticks out, and it says how rounds ended."""

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
WIDE = {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
REASON = (
    "fewer clients are left than the threshold: 26 of 40 answered 'submodel', and 27 are needed to open a sum"
)
# Where the heads and the cells of the second column are, and whether a script of the page put them there.
ENDS = """JSON.stringify({
  width: innerWidth, page: document.documentElement.scrollWidth,
  waiting: Number(document.getElementById("waiting").textContent),
  back: getComputedStyle(document.body).backgroundColor,
  ink: getComputedStyle(document.querySelector("svg text")).fill,
  text: Math.min(...[...document.querySelectorAll("figure svg text")].map(
    one => one.getBoundingClientRect().height)),
  columns: new Set([...document.querySelectorAll("figure")].map(
    one => one.getBoundingClientRect().left)).size,
  out: [...document.querySelectorAll("main *:not(.wide *)")].filter(
    one => one.getBoundingClientRect().right > innerWidth + 1).map(one => one.outerHTML.slice(0, 80)),
  cells: [...document.querySelectorAll(".wide th:nth-child(2), #rounds .why")].map(cell => {
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


async def measure(
    url: str, folder: Path, seconds: float, screen: dict[str, Any] = PHONE, scheme: str = "light"
) -> list[dict[str, Any]]:
    """``ENDS`` on a screen, as the page is rendered and after a while.

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
        await ask("Emulation.setDeviceMetricsOverride", session, **screen)
        liked = [{"name": "prefers-color-scheme", "value": scheme}]
        await ask("Emulation.setEmulatedMedia", session, features=liked)
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
        assert (facts["round"], facts["enrolled"]) == ("1", "3")
        assert int(facts["waiting"]) >= 1
        assert re.search('<td>1</td><td class="why">committed</td><td>3 of 3</td>', page)
        assert '<span id="live" class="live">live</span>' in page
        assert page.count("<polyline") >= 3  # time, bytes sent and received
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


def test_it_fits_each_screen_and_is_readable_in_light_and_dark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act(world: Deployment, url: str) -> None:
        for number in range(2, 8):
            auc = {"auc_secure": 0.6 + number / 100, "log_loss_secure": 0.6, "base_log_loss_secure": 0.69}
            world.coordinator.totals.show(msgspec.structs.replace(world.lines[0], round=number, **auc))
        backs = {}
        for screen, columns, scheme in ((PHONE, 1, "dark"), (WIDE, 3, "light")):
            _, found = await measure(url, tmp_path / scheme, 3, screen, scheme)
            assert found["page"] <= screen["width"]
            assert found["out"] == []
            assert found["columns"] == columns
            assert found["text"] >= 11, "small, and still to be read"
            backs[scheme] = brightness(found["back"])
            assert abs(backs[scheme] - brightness(found["ink"])) > 90
        assert backs["light"] > 200 > 60 > backs["dark"]

    shown(tmp_path, monkeypatch, act)


def brightness(colour: str) -> float:
    red, green, blue = (float(one) for one in re.findall(r"[\d.]+", colour)[:3])
    return 0.3 * red + 0.59 * green + 0.11 * blue
