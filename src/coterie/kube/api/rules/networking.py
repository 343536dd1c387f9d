"""Rules of ingresses, ingress classes and network policies."""

from __future__ import annotations

import ipaddress
from typing import Any

from coterie.kube.api.errors import forbidden_field, invalid, not_supported, required
from coterie.kube.api.names import (
    dns1035_label_faults,
    dns_subdomain_faults,
    port_number_faults,
    wildcard_subdomain_faults,
)
from coterie.kube.api.rules.base import Errors, KindRules, Obj, make_rules, section, setdefaults
from coterie.kube.api.rules.common import (
    check_port_or_name,
    immutable,
    named,
    optional_named,
    optional_one_of,
    valid_cidr,
    valid_ip,
)
from coterie.kube.api.rules.containers import PROTOCOLS
from coterie.kube.api.selectors import validate_selector

# ---- ingresses ----------------------------------------------------------------------------------------------------

_PATH_TYPES = ("Exact", "ImplementationSpecific", "Prefix")
_BAD_SEQUENCES = ("//", "/./", "/../", "%2f", "%2F")
_BAD_ENDINGS = ("/..", "/.")


def _validate_ingress(obj: Obj) -> Errors:
    spec = obj.get("spec") or {}
    errors: Errors = []
    backend, rules = spec.get("defaultBackend"), spec.get("rules") or []
    if not rules and backend is None:
        errors.append(invalid("spec", spec, "either `defaultBackend` or `rules` must be specified"))
    if backend is not None:
        errors += _check_backend(backend, "spec.defaultBackend")
    for index, rule in enumerate(rules):
        errors += _check_rule(rule, f"spec.rules[{index}]")
    for index, item in enumerate(spec.get("tls") or ()):
        for place, host in enumerate(item.get("hosts") or ()):
            errors += _check_host(host, f"spec.tls[{index}].hosts[{place}]")
        errors += optional_named(item.get("secretName"), f"spec.tls[{index}].secretName", dns_subdomain_faults)
    return errors + optional_named(spec.get("ingressClassName"), "spec.ingressClassName", dns_subdomain_faults)


def _check_host(host: str, path: str) -> Errors:
    rule = wildcard_subdomain_faults if "*" in host else dns_subdomain_faults
    return optional_named(host, path, rule)


def _check_rule(rule: Obj, path: str) -> Errors:
    errors: Errors = []
    host = rule.get("host") or ""
    if host and valid_ip(host):
        errors.append(invalid(f"{path}.host", host, "must be a DNS name, not an IP address"))
    elif host:
        errors += _check_host(host, f"{path}.host")
    http = rule.get("http")
    if http is None:
        return errors
    paths = http.get("paths") or []
    if not paths:
        errors.append(required(f"{path}.http.paths"))
    for index, item in enumerate(paths):
        at = f"{path}.http.paths[{index}]"
        errors += _check_path(item, at)
        errors += _check_backend(item.get("backend") or {}, f"{at}.backend")
    return errors


def _check_path(item: Obj, at: str) -> Errors:
    kind, path = item.get("pathType"), item.get("path") or ""
    if not kind:
        return [required(f"{at}.pathType", "pathType must be specified")]
    if kind not in _PATH_TYPES:
        return [not_supported(f"{at}.pathType", kind, _PATH_TYPES)]
    if kind == "ImplementationSpecific":
        return [] if not path or path.startswith("/") else [invalid(f"{at}.path", path, "must be an absolute path")]
    errors: Errors = []
    if not path.startswith("/"):
        errors.append(invalid(f"{at}.path", path, "must be an absolute path"))
    errors += [invalid(f"{at}.path", path, f"must not contain '{part}'") for part in _BAD_SEQUENCES if part in path]
    errors += [invalid(f"{at}.path", path, f"cannot end with '{part}'") for part in _BAD_ENDINGS if path.endswith(part)]
    return errors


def _check_backend(backend: Obj, path: str) -> Errors:
    service, resource = backend.get("service"), backend.get("resource")
    if service is not None and resource is not None:
        return [invalid(path, "", "cannot set both resource and service backends")]
    if resource is not None:
        return [required(f"{path}.resource.{key}") for key in ("kind", "name") if not resource.get(key)]
    if service is None:
        return [required(path, "resource or service backend is required")]
    errors = named(service.get("name"), f"{path}.service.name", dns1035_label_faults)
    port = service.get("port") or {}
    name, number = port.get("name"), port.get("number")
    if name and number:
        errors.append(invalid(path, "", "cannot set both port name & port number"))
    elif name:
        errors += check_port_or_name(name, f"{path}.service.port.name")
    elif number:
        errors += [invalid(f"{path}.service.port.number", number, fault) for fault in port_number_faults(number)]
    else:
        errors.append(required(path, "port name or number is required"))
    return errors


def _no_load_balancer(obj: Obj) -> Obj:
    return {"loadBalancer": {}}


# ---- ingress classes ----------------------------------------------------------------------------------------------


def _default_ingress_class(obj: Obj) -> None:
    if parameters := (obj.get("spec") or {}).get("parameters"):
        setdefaults(parameters, scope="Cluster")


def _validate_ingress_class(obj: Obj) -> Errors:
    spec = obj.get("spec") or {}
    errors: Errors = []
    controller = spec.get("controller") or ""
    if len(controller) > 250:
        errors.append(invalid("spec.controller", controller, "must be no more than 250 characters"))
    elif "/" not in controller or not all(controller.split("/", 1)):
        why = 'must be a domain-prefixed path (such as "acme.io/foo")'
        errors.append(invalid("spec.controller", controller, why) if controller else required("spec.controller"))
    if parameters := spec.get("parameters"):
        at = "spec.parameters"
        errors += [required(f"{at}.{key}") for key in ("kind", "name") if not parameters.get(key)]
        errors += optional_one_of(parameters.get("scope"), ("Cluster", "Namespace"), f"{at}.scope")
        if parameters.get("scope") == "Namespace" and not parameters.get("namespace"):
            errors.append(required(f"{at}.namespace", "`parameters.scope` is set to 'Namespace'"))
        if parameters.get("scope") == "Cluster" and parameters.get("namespace"):
            errors.append(forbidden_field(f"{at}.namespace", "`parameters.scope` is set to 'Cluster'"))
    return errors


def _fixed_controller(new: Obj, old: Obj) -> Errors:
    return immutable(new.get("spec") or {}, old.get("spec") or {}, "spec", "controller")


# ---- network policies ---------------------------------------------------------------------------------------------


def _default_network_policy(obj: Obj) -> None:
    spec = section(obj, "spec")
    section(spec, "podSelector")
    for direction in ("ingress", "egress"):
        for rule in spec.get(direction) or ():
            for port in rule.get("ports") or ():
                setdefaults(port, protocol="TCP")
    if not spec.get("policyTypes"):
        spec["policyTypes"] = ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"]


def _validate_network_policy(obj: Obj) -> Errors:
    spec = obj.get("spec") or {}
    errors = validate_selector(spec.get("podSelector") or {}, "spec.podSelector")
    for direction, peers in (("ingress", "from"), ("egress", "to")):
        for index, rule in enumerate(spec.get(direction) or ()):
            at = f"spec.{direction}[{index}]"
            for place, port in enumerate(rule.get("ports") or ()):
                errors += _check_policy_port(port, f"{at}.ports[{place}]")
            for place, peer in enumerate(rule.get(peers) or ()):
                errors += _check_peer(peer, f"{at}.{peers}[{place}]")
    types = spec.get("policyTypes") or []
    if len(types) > 2:
        errors.append(invalid("spec.policyTypes", types, "may not specify more than two policyTypes"))
    for index, kind in enumerate(types[:2]):
        errors += optional_one_of(kind, ("Egress", "Ingress"), f"spec.policyTypes[{index}]")
    return errors


def _check_policy_port(port: Obj, path: str) -> Errors:
    errors = optional_one_of(port.get("protocol"), PROTOCOLS, f"{path}.protocol")
    number, end = port.get("port"), port.get("endPort")
    if number is None:
        if end is not None:
            errors.append(required(f"{path}.port", "must be specified when endPort is set"))
        return errors
    errors += check_port_or_name(number, f"{path}.port")
    if end is None:
        return errors
    if isinstance(number, str):
        errors.append(invalid(f"{path}.endPort", end, "must not be set when `port` is a name"))
    elif end < number:
        errors.append(invalid(f"{path}.endPort", number, "must be greater than or equal to `port`"))
    elif end > 65535:
        errors.append(invalid(f"{path}.endPort", end, "must be between 1 and 65535, inclusive"))
    return errors


def _check_peer(peer: Obj, path: str) -> Errors:
    errors: Errors = []
    selectors = [key for key in ("podSelector", "namespaceSelector") if peer.get(key) is not None]
    for key in selectors:
        errors += validate_selector(peer[key], f"{path}.{key}")
    block = peer.get("ipBlock")
    if block is not None:
        errors += _check_block(block, f"{path}.ipBlock")
        if selectors:
            errors.append(forbidden_field(path, "may not specify both ipBlock and another peer"))
    elif not selectors:
        errors.append(required(path, "must specify a peer"))
    return errors


def _network(text: Any) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    return ipaddress.ip_network(text, strict=False)


def _check_block(block: Obj, path: str) -> Errors:
    cidr = block.get("cidr") or ""
    if not cidr:
        return [required(f"{path}.cidr")]
    why = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
    if not valid_cidr(cidr):
        return [invalid(f"{path}.cidr", cidr, why)]
    errors: Errors = []
    outer = _network(cidr)
    for index, text in enumerate(block.get("except") or ()):
        at = f"{path}.except[{index}]"
        if not valid_cidr(text):
            errors.append(invalid(at, text, why))
            continue
        inner = _network(text)
        inside = inner.version == outer.version and inner.prefixlen > outer.prefixlen
        if not inside or inner.network_address not in outer:
            errors.append(invalid(at, text, "must be a strict subset of `cidr`"))
    return errors


RULES: dict[tuple[str, str], KindRules] = {
    ("networking.k8s.io", "Ingress"): make_rules(
        validate=_validate_ingress, status=True, generation=("spec",), initial_status=_no_load_balancer
    ),
    ("networking.k8s.io", "IngressClass"): make_rules(
        default=_default_ingress_class,
        validate=_validate_ingress_class,
        changed=_fixed_controller,
        generation=("spec",),
    ),
    ("networking.k8s.io", "NetworkPolicy"): make_rules(
        default=_default_network_policy, validate=_validate_network_policy, generation=("spec",)
    ),
}
