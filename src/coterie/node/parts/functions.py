"""Functions of the domain as a part of a node: a child runs them while there are Actions or Triggers.

functions_groups(settings, client, clock, pods)      before the agent
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from coterie.base.clock import Clock
from coterie.base.exposition import Family
from coterie.base.files import private_directory
from coterie.functions.bus_member import BusMember
from coterie.functions.process import FunctionsProcess
from coterie.functions.settings import EMBEDDED, FunctionsSettings
from coterie.functions.spare_plan import SparePolicy
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.manager import Runnable
from coterie.kube.control.on_demand_process import NamespaceListeners
from coterie.kuscia.evidence.service import EvidenceService
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.node.config import NodeSettings
from coterie.node.parts.context import NodeContext
from coterie.node.parts.leadership import Leadership


def build(node: NodeContext) -> list[list[Runnable]]:
    pods = node.find("namespace_listeners", NamespaceListeners)
    leadership = node.find("leadership", Leadership)
    recorder = node.find("evidence", EvidenceService)
    evidence = recorder.socket if recorder is not None else None
    if leadership is None:
        child = functions_process(node.settings, node.client, node.clock, pods, evidence)
        node.metrics_sources.append(child.metrics)
        return [[child]]
    # One dispatcher of a domain: calls that wait in the embedded bus wait for the member that took them (docs/guide/high-availability.md).
    member = leadership.member

    def term(client: Client, _: Informers) -> list[Runnable]:
        bus_member = None
        if node.settings.functions.bus == EMBEDDED:
            bus_member = BusMember(client, member, node.settings.domain, node.clock)
        return [functions_process(node.settings, client, node.clock, pods, evidence, bus_member)]

    leadership.add(term)
    node.metrics_sources.append(_FunctionsOfTerm(leadership))
    return []


class _FunctionsOfTerm:
    """What the process of functions counts, while this member leads."""

    name = "functions"

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership

    async def families(self) -> Sequence[Family]:
        running = [each for each in self._leadership.elected.parts if isinstance(each, FunctionsProcess)]
        return [family for each in running for family in await each.metrics.families()]


def functions_process(
    settings: NodeSettings,
    client: Client,
    clock: Clock,
    pods: NamespaceListeners | None = None,
    evidence: Path | None = None,
    bus_member: BusMember | None = None,
) -> FunctionsProcess:
    """`pods`: the network of the domain's pods; None: the machine's. `evidence`: the socket of the evidence log. `bus_member`: see
    FunctionsProcess."""
    chosen, paths = settings.functions, settings.paths
    given = FunctionsSettings(
        settings.domain,
        paths,
        bus=chosen.bus,
        image=chosen.image,
        max_body=chosen.max_body_mb << 20,
        min_gateways=chosen.min_gateways,
        max_gateways=chosen.max_gateways,
        spares=SparePolicy(chosen.spare_actors, chosen.spare_idle_seconds),
        gateway=Path(GatewayPaths.of(paths).node_socket.host) if settings.gateway.enabled else None,
        own_network=pods is not None,
        log_rotation=settings.logrotate.of_node,
        traces=GatewayPaths.of(paths).traces_socket if settings.traces.enabled else None,
        evidence=evidence,
    )
    if pods is not None:
        given = replace(given, netns=pods.netns)
    # Beside the gateway's sockets, whose directory is short enough for a socket's name.
    return FunctionsProcess(
        given, private_directory(GatewayPaths.of(paths).run), client, clock, pods=pods, bus_member=bus_member
    )
