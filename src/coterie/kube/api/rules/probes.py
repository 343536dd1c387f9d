"""What is wrong with a container's probes and life-cycle hooks: exactly one way to act, and sane timing."""

from __future__ import annotations

import re
from collections.abc import Callable

from coterie.kube.api.errors import forbidden_field, invalid, not_supported, required
from coterie.kube.api.names import PORT_RANGE
from coterie.kube.api.rules.base import Errors, Obj
from coterie.kube.api.rules.common import check_port_or_name, not_negative

_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc", "sleep")
_HEADER = re.compile("[-A-Za-z0-9]+")


def check_probe(probe: Obj, path: str, kind: str) -> Errors:
    errors = check_handler(probe, path)
    errors += not_negative(
        probe, path, "initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"
    )
    grace = probe.get("terminationGracePeriodSeconds")
    if grace is not None:
        at = f"{path}.terminationGracePeriodSeconds"
        if kind == "readinessProbe":
            errors.append(invalid(at, grace, "must not be set for readinessProbes"))
        elif grace <= 0:
            errors.append(invalid(at, grace, "must be greater than 0"))
    if kind != "readinessProbe" and (probe.get("successThreshold") or 1) != 1:
        errors.append(invalid(f"{path}.successThreshold", probe["successThreshold"], "must be 1"))
    return errors


def _check_exec(action: Obj, path: str) -> Errors:
    return [] if action.get("command") else [required(f"{path}.command")]


def _check_http_get(action: Obj, path: str) -> Errors:
    errors: Errors = []
    if not action.get("path"):
        errors.append(required(f"{path}.path"))
    errors += check_port_or_name(action.get("port"), f"{path}.port")
    if action.get("scheme") not in ("HTTP", "HTTPS"):
        errors.append(not_supported(f"{path}.scheme", action.get("scheme") or "", ("HTTP", "HTTPS")))
    for index, header in enumerate(action.get("httpHeaders") or ()):
        if not _HEADER.fullmatch(header.get("name") or ""):
            why = (
                "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', "
                "regex used for validation is '[-A-Za-z0-9]+')"
            )
            errors.append(invalid(f"{path}.httpHeaders[{index}].name", header.get("name") or "", why))
    return errors


def _check_tcp(action: Obj, path: str) -> Errors:
    return check_port_or_name(action.get("port"), f"{path}.port")


def _check_grpc(action: Obj, path: str) -> Errors:
    port = action.get("port") or 0
    return [] if 1 <= port <= 65535 else [invalid(f"{path}.port", port, PORT_RANGE)]


def _check_sleep(action: Obj, path: str) -> Errors:
    return not_negative(action, path, "seconds")


_HANDLER_CHECKS: dict[str, Callable[[Obj, str], Errors]] = {
    "exec": _check_exec,
    "httpGet": _check_http_get,
    "tcpSocket": _check_tcp,
    "grpc": _check_grpc,
    "sleep": _check_sleep,
}


def check_handler(handler: Obj, path: str) -> Errors:
    errors: Errors = []
    given = 0
    for key in _HANDLERS:
        action = handler.get(key)
        if action is None:
            continue
        given += 1
        if given > 1:
            errors.append(forbidden_field(f"{path}.{key}", "may not specify more than 1 handler type"))
        else:
            errors += _HANDLER_CHECKS[key](action, f"{path}.{key}")
    return errors if given else [required(path, "must specify a handler type")]
