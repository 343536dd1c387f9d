"""What makes a pod an actor of ours: not its labels and owner, which everybody who may create pods can write, but a seal.

The seal is an HMAC with the token of the action over the pod's name and all that decides which programs run in it and what they read. So whoever
does not know the token cannot make a pod to which calls and their token are sent, neither a new one nor one in the place of an actor
that is gone. Pure.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

from coterie.kube.api.meta import Object

SEAL_ANNOTATION = "coterie.io/actor-seal"
_SHARED = ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace")
_HOOKS = ("startupProbe", "readinessProbe", "livenessProbe")


def seal_of(token: str, name: str, spec: Mapping[str, Any]) -> str:
    """`name` and `spec` of the pod."""
    content = json.dumps([name, running_content(spec)], sort_keys=True)
    return hmac.new(token.encode(), content.encode(), hashlib.sha256).hexdigest()


def is_sealed(pod: Object, token: str) -> bool:
    meta = pod["metadata"]
    given = (meta.get("annotations") or {}).get(SEAL_ANNOTATION) or ""
    wanted = seal_of(token, meta["name"], pod.get("spec") or {})
    return hmac.compare_digest(given.encode(), wanted.encode())


def running_content(spec: Mapping[str, Any]) -> Object:
    """What runs in a pod and what it reads; equal before and after the API server filled in defaults."""
    return {
        "containers": [_container(each) for each in spec.get("containers") or ()],
        "initContainers": [_container(each) for each in spec.get("initContainers") or ()],
        "ephemeralContainers": [_container(each) for each in spec.get("ephemeralContainers") or ()],
        "volumes": [_volume(each) for each in spec.get("volumes") or ()],
        "shared": [each for each in _SHARED if spec.get(each)],
    }


def _container(container: Mapping[str, Any]) -> Object:
    return {
        "name": container.get("name"),
        "image": container.get("image"),
        "command": list(container.get("command") or ()),
        "args": list(container.get("args") or ()),
        "env": [_variable(each) for each in container.get("env") or ()],
        "envFrom": list(container.get("envFrom") or ()),
        "mounts": [
            [each.get("name"), each.get("mountPath"), each.get("subPath") or ""]
            for each in container.get("volumeMounts") or ()
        ],
        "lifecycle": container.get("lifecycle") or {},
        "hooks": [(container.get(each) or {}).get("exec") for each in _HOOKS],
    }


def _variable(variable: Mapping[str, Any]) -> list[Any]:
    source = variable.get("valueFrom") or {}
    secret = source.get("secretKeyRef") or {}
    return [
        variable.get("name"),
        variable.get("value") or "",
        sorted(source),
        secret.get("name") or "",
        secret.get("key") or "",
    ]


def _volume(volume: Mapping[str, Any]) -> list[Any]:
    code = volume.get("configMap") or {}
    return [volume.get("name"), sorted(key for key in volume if key != "name"), code.get("name") or ""]
