"""Spare actors in the whole functions process: who gets one, that nobody gets one twice, and when there are none."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from functions_world import NAMESPACE, SCRIPT, FunctionsWorld, functions_world, until

from coterie.engines.actor import exit_codes
from coterie.functions.actor_pods import SPARE_LABEL
from coterie.functions.messages import FunctionResponse, Invoke
from coterie.functions.spare_plan import SparePolicy
from coterie.kube.api.meta import Object, find_condition
from coterie.kube.api.types.core import SECRETS
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.api.types.network_policies import NETWORK_POLICIES
from coterie.kube.api.types.pods import PODS
from coterie.kuscia.api.functions.types import ACTION_LABEL, ACTIONS, RELOAD_FAILED

POLICY = SparePolicy(2, 300.0)
_QUOTAS = Kind.dynamic(builtin("resourcequotas"))


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FunctionsWorld]:
    async with functions_world(tmp_path, monkeypatch, POLICY) as made:
        yield made


async def submit(world: FunctionsWorld, action: str, uid: str) -> None:
    async def known() -> bool:
        return action in world.server.dispatcher.loads()

    await until(known)
    await world.server.dispatcher.submit(Invoke(request_uid=uid, action=action, return_topic=""))


async def call(world: FunctionsWorld, action: str, uid: str) -> FunctionResponse:
    await submit(world, action, uid)
    return await world.server.dispatcher.wait_result(uid)


async def warm_up(world: FunctionsWorld) -> set[str]:
    """Names of the spare actors that a first call leads to."""
    await world.apply("first", script=SCRIPT)
    assert (await call(world, "first", "r0")).status_code == 200
    return {each.metadata.name for each in await world.ready_spares(2)}


async def claimed(world: FunctionsWorld, action: str, count: int = 1) -> list[Object]:
    """Its pods, when they say that they are."""

    async def look() -> list[str] | None:
        names = [each.metadata.name for each in await world.pods(action)]
        return names if len(names) == count else None

    return [await world.client.get(PODS.as_dynamic, name, NAMESPACE) for name in await until(look)]


async def test_there_are_none_before_the_first_call(world: FunctionsWorld) -> None:
    await world.apply("first", script=SCRIPT)

    async def settled() -> bool:
        return (await world.action("first")).status.observed_generation == 1

    await until(settled)
    assert not await world.spares()
    spares = await warm_up(world)
    assert [each.metadata.name in spares for each in await world.pods("first")] == [False]


async def test_a_cold_action_gets_one_and_nobody_gets_it_again(world: FunctionsWorld) -> None:
    spares = await warm_up(world)
    await world.apply("second", script=SCRIPT, concurrency=7)
    assert (await call(world, "second", "r1")).status_code == 200
    pod = (await claimed(world, "second"))[0]
    meta = pod["metadata"]
    assert meta["name"] in spares and SPARE_LABEL not in meta["labels"]
    action = await world.action("second")
    assert [each["uid"] for each in meta["ownerReferences"]] == [action.metadata.uid]
    fake = world.agent.spares[meta["name"]]
    assert len(fake.claims) == 1 and fake.content == SCRIPT.encode()
    assert (fake.claims[0]["COTERIE_ACTION"], fake.claims[0]["COTERIE_ACTION_CONCURRENCY"]) == ("second", "7")
    # The next action gets another one, and another token.
    await world.apply("third", script=SCRIPT)
    assert (await call(world, "third", "r2")).status_code == 200
    other = (await claimed(world, "third"))[0]["metadata"]["name"]
    assert other != meta["name"]
    tokens = [world.agent.spares[name].claims[0]["COTERIE_ACTOR_TOKEN"] for name in (meta["name"], other)]
    assert tokens[0] != tokens[1]
    # What was used goes with its action; what takes its place is new.
    await world.client.delete(ACTIONS, "second", NAMESPACE)
    await until(lambda: _gone(world, meta["name"]))
    fresh = {each.metadata.name for each in await world.ready_spares(2)}
    assert not fresh & {meta["name"], other}
    assert all(len(each.claims) <= 1 for each in world.agent.spares.values())


async def _gone(world: FunctionsWorld, name: str) -> bool:
    return all(each.metadata.name != name for each in (await world.client.list(PODS, NAMESPACE)).items)


async def test_no_token_is_in_an_object(world: FunctionsWorld) -> None:
    await warm_up(world)
    await world.apply("second", script=SCRIPT)
    await call(world, "second", "r1")
    await claimed(world, "second")
    tokens = {fake.claims[0]["COTERIE_ACTOR_TOKEN"] for fake in world.agent.spares.values() if fake.claims}
    pods = str((await world.client.list(PODS.as_dynamic, NAMESPACE)).items)
    assert tokens and not any(token in pods for token in tokens)
    secrets = {each["metadata"]["name"] for each in (await world.client.list(SECRETS.as_dynamic, NAMESPACE)).items}
    assert not any("spare" in name for name in secrets)


@pytest.mark.parametrize(
    "spec", [{"env": [{"name": "A", "value": "b"}]}, {"resources": {"memory": "1Gi"}}, {"image": "other:1"}]
)
async def test_an_action_that_asks_for_something_else_gets_a_pod_of_its_own(
    world: FunctionsWorld, spec: dict[str, Any]
) -> None:
    spares = await warm_up(world)
    await world.apply("second", script=SCRIPT, **spec)
    assert (await call(world, "second", "r1")).status_code == 200
    assert (await claimed(world, "second"))[0]["metadata"]["name"] not in spares


async def test_one_that_was_killed_is_not_used_and_one_that_does_not_answer_is_replaced(world: FunctionsWorld) -> None:
    spares = await warm_up(world)
    dead, silent = sorted(spares)
    await world.agent.end(dead, 137, "killed")
    await until(lambda: _gone(world, dead))
    await world.agent.spares[silent].server.stop(0.0)
    await world.apply("second", script=SCRIPT)
    assert (await call(world, "second", "r1")).status_code == 200
    assert (await claimed(world, "second"))[0]["metadata"]["name"] not in spares
    await until(lambda: _gone(world, silent))


async def test_code_that_cannot_be_loaded_is_reported_as_in_any_actor(world: FunctionsWorld) -> None:
    spares = await warm_up(world)
    world.agent.bad_code = "the code could not be loaded: no_such_module"
    await world.apply("second", script=SCRIPT)
    await submit(world, "second", "r1")
    name = (await claimed(world, "second"))[0]["metadata"]["name"]
    assert name in spares
    await world.agent.end(name, exit_codes.BAD_CODE, world.agent.bad_code)

    async def reported() -> bool:
        found = find_condition((await world.action("second")).status.conditions, RELOAD_FAILED)
        return found is not None and found.status == "True" and "no_such_module" in found.message

    await until(reported)
    assert (await world.server.dispatcher.wait_result("r1")).status_code == 500


async def test_a_network_policy_ends_them(world: FunctionsWorld) -> None:
    await warm_up(world)
    body: Object = {
        "metadata": {"name": "only-second", "namespace": NAMESPACE},
        "spec": {"podSelector": {"matchLabels": {ACTION_LABEL: "second"}}, "policyTypes": ["Egress"]},
    }
    await world.client.create(NETWORK_POLICIES.as_dynamic, body)
    await until(lambda: _no_spares(world))
    await world.apply("second", script=SCRIPT)
    assert (await call(world, "second", "r1")).status_code == 200
    assert (await claimed(world, "second"))[0]["metadata"]["name"].startswith("second-")
    await world.client.delete(NETWORK_POLICIES, "only-second", NAMESPACE)
    await world.ready_spares(2)


async def _no_spares(world: FunctionsWorld) -> bool:
    return not await world.spares()


async def test_they_are_counted_in_quotas_and_make_room(world: FunctionsWorld) -> None:
    await world.client.create(
        _QUOTAS, {"metadata": {"name": "few", "namespace": NAMESPACE}, "spec": {"hard": {"count/pods": "3"}}}
    )
    await warm_up(world)  # with the actor of the first action the quota is used up
    await world.apply("second", script=SCRIPT, env=[{"name": "A", "value": "b"}])
    assert (await call(world, "second", "r1")).status_code == 200
    assert not await world.spares()


async def test_those_of_a_process_that_ended_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    container = {"name": "actor", "image": "x", "env": [{"name": "COTERIE_ACTOR_SPARE", "value": "0" * 64}]}
    old: Object = {
        "metadata": {"name": "spare-actor-old", "labels": {SPARE_LABEL: "k"}},
        "spec": {"containers": [container]},
    }
    async with functions_world(tmp_path, monkeypatch, POLICY, [old]) as world:
        await until(lambda: _gone(world, "spare-actor-old"))


async def test_they_go_when_nothing_is_called_and_with_the_last_action(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with functions_world(tmp_path, monkeypatch, SparePolicy(1, 3.0)) as world:
        await world.apply("first", script=SCRIPT)
        numbers = itertools.count()

        async def called_and_filled() -> bool:
            await call(world, "first", f"r{next(numbers)}")
            return world.server.spares.ready_count() == 1

        await until(called_and_filled)
        await until(lambda: _no_spares(world))
        await until(called_and_filled)
        await world.client.delete(ACTIONS, "first", NAMESPACE)
        await until(lambda: _no_spares(world))


async def test_a_pod_in_the_place_of_a_spare_one_gets_nothing(world: FunctionsWorld) -> None:
    spares = await warm_up(world)
    whole = await world.client.get(PODS.as_dynamic, min(spares), NAMESPACE)
    await world.client.delete(PODS, min(spares), NAMESPACE, grace=0)
    await until(lambda: _gone(world, min(spares)))
    meta = {"name": min(spares), "namespace": NAMESPACE, "labels": whole["metadata"]["labels"]}
    await world.client.create(PODS.as_dynamic, {"metadata": meta, "spec": {**whole["spec"], "nodeName": ""}})
    await until(lambda: _gone(world, min(spares)))
    for number in range(2):
        await world.apply(f"a{number}", script=SCRIPT)
        assert (await call(world, f"a{number}", f"r{number}a")).status_code == 200
    fake = world.agent.spares[min(spares)]
    assert not fake.claims
