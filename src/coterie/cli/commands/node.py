"""`coterie node`: let another machine join this control plane. Works on the control plane's own keys; no server is
asked."""

from __future__ import annotations

import argparse
import ipaddress
from pathlib import Path
from urllib.parse import urlsplit

from coterie.base import pki
from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.paths import DomainPaths
from coterie.cli import arguments as options
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.error_messages import cli_errors
from coterie.cli.session import domains_under, root_of
from coterie.kube.api.names import dns_subdomain_faults
from coterie.kube.client import kubeconfig
from coterie.node import join_bundle
from coterie.node.config import ConfigError

HELP = """
Create the join file for a new node. Run this on the machine of the control plane. Copy the file to the new machine and
set `join` to its path in a configuration of mode lite. The file contains a private key: anyone who has it can act as
this node.

Examples:
  coterie node add node-2 --address 10.0.0.2 --server https://10.0.0.1:6443 -o node-2.join
  coterie node add node-2 --domain alice --address 10.0.0.2 -o node-2.join
"""


def arguments(parser: options.Parser) -> None:
    parser.add_argument("action", choices=("add",), metavar="add", help="create a join file")
    parser.add_argument("name", metavar="NAME", help="name of the node: lower-case letters, digits, - and .")
    parser.add_argument(
        "--address", metavar="IP", action="append", default=[], help="address of the node; may be repeated"
    )
    parser.add_argument("--server", metavar="URL", default="", help="URL of this API server, as seen from the node")
    parser.add_argument("-o", "--output", metavar="FILE", default="", help="file to write")
    options.root_option(parser)
    parser.add_argument(
        "--domain", metavar="ID", default=argparse.SUPPRESS, help="domain of the control plane, if there are several"
    )


def run(args: argparse.Namespace, app: App) -> int:
    if not args.address or not args.output:
        raise UsageError("both --address and -o are needed, e.g. `coterie node add node-2 --address 10.0.0.2 -o FILE`")
    if dns_subdomain_faults(args.name):
        raise UsageError(f'NAME: "{args.name}" is no valid name; take lower-case letters, digits, "-" and "."')
    for address in args.address:
        _check_address(address)
    paths = _control_plane(args, app)
    server = args.server or _own_server(paths, args.name, args.address)
    _check_server(paths, server)
    target = app.cwd / Path(args.output).expanduser()
    try:
        join_bundle.make_bundle(paths, args.name, tuple(args.address), server, SYSTEM_CLOCK).write(target)
    except ConfigError as problem:
        raise CliError(f"Error: {problem}") from problem
    except OSError as problem:
        raise CliError(f"Error: {args.output} cannot be written: {problem.strerror}") from problem
    app.say(f"Wrote {args.output}, a secret. Carry it to {args.name} and start a node there with, e.g.:")
    app.say(
        f"  coterie init --mode lite --domain {paths.home.name} --join {Path(args.output).name} -o {args.name}.yaml"
    )
    return 0


def _check_address(text: str) -> None:
    try:
        ipaddress.ip_address(text)
    except ValueError as problem:
        raise UsageError(f'--address: "{text}" is not an IP address') from problem


def _control_plane(args: argparse.Namespace, app: App) -> DomainPaths:
    root = root_of(args, app)
    domains = [args.domain] if args.domain else domains_under(root)
    if len(domains) > 1:
        raise CliError(f"Error: there are several domains under {root}: choose one with --domain {'|'.join(domains)}")
    if not domains:
        raise CliError(f"Error: there is no control plane under {root}; start one with `coterie start -c FILE`")
    return DomainPaths.of(root, domains[0])


def _own_server(paths: DomainPaths, node: str, addresses: list[str]) -> str:
    """How the operator here reaches the API, when a node elsewhere can reach it in the same way."""
    with cli_errors():
        server = kubeconfig.read(paths.kubeconfig).resolve().server
    if _is_loopback(urlsplit(server).hostname or "") and not all(_is_loopback(address) for address in addresses):
        raise UsageError(f"the API is known here as {server}, where {node} cannot reach it; say how with --server URL")
    return server


def _check_server(paths: DomainPaths, server: str) -> None:
    """The node will believe the API only under a name of its certificate."""
    where = urlsplit(server)
    if where.scheme != "https" or not where.hostname:
        raise UsageError(f'--server: "{server}" is not an address such as https://10.0.0.1:6443')
    certificate = paths.pki / "apiserver.crt"
    if certificate.exists() and where.hostname not in pki.names_of(pki.load_certificate(certificate.read_bytes())):
        raise CliError(
            f"Error: the API's certificate is not for {where.hostname}; "
            "put it into apiServer.names of the control plane's configuration and start it again"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
