"""The variables of a container, and `$(NAME)` in its command, arguments and paths."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence

from coterie.kube.agent.pods import pod_model
from coterie.kube.agent.pods.downward import ConfigProblem, DownwardNodeInfo, field_value, resource_value
from coterie.kube.api.meta import Object

Lookup = Callable[[str, str], Object | None]
"""(kind, name) -> the ConfigMap or Secret of that name in the pod's namespace."""

_NAME = re.compile(r"[A-Za-z_.-][A-Za-z0-9_.-]*")
_REFERENCE = re.compile(r"\$(\$|\(([^()$]+)\))?")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """`$(NAME)` becomes its value, `$$` a dollar; a name that is not known stays as it is written."""

    def put(found: re.Match[str]) -> str:
        if found[1] is None:
            return "$"
        if found[1] == "$":
            return "$"
        return variables.get(found[2], found[0])

    return _REFERENCE.sub(put, text)


def variables(
    pod: Object, container: Object, lookup: Lookup, node: DownwardNodeInfo, base: Sequence[tuple[str, str]] = ()
) -> dict[str, str]:
    """All variables in the order in which they are set; later ones win and may refer to earlier ones."""
    found = dict(base)
    found["HOSTNAME"] = pod_model.hostname_of(pod)
    for source in container.get("envFrom") or ():
        found.update(_all_of(source, lookup))
    for entry in container.get("env") or ():
        name = entry["name"]
        if entry.get("valueFrom"):
            value = _value_from(pod, container, entry["valueFrom"], lookup, node)
            if value is not None:
                found[name] = value
        else:
            found[name] = expand(entry.get("value") or "", found)
    return found


def _all_of(source: Object, lookup: Lookup) -> dict[str, str]:
    prefix = source.get("prefix") or ""
    for kind, field in (("ConfigMap", "configMapRef"), ("Secret", "secretRef")):
        reference = source.get(field)
        if reference is None:
            continue
        obj = _object(kind, reference, lookup)
        if obj is None:
            return {}
        names = {prefix + key: text for key, text in _texts(kind, obj).items()}
        return {name: text for name, text in names.items() if _NAME.fullmatch(name)}
    return {}


def _value_from(pod: Object, container: Object, source: Object, lookup: Lookup, node: DownwardNodeInfo) -> str | None:
    if "fieldRef" in source:
        return field_value(pod, source["fieldRef"].get("fieldPath") or "", node)
    if "resourceFieldRef" in source:
        return resource_value(pod, container, source["resourceFieldRef"], node)
    for kind, field in (("ConfigMap", "configMapKeyRef"), ("Secret", "secretKeyRef")):
        reference = source.get(field)
        if reference is None:
            continue
        obj = _object(kind, reference, lookup)
        if obj is None:
            return None
        text = _texts(kind, obj).get(reference["key"])
        if text is None and not reference.get("optional"):
            raise ConfigProblem(f"couldn't find key {reference['key']} in {kind} {reference.get('name')}")
        return text
    raise ConfigProblem("a variable has a source that is not known here")


def _object(kind: str, reference: Object, lookup: Lookup) -> Object | None:
    name = reference.get("name") or ""
    obj = lookup(kind, name)
    if obj is None and not reference.get("optional"):
        raise ConfigProblem(f'{kind.lower()} "{name}" not found')
    return obj


def _texts(kind: str, obj: Object) -> dict[str, str]:
    data = obj.get("data") or {}
    if kind == "ConfigMap":
        return dict(data)
    return {key: base64.b64decode(value).decode("utf-8", "replace") for key, value in data.items()}
