"""The domain's data mesh as a part of a node: the ports are held here, a child serves them while there are engines.

datamesh_groups(settings, client, informers, clock)      after the informers, before the agent
"""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

from coterie.base.clock import Clock
from coterie.base.files import private_directory
from coterie.base.log import logger
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.manager import Runnable
from coterie.kube.control.on_demand_process import NamespaceListeners
from coterie.kuscia.datamesh.process import DataMeshProcess
from coterie.kuscia.datamesh.settings import MeshSettings
from coterie.kuscia.evidence.service import EvidenceService
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.node.config import ConfigError, NodeSettings
from coterie.node.parts.context import NodeContext

log = logger("datamesh")


def build(node: NodeContext) -> list[list[Runnable]]:
    recorder = node.find("evidence", EvidenceService)
    groups = datamesh_groups(
        node.settings,
        node.client,
        node.informers,
        node.clock,
        node.find("namespace_listeners", NamespaceListeners),
        recorder.socket if recorder is not None else None,
    )
    node.metrics_sources += [each.metrics for group in groups for each in group if isinstance(each, DataMeshProcess)]
    return groups


def datamesh_groups(
    settings: NodeSettings,
    client: Client,
    informers: Informers,
    clock: Clock,
    pods: NamespaceListeners | None = None,
    evidence: Path | None = None,
) -> list[list[Runnable]]:
    """ConfigError when a port cannot be had. A node that only joined has no key of its domain, hence no data mesh.

    `pods`: the network in which it listens; None: the machine's. `evidence`: the socket of the evidence log.
    """
    chosen, paths = settings.data_mesh, settings.paths
    if not chosen.enabled or not paths.domain_key.exists():
        return []
    mesh = MeshSettings(
        settings.domain,
        paths,
        chosen.address,
        chosen.http_port,
        chosen.grpc_port,
        log_rotation=settings.logrotate.of_node,
        only_data_directory=settings.mode == "lite",
        node=settings.agent.node_name if settings.agent is not None else "",
        evidence=evidence,
        proxies=chosen.proxies,
        traces=GatewayPaths.of(paths).traces_socket if settings.traces.enabled else None,
    )
    for each in chosen.proxies:
        if each.direct:
            log.warning(
                "Rows of a data proxy pass through the data mesh, also with mode: direct", endpoint=each.endpoint
            )
        if not each.secure:
            log.warning(
                "Settings of data sources go to a data proxy in clear text; set clientTLSConfig",
                endpoint=each.endpoint,
                types=",".join(each.types),
            )
    if pods is not None:
        mesh = replace(mesh, address=pods.address, names=(chosen.address,))
    # Beside the gateway's sockets, whose directory is short enough for a socket's name.
    run = private_directory(GatewayPaths.of(paths).run)
    try:
        child = DataMeshProcess(mesh, run, client, informers, clock, everywhere=settings.mode != "lite", pods=pods)
    except OSError as problem:
        raise ConfigError(_cannot_listen(mesh, problem)) from problem
    return [[child]]


def _cannot_listen(mesh: MeshSettings, problem: OSError) -> str:
    where = f"{mesh.address}, port {mesh.http_port} or {mesh.grpc_port}"
    ways = "set dataMesh.host, dataMesh.httpPort and dataMesh.grpcPort, or dataMesh.enabled: false"
    if problem.errno == errno.EADDRINUSE:
        return f"dataMesh: another program listens on {where}; {ways}"
    if problem.errno == errno.EADDRNOTAVAIL:
        return f"dataMesh.host: {mesh.address} is no address of this machine; {ways}"
    return f"dataMesh: cannot listen on {where} ({problem.strerror}); {ways}"
