"""ReplicationControllers: the ReplicaSets of core v1, whose selector is a plain map of labels."""

from __future__ import annotations

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.kube.api.meta import ObjectKey
from coterie.kube.api.selectors import selector_of_map
from coterie.kube.api.types.apps import REPLICATION_CONTROLLERS
from coterie.kube.client.client import Client
from coterie.kube.client.informers import Informers
from coterie.kube.control.controller import Controller
from coterie.kube.control.events import EventRecorder
from coterie.kube.controllers.replicaset.controller import ReplicaSetReconciler, controller_of_sets


def make(
    client: Client,
    informers: Informers,
    *,
    events: EventRecorder | None = None,
    workers: int = 4,
    clock: Clock = SYSTEM_CLOCK,
) -> Controller[ObjectKey]:
    """`events` is a recorder of the component `replication-controller`; the caller runs it."""
    reconciler = ReplicaSetReconciler(client, informers, events, None, clock, REPLICATION_CONTROLLERS, selector_of_map)
    return controller_of_sets("replicationcontroller", reconciler, workers, clock)
