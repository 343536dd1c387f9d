"""Rules of dynamic resource allocation (resource.k8s.io): claims on devices, templates and classes of them, and slices."""

from __future__ import annotations

import ipaddress
import re
import uuid
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import orjson

from coterie.base.lazy_import import lazy_import
from coterie.kube.api.errors import (
    duplicate,
    forbidden_field,
    invalid,
    not_found_field,
    not_supported,
    required,
    too_long,
    too_many,
)
from coterie.kube.api.names import (
    IMMUTABLE,
    dns_label_faults,
    dns_subdomain_faults,
    label_value_faults,
    qualified_name_faults,
    validate_annotations,
    validate_labels,
)
from coterie.kube.api.rules.base import Errors, KindRules, Obj, make_rules, section
from coterie.kube.api.rules.common import check_quantity, immutable, is_extended, named, parse_quantity
from coterie.kube.api.rules.csi import check_driver_name
from coterie.kube.api.rules.scheduling import check_node_selector

if TYPE_CHECKING:
    from coterie.kube.api.cel import device_selectors
else:
    device_selectors = lazy_import("coterie.kube.api.cel.device_selectors")

_GROUP = "resource.k8s.io"
_MOST_REQUESTS = _MOST_CONSTRAINTS = _MOST_CONFIGS = _MOST_SELECTORS = _MOST_RESULTS = 32
_MOST_ALTERNATIVES, _MOST_TOLERATIONS, _MOST_TAINTS = 8, 16, 16
_MOST_DEVICES, _MOST_DEVICES_ADVANCED = 128, 64
_MOST_ATTRIBUTES, _MOST_VALUES, _VALUE_LENGTH = 32, 48, 64
_MOST_COUNTER_SETS, _MOST_COUNTERS, _MOST_CONSUMPTIONS = 8, 32, 2
_MOST_BINDING_CONDITIONS, _MOST_CONSUMERS, _MOST_CONDITIONS, _MOST_ADDRESSES = 4, 256, 8, 16
_MOST_VALID_VALUES = 10
_POOL_NAME_LENGTH, _ID_LENGTH, _EXPRESSION_LENGTH, _PARAMETERS_LENGTH = 253, 32, 10 * 1024, 10 * 1024
_INTERFACE_LENGTH, _HARDWARE_ADDRESS_LENGTH = 256, 128
_TAINT_EFFECTS = ("NoExecute", "NoSchedule", "None")
_NODE_ALLOCATABLE = ("cpu", "memory", "ephemeral-storage")
_IDENTIFIER = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_NO_IDENTIFIER = (
    "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters "
    "or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is '[A-Za-z_][A-Za-z0-9_]*')"
)
_PRERELEASE = r"(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
_SEMVER = re.compile(
    rf"(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)(?:-{_PRERELEASE}(?:\.{_PRERELEASE})*)?"
    r"(?:\+[0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*)?",
    re.ASCII,
)
_SCALARS, _LISTS = ("bool", "int", "string", "version"), ("bools", "ints", "strings", "versions")
_NO_REQUEST = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
_ONE_NODE_FIELD = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
_ONE_DEVICE_NODE_FIELD = (
    "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in "
    "the ResourceSlice spec"
)

Check = Callable[[Any, str], Errors]


# ---- lists, sets and names ------------------------------------------------------------------------------------------


def _each(values: list[Any] | None, most: int, check: Check, path: str) -> Errors:
    """A list that is too long is not looked at further."""
    if len(values or ()) > most:
        return [too_many(path, len(values or ()), most)]
    return [error for index, value in enumerate(values or ()) for error in check(value, f"{path}[{index}]")]


def _each_once(values: list[Any] | None, most: int, check: Check, key: Callable[[Any], Any], path: str) -> Errors:
    errors = _each(values, most, check, path)
    if len(values or ()) <= most:
        seen: list[Any] = []
        for index, value in enumerate(values or ()):
            found = key(value)
            if found in seen:
                errors.append(duplicate(f"{path}[{index}]", found if isinstance(found, str) else "object"))
            seen.append(found)
    return errors


def _itself(value: Any) -> Any:
    return value


def _name_of(value: Obj) -> Any:
    return value.get("name") or ""


def _label(name: Any, path: str) -> Errors:
    return [invalid(path, name or "", fault) for fault in dns_label_faults(name or "")]


def _label_name(name: Any, path: str) -> Errors:
    return [invalid(path, name, fault) for fault in qualified_name_faults(name)]


def _node_name(name: str, path: str) -> Errors:
    return [invalid(path, name, fault) for fault in dns_subdomain_faults(name)]


def _pool_name(name: str, path: str) -> Errors:
    if not name:
        return [required(path)]
    errors: Errors = [too_long(path, _POOL_NAME_LENGTH)] if len(name) > _POOL_NAME_LENGTH else []
    for part in name.split("/"):
        errors += [invalid(path, part, fault) for fault in dns_subdomain_faults(part)]
    return errors


def _identifier(name: str, path: str) -> Errors:
    errors: Errors = [too_long(path, _ID_LENGTH)] if len(name) > _ID_LENGTH else []
    return errors if _IDENTIFIER.fullmatch(name) else [*errors, invalid(path, name, _NO_IDENTIFIER)]


def _attribute_name(name: str, path: str) -> Errors:
    """`model`, or `example.com/model`."""
    domain, slash, rest = name.partition("/")
    if not slash:
        return _identifier(name, path)
    errors = check_driver_name(domain, path) if domain else [invalid(path, "", "the domain must not be empty")]
    return errors + (_identifier(rest, path) if rest else [invalid(path, "", "the name must not be empty")])


def _full_attribute_name(name: str, path: str) -> Errors:
    errors = _attribute_name(name, path)
    if "/" not in name:
        why = "a fully qualified name must be a domain and a name separated by a slash"
        errors.append(invalid(path, name, why))
    return errors


def _share_id(text: str, path: str) -> Errors:
    try:
        normal = str(uuid.UUID(text))
    except ValueError:
        return [invalid(path, text, f"error validating uid: invalid UUID length: {len(text)}")]
    if text != normal:
        why = (
            "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase hexadecimal "
            "characters"
        )
        return [invalid(path, text, why)]
    return []


# ---- claims ---------------------------------------------------------------------------------------------------------


def _default_claim_spec(spec: Obj) -> None:
    for request in (spec.get("devices") or {}).get("requests") or ():
        for each in (request.get("exactly"), *(request.get("firstAvailable") or ())):
            if each is not None:
                if not each.get("allocationMode"):
                    each["allocationMode"] = "ExactCount"
                if each["allocationMode"] == "ExactCount" and not each.get("count"):
                    each["count"] = 1


def _default_claim(obj: Obj) -> None:
    _default_claim_spec(section(obj, "spec"))


def _request_names(spec: Obj) -> set[str]:
    names: set[str] = set()
    for request in (spec.get("devices") or {}).get("requests") or ():
        name = _name_of(request)
        names.add(name)
        names.update(f"{name}/{_name_of(each)}" for each in request.get("firstAvailable") or ())
    return names


def _check_claim_spec(spec: Obj, path: str) -> Errors:
    devices, names = spec.get("devices") or {}, _request_names(spec)
    at = f"{path}.devices"
    errors = _each_once(devices.get("requests"), _MOST_REQUESTS, _check_request, _name_of, f"{at}.requests")

    def constraint(value: Obj, where: str) -> Errors:
        found = _check_request_references(value.get("requests"), names, f"{where}.requests")
        if value.get("matchAttribute") is not None:
            return found + _full_attribute_name(value["matchAttribute"], f"{where}.matchAttribute")
        if value.get("distinctAttribute") is not None:
            return found + _full_attribute_name(value["distinctAttribute"], f"{where}.distinctAttribute")
        return [*found, required(f"{where}.matchAttribute")]

    def config(value: Obj, where: str) -> Errors:
        found = _check_request_references(value.get("requests"), names, f"{where}.requests")
        return found + _check_configuration(value, where)

    errors += _each(devices.get("constraints"), _MOST_CONSTRAINTS, constraint, f"{at}.constraints")
    return errors + _each(devices.get("config"), _MOST_CONFIGS, config, f"{at}.config")


def _check_request(request: Obj, path: str) -> Errors:
    errors = _label(request.get("name"), f"{path}.name")
    exactly, alternatives = request.get("exactly"), request.get("firstAvailable") or []
    one_of = "exactly one of `exactly` or `firstAvailable` is required"
    if exactly is None and not alternatives:
        return [*errors, required(path, one_of)]
    if exactly is not None and alternatives:
        return [*errors, invalid(path, None, f"{one_of}, but multiple fields are set")]
    if exactly is not None:
        return errors + _check_exact_request(exactly, f"{path}.exactly")

    def alternative(value: Obj, where: str) -> Errors:
        return _label(value.get("name"), f"{where}.name") + _check_exact_request(value, where)

    return errors + _each_once(alternatives, _MOST_ALTERNATIVES, alternative, _name_of, f"{path}.firstAvailable")


def _check_exact_request(request: Obj, path: str) -> Errors:
    errors = named(request.get("deviceClassName"), f"{path}.deviceClassName", dns_subdomain_faults)
    errors += _check_selectors(request.get("selectors"), f"{path}.selectors")
    mode, count = request.get("allocationMode") or "", request.get("count") or 0
    if mode == "All" and count:
        errors.append(invalid(f"{path}.count", count, "must not be specified when allocationMode is 'All'"))
    elif mode == "ExactCount" and count <= 0:
        errors.append(invalid(f"{path}.count", count, "must be greater than zero"))
    elif mode not in ("All", "ExactCount"):
        errors.append(not_supported(f"{path}.allocationMode", mode, ("All", "ExactCount")))
    for name, value in ((request.get("capacity") or {}).get("requests") or {}).items():
        errors += _attribute_name(name, f"{path}.capacity.requests")
        errors += check_quantity(value, f"{path}.capacity.requests[{name}]")
    return errors + _each(request.get("tolerations"), _MOST_TOLERATIONS, _check_toleration, f"{path}.tolerations")


def _check_toleration(toleration: Obj, path: str) -> Errors:
    key, value = toleration.get("key") or "", toleration.get("value") or ""
    operator, effect = toleration.get("operator") or "", toleration.get("effect") or ""
    errors = _label_name(key, f"{path}.key") if key else []
    if operator == "Exists":
        if value:
            errors.append(invalid(f"{path}.value", value, "must be empty for operator `Exists`"))
    elif operator == "Equal":
        errors += [invalid(f"{path}.value", value, fault) for fault in label_value_faults(value)]
    elif not operator:
        errors.append(required(f"{path}.operator"))
    else:
        errors.append(not_supported(f"{path}.operator", operator, ("Equal", "Exists")))
    if effect and effect not in _TAINT_EFFECTS:
        errors.append(not_supported(f"{path}.effect", effect, _TAINT_EFFECTS))
    return errors


def _check_selectors(selectors: list[Obj] | None, path: str) -> Errors:
    return _each(selectors, _MOST_SELECTORS, _check_selector, path)


def _check_selector(selector: Obj, path: str) -> Errors:
    if selector.get("cel") is None:
        return [required(f"{path}.cel")]
    at, expression = f"{path}.cel.expression", selector["cel"].get("expression") or ""
    if len(expression) > _EXPRESSION_LENGTH:
        return [too_long(at, _EXPRESSION_LENGTH)]
    why = device_selectors.compile_error(expression)
    return [invalid(at, expression, why)] if why else []


def _check_request_references(names: list[str] | None, known: set[str], path: str) -> Errors:
    def reference(name: str, where: str) -> Errors:
        parts = name.split("/")
        if len(parts) > 2:
            return [invalid(where, name, _NO_REQUEST)]
        errors = [error for part in parts for error in _label(part, where)]
        return errors if name in known else [*errors, invalid(where, name, _NO_REQUEST)]

    return _each_once(names, _MOST_REQUESTS, reference, _itself, path)


def _check_configuration(config: Obj, path: str) -> Errors:
    opaque = config.get("opaque")
    if opaque is None:
        return [required(f"{path}.opaque")]
    at = f"{path}.opaque"
    errors = check_driver_name(opaque.get("driver") or "", f"{at}.driver")
    return errors + _check_parameters(opaque.get("parameters"), f"{at}.parameters")


def _check_parameters(value: Any, path: str) -> Errors:
    if value is None:
        return [required(path)]
    if not isinstance(value, dict):
        return [invalid(path, "<value omitted>", "must be a valid JSON object")]
    if len(orjson.dumps(value)) > _PARAMETERS_LENGTH:
        return [too_long(path, _PARAMETERS_LENGTH)]
    return []


def _validate_claim(obj: Obj) -> Errors:
    return _check_claim_spec(obj.get("spec") or {}, "spec")


def _fixed_spec(new: Obj, old: Obj) -> Errors:
    return immutable(new, old, "", "spec")


# ---- status of claims -----------------------------------------------------------------------------------------------


def _validate_claim_status(new: Obj, old: Obj) -> Errors:
    status, before = new.get("status") or {}, old.get("status") or {}
    consumers, allocation = status.get("reservedFor") or [], status.get("allocation")
    errors = _each_once(
        consumers, _MOST_CONSUMERS, _check_consumer, lambda ref: ref.get("uid") or "", "status.reservedFor"
    )
    allocated = [_device_key(each) for each in ((allocation or {}).get("devices") or {}).get("results") or ()]

    def device_status(device: Obj, path: str) -> Errors:
        return _check_device_status(device, path, allocated)

    devices = status.get("devices") or []
    errors += _each_once(devices, len(devices), device_status, _device_key, "status.devices")
    if consumers and allocation is None:
        errors.append(forbidden_field("status.reservedFor", "may not be specified when `allocated` is not set"))
    elif (new.get("metadata") or {}).get("deletionTimestamp"):
        known = before.get("reservedFor") or ()
        why = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"
        errors += [forbidden_field("status.reservedFor", why)] if any(each not in known for each in consumers) else []
    if allocation is not None and before.get("allocation") is not None:
        if allocation != before["allocation"]:
            errors.append(invalid("status.allocation", allocation, IMMUTABLE))
    elif allocation is not None:
        errors += _check_allocation(allocation, _request_names(new.get("spec") or {}), "status.allocation")
    return errors


def _device_key(device: Obj) -> tuple[str, ...]:
    return tuple(str(device.get(key) or "") for key in ("driver", "pool", "device", "shareID"))


def _check_consumer(reference: Obj, path: str) -> Errors:
    return [required(f"{path}.{key}") for key in ("resource", "name", "uid") if not reference.get(key)]


def _check_allocation(allocation: Obj, names: set[str], path: str) -> Errors:
    devices = allocation.get("devices") or {}

    def result(value: Obj, at: str) -> Errors:
        errors = _check_request_references([value.get("request") or ""], names, f"{at}.request")
        errors += check_driver_name(value.get("driver") or "", f"{at}.driver")
        errors += _pool_name(value.get("pool") or "", f"{at}.pool")
        errors += _label(value.get("device"), f"{at}.device")
        errors += _check_binding_conditions(value, at)
        return errors + (_share_id(value["shareID"], f"{at}.shareID") if value.get("shareID") is not None else [])

    def config(value: Obj, at: str) -> Errors:
        source = value.get("source") or ""
        errors: Errors = []
        if not source:
            errors.append(required(f"{at}.source"))
        elif source not in ("FromClaim", "FromClass"):
            errors.append(not_supported(f"{at}.source", source, ("FromClaim", "FromClass")))
        errors += _check_request_references(value.get("requests"), names, f"{at}.requests")
        return errors + _check_configuration(value, at)

    errors = _each(devices.get("results"), _MOST_RESULTS, result, f"{path}.devices.results")
    errors += _each(devices.get("config"), 2 * _MOST_CONFIGS, config, f"{path}.devices.config")
    if allocation.get("nodeSelector") is not None:
        errors += check_node_selector(allocation["nodeSelector"], f"{path}.nodeSelector")
    return errors


def _check_device_status(device: Obj, path: str, allocated: list[tuple[str, ...]]) -> Errors:
    errors = check_driver_name(device.get("driver") or "", f"{path}.driver")
    errors += _pool_name(device.get("pool") or "", f"{path}.pool")
    errors += _label(device.get("device"), f"{path}.device")
    if device.get("shareID") is not None:
        errors += _share_id(device["shareID"], f"{path}.shareID")
    if _device_key(device) not in allocated:
        errors.append(invalid(path, "/".join(_device_key(device)[:3]), "must be an allocated device in the claim"))
    if len(device.get("conditions") or ()) > _MOST_CONDITIONS:
        errors.append(too_many(f"{path}.conditions", len(device["conditions"]), _MOST_CONDITIONS))
    if device.get("data"):
        errors += _check_parameters(device["data"], f"{path}.data")
    network = device.get("networkData") or {}
    if len(network.get("interfaceName") or "") > _INTERFACE_LENGTH:
        errors.append(too_long(f"{path}.networkData.interfaceName", _INTERFACE_LENGTH))
    if len(network.get("hardwareAddress") or "") > _HARDWARE_ADDRESS_LENGTH:
        errors.append(too_long(f"{path}.networkData.hardwareAddress", _HARDWARE_ADDRESS_LENGTH))
    addresses = f"{path}.networkData.ips"
    return errors + _each_once(network.get("ips"), _MOST_ADDRESSES, _check_interface_address, _itself, addresses)


def _check_interface_address(text: str, path: str) -> Errors:
    try:
        if "/" in text and "%" not in text:
            ipaddress.ip_interface(text)
            return []
    except ValueError:
        pass
    return [invalid(path, text, "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)")]


# ---- templates and classes ------------------------------------------------------------------------------------------


def _default_template(obj: Obj) -> None:
    _default_claim_spec(section(section(obj, "spec"), "spec"))


def _validate_template(obj: Obj) -> Errors:
    spec = obj.get("spec") or {}
    meta = spec.get("metadata") or {}
    errors = validate_labels(meta.get("labels") or {}, "spec.metadata.labels")
    errors += validate_annotations(meta.get("annotations") or {}, "spec.metadata.annotations")
    return errors + _check_claim_spec(spec.get("spec") or {}, "spec.spec")


def _validate_class(obj: Obj) -> Errors:
    spec = obj.get("spec") or {}
    errors = _check_selectors(spec.get("selectors"), "spec.selectors")
    errors += _each(spec.get("config"), _MOST_CONFIGS, _check_configuration, "spec.config")
    name = spec.get("extendedResourceName")
    if name is not None and (not is_extended(name) or qualified_name_faults(name)):
        errors.append(invalid("spec.extendedResourceName", name, "must be a valid extended resource name"))
    return errors


# ---- slices ---------------------------------------------------------------------------------------------------------


def _default_slice(obj: Obj) -> None:
    for device in (obj.get("spec") or {}).get("devices") or ():
        for mapping in (device.get("nodeAllocatableResourceMappings") or {}).values():
            if mapping.get("allocationMultiplier") is None:
                mapping["allocationMultiplier"] = "1"


def _validate_slice(obj: Obj) -> Errors:
    spec = obj.get("spec") or {}
    pool = spec.get("pool") or {}
    errors = check_driver_name(spec.get("driver") or "", "spec.driver")
    errors += _pool_name(pool.get("name") or "", "spec.pool.name")
    if (pool.get("resourceSliceCount") or 0) <= 0:
        count = pool.get("resourceSliceCount") or 0
        errors.append(invalid("spec.pool.resourceSliceCount", count, "must be greater than zero"))
    if (pool.get("generation") or 0) < 0:
        errors.append(invalid("spec.pool.generation", pool["generation"], "must be greater than or equal to zero"))
    errors += _check_slice_nodes(spec)
    devices = spec.get("devices") or []
    if spec.get("sharedCounters") is not None and spec.get("devices") is not None:
        errors.append(invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed"))
    most = _MOST_DEVICES_ADVANCED if any(map(_is_advanced, devices)) else _MOST_DEVICES
    per_device = bool(spec.get("perDeviceNodeSelection"))
    errors += _each_once(
        devices, most, lambda device, path: _check_device(device, path, per_device), _name_of, "spec.devices"
    )
    counters = spec.get("sharedCounters")
    return errors + _each_once(counters, _MOST_COUNTER_SETS, _check_counter_set, _name_of, "spec.sharedCounters")


def _is_advanced(device: Obj) -> bool:
    attributes = (device.get("attributes") or {}).values()
    lists = any(attribute.get(key) is not None for attribute in attributes for key in _LISTS)
    return bool(device.get("taints") or device.get("consumesCounters")) or lists


def _check_slice_nodes(spec: Obj) -> Errors:
    errors: Errors = []
    given: list[str] = []
    if spec.get("nodeName") is not None:
        if spec["nodeName"]:
            given.append("`nodeName`")
            errors += _node_name(spec["nodeName"], "spec.nodeName")
        else:
            errors.append(invalid("spec.nodeName", "", "must be either unset or set to a non-empty string"))
    selector = spec.get("nodeSelector")
    if selector is not None:
        given.append("`nodeSelector`")
        errors += check_node_selector(selector, "spec.nodeSelector")
        terms = selector.get("nodeSelectorTerms") or []
        if len(terms) != 1:
            path = "spec.nodeSelector.nodeSelectorTerms"
            errors.append(invalid(path, terms, "must have exactly one node selector term"))
    for key in ("allNodes", "perDeviceNodeSelection"):
        if spec.get(key):
            given.append(f"`{key}`")
        elif spec.get(key) is not None:
            errors.append(invalid(f"spec.{key}", False, "must be either unset or set to true"))
    if not given:
        errors.append(required("spec", _ONE_NODE_FIELD))
    elif len(given) > 1:
        errors.append(invalid("spec", "{" + ", ".join(given) + "}", f"{_ONE_NODE_FIELD}, but multiple fields are set"))
    return errors


def _check_device(device: Obj, path: str, per_device: bool) -> Errors:
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    errors = _label(device.get("name"), f"{path}.name")
    if (count := len(attributes) + len(capacity)) > _MOST_ATTRIBUTES:
        why = f"the total number of attributes and capacities must not exceed {_MOST_ATTRIBUTES}"
        errors.append(invalid(path, count, why))
    values = sum(sum(len(each.get(key) or ()) for key in _LISTS) or 1 for each in attributes.values())
    if values > _MOST_VALUES:
        errors.append(invalid(path, values, f"the total number of attribute values must not exceed {_MOST_VALUES}"))
    for name, attribute in attributes.items():
        errors += _attribute_name(name, f"{path}.attributes")
        errors += _check_attribute(attribute, f"{path}.attributes[{name}]")
    shared = bool(device.get("allowMultipleAllocations"))
    for name, amount in capacity.items():
        errors += _attribute_name(name, f"{path}.capacity")
        errors += _check_capacity(amount, f"{path}.capacity[{name}]", shared)
    errors += _each(device.get("taints"), _MOST_TAINTS, _check_taint, f"{path}.taints")
    consumptions = device.get("consumesCounters")
    errors += _each_once(
        consumptions,
        _MOST_CONSUMPTIONS,
        _check_consumption,
        lambda each: each.get("counterSet") or "",
        f"{path}.consumesCounters",
    )
    errors += _check_device_nodes(device, path, per_device) + _check_binding_conditions(device, path)
    for name, mapping in (device.get("nodeAllocatableResourceMappings") or {}).items():
        errors += _check_mapping(name, mapping, capacity, f"{path}.nodeAllocatableResourceMappings[{name}]")
    return errors


def _check_attribute(attribute: Obj, path: str) -> Errors:
    given = [key for key in (*_SCALARS, *_LISTS) if attribute.get(key) is not None]
    errors: Errors = []
    for key in given:
        at, value = f"{path}.{key}", attribute[key]
        if key in _LISTS and not value:
            errors.append(invalid(at, value, "must not be empty if specified"))
        for index, item in enumerate(value if key in _LISTS else [value]):
            where = f"{at}[{index}]" if key in _LISTS else at
            if key.startswith("version") and not _SEMVER.fullmatch(item):
                errors.append(invalid(where, item, "must be a string compatible with semver.org spec 2.0.0"))
            if isinstance(item, str) and len(item) > _VALUE_LENGTH:
                errors.append(too_long(where, _VALUE_LENGTH))
    if len(given) != 1:
        errors.append(invalid(path, attribute if given else "", "exactly one value must be specified"))
    return errors


def _check_capacity(capacity: Obj, path: str, shared: bool) -> Errors:
    policy = capacity.get("requestPolicy")
    if policy is None:
        return []
    at = f"{path}.requestPolicy"
    if not shared:
        return [forbidden_field(at, "allowMultipleAllocations must be true")]
    values, span = policy.get("validValues") or [], policy.get("validRange")
    if values and span is not None:
        why = 'exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time'
        return [forbidden_field(at, why)]
    if not values and span is None:
        return []
    if policy.get("default") is None:
        which = "validValues" if values else "validRange"
        return [required(f"{at}.default", f"required when {which} is defined")]
    whole, default = _nanos(capacity.get("value")), _nanos(policy["default"])
    if values:
        return _check_valid_values(values, whole, default, str(policy["default"]), f"{at}.validValues")
    return _check_valid_range(span, capacity, policy, f"{at}.validRange")


def _nanos(value: Any) -> int:
    parsed = parse_quantity(value if value is not None else "0")
    return parsed.nanos if parsed is not None else 0


def _check_valid_values(values: list[Any], whole: int, default: int, shown: str, path: str) -> Errors:
    numbers = [_nanos(value) for value in values]
    errors: Errors = [
        invalid(f"{path}[{index + 1}]", str(values[index + 1]), "values must be sorted in ascending order")
        for index in range(len(numbers) - 1)
        if numbers[index] > numbers[index + 1]
    ]

    def option(value: Any, where: str) -> Errors:
        why = "option is larger than capacity value"
        return [invalid(where, str(value), why)] if _nanos(value) > whole else []

    errors += _each_once(values, _MOST_VALID_VALUES, option, lambda value: str(_nanos(value)), path)
    if default not in numbers:
        errors.append(invalid(path, shown, "default value is not valid according to the requestPolicy"))
    return errors


def _check_valid_range(span: Obj, capacity: Obj, policy: Obj, path: str) -> Errors:
    if span.get("min") is None:
        return [required(f"{path}.min", "required when validRange is defined")]
    whole, default, least = _nanos(capacity.get("value")), _nanos(policy["default"]), _nanos(span["min"])
    errors: Errors = []

    def wrong(key: str, value: Any, why: str) -> None:
        errors.append(invalid(f"{path}.{key}", str(value), why))

    if least > whole:
        wrong("min", span["min"], f"min is larger than capacity value: {capacity.get('value')}")
    if default < least:
        wrong("min", policy["default"], f"default is less than min: {span['min']}")
    most = span.get("max")
    if most is not None:
        if least > _nanos(most):
            wrong("max", span["min"], f"min is larger than max: {most}")
        if _nanos(most) > whole:
            wrong("max", most, f"max is larger than capacity value: {capacity.get('value')}")
        if default > _nanos(most):
            wrong("max", policy["default"], f"default is more than max: {most}")
    step = span.get("step")
    if step is not None and _nanos(step) > 0:
        if least + _nanos(step) > whole:
            wrong("step", step, f"one step is larger than capacity value: {capacity.get('value')}")
        for value in (policy["default"], *([most] if most is not None else [])):
            if (_nanos(value) - least) % _nanos(step):
                wrong("step", value, f"value is not a multiple of a given step ({step}) from ({span['min']})")
    return errors


def _check_taint(taint: Obj, path: str) -> Errors:
    errors = _label_name(taint.get("key") or "", f"{path}.key")
    value, effect = taint.get("value") or "", taint.get("effect") or ""
    errors += [invalid(f"{path}.value", value, fault) for fault in label_value_faults(value)]
    if not effect:
        errors.append(required(f"{path}.effect"))
    elif effect not in _TAINT_EFFECTS:
        errors.append(not_supported(f"{path}.effect", effect, _TAINT_EFFECTS))
    return errors


def _check_counters(counters: Obj | None, path: str) -> Errors:
    if not counters:
        return [required(path)]
    if len(counters) > _MOST_COUNTERS:
        return [too_many(path, len(counters), _MOST_COUNTERS)]
    return [error for name in counters for error in _label(name, path)]


def _check_counter_set(value: Obj, path: str) -> Errors:
    return named(value.get("name"), f"{path}.name", dns_label_faults) + _check_counters(
        value.get("counters"), f"{path}.counters"
    )


def _check_consumption(value: Obj, path: str) -> Errors:
    return named(value.get("counterSet"), f"{path}.counterSet", dns_label_faults) + _check_counters(
        value.get("counters"), f"{path}.counters"
    )


def _check_device_nodes(device: Obj, path: str, per_device: bool) -> Errors:
    given = [key for key in ("nodeName", "nodeSelector", "allNodes") if device.get(key) is not None]
    if not per_device:
        why = (
            "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the "
            "ResourceSlice spec"
        )
        return [invalid(path, None, why)] if given else []
    errors: Errors = []
    for key in list(given):
        if not device[key] and key != "nodeSelector":
            given.remove(key)
            why = "must not be empty" if key == "nodeName" else "must be either unset or set to true"
            errors.append(invalid(f"{path}.{key}", device[key], why))
    if "nodeName" in given:
        errors += _node_name(device["nodeName"], f"{path}.nodeName")
    if "nodeSelector" in given:
        errors += check_node_selector(device["nodeSelector"], f"{path}.nodeSelector")
    if not given:
        errors.append(required(path, _ONE_DEVICE_NODE_FIELD))
    elif len(given) > 1:
        errors.append(invalid(path, "{" + ", ".join(f"`{key}`" for key in given) + "}", _ONE_DEVICE_NODE_FIELD))
    return errors


def _check_binding_conditions(value: Obj, path: str) -> Errors:
    wanted, failed = value.get("bindingConditions") or [], value.get("bindingFailureConditions") or []
    both = (("bindingConditions", wanted), ("bindingFailureConditions", failed))
    errors = [
        error for key, names in both for error in _each(names, _MOST_BINDING_CONDITIONS, _label_name, f"{path}.{key}")
    ]
    for key, names in both:
        errors += [duplicate(f"{path}.{key}[{index}]", name) for index, name in _repeated(names)]
    why = "bindingFailureConditions must not overlap with bindingConditions"
    for index, name in enumerate(failed):
        if name in wanted:
            errors.append(invalid(f"{path}.bindingFailureConditions[{index}]", name, why))
    for (key, names), (other, others) in (both, both[::-1]):
        if not names and others:
            errors.append(invalid(f"{path}.{key}", names, f"{key} are required to use {other}"))
    return errors


def _repeated(names: Iterable[str]) -> list[tuple[int, str]]:
    seen: set[str] = set()
    found: list[tuple[int, str]] = []
    for index, name in enumerate(names):
        if name in seen:
            found.append((index, name))
        seen.add(name)
    return found


def _check_mapping(name: str, mapping: Obj, capacity: Obj, path: str) -> Errors:
    errors: Errors = []
    if name not in _NODE_ALLOCATABLE and not name.startswith("hugepages-"):
        errors.append(invalid(path, name, "must be a node allocatable resource name"))
    multiplier, key = mapping.get("allocationMultiplier"), mapping.get("capacityKey")
    if multiplier is None and key is None:
        errors.append(invalid(path, "", "at least one of allocationMultiplier or capacityKey must be set"))
    if multiplier is not None and _nanos(multiplier) <= 0:
        errors.append(invalid(f"{path}.allocationMultiplier", str(multiplier), "must be positive"))
    if key == "":
        errors.append(invalid(f"{path}.capacityKey", "", "capacityKey must not be an empty string"))
    elif key is not None and key not in capacity:
        errors.append(not_found_field(f"{path}.capacityKey", key))
    return errors


def _check_slice_change(new: Obj, old: Obj) -> Errors:
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    errors = immutable(spec.get("pool") or {}, before.get("pool") or {}, "spec.pool", "name")
    return errors + immutable(spec, before, "spec", "driver", "nodeName")


RULES: dict[tuple[str, str], KindRules] = {
    (_GROUP, "DeviceClass"): make_rules(validate=_validate_class, generation=("spec",)),
    (_GROUP, "ResourceClaim"): make_rules(
        default=_default_claim,
        validate=_validate_claim,
        changed=_fixed_spec,
        status=True,
        validate_status=_validate_claim_status,
    ),
    (_GROUP, "ResourceClaimTemplate"): make_rules(
        default=_default_template, validate=_validate_template, changed=_fixed_spec
    ),
    (_GROUP, "ResourceSlice"): make_rules(
        default=_default_slice, validate=_validate_slice, changed=_check_slice_change, generation=("spec",)
    ),
}
