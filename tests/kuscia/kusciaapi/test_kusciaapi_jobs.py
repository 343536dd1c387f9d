"""JobService: every code, both roles, each mode. Objects are written as controllers would have left them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import definitions_kit
import pytest
import pytest_asyncio
from kuscia.proto.api.v1alpha1.kusciaapi import job_pb2
from kusciaapi_kit import World, domain_caller, here

from coterie.kube.api.meta import Object
from coterie.kube.client.client import Client
from coterie.kube.client.transport import Transport, TransportRequest, TransportResponse
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_JOBS, KUSCIA_TASKS, JobStage
from coterie.kuscia.kusciaapi import messages
from coterie.kuscia.kusciaapi.authorization import OPERATOR
from coterie.kuscia.kusciaapi.codes import ApiErrorCode
from coterie.kuscia.kusciaapi.jobs import OPERATIONS
from coterie.kuscia.kusciaapi.operations import Mode, OnLite

JOB, TASK = KUSCIA_JOBS.as_dynamic, KUSCIA_TASKS.as_dynamic
COMMANDS = ("StopJob", "RestartJob", "SuspendJob", "CancelJob", "DeleteJob")
MARKED = {
    labels.KUSCIA_SELF_AS_INITIATOR: "true",
    labels.KUSCIA_INTERCONN_SELF_PARTIES: "alice",
}


def code(answer: Any) -> tuple[int, str]:
    return answer.status.code, answer.status.message


def a_task(alias: str = "psi", **more: Any) -> Object:
    parties = [{"domain_id": "alice"}, {"domain_id": "bob"}]
    return {"alias": alias, "app_image": "engine", "task_input_config": "{}", "parties": parties, **more}


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def autonomous(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with here(tmp_path_factory.mktemp("alice")) as world:
        yield world


@pytest_asyncio.fixture(loop_scope="module")
async def alice(autonomous: World) -> AsyncIterator[World]:
    """An autonomous domain without jobs."""
    yield autonomous
    for kind in (JOB, TASK):
        await autonomous.client.delete_collection(kind, CROSS_DOMAIN)


@pytest_asyncio.fixture(loop_scope="module")
async def master(alice: World, tmp_path: Path) -> AsyncIterator[World]:
    async with here(tmp_path, mode=Mode.MASTER, domain="kuscia-system", client=alice.client) as world:
        yield world


async def stored(world: World, name: str = "j") -> Object:
    return await world.client.get(JOB, name, CROSS_DOMAIN)


async def put_job(
    world: World,
    name: str = "j",
    phase: str = "Running",
    *,
    initiator: str = "alice",
    parties: tuple[str, ...] = ("alice", "bob"),
    told: Object | None = None,
    annotations: dict[str, str] | None = None,
    **status: Any,
) -> Object:
    """A job as its controller left it."""
    task = {
        "alias": "psi", "taskID": f"{name}-psi", "appImage": "engine", "taskInputConfig": "{}",
        "parties": [{"domainID": each} for each in parties],
    }  # fmt: skip
    meta = {"name": name, "namespace": CROSS_DOMAIN, "labels": told or {}, "annotations": annotations or MARKED}
    job = await world.client.create(JOB, {"metadata": meta, "spec": {"initiator": initiator, "tasks": [task]}})
    if phase:
        job = await world.client.patch_status(JOB, name, CROSS_DOMAIN, {"status": {"phase": phase, **status}})
    return job


async def put_task(world: World, job: Object, alias: str = "psi", *, name: str = "", **status: Any) -> None:
    meta = job["metadata"]
    name = name or f"{meta['name']}-{alias}"
    body = {
        "metadata": {
            "name": name, "namespace": CROSS_DOMAIN,
            "labels": {labels.KUSCIA_JOB_UID: meta["uid"], labels.KUSCIA_CONTROLLER: labels.KUSCIA_CONTROLLER_JOB},
            "annotations": {labels.KUSCIA_JOB_ID: meta["name"], labels.KUSCIA_TASK_ALIAS: alias},
        },
        "spec": {"initiator": "alice", "taskInputConfig": "{}", "parties": []},
    }  # fmt: skip
    await world.client.create(TASK, body)
    if status:
        await world.client.patch_status(TASK, name, CROSS_DOMAIN, {"status": status})


async def call(world: World, method: str, **request: Any) -> Any:
    return await world.call(OPERATIONS, method, **request)


async def test_messages_are_those_of_the_stubs() -> None:
    assert definitions_kit.differences(job_pb2) == []


async def test_all_ten_are_open_to_domains_and_a_lite_asks_its_master() -> None:
    service = messages.FILES.service(f"{messages.PACKAGE}.JobService")
    assert {each.method for each in OPERATIONS} == {method.name for method in service.methods}
    assert all(each.for_domains and each.on_lite is OnLite.FORWARD and each.on_master for each in OPERATIONS)


# Creating.


async def test_a_job_is_written_with_all_that_was_said(alice: World) -> None:
    party = {
        "domain_id": "alice", "role": "server",
        "resources": {"cpu": "2", "memory": "4Gi", "bandwidth": "10"},
        "bandwidth_limits": [{"destination_id": "bob", "limit_kbps": 100}],
    }  # fmt: skip
    first = a_task("a", parties=[party, {"domain_id": "bob"}], task_id="first", priority=7, tolerable=True)
    config = {"task_timeout_seconds": 9, "active_deadline_seconds": 60, "min_reserved_members": 2}
    second = a_task("b", dependencies=["a"], schedule_config=config)
    answer = await call(
        alice, "CreateJob", job_id="j", initiator="alice", max_parallelism=3, tasks=[first, second],
        custom_fields={"project": "p-1"},
    )  # fmt: skip
    assert (*code(answer), answer.data.job_id) == (0, "success", "j")
    job = await stored(alice)
    assert job["metadata"]["labels"] == {"kuscia.job.custom-fields/project": "p-1"}
    spec = job["spec"]
    assert (spec["initiator"], spec["scheduleMode"], spec["maxParallelism"]) == ("alice", "BestEffort", 3)
    amounts = {"cpu": "2", "memory": "4Gi", "kuscia.io/bandwidth": "10"}
    assert spec["tasks"][0] == {
        "alias": "a", "taskID": "first", "appImage": "engine", "taskInputConfig": "{}", "priority": 7, "tolerable": True,
        "scheduleConfig": {"lifecycleSeconds": 300, "resourceReservedSeconds": 30, "retryIntervalSeconds": 30},
        "parties": [
            {
                "domainID": "alice", "role": "server", "resources": {"requests": amounts, "limits": amounts},
                "bandwidthLimits": [{"destinationID": "bob", "limitKBps": 100}],
            },
            {"domainID": "bob"},
        ],
    }  # fmt: skip
    assert spec["tasks"][1]["dependencies"] == ["a"]
    assert spec["tasks"][1]["scheduleConfig"] == {
        "lifecycleSeconds": 9, "resourceReservedSeconds": 30, "retryIntervalSeconds": 30, "activeDeadlineSeconds": 60,
        "minReservedMembers": 2,
    }  # fmt: skip


async def test_retries_and_stalls_are_written_shown_and_checked(alice: World) -> None:
    config = {"retry_count": 3, "retry_backoff_seconds": 30, "stall_seconds": 600, "stall_action": "Restart"}
    await call(alice, "CreateJob", job_id="j", initiator="alice", tasks=[a_task(schedule_config=config)])
    written = (await stored(alice))["spec"]["tasks"][0]["scheduleConfig"]
    assert written["retry"] == {"count": 3, "backoffSeconds": 30}
    assert (written["stallSeconds"], written["stallAction"]) == (600, "Restart")
    shown = (await call(alice, "QueryJob", job_id="j")).data.tasks[0].schedule_config
    assert {name: getattr(shown, name) for name in config} == config
    for field, value in (("retry_count", 11), ("stall_seconds", 1), ("stall_action", "Sleep")):
        wrong = a_task(schedule_config={**config, field: value})
        answer = await call(alice, "CreateJob", job_id="k", initiator="alice", tasks=[wrong])
        assert code(answer)[0] == 11100 and f"schedule_config.{field}: " in code(answer)[1]


@pytest.mark.parametrize("given", [0, -5])
async def test_without_a_parallelism_tasks_run_one_by_one(alice: World, given: int) -> None:
    await call(alice, "CreateJob", job_id="j", initiator="alice", max_parallelism=given, tasks=[a_task()])
    assert (await stored(alice))["spec"]["maxParallelism"] == 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        pytest.param({"job_id": ""}, "job_id: must be given", id="no-name"),
        pytest.param({"job_id": "No_Name"}, "job_id: a lowercase", id="bad-name"),
        pytest.param({"job_id": "../secrets"}, "job_id: ", id="a-path"),
        pytest.param({"job_id": "a" * 64}, "job_id: must be no more than 63", id="long-name"),
        pytest.param({"initiator": ""}, "initiator: must be given", id="no-initiator"),
        pytest.param({"initiator": "bob"}, "initiator: must be alice", id="somebody-elses"),
        pytest.param({"tasks": []}, "tasks: name at least one", id="no-task"),
        pytest.param({"tasks": [a_task(f"t{n}") for n in range(129)]}, "tasks: are 129", id="too-many-tasks"),
        pytest.param({"max_parallelism": 129}, "max_parallelism: must be at most 128", id="too-parallel"),
        pytest.param({"tasks": [a_task(alias="")]}, "tasks[0].alias: must be given", id="no-alias"),
        pytest.param({"tasks": [a_task(app_image="")]}, "tasks[0].app_image: must be given", id="no-image"),
        pytest.param({"tasks": [a_task(task_id="A b")]}, "tasks[0].task_id: ", id="bad-task-id"),
        pytest.param({"tasks": [a_task("a"), a_task("b", parties=[])]}, "tasks[1].parties: name", id="no-party"),
        pytest.param(
            {"tasks": [a_task(parties=[{"role": "x"}])]}, "tasks[0].parties[0].domain_id: must be given", id="no-domain"
        ),
        pytest.param(
            {"tasks": [a_task(parties=[{"domain_id": "alice", "resources": {"memory": "4 GB"}}])]},
            'tasks[0].parties[0].resources.memory: "4 GB" is no quantity', id="bad-amount",
        ),
        pytest.param(
            {"tasks": [a_task(parties=[{"domain_id": "alice", "resources": {"cpu": "-1"}}])]},
            "tasks[0].parties[0].resources.cpu: must be more than 0", id="negative-amount",
        ),
        pytest.param(
            {"tasks": [a_task(parties=[{"domain_id": "alice", "bandwidth_limits": [{"destination_id": "bob"}]}])]},
            "tasks[0].parties[0].bandwidth_limits[0].limit_kbps: must be between", id="no-limit",
        ),
        pytest.param(
            {"tasks": [a_task(parties=[{"domain_id": "alice", "bandwidth_limits": [{"destination_id": "bob", "limit_kbps": 1 << 63}]}])]},
            "tasks[0].parties[0].bandwidth_limits[0].limit_kbps: must be between", id="endless-limit",
        ),
        pytest.param(
            {"tasks": [a_task(parties=[{"domain_id": "alice", "bandwidth_limits": [{"limit_kbps": 1}]}])]},
            "tasks[0].parties[0].bandwidth_limits[0].destination_id: must be given", id="no-destination",
        ),
        pytest.param(
            {"tasks": [a_task(schedule_config={"task_timeout_seconds": -1})]},
            "tasks[0].schedule_config.task_timeout_seconds: must not be negative", id="negative-time",
        ),
        pytest.param({"tasks": [a_task("a"), a_task("a")]}, 'tasks[1].alias: "a" is the alias of', id="same-alias"),
        pytest.param(
            {"tasks": [a_task(dependencies=["x"])]}, 'tasks[0].dependencies: there is no task', id="unknown-dependency"
        ),
        pytest.param({"tasks": [a_task(dependencies=["psi"])]}, 'tasks[0].dependencies: "psi" waits', id="own-dependency"),
        pytest.param(
            {"tasks": [a_task("a", dependencies=["b"]), a_task("b", dependencies=["a"])]},
            "tasks: wait for each other in a circle: a -> b -> a", id="circle",
        ),
        pytest.param(
            {"tasks": [a_task("a", task_id="t"), a_task("b", task_id="t")]}, 'tasks[1].task_id: "t" is the task id of tasks[0]',
            id="same-task-id",
        ),
        pytest.param(
            {"tasks": [a_task(parties=[{"domain_id": "alice"}, {"domain_id": "alice"}])]},
            "tasks[0].parties[1]: alice is named twice", id="same-party",
        ),
        pytest.param(
            {"tasks": [a_task(schedule_config={"min_reserved_members": 3})]},
            "tasks[0].schedule_config.min_reserved_members: is 3, but there are 2 parties", id="too-many-members",
        ),
        pytest.param({"custom_fields": {"a b": "x"}}, "custom_fields[a b]: ", id="bad-key"),
        pytest.param({"custom_fields": {"a": "x" * 64}}, "custom_fields[a]: must be no more", id="long-value"),
    ],
)  # fmt: skip
async def test_what_cannot_be_taken_is_refused_with_its_field(alice: World, change: Object, field: str) -> None:
    request = {"job_id": "j", "initiator": "alice", "tasks": [a_task()], **change}
    number, words = code(await call(alice, "CreateJob", **request))
    assert number == 11100
    assert words.startswith(field)
    assert (await alice.client.list(JOB, CROSS_DOMAIN)).items == []


async def test_a_name_is_taken_once(alice: World) -> None:
    await call(alice, "CreateJob", job_id="j", initiator="alice", tasks=[a_task()])
    number, words = code(await call(alice, "CreateJob", job_id="j", initiator="alice", tasks=[a_task()]))
    assert (number, words) == (11201, "there is a job j already; choose another job_id")


async def test_a_domain_creates_what_it_initiates(master: World) -> None:
    request: Object = {"job_id": "j", "initiator": "bob", "tasks": [a_task()]}
    refused = await call(master, "CreateJob", caller=domain_caller("alice"), **request)
    assert code(refused) == (11102, "domain alice may only create jobs that it initiates")
    assert code(await call(master, "CreateJob", caller=domain_caller("bob"), **request))[0] == 0


async def test_a_master_creates_for_anybody(master: World) -> None:
    assert code(await call(master, "CreateJob", job_id="j", initiator="bob", tasks=[a_task()]))[0] == 0


# Asking.


async def test_what_was_created_is_told_again(alice: World) -> None:
    party: Object = {
        "domain_id": "alice", "role": "server", "resources": {"cpu": "2", "memory": "4Gi", "bandwidth": "10"},
        "bandwidth_limits": [{"destination_id": "bob", "limit_kbps": 100}],
    }  # fmt: skip
    task = a_task("a", parties=[party], task_id="first", priority=7, tolerable=True)
    asked: Object = {"job_id": "j", "initiator": "alice", "max_parallelism": 2, "custom_fields": {"k": "v"}}
    await call(alice, "CreateJob", **asked, tasks=[task])
    data = (await call(alice, "QueryJob", job_id="j")).data
    assert (data.job_id, data.initiator, data.max_parallelism, dict(data.custom_fields)) == (
        "j",
        "alice",
        2,
        {"k": "v"},
    )
    told = messages.as_json(data.tasks[0])
    times = told.pop("schedule_config")
    assert told["parties"][0]["bandwidth_limits"][0].pop("limit_kbps") == "100", "64 bits are text in JSON"
    del party["bandwidth_limits"][0]["limit_kbps"]
    assert told == {**task, "dependencies": [], "bandwidth_request": ""}
    assert (times["task_timeout_seconds"], times["resource_reserved_seconds"]) == (300, 30)
    status = data.status
    assert (status.state, status.tasks[0].state, status.tasks[0].alias, status.err_msg) == (
        "Unknown",
        "Pending",
        "a",
        "",
    )
    assert [(party.domain_id, party.role, party.state) for party in status.tasks[0].parties] == [
        ("alice", "server", "Pending")
    ]


async def test_the_status_tells_tasks_parties_roles_endpoints_and_progress(alice: World) -> None:
    job = await put_job(
        alice, stageStatus={"bob": "JobCreateStageSucceeded", "alice": "JobStartStageSucceeded"},
        approveStatus={"bob": "JobAccepted"}, startTime="2026-01-02T03:04:05Z",
    )  # fmt: skip
    roles = [{"domainID": "alice", "role": "server"}, {"domainID": "alice", "role": "client"}, {"domainID": "bob"}]
    template = {**job["spec"]["tasks"][0], "parties": roles}
    job = await alice.client.patch(JOB, "j", CROSS_DOMAIN, {"spec": {"tasks": [template]}})
    service = {"namespace": "alice", "portName": "talk", "scope": "Cluster"}
    await put_task(
        alice, job, phase="Running", progress=0.25, startTime="2026-01-02T03:04:06Z",
        partyTaskStatus=[
            {"domainID": "alice", "role": "server", "phase": "Running"},
            {"domainID": "alice", "role": "client", "phase": "Pending", "message": "no room"},
        ],
        serviceStatuses={
            "alice/a": {**service, "serviceName": "s-server-0-talk", "portNumber": 20001},
            "alice/b": {**service, "serviceName": "s-server-0-in", "portNumber": 20002, "scope": "Domain", "portName": "in"},
            "alice/c": {**service, "serviceName": "s-client-0-talk", "portNumber": 20003},
        },
        allocatedPorts=[
            {"domainID": "alice", "role": "server", "namedPort": {"s-server-0/talk": 20001, "s-server-0/in": 20002}},
            {"domainID": "alice", "role": "client", "namedPort": {"s-client-0/talk": 20003}},
        ],
    )  # fmt: skip
    status = (await call(alice, "QueryJob", job_id="j")).data.status
    assert (status.state, status.start_time, status.end_time) == ("Running", "2026-01-02T03:04:05Z", "")
    assert status.create_time
    assert [(each.domain_id, each.state) for each in status.stage_status_list] == [
        ("alice", "JobStartStageSucceeded"), ("bob", "JobCreateStageSucceeded"),
    ]  # fmt: skip
    assert [(each.domain_id, each.state) for each in status.approve_status_list] == [("bob", "JobAccepted")]
    assert status.err_msg == "Task[psi]-Party[alice]: no room"
    task = status.tasks[0]
    assert (task.task_id, task.state, task.progress, task.start_time) == (
        "j-psi",
        "Running",
        0.25,
        "2026-01-02T03:04:06Z",
    )
    told = [(each.domain_id, each.role, each.state, [end.endpoint for end in each.endpoints]) for each in task.parties]
    assert told == [
        ("alice", "server", "Running", ["s-server-0-talk.alice.svc", "s-server-0-in.alice.svc:20002"]),
        ("alice", "client", "Pending", ["s-client-0-talk.alice.svc"]),
        ("bob", "", "Pending", []),
    ]


@pytest.mark.parametrize(
    ("phase", "state"),
    [
        ("initialized", "Unknown"), ("AwaitingApproval", "AwaitingApproval"), ("Pending", "Pending"),
        ("Running", "Running"), ("Suspended", "Suspended"), ("Succeeded", "Succeeded"), ("Failed", "Failed"),
        ("ApprovalReject", "ApprovalReject"), ("Cancelled", "Cancelled"),
    ],
)  # fmt: skip
async def test_states_have_the_names_of_the_definitions(alice: World, phase: str, state: str) -> None:
    await put_job(alice, phase=phase, message="why")
    status = (await call(alice, "QueryJob", job_id="j")).data.status
    assert (status.state, status.err_msg) == (state, "why")
    assert state in messages.message("JobState").DESCRIPTOR.enum_types_by_name["State"].values_by_name


async def test_a_task_that_succeeded_is_done_whatever_it_reported(alice: World) -> None:
    await put_task(alice, await put_job(alice), phase="Succeeded", progress=0.4)
    assert (await call(alice, "QueryJob", job_id="j")).data.status.tasks[0].progress == 1.0


async def test_tasks_of_a_job_that_was_replaced_are_not_told(alice: World) -> None:
    await put_task(alice, await put_job(alice), phase="Succeeded")
    await alice.client.delete(JOB, "j", CROSS_DOMAIN)
    await put_job(alice)
    assert (await call(alice, "QueryJob", job_id="j")).data.status.tasks[0].state == "Pending"


class Counting:
    """Which paths were asked for."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.asked: list[str] = []

    async def send(self, call: TransportRequest) -> TransportResponse:
        self.asked.append(f"{call.method} {call.path.rpartition('v1alpha1/')[2]}")
        return await self._inner.send(call)

    async def close(self) -> None:
        await self._inner.close()


async def test_a_job_of_many_tasks_takes_two_requests(alice: World, tmp_path: Path) -> None:
    tasks = [a_task(f"t{n}", task_id=f"j-t{n}") for n in range(40)]
    await call(alice, "CreateJob", job_id="j", initiator="alice", tasks=tasks)
    job = await stored(alice)
    for number in range(40):
        await put_task(alice, job, f"t{number}", phase="Running")
    counting = Counting(alice.client.transport)
    async with here(tmp_path, client=Client(counting)) as world:
        answer = await call(world, "QueryJob", job_id="j")
    assert [task.state for task in answer.data.status.tasks] == ["Running"] * 40
    assert counting.asked == [
        "GET namespaces/cross-domain/kusciajobs/j", "GET namespaces/cross-domain/kusciatasks",
    ]  # fmt: skip


@pytest.mark.parametrize("count", [3, 30], ids=["few", "many"])
async def test_many_jobs_are_told_in_the_order_asked_for(alice: World, count: int) -> None:
    names = [f"j{number}" for number in range(count)]
    for name in names:
        await put_task(alice, await put_job(alice, name), phase="Running", progress=0.5)
    asked = [*reversed(names), names[0]]
    answer = await call(alice, "BatchQueryJobStatus", job_ids=asked)
    assert code(answer)[0] == 0
    assert [job.job_id for job in answer.data.jobs] == asked
    assert {job.status.tasks[0].progress for job in answer.data.jobs} == {0.5}


@pytest.mark.parametrize("count", [1, 30], ids=["few", "many"])
async def test_jobs_that_are_missing_in_a_batch_are_all_named(alice: World, count: int) -> None:
    for number in range(count):
        await put_job(alice, f"j{number}")
    asked = ["gone", *(f"j{number}" for number in range(count)), "away"]
    answer = await call(alice, "BatchQueryJobStatus", job_ids=asked)
    assert code(answer) == (11203, "there are no jobs gone, away")
    details = [messages.Status.FromString(each.value) for each in answer.status.details]
    assert [(each.code, each.message) for each in details] == [
        (11203, "there is no job gone"), (11203, "there is no job away"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "request_", "expected"),
    [
        ("QueryJob", {}, (11100, "job_id: must be given")),
        ("QueryJob", {"job_id": "gone"}, (11202, "there is no job gone")),
        ("BatchQueryJobStatus", {}, (11100, "job_ids: name at least one")),
        ("BatchQueryJobStatus", {"job_ids": ["j", ""]}, (11100, "job_ids[1]: must be given")),
        ("BatchQueryJobStatus", {"job_ids": ["gone"]}, (11203, "there is no job gone")),
        *((method, {}, (11100, "job_id: must be given")) for method in COMMANDS),
        ("StopJob", {"job_id": "gone"}, (11205, "there is no job gone")),
        ("RestartJob", {"job_id": "gone"}, (11208, "there is no job gone")),
        ("SuspendJob", {"job_id": "gone"}, (11207, "there is no job gone")),
        ("CancelJob", {"job_id": "gone"}, (11209, "there is no job gone")),
        ("DeleteJob", {"job_id": "gone"}, (11204, "there is no job gone")),
        ("ApproveJob", {"result": 1}, (11100, "job_id: must be given")),
        ("ApproveJob", {"job_id": "gone", "result": 1}, (11206, "there is no job gone")),
        ("ApproveJob", {"job_id": "j"}, (11100, "result: must be APPROVE_RESULT_ACCEPT or APPROVE_RESULT_REJECT")),
        ("ApproveJob", {"job_id": "j", "result": 7}, (11100, "result: must be APPROVE_RESULT_ACCEPT or APPROVE_RESULT_REJECT")),
    ],
)  # fmt: skip
async def test_bad_requests(alice: World, method: str, request_: Object, expected: tuple[int, str]) -> None:
    assert code(await call(alice, method, **request_)) == expected


# Who may.


@pytest.mark.parametrize(
    ("method", "more", "refusal"),
    [
        ("QueryJob", {}, ApiErrorCode.QUERY_JOB), ("StopJob", {}, ApiErrorCode.PERMISSION), ("SuspendJob", {}, ApiErrorCode.PERMISSION),
        ("RestartJob", {}, ApiErrorCode.PERMISSION), ("CancelJob", {}, ApiErrorCode.PERMISSION), ("DeleteJob", {}, ApiErrorCode.PERMISSION),
        ("ApproveJob", {"result": 1}, ApiErrorCode.PERMISSION),
    ],
)  # fmt: skip
async def test_a_domain_touches_only_jobs_it_takes_part_in(
    master: World, method: str, more: Object, refusal: ApiErrorCode
) -> None:
    before = await put_job(master, initiator="alice", parties=("alice", "bob"))
    answer = await call(master, method, caller=domain_caller("carol"), job_id="j", **more)
    assert answer.status.code == refusal
    assert not answer.HasField("data")
    assert (await stored(master))["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


async def test_a_domain_asks_for_its_own_jobs_in_a_batch(master: World) -> None:
    await put_job(master, "hers")
    await put_job(master, "theirs", initiator="carol", parties=("carol", "dave"))
    answer = await call(master, "BatchQueryJobStatus", caller=domain_caller("bob"), job_ids=["hers", "theirs"])
    assert code(answer) == (11203, "there is no job theirs")
    answer = await call(master, "BatchQueryJobStatus", caller=domain_caller("bob"), job_ids=["hers"])
    assert [job.job_id for job in answer.data.jobs] == ["hers"]


async def test_an_initiator_without_a_part_sees_its_job(master: World) -> None:
    await put_job(master, initiator="carol", parties=("alice", "bob"))
    assert code(await call(master, "QueryJob", caller=domain_caller("carol"), job_id="j"))[0] == 0


# Commands.


@pytest.mark.parametrize(
    ("method", "phase", "stage"),
    [
        ("StopJob", "Running", "Stop"), ("StopJob", "AwaitingApproval", "Stop"), ("StopJob", "Suspended", "Stop"),
        ("SuspendJob", "Running", "Suspend"), ("RestartJob", "Failed", "Restart"),
        ("RestartJob", "Suspended", "Restart"), ("CancelJob", "Running", "Cancel"), ("CancelJob", "Failed", "Cancel"),
    ],
)  # fmt: skip
async def test_a_command_is_three_labels(alice: World, method: str, phase: str, stage: str) -> None:
    await put_job(alice, phase=phase, told={labels.KUSCIA_JOB_STAGE: "Start", labels.KUSCIA_JOB_STAGE_VERSION: "4"})
    answer = await call(alice, method, job_id="j", reason="because")
    assert (*code(answer), answer.data.job_id) == (0, "success", "j")
    assert (await stored(alice))["metadata"]["labels"] == {
        labels.KUSCIA_JOB_STAGE: stage, labels.KUSCIA_JOB_STAGE_TRIGGER: "alice", labels.KUSCIA_JOB_STAGE_VERSION: "5",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("caller", "trigger"),
    [(OPERATOR, "alice"), (domain_caller("bob"), "bob")],
    ids=["operator", "domain"],
)
async def test_a_command_is_given_in_the_name_of_who_gives_it(master: World, caller: Any, trigger: str) -> None:
    await put_job(master, annotations={labels.KUSCIA_INTERCONN_SELF_PARTIES: "bob_alice"})
    assert code(await call(master, "StopJob", caller=caller, job_id="j"))[0] == 0
    assert (await stored(master))["metadata"]["labels"][labels.KUSCIA_JOB_STAGE_TRIGGER] == trigger


@pytest.mark.parametrize(
    ("method", "phase", "expected"),
    [
        ("SuspendJob", "Pending", (11210, "job j is Pending, and only a job that is Running can be suspended")),
        ("SuspendJob", "Suspended", (11210, "job j is Suspended, and only a job that is Running can be suspended")),
        ("SuspendJob", "Succeeded", (11210, "job j is Succeeded, which is the end; there is nothing to suspend")),
        ("RestartJob", "Running", (11211, "job j is Running, and only a job that is Failed or Suspended can be restarted")),
        ("RestartJob", "Cancelled", (11211, "job j is Cancelled, and only a job that is Failed or Suspended can be restarted")),
    ],
)  # fmt: skip
async def test_a_command_that_makes_no_sense_now(alice: World, method: str, phase: str, expected: Any) -> None:
    before = await put_job(alice, phase=phase)
    assert code(await call(alice, method, job_id="j")) == expected
    assert (await stored(alice))["metadata"] == before["metadata"]


async def test_a_job_that_was_never_valid_is_not_restarted(alice: World) -> None:
    await put_job(alice, phase="Failed", reason="ValidateFailed", message="no engine")
    number, words = code(await call(alice, "RestartJob", job_id="j"))
    assert (number, words.startswith("job j was never valid (no engine)")) == (11208, True)


@pytest.mark.parametrize(
    ("method", "phase"),
    [
        ("StopJob", "Succeeded"), ("StopJob", "Failed"), ("StopJob", "Cancelled"), ("StopJob", "ApprovalReject"),
        ("CancelJob", "Succeeded"), ("CancelJob", "Cancelled"), ("CancelJob", "ApprovalReject"),
    ],
)  # fmt: skip
async def test_what_is_over_needs_no_end(alice: World, method: str, phase: str) -> None:
    before = await put_job(alice, phase=phase)
    assert code(await call(alice, method, job_id="j")) == (0, "success")
    assert (await stored(alice))["metadata"] == before["metadata"]


@pytest.mark.parametrize(
    ("stage", "phase", "method"),
    [
        (JobStage.STOP, "Running", "StopJob"), (JobStage.RESTART, "Failed", "RestartJob"),
        (JobStage.SUSPEND, "Running", "SuspendJob"), (JobStage.CANCEL, "Pending", "CancelJob"),
    ],
)  # fmt: skip
async def test_a_command_that_waits_to_be_carried_out_is_not_given_twice(
    alice: World, stage: JobStage, phase: str, method: str
) -> None:
    told = {labels.KUSCIA_JOB_STAGE: str(stage), labels.KUSCIA_JOB_STAGE_VERSION: "2"}
    before = await put_job(alice, phase=phase, told=told)
    assert code(await call(alice, method, job_id="j")) == (0, "success")
    assert (await stored(alice))["metadata"] == before["metadata"]


async def test_a_command_that_was_carried_out_can_be_given_again(alice: World) -> None:
    told = {labels.KUSCIA_JOB_STAGE: "Suspend", labels.KUSCIA_JOB_STAGE_VERSION: "2"}
    handled = {"type": "JobStageHandled", "status": "True", "reason": "Suspend", "message": "Suspend/2"}
    await put_job(alice, phase="Running", told=told, conditions=[handled])
    assert code(await call(alice, "SuspendJob", job_id="j")) == (0, "success")
    assert (await stored(alice))["metadata"]["labels"][labels.KUSCIA_JOB_STAGE_VERSION] == "3"


async def test_deleting(alice: World) -> None:
    await put_job(alice)
    answer = await call(alice, "DeleteJob", job_id="j")
    assert (*code(answer), answer.data.job_id) == (0, "success", "j")
    assert code(await call(alice, "DeleteJob", job_id="j")) == (11204, "there is no job j")


# Approving.

ASKED = {labels.KUSCIA_SELF_AS_INITIATOR: "false", labels.KUSCIA_INTERCONN_SELF_PARTIES: "bob_carol"}


async def asked_job(world: World, phase: str = "AwaitingApproval", **status: Any) -> None:
    await put_job(world, phase=phase, parties=("alice", "bob", "carol"), annotations=ASKED, **status)


@pytest.mark.parametrize(
    ("caller", "result", "words"),
    [
        pytest.param(OPERATOR, 1, {"bob": "JobAccepted", "carol": "JobAccepted"}, id="operator-accepts-for-all"),
        pytest.param(OPERATOR, 2, {"bob": "JobRejected", "carol": "JobRejected"}, id="operator-rejects-for-all"),
        pytest.param(domain_caller("carol"), 1, {"carol": "JobAccepted"}, id="domain-for-itself"),
        pytest.param(domain_caller("bob"), 2, {"bob": "JobRejected"}, id="domain-rejects-for-itself"),
    ],
)
async def test_approving(master: World, caller: Any, result: int, words: Object) -> None:
    await asked_job(master)
    answer = await call(master, "ApproveJob", caller=caller, job_id="j", result=result, reason="why not")
    assert (*code(answer), answer.data.job_id) == (0, "success", "j")
    assert (await stored(master))["status"]["approveStatus"] == words
    assert code(await call(master, "ApproveJob", caller=caller, job_id="j", result=result))[0] == 0, "said already"


async def test_only_who_is_asked_approves(master: World) -> None:
    await asked_job(master)
    answer = await call(master, "ApproveJob", caller=domain_caller("alice"), job_id="j", result=1)
    assert code(answer) == (11102, "domain alice may not approve job j: it is not asked")


async def test_a_job_that_waits_for_nobody_is_not_approved(master: World) -> None:
    await asked_job(master, "Running")
    answer = await call(master, "ApproveJob", job_id="j", result=1)
    assert code(answer) == (11206, "job j is Running; it waits for nobody's approval")


@pytest.mark.parametrize("phase", ["", "initialized"])
async def test_a_job_that_nobody_has_looked_at_is_not_approved(alice: World, phase: str) -> None:
    await put_job(alice, phase=phase)
    number, words = code(await call(alice, "ApproveJob", job_id="j", result=1))
    assert (number, words) == (11206, "job j is new; wait until it is AwaitingApproval")


async def test_a_job_started_here_is_approved_elsewhere(alice: World) -> None:
    await put_job(alice, phase="AwaitingApproval")
    number, words = code(await call(alice, "ApproveJob", job_id="j", result=1))
    assert (number, words) == (11206, "job j was started here, by alice; the others approve it at theirs")
