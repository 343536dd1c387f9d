"""Small texts that several kinds share: labels, selectors, containers, addresses, access modes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coterie.kube.apiserver.tables.columns import NONE, Object

_ACCESS_MODES = (
    ("ReadWriteOnce", "RWO"),
    ("ReadOnlyMany", "ROX"),
    ("ReadWriteMany", "RWX"),
    ("ReadWriteOncePod", "RWOP"),
)


def name_of(obj: Object) -> str:
    name: str = obj["metadata"].get("name") or ""
    return name


def created(obj: Object) -> Any:
    return obj["metadata"].get("creationTimestamp")


def part(obj: Object, key: str) -> Object:
    """A sub-object, or an empty one when it is missing or null."""
    found: Object = obj.get(key) or {}
    return found


def items(obj: Object, key: str) -> list[Any]:
    found: list[Any] = obj.get(key) or []
    return found


def labels(pairs: dict[str, str] | None) -> str:
    return ",".join(f"{key}={pairs[key]}" for key in sorted(pairs)) if pairs else NONE


def selector(label_selector: Object | None) -> str:
    """A LabelSelector as one would write it on the command line; empty for one that says nothing."""
    if not label_selector:
        return ""
    terms = [(key, f"{key}={value}") for key, value in (label_selector.get("matchLabels") or {}).items()]
    for expression in label_selector.get("matchExpressions") or ():
        key, operator = expression["key"], expression["operator"]
        values = ",".join(sorted(expression.get("values") or ()))
        if operator == "In":
            terms.append((key, f"{key} in ({values})"))
        elif operator == "NotIn":
            terms.append((key, f"{key} notin ({values})"))
        else:
            terms.append((key, key if operator == "Exists" else f"!{key}"))
    terms.sort(key=lambda pair: pair[0])
    return ",".join(text for _, text in terms)


def containers(pod_template: Object) -> tuple[str, str]:
    """Names and images of the containers of a pod template."""
    found = items(part(pod_template, "spec"), "containers")
    return ",".join(c.get("name") or "" for c in found), ",".join(c.get("image") or "" for c in found)


def truncated(pieces: Sequence[str], total: int, shown: int, separator: str = ",") -> str:
    """The first pieces, and how many of `total` were left out."""
    out = separator.join(pieces[:shown])
    return f"{out} + {total - shown} more..." if len(pieces) > shown else out


def load_balancer(status: Object) -> str:
    ingress = items(part(status, "loadBalancer"), "ingress")
    return ",".join(sorted({point.get("ip") or point.get("hostname") or "" for point in ingress} - {""}))


def access_modes(modes: Sequence[str] | None) -> str:
    return ",".join(short for mode, short in _ACCESS_MODES if mode in (modes or ()))


def host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def has_condition(status: Object, kind: str) -> bool:
    return any(c.get("type") == kind and c.get("status") == "True" for c in items(status, "conditions"))


def bool_word(value: object) -> str:
    return "True" if value else "False"
