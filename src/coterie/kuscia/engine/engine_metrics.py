"""Which engine a pod is, for metrics: its job, task and party, and where it shows metrics of its own. Pure.

Only pods that the controllers of tasks and deployments made are engines. Annotations alone, which anybody may write into a pod of their
own, say nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from coterie.kube.api.meta import Object
from coterie.kuscia.api import labels
from coterie.kuscia.engine import peers

RESERVED_PREFIXES = ("domain_worker_", "envoy_", "gin_", "kuscia_", "net_conntrack_", "ss_", "task_resource_")
RESERVED_NAMES = frozenset(("cpu", "io", "mem"))
"""Of the node's own families: engines cannot have them."""
_LAST_PORT = 65535


def is_task_engine(pod: Object, domain: str) -> bool:
    """Made by the controller of tasks: with its labels, and without an owner, which pods of other controllers have."""
    meta = pod["metadata"]
    known = meta.get("labels") or {}
    return (
        peers.is_engine(pod, domain)
        and known.get(labels.KUSCIA_CONTROLLER) == labels.KUSCIA_CONTROLLER_TASK
        and bool(known.get(labels.KUSCIA_TASK_UID))
        and bool(known.get(labels.KUSCIA_TASK_RESOURCE_UID))
        and not any(owner.get("controller") for owner in meta.get("ownerReferences") or ())
    )


def task_labels(pod: Object, domain: str) -> Mapping[str, str]:
    """`job`, `task` and `party` of an engine; empty for any other pod."""
    if not is_task_engine(pod, domain):
        return {}
    marks = pod["metadata"].get("annotations") or {}
    task = marks.get(labels.KUSCIA_TASK_ID) or ""
    return {"job": marks.get(labels.KUSCIA_JOB_ID) or "", "task": task, "party": domain} if task else {}


def is_deployment_engine(pod: Object, domain: str) -> bool:
    known = pod["metadata"].get("labels") or {}
    return (
        peers.is_engine(pod, domain)
        and known.get(labels.KUSCIA_CONTROLLER) == labels.KUSCIA_CONTROLLER_DEPLOYMENT
        and bool(known.get(labels.KUSCIA_DEPLOYMENT_NAME))
    )


def metrics_page(pod: Object, domain: str) -> tuple[int, str, Mapping[str, str]] | None:
    """Port, path and labels of the page that the AppImage's `metricProbe` names; None: this pod has none, or does not run."""
    meta = pod["metadata"]
    marks = meta.get("annotations") or {}
    port = str(marks.get(labels.KUSCIA_METRIC_PORT) or "")
    if marks.get(labels.KUSCIA_SHOULD_BE_SCRAPED) != "true" or not (port.isascii() and port.isdigit()):
        return None
    if (pod.get("status") or {}).get("phase") != "Running" or not 0 < int(port) <= _LAST_PORT:
        return None
    task = task_labels(pod, domain).get("task", "")
    if not task and not is_deployment_engine(pod, domain):
        return None
    path = str(marks.get(labels.KUSCIA_METRIC_PATH) or "/metrics")
    return int(port), path, {"namespace": meta["namespace"], "pod": meta["name"], "task": task, "party": domain}
