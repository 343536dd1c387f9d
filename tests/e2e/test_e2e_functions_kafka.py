"""Functions on a node whose bus is a real Apache Kafka (`make kafka`): the acceptance rows of test_e2e_functions.py that concern the bus, with
their code, and what only a broker can do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import kubectl_runner
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from e2e_kit import Cluster, Node, until
from functions_kit import FunctionsNode, action, says, trigger
from kafka_broker import KafkaCluster, kafka_wanted
from test_e2e_functions import (  # noqa: F401 - run here with the `node` of this file, in this order
    test_a_call_that_is_given_up_can_be_replayed,
    test_a_killed_node_loses_no_accepted_call,
    test_c09_a_killed_functions_process_loses_no_call_and_no_rate,
    test_c19_new_code_in_the_same_process,
    test_c20_c29_branches_are_chosen_at_run_time,
    test_c22_c23_c84_rates_are_counted_and_scale_actors_up_and_to_zero,
    test_c24_c25_a_cold_function_answers_its_first_call,
    test_c26_c35_the_gateway_is_scaled_to_three_behind_one_address,
    test_c28_a_killed_actor_loses_no_call,
    test_c30_an_undeclared_target_is_refused_and_gets_nothing,
    test_c32_c33_c34_the_calculator,
    test_c80_images_are_replaced_and_gateways_rolled_without_a_failed_call,
    test_c81_c82_calls_at_once_are_shared_by_actors_and_wait_on_one_gateway,
    test_c83_a_signal_or_an_update_does_not_touch_the_call_in_hand,
    test_records_of_a_topic_are_calls,
)

from coterie.functions.messages import action_topic
from root_kit import needs_root

PREFIX = "rows-"

pytestmark = [
    pytest.mark.xdist_group("e2e-functions-kafka"),
    needs_root("calls come from the network of the pods"),
    pytest.mark.skipif(not kafka_wanted(), reason="COTERIE_KAFKA is not set"),
    pytest.mark.timeout(240),
]

_SLEEPS = """
import time
from serverless import Response
def action(req):
    time.sleep(1)
    return Response("slept")
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with KafkaCluster(tmp_path_factory.mktemp("kafka"), brokers=3) as kafka:
        yield kafka


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, broker: KafkaCluster) -> Iterator[FunctionsNode]:
    settings = {
        "mode": "autonomy",
        "apiServer": {"port": 0},
        "agent": {"nodeName": "node-a", "port": 0},
        "capacity": {"cpu": 16, "memory": "32Gi"},
        "metrics": {"enabled": False},
        "console": {"enabled": False},
        "controllers": {"healthPort": 0},
        "functions": {"bus": broker.url(PREFIX)},
    }
    plane = Node(tmp_path_factory.mktemp("functions"), "node-a", settings).start()
    cluster = Cluster(plane, kubectl_runner.chosen()[-1], namespace="alice", nodes={"node-a": plane})
    try:
        cluster.wait_until_up("node-a")
        found = FunctionsNode(cluster)
        found.cluster.apply(action("warm", says("warm")), trigger("warm", "warm"))
        found.wait_for_gateway()
        yield found
        assert plane.complaints() == []
    finally:
        plane.destroy()


async def _topics(broker: KafkaCluster) -> set[str]:
    """Not through a bus of ours: a second one with the same prefix would take over from the node's."""
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.addresses)
    await admin.start()
    try:
        return {name.removeprefix(PREFIX) for name in await admin.list_topics() if name.startswith(PREFIX)}
    finally:
        await admin.close()


async def _controller(broker: KafkaCluster) -> tuple[int, list[int]]:
    """Which broker leads, and all of them, as numbers of `KafkaCluster`."""
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.addresses)
    await admin.start()
    try:
        found = await admin.describe_cluster()
    finally:
        await admin.close()
    return found["controller_id"] - 1, sorted(each["node_id"] - 1 for each in found["brokers"])


def test_c15_brokers_of_three_are_killed_one_at_a_time_and_calls_are_answered(
    node: FunctionsNode, broker: KafkaCluster
) -> None:
    node.cluster.apply(action("through", _SLEEPS, concurrency=4), trigger("through", "through"))
    assert node.first_call("/through").text == "slept"
    leader, members = asyncio.run(_controller(broker))
    assert members == [0, 1, 2]
    follower = next(each for each in members if each != leader)
    for killed in (follower, leader):
        with ThreadPoolExecutor(4) as pool:
            running = [pool.submit(lambda: node.call("/through")) for _ in range(4)]
            time.sleep(0.5)
            broker.kill(killed)
            assert [each.result().text for each in running] == ["slept"] * 4
        assert [node.call("/through").text for _ in range(3)] == ["slept"] * 3
        broker.start_broker(killed)
        broker.wait_for(killed)
        assert node.call("/through").text == "slept"
    node.remove("through")


async def test_c21_records_of_other_clients_of_kafka_are_calls(node: FunctionsNode, broker: KafkaCluster) -> None:
    """A topic that is there before its Trigger, with what is in it; and what comes later."""
    other = AIOKafkaProducer(bootstrap_servers=broker.addresses)
    await other.start()
    try:
        await other.send_and_wait(f"{PREFIX}outside", b"early")
        script = "def action(req):\n    print('got', req.body())\n"
        node.cluster.apply(action("outside", script), trigger("outside", "outside", topic="outside"))

        def got(text: str) -> bool:
            pods = [each["metadata"]["name"] for each in node.actors("outside")]
            return any(f"got {text}" in node.cluster.logs(pod) for pod in pods)

        await asyncio.to_thread(until, "the early record is a call", lambda: got("early"), 60)
        await other.send_and_wait(f"{PREFIX}outside", b"late")
        await asyncio.to_thread(until, "the late record is a call", lambda: got("late"), 60)
    finally:
        await other.stop()
    node.remove("outside")
    assert "outside" in await _topics(broker), "it belongs to others too"


async def test_topics_are_in_kafka_and_go_with_their_action(node: FunctionsNode, broker: KafkaCluster) -> None:
    node.cluster.apply(action("passing", says("here")), trigger("passing", "passing"))
    assert node.first_call("/passing").text == "here"
    topics = await _topics(broker)
    assert {action_topic("passing"), action_topic("warm"), "action-results", "action-monitor"} <= topics
    assert any(each.startswith("ReturnGateway-") for each in topics)
    node.remove("passing")
    until("the action is gone", lambda: node.cluster.try_("get", "action", "passing").rc != 0)
    assert action_topic("passing") not in await _topics(broker)
    assert node.call("/warm").text == "warm"
