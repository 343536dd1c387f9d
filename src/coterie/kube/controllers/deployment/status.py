"""What a deployment says about itself: counts, and the conditions that `kubectl rollout status` reads. Pure.

`Progressing` tells how the present rollout goes:

    True     NewReplicaSetCreated, FoundNewReplicaSet   it has begun
    True     ReplicaSetUpdated                          something moved; the deadline counts from then
    True     NewReplicaSetAvailable                     it is complete; scaling does not change this
    False    ProgressDeadlineExceeded                   nothing moved for too long
    False    ReplicaSetCreateError                      the server refused the new set
    Unknown  DeploymentPaused, DeploymentResumed        the deadline does not count
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from coterie.base.clock import rfc3339
from coterie.kube.api.meta import Condition, find_condition
from coterie.kube.api.pod_state import parse_time
from coterie.kube.api.types.apps import Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet
from coterie.kube.controllers.deployment.numbers import bounds, sum_replicas

AVAILABLE = "Available"
PROGRESSING = "Progressing"
REPLICA_FAILURE = "ReplicaFailure"
CREATED = "NewReplicaSetCreated"
FOUND = "FoundNewReplicaSet"
UPDATED = "ReplicaSetUpdated"
COMPLETE = "NewReplicaSetAvailable"
TIMED_OUT = "ProgressDeadlineExceeded"
CREATE_ERROR = "ReplicaSetCreateError"
PAUSED = "DeploymentPaused"
RESUMED = "DeploymentResumed"

NO_DEADLINE = 2**31 - 1

Conditions = tuple[DeploymentCondition, ...]


def has_deadline(deployment: Deployment) -> bool:
    deadline = deployment.spec.progress_deadline_seconds
    return deadline is not None and deadline != NO_DEADLINE


def find(conditions: Conditions, type_: str) -> DeploymentCondition | None:
    for condition in conditions:
        if condition.type == type_:
            return condition
    return None


def put(
    conditions: Conditions, type_: str, word: str, reason: str, message: str, now: datetime, *, moved: bool = False
) -> Conditions:
    """Set a condition. The same status for the same reason stays as it is, unless something `moved`."""
    known = find(conditions, type_)
    if known is not None and known.status == word and known.reason == reason and not moved:
        return conditions
    since = known.last_transition_time if known is not None and known.status == word else rfc3339(now)
    new = DeploymentCondition(
        type=type_,
        status=word,
        reason=reason,
        message=message,
        last_transition_time=since,
        last_update_time=rfc3339(now),
    )
    return (*(condition for condition in conditions if condition.type != type_), new)


def without(conditions: Conditions, type_: str) -> Conditions:
    return tuple(condition for condition in conditions if condition.type != type_)


def paused_or_resumed(deployment: Deployment, conditions: Conditions, now: datetime) -> Conditions:
    if not has_deadline(deployment):
        return conditions
    known = find(conditions, PROGRESSING)
    if known is not None and known.reason == TIMED_OUT:
        return conditions  # pausing is no way out of a failure
    is_paused = known is not None and known.reason == PAUSED
    if deployment.spec.paused and not is_paused:
        return put(conditions, PROGRESSING, "Unknown", PAUSED, "Deployment is paused", now)
    if not deployment.spec.paused and is_paused:
        return put(conditions, PROGRESSING, "Unknown", RESUMED, "Deployment is resumed", now)
    return conditions


def counts(
    deployment: Deployment,
    sets: Sequence[ReplicaSet],
    newest: ReplicaSet | None,
    conditions: Conditions,
    now: datetime,
) -> DeploymentStatus:
    available = sum(found.status.available_replicas for found in sets)
    if available >= deployment.replicas - bounds(deployment).unavailable:
        condition_values = ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
    else:
        condition_values = ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
    return msgspec.structs.replace(
        deployment.status,
        observed_generation=deployment.metadata.generation,
        replicas=sum(found.status.replicas for found in sets),
        updated_replicas=newest.status.replicas if newest is not None else 0,
        ready_replicas=sum(found.status.ready_replicas for found in sets),
        available_replicas=available,
        unavailable_replicas=max(0, sum_replicas(sets) - available),
        conditions=put(conditions, AVAILABLE, *condition_values, now) or None,
    )


def is_complete(deployment: Deployment, status: DeploymentStatus) -> bool:
    wanted = deployment.replicas
    return (
        status.updated_replicas == wanted
        and status.replicas == wanted
        and status.available_replicas == wanted
        and status.observed_generation >= deployment.metadata.generation
    )


def _moved(before: DeploymentStatus, after: DeploymentStatus) -> bool:
    return (
        after.updated_replicas > before.updated_replicas
        or after.replicas - after.updated_replicas < before.replicas - before.updated_replicas
        or after.ready_replicas > before.ready_replicas
        or after.available_replicas > before.available_replicas
    )


def _timed_out(deployment: Deployment, known: DeploymentCondition | None, now: datetime) -> bool:
    if known is None or known.reason in (COMPLETE, PAUSED):
        return False
    if known.reason == TIMED_OUT:
        return True
    since = parse_time(known.last_update_time)
    deadline = timedelta(seconds=deployment.spec.progress_deadline_seconds or 0)
    return since is not None and since + deadline < now


def progress(
    deployment: Deployment, status: DeploymentStatus, newest: ReplicaSet | None, now: datetime
) -> DeploymentStatus:
    """The status with the word on how the rollout goes."""
    conditions = tuple(status.conditions or ())
    known = find(conditions, PROGRESSING)
    who = f'ReplicaSet "{newest.metadata.name}"' if newest is not None else f'Deployment "{deployment.metadata.name}"'
    was_complete = known is not None and known.reason == COMPLETE and status.replicas == status.updated_replicas
    if not has_deadline(deployment):
        conditions = without(conditions, PROGRESSING)
    elif not was_complete:
        if is_complete(deployment, status):
            conditions = put(conditions, PROGRESSING, "True", COMPLETE, f"{who} has successfully progressed.", now)
        elif _moved(deployment.status, status):
            conditions = put(conditions, PROGRESSING, "True", UPDATED, f"{who} is progressing.", now, moved=True)
        elif _timed_out(deployment, known, now):
            conditions = put(conditions, PROGRESSING, "False", TIMED_OUT, f"{who} has timed out progressing.", now)
    return msgspec.structs.replace(status, conditions=conditions or None)


def failures(
    status: DeploymentStatus, sets: Sequence[ReplicaSet], newest: ReplicaSet | None, now: datetime
) -> DeploymentStatus:
    """Pass on what a replica set complains about, the newest one first."""
    conditions = tuple(status.conditions or ())
    failure: Condition | None = None
    for found in (*((newest,) if newest is not None else ()), *sets):
        failure = find_condition(found.status.conditions, REPLICA_FAILURE)
        if failure is not None:
            break
    if failure is None:
        conditions = without(conditions, REPLICA_FAILURE)
    else:
        conditions = put(conditions, REPLICA_FAILURE, failure.status, failure.reason, failure.message, now)
    return msgspec.structs.replace(status, conditions=conditions or None)


def until_deadline(deployment: Deployment, status: DeploymentStatus, now: datetime) -> float | None:
    """Seconds after which a rollout that does not move has to be called stuck."""
    known = find(tuple(status.conditions or ()), PROGRESSING)
    if not has_deadline(deployment) or known is None or known.reason in (COMPLETE, TIMED_OUT, PAUSED):
        return None
    since = parse_time(known.last_update_time)
    if since is None:
        return None
    deadline = timedelta(seconds=deployment.spec.progress_deadline_seconds or 0)
    # Times are written in whole seconds, so a moment must be added to be past it.
    return max(0.0, (since + deadline - now).total_seconds()) + 1.0
