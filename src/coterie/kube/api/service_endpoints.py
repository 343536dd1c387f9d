"""Which pods stand behind a service, on which port, and whether they should be sent anything. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from coterie.kube.api.labels import COTERIE_LEAN_ENDPOINTS
from coterie.kube.api.pod_state import addresses, is_ready
from coterie.kube.api.types.network import Service, ServicePort
from coterie.kube.api.types.pods import Pod

HEADLESS_LABEL = "service.kubernetes.io/headless"


def follows_pods(service: Service) -> bool:
    """False when somebody else keeps the endpoints: there is no selector, or nothing to send to."""
    return service.spec.selector is not None and service.spec.type != "ExternalName"


def is_lean(service: Service) -> bool:
    """Short-lived, and read by those who read Endpoints: an empty object for it, or slices, would only be written in vain."""
    return (service.metadata.labels or {}).get(COTERIE_LEAN_ENDPOINTS) == "true"


def is_headless(service: Service) -> bool:
    return service.spec.cluster_ip == "None"


def selects(service: Service, labels: Mapping[str, str] | None) -> bool:
    if not follows_pods(service):
        return False
    found = labels or {}
    return all(found.get(key) == value for key, value in (service.spec.selector or {}).items())


def may_serve(pod: Pod, *, also_terminating: bool) -> bool:
    """It has an address and has not ended; one that is being deleted only where that is wanted."""
    if pod.ended or not addresses(pod):
        return False
    return also_terminating or not pod.metadata.deleting


def target_port(pod: Pod, port: ServicePort) -> int | None:
    """The number of the port in this pod; None when the pod has no port of that name."""
    target = port.target_port
    if target is None or target == 0:
        return port.port
    if isinstance(target, int):
        return target
    sidecars = [c for c in pod.spec.init_containers or () if c.restart_policy == "Always"]
    for container in (*pod.spec.containers, *sidecars):
        for offered in container.ports or ():
            if offered.name == target and offered.protocol == port.protocol:
                return offered.container_port
    return None


def dns_hostname(service: Service, pod: Pod) -> str:
    """The pod's own name under a headless service, when it asks for one."""
    same = pod.spec.subdomain == service.metadata.name and pod.metadata.namespace == service.metadata.namespace
    return pod.spec.hostname if same else ""


def endpoint_relevant_fields(pod: Pod) -> tuple[object, ...]:
    """All of a pod that endpoints depend on: when this is the same, nothing has to be written."""
    return (
        pod.metadata.labels,
        pod.metadata.deleting,
        pod.ended,
        is_ready(pod),
        addresses(pod),
        pod.spec.node_name,
        pod.spec.hostname,
        pod.spec.subdomain,
    )
