"""One good object and several bad ones of every kind besides pods; then what may not change."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from rules_kit import GONE, change_faults, created, faults, put

from coterie.base import pki
from coterie.base.certificate_requests import make_request
from coterie.kube.api.resources import BUILTIN
from coterie.kube.api.rules import RULES

Kind = tuple[str, str]
CERTS = "certificates.k8s.io"
REQUEST = base64.b64encode(make_request(pki.new_key(), "ann")).decode()
RBAC, APPS, NET, CRD = "rbac.authorization.k8s.io", "apps", "networking.k8s.io", "apiextensions.k8s.io"
AUTHN, AUTHZ = "authentication.k8s.io", "authorization.k8s.io"
META = {"name": "x", "namespace": "n"}
TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}
WORKLOAD = {"selector": {"matchLabels": {"a": "b"}}, "template": TEMPLATE}
NEVER = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i:1"}]}}
CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}


def text64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


HOOKS = "admissionregistration.k8s.io"
HOOK = {
    "name": "a.example.com",
    "admissionReviewVersions": ["v1"],
    "sideEffects": "None",
    "clientConfig": {"service": {"name": "s", "namespace": "n", "path": "/check"}},
    "rules": [
        {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods", "pods/status"]}
    ],
    "matchConditions": [{"name": "named", "expression": "object.metadata.name != 'x'"}],
}
POLICY_MATCH = {"resourceRules": HOOK["rules"]}
VALIDATING = (HOOKS, "ValidatingWebhookConfiguration")
GOOD: dict[Kind, dict[str, Any]] = {
    ("", "Binding"): {"metadata": META, "target": {"kind": "Node", "name": "n"}},
    ("", "ComponentStatus"): {"metadata": {"name": "x"}},
    ("", "ConfigMap"): {"metadata": META, "data": {"a.b": "c"}, "binaryData": {"d": "AA=="}},
    ("", "Endpoints"): {"metadata": META, "subsets": [{"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 80}]}]},
    ("", "Event"): {"metadata": META, "involvedObject": {"kind": "Pod", "namespace": "n"}, "reason": "R"},
    ("", "LimitRange"): {"metadata": META, "spec": {"limits": [{"type": "Container", "max": {"cpu": "2"}, "min": {"cpu": "1"}}]}},
    ("", "Namespace"): {"metadata": {"name": "x"}},
    ("", "Node"): {"metadata": {"name": "x"}, "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}, "status": {"capacity": {"cpu": "4000m"}}},
    ("", "PersistentVolumeClaim"): {"metadata": META, "spec": CLAIM},
    ("", "PersistentVolume"): {"metadata": {"name": "x"}, "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}},
    ("", "PodTemplate"): {"metadata": META, "template": TEMPLATE},
    ("", "ReplicationController"): {"metadata": META, "spec": {"template": TEMPLATE}},
    ("", "ResourceQuota"): {"metadata": META, "spec": {"hard": {"pods": "5", "requests.cpu": "1000m", "count/jobs.batch": "3"}}},
    ("", "Secret"): {"metadata": META, "stringData": {"a": "b"}},
    ("", "ServiceAccount"): {"metadata": META},
    ("", "Service"): {"metadata": META, "spec": {"selector": {"a": "b"}, "ports": [{"port": 80}]}},
    (CRD, "CustomResourceDefinition"): {
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"]},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object"}},
                    "additionalPrinterColumns": [{"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'}],
                    "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
                    "selectableFields": [{"jsonPath": ".spec.color"}],
                }
            ],
        },
    },
    ("apiregistration.k8s.io", "APIService"): {
        "metadata": {"name": "v1."},
        "spec": {"version": "v1", "groupPriorityMinimum": 18000, "versionPriority": 1},
    },
    (APPS, "ControllerRevision"): {"metadata": META, "revision": 1, "data": {}},
    (APPS, "DaemonSet"): {"metadata": META, "spec": WORKLOAD},
    (APPS, "Deployment"): {"metadata": META, "spec": WORKLOAD},
    (APPS, "ReplicaSet"): {"metadata": META, "spec": WORKLOAD},
    (APPS, "StatefulSet"): {"metadata": META, "spec": {**WORKLOAD, "serviceName": "s", "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": CLAIM}]}},
    (AUTHN, "SelfSubjectReview"): {},
    (AUTHN, "TokenReview"): {"spec": {"token": "t"}},
    (AUTHN, "TokenRequest"): {"spec": {"audiences": ["a"]}},
    (AUTHZ, "LocalSubjectAccessReview"): {"metadata": META, "spec": {"user": "u", "resourceAttributes": {"namespace": "n"}}},
    (AUTHZ, "SelfSubjectAccessReview"): {"spec": {"nonResourceAttributes": {"path": "/x"}}},
    (AUTHZ, "SelfSubjectRulesReview"): {"spec": {"namespace": "n"}},
    (AUTHZ, "SubjectAccessReview"): {"spec": {"user": "u", "resourceAttributes": {}}},
    ("autoscaling", "HorizontalPodAutoscaler"): {"metadata": META, "spec": {"maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "d"}, "behavior": {}}},
    ("autoscaling", "Scale"): {"metadata": META, "spec": {"replicas": 1}},
    ("batch", "CronJob"): {"metadata": META, "spec": {"schedule": "*/5 0-6 1,15 * mon-fri", "timeZone": "Etc/UTC", "jobTemplate": {"spec": {"template": NEVER}}}},
    ("batch", "Job"): {"metadata": META, "spec": {"template": NEVER}},
    ("coordination.k8s.io", "Lease"): {"metadata": META, "spec": {"holderIdentity": "h", "leaseDurationSeconds": 15}},
    ("discovery.k8s.io", "EndpointSlice"): {"metadata": META, "addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"]}], "ports": [{"port": 80}]},
    ("events.k8s.io", "Event"): {"metadata": META, "involvedObject": {"namespace": "n"}, "eventTime": "t", "reportingComponent": "c.io/x", "reportingInstance": "i", "action": "A", "reason": "R", "type": "Normal"},
    (NET, "IngressClass"): {"metadata": {"name": "x"}, "spec": {"controller": "a.io/b"}},
    (NET, "Ingress"): {"metadata": META, "spec": {"rules": [{"host": "*.a.b", "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": {"service": {"name": "s", "port": {"number": 80}}}}]}}]}},
    (NET, "NetworkPolicy"): {"metadata": META, "spec": {"ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}], "ports": [{"port": 80, "endPort": 90}]}]}},
    (CERTS, "CertificateSigningRequest"): {"metadata": {"name": "x"}, "spec": {"request": REQUEST, "signerName": "example.com/signer", "usages": ["client auth"]}},
    ("policy", "PodDisruptionBudget"): {"metadata": META, "spec": {"minAvailable": "50%", "selector": {"matchLabels": {"a": "b"}}}},
    ("policy", "Eviction"): {"metadata": META},
    (RBAC, "ClusterRole"): {"metadata": {"name": "x"}, "rules": [{"verbs": ["get"], "nonResourceURLs": ["/healthz"]}]},
    (RBAC, "Role"): {"metadata": META, "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]},
    (RBAC, "ClusterRoleBinding"): {"metadata": {"name": "x"}, "roleRef": {"kind": "ClusterRole", "name": "r"}, "subjects": [{"kind": "Group", "name": "g"}]},
    (RBAC, "RoleBinding"): {"metadata": META, "roleRef": {"kind": "Role", "name": "r"}, "subjects": [{"kind": "ServiceAccount", "name": "s", "namespace": "n"}]},
    ("scheduling.k8s.io", "PriorityClass"): {"metadata": {"name": "x"}, "value": 1000},
    ("flowcontrol.apiserver.k8s.io", "FlowSchema"): {"metadata": {"name": "x"}, "spec": {"priorityLevelConfiguration": {"name": "system"}, "rules": [{"subjects": [{"kind": "User", "user": {"name": "u"}}], "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/x"]}]}]}},
    ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration"): {"metadata": {"name": "x"}, "spec": {"type": "Limited", "limited": {"limitResponse": {"type": "Queue", "queuing": {}}}}},
    ("networking.k8s.io", "IPAddress"): {"metadata": {"name": "10.0.0.1"}, "spec": {"parentRef": {"resource": "services", "namespace": "n", "name": "s"}}},
    ("networking.k8s.io", "ServiceCIDR"): {"metadata": {"name": "x"}, "spec": {"cidrs": ["10.0.0.0/24", "fd00::/64"]}},
    ("node.k8s.io", "RuntimeClass"): {"metadata": {"name": "x"}, "handler": "runp", "overhead": {"podFixed": {"cpu": "1"}}},
    ("resource.k8s.io", "DeviceClass"): {"metadata": {"name": "x"}, "spec": {"extendedResourceName": "example.com/gpu"}},
    ("resource.k8s.io", "ResourceClaim"): {"metadata": META, "spec": {"devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": "gpu"}}]}}},
    ("resource.k8s.io", "ResourceClaimTemplate"): {"metadata": META, "spec": {"spec": {"devices": {}}}},
    ("resource.k8s.io", "ResourceSlice"): {"metadata": {"name": "x"}, "spec": {"driver": "d", "allNodes": True, "pool": {"name": "p", "resourceSliceCount": 1}}},
    ("storage.k8s.io", "CSIDriver"): {"metadata": {"name": "x"}, "spec": {}},
    ("storage.k8s.io", "CSINode"): {"metadata": {"name": "x"}, "spec": {"drivers": [{"name": "d", "nodeID": "n"}]}},
    ("storage.k8s.io", "CSIStorageCapacity"): {"metadata": META, "storageClassName": "s"},
    ("storage.k8s.io", "VolumeAttachment"): {"metadata": {"name": "x"}, "spec": {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "v"}}},
    ("storage.k8s.io", "VolumeAttributesClass"): {"metadata": {"name": "x"}, "driverName": "d", "parameters": {"a": "b"}},
    ("storage.k8s.io", "StorageClass"): {"metadata": {"name": "x"}, "provisioner": "a.io/b"},
    (HOOKS, "MutatingAdmissionPolicy"): {"metadata": {"name": "x"}, "spec": {"matchConstraints": POLICY_MATCH, "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": "[JSONPatch{op: 'remove', path: '/data'}]"}}]}},
    (HOOKS, "MutatingAdmissionPolicyBinding"): {"metadata": {"name": "x"}, "spec": {"policyName": "x"}},
    (HOOKS, "ValidatingAdmissionPolicy"): {"metadata": {"name": "x"}, "spec": {"matchConstraints": POLICY_MATCH, "validations": [{"expression": "object.spec.x > 1"}]}},
    (HOOKS, "ValidatingAdmissionPolicyBinding"): {"metadata": {"name": "x"}, "spec": {"policyName": "x", "validationActions": ["Deny"]}},
    (HOOKS, "MutatingWebhookConfiguration"): {"metadata": {"name": "x"}, "webhooks": [{**HOOK, "reinvocationPolicy": "IfNeeded"}]},
    (HOOKS, "ValidatingWebhookConfiguration"): {"metadata": {"name": "x"}, "webhooks": [HOOK]},
}  # fmt: skip

V0 = "spec.versions[0]"
T0 = "spec.template.spec.containers[0]"
P0 = "spec.rules[0].http.paths[0]"
BAD: list[tuple[Kind, str, Any, str]] = [
    (("", "Binding"), "target.kind", "Pod", 'target.kind: Invalid value: "Pod": must be empty or \'Node\''),
    (("", "Binding"), "target.name", "", "target.name: Invalid value"),
    (("", "ConfigMap"), "data", {"a/b": "c"}, 'data[a/b]: Invalid value: "a/b": a valid config key must consist of'),
    (("", "ConfigMap"), "binaryData", {"a.b": "AA=="}, 'data[a.b]: Invalid value: "a.b": duplicate of key present in'),
    (("", "ConfigMap"), "binaryData", {"x": "A"}, "binaryData[x]: Invalid value"),
    (("", "ConfigMap"), "data", {"a": "x" * 1048577}, "[]: Too long: may not be more than 1048576 bytes"),
    (("", "ConfigMap"), "data", {"a": "é" * 600000}, "[]: Too long: may not be more than 1048576 bytes"),
    (("", "Endpoints"), "subsets[0].addresses[0].ip", "x", 'subsets[0].addresses[0].ip: Invalid value: "x": must be a valid'),
    (("", "Endpoints"), "subsets[0].addresses[0].ip", "169.254.0.1", 'subsets[0].addresses[0].ip: Invalid value: "169.254.0.1": may not'),
    (("", "Endpoints"), "subsets[0].ports[0].port", 0, "subsets[0].ports[0].port: Invalid value: 0"),
    (("", "Event"), "involvedObject.namespace", "m", 'involvedObject.namespace: Invalid value: "m": does not match event.namespace'),
    (("", "Event"), "eventTime", "t", "reportingController: Required value"),
    (("", "LimitRange"), "spec.limits[0].min.cpu", "3", 'spec.limits[0].min[cpu]: Invalid value: "3": min value 3 is greater than max value 2'),
    (("", "LimitRange"), "spec.limits[0].type", "x", 'spec.limits[0].type: Unsupported value: "x"'),
    (("", "LimitRange"), "spec.limits[1]", {"type": "Container"}, 'spec.limits[1].type: Duplicate value: "Container"'),
    (("", "LimitRange"), "spec.limits[0].max.cpu", "x", 'spec.limits[0].max[cpu]: Invalid value: "x": quantities must match'),
    (("", "LimitRange"), "spec.limits[0]", {"type": "Pod", "default": {"cpu": "1"}}, "spec.limits[0].default: Forbidden: may not be"),
    (("", "Namespace"), "spec.finalizers", ["foo"], 'spec.finalizers: Invalid value: "foo": name is neither'),
    (("", "Node"), "spec.taints[0].effect", "x", 'spec.taints[0].effect: Unsupported value: "x"'),
    (("", "Node"), "spec.taints[0].key", "a b", 'spec.taints[0].key: Invalid value: "a b"'),
    (("", "Node"), "spec.taints[1]", {"key": "a", "effect": "NoSchedule"}, "spec.taints[1]: Duplicate value"),
    (("", "Node"), "spec.podCIDR", "x", 'spec.podCIDRs[0]: Invalid value: "x": must be a valid CIDR value'),
    (("", "Node"), "status.capacity.cpu", "x", 'status.capacity.cpu: Invalid value: "x"'),
    (("", "PersistentVolumeClaim"), "spec.accessModes", [], "spec.accessModes: Required value: at least 1 access mode is required"),
    (("", "PersistentVolumeClaim"), "spec.accessModes", ["x"], 'spec.accessModes: Unsupported value: "x"'),
    (("", "PersistentVolumeClaim"), "spec.resources", {}, "spec.resources[storage]: Required value"),
    (("", "PersistentVolumeClaim"), "spec.resources.requests.storage", "0", 'spec.resources[storage]: Invalid value: "0": must be greater'),
    (("", "PersistentVolumeClaim"), "spec.volumeMode", "x", 'spec.volumeMode: Unsupported value: "x"'),
    (("", "PersistentVolume"), "spec.capacity", {}, "spec.capacity: Required value"),
    (("", "PersistentVolume"), "spec.hostPath", GONE, "spec: Required value: must specify a volume type"),
    (("", "PersistentVolume"), "spec.nfs", {}, "spec.nfs: Forbidden: may not specify more than 1 volume type"),
    (("", "PodTemplate"), "template.spec.containers[0].image", "", "template.spec.containers[0].image: Required value"),
    (("", "PodTemplate"), "template.metadata.labels", {"a b": ""}, 'template.labels: Invalid value: "a b"'),
    (("", "ReplicationController"), "spec.selector", {"z": "z"}, "spec.template.metadata.labels: Invalid value: \"object\": `selector` does not"),
    (("", "ReplicationController"), "spec.template", GONE, "spec.selector: Required value"),
    (("", "ReplicationController"), f"{T0}.image", "", f"{T0}.image: Required value"),
    (("", "ResourceQuota"), "spec.hard.foo", "1", 'spec.hard[foo]: Invalid value: "foo": must be a standard resource type or fully'),
    (("", "ResourceQuota"), "spec.hard.pods", "-1", 'spec.hard[pods]: Invalid value: "-1": must be greater than or equal to 0'),
    (("", "ResourceQuota"), "spec.hard.pods", "500m", 'spec.hard[pods]: Invalid value: "500m": must be an integer'),
    (("", "ResourceQuota"), "spec.scopes", ["Odd"], "spec.scopes: Invalid value"),
    (("", "Secret"), "stringData", {"a/b": "c"}, 'data[a/b]: Invalid value: "a/b"'),
    (("", "Secret"), "data", {"a": "!", "c": "*"}, 'data[c]: Invalid value: "<secret contents redacted>": illegal base64 data'),
    (("", "Secret"), "type", "kubernetes.io/tls", "data[tls.crt]: Required value"),
    (("", "Secret"), "type", "kubernetes.io/dockerconfigjson", "data[.dockerconfigjson]: Required value"),
    (("", "Secret"), "type", "kubernetes.io/basic-auth", "data[username]: Required value"),
    (("", "Secret"), "type", "kubernetes.io/service-account-token", "metadata.annotations[kubernetes.io/service-account.name]: Req"),
    (("", "Service"), "spec.ports", [], "spec.ports: Required value"),
    (("", "Service"), "spec.ports[1]", {"port": 81}, "spec.ports[0].name: Required value"),
    (("", "Service"), "spec.ports", [{"name": "a", "port": 1}, {"name": "a", "port": 2}], 'spec.ports[1].name: Duplicate value: "a"'),
    (("", "Service"), "spec.ports", [{"name": "a", "port": 1}, {"name": "b", "port": 1}], "spec.ports[1]: Duplicate value"),
    (("", "Service"), "spec.ports[0].port", 0, "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive"),
    (("", "Service"), "spec.ports[0].nodePort", 30001, "spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"),
    (("", "Service"), "spec.ports[0].protocol", "x", 'spec.ports[0].protocol: Unsupported value: "x"'),
    (("", "Service"), "spec.ports[0].targetPort", "A", 'spec.ports[0].targetPort: Invalid value: "A": must contain only'),
    (("", "Service"), "spec.type", "x", 'spec.type: Unsupported value: "x": supported values: "ClusterIP", "ExternalName"'),
    (("", "Service"), "spec.type", "ExternalName", "spec.externalName: Required value"),
    (("", "Service"), "spec.clusterIP", "x", 'spec.clusterIPs[0]: Invalid value: "x": must be a valid IP address'),
    (("", "Service"), "spec.sessionAffinity", "x", 'spec.sessionAffinity: Unsupported value: "x"'),
    (("", "Service"), "spec.externalTrafficPolicy", "Local", "spec.externalTrafficPolicy: Invalid value: \"Local\": may only be set"),
    ((CRD, "CustomResourceDefinition"), "metadata.name", "x", 'metadata.name: Invalid value: "x": must be spec.names.plural+"."+spec.group'),
    ((CRD, "CustomResourceDefinition"), "spec.scope", "x", 'spec.scope: Unsupported value: "x": supported values: "Cluster", "Namespaced"'),
    ((CRD, "CustomResourceDefinition"), "spec.versions", [], "spec.versions: Required value"),
    ((CRD, "CustomResourceDefinition"), f"{V0}.storage", False, "spec.versions: Invalid value: \"array\": must have exactly one version marked as storage"),
    ((CRD, "CustomResourceDefinition"), f"{V0}.schema", GONE, f"{V0}.schema.openAPIV3Schema: Required value: schemas are required"),
    ((CRD, "CustomResourceDefinition"), f"{V0}.name", "V1", f'{V0}.name: Invalid value: "V1"'),
    ((CRD, "CustomResourceDefinition"), f"{V0}.additionalPrinterColumns[0].jsonPath", "x", f'{V0}.additionalPrinterColumns[0].jsonPath: Invalid value: "x": must be a simple'),
    ((CRD, "CustomResourceDefinition"), f"{V0}.additionalPrinterColumns[0].type", "x", f'{V0}.additionalPrinterColumns[0].type: Unsupported value: "x"'),
    ((CRD, "CustomResourceDefinition"), f"{V0}.subresources.scale.specReplicasPath", ".x", f'{V0}.subresources.scale.specReplicasPath: Invalid value: ".x": should be a json path under .spec'),
    ((CRD, "CustomResourceDefinition"), "spec.conversion", {"strategy": "Webhook"}, 'spec.conversion.webhook: Required value: required when strategy is set to "Webhook"'),
    ((CRD, "CustomResourceDefinition"), "spec.names.listKind", "Widget", 'spec.names.listKind: Invalid value: "Widget": kind and listKind may not be the same'),
    ((CRD, "CustomResourceDefinition"), "spec.names.shortNames", ["A"], 'spec.names.shortNames[0]: Invalid value: "A"'),
    ((CRD, "CustomResourceDefinition"), "spec.preserveUnknownFields", True, "spec.preserveUnknownFields: Invalid value: true: must be false"),
    ((CRD, "CustomResourceDefinition"), f"{V0}.selectableFields[0].jsonPath", ".a[0]", f'{V0}.selectableFields[0].jsonPath: Invalid value: ".a[0]"'),
    (("apiregistration.k8s.io", "APIService"), "spec.versionPriority", 0, "spec.versionPriority: Invalid value: 0: must be greater than 0"),
    ((APPS, "ControllerRevision"), "data", GONE, "data: Required value: data is mandatory"),
    ((APPS, "DaemonSet"), "spec.selector", GONE, "spec.selector: Required value"),
    ((APPS, "DaemonSet"), "spec.updateStrategy", {"type": "x"}, 'spec.updateStrategy.type: Unsupported value: "x"'),
    ((APPS, "DaemonSet"), "spec.updateStrategy", {"rollingUpdate": {"maxUnavailable": 0}}, "spec.updateStrategy.rollingUpdate.maxUnavailable: Invalid value: 0: cannot be 0 when maxSurge is 0"),
    ((APPS, "Deployment"), "spec.selector.matchLabels", {"z": "z"}, "spec.template.metadata.labels: Invalid value: \"object\": `selector` does not match template `labels`"),
    ((APPS, "Deployment"), "spec.selector", {}, "spec.selector: Invalid value: \"object\": empty selector is invalid for deployment"),
    ((APPS, "Deployment"), "spec.template", GONE, "spec.template: Required value"),
    ((APPS, "Deployment"), "spec.replicas", -1, "spec.replicas: Invalid value: -1: must be greater than or equal to 0"),
    ((APPS, "Deployment"), f"{T0}.image", "", f"{T0}.image: Required value"),
    ((APPS, "Deployment"), "spec.template.spec.restartPolicy", "Never", 'spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always"'),
    ((APPS, "Deployment"), "spec.strategy", {"type": "x"}, 'spec.strategy.type: Unsupported value: "x"'),
    ((APPS, "Deployment"), "spec.strategy", {"type": "Recreate", "rollingUpdate": {}}, "spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'"),
    ((APPS, "Deployment"), "spec.strategy", {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}}, "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0"),
    ((APPS, "Deployment"), "spec.strategy", {"rollingUpdate": {"maxSurge": "x"}}, "spec.strategy.rollingUpdate.maxSurge: Invalid value: \"x\": a valid percent string"),
    ((APPS, "Deployment"), "spec.minReadySeconds", 700, "spec.progressDeadlineSeconds: Invalid value: 600: must be greater than minReadySeconds"),
    ((APPS, "ReplicaSet"), "spec.replicas", -1, "spec.replicas: Invalid value: -1"),
    ((APPS, "ReplicaSet"), "spec.template.spec.ephemeralContainers", [{"name": "e", "image": "i"}], "spec.template.spec.ephemeralContainers: Forbidden: ephemeral containers not allowed in pod template"),
    ((APPS, "ReplicaSet"), "spec.selector.matchLabels", {"a b": "b"}, 'spec.selector.matchLabels: Invalid value: "a b"'),
    ((APPS, "StatefulSet"), "spec.podManagementPolicy", "x", 'spec.podManagementPolicy: Unsupported value: "x"'),
    ((APPS, "StatefulSet"), "spec.updateStrategy", {"type": "x"}, "spec.updateStrategy: Invalid value"),
    ((APPS, "StatefulSet"), "spec.volumeClaimTemplates[0].spec.accessModes", [], "spec.volumeClaimTemplates[0].spec.accessModes: Required value"),
    ((APPS, "StatefulSet"), f"{T0}.volumeMounts", [{"name": "other", "mountPath": "/x"}], f'{T0}.volumeMounts[0].name: Not found: "other"'),
    ((AUTHN, "TokenReview"), "spec.token", "", "spec.token: Required value"),
    ((AUTHN, "TokenRequest"), "spec.expirationSeconds", 10, "spec.expirationSeconds: Invalid value: 10: may not specify a duration less than 10 minutes"),
    ((AUTHZ, "LocalSubjectAccessReview"), "spec.resourceAttributes.namespace", "m", 'spec.resourceAttributes.namespace: Invalid value: "m"'),
    ((AUTHZ, "SelfSubjectAccessReview"), "spec", {}, "spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or"),
    ((AUTHZ, "SelfSubjectRulesReview"), "spec", {}, "spec.namespace: Required value"),
    ((AUTHZ, "SubjectAccessReview"), "spec.user", "", 'spec.user: Invalid value: "": at least one of user or group must be specified'),
    (("autoscaling", "HorizontalPodAutoscaler"), "spec.maxReplicas", 0, "spec.maxReplicas: Invalid value: 0: must be greater than 0"),
    (("autoscaling", "HorizontalPodAutoscaler"), "spec.minReplicas", 5, "spec.maxReplicas: Invalid value: 3: must be greater than or equal to `minReplicas`"),
    (("autoscaling", "HorizontalPodAutoscaler"), "spec.minReplicas", 0, "spec.minReplicas: Invalid value: 0: must be greater than or equal to 1"),
    (("autoscaling", "HorizontalPodAutoscaler"), "spec.scaleTargetRef.kind", "", "spec.scaleTargetRef.kind: Required value"),
    (("autoscaling", "HorizontalPodAutoscaler"), "spec.metrics", [{"type": "x"}], 'spec.metrics[0].type: Unsupported value: "x"'),
    (("autoscaling", "HorizontalPodAutoscaler"), "spec.metrics", [{"type": "Pods"}], "spec.metrics[0].pods: Required value: must populate information"),
    (("autoscaling", "HorizontalPodAutoscaler"), "spec.behavior", {"scaleUp": {"tolerance": "-1", "policies": [{"type": "Pods", "value": 1, "periodSeconds": 1}]}}, "spec.behavior.scaleUp.tolerance: Invalid value: \"-1\": must be greater than or equal to 0"),
    (("autoscaling", "HorizontalPodAutoscaler"), "spec.behavior", {"scaleUp": {"stabilizationWindowSeconds": 9999}}, "spec.behavior.scaleUp.stabilizationWindowSeconds: Invalid value: 9999"),
    (("autoscaling", "Scale"), "spec.replicas", -1, "spec.replicas: Invalid value: -1: must be greater than or equal to 0"),
    (("batch", "CronJob"), "spec.schedule", "x", "spec.schedule: Invalid value: \"x\": expected exactly 5 fields, found 1: [x]"),
    (("batch", "CronJob"), "spec.schedule", "60 * * * *", "spec.schedule: Invalid value: \"60 * * * *\": end of range (60) above maximum (59): 60"),
    (("batch", "CronJob"), "spec.schedule", "*/0 * * * *", "spec.schedule: Invalid value: \"*/0 * * * *\": step of range should be a positive number"),
    (("batch", "CronJob"), "spec.schedule", "5-1 * * * *", "spec.schedule: Invalid value: \"5-1 * * * *\": beginning of range (5) beyond end of range"),
    (("batch", "CronJob"), "spec.schedule", "@never", "spec.schedule: Invalid value: \"@never\": unrecognized descriptor: @never"),
    (("batch", "CronJob"), "spec.schedule", "", "spec.schedule: Required value"),
    (("batch", "CronJob"), "spec.timeZone", "Mars/Base", 'spec.timeZone: Invalid value: "Mars/Base": unknown time zone Mars/Base'),
    (("batch", "CronJob"), "spec.concurrencyPolicy", "x", 'spec.concurrencyPolicy: Unsupported value: "x": supported values: "Allow", "Forbid", "Replace"'),
    (("batch", "CronJob"), "spec.jobTemplate.spec.template.spec.containers", [], "spec.jobTemplate.spec.template.spec.containers: Required value"),
    (("batch", "CronJob"), "metadata.name", "x" * 53, "metadata.name: Invalid value"),
    (("batch", "Job"), "spec.template.spec.restartPolicy", "Always", 'spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"'),
    (("batch", "Job"), "spec.parallelism", -1, "spec.parallelism: Invalid value: -1"),
    (("batch", "Job"), "spec.completionMode", "Indexed", ""),
    (("batch", "Job"), "spec.completionMode", "x", 'spec.completionMode: Unsupported value: "x"'),
    (("batch", "Job"), "spec.selector", {"matchLabels": {"a": "b"}}, "spec.template.metadata.labels: Invalid value"),
    (("batch", "Job"), "spec.podFailurePolicy", {"rules": [{"action": "x"}]}, 'spec.podFailurePolicy.rules[0].action: Unsupported value: "x"'),
    (("coordination.k8s.io", "Lease"), "spec.leaseDurationSeconds", 0, "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0"),
    (("coordination.k8s.io", "Lease"), "spec.leaseTransitions", -1, "spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0"),
    (("discovery.k8s.io", "EndpointSlice"), "addressType", GONE, "addressType: Required value"),
    (("discovery.k8s.io", "EndpointSlice"), "endpoints[0].addresses", [], "endpoints[0].addresses: Required value: must contain at least 1 address"),
    (("discovery.k8s.io", "EndpointSlice"), "endpoints[0].addresses[0]", "::1", 'endpoints[0].addresses[0]: Invalid value: "::1": must be a valid IPv4 address'),
    (("events.k8s.io", "Event"), "type", "Odd", 'type: Invalid value: "Odd": has invalid value: Odd'),
    (("events.k8s.io", "Event"), "action", "", "action: Required value"),
    (("events.k8s.io", "Event"), "eventTime", GONE, "eventTime: Required value"),
    (("events.k8s.io", "Event"), "reason", "x" * 129, 'reason: Invalid value: "": can have at most 128 characters'),
    (("events.k8s.io", "Event"), "count", 3, "deprecatedCount: Invalid value: 3: needs to be unset"),
    ((NET, "IngressClass"), "spec.controller", "x", 'spec.controller: Invalid value: "x": must be a domain-prefixed path'),
    ((NET, "Ingress"), "spec.rules", [], "spec: Invalid value: \"object\": either `defaultBackend` or `rules` must be specified"),
    ((NET, "Ingress"), f"{P0}.pathType", GONE, f"{P0}.pathType: Required value: pathType must be specified"),
    ((NET, "Ingress"), f"{P0}.path", "x", f'{P0}.path: Invalid value: "x": must be an absolute path'),
    ((NET, "Ingress"), f"{P0}.path", "/a//b", f"{P0}.path: Invalid value: \"/a//b\": must not contain '//'"),
    ((NET, "Ingress"), f"{P0}.backend", {}, f"{P0}.backend: Required value: resource or service backend is required"),
    ((NET, "Ingress"), f"{P0}.backend.service.port", {}, f"{P0}.backend: Required value: port name or number is required"),
    ((NET, "Ingress"), "spec.rules[0].host", "1.2.3.4", 'spec.rules[0].host: Invalid value: "1.2.3.4": must be a DNS name, not an IP address'),
    ((NET, "NetworkPolicy"), "spec.ingress[0].from[0]", {}, "spec.ingress[0].from[0]: Required value: must specify a peer"),
    ((NET, "NetworkPolicy"), "spec.ingress[0].from[0].ipBlock.cidr", "x", 'spec.ingress[0].from[0].ipBlock.cidr: Invalid value: "x"'),
    ((NET, "NetworkPolicy"), "spec.ingress[0].from[0].ipBlock.except", ["11.0.0.0/16"], "spec.ingress[0].from[0].ipBlock.except[0]: Invalid value: \"11.0.0.0/16\": must be a strict subset of `cidr`"),
    ((NET, "NetworkPolicy"), "spec.ingress[0].ports[0].endPort", 70, "spec.ingress[0].ports[0].endPort: Invalid value"),
    ((NET, "NetworkPolicy"), "spec.policyTypes", ["x"], 'spec.policyTypes[0]: Unsupported value: "x"'),
    ((CERTS, "CertificateSigningRequest"), "spec.usages", ["rule"], 'spec.usages[0]: Unsupported value: "rule"'),
    ((CERTS, "CertificateSigningRequest"), "spec.request", "eA==", "spec.request: Invalid value: \"<request data>\": PEM block type must be CERTIFICATE REQUEST"),
    (("policy", "PodDisruptionBudget"), "spec.maxUnavailable", 1, "spec: Invalid value: \"object\": minAvailable and maxUnavailable cannot be both set"),
    (("policy", "PodDisruptionBudget"), "spec.minAvailable", "101%", 'spec.minAvailable: Invalid value: "101%": must not be greater than 100%'),
    (("policy", "PodDisruptionBudget"), "spec.minAvailable", -1, "spec.minAvailable: Invalid value: -1: must be greater than or equal to 0"),
    (("policy", "Eviction"), "deleteOptions", {"gracePeriodSeconds": -1}, "deleteOptions.gracePeriodSeconds: Invalid value: -1"),
    ((RBAC, "Role"), "rules[0].verbs", [], "rules[0].verbs: Required value: verbs must contain at least one value"),
    ((RBAC, "Role"), "rules[0].apiGroups", GONE, "rules[0].apiGroups: Required value: resource rules must supply at least one api group"),
    ((RBAC, "Role"), "rules[0].nonResourceURLs", ["/x"], "rules[0].nonResourceURLs: Invalid value: \"array\": namespaced rules cannot apply to non-resource URLs"),
    ((RBAC, "ClusterRole"), "rules[0].resources", ["x"], "rules[0].nonResourceURLs: Invalid value: \"array\": rules cannot apply to both"),
    ((RBAC, "ClusterRole"), "aggregationRule", {}, "aggregationRule.clusterRoleSelectors: Required value: at least one clusterRoleSelector"),
    ((RBAC, "RoleBinding"), "roleRef.name", "", "roleRef.name: Required value"),
    ((RBAC, "RoleBinding"), "roleRef.apiGroup", "x", f'roleRef.apiGroup: Unsupported value: "x": supported values: "{RBAC}"'),
    ((RBAC, "RoleBinding"), "subjects[0].namespace", "", "subjects[0].namespace: Required value"),
    ((RBAC, "RoleBinding"), "subjects[0].kind", "Dog", 'subjects[0].kind: Unsupported value: "Dog": supported values: "ServiceAccount", "User", "Group"'),
    ((RBAC, "ClusterRoleBinding"), "roleRef.kind", "Role", 'roleRef.kind: Unsupported value: "Role": supported values: "ClusterRole"'),
    (("scheduling.k8s.io", "PriorityClass"), "value", 2_000_000_000, "value: Forbidden: maximum allowed value of a user defined priority is 1000000000"),
    (("scheduling.k8s.io", "PriorityClass"), "metadata.name", "system-x", "metadata.name: Forbidden: priority class names with 'system-' prefix"),
    (("storage.k8s.io", "StorageClass"), "provisioner", "", "provisioner: Required value"),
    (VALIDATING, "webhooks[0].name", "short.name", 'webhooks[0].name: Invalid value: "short.name": should be a domain with at least three segments separated by dots'),
    (VALIDATING, "webhooks[0].admissionReviewVersions", ["v9"], 'webhooks[0].admissionReviewVersions: Invalid value: "array": must include at least one of v1, v1beta1'),
    (VALIDATING, "webhooks[0].admissionReviewVersions", [], "webhooks[0].admissionReviewVersions: Required value: must specify one of v1, v1beta1"),
    (VALIDATING, "webhooks[0].sideEffects", None, "webhooks[0].sideEffects: Required value: must specify one of None, NoneOnDryRun"),
    (VALIDATING, "webhooks[0].sideEffects", "Some", 'webhooks[0].sideEffects: Unsupported value: "Some": supported values: "None", "NoneOnDryRun"'),
    (VALIDATING, "webhooks[0].timeoutSeconds", 31, "webhooks[0].timeoutSeconds: Invalid value: 31: the timeout value must be between 1 and 30 seconds"),
    (VALIDATING, "webhooks[0].failurePolicy", "x", 'webhooks[0].failurePolicy: Unsupported value: "x": supported values: "Fail", "Ignore"'),
    (VALIDATING, "webhooks[0].matchPolicy", "x", 'webhooks[0].matchPolicy: Unsupported value: "x": supported values: "Equivalent", "Exact"'),
    (VALIDATING, "webhooks[0].clientConfig.url", "https://x/", "webhooks[0].clientConfig: Required value: exactly one of url or service is required"),
    (VALIDATING, "webhooks[0].clientConfig", {"url": "http://x/"}, 'webhooks[0].clientConfig.url: Invalid value: "http": \'https\' is the only allowed URL scheme'),
    (VALIDATING, "webhooks[0].clientConfig", {"url": "https://u:p@x/?a#b"}, 'webhooks[0].clientConfig.url: Invalid value: "...": user information is not permitted in the URL'),
    (VALIDATING, "webhooks[0].clientConfig.caBundle", "eA==", 'webhooks[0].clientConfig.caBundle: Invalid value: "...": unable to load root certificates: unable to parse bytes as PEM block'),
    (VALIDATING, "webhooks[0].clientConfig.service.path", "x", 'webhooks[0].clientConfig.service.path: Invalid value: "x": must start with a \'/\''),
    (VALIDATING, "webhooks[0].clientConfig.service.port", 0, "webhooks[0].clientConfig.service.port: Invalid value: 0: port is not valid"),
    (VALIDATING, "webhooks[0].rules[0].operations", ["*", "CREATE"], "webhooks[0].rules[0].operations: Invalid value: \"array\": if '*' is present, must not specify other operations"),
    (VALIDATING, "webhooks[0].rules[0].operations", ["GET"], 'webhooks[0].rules[0].operations[0]: Unsupported value: "GET"'),
    (VALIDATING, "webhooks[0].rules[0].resources", ["*/*", "pods"], "webhooks[0].rules[0].resources: Invalid value: \"array\": if '*/*' is present, must not specify other resources"),
    (VALIDATING, "webhooks[0].rules[0].resources", ["pods/*", "pods/status"], "webhooks[0].rules[0].resources[1]: Invalid value: \"pods/status\": if 'pods/*' is present, must not specify pods/status"),
    (VALIDATING, "webhooks[0].matchConditions", [{"name": "a", "expression": "object."}], 'webhooks[0].matchConditions[0].expression: Invalid value: "object.": compilation failed'),
    (VALIDATING, "webhooks[0].matchConditions", [{"name": "a", "expression": "1 + 1"}], 'webhooks[0].matchConditions[0].expression: Invalid value: "1 + 1": must evaluate to bool'),
    (VALIDATING, "webhooks[0].matchConditions", [{"name": "a", "expression": "authorizer.requestResource.check('get').allowed()"}], ""),
    ((HOOKS, "MutatingWebhookConfiguration"), "webhooks[0].reinvocationPolicy", "x", 'webhooks[0].reinvocationPolicy: Unsupported value: "x": supported values: "IfNeeded", "Never"'),
    (("storage.k8s.io", "StorageClass"), "reclaimPolicy", "x", 'reclaimPolicy: Unsupported value: "x"'),
    (("storage.k8s.io", "StorageClass"), "volumeBindingMode", "x", 'volumeBindingMode: Unsupported value: "x"'),
]  # fmt: skip


def shown(value: Any) -> str:
    return "/".join(value) if isinstance(value, tuple) else ""


@pytest.mark.parametrize("kind", GOOD, ids=shown)
def test_good_objects(kind: Kind) -> None:
    assert faults(kind, GOOD[kind]) == []


@pytest.mark.parametrize(
    ("kind", "path", "value", "told"), BAD, ids=[f"{row[0][1]}-{row[1]}-{index}" for index, row in enumerate(BAD)]
)
def test_bad_objects(kind: Kind, path: str, value: Any, told: str) -> None:
    errors = faults(kind, put(GOOD[kind], path, value))
    assert any(error.startswith(told) for error in errors) if told else not errors, errors


def test_every_kind_has_a_good_row() -> None:
    kinds = {(resource.group, resource.kind) for resource in BUILTIN} | RULES.keys()
    assert kinds - GOOD.keys() == {("", "Pod")}


# ---- what may not change ------------------------------------------------------------------------------------------

BOUND = {"phase": "Bound", "capacity": {"storage": "1Gi"}}
FROZEN = "Forbidden: field is immutable when `immutable` is set"
CHANGES: list[tuple[Kind, dict[str, Any], str, Any, str]] = [
    (("", "ConfigMap"), {}, "data.z", "1", ""),
    (("", "ConfigMap"), {"immutable": True}, "data.z", "1", f"data: {FROZEN}"),
    (("", "ConfigMap"), {"immutable": True}, "immutable", False, f"immutable: {FROZEN}"),
    (("", "ConfigMap"), {"immutable": True}, "metadata.labels", {"a": "b"}, ""),
    (("", "Secret"), {}, "type", "x", 'type: Invalid value: "x": field is immutable'),
    (("", "Secret"), {"immutable": True}, "data.z", "AA==", f"data: {FROZEN}"),
    (("", "Service"), {}, "spec.selector", {"c": "d"}, ""),
    (("", "Node"), {"spec": {"providerID": "a"}}, "spec.providerID", "b", "spec.providerID: Forbidden: node updates may not"),
    (("", "Node"), {}, "spec.unschedulable", True, ""),
    (("", "PersistentVolumeClaim"), {}, "spec.volumeName", "v", ""),
    (("", "PersistentVolumeClaim"), {}, "spec.accessModes", ["ReadOnlyMany"], "spec: Forbidden: spec is immutable after creation"),
    (("", "PersistentVolumeClaim"), {"status": BOUND}, "spec.resources.requests.storage", "2Gi", ""),
    (("", "PersistentVolumeClaim"), {"status": BOUND}, "spec.resources.requests.storage", "1Mi", "spec.resources.requests.storage: Forbidden: field can not be less than"),
    (("", "PersistentVolume"), {}, "spec.hostPath.path", "/y", "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable"),
    (("", "ResourceQuota"), {}, "spec.scopes", ["BestEffort"], "spec.scopes: Invalid value: \"array\": field is immutable"),
    ((APPS, "Deployment"), {}, "spec.replicas", 5, ""),
    ((APPS, "Deployment"), {}, "spec.selector.matchLabels", {"z": "z"}, 'spec.selector: Invalid value: "object": field is immutable'),
    ((APPS, "ReplicaSet"), {}, "spec.selector.matchLabels", {"z": "z"}, "spec.selector: Invalid value: \"object\": field is immutable"),
    ((APPS, "DaemonSet"), {}, "spec.selector.matchLabels", {"z": "z"}, "spec.selector: Invalid value: \"object\": field is immutable"),
    ((APPS, "StatefulSet"), {}, "spec.replicas", 5, ""),
    ((APPS, "StatefulSet"), {}, "spec.serviceName", "t", "spec: Forbidden: updates to statefulset spec for fields other than 'replicas'"),
    ((APPS, "ControllerRevision"), {}, "data", {"a": 1}, 'data: Invalid value: "object": field is immutable'),
    (("batch", "Job"), {}, "spec.parallelism", 5, ""),
    (("batch", "Job"), {}, "spec.suspend", True, ""),
    (("batch", "Job"), {}, "spec.completions", 5, "spec.completions: Invalid value: 5: field is immutable"),
    (("batch", "Job"), {}, "spec.template.spec.nodeSelector", {"a": "b"}, 'spec.template: Invalid value: "object": field is immutable'),
    (("batch", "Job"), {"spec": {"suspend": True, "template": NEVER}}, "spec.template.spec.nodeSelector", {"a": "b"}, ""),
    (("discovery.k8s.io", "EndpointSlice"), {}, "addressType", "IPv6", 'addressType: Invalid value: "IPv6": field is immutable'),
    (("events.k8s.io", "Event"), {}, "series", {"count": 2}, ""),
    (("events.k8s.io", "Event"), {}, "reason", "Other", 'reason: Invalid value: "Other": field is immutable'),
    ((NET, "IngressClass"), {}, "spec.controller", "c.io/d", 'spec.controller: Invalid value: "c.io/d": field is immutable'),
    ((RBAC, "RoleBinding"), {}, "roleRef.name", "other", 'roleRef: Invalid value: "object": cannot change roleRef'),
    (("scheduling.k8s.io", "PriorityClass"), {}, "value", 5, "value: Forbidden: may not be changed in an update."),
    (("storage.k8s.io", "StorageClass"), {}, "parameters", {"a": "b"}, "parameters: Forbidden: updates to parameters are forbidden."),
    (("storage.k8s.io", "StorageClass"), {}, "allowVolumeExpansion", True, ""),
    ((CRD, "CustomResourceDefinition"), {}, "spec.group", "other.com", 'spec.group: Invalid value: "other.com": field is immutable'),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "extra", "path", "value", "told"), CHANGES, ids=[f"{row[0][1]}-{row[2]}-{i}" for i, row in enumerate(CHANGES)]
)  # fmt: skip
def test_changes(kind: Kind, extra: dict[str, Any], path: str, value: Any, told: str) -> None:
    old = created(kind, {**GOOD[kind], **{key: value for key, value in extra.items() if key != "status"}})
    if "status" in extra:
        old["status"] = extra["status"]
    errors = change_faults(kind, old, put(old, path, value))
    assert any(error.startswith(told) for error in errors) if told else not errors, errors


# ---- defaults and the life of single kinds ------------------------------------------------------------------------


def test_deployment_defaults_and_generation() -> None:
    kind = (APPS, "Deployment")
    stored = created(kind, {**GOOD[kind], "status": {"replicas": 9}})
    spec = stored["spec"]
    assert (spec["replicas"], spec["revisionHistoryLimit"], spec["progressDeadlineSeconds"]) == (1, 10, 600)
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"}}
    assert spec["template"]["spec"]["restartPolicy"] == "Always"
    assert "enableServiceLinks" not in spec["template"]["spec"]
    assert stored["status"] == {}
    assert stored["metadata"]["generation"] == 1
    labelled = put(stored, "metadata.labels", {"a": "b"})
    RULES[kind].prepare_update(labelled, stored)
    assert labelled["metadata"]["generation"] == 1
    scaled = put(stored, "spec.replicas", 3)
    RULES[kind].prepare_update(scaled, stored)
    assert scaled["metadata"]["generation"] == 2
    status = put(put(stored, "status.replicas", 3), "spec.replicas", 7)
    RULES[kind].prepare_status_update(status, stored)
    assert (status["spec"]["replicas"], status["status"]) == (1, {"replicas": 3})


def test_job_gets_labels_and_selector_from_its_uid() -> None:
    job = created(("batch", "Job"), GOOD["batch", "Job"])
    assert job["spec"]["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": "uid-1"}}
    assert job["spec"]["template"]["metadata"]["labels"] == {
        "batch.kubernetes.io/controller-uid": "uid-1",
        "batch.kubernetes.io/job-name": "x",
        "controller-uid": "uid-1",
        "job-name": "x",
    }
    spec = job["spec"]
    assert (spec["completions"], spec["parallelism"], spec["backoffLimit"]) == (1, 1, 6)
    assert (spec["completionMode"], spec["suspend"], spec["podReplacementPolicy"]) == (
        "NonIndexed",
        False,
        "TerminatingOrFailed",
    )


def test_job_with_its_own_selector() -> None:
    own = put(put(GOOD["batch", "Job"], "spec.manualSelector", True), "spec.selector", {"matchLabels": {"a": "b"}})
    assert faults(("batch", "Job"), put(own, "spec.template.metadata", {"labels": {"a": "b"}})) == []


def test_namespace_life() -> None:
    kind = ("", "Namespace")
    stored = created(kind, {"metadata": {"name": "x"}})
    assert stored["metadata"]["labels"] == {"kubernetes.io/metadata.name": "x"}
    assert stored["spec"] == {"finalizers": ["kubernetes"]}
    assert stored["status"] == {"phase": "Active"}
    emptied = put(stored, "spec.finalizers", [])
    RULES[kind].prepare_update(emptied, stored)
    assert emptied["spec"]["finalizers"] == ["kubernetes"]
    going = put(put(stored, "metadata.deletionTimestamp", "t"), "status.phase", "Active")
    assert [str(e) for e in RULES[kind].validate_status_update(going, stored)] == [
        "status.Phase: Invalid value: \"Active\": may only be 'Terminating' if `deletionTimestamp` is not empty"
    ]


def test_node_registers_with_its_status() -> None:
    node = created(("", "Node"), GOOD["", "Node"])
    assert node["status"] == {"capacity": {"cpu": "4"}, "allocatable": {"cpu": "4"}}
    changed = put(node, "status.capacity.cpu", "8")
    RULES["", "Node"].prepare_update(changed, node)
    assert changed["status"] == node["status"]


def test_service_defaults() -> None:
    spec = created(("", "Service"), GOOD["", "Service"])["spec"]
    assert spec == {
        "selector": {"a": "b"},
        "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}],
        "sessionAffinity": "None",
        "type": "ClusterIP",
        "internalTrafficPolicy": "Cluster",
        "ipFamilyPolicy": "SingleStack",
        "ipFamilies": ["IPv4"],
    }
    headless = created(("", "Service"), put(GOOD["", "Service"], "spec.clusterIP", "None"))["spec"]
    assert headless["clusterIPs"] == ["None"]
    external = {"metadata": META, "spec": {"type": "ExternalName", "externalName": "a.b"}}
    assert created(("", "Service"), external)["spec"] == {**external["spec"], "sessionAffinity": "None"}
    assert faults(("", "Service"), external) == []


def test_service_keeps_what_was_allocated() -> None:
    kind = ("", "Service")
    given = {"type": "NodePort", "clusterIP": "10.0.0.9", "ports": [{"port": 80, "nodePort": 30080}]}
    old = created(kind, {"metadata": META, "spec": given})
    plain = {"metadata": META, "spec": {"type": "NodePort", "ports": [{"port": 80}]}}
    assert change_faults(kind, old, plain) == []
    kept = created(kind, plain)
    RULES[kind].prepare_update(kept, old)
    assert (kept["spec"]["clusterIP"], kept["spec"]["ports"][0]["nodePort"]) == ("10.0.0.9", 30080)
    moved = put(old, "spec.clusterIP", "10.0.0.8")
    moved["spec"]["clusterIPs"] = ["10.0.0.8"]
    assert change_faults(kind, old, moved) == [
        'spec.clusterIPs[0]: Invalid value: ["10.0.0.8"]: may not change once set'
    ]


def test_secret_folds_string_data() -> None:
    secret = created(("", "Secret"), {"metadata": META, "data": {"a": "AA==", "b": "AA=="}, "stringData": {"a": "x"}})
    assert secret["data"] == {"a": text64("x"), "b": "AA=="}
    assert "stringData" not in secret
    assert secret["type"] == "Opaque"


def test_limit_range_fills_defaults_from_neighbours() -> None:
    (item,) = created(("", "LimitRange"), GOOD["", "LimitRange"])["spec"]["limits"]
    assert item["default"] == {"cpu": "2"}
    assert item["defaultRequest"] == {"cpu": "2"}


def test_other_defaults() -> None:
    hpa = created(("autoscaling", "HorizontalPodAutoscaler"), GOOD["autoscaling", "HorizontalPodAutoscaler"])["spec"]
    assert hpa["minReplicas"] == 1
    assert hpa["metrics"][0]["resource"]["target"] == {"type": "Utilization", "averageUtilization": 80}
    assert len(hpa["behavior"]["scaleUp"]["policies"]) == 2
    crd = created((CRD, "CustomResourceDefinition"), GOOD[CRD, "CustomResourceDefinition"])
    assert crd["spec"]["names"]["listKind"] == "WidgetList"
    assert crd["spec"]["names"]["singular"] == "widget"
    assert crd["spec"]["conversion"] == {"strategy": "None"}
    assert crd["status"]["storedVersions"] == ["v1"]
    assert created((RBAC, "RoleBinding"), GOOD[RBAC, "RoleBinding"])["roleRef"]["apiGroup"] == RBAC
    assert created((NET, "NetworkPolicy"), GOOD[NET, "NetworkPolicy"])["spec"]["policyTypes"] == ["Ingress"]
    claim = created(("", "PersistentVolumeClaim"), GOOD["", "PersistentVolumeClaim"])
    assert (claim["spec"]["volumeMode"], claim["status"]) == ("Filesystem", {"phase": "Pending"})
    sts = created((APPS, "StatefulSet"), GOOD[APPS, "StatefulSet"])["spec"]
    assert sts["updateStrategy"] == {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}
    assert sts["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    ds = created((APPS, "DaemonSet"), GOOD[APPS, "DaemonSet"])["spec"]
    assert ds["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}
    cron = created(("batch", "CronJob"), GOOD["batch", "CronJob"])["spec"]
    assert (cron["successfulJobsHistoryLimit"], cron["failedJobsHistoryLimit"]) == (3, 1)
    rc = created(("", "ReplicationController"), GOOD["", "ReplicationController"])
    assert rc["spec"]["selector"] == rc["metadata"]["labels"] == {"a": "b"}


def test_a_stateful_set_may_mount_its_claims() -> None:
    mounts = [{"name": "data", "mountPath": "/data"}]
    assert faults((APPS, "StatefulSet"), put(GOOD[APPS, "StatefulSet"], f"{T0}.volumeMounts", mounts)) == []


def test_a_storage_version_is_never_forgotten() -> None:
    kind = (CRD, "CustomResourceDefinition")
    old = created(kind, GOOD[kind])
    second = {**old["spec"]["versions"][0], "name": "v2"}
    both = put(put(old, "spec.versions[0].storage", False), "spec.versions[1]", second)
    assert change_faults(kind, old, both) == []
    RULES[kind].prepare_update(both, old)
    assert both["status"]["storedVersions"] == ["v1", "v2"]
    assert both["metadata"]["generation"] == 2
    only = put(both, "spec.versions", [second])
    (error,) = change_faults(kind, both, only)
    assert error.startswith(
        'status.storedVersions[0]: Invalid value: "v1": missing from spec.versions; v1 was previously'
    )


def test_fixed_parts_of_an_established_definition() -> None:
    kind = (CRD, "CustomResourceDefinition")
    old = created(kind, GOOD[kind])
    old["status"]["conditions"] = [{"type": "Established", "status": "True"}]
    assert any("spec.scope" in error for error in change_faults(kind, old, put(old, "spec.scope", "Cluster")))
