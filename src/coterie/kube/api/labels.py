"""Names of Kubernetes' well-known labels, annotations, finalizers and taints, so that no other module spells them."""

from __future__ import annotations

from typing import Final

# ---- labels ----
NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
HOSTNAME: Final = "kubernetes.io/hostname"
OS: Final = "kubernetes.io/os"
ARCH: Final = "kubernetes.io/arch"
ZONE: Final = "topology.kubernetes.io/zone"
REGION: Final = "topology.kubernetes.io/region"
NODE_ROLE_PREFIX: Final = "node-role.kubernetes.io/"
POD_TEMPLATE_HASH: Final = "pod-template-hash"
CONTROLLER_REVISION_HASH: Final = "controller-revision-hash"
STATEFULSET_POD_NAME: Final = "statefulset.kubernetes.io/pod-name"
POD_INDEX: Final = "apps.kubernetes.io/pod-index"
JOB_NAME: Final = "batch.kubernetes.io/job-name"
JOB_CONTROLLER_UID: Final = "batch.kubernetes.io/controller-uid"
LEGACY_JOB_NAME: Final = "job-name"
LEGACY_JOB_CONTROLLER_UID: Final = "controller-uid"
JOB_COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"
SERVICE_NAME: Final = "kubernetes.io/service-name"
ENDPOINTSLICE_MANAGED_BY: Final = "endpointslice.kubernetes.io/managed-by"
RBAC_BOOTSTRAPPING: Final = "kubernetes.io/bootstrapping"
AGGREGATE_TO_PREFIX: Final = "rbac.authorization.k8s.io/aggregate-to-"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"

# ---- annotations ----
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
RESTARTED_AT: Final = "kubectl.kubernetes.io/restartedAt"
CHANGE_CAUSE: Final = "kubernetes.io/change-cause"
DEPLOYMENT_REVISION: Final = "deployment.kubernetes.io/revision"
DESIRED_REPLICAS: Final = "deployment.kubernetes.io/desired-replicas"
MAX_REPLICAS: Final = "deployment.kubernetes.io/max-replicas"
RBAC_AUTOUPDATE: Final = "rbac.authorization.kubernetes.io/autoupdate"
SERVICE_ACCOUNT_NAME: Final = "kubernetes.io/service-account.name"
SERVICE_ACCOUNT_UID: Final = "kubernetes.io/service-account.uid"
DEFAULT_STORAGE_CLASS: Final = "storageclass.kubernetes.io/is-default-class"
DEFAULT_INGRESS_CLASS: Final = "ingressclass.kubernetes.io/is-default-class"
INGRESS_CLASS: Final = "kubernetes.io/ingress.class"
INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"
HPA_METRICS: Final = "autoscaling.alpha.kubernetes.io/metrics"
HPA_CONDITIONS: Final = "autoscaling.alpha.kubernetes.io/conditions"
HPA_CURRENT_METRICS: Final = "autoscaling.alpha.kubernetes.io/current-metrics"
HPA_BEHAVIOR: Final = "autoscaling.alpha.kubernetes.io/behavior"

# ---- finalizers ----
FINALIZER_KUBERNETES: Final = "kubernetes"
FINALIZER_ORPHAN: Final = "orphan"
FINALIZER_FOREGROUND: Final = "foregroundDeletion"
FINALIZER_JOB_TRACKING: Final = "batch.kubernetes.io/job-tracking"
FINALIZER_PVC_PROTECTION: Final = "kubernetes.io/pvc-protection"
FINALIZER_PV_PROTECTION: Final = "kubernetes.io/pv-protection"
FINALIZER_CRD_CLEANUP: Final = "customresourcecleanup.apiextensions.k8s.io"

# ---- taints ----
TAINT_NOT_READY: Final = "node.kubernetes.io/not-ready"
TAINT_UNREACHABLE: Final = "node.kubernetes.io/unreachable"
TAINT_UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"
TAINT_MEMORY_PRESSURE: Final = "node.kubernetes.io/memory-pressure"
TAINT_DISK_PRESSURE: Final = "node.kubernetes.io/disk-pressure"
TAINT_PID_PRESSURE: Final = "node.kubernetes.io/pid-pressure"
TAINT_NETWORK_UNAVAILABLE: Final = "node.kubernetes.io/network-unavailable"

# ---- Coterie: labels of its own for what the platform does ----
COTERIE_POD_NAMESPACE: Final = "coterie.io/pod-namespace"
"""Label of a Node whose agent may see the pods of one namespace only: the scheduler places no others there."""
COTERIE_LEAN_ENDPOINTS: Final = "coterie.io/lean-endpoints"
"""Label of a Service with "true": it has an Endpoints object only once it has addresses, and no EndpointSlices."""
COTERIE_LEASE_DURATION: Final = "coterie.io/lease-duration-seconds"
"""Annotation of a node's Lease: the control plane expects signs of life that are good for no longer than this."""
