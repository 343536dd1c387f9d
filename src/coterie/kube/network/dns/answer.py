"""`answer(question, zone)`: what the domain's server says. Pure.

    name                                        answer
    <svc>.<ns>.svc[.cluster.local]              the Service's cluster IP, or its ready endpoints, a new one first each time
      of type ExternalName                      CNAME, and what upstream says of its target
    <svc>[.<ns>], <svc>.svc                     the same; only if there is such a Service (<ns> left out: the own domain)
    <endpoint>.<svc>.<ns>.svc                   one endpoint, by its host name or its address with dashes
    _port._tcp.<svc>.<ns>.svc (SRV)             port and name of the Service, or of each endpoint
    <1-2-3-4>.<ns>.pod.cluster.local            the address, if a pod of the namespace has it
    4.3.2.1.in-addr.arpa (PTR)                  names of the Service or endpoint with this address
    dns-version.cluster.local (TXT)             the version of the specification
    names in `Zone.hosts`                       their addresses
    everything else                             forwarded

    only in the own domain:
    <svc> with label loadbalancer=domainroute   the gateway
    names of host services                      the node itself
    <hostname>.<subdomain>.<self>.svc           one pod

    anything.<other>.svc                        the own gateway, which knows the way to other domains

<ns> is the own domain or one of `Zone.namespaces`; every other namespace is another domain's. A name that ends in `svc` or
in the cluster's domain is never forwarded, nor is the address of a pod or Service. A name that exists without records of the
asked type is NODATA (no error, no answer); one that does not exist is NXDOMAIN; both carry the SOA that says for how long.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from coterie.kube.network.dns.model import (
    IN,
    REFUSED,
    DnsAnswer,
    DnsQuestion,
    Name,
    RecordType,
    ResourceRecord,
    ResponseCode,
    address_record,
    name_of,
    packed_name,
    ptr_record,
    soa_record,
    srv_record,
)
from coterie.kube.network.dns.settings import Network
from coterie.kube.network.dns.zone import ServiceNames, Zone

T = TypeVar("T")

SVC: Name = (b"svc",)
_POD, _VERSION = b"pod", b"dns-version"
_SPECIFICATION = b"1.1.0"
_LOCALHOST: Name = (b"localhost",)
_REVERSE_4, _REVERSE_6 = (b"in-addr", b"arpa"), (b"ip6", b"arpa")
_REVERSE_APEX = 4
_LONGEST_CHAIN = 8
_NOT_RECORDS = frozenset((RecordType.OPT, *range(128, 256)))
"""ANY, transfers, and what else is a type of question only (RFC 6895)."""


@dataclass(frozen=True, slots=True)
class LocalName:
    """A name in a namespace that is answered here."""

    namespace: str
    path: Name
    """The labels in front of the namespace, empty for the namespace itself."""
    suffix: Name
    """`svc`, or `svc` in the cluster's domain: how names in the answer end."""


def answer(question: DnsQuestion, zone: Zone, turn: int = 0) -> DnsAnswer:
    """`turn` counts questions: it decides which address comes first."""
    return _answer(question, zone, turn, _LONGEST_CHAIN)


def _answer(question: DnsQuestion, zone: Zone, turn: int, hops: int) -> DnsAnswer:
    name = question.name
    if question.klass != IN or question.type in _NOT_RECORDS:
        # ANY is how small questions become large answers to somebody else; nobody needs it.
        return REFUSED
    if name == _LOCALHOST:
        return _addresses(question, ("127.0.0.1", "::1"), zone, turn)
    if (place := locate(name, zone)) is not None:
        return _local(question, place, zone, turn, hops)
    if _ends(name, zone.cluster_domain):
        return _cluster(question, name[: -len(zone.cluster_domain)], zone, turn)
    if name[-1:] == SVC:
        # Every name of another domain exists: only the gateway knows, and it answers the call accordingly.
        return (
            _addresses(question, zone.gateway, zone, turn) if len(name) >= 3 else _negative(question, zone, exists=True)
        )
    if name in zone.hosts:
        return _addresses(question, zone.hosts[name], zone, turn)
    if (reverse := _reverse(question, zone, turn)) is not None:
        return reverse
    # Nobody but name servers asks for name servers, and the answers are long.
    return REFUSED if question.type == RecordType.NS else DnsAnswer(forward=question)


def locate(name: Name, zone: Zone) -> LocalName | None:
    """None when the name lies in no namespace of ours, or is a short one that stands for no Service."""
    domain = zone.domain.encode()
    full = (*SVC, *zone.cluster_domain)
    if _ends(name, full):
        inner = name[: -len(full)]
        return LocalName(_text(inner[-1]), inner[:-1], full) if inner and _is_local(inner[-1], zone) else None
    if name[-1:] == SVC:
        inner = name[:-1]
        if len(inner) == 1:
            # <svc>.svc, or the namespace itself.
            if _known(domain, inner[0], zone):
                return LocalName(zone.domain, inner, SVC)
            return LocalName(_text(inner[0]), (), SVC) if _is_local(inner[0], zone) else None
        if inner and _is_local(inner[-1], zone):
            return LocalName(_text(inner[-1]), inner[:-1], SVC)
        # A name nobody knows may be the beginning of another domain's names.
        return LocalName(zone.domain, inner, SVC) if _head(inner) and _known(domain, inner[-1], zone) else None
    if _head(name[:-1]) and _is_local(name[-1], zone) and _known(name[-1], name[-2], zone):
        return LocalName(_text(name[-1]), name[:-1], SVC)
    return LocalName(zone.domain, name, SVC) if _head(name) and _known(domain, name[-1], zone) else None


def _ends(name: Name, end: Name) -> bool:
    return name[-len(end) :] == end


def _text(label: bytes) -> str:
    return label.decode("ascii", "replace")


def _is_local(label: bytes, zone: Zone) -> bool:
    namespace = _text(label)
    return namespace == zone.domain or namespace in zone.namespaces


def _head(inner: Name) -> bool:
    """<svc>, or _port._proto.<svc>: the only shapes a short name may have."""
    return len(inner) == 1 or (len(inner) == 3 and inner[0][:1] == b"_" and inner[1][:1] == b"_")


def _known(namespace: bytes, label: bytes, zone: Zone) -> bool:
    text = _text(label)
    if _text(namespace) != zone.domain:
        return (_text(namespace), text) in zone.others
    return text in zone.services or text in zone.host_services or text in zone.gateway_services


def _service_of(zone: Zone, namespace: str, name: str) -> ServiceNames | None:
    return zone.services.get(name) if namespace == zone.domain else zone.others.get((namespace, name))


def _local(question: DnsQuestion, place: LocalName, zone: Zone, turn: int, hops: int) -> DnsAnswer:
    if not place.path:
        return _negative(question, zone, exists=True)
    labels = [_text(label) for label in place.path]
    service, own = labels[-1], place.namespace == zone.domain
    if len(labels) == 1 and own:
        if service in zone.host_services:
            return _addresses(question, zone.host, zone, turn)
        if service in zone.gateway_services:
            return _addresses(question, zone.gateway, zone, turn)
    names = _service_of(zone, place.namespace, service)
    if len(labels) == 1 and names is not None:
        return _service(question, names, zone, turn, hops)
    if len(labels) == 2:
        endpoints = names.endpoints.get(labels[0], ()) if names else ()
        pods = zone.pods.get((labels[0], service), ()) if own else ()
        if found := dict.fromkeys((*endpoints, *pods)):
            return _addresses(question, tuple(found), zone, turn)
    if len(labels) == 3 and names is not None and labels[0][:1] == "_" and labels[1][:1] == "_":
        base = (service.encode(), place.namespace.encode(), *place.suffix)
        return _ports(question, base, (labels[0][1:], labels[1][1:]), names, zone, turn)
    return _negative(question, zone, exists=_is_inner(labels, names, zone if own else None))


def _is_inner(labels: list[str], names: ServiceNames | None, own: Zone | None) -> bool:
    """Whether names that exist end in this one, though it has no records itself. `own`: in the own domain."""
    if len(labels) == 1:
        return own is not None and any(subdomain == labels[0] for _, subdomain in own.pods)
    if len(labels) == 2 and names is not None and labels[0][:1] == "_":
        return any(protocol == labels[0][1:] for _, protocol in names.ports)
    return False


def _service(question: DnsQuestion, names: ServiceNames, zone: Zone, turn: int, hops: int) -> DnsAnswer:
    if names.by_gateway:
        return _addresses(question, zone.gateway, zone, turn)
    if not names.alias:
        return _addresses(question, names.addresses, zone, turn)
    target = name_of(names.alias)
    alias = ResourceRecord(question.name, RecordType.CNAME, zone.ttl, packed_name(target))
    if question.type == RecordType.CNAME:
        return DnsAnswer(answers=(alias,), authoritative=True)
    if not hops:
        return DnsAnswer(ResponseCode.SERVFAIL)
    rest = _answer(DnsQuestion(target, question.type), zone, turn, hops - 1)
    return DnsAnswer(rest.code, (alias, *rest.answers), rest.authority, authoritative=True, forward=rest.forward)


def _ports(
    question: DnsQuestion, base: Name, port: tuple[str, str], names: ServiceNames, zone: Zone, turn: int
) -> DnsAnswer:
    """`base`: the service's own name."""
    targets = names.ports.get(port)
    if targets is None:
        return _negative(question, zone, exists=False)
    if question.type != RecordType.SRV or not (targets or names.by_gateway):
        return _negative(question, zone, exists=True)
    if names.by_gateway:
        more = tuple(address_record(base, address, zone.ttl) for address in zone.gateway)
        record = srv_record(question.name, zone.gateway_port, base, zone.ttl)
        return DnsAnswer(answers=(record,), additional=more, authoritative=True)
    records, more_ = [], []
    for target in _turned(targets, turn):
        name = (target.label.encode(), *base) if target.label else base
        found = names.endpoints.get(target.label, ()) if target.label else names.addresses
        records.append(srv_record(question.name, target.port, name, zone.ttl))
        more_ += [address_record(name, address, zone.ttl) for address in found]
    return DnsAnswer(answers=tuple(records), additional=tuple(dict.fromkeys(more_)), authoritative=True)


def _cluster(question: DnsQuestion, inner: Name, zone: Zone, turn: int) -> DnsAnswer:
    """What of the cluster's domain is not a name in a local namespace's `svc`. `inner`: the labels in front of it."""
    if inner == (_VERSION,) and question.type == RecordType.TXT:
        data = bytes((len(_SPECIFICATION),)) + _SPECIFICATION
        record = ResourceRecord(question.name, RecordType.TXT, zone.ttl, data)
        return DnsAnswer(answers=(record,), authoritative=True)
    if inner in ((), SVC, (_POD,), (_VERSION,)):
        return _negative(question, zone, exists=True)
    if inner[-1] == _POD and _is_local(inner[-2], zone):
        if len(inner) == 2:
            return _negative(question, zone, exists=True)
        address = _dashed_address(_text(inner[0])) if len(inner) == 3 else ""
        if address and (_text(inner[-2]), address) in zone.pod_addresses:
            return _addresses(question, (address,), zone, turn)
    return _negative(question, zone, exists=False)


def _dashed_address(text: str) -> str:
    for separator in (".", ":"):
        try:
            return str(ipaddress.ip_address(text.replace("-", separator)))
        except ValueError:
            continue
    return ""


def _reverse(question: DnsQuestion, zone: Zone, turn: int) -> DnsAnswer | None:
    """None when the name is not the reverse of an address of ours."""
    address = _reversed_address(question.name)
    if address is None:
        return None
    names = [
        (*((label.encode(),) if label else ()), service.encode(), namespace.encode(), *SVC, *zone.cluster_domain)
        for (namespace, service), label in sorted(zone.reverse.get(str(address), {}).items())
        if _is_local(namespace.encode(), zone)
    ]
    if names:
        if question.type != RecordType.PTR:
            return _negative(question, zone, exists=True)
        records = [ptr_record(question.name, name, zone.ttl) for name in _turned(names, turn)]
        return DnsAnswer(answers=tuple(records), authoritative=True)
    ours: Sequence[Network] = zone.networks
    return _negative(question, zone, exists=False) if any(address in network for network in ours) else None


def is_reverse(name: Name) -> bool:
    return name[-2:] in (_REVERSE_4, _REVERSE_6)


def _reversed_address(name: Name) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        if name[-2:] == _REVERSE_4 and len(name) == 6:
            return ipaddress.IPv4Address(".".join(_text(label) for label in reversed(name[:-2])))
        if name[-2:] == _REVERSE_6 and len(name) == 34:
            return ipaddress.IPv6Address(bytes.fromhex("".join(_text(label) for label in reversed(name[:-2]))))
    except ValueError:
        return None
    return None


def _addresses(question: DnsQuestion, addresses: Sequence[str], zone: Zone, turn: int) -> DnsAnswer:
    long = question.type == RecordType.AAAA
    asked = long or question.type == RecordType.A
    fitting = [address for address in addresses if asked and (":" in address) == long]
    if not fitting:
        return _negative(question, zone, exists=True)
    records = [address_record(question.name, address, zone.ttl) for address in _turned(fitting, turn)]
    return DnsAnswer(answers=tuple(records), authoritative=True)


def _turned(items: Sequence[T], turn: int) -> Sequence[T]:
    start = turn % len(items)
    return [*items[start:], *items[:start]]


def _negative(question: DnsQuestion, zone: Zone, *, exists: bool) -> DnsAnswer:
    # The SOA must be of the name or above it; a short name is a zone of its own.
    name = question.name
    if _ends(name, zone.cluster_domain):
        apex = zone.cluster_domain
    elif name[-1:] == (b"arpa",):
        apex = name[-_REVERSE_APEX:]
    elif name[-1:] == SVC:
        apex = SVC
    else:
        apex = name[-1:] if name not in zone.hosts else name
    soa = soa_record(apex, zone.serial, zone.ttl)
    if name == apex and question.type == RecordType.SOA:
        return DnsAnswer(answers=(soa,), authoritative=True)
    return DnsAnswer(ResponseCode.NOERROR if exists else ResponseCode.NXDOMAIN, authority=(soa,), authoritative=True)
