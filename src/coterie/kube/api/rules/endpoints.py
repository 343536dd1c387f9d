"""Rules of endpoints and endpoint slices: the addresses behind a service."""

from __future__ import annotations

import ipaddress

from coterie.kube.api.errors import invalid, not_supported, required
from coterie.kube.api.names import dns_subdomain_faults, port_number_faults
from coterie.kube.api.rules.base import Errors, KindRules, Obj, make_rules, setdefaults
from coterie.kube.api.rules.common import immutable, named, not_negative, optional_one_of, valid_ip
from coterie.kube.api.rules.containers import PROTOCOLS

# ---- endpoints ----------------------------------------------------------------------------------------------------

_BAD_ENDPOINT = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"


def _default_endpoints(obj: Obj) -> None:
    for subset in obj.get("subsets") or ():
        for port in subset.get("ports") or ():
            setdefaults(port, protocol="TCP")


def _validate_endpoints(obj: Obj) -> Errors:
    errors: Errors = []
    for index, subset in enumerate(obj.get("subsets") or ()):
        at = f"subsets[{index}]"
        if not subset.get("addresses") and not subset.get("notReadyAddresses"):
            errors.append(required(at, "must specify `addresses` or `notReadyAddresses`"))
        for key in ("addresses", "notReadyAddresses"):
            for place, address in enumerate(subset.get(key) or ()):
                errors += check_endpoint_address(address.get("ip") or "", f"{at}.{key}[{place}].ip")
        ports = subset.get("ports") or []
        for place, port in enumerate(ports):
            here = f"{at}.ports[{place}]"
            if not port.get("name") and len(ports) > 1:
                errors.append(required(f"{here}.name"))
            number = port.get("port") or 0
            errors += [invalid(f"{here}.port", number, fault) for fault in port_number_faults(number)]
            if port.get("protocol") not in PROTOCOLS:
                errors.append(not_supported(f"{here}.protocol", port.get("protocol") or "", PROTOCOLS))
    return errors


def check_endpoint_address(address: str, path: str) -> Errors:
    """Loopback addresses are taken, unlike in Kubernetes: several domains on one machine have one each."""
    if not valid_ip(address):
        return [invalid(path, address, _BAD_ENDPOINT)]
    parsed = ipaddress.ip_address(address)
    for faulty, why in (
        (parsed.is_unspecified, f"may not be unspecified ({address})"),
        (parsed.is_link_local, "may not be in the link-local range (169.254.0.0/16, fe80::/10)"),
    ):
        if faulty:
            return [invalid(path, address, why)]
    return []


# ---- endpoint slices ----------------------------------------------------------------------------------------------

_ADDRESS_TYPES = ("FQDN", "IPv4", "IPv6")


def _default_slice(obj: Obj) -> None:
    for port in obj.get("ports") or ():
        setdefaults(port, protocol="TCP")
        if port.get("name") is None:
            port["name"] = ""


def _validate_slice(obj: Obj) -> Errors:
    errors: Errors = []
    kind = obj.get("addressType") or ""
    if not kind:
        errors.append(required("addressType"))
    elif kind not in _ADDRESS_TYPES:
        errors.append(not_supported("addressType", kind, _ADDRESS_TYPES))
    endpoints, ports = obj.get("endpoints") or [], obj.get("ports") or []
    if len(endpoints) > 1000:
        errors.append(invalid("endpoints", endpoints, "must have at most 1000 items"))
    for index, endpoint in enumerate(endpoints):
        at = f"endpoints[{index}]"
        addresses = endpoint.get("addresses") or []
        if not addresses:
            errors.append(required(f"{at}.addresses", "must contain at least 1 address"))
        for place, address in enumerate(addresses):
            errors += _check_slice_address(address, kind, f"{at}.addresses[{place}]")
    names: set[str] = set()
    for index, port in enumerate(ports):
        name = port.get("name") or ""
        if name in names:
            errors.append(invalid(f"ports[{index}].name", name, "must be unique"))
        names.add(name)
        errors += optional_one_of(port.get("protocol"), PROTOCOLS, f"ports[{index}].protocol")
        errors += not_negative(port, f"ports[{index}]", "port")
    return errors


def _check_slice_address(address: str, kind: str, path: str) -> Errors:
    if kind == "FQDN":
        return named(address, path, dns_subdomain_faults)
    if kind in ("IPv4", "IPv6") and (not valid_ip(address) or (":" in address) != (kind == "IPv6")):
        return [invalid(path, address, f"must be a valid {kind} address")]
    return []


def _fixed_address_type(new: Obj, old: Obj) -> Errors:
    return immutable(new, old, "", "addressType")


RULES: dict[tuple[str, str], KindRules] = {
    ("", "Endpoints"): make_rules(default=_default_endpoints, validate=_validate_endpoints),
    ("discovery.k8s.io", "EndpointSlice"): make_rules(
        default=_default_slice,
        validate=_validate_slice,
        changed=_fixed_address_type,
        generation=("endpoints", "ports"),
    ),
}
