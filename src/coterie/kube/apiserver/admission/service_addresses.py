"""Cluster IPs and node ports of Services: given out, honoured or refused in the write that needs them.

What is taken is read from the collection of Services itself and brought up to date from its history of changes, so it
survives restarts and needs no object of its own. A write that was admitted but is not durable yet holds what it was given
as a reservation. A dry run is answered with addresses but holds none.
"""

from __future__ import annotations

import ipaddress
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coterie.base.lazy_import import lazy_import
from coterie.kube.api import errors
from coterie.kube.apiserver.admission.chain import AdmissionRequest, GuardOf
from coterie.kube.apiserver.state.collection import Collection

if TYPE_CHECKING:
    from coterie.kube.api.rules import services as rules
else:
    rules = lazy_import("coterie.kube.api.rules.services")

Object = dict[str, Any]
Owner = tuple[str, str]
"""Namespace and name of a Service."""

_MOST_FOR_REQUESTS, _LEAST_FOR_REQUESTS, _SHARE_FOR_REQUESTS = 256, 16, 16
"""As in Kubernetes, the lower part of the range (a 16th of it, 16 to 256 addresses) is given out last, so that the addresses
which people ask for by number are free."""
_PORTS_FOR_REQUESTS = 86
MANAGED_BY, IP_ADDRESS_MANAGER = "ipaddress.kubernetes.io/managed-by", "ipallocator.k8s.io"
"""Label of the IPAddress objects that follow Services."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """What one Service has."""

    addresses: frozenset[int] = frozenset()
    ports: frozenset[int] = frozenset()


def holdings_of(service: Object) -> Holdings:
    spec = service.get("spec") or {}
    if spec.get("type") == "ExternalName":
        return Holdings()
    ports = {port["nodePort"] for port in spec.get("ports") or () if port.get("nodePort")}
    if spec.get("healthCheckNodePort"):
        ports.add(spec["healthCheckNodePort"])
    return Holdings(frozenset(_addresses(spec)), frozenset(ports))


def _addresses(spec: Object) -> Iterator[int]:
    for text in spec.get("clusterIPs") or ((spec["clusterIP"],) if spec.get("clusterIP") else ()):
        if (number := _number(text)) is not None:
            yield number


def _number(text: object) -> int | None:
    try:
        return int(ipaddress.IPv4Address(str(text)))
    except ValueError:
        return None


@dataclass(slots=True, eq=False)
class _Reservation:
    owner: Owner
    addresses: set[int] = field(default_factory=set)
    ports: set[int] = field(default_factory=set)


class _Full(Exception):
    """Nothing is left to give out."""


class ServiceAddresses:
    """An admission step. `services` is the collection of Services."""

    def __init__(
        self,
        services: Collection,
        cidr: str,
        chooser: random.Random | None = None,
        addresses: Collection | None = None,
        guard_of: GuardOf | None = None,
    ) -> None:
        """`guard_of`: where other servers give out addresses too."""
        self._guard_of = guard_of
        self._services = services
        self._addresses = addresses
        """IPAddress objects: those that others made keep an address from being given out."""
        self._network = ipaddress.IPv4Network(cidr)
        size = self._network.num_addresses
        first, last = int(self._network.network_address) + 1, int(self._network.broadcast_address) - 1
        band = min(max(_LEAST_FOR_REQUESTS, size // _SHARE_FOR_REQUESTS), _MOST_FOR_REQUESTS)
        start = first + band if first + band <= last else first
        self._dynamic, self._static = range(start, last + 1), range(first, start)
        self._cursor = self._dynamic.start
        """Addresses are given out one after the other, so one that became free is used again as late as possible."""
        self._chooser = chooser or random.Random()
        self._revision = -1
        self._held: dict[Owner, Holdings] = {}
        self._address_owners: dict[int, Owner] = {}
        self._port_owners: dict[int, Owner] = {}
        self._reserved: list[_Reservation] = []

    def __call__(self, attempt: AdmissionRequest) -> None:
        if attempt.resource.kind != "Service" or attempt.resource.group or attempt.subresource:
            return
        spec = attempt.obj.get("spec")
        if not isinstance(spec, dict):
            return
        self._follow()
        reservation = _Reservation((attempt.namespace, attempt.name))
        if not attempt.dry_run:
            self._reserved.append(reservation)
            attempt.release.append(lambda: self._reserved.remove(reservation))
        if spec.get("type") != "ExternalName":
            self._give_address(attempt, spec, reservation)
        self._give_ports(attempt, spec, reservation)
        if self._guard_of is not None and not attempt.dry_run:
            before = holdings_of(attempt.old) if attempt.old else Holdings()
            if reservation.addresses - before.addresses or reservation.ports - before.ports:
                key, seen = self._guard_of("service-addresses")
                attempt.guards[key] = seen

    @property
    def network(self) -> ipaddress.IPv4Network:
        return self._network

    def owners(self) -> Mapping[int, Owner]:
        """Which Service has which address of the range."""
        self._follow()
        return {number: owner for number, owner in self._address_owners.items() if self._in_range(number)}

    def _in_range(self, number: int) -> bool:
        return number in self._dynamic or number in self._static

    # -- what is taken ------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        services = self._services
        if self._revision < services.floor:
            self._held.clear()
            self._address_owners.clear()
            self._port_owners.clear()
            for entry in services:
                self._set((entry.namespace, entry.name), holdings_of(entry.load()))
            if self._revision < 0:
                highest = max((number for number in self._address_owners if number in self._dynamic), default=0)
                self._cursor = highest + 1 if highest + 1 in self._dynamic else self._dynamic.start
        else:
            for change in services.changes_after(self._revision):
                entry = change.entry
                found = Holdings() if change.kind == "DELETED" else holdings_of(entry.load())
                self._set((entry.namespace, entry.name), found)
        self._revision = services.changed

    def _set(self, owner: Owner, found: Holdings) -> None:
        before = self._held.pop(owner, None)
        if before is not None:
            for owners, numbers in ((self._address_owners, before.addresses), (self._port_owners, before.ports)):
                for number in numbers:
                    if owners.get(number) == owner:
                        del owners[number]
        if found != Holdings():
            self._held[owner] = found
            for number in found.addresses:
                self._address_owners.setdefault(number, owner)
            for number in found.ports:
                self._port_owners.setdefault(number, owner)

    def _address_free(self, number: int, reservation: _Reservation) -> bool:
        return (
            self._address_owners.get(number, reservation.owner) == reservation.owner
            and not any(number in other.addresses for other in self._reserved if other.owner != reservation.owner)
            and not self._kept_by_others(number)
        )

    def _kept_by_others(self, number: int) -> bool:
        """Our own IPAddress objects follow the Services and say nothing new; may be one is about to be deleted."""
        entry = self._addresses.get("", str(ipaddress.IPv4Address(number))) if self._addresses else None
        if entry is None:
            return False
        return (entry.load()["metadata"].get("labels") or {}).get(MANAGED_BY) != IP_ADDRESS_MANAGER

    def _port_free(self, number: int, reservation: _Reservation) -> bool:
        """For node ports protocols do not matter: Kubernetes gives each number to one Service."""
        return self._port_owners.get(number, reservation.owner) == reservation.owner and not any(
            number in other.ports for other in self._reserved if other.owner != reservation.owner
        )

    # -- addresses ----------------------------------------------------------------------------------------------

    def _give_address(self, attempt: AdmissionRequest, spec: Object, reservation: _Reservation) -> None:
        given = spec.get("clusterIPs") or ([spec["clusterIP"]] if spec.get("clusterIP") else [])
        if not given:
            number = self._next_address(attempt, reservation)
            reservation.addresses.add(number)
            text = str(ipaddress.IPv4Address(number))
            spec["clusterIP"], spec["clusterIPs"] = text, [text]
            return
        had = ((attempt.old or {}).get("spec") or {}).get("clusterIPs") or ()
        if given == ["None"] or (had and given[0] != had[0]):
            return  # an address may not change once set: the rules of Services say so
        before = holdings_of(attempt.old).addresses if attempt.old else frozenset()
        for text in given:
            number_or_none = _number(text)
            if number_or_none is None:
                continue  # of another family, or no address: the rules of Services say so
            if number_or_none not in before:
                self._check_address(attempt, given, text, number_or_none, reservation)
            reservation.addresses.add(number_or_none)

    def _check_address(
        self, attempt: AdmissionRequest, given: list[str], text: str, number: int, reservation: _Reservation
    ) -> None:
        if not self._in_range(number):
            why = f"the provided IP ({text}) is not in the valid range. The range of valid IPs is {self._network}"
        elif not self._address_free(number, reservation):
            why = "provided IP is already allocated"
        else:
            return
        shown = "[" + ",".join(f'"{each}"' for each in given) + "]"
        detail = f"Invalid value: {shown}: failed to allocate IP {text}: {why}"
        raise _refused(attempt, [errors.FieldError("spec.clusterIPs", "FieldValueInvalid", detail)])

    def _next_address(self, attempt: AdmissionRequest, reservation: _Reservation) -> int:
        try:
            number = _first_free(
                (*_from(self._cursor, self._dynamic), self._static), lambda n: self._address_free(n, reservation)
            )
        except _Full:
            raise _full(attempt, "failed to allocate a serviceIP: range is full") from None
        if number in self._dynamic and not attempt.dry_run:
            self._cursor = number + 1 if number + 1 in self._dynamic else self._dynamic.start
        return number

    # -- ports --------------------------------------------------------------------------------------------------

    def _give_ports(self, attempt: AdmissionRequest, spec: Object, reservation: _Reservation) -> None:
        before = holdings_of(attempt.old).ports if attempt.old else frozenset()
        ports = [port for port in spec.get("ports") or () if isinstance(port, dict)]
        for index, port in enumerate(ports):
            if number := port.get("nodePort"):
                self._check_port(attempt, f"spec.ports[{index}].nodePort", number, before, reservation)
        number = spec.get("healthCheckNodePort")
        if number:
            self._check_port(attempt, "spec.healthCheckNodePort", number, before, reservation)
        if rules.needs_node_ports(spec):
            # One port of the Service in two protocols has one number on the nodes, where that is possible.
            numbers: dict[object, dict[int, set[object]]] = {}
            for port in ports:
                if port.get("nodePort"):
                    numbers.setdefault(port.get("port"), {}).setdefault(port["nodePort"], set()).add(
                        port.get("protocol")
                    )
            for port in ports:
                if port.get("nodePort"):
                    continue
                known = numbers.setdefault(port.get("port"), {})
                shared = next((n for n, protocols in known.items() if port.get("protocol") not in protocols), None)
                port["nodePort"] = shared or self._next_port(attempt, reservation, "nodePort")
                reservation.ports.add(port["nodePort"])
                known.setdefault(port["nodePort"], set()).add(port.get("protocol"))
        if rules.needs_health_check_port(spec) and not number:
            spec["healthCheckNodePort"] = self._next_port(attempt, reservation, "HealthCheck NodePort")
            reservation.ports.add(spec["healthCheckNodePort"])

    def _check_port(
        self, attempt: AdmissionRequest, path: str, number: int, before: Iterable[int], reservation: _Reservation
    ) -> None:
        if number in rules.NODE_PORTS and number not in before and not self._port_free(number, reservation):
            raise _refused(attempt, [errors.invalid(path, number, "provided port is already allocated")])
        reservation.ports.add(number)

    def _next_port(self, attempt: AdmissionRequest, reservation: _Reservation, what: str) -> int:
        dynamic = range(rules.NODE_PORTS.start + _PORTS_FOR_REQUESTS, rules.NODE_PORTS.stop)
        start = self._chooser.choice(dynamic)
        candidates = (*_from(start, dynamic), range(rules.NODE_PORTS.start, dynamic.start))
        try:
            return _first_free(candidates, lambda n: n not in reservation.ports and self._port_free(n, reservation))
        except _Full:
            raise _full(attempt, f"failed to allocate a {what}: range is full") from None


def _from(start: int, whole: range) -> tuple[range, range]:
    return range(start, whole.stop), range(whole.start, start)


def _first_free(ranges: Iterable[range], free: Callable[[int], bool]) -> int:
    for numbers in ranges:
        for number in numbers:
            if free(number):
                return number
    raise _Full


def _refused(attempt: AdmissionRequest, faults: list[errors.FieldError]) -> errors.Invalid:
    return errors.invalid_object(attempt.resource.kind, attempt.resource.group, attempt.name, faults)


def _full(attempt: AdmissionRequest, why: str) -> errors.InternalError:
    return errors.InternalError(f"Internal error occurred: {why}", name=attempt.name)
