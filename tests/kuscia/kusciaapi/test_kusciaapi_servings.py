"""ServingService: what is made of requests, what is told, every code, both roles, each mode."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from definitions_kit import differences
from google.protobuf import json_format
from kuscia.proto.api.v1alpha1.kusciaapi import serving_pb2
from kusciaapi_kit import World, domain_caller, here

from coterie.kube.api.meta import Object
from coterie.kube.api.types.apps import DEPLOYMENTS
from coterie.kube.api.types.network import SERVICES
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.deployment import KUSCIA_DEPLOYMENTS
from coterie.kuscia.api.types.job import APP_IMAGES, CROSS_DOMAIN
from coterie.kuscia.kusciaapi.authorization import OPERATOR
from coterie.kuscia.kusciaapi.operations import Mode
from coterie.kuscia.kusciaapi.servings import OPERATIONS

KD, SERVICE, DEPLOYMENT = KUSCIA_DEPLOYMENTS.as_dynamic, SERVICES.as_dynamic, DEPLOYMENTS.as_dynamic
ALICE, BOB = {"domain_id": "alice", "app_image": "engine"}, {"domain_id": "bob", "app_image": "engine", "role": "guest"}
SMALL = {"serving_id": "s", "serving_input_config": "{}", "initiator": "alice", "parties": [ALICE, BOB]}
CONTAINERS = [{"name": "main", "workingDir": "/work"}, {"name": "side", "workingDir": "/"}]


@pytest.fixture(params=[Mode.AUTONOMY, Mode.MASTER], ids=str)
async def world(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    async with here(tmp_path, mode=request.param, namespaces=("alice", "bob")) as made:
        template = {"name": "t", "spec": {"containers": CONTAINERS}}
        body = {"image": {"name": "i", "tag": "1"}, "deployTemplates": [template]}
        await made.client.create(APP_IMAGES.as_dynamic, {"metadata": {"name": "engine"}, "spec": body})
        yield made


async def call(world: World, method: str, caller: Any = OPERATOR, **request: Any) -> Any:
    return await world.call(OPERATIONS, method, caller=caller, **request)


async def good(world: World, method: str, caller: Any = OPERATOR, **request: Any) -> Any:
    answer = await call(world, method, caller, **request)
    assert answer.status.code == 0, answer.status.message
    return answer


async def stored(world: World, name: str = "s") -> Object:
    return await world.client.get(KD, name, CROSS_DOMAIN)


def plain(message: Any) -> Object:
    found: Object = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return found


def test_the_definitions_are_those_of_the_stubs() -> None:
    assert differences(serving_pb2) == []


async def test_a_service_is_made_with_everything_that_was_asked(world: World) -> None:
    strategy = {"type": "RollingUpdate", "max_surge": "2"}
    resources = [{"min_cpu": "500m", "max_memory": "2Gi"}, {"container_name": "side", "max_memory": "1Gi"}]
    party = {**BOB, "replicas": 3, "update_strategy": strategy, "resources": resources, "service_name_prefix": "front"}
    await good(world, "CreateServing", **{**SMALL, "parties": [ALICE, party], "affinity_mode": "none"})
    made = await stored(world)
    assert made["metadata"]["labels"] == {labels.KUSCIA_APP_TYPE: "serving"}
    assert made["metadata"]["annotations"] == {labels.KUSCIA_AFFINITY_MODE: "none"}
    assert made["spec"]["initiator"] == "alice" and made["spec"]["inputConfig"] == "{}"
    assert made["spec"]["parties"] == [
        {"domainID": "alice", "appImageRef": "engine"},
        {
            "domainID": "bob",
            "role": "guest",
            "appImageRef": "engine",
            "serviceNamePrefix": "front",
            "template": {
                "replicas": 3,
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 2, "maxUnavailable": "25%"}},
                "spec": {
                    "containers": [
                        {
                            "name": "main",
                            "workingDir": "/work",
                            "resources": {"requests": {"cpu": "500m"}, "limits": {"memory": "2Gi"}},
                        },
                        {
                            "name": "side",
                            "workingDir": "/",
                            "resources": {"requests": {"cpu": "500m"}, "limits": {"memory": "1Gi"}},
                        },
                    ]
                },
            },
        },
    ]
    told = plain((await good(world, "QueryServing", serving_id="s")).data)
    assert "status" not in told, "nothing is known of it yet"
    assert told["initiator"] == "alice" and told["serving_input_config"] == "{}"
    assert told["parties"][0] == ALICE
    assert told["parties"][1] == {
        **party,
        "update_strategy": {"type": "RollingUpdate", "max_surge": "2", "max_unavailable": "25%"},
        "resources": [
            {"container_name": "main", "min_cpu": "500m", "max_memory": "2Gi"},
            {"container_name": "side", "min_cpu": "500m", "max_memory": "1Gi"},
        ],
    }


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"serving_id": ""}, "serving_id"),
        ({"serving_id": "A_b"}, "serving_id"),
        ({"initiator": ""}, "initiator"),
        ({"initiator": "carol"}, "initiator"),
        ({"parties": []}, "parties"),
        ({"affinity_mode": "close"}, "affinity_mode"),
        ({"parties": [{**ALICE, "domain_id": ""}]}, "parties[0].domain_id"),
        ({"parties": [{**ALICE, "app_image": ""}]}, "parties[0].app_image"),
        ({"parties": [{**ALICE, "app_image": "other"}]}, "parties[0].app_image"),
        ({"parties": [{**ALICE, "app_image": "../x"}]}, "parties[0].app_image"),
        ({"parties": [ALICE, ALICE]}, "parties[1]"),
        ({"parties": [ALICE, {**BOB, "role": "Big Role"}]}, "parties[1].role"),
        ({"parties": [{**ALICE, "replicas": -1}]}, "parties[0].replicas"),
        ({"parties": [{**ALICE, "update_strategy": {"type": "x"}}]}, "parties[0].update_strategy.type"),
        ({"parties": [{**ALICE, "update_strategy": {"max_surge": "lots"}}]}, "parties[0].update_strategy.max_surge"),
        ({"parties": [{**ALICE, "update_strategy": {"max_surge": "0", "max_unavailable": "0%"}}]}, "update_strategy"),
        ({"parties": [{**ALICE, "resources": [{"min_cpu": "x"}]}]}, "parties[0].resources[0].min_cpu"),
        ({"parties": [{**ALICE, "resources": [{"container_name": "z"}]}]}, "parties[0].resources[0].container_name"),
        ({"parties": [{**ALICE, "service_name_prefix": "9"}]}, "parties[0].service_name_prefix"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_cannot_be_taken_is_refused_with_its_field(world: World, change: Object, field: str) -> None:
    answer = await call(world, "CreateServing", **{**SMALL, **change})
    assert answer.status.code == 11100 and field in answer.status.message
    assert (await world.client.list(KD, CROSS_DOMAIN)).items == []


async def test_a_name_that_is_taken_is_refused(world: World) -> None:
    await good(world, "CreateServing", **SMALL)
    answer = await call(world, "CreateServing", **SMALL)
    assert answer.status.code == 11600 and "service s" in answer.status.message
    inner = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": inner}
    await world.client.create(DEPLOYMENT, {"metadata": {"name": "t-guest", "namespace": "bob"}, "spec": spec})
    answer = await call(world, "CreateServing", **{**SMALL, "serving_id": "t"})
    assert answer.status.code == 11600 and "t-guest" in answer.status.message


async def test_only_its_own_domain_begins_a_service_in_autonomy(world: World) -> None:
    answer = await call(world, "CreateServing", **{**SMALL, "initiator": "bob"})
    if world.here.mode is Mode.AUTONOMY:
        assert answer.status.code == 11100 and "initiator" in answer.status.message
    else:
        assert answer.status.code == 0


async def test_an_update_changes_what_it_names_and_nothing_else(world: World) -> None:
    await good(world, "CreateServing", **{**SMALL, "parties": [{**ALICE, "replicas": 2}, BOB]})
    await good(world, "UpdateServing", serving_id="s", serving_input_config="new")
    strategy = {"type": "Recreate"}
    await good(world, "UpdateServing", serving_id="s", parties=[{"domain_id": "alice", "update_strategy": strategy}])
    made = (await stored(world))["spec"]
    assert made["inputConfig"] == "new"
    assert made["parties"] == [
        {"domainID": "alice", "appImageRef": "engine", "template": {"replicas": 2, "strategy": {"type": "Recreate"}}},
        {"domainID": "bob", "role": "guest", "appImageRef": "engine"},
    ]
    version = (await stored(world))["metadata"]["resourceVersion"]
    await good(world, "UpdateServing", serving_id="s", serving_input_config="new")
    assert (await stored(world))["metadata"]["resourceVersion"] == version


@pytest.mark.parametrize(
    "party", [{"domain_id": "carol"}, {"domain_id": "bob"}, {"domain_id": "alice", "role": "guest"}]
)
async def test_no_party_is_added_by_an_update(world: World, party: Object) -> None:
    await good(world, "CreateServing", **SMALL)
    before = (await stored(world))["spec"]
    answer = await call(world, "UpdateServing", serving_id="s", parties=[party])
    assert answer.status.code == 11100 and "parties[0]" in answer.status.message
    assert (await stored(world))["spec"] == before


async def test_a_partners_service_is_changed_where_it_began(world: World) -> None:
    await good(world, "CreateServing", **SMALL)
    marks = {labels.KUSCIA_INITIATOR_MASTER_DOMAIN: "carol"}
    await world.client.patch(KD, "s", CROSS_DOMAIN, {"metadata": {"annotations": marks}})
    answer = await call(world, "UpdateServing", serving_id="s", serving_input_config="x")
    assert answer.status.code == 11603 and "carol" in answer.status.message


async def test_the_status_tells_of_all_parties_and_where_they_are(world: World) -> None:
    await good(world, "CreateServing", **SMALL)
    entry = {"replicas": 2, "updatedReplicas": 2, "availableReplicas": 1, "unavailableReplicas": 1}
    status = {
        "phase": "PartialAvailable", "reason": "r", "message": "m\nprinted", "totalParties": 2, "availableParties": 1,
        "partyDeploymentStatuses": {
            "alice": {"s": {**entry, "phase": "Available", "creationTimestamp": "2026-01-01T00:00:00Z"}},
            "bob": {"s-guest": {**entry, "phase": "PartialAvailable", "role": "guest"}},
        },
    }  # fmt: skip
    made = await world.client.patch_status(KD, "s", CROSS_DOMAIN, {"status": status})
    known = {
        labels.KUSCIA_KD_UID: made["metadata"]["uid"],
        labels.KUSCIA_DEPLOYMENT_NAME: "s-guest",
        labels.KUSCIA_PORT_NAME: "serve",
        labels.KUSCIA_PORT_SCOPE: "Cluster",
    }
    meta = {"name": "s-guest-serve", "namespace": "bob", "labels": known}
    await world.client.create(SERVICE, {"metadata": meta, "spec": {"clusterIP": "None", "ports": [{"port": 1}]}})
    told = (await good(world, "QueryServing", serving_id="s")).data.status
    assert (told.state, told.reason, told.message) == ("PartialAvailable", "r", "m\nprinted")
    assert (told.total_parties, told.available_parties) == (2, 1)
    assert told.create_time == made["metadata"]["creationTimestamp"]
    first, second = told.party_statuses
    assert (first.domain_id, first.state, first.create_time) == ("alice", "Available", "2026-01-01T00:00:00Z")
    assert (second.role, second.state, second.replicas, second.available_replicas) == (
        "guest",
        "PartialAvailable",
        2,
        1,
    )
    assert (second.unavailable_replicas, second.updatedReplicas) == (1, 2)
    (endpoint,) = second.endpoints
    assert (endpoint.port_name, endpoint.scope, endpoint.endpoint) == ("serve", "Cluster", "s-guest-serve.bob.svc")
    for method, request in (("QueryServing", {"serving_id": "s"}), ("BatchQueryServingStatus", {"serving_ids": ["s"]})):
        assert "printed" not in str(await good(world, method, domain_caller("bob"), **request)), "that stays at home"
    batch = (await good(world, "BatchQueryServingStatus", serving_ids=["nothing", "s", "s"])).data.servings
    assert [(each.serving_id, each.status) for each in batch] == [("s", told)]


async def test_what_is_not_there_has_a_code_of_its_own(world: World) -> None:
    for method, code in (("QueryServing", 11601), ("UpdateServing", 11603), ("DeleteServing", 11604)):
        answer = await call(world, method, serving_id="nothing")
        assert answer.status.code == code and "there is no service nothing" in answer.status.message
        assert (await call(world, method, serving_id="")).status.code == 11100
    assert (await call(world, "BatchQueryServingStatus", serving_ids=[])).status.code == 11100
    assert len((await good(world, "BatchQueryServingStatus", serving_ids=["nothing"])).data.servings) == 0


async def test_a_service_is_deleted(world: World) -> None:
    await good(world, "CreateServing", **SMALL)
    await good(world, "DeleteServing", serving_id="s")
    assert (await world.client.list(KD, CROSS_DOMAIN)).items == []


async def test_domains_see_what_they_take_part_in_and_change_what_they_began(world: World) -> None:
    alice, bob, carol = (domain_caller(name) for name in ("alice", "bob", "carol"))
    assert (await call(world, "CreateServing", bob, **SMALL)).status.code == 11102
    unknown = {**SMALL, "parties": [{"domain_id": "alice", "app_image": "unknown"}]}
    assert (await call(world, "CreateServing", bob, **unknown)).status.code == 11102, "nothing is told of app images"
    await good(world, "CreateServing", alice, **SMALL)
    for caller in (alice, bob):
        await good(world, "QueryServing", caller, serving_id="s")
        found = await good(world, "BatchQueryServingStatus", caller, serving_ids=["s"])
        assert [each.serving_id for each in found.data.servings] == ["s"]
    assert (await call(world, "QueryServing", carol, serving_id="s")).status.code == 11601
    assert not (await good(world, "BatchQueryServingStatus", carol, serving_ids=["s"])).data.servings
    for method in ("UpdateServing", "DeleteServing"):
        assert (await call(world, method, bob, serving_id="s")).status.code == 11102
        assert (await call(world, method, carol, serving_id="s")).status.code == 11102
    await good(world, "UpdateServing", alice, serving_id="s", serving_input_config="x")
    await good(world, "DeleteServing", alice, serving_id="s")
