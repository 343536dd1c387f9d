"""Dry runs between two control planes: all parties answer, nothing is started, reserved, counted or kept; nobody learns too much."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from interconn_kit import Network, network
from job_world import IMAGE, JOB_PLANE, JobWorld, a_job, a_task, an_image

from coterie.kube.api.errors import Forbidden, NotFound
from coterie.kube.api.meta import Object
from coterie.kuscia.api.job_plans import KEPT_SECONDS, MOST_BYTES, plan_request
from coterie.kuscia.api.types.data import DOMAIN_DATA_GRANTS, DOMAIN_DATAS
from coterie.kuscia.api.types.job_plan import JOB_PLAN_REQUESTS
from coterie.kuscia.api.types.partner_policy import PARTNER_POLICIES
from coterie.kuscia.controllers.jobplan import controller as jobplan
from coterie.kuscia.interconn import job_plans

REQUEST, POLICY = JOB_PLAN_REQUESTS.as_dynamic, PARTNER_POLICIES.as_dynamic
DATA, GRANT = DOMAIN_DATAS.as_dynamic, DOMAIN_DATA_GRANTS.as_dynamic
PLANE: tuple[Any, ...] = (*JOB_PLANE, jobplan.make)


@asynccontextmanager
async def partners(**policy: Any) -> AsyncIterator[Network]:
    """bob has a table that alice may use twice, and one that she knows nothing of."""
    async with network("alice", "bob", makes=PLANE) as net:
        body = {"metadata": {"name": "alice"}, "spec": {"appImages": ["*"], **policy}}
        await net["bob"].client.create(POLICY, body)
        for name in ("visitors", "salaries"):
            await net["bob"].client.create(DATA, a_table(name))
        await net["bob"].client.create(GRANT, a_grant())
        await net.settle(1)
        yield net


def a_table(name: str, owner: str = "bob") -> Object:
    columns = [{"name": "id", "type": "str"}, {"name": "age", "type": "int"}]
    spec = {"relativeURI": f"{name}.csv", "author": owner, "name": name, "type": "table", "dataSource": "s"}
    return {"metadata": {"name": name, "namespace": owner}, "spec": {**spec, "columns": columns}}


def a_grant(count: int = 2) -> Object:
    limit = {"useCount": count, "inputConfig": '{"columns": ["id"]}'}
    spec = {"author": "bob", "domainDataID": "visitors", "grantDomain": "alice", "limit": limit}
    return {"metadata": {"name": "g", "namespace": "bob"}, "spec": spec}


def asked(table: str = "visitors", name: str = "p", **more: Any) -> Object:
    given = json.dumps({"inputs": {"bob": table}, "keys": {"bob": ["id"]}})
    job = a_job(a_task("a", taskInputConfig=given, **more))
    return plan_request(name, "j", job["spec"])


async def found(world: JobWorld, namespace: str, name: str = "p") -> Object:
    try:
        return await world.get(REQUEST, name, namespace)
    except NotFound:
        return {}


async def complete(net: Network, name: str = "p", seconds: float = 30) -> Object:
    async def done() -> bool:
        return ((await found(net["alice"], "alice", name)).get("status") or {}).get("phase") == "Complete"

    await net.until(done, seconds)
    status: Object = (await found(net["alice"], "alice", name))["status"]
    return status


def of(status: Object, domain: str) -> Object:
    answer: Object = next(each for each in status["answers"] if each["domain"] == domain)
    return answer


async def stored(world: JobWorld) -> dict[str, bytes]:
    """Every object there is."""
    page = await world.server._store.scan("/registry/")
    return {each.key: each.value for each in page.records}


async def test_all_parties_answer_and_nothing_is_left() -> None:
    async with partners() as net:
        before = {name: await stored(world) for name, world in net.planes.items()}
        await net["alice"].client.create(REQUEST, asked())
        status = await complete(net)
        assert (status["outlook"], status["message"]) == ("Runs", "the job would run")
        mine, theirs = of(status, "alice")["plan"], of(status, "bob")["plan"]
        assert mine["detail"] == "own" and mine["placements"][0]["nodes"] == ["alice-0"]
        assert theirs["detail"] == "summary"
        assert theirs["approval"] == {"verdict": "Allow", "by": "policy"}
        row = {"task": "a", "table": "visitors", "columns": ["id"], "grant": "g", "uses": 1, "usesLeft": 2}
        assert theirs["tables"] == [row]
        assert theirs["engines"] == [{"task": "a", "appImage": "engine", "version": "latest", "offers": [{}]}]
        assert theirs["placements"] == [{"task": "a", "pods": 1, "fits": True}]
        assert theirs["links"] == [{"peer": "alice", "ready": True}]
        await net.settle(2)
        assert not await found(net["alice"], "bob") and not await found(net["bob"], "bob"), "only the answer stays"
        await net.settle(KEPT_SECONDS)
        assert not await found(net["alice"], "alice")
        after = {name: await stored(world) for name, world in net.planes.items()}
        assert after == before, "nothing else was written anywhere"


SECRETS = ("salaries", "bob-0", "other-table", "carol", "g-carol", "12345m")


@pytest.mark.parametrize("detail", ["summary", "none", "full"])
async def test_a_partner_is_told_what_the_policy_says(detail: str) -> None:
    """carol is another partner of bob; alice knows neither her grant nor the tables."""
    async with partners(dryRun=detail, hours=["08:00-08:01"]) as net:
        other = a_grant()
        other["metadata"]["name"], other["spec"]["grantDomain"] = "g-carol", "carol"
        await net["bob"].client.create(GRANT, other)
        given = json.dumps({"inputs": {"bob": "visitors"}, "note": ["salaries", "other-table"]})
        await net["alice"].client.create(
            REQUEST, plan_request("p", "j", a_job(a_task("a", taskInputConfig=given))["spec"])
        )
        answer = of(await complete(net), "bob")
        text = json.dumps(answer)
        assert not [word for word in SECRETS if word in text and (word != "salaries" or detail != "full")], text
        if detail == "none":
            assert answer["phase"] == "Refused" and answer["message"] == "dry runs of alice are not answered"
            assert "plan" not in answer
            return
        approval = answer["plan"]["approval"]
        assert (approval["verdict"], approval["by"], approval["rules"]) == ("Ask", "person", ["hours"])
        assert ("08:00-08:01" in text) is (detail == "full")
        tables = {each["table"]: each.get("problem", "") for each in answer["plan"]["tables"]}
        assert tables["visitors"] == ""
        assert ("salaries" in tables) is (detail == "full")


async def test_what_exists_cannot_be_probed() -> None:
    """The answer about a table or engine that alice may not use is the same whether it exists or not."""
    async with partners(appImages=["engine"]) as net:
        await net["bob"].client.create(IMAGE, an_image("hidden"))
        answers = []
        for name, table, image in (("p-1", "salaries", "hidden"), ("p-2", "nonsense", "missing")):
            await net["alice"].client.create(REQUEST, asked(table, name=name, appImage=image))
            text = json.dumps(of(await complete(net, name), "bob"), sort_keys=True)
            answers.append(text.replace(table, "TABLE").replace(image, "IMAGE"))
        assert answers[0] == answers[1]
        assert "there is no grant for it" in answers[0]


async def test_a_partner_that_does_not_answer_is_not_waited_for() -> None:
    async with partners() as net:
        await net["bob"].stop()
        body = asked()
        body["spec"]["waitSeconds"] = 3
        await net["alice"].client.create(REQUEST, body)
        status = await complete(net, seconds=10)
        assert status["outlook"] == "Unknown" and of(status, "alice")["plan"]["outlook"] == "Runs"
        silent = of(status, "bob")
        assert silent["phase"] == "NoAnswer" and silent["message"].startswith("no answer within 3 s: ")
        await net.settle(1)
        assert not await found(net["alice"], "bob")
        await net["bob"].start()
        await net.settle(3)
        assert not await found(net["bob"], "bob"), "nobody asks any more"


async def test_a_host_that_asks_ten_thousand_times_is_answered_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scaled down; the rule does not depend on the number."""
    monkeypatch.setattr(job_plans, "MOST_PER_HOUR", 3)
    monkeypatch.setattr(job_plans, "MOST_REFUSALS_PER_HOUR", 2)
    async with network("alice", "bob", makes=PLANE) as net:
        await net["alice"].stop()
        job = a_job(a_task("a"))["spec"]
        for number in range(40):
            body = plan_request(f"p-{number}", "j", job)
            body["metadata"]["namespace"] = "bob"
            await net["alice"].client.create(REQUEST, body)
        await net.settle(5)
        mirrors = (await net["alice"].client.list(REQUEST, "bob")).items
        states = [each.get("status", {}).get("message", "") for each in mirrors if each.get("status")]
        assert len(mirrors) == 40 and len(states) == 5
        assert len([each for each in states if "asked for more than 3 dry runs in an hour" in each]) == 2
        assert not (await net["bob"].client.list(REQUEST)).items, "nothing piles up"


async def test_what_a_host_may_not_ask() -> None:
    async with partners() as net:
        await net["alice"].stop()
        link = net["alice"].client
        huge = a_job(a_task("a", taskInputConfig="x" * MOST_BYTES))["spec"]
        for name, job, words in (
            ("huge", huge, "a dry run is answered for at most"),
            ("odd", {"initiator": "alice", "tasks": 7}, "job: it cannot be read"),
            ("forged", a_job(a_task("a"), initiator="bob")["spec"], "bob is no domain of alice"),
            ("apart", a_job(a_task("a", parties=("alice",)))["spec"], "no domain of this control plane takes part"),
        ):
            body = plan_request(name, "j", job)
            body["metadata"]["namespace"] = "bob"
            await link.create(REQUEST, body)
            await net.settle(2)
            status = (await found(net["alice"], "bob", name))["status"]
            assert status["phase"] == "Complete" and words in status["message"], status
        await net["bob"].client.list(REQUEST)
        assert not (await net["bob"].client.list(REQUEST)).items


async def test_a_partner_answers_for_itself_only_and_cannot_ask_here() -> None:
    async with partners() as net:
        await net["bob"].stop()
        link = net.connect("bob", "alice")
        await net["alice"].client.create(REQUEST, asked())
        await net.settle(1)
        with pytest.raises(Forbidden):
            await link.create(REQUEST, {**asked(name="own"), "metadata": {"name": "own", "namespace": "bob"}})
        with pytest.raises(Forbidden):
            await link.patch(REQUEST, "p", "bob", {"spec": {"jobName": "other"}})
        forged = {"domain": "alice", "phase": "Answered", "plan": {"domain": "alice", "outlook": "Fails"}}
        steering = {"task": "a", "fits": True, "nodes": ["n"], "problem": "\x1b[31m"}
        own = {"domain": "bob", "outlook": "Runs", "placements": [steering], "notes": ["x" * 4000]}
        answers = [forged, {"domain": "bob", "phase": "Answered", "plan": own}]
        await link.patch_status(REQUEST, "p", "bob", {"status": {"phase": "Complete", "answers": answers}})
        status = await complete(net)
        assert of(status, "alice")["plan"]["outlook"] == "Runs"
        [row] = of(status, "bob")["plan"]["placements"]
        assert "\x1b" not in row["problem"] and "nodes" not in row
        assert len(of(status, "bob")["plan"]["notes"][0]) == 500
        await link.close()


async def test_who_may_not_ask_is_refused_with_a_reason() -> None:
    async with partners() as net:
        body = asked()
        body["spec"]["job"]["initiator"] = "bob"
        await net["alice"].client.create(REQUEST, body)
        status = await complete(net)
        assert status["message"] == "job: its initiator is not alice" and "outlook" not in status
