"""Every screen with something on it: axe finds nothing in either theme, it fits a telephone, and a keyboard is enough."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from console_browser import TIMEOUT, axe_violations, eventually, playwright, running_browser, until_settled
from console_pictures import SCREENS, THEMES, ShownScene, shown_scene
from console_scene import JOBS, OWN, POD

from coterie.kuscia.api.types.job import CROSS_DOMAIN

pytestmark = [pytest.mark.asyncio(loop_scope="module"), TIMEOUT]
NARROW = {"width": 360, "height": 740}
ASKED = "af-screening-cohort"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shown() -> AsyncIterator[ShownScene]:
    async with running_browser() as browser, shown_scene(browser) as made:
        yield made


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def nothing_is_wrong(shown: ShownScene) -> AsyncIterator[None]:
    yield
    found, shown.complaints.found = shown.complaints.found, []
    assert found == []


@pytest.mark.parametrize("name", SCREENS)
async def test_a_screen(shown: ShownScene, name: str) -> None:
    page = shown.page
    await page.set_viewport_size({"width": 1280, "height": 800})
    await shown.theme(THEMES[0])
    await shown.go(SCREENS[name])
    await until_settled(page)
    assert await axe_violations(page) == []
    assert await page.evaluate(_UNREACHABLE) == 0, "also buttons that are drawn are reached by a keyboard"
    await shown.theme(THEMES[1])
    assert await axe_violations(page, "color-contrast") == [], "the themes differ by colours only"
    await page.set_viewport_size(NARROW)
    assert await page.evaluate("() => document.documentElement.scrollWidth") <= NARROW["width"]


@pytest.mark.parametrize("theme", THEMES)
async def test_the_page_of_a_terminal_and_the_help(shown: ShownScene, theme: str) -> None:
    await shown.page.set_viewport_size({"width": 1280, "height": 800})
    await shown.theme(theme)
    await shown.page.goto(f"{shown.url}/terminal?namespace={OWN}&pod={POD}&container=engine")
    await shown.page.wait_for_selector("h1")
    assert await axe_violations(shown.page) == []
    await shown.go("/jobs")
    await shown.page.keyboard.press("?")
    await shown.page.locator("dialog[open]").wait_for()
    assert await axe_violations(shown.page) == []
    await shown.page.keyboard.press("Escape")


async def test_a_keyboard_is_enough_to_find_a_job_and_approve_it(shown: ShownScene) -> None:
    page = shown.page
    await page.set_viewport_size({"width": 1280, "height": 800})
    await shown.go("/")
    await press(page, "g", "j")
    await page.wait_for_url("**/jobs")
    await page.locator("[data-key='/']").wait_for()
    await press(page, "/")
    await page.keyboard.type("screening")
    await playwright.expect(page.locator("[data-key='/']")).to_have_value("screening")
    await playwright.expect(page.locator(".rows [role=option]")).to_have_count(1)
    await until_focused(page, lambda about: about["role"] == "listbox")
    await press(page, "j", "Enter")
    await page.wait_for_url(f"**/jobs/{ASKED}*")
    await page.get_by_role("button", name="Approve", exact=True).wait_for()
    await until_focused(page, lambda about: about["text"] == "Approve")
    outline = "() => getComputedStyle(document.activeElement).outlineStyle"
    assert await page.evaluate(outline) != "none", "who uses a keyboard sees where it is"
    await press(page, "Enter")

    async def approved() -> bool:
        job = await shown.scene.client.get(JOBS, ASKED, CROSS_DOMAIN)
        return bool(job["status"].get("approveStatus") == {OWN: "JobAccepted"})

    await eventually(approved)


async def test_who_types_quickly_keeps_focus_and_letters(shown: ShownScene) -> None:
    """The filter has the focus before anything was drawn, and the title of the new screen does not take it away: `c` would
    be the key of another page."""
    await shown.go("/")
    found = await shown.page.evaluate(_TYPED_AT_ONCE)
    assert found == {"focused": "INPUT", "later": "INPUT", "path": "/jobs"}
    await shown.go("/")
    assert await shown.page.evaluate(_LEFT_THE_HELP, ["?", "Escape", "g", "j"]) == "H1"
    await shown.go("/")
    assert await shown.page.evaluate(_LEFT_THE_HELP, ["?", "g", "j"]) == "H1", "another screen closes the help"


async def test_what_is_typed_for_a_screen_that_still_comes_is_in_its_filter(shown: ShownScene) -> None:
    page = shown.page
    come = asyncio.Event()

    async def late(route: Any) -> None:
        await come.wait()
        await route.continue_()

    await shown.go("/")
    await page.route("**/nodes.js", late)
    await press(page, "g", "p")
    await page.locator("main > .loading").wait_for()
    await press(page, "/")
    await page.keyboard.type("cohort")  # c is a key, too
    come.set()
    field = page.locator("[data-key='/']")
    await playwright.expect(field).to_have_value("cohort")
    await playwright.expect(field).to_be_focused()
    await page.keyboard.type("-2")
    await page.wait_for_url(re.compile("/nodes.q=cohort-2$"))
    await page.unroute("**/nodes.js")


_UNREACHABLE = """() => [...document.querySelectorAll(".graph [role=button], .network [role=button]")]
  .filter((each) => each.tabIndex < 0).length"""
_LEFT_THE_HELP = """async (keys) => {
  for (const key of keys) {
    document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
    for (let n = 0; n < 20; n++) await Promise.resolve();
  }
  for (let n = 0; n < 3; n++) await new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn, 120)));
  return document.querySelector("dialog[open]") ? "dialog" : document.activeElement.tagName;
}"""
_TYPED_AT_ONCE = """async () => {
  const key = (name) => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true }));
  key("g");
  key("j");
  for (let n = 0; n < 100 && !document.querySelector("[data-key='/']"); n++) await Promise.resolve();
  key("/");
  const focused = document.activeElement.tagName;
  for (let n = 0; n < 3; n++) await new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn, 120)));
  key("c");
  return { focused, later: document.activeElement.tagName, path: location.pathname };
}"""


async def press(page: Any, *keys: str) -> None:
    for key in keys:
        await page.keyboard.press(key)


async def until_focused(page: Any, wanted: Any) -> None:
    """Tab, until the focus is on it; each stop can be seen and has a name."""
    script = """() => {
      const it = document.activeElement;
      const box = it.getBoundingClientRect();
      const text = it.textContent.trim();
      return { role: it.getAttribute("role") ?? "", text, seen: box.width > 0 && box.height > 0, tag: it.tagName,
        name: text || it.getAttribute("aria-label") || it.getAttribute("title") || (it.labels?.[0]?.textContent ?? "") };
    }"""
    for _ in range(60):
        await page.keyboard.press("Tab")
        about = await page.evaluate(script)
        if about["tag"] == "BODY":
            continue
        assert about["seen"] and about["name"], about
        if wanted(about):
            return
    pytest.fail("the focus never came there")


async def test_logging_in_needs_no_pointer_either(shown: ShownScene) -> None:
    """Last: nobody is logged in afterwards."""
    page = shown.page
    await shown.go("/")
    await until_focused(page, lambda about: about["text"] == "Log out")
    await press(page, "Enter")
    await page.get_by_text("coterie console").wait_for()
    for theme in THEMES:
        await shown.theme(theme)
        assert await axe_violations(page) == []
    await page.evaluate("(code) => { location.hash = `login=${code}`; }", shown.new_code())
    await page.locator(".shell").wait_for()
    assert "login" not in page.url
