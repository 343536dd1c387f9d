"""Whom the server answers: this machine, and networks that were named.

An address is this machine's when a socket can be bound to it, which is asked once and remembered. Pods share the
machine's network, so this is all of them; runtimes that give pods addresses of their own name those networks.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

from coterie.kube.network.dns.settings import Network

_REMEMBERED = 1024


class AllowedClients:
    def __init__(self, networks: Sequence[Network] = ()) -> None:
        self._networks = tuple(networks)
        self._known: dict[str, bool] = {}

    def is_allowed(self, address: str) -> bool:
        known = self._known.get(address)
        if known is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            known = self._known[address] = self._check(address)
        return known

    def _check(self, address: str) -> bool:
        parsed = _parsed(address)
        return parsed.is_loopback or included(address, self._networks) or is_own(str(parsed))


def included(address: str, networks: Sequence[Network]) -> bool:
    """Whether the address lies in one of these networks."""
    parsed = _parsed(address)
    return any(parsed in network for network in networks)


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    inner = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return inner or parsed


def is_own(address: str) -> bool:
    """Whether it is one of this machine's addresses."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
