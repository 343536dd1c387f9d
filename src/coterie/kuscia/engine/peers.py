"""Which names an engine may call through its domain's gateway: those of its task's or deployment's parties. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping

from coterie.kube.api.meta import Object
from coterie.kuscia.api import labels

REPORTER = "reporter.master.svc"
"""Where engines report their progress."""
_REPORT = "/report/progress?task_id="
_TASK_VALUE = "TASK_CLUSTER_DEFINE"
_DEPLOYMENT_VARIABLE = "CLUSTER_DEFINE"


def is_engine(pod: Object, domain: str) -> bool:
    """A pod of the domain that the control plane made to talk to others: it gets certificates."""
    known = pod["metadata"].get("labels") or {}
    roles = (labels.KUSCIA_COMMUNICATION_ROLE_SERVER, labels.KUSCIA_COMMUNICATION_ROLE_CLIENT)
    return pod["metadata"].get("namespace") == domain and any(known.get(each) == "true" for each in roles)


def is_task_pod(pod: Object, domain: str) -> bool:
    """A pod of a task or deployment: it calls its peers and nobody else."""
    return pod["metadata"].get("namespace") == domain and (is_engine(pod, domain) or bool(group_of(pod)))


def callable_hosts(pod: Object, values: Object | None, domain: str) -> frozenset[str]:
    """`values`: the ConfigMap with the values of the pod's templates, where it has one."""
    task = task_of(pod)
    # An engine reports about its own task.
    found = {f"{host}{_REPORT}{task}" for host in (REPORTER, f"reporter.{domain}.svc") if task}
    data: Mapping[str, str] = (values or {}).get("data") or {}
    found |= hosts_of(data.get(_TASK_VALUE) or "")
    for container in (pod.get("spec") or {}).get("containers") or ():
        for variable in container.get("env") or ():
            if variable.get("name") == _DEPLOYMENT_VARIABLE:
                # Kubernetes' way to write one dollar sign.
                found |= hosts_of(str(variable.get("value") or "").replace("$$", "$"))
    return frozenset(found)


def task_of(pod: Object) -> str:
    """Empty: it belongs to none."""
    return str((pod["metadata"].get("annotations") or {}).get(labels.KUSCIA_TASK_ID) or "")


def needs_names(pod: Object, hosts: frozenset[str]) -> bool:
    """Whether an engine that may call these has to resolve names: it has a peer, and was given no proxy to reach it by."""
    containers = (pod.get("spec") or {}).get("containers") or ()
    proxied = any(each.get("name") == "http_proxy" for container in containers for each in container.get("env") or ())
    return not proxied and sum(not host.startswith("reporter.") for host in hosts) > 1


def hosts_of(text: str) -> frozenset[str]:
    """The hosts of a cluster definition, without ports; none when it cannot be read."""
    try:
        parties = json.loads(text).get("parties") or []
        endpoints = [
            str(endpoint)
            for party in parties
            for service in party.get("services") or ()
            for endpoint in service.get("endpoints") or ()
        ]
    except (ValueError, AttributeError, TypeError):
        return frozenset()
    return frozenset(each.partition(":")[0].lower() for each in endpoints if each)


def values_map_name(pod: Object) -> str:
    return str((pod["metadata"].get("annotations") or {}).get(labels.KUSCIA_CONFIG_TEMPLATE_VALUE_CM) or "")


def group_of(pod: Object) -> str:
    """Pods of one task, or of one deployment, are one group."""
    meta = pod["metadata"]
    marks, known = meta.get("annotations") or {}, meta.get("labels") or {}
    task = marks.get(labels.KUSCIA_TASK_ID) or ""
    deployment = known.get(labels.KUSCIA_DEPLOYMENT_NAME) or ""
    return f"task/{task}" if task else f"deployment/{deployment}" if deployment else ""
