"""The node of this machine that joined a control plane with a file: where its files are, and how it is stopped."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from coterie.base.paths import DomainPaths
from coterie.cli import background
from coterie.cli.app import App, CliError
from coterie.cli.session import root_of
from coterie.kube.agent.images.store import remove_tree
from coterie.kube.agent.runtimes.halt_node import halt_node
from coterie.kube.agent.runtimes.protocol import RuntimeFailure
from coterie.kube.client.client import Client
from coterie.kube.client.http_transport import HttpTransport
from coterie.kube.network.rootless.client import RelayError, exchange
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.node import config, join_bundle
from coterie.node.config import ConfigError, NodeSettings
from coterie.node.join_bundle import Bundle

_NODE_GRACE = 10.0
_TIMEOUT = 10.0
JOIN_FILE = "node.join"


@dataclass(frozen=True, slots=True)
class LocalNode:
    settings: NodeSettings
    name: str
    bundle: Bundle | None
    """None: its join file cannot be read."""

    @property
    def paths(self) -> DomainPaths:
        return self.settings.paths


def join_file(paths: DomainPaths) -> Path:
    return paths.etc / JOIN_FILE


def find(args: argparse.Namespace, app: App) -> LocalNode:
    """The node under the root, or the one of --domain."""
    root = root_of(args, app)
    found: list[NodeSettings] = []
    others: list[str] = []
    for path in sorted(root.glob("*/etc/coterie.yaml")):
        domain = path.parent.parent.name
        if args.domain and domain != args.domain:
            continue
        try:
            settings = config.load(path, root=root)
        except ConfigError as problem:
            raise CliError(f"Error: {problem}") from problem
        if settings.join is not None:
            found.append(settings)
        else:
            others.append(domain)
    if len(found) > 1:
        names = "|".join(each.domain for each in found)
        raise CliError(f"Error: there are several nodes under {root}: choose one with --domain {names}")
    if not found and others:
        raise CliError(f"Error: {', '.join(others)} under {root} did not join with a file; stop it with `coterie down`")
    if not found:
        raise CliError(f"Error: there is no node under {root}; `coterie node join FILE` starts one")
    return _local(found[0])


def _local(settings: NodeSettings) -> LocalNode:
    assert settings.join is not None and settings.agent is not None
    try:
        bundle = join_bundle.read_bundle(settings.join)
    except ConfigError:
        return LocalNode(settings, settings.agent.node_name, None)
    return LocalNode(settings, bundle.node, bundle)


@contextlib.asynccontextmanager
async def client_of(bundle: Bundle) -> AsyncIterator[Client]:
    """With the credentials of the node."""
    client = Client(HttpTransport(bundle.connection(), timeout=_TIMEOUT, user_agent="coterie-cli"))
    try:
        yield client
    finally:
        await client.close()


def stop(node: LocalNode, grace: float) -> tuple[bool, int]:
    """Whether it ran, and how many pods were stopped. Nothing of it runs afterwards."""
    paths, agent = node.paths, node.settings.agent
    assert agent is not None
    try:
        ran = bool(background.stop([paths], _NODE_GRACE))
    except PermissionError as problem:
        raise CliError(f"Error: {problem}; run this as the user who started the node") from problem
    with contextlib.suppress(OSError), socket.create_connection((agent.address, agent.port or 1), timeout=1):
        raise CliError(
            f"Error: something that `coterie node join` did not start serves {agent.address}:{agent.port}; "
            "stop it first (a node of `coterie start` with Ctrl-C)"
        )
    try:
        pods = asyncio.run(halt_node(paths.run, node.name, grace, forget=True))
    except RuntimeFailure as problem:
        raise CliError(f"Error: the pods could not be stopped: {problem}; try again") from problem
    with contextlib.suppress(RelayError, OSError):
        exchange(paths.run / "relay", "quit")  # of a node that was killed
    return ran, pods


def remove_files(node: LocalNode) -> None:
    remove_tree(GatewayPaths.of(node.paths).run)  # sockets of a deep root lie elsewhere
    remove_tree(node.paths.home)
    with contextlib.suppress(OSError):
        node.paths.home.parent.rmdir()  # the root, when nothing else is there
