"""Rules of services. Cluster IPs and node ports are given out by `apiserver/admission/service_addresses.py`; here is what a
user may ask for and change."""

from __future__ import annotations

from collections.abc import Mapping

from coterie.kube.api.errors import (
    FieldError,
    duplicate,
    forbidden_field,
    invalid,
    not_supported,
    required,
    show_value,
)
from coterie.kube.api.names import PORT_RANGE, dns_label_faults, dns_subdomain_faults, validate_labels
from coterie.kube.api.rules.base import Errors, KindRules, Obj, make_rules, section, setdefaults
from coterie.kube.api.rules.common import check_port_or_name, one_of, optional_one_of, valid_cidr, valid_ip
from coterie.kube.api.rules.containers import PROTOCOLS

NODE_PORTS = range(30000, 32768)
_NODE_PORT_RANGE = "provided port is not in the valid range. The range of valid ports is 30000-32767"
_TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
_IP = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
_ONE_DAY = 86400
_WITH_NODE_PORTS = ("NodePort", "LoadBalancer")


def needs_node_ports(spec: Obj) -> bool:
    kind = spec.get("type")
    return kind == "NodePort" or (kind == "LoadBalancer" and spec.get("allocateLoadBalancerNodePorts") is not False)


def needs_health_check_port(spec: Obj) -> bool:
    return spec.get("type") == "LoadBalancer" and spec.get("externalTrafficPolicy") == "Local"


def needs_external_policy(spec: Obj) -> bool:
    kind = spec.get("type")
    return kind in _WITH_NODE_PORTS or (kind == "ClusterIP" and bool(spec.get("externalIPs")))


def _default_service(obj: Obj) -> None:
    spec = section(obj, "spec")
    setdefaults(spec, sessionAffinity="None", type="ClusterIP")
    if spec["sessionAffinity"] == "None":
        spec.pop("sessionAffinityConfig", None)
    elif spec["sessionAffinity"] == "ClientIP":
        setdefaults(section(section(spec, "sessionAffinityConfig"), "clientIP"), timeoutSeconds=10800)
    for port in spec.get("ports") or ():
        setdefaults(port, protocol="TCP")
        if port.get("targetPort") in (None, 0, "") and port.get("port") is not None:
            port["targetPort"] = port["port"]
    kind = spec["type"]
    if kind != "ExternalName":
        setdefaults(spec, internalTrafficPolicy="Cluster")
        _default_families(spec)
    if needs_external_policy(spec):
        setdefaults(spec, externalTrafficPolicy="Cluster")
    if kind == "LoadBalancer":
        setdefaults(spec, allocateLoadBalancerNodePorts=True)
    if spec.get("clusterIP") and not spec.get("clusterIPs"):
        spec["clusterIPs"] = [spec["clusterIP"]]
    elif spec.get("clusterIPs") and not spec.get("clusterIP"):
        spec["clusterIP"] = spec["clusterIPs"][0]


def _default_families(spec: Obj) -> None:
    headless = spec.get("clusterIP") == "None"
    if headless and not spec.get("selector"):
        # Whoever fills in the endpoints by hand may use either family.
        setdefaults(spec, ipFamilyPolicy="RequireDualStack")
        dual = spec["ipFamilyPolicy"] != "SingleStack"
        spec["ipFamilies"] = spec.get("ipFamilies") or (["IPv4", "IPv6"] if dual else ["IPv4"])
        return
    setdefaults(spec, ipFamilyPolicy="SingleStack")
    if not spec.get("ipFamilies"):
        address = spec.get("clusterIP") or ""
        spec["ipFamilies"] = ["IPv6" if ":" in address else "IPv4"]


def _validate_service(obj: Obj) -> Errors:
    spec = obj.get("spec") or {}
    kind, ports = spec.get("type"), spec.get("ports") or []
    errors: Errors = []
    headless = spec.get("clusterIP") == "None"
    if not ports and not headless and kind != "ExternalName":
        errors.append(required("spec.ports"))
    if kind == "LoadBalancer" and headless:
        why = "may not be set to 'None' for LoadBalancer services"
        errors.append(invalid("spec.clusterIPs[0]", "None", why))
    if kind == "NodePort" and headless:
        errors.append(invalid("spec.clusterIPs[0]", "None", "may not be set to 'None' for NodePort services"))
    if kind == "ExternalName":
        errors += _check_external_name(spec)
    errors += _check_ports(ports, kind or "")
    if selector := spec.get("selector"):
        errors += validate_labels(selector, "spec.selector")
    errors += one_of(spec.get("sessionAffinity"), ("ClientIP", "None"), "spec.sessionAffinity")
    timeout = ((spec.get("sessionAffinityConfig") or {}).get("clientIP") or {}).get("timeoutSeconds")
    if timeout is not None and not 0 < timeout <= _ONE_DAY:
        why = f"must be greater than 0 and less than {_ONE_DAY}"
        errors.append(invalid("spec.sessionAffinityConfig.clientIP.timeoutSeconds", timeout, why))
    errors += one_of(kind, _TYPES, "spec.type")
    errors += _check_addresses(spec)
    errors += optional_one_of(spec.get("internalTrafficPolicy"), ("Cluster", "Local"), "spec.internalTrafficPolicy")
    errors += _check_external_policy(spec)
    allowed = ("SingleStack", "PreferDualStack", "RequireDualStack")
    errors += optional_one_of(spec.get("ipFamilyPolicy"), allowed, "spec.ipFamilyPolicy")
    for index, family in enumerate(spec.get("ipFamilies") or ()):
        errors += optional_one_of(family, ("IPv4", "IPv6"), f"spec.ipFamilies[{index}]")
    return errors


def _check_external_name(spec: Obj) -> Errors:
    errors = [
        forbidden_field(f"spec.{key}", "may not be set for ExternalName services")
        for key in ("clusterIPs", "ipFamilies", "ipFamilyPolicy")
        if spec.get(key)
    ]
    name = (spec.get("externalName") or "").removesuffix(".")
    if not name:
        return [*errors, required("spec.externalName")]
    return errors + [invalid("spec.externalName", name, fault) for fault in dns_subdomain_faults(name)]


def _check_ports(ports: list[Obj], kind: str) -> Errors:
    errors: Errors = []
    names: set[str] = set()
    seen: set[tuple[object, object]] = set()
    node_ports: set[tuple[object, object]] = set()
    for index, port in enumerate(ports):
        at = f"spec.ports[{index}]"
        name, number, protocol = port.get("name") or "", port.get("port") or 0, port.get("protocol")
        if not name and len(ports) > 1:
            errors.append(required(f"{at}.name"))
        elif name:
            errors += [invalid(f"{at}.name", name, fault) for fault in dns_label_faults(name)]
            if name in names:
                errors.append(duplicate(f"{at}.name", name))
            names.add(name)
        if not 1 <= number <= 65535:
            errors.append(invalid(f"{at}.port", number, PORT_RANGE))
        errors += one_of(protocol, PROTOCOLS, f"{at}.protocol")
        if (target := port.get("targetPort")) is not None:
            errors += check_port_or_name(target, f"{at}.targetPort")
        if (number, protocol) in seen:
            errors.append(duplicate(at, port))
        seen.add((number, protocol))
        errors += _check_node_port(port, at, kind, node_ports)
    return errors


def _check_node_port(port: Obj, path: str, kind: str, taken: set[tuple[object, object]]) -> Errors:
    number = port.get("nodePort") or 0
    if not number:
        return []
    if kind in ("ClusterIP", "ExternalName"):
        return [forbidden_field(f"{path}.nodePort", f"may not be used when `type` is '{kind}'")]
    if number not in NODE_PORTS:
        return [invalid(f"{path}.nodePort", number, _NODE_PORT_RANGE)]
    held = (port.get("protocol"), number)
    if held in taken:
        return [duplicate(f"{path}.nodePort", number)]
    taken.add(held)
    return []


def _check_addresses(spec: Obj) -> Errors:
    errors: Errors = []
    addresses = spec.get("clusterIPs") or []
    if spec.get("clusterIP") and addresses and addresses[0] != spec["clusterIP"]:
        why = "first value must match `clusterIP`"
        errors.append(invalid("spec.clusterIPs", addresses, why))
    for index, address in enumerate(addresses):
        at = f"spec.clusterIPs[{index}]"
        if address == "None":
            if index:
                errors.append(invalid(at, address, "'None' must be the first and only value"))
        elif not valid_ip(address):
            errors.append(invalid(at, address, _IP))
    for index, address in enumerate(spec.get("externalIPs") or ()):
        if not valid_ip(address):
            errors.append(invalid(f"spec.externalIPs[{index}]", address, _IP))
    for index, block in enumerate(spec.get("loadBalancerSourceRanges") or ()):
        if not valid_cidr(block.strip()):
            why = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
            errors.append(invalid(f"spec.loadBalancerSourceRanges[{index}]", block, why))
    return errors


def _check_external_policy(spec: Obj) -> Errors:
    policy, path = spec.get("externalTrafficPolicy"), "spec.externalTrafficPolicy"
    health, at = spec.get("healthCheckNodePort"), "spec.healthCheckNodePort"
    errors: Errors = []
    if needs_external_policy(spec):
        if policy not in ("Cluster", "Local"):
            errors.append(not_supported(path, policy or "", ("Cluster", "Local")))
    elif policy:
        errors.append(invalid(path, policy, "may only be set for externally-accessible services"))
    if health and not needs_health_check_port(spec):
        why = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"
        errors.append(invalid(at, health, why))
    elif health and health not in NODE_PORTS:
        errors.append(invalid(at, health, _NODE_PORT_RANGE))
    return errors


def _check_families(spec: Obj) -> Errors:
    """This cluster has IPv4 only. Whoever fills in endpoints by hand (headless, no selector) may use either family."""
    if spec.get("type") == "ExternalName" or (spec.get("clusterIP") == "None" and not spec.get("selector")):
        return []
    errors: Errors = []
    if spec.get("ipFamilyPolicy") == "RequireDualStack":
        why = "this cluster is not configured for dual-stack services"
        errors.append(invalid("spec.ipFamilyPolicy", "RequireDualStack", why))
    for index, family in enumerate(spec.get("ipFamilies") or ()):
        if family == "IPv6":
            errors.append(invalid(f"spec.ipFamilies[{index}]", family, "not configured on this cluster"))
    return errors


def _validate_new_service(obj: Obj) -> Errors:
    return _validate_service(obj) + _check_families(obj.get("spec") or {})


def _keep_allocated(new: Obj, old: Obj) -> None:
    """A client that leaves out what was allocated for it does not give it back; with the type goes what only the old type
    has, unless the client changed that too."""
    spec, before = section(new, "spec"), old.get("spec") or {}
    _drop_unneeded(spec, before)
    if spec.get("type") != "LoadBalancer" and (new.get("status") or {}).get("loadBalancer"):
        new["status"] = {**new["status"], "loadBalancer": {}}
    address, listed = spec.get("clusterIP"), spec.get("clusterIPs")
    if address and listed and address != before.get("clusterIP") and listed == before.get("clusterIPs"):
        spec["clusterIPs"] = [address, *listed[1:]]  # a client that knows one of the two fields only
    if spec.get("type") == "ExternalName" or before.get("type") == "ExternalName":
        return
    if not spec.get("clusterIP") and before.get("clusterIP"):
        spec["clusterIP"] = before["clusterIP"]
        if not spec.get("clusterIPs"):
            spec["clusterIPs"] = list(before.get("clusterIPs") or [before["clusterIP"]])
        spec["ipFamilies"] = before.get("ipFamilies") or spec.get("ipFamilies")
    if spec.get("type") in _WITH_NODE_PORTS and before.get("type") in _WITH_NODE_PORTS:
        _keep_node_ports(spec, before)
    if needs_health_check_port(spec) and needs_health_check_port(before) and before.get("healthCheckNodePort"):
        setdefaults(spec, healthCheckNodePort=before["healthCheckNodePort"])


def _drop_unneeded(spec: Obj, before: Obj) -> None:
    kind, had = spec.get("type"), before.get("type")
    unneeded: list[str] = []
    if kind == "ExternalName" and had != "ExternalName":
        unneeded += ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"]
    if needs_health_check_port(before) and not needs_health_check_port(spec):
        unneeded.append("healthCheckNodePort")
    if had == "LoadBalancer" and kind != "LoadBalancer":
        unneeded += ["allocateLoadBalancerNodePorts", "loadBalancerClass"]
    if needs_external_policy(before) and not needs_external_policy(spec):
        unneeded.append("externalTrafficPolicy")
    for key in unneeded:
        if key in spec and spec[key] == before.get(key):
            del spec[key]
    if needs_node_ports(before) and kind not in _WITH_NODE_PORTS and _node_ports(spec) == _node_ports(before):
        for port in spec.get("ports") or ():
            port.pop("nodePort", None)


def _node_ports(spec: Obj) -> set[object]:
    return {port.get("nodePort") for port in spec.get("ports") or ()}


def _keep_node_ports(spec: Obj, before: Mapping[str, list[Obj]]) -> None:
    held = {
        (port.get("protocol"), port.get("port")): port["nodePort"]
        for port in before.get("ports") or ()
        if port.get("nodePort")
    }
    asked = {port["nodePort"] for port in spec.get("ports") or () if port.get("nodePort")}
    for port in spec.get("ports") or ():
        kept = held.get((port.get("protocol"), port.get("port")))
        if not port.get("nodePort") and kept and kept not in asked:
            port["nodePort"] = kept


def _check_change(new: Obj, old: Obj) -> Errors:
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    if "ExternalName" in (spec.get("type"), before.get("type")):
        return []
    errors: Errors = []
    had, has = before.get("clusterIPs") or [], spec.get("clusterIPs") or []
    if had and not has:
        errors.append(_invalid_list("spec.clusterIPs[0]", has, "primary clusterIP can not be unset"))
    elif had and has[0] != had[0]:
        errors.append(_invalid_list("spec.clusterIPs[0]", has, "may not change once set"))
    families, kept = spec.get("ipFamilies") or [], before.get("ipFamilies") or []
    if kept and families and families[0] != kept[0]:
        errors.append(_invalid_list("spec.ipFamilies[0]", families, "may not change once set"))
    asked = (spec.get("ipFamilyPolicy"), families)
    return errors + (_check_families(spec) if asked != (before.get("ipFamilyPolicy"), kept) else [])


def _invalid_list(path: str, values: list[str], why: str) -> FieldError:
    shown = ",".join(show_value(each) for each in values)
    return FieldError(path, "FieldValueInvalid", f"Invalid value: [{shown}]: {why}")


def _no_load_balancer(obj: Obj) -> Obj:
    return {"loadBalancer": {}}


RULES: dict[tuple[str, str], KindRules] = {
    ("", "Service"): make_rules(
        default=_default_service,
        validate=_validate_service,
        validate_create=_validate_new_service,
        changed=_check_change,
        status=True,
        initial_status=_no_load_balancer,
        update=_keep_allocated,
    ),
}
