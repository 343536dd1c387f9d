"""Keeps the Node object true: registers it, renews its lease, writes its status when it changes.

    register ──> status ──> every 10 s: renew the lease      every 30 s: measure; written when changed or after 5 min

Who renews its lease late may have been called lost meanwhile, and says at once that it is not. A Node that somebody deleted
is registered again. An API that cannot be reached is tried again: pods go on meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from coterie.base.backoff import Backoff, Policy
from coterie.base.clock import Clock, rfc3339, rfc3339_micro
from coterie.base.log import logger
from coterie.base.tasks import TaskOwner
from coterie.kube.agent.node.capacity import NO_DEVICES, NodeDevices, Resources, allocatable, capacity, with_devices
from coterie.kube.agent.node.conditions import ConditionReading, PodNetworkState, conditions, readings
from coterie.kube.agent.node.description import (
    NameTaken,
    NodeRuntime,
    check_name,
    labels,
    new_node,
    node_annotations,
    pod_ranges,
    stale_labels,
    static_status,
    wanted_taints,
)
from coterie.kube.agent.node.facts import MachineFacts, MachineUsage, measure_machine, measure_usage
from coterie.kube.agent.plugin import AgentPlugin, merged_node
from coterie.kube.agent.runtimes.protocol import RuntimeHandler
from coterie.kube.agent.settings import AgentSettings
from coterie.kube.api.errors import AlreadyExists, ApiError, Forbidden, NotFound
from coterie.kube.api.labels import COTERIE_LEASE_DURATION
from coterie.kube.api.meta import Object
from coterie.kube.api.types.coordination import LEASES
from coterie.kube.api.types.nodes import NODES
from coterie.kube.client.client import Client
from coterie.kube.client.transport import TransportError

log = logger("agent.node")
_NODES = NODES.as_dynamic
_LEASES = LEASES.as_dynamic
LEASE_NAMESPACE = "kube-node-lease"
_SECOND_RENEWAL = 1.0
_RETRY = Policy(first=0.2, factor=2.0, limit=7.0, jitter=0.3)
"""The limit is well below the lease's duration: one lost request must not make the node look dead."""


class NodeRegistration:
    """A Runnable; ready when the Node is registered and its status is there."""

    name = "node"

    def __init__(
        self,
        client: Client,
        settings: AgentSettings,
        runtime: str,
        clock: Clock,
        *,
        measure: Callable[[], MachineUsage] | None = None,
        facts: MachineFacts | None = None,
        plugins: Sequence[AgentPlugin] = (),
        images: Callable[[], list[Object]] = list,
        runtime_problem: Callable[[], str] = str,
        network: Callable[[], PodNetworkState] = PodNetworkState,
        handlers: Callable[[], Sequence[RuntimeHandler]] = tuple,
        limitations: Callable[[], Sequence[str]] = tuple,
        devices: Callable[[], NodeDevices] = lambda: NO_DEVICES,
    ) -> None:
        self.ready = asyncio.Event()
        self._client = client
        self._settings = settings
        self._runtime_name = runtime
        self._handlers = handlers
        self._limitations = limitations
        self._clock = clock
        disk = settings.paths.storage
        self._measure = measure or (lambda: measure_usage(disk))
        self.facts = facts or measure_machine(disk, machine_id=settings.machine_id)
        self._additions = merged_node(tuple(plugins), self.facts, runtime)
        self._own_capacity = self._additions.capacity
        self.capacity: Resources = capacity(self.facts, settings.capacity, self._additions)
        self._allocatable: Resources = allocatable(self.capacity, settings.capacity, self._additions)
        self._images = images
        self._runtime_problem = runtime_problem
        self._network = network
        self._devices = devices
        self.pressures: Callable[[], frozenset[str]] = frozenset
        """Which pressures the node has; set by whoever watches them."""
        self._conditions: list[Object] = []
        self._written: Object | None = None
        self._written_at = 0.0
        self._uid = ""
        self._lease_seconds = float(settings.node.lease_seconds)
        self._recheck = False
        self._measure_event = asyncio.Event()
        self._stop = asyncio.Event()

    @property
    def _runtime(self) -> NodeRuntime:
        return NodeRuntime(self._runtime_name, tuple(self._handlers()), tuple(self._limitations()))

    def allocatable(self) -> Mapping[str, str]:
        return with_devices(self._allocatable, self._devices().allocatable)

    def update_conditions(self) -> None:
        """Something changed: measure now."""
        self._measure_event.set()

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        own = self._devices().labels
        if own:
            self._additions = dataclasses.replace(self._additions, labels={**self._additions.labels, **own})
        await self._persist(self._register)
        await self._persist(self._write_status)
        async with TaskOwner("node", on_failure=lambda _: self._stop.set()) as owner:
            owner.start("lease", self._renew_for_ever(), endless=True)
            owner.start("status", self._measure_for_ever(), endless=True)
            self.ready.set()
            await self._stop.wait()
        await self._leave()

    # Registering.

    async def _register(self) -> None:
        while True:
            try:
                node = await self._taken_or_made()
            except NameTaken as taken:
                if taken.forever:
                    raise
                log.warning("The node's name is in use", why=str(taken))
                await self._clock.sleep(self._settings.node.collision_retry_seconds)
                continue
            self._uid = node["metadata"]["uid"]
            self._take_capacity(node)
            self._conditions = (node.get("status") or {}).get("conditions") or []
            self._written = None
            return

    async def _taken_or_made(self) -> Object:
        settings = self._settings
        try:
            node = await self._create(new_node(settings, self.facts, self._additions, self._runtime))
        except AlreadyExists:
            try:
                node = await self._client.get(_NODES, settings.node_name)
            except Forbidden as problem:
                message = f"node {settings.node_name} belongs to somebody else; give this agent another name with agent.nodeName"
                raise NameTaken(message, forever=True) from problem
            check_name(node, settings, self.facts, self._additions)
            wanted = labels(settings, self.facts, self._additions, self._runtime)
            known = node["metadata"].get("labels") or {}
            notes, noted = node_annotations(settings, self._runtime), node["metadata"].get("annotations") or {}
            stale = stale_labels(known, wanted)
            if stale or not wanted.items() <= known.items() or not notes.items() <= noted.items():
                patch = {"metadata": {"labels": {**wanted, **stale}, "annotations": notes}}
                node = await self._client.patch(_NODES, settings.node_name, "", patch)
            node = await self._set_taint(node)
        node = await self._set_pod_range(node)
        log.info("The node is registered", node=settings.node_name)
        return node

    async def _create(self, node: Object) -> Object:
        try:
            return await self._client.create(_NODES, node)
        except Forbidden as problem:
            if "podCIDR" not in node["spec"]:
                raise
            # Another node has the range. The control plane gives this one another; `_set_pod_range` says what to do.
            log.warning("The node's pod addresses are not free", why=problem.message, cidr=node["spec"]["podCIDR"])
            spec = {key: value for key, value in node["spec"].items() if key not in ("podCIDR", "podCIDRs")}
            return await self._client.create(_NODES, {**node, "spec": spec})

    async def _set_pod_range(self, node: Object) -> Object:
        """The range of a Node that has one cannot be changed, so the node must use it."""
        meta, mine = node["metadata"], self._settings.node.pod_cidr
        known = (node.get("spec") or {}).get("podCIDR") or ""
        if not mine or known == mine:
            return node
        if not known:
            patch = {
                "metadata": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]},
                "spec": pod_ranges(self._settings),
            }
            try:
                return await self._client.patch(_NODES, meta["name"], "", patch)
            except Forbidden as problem:
                log.warning("The node's pod addresses are not free", why=problem.message, cidr=mine)
                return node
        log.warning(
            "Pods of this node cannot be reached from other nodes: the control plane knows other addresses",
            node=meta["name"],
            cidr=mine,
            known=known,
            do="make a new join file with `coterie node add`, or set agent.podCIDR to the known range",
        )
        return node

    async def _set_taint(self, node: Object) -> Object:
        """A Node that was registered with another setting, or by a version with another default."""
        meta = node["metadata"]
        taints = wanted_taints(node, self._additions)
        if taints is None:
            return node
        # The version: the node controller writes taints too, and a list is replaced whole.
        patch = {
            "metadata": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]},
            "spec": {"taints": taints or None},
        }
        try:
            changed = await self._client.patch(_NODES, meta["name"], "", patch)
        except Forbidden as problem:
            # A control plane of an earlier version lets no node change its taints.
            log.warning("The node's taints do not follow its settings", why=problem.message, node=meta["name"])
            return node
        log.info("The node's taints follow its settings", node=meta["name"], taints=len(taints))
        return changed

    # The status.

    async def _measure_for_ever(self) -> None:
        while True:
            await self._wait_for_next_measurement()
            await self._persist(self._measure_once)

    async def _measure_once(self) -> None:
        if self._additions.annotated_capacity:
            with contextlib.suppress(NotFound):  # writing the status registers it again
                self._take_capacity(await self._client.get(_NODES, self._settings.node_name))
        await self._write_status()

    def _take_capacity(self, node: Object) -> None:
        """What an operator wrote on the Node wins over what was configured or measured."""
        notes = node["metadata"].get("annotations") or {}
        wanted = dict(self._own_capacity)
        for resource, given in self._additions.annotated_capacity.items():
            text = notes.get(given.annotation)
            amount = given.parse(text) if text is not None else None
            if amount is not None:
                wanted[resource] = amount
        if wanted == self._additions.capacity:
            return
        self._additions = dataclasses.replace(self._additions, capacity=wanted)
        self.capacity = capacity(self.facts, self._settings.capacity, self._additions)
        self._allocatable = allocatable(self.capacity, self._settings.capacity, self._additions)

    async def _wait_for_next_measurement(self) -> None:
        waits = {
            asyncio.ensure_future(self._clock.sleep(self._settings.node.measure_seconds)),
            asyncio.ensure_future(self._measure_event.wait()),
        }
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self._measure_event.clear()

    def status(self) -> Object:
        """The whole status as of now."""
        found: list[ConditionReading] = readings(
            self._measure(),
            self._settings.pressure,
            runtime_problem=self._runtime_problem(),
            network=self._network(),
            pressures=self.pressures(),
        )
        devices = self._devices()
        if devices.condition is not None:
            found.append(devices.condition)
        now = rfc3339(self._clock.now())
        return {
            **static_status(self._settings, self.facts, self._runtime),
            "capacity": with_devices(self.capacity, devices.capacity),
            "allocatable": with_devices(self._allocatable, devices.allocatable),
            "conditions": conditions(found, self._conditions, now),
            "images": self._images(),
        }

    async def _write_status(self) -> None:
        status = self.status()
        due = self._clock.monotonic() - self._written_at >= self._settings.node.status_seconds
        if self._written is not None and not due and not self._recheck and _same(self._written, status):
            return
        try:
            # Strategic: the conditions of others (problem detectors, the node's controller) are left alone. Addresses
            # are replaced as a whole: they would be merged by their type, and a machine may have several of one.
            patch = {**status, "addresses": [*status["addresses"], {"$patch": "replace"}]}
            node = await self._client.patch(
                _NODES, self._settings.node_name, "", {"status": patch}, type="strategic", subresource="status"
            )
        except NotFound:
            log.warning("The node is gone from the API; registering it again", node=self._settings.node_name)
            await self._register()
            await self._write_status()
            return
        self._uid = node["metadata"]["uid"]
        self._recheck = False
        self._conditions = status["conditions"]
        self._written, self._written_at = status, self._clock.monotonic()

    # The lease.

    async def _renew_for_ever(self) -> None:
        renewed = self._clock.monotonic()
        # Soon once more: how often it is to be renewed, a new lease says only after the control plane has seen it.
        first = True
        while True:
            await self._persist(self._renew)
            now = self._clock.monotonic()
            # By half: the clock of who judges it began earlier than ours.
            if now - renewed >= self._lease_seconds / 2:
                log.info("The lease was renewed late; writing the node status", seconds=round(now - renewed))
                self._recheck = True
                self._measure_event.set()
            renewed = now
            share = self._lease_seconds / self._settings.node.lease_seconds
            pause = self._settings.node.renew_seconds * share
            await self._clock.sleep(min(pause, _SECOND_RENEWAL) if first else pause)
            first = False

    async def _renew(self) -> None:
        name = self._settings.node_name
        spec = {
            "holderIdentity": name,
            "leaseDurationSeconds": int(self._lease_seconds),
            "renewTime": rfc3339_micro(self._clock.now()),
        }
        try:
            self._follow(await self._client.patch(_LEASES, name, LEASE_NAMESPACE, {"spec": spec}))
            return
        except NotFound:
            pass
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": self._uid}
        meta: Object = {"name": name, "namespace": LEASE_NAMESPACE, "ownerReferences": [owner]}
        label = self._additions.owner_label
        if label and label in self._additions.labels:
            # Whose lease it is, for admission policies that let accounts use their own only.
            meta["labels"] = {label: self._additions.labels[label]}
        lease: Object = {"metadata": meta, "spec": spec}
        try:
            await self._client.create(_LEASES, lease)
        except AlreadyExists:
            await self._client.patch(_LEASES, name, LEASE_NAMESPACE, {"spec": spec})
        self._recheck = True  # a lease goes with its node: look whether that is still there
        self._measure_event.set()

    def _follow(self, lease: Object) -> None:
        """A control plane that calls nodes lost sooner than we renew the lease says so."""
        wanted = (lease["metadata"].get("annotations") or {}).get(COTERIE_LEASE_DURATION, "")
        own = self._settings.node.lease_seconds
        seconds = float(max(1, min(own, int(wanted)))) if wanted.isascii() and wanted.isdecimal() else float(own)
        if seconds != self._lease_seconds:
            log.info("The lease is renewed more often, as the control plane asks", seconds=round(seconds))
            self._lease_seconds = seconds

    # Leaving.

    async def _leave(self) -> None:
        """What an orderly stop does to the Node. The API may be gone already; then the lease tells."""
        how, name = self._settings.node.on_exit, self._settings.node_name
        try:
            if how == "delete":
                await self._client.delete(_NODES, name, uid=self._uid)
            elif how == "cordon":
                reading = [ConditionReading("Ready", "False", "AgentExit", "the agent was stopped")]
                final_conditions = conditions(reading, self._conditions, rfc3339(self._clock.now()))
                await self._client.patch(_NODES, name, "", {"spec": {"unschedulable": True}})
                await self._client.patch(
                    _NODES,
                    name,
                    "",
                    {"status": {"conditions": final_conditions}},
                    type="strategic",
                    subresource="status",
                )
        except (ApiError, TransportError) as error:
            log.warning("Could not mark the node as stopped", error=error, node=name)

    async def _persist(self, attempt: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Try until it is done; only a name that is taken for good ends the agent."""
        retry = Backoff(_RETRY)
        while True:
            try:
                await attempt()
                return
            except (ApiError, TransportError) as error:
                # A control plane that comes back gives its nodes no more time than a lease is good for.
                wait = min(retry.failed(), self._lease_seconds / 4)
                log.warning("Could not write the node to the API", error=error, seconds=round(wait, 2))
                await self._clock.sleep(wait)


def _same(before: Object, after: Object) -> bool:
    """Equal but for the times of heartbeats."""
    return _timeless(before) == _timeless(after)


def _timeless(status: Object) -> Object:
    bare = [
        {key: value for key, value in condition.items() if key != "lastHeartbeatTime"}
        for condition in status["conditions"]
    ]
    return {**status, "conditions": bare}
