"""A network of domains on this machine: which nodes it has, on which addresses, and the files they start from.

    center:  kuscia-system (master)  <──  alice (lite), bob (lite)
    p2p:     alice (autonomy)             bob (autonomy)

Each node has a directory below the root and an address of its own (127.0.1.1, 127.0.1.2, ...) with the standard ports.
Where such addresses cannot be had, it is 127.0.0.1 with ports that are free. What `etc/coterie.yaml` of a domain says
counts from then on: it is written once, read ever after, and may be changed by hand.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.files import write_atomic
from coterie.base.paths import DomainPaths
from coterie.cli.app import CliError, UsageError
from coterie.cli.background import config_file
from coterie.node import config, identity, joining
from coterie.node.config import NodeSettings

MASTER = "kuscia-system"
TOPOLOGIES = ("center", "p2p")
API_PORT, AGENT_PORT = 6443, 10250
_LAST_ADDRESS = 254
_SHARED = "127.0.0.1"
"""Where nodes are when they cannot have addresses of their own."""
_LOCK = "\0coterie-up"
"""An abstract socket: seen exactly by those who share the loopback addresses with us, and gone with its process."""
_HEAD = "# Written by `coterie up`, which keeps what it finds here: change what you like and start the node again.\n"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node listens."""

    address: str
    api: int
    agent: int


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


def choose(root: Path, topology: str, domains: Sequence[str]) -> list[NodeSettings]:
    """The nodes that are wanted, those that are new with their files written. Empty wishes mean: as it is already."""
    known = members(root)
    before = topology_of(known)
    if before and topology and topology != before:
        raise CliError(
            f"Error: the network under {root} is of topology {before}; "
            "remove it with `coterie down --purge`, or choose another --root"
        )
    topology = topology or before or TOPOLOGIES[0]
    wanted = list(domains) or [node.domain for node in known if node.mode != "master"] or ["alice", "bob"]
    if topology == "center":
        wanted.insert(0, MASTER)
    by_name = {node.domain: node for node in known}
    new = [domain for domain in wanted if domain not in by_name]
    places = free_places({place_of(node).address for node in known})
    for domain, place in zip(new, places, strict=False):
        by_name[domain] = write(root, topology, domain, place)
    return [by_name[domain] for domain in wanted]


def check_domains(text: str) -> list[str]:
    """`alice,bob` as a list; UsageError for names that cannot be domains."""
    names = [name for name in text.split(",") if name]
    for name in names:
        if name == MASTER:
            raise UsageError(f"--domains: {MASTER} is the control plane of topology center and needs not be named")
        try:
            config.parse({"mode": "autonomy", "domainID": name})
        except config.ConfigError as problem:
            raise UsageError(str(problem).replace("domainID:", "--domains:")) from problem
    if len(set(names)) < len(names):
        raise UsageError("--domains: each domain can be named once")
    return names


def document(root: Path, topology: str, domain: str, place: Place) -> dict[str, object]:
    """The configuration of a new node."""
    mode = "autonomy" if topology == "p2p" else "master" if domain == MASTER else "lite"
    out: dict[str, object] = {"mode": mode, "domainID": domain, "root": str(root)}
    if mode != "lite":
        out["apiServer"] = {"host": place.address, "port": place.api}
    if mode != "master":
        out["agent"] = {"nodeName": node_name(domain), "address": place.address, "port": place.agent, "taint": True}
    if mode == "lite":
        out["join"] = str(DomainPaths.of(root, domain).etc / "join.yaml")
    if place.address == _SHARED:
        # Only one of several nodes could have port 53 there, and resolver files know no other.
        out["dns"] = {"enabled": False}
    return out


def write(root: Path, topology: str, domain: str, place: Place) -> NodeSettings:
    text = _HEAD + yaml.safe_dump(document(root, topology, domain, place), sort_keys=False)
    settings = config.parse(yaml.safe_load(text), root)
    settings.paths.prepare()
    write_atomic(config_file(settings.paths), text, mode=0o600, durable=False)
    return settings


def prepare(node: NodeSettings, master: NodeSettings | None) -> None:
    """What a node needs before it starts: a control plane its keys, a node that joins one its file.

    The keys are made here and not by the node itself, so that all nodes of a network can start at the same time.
    """
    node.paths.prepare()
    if node.mode == "master":
        identity.ensure(node.paths, (node.api.host, *node.api.names), SYSTEM_CLOCK)
    elif node.mode == "lite" and master is not None and node.agent is not None and node.join is not None:
        joining.make_bundle(
            master.paths, node.agent.node_name, (node.agent.address,), api_address(master), SYSTEM_CLOCK
        ).write(node.join)


def api_address(node: NodeSettings) -> str:
    host = f"[{node.api.host}]" if ":" in node.api.host else node.api.host
    return f"https://{host}:{node.api.port}"


def place_of(node: NodeSettings) -> Place:
    address = node.agent.address if node.agent is not None else node.api.host
    return Place(address, 0 if node.mode == "lite" else node.api.port, node.agent.port if node.agent else 0)


# Addresses.


def free_places(taken: Iterable[str] = ()) -> Iterator[Place]:
    """Addresses of which nothing is in use, and where there are none (left), free ports of 127.0.0.1, without end."""
    seen = set(taken)
    for number in range(1, _LAST_ADDRESS + 1):
        address = f"127.0.1.{number}"
        if address in seen:
            continue
        problem = next(filter(None, (_refusal(address, port) for port in (API_PORT, AGENT_PORT))), 0)
        if problem == 0:
            yield Place(address, API_PORT, AGENT_PORT)
        elif problem != errno.EADDRINUSE:
            break  # this machine has no such addresses, so the next one will not be there either
    while True:
        yield Place(_SHARED, *_free_ports(2))


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
def alone(patience: float = 20.0) -> Iterator[None]:
    """One `coterie up` at a time on a machine: an address that one found free must not be found free by another."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as lock:
        deadline = time.monotonic() + patience
        while True:
            try:
                lock.bind(_LOCK)
                break
            except OSError as problem:
                # Somebody who never ends must not keep us from trying; at worst an address is taken then.
                if problem.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                    break
                time.sleep(0.05)
        yield
