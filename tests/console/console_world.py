"""A control plane in this process and a console in front of it, for tests in which a browser or its like looks at it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from coterie.base.clock import SYSTEM_CLOCK, rfc3339
from coterie.base.secret import SecretValue
from coterie.base.tasks import TaskOwner
from coterie.http.messages import UserInfo
from coterie.kube.api.errors import NotFound
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.client.informers import Informers
from coterie.kube.store.memory import MemoryStore
from coterie.kuscia.api.functions.types import ACTION_GRANTS, ACTIONS, DEAD_LETTERS, TRIGGERS
from coterie.kuscia.api.types.data import DOMAIN_DATAS
from coterie.kuscia.api.types.domain import DOMAINS
from coterie.kuscia.api.types.job import APP_IMAGES, CROSS_DOMAIN, KUSCIA_JOBS, KUSCIA_TASKS
from coterie.kuscia.api.types.job_plan import JOB_PLAN_REQUESTS
from coterie.kuscia.api.types.log_request import LOG_REQUESTS
from coterie.kuscia.controllers.jobplan import controller as jobplan
from coterie.kuscia.extensions.apiserver import KUSCIA

INPUT = {"inputs": {"alice": "customers", "bob": "visitors"}, "keys": {"alice": ["id"]}}
JOBS, PLANS = KUSCIA_JOBS.as_dynamic, JOB_PLAN_REQUESTS.as_dynamic


@asynccontextmanager
async def control_plane(tokens: Sequence[tuple[SecretValue, UserInfo]] = ()) -> AsyncIterator[Client]:
    """With the domains alice (ours) and bob (a partner), the engine psi and the table customers of alice. `tokens`: whom it
    knows beside the client that is given back, which may do everything."""
    store = MemoryStore()
    await store.open()
    server = ApiServer(store, Settings(extensions=[KUSCIA], static_tokens=tokens), SYSTEM_CLOCK)
    await server.start()
    client = Client(InProcessTransport(server.handle, UserInfo("admin", ("system:masters",))))
    for name in ("alice", "bob"):
        await client.create(Kind.dynamic(builtin("namespaces")), {"metadata": {"name": name}})
    await client.create(DOMAINS.as_dynamic, {"metadata": {"name": "alice"}, "spec": {"cert": ""}})
    await client.create(DOMAINS.as_dynamic, {"metadata": {"name": "bob"}, "spec": {"cert": "", "role": "partner"}})
    template = {"name": "t", "spec": {"containers": [{"name": "c", "workingDir": "/"}]}}
    image = {"image": {"name": "coterie/psi", "tag": "1.2", "id": "ab" * 32}, "deployTemplates": [template]}
    await client.create(APP_IMAGES.as_dynamic, {"metadata": {"name": "psi"}, "spec": image})
    await client.create(DOMAIN_DATAS.as_dynamic, a_table("alice", "customers", "id", "city", "spent"))
    yield client
    await client.close()
    await server.stop()
    await store.close()


def a_job(name: str, initiator: str, task_input: str = json.dumps(INPUT)) -> dict[str, Any]:
    parties = [{"domainID": "alice"}, {"domainID": "bob"}]
    task = {"alias": "psi", "taskID": f"{name}-psi", "appImage": "psi", "taskInputConfig": task_input}
    marks = {
        "kuscia.secretflow/self-cluster-as-initiator": str(initiator == "alice").lower(),
        "kuscia.secretflow/interconn-self-parties": "alice",
    }
    return {
        "metadata": {"name": name, "namespace": CROSS_DOMAIN, "annotations": marks},
        "spec": {"initiator": initiator, "maxParallelism": 1, "tasks": [task | {"parties": parties}]},
    }


def a_table(owner: str, name: str, *columns: str) -> dict[str, Any]:
    spec = {"name": name, "type": "table", "relativeURI": f"{name}.csv", "dataSource": "default", "author": owner}
    listed = [{"name": each, "type": "str"} for each in columns]
    return {"metadata": {"name": name, "namespace": owner}, "spec": spec | {"columns": listed}}


async def waiting_job(client: Client, name: str, task_input: str = json.dumps(INPUT)) -> None:
    """Of the partner, and it waits for us."""
    await client.create(JOBS, a_job(name, "bob", task_input))
    await client.patch_status(JOBS, name, CROSS_DOMAIN, {"status": {"phase": "AwaitingApproval"}})


@asynccontextmanager
async def dry_runs(client: Client, *answers: dict[str, Any]) -> AsyncIterator[None]:
    """The controller of dry runs, and bob, who answers each with this."""
    informers = Informers(client)
    plans = jobplan.make(client, informers)

    async def bob() -> None:
        while True:
            for each in (await client.list(PLANS, "bob")).items:
                status = {"status": {"phase": "Complete", "answers": list(answers)}}
                with contextlib.suppress(NotFound):
                    await client.patch_status(PLANS, each["metadata"]["name"], "bob", status)
            await asyncio.sleep(0.05)

    async with TaskOwner("dry runs") as owner:
        owner.start("informers", informers.run())
        owner.start("plans", plans.run())
        owner.start("bob", bob())
        yield


async def function_chain(client: Client, written: str = "the actor ended") -> None:
    """`/hello` calls hello of alice, that calls bob/score; one call was given up. `written`: what others could write."""
    meta = {"name": "hello", "namespace": "alice"}
    spec: dict[str, Any] = {"script": "def action(request): ...", "next": ["bob/score"]}
    await client.create(ACTIONS.as_dynamic, {"metadata": meta, "spec": spec})
    condition = {"type": "ReloadFailed", "status": "True", "reason": "SyntaxError", "message": written}
    versions = [{"name": "v0000000002", "percent": 100, "replicas": 1}, {"name": "v0000000001", "percent": 0}]
    status = {"callsPerMinute": 7, "readyReplicas": 1, "replicas": 1, "desiredReplicas": 1, "deadLetters": 2}
    status |= {"version": "v0000000002", "versions": versions, "conditions": [condition]}
    await client.patch_status(ACTIONS.as_dynamic, "hello", "alice", {"status": status})
    at = {"name": "hello-http", "namespace": "alice"}
    await client.create(TRIGGERS.as_dynamic, {"metadata": at, "spec": {"action": "hello", "http": {"path": "/hello"}}})
    bad = {"conditions": [{"type": "Ready", "status": "False", "message": written}]}
    await client.patch_status(TRIGGERS.as_dynamic, "hello-http", "alice", {"status": bad})
    grant = {"metadata": {"name": "hello-bob", "namespace": "alice"}, "spec": {"action": "hello", "grantDomain": "bob"}}
    await client.create(ACTION_GRANTS.as_dynamic, grant)
    await client.patch_status(ACTION_GRANTS.as_dynamic, "hello-bob", "alice", {"status": {"message": written}})
    for name in ("first", "second"):
        letter = {"action": "hello", "request": f"{name}-request", "reason": written, "attempts": 4, "size": 20}
        await client.create(DEAD_LETTERS.as_dynamic, {"metadata": {"name": name, "namespace": "alice"}, "spec": letter})


class Times:
    """Objects are made now: what happens to them comes after that."""

    def __init__(self) -> None:
        self.begin = datetime.now(UTC)

    def __call__(self, seconds: float) -> str:
        return rfc3339(self.begin + timedelta(seconds=seconds + 1))


async def retried_job(client: Client, name: str) -> Times:
    """Its first attempt failed, its second waited for room and succeeded two days later."""
    at = Times()
    waited = (
        "Waiting for party alice: 0/1 nodes are available: 1 Insufficient cpu; party bob: no free memory "
        f"(since {at(2)}). Run `coterie top node`, and free resources of alice or ask for less."
    )
    await client.create(JOBS, a_job(name, "alice"))
    uid = (await client.get(JOBS, name, CROSS_DOMAIN))["metadata"]["uid"]
    failed = {"attempt": 1, "startTime": at(-2 * 86400), "endTime": at(-2 * 86400 + 20),
              "reason": "TaskFailed", "message": "party bob: exit 1", "retryTime": at(0)}  # fmt: skip
    status: dict[str, Any] = {"phase": "Succeeded", "completionTime": at(61), "startTime": at(-2 * 86400),
                              "taskStatus": {f"{name}-psi": "Succeeded"}, "taskAttempts": {f"{name}-psi": [failed]}}  # fmt: skip
    await client.patch_status(JOBS, name, CROSS_DOMAIN, {"status": status})
    marks = {"labels": {"kuscia.secretflow/job-uid": uid, "kuscia.secretflow/job-id": name}}
    parties = [{"domainID": each, "appImageRef": "psi"} for each in ("alice", "bob")]
    task = {
        "metadata": {"name": f"{name}-psi", "namespace": CROSS_DOMAIN, **marks},
        "spec": {"initiator": "alice", "taskInputConfig": "{}", "parties": parties},
    }
    await client.create(KUSCIA_TASKS.as_dynamic, task)
    pod = {"podName": f"{name}-psi-0", "podPhase": "Succeeded", "namespace": "alice", "createTime": at(2),
           "scheduleTime": at(20), "startTime": at(21), "readyTime": at(22)}  # fmt: skip
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": at(when)}
        for kind, when in (("ResourceCreated", 2), ("Running", 22), ("Success", 60))
    ]
    done: dict[str, Any] = {
        "phase": "Succeeded", "progress": 1.0, "conditions": conditions, "podStatuses": {"alice/p": pod},
        "partyTaskStatus": [{"domainID": each, "phase": "Succeeded"} for each in ("alice", "bob")],
        "startTime": at(2), "completionTime": at(61),
    }  # fmt: skip
    await client.patch_status(KUSCIA_TASKS.as_dynamic, f"{name}-psi", CROSS_DOMAIN, {"status": done})
    about = {"kind": "KusciaTask", "name": f"{name}-psi", "namespace": CROSS_DOMAIN}
    event = {"metadata": {"name": f"{name}-waits", "namespace": CROSS_DOMAIN}, "involvedObject": about, "type": "Normal",
             "reason": "Waiting", "message": waited, "firstTimestamp": at(2), "lastTimestamp": at(2), "count": 1}  # fmt: skip
    await client.create(Kind.dynamic(builtin("events")), event)
    return at


async def share_usage(client: Client, name: str, at: Times, task: str = "psi", more: str = "") -> None:
    """An answer of bob, with 30 seconds of its usage."""
    spec = {"requester": "alice", "owner": "bob", "job": name, "task": task, "reason": "slow",
            "sources": ["usage", "scheduler"]}  # fmt: skip
    await client.create(
        LOG_REQUESTS.as_dynamic, {"metadata": {"name": f"{name}-x", "namespace": "alice"}, "spec": spec}
    )
    pod = f"job={name} task={name}-psi pod={name}-psi-0"
    lines = [f"{at(22)} usage/p info  usage: starting {pod} made={at(3)} scheduled={at(21)}"]
    lines.append(
        f"{at(12)} scheduler info  scheduler.gangs: TaskResource was written task={name}-psi party=bob phase=Reserved"
    )
    lines += [
        f"{at(second)} usage/p info  usage: sample {pod} cpu={second / 60:.2f} memory={second << 20} began={at(22)}"
        for second in range(23, 60)
    ]
    lines += [
        f"{at(s)} usage info  usage: link task={name}-psi peer=alice sent={s << 10} received={s << 9}"
        for s in range(22, 60, 2)
    ]
    lines.append(f"{at(60)} usage/p info  usage: ended {pod} reason=Completed code=0")
    lines.append(more)
    answer = {"text": "\n".join(lines), "lines": len(lines), "digest": "d", "time": at(61)}
    status = {"phase": "Answered", "answer": answer, "expireTime": "2036-01-02T03:04:05Z", "message": "sent"}
    await client.patch_status(LOG_REQUESTS.as_dynamic, f"{name}-x", "alice", {"status": status})
