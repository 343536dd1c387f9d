"""Keeps the table of NetworkPolicies in the domain's network namespace true: by watch, one transaction for each change.

A pod is announced by the agent before its first container starts (`add_pod`). The answer comes when every policy that the
API has for it is enforced at its address.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from coterie.base.backoff import Backoff, Policy
from coterie.base.clock import Clock
from coterie.base.log import logger
from coterie.kube.api.errors import ApiError, Forbidden, NotFound
from coterie.kube.api.pod_state import addresses
from coterie.kube.api.types.core import NAMESPACES, Namespace
from coterie.kube.api.types.network_policies import NETWORK_POLICIES, NetworkPolicy
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.client.client import Client
from coterie.kube.client.informer import ObjectChange
from coterie.kube.client.informers import Informers
from coterie.kube.client.transport import TransportError
from coterie.kube.network.pods import nftables
from coterie.kube.network.pods.netlink import NetlinkMessage, NetlinkSocket
from coterie.kube.network.policies.model import PolicyPod, compile_policy, policy_pod
from coterie.kube.network.policies.plan import NodeGateways, PolicyTable

log = logger("network.policies")
_RETRY = Policy(first=0.2, factor=2.0, limit=30.0, jitter=0.2)
_CATCH_UP_SECONDS = 5.0
_ASK_AGAIN_SECONDS = 60.0
NAME_LABEL = "kubernetes.io/metadata.name"


@dataclass(frozen=True, slots=True)
class PolicySettings:
    node_name: str
    namespace: str = ""
    """The only namespace that this node sees; empty: all of them."""
    nodes: NodeGateways = field(default_factory=NodeGateways)
    services: tuple[PolicyPod, ...] = ()
    """Services of the node that rules of egress select like pods."""
    open_netlink: Callable[[], NetlinkSocket] = field(kw_only=True)
    """A netfilter socket of the domain's network namespace."""
    namespace_id: Callable[[], int] = field(kw_only=True)
    """Changes exactly when that namespace does."""


class _Following:
    """What policies are decided from, as the API shows it."""

    def __init__(self, informers: Informers, namespace: str) -> None:
        self.policies = informers.get(NETWORK_POLICIES, namespace)
        self.pods = informers.get(PODS, namespace)
        self.namespaces = None if namespace else informers.get(NAMESPACES)

    async def wait(self) -> None:
        """Until everything was seen once."""
        for informer in (self.policies, self.pods, self.namespaces):
            if informer is not None:
                await informer.ready.wait()

    def has_seen(self, policies: Iterable[NetworkPolicy]) -> bool:
        return all(
            (known := self.policies.cache.by_key(each.key)) is not None and _version(known) >= _version(each)
            for each in policies
        )


class PolicyEnforcer:
    """A Runnable."""

    name = "policies"

    def __init__(self, client: Client, informers: Informers, settings: PolicySettings, clock: Clock) -> None:
        self.ready = asyncio.Event()
        self._client = client
        self._settings = settings
        self._clock = clock
        self._table = PolicyTable(settings.nodes)
        self._starting: dict[str, tuple[Pod, str]] = {}
        """By uid: pods that the agent announced, with their addresses; the API may not show these yet."""
        self._changed = asyncio.Event()
        self._policies_changed = asyncio.Event()
        self._lock = asyncio.Lock()
        self._netlink: NetlinkSocket | None = None
        self._namespace_id = 0
        self._stop = asyncio.Event()
        self._informers = informers
        self._following: _Following | None = None
        """None until the API has shown everything once, or where it does not show policies."""
        where = settings.namespace
        for number, service in enumerate(settings.services):
            self._table.set_pod(f"service/{number}", service)
        if where:
            self._table.set_namespace(where, {NAME_LABEL: where})

    def stop(self) -> None:
        self._stop.set()
        self._changed.set()

    async def run(self) -> None:
        if not await self._may_read():
            return
        following = _Following(self._informers, self._settings.namespace)
        await following.wait()
        self._following = following
        removals = [
            following.policies.add_handler(self._policy_changed),
            following.pods.add_handler(self._pod_changed),
        ]
        if following.namespaces is not None:
            removals.append(following.namespaces.add_handler(self._namespace_changed))
        retry = Backoff(_RETRY)
        try:
            while not self._stop.is_set():
                self._changed.clear()
                try:
                    await self._apply()
                except OSError as problem:
                    log.error("NetworkPolicies could not be enforced; trying again", error=problem)
                    await self._clock.sleep(retry.failed())
                    continue
                retry.succeeded()
                self.ready.set()
                await self._changed.wait()
        finally:
            for remove in removals:
                remove()
            if self._netlink is not None:
                self._netlink.close()

    async def _may_read(self) -> bool:
        """Whether the API shows policies to nodes. A control plane of an earlier version does not: then pods run without, until
        it does. False: the node stops."""
        warned = False
        while not self._stop.is_set():
            try:
                await self._client.list(NETWORK_POLICIES, self._settings.namespace)
            except (Forbidden, NotFound) as problem:
                if not warned:
                    log.warning(
                        "The API does not show NetworkPolicies to this node: none is enforced", why=problem.message
                    )
                warned = True
                self.ready.set()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_ASK_AGAIN_SECONDS):
                        await self._stop.wait()
                continue
            except (ApiError, TransportError):
                pass  # the informers wait for it
            if warned:
                self.ready.clear()
            return True
        return False

    # What the agent says.

    async def add_pod(self, pod: Pod, address: str) -> None:
        """A pod is about to start here. Raises OSError when its policies cannot be enforced now."""
        if not address or pod.spec.host_network:
            return
        await self.ready.wait()
        if self._following is None:
            return
        await self._catch_up(self._following, pod.metadata.namespace)
        self._starting[pod.metadata.uid] = pod, address
        self._set_pod(pod)
        await self._apply()

    def remove_pod(self, uid: str) -> None:
        """The pod was removed; its address will belong to another one."""
        known = self._starting.pop(uid, None)
        if known is None:
            return
        shown = self._following.pods.cache.by_key(known[0].key) if self._following is not None else None
        if shown is not None and shown.metadata.uid == uid:
            self._set_pod(shown)
        else:
            self._table.set_pod(uid, None)
        self._changed.set()

    async def _catch_up(self, following: _Following, namespace: str) -> None:
        """A policy that was there before the pod may not have reached us yet: ask, and wait for the watch to bring it."""
        try:
            found = (await self._client.list(NETWORK_POLICIES, namespace)).items
        except (ApiError, TransportError) as problem:
            raise OSError(0, f"NetworkPolicies cannot be listed: {problem}") from problem
        if following.has_seen(found):
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CATCH_UP_SECONDS):
                while not following.has_seen(found):
                    self._policies_changed.clear()
                    await self._policies_changed.wait()
        if not following.has_seen(found):
            raise OSError(0, "the watch of NetworkPolicies is behind")

    # What the API says.

    def _policy_changed(self, change: ObjectChange[NetworkPolicy]) -> None:
        policy = change.object
        self._table.set_policy(str(policy.key), None if change.type == "deleted" else compile_policy(policy))
        self._policies_changed.set()
        self._changed.set()

    def _namespace_changed(self, change: ObjectChange[Namespace]) -> None:
        meta = change.object.metadata
        self._table.set_namespace(meta.name, None if change.type == "deleted" else dict(meta.labels or {}))
        self._changed.set()

    def _pod_changed(self, change: ObjectChange[Pod]) -> None:
        pod = change.object
        if change.type == "deleted" and pod.metadata.uid not in self._starting:
            self._table.set_pod(pod.metadata.uid, None)
        else:
            self._set_pod(pod)
        self._changed.set()

    def _set_pod(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        local = pod.spec.node_name == self._settings.node_name
        starting = self._starting.get(uid)
        address = (
            starting[1] if starting is not None else next((each for each in addresses(pod) if ":" not in each), "")
        )
        if not address or pod.spec.host_network or (pod.ended and starting is None):
            self._table.set_pod(uid, None)
        else:
            self._table.set_pod(uid, policy_pod(pod, address, local=local))

    # What is done.

    async def _apply(self) -> None:
        async with self._lock:
            namespace = self._settings.namespace_id()
            if self._netlink is not None and namespace != self._namespace_id:
                log.info("The pod network was made anew: its policies are loaded again")
                self._forget()
            batches = self._table.transactions()
            if not batches:
                return
            try:
                await asyncio.to_thread(self._transact, batches)
            except OSError:
                # Whatever is there now: load it from the start next time.
                self._forget()
                raise
            self._namespace_id = namespace

    def _forget(self) -> None:
        self._table.forget_loaded()
        if self._netlink is not None:
            self._netlink.close()
            self._netlink = None

    def _transact(self, batches: Iterable[list[NetlinkMessage]]) -> None:
        if self._netlink is None:
            self._netlink = self._settings.open_netlink()
        for batch in batches:
            self._netlink.request(nftables.batch(batch), acknowledged=-2)


def _version(policy: NetworkPolicy) -> int:
    text = policy.metadata.resource_version or "0"
    return int(text) if text.isdigit() else 0
