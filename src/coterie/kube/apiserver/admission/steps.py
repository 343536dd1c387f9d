"""Admission steps over the current state: namespaces, service accounts, tolerations, priorities, limit ranges."""

from __future__ import annotations

from typing import Any

from coterie.kube.api import errors
from coterie.kube.api.labels import TAINT_NOT_READY, TAINT_UNREACHABLE
from coterie.kube.api.quantity import Quantity
from coterie.kube.api.quantity import parse as parse_quantity
from coterie.kube.apiserver.admission.chain import AdmissionRequest
from coterie.kube.apiserver.state.collection import Collection

Object = dict[str, Any]
_LIMITED_KINDS = frozenset(("Pod", "PersistentVolumeClaim"))
PROTECTED_NAMESPACES = frozenset(("default", "kube-system", "kube-public"))


def _is_pod(attempt: AdmissionRequest) -> bool:
    return attempt.resource.kind == "Pod" and not attempt.resource.group and not attempt.subresource


def _forbidden(attempt: AdmissionRequest, why: str, causes: tuple[errors.StatusCause, ...] = ()) -> errors.Forbidden:
    resource = attempt.resource
    return errors.Forbidden(
        f'{resource.group_resource} "{attempt.name}" is forbidden: {why}',
        name=attempt.name,
        group=resource.group,
        kind=resource.plural,
        causes=causes,
    )


def _keep(attempt: AdmissionRequest, *fields: str) -> None:
    """What admission set at the creation stays when an update leaves it out; whether it may change is validation's."""
    before = (attempt.old or {}).get("spec") or {}
    for name in fields:
        if attempt.obj["spec"].get(name) in (None, "") and name in before:
            attempt.obj["spec"][name] = before[name]


class NamespaceLifecycle:
    """Objects are created only in namespaces that exist and are not going away."""

    def __init__(self, namespaces: Collection) -> None:
        self._namespaces = namespaces

    def __call__(self, attempt: AdmissionRequest) -> None:
        if attempt.verb != "create" or not attempt.namespace:
            return
        entry = self._namespaces.get("", attempt.namespace)
        if entry is None:
            raise errors.NotFound(
                f'namespaces "{attempt.namespace}" not found', name=attempt.namespace, kind="namespaces"
            )
        if b'"deletionTimestamp"' in entry.raw and "deletionTimestamp" in entry.load()["metadata"]:
            why = f"namespace {attempt.namespace} is being terminated"
            raise _forbidden(
                attempt,
                f"unable to create new content in namespace {attempt.namespace} because it is being terminated",
                (errors.StatusCause("NamespaceTerminating", why, "metadata.namespace"),),
            )


class ServiceAccounts:
    """A pod runs as a service account: `default` unless it names another, which must exist."""

    def __init__(self, accounts: Collection) -> None:
        self._accounts = accounts

    def __call__(self, attempt: AdmissionRequest) -> None:
        if not _is_pod(attempt):
            return
        spec = attempt.obj.setdefault("spec", {})
        if attempt.verb != "create":
            _keep(attempt, "serviceAccountName", "serviceAccount")
            return
        name = spec.get("serviceAccountName") or "default"
        # The default account may not have been made yet in a fresh namespace; it gives no rights, so do not wait.
        if name != "default" and self._accounts.get(attempt.namespace, name) is None:
            raise _forbidden(
                attempt,
                f"error looking up service account {attempt.namespace}/{name}: serviceaccount {name!r} not found",
            )
        spec["serviceAccountName"] = spec["serviceAccount"] = name


class DefaultTolerations:
    """A pod stays `seconds` on a node that is not ready or not reachable, unless it says for how long itself."""

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds

    def __call__(self, attempt: AdmissionRequest) -> None:
        if not _is_pod(attempt):
            return
        spec = attempt.obj.setdefault("spec", {})
        given = [each for each in spec.get("tolerations") or () if isinstance(each, dict)]
        before = ((attempt.old or {}).get("spec") or {}).get("tolerations") or ()
        for key in (TAINT_NOT_READY, TAINT_UNREACHABLE):
            if any(_says_when_to_leave(each, key) for each in given):
                continue
            kept = [each for each in before if _says_when_to_leave(each, key)]
            default = {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": self._seconds}
            spec["tolerations"] = [*(spec.get("tolerations") or ()), kept[0] if kept else default]


def _says_when_to_leave(toleration: Object, taint: str) -> bool:
    return toleration.get("key") in (taint, "", None) and toleration.get("effect") in ("NoExecute", "", None)


class Priorities:
    """A pod's priority class becomes its numeric priority."""

    def __init__(self, classes: Collection) -> None:
        self._classes = classes

    def __call__(self, attempt: AdmissionRequest) -> None:
        if not _is_pod(attempt):
            return
        spec = attempt.obj.setdefault("spec", {})
        if attempt.verb != "create":
            _keep(attempt, "priority", "preemptionPolicy")
            return
        name = spec.get("priorityClassName")
        chosen = self._default() if not name else self._named(attempt, name)
        value = chosen["value"] if chosen else 0
        if spec.get("priority") not in (None, value):
            raise _forbidden(
                attempt,
                f"the integer value of priority ({spec['priority']}) must not be provided in pod spec; "
                f"priority admission controller computed {value} from the given PriorityClass name",
            )
        spec["priority"] = value
        if chosen:
            spec["priorityClassName"] = chosen["metadata"]["name"]
        policy = (chosen or {}).get("preemptionPolicy") or "PreemptLowerPriority"
        spec.setdefault("preemptionPolicy", policy)

    def _named(self, attempt: AdmissionRequest, name: str) -> Object:
        entry = self._classes.get("", name)
        if entry is None:
            raise _forbidden(attempt, f"no PriorityClass with name {name} was found")
        return entry.load()

    def _default(self) -> Object | None:
        best: Object | None = None
        for entry in self._classes:
            if b'"globalDefault":true' in entry.raw:
                found = entry.load()
                if best is None or found["value"] < best["value"]:
                    best = found
        return best


class LimitRanges:
    """Defaults and bounds for the resources of containers and pods, from the namespace's LimitRange objects."""

    def __init__(self, limits: Collection) -> None:
        self._limits = limits

    def __call__(self, attempt: AdmissionRequest) -> None:
        if attempt.resource.group or attempt.resource.kind not in _LIMITED_KINDS:
            return
        resized = attempt.subresource == "resize"
        if attempt.verb != "create" and not resized:
            return
        items = [
            item
            for entry in self._limits.entries(attempt.namespace)
            for item in (entry.load().get("spec") or {}).get("limits") or ()
        ]
        if not items:
            return
        spec = attempt.obj.get("spec") or {}
        containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
        for item in items:
            if item.get("type") == "Container" and not resized:
                for container in containers:
                    _default_resources(container, item)
        subjects = {
            "Pod": {
                "Container": [container.get("resources") or {} for container in containers],
                "Pod": [_pod_total(spec.get("containers") or ())],
            },
            "PersistentVolumeClaim": {"PersistentVolumeClaim": [_claimed(spec)]},
        }[attempt.resource.kind]
        faults = [fault for item in items for fault in _limit_faults(item, subjects.get(item.get("type") or "", []))]
        if faults:
            raise _forbidden(attempt, faults[0] if len(faults) == 1 else "[" + ", ".join(faults) + "]")


def _default_resources(container: Object, item: Object) -> None:
    given = container.get("resources") or {}
    limits = {**(item.get("default") or {}), **(given.get("limits") or {})}
    requests = dict(given.get("requests") or {})
    for name, value in (item.get("defaultRequest") or {}).items():
        # A limit the user set, and not the LimitRange, is also what he asks for.
        requests.setdefault(name, (given.get("limits") or {}).get(name, value))
    for name, value in limits.items():
        requests.setdefault(name, value)
    if limits:
        given = {**given, "limits": limits}
    if requests:
        given = {**given, "requests": requests}
    if given:
        container["resources"] = given


def _limit_faults(item: Object, subjects: list[Object]) -> list[str]:
    kind = item.get("type")
    faults = []
    for resources in subjects:
        requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
        for name, least in (item.get("min") or {}).items():
            if name not in requests:
                faults.append(f"minimum {name} usage per {kind} is {least}.  No request is specified")
            elif parse_quantity(requests[name]) < parse_quantity(least):
                faults.append(f"minimum {name} usage per {kind} is {least}, but request is {requests[name]}")
        for name, most in (item.get("max") or {}).items():
            if name not in limits:
                faults.append(f"maximum {name} usage per {kind} is {most}.  No limit is specified")
            elif parse_quantity(limits[name]) > parse_quantity(most):
                faults.append(f"maximum {name} usage per {kind} is {most}, but limit is {limits[name]}")
        for name, ratio in (item.get("maxLimitRequestRatio") or {}).items():
            if name in requests and name in limits and parse_quantity(requests[name]).nanos:
                actual = parse_quantity(limits[name]).nanos / parse_quantity(requests[name]).nanos
                if actual * 10**9 > parse_quantity(ratio).nanos:
                    faults.append(
                        f"{name} max limit to request ratio per {kind} is {ratio}, but provided ratio is {float(actual):f}"
                    )
    return faults


def _claimed(spec: Object) -> Object:
    """What a volume claim asks for is also the most it gets."""
    requests = (spec.get("resources") or {}).get("requests") or {}
    return {"requests": requests, "limits": requests}


def _pod_total(containers: list[Object] | tuple[()]) -> Object:
    """Sums over all containers; a resource that one of them leaves open is open for the pod."""
    total: dict[str, dict[str, Quantity]] = {"requests": {}, "limits": {}}
    for part, sums in total.items():
        names = {name for container in containers for name in ((container.get("resources") or {}).get(part) or {})}
        for name in names:
            given = [((container.get("resources") or {}).get(part) or {}) for container in containers]
            if all(name in resources for resources in given):
                quantities = [parse_quantity(resources[name]) for resources in given]
                combined = quantities[0]
                for quantity in quantities[1:]:
                    combined = combined + quantity
                sums[name] = combined
    return {part: {name: str(value) for name, value in sums.items()} for part, sums in total.items()}
