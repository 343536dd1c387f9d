"""Where a domain's DNS server listens, whom it answers and whom it asks."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

PORT = 53

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True, order=True)
class Nameserver:
    host: str
    port: int = PORT

    @classmethod
    def parse(cls, text: str) -> Nameserver:
        """`192.0.2.1`, `192.0.2.1:5353`, `2001:db8::1` or `[2001:db8::1]:5353`; ValueError with a sentence otherwise."""
        host, _, port = text.rpartition(":")
        if not host or (":" in host and not host.startswith("[")):
            host, port = text, str(PORT)
        host = host.removeprefix("[").removesuffix("]")
        try:
            ipaddress.ip_address(host)
        except ValueError as problem:
            raise ValueError(f'"{text}" is not the address of a name server, such as 192.0.2.1:53') from problem
        if not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f'"{text}" has no port between 1 and 65535')
        return cls(host, int(port))


@dataclass(frozen=True, slots=True)
class ForwardSettings:
    timeout: float = 2.0
    """Seconds one server has to answer."""
    rounds: int = 2
    """How often all servers are tried."""
    rest: float = 10.0
    """Seconds for which a server that did not answer is asked last."""
    in_flight: int = 512
    """Questions to other servers under way at once; more are refused as "try later"."""
    cache_entries: int = 4096
    cache_seconds: int = 60
    """Answers of others are kept at most this long, whatever they say."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    address: str = "127.0.0.1"
    port: int = PORT
    clients: tuple[Network, ...] = ()
    """Who is answered besides this machine itself. Nobody else gets even a refusal: a server that answers strangers
    can be made to answer their victims."""
    own_names_only: tuple[Network, ...] = ()
    """Who of them is told the zone's names and no others, and no names of addresses: a question that is passed on carries
    data out, and reverse names would list what runs here."""
    tcp_connections: int = 256
    tcp_idle: float = 10.0
    forward: ForwardSettings = ForwardSettings()


def without_self(upstream: Sequence[Nameserver], address: str, port: int, own: Sequence[str] = ()) -> list[Nameserver]:
    """A server that asks itself asks for ever. `own`: more addresses of this machine, for a server that listens on all."""
    everywhere = ipaddress.ip_address(address).is_unspecified
    mine = {address, *own} | ({"127.0.0.1", "::1"} if everywhere else set())
    return [
        each
        for each in dict.fromkeys(upstream)
        if each.port != port or not (each.host in mine or (everywhere and ipaddress.ip_address(each.host).is_loopback))
    ]
