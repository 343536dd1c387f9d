"""Checks that many kinds share: quantities, ranges, percentages, resource names, and "this field may not change"."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from coterie.kube.api import quantity
from coterie.kube.api.errors import duplicate, invalid, not_supported, required
from coterie.kube.api.names import IMMUTABLE, Faults, port_name_faults, qualified_name_faults
from coterie.kube.api.rules.base import Errors, Obj

NOT_NEGATIVE = "must be greater than or equal to 0"
_PERCENT = re.compile("[0-9]+%")
_STANDARD = frozenset({"cpu", "memory", "ephemeral-storage", "storage"})


def one_of(value: Any, allowed: Sequence[str], path: str) -> Errors:
    """Required when empty, unsupported when not listed."""
    if not value:
        return [required(path)]
    return [] if value in allowed else [not_supported(path, value, allowed)]


def optional_one_of(value: Any, allowed: Sequence[str], path: str) -> Errors:
    return [] if value is None or value in allowed else [not_supported(path, value, allowed)]


def not_negative(obj: Mapping[str, Any], path: str, *keys: str) -> Errors:
    return [
        invalid(f"{path}.{key}", obj[key], NOT_NEGATIVE)
        for key in keys
        if isinstance(obj.get(key), int) and obj[key] < 0
    ]


def named(value: Any, path: str, rule: Callable[[str], Faults]) -> Errors:
    """A required name that follows a rule."""
    if not value:
        return [required(path)]
    return [invalid(path, value, fault) for fault in rule(value)]


def optional_named(value: Any, path: str, rule: Callable[[str], Faults]) -> Errors:
    return [invalid(path, value, fault) for fault in rule(value)] if value else []


def unique(values: Iterable[Any], path: Callable[[int], str]) -> Errors:
    seen: set[Any] = set()
    errors: Errors = []
    for index, value in enumerate(values):
        if value in seen:
            errors.append(duplicate(path(index), value))
        seen.add(value)
    return errors


def immutable(new: Obj, old: Obj, path: str, *keys: str) -> Errors:
    return [
        invalid(f"{path}.{key}" if path else key, new.get(key), IMMUTABLE)
        for key in keys
        if (new.get(key) or None) != (old.get(key) or None)
    ]


def valid_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text


def valid_cidr(text: str) -> bool:
    if "/" not in text or "%" in text:
        return False
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    # `10.0.0.0/255.0.0.0` is a network to Python and not to Kubernetes.
    return text.rpartition("/")[2].isdigit()


# ---- quantities --------------------------------------------------------------------------------------------------


def parse_quantity(value: Any) -> quantity.Quantity | None:
    try:
        return quantity.parse(value)
    except (quantity.QuantityError, TypeError):
        return None


def check_quantity(value: Any, path: str) -> Errors:
    """Faults of a quantity that may not be negative."""
    parsed = parse_quantity(value)
    if parsed is None:
        return [invalid(path, value, quantity.FORMAT_MESSAGE)]
    return [invalid(path, str(parsed), NOT_NEGATIVE)] if parsed.nanos < 0 else []


@lru_cache(maxsize=4096)
def _stored_spelling(text: str) -> str:
    try:
        return str(quantity.rounded_up_to_milli(quantity.parse(text)))
    except quantity.QuantityError:
        return text  # validation will complain about it


def canonicalize(values: Any) -> None:
    """Write the quantities of a resource list in the one spelling Kubernetes stores."""
    if not values:
        return
    for key, value in values.items():
        text = value if type(value) is str else str(value)
        spelled = _stored_spelling(text)
        if spelled is not value:
            values[key] = spelled


def is_extended(name: str) -> bool:
    """Resources that are counted in whole pieces and never overcommitted, such as GPUs."""
    return "/" in name and not name.partition("/")[0].endswith("kubernetes.io") and not name.startswith("requests.")


def overcommittable(name: str) -> bool:
    return not is_extended(name) and not name.startswith("hugepages-")


@lru_cache(maxsize=2048)
def resource_name_faults(name: str) -> Faults:
    """Names in resource lists of containers."""
    if faults := qualified_name_faults(name):
        return faults
    if "/" in name or name in _STANDARD or name.startswith("hugepages-"):
        return ()
    return ("must be a standard resource type or fully qualified", "must be a standard resource for containers")


def check_resource_list(values: Mapping[str, Any] | None, path: str) -> Errors:
    errors: Errors = []
    for name, value in (values or {}).items():
        if faults := resource_name_faults(name):
            errors += [invalid(f"{path}[{name}]", name, fault) for fault in faults]
        parsed = parse_quantity(value)
        if parsed is None or parsed.nanos < 0:
            errors += check_quantity(value, f"{path}[{name}]")
        elif is_extended(name) and parsed.nanos % quantity.NANO:
            errors.append(invalid(f"{path}[{name}]", str(parsed), "must be an integer"))
    return errors


# ---- numbers or percentages, ports -------------------------------------------------------------------------------


def check_int_or_percent(value: Any, path: str) -> Errors:
    if isinstance(value, str):
        if _PERCENT.fullmatch(value):
            return []
        why = (
            "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', "
            "regex used for validation is '[0-9]+%')"
        )
        return [invalid(path, value, why)]
    return [invalid(path, value, NOT_NEGATIVE)] if value < 0 else []


def percent_of(value: Any) -> int | None:
    if isinstance(value, str) and _PERCENT.fullmatch(value) and len(value) < 12:
        return int(value[:-1])
    return None


def is_zero(value: Any) -> bool:
    return value is None or value in (0, "0", "0%")


def check_port_or_name(value: Any, path: str) -> Errors:
    """A port by number or by the name of a container's port."""
    if isinstance(value, str):
        return [invalid(path, value, fault) for fault in port_name_faults(value)]
    if isinstance(value, int) and 1 <= value <= 65535:
        return []
    return [invalid(path, value if value is not None else 0, "must be between 1 and 65535, inclusive")]
