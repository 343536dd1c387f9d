"""The evidence log of the domain: opened before anything that must be recorded can happen. Provides `evidence` (EvidenceService)."""

from __future__ import annotations

from coterie.base.files import private_directory
from coterie.kube.control.manager import Runnable
from coterie.kuscia.api import evidence
from coterie.kuscia.api.evidence import EventRequest, EvidenceEvent
from coterie.kuscia.evidence.service import EvidenceService
from coterie.kuscia.gateway.addresses import Protocol
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.node.config import NodeSettings
from coterie.node.parts.context import NodeContext


def build(node: NodeContext) -> list[list[Runnable]]:
    settings = node.settings
    # Beside the gateway's sockets, whose directory is short enough for a socket's name.
    run = private_directory(GatewayPaths.of(settings.paths).run)
    node.protections_off += switched_off(settings)
    service = EvidenceService(
        settings.paths,
        settings.domain,
        run / "evidence.sock",
        node.clock,
        announced=lambda: list(map(_weakened, node.protections_off)),
    )
    node.provide("evidence", service)
    return [[service]]


def _weakened(what: str) -> EventRequest:
    return EventRequest(event=EvidenceEvent(kind=evidence.SECURITY_WEAKENED, reason=what))


def switched_off(settings: NodeSettings) -> list[str]:
    """Protections that the configuration takes away: each is an event of every start. Pure."""
    gateway = settings.gateway
    found = {
        "protocol: NOTLS": gateway.protocol is Protocol.NOTLS,
        "kusciaAPI.protocol: NOTLS": settings.kuscia_api.enabled and settings.kuscia_api.protocol == "NOTLS",
        "enableWorkloadApprove: false": settings.workload_approve is False,
        "gateway.ingress": gateway.ingress is not None,
        "runk.networkPolicies: false": settings.runk is not None and not settings.runk.network_policies,
        "runk.allowRoot: true": settings.runk is not None and settings.runk.allow_root,
        "dataMesh.dataProxyList without clientTLSConfig": any(not each.secure for each in settings.data_mesh.proxies),
    }
    return [name for name, off in found.items() if off]
