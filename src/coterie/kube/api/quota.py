"""What objects use of a quota: pure counting, shared by admission (may this be created?) and the quota controller.

Usage is a mapping from a quota's resource name to a quantity:

    count/deployments.apps, pods, services, secrets, ...         numbers of objects
    cpu = requests.cpu, limits.memory, requests.nvidia.com/gpu   what pods ask for
    requests.storage, gold.storageclass.storage.k8s.io/...       what volume claims ask for
    services.nodeports, services.loadbalancers                   what services take

Pods that have ended use nothing but `count/pods`. Scopes narrow a quota to some pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from coterie.kube.api import quantity
from coterie.kube.api.quantity import Quantity

Object = Mapping[str, Any]
Usage = dict[str, Quantity]

ONE = quantity.from_units(1)
_COUNTED_CORE = frozenset(
    ("configmaps", "persistentvolumeclaims", "replicationcontrollers", "resourcequotas", "secrets", "services")
)
_PLAIN_COMPUTE = frozenset(("cpu", "memory", "ephemeral-storage"))
_STORAGE_CLASS = ".storageclass.storage.k8s.io/"


def tracked_resource(name: str) -> str:
    """The `<plural>.<group>` whose objects decide a quota's resource name."""
    if name.startswith("count/"):
        return name.removeprefix("count/")
    if name in _COUNTED_CORE or name == "pods":
        return name
    if name in ("services.loadbalancers", "services.nodeports"):
        return "services"
    if name == "requests.storage" or _STORAGE_CLASS in name:
        return "persistentvolumeclaims"
    return "pods"


def usage_of(group_resource: str, obj: Object) -> Usage:
    """Everything one object uses."""
    usage: Usage = {f"count/{group_resource}": ONE}
    if group_resource == "pods":
        if not pod_ended(obj):
            usage["pods"] = ONE
            usage |= _pod_compute(obj)
    elif group_resource in _COUNTED_CORE:
        usage[group_resource] = ONE
        if group_resource == "services":
            usage |= _service_usage(obj)
        elif group_resource == "persistentvolumeclaims":
            usage |= _claim_usage(obj)
    return usage


def quota_usage(spec: Object, objects: Mapping[str, Iterable[Object]]) -> Usage:
    """What a quota's namespace uses of each of its hard limits; `objects` by `<plural>.<group>`."""
    wanted = set(spec.get("hard") or ())
    total: Usage = {name: quantity.ZERO for name in wanted}
    for group_resource in {tracked_resource(name) for name in wanted}:
        for obj in objects.get(group_resource, ()):
            if matches(spec, group_resource, obj):
                for name, amount in usage_of(group_resource, obj).items():
                    if name in wanted:
                        total[name] = total[name] + amount
    return total


def exceeded(hard: Mapping[str, str | int | float], used: Usage, more: Usage) -> list[str]:
    """Names of the limits that `more` would break, sorted. Using less is allowed even when a limit is broken."""
    broken = []
    for name, amount in more.items():
        if name in hard and amount > quantity.ZERO:
            now = used.get(name, quantity.ZERO)
            if now + amount > quantity.parse(hard[name]):
                broken.append(name)
    return sorted(broken)


def as_json(usage: Usage) -> dict[str, str]:
    return {name: str(usage[name]) for name in sorted(usage)}


# ---- scopes ----


def matches(spec: Object, group_resource: str, obj: Object) -> bool:
    """Whether the quota counts this object. A quota with scopes counts pods only."""
    scopes: Sequence[str] = spec.get("scopes") or ()
    expressions: Sequence[Object] = (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    if not scopes and not expressions:
        return True
    if group_resource != "pods":
        return False
    return all(_in_scope(scope, "Exists", (), obj) for scope in scopes) and all(
        _in_scope(e.get("scopeName", ""), e.get("operator", "Exists"), e.get("values") or (), obj) for e in expressions
    )


def _in_scope(scope: str, operator: str, values: Sequence[str], pod: Object) -> bool:
    spec = pod.get("spec") or {}
    if scope == "Terminating":
        return spec.get("activeDeadlineSeconds") is not None
    if scope == "NotTerminating":
        return spec.get("activeDeadlineSeconds") is None
    if scope == "BestEffort":
        return is_best_effort(pod)
    if scope == "NotBestEffort":
        return not is_best_effort(pod)
    if scope == "CrossNamespacePodAffinity":
        return _crosses_namespaces(spec)
    if scope == "PriorityClass":
        name = spec.get("priorityClassName") or ""
        if operator == "In":
            return name in values
        if operator == "NotIn":
            return name not in values
        return bool(name) if operator == "Exists" else not name
    return False


def is_best_effort(pod: Object) -> bool:
    """No container asks for, or is limited in, CPU or memory."""
    spec = pod.get("spec") or {}
    holders = [spec, *(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    for holder in holders:
        resources = holder.get("resources") or {}
        for kind in ("requests", "limits"):
            asked = resources.get(kind) or {}
            if any(name in asked and quantity.parse(asked[name]) for name in ("cpu", "memory")):
                return False
    return True


def _crosses_namespaces(spec: Object) -> bool:
    affinity = spec.get("affinity") or {}
    for kind in ("podAffinity", "podAntiAffinity"):
        rules = affinity.get(kind) or {}
        terms = list(rules.get("requiredDuringSchedulingIgnoredDuringExecution") or ())
        preferred = rules.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
        terms += [weighted.get("podAffinityTerm") or {} for weighted in preferred]
        if any(term.get("namespaces") or term.get("namespaceSelector") is not None for term in terms):
            return True
    return False


# ---- kinds ----


def pod_ended(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def pod_resources(pod: Object, kind: str) -> Usage:
    """The `requests` or `limits` that count for a whole pod, as the scheduler sees them.

    Containers run together, so they add up; init containers run one after the other, so the greatest counts; those
    that are restarted for ever (sidecars) run beside everything that starts after them.
    """
    spec = pod.get("spec") or {}
    running = _running_resources(pod, kind) if "status" in pod else {}
    refused = bool(running) and resize_is_infeasible(pod)
    together: Usage = {}
    for container in spec.get("containers") or ():
        together = _sum(together, _counted(container, kind, running, refused))
    sidecars: Usage = {}
    starting: Usage = {}
    for container in spec.get("initContainers") or ():
        asked = _counted(container, kind, running, refused)
        if container.get("restartPolicy") == "Always":
            sidecars = _sum(sidecars, asked)
            starting = _greatest(starting, sidecars)
        else:
            starting = _greatest(starting, _sum(sidecars, asked))
    total = _greatest(_sum(together, sidecars), starting)
    total |= _requested(spec, kind)  # what is set for the pod as a whole replaces the sum
    overhead = {name: quantity.parse(value) for name, value in (spec.get("overhead") or {}).items()}
    # A limit that is not set stays unlimited: overhead is added only to those that are.
    return _sum(total, overhead if kind == "requests" else {n: v for n, v in overhead.items() if n in total})


def resize_is_infeasible(pod: Object) -> bool:
    """Whether the node will never give the pod what its spec asks for now."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(
        found.get("type") == "PodResizePending"
        and found.get("reason") == "Infeasible"
        and found.get("status") == "True"
        for found in conditions
    )


def _running_resources(pod: Object, kind: str) -> dict[str, Usage]:
    """By container: what its node gave it and what it runs with, while a resize is under way. Only `cpu` and `memory`."""
    status = pod.get("status") or {}
    found: dict[str, Usage] = {}
    for group in ("containerStatuses", "initContainerStatuses"):
        for container in status.get(group) or ():
            actual = (container.get("resources") or {}).get(kind) or {}
            allocated = (container.get("allocatedResources") or {}) if kind == "requests" else {}
            if actual or allocated:
                given = _greatest(_parsed(actual), _parsed(allocated))
                found[container["name"]] = {name: given[name] for name in ("cpu", "memory") if name in given}
    return found


def _parsed(amounts: Object) -> Usage:
    return {name: quantity.parse(value) for name, value in amounts.items()}


def _counted(container: Object, kind: str, running: dict[str, Usage], refused: bool) -> Usage:
    """What a container counts: the greatest of what it asks for, was given and has. What is infeasible does not count."""
    asked, given = _requested(container, kind), running.get(container.get("name") or "")
    if not given:
        return asked
    return asked | given if refused else _greatest(asked, given)


def _requested(holder: Object, kind: str) -> Usage:
    asked = (holder.get("resources") or {}).get(kind) or {}
    return {name: quantity.parse(value) for name, value in asked.items()}


def _sum(one: Usage, other: Usage) -> Usage:
    out = dict(one)
    for name, amount in other.items():
        out[name] = out[name] + amount if name in out else amount
    return out


def _greatest(one: Usage, other: Usage) -> Usage:
    out = dict(one)
    for name, amount in other.items():
        if name not in out or amount > out[name]:
            out[name] = amount
    return out


def _pod_compute(pod: Object) -> Usage:
    usage: Usage = {}
    for name, amount in pod_resources(pod, "requests").items():
        usage[f"requests.{name}"] = amount
        if name in _PLAIN_COMPUTE or name.startswith("hugepages-"):
            usage[name] = amount
    for name, amount in pod_resources(pod, "limits").items():
        usage[f"limits.{name}"] = amount
    return usage


def _service_usage(service: Object) -> Usage:
    spec = service.get("spec") or {}
    kind, ports = spec.get("type"), len(spec.get("ports") or ())
    if kind == "LoadBalancer":
        usage = {"services.loadbalancers": ONE}
        if spec.get("allocateLoadBalancerNodePorts", True) is not False:
            usage["services.nodeports"] = quantity.from_units(ports)
        return usage
    return {"services.nodeports": quantity.from_units(ports)} if kind == "NodePort" else {}


def _claim_usage(claim: Object) -> Usage:
    spec = claim.get("spec") or {}
    annotations = (claim.get("metadata") or {}).get("annotations") or {}
    storage_class = annotations.get("volume.beta.kubernetes.io/storage-class") or spec.get("storageClassName")
    asked = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    amount = quantity.parse(asked) if asked is not None else quantity.ZERO
    usage = {"requests.storage": amount}
    if storage_class:
        usage[f"{storage_class}{_STORAGE_CLASS}requests.storage"] = amount
        usage[f"{storage_class}{_STORAGE_CLASS}persistentvolumeclaims"] = ONE
    return usage
