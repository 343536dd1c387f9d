"""Log requests between two control planes, and between domains of one: consent, bounds, redaction, records, ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import pytest
from interconn_kit import Network, network
from job_world import JOB, JOB_PLANE, JobWorld, a_job, a_task, job_world
from workload_world import ADMIN

from coterie.base.clock import rfc3339
from coterie.http.messages import UserInfo
from coterie.kube.api.errors import ApiError, Forbidden, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kuscia.api.log_query import LogLine, LogPage, LogQuery
from coterie.kuscia.api.log_requests import DEFAULT_OPEN, digest_of
from coterie.kuscia.api.types.log_request import LOG_REQUESTS
from coterie.kuscia.api.types.partner_policy import PARTNER_POLICIES
from coterie.kuscia.controllers.logrequest import controller as logrequest
from coterie.kuscia.extensions import log_requests as admission

REQUEST, POLICY = LOG_REQUESTS.as_dynamic, PARTNER_POLICIES.as_dynamic
SECRET, EVENT = Kind.dynamic(builtin("secrets")), Kind.dynamic(builtin("events"))
SECRETS = ("hunter2", "AKIAIOSFODNN7EXAMPLE", "planted-in-a-secret-object", "eyJhbGciOiJIUzI1NiJ9.e30.c2ln")


class FakeLogs:
    """Answers every query with the same texts, for all parties, as a reader with a fault would."""

    def __init__(self) -> None:
        self.texts = [
            "begin",
            "password=hunter2",
            "key AKIAIOSFODNN7EXAMPLE",
            "object planted-in-a-secret-object",
            "Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.e30.c2ln",
            "ERROR rows 12 != 13 \x1b[31m",
        ]
        self.queries: list[LogQuery] = []
        self.broken = False

    async def query(self, query: LogQuery) -> LogPage:
        self.queries.append(query)
        if self.broken:
            raise OSError("the disk is gone")
        at = "2026-01-01T00:00:00.000000000Z"
        mine = [LogLine(at, "engine", query.party, query.task, "p-0", text) for text in self.texts]
        others = [
            LogLine(at, "engine", "carol", query.task, "p-9", "line of carol"),
            LogLine(at, "engine", query.party, "other-task", "p-9", "line of another task"),
            LogLine(at, "gateway", query.party, query.task, "", "line of another source"),
        ]
        return LogPage((*mine[-query.limit :], *others), "more" if query.limit < len(mine) else "")


def plane(logs: FakeLogs) -> tuple[Any, ...]:
    def make(client: Client, informers: Any, **more: Any) -> Any:
        return logrequest.make(client, informers, logs=logs, **more)

    return (*JOB_PLANE, ("logrequest-controller", make))


def a_request(asks: str = "alice", owner: str = "bob", name: str = "lr", **spec: Any) -> Object:
    body = {"requester": asks, "owner": owner, "job": "j", "reason": "the task failed here", **spec}
    return {"metadata": {"name": name, "namespace": asks}, "spec": body}


async def accept_jobs(net: Network) -> None:
    for name, world in net.planes.items():
        for other in net.planes:
            if other != name:
                body = {"metadata": {"name": other}, "spec": {"appImages": ["*"]}}
                await world.client.create(POLICY, body)


@asynccontextmanager
async def partners(logs: FakeLogs, *names: str, parties: tuple[str, ...] = ()) -> AsyncIterator[Network]:
    """After a job of alice in which all took part."""
    chosen = names or ("alice", "bob")
    async with network(*chosen, makes=plane(logs)) as net:
        await accept_jobs(net)
        await net["alice"].client.create(JOB, a_job(a_task("a", parties=parties or chosen)))
        await net.until_phase("Succeeded", *(parties or chosen))
        yield net


async def found(world: JobWorld, namespace: str, name: str = "lr") -> Object:
    try:
        return await world.get(REQUEST, name, namespace)
    except NotFound:
        return {}


async def status(world: JobWorld, namespace: str, name: str = "lr") -> Object:
    return (await found(world, namespace, name)).get("status") or {}


async def until(net: Network, where: str, namespace: str, phase: str, name: str = "lr", seconds: float = 60) -> Object:
    async def reached() -> bool:
        return (await status(net[where], namespace, name)).get("phase") == phase

    await net.until(reached, seconds)
    return await status(net[where], namespace, name)


async def review(world: JobWorld, owner: str, name: str = "lr", **fields: Any) -> None:
    await world.client.patch(REQUEST, name, owner, {"spec": {"review": fields}})


async def approve(world: JobWorld, owner: str, name: str = "lr") -> str:
    digest = (await status(world, owner, name))["preview"]["digest"]
    await review(world, owner, name, decision="Approve", digest=digest)
    return digest


def nothing_secret(*texts: str) -> None:
    for text in texts:
        assert not [each for each in SECRETS if each in text]


async def plant(world: JobWorld, owner: str) -> None:
    body = {"metadata": {"name": "s", "namespace": owner}, "stringData": {"k": "planted-in-a-secret-object"}}
    await world.client.create(SECRET, body)


WAYS = [("alice", "bob", "the host asks"), ("bob", "alice", "a member asks")]


@pytest.mark.parametrize(("asks", "owner"), [row[:2] for row in WAYS], ids=[row[2] for row in WAYS])
async def test_a_request_travels_waits_for_approval_and_is_answered_with_the_preview(asks: str, owner: str) -> None:
    logs = FakeLogs()
    async with partners(logs) as net:
        await plant(net[owner], owner)
        await net[asks].client.create(REQUEST, a_request(asks, owner, keepSeconds=60))
        there = await until(net, owner, owner, "AwaitingApproval")
        here = await until(net, asks, asks, "AwaitingApproval")
        await net.settle(2)
        there, here = await status(net[owner], owner), await status(net[asks], asks)
        assert f"waits for approval by {owner} since" in here["message"] and "it expires at" in here["message"]
        assert "preview" not in here and "answer" not in here
        preview = there["preview"]
        assert preview["lines"] == 6 and preview["redactions"] >= 4
        nothing_secret(preview["text"])
        assert "ERROR rows 12 != 13" in preview["text"] and "\x1b" not in preview["text"]
        assert not [word for word in ("carol", "another") if word in preview["text"]]
        assert {(each.party, each.sources) for each in logs.queries} == {(owner, ("engine",))}

        digest = await approve(net[owner], owner)
        here = await until(net, asks, asks, "Answered")
        assert here["answer"]["text"] == preview["text"] and here["digest"] == digest == digest_of(preview["text"])
        for world, namespace in ((net[asks], asks), (net[owner], owner)):
            history = (await status(world, namespace))["history"]
            assert history[0]["event"] == "Requested"
            assert history[0]["by"] == f"{asks}: {ADMIN.name}"
            assert history[-1]["event"] == "Answered" and history[-1]["digest"] == digest and history[-1]["by"]
        events = [each["message"] for each in (await net[owner].client.list(EVENT, owner)).items]
        assert [each for each in events if "lines were sent to" in each]

        await net.settle(70)
        for world, namespace in ((net[asks], asks), (net[owner], owner)):
            left = await status(world, namespace)
            assert left["phase"] == "Expired" and "answer" not in left and left["digest"] == digest
        mirrors = [each for world in net.planes.values() for each in (await world.client.list(REQUEST)).items]
        assert {(each["metadata"]["namespace"], each["spec"]["requester"]) for each in mirrors} == {
            (asks, asks),
            (owner, asks),
        }
        assert len(mirrors) == 2, "the mirror is gone"


async def test_a_partner_that_never_answers_is_not_waited_for() -> None:
    async with partners(FakeLogs()) as net:
        await net["bob"].stop()
        await net["alice"].client.create(REQUEST, a_request(expiresSeconds=60))
        done = await until(net, "alice", "alice", "Expired", seconds=120)
        assert "bob did not receive the request before" in done["message"]
        assert not await found(net["alice"], "bob"), "its mirror is gone"


async def test_an_owner_that_decides_nothing_lets_it_expire_on_both_sides() -> None:
    async with partners(FakeLogs()) as net:
        await net["alice"].client.create(REQUEST, a_request(expiresSeconds=60))
        await until(net, "bob", "bob", "AwaitingApproval")
        done = await until(net, "alice", "alice", "Expired", seconds=120)
        assert "bob decided nothing before" in done["message"]
        await net.settle(3)
        there = await status(net["bob"], "bob")
        assert there["phase"] in ("Expired", "Withdrawn") and "preview" not in there


async def test_a_rejection_tells_why_and_nothing_else() -> None:
    async with partners(FakeLogs()) as net:
        await net["alice"].client.create(REQUEST, a_request())
        await until(net, "bob", "bob", "AwaitingApproval")
        await review(net["bob"], "bob", decision="Reject", reason="ask our support first")
        done = await until(net, "alice", "alice", "Rejected")
        assert done["message"] == "bob rejected it: ask our support first" and "answer" not in done
        assert "preview" not in await status(net["bob"], "bob")


async def test_an_answer_is_taken_back() -> None:
    async with partners(FakeLogs()) as net:
        await net["alice"].client.create(REQUEST, a_request())
        await until(net, "bob", "bob", "AwaitingApproval")
        await net.settle(2)
        await approve(net["bob"], "bob")
        await until(net, "alice", "alice", "Answered")
        await review(net["bob"], "bob", decision="Revoke", reason="by mistake")
        done = await until(net, "alice", "alice", "Revoked")
        assert "answer" not in done and done["digest"] and "by mistake" in done["message"]
        assert "answer" not in await status(net["bob"], "bob")
        assert not await found(net["alice"], "bob")


@pytest.mark.parametrize(("asks", "owner"), [row[:2] for row in WAYS], ids=[row[2] for row in WAYS])
async def test_a_request_that_is_deleted_is_withdrawn_at_the_owner(asks: str, owner: str) -> None:
    async with partners(FakeLogs()) as net:
        await net[asks].client.create(REQUEST, a_request(asks, owner))
        await until(net, owner, owner, "AwaitingApproval")
        await net[asks].client.delete(REQUEST, "lr", asks)
        done = await until(net, owner, owner, "Withdrawn")
        assert "preview" not in done and done["message"] == f"{asks} withdrew the request"


async def test_an_owner_that_deletes_the_request_has_answered() -> None:
    async with partners(FakeLogs()) as net:
        await net["alice"].client.create(REQUEST, a_request())
        await until(net, "bob", "bob", "AwaitingApproval")
        await until(net, "alice", "alice", "AwaitingApproval")
        await net["alice"].client.delete(REQUEST, "lr", "bob")  # as bob may do in its own namespace
        done = await until(net, "alice", "alice", "Rejected")
        assert done["message"] == "bob removed the request"


async def test_only_parties_of_the_same_task_may_ask() -> None:
    """carol knows bob, and alice's job was not for her."""
    logs = FakeLogs()
    async with partners(logs, "alice", "bob", "carol", parties=("alice", "bob")) as net:
        # As a control plane without these rules would: straight into its own namespace at bob.
        await net["carol"].stop()
        body = a_request("carol", "bob")
        body["metadata"]["namespace"] = "carol"
        link = net.connect("carol", "bob")
        await link.create(REQUEST, body)
        done = await until(net, "bob", "carol", "Rejected")
        assert done["message"] == "carol and bob took part in no job j that is known to bob"
        body = a_request("alice", "bob", name="forged")
        body["metadata"]["namespace"] = "carol"
        await link.create(REQUEST, body)
        done = await until(net, "bob", "carol", "Rejected", name="forged")
        assert done["message"] == "alice is no domain of carol"
        assert not await found(net["bob"], "bob", "forged")
        with pytest.raises(Forbidden):
            await link.create(REQUEST, {**body, "metadata": {"name": "x", "namespace": "bob"}})
        assert not logs.queries
        # And from her own side with the rules.
        await net["carol"].start()
        await net["carol"].client.create(REQUEST, a_request("carol", "bob", name="honest"))
        done = await until(net, "carol", "carol", "Rejected", name="honest")
        assert "took part in no job j" in done["message"]
        await link.close()


async def test_a_partner_cannot_answer_for_itself_or_change_what_was_asked() -> None:
    """bob writes into his mirror at alice, of whom he asked something."""
    async with partners(FakeLogs()) as net:
        await net["bob"].client.create(REQUEST, a_request("bob", "alice"))
        await until(net, "alice", "alice", "AwaitingApproval")
        link = net.connect("bob", "alice")
        with pytest.raises(ApiError):
            await link.patch(REQUEST, "lr", "bob", {"spec": {"maxLines": 5000}})
        forged = {"status": {"phase": "Answered", "answer": {"text": "x", "digest": digest_of("x")}}}
        await link.patch_status(REQUEST, "lr", "bob", forged)
        await net["alice"].client.patch(REQUEST, "lr", "alice", {"metadata": {"labels": {"touch": "1"}}})
        await net.settle(3)
        assert (await status(net["alice"], "alice"))["phase"] == "AwaitingApproval"
        assert "answer" not in await status(net["alice"], "bob"), "alice writes what is true again"
        with pytest.raises(Forbidden):
            await link.get(REQUEST, "lr", "alice")
        await link.close()


async def test_open_requests_of_a_partner_are_limited() -> None:
    async with partners(FakeLogs()) as net:
        for number in range(DEFAULT_OPEN + 2):
            await net["alice"].client.create(REQUEST, a_request(name=f"lr-{number}"))
            await net.settle(2)
        states = [(await status(net["alice"], "alice", f"lr-{number}")) for number in range(DEFAULT_OPEN + 2)]
        assert [each["phase"] for each in states] == ["AwaitingApproval"] * DEFAULT_OPEN + ["Rejected"] * 2
        assert states[-1]["message"] == f"alice has 5 open log requests here; at most {DEFAULT_OPEN} may wait at once"
        assert len((await net["bob"].client.list(REQUEST, "bob")).items) == DEFAULT_OPEN


async def test_a_partner_cannot_fill_its_namespace_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MOST_REQUESTS", 3)
    async with partners(FakeLogs()) as net:
        await net["bob"].stop()
        link = net.connect("bob", "alice")
        for number in range(3):
            await link.create(REQUEST, a_request("bob", "alice", name=f"lr-{number}"))
        with pytest.raises(Forbidden, match="there are 3 log requests in bob already"):
            await link.create(REQUEST, a_request("bob", "alice", name="lr-3"))
        await link.close()


async def allow_logs(world: JobWorld, partner: str, **logs: Any) -> None:
    await world.client.patch(POLICY, partner, "", {"spec": {"logs": {"sources": ["engine"], **logs}}})


async def test_a_standing_policy_answers_inside_its_bounds_and_asks_outside() -> None:
    async with partners(FakeLogs()) as net:
        await allow_logs(net["bob"], "alice", maxLines=3, keepSeconds=600, perDay=1, redact=["rows [0-9]{2}"])
        await net["alice"].client.create(REQUEST, a_request(maxLines=2, keepSeconds=600))
        done = await until(net, "alice", "alice", "Answered")
        assert done["answer"]["lines"] == 2 and done["answer"]["truncated"]
        assert "rows 12" not in done["answer"]["text"] and done["decidedBy"] == "bob: policy"
        await net["alice"].client.create(REQUEST, a_request(name="more", maxLines=4))
        there = await until(net, "bob", "bob", "AwaitingApproval", name="more")
        await net.settle(2)
        there = await status(net["bob"], "bob", "more")
        assert "asks for 4 lines, alice may have 3" in there["message"]
        assert "1 requests of alice were answered in the last 24 hours" in there["message"]


async def test_a_policy_for_failed_tasks_and_one_that_refuses() -> None:
    async with partners(FakeLogs()) as net:
        await allow_logs(net["bob"], "alice", onlyFailed=True)
        await net["alice"].client.create(REQUEST, a_request())
        await net.settle(3)
        assert "failed tasks only" in (await status(net["bob"], "bob"))["message"]
        await net["bob"].client.patch(POLICY, "alice", "", {"spec": {"outside": "Refuse"}})
        await net["alice"].client.create(REQUEST, a_request(name="second"))
        done = await until(net, "alice", "alice", "Rejected", name="second")
        assert "failed tasks only" in done["message"]


async def test_a_guess_of_a_secret_finds_no_line() -> None:
    logs = FakeLogs()
    async with partners(logs) as net:
        await allow_logs(net["bob"], "alice")
        await net["alice"].client.create(REQUEST, a_request(grep="hunter2"))
        done = await until(net, "alice", "alice", "Answered")
        assert done["answer"].get("lines", 0) == 0 and not done["answer"].get("text")
        await net["alice"].client.create(REQUEST, a_request(name="r", grep="rows 12 != 13"))
        assert (await until(net, "alice", "alice", "Answered", name="r"))["answer"]["lines"] == 1
        assert logs.queries[-1].grep == r"rows\ 12\ !=\ 13", "text, not a regular expression"


async def test_an_approval_is_for_the_preview_that_was_seen() -> None:
    logs = FakeLogs()
    async with partners(logs) as net:
        await net["alice"].client.create(REQUEST, a_request())
        await until(net, "bob", "bob", "AwaitingApproval")
        await net.settle(2)
        seen = (await status(net["bob"], "bob"))["preview"]["digest"]
        logs.texts.append("new line")
        await review(net["bob"], "bob", generation=1, redact=["begin"])
        await net.settle(2)
        now = (await status(net["bob"], "bob"))["preview"]
        assert now["digest"] != seen and "begin" not in now["text"] and "new line" in now["text"]
        await review(net["bob"], "bob", decision="Approve", digest=seen)
        await net.settle(2)
        assert (await status(net["alice"], "alice"))["phase"] == "AwaitingApproval"
        await approve(net["bob"], "bob")
        assert "begin" not in (await until(net, "alice", "alice", "Answered"))["answer"]["text"]


async def test_logs_that_cannot_be_read_do_not_keep_it_open() -> None:
    logs = FakeLogs()
    logs.broken = True
    async with partners(logs) as net:
        await net["alice"].client.create(REQUEST, a_request(expiresSeconds=60))
        await until(net, "alice", "alice", "Expired", seconds=120)
        await net.settle(90)
        assert (await status(net["bob"], "bob"))["phase"] in ("Expired", "Withdrawn")


async def test_who_asked_and_who_decided_is_what_the_server_knows() -> None:
    async with partners(FakeLogs()) as net:
        body = a_request(requestedBy="the queen")
        made = await net["alice"].client.create(REQUEST, body)
        assert made["spec"]["requestedBy"] != "the queen"
        await until(net, "bob", "bob", "AwaitingApproval")
        await review(net["bob"], "bob", decision="Reject", by="somebody else")
        done = await until(net, "bob", "bob", "Rejected")
        assert done["decidedBy"] and done["decidedBy"] != "somebody else"


async def test_a_damaged_or_too_large_answer_is_not_taken() -> None:
    async with partners(FakeLogs()) as net:
        await net["bob"].stop()
        for name, text, digest, word in (
            ("a", "x\n", "0" * 64, "does not fit its digest"),
            ("b", "x\n" * 10, digest_of("x\n" * 10), "larger than was asked for"),
        ):
            await net["alice"].client.create(REQUEST, a_request(name=name, maxLines=5))
            await net.settle(2)
            forged = {"status": {"phase": "Answered", "answer": {"text": text, "digest": digest}}}
            await net.connect("bob", "alice").patch_status(REQUEST, name, "bob", forged)
            done = await until(net, "alice", "alice", "Rejected", name=name)
            assert word in done["message"] and "answer" not in done


async def test_what_a_partner_sends_is_harmless_on_a_terminal_and_goes_in_time() -> None:
    async with partners(FakeLogs()) as net:
        await net["bob"].stop()
        await net["alice"].client.create(REQUEST, a_request(keepSeconds=60))
        await net.settle(2)
        text = "\x1b]0;owned\x07 line\n"
        answer = {"text": text, "digest": digest_of(text), "lines": 1}
        forged = {"status": {"phase": "Answered", "expireTime": "2999-01-01T00:00:00Z", "answer": answer}}
        await net.connect("bob", "alice").patch_status(REQUEST, "lr", "bob", forged)
        done = await until(net, "alice", "alice", "Answered")
        assert done["answer"]["text"] == "\\x1b]0;owned\\x07 line\n"
        assert (datetime.fromisoformat(done["expireTime"]) - net.clock.now()).total_seconds() <= 60
        assert "answer" not in await until(net, "alice", "alice", "Expired", seconds=90)


async def test_a_lost_connection_only_delays() -> None:
    async with partners(FakeLogs()) as net:
        net.cut("bob", "alice")
        await net["bob"].client.create(REQUEST, a_request("bob", "alice"))
        await net.settle(10)
        assert (await status(net["bob"], "bob"))["phase"] == "Pending"
        net.cut("bob", "alice", down=False)
        await until(net, "bob", "bob", "AwaitingApproval")


@pytest.mark.parametrize(("asks", "owner"), [("ann", "bob"), ("bob", "ann")], ids=["a lite asks", "a lite is asked"])
async def test_a_lite_of_one_master_and_a_domain_of_another(asks: str, owner: str) -> None:
    """ann is a lite of alice; bob knows her as a domain of alice's."""
    home = {"ann": "alice", "bob": "bob"}
    async with network("alice", "bob", makes=plane(FakeLogs())) as net:
        await accept_jobs(net)
        await net["alice"].add_domain("ann")
        await net["bob"].add_domain("ann", nodes=0, role="partner", master="alice")
        await net.settle(3)
        job = a_job(a_task("a", parties=("alice", "ann", "bob")))
        await net["alice"].client.create(JOB, job)
        await net.until_phase("Succeeded")
        await net[home[asks]].client.create(REQUEST, a_request(asks, owner))
        await until(net, home[owner], owner, "AwaitingApproval")
        await net.settle(2)
        digest = await approve(net[home[owner]], owner)
        done = await until(net, home[asks], asks, "Answered")
        assert done["answer"]["digest"] == digest
        assert [each["event"] for each in done["history"]] == ["Requested", "Received", "Answered"]


# Domains of one control plane.


@asynccontextmanager
async def one_plane(logs: FakeLogs) -> AsyncIterator[JobWorld]:
    async with job_world(makes=plane(logs)) as w:
        await w.client.create(JOB, a_job(a_task("a")))
        await w.until_phase("Succeeded")
        yield w


async def test_two_domains_of_one_master() -> None:
    async with one_plane(FakeLogs()) as w:
        await w.client.create(REQUEST, a_request())
        await w.settle(3)
        there = await status(w, "bob")
        assert there["phase"] == "AwaitingApproval" and there["preview"]["lines"] == 6
        assert "preview" not in await status(w, "alice")
        # A lite's own account decides in its own namespace, and nowhere else.
        user = UserInfo("system:serviceaccount:bob:bob", ("system:serviceaccounts", "system:authenticated"))
        lite = Client(InProcessTransport(w.server.handle, user), clock=w.clock)
        with pytest.raises(Forbidden):
            await lite.patch(REQUEST, "lr", "alice", {"spec": {"review": {"decision": "Approve"}}})
        digest = there["preview"]["digest"]
        await lite.patch(REQUEST, "lr", "bob", {"spec": {"review": {"decision": "Approve", "digest": digest}}})
        await w.settle(3)
        done = await status(w, "alice")
        assert done["phase"] == "Answered" and done["answer"]["digest"] == digest
        assert done["decidedBy"] == "bob: system:serviceaccount:bob:bob"
        await w.client.delete(REQUEST, "lr", "alice")
        await w.settle(3)
        assert (await status(w, "bob"))["phase"] == "Withdrawn" and "answer" not in await status(w, "bob")


REFUSED = [
    (a_request("alice", "alice"), "alice needs no request for its own logs"),
    (a_request(job="other"), "took part in no job other"),
    (a_request(task="z"), "took part in no task z of job j"),
    (a_request(since="yesterday"), "since: 'yesterday' is no time"),
    (a_request(reason="   "), "reason: say in 1 to"),
    (a_request(owner="nobody"), "took part in no job j"),
]


@pytest.mark.parametrize(("body", "word"), REFUSED, ids=[row[1] for row in REFUSED])
async def test_requests_that_nobody_can_answer_say_so_at_once(body: Object, word: str) -> None:
    async with one_plane(FakeLogs()) as w:
        await w.client.create(REQUEST, body)
        await w.settle(2)
        done = await status(w, "alice")
        assert done["phase"] == "Rejected" and word in done["message"]
        assert rfc3339(w.clock.now()) >= done["endTime"]
