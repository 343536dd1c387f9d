"""The status of a pod whose copy runs elsewhere. Pure.

Times come from the backing cluster or from the status before, so the same copy gives the same status and nothing is written.
"""

from __future__ import annotations

from coterie.kube.agent.pods import pod_model
from coterie.kube.api.meta import Object
from coterie.kube.api.rules.pods import qos_class

SCHEDULED = "PodScheduled"
_COPIED = ("phase", "reason", "message", "containerStatuses", "initContainerStatuses", "podIP", "podIPs", "startTime")
_STUCK = frozenset(
    (
        "ErrImagePull",
        "ImagePullBackOff",
        "ErrImageNeverPull",
        "InvalidImageName",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
    )
)
REFUSED_EXIT_CODE = 125
"""Of containers that never ran because the backing cluster refused the pod."""


def mirrored_status(pod: Object, backing: Object, host_ip: str, now: str) -> Object:
    """`now` is used only for what the backing cluster gives no time for."""
    before, there = pod_model.status_in(pod), pod_model.status_in(backing)
    made = {key: there[key] for key in _COPIED if there.get(key)}
    made.setdefault("phase", "Pending")
    made["startTime"] = before.get("startTime") or there.get("startTime") or now
    made["hostIP"] = host_ip
    made["hostIPs"] = [{"ip": host_ip}]
    made["qosClass"] = before.get("qosClass") or qos_class(pod_model.spec_of(pod))
    waiting = _unscheduled(there)
    if made["phase"] == "Pending" and waiting and "reason" not in made:
        made |= {"reason": "BackingPodPending", "message": waiting}
    made["conditions"] = _conditions(before, there)
    return made


def _unscheduled(there: Object) -> str:
    """Why the backing cluster has no node for the copy."""
    for condition in there.get("conditions") or ():
        if (
            condition["type"] == SCHEDULED
            and condition["status"] == "False"
            and condition.get("reason") == "Unschedulable"
        ):
            return f"the backing cluster cannot schedule the pod: {condition.get('message') or 'it gives no reason'}"
    return ""


def _conditions(before: Object, there: Object) -> list[Object]:
    """PodScheduled says that the pod is on our node. In the order in which they are stored."""
    known = {each["type"]: each for each in before.get("conditions") or ()}
    copied = {each["type"]: each for each in there.get("conditions") or () if each["type"] != SCHEDULED}
    order = [*known, *(kind for kind in copied if kind not in known)]
    return [copied.get(kind) or known[kind] for kind in order]


def waiting_status(pod: Object, reason: str, message: str, host_ip: str) -> Object:
    """Of a pod that has no copy yet."""
    before = pod_model.status_in(pod)
    made = {key: before[key] for key in ("conditions", "qosClass") if before.get(key)}
    return {
        **made,
        "phase": "Pending",
        "reason": reason,
        "message": message,
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}],
    }


def failed_status(pod: Object, reason: str, message: str, host_ip: str, now: str, *, refused: bool = False) -> Object:
    """`refused`: no container of it ever ran."""
    before = pod_model.status_in(pod)
    entry = {each["name"]: each for each in before.get("containerStatuses") or ()}
    conditions = [
        {**each, "status": "False", "reason": "PodFailed", "lastTransitionTime": now}
        if each["type"] in ("Ready", "ContainersReady") and each["status"] == "True"
        else each
        for each in before.get("conditions") or ()
    ]
    made: Object = {
        "phase": "Failed",
        "reason": reason,
        "message": message,
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}],
        "startTime": before.get("startTime") or now,
        "conditions": conditions,
        "containerStatuses": [
            _ended(each, entry.get(each["name"]), reason, message, now, refused) for each in pod_model.containers(pod)
        ],
    }
    return made | ({"qosClass": before["qosClass"]} if before.get("qosClass") else {})


def _ended(container: Object, entry: Object | None, reason: str, message: str, now: str, refused: bool) -> Object:
    state = (entry or {}).get("state") or {}
    if entry is not None and "terminated" in state:
        return entry
    code = REFUSED_EXIT_CODE if refused else 137
    began = (state.get("running") or {}).get("startedAt") or now
    return {
        "name": container["name"],
        "image": container.get("image") or "",
        "imageID": (entry or {}).get("imageID") or "",
        "restartCount": (entry or {}).get("restartCount") or 0,
        "ready": False,
        "started": False,
        "state": {
            "terminated": {
                "exitCode": code,
                "reason": reason,
                "message": message,
                "startedAt": began,
                "finishedAt": now,
            }
        },
    }


def stuck_container(backing: Object) -> tuple[str, str] | None:
    """(reason, message) of a container that cannot be started there and never was."""
    there = pod_model.status_in(backing)
    for group in ("initContainerStatuses", "containerStatuses"):
        for entry in there.get(group) or ():
            waiting = (entry.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") in _STUCK and not entry.get("restartCount"):
                return str(
                    waiting["reason"]
                ), f"container {entry['name']}: {waiting.get('message') or waiting['reason']}"
    return None


def same_status(before: Object, after: Object) -> bool:
    gone = any(key in before and key not in after for key in ("reason", "message"))
    return not gone and all(before.get(key) == value for key, value in after.items())
