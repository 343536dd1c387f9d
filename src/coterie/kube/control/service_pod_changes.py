"""Tells a controller of services which of them a change of a pod concerns, and lets crowds of changes melt."""

from __future__ import annotations

from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.service_endpoints import endpoint_relevant_fields, selects
from coterie.kube.api.types.network import Service
from coterie.kube.api.types.pods import Pod
from coterie.kube.client.informer import Informer, ObjectChange
from coterie.kube.control.controller import Controller

SETTLE = 0.05
"""Seconds to wait after a change of a pod: a deployment that starts is one write, not a hundred."""


def follow_pods(
    controller: Controller[ObjectKey], services: Informer[Service], pods: Informer[Pod], settle: float = SETTLE
) -> None:
    def changed(change: ObjectChange[Pod]) -> None:
        new, old = change.object, change.old
        if old is not None and endpoint_relevant_fields(old) == endpoint_relevant_fields(new):
            return
        states = (new,) if old is None else (new, old)
        for service in services.cache.list(new.metadata.namespace):
            if any(selects(service, pod.metadata.labels) for pod in states):
                controller.enqueue(service.key, after=settle)

    pods.add_handler(changed)
