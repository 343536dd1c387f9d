"""Machines of a domain whose first machine is a lite that registered: their Nodes, made with the rights of the domain."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from coterie.base.paths import DomainPaths
from coterie.cli import session as sessions
from coterie.cli.app import App, CliError
from coterie.cli.error_messages import cli_errors
from coterie.kube.api.errors import AlreadyExists, Forbidden, NotFound
from coterie.kube.api.labels import COTERIE_POD_NAMESPACE
from coterie.kube.api.meta import Object
from coterie.kube.api.types.nodes import NODES
from coterie.kube.client.client import Client
from coterie.kube.controllers.nodeipam.plan import ClusterRange, Settings, choose, overlaps
from coterie.kuscia.api.labels import KUSCIA_NODE_NAMESPACE
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.kuscia.gateway.registration.registration_files import registration_file
from coterie.node import cluster_network
from coterie.node.cluster_network import ClusterNetwork
from coterie.node.master_api import api_transport

_NODES = NODES.as_dynamic
_ATTEMPTS = 5
MASTER = "the master, through the gateway of this lite"
"""As errors call it."""


def is_registered(paths: DomainPaths) -> bool:
    """Whether the node of this domain is a lite that registered at a master."""
    return not paths.kubeconfig.exists() and registration_file(paths).exists()


def domains_under(root: Path) -> list[str]:
    """Those of lites that registered."""
    homes = [file.parent.name for file in root.glob("*/var")]
    return [name for name in homes if is_registered(DomainPaths.of(root, name))]


def run(args: argparse.Namespace, app: App, action: Callable[[Client, str], Awaitable[int]]) -> int:
    """Connect to the chosen control plane, or to that of the lite under the root. The action is given the only namespace that can be
    read there; empty: all."""
    paths = _chosen_lite(args, app)
    if paths is None:
        return sessions.run(args, app, lambda session: action(session.client, ""))

    async def converse() -> int:
        client = Client(api_transport(GatewayPaths.of(paths)))
        try:
            return await action(client, paths.home.name)
        finally:
            await client.close()

    with cli_errors(MASTER):
        return asyncio.run(converse())


def _chosen_lite(args: argparse.Namespace, app: App) -> DomainPaths | None:
    """None: the command is for a control plane with a kubeconfig."""
    if args.kubeconfig or (app.environ.get("KUBECONFIG") and not args.root and not args.domain):
        return None
    root = sessions.root_of(args, app)
    if args.domain:
        paths = DomainPaths.of(root, args.domain)
        return paths if is_registered(paths) else None
    found = domains_under(root) if not sessions.domains_under(root) else []
    if len(found) > 1:
        raise CliError(f"Error: there are several domains under {root}: choose one with --domain {'|'.join(found)}")
    return DomainPaths.of(root, found[0]) if found else None


def network(paths: DomainPaths) -> tuple[ClusterNetwork, str]:
    """With the URL of the API for other machines, as this machine reaches it."""
    try:
        return cluster_network.load_network(paths)
    except FileNotFoundError as problem:
        raise CliError(
            f"Error: the lite {paths.home.name} does not accept other machines now; set apiServer.host (0.0.0.0) and "
            "agent.address (the address of this machine) in its configuration, and start it"
        ) from problem
    except (OSError, ValueError) as problem:
        raise CliError(
            f"Error: {cluster_network.network_file(paths)} cannot be read; start the lite again"
        ) from problem


def next_range(name: str, nodes: list[Object], known: ClusterNetwork) -> str | None:
    """The range of pod addresses for a new Node; None: all are in use. Pure."""
    used = [cidr for node in nodes if (cidr := (node.get("spec") or {}).get("podCIDR"))]
    settings = Settings((ClusterRange.of(known.pod_cidr, known.node_mask_size),))
    chosen = choose(name, used, settings)
    return chosen[0] if chosen is not None else None


async def registered(client: Client, body: Object, domain: str, known: ClusterNetwork) -> Object:
    """The Node, with its range of pod addresses: the one of `body` is created unless it exists."""
    meta = body["metadata"]
    name = meta["name"]
    meta["labels"] = {**meta["labels"], COTERIE_POD_NAMESPACE: domain}
    refused = ""
    for _ in range(_ATTEMPTS):
        found = await client.list(_NODES, labels=f"{KUSCIA_NODE_NAMESPACE}={domain}")
        existing = next((node for node in found.items if node["metadata"]["name"] == name), None)
        if existing is not None:
            return _checked(existing, known)
        cidr = next_range(name, list(found.items), known)
        if cidr is None:
            raise CliError(
                f"Error: all ranges /{known.node_mask_size} of {known.pod_cidr} are in use; delete the Nodes of machines "
                "that are gone, or start the lite with a wider network.podCIDR"
            )
        try:
            made: Object = await client.create(_NODES, {**body, "spec": {"podCIDR": cidr, "podCIDRs": [cidr]}})
            return made
        except AlreadyExists:
            refused = "it exists"
            await _check_owner(client, name, domain)
        except Forbidden as problem:
            refused = problem.message  # another machine was added at the same time
    raise CliError(f"Error: the master does not create the Node {name}: {refused}")


async def _check_owner(client: Client, name: str, domain: str) -> None:
    try:
        await client.get(_NODES, name)
    except NotFound:
        return
    except Forbidden as problem:
        raise CliError(
            f"Error: the master has a node {name} already, which is not of {domain}; choose another name"
        ) from problem


def _checked(node: Object, known: ClusterNetwork) -> Object:
    name, cidr = node["metadata"]["name"], str((node.get("spec") or {}).get("podCIDR") or "")
    if not cidr or not overlaps(cidr, known.pod_cidr) or not cidr.endswith(f"/{known.node_mask_size}"):
        raise CliError(
            f"Error: the Node {name} has the pod addresses {cidr or '(none)'}, which are no range /{known.node_mask_size} "
            f"of {known.pod_cidr}; delete it and try again"
        )
    if overlaps(cidr, known.gateway):
        raise CliError(f"Error: {name} is this machine; choose another name")
    return node
