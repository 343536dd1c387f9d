"""BandwidthService: figures, capacities and limits; who may change whose."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from kusciaapi_kit import World, domain_caller, here

from coterie.kube.api.errors import AlreadyExists
from coterie.kube.api.meta import Object
from coterie.kube.api.types.core import NAMESPACES
from coterie.kube.api.types.nodes import NODES
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.domain import CLUSTER_DOMAIN_ROUTES, DOMAINS, GATEWAYS
from coterie.kuscia.api.types.job import CROSS_DOMAIN, KUSCIA_JOBS, KUSCIA_TASKS
from coterie.kuscia.api.types.task_resource import TASK_RESOURCES
from coterie.kuscia.kusciaapi import bandwidth, jobs
from coterie.kuscia.kusciaapi.operations import Mode

M = 1_000_000
JOB, TASK, NODE = KUSCIA_JOBS.as_dynamic, KUSCIA_TASKS.as_dynamic, NODES.as_dynamic
OPERATIONS = (*bandwidth.OPERATIONS, *jobs.OPERATIONS)
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def master(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """alice and bob are domains of this control plane, carol is a partner; one task runs between alice and bob."""
    async with here(tmp_path_factory.mktemp("master"), mode=Mode.MASTER, domain="kuscia-system") as world:
        client = world.client
        for name, spec in (("alice", {}), ("bob", {}), ("carol", {"role": "partner"})):
            await client.create(DOMAINS.as_dynamic, {"metadata": {"name": name}, "spec": spec})
            with contextlib.suppress(AlreadyExists):
                await client.create(NAMESPACES.as_dynamic, {"metadata": {"name": name}})
        node = {"metadata": {"name": "n", "labels": {labels.KUSCIA_NODE_NAMESPACE: "alice"}}}
        await client.create(NODE, node)
        room = {labels.KUSCIA_BANDWIDTH: "100"}
        await client.patch_status(NODE, "n", "", {"status": {"capacity": room, "allocatable": room}})
        for source, destination in (("alice", "bob"), ("bob", "alice")):
            spec = {"source": source, "destination": destination, "authenticationType": "Token"}
            body: Object = {"metadata": {"name": f"{source}-{destination}"}, "spec": spec}
            await client.create(CLUSTER_DOMAIN_ROUTES.as_dynamic, body)
        await client.create(GATEWAYS.as_dynamic, {"metadata": {"name": "gw", "namespace": "alice"}})
        stamp = "2026-01-01T00:00:00Z"
        status = {"address": "", "uptime": stamp, "heartbeatTime": stamp, "publicKey": "", "version": ""}
        usage = [{"task": "t", "peer": "bob", "sentBitsPerSecond": 7 * M, "sentBytes": 9, "at": stamp}]
        await client.patch_status(GATEWAYS.as_dynamic, "gw", "alice", {"status": {**status, "usage": usage}})
        body = {
            "metadata": {"name": "t-x", "namespace": "alice", "annotations": {labels.KUSCIA_TASK_ID: "t"}},
            "spec": {"role": "", "minReservedPods": 1, "resourceReservedSeconds": 30, "initiator": "alice", "pods": []},
        }
        body["spec"]["peers"] = ["bob"]
        await client.create(TASK_RESOURCES.as_dynamic, body)
        await _job(world)
        yield world


async def _job(world: World) -> None:
    parties = [{"domainID": "alice"}, {"domainID": "bob"}]
    task = {"alias": "psi", "taskID": "t", "appImage": "engine", "taskInputConfig": "{}", "parties": parties}
    spec = {"initiator": "alice", "tasks": [task]}
    job = await world.client.create(JOB, {"metadata": {"name": "j", "namespace": CROSS_DOMAIN}, "spec": spec})
    meta = {
        "name": "t",
        "namespace": CROSS_DOMAIN,
        "labels": {labels.KUSCIA_JOB_UID: job["metadata"]["uid"]},
        "annotations": {labels.KUSCIA_TASK_ALIAS: "psi"},
    }
    named = [{**each, "appImageRef": "engine"} for each in parties]
    await world.client.create(
        TASK, {"metadata": meta, "spec": {"initiator": "alice", "taskInputConfig": "", "parties": named}}
    )
    await world.client.patch_status(TASK, "t", CROSS_DOMAIN, {"status": {"phase": "Running"}})


async def call(world: World, method: str, **request: Any) -> Any:
    return await world.call(OPERATIONS, method, **request)


async def _limits(world: World) -> list[list[Object]]:
    task = await world.client.get(TASK, "t", CROSS_DOMAIN)
    return [party.get("bandwidthLimits") or [] for party in task["spec"]["parties"]]


async def test_nodes_links_and_tasks_are_told(master: World) -> None:
    data = (await call(master, "QueryBandwidth", domain_id="alice")).data
    assert [(each.name, each.total_bits, each.available_bits) for each in data.nodes] == [("n", 100 * M, 100 * M)]
    assert [(each.task_id, each.peer_id, each.sent_bits, each.sent_bytes) for each in data.tasks] == [
        ("t", "bob", 7 * M, 9)
    ]


async def test_capacities_are_set_and_taken_away(master: World) -> None:
    assert (
        await call(master, "SetBandwidthCapacity", domain_id="alice", node_name="n", capacity="1Gbps")
    ).status.code == 0
    node = await master.client.get(NODE, "n")
    assert node["metadata"]["annotations"][labels.COTERIE_NODE_BANDWIDTH] == "1Gbps"
    await call(master, "SetBandwidthCapacity", domain_id="alice", peer_id="bob", capacity="50Mbps")
    for name in ("alice-bob", "bob-alice"):
        route = await master.client.get(CLUSTER_DOMAIN_ROUTES, name)
        assert (route.metadata.annotations or {})[labels.COTERIE_LINK_BANDWIDTH] == "50Mbps"
    await call(master, "SetBandwidthCapacity", domain_id="alice", peer_id="bob")
    route = await master.client.get(CLUSTER_DOMAIN_ROUTES, "alice-bob")
    assert labels.COTERIE_LINK_BANDWIDTH not in (route.metadata.annotations or {})


@pytest.mark.parametrize(
    ("request_", "code", "words"),
    [
        ({"node_name": "n", "capacity": "fast"}, 11100, "capacity: "),
        ({"node_name": "n", "capacity": "100MB/s"}, 11100, "in bytes"),
        ({"node_name": "n", "capacity": "1kbps"}, 11100, "at least 1 Mbit/s"),
        ({"capacity": "1Gbps"}, 11100, "either a node_name or a peer_id"),
        ({"node_name": "n", "peer_id": "bob", "capacity": "1Gbps"}, 11100, "either a node_name or a peer_id"),
        ({"node_name": "other", "capacity": "1Gbps"}, 13901, "has no node other"),
        ({"peer_id": "carol", "capacity": "1Gbps"}, 13901, "no route between alice and carol"),
    ],
    ids=["text", "bytes", "little", "neither", "both", "no-node", "no-route"],
)
async def test_capacities_that_are_refused(master: World, request_: Object, code: int, words: str) -> None:
    status = (await call(master, "SetBandwidthCapacity", domain_id="alice", **request_)).status
    assert status.code == code and words in status.message


async def test_a_limit_of_a_running_task_is_changed(master: World) -> None:
    limit = {"job_id": "j", "domain_id": "alice", "destination_id": "bob"}
    answer = await call(master, "SetBandwidthLimit", **limit, limit_kbps=100)
    assert list(answer.data.task_ids) == ["t"]
    assert await _limits(master) == [[{"destinationID": "bob", "limitKBps": 100}], []]
    await call(master, "SetBandwidthLimit", **limit, tasks=["psi"])
    assert await _limits(master) == [[], []]
    status = (await call(master, "SetBandwidthLimit", **limit, tasks=["other"])).status
    assert status.code == 13901 and "no such task" in status.message


async def test_a_domain_changes_its_own_limits_and_nodes_only(master: World) -> None:
    limit = {"job_id": "j", "destination_id": "bob", "limit_kbps": 1}
    for caller, domain, expected in (("bob", "alice", 11102), ("alice", "alice", 0), ("carol", "alice", 11102)):
        answer = await call(master, "SetBandwidthLimit", caller=domain_caller(caller), domain_id=domain, **limit)
        assert answer.status.code == expected
    answer = await call(
        master, "SetBandwidthCapacity", caller=domain_caller("bob"), domain_id="alice", node_name="n", capacity="1Mbps"
    )
    assert answer.status.code == 11102
    # A node of alice is not bob's, whatever name bob gives.
    answer = await call(
        master, "SetBandwidthCapacity", caller=domain_caller("bob"), domain_id="bob", node_name="n", capacity="1Mbps"
    )
    assert answer.status.code == 13901
    await call(master, "SetBandwidthLimit", domain_id="alice", job_id="j", destination_id="bob")


async def test_the_limits_of_a_partner_are_its_own(master: World) -> None:
    request = {"job_id": "j", "domain_id": "carol", "destination_id": "bob", "limit_kbps": 1}
    status = (await call(master, "SetBandwidthLimit", **request)).status
    assert status.code == 13901 and "carol is a partner" in status.message


async def test_a_job_that_requests_too_much_is_not_created(master: World) -> None:
    parties = [{"domain_id": "alice"}, {"domain_id": "bob"}]
    task = {"alias": "a", "app_image": "engine", "parties": parties, "bandwidth_request": "2Gbps"}
    status = (await call(master, "CreateJob", job_id="big", initiator="alice", tasks=[task])).status
    assert status.code == 11100
    assert status.message.startswith("tasks[0].bandwidth_request: 2 Gbit/s of bandwidth are requested")
    task = {**task, "bandwidth_request": "lots"}
    status = (await call(master, "CreateJob", job_id="big", initiator="alice", tasks=[task])).status
    assert status.code == 11100 and '"lots" is no bandwidth' in status.message
