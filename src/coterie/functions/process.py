"""The process of functions, started when the domain's first Action or Trigger exists and ended when none is left
(kube/control/on_demand_process.py)."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from coterie.base import trace_socket
from coterie.base.clock import Clock
from coterie.base.tasks import TaskOwner
from coterie.functions.bus_member import BusMember
from coterie.functions.settings import BUS_VARIABLE, HOPS, FunctionsSettings
from coterie.kube.api.meta import PartialObjectMetadata
from coterie.kube.api.types.kind import Kind
from coterie.kube.client.client import Client
from coterie.kube.client.informer import Informer, ObjectChange
from coterie.kube.control.on_demand_process import (
    HeldListener,
    NamespaceListeners,
    OnDemandProcess,
    OnDemandProcessSpec,
    OnDemandRunnable,
)
from coterie.kuscia.api.functions.types import ACTIONS, GATEWAY_NAME, TRIGGERS
from coterie.kuscia.gateway.paths import GatewayPaths

IDLE = 30.0
"""Seconds after the last Action and Trigger are gone."""
_NAME = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
_FUNCTIONS = "actions|triggers|actiongrants|deadletters"


def allowed(method: str, path: str, query: str, domain: str) -> bool:
    """The kinds of functions in every way; pods with their own labels, ConfigMaps and Secrets with names of their own; the gateway's
    objects by name; events; tables and NetworkPolicies are read. All of the own namespace alone."""
    space = rf"namespaces/{re.escape(domain)}"
    core, functions = rf"/api/v1/{space}", rf"/apis/coterie\.io/v1alpha1/{space}"
    rules = (
        ("GET|POST|PATCH|PUT|DELETE", rf"{functions}/({_FUNCTIONS})(/{_NAME}(/status)?)?"),
        ("GET|POST", rf"{core}/pods"),
        ("GET|PATCH|DELETE", rf"{core}/pods/{_NAME}"),
        ("POST", rf"{core}/(configmaps|secrets|services|events)"),
        ("GET|PATCH|PUT|DELETE", rf"{core}/configmaps/(action|trigger)-{_NAME}"),
        ("GET|PATCH|DELETE", rf"{core}/secrets/(action-{_NAME}|{GATEWAY_NAME})"),
        ("GET|PATCH|DELETE", rf"{core}/services/{GATEWAY_NAME}"),
        ("GET|PATCH|PUT", rf"{core}/events/{_NAME}"),
        ("POST", rf"/apis/events\.k8s\.io/v1/{space}/events"),
        ("GET|PATCH|PUT", rf"/apis/events\.k8s\.io/v1/{space}/events/{_NAME}"),
        ("POST", rf"/apis/apps/v1/{space}/deployments"),
        ("GET|PATCH|PUT|DELETE", rf"/apis/apps/v1/{space}/deployments/{GATEWAY_NAME}"),
        ("GET", rf"/apis/apps/v1/{space}/replicasets/{GATEWAY_NAME}-{_NAME}"),
        ("POST", rf"/apis/autoscaling/v2/{space}/horizontalpodautoscalers"),
        ("GET|PATCH|PUT|DELETE", rf"/apis/autoscaling/v2/{space}/horizontalpodautoscalers/{GATEWAY_NAME}"),
        ("GET", rf"/apis/networking\.k8s\.io/v1/{space}/networkpolicies"),
        ("GET", rf"/apis/kuscia\.secretflow/v1alpha1/{space}/domaindata(s|grants)(/{_NAME})?"),
    )
    return any(re.fullmatch(methods, method) and re.fullmatch(where, path) for methods, where in rules)


def _listeners(settings: FunctionsSettings) -> list[HeldListener]:
    """Where our own Envoy brings partners' calls: those of partners that Actions or ActionGrants name, so it leads nobody here while there are none."""
    if settings.gateway is None:
        return []
    return [HeldListener.unix(HOPS, Path(GatewayPaths.of(settings.paths).hops_socket.host))]


class FunctionsProcess(OnDemandRunnable):
    """A Runnable, ready at once: what starts later is of no concern to the rest of the node."""

    name = "functions"

    def __init__(
        self,
        settings: FunctionsSettings,
        run: Path,
        client: Client,
        clock: Clock,
        *,
        pods: NamespaceListeners | None = None,
        idle: float = IDLE,
        bus_member: BusMember | None = None,
    ) -> None:
        """`run`: where the sockets lie, private and short. `pods`: the network of the domain's pods; None: the machine's. `bus_member`: of a control
        plane of several members, where the bus is a file of one of them."""
        self.settings = settings
        self._bus_member = bus_member
        self._needed = asyncio.Event()
        self._existing: dict[str, str] = {}
        """Objects that need the process, by uid."""

        def passes(method: str, path: str, query: str) -> bool:
            return allowed(method, path, query, settings.domain)

        plan = OnDemandProcessSpec(
            name=self.name,
            who="the functions process",
            module="coterie.functions",
            options=settings.options(),
            listeners=_listeners(settings),
            api=run / "functions.sock",
            log_file=settings.paths.log(self.name),
            logging=settings.paths.logging,
            log_rotation=settings.log_rotation,
            env={BUS_VARIABLE: settings.bus, **trace_socket.environment(settings.traces)},
            prefix=pods.prefix if pods is not None else (),
        )
        self._held = OnDemandProcess(plan, client.transport, passes, clock, idle=idle, in_use=self._in_use)
        # Of its own, not the node's: the control plane of an older version does not know the kinds, and that must not stop the node.
        self._informers: list[Informer[PartialObjectMetadata]] = [
            Informer(client, Kind.metadata(kind.resource), namespace=settings.domain) for kind in (ACTIONS, TRIGGERS)
        ]

    async def run(self) -> None:
        async with TaskOwner(self.name) as owner:
            for each in self._informers:
                each.add_handler(self._changed)
                owner.start(each.name, each.run(), endless=True)
            if self._bus_member is not None:
                owner.start("bus-member", self._take_bus(self._bus_member))
            await self._held.run()

    async def _take_bus(self, member: BusMember) -> None:
        await self._needed.wait()
        await member.take()

    def _in_use(self) -> bool:
        return bool(self._existing)

    def _changed(self, change: ObjectChange[PartialObjectMetadata]) -> None:
        meta = change.object.metadata
        if change.type == "deleted":
            self._existing.pop(meta.uid, None)
        else:
            self._existing[meta.uid] = meta.name
            self._needed.set()
            self._held.need()
