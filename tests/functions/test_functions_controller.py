"""The whole functions process in one test process: Actions become actors, calls are answered, everything goes again."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from functions_world import NAMESPACE, SCRIPT, FunctionsWorld, functions_world, until

from coterie.engines.actor import exit_codes
from coterie.functions.bus.protocol import BusError, Entry
from coterie.functions.dead_letter_objects import LIMIT
from coterie.functions.dispatcher.dead_letters import DeadCall
from coterie.functions.messages import FunctionResponse, Invoke
from coterie.kube.api.errors import NotFound
from coterie.kube.api.meta import find_condition
from coterie.kube.api.types.apps import DEPLOYMENTS
from coterie.kube.api.types.autoscaling import HORIZONTAL_POD_AUTOSCALERS
from coterie.kube.api.types.core import CONFIG_MAPS, SECRETS
from coterie.kube.api.types.network import SERVICES
from coterie.kube.api.types.pods import PODS
from coterie.kuscia.api.functions.types import ACTIONS, DEAD_LETTERS, READY, RELOAD_FAILED, TRIGGERS
from coterie.kuscia.api.types.data import DOMAIN_DATAS


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FunctionsWorld]:
    async with functions_world(tmp_path, monkeypatch) as made:
        yield made


async def answer(world: FunctionsWorld, action: str, uid: str = "r") -> FunctionResponse:
    async def known() -> bool:
        return action in world.server.dispatcher.loads()

    await until(known)
    await world.server.dispatcher.submit(Invoke(request_uid=uid, action=action, return_topic=""))
    return await world.server.dispatcher.wait_result(uid)


async def condition(world: FunctionsWorld, name: str, type_: str, status: str) -> str:
    async def look() -> Any:
        found = find_condition((await world.action(name)).status.conditions, type_)
        return found if found is not None and found.status == status else None

    return str((await until(look)).message)


async def test_a_cold_call_starts_one_actor_and_is_answered(world: FunctionsWorld) -> None:
    await world.apply("hello", script=SCRIPT)
    assert (await answer(world, "hello")).status_code == 200
    assert world.agent.calls == ["hello"]
    pods = await world.pods("hello")
    assert len(pods) == 1 and pods[0].metadata.name.startswith("hello-")
    await world.until_ready("hello", 1)
    status = (await world.action("hello")).status
    assert (status.desired_replicas, status.observed_generation) == (1, 1)
    rows = {family.name: dict(family.rows) for family in world.server.families()}
    assert rows["coterie_function_calls_total"] == {'action="hello"': 1}
    assert rows["coterie_function_ready_actors"] == {'action="hello"': 1}


async def test_c19_code_is_replaced_in_running_actors_and_kept_when_it_cannot_be_loaded(world: FunctionsWorld) -> None:
    await world.apply("swap", script=SCRIPT, scaling={"minReplicas": 2})
    await world.until_ready("swap", 2)
    before = {each.metadata.name for each in await world.pods("swap")}
    first = (await world.action("swap")).status.version
    await world.apply("swap", script=SCRIPT + "# 2\n", scaling={"minReplicas": 2})

    async def replaced() -> bool:
        return len(world.agent.codes) == 2 and (await world.action("swap")).status.version != first

    await until(replaced)
    assert {each.metadata.name for each in await world.pods("swap")} == before
    second = (await world.action("swap")).status.version
    assert first != second and f"version={second}" in world.agent.codes[0]
    world.agent.bad_code = "action.py:1: SyntaxError"
    await world.apply("swap", script=SCRIPT + "# 3\n", scaling={"minReplicas": 2})
    assert "SyntaxError" in await condition(world, "swap", RELOAD_FAILED, "True")
    status = (await world.action("swap")).status
    assert {each.name: each.percent for each in status.versions or ()}[second] == 100
    assert (await answer(world, "swap")).status_code == 200
    await world.apply("swap", script=SCRIPT, scaling={"minReplicas": 2})
    world.agent.bad_code = ""
    await condition(world, "swap", RELOAD_FAILED, "False")


async def test_code_that_never_loads_is_answered_with_the_reason(world: FunctionsWorld) -> None:
    world.agent.exit = (exit_codes.BAD_CODE, "ModuleNotFoundError: x")
    await world.apply("bad", script=SCRIPT)
    found = await answer(world, "bad")
    assert found.status_code == 500 and "ModuleNotFoundError" in found.payload
    assert "ModuleNotFoundError" in await condition(world, "bad", READY, "False")
    assert len(await world.pods("bad")) == 1, "one is kept for its log, and no more are made"


async def test_c80_a_new_environment_gets_new_pods_before_the_old_ones_go(world: FunctionsWorld) -> None:
    await world.apply("roll", script=SCRIPT, scaling={"minReplicas": 1})
    await world.until_ready("roll", 1)
    old = (await world.pods("roll"))[0].metadata.name
    await world.apply("roll", script=SCRIPT, scaling={"minReplicas": 1}, env=[{"name": "A", "value": "1"}])

    async def rolled() -> bool:
        return [each.metadata.name for each in await world.pods("roll")] not in ([old], [])

    await until(rolled)
    assert (await answer(world, "roll")).status_code == 200


async def test_an_action_goes_with_its_topics_and_the_last_one_with_the_gateway(world: FunctionsWorld) -> None:
    await world.apply("gone", script=SCRIPT, scaling={"minReplicas": 1})
    await world.until_ready("gone", 1)
    assert "gone_TOPIC" in await world.bus.topics()
    version = (await world.action("gone")).status.version
    for kind, name in ((CONFIG_MAPS, f"action-gone-{version}"), (SECRETS, "action-gone-token")):
        await world.client.get(kind, name, NAMESPACE)
    await until(lambda: _exists(world, DEPLOYMENTS, "serverless-gateway"))
    await world.client.delete(ACTIONS, "gone", NAMESPACE)

    async def removed() -> bool:
        return not await _exists(world, ACTIONS, "gone")

    await until(removed)
    assert not {"gone_TOPIC", "gone_DLQ"} & set(await world.bus.topics())
    assert not await _exists(world, DEPLOYMENTS, "serverless-gateway")
    assert not await world.pods("gone")


async def test_what_somebody_deleted_of_the_gateway_is_made_again(world: FunctionsWorld) -> None:
    await world.apply("hello", script=SCRIPT)

    async def linked() -> bool:
        return bool(world.server.gateways.token)

    await until(linked)
    kinds = (DEPLOYMENTS, SERVICES, SECRETS, HORIZONTAL_POD_AUTOSCALERS)
    for kind in kinds:
        await world.client.delete(kind, "serverless-gateway", NAMESPACE)
    await world.server.gateways.restore()
    assert all([await _exists(world, kind, "serverless-gateway") for kind in kinds])
    secret = await world.client.get(SECRETS.as_dynamic, "serverless-gateway", NAMESPACE)
    token = base64.b64decode(secret["data"]["token"]).decode()
    assert token == world.server.gateways.token, "pods that run have it"
    await world.server.gateways.remove()
    await world.server.gateways.restore()
    assert not await _exists(world, DEPLOYMENTS, "serverless-gateway"), "not after the last action"


async def _exists(world: FunctionsWorld, kind: Any, name: str) -> bool:
    try:
        await world.client.get(kind.as_dynamic, name, NAMESPACE)
    except NotFound:
        return False
    return True


async def test_an_action_that_is_made_again_at_once_has_its_code(world: FunctionsWorld) -> None:
    """No garbage collector runs here: the ConfigMap of the earlier action is there until it is replaced."""
    await world.apply("again", script=SCRIPT)
    version = await world.version("again")
    name = f"action-again-{version}"
    first = await world.action("again")
    await world.client.delete(ACTIONS, "again", NAMESPACE)

    async def removed() -> bool:
        return not await _exists(world, ACTIONS, "again")

    await until(removed)
    assert await _exists(world, CONFIG_MAPS, name)
    await world.apply("again", script=SCRIPT)
    assert await world.version("again") == version
    second = await world.action("again")
    (owner,) = (await world.client.get(CONFIG_MAPS, name, NAMESPACE)).metadata.owner_references or ()
    assert owner.uid == second.metadata.uid != first.metadata.uid
    assert (await answer(world, "again")).status_code == 200


async def test_code_that_somebody_put_in_its_place_is_replaced(world: FunctionsWorld) -> None:
    planted = "def action(req):\n    return 'planted'\n"
    await world.apply("own", script=SCRIPT)
    name = f"action-planted-{await world.version('own')}"
    body = {"metadata": {"name": name, "namespace": NAMESPACE}, "data": {"action.py": planted}}
    await world.client.create(CONFIG_MAPS.as_dynamic, body)
    await world.apply("planted", script=SCRIPT)
    await world.version("planted")
    found = await world.client.get(CONFIG_MAPS.as_dynamic, name, NAMESPACE)
    assert found["data"] == {"action.py": SCRIPT}


async def test_another_handler_gets_other_pods_and_a_wrong_one_can_be_mended(world: FunctionsWorld) -> None:
    await world.apply("hand", script=SCRIPT, handler="action.action", scaling={"minReplicas": 1})
    await world.until_ready("hand", 1)
    before = {each.metadata.name for each in await world.pods("hand")}
    world.agent.exit = (exit_codes.BAD_CODE, 'action has no function "other"')
    await world.apply("hand", script=SCRIPT, handler="action.other", scaling={"minReplicas": 1})
    assert "no function" in await condition(world, "hand", RELOAD_FAILED, "True")
    world.agent.exit = None
    await world.apply("hand", script=SCRIPT, handler="action.second", scaling={"minReplicas": 1})
    await condition(world, "hand", RELOAD_FAILED, "False")
    await world.until_ready("hand", 1)
    (pod,) = await world.pods("hand")
    assert pod.metadata.name not in before
    whole = await world.client.get(PODS.as_dynamic, pod.metadata.name, NAMESPACE)
    variables = {each["name"]: each.get("value") for each in whole["spec"]["containers"][0]["env"]}
    assert variables["COTERIE_ACTION_HANDLER"] == "action.second"


async def test_records_of_a_topic_are_calls_each_once(world: FunctionsWorld) -> None:
    await world.apply("reader", script=SCRIPT)
    await world.apply("orders", TRIGGERS, action="reader", topic="orders")

    async def topic() -> bool:
        return "orders" in await world.bus.topics()

    await until(topic)
    await world.bus.publish([Entry("orders", "k", b"one"), Entry("orders", "k", b"two")])

    async def called() -> bool:
        return len(world.agent.calls) == 2

    await until(called)
    await world.server._records.write("orders", "k", b"three")

    async def again() -> bool:
        return len(world.agent.calls) == 3

    await until(again)

    async def noted() -> bool:
        return bool((await world.client.get(TRIGGERS, "orders", NAMESPACE)).status.last_call_time)

    await until(noted)


async def test_a_topic_that_somebody_made_again_is_read_from_its_beginning(world: FunctionsWorld) -> None:
    await world.apply("reader", script=SCRIPT)
    await world.apply("orders", TRIGGERS, action="reader", topic="orders")

    def called(times: int) -> Any:
        async def look() -> bool:
            return len(world.agent.calls) == times

        return look

    await until(lambda: _has_topic(world, "orders"))
    await world.bus.publish([Entry("orders", "k", b"one"), Entry("orders", "k", b"two")])
    await until(called(2))
    commits = {place: each for place, each in world.bus.commits.items() if place[1] == "orders"}
    await world.bus.delete_topic("orders")
    world.bus.commits.update(commits)
    await until(lambda: _has_topic(world, "orders"))  # who reads it makes it again
    await world.bus.publish([Entry("orders", "k", b"again")])
    await until(called(3))


async def _has_topic(world: FunctionsWorld, topic: str) -> bool:
    return topic in await world.bus.topics()


async def test_records_that_lie_in_a_topic_before_its_trigger_are_calls(world: FunctionsWorld) -> None:
    """The trigger may be seen before its action is served."""
    for number in range(5):
        topic = f"early-{number}"
        await world.bus.create_topic(topic)
        await world.bus.publish([Entry(topic, "k", b"early")])
        await world.apply(f"reader-{number}", script=SCRIPT)
        await world.apply(topic, TRIGGERS, action=f"reader-{number}", topic=topic)

    async def called() -> bool:
        return sorted(world.agent.calls) == [f"reader-{number}" for number in range(5)]

    await until(called)


async def test_a_topic_is_read_on_after_its_bus_was_away(world: FunctionsWorld) -> None:
    await world.apply("reader", script=SCRIPT)
    committed, away = world.bus.committed, 3

    async def sometimes(group: str, topic: str) -> Any:
        nonlocal away
        if group.startswith("trigger-") and away:
            away -= 1
            raise BusError("the broker is away")
        return await committed(group, topic)

    world.bus.committed = sometimes  # type: ignore[method-assign]
    await world.bus.create_topic("orders", 1)
    await world.bus.publish([Entry("orders", "k", b"one")])
    await world.apply("orders", TRIGGERS, action="reader", topic="orders")

    async def called() -> bool:
        return world.agent.calls == ["reader"]

    await until(called)
    assert not away


async def test_a_changed_table_is_a_call(world: FunctionsWorld) -> None:
    await world.apply("watcher", script=SCRIPT)
    table = {"author": NAMESPACE, "name": "t", "type": "table", "dataSource": "s", "relativeURI": "t.csv"}
    await world.apply("before", DOMAIN_DATAS, **table)
    await world.apply("tables", TRIGGERS, action="watcher", domainData={})
    await until(lambda: _exists(world, CONFIG_MAPS, "trigger-tables"))
    await world.apply("after", DOMAIN_DATAS, **table)

    async def called() -> bool:
        return world.agent.calls == ["watcher"]

    await until(called)
    await world.apply("before", DOMAIN_DATAS, **{**table, "relativeURI": "u.csv"})

    async def again() -> bool:
        return world.agent.calls == ["watcher"] * 2

    await until(again)


async def test_a_partner_that_announces_calls_finds_actors(world: FunctionsWorld) -> None:
    """Before its first call is on the bus; and for nobody else."""
    await world.apply("hello", script=SCRIPT)
    await world.apply("other", script=SCRIPT)

    async def known() -> bool:
        return {"hello", "other"} <= world.server.dispatcher.loads().keys()

    await until(known)
    world.server.actions.expect("hello", 30)
    await world.until_ready("hello", 1)
    assert not world.agent.calls
    assert not await world.pods("other")


class ManyLetters:
    """A dispatcher with dead letters."""

    def __init__(self, count: int) -> None:
        self.letters = [
            DeadCall("hello", f"r{number}", 0, "crashed", 2, 3, "", 1000 + number) for number in range(count)
        ]
        self.replayed: list[str] = []
        self.dropped: list[str] = []

    async def dead_letter_topics(self) -> list[str]:
        return sorted({each.action for each in self.letters})

    async def dead_letters(self, action: str) -> list[DeadCall]:
        return [each for each in self.letters if each.action == action]

    async def replay(self, action: str, request_uid: str, hop: int = 0) -> bool:
        self.replayed.append(request_uid)
        return self._remove(request_uid)

    async def drop(self, action: str, request_uid: str, hop: int = 0) -> bool:
        self.dropped.append(request_uid)
        return self._remove(request_uid)

    def _remove(self, request_uid: str) -> bool:
        self.letters = [each for each in self.letters if each.request_uid != request_uid]
        return True


async def test_dead_letters_of_a_partners_calls_have_objects_after_a_restart_too(world: FunctionsWorld) -> None:
    """They were written, and the process was killed before their objects were made."""
    box = ManyLetters(1)
    box.letters.append(DeadCall("hello.bob", "r-bob", 0, "crashed", 2, 3, "", 1000))
    world.server.letters._letters = box
    await world.apply("hello", script=SCRIPT)

    async def objects() -> bool:
        found = await world.client.list(DEAD_LETTERS, NAMESPACE)
        return {each.spec.request for each in found.items} == {"r0", "r-bob"}

    await until(objects)


async def test_dead_letters_have_objects_up_to_a_limit_and_are_replayed_and_dropped(world: FunctionsWorld) -> None:
    box = ManyLetters(LIMIT + 20)
    world.server.letters._letters = box
    await world.apply("hello", script=SCRIPT)

    async def objects() -> dict[str, str]:
        found = await world.client.list(DEAD_LETTERS, NAMESPACE)
        return {each.spec.request: each.metadata.name for each in found.items}

    async def full() -> bool:
        return len(await objects()) == LIMIT

    await until(full)
    names = await objects()
    assert "r0" in names and f"r{LIMIT}" not in names, "the oldest first"
    await world.client.patch(DEAD_LETTERS.as_dynamic, names["r0"], NAMESPACE, {"spec": {"replay": True}})
    await world.client.delete(DEAD_LETTERS, names["r1"], NAMESPACE)

    async def done() -> bool:
        there = await objects()
        return not {"r0", "r1"} & there.keys() and len(there) == LIMIT

    await until(done)
    assert (box.replayed, box.dropped) == (["r0"], ["r1"])
