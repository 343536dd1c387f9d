"""Pictures of every screen in both themes, of one scene at one moment: `make pictures` writes them to docs/pictures.

The scene is behind a real console; what only machines could tell (logs of pods, rates, answers of partners) is played.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from console_browser import ROOT, Complaints, new_page, running_browser, until_settled
from console_scene import GENE, HEART, JOB, NOW, OWN, POD, Scene, actor_log, ago, pod_log, scene, write_evidence

from coterie.base.secret import SecretValue
from coterie.base.tasks import TaskOwner
from coterie.console.server import ConsoleServer, problem_response
from coterie.console.sessions import Login
from coterie.console.settings import ConsoleSettings
from coterie.http.server import HttpServer

SCREENS = {
    "overview": "/",
    "jobs": "/jobs",
    "job": f"/jobs/{JOB}",
    "graph": f"/jobs/{JOB}?tab=graph",
    "job-data": f"/jobs/{JOB}?tab=data",
    "logs": f"/jobs/{JOB}?tab=logs",
    "events": f"/jobs/{JOB}?tab=events",
    "yaml": f"/jobs/{JOB}?tab=yaml",
    "task": f"/jobs/{JOB}/tasks/train",
    "compose": "/compose",
    "network": f"/network?route={OWN}-{HEART}",
    "data": f"/data?table={OWN}%2Fpatients",
    "approvals": "/approvals",
    "nodes": "/nodes",
    "pod": f"/pods/{OWN}/{POD}",
    "functions": f"/functions?function={OWN}%2Fscore",
    "evidence": "/evidence",
    "evidence-event": "/evidence?job=stroke-risk-w46&event=14",
}
NOT_PICTURED = ("events", "yaml", "job-data", "evidence-event")
PICTURED = tuple(name for name in SCREENS if name not in NOT_PICTURED)
THEMES = ("light", "dark")
SIZE = {"width": 1280, "height": 800}
TIMELINE = {"width": 1120, "height": 704}
"""Of the picture that the README opens with: the screen `task`."""
SETTLE_MILLISECONDS = 500
MOST_BYTES = 2_500_000
_QUALITY = 0.9
_WEBP = """async ([picture, quality]) => {
  const bytes = Uint8Array.from(atob(picture), (letter) => letter.charCodeAt(0));
  const bitmap = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
  canvas.getContext("2d").drawImage(bitmap, 0, 0);
  const made = new Uint8Array(await (await canvas.convertToBlob({ type: "image/webp", quality })).arrayBuffer());
  return btoa(Array.from(made, (byte) => String.fromCharCode(byte)).join(""));
}"""


class ShownScene:
    def __init__(self, page: Any, console: ConsoleServer, url: str, made: Scene) -> None:
        self.page = page
        self.url = url
        self.scene = made
        self._console = console
        self.complaints = Complaints(page, url)

    def new_code(self) -> str:
        return self._console.sessions.new_code(Login("ops/dr.weiss", SecretValue("t")))

    async def go(self, path: str) -> None:
        await self.page.goto(f"{self.url}{path}")
        await self.page.wait_for_selector("h1")

    async def theme(self, name: str) -> None:
        await self.page.emulate_media(color_scheme=name, reduced_motion="reduce")


def activity(since: float = 0.0) -> dict[str, Any]:
    """An hour, a point every two seconds: bits per second sent, CPUs in use."""
    dice = random.Random(46)
    first, bits, cpus, points = NOW.timestamp() - 3600, 2e7, 8.0, []
    for step in range(1800):
        busy = 3600 - 2 * step < 540  # the running job
        bits += (5e7 * busy + 1.2e7 - bits) / 40 + dice.gauss(0, 1e6)
        cpus += (14 * busy + 6.2 - cpus) / 30 + dice.gauss(0, 0.15)
        points.append((first + 2 * step, max(0.0, bits), max(0.0, cpus)))
    return {"points": [point for point in points if point[0] > since]}


def since(url: str) -> float:
    return float(parse_qs(urlsplit(url).query).get("since", ["0"])[0])


def health() -> dict[str, Any]:
    return {"routes": {f"{OWN}-{HEART}": {"answers": True, "milliseconds": 18.4, "message": ""}}}


def route_check() -> dict[str, Any]:
    steps = (
        ("route", "it exists, and its control plane calls it ready"),
        ("name", f"gateway.{HEART}.example is 10.20.4.7"),
        ("connection", "port 1080 accepts connections"),
        ("certificate", "is the one that was exchanged, and good for another 212 days"),
        ("gateway", "a Coterie gateway answers, its clock is 0.2 s behind ours"),
        ("token", f"revision 12, agreed on 2 h ago; {HEART} accepts it"),
    )
    findings = [{"step": step, "verdict": "ok", "message": message, "advice": ""} for step, message in steps]
    ends = (NOW + timedelta(days=212)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"sound": True, "connectSeconds": 0.0179, "certificateEnds": ends, "findings": findings}


async def compose(shown: ShownScene) -> None:
    page = shown.page
    await page.get_by_label("Name").fill("common-patients-w47")
    await page.locator(".party", has_text=HEART).locator("input[type=checkbox]").first.check()
    await page.locator(".party", has_text=OWN).locator("select").first.select_option("patients")
    await page.get_by_label("patient_id", exact=True).check()
    await page.get_by_role("button", name="Check", exact=True).click()
    await page.get_by_role("button", name="Run", exact=True).wait_for()


def witnessed(state: dict[str, Any]) -> dict[str, Any]:
    """Partners are witnesses of the log; no node is there that could ask them."""
    partners = [
        {"partner": HEART, "policy": "require", "ours": 17, "at": ago(470), "theirs": 2_204, "problem": ""},
        {"partner": GENE, "policy": "", "ours": 14, "at": ago(470), "theirs": 961, "problem": ""},
    ]
    return {**state, "partners": partners}


async def no_terminal(*_: Any) -> Any:
    raise AssertionError("there is no container")


@asynccontextmanager
async def shown_scene(browser: Any, *, size: Mapping[str, int] = SIZE, scale: float = 1.0) -> AsyncIterator[ShownScene]:
    """Somebody is logged in, and it is a quarter to ten for ever."""
    bound = socket.create_server(("127.0.0.1", 0))
    async with scene() as made, TaskOwner("console") as owner, AsyncExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory(prefix="console-", dir="/tmp"))
        paths = await write_evidence(Path(home))
        kubeconfig = paths.home / "kubeconfig"
        settings = ConsoleSettings(OWN, "autonomy", "127.0.0.1", bound.getsockname()[1], kubeconfig)
        console = ConsoleServer(settings, made.client.transport, made.clock, owner, open_terminal=no_terminal)
        web = HttpServer(console.handle, problem_response=problem_response)
        await web.serve(bound)
        context = await browser.new_context(
            viewport=size, device_scale_factor=scale, locale="en-GB", timezone_id="UTC", reduced_motion="reduce"
        )
        page = await new_page(context)
        await page.clock.set_fixed_time(NOW)
        await page.route("**/views/activity*", lambda route: route.fulfill(json=activity(since(route.request.url))))
        await page.route("**/views/routes", lambda route: route.fulfill(json=health()))
        await page.route("**/kube/**/log?*", lambda route: route.fulfill(body=pod_log(), content_type="text/plain"))
        await page.route(
            "**/pods/score-*/log?*",
            lambda route: route.fulfill(body=actor_log(route.request.url), content_type="text/plain"),
        )

        async def state(route: Any) -> None:
            await route.fulfill(json=witnessed(await (await route.fetch()).json()))

        await page.route("**/views/evidence/state", state)
        await page.route("**/actions/routes/*/*/check", lambda route: route.fulfill(json=route_check()))
        shown = ShownScene(page, console, settings.url, made)
        await page.goto(f"{settings.url}/#login={shown.new_code()}")
        await page.wait_for_selector(".shell")
        yield shown
        await context.close()
        await web.stop()


async def _picture(shown: ShownScene, theme: str, encoder: Any) -> bytes:
    """As WebP."""
    await shown.theme(theme)
    await shown.page.wait_for_timeout(SETTLE_MILLISECONDS / 2)
    png = await shown.page.screenshot(animations="disabled", caret="hide")
    return base64.b64decode(await encoder.evaluate(_WEBP, [base64.b64encode(png).decode(), _QUALITY]))


async def write_pictures(folder: Path) -> list[str]:
    """Returns what is wrong."""
    made: dict[str, bytes] = {}
    async with running_browser() as browser:
        encoder = await (await browser.new_context()).new_page()
        async with shown_scene(browser) as shown:
            for name in PICTURED:
                await shown.theme(THEMES[0])
                await shown.go(SCREENS[name])
                if name == "compose":
                    await compose(shown)
                await until_settled(shown.page, SETTLE_MILLISECONDS)
                made |= {f"{name}-{theme}": await _picture(shown, theme, encoder) for theme in THEMES}
            problems = list(shown.complaints.found)
        async with shown_scene(browser, size=TIMELINE, scale=1.5) as shown:
            await shown.go(SCREENS["task"])
            await until_settled(shown.page, SETTLE_MILLISECONDS)
            made |= {f"timeline-{theme}": await _picture(shown, theme, encoder) for theme in THEMES}
            problems += shown.complaints.found
    for name, picture in made.items():
        (folder / f"{name}.webp").write_bytes(picture)
    total = sum(map(len, made.values()))
    print(json.dumps({"pictures": len(made), "bytes": total}))
    return problems + ([f"{total} bytes are more than {MOST_BYTES}"] if total > MOST_BYTES else [])


if __name__ == "__main__":
    found = asyncio.run(write_pictures(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "pictures"))
    sys.exit("\n".join(found) if found else 0)
