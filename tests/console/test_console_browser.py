"""The page in a real browser, in front of a control plane in this process: every screen, without a word to anybody else."""

from __future__ import annotations

import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from console_browser import (
    TIMEOUT,
    Complaints,
    axe_violations,
    eventually,
    new_page,
    playwright,
    running_browser,
    until_settled,
)
from console_world import JOBS, a_job, control_plane, dry_runs, function_chain, retried_job, share_usage, waiting_job

from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.secret import SecretValue
from coterie.base.tasks import TaskOwner
from coterie.console.server import ConsoleServer, problem_response
from coterie.console.sessions import Login
from coterie.console.settings import ConsoleSettings
from coterie.http.server import HttpServer
from coterie.kube.client.client import Client
from coterie.kuscia.api.functions.types import ACTIONS, DEAD_LETTERS
from coterie.kuscia.api.types.data import DOMAIN_DATA_GRANTS
from coterie.kuscia.api.types.job import CROSS_DOMAIN
from coterie.kuscia.api.types.log_request import LOG_REQUESTS

pytestmark = [pytest.mark.asyncio(loop_scope="module"), TIMEOUT]
SCREENS = ("/", "/jobs", "/network", "/data", "/approvals", "/nodes", "/functions", "/evidence", "/compose")
JOB_TABS = ("timeline", "graph", "data", "events", "yaml")
FUNCTION = "/functions?function=alice%2Fhello"
ATTACK = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>\x1b[31m'


class Shown:
    """A page that somebody is logged in to; `complaints`: what the browser said against it."""

    def __init__(self, page: Any, url: str, client: Client) -> None:
        self.page = page
        self.url = url
        self.client = client
        self.complaints = Complaints(page, url)

    async def go(self, path: str) -> None:
        await self.page.goto(f"{self.url}{path}")
        await self.page.wait_for_selector("h1")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Any]:
    async with running_browser() as made:
        yield made


@asynccontextmanager
async def opened(browser: Any, **changes: Any) -> AsyncIterator[Shown]:
    bound = socket.create_server(("127.0.0.1", 0))
    port = bound.getsockname()[1]
    settings = ConsoleSettings("alice", "autonomy", "127.0.0.1", port, Path("/nowhere/kubeconfig"), **changes)
    async with control_plane() as client, TaskOwner("console") as owner:
        console = ConsoleServer(settings, client.transport, SYSTEM_CLOCK, owner)
        web = HttpServer(console.handle, problem_response=problem_response)
        await web.serve(bound)
        context = await browser.new_context(viewport={"width": 1280, "height": 800}, locale="en-GB")
        page = await new_page(context)
        made = Shown(page, settings.url, client)
        code = console.sessions.new_code(Login("ops/anna", SecretValue("t")))
        await page.goto(f"{settings.url}/#login={code}")
        await page.wait_for_selector(".shell")
        assert "login" not in page.url, "the code does not stay in the address"
        yield made
        await context.close()
        await web.stop()
    assert made.complaints.found == []


@pytest_asyncio.fixture(loop_scope="module")
async def shown(browser: Any) -> AsyncIterator[Shown]:
    async with opened(browser) as made:
        yield made


async def test_what_partners_write_is_text(shown: Shown) -> None:
    await waiting_job(shown.client, "theirs", f'{{"inputs": {{"alice": "customers"}}, "note": {ATTACK!r}}}')
    status = {"phase": "AwaitingApproval", "message": ATTACK, "reason": "x" * 1_000_000}
    await shown.client.patch_status(JOBS, "theirs", CROSS_DOMAIN, {"status": status})
    await function_chain(shown.client, ATTACK)
    for path in (*SCREENS, *(f"/jobs/theirs?tab={tab}" for tab in JOB_TABS), FUNCTION):
        await shown.go(path)
        await until_settled(shown.page, 100)
        assert await shown.page.evaluate("() => window.hacked") is None, path
        assert await shown.page.locator("main img, main script").count() == 0, path
    await shown.go("/jobs/theirs")
    await playwright.expect(shown.page.locator("main")).to_contain_text("<img src=x")
    await shown.go(FUNCTION)
    for part in (".callout", ".entries", "table.plain"):
        await playwright.expect(shown.page.locator(part, has_text="<img src=x").first).to_be_visible()


async def test_a_job_is_composed_and_a_partners_rejected(shown: Shown) -> None:
    page = shown.page
    await shown.go("/compose")
    for party in ("alice", "bob"):
        await page.locator(".party", has_text=party).locator("input[type=checkbox]").first.check()
    await page.locator(".party", has_text="alice").locator("select").select_option("customers")
    await page.get_by_label("id", exact=True).check()
    await page.get_by_label("Name").fill("composed")
    await page.get_by_role("button", name="Check", exact=True).click()
    table = {"task": "psi", "table": "visitors", "columns": ["id"], "grant": "g", "uses": 1, "usesLeft": 2}
    approval = {"verdict": "Ask", "by": "person", "rules": ["hours"]}
    planned = {
        "domain": "bob",
        "outlook": "Waits",
        "detail": "summary",
        "approval": approval,
        "tables": [table],
        "notes": [ATTACK],
    }
    async with dry_runs(shown.client, {"domain": "bob", "phase": "Answered", "plan": planned}):
        await page.get_by_role("button", name="Dry run", exact=True).click()
        bob = page.get_by_role("region", name="bob")
        for words in (
            "would wait",
            "a person must approve it (hours)",
            "visitors (id), g (1 of 2 uses left)",
            "<img src=x",
        ):
            await playwright.expect(bob).to_contain_text(words)
    assert await page.evaluate("() => window.hacked") is None
    await page.get_by_role("button", name="Run", exact=True).click()
    await page.wait_for_url("**/jobs/composed")
    job = await shown.client.get(JOBS, "composed", CROSS_DOMAIN)
    assert '"alice"' in job["spec"]["tasks"][0]["taskInputConfig"] and job["spec"]["initiator"] == "alice"
    await waiting_job(shown.client, "theirs")
    await page.locator(".rail .count").wait_for()
    await page.get_by_role("link", name=re.compile("Approvals")).click()
    await page.get_by_text("alice/customers").wait_for()
    await page.get_by_role("button", name="Reject", exact=True).click()
    await page.get_by_label("Reason").fill("ask our lawyers first")
    await page.get_by_role("button", name="Reject the job").click()

    async def answered() -> bool:
        job = await shown.client.get(JOBS, "theirs", CROSS_DOMAIN)
        return "approveStatus" in job["status"] and "partyTaskCreateStatus" in job["status"]

    await eventually(answered)
    job = await shown.client.get(JOBS, "theirs", CROSS_DOMAIN)
    assert job["status"]["approveStatus"] == {"alice": "JobRejected"}
    assert job["status"]["partyTaskCreateStatus"]["theirs"][0]["message"] == "rejected: ask our lawyers first"


async def test_a_partner_gets_the_log_lines_that_somebody_looked_at(shown: Shown) -> None:
    page, client = shown.page, shown.client
    asked = {"requester": "bob", "owner": "alice", "job": "j", "task": "psi", "reason": ATTACK}
    preview = {"text": f"line one\n{ATTACK}", "lines": 2, "redactions": 3, "digest": "ab" * 32}
    mirror = {"requester": "alice", "owner": "bob", "job": "k", "reason": "asked by us"}
    for name, namespace, spec in (("theirs", "alice", asked), ("ours", "bob", mirror)):
        await client.create(LOG_REQUESTS.as_dynamic, {"metadata": {"name": name, "namespace": namespace}, "spec": spec})
        status = {"phase": "AwaitingApproval", "preview": preview}
        await client.patch_status(LOG_REQUESTS.as_dynamic, name, namespace, {"status": status})
    await shown.go("/")
    await page.get_by_text("bob asks for log lines").wait_for()
    await playwright.expect(page.locator(".rail .count")).to_have_text("1")
    await shown.go("/approvals")
    await page.get_by_text("bob asks for log lines of j/psi").wait_for()
    assert await page.get_by_role("button", name="Send these lines").count() == 0, "not before they were seen"
    assert await page.get_by_text("asked by us").count() == 0
    await page.get_by_text("coterie logrequest preview theirs --domain alice").wait_for()
    await page.get_by_role("button", name="See what would be sent").click()
    await page.get_by_text("Lines: 2; pieces cut out: 3.").wait_for()
    await playwright.expect(page.locator("pre.text")).to_contain_text("<script>window.hacked=1</script>")
    assert await page.evaluate("() => window.hacked") is None
    assert await axe_violations(page) == []
    await page.get_by_role("button", name="Send these lines").click()

    async def approved() -> bool:
        review = (await client.get(LOG_REQUESTS, "theirs", "alice")).spec.review
        return review is not None and (review.decision, review.digest, review.by) == ("Approve", "ab" * 32, "admin")

    await eventually(approved)


async def test_a_table_is_granted_and_revoked(shown: Shown) -> None:
    page = shown.page
    await shown.go("/data")
    await page.get_by_role("link", name="customers").click()
    await page.get_by_label("city").check()
    await page.get_by_label("Uses").fill("2")
    await page.get_by_role("button", name="Grant", exact=True).click()
    await page.get_by_role("cell", name="customers-bob").wait_for()
    await page.get_by_role("button", name="Revoke").click()
    await page.get_by_role("button", name="really").click()
    await page.get_by_text("Nobody else may use this table.").wait_for()
    # At the partner's side of our control plane lies a copy of each grant of ours, at ours one of each of the partner's.
    for namespace, author, partner in (("bob", "alice", "bob"), ("alice", "bob", "alice")):
        spec = {"author": author, "domainDataID": f"of-{author}", "grantDomain": partner}
        meta = {"name": f"of-{author}", "namespace": namespace}
        await shown.client.create(DOMAIN_DATA_GRANTS.as_dynamic, {"metadata": meta, "spec": spec})
    given = page.locator("section", has=page.get_by_role("heading", name="Granted to us by partners"))
    await playwright.expect(given.locator("tbody tr")).to_have_count(1)
    await playwright.expect(given).to_contain_text("of-bob")


async def test_the_keyboard_is_enough(shown: Shown) -> None:
    page = shown.page
    for number in range(3):
        await shown.client.create(JOBS, a_job(f"job-{number}", "alice"))
    await page.keyboard.press("?")
    await page.locator("dialog[open]").wait_for()
    await page.keyboard.press("Escape")
    for key in "gj":
        await page.keyboard.press(key)
    await page.wait_for_url("**/jobs")
    await playwright.expect(page.locator("main h1")).to_be_focused()
    await page.keyboard.press("/")
    await page.keyboard.type("job-1")
    await playwright.expect(page.locator(".rows .row")).to_have_count(1)
    assert page.url.endswith("q=job-1")
    await page.locator(".rows").focus()
    for key in ("j", "Enter"):
        await page.keyboard.press(key)
    await page.wait_for_url("**/jobs/job-1")
    await page.keyboard.press("Tab")
    tab = page.get_by_role("tab", name="Timeline")
    await tab.focus()
    await page.keyboard.press("ArrowRight")
    await page.wait_for_url("**tab=graph")


async def test_an_address_of_nothing_says_so(shown: Shown) -> None:
    shown.complaints.refusals_are_expected = True
    for path, words in (
        ("/jobs/gone", "not found"),
        ("/jobs/gone/tasks/psi", "not found"),
        ("/pods/alice/gone", "This pod is gone."),
        ("/nowhere", "Back to the overview"),
    ):
        await shown.go(path)
        await shown.page.get_by_text(words).first.wait_for()
    # The server refuses what is no encoding; within the page it is a name that nothing has.
    await shown.page.evaluate(
        "() => { history.pushState(null, '', '/jobs/%zz'); dispatchEvent(new PopStateEvent('popstate')); }"
    )
    await shown.page.get_by_role("heading", name="%zz").wait_for()


async def test_nothing_is_shown_to_who_has_logged_out(shown: Shown) -> None:
    page = shown.page
    await shown.client.create(JOBS, a_job("mine", "alice"))
    await shown.go("/jobs")
    await page.get_by_text("mine").wait_for()
    await page.get_by_role("button", name="Log out").click()
    await page.get_by_text("coterie console").wait_for()
    assert await page.get_by_text("mine").count() == 0


async def test_a_timeline_explains_itself_by_pointer_and_keyboard(shown: Shown) -> None:
    page = shown.page
    await share_usage(shown.client, "mine", await retried_job(shown.client, "mine"))
    await shown.go("/jobs/mine")
    await page.locator(".tl-row.tl-task a", has_text="psi").first.click()
    await page.wait_for_url("**/jobs/mine/tasks/psi")
    await page.get_by_text("coterie job show mine --timeline --task psi").wait_for()
    # The axis is that of the last attempt; the first one failed two days before.
    await playwright.expect(page.locator(".tl-sum")).to_contain_text("38 s running")
    # Plots have the axis of the bars, and a table for who does not see them. What comes late moves what is above it.
    await playwright.expect(page.locator(".tl-canvas canvas")).to_have_count(3)
    await eventually(lambda: same_axis(page))
    await until_settled(page)
    bar = page.locator(".tl-party .bar[data-kind=wait]").first
    await bar.hover()
    inspector = page.locator(".tl-inspector")
    await inspector.get_by_text("1 Insufficient cpu").wait_for()
    await playwright.expect(inspector).to_contain_text("coterie top node")
    await page.get_by_text("As a table").click()
    await page.get_by_role("cell", name="bob ↔ alice").wait_for()
    # Keys: from bar to bar, nearer and back.
    await page.locator(".bar[tabindex='0']").focus()
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("ArrowRight")
    await inspector.get_by_text("as bob reported it").wait_for()
    await playwright.expect(inspector).to_contain_text("reserved")
    ticks = page.locator(".tl-axis text")
    before = await ticks.all_text_contents()
    await page.keyboard.press("+")
    await playwright.expect(ticks).not_to_have_text(before)
    await page.keyboard.press("0")
    await playwright.expect(ticks).to_have_text(before)
    await page.locator(".tl-attempts button", has_text="1").click()
    await page.get_by_text("Attempt 1 failed.").wait_for()
    assert page.url.endswith("?attempt=1")
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        await shown.go("/jobs/mine/tasks/psi")
        await page.locator(".tl-canvas canvas").first.wait_for()
        assert await axe_violations(page) == [], scheme
    await page.set_viewport_size({"width": 360, "height": 740})
    assert await page.evaluate("() => document.documentElement.scrollWidth") <= 360


async def same_axis(page: Any) -> bool:
    left, right = [
        await page.locator(f"{each} >> nth=0").bounding_box() for each in (".tl-party .tl-track", ".tl-plot .tl-track")
    ]
    return bool((left["x"], left["width"]) == (right["x"], right["width"]))


async def test_a_partner_is_asked_from_the_timeline(shown: Shown) -> None:
    page = shown.page
    await retried_job(shown.client, "mine")
    await shown.go("/jobs/mine/tasks/psi")
    await page.get_by_text("bob shows only the state of its part.").wait_for()
    await page.get_by_role("button", name="Ask bob for more").click()
    await page.get_by_label("Why you ask").fill("it was slow")
    await page.get_by_role("button", name="Ask", exact=True).click()
    await page.get_by_text("bob was asked for more").wait_for()
    (made,) = (await shown.client.list(LOG_REQUESTS, "alice")).items
    assert (made.spec.owner, made.spec.task, made.spec.sources) == ("bob", "psi", ("usage", "scheduler", "engine"))


async def test_several_jobs_are_stopped_after_a_question(shown: Shown) -> None:
    page = shown.page
    for number in range(3):
        await shown.client.create(JOBS, a_job(f"job-{number}", "alice"))
    await shown.go("/jobs?sort=name")
    await page.locator(".rows .row").nth(2).wait_for()
    await page.locator(".rows").focus()
    for key in ("j", "x", "j", "j", "x"):
        await page.keyboard.press(key)
    await playwright.expect(page.locator('.row[aria-selected="true"]')).to_have_count(2)
    await page.get_by_role("button", name="Stop 2 jobs", exact=True).click()
    await page.get_by_text("job-0, job-2").wait_for()
    await page.get_by_role("button", name="Stop 2 jobs now").click()
    await page.locator(".bulk").wait_for(state="detached")
    stages = [(await shown.client.get(JOBS, f"job-{n}", CROSS_DOMAIN))["metadata"].get("labels", {}) for n in range(3)]
    assert [labels.get("kuscia.secretflow/job-stage") for labels in stages] == ["Stop", None, "Stop"]


async def test_functions_are_seen_as_they_change_and_calls_sent_again(shown: Shown) -> None:
    page = shown.page
    await shown.go("/functions")
    await page.get_by_text("coterie action create hello --script hello.py --http /hello --domain alice").wait_for()
    await function_chain(shown.client)
    cards = page.locator(".graph .node")
    await playwright.expect(cards).to_have_count(4)
    assert await axe_violations(page) == []
    await playwright.expect(page.locator(".graph .edge")).to_have_count(3)
    card = page.get_by_role("button", name=re.compile("^hello: running, 7 calls"))
    await card.focus()
    await page.keyboard.press("Enter")
    await page.wait_for_url(re.compile(r"function=alice%2Fhello$"))
    await page.get_by_text("coterie action show hello --domain alice").wait_for()
    panel = page.locator("section.card")
    await playwright.expect(panel).to_contain_text("v0000000002")
    await playwright.expect(panel).to_contain_text("bob/score")
    await shown.client.patch_status(ACTIONS.as_dynamic, "hello", "alice", {"status": {"callsPerMinute": 4321}})
    await page.get_by_role("button", name=re.compile("^hello: running, 4321 calls")).wait_for()
    # What cannot be called from here is shown as a command, quoted for a shell.
    await panel.get_by_label("Body of the call").fill("it's")
    await panel.get_by_text("coterie action invoke hello --body 'it'\\''s' --domain alice").wait_for()
    # Calls that were given up.
    first = page.get_by_role("row", name=re.compile("first-request"))
    await first.get_by_role("button", name="Replay").click()
    await first.get_by_text("is sent again").wait_for()
    second = page.get_by_role("row", name=re.compile("second-request"))
    await second.get_by_role("button", name="Remove").click()
    await second.get_by_role("button", name="really").click()
    await second.wait_for(state="detached")
    (letter,) = (await shown.client.list(DEAD_LETTERS, "alice")).items
    assert letter.metadata.name == "first" and letter.spec.replay
    # Versions and grants.
    await panel.get_by_role("button", name="Send all calls here").click()
    await panel.get_by_role("button", name="really").click()
    await eventually(lambda: sent_to(shown.client, "v0000000001"))
    await panel.get_by_role("button", name="Revoke").click()
    await panel.get_by_role("button", name="really").click()
    await panel.get_by_text("No partner may call it.").wait_for()
    await page.set_viewport_size({"width": 360, "height": 740})
    assert await page.evaluate("() => document.documentElement.scrollWidth") <= 360


async def sent_to(client: Client, version: str) -> bool:
    traffic = (await client.get(ACTIONS, "hello", "alice")).spec.traffic or ()
    return [(each.version, each.percent) for each in traffic] == [(version, 100)]


async def test_who_may_only_read_sees_why_functions_cannot_be_changed(browser: Any) -> None:
    async with opened(browser, read_only=True) as shown:
        await function_chain(shown.client)
        await shown.go(FUNCTION)
        for name in ("Replay", "Remove", "Send all calls here", "Revoke"):
            button = shown.page.get_by_role("button", name=name).first
            await playwright.expect(button).to_be_disabled()
            await playwright.expect(button).to_have_attribute("title", "This console is read-only")
