"""The rules of every built-in kind: `RULES[(group, kind)]`.

Objects are taken in their stored version (`Resource.storage`); events are stored in the core form, so the entry of
`events.k8s.io` reads core events, too, and only demands more of them. `base.py` says in which order the server asks.

A module is loaded when a kind in it is first written: a control plane at rest writes few of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping

from coterie.kube.api.rules.base import KindRules

_KINDS: dict[str, dict[str, str]] = {
    "admission_policies": {
        "admissionregistration.k8s.io": (
            "MutatingAdmissionPolicy MutatingAdmissionPolicyBinding "
            "ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding"
        ),
    },
    "apiregistration": {
        "apiregistration.k8s.io": "APIService",
    },
    "apps": {
        "apps": "Deployment ReplicaSet StatefulSet DaemonSet ControllerRevision",
        "": "ReplicationController",
    },
    "autoscaling": {
        "autoscaling": "HorizontalPodAutoscaler Scale",
    },
    "batch": {
        "batch": "Job CronJob",
    },
    "certificates": {
        "certificates.k8s.io": "CertificateSigningRequest",
    },
    "cluster": {
        "": "Namespace Node",
        "coordination.k8s.io": "Lease",
        "scheduling.k8s.io": "PriorityClass",
    },
    "config": {
        "": "ConfigMap Secret ServiceAccount",
    },
    "crd": {
        "apiextensions.k8s.io": "CustomResourceDefinition",
    },
    "csi": {
        "storage.k8s.io": "CSIDriver CSINode CSIStorageCapacity VolumeAttachment VolumeAttributesClass",
    },
    "devices": {
        "resource.k8s.io": "DeviceClass ResourceClaim ResourceClaimTemplate ResourceSlice",
    },
    "endpoints": {
        "": "Endpoints",
        "discovery.k8s.io": "EndpointSlice",
    },
    "events": {
        "": "Event",
        "events.k8s.io": "Event",
    },
    "flowcontrol": {
        "flowcontrol.apiserver.k8s.io": "FlowSchema PriorityLevelConfiguration",
    },
    "networking": {
        "networking.k8s.io": "Ingress IngressClass NetworkPolicy",
    },
    "pods": {
        "": "Pod PodTemplate Binding",
    },
    "policy": {
        "": "ResourceQuota LimitRange",
        "policy": "PodDisruptionBudget",
    },
    "rbac": {
        "rbac.authorization.k8s.io": "Role ClusterRole RoleBinding ClusterRoleBinding",
    },
    "reviews": {
        "": "ComponentStatus",
        "authentication.k8s.io": "SelfSubjectReview TokenReview TokenRequest",
        "authorization.k8s.io": "SubjectAccessReview LocalSubjectAccessReview SelfSubjectAccessReview SelfSubjectRulesReview",
        "policy": "Eviction",
    },
    "runtime_class": {
        "node.k8s.io": "RuntimeClass",
    },
    "service_ranges": {
        "networking.k8s.io": "IPAddress ServiceCIDR",
    },
    "services": {
        "": "Service",
    },
    "storage": {
        "": "PersistentVolume PersistentVolumeClaim",
        "storage.k8s.io": "StorageClass",
    },
    "webhooks": {
        "admissionregistration.k8s.io": "MutatingWebhookConfiguration ValidatingWebhookConfiguration",
    },
}
"""Module: group: kinds. A test compares this with what the modules have."""

_MODULES = {
    (group, kind): module
    for module, groups in _KINDS.items()
    for group, kinds in groups.items()
    for kind in kinds.split()
}


class _Rules(Mapping[tuple[str, str], KindRules]):
    def __init__(self) -> None:
        self._loaded: dict[tuple[str, str], KindRules] = {}

    def __getitem__(self, key: tuple[str, str]) -> KindRules:
        found = self._loaded.get(key)
        if found is None:
            self._loaded.update(importlib.import_module(f"{__name__}.{_MODULES[key]}").RULES)
            found = self._loaded[key]
        return found

    def __contains__(self, key: object) -> bool:
        return key in _MODULES

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)


RULES: Mapping[tuple[str, str], KindRules] = _Rules()

__all__ = ["RULES", "KindRules"]
