"""What the console shows and does, against a real API server in this process."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from console_world import INPUT, JOBS, a_job, control_plane, dry_runs, retried_job, share_usage, waiting_job

from coterie.base.clock import SYSTEM_CLOCK, VirtualClock
from coterie.base.tasks import TaskOwner
from coterie.console.activity import STEP_SECONDS, WATCHED_SECONDS, ActivitySampler, cpus_used, sent_bits
from coterie.console.server import ConsoleServer
from coterie.console.settings import ConsoleSettings
from coterie.http.messages import Request
from coterie.kube.client.client import Client
from coterie.kuscia.api.types.data import DOMAIN_DATA_GRANTS
from coterie.kuscia.api.types.job import CROSS_DOMAIN
from coterie.kuscia.sources.grant_entries import limit_of, name_for

HOST = "127.0.1.1:8088"
GRANTS = DOMAIN_DATA_GRANTS.as_dynamic


class Page:
    """A logged-in page; `client` writes what is there already."""

    def __init__(self, console: ConsoleServer, client: Client) -> None:
        self.console = console
        self.client = client
        self.headers: dict[str, str] = {"host": HOST, "origin": f"http://{HOST}"}

    async def log_in(self) -> None:
        link = await self.console.handle_control(Request("POST", "/codes", body=b'{"account":"ops/anna","token":"t"}'))
        code = json.loads(link.body)["url"].partition("#login=")[2]
        answer = await self.console.handle(
            Request("POST", "/login", headers=self.headers, body=json.dumps({"code": code}).encode())
        )
        cookie = dict(answer.headers)["Set-Cookie"].partition(";")[0]
        self.headers |= {"cookie": cookie, "x-coterie-csrf": json.loads(answer.body)["csrf"]}

    async def __call__(self, method: str, path: str, body: object = None, query: str = "") -> tuple[int, Any]:
        sent = json.dumps(body).encode() if body is not None else b""
        answer = await self.console.handle(Request(method, path, query, self.headers, sent))
        return answer.status, json.loads(answer.body)


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    settings = ConsoleSettings("alice", "autonomy", "127.0.1.1", 8088, Path("/nowhere/kubeconfig"))
    async with control_plane() as client, TaskOwner("console") as owner:
        made = Page(ConsoleServer(settings, client.transport, SYSTEM_CLOCK, owner), client)
        await made.log_in()
        yield made


async def test_a_request_names_our_tables_columns_and_the_engine(page: Page) -> None:
    await waiting_job(page.client, "j")
    status, view = await page("GET", "/views/jobs/j/request")
    assert status == 200, view
    (task,) = view["tasks"]
    assert (view["initiator"], view["foreign"], view["approvers"]) == ("bob", True, ["alice"])
    assert (task["engine"], task["version"], task["digest"]) == ("psi", "1.2", "ab" * 32)
    (table,) = task["tables"]
    assert (table["owner"], table["table"], table["needsGrant"]) == ("alice", "customers", True)
    assert {each["name"]: each["named"] for each in table["columns"]} == {"id": True, "city": False, "spent": False}
    assert "no grant" in table["refusal"] and view["verdict"] and view["policy"] == ""


async def test_a_grant_from_the_page_covers_its_columns_only(page: Page) -> None:
    await waiting_job(page.client, "j")
    body = {"partner": "bob", "columns": ["id"], "uses": 3, "seconds": 3600}
    status, made = await page("POST", "/actions/data/alice/customers/grant", body)
    assert (status, made) == (200, {"grant": "customers-bob"})
    spec = (await page.client.get(GRANTS, "customers-bob", "alice"))["spec"]
    assert spec["author"] == "alice" and spec["limit"]["useCount"] == 3
    assert json.loads(spec["limit"]["inputConfig"]) == {"columns": ["id"]}
    (task,) = (await page("GET", "/views/jobs/j/request"))[1]["tasks"]
    (table,) = task["tables"]
    assert table["grant"] == "customers-bob" and table["refusal"] == ""
    assert [each["name"] for each in table["columns"] if each["granted"]] == ["id"]
    assert (await page("POST", "/actions/data/alice/customers/grant", body))[1] == {"grant": "customers-bob-2"}
    assert (await page("POST", "/actions/grants/alice/customers-bob/revoke"))[0] == 200
    (task,) = (await page("GET", "/views/jobs/j/request"))[1]["tasks"]
    assert task["tables"][0]["grant"] == "customers-bob-2"


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"partner": "bob", "columns": ["salary"]}, id="a column that is not there"),
        pytest.param({"partner": "alice"}, id="to itself"),
        pytest.param({"partner": ""}, id="to nobody"),
        pytest.param({"partner": "bob", "uses": -1}, id="less than no use"),
        pytest.param({"partner": "bob", "seconds": 10**12}, id="for ever and a day"),
        pytest.param({"columns": []}, id="no partner"),
    ],
)
async def test_grants_that_make_no_sense_are_refused(page: Page, body: object) -> None:
    assert (await page("POST", "/actions/data/alice/customers/grant", body))[0] == 400
    assert not (await page.client.list(GRANTS, "alice")).items


async def test_the_reason_of_a_rejection_stands_where_the_initiator_sees_it(page: Page) -> None:
    await waiting_job(page.client, "j")
    status, _ = await page("POST", "/actions/jobs/j/reject", {"reason": "ask our lawyers <b>first</b>"})
    job = await page.client.get(JOBS, "j", CROSS_DOMAIN)
    assert status == 200 and job["status"]["approveStatus"] == {"alice": "JobRejected"}
    view = (await page("GET", "/views/jobs/j/request"))[1]
    assert view["rejectReason"] == "ask our lawyers <b>first</b>" and view["answers"] == {"alice": "JobRejected"}
    assert view["answeredBy"]["alice"]["by"] == "admin" and view["answeredBy"]["alice"]["at"]
    await waiting_job(page.client, "k")
    assert (await page("POST", "/actions/jobs/k/approve"))[0] == 200
    job = await page.client.get(JOBS, "k", CROSS_DOMAIN)
    assert job["status"]["approveStatus"] == {"alice": "JobAccepted"}


async def test_a_composed_job_is_tried_before_it_is_sent(page: Page) -> None:
    asked: dict[str, Any] = {
        "engine": "psi", "name": "mine", "input": json.dumps(INPUT),
        "parties": [{"domain": "alice", "cpu": "1"}, {"domain": "bob", "role": "host"}],
    }  # fmt: skip
    status, checked = await page("POST", "/actions/jobs/check", asked)
    assert status == 200 and checked["problems"] == [] and not checked["created"], checked
    assert not (await page.client.list(JOBS, CROSS_DOMAIN)).items
    for wrong in ({"engine": "none"}, {"name": "Not A Name"}, {"parties": [{"domain": "carol"}]}):
        status, checked = await page("POST", "/actions/jobs/create", asked | wrong)
        assert (status, checked["created"]) == (200, False) and checked["problems"], wrong
    assert (await page("POST", "/actions/jobs/create", asked | {"parties": []}))[0] == 400
    status, made = await page("POST", "/actions/jobs/create", asked)
    assert status == 200 and made["created"], made
    job = await page.client.get(JOBS, "mine", CROSS_DOMAIN)
    assert job["spec"]["initiator"] == "alice" and job["spec"]["tasks"][0]["parties"][1]["role"] == "host"
    status, again = await page("POST", "/actions/jobs/create", asked)
    assert not again["created"] and "already exists" in again["problems"][0]


async def test_all_parties_of_a_composed_job_are_asked(page: Page) -> None:
    asked: dict[str, Any] = {"engine": "psi", "name": "mine", "parties": [{"domain": "alice"}, {"domain": "bob"}]}
    told = {"domain": "bob", "phase": "Answered", "plan": {"domain": "bob", "outlook": "Fails", "notes": ["\x1b<b>"]}}
    async with dry_runs(page.client, told):
        status, found = await page("POST", "/actions/jobs/plan", asked)
        assert status == 200 and found["problems"] == [], found
        assert [each["domain"] for each in found["plan"]["answers"]] == ["alice", "bob"]
        assert found["plan"]["outlook"] == "Fails" and "\x1b" not in json.dumps(found)
        status, found = await page("POST", "/actions/jobs/plan", asked | {"engine": "none"})
        assert status == 200 and found["plan"] is None and found["problems"], "nobody is asked about that"
    assert not (await page.client.list(JOBS, CROSS_DOMAIN)).items


async def test_queries_of_logs_are_checked(page: Page) -> None:
    assert (await page("GET", "/logs/jobs/none"))[0] == 404
    await page.client.create(JOBS, a_job("j", "alice"))
    for query in ("limit=0", "limit=100000", "grep=(", "since=soon", "source=secrets", "cursor=x", "party=A_B"):
        status, problem = await page("GET", "/logs/jobs/j", query=query)
        assert status == 400, (query, problem)


async def test_logs_are_those_of_our_own_parties(page: Page) -> None:
    await page.client.create(JOBS, a_job("j", "alice"))
    status, found = await page("GET", "/logs/jobs/j", query="task=psi&party=alice&source=engine,gateway&grep=a%2Bb")
    assert status == 200, found
    assert (found["lines"], found["cursor"], found["tasks"]) == ([], "", ["psi"])
    assert (found["parties"], found["visible"]) == (["alice", "bob"], ["alice"])
    assert (await page("GET", "/logs/jobs/j", query="task=none"))[0] == 404


async def test_a_route_that_is_missing_is_said_step_by_step(page: Page) -> None:
    status, found = await page("POST", "/actions/routes/alice/bob/check")
    assert status == 200 and found["sound"] is False
    (route,) = [each for each in found["findings"] if each["step"] == "route"]
    assert route["verdict"] == "wrong" and "route add" in route["advice"]
    assert (await page("POST", "/actions/routes/alice/B b/check"))[0] == 400


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/views/none"),
        ("POST", "/actions/none"),
        ("POST", "/actions/data/alice/customers/steal"),
        ("GET", "/logs/pods/a"),
    ],
)
async def test_other_addresses_are_not_there(page: Page, method: str, path: str) -> None:
    assert (await page(method, path))[0] == 404


async def test_views_are_read_and_actions_are_posted(page: Page) -> None:
    assert (await page("POST", "/views/activity"))[0] == 405
    assert (await page("GET", "/actions/jobs/j/stop"))[0] == 405


async def test_activity_is_measured_only_while_somebody_asks(page: Page) -> None:
    clock = VirtualClock()
    async with TaskOwner("console") as owner:
        sampler = ActivitySampler(page.client, clock, owner)
        assert sampler.points() == []
        for _ in range(5):
            await clock.advance(STEP_SECONDS)
        first = sampler.points()
        assert 1 < len(first) <= 6 and first[0][1] == 0 and sampler.points(first[-1][0]) == []
        await clock.advance(WATCHED_SECONDS + STEP_SECONDS)
        assert clock.sleepers == 0 and not len(owner), "nobody asked for longer"
        assert sampler.points() == [], "and nothing is kept for nobody"
        sampler.stop()


def test_amounts_of_links_and_machines() -> None:
    links = [{"status": {"links": [{"peer": "bob", "sentBitsPerSecond": 8000}, {"peer": "carol"}]}}, {}]
    assert sent_bits(links) == 8000
    assert cpus_used([{"usage": {"cpu": "250m"}}, {"usage": {"cpu": "1"}}, {"usage": {"cpu": "?"}}]) == 1.25
    assert cpus_used([]) is None


def test_names_of_grants_are_free_ones() -> None:
    assert name_for("t", "bob", set()) == "t-bob"
    assert name_for("t", "bob", {"t-bob", "t-bob-2"}) == "t-bob-3"
    assert limit_of([]) == {} and limit_of(["a"], uses=2, metadata_only=True)["grantMode"] == ["metadata"]


def party_row(view: dict[str, Any], party: str) -> dict[str, Any]:
    (row,) = [each for each in view["timeline"]["rows"] if each["kind"] == "party" and each["party"] == party]
    found: dict[str, Any] = row
    return found


async def test_a_timeline_has_the_reason_of_each_gap_and_each_attempt(page: Page) -> None:
    await retried_job(page.client, "j")
    status, view = await page("GET", "/views/jobs/j")
    assert status == 200, view
    assert (view["state"]["progress"], view["state"]["progressText"], view["state"]["done"]) == (1.0, "100%", 1)
    alice, bob = party_row(view, "alice"), party_row(view, "bob")
    assert [span["kind"] for span in alice["spans"]] == ["wait", "start", "run"]
    assert alice["spans"][0]["sentence"] == "0/1 nodes are available: 1 Insufficient cpu"
    assert "coterie top node" in alice["spans"][0]["next_step"]
    assert bob["reported"] and bob["spans"][0]["sentence"] == "no free memory"
    first, second = view["timeline"]["attempts"]
    assert (first["number"], first["reason"]) == (1, "TaskFailed: party bob: exit 1")
    assert second["end"] - second["begin"] < 120, "the days between them are in neither"
    shares = {(each["party"], each["task"]): each["level"] for each in view["timeline"]["partners"]}
    assert shares == {("bob", ""): "state", ("bob", "psi"): "state"} and view["usage"] == []


async def test_what_a_partner_agreed_to_show_stands_in_the_same_timeline(page: Page) -> None:
    at = await retried_job(page.client, "j")
    other = f"{at(30)} usage/p info  usage: sample task=other-task pod=x cpu=99 memory=1"
    await share_usage(page.client, "j", at, more=f"{other}\n<script>\n{at(31)} engine/p task=j-psi hello")
    view = (await page("GET", "/views/jobs/j"))[1]
    bob = party_row(view, "bob")
    assert bob["reported"] and [span["kind"] for span in bob["spans"]] == ["wait", "reserve", "start", "run"]
    (task,) = view["usage"]
    (pod,), (link,) = task["pods"], task["links"]
    assert (task["task"], pod["party"], len(pod["points"])) == ("psi", "bob", 37)
    assert (link["party"], link["peer"], link["sent"]) == ("bob", "alice", 58 << 10)
    shares = {(each["party"], each["task"]): each["level"] for each in view["timeline"]["partners"]}
    assert shares == {("bob", ""): "state", ("bob", "psi"): "shared"}, "it was asked about one task"
