"""A network of domains on this machine: which nodes it has, on which addresses, and the files they start from.

    center:  kuscia-system (master)  <──  alice (lite) <──> bob (lite)
    p2p:     alice (autonomy)        <──> bob (autonomy)

Each node has a directory below the root and an address of its own (127.0.1.1, 127.0.1.2, ...) with the standard ports.
Where such addresses cannot be had, it is 127.0.0.1 with ports that are free. What `etc/coterie.yaml` of a domain says
counts from then on: it is written once, read ever after, and may be changed by hand. Only the deploy token of a lite is
put in later, when its master is up and has one.
"""

from __future__ import annotations

import errno
import ipaddress
import itertools
import os
import re
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from coterie.base.files import write_atomic
from coterie.cli.app import CliError, UsageError
from coterie.cli.background import config_file
from coterie.console.settings import ConsoleLocation
from coterie.kube.network.pods import rtnetlink
from coterie.kube.network.pods.netlink import NETLINK_ROUTE, NetlinkSocket
from coterie.kuscia.gateway.registration.registration_files import registration_file
from coterie.kuscia.routes import model
from coterie.node import config
from coterie.node.config import NetworkConfig, NodeSettings, gateway, ports
from coterie.node.config.settings import ConsoleConfig, MetricsConfig

MASTER = "kuscia-system"
"""What the control plane of topology center is called unless somebody says otherwise."""
TOPOLOGIES = ("p2p", "center")
API_PORT, AGENT_PORT = 6443, 10250
_SERVICE_PORTS = (8070, 8071, 8082, 8083, 8060, 8061)
"""Of the data mesh, KusciaAPI and ConfManager."""
_METRICS_PORT = MetricsConfig().port
_CONSOLE_PORT = ConsoleConfig().port
_LAST_ADDRESS = 254
_SHARED = "127.0.0.1"
"""Where nodes are when they cannot have addresses of their own."""
_LOCK = "\0coterie-up"
"""An abstract socket: seen exactly by those who share the loopback addresses with us, and gone with its process."""
_HELD = "\0coterie-up-{}"
"""Likewise, one for each address whose node is on its way but does not listen yet."""
_HEAD = "# Written by `coterie up`, which keeps what it finds here: change what you like and start the node again.\n"


RANGES = 16
"""How many domains of one machine have ranges of their own for pods and Services: 100.96.0.0/16 and 100.112.0.0/16, ..."""
_FIRST_POD_RANGE, _FIRST_SERVICE_RANGE = 96, 112
_TOKEN_LINE = re.compile(r"^liteDeployToken:.*\n", re.MULTILINE)
_ENGINE_PORTS = (20000, 32766)
_ENGINE_BLOCKS = 24
"""How many control planes of one machine have ports for engines of their own: engines listen on all addresses."""


@dataclass(frozen=True, slots=True)
class NodeAddresses:
    """Where a node listens."""

    address: str
    api: int
    agent: int
    internal: int = 0
    external: int = 0
    """Of the gateway; 0: its usual ports."""
    services: tuple[int, ...] = ()
    """Of the data mesh, KusciaAPI and ConfManager, HTTP and gRPC each; none: their usual ports."""
    console: int = 0
    """0: its usual port."""


def members(root: Path) -> list[NodeSettings]:
    """The nodes of the network under a root, the master first."""
    try:
        found = [config.load(path, root=root) for path in sorted(root.glob("*/etc/coterie.yaml"))]
    except config.ConfigError as problem:
        raise CliError(f"Error: {problem}") from problem
    return sorted(found, key=lambda node: (node.mode != "master", node.domain))


def topology_of(nodes: Sequence[NodeSettings]) -> str:
    """Of an existing network; empty when there is none."""
    if not nodes:
        return ""
    return "center" if any(node.mode == "master" for node in nodes) else "p2p"


def node_name(domain: str) -> str:
    return f"{domain}-node"


def choose(root: Path, topology: str, domains: Sequence[str], master: str = "") -> list[NodeSettings]:
    """The nodes that are wanted, those that are new with their files written. Empty wishes mean: as it is already.
    `master`: what the control plane of topology center is called."""
    known = members(root)
    before = topology_of(known)
    if before and topology and topology != before:
        raise CliError(
            f"Error: the network under {root} is of topology {before}; "
            "remove it with `coterie down --purge`, or choose another --root"
        )
    topology = topology or before or TOPOLOGIES[0]
    master = _master_name(known, topology, domains, master)
    wanted = list(domains) or [node.domain for node in known if node.mode != "master"] or ["alice", "bob"]
    if topology == "center":
        wanted.insert(0, master)
    by_name = {node.domain: node for node in known}
    new = [domain for domain in wanted if domain not in by_name]
    places = free_addresses({addresses_of(node).address for node in known})
    ranges = free_ranges((node.agent.pod_cidr for node in known if node.agent is not None), routed_ranges())
    for domain, place in zip(new, places, strict=False):
        # A control plane without pods needs no range of its own, and decides about the addresses of Services for all.
        pods = next(ranges) if domain != master else 0
        by_name[domain] = write(root, topology, domain, place, by_name.get(master), pods, master)
    return [by_name[domain] for domain in wanted]


def _master_name(known: Sequence[NodeSettings], topology: str, domains: Sequence[str], asked: str) -> str:
    """A network keeps the name of its control plane; a new one gets the one that was asked for."""
    before = next((node.domain for node in known if node.mode == "master"), "")
    if asked and topology != "center":
        raise UsageError("--master: is only for --topology center; in p2p each domain has its own control plane")
    if asked and before and asked != before:
        raise CliError(f"Error: the control plane of this network is called {before}, and a domain keeps its name")
    name = asked or before or MASTER
    if name in domains:
        raise UsageError(f"--domains: {name} is the control plane of topology center and needs not be named")
    return name


def check_domains(text: str, option: str = "--domains") -> list[str]:
    """`alice,bob` as a list; UsageError for names that cannot be domains."""
    names = [name for name in text.split(",") if name]
    for name in names:
        if name == MASTER and option == "--domains":
            raise UsageError(f"--domains: {MASTER} is the control plane of topology center and needs not be named")
        try:
            config.parse({"mode": "autonomy", "domainID": name})
        except config.ConfigError as problem:
            raise UsageError(str(problem).replace("domainID:", f"{option}:")) from problem
    if len(set(names)) < len(names):
        raise UsageError("--domains: each domain can be named once")
    return names


def document(
    root: Path,
    topology: str,
    domain: str,
    place: NodeAddresses,
    master: NodeSettings | None = None,
    number: int = 0,
    master_name: str = MASTER,
) -> dict[str, object]:
    """The configuration of a new node. `master`: of one that joins it; `number`: of its ranges of addresses."""
    mode = "autonomy" if topology == "p2p" else "master" if domain == master_name else "lite"
    out: dict[str, object] = {"mode": mode, "domainID": domain, "root": str(root)}
    if mode != "lite":
        out["apiServer"] = {"host": place.address, "port": place.api}
        shared = {"healthPort": 0} if place.address == _SHARED else {}
        out["controllers"] = {"portRange": list(engine_ports(place)), **shared}
    if mode != "master":
        agent: dict[str, object] = {"nodeName": node_name(domain), "address": place.address, "port": place.agent}
        if mode == "lite":
            agent["podCIDR"] = NetworkConfig(pod_range(number)).first_node
        out["agent"] = agent
    if mode == "autonomy":
        out["network"] = {"podCIDR": pod_range(number), "serviceCIDR": service_range(number)}
    if mode == "lite" and master is not None:
        out["masterEndpoint"] = master_endpoint(master)
    if place.external:
        external = {"host": place.address, "port": place.external}
        internal = {"internal": {"port": place.internal}} if mode != "master" else {}
        out["gateway"] = {**internal, "external": external}
    if place.services:
        mesh_http, mesh_grpc, api_http, api_grpc, conf_http, conf_grpc = place.services
        if mode != "master":
            out["dataMesh"] = {"httpPort": mesh_http, "grpcPort": mesh_grpc}
        out["kusciaAPI"] = {"HTTPPort": api_http, "GRPCPort": api_grpc}
        out["confManager"] = {"HTTPPort": conf_http, "GRPCPort": conf_grpc}
    if place.address == _SHARED:
        # Only one of several nodes could have port 53 there, and resolver files know no other.
        out["dns"] = {"enabled": False}
        out["metrics"] = {"port": 0}
    if place.console and mode != "lite":
        # Not 0: the address of an open page stays the same when the node is started again.
        out["console"] = {"port": place.console}
    return out


def engine_ports(place: NodeAddresses) -> tuple[int, int]:
    """A block of its own for each address, or for each API's port where all share one address."""
    number = place.api if place.address == _SHARED else int(place.address.rpartition(".")[2])
    first, last = _ENGINE_PORTS
    size = (last - first + 1) // _ENGINE_BLOCKS
    begin = first + number % _ENGINE_BLOCKS * size
    return begin, begin + size - 1


def master_endpoint(master: NodeSettings) -> str:
    """Where lites find the master's gateway."""
    found = model.endpoint_of(master.gateway)
    if found is None:
        raise CliError(f"Error: {master.domain} has no public port, so nothing can join it; see gateway.external")
    return model.url_of(found)


def pod_range(number: int) -> str:
    return f"100.{_FIRST_POD_RANGE + number % RANGES}.0.0/16"


def service_range(number: int) -> str:
    return f"100.{_FIRST_SERVICE_RANGE + number % RANGES}.0.0/16"


def free_ranges(known: Iterable[str], routed: Iterable[str]) -> Iterator[int]:
    """Numbers of ranges that none of the domains of this network has, first those that lead nowhere on this machine; without
    end. `known`: the pods' ranges of those domains."""
    taken, elsewhere = _numbers(known), _numbers(routed)
    free = [number for number in range(RANGES) if number not in taken]
    yield from sorted(free, key=lambda number: number in elsewhere)
    yield from itertools.cycle(range(RANGES))


def _numbers(ranges: Iterable[str]) -> set[int]:
    """Those that have an address in common with one of the ranges; the default route counts for nothing."""
    networks = [network for network in map(ipaddress.IPv4Network, ranges) if network.prefixlen]
    ours = [(number, ipaddress.IPv4Network(pod_range(number))) for number in range(RANGES)]
    ours += [(number, ipaddress.IPv4Network(service_range(number))) for number in range(RANGES)]
    # A range that was not given out by us may cover all of ours.
    return {number for number, own in ours if any(own.overlaps(each) for each in networks if each.prefixlen >= 16)}


def routed_ranges() -> list[str]:
    """Where routes of this machine lead, for whoever makes such routes: root."""
    if os.getuid():
        return []
    netlink = NetlinkSocket(NETLINK_ROUTE)
    try:
        return [route.destination for route in rtnetlink.routes(netlink)]
    finally:
        netlink.close()


def write(
    root: Path,
    topology: str,
    domain: str,
    place: NodeAddresses,
    master: NodeSettings | None = None,
    number: int = 0,
    master_name: str = MASTER,
) -> NodeSettings:
    made = document(root, topology, domain, place, master, number, master_name)
    text = _HEAD + yaml.safe_dump(made, sort_keys=False)
    settings = config.parse(yaml.safe_load(text), root)
    settings.paths.prepare()
    write_atomic(config_file(settings.paths), text, mode=0o600, durable=False)
    return settings


def needs_token(node: NodeSettings) -> bool:
    """Whether the node still has to register at its master, for which its configuration must hold a token."""
    return node.gateway.master is not None and not registration_file(node.paths).exists()


def give_token(node: NodeSettings, token: str) -> None:
    """Put the master's one-time token into the node's configuration, and leave all the rest of it as it is."""
    file = config_file(node.paths)
    text = _TOKEN_LINE.sub("", file.read_text())
    write_atomic(file, f"{text.rstrip()}\nliteDeployToken: {token}\n", mode=0o600, durable=False)


def source_towards(address: str) -> str:
    """The address of this machine from which it reaches another one, or itself; nothing is sent. Empty: there is no route."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def api_address(node: NodeSettings) -> str:
    host = f"[{node.api.host}]" if ":" in node.api.host else node.api.host
    return f"https://{host}:{node.api.port}"


def kuscia_api_address(node: NodeSettings) -> str:
    """Empty where the node has none."""
    chosen = node.kuscia_api
    if not chosen.enabled or node.join is not None:
        return ""
    host = f"[{chosen.address}]" if ":" in chosen.address else chosen.address
    return f"{'http' if chosen.protocol == 'NOTLS' else 'https'}://{host}:{chosen.http_port}"


def console_address(node: NodeSettings) -> str:
    """Where a running node serves its console; empty: it has none. The console's process is not started by this."""
    found = ConsoleLocation.read(node.paths)
    return found.url if found is not None else ""


def addresses_of(node: NodeSettings) -> NodeAddresses:
    address = node.agent.address if node.agent is not None else node.api.host
    return NodeAddresses(address, 0 if node.mode == "lite" else node.api.port, node.agent.port if node.agent else 0)


# Addresses.


def free_addresses(taken: Iterable[str] = ()) -> Iterator[NodeAddresses]:
    """Addresses of which nothing is in use, and where there are none (left), free ports of 127.0.0.1, without end."""
    seen = set(taken)
    wanted = usual_ports(ports.lowest_port())
    for number in range(1, _LAST_ADDRESS + 1):
        address = f"127.0.1.{number}"
        if address in seen or _is_held(address):
            continue
        problem = next(filter(None, (_refusal(address, port) for port in wanted)), 0)
        if problem == 0:
            yield NodeAddresses(address, API_PORT, AGENT_PORT)
        elif problem != errno.EADDRINUSE:
            break  # this machine has no such addresses, so the next one will not be there either
    while True:
        api, agent, internal, external, console, *services = _free_ports(5 + len(_SERVICE_PORTS))
        yield NodeAddresses(_SHARED, api, agent, internal, external, tuple(services), console)


def usual_ports(lowest: int) -> tuple[int, ...]:
    """All that a node opens on an address of its own. `lowest`: the first port that this process may open."""
    gateway_ports = (gateway.INTERNAL_PORT, gateway.EXTERNAL_PORT, gateway.DNS_PORT)
    return (
        API_PORT,
        AGENT_PORT,
        *_SERVICE_PORTS,
        _METRICS_PORT,
        _CONSOLE_PORT,
        *(port if port >= lowest else gateway.UNPRIVILEGED[port] for port in gateway_ports),
    )


def _refusal(address: str, port: int) -> int:
    """Why nobody can listen there now; 0 when one can."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((address, port))
            trial.listen(1)
        except OSError as problem:
            return problem.errno or errno.EIO
    return 0


def _free_ports(count: int) -> list[int]:
    trials = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [int(trial.getsockname()[1]) for trial in trials]
    finally:
        for trial in trials:
            trial.close()


@contextmanager
def address_lock(timeout: float = 20.0) -> Iterator[None]:
    """One at a time on a machine looks for addresses: what one found free must not be found free by another."""
    deadline = time.monotonic() + timeout
    lock = _bound(_LOCK)
    # Somebody who never ends must not keep us from trying; at worst an address is taken then.
    while lock is None and time.monotonic() < deadline:
        time.sleep(0.02)
        lock = _bound(_LOCK)
    try:
        yield
    finally:
        if lock is not None:
            lock.close()


@contextmanager
def reserve_addresses(addresses: Iterable[str]) -> Iterator[None]:
    """Nobody else's `free_addresses` offers these addresses meanwhile, though nothing listens there yet."""
    locks = [_bound(_HELD.format(address)) for address in sorted(set(addresses))]
    try:
        yield
    finally:
        for lock in filter(None, locks):
            lock.close()


def _is_held(address: str) -> bool:
    trial = _bound(_HELD.format(address))
    if trial is not None:
        trial.close()
    return trial is None


def _bound(name: str) -> socket.socket | None:
    """An abstract socket of that name; None while somebody else has it."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.bind(name)
    except OSError:
        made.close()
        return None
    return made
