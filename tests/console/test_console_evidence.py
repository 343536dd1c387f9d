"""The screen of evidence: what its views answer, to whom, and what a browser shows of them."""

from __future__ import annotations

import contextlib
import io
import json
import socket
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from console_browser import TIMEOUT, Complaints, new_page, running_browser
from console_world import control_plane

from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.paths import DomainPaths
from coterie.base.secret import SecretValue
from coterie.base.tasks import TaskOwner
from coterie.console.server import ConsoleServer, problem_response
from coterie.console.sessions import Login
from coterie.console.settings import ConsoleSettings
from coterie.http.messages import Request, UserInfo
from coterie.http.server import HttpServer
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kuscia.api import evidence
from coterie.kuscia.api.evidence import EventRequest, EvidenceEvent
from coterie.kuscia.evidence import export, tlog_proof, verification
from coterie.kuscia.evidence.local_log import LocalLog
from coterie.kuscia.evidence.service import open_domain_log
from coterie.kuscia.evidence.signed_notes import NoteKey
from coterie.kuscia.identity import domain_identity

pytestmark = TIMEOUT
ATTACK = '<img src=x onerror="window.hacked=1">'
ANNA, STRANGER = SecretValue("anna"), SecretValue("stranger")
TOKENS = ((ANNA, UserInfo("anna", ("system:masters",))), (STRANGER, UserInfo("stranger")))


async def write_log(home: Path) -> DomainPaths:
    paths = DomainPaths.of(home, "alice").prepare()
    domain_identity.ensure(paths, "alice", None, SYSTEM_CLOCK.now())
    log = await open_domain_log(paths, "alice", SYSTEM_CLOCK)
    for number in range(120):
        event = EvidenceEvent(kind=evidence.GRANT_USED, job=f"job-{number % 2}", partner="bob")
        await log.record_requests([EventRequest(event=event, person=ATTACK, tables=("salaries",))])
    await log.file.close()
    return paths


@asynccontextmanager
async def console(home: Path) -> AsyncIterator[tuple[ConsoleServer, str, socket.socket]]:
    paths = await write_log(home)
    bound = socket.create_server(("127.0.0.1", 0))
    settings = ConsoleSettings("alice", "autonomy", "127.0.0.1", bound.getsockname()[1], paths.home / "kubeconfig")
    async with control_plane(TOKENS) as client, TaskOwner("console") as owner:
        assert isinstance(client.transport, InProcessTransport)
        # Only tokens say who somebody is.
        by_token = InProcessTransport(client.transport._handler, None)  # type: ignore[arg-type]
        yield ConsoleServer(settings, by_token, SYSTEM_CLOCK, owner), settings.url, bound


class EvidencePage:
    def __init__(self, server: ConsoleServer, url: str) -> None:
        self._server = server
        self._headers = {"host": url.partition("//")[2], "origin": url}

    async def log_in(self, token: str) -> None:
        code = self._server.sessions.new_code(Login("ops/anna", SecretValue(token)))
        body = json.dumps({"code": code}).encode()
        answer = await self._server.handle(Request("POST", "/login", headers=self._headers, body=body))
        cookie = dict(answer.headers)["Set-Cookie"].partition(";")[0]
        self._headers |= {"cookie": cookie, "x-coterie-csrf": json.loads(answer.body)["csrf"]}

    async def get(self, path: str, query: str = "") -> tuple[int, Any]:
        answer = await self._server.handle(Request("GET", path, query, self._headers))
        return answer.status, json.loads(answer.body)


async def test_events_pages_proof_and_file(tmp_path: Path) -> None:
    async with console(tmp_path) as (server, url, bound):
        bound.close()
        page = EvidencePage(server, url)
        await page.log_in("anna")
        _, first = await page.get("/views/evidence")
        assert (first["size"], len(first["events"]), first["events"][0]["index"]) == (121, 100, 120)
        _, rest = await page.get("/views/evidence", "before=21")
        assert [each["index"] for each in rest["events"]] == list(range(20, -1, -1))
        _, some = await page.get("/views/evidence", "job=job-1&kind=grant.")
        assert {each["job"] for each in some["events"]} == {"job-1"}
        status, one = await page.get("/views/evidence/7")
        assert (status, one["content"]["disclosed"] != {}) == (200, True)
        assert tlog_proof.read_proof(one["proof"], NoteKey.parse(one["key"])).index == 7
        _, state = await page.get("/views/evidence/state")
        assert (state["signedSize"], state["cosigners"], state["partners"]) == (121, [], [])
        _, file = await page.get("/views/evidence/export", "job=job-1")
        assert verification.verify(io.BytesIO(file["content"].encode())).events == 61
        assert (await page.get("/views/evidence/999"))[0] == 404
        assert (await page.get("/views/evidence", "since=yesterday"))[0] == 400
        assert (await page.get("/views/evidence/state/x"))[0] == 404


async def test_only_who_may_get_evidence_sees_it(tmp_path: Path) -> None:
    async with console(tmp_path) as (server, url, bound):
        bound.close()
        page = EvidencePage(server, url)
        await page.log_in("stranger")
        for path in ("", "/state", "/7", "/export", "/verify"):
            status, answer = await page.get(f"/views/evidence{path}")
            assert status == 403, path
            assert "evidence.coterie.io" in answer["message"]


async def test_the_log_is_verified_and_what_was_changed_is_named(tmp_path: Path) -> None:
    async with console(tmp_path) as (server, url, bound):
        bound.close()
        page = EvidencePage(server, url)
        await page.log_in("anna")
        status, found = await page.get("/views/evidence/verify")
        assert status == 200 and found == {
            "valid": True, "fault": "", "events": 121, "removed": 0, "size": 121, "cosigned": []
        }  # fmt: skip
        log = LocalLog.find(DomainPaths(tmp_path / "alice"))
        with contextlib.closing(sqlite3.connect(log.reader.path, isolation_level=None)) as file:
            file.execute("UPDATE leaves SET body = (SELECT body FROM leaves WHERE id = 8) WHERE id = 7")
        _, found = await page.get("/views/evidence/verify")
        assert found["valid"] is False and "event 7" in found["fault"]


async def test_files_name_the_partners_that_cosigned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []

    def exported(*_: object, witnesses: object = None, **__: object) -> list[bytes]:
        given.append(witnesses)
        return [b"file"]

    monkeypatch.setattr(LocalLog, "witnesses", ["bob's log"])
    for name in ("export_log", "export_events"):
        monkeypatch.setattr(export, name, exported)
    async with console(tmp_path) as (server, url, bound):
        bound.close()
        page = EvidencePage(server, url)
        await page.log_in("anna")
        for query in ("", "job=job-1"):
            assert (await page.get("/views/evidence/export", query))[1]["content"] == "file"
    assert given == [["bob's log"]] * 2, "as `coterie audit export` does"


def verify_file(path: str) -> int:
    with Path(path).open("rb") as file:
        return verification.verify(file).events


async def test_the_screen_in_a_browser(tmp_path: Path) -> None:
    async with running_browser() as browser, console(tmp_path) as (server, url, bound):
        web = HttpServer(server.handle, problem_response=problem_response)
        await web.serve(bound)
        context = await browser.new_context(viewport={"width": 1280, "height": 800}, locale="en-GB")
        page = await new_page(context)
        complaints = Complaints(page, url)
        code = server.sessions.new_code(Login("ops/anna", ANNA))
        await page.goto(f"{url}/#login={code}")
        await page.wait_for_selector(".shell")
        await page.goto(f"{url}/evidence?job=job-1")
        await page.wait_for_selector("tbody tr a")
        assert await page.locator("tbody tr").count() == 60
        assert "coterie audit ls --job job-1" in await page.inner_text(".head .command")
        await page.click("tbody tr a >> nth=0")
        await page.wait_for_selector("text=c2sp.org/tlog-proof@v1")
        assert "event=120" in page.url and "job=job-1" in page.url
        await page.click("text=Verify the log")
        await page.wait_for_selector("text=121 events, none missing")
        field = page.get_by_placeholder("Since")
        await field.fill("yesterday")
        await page.wait_for_selector(".bad.message")
        assert await field.input_value() == "yesterday", "who mistypes can correct it"
        assert {"400" in each for each in complaints.found} == {True}
        complaints.found.clear()
        await field.fill("")
        await page.wait_for_selector(".bad.message", state="detached")
        async with page.expect_download() as waiting:
            await page.click("text=Download as a file")
        made = await (await waiting.value).path()
        assert verify_file(made) == 61
        assert not await page.evaluate("window.hacked === 1")
        assert complaints.found == []
        await context.close()
        await web.stop(1.0)
