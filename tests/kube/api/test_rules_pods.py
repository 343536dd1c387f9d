"""Pods: what is filled in, what is refused, what may change."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from rules_kit import GONE, change_faults, created, faults, put

from coterie.kube.api.rules import RULES
from coterie.kube.api.rules.pods import qos_class, validate_ephemeral_update

POD = ("", "Pod")
SIMPLE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "namespace": "n"},
    "spec": {"containers": [{"name": "c", "image": "nginx"}]},
}
FULL: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "namespace": "n", "labels": {"app": "x"}},
    "spec": {
        "restartPolicy": "Never",
        "serviceAccountName": "sa",
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]
                }
            },
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 1,
                        "podAffinityTerm": {"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}},
                    }
                ]
            },
        },
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
        "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a.b"]}],
        "securityContext": {"runAsUser": 1000, "fsGroup": 2000, "seccompProfile": {"type": "RuntimeDefault"}},
        "initContainers": [{"name": "i", "image": "busybox:1.36"}],
        "containers": [
            {
                "name": "c",
                "image": "psi:1.0",
                "ports": [{"name": "http", "containerPort": 80}, {"containerPort": 81, "protocol": "UDP"}],
                "env": [
                    {"name": "A", "value": "1"},
                    {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
                    {"name": "C", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                    {"name": "D", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
                ],
                "envFrom": [{"configMapRef": {"name": "cm"}}],
                "resources": {"limits": {"cpu": "2", "memory": "2048Mi"}, "requests": {"cpu": "1000m"}},
                "volumeMounts": [{"name": "v", "mountPath": "/v"}, {"name": "e", "mountPath": "/e", "subPath": "x"}],
                "livenessProbe": {"httpGet": {"port": "http"}},
                "readinessProbe": {"exec": {"command": ["true"]}, "successThreshold": 2},
                "lifecycle": {"preStop": {"exec": {"command": ["sh"]}}},
                "securityContext": {"runAsUser": 1},
            }
        ],
        "volumes": [
            {"name": "v", "configMap": {"name": "cm", "items": [{"key": "a", "path": "b/c"}]}},
            {"name": "e", "emptyDir": {"sizeLimit": "1024Mi"}},
            {"name": "p", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
            {"name": "h", "hostPath": {"path": "/tmp"}},
        ],
    },
}


def test_defaults_of_a_pod() -> None:
    pod = created(POD, SIMPLE)
    assert pod["spec"] == {
        "containers": [
            {
                "name": "c",
                "image": "nginx",
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
                "imagePullPolicy": "Always",
                "resources": {},
            }
        ],
        "restartPolicy": "Always",
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "terminationGracePeriodSeconds": 30,
        "securityContext": {},
        "enableServiceLinks": True,
    }
    assert pod["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    assert "generation" not in pod["metadata"]


def test_defaults_inside_a_pod() -> None:
    spec = created(POD, FULL)["spec"]
    container = spec["containers"][0]
    assert container["imagePullPolicy"] == "IfNotPresent"
    assert container["ports"] == [
        {"name": "http", "containerPort": 80, "protocol": "TCP"},
        {"containerPort": 81, "protocol": "UDP"},
    ]
    assert container["resources"] == {
        "limits": {"cpu": "2", "memory": "2Gi"},
        "requests": {"cpu": "1", "memory": "2Gi"},
    }
    assert container["livenessProbe"] == {
        "httpGet": {"port": "http", "path": "/", "scheme": "HTTP"},
        "timeoutSeconds": 1,
        "periodSeconds": 10,
        "successThreshold": 1,
        "failureThreshold": 3,
    }
    assert container["env"][1]["valueFrom"]["fieldRef"]["apiVersion"] == "v1"
    assert spec["serviceAccount"] == "sa"
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["v"]["configMap"]["defaultMode"] == 420
    assert volumes["e"]["emptyDir"]["sizeLimit"] == "1Gi"
    assert volumes["p"]["projected"]["sources"][0]["serviceAccountToken"]["expirationSeconds"] == 3600
    assert volumes["h"]["hostPath"]["type"] == ""


def test_a_volume_without_a_source_is_an_empty_dir() -> None:
    pod = created(POD, put(SIMPLE, "spec.volumes", [{"name": "v"}]))
    assert pod["spec"]["volumes"] == [{"name": "v", "emptyDir": {}}]


def test_host_network_pods_hold_their_ports() -> None:
    pod = put(put(SIMPLE, "spec.hostNetwork", True), "spec.containers[0].ports", [{"containerPort": 80}])
    assert created(POD, pod)["spec"]["containers"][0]["ports"][0]["hostPort"] == 80
    assert faults(POD, pod) == []


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("nginx", "Always"),
        ("nginx:latest", "Always"),
        ("nginx:1.25", "IfNotPresent"),
        ("host:5000/nginx", "Always"),
        ("host:5000/nginx:1", "IfNotPresent"),
        ("nginx@sha256:abc", "IfNotPresent"),
    ],
)
def test_pull_policy_follows_the_tag(image: str, policy: str) -> None:
    pod = created(POD, put(SIMPLE, "spec.containers[0].image", image))
    assert pod["spec"]["containers"][0]["imagePullPolicy"] == policy


@pytest.mark.parametrize(
    ("resources", "qos"),
    [
        ({}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1000m", "memory": "1024Mi"}}, "Guaranteed"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}, "Burstable"),
        ({"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}, "BestEffort"),
        ({"requests": {"cpu": "0"}}, "BestEffort"),
    ],
)
def test_quality_of_service(resources: dict[str, Any], qos: str) -> None:
    pod = created(POD, put(SIMPLE, "spec.containers[0].resources", resources))
    assert pod["status"]["qosClass"] == qos


def test_one_greedy_container_lowers_the_class() -> None:
    limits = {"limits": {"cpu": "1", "memory": "1Gi"}}
    assert qos_class({"containers": [{"resources": limits}, {}]}) == "Burstable"


def test_good_pods() -> None:
    assert faults(POD, SIMPLE) == []
    assert faults(POD, FULL) == []


C, V = "spec.containers[0]", "spec.volumes"
BAD: list[tuple[str, Any, str]] = [
    ("spec.containers", [], "spec.containers: Required value"),
    (f"{C}.name", GONE, f"{C}.name: Required value"),
    (f"{C}.name", "A", f'{C}.name: Invalid value: "A": a lowercase RFC 1123 label must consist'),
    (f"{C}.image", GONE, f"{C}.image: Required value"),
    (f"{C}.image", " a", f'{C}.image: Invalid value: " a": must not have leading or trailing whitespace'),
    ("spec.containers[1]", {"name": "c", "image": "x"}, 'spec.containers[1].name: Duplicate value: "c"'),
    ("spec.initContainers[0].name", "c", 'spec.initContainers[0].name: Duplicate value: "c"'),
    (
        "spec.initContainers[0].livenessProbe",
        {"exec": {"command": ["a"]}},
        "spec.initContainers[0].livenessProbe: Forbidden: may not be set for init containers without restartPolicy=Always",
    ),
    (f"{C}.restartPolicy", "Always", f"{C}.restartPolicy: Forbidden: may not be set for non-init containers"),
    (
        f"{C}.imagePullPolicy",
        "Often",
        f'{C}.imagePullPolicy: Unsupported value: "Often": supported values: "Always", "IfNotPresent", "Never"',
    ),
    (f"{C}.terminationMessagePolicy", "x", f'{C}.terminationMessagePolicy: Unsupported value: "x"'),
    (f"{C}.ports[0].containerPort", 0, f"{C}.ports[0].containerPort: Required value"),
    (f"{C}.ports[0].containerPort", 70000, f"{C}.ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535"),
    (f"{C}.ports[0].protocol", "ICMP", f'{C}.ports[0].protocol: Unsupported value: "ICMP"'),
    (f"{C}.ports[1].name", "http", f'{C}.ports[1].name: Duplicate value: "http"'),
    (f"{C}.ports[0].name", "HTTP", f'{C}.ports[0].name: Invalid value: "HTTP": must contain only alpha-numeric'),
    (f"{C}.env[0].name", "", f"{C}.env[0].name: Required value"),
    (f"{C}.env[0].name", "A=B", f'{C}.env[0].name: Invalid value: "A=B": a valid environment variable name'),
    (f"{C}.env[1].value", "x", f"{C}.env[1].valueFrom: Invalid value: \"\": may not be specified when `value` is not empty"),
    (f"{C}.env[1].valueFrom", {}, f'{C}.env[1].valueFrom: Invalid value: "": must specify one of: `fieldRef`'),
    (
        f"{C}.env[1].valueFrom.fieldRef.fieldPath",
        "status.phase",
        f'{C}.env[1].valueFrom.fieldRef.fieldPath: Unsupported value: "status.phase"',
    ),
    (f"{C}.env[2].valueFrom.secretKeyRef.key", "", f"{C}.env[2].valueFrom.secretKeyRef.key: Required value"),
    (f"{C}.env[3].valueFrom.resourceFieldRef.resource", "disk", f"{C}.env[3].valueFrom.resourceFieldRef.resource: Unsup"),
    (f"{C}.envFrom[0]", {}, f"{C}.envFrom[0]: Invalid value: \"\": must specify one of: `configMapRef` or `secretRef`"),
    (f"{C}.volumeMounts[0].name", "zz", f'{C}.volumeMounts[0].name: Not found: "zz"'),
    (f"{C}.volumeMounts[0].mountPath", "", f"{C}.volumeMounts[0].mountPath: Required value"),
    (f"{C}.volumeMounts[1].mountPath", "/v", f'{C}.volumeMounts[1].mountPath: Invalid value: "/v": must be unique'),
    (f"{C}.volumeMounts[1].subPath", "../x", f"{C}.volumeMounts[1].subPath: Invalid value: \"../x\": must not contain '..'"),
    (f"{C}.resources.limits.cpu", "x", f'{C}.resources.limits[cpu]: Invalid value: "x": quantities must match'),
    (f"{C}.resources.limits.cpu", "-1", f'{C}.resources.limits[cpu]: Invalid value: "-1": must be greater than or equal to 0'),
    (
        f"{C}.resources.requests.cpu",
        "3",
        f'{C}.resources.requests: Invalid value: "3": must be less than or equal to cpu limit of 2',
    ),
    (f"{C}.resources.requests.foo", "3", f'{C}.resources.requests[foo]: Invalid value: "foo": must be a standard resource'),
    (
        f"{C}.resources.requests",
        {"nvidia.com/gpu": "1"},
        f"{C}.resources.limits: Required value: Limit must be set for non overcommitable resources",
    ),
    (f"{C}.resources.limits", {"nvidia.com/gpu": "500m"}, f'{C}.resources.limits[nvidia.com/gpu]: Invalid value: "500m"'),
    (f"{C}.livenessProbe", {}, f"{C}.livenessProbe: Required value: must specify a handler type"),
    (
        f"{C}.livenessProbe.tcpSocket",
        {"port": 1},
        f"{C}.livenessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type",
    ),
    (f"{C}.livenessProbe.successThreshold", 2, f"{C}.livenessProbe.successThreshold: Invalid value: 2: must be 1"),
    (f"{C}.livenessProbe.httpGet.port", 0, f"{C}.livenessProbe.httpGet.port: Invalid value: 0: must be between"),
    (f"{C}.livenessProbe.periodSeconds", -1, f"{C}.livenessProbe.periodSeconds: Invalid value: -1: must be greater"),
    (f"{C}.readinessProbe.exec.command", [], f"{C}.readinessProbe.exec.command: Required value"),
    (f"{C}.lifecycle.preStop", {"exec": {}}, f"{C}.lifecycle.preStop.exec.command: Required value"),
    (f"{C}.securityContext.runAsUser", -1, f"{C}.securityContext.runAsUser: Invalid value: -1: must be between 0 and"),
    (
        f"{C}.securityContext",
        {"privileged": True, "allowPrivilegeEscalation": False},
        f"{C}.securityContext: Invalid value",
    ),
    ("spec.restartPolicy", "Sometimes", 'spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always"'),
    ("spec.dnsPolicy", "None", "spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None"),
    ("spec.dnsConfig", {"nameservers": ["x"]}, 'spec.dnsConfig.nameservers[0]: Invalid value: "x": must be a valid IP'),
    ("spec.activeDeadlineSeconds", 0, "spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647"),
    ("spec.serviceAccountName", "A", 'spec.serviceAccountName: Invalid value: "A"'),
    ("spec.nodeSelector", {"a b": "c"}, 'spec.nodeSelector: Invalid value: "a b"'),
    ("spec.hostname", "a.b", 'spec.hostname: Invalid value: "a.b"'),
    ("spec.tolerations[0].operator", "Maybe", 'spec.tolerations[0].operator: Unsupported value: "Maybe"'),
    ("spec.tolerations[0].value", "x", "spec.tolerations[0].operator: Invalid value: \"object\": value must be empty when"),
    ("spec.tolerations[0].effect", "NoSchedule", "spec.tolerations[0].effect: Invalid value: \"NoSchedule\": effect must be"),
    (
        "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms",
        [],
        "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms: Required value: must",
    ),
    (
        "spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight",
        0,
        "spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: Invalid value: 0: must be",
    ),
    ("spec.topologySpreadConstraints[0].maxSkew", 0, "spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be"),
    ("spec.topologySpreadConstraints[0].topologyKey", "", "spec.topologySpreadConstraints[0].topologyKey: Required value"),
    ("spec.topologySpreadConstraints[0].whenUnsatisfiable", "x", "spec.topologySpreadConstraints[0].whenUnsatisfiable: Uns"),
    ("spec.hostAliases[0].ip", "x", 'spec.hostAliases[0].ip: Invalid value: "x": must be a valid IP address'),
    ("spec.securityContext.runAsUser", 2**32, "spec.securityContext.runAsUser: Invalid value: 4294967296: must be between"),
    ("spec.securityContext.seccompProfile.type", "x", 'spec.securityContext.seccompProfile.type: Unsupported value: "x"'),
    (f"{V}[0].name", "A", f'{V}[0].name: Invalid value: "A"'),
    (f"{V}[3].name", "p", f'{V}[3].name: Duplicate value: "p"'),
    (f"{V}[0].emptyDir", {}, f"{V}[0].emptyDir: Forbidden: may not specify more than 1 volume type"),
    (f"{V}[0].configMap.name", "", f"{V}[0].configMap.name: Required value"),
    (f"{V}[0].configMap.defaultMode", 512, f"{V}[0].configMap.defaultMode: Invalid value: 512: must be a number between 0"),
    (f"{V}[0].configMap.items[0].path", "/b", f'{V}[0].configMap.items[0].path: Invalid value: "/b": must be a relative path'),
    (f"{V}[3].hostPath.path", "", f"{V}[3].hostPath.path: Required value"),
    (f"{V}[3].hostPath.type", "x", f'{V}[3].hostPath.type: Unsupported value: "x"'),
    (f"{V}[3]", {"name": "s", "secret": {}}, f"{V}[3].secret.secretName: Required value"),
    (f"{V}[3]", {"name": "s", "persistentVolumeClaim": {}}, f"{V}[3].persistentVolumeClaim.claimName: Required value"),
    (f"{V}[3]", {"name": "s", "nfs": {"server": "a", "path": "b"}}, f'{V}[3].nfs.path: Invalid value: "b": must be an absolute'),
    (f"{V}[2].projected.sources[0]", {}, f"{V}[2].projected.sources[0]: Required value: must specify at least one"),
    ("spec.schedulingGates", [{"name": "a"}, {"name": "a"}], 'spec.schedulingGates[1]: Duplicate value: "a"'),
    ("spec.ephemeralContainers", [{"name": "z", "image": "x"}], "spec.ephemeralContainers: Forbidden: cannot be set on create"),
    ("spec.os", {"name": "dos"}, 'spec.os.name: Unsupported value: "dos"'),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "told"), BAD, ids=[f"{row[0]}-{index}" for index, row in enumerate(BAD)])
def test_bad_pods(path: str, value: Any, told: str) -> None:
    errors = faults(POD, put(FULL, path, value))
    assert any(error.startswith(told) for error in errors), errors
    assert len(errors) <= 2


def test_gates_and_a_node_exclude_each_other() -> None:
    pod = put(put(SIMPLE, "spec.schedulingGates", [{"name": "g"}]), "spec.nodeName", "x")
    assert faults(POD, pod) == ["spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared"]


def test_two_containers_cannot_hold_one_host_port() -> None:
    port = {"containerPort": 80, "hostPort": 80}
    pod = put(SIMPLE, "spec.containers", [{"name": n, "image": "x", "ports": [port]} for n in ("a", "b")])
    assert faults(POD, pod) == ['spec.containers[1].ports[0].hostPort: Duplicate value: "TCP//80"']


# ---- changes ------------------------------------------------------------------------------------------------------

STORED = created(POD, put(FULL, "spec.activeDeadlineSeconds", 100))
ONLY = "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`"


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("metadata.labels", {"new": "label"}, ""),
        (f"{C}.image", "psi:2.0", ""),
        ("spec.initContainers[0].image", "busybox:2", ""),
        ("spec.activeDeadlineSeconds", 50, ""),
        ("spec.tolerations[1]", {"key": "more", "operator": "Exists"}, ""),
        ("spec.tolerations[0].tolerationSeconds", 5, ""),
        (
            "spec.activeDeadlineSeconds",
            200,
            "spec.activeDeadlineSeconds: Invalid value: 200: must be less than or equal to",
        ),
        ("spec.activeDeadlineSeconds", GONE, "spec.activeDeadlineSeconds: Invalid value: null: must not update from"),
        ("spec.tolerations", [], "spec.tolerations: Forbidden: existing toleration can not be modified except"),
        ("spec.nodeName", "other", ONLY),
        (f"{C}.command", ["x"], ONLY),
        ("spec.terminationGracePeriodSeconds", 1, ONLY),
        ("spec.restartPolicy", "Always", ONLY),
        (
            "spec.containers[1]",
            {"name": "d", "image": "x"},
            "spec.containers: Forbidden: pod updates may not add or remove",
        ),
        (
            "spec.schedulingGates",
            [{"name": "g"}],
            "spec.schedulingGates[0]: Forbidden: only deletion is allowed, but found",
        ),
    ],
)
def test_changes_of_a_pod(path: str, value: Any, told: str) -> None:
    errors = change_faults(POD, STORED, put(STORED, path, value))
    assert (not errors) if not told else any(error.startswith(told) for error in errors), errors


def test_a_gated_pod_may_be_steered() -> None:
    old = created(POD, put(SIMPLE, "spec.schedulingGates", [{"name": "g"}]))
    new = put(put(old, "spec.nodeSelector", {"a": "b"}), "spec.schedulingGates", [])
    assert change_faults(POD, old, new) == []


def test_an_update_cannot_touch_the_status_nor_the_generation() -> None:
    new = put(put(STORED, "status.phase", "Running"), "metadata.generation", 7)
    RULES[POD].prepare_update(new, STORED)
    assert new["status"] == STORED["status"]
    assert "generation" not in new["metadata"]


def test_a_status_update_takes_only_the_status() -> None:
    old = put(STORED, "metadata.ownerReferences", [{"uid": "o"}])
    new = put(put(put(old, "status", {"phase": "Running"}), "spec.nodeName", "x"), "metadata.ownerReferences", [])
    RULES[POD].prepare_status_update(new, old)
    assert new["spec"] == old["spec"]
    assert new["metadata"]["ownerReferences"] == [{"uid": "o"}]
    assert new["status"] == {"phase": "Running", "qosClass": "Burstable"}
    assert RULES[POD].validate_status_update(new, old) == []


def test_an_ended_container_stays_ended() -> None:
    ended = put(STORED, "status.containerStatuses", [{"name": "c", "state": {"terminated": {"exitCode": 0}}}])
    again = put(STORED, "status.containerStatuses", [{"name": "c", "state": {"running": {}}}])
    assert [str(e) for e in RULES[POD].validate_status_update(again, ended)] == [
        "status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state"
    ]
    forever = put(ended, "spec.restartPolicy", "Always")
    assert RULES[POD].validate_status_update(again, forever) == []


def test_ephemeral_containers_are_only_added() -> None:
    debug = {"name": "d", "image": "busybox", "targetContainerName": "c"}
    new = put(STORED, "spec.ephemeralContainers", [debug])
    RULES[POD].default(new)
    assert validate_ephemeral_update(new, STORED) == []
    removed = copy.deepcopy(STORED)
    assert [str(e) for e in validate_ephemeral_update(removed, new)] == [
        'spec.ephemeralContainers: Forbidden: existing ephemeral containers "d" may not be removed\n'
    ]
    lost = put(new, "spec.ephemeralContainers[0].targetContainerName", "zz")
    told = [str(e) for e in validate_ephemeral_update(lost, STORED)]
    assert told == ['spec.ephemeralContainers[0].targetContainerName: Not found: "zz"']
