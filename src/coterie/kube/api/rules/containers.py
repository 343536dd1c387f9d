"""What is wrong with a container: of a pod, a template, an init or an ephemeral container.

`path` is where the container stands (`spec.template.spec.containers[0]`), so each fault names its field in full. Only
fields that are present are looked at, and text is built only for faults: this runs on every create of a pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.kube.api.errors import duplicate, forbidden_field, invalid, not_found_field, not_supported, required
from coterie.kube.api.names import PORT_RANGE, dns_label_faults, port_name_faults
from coterie.kube.api.rules.base import Errors, Obj
from coterie.kube.api.rules.common import check_resource_list, named, one_of, overcommittable, parse_quantity, valid_ip
from coterie.kube.api.rules.environment import check_env, check_env_from
from coterie.kube.api.rules.probes import check_handler, check_probe

PULL_POLICIES = ("Always", "IfNotPresent", "Never")
PROTOCOLS = ("SCTP", "TCP", "UDP")
_MESSAGE_POLICIES = ("FallbackToLogsOnError", "File")
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_EPHEMERAL_FORBIDDEN = ("ports", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "resizePolicy")
_RESIZABLE = ("cpu", "memory")
_RESIZE_POLICIES = ("NotRequired", "RestartContainer")
_MAX_ID = 2**31 - 1


def check_container(container: Obj, path: str, volumes: Mapping[str, Obj], host_network: bool = False) -> Errors:
    """Faults common to all kinds of containers; `volumes` are those of the pod, by name."""
    errors: Errors = []
    get = container.get
    name = get("name")
    if not name or dns_label_faults(name):
        errors += named(name, f"{path}.name", dns_label_faults)
    image = get("image")
    if not image:
        errors.append(required(f"{path}.image"))
    elif image.strip() != image:
        errors.append(invalid(f"{path}.image", image, "must not have leading or trailing whitespace"))
    if get("terminationMessagePolicy") not in _MESSAGE_POLICIES:
        errors += one_of(get("terminationMessagePolicy"), _MESSAGE_POLICIES, f"{path}.terminationMessagePolicy")
    if get("imagePullPolicy") not in PULL_POLICIES:
        errors += one_of(get("imagePullPolicy"), PULL_POLICIES, f"{path}.imagePullPolicy")
    if ports := get("ports"):
        errors += _check_ports(ports, f"{path}.ports", host_network)
    if env := get("env"):
        errors += check_env(env, f"{path}.env")
    if env_from := get("envFrom"):
        errors += check_env_from(env_from, f"{path}.envFrom")
    if mounts := get("volumeMounts"):
        errors += _check_mounts(mounts, f"{path}.volumeMounts", volumes)
    if devices := get("volumeDevices"):
        errors += _check_devices(devices, f"{path}.volumeDevices", volumes, get("volumeMounts") or [])
    if resources := get("resources"):
        errors += check_resources(resources, f"{path}.resources")
    for key in _PROBES:
        if (probe := get(key)) is not None:
            errors += check_probe(probe, f"{path}.{key}", key)
    if lifecycle := get("lifecycle"):
        for key in ("postStart", "preStop"):
            if (hook := lifecycle.get(key)) is not None:
                errors += check_handler(hook, f"{path}.lifecycle.{key}")
    if context := get("securityContext"):
        errors += _check_security(context, f"{path}.securityContext")
    return errors


def check_init_container(container: Obj, path: str) -> Errors:
    """What only sidecars (restartPolicy Always) may have."""
    policy = container.get("restartPolicy")
    if policy == "Always":
        return []
    errors = [not_supported(f"{path}.restartPolicy", policy, ("Always",))] if policy is not None else []
    if container.get("resizePolicy"):
        errors.append(invalid(f"{path}.resizePolicy", container["resizePolicy"], "must not be set for init containers"))
    return errors + [
        forbidden_field(f"{path}.{key}", "may not be set for init containers without restartPolicy=Always")
        for key in ("lifecycle", *_PROBES)
        if container.get(key) is not None
    ]


def check_resize_policies(container: Obj, path: str, pod_restart_policy: str) -> Errors:
    """What happens to a container whose CPU or memory changes while it runs."""
    errors: Errors = []
    seen: set[str] = set()
    for index, policy in enumerate(container.get("resizePolicy") or ()):
        at, name, restart = f"{path}.resizePolicy[{index}]", policy.get("resourceName"), policy.get("restartPolicy")
        if name in seen:
            errors.append(duplicate(at, name))
        seen.add(name)
        if not name:
            errors.append(required(f"{at}.resourceName"))
        elif name not in _RESIZABLE:
            errors.append(not_supported(f"{at}.resourceName", name, _RESIZABLE))
        if not restart:
            errors.append(required(f"{at}.restartPolicy"))
        elif restart not in _RESIZE_POLICIES:
            errors.append(not_supported(f"{at}.restartPolicy", restart, _RESIZE_POLICIES))
        elif pod_restart_policy == "Never" and restart != "NotRequired":
            why = "must be 'NotRequired' when `restartPolicy` is 'Never'"
            errors.append(invalid(f"{at}.restartPolicy", restart, why))
    return errors


def check_ephemeral_container(container: Obj, path: str, targets: frozenset[str]) -> Errors:
    errors = [
        forbidden_field(f"{path}.{key}", "cannot be set for an Ephemeral Container")
        for key in _EPHEMERAL_FORBIDDEN
        if container.get(key)
    ]
    if container.get("resources"):
        errors.append(forbidden_field(f"{path}.resources", "cannot be set for an Ephemeral Container"))
    target = container.get("targetContainerName")
    if target and target not in targets:
        errors.append(not_found_field(f"{path}.targetContainerName", target))
    return errors


# ---- ports --------------------------------------------------------------------------------------------------------


def _check_ports(ports: list[Obj], path: str, host_network: bool) -> Errors:
    errors: Errors = []
    names: set[str] = set()
    for index, port in enumerate(ports):
        if name := port.get("name"):
            if faults := port_name_faults(name):
                errors += [invalid(f"{path}[{index}].name", name, fault) for fault in faults]
            elif name in names:
                errors.append(duplicate(f"{path}[{index}].name", name))
            names.add(name)
        number, host = port.get("containerPort") or 0, port.get("hostPort") or 0
        if not number:
            errors.append(required(f"{path}[{index}].containerPort"))
        elif not 1 <= number <= 65535:
            errors.append(invalid(f"{path}[{index}].containerPort", number, PORT_RANGE))
        if host and not 1 <= host <= 65535:
            errors.append(invalid(f"{path}[{index}].hostPort", host, PORT_RANGE))
        if host_network and host != number:
            why = "must match `hostPort` when `hostNetwork` is true"
            errors.append(invalid(f"{path}[{index}].containerPort", number, why))
        if port.get("protocol") not in PROTOCOLS:
            errors += one_of(port.get("protocol"), PROTOCOLS, f"{path}[{index}].protocol")
        if (address := port.get("hostIP")) and not valid_ip(address):
            why = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
            errors.append(invalid(f"{path}[{index}].hostIP", address, why))
    return errors


def check_host_ports(containers: list[Obj], path: str) -> Errors:
    """Two containers cannot hold the same port of the host."""
    errors: Errors = []
    seen: set[str] = set()
    for index, container in enumerate(containers):
        for place, port in enumerate(container.get("ports") or ()):
            if not port.get("hostPort"):
                continue
            held = f"{port.get('protocol') or ''}/{port.get('hostIP') or ''}/{port['hostPort']}"
            if held in seen:
                errors.append(duplicate(f"{path}[{index}].ports[{place}].hostPort", held))
            seen.add(held)
    return errors


# ---- mounts -------------------------------------------------------------------------------------------------------


def relative_path_faults(text: str) -> tuple[str, ...]:
    """A path that must stay below where it starts."""
    if text.startswith("/"):
        return ("must be a relative path",)
    return ("must not contain '..'",) if ".." in text.split("/") else ()


def _check_mounts(mounts: list[Obj], path: str, volumes: Mapping[str, Obj]) -> Errors:
    errors: Errors = []
    taken: set[str] = set()
    for index, mount in enumerate(mounts):
        name, target = mount.get("name"), mount.get("mountPath")
        if not name:
            errors.append(required(f"{path}[{index}].name"))
        elif name not in volumes:
            errors.append(not_found_field(f"{path}[{index}].name", name))
        if not target:
            errors.append(required(f"{path}[{index}].mountPath"))
        elif target in taken:
            errors.append(invalid(f"{path}[{index}].mountPath", target, "must be unique"))
        taken.add(target or "")
        sub, expression = mount.get("subPath"), mount.get("subPathExpr")
        if sub:
            errors += [invalid(f"{path}[{index}].subPath", sub, fault) for fault in relative_path_faults(sub)]
        if expression:
            at = f"{path}[{index}].subPathExpr"
            if sub:
                errors.append(invalid(at, expression, "subPathExpr and subPath are mutually exclusive"))
            errors += [invalid(at, expression, fault) for fault in relative_path_faults(expression)]
        propagation = mount.get("mountPropagation")
        if propagation not in (None, "None", "HostToContainer", "Bidirectional"):
            allowed = ("Bidirectional", "HostToContainer", "None")
            errors.append(not_supported(f"{path}[{index}].mountPropagation", propagation, allowed))
    return errors


def _check_devices(devices: list[Obj], path: str, volumes: Mapping[str, Obj], mounts: list[Obj]) -> Errors:
    errors: Errors = []
    paths = {mount.get("mountPath") for mount in mounts}
    names: set[str] = set()
    for index, device in enumerate(devices):
        at = f"{path}[{index}]"
        name, target = device.get("name"), device.get("devicePath")
        if not name:
            errors.append(required(f"{at}.name"))
        elif name not in volumes:
            errors.append(not_found_field(f"{at}.name", name))
        elif not ({"persistentVolumeClaim", "ephemeral"} & volumes[name].keys()):
            why = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"
            errors.append(invalid(f"{at}.name", name, why))
        if name in names:
            errors.append(invalid(f"{at}.name", name, "must be unique"))
        names.add(name or "")
        if not target:
            errors.append(required(f"{at}.devicePath"))
        elif target in paths:
            errors.append(invalid(f"{at}.devicePath", target, "must not already exist in volumeMounts"))
        paths.add(target)
    return errors


# ---- resources ----------------------------------------------------------------------------------------------------


def check_resources(resources: Obj, path: str) -> Errors:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    errors = check_resource_list(limits, f"{path}.limits") if limits else []
    if not requests:
        return errors
    errors += check_resource_list(requests, f"{path}.requests")
    for name, value in requests.items():
        limit_text = limits.get(name)
        if limit_text == value:
            continue
        if limit_text is None:
            if not overcommittable(name):
                why = "Limit must be set for non overcommitable resources"
                errors.append(required(f"{path}.limits", why))
            continue
        request, limit = parse_quantity(value), parse_quantity(limit_text)
        if request is None or limit is None:
            continue
        if overcommittable(name):
            if request > limit:
                why = f"must be less than or equal to {name} limit of {limit}"
                errors.append(invalid(f"{path}.requests", str(request), why))
        elif request != limit:
            errors.append(invalid(f"{path}.requests", str(request), f"must be equal to {name} limit of {limit}"))
    return errors


# ---- security -----------------------------------------------------------------------------------------------------


def check_ids(context: Mapping[str, Any], path: str, *keys: str) -> Errors:
    return [
        invalid(f"{path}.{key}", context[key], f"must be between 0 and {_MAX_ID}, inclusive")
        for key in keys
        if context.get(key) is not None and not 0 <= context[key] <= _MAX_ID
    ]


def check_seccomp(profile: Obj, path: str) -> Errors:
    kind, local = profile.get("type"), profile.get("localhostProfile")
    errors = one_of(kind, ("Localhost", "RuntimeDefault", "Unconfined"), f"{path}.type")
    if kind == "Localhost" and not local:
        errors.append(required(f"{path}.localhostProfile", "must be set when seccomp type is Localhost"))
    elif kind != "Localhost" and local:
        errors.append(invalid(f"{path}.localhostProfile", local, "can only be set when seccomp type is Localhost"))
    return errors


def _check_security(context: Obj, path: str) -> Errors:
    errors = check_ids(context, path, "runAsUser", "runAsGroup")
    if context.get("allowPrivilegeEscalation") is False:
        if context.get("privileged"):
            why = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"
            errors.append(invalid(path, context, why))
        if "CAP_SYS_ADMIN" in ((context.get("capabilities") or {}).get("add") or ()):
            why = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"
            errors.append(invalid(path, context, why))
    if context.get("procMount") not in (None, "Default", "Unmasked"):
        errors.append(not_supported(f"{path}.procMount", context["procMount"], ("Default", "Unmasked")))
    if profile := context.get("seccompProfile"):
        errors += check_seccomp(profile, f"{path}.seccompProfile")
    return errors
