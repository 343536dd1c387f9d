"""`coterie node add`: register a machine at this control plane, or for the domain of this lite, and write its join file."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
from pathlib import Path
from urllib.parse import urlsplit

from coterie.base import pki
from coterie.base.clock import SYSTEM_CLOCK, rfc3339
from coterie.base.paths import DomainPaths
from coterie.cli import arguments as options
from coterie.cli import network
from coterie.cli.app import App, CliError, UsageError
from coterie.cli.error_messages import cli_errors
from coterie.cli.nodes import lite_domain
from coterie.cli.session import domains_under, root_of
from coterie.kube.api.errors import AlreadyExists, NotFound
from coterie.kube.api.labels import HOSTNAME
from coterie.kube.api.meta import Object
from coterie.kube.api.names import dns_subdomain_faults
from coterie.kube.api.types.nodes import NODES
from coterie.kube.client import kubeconfig
from coterie.kube.client.client import Client
from coterie.kube.client.http_transport import HttpTransport
from coterie.kube.client.kubeconfig import ClusterConnection
from coterie.kube.client.wait import wait_for
from coterie.kuscia.api.labels import KUSCIA_NODE_NAMESPACE
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.node import cluster_network, join_bundle
from coterie.node.cluster_network import ClusterNetwork
from coterie.node.config import ConfigError
from coterie.node.master_api import api_transport

HELP = """
Register a new machine: create its Node with a range of pod addresses, and write its join file. Run this on the machine
of the control plane or, for another machine of a lite's domain, on the machine of the lite; it must be running. Copy
the file to the new machine and run `coterie node join FILE` there. The file contains a private key: anyone who has it
can act as this node.

The new machine reaches the API server at the address of this machine that leads to it, if the API server listens there
(apiServer.host) and its certificate has the address (apiServer.names); otherwise name the URL with --server. For a
machine with several network cards, repeat --address; the first address is preferred. For a node that exists, a new file
is written.

Examples:
  coterie node add node-2 --address 10.0.0.2
  coterie node add node-2 --address 10.0.0.2 --address 192.168.7.2 --server https://10.0.0.1:6443 -o node-2.join
  coterie node add node-2 --domain alice --address 10.0.0.2 -o - | ssh 10.0.0.2 coterie node join -
"""
_NODES = NODES.as_dynamic
_RANGE_SECONDS = 15.0
NOT_JOINED = "NodeNotJoined"


def arguments(parser: options.Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the node: lower-case letters, digits, - and .")
    parser.add_argument(
        "--address", metavar="IP", action="append", default=[], help="address of the machine; may be repeated"
    )
    parser.add_argument("--server", metavar="URL", default="", help="URL of this API server, as seen from the node")
    parser.add_argument(
        "-o", "--output", metavar="FILE", default="", help="file to write, - to print it (default: NAME.join)"
    )
    options.root_option(parser)
    parser.add_argument(
        "--domain", metavar="ID", default=argparse.SUPPRESS, help="domain of the control plane, if there are several"
    )


def run(args: argparse.Namespace, app: App) -> int:
    if not args.address:
        raise UsageError("--address is needed, e.g. `coterie node add node-2 --address 10.0.0.2`")
    if dns_subdomain_faults(args.name):
        raise UsageError(f'NAME: "{args.name}" is no valid name; take lower-case letters, digits, "-" and "."')
    addresses = tuple(dict.fromkeys(_checked_address(text) for text in args.address))
    output = args.output or f"{args.name}.join"
    target = app.cwd / Path(output).expanduser()
    if output != "-" and not target.parent.is_dir():
        raise CliError(f"Error: {output} cannot be written: there is no directory {target.parent}")
    paths = _control_plane(args, app)
    if lite_domain.is_registered(paths):
        server, known, node = _at_lite(args, paths, addresses)
    else:
        server, known, node = _at_control_plane(args, app, paths, addresses)
    cidr = node["spec"]["podCIDR"]
    try:
        made = join_bundle.make_bundle(paths, args.name, addresses, server, SYSTEM_CLOCK, pod_cidr=cidr, network=known)
        if output == "-":
            app.write(made.text())
            return 0
        made.write(target)
    except ConfigError as problem:
        raise CliError(f"Error: {problem}") from problem
    except OSError as problem:
        raise CliError(f"Error: {output} cannot be written: {problem.strerror}") from problem
    app.say(f"Node {args.name} has the pod addresses {cidr}.")
    app.say(f"Wrote {output}, which holds a private key. Copy it to {args.name} and run there:")
    app.say(f"  coterie node join {target.name}")
    return 0


def _at_control_plane(
    args: argparse.Namespace, app: App, paths: DomainPaths, addresses: tuple[str, ...]
) -> tuple[str, ClusterNetwork, Object]:
    """The URL of the API as the node reaches it, the network, and the Node."""
    with cli_errors():
        connection = kubeconfig.read(paths.kubeconfig).resolve()
    names = _certificate_names(paths.pki)
    server = args.server or server_for(connection.server, names, args.name, addresses)
    _check_server(names, server)
    with cli_errors(connection.server):
        known, node = asyncio.run(_registered(app, connection, args.name, addresses, paths.home.name))
    return server, known, node


def _at_lite(
    args: argparse.Namespace, paths: DomainPaths, addresses: tuple[str, ...]
) -> tuple[str, ClusterNetwork, Object]:
    """Likewise, at a lite that registered: with the rights of its domain, through its gateway."""
    known, own = lite_domain.network(paths)
    names = _certificate_names(paths.pki / "nodes")
    server = args.server or server_for(own, names, args.name, addresses)
    _check_server(names, server)

    async def register() -> Object:
        client = Client(api_transport(GatewayPaths.of(paths)))
        try:
            domain = paths.home.name
            return await lite_domain.registered(client, _new_node(args.name, addresses, domain), domain, known)
        finally:
            await client.close()

    with cli_errors(lite_domain.MASTER):
        return server, known, asyncio.run(register())


def _checked_address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError as problem:
        raise UsageError(f'--address: "{text}" is not an IP address') from problem


def _control_plane(args: argparse.Namespace, app: App) -> DomainPaths:
    root = root_of(args, app)
    domains = [args.domain] if args.domain else sorted({*domains_under(root), *lite_domain.domains_under(root)})
    if len(domains) > 1:
        raise CliError(f"Error: there are several domains under {root}: choose one with --domain {'|'.join(domains)}")
    if not domains:
        raise CliError(
            f"Error: there is no control plane and no lite under {root}; start one with `coterie start -c FILE`"
        )
    return DomainPaths.of(root, domains[0])


async def _registered(
    app: App, connection: ClusterConnection, name: str, addresses: tuple[str, ...], domain: str
) -> tuple[ClusterNetwork, Object]:
    """The Node, with its range of pod addresses."""
    transport = app.connect(connection) if app.connect else HttpTransport(connection, user_agent="coterie-cli")
    client = Client(transport)
    try:
        try:
            known = await cluster_network.read_network(client)
        except NotFound as problem:
            raise CliError(
                "Error: this control plane runs an earlier version, which gives out no pod addresses; start it again"
            ) from problem
        made = True
        try:
            await client.create(_NODES, _new_node(name, addresses, domain))
        except AlreadyExists:
            made = False
        return known, await _with_range(client, name, made=made)
    finally:
        await client.close()


def _new_node(name: str, addresses: tuple[str, ...], domain: str) -> Object:
    now = rfc3339(SYSTEM_CLOCK.now())
    # Unknown, so that nothing is scheduled there before the machine has joined. With the domain's label, so that other nodes
    # know the way to its pods from the beginning.
    ready = {
        "type": "Ready",
        "status": "Unknown",
        "reason": NOT_JOINED,
        "message": "the machine has not joined yet; run `coterie node join FILE` there",
        "lastTransitionTime": now,
    }
    listed = [{"type": "InternalIP", "address": address} for address in addresses]
    return {
        "metadata": {"name": name, "labels": {HOSTNAME: name, KUSCIA_NODE_NAMESPACE: domain}},
        "status": {"conditions": [ready], "addresses": [*listed, {"type": "Hostname", "address": name}]},
    }


async def _with_range(client: Client, name: str, *, made: bool) -> Object:
    def settled(node: Object | None) -> bool:
        return node is None or bool((node.get("spec") or {}).get("podCIDR")) or bool(_network_problem(node))

    try:
        node = await wait_for(client, _NODES, name, "", settled, _RANGE_SECONDS)
    except TimeoutError as problem:
        raise CliError(
            f"Error: node {name} got no pod addresses within {_RANGE_SECONDS:g} s; see the log of the control plane"
        ) from problem
    if node is None:
        raise CliError(f"Error: node {name} was deleted meanwhile; try again")
    why = _network_problem(node)
    if why:
        if made:
            await client.delete(_NODES, name, uid=node["metadata"]["uid"])
        raise CliError(f"Error: node {name} got no pod addresses: {why}")
    return node


def _network_problem(node: Object) -> str:
    for each in (node.get("status") or {}).get("conditions") or ():
        if each["type"] == "NetworkUnavailable" and each["status"] == "True":
            return str(each.get("message") or each.get("reason"))
    return ""


# How the node reaches the API.


def _certificate_names(directory: Path) -> list[str]:
    """Names under which the API is believed."""
    file = directory / "apiserver.crt"
    return list(pki.names_of(pki.load_certificate(file.read_bytes()))) if file.exists() else []


def server_for(own: str, names: list[str], node: str, addresses: tuple[str, ...]) -> str:
    """`own`: how this machine reaches the API."""
    where = urlsplit(own)
    if not _is_loopback(where.hostname or "") or all(_is_loopback(address) for address in addresses):
        return own
    found = [address for each in addresses if (address := network.source_towards(each)) in names]
    if not found:
        raise UsageError(
            f"the API is known here as {own}, where {node} cannot reach it; set apiServer.host to 0.0.0.0 and "
            "apiServer.names to the address of this machine, start its node again, or name the URL with --server"
        )
    host = f"[{found[0]}]" if ":" in found[0] else found[0]
    return f"https://{host}:{where.port}"


def _check_server(names: list[str], server: str) -> None:
    """The node believes the API only under a name of its certificate."""
    where = urlsplit(server)
    if where.scheme != "https" or not where.hostname:
        raise UsageError(f'--server: "{server}" is not an address such as https://10.0.0.1:6443')
    if names and where.hostname not in names:
        raise CliError(
            f"Error: the API's certificate is not for {where.hostname}; "
            "put it into apiServer.names of the control plane's configuration and start it again"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
