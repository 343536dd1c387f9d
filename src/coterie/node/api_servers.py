"""The API servers that a joined node knows: the one of its join file, and the members that the control plane publishes.

Read from the endpoints of `default/kubernetes` while the node runs, and kept in a file: a node that is started again finds a living
member although that of its join file is gone.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from coterie.base.files import read_bytes_or_none, write_atomic
from coterie.base.log import logger
from coterie.kube.api.types.network import ENDPOINT_SLICES, EndpointSlice
from coterie.kube.client.failover import FailoverTransport
from coterie.kube.client.informer import ObjectChange
from coterie.kube.client.informers import Informers

log = logger("node.join")
_MOST_SERVERS = 16
_SERVICE_LABEL, _SERVICE = "kubernetes.io/service-name", "kubernetes"


def servers_of(slices: Iterable[EndpointSlice], own: str, known: Sequence[str] = ()) -> list[str]:
    """URLs of the members, that of the join file first, those that live before those that were `known`: they come back. Pure. A member that
    names a loopback address is of another machine, unless the join file does so as well."""
    local = _is_loopback(urlsplit(own).hostname or "")
    found = {own: None}
    for each in slices:
        for port in each.ports or ():
            for endpoint in each.endpoints or ():
                for address in endpoint.addresses or ():
                    if port.port and (local or not _is_loopback(address)):
                        host = f"[{address}]" if ":" in address else address
                        found.setdefault(f"https://{host}:{port.port}")
    return list(dict.fromkeys([*found, *known]))[:_MOST_SERVERS]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def kept_servers(path: Path, own: str) -> list[str]:
    """As they were when the node ran last."""
    content = read_bytes_or_none(path) or b""
    lines = content.decode(errors="replace").split()
    return list(dict.fromkeys([own, *(each for each in lines if each.startswith("https://"))]))


def follow(informers: Informers, transport: FailoverTransport, own: str, path: Path) -> None:
    """Keep the transport's servers those of the control plane."""
    informer = informers.get(ENDPOINT_SLICES, "default", labels=f"{_SERVICE_LABEL}={_SERVICE}")

    def changed(_: ObjectChange[EndpointSlice]) -> None:
        found = servers_of(informer.cache, own, transport.servers)
        if len(found) > 1 and tuple(found) != transport.servers:
            transport.use(found)
            try:
                write_atomic(path, "\n".join(found) + "\n")
            except OSError as problem:
                log.warning("The addresses of the control plane's members cannot be kept", error=problem)

    informer.add_handler(changed)
