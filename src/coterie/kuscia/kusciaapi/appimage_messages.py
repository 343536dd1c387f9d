"""AppImages as requests say them and as the API keeps them. Pure.

The forms of containers are the API's own, spelt with underscores: what JSON makes of them is nearly right already. Some
things an AppImage can say, requests cannot (`networkPolicy`, `affinity`, `securityContext`, `metricProbe`): whoever
replaces a template through KusciaAPI keeps them, instead of opening what was closed without knowing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from google.protobuf import json_format

from coterie.kube.api import quantity
from coterie.kube.api.meta import Object
from coterie.kube.api.names import (
    Faults,
    config_key_faults,
    dns_label_faults,
    env_name_faults,
    port_name_faults,
    port_number_faults,
)
from coterie.kuscia.api.appimages import DEFAULT_REPLICAS
from coterie.kuscia.kusciaapi.codes import invalid

_PROBES = ("liveness_probe", "readiness_probe", "startup_probe")
_JSON_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_ACTIONS = ("exec", "http_get", "tcp_socket", "grpc")
_CHOICES = {
    "restart_policy": ("Always", "OnFailure", "Never"),
    "image_pull_policy": ("Always", "IfNotPresent", "Never"),
    "protocol": ("HTTP", "GRPC"),
    "scope": ("Cluster", "Domain", "Local"),
    "scheme": ("HTTP", "HTTPS"),
}


# Requests.


def check(request: Any, *, new: bool) -> None:
    """Raises Refused (11100) with the field."""
    for field in ("name", "tag"):
        if not getattr(request.image, field):
            raise invalid(f"image.{field}", "must be given")
    for key in request.config_templates:
        _faultless("config_templates", key, config_key_faults)
    if new and not request.deploy_templates:
        raise invalid("deploy_templates", "must have at least one")
    _unique("deploy_templates", [each.name for each in request.deploy_templates])
    for index, template in enumerate(request.deploy_templates):
        _check_template(f"deploy_templates[{index}]", template)


def _check_template(at: str, template: Any) -> None:
    if not template.name:
        raise invalid(f"{at}.name", "must be given")
    if template.replicas < 0:
        raise invalid(f"{at}.replicas", "must not be negative")
    _choice(at, template, "restart_policy")
    if not template.containers:
        raise invalid(f"{at}.containers", "must have at least one")
    _unique(f"{at}.containers", [each.name for each in template.containers])
    for index, container in enumerate(template.containers):
        _check_container(f"{at}.containers[{index}]", container)


def _check_container(at: str, container: Any) -> None:
    _faultless(f"{at}.name", container.name, dns_label_faults)
    _choice(at, container, "image_pull_policy")
    for index, mount in enumerate(container.config_volume_mounts):
        for field in ("mount_path", "sub_path"):
            if not getattr(mount, field):
                raise invalid(f"{at}.config_volume_mounts[{index}].{field}", "must be given")
    _unique(f"{at}.ports", [each.name for each in container.ports])
    for index, port in enumerate(container.ports):
        _faultless(f"{at}.ports[{index}].name", port.name, dns_label_faults)
        _choice(f"{at}.ports[{index}]", port, "protocol")
        _choice(f"{at}.ports[{index}]", port, "scope")
    for index, source in enumerate(container.env_from):
        if source.HasField("config_map_ref") == source.HasField("secret_ref"):
            raise invalid(f"{at}.env_from[{index}]", "must have either config_map_ref or secret_ref")
        if not (source.config_map_ref.name or source.secret_ref.name):
            raise invalid(f"{at}.env_from[{index}]", "must name what it takes from")
    for index, variable in enumerate(container.env):
        _faultless(f"{at}.env[{index}].name", variable.name, env_name_faults)
    for side in ("limits", "requests"):
        for field in ("cpu", "memory"):
            _amount(f"{at}.resources.{side}.{field}", getattr(getattr(container.resources, side), field))
    for field in _PROBES:
        if container.HasField(field):
            _check_probe(f"{at}.{field}", getattr(container, field))


def _check_probe(at: str, probe: Any) -> None:
    given = [each for each in _ACTIONS if probe.HasField(each)]
    if len(given) != 1:
        raise invalid(at, f"must have just one of {', '.join(_ACTIONS)}")
    action, here = getattr(probe, given[0]), f"{at}.{given[0]}"
    if given[0] == "exec":
        if not action.command:
            raise invalid(f"{here}.command", "must be given")
    elif given[0] == "grpc":
        _faultless(f"{here}.port", action.port, port_number_faults)
    elif action.port.isdecimal():
        _faultless(f"{here}.port", int(action.port), port_number_faults)
    else:
        _faultless(f"{here}.port", action.port, port_name_faults)
    if given[0] == "http_get":
        _choice(here, action, "scheme")
    for field, value in probe.ListFields():
        if isinstance(value, int) and value < 0:
            raise invalid(f"{at}.{field.name}", "must not be negative")


def _faultless(field: str, value: Any, faults_of: Callable[[Any], Faults]) -> None:
    if value == "":
        raise invalid(field, "must be given")
    for fault in faults_of(value):
        raise invalid(field, fault)


def _unique(field: str, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise invalid(field, f'has "{name}" twice')


def _choice(at: str, message: Any, field: str) -> None:
    value = getattr(message, field)
    if value and value not in _CHOICES[field]:
        raise invalid(f"{at}.{field}", f"must be one of {', '.join(_CHOICES[field])}")


def _amount(field: str, text: str) -> None:
    try:
        good = not text or quantity.parse(text).nanos >= 0
    except ValueError:
        good = False
    if not good:
        raise invalid(field, f'"{text[:50]}" is not an amount; write as 500m, 2 or 4Gi')


def image_of(request: Any) -> Object:
    return json_format.MessageToDict(request.image)


def templates_of(request: Any, before: Iterable[Mapping[str, Any]] = ()) -> list[Object]:
    """As the API has them. `before`: those that are replaced."""
    old = {each.get("name"): each for each in before}
    return [_template(each, old.get(each.name) or {}) for each in request.deploy_templates]


def _template(template: Any, before: Mapping[str, Any]) -> Object:
    old_spec = before.get("spec") or {}
    old = {each.get("name"): each for each in old_spec.get("containers") or ()}
    spec: Object = {"containers": [_container(each, old.get(each.name) or {}) for each in template.containers]}
    if template.restart_policy:
        spec["restartPolicy"] = template.restart_policy
    out: Object = {"name": template.name, "spec": _with_kept_fields(spec, old_spec, "affinity")}
    if template.role:
        out["role"] = template.role
    if template.replicas:
        # On the wire 0 cannot be told from nothing said, and nothing said means one pod.
        out["replicas"] = template.replicas
    return _with_kept_fields(out, before, "networkPolicy")


def _container(container: Any, before: Mapping[str, Any]) -> Object:
    out: Object = {"workingDir": "", **json_format.MessageToDict(container)}
    for name in _JSON_PROBES:
        probe = out.get(name) or {}
        for action in ("httpGet", "tcpSocket"):
            port = (probe.get(action) or {}).get("port") or ""
            if port.isdecimal():
                probe[action]["port"] = int(port)
        if "terminationGracePeriodSeconds" in probe:
            # 64 bits are a text in the JSON of protobuf.
            probe["terminationGracePeriodSeconds"] = int(probe["terminationGracePeriodSeconds"])
    return _with_kept_fields(out, before, "securityContext", "metricProbe")


def _with_kept_fields(out: Object, before: Mapping[str, Any], *names: str) -> Object:
    return {**out, **{name: before[name] for name in names if before.get(name)}}


# Answers.


def image_response(obj: Mapping[str, Any]) -> Object:
    """`obj`: an AppImage as plain data, which may say more than an answer can."""
    spec = obj["spec"]
    return {
        "name": obj["metadata"]["name"],
        "image": {key: value for key, value in spec["image"].items() if key in ("name", "tag", "id", "sign")},
        "config_templates": spec.get("configTemplates") or {},
        "deploy_templates": [_template_response(each) for each in spec.get("deployTemplates") or ()],
    }


def _template_response(template: Mapping[str, Any]) -> Object:
    spec, replicas = template.get("spec") or {}, template.get("replicas")
    return {
        "name": template.get("name") or "",
        "role": template.get("role") or "",
        "replicas": DEFAULT_REPLICAS if replicas is None else replicas,
        "restart_policy": spec.get("restartPolicy") or "",
        "containers": [_container_response(each) for each in spec.get("containers") or ()],
    }


def _container_response(container: Mapping[str, Any]) -> Object:
    out = _picked(container, "name", "command", "args", "workingDir", "configVolumeMounts", "imagePullPolicy")
    out["ports"] = [_picked(each, "name", "protocol", "scope") for each in container.get("ports") or ()]
    out["env"] = [_picked(each, "name", "value") for each in container.get("env") or ()]
    out["envFrom"] = [
        {key: _picked(value, "name") if isinstance(value, Mapping) else value for key, value in each.items()}
        for each in container.get("envFrom") or ()
    ]
    resources = container.get("resources") or {}
    out["resources"] = {
        side: {key: str(value) for key, value in (resources.get(side) or {}).items() if key in ("cpu", "memory")}
        for side in ("limits", "requests")
        if resources.get(side)
    }
    for name in _JSON_PROBES:
        if container.get(name):
            out[name] = _probe_response(container[name])
    return out


def _probe_response(probe: Mapping[str, Any]) -> Object:
    out = dict(probe)
    for action in ("httpGet", "tcpSocket"):
        if out.get(action):
            out[action] = {**out[action], "port": str(out[action].get("port", ""))}
    return out


def _picked(values: Mapping[str, Any], *names: str) -> Object:
    return {name: values[name] for name in names if values.get(name) is not None}
