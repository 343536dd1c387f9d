"""Objects for fuzzing: a good one of every built-in kind, and ways to spoil it along its schema.

`Maker` draws from a seeded generator, so a failure comes back with the same seed. It knows two kinds of evil: values of
a wrong type (the decoder must refuse them) and values of the right type that make no sense (the rules must cope).
"""

from __future__ import annotations

import base64
import copy
import os
import random
from collections.abc import Iterator
from typing import Any

from coterie.base import pki
from coterie.base.certificate_requests import make_request
from coterie.kube.api.resources import BUILTIN, Resource
from coterie.kube.api.schema.node import Schema

Object = dict[str, Any]
Path = tuple[str | int, ...]
SEED = int(os.environ.get("COTERIE_FUZZ_SEED", "0")) * 1_000_003
"""Other numbers give other objects; without it every run tries the same."""

_POD: Object = {
    "containers": [
        {
            "name": "main",
            "image": "registry.example/app:1",
            "ports": [{"name": "http", "containerPort": 80, "protocol": "TCP"}],
            "env": [{"name": "A", "value": "b"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            "resources": {"requests": {"cpu": "100m", "memory": "1Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}},
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            "livenessProbe": {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 5},
            "readinessProbe": {"exec": {"command": ["true"]}},
            "lifecycle": {"preStop": {"sleep": {"seconds": 1}}},
            "securityContext": {"runAsUser": 1000, "capabilities": {"drop": ["ALL"]}},
        }
    ],
    "initContainers": [{"name": "init", "image": "registry.example/init", "restartPolicy": "Always"}],
    "volumes": [{"name": "data", "emptyDir": {}}, {"name": "conf", "configMap": {"name": "c", "items": [{"key": "a", "path": "b"}]}}],
    "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}],
    "affinity": {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]}},
        "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": {"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}}}]},
    },
    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"a": "b"}}}],
    "nodeSelector": {"a": "b"},
    "securityContext": {"fsGroup": 1, "sysctls": [{"name": "kernel.shm_rmid_forced", "value": "0"}]},
}  # fmt: skip
_TEMPLATE: Object = {"metadata": {"labels": {"a": "b"}}, "spec": _POD}
_JOB_POD: Object = {"metadata": {}, "spec": {**_POD, "restartPolicy": "Never"}}
_SELECTOR: Object = {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}
_ROLE: Object = {"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"], "resourceNames": ["x"]}]}
_BINDING: Object = {
    "subjects": [{"kind": "User", "name": "u", "apiGroup": "rbac.authorization.k8s.io"}],
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
}
_REVIEW: Object = {"spec": {"user": "u", "groups": ["g"], "resourceAttributes": {"verb": "get", "resource": "pods"}}}
_DEVICE_CLAIM: Object = {
    "devices": {
        "requests": [
            {"name": "one", "exactly": {"deviceClassName": "gpu", "selectors": [{"cel": {"expression": "device.attributes['gpu.example.com'].model == 'x'"}}], "tolerations": [{"key": "a", "operator": "Exists"}]}},
            {"name": "any", "firstAvailable": [{"name": "big", "deviceClassName": "gpu", "count": 2}, {"name": "all", "deviceClassName": "gpu", "allocationMode": "All"}]},
        ],
        "constraints": [{"requests": ["one", "any/big"], "matchAttribute": "example.com/numa"}],
        "config": [{"requests": ["one"], "opaque": {"driver": "gpu.example.com", "parameters": {"a": 1}}}],
    }
}  # fmt: skip
CRD_SCHEMA: Object = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "required": ["size"],
            "properties": {
                "size": {"type": "integer", "minimum": 0, "maximum": 9, "default": 1},
                "names": {"type": "array", "maxItems": 5, "x-kubernetes-list-type": "set", "items": {"type": "string", "maxLength": 9, "pattern": "^[a-z]+$"}},
                "parts": {"type": "array", "maxItems": 5, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"],
                          "items": {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}, "port": {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}}}},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 4},
                "when": {"type": "string", "format": "date-time", "nullable": True},
                "kind": {"type": "string", "enum": ["a", "b"]},
            },
            "x-kubernetes-validations": [{"rule": "!has(self.names) || self.names.size() <= self.size", "messageExpression": "'at most %d'.format([self.size])"}, {"rule": "self.size >= oldSelf.size"}],
        },
        "status": {"type": "object", "properties": {"replicas": {"type": "integer"}, "selector": {"type": "string"}}},
    },
}  # fmt: skip
CRD: Object = {
    "group": "fuzz.example",
    "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList", "shortNames": ["wd"], "categories": ["all"]},
    "scope": "Namespaced",
    "versions": [
        {
            "name": "v1",
            "served": True,
            "storage": True,
            "schema": {"openAPIV3Schema": CRD_SCHEMA},
            "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector"}},
            "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}, {"name": "When", "type": "date", "jsonPath": ".spec.when"}],
            "selectableFields": [{"jsonPath": ".spec.kind"}],
        }
    ],
}  # fmt: skip

_WEBHOOK = {
    "name": "a.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Ignore",
    "clientConfig": {"service": {"name": "s", "namespace": "default", "path": "/x", "port": 443}},
    "rules": [{"operations": ["CREATE"], "apiGroups": ["none.example"], "apiVersions": ["v1"], "resources": ["things"]}],
    "matchConditions": [{"name": "named", "expression": "object.metadata.name != 'x'"}],
}  # fmt: skip
_POLICY_MATCH: Object = {
    "resourceRules": [
        {"operations": ["CREATE"], "apiGroups": ["none.example"], "apiVersions": ["v1"], "resources": ["things"]}
    ]
}
_REQUEST = base64.b64encode(make_request(pki.new_key(), "fuzz")).decode()
_GOOD: dict[str, Object] = {
    "v1/ConfigMap": {"data": {"a": "b"}, "binaryData": {"c": "AAAA"}},
    "v1/Endpoints": {"subsets": [{"addresses": [{"ip": "10.0.0.1"}], "ports": [{"name": "http", "port": 80}]}]},
    "v1/Event": {"involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"}, "reason": "R", "message": "m", "type": "Normal", "firstTimestamp": "2026-01-01T00:00:00Z", "count": 1},
    "v1/LimitRange": {"spec": {"limits": [{"type": "Container", "default": {"cpu": "1"}, "defaultRequest": {"cpu": "100m"}, "max": {"cpu": "2"}, "min": {"cpu": "10m"}}]}},
    "v1/Namespace": {"spec": {"finalizers": ["kubernetes"]}},
    "v1/Node": {"spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"], "taints": [{"key": "a", "effect": "NoSchedule"}]}},
    "v1/PersistentVolumeClaim": {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "s"}},
    "v1/PersistentVolume": {"spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}, "persistentVolumeReclaimPolicy": "Retain"}},
    "v1/Pod": {"spec": _POD},
    "v1/PodTemplate": {"template": _TEMPLATE},
    "v1/ReplicationController": {"spec": {"replicas": 1, "selector": {"a": "b"}, "template": _TEMPLATE}},
    "v1/ResourceQuota": {"spec": {"hard": {"pods": "5", "requests.cpu": "1"}, "scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["x"]}]}}},
    "v1/Secret": {"type": "Opaque", "data": {"a": "AAAA"}, "stringData": {"b": "c"}},
    "v1/ServiceAccount": {"secrets": [{"name": "s"}], "imagePullSecrets": [{"name": "p"}]},
    "v1/Service": {"spec": {"selector": {"a": "b"}, "ports": [{"name": "http", "port": 80, "targetPort": "http"}], "type": "ClusterIP"}},
    "admissionregistration.k8s.io/v1/MutatingWebhookConfiguration": {"webhooks": [_WEBHOOK]},
    "admissionregistration.k8s.io/v1/ValidatingWebhookConfiguration": {"webhooks": [_WEBHOOK]},
    "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy": {"spec": {"matchConstraints": _POLICY_MATCH, "variables": [{"name": "a", "expression": "1"}], "failurePolicy": "Ignore", "reinvocationPolicy": "Never", "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{op: 'remove', path: '/data'}]"}}]}},
    "admissionregistration.k8s.io/v1/MutatingAdmissionPolicyBinding": {"spec": {"policyName": "fuzz-none", "matchResources": _POLICY_MATCH}},
    "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy": {"spec": {"matchConstraints": _POLICY_MATCH, "failurePolicy": "Ignore", "variables": [{"name": "a", "expression": "object.metadata.name"}], "matchConditions": [{"name": "named", "expression": "object.metadata.name != 'x'"}], "validations": [{"expression": "variables.a != 'y'", "messageExpression": "'not ' + variables.a", "reason": "Forbidden"}], "auditAnnotations": [{"key": "a", "valueExpression": "'b'"}]}},
    "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicyBinding": {"spec": {"policyName": "fuzz-none", "validationActions": ["Deny"], "matchResources": _POLICY_MATCH}},
    "certificates.k8s.io/v1/CertificateSigningRequest": {"spec": {"request": _REQUEST, "signerName": "example.com/signer", "usages": ["client auth"], "expirationSeconds": 3600}},
    "apiextensions.k8s.io/v1/CustomResourceDefinition": {"spec": CRD},
    "apiregistration.k8s.io/v1/APIService": {"spec": {"group": "x", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1}},
    "flowcontrol.apiserver.k8s.io/v1/FlowSchema": {"spec": {"priorityLevelConfiguration": {"name": "system"}, "matchingPrecedence": 500, "distinguisherMethod": {"type": "ByUser"}, "rules": [{"subjects": [{"kind": "Group", "group": {"name": "g"}}, {"kind": "ServiceAccount", "serviceAccount": {"name": "*", "namespace": "default"}}], "resourceRules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "namespaces": ["*"]}], "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["/healthz/*"]}]}]}},
    "flowcontrol.apiserver.k8s.io/v1/PriorityLevelConfiguration": {"spec": {"type": "Limited", "limited": {"nominalConcurrencyShares": 5, "limitResponse": {"type": "Queue", "queuing": {"queues": 16, "handSize": 4, "queueLengthLimit": 50}}}}},
    "networking.k8s.io/v1/IPAddress": {"spec": {"parentRef": {"resource": "services", "namespace": "default", "name": "s"}}},
    "networking.k8s.io/v1/ServiceCIDR": {"spec": {"cidrs": ["100.112.128.0/20"]}},
    "node.k8s.io/v1/RuntimeClass": {"handler": "runp", "overhead": {"podFixed": {"cpu": "10m", "memory": "1Mi"}}, "scheduling": {"nodeSelector": {"a": "b"}, "tolerations": [{"key": "a", "operator": "Exists"}]}},
    "resource.k8s.io/v1/DeviceClass": {"spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}], "config": [{"opaque": {"driver": "gpu.example.com", "parameters": {"a": 1}}}], "extendedResourceName": "example.com/gpu"}},
    "resource.k8s.io/v1/ResourceClaim": {"spec": _DEVICE_CLAIM},
    "resource.k8s.io/v1/ResourceClaimTemplate": {"spec": {"metadata": {"labels": {"a": "b"}}, "spec": _DEVICE_CLAIM}},
    "resource.k8s.io/v1/ResourceSlice": {"spec": {"driver": "gpu.example.com", "nodeName": "n", "pool": {"name": "p/q", "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "gpu-0", "attributes": {"model": {"string": "x"}, "example.com/version": {"version": "1.2.3"}, "lanes": {"int": 4}, "fast": {"bool": True}}, "capacity": {"memory": {"value": "10Gi"}}, "taints": [{"key": "a", "effect": "NoSchedule"}]}]}},
    "storage.k8s.io/v1/CSIDriver": {"spec": {"attachRequired": False, "fsGroupPolicy": "File", "tokenRequests": [{"audience": "a", "expirationSeconds": 600}], "volumeLifecycleModes": ["Persistent", "Ephemeral"]}},
    "storage.k8s.io/v1/CSINode": {"spec": {"drivers": [{"name": "d.example.com", "nodeID": "n", "topologyKeys": ["zone"], "allocatable": {"count": 5}}]}},
    "storage.k8s.io/v1/CSIStorageCapacity": {"storageClassName": "s", "capacity": "1Gi", "nodeTopology": {"matchLabels": {"zone": "a"}}},
    "storage.k8s.io/v1/VolumeAttachment": {"spec": {"attacher": "d.example.com", "nodeName": "n", "source": {"persistentVolumeName": "v"}}},
    "storage.k8s.io/v1/VolumeAttributesClass": {"driverName": "d.example.com", "parameters": {"iops": "5"}},
    "apps/v1/ControllerRevision": {"revision": 1, "data": {"a": 1}},
    "apps/v1/DaemonSet": {"spec": {"selector": _SELECTOR, "template": _TEMPLATE, "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}}}},
    "apps/v1/Deployment": {"spec": {"replicas": 1, "selector": _SELECTOR, "template": _TEMPLATE, "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": "25%"}}}},
    "apps/v1/ReplicaSet": {"spec": {"replicas": 1, "selector": _SELECTOR, "template": _TEMPLATE}},
    "apps/v1/StatefulSet": {"spec": {"serviceName": "s", "selector": _SELECTOR, "template": _TEMPLATE, "volumeClaimTemplates": [{"metadata": {"name": "v"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}]}},
    "authentication.k8s.io/v1/TokenReview": {"spec": {"token": "a.b.c", "audiences": ["x"]}},
    "authorization.k8s.io/v1/LocalSubjectAccessReview": {"spec": {"user": "u", "resourceAttributes": {"namespace": "default", "verb": "get", "resource": "pods"}}},
    "authorization.k8s.io/v1/SelfSubjectAccessReview": _REVIEW,
    "authorization.k8s.io/v1/SelfSubjectRulesReview": {"spec": {"namespace": "default"}},
    "authorization.k8s.io/v1/SubjectAccessReview": _REVIEW,
    "autoscaling/v1/HorizontalPodAutoscaler": {"spec": {"minReplicas": 1, "maxReplicas": 3, "targetCPUUtilizationPercentage": 50, "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"}}},
    "autoscaling/v2/HorizontalPodAutoscaler": {"spec": {"minReplicas": 1, "maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"}, "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 5}}}], "behavior": {"scaleUp": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 10}]}}}},
    "batch/v1/CronJob": {"spec": {"schedule": "*/5 * * * *", "timeZone": "UTC", "jobTemplate": {"metadata": {}, "spec": {"template": _JOB_POD}}}},
    "batch/v1/Job": {"spec": {"template": _JOB_POD, "completions": 3, "parallelism": 2, "completionMode": "Indexed", "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1]}}]}}},
    "coordination.k8s.io/v1/Lease": {"spec": {"holderIdentity": "x", "leaseDurationSeconds": 10, "renewTime": "2026-01-01T00:00:00.000000Z"}},
    "discovery.k8s.io/v1/EndpointSlice": {"addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": True}}], "ports": [{"name": "http", "port": 80}]},
    "events.k8s.io/v1/Event": {"eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "a.b/c", "reportingInstance": "i", "action": "A", "reason": "R", "type": "Normal", "regarding": {"kind": "Pod", "name": "p", "namespace": "default"}},
    "networking.k8s.io/v1/IngressClass": {"spec": {"controller": "example.com/c", "parameters": {"kind": "K", "name": "n"}}},
    "networking.k8s.io/v1/Ingress": {"spec": {"ingressClassName": "c", "tls": [{"hosts": ["a.example"], "secretName": "s"}], "rules": [{"host": "a.example", "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": {"service": {"name": "s", "port": {"number": 80}}}}]}}]}},
    "networking.k8s.io/v1/NetworkPolicy": {"spec": {"podSelector": _SELECTOR, "policyTypes": ["Ingress"], "ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}, {"podSelector": {}}], "ports": [{"port": 80, "endPort": 90}]}]}},
    "policy/v1/PodDisruptionBudget": {"spec": {"minAvailable": "50%", "selector": _SELECTOR}},
    "rbac.authorization.k8s.io/v1/ClusterRoleBinding": _BINDING,
    "rbac.authorization.k8s.io/v1/ClusterRole": {**_ROLE, "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}},
    "rbac.authorization.k8s.io/v1/RoleBinding": _BINDING,
    "rbac.authorization.k8s.io/v1/Role": _ROLE,
    "scheduling.k8s.io/v1/PriorityClass": {"value": 10, "preemptionPolicy": "Never"},
    "storage.k8s.io/v1/StorageClass": {"provisioner": "example.com/p", "parameters": {"a": "b"}, "allowedTopologies": [{"matchLabelExpressions": [{"key": "a", "values": ["b"]}]}]},
}  # fmt: skip
STORED = [resource for resource in BUILTIN if not resource.virtual]
VIRTUAL = [resource for resource in BUILTIN if resource.virtual]


def name_of(resource: Resource, name: str = "fuzz") -> str:
    fixed = {"customresourcedefinitions": "widgets.fuzz.example", "ipaddresses": "100.112.77.7", "apiservices": "v1.x"}
    return fixed.get(resource.plural, name)


def good(resource: Resource, name: str = "fuzz") -> Object:
    """An object of this resource that the server takes."""
    metadata: Object = {"name": name_of(resource, name), "labels": {"a": "b"}, "annotations": {"x": "y"}}
    if resource.namespaced:
        metadata["namespace"] = "default"
    obj = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
    return copy.deepcopy({**obj, **_GOOD.get(resource.schema_name, {})})


def path_of(resource: Resource, name: str = "", subresource: str = "") -> str:
    root = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    place = "/namespaces/default" if resource.namespaced else ""
    return (
        f"{root}{place}/{resource.plural}" + (f"/{name}" if name else "") + (f"/{subresource}" if subresource else "")
    )


# -- spoiling ---------------------------------------------------------------------------------------------------------

WRONG: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63 - 1, -(2**63), 2**64 - 1, 1.5, -0.0, 1e308, "", "x", "x" * 300, "\0", "\u202e\n",
    [], [None], [[]], [{}], [1], ["x"], {}, {"": None}, {"x": {}}, {"x": "y"}, {"name": None}, {"kind": 1},
)  # fmt: skip
TEXTS: tuple[str, ...] = (
    "", "a", "b", "main", "data", "http", "x" * 64, "x" * 254, "A_b", "-a", "a.b", "a/b", "a/b/c", "/", "*", "*.a", "..", "\0", "\n", "é", "😀", "%", "{", "0", "-1", "1", "1e3", "1e999999999", "1Gi",
    "50%", "101%", "-5%", "%", "٣", "99999999999999999999", "0.5", "1n", "TCP", "UDP", "SCTP", "Always", "Never", "OnFailure", "IfNotPresent", "ClusterIP", "NodePort", "LoadBalancer", "ExternalName", "None",
    "RollingUpdate", "Recreate", "OnDelete", "In", "NotIn", "Exists", "DoesNotExist", "Equal", "Gt", "Lt", "NoSchedule", "NoExecute", "Prefix", "Exact", "Indexed", "Forbid", "Allow",
    "Container", "Pod", "PersistentVolumeClaim", "ReadWriteOnce", "Retain", "Delete", "Resource", "Pods", "Object", "External", "ContainerResource", "Utilization", "AverageValue", "Value", "IPv4", "IPv6", "FQDN",
    "10.0.0.1", "::1", "fe80::1%eth0", "10.0.0.0/8", "10.0.0.0/33", "::/0", "300.1.1.1", "a.example", "2026-01-01T00:00:00Z", "2026-02-30T00:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "0000-01-01T00:00:00Z", "2026-01-01T00:00:00.123456789+23:59",
    "* * * * *", "@daily", "@every 1s", "*/0 * * * *", "0-99 1/2 ? L W", "UTC", "Local", "../etc", "metadata.name", "metadata.labels['a']", "metadata.labels['", "limits.cpu", "AAAA", "A", "=", "kubernetes.io/tls", "kubernetes.io/dockerconfigjson",
    "kubernetes.io/service-account-token", "v1", "apps/v1", "a/b/c", "User", "Group", "ServiceAccount", "ClusterRole", "Role", "system:masters", "cpu", "memory", "storage", "requests.cpu", "count/pods", "hugepages-2Mi", "PriorityClass", "BestEffort", "Terminating",
    "kubernetes", "orphan", "foregroundDeletion", ".spec.x", ".spec[", "{.spec}", "$(A)", "a=b", "a in (b)", "string", "integer", "object", "array", "date", "self.size > 0", "self.", "Kubernetes", "True", "False", "Unknown", "Running", "Succeeded", "Failed", "Pending",
)  # fmt: skip
NUMBERS: tuple[int, ...] = (0, 1, -1, 2, 5, 80, 443, 65535, 65536, 100, 101, 600, 2**31 - 1, -(2**31))
BIG: tuple[int, ...] = (2**31, -(2**31) - 1, 2**53, 2**63 - 1, -(2**63))
_KEYS: tuple[str, ...] = (
    "a",
    "b",
    "cpu",
    "memory",
    "pods",
    "storage",
    "",
    "A/B",
    "x" * 70,
    "a.b/c",
    "kubernetes.io/x",
    "\0",
    "é",
)


class Maker:
    """Values along a schema, from a seeded generator."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed + SEED)

    def value(self, schema: Schema | None, depth: int = 5) -> Any:
        """A value whose type fits (mostly), whatever it means."""
        draw = self.random
        if draw.random() < 0.04:
            return None
        if schema is None or not (schema.type or schema.quantity or schema.int_or_string):
            return copy.deepcopy(draw.choice(WRONG)) if draw.random() < 0.7 else {"x": draw.choice(TEXTS)}
        if schema.quantity:
            return draw.choice((*NUMBERS, "1", "100m", "-1", "1Gi", "1e3", "0.0000000001", "9" * 40, "5E", 0.5))
        if schema.int_or_string:
            return draw.choice((*NUMBERS, "http", "50%", "", "-1%", "1000%", "x" * 20))
        if schema.type == "object":
            return self._object(schema, depth)
        if schema.type == "array":
            count = draw.choice((0, 1, 1, 1, 2, 2, 3)) if depth > 0 else 0
            items = [self.value(schema.items, depth - 1) for _ in range(count)]
            return items + items[:1] if draw.random() < 0.1 else items
        if schema.type == "integer":
            return draw.choice(BIG) if schema.format == "int64" and draw.random() < 0.2 else draw.choice(NUMBERS)
        if schema.type == "number":
            return draw.choice((*NUMBERS, 0.5, -1e300, 1e-300))
        if schema.type == "boolean":
            return draw.random() < 0.5
        if schema.format == "byte":
            return draw.choice(("", "AAAA", "e30=", "eyJhdXRocyI6e319"))
        if schema.format == "date-time":
            return draw.choice(("2026-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "2026-01-01T00:00:00-23:59"))  # fmt: skip
        return draw.choice(TEXTS)

    def _object(self, schema: Schema, depth: int) -> Object:
        draw = self.random
        if schema.additional is not None:
            return {key: self.value(schema.additional, depth - 1) for key in draw.sample(_KEYS, draw.choice((0, 1, 2)))}
        if not schema.properties:
            return {"x": draw.choice(TEXTS)} if draw.random() < 0.5 else {}
        names = list(schema.properties)
        wanted = set(draw.sample(names, min(len(names), draw.choice((0, 1, 2, 3, 5)) if depth > 0 else 0)))
        if draw.random() < 0.8:
            wanted |= set(schema.required)
        return {name: self.value(schema.properties[name], depth - 1) for name in names if name in wanted}

    def wrong(self) -> Any:
        return copy.deepcopy(self.random.choice(WRONG))

    def spoil(
        self, obj: Object, schema: Schema, times: int = 1, keep: tuple[str, ...] = ("apiVersion", "kind")
    ) -> Object:
        """A copy with some places changed: values of any sense, nulls, removals, wrong types, repetitions."""
        out = copy.deepcopy(obj)
        for _ in range(times):
            places = [place for place in _places(out, schema, ()) if place[2][0] not in keep]
            holder, key, _, node = self.random.choice(places)
            kind = self.random.random()
            if kind < 0.15 and (isinstance(holder, list) or key in holder):
                del holder[key]  # type: ignore[arg-type]
            elif kind < 0.25 and isinstance(holder, list):
                holder.append(copy.deepcopy(holder[key]))  # type: ignore[call-overload]
            elif kind < 0.35:
                holder[key] = self.wrong()  # type: ignore[index]
            else:
                holder[key] = self.value(node)  # type: ignore[index]
        return out


Place = tuple[dict[str, Any] | list[Any], str | int, Path, Schema | None]


def _places(value: Any, schema: Schema | None, path: Path) -> Iterator[Place]:
    """Every place in an object, the fields it could have and has not included."""
    if isinstance(value, dict):
        known = schema.properties if schema is not None else {}
        for key in {**known, **value}:
            node = known.get(key) or (schema.additional if schema is not None else None)
            yield value, key, (*path, key), node
            if key in value:
                yield from _places(value[key], node, (*path, key))
    elif isinstance(value, list):
        node = schema.items if schema is not None else None
        for index, item in enumerate(value):
            yield value, index, (*path, index), node
            yield from _places(item, node, (*path, index))


def wrong_types(obj: Object, schema: Schema) -> list[tuple[Path, Any]]:
    """Each place that the object has or could have, with each of the wrong values."""
    return [(path, value) for _, _, path, _ in _places(obj, schema, ()) for value in WRONG]


def changed(obj: Object, path: Path, value: Any) -> Object:
    """A copy with another value at a place."""
    out = copy.deepcopy(obj)
    place: Any = out
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    return out


def pointers(obj: Object, schema: Schema) -> list[str]:
    """JSON pointers to every place in an object."""
    return [
        "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)
        for _, _, path, _ in _places(obj, schema, ())
    ]
