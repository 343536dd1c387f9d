"""Descriptions: what people must find in them, and what must never be in them."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from textwrap import dedent
from typing import Any

import pytest

from coterie.cli.describe import describe
from coterie.cli.describe_sheet import title
from coterie.kube.api.resources import BUILTIN, Resource
from coterie.kuscia.api.types.domain import kuscia_resource

NOW = datetime(2026, 11, 15, 9, 0, tzinfo=UTC)
AGO = "2026-11-15T08:55:00Z"
KUSCIA = "kuscia.secretflow"


def builtin(kind: str) -> Resource:
    return next(r for r in BUILTIN if r.kind == kind)


def custom(kind: str, group: str = KUSCIA, namespaced: bool = True) -> Resource:
    return Resource(group, "v1alpha1", kind.lower() + "s", kind, namespaced, storage=(group, "v1alpha1"), custom=True)


def told(obj: dict[str, Any], resource: Resource, events: list[dict[str, Any]] | None = None) -> str:
    meta = {"name": "x", "namespace": "n", "creationTimestamp": AGO, **obj.get("metadata", {})}
    return describe({**obj, "metadata": meta}, events or [], resource, NOW)


def test_any_kind() -> None:
    obj = {
        "apiVersion": "lab.io/v1alpha1",
        "kind": "Widget",
        "metadata": {"labels": {"b": "2", "a": "1"}, "managedFields": [{"manager": "m"}], "generation": 2},
        "spec": {
            "size": 3,
            "isOn": True,
            "empty": {},
            "podIP": "10.0.0.1",
            "parts": [{"name": "p", "ports": [80, 81]}, {"name": "q"}],
        },
        "status": {"phase": "Ready"},
    }
    assert told(obj, custom("Widget", "lab.io")) == dedent("""\
        Name:         x
        Namespace:    n
        Labels:       a=1
                      b=2
        Annotations:  <none>
        API Version:  lab.io/v1alpha1
        Kind:         Widget
        Metadata:
          Creation Timestamp:  2026-11-15T08:55:00Z
          Generation:          2
        Spec:
          Empty:  <none>
          Is On:  true
          Parts:
            Name:  p
            Ports:
              80
              81
            Name:  q
          Pod IP:  10.0.0.1
          Size:    3
        Status:
          Phase:  Ready
        Events:   <none>
        """)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("creationTimestamp", "Creation Timestamp"),
        ("podIP", "Pod IP"),
        ("uid", "UID"),
        ("domainID", "Domain ID"),
        ("mTLSConfig", "M TLS Config"),
        ("app.kubernetes.io/name", "app.kubernetes.io/name"),
        ("use_records", "Use Records"),
    ],
)
def test_titles(name: str, words: str) -> None:
    assert title(name) == words


def test_events() -> None:
    events = [
        {"type": "Warning", "reason": "BackOff", "message": "again\n", "count": 4, "firstTimestamp": "2026-11-15T08:50:00Z",
         "lastTimestamp": "2026-11-15T08:59:30Z", "source": {"component": "agent"}},
        {"type": "Normal", "reason": "Pulled", "note": "done", "eventTime": AGO, "reportingController": "agent"},
    ]  # fmt: skip
    text = told({}, custom("Widget"), events)
    assert text[text.index("Events:") :] == dedent("""\
        Events:
          Type     Reason   Age                From   Message
          ----     ------   ---                ----   -------
          Normal   Pulled   5m                 agent  done
          Warning  BackOff  30s (x4 over 10m)  agent  again
          """)


SECRET = "hunter2-very-secret"
ENCODED = base64.b64encode(SECRET.encode()).decode()
HIDING: dict[str, tuple[dict[str, Any], Resource]] = {
    "secret": ({"type": "Opaque", "data": {"password": ENCODED}, "stringData": {"password": SECRET}}, builtin("Secret")),
    "secret-applied": (
        {"data": {"k": ENCODED}, "metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": ENCODED + SECRET}}},
        builtin("Secret"),
    ),
    "deploy-token": ({"status": {"deployTokenStatuses": [{"token": SECRET, "state": "unused"}]}}, custom("Domain", namespaced=False)),
    "route-key": ({"spec": {"mTLSConfig": {"sourceClientPrivateKey": ENCODED}}}, custom("DomainRoute")),
    "route-token": ({"status": {"tokenStatus": {"tokens": [{"token": SECRET, "isReady": True}]}}}, custom("DomainRoute")),
    "route-header": ({"spec": {"requestHeadersToAdd": {"Authorization": SECRET}}}, custom("DomainRoute")),
    "source": ({"spec": {"data": {"encryptedInfo": SECRET}}}, custom("DomainDataSource")),
    "env-from-secret": (
        {"spec": {"containers": [{"name": "c", "env": [{"name": "P", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}]}},
        builtin("Pod"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("obj", "resource"), HIDING.values(), ids=HIDING.keys())
def test_secrets_are_never_shown(obj: dict[str, Any], resource: Resource) -> None:
    text = told(obj, resource)
    assert SECRET not in text
    assert ENCODED not in text


def test_secret_sizes() -> None:
    assert f"password:  {len(SECRET)} bytes" in told(HIDING["secret"][0], builtin("Secret"))


POD = {
    "metadata": {"ownerReferences": [{"kind": "ReplicaSet", "name": "web-1", "controller": True}]},
    "spec": {
        "nodeName": "n1",
        "serviceAccountName": "sa",
        "containers": [
            {
                "name": "c",
                "image": "nginx:1",
                "command": ["sh", "-c"],
                "args": ["a\nb"],
                "ports": [{"containerPort": 80, "protocol": "TCP"}],
                "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
                "livenessProbe": {"httpGet": {"path": "/h", "port": 80}, "periodSeconds": 5},
                "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": True}],
            }
        ],
        "volumes": [{"name": "v", "configMap": {"name": "cm"}}],
        "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
    },
    "status": {
        "phase": "Running",
        "hostIP": "10.1.1.1",
        "podIP": "10.0.0.5",
        "startTime": AGO,
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [
            {
                "name": "c",
                "ready": True,
                "restartCount": 2,
                "state": {"running": {"startedAt": AGO}},
                "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": AGO}},
            }
        ],
    },
}  # fmt: skip

FACTS: dict[str, tuple[dict[str, Any], Resource, list[str]]] = {
    "pod": (
        POD, builtin("Pod"),
        [
            "Node: n1/10.1.1.1", "Service Account: sa", "Start Time: Sun, 15 Nov 2026 08:55:00 +0000", "Status: Running", "IP: 10.0.0.5",
            "Controlled By: ReplicaSet/web-1", "Image: nginx:1", "Port: 80/TCP", "State: Running", "Last State: Terminated", "Exit Code: 1",
            "Restart Count: 2", "memory: 1Gi", "Liveness: http-get http://:80/h delay=0s timeout=1s period=5s #success=1 #failure=3",
            "Environment: A: 1", "B: (v1:status.podIP)", "Mounts: /v from v (ro)", "Type: ConfigMap", "Ready True",
            "Tolerations: k:NoExecute op=Exists for 300s", "a b", "Events: <none>",
        ],
    ),
    "pod-terminating": (
        {**POD, "metadata": {"deletionTimestamp": AGO, "deletionGracePeriodSeconds": 30}}, builtin("Pod"),
        ["Status: Terminating (since Sun, 15 Nov 2026 08:55:00 +0000, grace 30s)"],
    ),
    "node": (
        {
            "metadata": {"labels": {"node-role.kubernetes.io/edge": ""}},
            "spec": {"taints": [{"key": "t", "value": "v", "effect": "NoSchedule"}], "unschedulable": True},
            "status": {
                "addresses": [{"type": "InternalIP", "address": "10.1.1.1"}], "capacity": {"cpu": "4"}, "allocatable": {"cpu": "3"},
                "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": AGO, "reason": "ok"}], "nodeInfo": {"kubeletVersion": "v1"},
            },
        },
        builtin("Node"),
        ["Roles: edge", "Taints: t=v:NoSchedule", "Unschedulable: true", "InternalIP: 10.1.1.1", "cpu: 4", "cpu: 3", "Kubelet Version: v1"],
    ),
    "deployment": (
        {
            "spec": {
                "replicas": 3, "selector": {"matchLabels": {"a": "1"}}, "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 1}},
                "template": {"metadata": {"labels": {"a": "1"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
            },
            "status": {"replicas": 2, "availableReplicas": 1, "conditions": [{"type": "Available", "status": "False", "reason": "Few"}]},
        },
        builtin("Deployment"),
        ["Selector: a=1", "Replicas: 3 desired | 0 updated | 2 total | 1 available | 0 unavailable", "RollingUpdateStrategy: 1 max unavailable, 25% max surge", "Image: i", "Available False Few"],
    ),
    "service": (
        {"spec": {"type": "NodePort", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "selector": {"a": "1"}, "ports": [{"name": "http", "port": 80, "nodePort": 30080, "targetPort": "web", "protocol": "TCP"}]}},
        builtin("Service"),
        ["Selector: a=1", "Type: NodePort", "IP: 10.0.0.1", "Port: http 80:30080/TCP", "TargetPort: web", "Session Affinity: None"],
    ),
    "namespace": ({"status": {"phase": "Active"}}, builtin("Namespace"), ["Status: Active"]),
    "configmap": ({"data": {"k": "one\ntwo"}, "binaryData": {"b": ENCODED}}, builtin("ConfigMap"), ["k:", "one", "two", f"b: {len(SECRET)} bytes"]),
    "domain": (
        {
            "spec": {"role": "partner", "master": "bob", "interConnProtocols": ["kuscia"], "cert": "c", "authCenter": {"authenticationType": "Token", "tokenGenMethod": "RSA-GEN"}},
            "status": {"nodeStatuses": [{"name": "n1", "status": "Ready", "version": "v1", "lastHeartbeatTime": AGO}], "deployTokenStatuses": [{"token": "t", "state": "used"}]},
        },
        custom("Domain", namespaced=False),
        ["Role: partner", "Master: bob", "Protocols: kuscia", "Certificate: present", "Authentication: Token RSA-GEN", "n1 Ready v1 5m", "Deploy Tokens: 0 unused, 1 used"],
    ),
    "job": (
        {
            "spec": {
                "initiator": "alice", "maxParallelism": 2,
                "tasks": [
                    {"alias": "psi", "taskID": "t1", "appImage": "img", "parties": [{"domainID": "alice", "role": "guest"}, {"domainID": "bob"}]},
                    {"alias": "train", "dependencies": ["psi"], "appImage": "img", "parties": []},
                ],
            },
            "status": {"phase": "Running", "startTime": AGO, "taskStatus": {"t1": "Succeeded"}, "approveStatus": {"bob": "JobAccepted"}},
        },
        custom("KusciaJob"),
        ["Initiator: alice", "Schedule Mode: Strict", "Parallelism: 2", "Phase: Running", "Duration: 5m", "psi t1 Succeeded <none> no img alice (guest), bob", "train <none> Waiting psi no img", "Approvals: bob: JobAccepted"],
    ),
    "job-ended": (
        {
            "metadata": {"labels": {"kuscia.job.custom-fields/team": "fraud", "kuscia.secretflow/job-stage": "Stop", "kuscia.secretflow/job-stage-trigger": "bob"}},
            "spec": {"initiator": "alice", "tasks": [{"alias": "psi", "tolerable": True, "appImage": "img", "parties": []}]},
            "status": {"phase": "Failed", "message": "one\ntwo", "stageStatus": {"bob": "JobStopStageSucceeded"}},
        },
        custom("KusciaJob"),
        ["Custom Fields: team=fraud", "Last Order: Stop, by bob", "Message: one", "two", "Stages: bob: JobStopStageSucceeded", "psi <none> Not run <none> yes img"],
    ),
    "task": (
        {
            "spec": {"initiator": "alice", "parties": [{"domainID": "alice", "role": "guest", "appImageRef": "img"}]},
            "status": {
                "phase": "Failed", "reason": "R", "progress": 0.25, "startTime": AGO, "completionTime": "2026-11-15T08:56:00Z",
                "partyTaskStatus": [{"domainID": "alice", "role": "guest", "phase": "Failed", "message": "oh"}],
                "podStatuses": {"alice/p": {"podPhase": "Failed", "nodeName": "n1", "reason": "Error", "terminationLog": "bye"}},
            },
        },
        custom("KusciaTask"),
        ["Phase: Failed", "Reason: R", "Duration: 60s", "Progress: 25%", "alice guest img Failed oh", "alice/p Failed n1 Error: bye"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("obj", "resource", "facts"), FACTS.values(), ids=FACTS.keys())
def test_facts(obj: dict[str, Any], resource: Resource, facts: list[str]) -> None:
    lines = {" ".join(line.split()) for line in told(obj, resource).splitlines()}
    assert [fact for fact in facts if fact not in lines] == []


@pytest.mark.parametrize("resource", [r for r in BUILTIN if not r.virtual], ids=lambda r: r.schema_name)
def test_bare_objects_can_be_described(resource: Resource) -> None:
    text = describe({"metadata": {"name": "x"}, "spec": None, "status": None}, [], resource, NOW)
    assert text.startswith("Name:")
    assert text.endswith("<none>\n")


def test_text_of_objects_cannot_steer_the_terminal() -> None:
    text = told({"spec": {"note": "a\x1b[2Jb\rc\td"}}, custom("Widget"))
    assert "a^[[2Jbc d" in text


@pytest.mark.parametrize(
    ("plural", "kind", "obj", "sentence"),
    [
        (
            "taskresources",
            "TaskResource",
            {"metadata": {"name": "r", "namespace": "alice"}, "status": {"phase": "Reserving"}},
            "Waiting for the scheduler of alice to find room",
        ),
        (
            "taskresourcegroups",
            "TaskResourceGroup",
            {
                "metadata": {"name": "t"},
                "spec": {"initiator": "alice", "minReservedMembers": 1, "parties": [{"domainID": "bob"}]},
                "status": {"phase": "Reserving"},
            },
            "Waiting for bob to reserve resources",
        ),
    ],
)
def test_reservations_say_what_they_wait_for(plural: str, kind: str, obj: Any, sentence: str) -> None:
    resource = kuscia_resource(plural, kind, namespaced=kind == "TaskResource")
    assert sentence in describe(obj, [], resource, datetime(2026, 11, 16, tzinfo=UTC))
