"""Kuscia objects against their definitions: whole samples pass unchanged, faults are named by their path."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from coterie.kube.api.schema.defaulting import apply_defaults
from coterie.kube.api.schema.prune import unknown_fields
from coterie.kube.api.schema.structural import compile_crd
from coterie.kube.api.schema.structural_check import check_structural
from coterie.kube.api.schema.validate import validate
from coterie.kuscia.api.definitions import crds

T = "2026-11-15T09:00:00Z"
RESOURCES = {"limits": {"cpu": 2, "memory": "4Gi", "kuscia.io/bandwidth": "100"}, "requests": {"cpu": "500m"}}
PROBE = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 5, "failureThreshold": 3}
POD_SPEC = {
    "restartPolicy": "Never",
    "containers": [
        {
            "name": "secretflow",
            "workingDir": "/root",
            "command": ["sh", "-c"],
            "args": ["run"],
            "configVolumeMounts": [{"mountPath": "/work/conf.json", "subPath": "task-config.conf"}],
            "ports": [
                {"name": "spu", "port": 54509, "protocol": "GRPC", "scope": "Cluster"},
                {"name": "inference", "protocol": "HTTP", "scope": "Domain"},
            ],
            "envFrom": [{"configMapRef": {"name": "env"}}],
            "env": [
                {"name": "A", "value": "1"},
                {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            ],
            "resources": RESOURCES,
            "livenessProbe": PROBE,
            "readinessProbe": {"tcpSocket": {"port": 80}},
            "startupProbe": {"exec": {"command": ["true"]}},
            "metricProbe": {"path": "/metrics", "port": "metric"},
            "imagePullPolicy": "IfNotPresent",
            "securityContext": {"privileged": False},
        }
    ],
    "affinity": {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 1,
                    "podAffinityTerm": {
                        "topologyKey": "kubernetes.io/hostname",
                        "labelSelector": {"matchLabels": {"a": "b"}},
                    },
                }
            ]
        }
    },
}
CONDITION = {"type": "JobValidated", "status": "True", "reason": "r", "message": "m", "lastTransitionTime": T}
JOB_STATUS = {
    "phase": "Running", "approveStatus": {"alice": "JobAccepted"}, "stageStatus": {"bob": "JobCreateStageSucceeded"},
    "conditions": [CONDITION], "reason": "", "message": "", "taskStatus": {"t1": "Running"},
    "partyTaskCreateStatus": {"t1": [{"domainID": "bob", "role": "host", "phase": "Succeeded", "message": ""}]},
    "startTime": T, "completionTime": T, "lastReconcileTime": T,
}  # fmt: skip
TASK_STATUS = {
    "phase": "Running", "progress": 0.5, "partyTaskStatus": [{"domainID": "alice", "role": "guest", "phase": "Running", "message": ""}],
    "reason": "r", "message": "m", "conditions": [CONDITION],
    "podStatuses": {"alice/p": {"podName": "p", "podPhase": "Running", "namespace": "alice", "nodeName": "n", "createTime": T, "terminationLog": ""}},
    "serviceStatuses": {"alice/s": {"namespace": "alice", "serviceName": "s", "portName": "spu", "portNumber": 2000, "scope": "Cluster", "readyTime": T}},
    "allocatedPorts": [{"domainID": "alice", "role": "guest", "namedPort": {"p/spu": 2000}}],
    "startTime": T, "completionTime": T, "lastReconcileTime": T,
}  # fmt: skip
TR_STATUS = {
    "phase": "Reserved", "conditions": [{"type": "Reserved", "status": "True", "reason": "r", "lastTransitionTime": T}],
    "startTime": T, "completionTime": T, "lastTransitionTime": T,
}  # fmt: skip
DEPLOYMENT_STATUS = {
    "totalParties": 2, "availableParties": 1, "phase": "PartialAvailable", "reason": "", "message": "", "lastReconcileTime": T,
    "partyDeploymentStatuses": {
        "alice": {
            "serving": {
                "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1, "unavailableReplicas": 0, "phase": "Available", "role": "r",
                "conditions": [{"type": "Available", "status": "True", "lastUpdateTime": T}], "creationTimestamp": T,
            }
        }
    },
}  # fmt: skip
DATA_STATUS = {
    "phase": "Available",
    "conditions": [{"status": "True", "reason": "ok", "message": "", "lastUpdateTime": T}],
}
TOKEN = {
    "isReady": True,
    "token": "x",
    "revision": 3,
    "revisionTime": T,
    "expirationTime": T,
    "heartBeatTime": T,
    "effectiveInstances": ["gw"],
}
ROUTE = {
    "source": "alice", "destination": "bob", "interConnProtocol": "kuscia",
    "endpoint": {"host": "10.0.0.1", "ports": [{"name": "http", "protocol": "HTTP", "port": 1080, "pathPrefix": "/k", "isTLS": True}]},
    "transit": {"transitMethod": "THIRD-DOMAIN", "domain": {"domainID": "carol"}},
    "authenticationType": "Token",
    "tokenConfig": {"sourcePublicKey": "a", "destinationPublicKey": "b", "rollingUpdatePeriod": 0, "tokenGenMethod": "RSA-GEN"},
    "bodyEncryption": {"algorithm": "SM4"}, "mTLSConfig": {"tlsCA": "a", "sourceClientPrivateKey": "b", "sourceClientCert": "c"},
    "sourceWhiteIPList": ["10.0.0.0/8"], "requestHeadersToAdd": {"Authorization": "Bearer x"},
}  # fmt: skip
SCHEDULE = {"minReservedMembers": 2, "resourceReservedSeconds": 30, "lifecycleSeconds": 300, "retryIntervalSeconds": 5}
BANDWIDTH = [{"destinationID": "bob", "limitKBps": 1024}]
GROUP_PARTY = {
    "domainID": "alice",
    "role": "guest",
    "minReservedPods": 1,
    "pods": [{"name": "p"}],
    "taskResourceName": "tr",
}

SAMPLES: dict[str, dict[str, Any]] = {
    "Domain": {
        "spec": {
            "role": "partner", "master": "bob", "interConnProtocols": ["kuscia"], "cert": "abc",
            "authCenter": {"authenticationType": "Token", "tokenGenMethod": "UID-RSA-GEN"}, "resourceQuota": {"podMaxCount": 100},
        },
        "status": {
            "nodeStatuses": [{"name": "n", "version": "v1", "status": "Ready", "lastHeartbeatTime": T, "lastTransitionTime": T}],
            "deployTokenStatuses": [{"token": "t", "state": "unused", "lastTransitionTime": T}],
        },
    },
    "DomainRoute": {
        "spec": ROUTE,
        "status": {
            "isDestinationAuthorized": True, "isDestinationUnreachable": False,
            "tokenStatus": {"revisionInitializer": "gw", "revisionToken": TOKEN, "tokens": [TOKEN, TOKEN]},
        },
    },
    "ClusterDomainRoute": {
        "spec": ROUTE,
        "status": {
            "tokenStatus": {"revision": 1, "revisionTime": T, "sourceTokens": [TOKEN], "destinationTokens": [TOKEN]},
            "conditions": [{**CONDITION, "lastUpdateTime": T}], "endpointStatuses": {"gw-http": {"endpointHealthy": True}},
        },
    },
    "Gateway": {
        "status": {
            "address": "a", "uptime": T, "heartbeatTime": T, "publicKey": "k", "version": "v",
            "networkStatus": [{"name": "n", "type": "DomainRoute", "totalEndpointsCount": 1, "healthyEndpointsCount": 1}],
        },
    },
    "KusciaJob": {
        "spec": {
            "flowID": "f", "initiator": "alice", "scheduleMode": "BestEffort", "maxParallelism": 2,
            "tasks": [
                {
                    "alias": "psi", "taskID": "psi-1", "dependencies": ["prepare"], "tolerable": True, "appImage": "psi-image", "taskInputConfig": "{}",
                    "scheduleConfig": SCHEDULE, "priority": 100,
                    "parties": [{"domainID": "alice", "role": "guest", "resources": RESOURCES, "bandwidthLimits": BANDWIDTH}],
                }
            ],
        },
        "status": JOB_STATUS,
    },
    "KusciaJobSummary": {"spec": {"stage": "Start", "stageTrigger": "alice"}, "status": JOB_STATUS},
    "KusciaTask": {
        "spec": {
            "initiator": "alice", "taskInputConfig": "{}", "scheduleConfig": SCHEDULE,
            "parties": [
                {
                    "domainID": "alice", "appImageRef": "psi-image", "role": "guest", "minReservedPods": 1,
                    "template": {"replicas": 1, "spec": POD_SPEC}, "bandwidthLimits": BANDWIDTH,
                }
            ],
        },
        "status": TASK_STATUS,
    },
    "KusciaTaskSummary": {
        "spec": {"alias": "psi", "jobID": "j"},
        "status": {
            **TASK_STATUS,
            "resourceStatus": {
                "bob": [{"role": "host", "hostTaskResourceName": "a", "hostTaskResourceVersion": "1", "memberTaskResourceName": "b", "memberTaskResourceVersion": "2", **TR_STATUS}]
            },
        },
    },
    "KusciaDeployment": {
        "spec": {
            "initiator": "alice", "inputConfig": "{}",
            "parties": [
                {
                    "domainID": "alice", "appImageRef": "serving", "role": "r", "serviceNamePrefix": "s",
                    "template": {"replicas": 2, "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 1}}, "spec": POD_SPEC},
                }
            ],
        },
        "status": DEPLOYMENT_STATUS,
    },
    "KusciaDeploymentSummary": {"status": DEPLOYMENT_STATUS},
    "TaskResourceGroup": {
        "spec": {"minReservedMembers": 2, "initiator": "alice", "resourceReservedSeconds": 30, "retryIntervalSeconds": 5, "lifecycleSeconds": 300, "parties": [GROUP_PARTY], "outOfControlledParties": [GROUP_PARTY]},
        "status": {**TR_STATUS, "phase": "Reserving", "retryCount": 1},
    },
    "TaskResource": {
        "spec": {"minReservedPods": 1, "role": "guest", "resourceReservedSeconds": 30, "initiator": "alice", "pods": [{"name": "p", "resources": RESOURCES}]},
        "status": TR_STATUS,
    },
    "AppImage": {
        "spec": {
            "image": {"name": "engines/psi", "tag": "1.0", "id": "sha256:abc", "sign": "s"},
            "configTemplates": {"task-config.conf": "{{.TASK_ID}}"},
            "deployTemplates": [
                {
                    "name": "psi", "role": "guest,host", "replicas": 1,
                    "networkPolicy": {"ingresses": [{"from": {"roles": ["host"]}, "ports": [{"port": "spu"}]}]}, "spec": POD_SPEC,
                }
            ],
        },
    },
    "DomainAppImage": {"spec": {"images": [{"tag": "t", "id": "i", "sign": "s"}]}},
    "DomainData": {
        "spec": {
            "relativeURI": "a.csv", "author": "alice", "name": "a", "type": "table", "dataSource": "default", "attributes": {"k": "v"},
            "partitions": {"type": "path", "fields": [{"name": "d", "type": "str"}]},
            "columns": [{"name": "id", "type": "str", "comment": "c", "notNullable": True}], "vendor": "manual", "fileFormat": "csv",
        },
        "status": DATA_STATUS,
    },
    "DomainDataSource": {
        "spec": {"name": "d", "type": "localfs", "uri": "u", "data": {"encryptedInfo": "x"}, "infoKey": "k", "accessDirectly": False},
        "status": DATA_STATUS,
    },
    "DomainDataGrant": {
        "spec": {
            "author": "alice", "domainDataID": "d", "grantDomain": "bob", "signature": "s",
            "limit": {"expirationTime": T, "useCount": 3, "grantMode": ["normal"], "flowID": "f", "components": ["psi"], "initiator": "bob", "inputConfig": "x"},
            "description": {"k": "v"},
        },
        "status": {"phase": "Ready", "message": "", "use_records": [{"use_time": T, "grant_domain": "bob", "component": "psi", "output": "o"}]},
    },
    "DomainDataRecord": {
        "spec": {
            "domainDataID": "d", "location": ["localfs", "", "", "srv", "a.csv"], "initiator": "bob", "job": "j", "flow": "f",
            "task": "t", "writtenBy": "j", "fingerprint": "12",
        },
    },
    "Dns": {
        "spec": {
            "host": "tea.example",
            "paths": {
                "/green": {"serviceName": "green", "servicePort": 8000},
                "/black": {"serviceUID": "11111111-aaaa-4bbb-8ccc-000000000002", "servicePort": "web"},
            },
        }
    },
    "GpuJob": {
        "spec": {
            "backend": "Slurm",
            "files": [{"configMap": {"name": "sources"}, "path": "src"}, {"upload": {"parts": 1, "sha256": "0" * 64}}],
            "compile": {"sources": ["src/add.cu"], "output": "add", "compiler": "nvcc", "args": ["-O2"]},
            "args": ["8"], "env": [{"name": "A", "value": "b"}], "gpus": 2, "cpus": 4, "memory": "8Gi", "timeLimitSeconds": 60,
            "artifacts": ["out/*"], "slurm": {"clusters": ["one"], "partition": "dgx2", "modules": ["cuda/12.1"], "requeue": True},
            "cancel": False, "ttlSecondsAfterFinished": 60,
        },
        "status": {
            "phase": "Succeeded", "slurmJobId": "7", "nodeUID": "n", "cluster": "one", "exitCode": 0, "gpuSeconds": 12, "startTime": T,
            "artifacts": [{"path": "out/a", "size": 1, "sha256": "0" * 64}],
            "conditions": [{"type": "Unreachable", "status": "False", "lastTransitionTime": T}],
        },
    },
    "Action": {
        "spec": {
            "script": "def action(req): ...", "handler": "action.action", "image": "coterie-actor", "next": ["add", "bob/score"],
            "timeoutSeconds": 30, "concurrency": 2, "scaling": {"policy": "Load", "minReplicas": 0, "maxReplicas": 5, "idleSeconds": 60},
            "retries": {"limit": 3, "firstDelayMilliseconds": 200}, "env": [{"name": "A", "value": "b"}],
            "resources": {"cpu": "500m", "memory": "64Mi"}, "traffic": [{"version": "v0123456789", "percent": 100}], "versionHistoryLimit": 10, "tables": ["customers"],
        },
        "status": {
            "observedGeneration": 1, "version": "v0123456789", "desiredReplicas": 1, "replicas": 1, "readyReplicas": 1, "coldStarts": 1,
            "callsPerMinute": 3, "errorsPerMinute": 0, "deadLetters": 0, "lastScaleTime": T,
            "versions": [{"name": "v0123456789", "created": T, "percent": 100, "replicas": 1}],
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": T}],
        },
    },
    "Trigger": {
        "spec": {"action": "add", "http": {"path": "/add", "methods": ["GET"], "key": "user"}, "suspend": False},
        "status": {"observedGeneration": 1, "lastCallTime": T, "conditions": [{"type": "Ready", "status": "True"}]},
    },
    "ActionGrant": {
        "spec": {
            "action": "score", "grantDomain": "bob", "limit": {"calls": 10, "callsPerMinute": 2, "expirationTime": T},
            "tables": ["visitors"], "maxBodyBytes": 1000,
        },
        "status": {"phase": "Ready", "message": "", "uses": 1, "lastUseTime": T, "useRecords": [{"time": T, "request": "r"}]},
    },
    "DeadLetter": {
        "spec": {
            "action": "add", "request": "r", "reason": "timeout", "attempts": 4, "size": 10, "contentType": "text/plain", "time": T,
            "replay": False,
        },
    },
    "SlurmCluster": {
        "spec": {
            "ssh": {"host": "login.example", "port": 22, "user": "alice", "hostKeys": ["ssh-ed25519 AAAA"], "secretName": "key"},
            "directory": "jobs", "maxJobs": 10, "pollSeconds": 5,
        },
        "status": {"conditions": [{"type": "Reachable", "status": "True", "lastTransitionTime": T}]},
    },
    "InteropConfig": {"spec": {"host": "alice", "members": ["bob"]}},
    "PartnerPolicy": {"spec": {"outside": "Refuse", "dryRun": "full", "witness": "Require", "logs": {"sources": ["engine"], "maxLines": 100, "redact": ["x-[0-9]{4}"]}}},
    "JobPlanRequest": {
        "spec": {"initiator": "alice", "jobName": "j", "job": {"initiator": "alice", "tasks": []}, "waitSeconds": 5},
        "status": {
            "phase": "Complete", "outlook": "Runs", "message": "m",
            "answers": [
                {
                    "domain": "bob", "phase": "Answered", "message": "",
                    "plan": {
                        "domain": "bob", "outlook": "Runs", "detail": "full",
                        "approval": {"verdict": "Allow", "by": "policy", "rules": ["hours"], "message": "m"},
                        "tables": [
                            {
                                "task": "a", "table": "t", "columns": ["id"], "allColumns": False, "grant": "g", "uses": 1,
                                "usesLeft": 2, "problem": "",
                            }
                        ],
                        "engines": [{"task": "a", "appImage": "psi", "version": "0.5", "digest": "sha256:0",
                             "offers": [{"version": "0.5", "digest": "", "speaks": ">=0.5", "protocols": ["a/1"]}], "problem": ""}],
                        "placements": [{"task": "a", "role": "", "pods": 1, "fits": True, "nodes": ["n"], "problem": ""}],
                        "links": [{"peer": "alice", "ready": True, "requested": "1", "capacity": "2", "problem": ""}],
                        "notes": ["n"],
                    },
                }
            ],
        },
    },
    "LogRequest": {
        "spec": {
            "requester": "alice", "owner": "bob", "job": "j", "task": "psi", "reason": "it failed", "sources": ["engine", "gateway"],
            "since": T, "until": T, "grep": "ERROR", "maxLines": 100, "maxBytes": 1000, "expiresSeconds": 60, "keepSeconds": 60,
            "requestedBy": "admin", "review": {"decision": "Approve", "by": "admin", "digest": "0" * 64, "redact": ["x"], "generation": 1},
        },
        "status": {
            "phase": "Answered", "message": "m", "way": "Host", "sent": True, "expireTime": T, "decidedBy": "admin", "digest": "0" * 64,
            "answer": {"text": "a", "lines": 1, "redactions": 1, "truncated": True, "digest": "0" * 64, "time": T, "notes": ["n"]},
            "history": [{"time": T, "event": "Requested", "by": "alice", "message": "m", "digest": ""}],
        },
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def definitions() -> dict[str, Any]:
    return {
        crd["spec"]["names"]["kind"]: crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] for crd in crds.load()
    }


@pytest.fixture(scope="module")
def schemas(definitions: dict[str, Any]) -> dict[str, Any]:
    return {kind: compile_crd(schema) for kind, schema in definitions.items()}


def sample(kind: str) -> dict[str, Any]:
    head = {"apiVersion": "kuscia.secretflow/v1alpha1", "kind": kind, "metadata": {"name": "x"}}
    return {**head, **copy.deepcopy(SAMPLES[kind])}


def test_every_kind_has_a_sample(schemas: dict[str, Any]) -> None:
    assert sorted(SAMPLES) == sorted(schemas)


@pytest.mark.parametrize("kind", SAMPLES)
def test_the_server_accepts_the_schema(definitions: dict[str, Any], kind: str) -> None:
    assert check_structural(definitions[kind], "schema") == []


@pytest.mark.parametrize("kind", SAMPLES)
def test_whole_samples_pass_and_lose_nothing(schemas: dict[str, Any], kind: str) -> None:
    obj = sample(kind)
    assert unknown_fields(obj, schemas[kind]) == []
    assert validate(obj, schemas[kind]) == []


FAULTS: list[tuple[str, str, Any, str]] = [
    ("KusciaJob", "spec.initiator", None, "spec.initiator"),
    ("KusciaJob", "spec.tasks", [], "spec.tasks"),
    ("KusciaJob", "spec.maxParallelism", 129, "spec.maxParallelism"),
    ("KusciaJob", "spec.scheduleMode", "Loose", "spec.scheduleMode"),
    ("KusciaJob", "spec.tasks.0.parties.0.bandwidthLimits.0.limitKBps", -1, "spec.tasks[0].parties[0].bandwidthLimits[0].limitKBps"),
    ("KusciaJob", "spec.tasks.0.parties.0.resources.limits.cpu", "two", "spec.tasks[0].parties[0].resources.limits.cpu"),
    ("ClusterDomainRoute", "spec.endpoint.ports.0.port", 70000, "spec.endpoint.ports[0].port"),
    ("ClusterDomainRoute", "spec.authenticationType", "Password", "spec.authenticationType"),
    ("DomainRoute", "spec.endpoint.host", "not a host", "spec.endpoint.host"),
    ("Domain", "spec.resourceQuota.podMaxCount", -1, "spec.resourceQuota.podMaxCount"),
    ("AppImage", "spec.deployTemplates.0.spec.containers.0.workingDir", None, "spec.deployTemplates[0].spec.containers[0].workingDir"),
    ("AppImage", "spec.deployTemplates.0.spec.containers.0.ports.0.scope", "World", "spec.deployTemplates[0].spec.containers[0].ports[0].scope"),
    ("DomainDataGrant", "spec.limit.grantMode.0", "all", "spec.limit.grantMode[0]"),
    ("TaskResourceGroup", "spec.minReservedMembers", 0, "spec.minReservedMembers"),
    ("DomainData", "status.phase", "Fine", "status.phase"),
    ("KusciaTask", "status.startTime", "noon", "status.startTime"),
    ("Action", "spec.next.0", "../add", "spec.next[0]"),
    ("Action", "spec.next.0", "Add", "spec.next[0]"),
    ("Action", "spec.next.0", "bob/add/more", "spec.next[0]"),
    ("Action", "spec.handler", "os.system('x')", "spec.handler"),
    ("Action", "spec.scaling.policy", "Fast", "spec.scaling.policy"),
    ("Action", "spec.timeoutSeconds", 0, "spec.timeoutSeconds"),
    ("Action", "spec.concurrency", 101, "spec.concurrency"),
    ("Action", "spec.traffic.0.percent", 101, "spec.traffic[0].percent"),
    ("Trigger", "spec.http.path", "add", "spec.http.path"),
    ("Trigger", "spec.http.methods.0", "FETCH", "spec.http.methods[0]"),
    ("Trigger", "spec.action", "a/b", "spec.action"),
    ("ActionGrant", "spec.grantDomain", "Bob", "spec.grantDomain"),
    ("ActionGrant", "spec.limit.expirationTime", "noon", "spec.limit.expirationTime"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "path", "value", "told"), FAULTS, ids=[f"{f[0]}-{f[1]}" for f in FAULTS])
def test_faults_are_named(schemas: dict[str, Any], kind: str, path: str, value: Any, told: str) -> None:
    obj = sample(kind)
    *way, last = path.split(".")
    node: Any = obj
    for step in way:
        node = node[int(step)] if step.isdigit() else node[step]
    if value is None:
        del node[last]
    else:
        node[int(last) if last.isdigit() else last] = value
    assert told in [error.field for error in validate(obj, schemas[kind])]


def test_defaults_are_filled_in(schemas: dict[str, Any]) -> None:
    job = sample("KusciaJob")
    del job["spec"]["scheduleMode"], job["spec"]["maxParallelism"], job["spec"]["tasks"][0]["tolerable"]
    job = apply_defaults(job, schemas["KusciaJob"])
    assert (job["spec"]["scheduleMode"], job["spec"]["maxParallelism"]) == ("Strict", 1)
    assert job["spec"]["tasks"][0]["tolerable"] is False
    image = sample("AppImage")
    image["spec"]["deployTemplates"][0]["spec"]["containers"][0]["ports"] = [{"name": "p"}]
    image = apply_defaults(image, schemas["AppImage"])
    port = image["spec"]["deployTemplates"][0]["spec"]["containers"][0]["ports"][0]
    assert port == {"name": "p", "protocol": "HTTP", "scope": "Local"}
    summary = apply_defaults({"metadata": {"name": "x"}, "spec": {}}, schemas["KusciaJobSummary"])
    assert summary["spec"] == {"stage": "Create"}
