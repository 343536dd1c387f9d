"""Kinds and values that are stored and that nothing acts on. Who writes one gets a warning with the answer.

Every kind that is served stands in one of the two tables: `ACTED_ON` names the module that makes it mean something, `STORED_ONLY`
says what does not happen. Extensions bring tables for their own kinds (`ApiServerExtension.stored_only`). Kinds of which users
bring the definition are theirs: so are their controllers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coterie.kube.api.resources import BUILTIN

KindKey = tuple[str, str]
"""(group, kind)."""

_OWN_GROUPS = frozenset(resource.group for resource in BUILTIN)
_CONTROLLERS = "coterie.kube.controllers"
_SERVER = "coterie.kube.apiserver"

ACTED_ON: Mapping[KindKey, str] = {
    ("", "ConfigMap"): "coterie.kube.agent.volumes.sources",
    ("", "Endpoints"): "coterie.kube.network.dns.zone",
    ("", "Event"): "coterie.kube.control.events",
    ("", "LimitRange"): f"{_SERVER}.admission.steps",
    ("", "Namespace"): f"{_CONTROLLERS}.namespace.controller",
    ("", "Node"): f"{_CONTROLLERS}.nodelifecycle.controller",
    ("", "PersistentVolume"): f"{_CONTROLLERS}.persistentvolume.controller",
    ("", "PersistentVolumeClaim"): f"{_CONTROLLERS}.persistentvolume.controller",
    ("", "Pod"): "coterie.kube.agent.pods.manager",
    ("", "ReplicationController"): f"{_CONTROLLERS}.replicaset.replication_controller",
    ("", "ResourceQuota"): f"{_CONTROLLERS}.quota.controller",
    ("", "Secret"): "coterie.kube.agent.volumes.sources",
    ("", "Service"): f"{_CONTROLLERS}.endpointslice.controller",
    ("", "ServiceAccount"): f"{_CONTROLLERS}.serviceaccount.controller",
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicy"): f"{_SERVER}.admission.policies",
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicyBinding"): f"{_SERVER}.admission.policies",
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"): f"{_SERVER}.webhooks.dispatcher",
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy"): f"{_SERVER}.admission.policies",
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding"): f"{_SERVER}.admission.policies",
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"): f"{_SERVER}.webhooks.dispatcher",
    ("apiextensions.k8s.io", "CustomResourceDefinition"): f"{_SERVER}.crds",
    ("apiregistration.k8s.io", "APIService"): f"{_SERVER}.apiservices",
    ("apps", "ControllerRevision"): f"{_CONTROLLERS}.statefulset.controller",
    ("apps", "DaemonSet"): f"{_CONTROLLERS}.daemonset.controller",
    ("apps", "Deployment"): f"{_CONTROLLERS}.deployment.controller",
    ("apps", "ReplicaSet"): f"{_CONTROLLERS}.replicaset.controller",
    ("apps", "StatefulSet"): f"{_CONTROLLERS}.statefulset.controller",
    ("autoscaling", "HorizontalPodAutoscaler"): f"{_CONTROLLERS}.horizontalpodautoscaler.controller",
    ("batch", "CronJob"): f"{_CONTROLLERS}.cronjob.controller",
    ("batch", "Job"): f"{_CONTROLLERS}.job.controller",
    ("certificates.k8s.io", "CertificateSigningRequest"): f"{_CONTROLLERS}.certificates.controller",
    ("coordination.k8s.io", "Lease"): f"{_CONTROLLERS}.nodelifecycle.controller",
    ("discovery.k8s.io", "EndpointSlice"): "coterie.kube.network.services.plan",
    ("events.k8s.io", "Event"): "coterie.kube.control.events",
    ("networking.k8s.io", "IPAddress"): f"{_SERVER}.service_ranges",
    ("networking.k8s.io", "Ingress"): "coterie.kube.network.ingress.plan",
    ("networking.k8s.io", "IngressClass"): "coterie.kube.network.ingress.plan",
    ("networking.k8s.io", "NetworkPolicy"): "coterie.kube.network.policies.plan",
    ("networking.k8s.io", "ServiceCIDR"): f"{_SERVER}.admission.service_addresses",
    ("node.k8s.io", "RuntimeClass"): f"{_SERVER}.admission.runtime_class",
    ("policy", "PodDisruptionBudget"): f"{_CONTROLLERS}.disruption.controller",
    ("rbac.authorization.k8s.io", "ClusterRole"): f"{_SERVER}.auth.rbac",
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"): f"{_SERVER}.auth.rbac",
    ("rbac.authorization.k8s.io", "Role"): f"{_SERVER}.auth.rbac",
    ("rbac.authorization.k8s.io", "RoleBinding"): f"{_SERVER}.auth.rbac",
    ("scheduling.k8s.io", "PriorityClass"): f"{_SERVER}.admission.steps",
    ("storage.k8s.io", "StorageClass"): f"{_CONTROLLERS}.persistentvolume.controller",
}

_FLOW = "is stored only: the server limits requests by connection and client, without priority levels"
_DEVICES = "is stored only: nodes have no drivers of devices, and the scheduler allocates none"
_CSI = "is stored only: nodes have no CSI drivers; volumes come from the class local-path or are static"
STORED_ONLY: Mapping[KindKey, str] = {
    ("", "PodTemplate"): "PodTemplate is stored only: nothing creates pods from it",
    ("flowcontrol.apiserver.k8s.io", "FlowSchema"): f"FlowSchema {_FLOW}",
    ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration"): f"PriorityLevelConfiguration {_FLOW}",
    ("resource.k8s.io", "DeviceClass"): f"DeviceClass {_DEVICES}",
    ("resource.k8s.io", "ResourceClaim"): f"ResourceClaim {_DEVICES}",
    ("resource.k8s.io", "ResourceClaimTemplate"): f"ResourceClaimTemplate {_DEVICES}",
    ("resource.k8s.io", "ResourceSlice"): f"ResourceSlice {_DEVICES}",
    ("storage.k8s.io", "CSIDriver"): f"CSIDriver {_CSI}",
    ("storage.k8s.io", "CSINode"): f"CSINode {_CSI}",
    ("storage.k8s.io", "CSIStorageCapacity"): f"CSIStorageCapacity {_CSI}",
    ("storage.k8s.io", "VolumeAttachment"): f"VolumeAttachment {_CSI}",
    ("storage.k8s.io", "VolumeAttributesClass"): f"VolumeAttributesClass {_CSI}",
}


@dataclass(frozen=True, slots=True)
class StoredOnlyValue:
    """A value of a field that is accepted and means nothing here."""

    path: tuple[str, ...]
    value: str
    sentence: str


_BLOCK = StoredOnlyValue(
    ("spec", "volumeMode"), "Block", "spec.volumeMode: Block: nodes mount file systems only; pods cannot use this"
)
STORED_ONLY_VALUES: Mapping[KindKey, tuple[StoredOnlyValue, ...]] = {
    ("", "PersistentVolume"): (
        _BLOCK,
        StoredOnlyValue(
            ("spec", "persistentVolumeReclaimPolicy"),
            "Recycle",
            "spec.persistentVolumeReclaimPolicy: Recycle: there is no recycler; a released volume becomes Failed",
        ),
    ),
    ("", "PersistentVolumeClaim"): (_BLOCK,),
    ("", "Service"): (
        StoredOnlyValue(
            ("spec", "type"),
            "LoadBalancer",
            "spec.type: LoadBalancer: there is no load balancer; the Service gets no external address",
        ),
    ),
}


def warnings_for(group: str, kind: str, obj: Mapping[str, Any], more: Mapping[KindKey, str]) -> list[str]:
    """For an object that is written; `more`: the tables of extensions."""
    key = group, kind
    sentence = STORED_ONLY.get(key) or more.get(key)
    found = [sentence] if sentence else []
    for each in STORED_ONLY_VALUES.get(key, ()):
        value: Any = obj
        for name in each.path:
            value = value.get(name) if isinstance(value, dict) else None
        if value == each.value:
            found.append(each.sentence)
    if kind == "APIService" and group == "apiregistration.k8s.io":
        found += _registration(obj)
    return found


def _registration(obj: Mapping[str, Any]) -> list[str]:
    """Groups that this server never gives away (`aggregator.py`)."""
    spec = obj.get("spec")
    if not isinstance(spec, dict) or not spec.get("service") or spec.get("group") not in _OWN_GROUPS:
        return []
    return [f"spec.service: the group {spec['group']} is always answered by this server; the Service gets no requests"]
