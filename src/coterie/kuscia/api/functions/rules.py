"""What is wrong with an Action or a Trigger beside what its schema says. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from coterie.kube.api.errors import FieldError, invalid, not_found_field
from coterie.kube.api.rules.cron import schedule_fault
from coterie.kuscia.api.functions import graph
from coterie.kuscia.api.functions.types import ActionGrantSpec, HttpTrigger, TrafficShare, TriggerSpec

RESERVED_PATHS = ("/actions", "/calls", "/healthz", "/readyz", "/metrics", "/coterie", "/cubernetes")
"""Of the gateway itself, with everything below."""
RESERVED_TOPICS = ("action-", "outbox-", "partner-calls", "committed-offsets", "ReturnGateway-")
"""Beginnings of topics of the functions process."""
RESERVED_TOPIC_ENDS = ("_TOPIC", "_DLQ")


def next_faults(name: str, targets: Sequence[str], before: Collection[str], edges: graph.Edges) -> list[FieldError]:
    """`before`: targets that the action has already, which need not exist any more. `edges`: of all other actions."""
    faults = []
    for place, target in enumerate(targets):
        if fault := graph.target_fault(target):
            faults.append(invalid(f"spec.next[{place}]", target, fault))
        elif target not in before and graph.unknown_targets(name, (target,), edges):
            faults.append(
                FieldError(
                    f"spec.next[{place}]",
                    "FieldValueNotFound",
                    f'Not found: "{target}": there is no such Action in this namespace; create what is called before what calls it',
                )
            )
    cycle = graph.find_cycle({**edges, name: targets}, name)
    if cycle:
        faults.append(invalid("spec.next", list(targets), f"{graph.cycle_sentence(cycle)}; a cycle is not allowed"))
    return faults


def traffic_faults(traffic: Sequence[TrafficShare], versions: Collection[str]) -> list[FieldError]:
    """`versions`: those that are kept, and the one that is being written."""
    faults = []
    for place, share in enumerate(traffic):
        if share.version not in versions:
            listed = ", ".join(sorted(versions)) or "none"
            faults.append(
                FieldError(
                    f"spec.traffic[{place}].version",
                    "FieldValueNotFound",
                    f'Not found: "{share.version}": the versions of this action are: {listed}',
                )
            )
    total = sum(share.percent for share in traffic)
    if traffic and total != 100:
        faults.append(invalid("spec.traffic", total, "the percents add up to this instead of 100"))
    return faults


def trigger_faults(
    spec: TriggerSpec, actions: Collection[str], others: Mapping[str, HttpTrigger], before: TriggerSpec | None = None
) -> list[FieldError]:
    """`others`: HTTP triggers of the namespace but this one, by name."""
    faults = []
    if spec.action not in actions and (before is None or before.action != spec.action):
        faults.append(not_found_field("spec.action", spec.action))
    if spec.schedule and (fault := schedule_fault(spec.schedule)):
        faults.append(invalid("spec.schedule", spec.schedule, fault))
    if spec.topic and _reserved_topic(spec.topic):
        faults.append(invalid("spec.topic", spec.topic, "topics of this name belong to the functions process"))
    if spec.http is not None:
        faults += _path_faults(spec.http, others)
    return faults


def _path_faults(http: HttpTrigger, others: Mapping[str, HttpTrigger]) -> list[FieldError]:
    if any(http.path == path or http.path.startswith(f"{path}/") for path in RESERVED_PATHS):
        return [invalid("spec.http.path", http.path, "this path belongs to the gateway itself")]
    faults = []
    for name in sorted(others):
        if others[name].path == http.path and (shared := shared_methods(http, others[name])):
            why = f"Trigger {name} has this path with {', '.join(shared)} already"
            faults.append(invalid("spec.http.path", http.path, why))
    return faults


def shared_methods(one: HttpTrigger, other: HttpTrigger) -> list[str]:
    """Methods that both answer; no methods mean all."""
    first, second = set(one.methods or ()), set(other.methods or ())
    if not first and not second:
        return ["all methods"]
    return sorted(first & second if first and second else first | second)


def _reserved_topic(topic: str) -> bool:
    return topic.startswith(RESERVED_TOPICS) or topic.endswith(RESERVED_TOPIC_ENDS)


def grant_faults(spec: ActionGrantSpec, namespace: str, actions: Iterable[str]) -> list[FieldError]:
    faults = []
    if spec.action not in actions:
        faults.append(not_found_field("spec.action", spec.action))
    if spec.grant_domain == namespace:
        faults.append(invalid("spec.grantDomain", spec.grant_domain, "a domain needs no grant for its own actions"))
    return faults
