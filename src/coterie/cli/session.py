"""A client for the control plane that a command is about; `control_plane.py` has the rule which one that is."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from coterie.cli.app import App
from coterie.cli.control_plane import domains_under, kubeconfig_files, root_of
from coterie.cli.error_messages import cli_errors
from coterie.kube.api.resources import Resource
from coterie.kube.client import kubeconfig
from coterie.kube.client.client import Client
from coterie.kube.client.discovery import RestMapper, discover
from coterie.kube.client.http_transport import HttpTransport
from coterie.kube.client.kubeconfig import ClusterConnection

__all__ = ["CliSession", "choose", "domains_under", "kubeconfig_files", "root_of", "run"]


@dataclass
class CliSession:
    """One command's conversation with one server."""

    app: App
    client: Client
    connection: ClusterConnection
    namespace: str
    _catalogue: RestMapper | None = None

    async def catalogue(self, *, fresh: bool = False) -> RestMapper:
        if self._catalogue is None or fresh:
            self._catalogue = await discover(self.client)
        return self._catalogue

    def place(self, resource: Resource, everywhere: bool = False) -> str:
        """The namespace to ask in; empty for kinds that have none, and for all of them."""
        return self.namespace if resource.namespaced and not everywhere else ""


def run(args: argparse.Namespace, app: App, action: Callable[[CliSession], Awaitable[int]]) -> int:
    """Connect, do it, and tell failures."""
    connection = choose(args, app)

    async def converse() -> int:
        transport = app.connect(connection) if app.connect else HttpTransport(connection, user_agent="coterie-cli")
        client = Client(transport, namespace=connection.namespace)
        try:
            return await action(CliSession(app, client, connection, args.namespace or connection.namespace))
        finally:
            await client.close()

    with cli_errors(connection.server):
        return asyncio.run(converse())


def choose(args: argparse.Namespace, app: App) -> ClusterConnection:
    with cli_errors():
        return kubeconfig.load(kubeconfig_files(args, app)).resolve(args.context)
