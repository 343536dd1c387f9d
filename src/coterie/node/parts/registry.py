"""What each mode runs, and in which order: one table.

    evidence ──> control-plane | join ──> pod-network ──> registration ──> node-api | gateway ──> dns ──> kusciaapi ──> datamesh
                         ──> transport ──> functions ──> overlay ──> policies ──> services ──> traces ──> agent ──> controller-health ──> metrics ──> console

`pod-network` makes the network in which later parts listen for pods; `overlay` connects it with other machines. With
`runtime: runk` the pods are in another cluster: `backing-cluster` and `mirror-agent` stand for all parts that run pods here. One of
control-plane, kubernetes, join and registration provides `client` and `informers` to the others: a control plane its own, a lite that
joined with a file over HTTPS, a lite that registered through gateways (which therefore brings its gateway along). A part is a
module with `build(node: NodeContext) -> list[list[Runnable]]`: groups of Runnables that start one after the other. Modules
are loaded by name, here and nowhere else: a master that carried the agent and the HTTP client of a lite node would idle with a
quarter more memory.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from coterie.base.clock import Clock
from coterie.kube.control.manager import Runnable
from coterie.node.config import NodeSettings
from coterie.node.parts.context import NodeContext

_HERE = "coterie.node.parts"


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    module: str
    modes: tuple[str, ...]
    after: tuple[str, ...] = ()
    """Parts that must be built before it, where the node has them."""
    enabled: Callable[[NodeSettings], bool] = lambda settings: True


_FIRST = ("control-plane", "kubernetes", "join", "registration", "pod-network", "backing-cluster")

PARTS = (
    # A node that only joined has no key of its domain; a control plane without gateway has no partners.
    Part(
        "evidence",
        f"{_HERE}.evidence",
        ("master", "lite", "autonomy"),
        enabled=lambda settings: settings.join is None and settings.gateway.enabled,
    ),
    Part(
        "control-plane",
        f"{_HERE}.control_plane",
        ("master", "autonomy"),
        after=("evidence",),
        enabled=lambda settings: not settings.api.kubeconfig,
    ),
    Part(
        "kubernetes",
        f"{_HERE}.kubernetes",
        ("master", "autonomy"),
        after=("evidence",),
        enabled=lambda settings: bool(settings.api.kubeconfig),
    ),
    Part("join", f"{_HERE}.join", ("lite",), enabled=lambda settings: settings.join is not None),
    Part(
        "pod-network",
        f"{_HERE}.pod_network",
        ("lite", "autonomy"),
        after=("control-plane", "kubernetes", "join"),
        enabled=lambda settings: settings.runk is None,
    ),
    Part(
        "backing-cluster",
        f"{_HERE}.backing_cluster",
        ("lite", "autonomy"),
        after=("control-plane", "kubernetes"),
        enabled=lambda settings: settings.runk is not None,
    ),
    Part(
        "registration",
        f"{_HERE}.registration",
        ("lite",),
        after=("pod-network",),
        enabled=lambda settings: settings.join is None,
    ),
    Part(
        "node-api",
        f"{_HERE}.node_api",
        ("lite",),
        after=("registration",),
        enabled=lambda settings: settings.node_api is not None,
    ),
    Part(
        "gateway",
        f"{_HERE}.gateway",
        ("master", "autonomy"),
        after=_FIRST,
        enabled=lambda settings: settings.gateway.enabled,
    ),
    Part(
        "dns",
        f"{_HERE}.dns",
        ("master", "lite", "autonomy"),
        after=(*_FIRST, "gateway"),
        enabled=lambda settings: settings.dns.enabled,
    ),
    Part(
        "kusciaapi",
        f"{_HERE}.kusciaapi",
        ("master", "lite", "autonomy"),
        after=(*_FIRST, "gateway"),
        enabled=lambda settings: settings.kuscia_api.enabled and settings.join is None,
    ),
    Part(
        "datamesh",
        f"{_HERE}.datamesh",
        ("lite", "autonomy"),
        after=(*_FIRST, "gateway"),
        enabled=lambda settings: settings.data_mesh.enabled and settings.join is None,
    ),
    Part(
        "transport",
        f"{_HERE}.transport",
        ("lite", "autonomy"),
        after=(*_FIRST, "gateway"),
        enabled=lambda settings: settings.transport.enabled and settings.join is None,
    ),
    Part(
        "functions",
        f"{_HERE}.functions",
        ("autonomy",),
        after=(*_FIRST, "gateway"),
        enabled=lambda settings: settings.functions.enabled and settings.join is None,
    ),
    # The network between nodes of somebody's cluster is the cluster's.
    Part(
        "overlay",
        f"{_HERE}.overlay",
        ("lite", "autonomy"),
        after=_FIRST,
        enabled=lambda settings: not settings.api.kubeconfig and settings.runk is None,
    ),
    *(
        Part(
            name, f"{_HERE}.{name}", ("lite", "autonomy"), after=_FIRST, enabled=lambda settings: settings.runk is None
        )
        for name in ("policies", "services")
    ),
    Part(
        "traces",
        f"{_HERE}.traces",
        ("master", "lite", "autonomy"),
        after=(*_FIRST, "gateway"),
        enabled=lambda settings: settings.traces.enabled,
    ),
    Part(
        "agent",
        f"{_HERE}.agent",
        ("lite", "autonomy"),
        after=(*_FIRST, "gateway", "dns", "datamesh", "overlay", "policies", "services"),
        enabled=lambda settings: settings.runk is None,
    ),
    Part(
        "mirror-agent",
        f"{_HERE}.mirror_agent",
        ("lite", "autonomy"),
        after=(*_FIRST, "gateway", "dns", "datamesh"),
        enabled=lambda settings: settings.runk is not None,
    ),
    Part(
        "controller-health",
        f"{_HERE}.controller_health",
        ("master", "autonomy"),
        after=("control-plane", "kubernetes"),
        enabled=lambda settings: settings.controllers.health_port != 0,
    ),
    Part(
        "metrics",
        f"{_HERE}.metrics",
        ("master", "lite", "autonomy"),
        after=(*_FIRST, "gateway", "traces", "agent"),
        enabled=lambda settings: settings.metrics.enabled,
    ),
    Part(
        "console",
        f"{_HERE}.console",
        ("master", "autonomy"),
        after=("control-plane", "gateway"),
        enabled=lambda settings: settings.console.enabled,
    ),
)


def parts_of(settings: NodeSettings) -> list[Part]:
    return [part for part in PARTS if settings.mode in part.modes and part.enabled(settings)]


def build(settings: NodeSettings, clock: Clock) -> list[list[Runnable]]:
    """All groups of a node in the order in which they start."""
    node = NodeContext(settings, clock)
    groups: list[list[Runnable]] = []
    for part in parts_of(settings):
        groups += importlib.import_module(part.module).build(node)
    return groups
