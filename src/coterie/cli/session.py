"""Which control plane a command is about, and a client for it.

The rule, first match wins: --kubeconfig; the domain that --domain or --root point to; $KUBECONFIG; the only domain
under the default root; ~/.kube/config. What was typed for this command beats what the shell has set for all of them. It
is the same for `coterie get` and `coterie kubectl`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from coterie.base.paths import ROOT_VARIABLE, DomainPaths
from coterie.cli.app import App, CliError
from coterie.cli.error_messages import cli_errors
from coterie.kube.api.resources import Resource
from coterie.kube.client import kubeconfig
from coterie.kube.client.client import Client
from coterie.kube.client.discovery import RestMapper, discover
from coterie.kube.client.http_transport import HttpTransport
from coterie.kube.client.kubeconfig import ClusterConnection


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


def kubeconfig_files(args: argparse.Namespace, app: App) -> list[Path]:
    """The files that hold the way to the chosen control plane."""
    if args.kubeconfig:
        return [_existing(Path(args.kubeconfig).expanduser())]
    root = root_of(args, app)
    if args.domain:
        return [_of_domain(root, args.domain)]
    listed = [Path(part) for part in app.environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    if listed and not args.root:
        return listed
    domains = domains_under(root)
    if len(domains) == 1:
        return [DomainPaths.of(root, domains[0]).kubeconfig]
    if domains:
        raise CliError(f"Error: there are several domains under {root}: choose one with --domain {'|'.join(domains)}")
    if args.root:
        raise CliError(
            f"Error: there is no domain with a kubeconfig under {root}; start one with `coterie start -c FILE`"
        )
    fallback = app.home / ".kube" / "config"
    if fallback.is_file():
        return [fallback]
    raise CliError(
        f"Error: there is no control plane under {root} and no {fallback}; "
        "start one with `coterie start -c FILE`, or name a kubeconfig with --kubeconfig"
    )


def root_of(args: argparse.Namespace, app: App) -> Path:
    named = args.root or app.environ.get(ROOT_VARIABLE, "")
    return (app.cwd / Path(named).expanduser()).absolute() if named else app.home / ".coterie"


def domains_under(root: Path) -> list[str]:
    return sorted(path.parent.name for path in root.glob("*/kubeconfig"))


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise CliError(f"Error: there is no kubeconfig {path}; check the name given with --kubeconfig")
    return path


def _of_domain(root: Path, domain: str) -> Path:
    domains = domains_under(root)
    if domain in domains:
        return DomainPaths.of(root, domain).kubeconfig
    known = f"the domains there are {', '.join(domains)}" if domains else "start it with `coterie start -c FILE`"
    raise CliError(f'Error: there is no domain "{domain}" with a kubeconfig under {root}; {known}')
