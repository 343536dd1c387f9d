"""Groups of reservations against a real API server in memory; what schedulers do is done by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from domain_world import DOMAIN, DOMAIN_PLANE, Mesh, a_domain, mesh

from coterie.kube.api import errors
from coterie.kube.api.meta import Object, ObjectMeta
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.job import (
    TASK_RESOURCE_GROUPS,
    GroupParty,
    TaskResourceGroup,
    TaskResourceGroupSpec,
    TaskResourceGroupStatus,
)
from coterie.kuscia.api.types.task_resource import TASK_RESOURCES, TaskResource, TaskResourceStatus
from coterie.kuscia.controllers.taskresourcegroup import controller as taskresourcegroup
from coterie.kuscia.controllers.taskresourcegroup.plan import GroupView, plan, settle

GROUP, RESERVATION = TASK_RESOURCE_GROUPS.as_dynamic, TASK_RESOURCES.as_dynamic
POD = Kind.dynamic(builtin("pods"))


class Groups:
    def __init__(self, world: Mesh, initiator: str) -> None:
        self.world, self.client, self.initiator = world, world.client, initiator

    async def begin(self, **spec: Any) -> None:
        ours = [{"domainID": "alice", "minReservedPods": 1, "pods": [{"name": "t-0"}]}]
        body = {
            "minReservedMembers": 2,
            "initiator": self.initiator,
            "parties": ours,
            "outOfControlledParties": [{"domainID": "bob", "minReservedPods": 1}],
            **spec,
        }
        await self.client.create(GROUP, {"metadata": {"name": "t"}, "spec": body})

    async def pod(self) -> None:
        marks = {labels.KUSCIA_TASK_RESOURCE_GROUP: "t", labels.KUSCIA_TASK_RESOURCE: ""}
        body = {"containers": [{"name": "c", "image": "i"}], "schedulerName": labels.KUSCIA_SCHEDULER}
        meta = {"name": "t-0", "namespace": "alice", "annotations": marks}
        await self.client.create(POD, {"metadata": meta, "spec": body})

    async def phase(self, wanted: str, seconds: float = 60) -> Object:
        async def reached() -> bool:
            return ((await self.world.get(GROUP, "t", "")).get("status") or {}).get("phase") == wanted

        await self.world.until(reached, seconds)
        return (await self.world.get(GROUP, "t", ""))["status"]

    async def reservation(self, domain: str) -> Object | None:
        found = await self.world.list(RESERVATION, domain)
        return found[0] if found else None

    async def set(self, domain: str, phase: str) -> None:
        found = await self.reservation(domain)
        assert found is not None
        await self.client.patch(RESERVATION, found["metadata"]["name"], domain, {"status": {"phase": phase}})

    async def phases(self) -> dict[str, str]:
        found = {domain: await self.reservation(domain) for domain in ("alice", "bob")}
        return {domain: each["status"]["phase"] for domain, each in found.items() if each is not None}

    async def until_phases(self, **wanted: str) -> None:
        async def reached() -> bool:
            return await self.phases() == wanted

        await self.world.until(reached)


@asynccontextmanager
async def groups(initiator: str = "alice", partner: str = "bob") -> AsyncIterator[Groups]:
    async with mesh((*DOMAIN_PLANE, taskresourcegroup.make)) as world:
        for name in ("alice", "bob"):
            await world.client.create(DOMAIN, a_domain(name, **({"role": "partner"} if name == partner else {})))
        await world.settle(3)
        yield Groups(world, initiator)


async def test_everybody_goes_ahead_once_everybody_holds_its_resources() -> None:
    async with groups() as at:
        await at.begin()
        await at.phase("Creating")
        await at.pod()
        await at.phase("Reserving")
        ours = await at.reservation("alice")
        assert ours is not None and ours["spec"]["pods"] == [{"name": "t-0"}]
        pod = await at.world.get(POD, "t-0", "alice")
        assert pod["metadata"]["annotations"][labels.KUSCIA_TASK_RESOURCE] == ours["metadata"]["name"]
        assert pod["metadata"]["labels"][labels.KUSCIA_TASK_RESOURCE_UID] == ours["metadata"]["uid"]
        await at.set("alice", "Reserved")
        await at.world.settle(5)
        assert await at.phases() == {"alice": "Reserved", "bob": "Reserving"}
        await at.set("bob", "Reserved")
        await at.phase("Reserved")
        await at.until_phases(alice="Schedulable", bob="Schedulable")


async def test_who_cannot_reserve_makes_the_others_let_go_and_all_try_again() -> None:
    async with groups() as at:
        await at.pod()
        await at.begin(retryIntervalSeconds=10)
        await at.phase("Reserving")
        ours = await at.reservation("alice")
        assert ours is not None
        held = {"phase": "Reserved", "conditions": [{"type": "Reserved", "status": "True"}]}
        await at.client.patch(RESERVATION, ours["metadata"]["name"], "alice", {"status": held})
        await at.set("bob", "Failed")
        status = await at.phase("ReserveFailed")
        told = next(c for c in status["conditions"] if c["type"] == "TaskResourcesReserved")
        assert told["status"] == "False" and told["reason"] == "no resources could be reserved in bob"
        await at.until_phases(alice="Failed", bob="Failed")
        status = await at.phase("Reserving")
        assert status["retryCount"] == 1
        await at.until_phases(alice="Reserving", bob="Reserving")


async def test_a_group_that_never_comes_together_ends() -> None:
    async with groups() as at:
        await at.pod()
        await at.begin(lifecycleSeconds=40)
        await at.phase("Reserving")
        status = await at.phase("Failed", 120)
        told = next(c for c in status["conditions"] if c["type"] == "TaskResourceGroupExpired")
        assert told["reason"] == "not scheduled within 40 seconds"
        await at.until_phases(alice="Failed", bob="Failed")
        assert (await at.phase("Failed"))["completionTime"]


def reservation(domain: str, phase: str) -> TaskResource:
    return TaskResource(metadata=ObjectMeta(name=domain, namespace=domain), status=TaskResourceStatus(phase=phase))


LAST_MOMENT = [
    (("Schedulable", "Failed"), {"bob": "Reserving"}),
    (("Schedulable", "Reserving"), {}),
    (("Schedulable", "Reserved"), {"bob": "Schedulable"}),
]


@pytest.mark.parametrize(("phases", "moves"), LAST_MOMENT, ids=lambda value: "-".join(value))
def test_one_who_let_go_in_the_last_moment_catches_up(phases: tuple[str, str], moves: dict[str, str]) -> None:
    """The group was called Reserved on what was true a moment before, and others may have started."""
    parties = tuple(GroupParty(domain_id=name, task_resource_name=name) for name in ("alice", "bob"))
    group = TaskResourceGroup(
        spec=TaskResourceGroupSpec(min_reserved_members=2, initiator="alice", parties=parties),
        status=TaskResourceGroupStatus(phase="Reserved"),
    )
    there = {name: reservation(name, phase) for name, phase in zip(("alice", "bob"), phases, strict=True)}
    made = plan(GroupView(group, there, {}, {}, initiates=True, age=1.0, resting=1.0, now="2026-01-01T00:00:00Z"))
    assert {found.metadata.name: str(phase) for found, phase, _ in made.move} == moves
    assert bool(made.status.completion_time) == ("Reserved" in phases), "the status is written after the moves"


@pytest.mark.parametrize("age", [1.0, 10_000.0], ids=["young", "past-its-life"])
@pytest.mark.parametrize("phase", ["", "Reserving"])
def test_a_reservation_that_is_schedulable_tells_that_the_group_was_reserved(phase: str, age: float) -> None:
    """We may have died between letting the first party go ahead and writing anything into the group."""
    parties = tuple(GroupParty(domain_id=name, task_resource_name=name) for name in ("alice", "bob"))
    group = TaskResourceGroup(
        spec=TaskResourceGroupSpec(min_reserved_members=2, initiator="alice", parties=parties),
        status=TaskResourceGroupStatus(phase=phase),
    )
    there = {"alice": reservation("alice", "Schedulable"), "bob": reservation("bob", "Failed")}
    _, made = settle(GroupView(group, there, {}, {}, initiates=True, age=age, resting=1.0, now="2026-01-01T00:00:00Z"))
    assert made.status.phase == "Reserved"
    assert {found.metadata.name: str(phase) for found, phase, _ in made.move} == {"bob": "Reserving"}


async def test_a_participant_keeps_only_its_own_reservation_and_waits_for_the_initiator() -> None:
    async with groups(initiator="bob") as at:
        await at.pod()
        await at.begin(lifecycleSeconds=20)
        await at.phase("Reserving")
        await at.set("alice", "Reserved")
        await at.world.settle(60, step=5)
        assert await at.phases() == {"alice": "Reserved"}
        await at.set("alice", "Schedulable")
        assert (await at.phase("Reserved"))["completionTime"]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"minReservedMembers": 3}, "minReservedMembers is 3, but there are 2 parties"),
        ({"parties": [], "outOfControlledParties": []}, "no party is named"),
        ({"initiator": ""}, "initiator is empty"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_group_that_makes_no_sense_fails(spec: Object, words: str) -> None:
    async with groups() as at:
        await at.begin(**spec)
        status = await at.phase("Failed")
        assert words in [condition.get("reason") for condition in status["conditions"]]


async def test_reservations_go_with_their_group() -> None:
    async with groups() as at:
        await at.pod()
        await at.begin()
        await at.phase("Reserving")
        found = await at.reservation("bob")
        assert found is not None
        owner = found["metadata"]["ownerReferences"][0]
        assert (owner["kind"], owner["name"], owner["controller"]) == ("TaskResourceGroup", "t", True)


@pytest.mark.parametrize(("method", "part"), [("POST", "/alice/taskresources"), ("PATCH", "/alice/pods/")])
async def test_a_lasting_refusal_ends_a_group_that_makes_its_own_reservations(method: str, part: str) -> None:
    async with groups() as at:
        await at.pod()
        refused = errors.Forbidden("no such luck")
        at.world.faults.refuse = lambda call: refused if call.method == method and part in call.path else None
        await at.begin()
        status = await at.phase("Failed")
        assert "no such luck" in [condition.get("reason") for condition in status["conditions"]]


async def test_a_group_says_what_it_waits_for_and_in_which_phase() -> None:
    async with groups() as at:
        await at.pod()
        refused = errors.Forbidden("exceeded quota: small")
        at.world.faults.refuse = lambda call: (
            refused if call.method == "POST" and "taskresources" in call.path else None
        )
        await at.begin()
        status = await at.phase("Creating")
        assert "exceeded quota: small" in [condition.get("reason") for condition in status["conditions"]]
        at.world.faults.refuse = lambda call: None
        await at.phase("Reserving")
