"""Columns and cells of every built-in kind but pods: what `kubectl get -o wide` shows."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from coterie.kube.api.resources import BUILTIN, Resource
from coterie.kube.apiserver.tables.build import columns_for, row

NOW = datetime(2026, 11, 15, 9, 0, tzinfo=UTC)
AGO = "2026-11-15T08:55:00Z"  # five minutes


def resource(plural: str, group: str = "", version: str = "v1") -> Resource:
    return next(r for r in BUILTIN if (r.group, r.version, r.plural) == (group, version, plural))


def cells(where: tuple[str, ...], obj: dict[str, Any]) -> list[Any]:
    meta = {"name": "x", "creationTimestamp": AGO, **obj.get("metadata", {})}
    return row(resource(*where), {**obj, "metadata": meta}, NOW)


HEADERS = {
    ("pods",): "Name Ready Status Restarts Age | IP Node Nominated_Node Readiness_Gates",
    ("deployments", "apps"): "Name Ready Up-to-date Available Age | Containers Images Selector",
    ("replicasets", "apps"): "Name Desired Current Ready Age | Containers Images Selector",
    ("replicationcontrollers",): "Name Desired Current Ready Age | Containers Images Selector",
    ("statefulsets", "apps"): "Name Ready Age | Containers Images",
    ("daemonsets", "apps"): "Name Desired Current Ready Up-to-date Available Node_Selector Age | Containers Images Selector",
    ("controllerrevisions", "apps"): "Name Controller Revision Age |",
    ("podtemplates",): "Name Containers Images Pod_Labels |",
    ("jobs", "batch"): "Name Status Completions Duration Age | Containers Images Selector",
    ("cronjobs", "batch"): "Name Schedule Timezone Suspend Active Last_Schedule Age | Containers Images Selector",
    ("horizontalpodautoscalers", "autoscaling"): "Name Reference Targets MinPods MaxPods Replicas Age |",
    ("horizontalpodautoscalers", "autoscaling", "v2"): "Name Reference Targets MinPods MaxPods Replicas Age |",
    ("certificatesigningrequests", "certificates.k8s.io"): "Name Age SignerName Requestor RequestedDuration Condition |",
    ("poddisruptionbudgets", "policy"): "Name Min_Available Max_Unavailable Allowed_Disruptions Age |",
    ("services",): "Name Type Cluster-IP External-IP Port(s) Age | Selector",
    ("endpoints",): "Name Endpoints Age |",
    ("endpointslices", "discovery.k8s.io"): "Name AddressType Ports Endpoints Age |",
    ("ingresses", "networking.k8s.io"): "Name Class Hosts Address Ports Age |",
    ("ingressclasses", "networking.k8s.io"): "Name Controller Parameters Age |",
    ("networkpolicies", "networking.k8s.io"): "Name Pod-Selector Age |",
    ("nodes",): "Name Status Roles Age Version | Internal-IP External-IP OS-Image Kernel-Version Container-Runtime",
    ("namespaces",): "Name Status Age |",
    ("events",): "Last_Seen Type Reason Object Message | Subobject Source First_Seen Count Name",
    ("events", "events.k8s.io"): "Last_Seen Type Reason Object Message | Subobject Source First_Seen Count Name",
    ("secrets",): "Name Type Data Age |",
    ("configmaps",): "Name Data Age |",
    ("serviceaccounts",): "Name Secrets Age |",
    ("resourcequotas",): "Name Request Limit Age |",
    ("limitranges",): "Name Created_At |",
    ("persistentvolumes",): "Name Capacity Access_Modes Reclaim_Policy Status Claim StorageClass VolumeAttributesClass Reason Age | VolumeMode",
    ("persistentvolumeclaims",): "Name Status Volume Capacity Access_Modes StorageClass VolumeAttributesClass Age | VolumeMode",
    ("storageclasses", "storage.k8s.io"): "Name Provisioner ReclaimPolicy VolumeBindingMode AllowVolumeExpansion Age |",
    ("priorityclasses", "scheduling.k8s.io"): "Name Value Global-Default Age PreemptionPolicy |",
    ("leases", "coordination.k8s.io"): "Name Holder Age |",
    ("roles", "rbac.authorization.k8s.io"): "Name Created_At |",
    ("clusterroles", "rbac.authorization.k8s.io"): "Name Created_At |",
    ("rolebindings", "rbac.authorization.k8s.io"): "Name Role Age | Users Groups ServiceAccounts",
    ("clusterrolebindings", "rbac.authorization.k8s.io"): "Name Role Age | Users Groups ServiceAccounts",
    ("customresourcedefinitions", "apiextensions.k8s.io"): "Name Created_At |",
    ("mutatingadmissionpolicies", "admissionregistration.k8s.io"): "Name Mutations ParamKind Age |",
    ("mutatingadmissionpolicybindings", "admissionregistration.k8s.io"): "Name PolicyName ParamRef Age |",
    ("validatingadmissionpolicies", "admissionregistration.k8s.io"): "Name Validations ParamKind Age |",
    ("validatingadmissionpolicybindings", "admissionregistration.k8s.io"): "Name PolicyName ParamRef Age |",
    ("apiservices", "apiregistration.k8s.io"): "Name Service Available Age |",
    ("flowschemas", "flowcontrol.apiserver.k8s.io"): "Name PriorityLevel MatchingPrecedence DistinguisherMethod Age MissingPL |",
    ("prioritylevelconfigurations", "flowcontrol.apiserver.k8s.io"): "Name Type NominalConcurrencyShares Queues HandSize QueueLengthLimit Age |",
    ("ipaddresses", "networking.k8s.io"): "Name ParentRef Age |",
    ("servicecidrs", "networking.k8s.io"): "Name CIDRs Age |",
    ("runtimeclasses", "node.k8s.io"): "Name Handler Age |",
    ("deviceclasses", "resource.k8s.io"): "Name Age |",
    ("resourceclaims", "resource.k8s.io"): "Name State Age |",
    ("resourceclaimtemplates", "resource.k8s.io"): "Name Age |",
    ("resourceslices", "resource.k8s.io"): "Name Node Driver Pool Age |",
    ("csidrivers", "storage.k8s.io"): "Name AttachRequired PodInfoOnMount StorageCapacity TokenRequests RequiresRepublish Modes Age |",
    ("csinodes", "storage.k8s.io"): "Name Drivers Age |",
    ("csistoragecapacities", "storage.k8s.io"): "Name StorageClassName Capacity |",
    ("volumeattachments", "storage.k8s.io"): "Name Attacher PV Node Attached Age |",
    ("volumeattributesclasses", "storage.k8s.io"): "Name DriverName Age |",
    ("mutatingwebhookconfigurations", "admissionregistration.k8s.io"): "Name Webhooks Age |",
    ("validatingwebhookconfigurations", "admissionregistration.k8s.io"): "Name Webhooks Age |",
}  # fmt: skip


def test_every_stored_kind_has_a_row_here() -> None:
    stored = {(r.plural, r.group) for r in BUILTIN if not r.virtual}
    assert stored == {(*where, "")[:2] for where in HEADERS}


@pytest.mark.parametrize(("where", "told"), HEADERS.items(), ids=lambda v: ".".join(v) if isinstance(v, tuple) else "")
def test_headers(where: tuple[str, ...], told: str) -> None:
    columns = columns_for(resource(*where))
    short, _, wide = told.partition("|")
    assert [c["name"].replace(" ", "_") for c in columns if not c["priority"]] == short.split()
    assert [c["name"].replace(" ", "_") for c in columns if c["priority"]] == wide.split()
    assert [c["name"] for c in columns if c["format"] == "name"] == ["Name"]
    assert all(c["description"] and c["type"] in ("string", "integer", "boolean", "date") for c in columns)


@pytest.mark.parametrize("where", HEADERS, ids=".".join)
def test_bare_objects_have_a_cell_for_each_column(where: tuple[str, ...]) -> None:
    bare = row(resource(*where), {"metadata": {"name": "x"}}, NOW)
    assert len(bare) == len(columns_for(resource(*where)))
    hollow = row(resource(*where), {"metadata": {"name": "x"}, "spec": None, "status": None, "data": None}, NOW)
    assert hollow == bare


TEMPLATE = {
    "metadata": {"labels": {"b": "2", "a": "1"}},
    "spec": {"containers": [{"name": "c", "image": "i:1"}, {"name": "d", "image": "j"}]},
}
SELECTOR = {
    "matchLabels": {"app": "web"},
    "matchExpressions": [
        {"key": "z", "operator": "Exists"},
        {"key": "tier", "operator": "In", "values": ["b", "a"]},
        {"key": "old", "operator": "DoesNotExist"},
        {"key": "env", "operator": "NotIn", "values": ["dev"]},
    ],
}
SELECTED = "app=web,env notin (dev),!old,tier in (a,b),z"
APPS, BATCH, NET = ("apps",), ("batch",), ("networking.k8s.io",)

ROWS: list[tuple[str, tuple[str, ...], dict[str, Any], list[Any]]] = [
    (
        "deployment", ("deployments", *APPS),
        {"spec": {"replicas": 3, "selector": SELECTOR, "template": TEMPLATE},
         "status": {"readyReplicas": 1, "updatedReplicas": 2, "availableReplicas": 1}},
        ["x", "1/3", 2, 1, "5m", "c,d", "i:1,j", SELECTED],
    ),
    ("deployment-new", ("deployments", *APPS), {"spec": {"replicas": 2, "template": TEMPLATE}}, ["x", "0/2", 0, 0, "5m", "c,d", "i:1,j", ""]),
    (
        "replicaset", ("replicasets", *APPS),
        {"spec": {"replicas": 2, "template": TEMPLATE}, "status": {"replicas": 2, "readyReplicas": 1}},
        ["x", 2, 2, 1, "5m", "c,d", "i:1,j", "<none>"],
    ),
    (
        "replicationcontroller", ("replicationcontrollers",),
        {"spec": {"replicas": 2, "selector": {"b": "2", "a": "1"}}, "status": {"replicas": 1}},
        ["x", 2, 1, 0, "5m", "", "", "a=1,b=2"],
    ),
    ("statefulset", ("statefulsets", *APPS), {"spec": {"replicas": 2, "template": TEMPLATE}, "status": {"readyReplicas": 2}}, ["x", "2/2", "5m", "c,d", "i:1,j"]),
    (
        "daemonset", ("daemonsets", *APPS),
        {"spec": {"template": {"spec": {"nodeSelector": {"gpu": "yes"}, "containers": []}}, "selector": {"matchLabels": {"a": "1"}}},
         "status": {"desiredNumberScheduled": 5, "currentNumberScheduled": 4, "numberReady": 3, "updatedNumberScheduled": 2, "numberAvailable": 1}},
        ["x", 5, 4, 3, 2, 1, "gpu=yes", "5m", "", "", "a=1"],
    ),
    (
        "controllerrevision", ("controllerrevisions", *APPS),
        {"revision": 4, "metadata": {"ownerReferences": [{"kind": "Other", "name": "o"}, {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "controller": True}]}},
        ["x", "daemonset.apps/d", 4, "5m"],
    ),
    ("controllerrevision-orphan", ("controllerrevisions", *APPS), {"revision": 1}, ["x", "<none>", 1, "5m"]),
    ("podtemplate", ("podtemplates",), {"template": TEMPLATE}, ["x", "c,d", "i:1,j", "a=1,b=2"]),
    (
        "job-running", ("jobs", *BATCH), {"spec": {"completions": 3, "template": TEMPLATE}, "status": {"succeeded": 1, "startTime": AGO}},
        ["x", "Running", "1/3", "5m", "5m", "c,d", "i:1,j", "<none>"],
    ),
    (
        "job-complete", ("jobs", *BATCH),
        {"spec": {"completions": 1}, "status": {"succeeded": 1, "startTime": AGO, "completionTime": "2026-11-15T08:55:42Z", "conditions": [{"type": "Complete", "status": "True"}]}},
        ["x", "Complete", "1/1", "42s", "5m", "", "", "<none>"],
    ),
    ("job-failed", ("jobs", *BATCH), {"spec": {"parallelism": 4}, "status": {"conditions": [{"type": "Failed", "status": "True"}]}}, ["x", "Failed", "0/1 of 4", "", "5m", "", "", "<none>"]),
    ("job-suspended", ("jobs", *BATCH), {"spec": {"parallelism": 1}, "status": {"conditions": [{"type": "Suspended", "status": "True"}]}}, ["x", "Suspended", "0/1", "", "5m", "", "", "<none>"]),
    ("job-failing", ("jobs", *BATCH), {"status": {"conditions": [{"type": "FailureTarget", "status": "True"}, {"type": "Suspended", "status": "False"}]}}, ["x", "FailureTarget", "0/1", "", "5m", "", "", "<none>"]),
    ("job-terminating", ("jobs", *BATCH), {"metadata": {"deletionTimestamp": AGO}}, ["x", "Terminating", "0/1", "", "5m", "", "", "<none>"]),
    (
        "cronjob", ("cronjobs", *BATCH),
        {"spec": {"schedule": "* * * * *", "timeZone": "Etc/UTC", "suspend": False, "jobTemplate": {"spec": {"template": TEMPLATE}}},
         "status": {"active": [{}, {}], "lastScheduleTime": "2026-11-15T08:59:30Z"}},
        ["x", "* * * * *", "Etc/UTC", "False", 2, "30s", "5m", "c,d", "i:1,j", "<none>"],
    ),
    ("cronjob-new", ("cronjobs", *BATCH), {"spec": {"schedule": "@daily"}}, ["x", "@daily", "<none>", "<unset>", 0, "<none>", "5m", "", "", "<none>"]),
    (
        "pdb", ("poddisruptionbudgets", "policy"), {"spec": {"minAvailable": "50%"}, "status": {"disruptionsAllowed": 2}},
        ["x", "50%", "N/A", 2, "5m"],
    ),
    ("pdb-zero", ("poddisruptionbudgets", "policy"), {"spec": {"maxUnavailable": 0}}, ["x", "N/A", "0", 0, "5m"]),
    (
        "service", ("services",),
        {"spec": {"type": "ClusterIP", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ports": [{"port": 80, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}], "selector": {"a": "1"}}},
        ["x", "ClusterIP", "10.0.0.1", "<none>", "80/TCP,53/UDP", "5m", "a=1"],
    ),
    ("service-headless", ("services",), {"spec": {"type": "ClusterIP", "clusterIP": "None"}}, ["x", "ClusterIP", "None", "<none>", "<none>", "5m", "<none>"]),
    (
        "service-nodeport", ("services",), {"spec": {"type": "NodePort", "clusterIPs": ["10.0.0.2"], "externalIPs": ["1.1.1.1", "2.2.2.2"], "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}]}},
        ["x", "NodePort", "10.0.0.2", "1.1.1.1,2.2.2.2", "80:30080/TCP", "5m", "<none>"],
    ),
    ("service-lb-pending", ("services",), {"spec": {"type": "LoadBalancer", "clusterIPs": ["10.0.0.2"]}}, ["x", "LoadBalancer", "10.0.0.2", "<pending>", "<none>", "5m", "<none>"]),
    (
        "service-lb", ("services",), {"spec": {"type": "LoadBalancer", "externalIPs": ["9.9.9.9"]}, "status": {"loadBalancer": {"ingress": [{"hostname": "lb.example"}, {"ip": "3.3.3.3"}]}}},
        ["x", "LoadBalancer", "<none>", "3.3.3.3,lb.example,9.9.9.9", "<none>", "5m", "<none>"],
    ),
    ("service-name", ("services",), {"spec": {"type": "ExternalName", "externalName": "db.example"}}, ["x", "ExternalName", "<none>", "db.example", "<none>", "5m", "<none>"]),
    ("endpoints-none", ("endpoints",), {}, ["x", "<none>", "5m"]),
    (
        "endpoints", ("endpoints",), {"subsets": [{"addresses": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}], "ports": [{"port": 80}, {"port": 81}]}]},
        ["x", "10.0.0.1:80,[fd00::1]:80,10.0.0.1:81 + 1 more...", "5m"],
    ),
    ("endpoints-headless", ("endpoints",), {"subsets": [{"addresses": [{"ip": "10.0.0.1"}]}]}, ["x", "10.0.0.1", "5m"]),
    (
        "endpointslice", ("endpointslices", "discovery.k8s.io"),
        {"addressType": "IPv4", "ports": [{"port": 80}, {"name": "web"}, {}, {"port": 4}], "endpoints": [{"addresses": ["a"]}, {"addresses": ["b", "c"]}]},
        ["x", "IPv4", "80,web,* + 1 more...", "a,b,c", "5m"],
    ),
    ("endpointslice-empty", ("endpointslices", "discovery.k8s.io"), {"addressType": "IPv6"}, ["x", "IPv6", "<unset>", "<unset>", "5m"]),
    (
        "ingress", ("ingresses", *NET),
        {"spec": {"ingressClassName": "n", "rules": [{"host": h} for h in "abcde"], "tls": [{}]}, "status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}},
        ["x", "n", "a,b,c + 2 more...", "1.2.3.4", "80, 443", "5m"],
    ),
    ("ingress-any", ("ingresses", *NET), {"spec": {"rules": [{}]}}, ["x", "<none>", "*", "", "80", "5m"]),
    ("ingressclass", ("ingressclasses", *NET), {"spec": {"controller": "c", "parameters": {"apiGroup": "g.io", "kind": "K", "name": "p"}}}, ["x", "c", "K.g.io/p", "5m"]),
    ("ingressclass-plain", ("ingressclasses", *NET), {"spec": {"controller": "c"}}, ["x", "c", "<none>", "5m"]),
    ("networkpolicy", ("networkpolicies", *NET), {"spec": {"podSelector": {}}}, ["x", "<none>", "5m"]),
    (
        "node", ("nodes",),
        {"metadata": {"labels": {"node-role.kubernetes.io/worker": "", "kubernetes.io/role": "edge", "node-role.kubernetes.io/": ""}},
         "spec": {"unschedulable": True},
         "status": {"conditions": [{"type": "Ready", "status": "True"}], "addresses": [{"type": "InternalIP", "address": "10.1.1.1"}], "nodeInfo": {"kubeletVersion": "v1.32.0", "osImage": "Debian"}}},
        ["x", "Ready,SchedulingDisabled", "edge,worker", "5m", "v1.32.0", "10.1.1.1", "<none>", "Debian", "<unknown>", "<unknown>"],
    ),
    ("node-not-ready", ("nodes",), {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}, ["x", "NotReady", "<none>", "5m", "", "<none>", "<none>", "<unknown>", "<unknown>", "<unknown>"]),
    ("node-silent", ("nodes",), {}, ["x", "Unknown", "<none>", "5m", "", "<none>", "<none>", "<unknown>", "<unknown>", "<unknown>"]),
    ("namespace", ("namespaces",), {"status": {"phase": "Active"}}, ["x", "Active", "5m"]),
    (
        "event", ("events",),
        {"type": "Normal", "reason": "Pulled", "message": " done\n", "count": 3, "firstTimestamp": "2026-11-15T08:00:00Z", "lastTimestamp": AGO,
         "involvedObject": {"kind": "Pod", "name": "p", "fieldPath": "spec.containers{c}"}, "source": {"component": "kubelet", "host": "n1"}},
        ["5m", "Normal", "Pulled", "pod/p", "spec.containers{c}", "kubelet, n1", "done", "60m", 3, "x"],
    ),
    (
        "event-once", ("events",),
        {"type": "Warning", "reason": "R", "message": "m", "eventTime": "2026-11-15T08:59:00.000001Z", "involvedObject": {"kind": "Node"}, "reportingComponent": "sched"},
        ["59s", "Warning", "R", "node", "", "sched", "m", "59s", 1, "x"],
    ),
    (
        "event-series", ("events",),
        {"eventTime": AGO, "series": {"count": 9, "lastObservedTime": "2026-11-15T08:59:50.000000Z"}, "involvedObject": {"kind": "Pod", "name": "p"}},
        ["10s", "", "", "pod/p", "", "", "", "5m", 9, "x"],
    ),
    (
        "event-new-group", ("events", "events.k8s.io"),
        {"type": "Normal", "reason": "R", "note": "n", "regarding": {"kind": "Pod", "name": "p"}, "deprecatedCount": 2, "deprecatedFirstTimestamp": AGO, "reportingController": "c", "reportingInstance": "i"},
        ["5m", "Normal", "R", "pod/p", "", "c, i", "n", "5m", 2, "x"],
    ),
    (
        "csidriver", ("csidrivers", "storage.k8s.io"),
        {"spec": {"attachRequired": False, "tokenRequests": [{"audience": "a"}, {"audience": "b"}], "volumeLifecycleModes": ["Persistent", "Ephemeral"]}},
        ["x", False, False, False, "a,b", False, "Persistent,Ephemeral", "5m"],
    ),
    ("csidriver-plain", ("csidrivers", "storage.k8s.io"), {}, ["x", True, False, False, "<unset>", False, "<none>", "5m"]),
    ("csinode", ("csinodes", "storage.k8s.io"), {"spec": {"drivers": [{}, {}]}}, ["x", 2, "5m"]),
    ("csistoragecapacity", ("csistoragecapacities", "storage.k8s.io"), {"storageClassName": "s", "capacity": "1Gi"}, ["x", "s", "1Gi"]),
    (
        "volumeattachment", ("volumeattachments", "storage.k8s.io"),
        {"spec": {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "v"}}, "status": {"attached": True}},
        ["x", "d", "v", "n", True, "5m"],
    ),
    ("volumeattributesclass", ("volumeattributesclasses", "storage.k8s.io"), {"driverName": "d"}, ["x", "d", "5m"]),
    ("runtimeclass", ("runtimeclasses", "node.k8s.io"), {"handler": "runp"}, ["x", "runp", "5m"]),
    (
        "ipaddress", ("ipaddresses", "networking.k8s.io"),
        {"spec": {"parentRef": {"resource": "services", "namespace": "n", "name": "s"}}}, ["x", "services/n/s", "5m"],
    ),
    ("ipaddress-of-a-group", ("ipaddresses", "networking.k8s.io"), {"spec": {"parentRef": {"group": "g.io", "resource": "r", "name": "s"}}}, ["x", "r.g.io/s", "5m"]),
    ("servicecidr", ("servicecidrs", "networking.k8s.io"), {"spec": {"cidrs": ["10.0.0.0/8", "fd00::/64"]}}, ["x", "10.0.0.0/8,fd00::/64", "5m"]),
    ("claim-pending", ("resourceclaims", "resource.k8s.io"), {}, ["x", "pending", "5m"]),
    (
        "claim-going", ("resourceclaims", "resource.k8s.io"),
        {"metadata": {"deletionTimestamp": AGO}, "status": {"allocation": {}, "reservedFor": [{}]}}, ["x", "deleted,allocated,reserved", "5m"],
    ),
    ("slice", ("resourceslices", "resource.k8s.io"), {"spec": {"nodeName": "n", "driver": "d", "pool": {"name": "p"}}}, ["x", "n", "d", "p", "5m"]),
    (
        "flowschema", ("flowschemas", "flowcontrol.apiserver.k8s.io"),
        {"spec": {"priorityLevelConfiguration": {"name": "l"}, "matchingPrecedence": 7}, "status": {"conditions": [{"type": "Dangling", "status": "False"}]}},
        ["x", "l", 7, "<none>", "5m", "False"],
    ),
    (
        "prioritylevel", ("prioritylevelconfigurations", "flowcontrol.apiserver.k8s.io"),
        {"spec": {"type": "Limited", "limited": {"nominalConcurrencyShares": 0, "limitResponse": {"type": "Queue", "queuing": {"queues": 4, "handSize": 2, "queueLengthLimit": 9}}}}},
        ["x", "Limited", 0, 4, 2, 9, "5m"],
    ),
    ("prioritylevel-exempt", ("prioritylevelconfigurations", "flowcontrol.apiserver.k8s.io"), {"spec": {"type": "Exempt"}}, ["x", "Exempt", "<none>", "<none>", "<none>", "<none>", "5m"]),
    ("secret", ("secrets",), {"type": "Opaque", "data": {"a": "", "b": ""}}, ["x", "Opaque", 2, "5m"]),
    ("configmap", ("configmaps",), {"data": {"a": ""}, "binaryData": {"b": ""}}, ["x", 2, "5m"]),
    ("serviceaccount", ("serviceaccounts",), {"secrets": [{}]}, ["x", 1, "5m"]),
    (
        "resourcequota", ("resourcequotas",),
        {"status": {"hard": {"pods": "10", "limits.cpu": "4", "requests.cpu": "2"}, "used": {"pods": "3", "limits.cpu": "1"}}},
        ["x", "pods: 3/10, requests.cpu: 0/2", "limits.cpu: 1/4", "5m"],
    ),
    ("limitrange", ("limitranges",), {}, ["x", AGO]),
    (
        "pv", ("persistentvolumes",),
        {"spec": {"capacity": {"storage": "5Gi"}, "accessModes": ["ReadWriteMany", "ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Retain", "claimRef": {"namespace": "n", "name": "c"}, "storageClassName": "fast", "volumeMode": "Filesystem"},
         "status": {"phase": "Bound"}},
        ["x", "5Gi", "RWO,RWX", "Retain", "Bound", "n/c", "fast", "<unset>", "", "5m", "Filesystem"],
    ),
    (
        "pvc-bound", ("persistentvolumeclaims",),
        {"spec": {"volumeName": "v", "storageClassName": "fast"}, "status": {"phase": "Bound", "capacity": {"storage": "5Gi"}, "accessModes": ["ReadWriteOncePod"]}},
        ["x", "Bound", "v", "5Gi", "RWOP", "fast", "<unset>", "5m", "<unset>"],
    ),
    (
        "pvc-going", ("persistentvolumeclaims",),
        {"metadata": {"deletionTimestamp": AGO, "annotations": {"volume.beta.kubernetes.io/storage-class": "old"}}, "status": {"phase": "Pending", "accessModes": ["ReadOnlyMany"]}},
        ["x", "Terminating", "", "", "", "old", "<unset>", "5m", "<unset>"],
    ),
    (
        "storageclass", ("storageclasses", "storage.k8s.io"),
        {"metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}, "provisioner": "p", "volumeBindingMode": "WaitForFirstConsumer", "allowVolumeExpansion": True},
        ["x (default)", "p", "Delete", "WaitForFirstConsumer", True, "5m"],
    ),
    ("priorityclass", ("priorityclasses", "scheduling.k8s.io"), {"value": 1000, "preemptionPolicy": "Never"}, ["x", 1000, False, "5m", "Never"]),
    ("webhooks", ("validatingwebhookconfigurations", "admissionregistration.k8s.io"), {"webhooks": [{}, {}]}, ["x", 2, "5m"]),
    ("lease", ("leases", "coordination.k8s.io"), {"spec": {"holderIdentity": "me"}}, ["x", "me", "5m"]),
    ("role", ("roles", "rbac.authorization.k8s.io"), {"rules": []}, ["x", AGO]),
    (
        "rolebinding", ("rolebindings", "rbac.authorization.k8s.io"),
        {"roleRef": {"kind": "Role", "name": "r"}, "subjects": [{"kind": "User", "name": "u"}, {"kind": "User", "name": "v"}, {"kind": "Group", "name": "g"}, {"kind": "ServiceAccount", "namespace": "n", "name": "s"}]},
        ["x", "Role/r", "5m", "u, v", "g", "n/s"],
    ),
    ("crd", ("customresourcedefinitions", "apiextensions.k8s.io"), {}, ["x", AGO]),
    (
        "admission-policy", ("validatingadmissionpolicies", "admissionregistration.k8s.io"),
        {"spec": {"validations": [{}, {}], "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}}}, ["x", 2, "v1/ConfigMap", "5m"],
    ),
    (
        "admission-policy-binding", ("validatingadmissionpolicybindings", "admissionregistration.k8s.io"),
        {"spec": {"policyName": "p", "paramRef": {"name": "c"}}}, ["x", "p", "*/c", "5m"],
    ),
    ("mutating-policy", ("mutatingadmissionpolicies", "admissionregistration.k8s.io"), {"spec": {"mutations": [{}]}}, ["x", 1, "<unset>", "5m"]),
    ("apiservice-local", ("apiservices", "apiregistration.k8s.io"), {"status": {"conditions": [{"type": "Available", "status": "True"}]}}, ["x", "Local", "True", "5m"]),
    (
        "apiservice", ("apiservices", "apiregistration.k8s.io"),
        {"spec": {"service": {"namespace": "n", "name": "s"}}, "status": {"conditions": [{"type": "Available", "status": "False", "reason": "MissingEndpoints"}]}},
        ["x", "n/s", "False (MissingEndpoints)", "5m"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("where", "obj", "told"), [r[1:] for r in ROWS], ids=[r[0] for r in ROWS])
def test_cells(where: tuple[str, ...], obj: dict[str, Any], told: list[Any]) -> None:
    assert cells(where, obj) == told


def resource_metric(name: str, **target: Any) -> dict[str, Any]:
    return {"type": "Resource", "resource": {"name": name, "target": target}}


METRICS: dict[str, tuple[list[Any], list[Any], str]] = {
    "none": ([], [], "<none>"),
    "utilization-unknown": ([resource_metric("cpu", averageUtilization=80)], [], "cpu: <unknown>/80%"),
    "utilization": ([resource_metric("cpu", averageUtilization=80)], [{"type": "Resource", "resource": {"current": {"averageUtilization": 20}}}], "cpu: 20%/80%"),
    "auto": ([resource_metric("memory")], [], "memory: <unknown>/<auto>"),
    "value": ([resource_metric("memory", averageValue="1Gi")], [{"resource": {"current": {"averageValue": "512Mi"}}}], "memory: 512Mi/1Gi"),
    "container": ([{"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "c", "target": {"averageUtilization": 5}}}], [], "cpu: <unknown>/5%"),
    "pods": ([{"type": "Pods", "pods": {"target": {"averageValue": "10"}}}], [{"pods": {"current": {"averageValue": "7"}}}], "7/10"),
    "external-average": ([{"type": "External", "external": {"target": {"averageValue": "10"}}}], [], "<unknown>/10 (avg)"),
    "object": ([{"type": "Object", "object": {"target": {"value": "9"}}}], [{"object": {"current": {"value": "4"}}}], "4/9"),
    "unheard-of": ([{"type": "New"}], [], "<unknown type>"),
    "three": ([resource_metric("a", averageUtilization=1)] * 3, [], "a: <unknown>/1%, a: <unknown>/1% + 1 more..."),
}  # fmt: skip


@pytest.mark.parametrize(("specs", "statuses", "told"), METRICS.values(), ids=METRICS.keys())
def test_autoscaler_targets(specs: list[Any], statuses: list[Any], told: str) -> None:
    obj = {
        "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "d"}, "maxReplicas": 4, "metrics": specs},
        "status": {"currentReplicas": 2, "currentMetrics": statuses},
    }
    where = ("horizontalpodautoscalers", "autoscaling", "v2")
    assert cells(where, obj) == ["x", "Deployment/d", told, "<unset>", 4, 2, "5m"]


def test_autoscaler_of_version_one() -> None:
    obj = {
        "spec": {"scaleTargetRef": {"kind": "D", "name": "d"}, "minReplicas": 1, "targetCPUUtilizationPercentage": 70},
        "status": {"currentCPUUtilizationPercentage": 33},
    }
    told = ["x", "D/d", "cpu: 33%/70%", "1", 0, 0, "5m"]
    assert cells(("horizontalpodautoscalers", "autoscaling", "v1"), obj) == told
