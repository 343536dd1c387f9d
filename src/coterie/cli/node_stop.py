"""What is left of a node when its process has ended, stopped as well: its gateway, its pods, its files."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from coterie.cli.app import CliError
from coterie.kube.agent.images.store import remove_tree
from coterie.kube.agent.runtimes.halt_node import halt_node
from coterie.kube.agent.runtimes.protocol import RuntimeFailure
from coterie.kuscia.gateway import orphaned_envoy
from coterie.kuscia.gateway.envoy import EnvoySettings
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.node.config import NodeSettings

_GATEWAY_GRACE = 5.0


async def stop_gateways(nodes: Sequence[NodeSettings]) -> None:
    """A gateway outlives a node that was killed, so that partners notice nothing. Now they shall."""
    left = []
    for node in nodes:
        places = GatewayPaths.of(node.paths)
        envoy = EnvoySettings(node.domain, places.directory, places.run, places.logs)
        pid = orphaned_envoy.running(envoy.pid_file, envoy.bootstrap)
        if pid is not None:
            left.append(orphaned_envoy.end(pid, _GATEWAY_GRACE))
    await asyncio.gather(*left)


async def stop_pods(nodes: Sequence[NodeSettings], grace: float, *, forget: bool) -> dict[str, int]:
    """How many pods of each domain ran."""
    agents = [(node, node.agent) for node in nodes if node.agent is not None]
    try:
        counts = await asyncio.gather(
            *(halt_node(node.paths.run, agent.node_name, grace, forget=forget) for node, agent in agents)
        )
    except RuntimeFailure as problem:
        raise CliError(f"Error: the pods could not be stopped: {problem}; try again") from problem
    return {node.domain: count for (node, _), count in zip(agents, counts, strict=True)}


def remove_files(node: NodeSettings) -> None:
    # Sockets of a deep root lie elsewhere.
    remove_tree(GatewayPaths.of(node.paths).run)
    remove_tree(node.paths.home)
