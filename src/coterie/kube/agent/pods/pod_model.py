"""Pods as plain data, and the questions everybody asks of them.

The agent reads pods as dicts: it needs nearly every field, and one node has few of them. Nothing here is ever changed in
place, since informers share their objects.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from coterie.kube.api.meta import Object, ObjectKey

DEFAULT_GRACE = 30


def uid_of(pod: Object) -> str:
    return str(pod["metadata"].get("uid") or "")


def key_of(pod: Object) -> ObjectKey:
    meta = pod["metadata"]
    return ObjectKey(meta.get("namespace") or "", meta["name"])


def spec_of(pod: Object) -> Object:
    return pod.get("spec") or {}


def status_in(pod: Object) -> Object:
    return pod.get("status") or {}


def containers(pod: Object) -> list[Object]:
    return spec_of(pod).get("containers") or []


def init_containers(pod: Object) -> list[Object]:
    return spec_of(pod).get("initContainers") or []


def all_containers(pod: Object) -> Iterator[Object]:
    """Those that the pod was made of."""
    yield from init_containers(pod)
    yield from containers(pod)


def ephemeral_containers(pod: Object) -> list[Object]:
    """Added to a pod that runs, for debugging; none of the others depends on them."""
    return spec_of(pod).get("ephemeralContainers") or []


def container_named(pod: Object, name: str) -> Object | None:
    everything = (*all_containers(pod), *ephemeral_containers(pod))
    return next((container for container in everything if container["name"] == name), None)


def is_sidecar(container: Object) -> bool:
    """An init container that goes on beside the others. Only init containers carry this field with this value."""
    return bool(container.get("restartPolicy") == "Always")


def sidecars(pod: Object) -> list[Object]:
    return [container for container in init_containers(pod) if is_sidecar(container)]


def restart_policy(pod: Object) -> str:
    return spec_of(pod).get("restartPolicy") or "Always"


def deleting(pod: Object) -> bool:
    return pod["metadata"].get("deletionTimestamp") is not None


def termination_grace(pod: Object) -> float:
    """Seconds the pod is given to end: what the deletion says, else what the pod says."""
    seconds = pod["metadata"].get("deletionGracePeriodSeconds")
    if seconds is None:
        seconds = spec_of(pod).get("terminationGracePeriodSeconds")
    return float(DEFAULT_GRACE if seconds is None else seconds)


def hostname_of(pod: Object) -> str:
    """At most 63 characters, as the kernel takes them; a cut may not end in a dash or dot."""
    return str(spec_of(pod).get("hostname") or pod["metadata"]["name"])[:63].rstrip("-.")


def phase_is_final(pod: Object) -> bool:
    return status_in(pod).get("phase") in ("Succeeded", "Failed")


def field_path(pod: Object, name: str) -> str:
    """Where events about a container point."""
    for group in ("containers", "initContainers", "ephemeralContainers"):
        if any(container["name"] == name for container in spec_of(pod).get(group) or ()):
            return f"spec.{group}{{{name}}}"
    return ""


def container_id(runtime: str, pod_uid: str, name: str, attempt: int) -> str:
    """The name of one run in statuses; the same for the same run, whoever computes it."""
    digest = hashlib.sha256(f"{pod_uid}/{name}/{attempt}".encode()).hexdigest()
    return f"{runtime}://{digest}"


def port_number(container: Object, port: Any) -> int | None:
    """A port given by number or by the name of a containerPort; None when no port has that name."""
    if isinstance(port, int):
        return port
    text = str(port)
    if text.isdigit():
        return int(text)
    for known in container.get("ports") or ():
        if known.get("name") == text:
            return int(known["containerPort"])
    return None


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
