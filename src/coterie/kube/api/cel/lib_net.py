"""The IP and CIDR libraries of Kubernetes: strict spellings, no zones, no IPv4 in IPv6 clothes."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final

from coterie.kube.api.cel.errors import CelError
from coterie.kube.api.cel.functions import Library, function, method
from coterie.kube.api.cel.types import BOOL, CIDR, INT, IP, STRING
from coterie.kube.api.cel.values import KINDS
from coterie.kube.api.schema.formats import is_cidr

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class CidrValue:
    """The address keeps its host bits: `10.0.0.5/8` is not `10.0.0.0/8` until it is masked."""

    address: Address
    bits: int

    @property
    def network(self) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
        return ipaddress.ip_network(f"{self.address}/{self.bits}", strict=False)

    def __str__(self) -> str:
        return f"{self.address}/{self.bits}"


KINDS[ipaddress.IPv4Address] = KINDS[ipaddress.IPv6Address] = "net.IP"
KINDS[CidrValue] = "net.CIDR"


def _ip(text: str) -> Address:
    try:
        if "%" in text or len(text) > 64:
            raise ValueError("IPv6 zones are not allowed")
        address = ipaddress.ip_address(text)
    except ValueError as fault:
        raise CelError(f'IP Address "{text[:80]}" parse error during conversion from string: {fault}') from fault
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        raise CelError(f"IPv4-mapped IPv6 address is not allowed: {text}")
    return address


def _is_ip(text: str) -> bool:
    try:
        _ip(text)
    except CelError:
        return False
    return True


def _cidr(text: str) -> CidrValue:
    if not is_cidr(text[:64]):
        raise CelError(f'network address parse error during conversion from string: CIDR "{text[:80]}" is invalid')
    address, _, bits = text.partition("/")
    return CidrValue(_ip(address), int(bits))


def _is_cidr(text: str) -> bool:
    try:
        _cidr(text)
    except CelError:
        return False
    return True


def _is_canonical(text: str) -> bool:
    return str(_ip(text)) == text


def _contains_ip(cidr: CidrValue, address: Address) -> bool:
    return address.version == cidr.address.version and address in cidr.network


def _contains_cidr(outer: CidrValue, inner: CidrValue) -> bool:
    return inner.bits >= outer.bits and _contains_ip(outer, inner.address)


def _masked(cidr: CidrValue) -> CidrValue:
    return CidrValue(cidr.network.network_address, cidr.bits)


def _is_global_unicast(address: Address) -> bool:
    """Go's meaning: anything that is not unspecified, loopback, multicast, link-local or broadcast."""
    special = address.is_unspecified or address.is_loopback or address.is_multicast or address.is_link_local
    return not special and str(address) != "255.255.255.255"


def _is_link_local_multicast(address: Address) -> bool:
    packed = address.packed
    if address.version == 4:
        return packed[:3] == b"\xe0\x00\x00"
    return packed[0] == 0xFF and packed[1] & 0x0F == 0x02


LIBRARY: Final[Library] = (
    function("ip", (STRING,), IP, _ip),
    function("isIP", (STRING,), BOOL, _is_ip),
    function("ip.isCanonical", (STRING,), BOOL, _is_canonical),
    function("string", (IP,), STRING, str),
    method("family", (IP,), INT, lambda address: address.version),
    method("isUnspecified", (IP,), BOOL, lambda address: address.is_unspecified),
    method("isLoopback", (IP,), BOOL, lambda address: address.is_loopback),
    method("isLinkLocalMulticast", (IP,), BOOL, _is_link_local_multicast),
    method("isLinkLocalUnicast", (IP,), BOOL, lambda address: address.is_link_local),
    method("isGlobalUnicast", (IP,), BOOL, _is_global_unicast),
    function("cidr", (STRING,), CIDR, _cidr),
    function("isCIDR", (STRING,), BOOL, _is_cidr),
    function("string", (CIDR,), STRING, str),
    method("containsIP", (CIDR, IP), BOOL, _contains_ip),
    method("containsIP", (CIDR, STRING), BOOL, lambda cidr, text: _contains_ip(cidr, _ip(text))),
    method("containsCIDR", (CIDR, CIDR), BOOL, _contains_cidr),
    method("containsCIDR", (CIDR, STRING), BOOL, lambda cidr, text: _contains_cidr(cidr, _cidr(text))),
    method("ip", (CIDR,), IP, lambda cidr: cidr.address),
    method("masked", (CIDR,), CIDR, _masked),
    method("prefixLength", (CIDR,), INT, lambda cidr: cidr.bits),
)
