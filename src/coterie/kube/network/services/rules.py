"""The table of Services as nftables messages. Pure.

table ip coterie_services
    map service_ports      address . protocol . port : goto chain
    set hairpin            address . address of each endpoint
    chain prerouting       nat, before the fence's own nat: vmap @service_ports         connections of pods
    chain output           the same for processes of the domain
    chain postrouting      an endpoint that reaches itself is answered through the gateway address
    chain refuse_forward   filter: what still goes to the range of Services has no endpoint: refused
    chain refuse_output    the same for processes of the domain
    chain service-...      one for each port of a Service: dnat to one of its endpoints at random
    set affinity-...       one for each endpoint of a Service with session affinity: its clients
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Iterator
from typing import TypeVar

from coterie.kube.network.pods import nftables
from coterie.kube.network.pods.netlink import NetlinkMessage
from coterie.kube.network.services.plan import Backend, Key, PortChain, TableChange

T = TypeVar("T")

TABLE = "coterie_services"
_FAMILY = nftables.FAMILY_IP
_PORTS, _HAIRPIN = "service_ports", "hairpin"
_PORTS_ID, _HAIRPIN_ID, _FIRST_ID = 1, 2, 16
_BEFORE_OTHER_NAT, _AFTER_OTHER_NAT, _BEFORE_FENCE = -110, 110, -10
_KEY = (nftables.TYPE_IPV4_ADDRESS, nftables.TYPE_PROTOCOL, nftables.TYPE_PORT)
_TARGET = (nftables.TYPE_IPV4_ADDRESS, nftables.TYPE_PORT)
_ELEMENTS_IN_MESSAGE = 500
"""The length of an attribute has 16 bits."""
_TCP = bytes([6])


def affinity_set(chain: str, backend: Backend) -> str:
    return f"affinity-{chain.removeprefix('service-')}/{backend.address}/{backend.port}"


def table_messages(gateway: str, service_cidr: str) -> list[NetlinkMessage]:
    """The table without Services, in place of the one that may be there."""
    add = nftables.add_table(TABLE, family=_FAMILY)
    messages = [add, nftables.delete_table(TABLE, family=_FAMILY), add]
    messages.append(nftables.add_verdict_map(TABLE, _PORTS, _PORTS_ID, _KEY, 12, family=_FAMILY))
    pair = (nftables.TYPE_IPV4_ADDRESS, nftables.TYPE_IPV4_ADDRESS)
    messages.append(nftables.add_set(TABLE, _HAIRPIN, _HAIRPIN_ID, pair, 8, family=_FAMILY))
    for name, hook in (("prerouting", nftables.PREROUTING), ("output", nftables.OUTPUT)):
        messages.append(nftables.add_chain(TABLE, name, "nat", hook, _BEFORE_OTHER_NAT, family=_FAMILY))
        messages.append(_rule(name, _key(), nftables.map_lookup(_PORTS, _PORTS_ID, nftables.VERDICT)))
    messages.append(
        nftables.add_chain(TABLE, "postrouting", "nat", nftables.POSTROUTING, _AFTER_OTHER_NAT, family=_FAMILY)
    )
    messages.append(
        _rule(
            "postrouting",
            nftables.load_payload(nftables.NETWORK_HEADER, 12, 4, nftables.FIRST),
            nftables.load_payload(nftables.NETWORK_HEADER, 16, 4, nftables.SECOND_WORD),
            nftables.lookup(_HAIRPIN, _HAIRPIN_ID),
            nftables.load_value(_packed(gateway)),
            nftables.change_source(),
        )
    )
    for name, hook in (("refuse_forward", nftables.FORWARD), ("refuse_output", nftables.OUTPUT)):
        messages.append(nftables.add_chain(TABLE, name, "filter", hook, _BEFORE_FENCE, family=_FAMILY))
        to_services = _to_network(service_cidr)
        is_tcp = nftables.load_meta(nftables.META_L4PROTO) + nftables.compare(nftables.EQUAL, _TCP)
        messages.append(_rule(name, to_services, is_tcp, nftables.reset_connection()))
        messages.append(_rule(name, to_services, nftables.refuse_ipv4()))
    return messages


def change_messages(change: TableChange) -> list[NetlinkMessage]:
    """One transaction: everything of the change, and nothing of other Services."""
    identifiers = iter(range(_FIRST_ID, 1 << 31))
    messages: list[NetlinkMessage] = []
    if change.keys_removed:
        keys = [_packed_key(key) for key in change.keys_removed]
        messages += [nftables.delete_elements(TABLE, _PORTS, part, family=_FAMILY) for part in _parts(keys)]
    for name, (old, new) in change.changed.items():
        messages.append(nftables.delete_rules(TABLE, name, family=_FAMILY))
        messages += _chain_rules(name, new, old, identifiers)
    for name, chain in change.added.items():
        messages.append(nftables.add_plain_chain(TABLE, name, family=_FAMILY))
        messages += _chain_rules(name, chain, None, identifiers)
    for name, chain in change.removed.items():
        messages.append(nftables.delete_rules(TABLE, name, family=_FAMILY))
        messages.append(nftables.delete_chain(TABLE, name, family=_FAMILY))
        messages += [nftables.delete_set(TABLE, each, family=_FAMILY) for each in _affinity_sets(name, chain)]
    added = [(_packed_key(key), chain) for key, chain in change.keys_added]
    messages += [nftables.add_chain_elements(TABLE, _PORTS, part, family=_FAMILY) for part in _parts(added, 100)]
    for addresses, make in (
        (change.hairpins_removed, nftables.delete_elements),
        (change.hairpins_added, nftables.add_elements),
    ):
        pairs = [_packed(address) * 2 for address in addresses]
        messages += [make(TABLE, _HAIRPIN, part, family=_FAMILY) for part in _parts(pairs)]
    return messages


def _chain_rules(
    name: str, chain: PortChain, before: PortChain | None, identifiers: Iterator[int]
) -> Iterator[NetlinkMessage]:
    """The rules of a chain that has none now; affinity sets of endpoints that stay are kept, with the clients in them."""
    kept = set(_affinity_sets(name, before)) if before is not None else set()
    same_timeout = before is not None and before.affinity_seconds == chain.affinity_seconds
    wanted = _affinity_sets(name, chain)
    for each in kept:
        if each not in wanted or not same_timeout:
            yield nftables.delete_set(TABLE, each, family=_FAMILY)
    if not chain.affinity_seconds:
        values = [_packed(backend.address) + struct.pack(">H2x", backend.port) for backend in chain.backends]
        if len(values) == 1:
            yield _rule(name, _to(chain.backends[0]))
            return
        identifier = next(identifiers)
        yield from _map_messages(identifier, values)
        chosen = nftables.random_number(len(values))
        yield _rule(name, chosen, nftables.map_lookup(nftables.ANONYMOUS, identifier), _TO_TARGET)
        return
    sets: dict[Backend, tuple[str, int]] = {}
    for backend, each in zip(chain.backends, wanted, strict=True):
        identifier = next(identifiers)
        if not same_timeout or each not in kept:
            timeout = chain.affinity_seconds
            fields = (nftables.TYPE_IPV4_ADDRESS,)
            yield nftables.add_set(TABLE, each, identifier, fields, 4, dynamic=True, timeout=timeout, family=_FAMILY)
        sets[backend] = (each, identifier)
    source = nftables.load_payload(nftables.NETWORK_HEADER, 12, 4)
    for backend, (each, identifier) in sets.items():
        known = nftables.lookup(each, identifier)
        yield _rule(name, source, known, source, nftables.remember(each, identifier), _to(backend))
    for index, (backend, (each, identifier)) in enumerate(sets.items()):
        left = len(sets) - index
        chosen = nftables.random_number(left) + nftables.compare(nftables.EQUAL, bytes(4)) if left > 1 else b""
        yield _rule(name, chosen, source, nftables.remember(each, identifier), _to(backend))


def _affinity_sets(name: str, chain: PortChain) -> list[str]:
    return [affinity_set(name, backend) for backend in chain.backends] if chain.affinity_seconds else []


def _map_messages(identifier: int, values: list[bytes]) -> list[NetlinkMessage]:
    return nftables.add_anonymous_map(TABLE, identifier, _TARGET, values, family=_FAMILY)


_TO_TARGET = nftables.change_destination(nftables.FIRST, nftables.SECOND_WORD)


def _to(backend: Backend) -> bytes:
    return (
        nftables.load_value(_packed(backend.address), nftables.FIRST)
        + nftables.load_value(struct.pack(">H", backend.port), nftables.SECOND)
        + nftables.change_destination(nftables.FIRST, nftables.SECOND)
    )


def _rule(chain: str, *expressions: bytes) -> NetlinkMessage:
    return nftables.add_rule(TABLE, chain, *expressions, family=_FAMILY)


def _key() -> bytes:
    return (
        nftables.load_payload(nftables.NETWORK_HEADER, 16, 4, nftables.FIRST)
        + nftables.load_meta(nftables.META_L4PROTO, nftables.SECOND_WORD)
        + nftables.load_payload(nftables.TRANSPORT_HEADER, 2, 2, nftables.THIRD_WORD)
    )


def _to_network(cidr: str) -> bytes:
    network = ipaddress.IPv4Network(cidr)
    return (
        nftables.load_payload(nftables.NETWORK_HEADER, 16, 4)
        + nftables.mask(network.netmask.packed)
        + nftables.compare(nftables.EQUAL, network.network_address.packed)
    )


def _packed(address: str) -> bytes:
    return socket.inet_pton(socket.AF_INET, address)


def _packed_key(key: Key) -> bytes:
    address, protocol, port = key
    return _packed(address) + struct.pack(">B3xH2x", protocol, port)


def _parts(items: list[T], size: int = _ELEMENTS_IN_MESSAGE) -> Iterator[list[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
