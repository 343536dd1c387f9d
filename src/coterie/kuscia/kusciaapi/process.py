"""The process that serves KusciaAPI and ConfManager, started when somebody calls and ended when nobody does for a
while.

Knows nothing of gRPC and protobuf, which only the child loads. ConfManager's listeners may be in the network namespace of
the domain's pods, KusciaAPI's are always the machine's. What lites send through the gateway comes by a socket
that only this node can open: a port could be called by whoever is on the machine, with any domain's name.
"""

from __future__ import annotations

import re
from pathlib import Path

from coterie.base.clock import Clock
from coterie.kube.client.client import Client
from coterie.kube.control.on_demand_process import (
    IDLE,
    HeldListener,
    NamespaceListeners,
    OnDemandProcess,
    OnDemandProcessSpec,
    OnDemandRunnable,
)
from coterie.kuscia.api.types.domain import DOMAIN_CONFIG
from coterie.kuscia.kusciaapi.settings import CONF_GRPC, CONF_HTTP, INNER, KusciaApiSettings

API_SOCKET, GATE_SOCKET = "kapi-node.sock", "kapi.sock"
"""Short: the path of a socket has a limit."""
_NAME = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
_KUSCIA = r"/apis/kuscia\.secretflow/v1alpha1"
_CORE = "/api/v1"
_BELOW = rf"/namespaces/{_NAME}"
_ONE = rf"(?P<one>/{_NAME})"
_KEPT = (
    rf"{_KUSCIA}/(domains|clusterdomainroutes|appimages){_ONE}?",
    rf"{_KUSCIA}{_BELOW}/(kusciajobs|kusciadeployments|domaindatas|domaindatasources|domaindatagrants|logrequests|jobplanrequests){_ONE}?",
    rf"{_KUSCIA}{_BELOW}/kusciajobs{_ONE}/status",
)
"""What the operations write."""
_RECORD = rf"{_KUSCIA}{_BELOW}/domaindatarecords/{_NAME}"
"""Read, and removed together with the data; the data mesh writes them."""
_NODE = rf"{_CORE}/nodes/{_NAME}"
_TASK = rf"{_KUSCIA}{_BELOW}/kusciatasks/{_NAME}"
"""Read and patched: a node's annotation with its bandwidth, a running task's limits."""
_SEEN = (
    rf"{_CORE}/nodes",
    rf"{_KUSCIA}{_BELOW}/(gateways|domainroutes|taskresources)",
    rf"{_KUSCIA}{_BELOW}/kusciatasks(/{_NAME})?",
    rf"/apis/apps/v1{_BELOW}/deployments/{_NAME}",
    rf"{_CORE}/nodes/{_NAME}",
    rf"{_CORE}{_BELOW}/(pods|services)(/{_NAME})?",
    rf"{_CORE}{_BELOW}/pods/({_NAME}|\*)/log",
)


def allowed(method: str, path: str, query: str, domain: str) -> bool:
    """Objects that operations are about, but never all of them to be removed; the config store; what they look at
    besides."""
    for each in _KEPT:
        if found := re.fullmatch(each, path):
            return method != "DELETE" or found["one"] is not None
    if re.fullmatch(_RECORD, path):
        return method in ("GET", "DELETE")
    if re.fullmatch(_NODE, path) or re.fullmatch(_TASK, path):
        return method in ("GET", "PATCH")
    maps = f"{_CORE}/namespaces/{domain}/configmaps"
    if path in (maps, f"{maps}/{DOMAIN_CONFIG}"):
        return method == "POST" if path == maps else method in ("GET", "PATCH")
    return method == "GET" and any(re.fullmatch(each, path) for each in _SEEN)


class KusciaApiProcess(OnDemandRunnable):
    """A Runnable, ready as soon as the listeners are open. OSError when a port cannot be had."""

    name = "kusciaapi"

    def __init__(
        self,
        settings: KusciaApiSettings,
        run: Path,
        client: Client,
        clock: Clock,
        *,
        inner: bool,
        pods: NamespaceListeners | None = None,
        idle: float = IDLE,
    ) -> None:
        """`run`: where the sockets lie, private and short. `inner`: whether lites may come through the gateway. `pods`: the
        network in which ConfManager listens; None: the machine's."""
        self.settings = settings
        plan = OnDemandProcessSpec(
            name=self.name,
            who="KusciaAPI",
            module="coterie.kuscia.kusciaapi",
            options={**settings.options(), "--beat": str(idle / 4)},
            listeners=_listeners(settings, run, inner, pods),
            api=run / API_SOCKET,
            log_file=settings.paths.log("kusciaapi"),
            logging=settings.paths.logging,
            log_rotation=settings.log_rotation,
        )

        def passes(method: str, path: str, query: str) -> bool:
            return allowed(method, path, query, settings.domain)

        self._held = OnDemandProcess(plan, client.transport, passes, clock, idle=idle)

    def release(self) -> None:
        self._held.release()

    async def run(self) -> None:
        await self._held.run()


def _listeners(
    settings: KusciaApiSettings, run: Path, inner: bool, pods: NamespaceListeners | None
) -> list[HeldListener]:
    made = [
        HeldListener.port(name, address, port, pods.open_port)
        if pods is not None and name in (CONF_HTTP, CONF_GRPC)
        else HeldListener.port(name, address, port)
        for name, address, port in settings.ports
    ]
    return [*made, HeldListener.unix(INNER, run / GATE_SOCKET)] if inner else made
