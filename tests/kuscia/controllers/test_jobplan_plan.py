"""The pure plan of one party, and the states of a request."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import msgspec
import pytest
from job_world import a_job, a_task, an_image

from coterie.base.clock import rfc3339
from coterie.kube.api.types.nodes import Node
from coterie.kube.api.types.pods import Pod
from coterie.kuscia.api import labels
from coterie.kuscia.api.job_plans import (
    KEPT_SECONDS,
    LONGEST_WAIT,
    answers_from,
    completed,
    detail_of,
    overall,
    plan_request_fault,
)
from coterie.kuscia.api.partner_policy import Usage
from coterie.kuscia.api.types.data import DomainData, DomainDataGrant
from coterie.kuscia.api.types.domain import ClusterDomainRoute, DomainRoute
from coterie.kuscia.api.types.job import AppImage, KusciaJobSpec
from coterie.kuscia.api.types.job_plan import (
    JobOutlook,
    JobPlanRequest,
    JobPlanRequestSpec,
    JobPlanRequestStatus,
    PartyPlan,
    PlanAnswer,
    PlanDetail,
    PlanPhase,
)
from coterie.kuscia.api.types.partner_policy import PartnerPolicySpec
from coterie.kuscia.controllers.jobplan import plan
from coterie.kuscia.controllers.jobplan.party_plan import NO_GRANT, OWN, UNTOLD_TABLES, PlanObjects, plan_of_party

NOW = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)
SUMMARY, FULL = PlanDetail.SUMMARY, PlanDetail.FULL


def node(name: str = "n-1", domain: str = "bob", cpu: str = "4", mbit: str = "100") -> Node:
    room = {"cpu": cpu, "memory": "8Gi", "pods": "110", labels.KUSCIA_BANDWIDTH: mbit}
    return msgspec.convert(
        {
            "metadata": {"name": name, "labels": {labels.KUSCIA_NODE_NAMESPACE: domain}},
            "status": {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]},
        },
        Node,
    )


def table(name: str, owner: str = "bob", **meta: Any) -> DomainData:
    columns = [{"name": "id", "type": "str"}, {"name": "age", "type": "int"}]
    spec = {"relativeURI": "x", "author": owner, "name": name, "type": "table", "dataSource": "s", "columns": columns}
    return msgspec.convert({"metadata": {"name": name, "namespace": owner, **meta}, "spec": spec}, DomainData)


def grant(name: str = "g", data: str = "visitors", to: str = "alice", used: int = 0, **limit: Any) -> DomainDataGrant:
    records = [{"use_time": rfc3339(NOW), "grant_domain": to}] * used
    return msgspec.convert(
        {
            "metadata": {"name": name, "namespace": "bob"},
            "spec": {"author": "bob", "domainDataID": data, "grantDomain": to, "limit": limit},
            "status": {"phase": "Ready", "message": "", "use_records": records},
        },
        DomainDataGrant,
    )


def job(*tasks: Any, **more: Any) -> KusciaJobSpec:
    return msgspec.convert(a_job(*(tasks or (a_task("a"),)), **more)["spec"], KusciaJobSpec)


def reading(*names: str, keys: list[str] | None = None, alias: str = "a", **more: Any) -> Any:
    given: dict[str, Any] = {"inputs": {"bob": list(names)}}
    if keys:
        given["keys"] = {"bob": keys}
    return a_task(alias, taskInputConfig=json.dumps(given), **more)


def objects(**more: Any) -> PlanObjects:
    given: dict[str, Any] = {
        "images": {"engine": msgspec.convert(an_image(), AppImage)},
        "nodes": [node()],
        "policy": PartnerPolicySpec(app_images=("*",)),
        "from_partner": True,
        **more,
    }
    return PlanObjects(**given)


def at_bob(found: PlanObjects, asked: KusciaJobSpec | None = None, detail: str = SUMMARY) -> PartyPlan:
    return plan_of_party(found, asked or job(), "bob", detail, NOW)


# One party.


def test_a_job_that_runs() -> None:
    done = at_bob(objects())
    assert done.outlook == JobOutlook.RUNS and done.detail == "summary"
    assert done.approval is not None and (done.approval.verdict, done.approval.by) == ("Allow", "policy")


APPROVALS = [
    ("no policy", {"policy": None}, "Ask", "person", ("no-policy",), JobOutlook.WAITS),
    ("Kuscia's setting", {"policy": None, "requires_approval": False}, "Allow", "setting", None, JobOutlook.RUNS),
    ("everything waits", {"requires_approval": True}, "Ask", "person", ("enableWorkloadApprove",), JobOutlook.WAITS),
    ("hours", {"policy": PartnerPolicySpec(app_images=("*",), hours=("08:00-09:00",))}, "Ask", "person", ("hours",), JobOutlook.WAITS),
    ("refused", {"policy": PartnerPolicySpec(app_images=("psi",), outside="Refuse")}, "Refuse", "policy", ("appImages",), JobOutlook.FAILS),
    ("ours", {"from_partner": False, "policy": None}, "", "control plane", None, JobOutlook.RUNS),
]  # fmt: skip


@pytest.mark.parametrize("row", APPROVALS, ids=[row[0] for row in APPROVALS])
def test_approval(row: Any) -> None:
    _, given, verdict, by, rules, outlook = row
    done = at_bob(objects(**given))
    assert done.approval is not None
    assert (done.approval.verdict, done.approval.by, done.approval.rules, done.outlook) == (verdict, by, rules, outlook)


def test_tables_grants_and_uses() -> None:
    found = objects(datas=[table("visitors")], grants=[grant(useCount=3, used=1)])
    [row] = at_bob(found, job(reading("visitors"))).tables or ()
    assert (row.grant, row.uses, row.uses_left, row.all_columns, row.problem) == ("g", 1, 2, True, "")
    limited = objects(datas=[table("visitors")], grants=[grant(inputConfig='{"columns": ["id"]}')])
    [row] = at_bob(limited, job(reading("visitors"))).tables or ()
    assert (row.columns, row.all_columns, row.uses_left) == (("id",), False, None)
    beyond = at_bob(limited, job(reading("visitors", keys=["age"])))
    [row] = beyond.tables or ()
    assert row.problem == 'grant "g" does not give column age' and beyond.outlook == JobOutlook.FAILS


def test_tasks_of_one_job_use_up_a_grant_together() -> None:
    found = objects(datas=[table("visitors")], grants=[grant(useCount=1)])
    asked = job(reading("visitors", alias="a"), reading("visitors", alias="b"))
    done = at_bob(found, asked)
    assert [bool(row.problem) for row in done.tables or ()] == [False, True] and done.outlook == JobOutlook.FAILS


def test_the_owner_needs_no_grant() -> None:
    found = objects(datas=[table("visitors")], from_partner=False, policy=None)
    asked = job(reading("visitors", "lost"), initiator="bob")
    rows = {row.table: row for row in at_bob(found, asked, OWN).tables or ()}
    assert rows["visitors"].grant == "" and not rows["visitors"].problem
    assert rows["lost"].problem == "bob has no such table"


def test_results_of_the_askers_own_jobs() -> None:
    made = table("result", annotations={labels.COTERIE_MADE_FOR: "alice"})
    done = at_bob(objects(datas=[made]), job(reading("result")))
    assert done.outlook == JobOutlook.RUNS


def test_engines() -> None:
    [row] = at_bob(objects()).engines or ()
    assert (row.version, row.digest, row.problem) == ("latest", "", "")
    gone = at_bob(objects(images={}))
    assert (gone.engines or ())[0].problem == 'bob: there is no AppImage "engine"' and gone.outlook == JobOutlook.FAILS
    image = an_image()
    image["spec"]["image"]["id"] = "sha256:" + "a" * 64
    pinned = objects(images={"engine": msgspec.convert(image, AppImage)})
    assert (at_bob(pinned, detail=FULL).engines or ())[0].digest == "sha256:" + "a" * 64
    assert (at_bob(pinned).engines or ())[0].digest == ""


def version(name: str, number: str, speaks: str = "") -> AppImage:
    image = an_image(name)
    marks = {labels.COTERIE_ENGINE: "psi", labels.COTERIE_ENGINE_VERSION: number, labels.COTERIE_SPEAKS: speaks}
    image["metadata"]["annotations"] = marks
    return msgspec.convert(image, AppImage)


def versions(*numbers: str, speaks: str = "") -> dict[str, AppImage]:
    return {f"psi-{each}": version(f"psi-{each}", each, speaks) for each in numbers}


def planned_by_both(
    alice: dict[str, AppImage], bob: dict[str, AppImage], wanted: str = "psi>=0.5"
) -> JobPlanRequestStatus:
    asked = job(a_task("a", appImage=wanted))
    own = plan_of_party(
        objects(images=alice, from_partner=False, nodes=[node(domain="alice")]), asked, "alice", OWN, NOW
    )
    theirs = plan_of_party(objects(images=bob), asked, "bob", SUMMARY, NOW)
    answers = [PlanAnswer(domain=each.domain, phase="Answered", plan=each) for each in (own, theirs)]
    return completed(answers, asked)


def test_the_version_is_the_one_that_all_would_agree_on() -> None:
    done = planned_by_both(versions("0.5", "0.6", "0.7"), versions("0.4", "0.6"))
    rows = [(each.plan.engines or ())[0] for each in done.answers or () if each.plan is not None]
    assert [row.version for row in rows] == ["0.7", "0.6"] and done.outlook == JobOutlook.RUNS
    assert [each.version for each in rows[1].offers or ()] == ["0.6"], "what is outside of the range is not offered"
    done = planned_by_both(versions("0.5", "0.7", speaks=">=0.7"), versions("0.6"))
    assert done.outlook == JobOutlook.FAILS
    assert "bob must add psi >=0.7" in ((done.answers or ())[1].plan or PartyPlan(domain="")).engines[0].problem  # type: ignore[index]


def test_a_range_that_bob_cannot_meet_and_versions_that_he_pinned() -> None:
    asked = job(a_task("a", appImage="psi>=0.7"))
    [row] = at_bob(objects(images=versions("0.5", "0.6")), asked).engines or ()
    assert "no version of the engine psi is in >=0.7: there is 0.6, 0.5" in row.problem
    [row] = (
        at_bob(
            objects(images=versions("0.5", "0.6"), pinned={"psi": "==0.5"}), job(a_task("a", appImage="psi"))
        ).engines
        or ()
    )
    assert row.version == "0.5"
    policy = PartnerPolicySpec(app_images=("other",))
    done = at_bob(objects(images=versions("0.5"), policy=policy), job(a_task("a", appImage="psi")))
    nothing = at_bob(objects(images={}, policy=policy), job(a_task("a", appImage="psi")))
    assert done == nothing and "0.5" not in str(done)


def needs(cpu: str) -> KusciaJobSpec:
    parties = [{"domainID": "alice"}, {"domainID": "bob", "resources": {"requests": {"cpu": cpu}}}]
    return job({**a_task("a"), "parties": parties})


def test_placement() -> None:
    [row] = at_bob(objects(), needs("3"), OWN).placements or ()
    assert row.fits and row.nodes == ("n-1",)
    full = at_bob(objects(), needs("5"), FULL)
    assert full.outlook == JobOutlook.WAITS
    [row] = full.placements or ()
    assert (row.fits, row.nodes) == (False, None) and row.problem == "0/1 nodes are available: 1 Insufficient cpu."
    [row] = at_bob(objects(), needs("5")).placements or ()
    assert row.problem == "not enough cpu"
    [row] = at_bob(objects(nodes=[node(domain="carol")])).placements or ()
    assert row.problem == "no node is suitable"
    taken = msgspec.convert(
        {
            "metadata": {"name": "p", "namespace": "bob", "uid": "u"},
            "spec": {"nodeName": "n-1", "containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]},
        },
        Pod,
        strict=False,
    )
    assert not (at_bob(objects(pods=[taken]), needs("3")).placements or ())[0].fits
    ended = msgspec.structs.replace(taken, status=msgspec.structs.replace(taken.status, phase="Succeeded"))
    assert (at_bob(objects(pods=[ended]), needs("3")).placements or ())[0].fits


def test_tasks_do_not_stand_in_each_others_way() -> None:
    one = needs("3").tasks[0]
    asked = KusciaJobSpec(initiator="alice", tasks=(one, msgspec.structs.replace(one, alias="b", dependencies=("a",))))
    assert [row.fits for row in at_bob(objects(), asked).placements or ()] == [True, True]


def link(bits: str) -> DomainRoute:
    spec = {"source": "alice", "destination": "bob", "authenticationType": "Token"}
    marks = {labels.COTERIE_LINK_BANDWIDTH: bits}
    return msgspec.convert(
        {"metadata": {"name": "r", "namespace": "bob", "annotations": marks}, "spec": spec}, DomainRoute
    )


def route(status: str, message: str = "") -> ClusterDomainRoute:
    ready = [{"type": "Ready", "status": status, "message": message}]
    spec = {"source": "alice", "destination": "bob", "authenticationType": "Token"}
    return msgspec.convert(
        {"metadata": {"name": "r"}, "spec": spec, "status": {"conditions": ready}}, ClusterDomainRoute
    )


def test_links_and_bandwidth() -> None:
    [row] = at_bob(objects(links=[link("50Mbps")]), job(bandwidthRequest="20Mbps"), FULL).links or ()
    assert row.ready and not row.problem and "20" in row.requested and "50" in row.capacity
    slow = at_bob(objects(links=[link("10Mbps")]), job(bandwidthRequest="20Mbps"))
    [row] = slow.links or ()
    assert (row.problem, row.capacity, slow.outlook) == ("the link is too slow", "", JobOutlook.FAILS)
    down = at_bob(objects(routes=[route("False", "no answer of 10.1.2.3")]))
    [row] = down.links or ()
    assert not row.ready and "10.1.2.3" not in row.problem and down.outlook == JobOutlook.WAITS
    [row] = at_bob(objects(routes=[route("False", "no answer of 10.1.2.3")]), detail=FULL).links or ()
    assert row.problem.endswith("no answer of 10.1.2.3")
    much = at_bob(objects(nodes=[node("secret-node", mbit="10")]), job(bandwidthRequest="20Mbps"), FULL)
    assert much.outlook == JobOutlook.FAILS and "secret-node" not in str(much)
    assert "secret-node" in str(
        at_bob(objects(nodes=[node("secret-node", mbit="10")]), job(bandwidthRequest="20Mbps"), OWN)
    )


def test_a_partner_with_a_full_quota_waits() -> None:
    busy = objects(used=Usage(tasks=32))
    done = at_bob(busy)
    assert done.outlook == JobOutlook.WAITS and "would wait: alice may have 32 tasks" in (done.notes or ("",))[0]


# What is not told.


def test_nothing_that_alice_may_not_know_changes_what_she_is_told() -> None:
    """Worlds that differ only in what is hidden give the same answer, whatever the job names."""
    random = Random(7)
    hidden = ["salaries", "contracts", "patients"]
    for _ in range(60):
        there = [name for name in hidden if random.random() < 0.5]
        secret = msgspec.convert(an_image("secret-engine"), AppImage)
        base = objects(
            datas=[table("visitors")],
            grants=[grant(useCount=5)],
            policy=PartnerPolicySpec(app_images=("engine",), tables=("visitors",), dry_run="summary"),
        )
        images = {**base.images, **({"secret-engine": secret} if random.random() < 0.5 else {})}
        more = PlanObjects(
            images=images,
            nodes=[node(f"node-{random.random()}")],
            datas=[*base.datas, *(table(name) for name in there)],
            grants=[*base.grants, *(grant(f"g-{name}", name, to="carol") for name in there)],
            policy=base.policy,
            from_partner=True,
        )
        named = random.sample(["visitors", *hidden], 2)
        text = json.dumps({"inputs": {"bob": named}, "other": random.choice(hidden)})
        asked = job(a_task("a", taskInputConfig=text, appImage=random.choice(("engine", "secret-engine"))))
        assert at_bob(base, asked) == at_bob(more, asked)
        shown = str(at_bob(more, asked))
        assert "carol" not in shown and "node-" not in shown and "g-" not in shown
        for row in at_bob(more, asked).tables or ():
            assert row.problem == (NO_GRANT if row.table in hidden else "")


OWN_WAYS = [
    ("no input", "{}", JobOutlook.RUNS),
    ("a granted table", '{"sf_input_ids": ["visitors"]}', JobOutlook.RUNS),
    ("parties, tasks and numbers", '{"receiver": "alice", "after": "a", "engine": "engine", "n": 5}', JobOutlook.RUNS),
    ("no name of a table", '{"comp": "data_prep/psi:1.0", "Key": "Column_1"}', JobOutlook.RUNS),
    ("tables of the others, in our way", '{"inputs": {"bob": ["visitors"], "alice": ["x"]}, "keys": {"alice": ["id"]}}', JobOutlook.RUNS),
    ("results and options, in our way", '{"inputs": {"bob": "visitors"}, "outputs": {"alice": "r"}, "app": "x"}', JobOutlook.RUNS),
    ("inputs of something else", '{"inputs": {"table": "salaries"}}', JobOutlook.UNKNOWN),
    ("in an engine's own way", '{"sf_input_ids": ["visitors", "salaries"]}', JobOutlook.UNKNOWN),
    ("JSON in a text", '{"config": "{\\"table\\": \\"salaries\\"}"}', JobOutlook.UNKNOWN),
    ("a text alone", '"salaries"', JobOutlook.UNKNOWN),
]  # fmt: skip


@pytest.mark.parametrize("row", OWN_WAYS, ids=[row[0] for row in OWN_WAYS])
def test_a_summary_promises_nothing_where_an_input_may_name_tables_that_it_does_not_tell_of(row: Any) -> None:
    _, text, outlook = row
    asked = job(a_task("a", taskInputConfig=text))
    there = objects(datas=[table("visitors"), table("salaries")], grants=[grant()])
    none = objects(datas=[table("visitors")], grants=[grant()])
    done = at_bob(there, asked)
    assert done == at_bob(none, asked) and done.outlook == outlook
    assert (UNTOLD_TABLES in (done.notes or ())) is (outlook == JobOutlook.UNKNOWN)
    if outlook == JobOutlook.UNKNOWN:
        # Who is told all is told that, too.
        assert at_bob(there, asked, FULL).outlook == JobOutlook.FAILS
        assert at_bob(none, asked, FULL).outlook == JobOutlook.RUNS
        answer = PlanAnswer(domain="bob", phase="Answered", plan=done)
        assert completed([answer]).message == "nobody knows whether the job would run: bob tells too little"


def test_an_engine_that_reads_tables_in_inputs_alone_names_none_elsewhere() -> None:
    image = an_image()
    image["metadata"]["annotations"] = {labels.COTERIE_TABLES_IN: "inputs"}
    found = objects(images={"engine": msgspec.convert(image, AppImage)})
    assert at_bob(found, job(a_task("a", taskInputConfig='{"mode": "slow"}'))).outlook == JobOutlook.RUNS
    assert at_bob(objects(), job(a_task("a", taskInputConfig='{"mode": "slow"}'))).outlook == JobOutlook.UNKNOWN


@pytest.mark.parametrize("detail", [SUMMARY, FULL])
def test_nobody_else_is_told_names_of_nodes_or_grants_of_others(detail: str) -> None:
    found = objects(
        nodes=[node("secret-node")],
        datas=[table("visitors"), table("salaries")],
        grants=[grant(), grant("g-carol", "salaries", to="carol"), grant("g-carol-2", to="carol")],
    )
    shown = str(at_bob(found, job(reading("visitors", "salaries")), detail))
    assert "secret-node" not in shown and "carol" not in shown


# Requests.


def request(age: float = 0.0, wait: int = 10, phase: str = "", **more: Any) -> JobPlanRequest:
    spec = {"initiator": "alice", "jobName": "j", "job": a_job(a_task("a"))["spec"], "waitSeconds": wait}
    meta = {"name": "p", "namespace": "alice", "creationTimestamp": rfc3339(NOW - timedelta(seconds=age))}
    return msgspec.convert({"metadata": meta, "spec": spec, "status": {"phase": phase, **more}}, JobPlanRequest)


def answer(domain: str, outlook: JobOutlook) -> PlanAnswer:
    return PlanAnswer(domain=domain, phase=str(PlanPhase.ANSWERED), plan=PartyPlan(domain=domain, outlook=str(outlook)))


def test_a_request_asks_waits_and_ends() -> None:
    own = {"alice": answer("alice", JobOutlook.RUNS)}
    parties, partners = ("alice", "bob"), {"bob": ("bob",)}
    first = plan.outgoing(request(), parties, None, own, partners, {}, {}, NOW)
    assert first.send == ("bob",) and first.status.phase == PlanPhase.PENDING and first.after and first.after <= 10.1
    mirror = request()
    assert plan.outgoing(request(), parties, None, own, partners, {"bob": mirror}, {}, NOW).send == ()
    late = plan.outgoing(request(11), parties, None, own, partners, {"bob": mirror}, {"bob": "the route is down"}, NOW)
    assert late.status.phase == PlanPhase.COMPLETE and late.withdraw
    assert late.status.outlook == JobOutlook.UNKNOWN
    assert (late.status.answers or ())[1].message == "no answer within 10 s: the route is down"
    told = msgspec.structs.replace(mirror, status=completed([answer("bob", JobOutlook.WAITS)]))
    done = plan.outgoing(request(1), parties, None, own, partners, {"bob": told}, {}, NOW)
    assert done.status.outlook == JobOutlook.WAITS and done.status.message == "the job would wait for bob"
    kept = msgspec.structs.replace(request(KEPT_SECONDS + 1), status=done.status)
    assert plan.outgoing(kept, parties, None, own, partners, {}, {}, NOW).delete
    assert plan.mirror(mirror, kept, NOW).delete and plan.mirror(mirror, None, NOW).delete
    assert not plan.mirror(mirror, request(), NOW).delete
    assert plan.incoming(request(KEPT_SECONDS + 1), NOW).delete


def test_the_worst_answer_counts() -> None:
    fails, waits, runs = (answer(str(each), each) for each in (JobOutlook.FAILS, JobOutlook.WAITS, JobOutlook.RUNS))
    silent = PlanAnswer(domain="x", phase=str(PlanPhase.NO_ANSWER))
    assert overall([runs]) is JobOutlook.RUNS and overall([runs, waits]) is JobOutlook.WAITS
    assert overall([silent, waits]) is JobOutlook.UNKNOWN and overall([silent, fails]) is JobOutlook.FAILS
    assert overall([]) is JobOutlook.UNKNOWN


def test_what_is_taken_from_a_partner() -> None:
    plan_ = PartyPlan(domain="eve", outlook="Marvellous", notes=tuple("x" * 900 for _ in range(900)))
    status = JobPlanRequestStatus(
        answers=(
            PlanAnswer(domain="alice", phase="Answered", plan=PartyPlan(domain="alice", outlook="Fails")),
            PlanAnswer(domain="bob", phase="Marvellous", message="\x1b[2J", plan=plan_),
        )
    )
    [bob, lite] = answers_from(status, ("bob", "bob-lite"))
    assert bob.domain == "bob" and bob.phase == "Answered" and "\x1b" not in bob.message
    assert bob.plan is not None and (bob.plan.domain, bob.plan.outlook) == ("bob", "Unknown")
    assert len(bob.plan.notes or ()) == 512 and {len(each) for each in bob.plan.notes or ()} == {500}
    assert lite.phase == PlanPhase.REFUSED


def test_what_may_be_asked() -> None:
    good = request().spec
    assert plan_request_fault(good) == ""
    for change, words in (
        ({"initiator": "No Name"}, "is no name"),
        ({"initiator": "bob"}, "its initiator is not bob"),
        ({"wait_seconds": LONGEST_WAIT + 1}, "waitSeconds"),
        ({"job": {"initiator": "alice", "tasks": []}}, "name at least one"),
        ({"job": {"tasks": 3}}, "cannot be read"),
    ):
        assert words in plan_request_fault(msgspec.structs.replace(good, **change))
    deep: Any = {}
    for _ in range(5000):
        deep = {"a": deep}
    assert "cannot be read" in plan_request_fault(JobPlanRequestSpec(initiator="alice", job_name="j", job=deep))


def test_an_unknown_word_in_a_policy_tells_nothing() -> None:
    assert detail_of(None) is SUMMARY and detail_of(PartnerPolicySpec()) is SUMMARY
    assert detail_of(PartnerPolicySpec(dry_run="everything")) is PlanDetail.NONE
