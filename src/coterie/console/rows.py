"""From objects to rows: what a list in the page shows, and nothing else. Pages of ten thousand objects stay small so.

A row is a small JSON object; `id` tells rows apart, `at` orders them. Text of partners is passed on as text, cut to a length.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final

import msgspec

from coterie.kube.api.meta import Object
from coterie.kube.api.quantity import NANO, QuantityError, parse
from coterie.kuscia.api.functions.types import READY, RELOAD_FAILED
from coterie.kuscia.api.jobs.job_state import job_progress, task_progress
from coterie.kuscia.api.labels import KUSCIA_JOB_ID, KUSCIA_SELF_AS_INITIATOR, KUSCIA_TASK_ID
from coterie.kuscia.api.log_query import printable

Row = dict[str, Any]
_LONGEST: Final = 400
_LONGEST_NAME: Final = 64
"""Of what stands in lists inside a row: columns, parties, containers."""
_LONGEST_TARGET: Final = 104
"""A partner and its action."""
_MOST_USES: Final = 50
_FOR: Final = re.compile(r"task (\S+)(?: of job (\S+))?")
_HUGE: Final = 2**53
"""Beyond it numbers are not exact in a browser."""
COUNTED: Final = ("cpu", "memory", "kuscia.io/bandwidth")


def text(value: object, longest: int = _LONGEST) -> str:
    """Of anything that was written elsewhere: cut to a length, with control characters and those that change the direction of
    writing shown as escapes."""
    if type(value) is str and len(value) <= longest and value.isprintable():
        return value  # almost always
    if value is None:
        return ""
    found = value if isinstance(value, str) else str(value) if isinstance(value, int | float) else ""
    if len(found) > longest:
        found = f"{found[: longest - 1]}…"
    return found if found.isprintable() else "\n".join(printable(line) for line in found.split("\n"))


def name(value: object) -> str:
    return text(value, _LONGEST_NAME)


def number(value: object) -> int | float:
    """0 for what is none."""
    return value if isinstance(value, int | float) and -_HUGE < value < _HUGE else 0


def bounded(value: Any, longest: int = 2000, most: int = 5000, depth: int = 24) -> Any:
    """JSON of anything that was written elsewhere, with an end everywhere."""
    if isinstance(value, str):
        return text(value, longest)
    if depth == 0:
        return None
    if isinstance(value, Mapping):
        shown = islice(value.items(), most)
        return {text(key): bounded(each, longest, most, depth - 1) for key, each in shown}
    if isinstance(value, list | tuple):
        return [bounded(each, longest, most, depth - 1) for each in value[:most]]
    return value


def row_of(resource: str, obj: Object) -> Row:
    """Also of an object that does not have the shape of its kind: then the row says so."""
    try:
        return {**_common(obj), **_ROWS.get(resource, _phase_only)(obj)}
    except (AttributeError, TypeError, ValueError, KeyError, OverflowError, RecursionError) as problem:
        return {**_common(obj), "phase": "", "message": text(f"the object cannot be shown: {problem}")}


def row_id(obj: Object) -> str:
    meta = obj["metadata"]
    return f"{text(meta.get('namespace'))}/{text(meta['name'])}"


def _common(obj: Object) -> Row:
    meta = obj["metadata"]
    name, namespace = text(meta["name"]), text(meta.get("namespace"))
    return {
        "id": f"{namespace}/{name}",
        "name": name,
        "namespace": namespace,
        "at": text(meta.get("creationTimestamp")),
    }


def _phase_only(obj: Object) -> Row:
    return {"phase": text(_status(obj).get("phase"))}


def _job(obj: Object) -> Row:
    spec, status = obj.get("spec") or {}, _status(obj)
    tasks = spec.get("tasks") or []
    named = {p.get("domainID") for task in tasks for p in task.get("parties") or ()}
    parties = sorted(set(map(name, named)))
    phase = text(status.get("phase"))
    states = status.get("taskStatus") or {}
    return {
        "phase": phase or "Pending",
        "initiator": text(spec.get("initiator")),
        "ours": _annotations(obj).get(KUSCIA_SELF_AS_INITIATOR, "true") == "true",
        **_answers(status),
        "parties": parties[:32],
        "tasks": len(tasks),
        "done": sum(1 for state in states.values() if state == "Succeeded"),
        "progress": job_progress(phase, ((states.get(task.get("taskID") or "") or "", 0.0) for task in tasks)),
        "began": text(status.get("startTime")),
        "ended": text(status.get("completionTime")),
        "reason": text(status.get("reason")),
        "message": text(status.get("message")),
    }


def _answers(status: Mapping[str, Any]) -> Row:
    """What the parties answered to a job that needs approval, and who here answered last; nothing for most jobs."""
    if not status.get("approveStatus") and not status.get("approvalRecords"):
        return {}
    answers = {name(party): text(answer) for party, answer in islice((status.get("approveStatus") or {}).items(), 32)}
    records = [each for each in (status.get("approvalRecords") or {}).values() if isinstance(each, Mapping)]
    latest: Mapping[str, Any] = max(records, key=lambda each: text(each.get("at")), default={})
    found = {"answers": answers, "decidedBy": text(latest.get("by")), "decidedAt": text(latest.get("at"))}
    return {key: value for key, value in found.items() if value}


def _task(obj: Object) -> Row:
    spec, status = obj.get("spec") or {}, _status(obj)
    return {
        "phase": text(status.get("phase")) or "Pending",
        "initiator": text(spec.get("initiator")),
        "parties": [name(p.get("domainID")) for p in spec.get("parties") or ()][:32],
        "began": text(status.get("startTime")),
        "ended": text(status.get("completionTime")),
        "reason": text(status.get("reason")),
        "message": text(status.get("message")),
        "progress": task_progress(text(status.get("phase")), float(status.get("progress") or 0.0)),
        "states": [
            {"party": name(p.get("domainID")), "phase": text(p.get("phase")), "message": text(p.get("message"))}
            for p in (status.get("partyTaskStatus") or ())[:32]
        ],
        "job": text(_labels(obj).get(KUSCIA_JOB_ID) or _annotations(obj).get(KUSCIA_JOB_ID)),
    }


def _pod(obj: Object) -> Row:
    status = _status(obj)
    containers = status.get("containerStatuses") or []
    waiting: Mapping[str, Any] = next(
        (c["state"]["waiting"] for c in containers if (c.get("state") or {}).get("waiting")), {}
    )
    return {
        "phase": text(status.get("phase")),
        "node": text((obj.get("spec") or {}).get("nodeName")),
        "ready": sum(1 for c in containers if c.get("ready")),
        "containers": len((obj.get("spec") or {}).get("containers") or ()),
        "requests": pod_requests(obj.get("spec") or {}),
        "names": [name(c.get("name")) for c in (obj.get("spec") or {}).get("containers") or ()][:32],
        "restarts": sum(number(c.get("restartCount")) for c in containers),
        "reason": text(waiting.get("reason") or status.get("reason")),
        "message": text(waiting.get("message") or status.get("message")),
        "task": text(_annotations(obj).get(KUSCIA_TASK_ID)),
    }


def pod_requests(spec: Mapping[str, Any]) -> dict[str, float]:
    """What its containers ask for together, in units."""
    out: dict[str, float] = {}
    for container in spec.get("containers") or ():
        resources = container.get("resources") or {}
        asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        for each, amount in amounts(asked).items():
            out[each] = out.get(each, 0.0) + amount
    return out


def amounts(given: Mapping[str, Any]) -> dict[str, float]:
    """Those that a node's bars show, in units; GPUs of any maker are `gpu`."""
    out: dict[str, float] = {}
    for resource, value in given.items():
        shown = "gpu" if "gpu" in resource else resource
        if shown != "gpu" and resource not in COUNTED:
            continue
        try:
            out[shown] = out.get(shown, 0.0) + parse(str(value)).nanos / NANO
        except QuantityError:
            continue
    return out


def _node(obj: Object) -> Row:
    status = _status(obj)
    ready: Mapping[str, Any] = next((c for c in status.get("conditions") or () if c.get("type") == "Ready"), {})
    return {
        "unschedulable": bool((obj.get("spec") or {}).get("unschedulable")),
        "phase": "Ready" if ready.get("status") == "True" else "NotReady",
        "allocatable": amounts(status.get("allocatable") or status.get("capacity") or {}),
        "version": text((status.get("nodeInfo") or {}).get("kubeletVersion")),
        "message": text(ready.get("message")),
    }


def _route(obj: Object) -> Row:
    """Of a ClusterDomainRoute its condition counts; of a DomainRoute, what the gateway found."""
    spec, status = obj.get("spec") or {}, _status(obj)
    ready: Mapping[str, Any] = next((c for c in status.get("conditions") or () if c.get("type") == "Ready"), {})
    return {
        "source": text(spec.get("source")),
        "destination": text(spec.get("destination")),
        "host": text((spec.get("endpoint") or {}).get("host")),
        "authentication": text(spec.get("authenticationType")),
        "ready": ready.get("status") == "True",
        "unreachable": bool(status.get("isDestinationUnreachable")),
        "reason": text(ready.get("reason")),
        "message": text(ready.get("message")),
        "since": text(ready.get("lastTransitionTime")),
        **_token(status.get("tokenStatus") or {}),
    }


def _token(tokens: Mapping[str, Any]) -> Row:
    """When the newest token of a route was made, and until when it is good; never the token."""
    held = [each for each in tokens.get("sourceTokens") or tokens.get("tokens") or () if isinstance(each, Mapping)]
    newest: Mapping[str, Any] = max(held, key=lambda each: number(each.get("revision")), default={})
    return {
        "tokenSince": text(newest.get("revisionTime") or tokens.get("revisionTime")),
        "tokenUntil": text(newest.get("expirationTime")),
    }


def _gateway(obj: Object) -> Row:
    status = _status(obj)
    return {
        "address": text(status.get("address")),
        "version": text(status.get("version")),
        "heartbeat": text(status.get("heartbeatTime")),
        "links": [
            {
                "peer": name(link.get("peer")),
                "sent": number(link.get("sentBitsPerSecond")),
                "received": number(link.get("receivedBitsPerSecond")),
            }
            for link in status.get("links") or ()
        ][:200],
    }


def _domain(obj: Object) -> Row:
    spec, status = obj.get("spec") or {}, _status(obj)
    return {
        "role": text(spec.get("role")),
        "nodes": [
            {"name": name(n.get("name")), "status": name(n.get("status"))} for n in status.get("nodeStatuses") or ()
        ][:64],
    }


def _data(obj: Object) -> Row:
    spec = obj.get("spec") or {}
    return {
        "title": text(spec.get("name")),
        "kind": text(spec.get("type")),
        "source": text(spec.get("dataSource")),
        "columns": [{"name": name(c.get("name")), "type": name(c.get("type"))} for c in spec.get("columns") or ()][
            :500
        ],
        "vendor": text(spec.get("vendor")),
        "author": text(spec.get("author")),
    }


def _grant(obj: Object) -> Row:
    spec, status = obj.get("spec") or {}, _status(obj)
    limit = spec.get("limit") or {}
    return {
        "data": text(spec.get("domainDataID")),
        "partner": text(spec.get("grantDomain")),
        "author": text(spec.get("author")),
        "phase": text(status.get("phase")),
        "message": text(status.get("message")),
        "columns": [name(c) for c in _granted(limit)[:500]],
        "until": text(limit.get("expirationTime")),
        "components": [name(c) for c in limit.get("components") or ()][:32],
        "uses": number(limit.get("useCount")),
        "used": len(status.get("use_records") or ()),
        "records": [_use(each) for each in (status.get("use_records") or ())[-_MOST_USES:]],
    }


def _granted(limit: Mapping[str, Any]) -> list[str]:
    """Kuscia has no field for columns: see `kuscia/api/grants.py`."""
    try:
        found = msgspec.json.decode(str(limit.get("inputConfig") or "null"))
    except msgspec.MsgspecError:
        return []
    named = found.get("columns") if isinstance(found, dict) else None
    return [each for each in named if isinstance(each, str)] if isinstance(named, list) else []


def _use(record: Mapping[str, Any]) -> Row:
    """The data mesh writes `task T of job J` as what a use was for."""
    found = _FOR.fullmatch(str(record.get("output") or ""))
    return {
        "at": name(record.get("use_time")),
        "by": name(record.get("grant_domain")),
        "component": name(record.get("component")),
        "task": name(found[1]) if found else "",
        "job": name(found[2] or "") if found else "",
    }


def _log_request(obj: Object) -> Row:
    """Without the lines: the page asks for these when somebody wants to see them."""
    spec, status = obj.get("spec") or {}, _status(obj)
    preview = status.get("preview") or {}
    return {
        "phase": text(status.get("phase")) or "Pending",
        "message": text(status.get("message")),
        "requester": name(spec.get("requester")),
        "owner": name(spec.get("owner")),
        "job": text(spec.get("job")),
        "task": text(spec.get("task")),
        "sources": [name(each) for each in (spec.get("sources") or ("engine",))[:8]],
        "reason": text(spec.get("reason"), 1000),
        "by": text(spec.get("requestedBy")),
        "until": text(status.get("expireTime")),
        "digest": name(preview.get("digest")),
    }


def _event(obj: Object) -> Row:
    about = obj.get("involvedObject") or {}
    return {
        "type": text(obj.get("type")),
        "reason": text(obj.get("reason")),
        "message": text(obj.get("message")),
        "kind": text(about.get("kind")),
        "about": text(about.get("name")),
        "count": number(obj.get("count")) or 1,
        "last": text(obj.get("lastTimestamp") or obj.get("eventTime")),
    }


def _image(obj: Object) -> Row:
    image = (obj.get("spec") or {}).get("image") or {}
    return {"image": text(f"{image.get('name', '')}:{image.get('tag', '')}"), "phase": text(_status(obj).get("phase"))}


def _action(obj: Object) -> Row:
    """Without the code: pages of the console do not need it."""
    spec, status = obj.get("spec") or {}, _status(obj)
    scaling = spec.get("scaling") or {}
    return {
        **_readiness(status),
        "reload": _condition(status, RELOAD_FAILED, "True"),
        "next": [text(each, _LONGEST_TARGET) for each in (spec.get("next") or ())[:32]],
        "image": text(spec.get("image")),
        "timeout": number(spec.get("timeoutSeconds")),
        "concurrency": number(spec.get("concurrency")),
        "policy": name(scaling.get("policy")),
        "least": number(scaling.get("minReplicas")),
        "most": number(scaling.get("maxReplicas")),
        "version": name(status.get("version")),
        "split": bool(spec.get("traffic")),
        "versions": [
            {
                "name": name(each.get("name")),
                "created": name(each.get("created")),
                "percent": number(each.get("percent")),
                "replicas": number(each.get("replicas")),
            }
            for each in (status.get("versions") or ())[:_MOST_USES]
        ],
        "desired": number(status.get("desiredReplicas")),
        "replicas": number(status.get("replicas")),
        "ready": number(status.get("readyReplicas")),
        "calls": number(status.get("callsPerMinute")),
        "errors": number(status.get("errorsPerMinute")),
        "cold": number(status.get("coldStarts")),
        "dead": number(status.get("deadLetters")),
        "scaled": text(status.get("lastScaleTime")),
    }


def _trigger(obj: Object) -> Row:
    spec, status = obj.get("spec") or {}, _status(obj)
    found = {
        "http": (spec.get("http") or {}).get("path"),
        "schedule": spec.get("schedule"),
        "topic": spec.get("topic"),
        "table": (spec.get("domainData") or {}).get("name"),
    }
    by = next((kind for kind, what in found.items() if what), "table")
    return {
        **_readiness(status),
        "action": name(spec.get("action")),
        "by": by,
        "what": text(found[by]),
        "methods": [name(each) for each in ((spec.get("http") or {}).get("methods") or ())[:8]],
        "suspended": bool(spec.get("suspend")),
        "last": text(status.get("lastCallTime")),
    }


def _action_grant(obj: Object) -> Row:
    spec, status = obj.get("spec") or {}, _status(obj)
    limit = spec.get("limit") or {}
    return {
        "phase": text(status.get("phase")),
        "message": text(status.get("message")),
        "action": name(spec.get("action")),
        "partner": name(spec.get("grantDomain")),
        "tables": [name(each) for each in (spec.get("tables") or ())[:64]],
        "uses": number(limit.get("calls")),
        "used": number(status.get("uses")),
        "perMinute": number(limit.get("callsPerMinute")),
        "until": text(limit.get("expirationTime")),
        "last": text(status.get("lastUseTime")),
    }


def _dead_letter(obj: Object) -> Row:
    spec = obj.get("spec") or {}
    return {
        "action": name(spec.get("action")),
        "request": text(spec.get("request"), 128),
        "reason": text(spec.get("reason")),
        "attempts": number(spec.get("attempts")),
        "size": number(spec.get("size")),
        "type": name(spec.get("contentType")),
        "time": name(spec.get("time")),
        "replay": bool(spec.get("replay")),
    }


def _readiness(status: Mapping[str, Any]) -> Row:
    """Phase and reason by the condition Ready; nothing is wrong before somebody has said so."""
    return {
        "phase": "NotReady" if _condition(status, READY, "False") else "Ready",
        "message": _condition(status, READY, "False"),
    }


def _condition(status: Mapping[str, Any], kind: str, value: str) -> str:
    """What the condition says while it has this value, and its reason when it says nothing."""
    for each in status.get("conditions") or ():
        if each.get("type") == kind and each.get("status") == value:
            return text(each.get("message")) or text(each.get("reason")) or kind
    return ""


def _status(obj: Object) -> Mapping[str, Any]:
    return obj.get("status") or {}


def _labels(obj: Object) -> Mapping[str, str]:
    return obj["metadata"].get("labels") or {}


def _annotations(obj: Object) -> Mapping[str, str]:
    return obj["metadata"].get("annotations") or {}


_ROWS: Final[Mapping[str, Callable[[Object], Row]]] = {
    "kusciajobs": _job,
    "kusciatasks": _task,
    "pods": _pod,
    "nodes": _node,
    "clusterdomainroutes": _route,
    "domainroutes": _route,
    "domains": _domain,
    "gateways": _gateway,
    "domaindatas": _data,
    "domaindatagrants": _grant,
    "logrequests": _log_request,
    "events": _event,
    "appimages": _image,
    "actions": _action,
    "triggers": _trigger,
    "actiongrants": _action_grant,
    "deadletters": _dead_letter,
}
