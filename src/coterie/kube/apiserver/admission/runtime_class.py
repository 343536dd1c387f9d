"""Admission of pods that name a runtime class: it must exist, and its overhead and scheduling become the pod's."""

from __future__ import annotations

from typing import Any

from coterie.kube.api import errors
from coterie.kube.api.labels import COTERIE_RUNTIME_HANDLER
from coterie.kube.apiserver.admission.chain import AdmissionRequest
from coterie.kube.apiserver.state.collection import Collection

Object = dict[str, Any]
_NO_OVERHEAD = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"
_OTHER_OVERHEAD = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"


class RuntimeClasses:
    """Kubernetes' admission plug-in RuntimeClass. The handler goes to the node with the pod, as an annotation."""

    def __init__(self, classes: Collection) -> None:
        self._classes = classes

    def __call__(self, attempt: AdmissionRequest) -> None:
        if attempt.resource.kind != "Pod" or attempt.resource.group:
            return
        if attempt.old is not None:
            _keep_handler(attempt.obj, attempt.old)
        if attempt.verb != "create" or attempt.subresource:
            return
        spec = attempt.obj.get("spec") or {}
        name, overhead = spec.get("runtimeClassName"), spec.get("overhead")
        annotations = attempt.obj["metadata"].get("annotations")
        if annotations and COTERIE_RUNTIME_HANDLER in annotations and not name:
            del annotations[COTERIE_RUNTIME_HANDLER]
        if not name:
            if overhead:
                raise _forbidden(attempt, _NO_OVERHEAD)
            return
        entry = self._classes.get("", name)
        if entry is None:
            raise _forbidden(attempt, f'pod rejected: RuntimeClass "{name}" not found')
        found = entry.load()
        fixed = (found.get("overhead") or {}).get("podFixed")
        if fixed is None and overhead:
            raise _forbidden(attempt, _NO_OVERHEAD)
        if fixed is not None:
            if overhead and overhead != fixed:
                raise _forbidden(attempt, _OTHER_OVERHEAD)
            spec["overhead"] = fixed
        _merge_scheduling(attempt, spec, found.get("scheduling") or {})
        metadata = attempt.obj["metadata"]
        metadata["annotations"] = {**(annotations or {}), COTERIE_RUNTIME_HANDLER: found["handler"]}


def _keep_handler(pod: Object, old: Object) -> None:
    """What runs a pod's containers is decided when it is made: nobody moves it behind another wall afterwards."""
    metadata = pod.get("metadata")
    handler = (old["metadata"].get("annotations") or {}).get(COTERIE_RUNTIME_HANDLER)
    if metadata is None or (metadata.get("annotations") or {}).get(COTERIE_RUNTIME_HANDLER) == handler:
        return
    annotations = {
        key: value for key, value in (metadata.get("annotations") or {}).items() if key != COTERIE_RUNTIME_HANDLER
    }
    metadata["annotations"] = annotations if handler is None else {**annotations, COTERIE_RUNTIME_HANDLER: handler}


def _merge_scheduling(attempt: AdmissionRequest, spec: Object, scheduling: Object) -> None:
    selector = dict(spec.get("nodeSelector") or {})
    for key, value in (scheduling.get("nodeSelector") or {}).items():
        if selector.get(key, value) != value:
            why = (
                f"conflict: runtimeClass.scheduling.nodeSelector[{key}] = {value}; "
                f"pod.spec.nodeSelector[{key}] = {selector[key]}"
            )
            raise _forbidden(attempt, why)
        selector[key] = value
    if selector:
        spec["nodeSelector"] = selector
    if more := scheduling.get("tolerations"):
        spec["tolerations"] = merge_tolerations([*(spec.get("tolerations") or ()), *more])


def merge_tolerations(tolerations: list[Object]) -> list[Object]:
    """Without those that another one covers."""
    merged: list[Object] = []
    for index, each in enumerate(tolerations):
        later = tolerations[index + 1 :]
        if any(_covers(other, each) for other in merged) or any(
            other != each and _covers(other, each) for other in later
        ):
            continue
        merged.append(each)
    return merged


def _covers(wide: Object, narrow: Object) -> bool:
    if wide == narrow:
        return True
    exists = wide.get("operator") == "Exists"
    key, effect = wide.get("key") or "", wide.get("effect") or ""
    if (narrow.get("key") or "") != key and (key or not exists):
        return False
    if (narrow.get("effect") or "") != effect and effect:
        return False
    if effect == "NoExecute":
        longest, wanted = wide.get("tolerationSeconds"), narrow.get("tolerationSeconds")
        if longest is not None and (wanted is None or wanted > longest):
            return False
    if exists:
        return True
    same_operator = (narrow.get("operator") or "Equal") == (wide.get("operator") or "Equal")
    return same_operator and (narrow.get("value") or "") == (wide.get("value") or "")


def _forbidden(attempt: AdmissionRequest, why: str) -> errors.Forbidden:
    return errors.Forbidden(f'pods "{attempt.name}" is forbidden: {why}', name=attempt.name, kind="pods")
