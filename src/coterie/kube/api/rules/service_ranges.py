"""Rules of the addresses of Services: ranges they come from (ServiceCIDR), and those given out (IPAddress)."""

from __future__ import annotations

import ipaddress

from coterie.kube.api.errors import invalid, required
from coterie.kube.api.names import IMMUTABLE, dns_subdomain_faults, path_segment_faults
from coterie.kube.api.rules.base import Errors, KindRules, Obj, make_rules
from coterie.kube.api.rules.common import immutable, named, optional_named

_GROUP = "networking.k8s.io"
_NO_CIDR = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"


def _validate_address(obj: Obj) -> Errors:
    parent = (obj.get("spec") or {}).get("parentRef")
    path = "spec.parentRef"
    if parent is None:
        return [required(path)]
    errors = optional_named(parent.get("group"), f"{path}.group", dns_subdomain_faults)
    errors += named(parent.get("resource"), f"{path}.resource", path_segment_faults)
    errors += named(parent.get("name"), f"{path}.name", path_segment_faults)
    return errors + optional_named(parent.get("namespace"), f"{path}.namespace", path_segment_faults)


def _check_address_change(new: Obj, old: Obj) -> Errors:
    return immutable(new.get("spec") or {}, old.get("spec") or {}, "spec", "parentRef")


def _validate_range(obj: Obj) -> Errors:
    cidrs = (obj.get("spec") or {}).get("cidrs") or []
    if not cidrs:
        return [required("spec.cidrs", "at least one CIDR required")]
    if len(cidrs) > 2:
        return [invalid("spec.cidrs", obj["spec"], "may only hold up to 2 values")]
    errors: Errors = []
    families: list[int] = []
    for index, text in enumerate(cidrs):
        network = _network(text)
        if network is None:
            errors.append(invalid(f"spec.cidrs[{index}]", text, _NO_CIDR))
        else:
            families.append(network.version)
            if str(network) != text:
                why = f'must be in canonical form ("{network}")'
                errors.append(invalid(f"spec.cidrs[{index}]", text, why))
    if len(families) == 2 and families[0] == families[1]:
        why = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64"
        errors.append(invalid("spec.cidrs", cidrs, why))
    return errors


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    if not text.rpartition("/")[2].isdigit() or "/" not in text or "%" in text:
        return None
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def _check_range_change(new: Obj, old: Obj) -> Errors:
    cidrs, before = (new.get("spec") or {}).get("cidrs") or [], (old.get("spec") or {}).get("cidrs") or []
    if len(cidrs) == len(before) or (len(before), len(cidrs)) == (1, 2):
        # A second range may be added, for the other address family.
        return [
            invalid(f"spec.cidrs[{index}]", text, IMMUTABLE)
            for index, (text, known) in enumerate(zip(cidrs, before, strict=False))
            if text != known
        ]
    return [invalid("spec.cidrs", cidrs, IMMUTABLE)]


RULES: dict[tuple[str, str], KindRules] = {
    (_GROUP, "IPAddress"): make_rules(validate=_validate_address, changed=_check_address_change),
    (_GROUP, "ServiceCIDR"): make_rules(validate=_validate_range, changed=_check_range_change, status=True),
}
