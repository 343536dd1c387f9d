"""The platform's controllers and its scheduler: see `kube/control/registry.py`.

The node provides: `root_ca` (the API's authority, PEM), `node_lifecycle` and `node_ipam` (settings of these controllers),
`pod_hook` (sees pods before ReplicaSets create them, or None), `scheduler_plugins`, `scheduler_metrics` (a SchedulerSource, or None), `autoscaler_period` (seconds between two
syncs), `scale_hook` (may allow autoscalers fewer replicas, or None), `certificate_authority` (a function that reads the authority which
signs certificate requests; without it nothing is signed), `api_names` (names of the API server and ranges of Services, which no node may have).
"""

from __future__ import annotations

from coterie.kube.api.types.apps import DAEMON_SETS, DEPLOYMENTS, REPLICA_SETS, REPLICATION_CONTROLLERS, STATEFUL_SETS
from coterie.kube.api.types.autoscaling import HORIZONTAL_POD_AUTOSCALERS
from coterie.kube.api.types.batch import CRON_JOBS, JOBS
from coterie.kube.api.types.certificates import CERTIFICATE_SIGNING_REQUESTS
from coterie.kube.api.types.core import RESOURCE_QUOTAS
from coterie.kube.api.types.network import ENDPOINTS, SERVICES
from coterie.kube.api.types.nodes import NODES
from coterie.kube.api.types.pods import PODS
from coterie.kube.api.types.policy import POD_DISRUPTION_BUDGETS
from coterie.kube.api.types.storage import CLAIMS, VOLUMES
from coterie.kube.control.registry import ControllerSpec

_HERE = "coterie.kube.controllers"

CONTROLLERS = (
    ControllerSpec("gc", f"{_HERE}.gc.controller"),
    ControllerSpec("namespace", f"{_HERE}.namespace.controller"),
    ControllerSpec("crd", f"{_HERE}.crd.controller"),
    ControllerSpec("serviceaccount", f"{_HERE}.serviceaccount.controller"),
    ControllerSpec("rootca", f"{_HERE}.rootca.controller", needs={"ca": "root_ca"}),
    ControllerSpec("clusterrole_aggregation", f"{_HERE}.clusterrole_aggregation.controller"),
    ControllerSpec(
        "scheduler",
        "coterie.kube.scheduler.scheduler",
        wakes_for=(PODS,),
        needs={"plugins": "scheduler_plugins", "metrics": "scheduler_metrics"},
    ),
    ControllerSpec("quota", f"{_HERE}.quota.controller", wakes_for=(RESOURCE_QUOTAS,)),
    ControllerSpec(
        "replicaset",
        f"{_HERE}.replicaset.controller",
        wakes_for=(REPLICA_SETS,),
        events="replicaset-controller",
        needs={"pod_hook": "pod_hook"},
    ),
    ControllerSpec(
        "deployment", f"{_HERE}.deployment.controller", wakes_for=(DEPLOYMENTS,), events="deployment-controller"
    ),
    ControllerSpec(
        "replicationcontroller",
        f"{_HERE}.replicaset.replication_controller",
        wakes_for=(REPLICATION_CONTROLLERS,),
        events="replication-controller",
    ),
    ControllerSpec(
        "daemonset", f"{_HERE}.daemonset.controller", wakes_for=(DAEMON_SETS,), events="daemonset-controller"
    ),
    ControllerSpec(
        "statefulset", f"{_HERE}.statefulset.controller", wakes_for=(STATEFUL_SETS,), events="statefulset-controller"
    ),
    ControllerSpec("job", f"{_HERE}.job.controller", wakes_for=(JOBS,), events="job-controller"),
    ControllerSpec("cronjob", f"{_HERE}.cronjob.controller", wakes_for=(CRON_JOBS,), events="cronjob-controller"),
    # Endpoints have no owner, so those of services that were deleted long ago must be looked for too.
    ControllerSpec("endpoints", f"{_HERE}.endpoints.controller", wakes_for=(SERVICES, ENDPOINTS)),
    ControllerSpec("endpointslice", f"{_HERE}.endpointslice.controller", wakes_for=(SERVICES,)),
    ControllerSpec(
        "nodelifecycle",
        f"{_HERE}.nodelifecycle.controller",
        wakes_for=(NODES,),
        events="node-controller",
        needs={"settings": "node_lifecycle"},
    ),
    ControllerSpec(
        "persistentvolume",
        f"{_HERE}.persistentvolume.controller",
        wakes_for=(CLAIMS, VOLUMES),
        events="persistentvolume-controller",
    ),
    ControllerSpec(
        "ephemeralvolume", f"{_HERE}.ephemeralvolume.controller", wakes_for=(PODS,), events="ephemeral_volume"
    ),
    ControllerSpec(
        "nodeipam",
        f"{_HERE}.nodeipam.controller",
        wakes_for=(NODES,),
        events="node-ipam-controller",
        needs={"settings": "node_ipam"},
    ),
    ControllerSpec(
        "certificates",
        f"{_HERE}.certificates.controller",
        wakes_for=(CERTIFICATE_SIGNING_REQUESTS,),
        needs={"authority": "certificate_authority", "reserved_names": "api_names"},
        only_with="certificate_authority",
    ),
    ControllerSpec("podgc", f"{_HERE}.podgc.controller", wakes_for=(PODS,)),
    ControllerSpec(
        "disruption",
        f"{_HERE}.disruption.controller",
        wakes_for=(POD_DISRUPTION_BUDGETS,),
        events="disruption-controller",
    ),
    ControllerSpec(
        "horizontalpodautoscaler",
        f"{_HERE}.horizontalpodautoscaler.controller",
        wakes_for=(HORIZONTAL_POD_AUTOSCALERS,),
        events="horizontal-pod-autoscaler",
        needs={"period": "autoscaler_period", "scale_hook": "scale_hook"},
    ),
)
