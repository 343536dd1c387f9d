"""The enforcer follows the API: one transaction for each change, none otherwise, and a pod waits for its policies."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from fake_api import FakeApi

from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.tasks import TaskOwner
from coterie.kube.api.errors import Forbidden
from coterie.kube.api.types.network_policies import NETWORK_POLICIES
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.network.pods.netlink import NetlinkMessage
from coterie.kube.network.policies.enforcer import PolicyEnforcer, PolicySettings
from coterie.kube.network.policies.model import EGRESS, INGRESS, PolicyPod, compile_policy
from coterie.kube.network.policies.plan import NodeGateways, PolicyTable

SECONDS = 5.0


class FakeKernel:
    """Stands for a NetlinkSocket and remembers what was asked."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.failure: OSError | None = None
        self.namespace = 1
        self.opened = 0

    def open(self) -> FakeKernel:
        self.opened += 1
        return self

    def request(self, messages: Sequence[NetlinkMessage], acknowledged: int = -1) -> None:
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        self.batches.append([message.what for message in messages[1:-1]])

    def close(self) -> None:
        pass


@asynccontextmanager
async def enforcing(
    api: FakeApi, kernel: FakeKernel, client: Client | None = None, **settings: Any
) -> AsyncIterator[PolicyEnforcer]:
    client = client or api.client()
    informers = Informers(client)
    chosen = PolicySettings(
        "n1",
        **settings,
        open_netlink=kernel.open,  # type: ignore[arg-type]
        namespace_id=lambda: kernel.namespace,
    )
    enforcer = PolicyEnforcer(client, informers, chosen, SYSTEM_CLOCK)
    async with TaskOwner("test") as owner:
        owner.start("informers", informers.run())
        owner.start("policies", enforcer.run())
        async with asyncio.timeout(SECONDS):
            await enforcer.ready.wait()
        yield enforcer


async def until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not check():
            await asyncio.sleep(0.005)


async def settled(kernel: FakeKernel) -> int:
    await asyncio.sleep(0.05)
    return len(kernel.batches)


def pod(name: str, address: str = "", node: str = "n1", namespace: str = "default", **labels: str) -> dict[str, Any]:
    status = {"phase": "Running", "podIP": address} if address else {"phase": "Pending"}
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}", "labels": labels},
        "spec": {"nodeName": node, "containers": [{"name": "c"}]},
        "status": status,
    }


def seed_pod(api: FakeApi, document: dict[str, Any]) -> None:
    meta = document["metadata"]
    api.seed("pods", meta["name"], meta["namespace"], **{**document, "metadata": meta})


def deny(api: FakeApi, name: str = "deny", namespace: str = "default") -> None:
    api.seed("networkpolicies", name, namespace, spec={"podSelector": {}, "policyTypes": ["Ingress"]})


async def test_nothing_is_done_without_policies_and_while_nothing_changes() -> None:
    api, kernel = FakeApi(), FakeKernel()
    api.seed("namespaces", "default")
    seed_pod(api, pod("a", "100.96.0.2"))
    async with enforcing(api, kernel):
        # Once, at the start: what an earlier node left is removed.
        assert kernel.batches == [["add table coterie_policies", "delete table coterie_policies"]]
        seed_pod(api, pod("b", "100.96.0.3"))
        assert await settled(kernel) == 1
        deny(api)
        await until(lambda: len(kernel.batches) == 2)
        assert "add to map ingress_of" in kernel.batches[1]
        # A change of a pod that policies do not see.
        await api.client().patch(PODS, "a", "default", {"status": {"message": "x"}}, subresource="status")
        assert await settled(kernel) == 2
        await api.client().delete(NETWORK_POLICIES, "deny", "default")
        await until(lambda: len(kernel.batches) == 3)
        assert kernel.batches[2] == ["delete table coterie_policies"]


async def test_a_pod_waits_until_its_policies_are_enforced() -> None:
    api, kernel = FakeApi(), FakeKernel()
    api.seed("namespaces", "default")
    async with enforcing(api, kernel) as enforcer:
        # The watch has not brought the policy when the pod is announced: the pod waits for it all the same.
        deny(api)
        starting = msgspec.convert(pod("a"), Pod)
        await enforcer.add_pod(starting, "100.96.0.2")
        assert any("add to map ingress_of" in batch for batch in kernel.batches)
        before = len(kernel.batches)
        await enforcer.add_pod(starting, "100.96.0.2")
        assert len(kernel.batches) == before
        # The API shows the pod without its address: it keeps what the agent said.
        seed_pod(api, pod("a"))
        assert await settled(kernel) == before
        await api.client().delete(PODS, "a", "default", grace=0)
        enforcer.remove_pod("uid-a")
        await until(lambda: any("delete from map ingress_of" in batch for batch in kernel.batches[before:]))


async def test_a_pod_does_not_start_when_the_kernel_refuses() -> None:
    api, kernel = FakeApi(), FakeKernel()
    api.seed("namespaces", "default")
    deny(api)
    async with enforcing(api, kernel) as enforcer:
        kernel.failure = OSError(errno.ENOENT, "no such table")
        starting = msgspec.convert(pod("a"), Pod)
        with pytest.raises(OSError, match="no such table"):
            await enforcer.add_pod(starting, "100.96.0.2")
        # Tried again, everything is loaded from the start.
        await enforcer.add_pod(starting, "100.96.0.2")
        assert kernel.batches[-1][:3] == [
            "add table coterie_policies",
            "delete table coterie_policies",
            "add table coterie_policies",
        ]


async def test_a_namespace_that_was_made_anew_gets_everything_again() -> None:
    api, kernel = FakeApi(), FakeKernel()
    api.seed("namespaces", "default")
    deny(api)
    seed_pod(api, pod("a", "100.96.0.2"))
    async with enforcing(api, kernel) as enforcer:
        before = len(kernel.batches)
        kernel.namespace = 2
        await enforcer.add_pod(msgspec.convert(pod("b"), Pod), "100.96.0.3")
        assert kernel.opened == 2
        assert kernel.batches[before][1] == "delete table coterie_policies"


async def test_a_node_of_one_namespace_asks_for_no_other() -> None:
    api, kernel = FakeApi(), FakeKernel()
    deny(api, namespace="alice")
    deny(api, namespace="bob")
    async with enforcing(api, kernel, namespace="alice") as enforcer:
        await enforcer.add_pod(msgspec.convert(pod("a", namespace="alice"), Pod), "100.96.0.2")
        assert "add to map ingress_of" in kernel.batches[-1]
        before = len(kernel.batches)
        await enforcer.add_pod(msgspec.convert(pod("b", namespace="alice") | {"spec": {"hostNetwork": True}}, Pod), "1")
        assert len(kernel.batches) == before


async def test_a_control_plane_that_shows_no_policies_stops_no_pod() -> None:
    api, kernel = FakeApi(), FakeKernel()
    client = api.client()
    whole = client.list

    async def refusing(kind: Any, namespace: str = "", **options: Any) -> Any:
        if kind is NETWORK_POLICIES and not allowed:
            raise Forbidden("networkpolicies is forbidden")
        return await whole(kind, namespace, **options)

    allowed: list[bool] = []
    client.list = refusing  # type: ignore[method-assign, assignment]
    api.seed("namespaces", "default")
    deny(api)
    async with enforcing(api, kernel, client) as enforcer:
        starting = msgspec.convert(pod("a"), Pod)
        await enforcer.add_pod(starting, "100.96.0.2")
        enforcer.remove_pod("uid-a")
        assert kernel.batches == [] and kernel.opened == 0


# --- the plan -------------------------------------------------------------------------------------------------------


def policy(**spec: Any) -> Any:
    document = {"metadata": {"namespace": "default", "name": "p"}, "spec": spec}
    return compile_policy(msgspec.convert(document, NETWORK_POLICIES.type))


@pytest.mark.parametrize(
    ("spec", "directions"),
    [
        ({"podSelector": {}}, {INGRESS}),
        ({"podSelector": {}, "egress": [{}]}, {INGRESS, EGRESS}),
        ({"podSelector": {}, "egress": [{}], "policyTypes": ["Egress"]}, {EGRESS}),
        ({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}, {INGRESS, EGRESS}),
    ],
)
def test_policy_types_and_their_default(spec: dict[str, Any], directions: set[str]) -> None:
    assert set(policy(**spec).rules) == directions


def test_ipv6_blocks_allow_nothing() -> None:
    (rule,) = policy(podSelector={}, ingress=[{"from": [{"ipBlock": {"cidr": "2001:db8::/64"}}]}]).rules[INGRESS]
    assert not rule.anyone and rule.blocks == () and rule.peers == ()


def test_a_change_of_one_pod_changes_its_elements_only() -> None:
    table = PolicyTable(NodeGateways())
    table.set_policy("default/p", policy(podSelector={}, ingress=[{"from": [{"podSelector": {}}]}]))
    for number in range(2, 102):
        table.set_pod(str(number), PolicyPod("default", {}, f"100.96.0.{number}", local=True))
    table.transactions()
    table.set_pod("new", PolicyPod("default", {}, "100.96.1.1", local=True))
    ((*whats,),) = ([message.what for message in batch] for batch in table.transactions())
    assert len(whats) == 3 and all(what.startswith("add to") for what in whats)
    table.set_pod("new", None)
    ((*whats,),) = ([message.what for message in batch] for batch in table.transactions())
    assert len(whats) == 3 and all(what.startswith("delete from") for what in whats)
    assert table.transactions() == []
