"""A real Chromium for tests of the console, driven by PyPI's playwright; nothing is downloaded by playwright itself."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SERVERS = ROOT / ".tools" / "servers"
INSTALLED = SERVERS / "chromium-headless-shell"
FONT = SERVERS / "fonts-wqy-microhei/usr/share"
"""For pictures: `scripts/get-servers pictures`."""
FLAGS = ("--no-sandbox", "--disable-dev-shm-usage", "--force-color-profile=srgb", "--font-render-hinting=none")

axe = pytest.importorskip("axe_playwright_python", reason="PyPI's axe-playwright-python is not installed")
playwright = pytest.importorskip("playwright.async_api", reason="PyPI's playwright is not installed")
MILLISECONDS = 45_000
"""How long anything may take on a machine that others keep busy: whatever is waited for in a browser, for so long."""
TIMEOUT = pytest.mark.timeout(240)
playwright.expect.set_options(timeout=MILLISECONDS)
AXE = Path(axe.__file__).with_name("axe.min.js")


def chromium() -> tuple[str, dict[str, str]] | None:
    """The program of `scripts/get-servers`, or that of the system, with the libraries that it brings."""
    program = INSTALLED / "usr/lib/chromium/chromium-headless-shell"
    if program.is_file():
        folders = (
            "lib/*-linux-gnu",
            "usr/lib/*-linux-gnu",
            "usr/lib/*-linux-gnu/nss",
            "usr/lib/*-linux-gnu/pulseaudio",
        )
        libraries = [str(path) for folder in folders for path in INSTALLED.glob(folder)]
        environment = {"LD_LIBRARY_PATH": ":".join(libraries)}
        if not Path("/etc/fonts/fonts.conf").exists():  # then the fonts were unpacked with the browser
            environment |= {
                "FONTCONFIG_PATH": str(INSTALLED / "etc/fonts"),
                "XDG_DATA_HOME": str(INSTALLED / "usr/share"),
            }
        elif FONT.is_dir():
            environment["XDG_DATA_HOME"] = str(FONT)
        return str(program), environment
    found = shutil.which("chromium-headless-shell") or shutil.which("/usr/lib/chromium/chromium-headless-shell")
    return (found, {}) if found else None


@contextmanager
def driver_libraries() -> Iterator[None]:
    """playwright starts its driver, a Node, with our environment; what that needs may have been unpacked too."""
    found = [str(path) for path in SERVERS.glob("libatomic1/usr/lib/*-linux-gnu")]
    with pytest.MonkeyPatch.context() as patch:
        if found:
            patch.setenv("LD_LIBRARY_PATH", ":".join(found), prepend=":")
        yield


@asynccontextmanager
async def running_browser() -> AsyncIterator[Any]:
    found = chromium()
    if found is None:
        pytest.skip("there is no chromium-headless-shell; scripts/get-servers brings it")
    program, environment = found
    with driver_libraries():
        driver = await playwright.async_playwright().start()
    try:
        browser = await driver.chromium.launch(
            executable_path=program, args=[*FLAGS], env={**os.environ, **environment}
        )
        try:
            yield browser
        finally:
            await browser.close()
    finally:
        await driver.stop()


async def new_page(context: Any) -> Any:
    context.set_default_timeout(MILLISECONDS)
    return await context.new_page()


async def until_settled(page: Any, quiet: int = 250) -> None:
    """Until everything was brought, and nothing has changed for a moment."""
    await page.evaluate(_SETTLED, [quiet, MILLISECONDS])


_SETTLED = """([quiet, most]) => new Promise((settled) => {
  const end = performance.now() + most;
  let last = performance.now();
  const seen = new MutationObserver(() => { last = performance.now(); });
  seen.observe(document.documentElement, { subtree: true, childList: true, attributes: true, characterData: true });
  const look = () => {
    const now = performance.now();
    const ready = document.readyState === "complete" && document.querySelector("h1") && !document.querySelector(".loading");
    if (now < end && (!ready || now - last < quiet)) return setTimeout(look, 20);
    seen.disconnect();
    settled();
  };
  look();
})"""


async def eventually(question: Callable[[], Awaitable[bool]]) -> None:
    """Asked until it is so."""
    async with asyncio.timeout(MILLISECONDS / 1000):
        while not await question():
            await asyncio.sleep(0.05)


class Complaints:
    """What a browser has to say against a page: errors, warnings, and requests to anybody but `url`."""

    def __init__(self, page: Any, url: str) -> None:
        self.found: list[str] = []
        self.refusals_are_expected = False
        """Then a browser may say that the server answered with an error, also later."""
        self._ours = (url, url.replace("http", "ws", 1), "data:")
        page.on("console", self._message)
        page.on("pageerror", lambda problem: self.found.append(str(problem)))
        page.on("request", self._request)

    def _message(self, message: Any) -> None:
        refused = "the server responded with a status of 4" in message.text
        if message.type in ("error", "warning") and not (refused and self.refusals_are_expected):
            self.found.append(message.text)

    def _request(self, request: Any) -> None:
        if not request.url.startswith(self._ours):
            self.found.append(f"asked somebody else: {request.url}")


async def axe_violations(page: Any, *rules: str) -> list[str]:
    """What axe-core finds on a page, as `rule: element`; with `rules`, by these only."""
    await page.evaluate(AXE.read_text())
    options = {"runOnly": list(rules)} if rules else {"resultTypes": ["violations"]}
    shown = "r.violations.flatMap((v) => v.nodes.map((n) => `${v.id}: ${n.html.slice(0, 200)}`))"
    found: list[str] = await page.evaluate(f"(o) => axe.run(document, o).then((r) => {shown})", options)
    return found
