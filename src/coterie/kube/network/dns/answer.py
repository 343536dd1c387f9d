"""`answer(question, zone)`: what the domain's server says. Pure.

    name                                        answer
    <svc>[.<self>][.svc], <svc>.<self>.svc.cluster.local   the service's endpoints, all of them, a new one first each time
      with label loadbalancer=domainroute       the gateway
      of type ExternalName                      CNAME, and what upstream says of its target
    names of host services                      the node itself
    <endpoint>.<svc>.<self>.svc                 one endpoint; <hostname>.<subdomain>.<self>.svc one pod
    _port._tcp.<svc>.<self>.svc (SRV)           ports and names of the endpoints
    anything.<other>.svc                        the own gateway, which knows the way to other domains
    everything else                             forwarded

A name that ends in `svc` is never forwarded. One that exists without records of the asked type is NODATA (no error, no
answer); one that does not exist is NXDOMAIN; both carry the SOA that says for how long.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    soa_record,
    srv_record,
)
from coterie.kube.network.dns.zone import ServiceNames, Zone

T = TypeVar("T")

SVC: Name = (b"svc",)
_CLUSTER_LOCAL: Name = (b"svc", b"cluster", b"local")
_LOCALHOST: Name = (b"localhost",)
_LONGEST_CHAIN = 8
_NOT_RECORDS = frozenset((RecordType.OPT, *range(128, 256)))
"""ANY, transfers, and what else is a type of question only (RFC 6895)."""


def answer(question: DnsQuestion, zone: Zone, turn: int = 0) -> DnsAnswer:
    """`turn` counts questions: it decides which address comes first."""
    if question.klass != IN or question.type in _NOT_RECORDS:
        # ANY is how small questions become large answers to somebody else; nobody needs it.
        return REFUSED
    if question.name == _LOCALHOST:
        return _addresses(question, ("127.0.0.1", "::1"), zone, turn)
    path = own_path(question.name, zone)
    if path is not None:
        return _own(question, path, zone, turn, _LONGEST_CHAIN)
    if question.name[-1:] != SVC:
        # Nobody but name servers asks for name servers, and the answers are long.
        return REFUSED if question.type == RecordType.NS else DnsAnswer(forward=question)
    if len(question.name) >= 3:
        return _addresses(question, zone.gateway, zone, turn)
    return _negative(question, zone, exists=True)


def own_path(name: Name, zone: Zone) -> Name | None:
    """The labels in front of the own domain, empty for the domain itself; None when the name is not ours."""
    domain = zone.domain.encode()
    if name[-3:] == _CLUSTER_LOCAL:
        # The machine may stand in a cluster whose names end so: only what is really ours is taken.
        inner = name[:-3]
        return inner[:-1] if len(inner) >= 2 and inner[-1] == domain and _known(inner[-2], zone) else None
    if name[-1:] == SVC:
        inner = name[:-1]
        if inner == (domain,):
            return inner if _known(domain, zone) else ()
        if inner[-1:] == (domain,):
            return inner[:-1]
        # <svc>.svc; a name nobody knows may be the beginning of another domain's names.
        return inner if _head(inner) and _known(inner[-1], zone) else None
    inner = name[:-1] if len(name) > 1 and name[-1] == domain else name
    return inner if _head(inner) and _known(inner[-1], zone) else None


def _head(inner: Name) -> bool:
    """<svc>, or _port._proto.<svc>: the only shapes a short name may have."""
    return len(inner) == 1 or (len(inner) == 3 and inner[0][:1] == b"_" and inner[1][:1] == b"_")


def _known(label: bytes, zone: Zone) -> bool:
    text = label.decode("ascii", "replace")
    return text in zone.services or text in zone.host_services or text in zone.gateway_services


def _own(question: DnsQuestion, path: Name, zone: Zone, turn: int, hops: int) -> DnsAnswer:
    if not path:
        return _negative(question, zone, exists=True)
    labels = [label.decode("ascii", "replace") for label in path]
    service = labels[-1]
    if len(labels) == 1:
        if service in zone.host_services:
            return _addresses(question, zone.host, zone, turn)
        if service in zone.gateway_services:
            return _addresses(question, zone.gateway, zone, turn)
    names = zone.services.get(service)
    if len(labels) == 1 and names is not None:
        return _service(question, names, zone, turn, hops)
    if len(labels) == 2:
        found = dict.fromkeys(
            (*(names.endpoints.get(labels[0], ()) if names else ()), *zone.pods.get((labels[0], service), ()))
        )
        if found:
            return _addresses(question, tuple(found), zone, turn)
    if len(labels) == 3 and names is not None and labels[0][:1] == "_" and labels[1][:1] == "_":
        return _ports(question, service, (labels[0][1:], labels[1][1:]), names, zone, turn)
    return _negative(question, zone, exists=_is_inner(labels, names, zone))


def _is_inner(labels: list[str], names: ServiceNames | None, zone: Zone) -> bool:
    """Whether names that exist end in this one, though it has no records itself."""
    if len(labels) == 1:
        return any(subdomain == labels[0] for _, subdomain in zone.pods)
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
    asked = DnsQuestion(target, question.type)
    path = own_path(target, zone)
    rest = answer(asked, zone, turn) if path is None else _own(asked, path, zone, turn, hops - 1)
    return DnsAnswer(rest.code, (alias, *rest.answers), rest.authority, authoritative=True, forward=rest.forward)


def _ports(
    question: DnsQuestion, service: str, port: tuple[str, str], names: ServiceNames, zone: Zone, turn: int
) -> DnsAnswer:
    targets = names.ports.get(port)
    if targets is None:
        return _negative(question, zone, exists=False)
    if question.type != RecordType.SRV or not (targets or names.by_gateway):
        return _negative(question, zone, exists=True)
    base = (service.encode(), zone.domain.encode(), *SVC)
    if names.by_gateway:
        more = tuple(address_record(base, address, zone.ttl) for address in zone.gateway)
        record = srv_record(question.name, zone.gateway_port, base, zone.ttl)
        return DnsAnswer(answers=(record,), additional=more, authoritative=True)
    records, more_ = [], []
    for target in _turned(targets, turn):
        name = (target.label.encode(), *base)
        records.append(srv_record(question.name, target.port, name, zone.ttl))
        more_ += [address_record(name, address, zone.ttl) for address in names.endpoints.get(target.label, ())]
    return DnsAnswer(answers=tuple(records), additional=tuple(dict.fromkeys(more_)), authoritative=True)


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
    apex = _CLUSTER_LOCAL if question.name[-3:] == _CLUSTER_LOCAL else question.name[-1:]
    soa = soa_record(apex, zone.serial, zone.ttl)
    if question.name == apex and question.type == RecordType.SOA:
        return DnsAnswer(answers=(soa,), authoritative=True)
    return DnsAnswer(ResponseCode.NOERROR if exists else ResponseCode.NXDOMAIN, authority=(soa,), authoritative=True)
