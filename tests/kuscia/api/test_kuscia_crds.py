"""The Kuscia definitions against the catalogue of the spec: one row for each kind."""

from __future__ import annotations

import re
from typing import Any

import pytest

from coterie.kuscia.api.definitions import crds

START = ("StartTime", "date", ".status.startTime")
COMPLETION = ("CompletionTime", "date", ".status.completionTime")
RECONCILE = ("LastReconcileTime", "date", ".status.lastReconcileTime")
TRANSITION = ("LastTransitionTime", "date", ".status.lastTransitionTime")
PHASE = ("Phase", "string", ".status.phase")
AGE = ("Age", "date", ".metadata.creationTimestamp")
ROUTE = [
    ("Source", "string", ".spec.source"),
    ("Destination", "string", ".spec.destination"),
    ("Host", "string", ".spec.endpoint.host"),
    ("Authentication", "string", ".spec.authenticationType"),
]
READY = ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status')
GATEWAY = [
    ("CreationTime", "string", ".metadata.creationTimestamp"),
    ("UpTime", "string", ".status.uptime"),
    ("HeartbeatTime", "string", ".status.heartbeatTime"),
    ("Address", "string", ".status.address"),
    ("Version", "string", ".status.version"),
]

# kind, plural, short names, scope, status sub-resource, columns
CATALOGUE: list[tuple[str, str, list[str], str, bool, list[tuple[str, str, str]]]] = [
    ("Domain", "domains", [], "Cluster", True, []),
    ("DomainRoute", "domainroutes", ["dr"], "Namespaced", True, ROUTE),
    ("ClusterDomainRoute", "clusterdomainroutes", ["cdr"], "Cluster", True, [*ROUTE, READY]),
    ("Gateway", "gateways", ["gw"], "Namespaced", True, GATEWAY),
    ("KusciaJob", "kusciajobs", ["kj"], "Namespaced", True, [START, COMPLETION, RECONCILE, PHASE]),
    ("KusciaJobSummary", "kusciajobsummaries", ["kjs"], "Namespaced", False, [START, COMPLETION, RECONCILE]),
    ("KusciaTask", "kusciatasks", ["kt"], "Namespaced", True, [START, COMPLETION, RECONCILE, PHASE]),
    ("KusciaTaskSummary", "kusciatasksummaries", ["kts"], "Namespaced", False,
     [("JobID", "string", ".spec.jobID"), ("TaskAlias", "string", ".spec.alias"), PHASE]),
    ("KusciaDeployment", "kusciadeployments", ["kd"], "Namespaced", True,
     [("TotalParties", "integer", ".status.totalParties"),
      ("AvailableParties", "integer", ".status.availableParties"), PHASE, AGE]),
    ("KusciaDeploymentSummary", "kusciadeploymentsummaries", ["kds"], "Namespaced", False, [AGE]),
    ("TaskResourceGroup", "taskresourcegroups", ["trg"], "Cluster", True,
     [("MinReservedMembers", "integer", ".spec.minReservedMembers"), PHASE, START, COMPLETION, TRANSITION]),
    ("TaskResource", "taskresources", ["tr"], "Namespaced", False,
     [("MinReservedPods", "integer", ".spec.minReservedPods"), PHASE, START, COMPLETION, TRANSITION]),
    ("AppImage", "appimages", ["aimg"], "Cluster", False, []),
    ("DomainAppImage", "domainappimages", ["daimg"], "Namespaced", False, []),
    ("DomainData", "domaindatas", ["kdd"], "Namespaced", True, []),
    ("DomainDataSource", "domaindatasources", ["dds"], "Namespaced", True, []),
    ("DomainDataGrant", "domaindatagrants", ["ddg"], "Namespaced", True, []),
    ("InteropConfig", "interopconfigs", ["interop"], "Cluster", False, []),
    (
        "LogRequest", "logrequests", ["lr"], "Namespaced", True,
        [
            ("Requester", "string", ".spec.requester"), ("Owner", "string", ".spec.owner"), ("Job", "string", ".spec.job"),
            PHASE, ("Expires", "string", ".status.expireTime"), AGE,
        ],
    ),
    (
        "JobPlanRequest", "jobplanrequests", ["jpr"], "Namespaced", True,
        [
            ("Initiator", "string", ".spec.initiator"), ("Job", "string", ".spec.jobName"), PHASE,
            ("Outlook", "string", ".status.outlook"), AGE,
        ],
    ),
    ("PartnerPolicy", "partnerpolicies", ["pp"], "Cluster", False, [("Outside", "string", ".spec.outside"), AGE]),
    (
        "DomainDataRecord", "domaindatarecords", ["kddr"], "Namespaced", False,
        [("Data", "string", ".spec.domainDataID"), ("Initiator", "string", ".spec.initiator"), ("Job", "string", ".spec.job")],
    ),
    ("Dns", "dnses", [], "Namespaced", False, [("Host", "string", ".spec.host"), AGE]),
    (
        "GpuJob", "gpujobs", [], "Namespaced", True,
        [
            PHASE, ("Reason", "string", ".status.reason"), ("Backend", "string", ".status.backend"),
            ("Cluster", "string", ".status.cluster"), ("SlurmJob", "string", ".status.slurmJobId"),
            ("Pod", "string", ".status.podName"), ("Exit", "integer", ".status.exitCode"),
            ("GPU-Seconds", "integer", ".status.gpuSeconds"), AGE,
        ],
    ),
    (
        "Action", "actions", [], "Namespaced", True,
        [
            ("Version", "string", ".status.version"), ("Ready", "integer", ".status.readyReplicas"),
            ("Desired", "integer", ".status.desiredReplicas"), ("Calls/Min", "integer", ".status.callsPerMinute"),
            ("Errors/Min", "integer", ".status.errorsPerMinute"), ("Image", "string", ".spec.image"),
            ("Cold-Starts", "integer", ".status.coldStarts"), ("Dead-Letters", "integer", ".status.deadLetters"), AGE,
        ],
    ),
    (
        "Trigger", "triggers", [], "Namespaced", True,
        [
            ("Action", "string", ".spec.action"), ("Path", "string", ".spec.http.path"), ("Schedule", "string", ".spec.schedule"),
            ("Topic", "string", ".spec.topic"), ("Table", "string", ".spec.domainData.name"), ("Suspend", "boolean", ".spec.suspend"),
            ("Last-Call", "date", ".status.lastCallTime"), AGE,
        ],
    ),
    (
        "ActionGrant", "actiongrants", [], "Namespaced", True,
        [
            ("Action", "string", ".spec.action"), ("Partner", "string", ".spec.grantDomain"), PHASE,
            ("Uses", "integer", ".status.uses"), ("Limit", "integer", ".spec.limit.calls"),
            ("Expires", "string", ".spec.limit.expirationTime"), ("Last-Use", "date", ".status.lastUseTime"), AGE,
        ],
    ),
    (
        "DeadLetter", "deadletters", [], "Namespaced", False,
        [
            ("Action", "string", ".spec.action"), ("Reason", "string", ".spec.reason"), ("Attempts", "integer", ".spec.attempts"),
            ("Size", "integer", ".spec.size"), ("Replay", "boolean", ".spec.replay"), ("Request", "string", ".spec.request"), AGE,
        ],
    ),
    (
        "SlurmCluster", "slurmclusters", [], "Namespaced", True,
        [
            ("Host", "string", ".spec.ssh.host"), ("User", "string", ".spec.ssh.user"),
            ("Reachable", "string", '.status.conditions[?(@.type=="Reachable")].status'),
            ("Message", "string", '.status.conditions[?(@.type=="Reachable")].message'), AGE,
        ],
    ),
]  # fmt: skip
NO_STATUS_AT_ALL = {
    "AppImage",
    "DeadLetter",
    "Dns",
    "DomainAppImage",
    "DomainDataRecord",
    "InteropConfig",
    "PartnerPolicy",
}
OF_COTERIE = {"Action", "ActionGrant", "DeadLetter", "Dns", "GpuJob", "SlurmCluster", "Trigger"}
NO_SPEC = {"Gateway", "KusciaDeploymentSummary"}


@pytest.fixture(scope="module")
def definitions() -> dict[str, Any]:
    return {crd["spec"]["names"]["kind"]: crd for crd in crds.load()}


def schema_of(crd: Any) -> Any:
    return crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def walk(node: Any, path: str = ""):
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from walk(child, f"{path}.{name}" if path else name)
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if key in node:
            yield from walk(node[key], path + mark)


def test_all_are_there(definitions: dict[str, Any]) -> None:
    assert sorted(definitions) == sorted(row[0] for row in CATALOGUE)


@pytest.mark.parametrize(
    ("kind", "plural", "short", "scope", "status", "columns"), CATALOGUE, ids=lambda v: v if isinstance(v, str) else ""
)
def test_catalogue(
    definitions: dict[str, Any],
    kind: str,
    plural: str,
    short: list[str],
    scope: str,
    status: bool,
    columns: list[tuple[str, str, str]],
) -> None:
    crd = definitions[kind]
    assert (crd["apiVersion"], crd["kind"]) == ("apiextensions.k8s.io/v1", "CustomResourceDefinition")
    group = "coterie.io" if kind in OF_COTERIE else "kuscia.secretflow"
    assert crd["metadata"]["name"] == f"{plural}.{group}"
    spec = crd["spec"]
    assert spec["group"] == group
    assert spec["scope"] == scope
    assert spec["names"]["plural"] == plural
    assert spec["names"]["singular"] == kind.lower()
    assert spec["names"]["listKind"] == kind + "List"
    assert spec["names"].get("shortNames", []) == short
    (version,) = spec["versions"]
    assert (version["name"], version["served"], version["storage"]) == ("v1alpha1", True, True)
    assert version.get("subresources", {}) == ({"status": {}} if status else {})
    told = [(c["name"], c["type"], c["jsonPath"]) for c in version.get("additionalPrinterColumns", [])]
    assert told == columns
    properties = schema_of(crd)["properties"]
    assert ("status" in properties) is (kind not in NO_STATUS_AT_ALL)
    assert ("spec" in properties) is (kind not in NO_SPEC)


def test_schemas_are_structural(definitions: dict[str, Any]) -> None:
    """No marker or reference is left, every node has one type, list keys are required, patterns compile."""
    for kind, crd in definitions.items():
        for path, node in walk(schema_of(crd)):
            where = f"{kind} {path}"
            assert not [k for k in node if k.startswith(("x-coterie", "$"))], where
            if node.get("x-kubernetes-int-or-string"):
                assert "type" not in node, where
            else:
                assert isinstance(node.get("type"), str), where
            if node["type"] == "array" if "type" in node else False:
                assert "items" in node, where
            assert not ("properties" in node and "additionalProperties" in node), where
            assert set(node.get("required", ())) <= set(node.get("properties", {})), where
            if node.get("x-kubernetes-list-type") == "map":
                assert set(node["x-kubernetes-list-map-keys"]) <= set(node["items"]["required"]), where
            if "pattern" in node:
                re.compile(node["pattern"])


def test_people_can_explain_them(definitions: dict[str, Any]) -> None:
    for kind, crd in definitions.items():
        schema = schema_of(crd)
        assert schema["description"], kind
        spec = schema["properties"].get("spec", {}).get("properties", {})
        undescribed = [
            n for n, node in spec.items() if not node.get("description") and node.get("type") not in ("object", "array")
        ]
        assert undescribed == [], kind


DEFAULTS = {
    "Action": {
        "spec.handler": "action.action",
        "spec.image": "coterie-actor",
        "spec.timeoutSeconds": 30,
        "spec.concurrency": 1,
        "spec.scaling": {},
        "spec.scaling.policy": "Load",
        "spec.scaling.minReplicas": 0,
        "spec.scaling.maxReplicas": 5,
        "spec.scaling.idleSeconds": 60,
        "spec.retries": {},
        "spec.retries.limit": 3,
        "spec.retries.firstDelayMilliseconds": 200,
        "spec.versionHistoryLimit": 10,
    },
    "ActionGrant": {"spec.maxBodyBytes": 1 << 20},
    "DeadLetter": {"spec.replay": False},
    "Trigger": {"spec.suspend": False},
    "KusciaJob": {"spec.scheduleMode": "Strict", "spec.maxParallelism": 1, "spec.tasks[].tolerable": False},
    "KusciaJobSummary": {"spec.stage": "Create"},
    "DomainRoute": {"spec.transit.transitMethod": "THIRD-DOMAIN"},
    "ClusterDomainRoute": {"spec.transit.transitMethod": "THIRD-DOMAIN"},
    "AppImage": {
        "spec.deployTemplates[].spec.containers[].ports[].protocol": "HTTP",
        "spec.deployTemplates[].spec.containers[].ports[].scope": "Local",
    },
    "KusciaTask": {
        "spec.parties[].template.spec.containers[].ports[].protocol": "HTTP",
        "spec.parties[].template.spec.containers[].ports[].scope": "Local",
    },
    "KusciaDeployment": {
        "spec.parties[].template.spec.containers[].ports[].protocol": "HTTP",
        "spec.parties[].template.spec.containers[].ports[].scope": "Local",
    },
}


@pytest.mark.parametrize("kind", [row[0] for row in CATALOGUE])
def test_defaults(definitions: dict[str, Any], kind: str) -> None:
    told = {path: node["default"] for path, node in walk(schema_of(definitions[kind])) if "default" in node}
    assert told == DEFAULTS.get(kind, {})


LIMITS = [
    ("KusciaJob", "spec.maxParallelism", {"minimum": 1, "maximum": 128}),
    ("KusciaJob", "spec.tasks", {"minItems": 1, "maxItems": 128}),
    ("KusciaJob", "spec.tasks[].dependencies", {"minItems": 1, "maxItems": 128}),
    ("KusciaJob", "spec.tasks[].taskID", {"pattern": "[a-z0-9]([-a-z0-9]*[a-z0-9])?"}),
    ("KusciaJob", "spec.tasks[].scheduleConfig.minReservedMembers", {"minimum": 1}),
    ("KusciaJob", "spec.scheduleMode", {"enum": ["Strict", "BestEffort"]}),
    ("Domain", "spec.resourceQuota.podMaxCount", {"minimum": 0}),
    ("Domain", "spec.authCenter.authenticationType", {"enum": ["Token", "MTLS", "None"]}),
    ("Domain", "spec.authCenter.tokenGenMethod", {"enum": ["RSA-GEN", "RAND-GEN", "UID-RSA-GEN"]}),
    ("Domain", "spec.interConnProtocols[]", {"enum": ["kuscia", "bfia"]}),
    ("DomainRoute", "spec.endpoint.ports[].port", {"minimum": 1, "maximum": 65535}),
    ("DomainRoute", "spec.tokenConfig.rollingUpdatePeriod", {"minimum": 0}),
    ("DomainRoute", "spec.bodyEncryption.algorithm", {"enum": ["AES", "SM4"]}),
    ("TaskResourceGroup", "spec.minReservedMembers", {"minimum": 1}),
    ("TaskResource", "spec.minReservedPods", {"minimum": 1}),
    ("DomainDataGrant", "spec.limit.grantMode[]", {"enum": ["normal", "metadata", "file"]}),
    ("DomainData", "status.phase", {"enum": ["Available", "Unavailable", "Unknown"]}),
    ("AppImage", "spec.deployTemplates[].spec.containers[].ports[].scope", {"enum": ["Cluster", "Domain", "Local"]}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "path", "limits"), LIMITS, ids=[f"{k}-{p}" for k, p, _ in LIMITS])
def test_limits(definitions: dict[str, Any], kind: str, path: str, limits: dict[str, Any]) -> None:
    node = dict(walk(schema_of(definitions[kind])))[path]
    assert {key: node.get(key) for key in limits} == limits


@pytest.mark.parametrize(
    ("path", "type_"),
    [
        ("spec.deployTemplates[].spec.containers[].livenessProbe.httpGet.port", None),
        ("spec.deployTemplates[].spec.containers[].livenessProbe.periodSeconds", "integer"),
        ("spec.deployTemplates[].spec.containers[].resources.limits{}", None),
        ("spec.deployTemplates[].spec.containers[].env[].valueFrom.secretKeyRef.key", "string"),
        ("spec.deployTemplates[].spec.containers[].securityContext.privileged", "boolean"),
        ("spec.deployTemplates[].spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[].topologyKey", "string"),
    ],
)  # fmt: skip
def test_kubernetes_types_are_spelled_out(definitions: dict[str, Any], path: str, type_: str | None) -> None:
    node = dict(walk(schema_of(definitions["AppImage"])))[path]
    assert node.get("type") == type_
    assert node.get("x-kubernetes-int-or-string", False) is (type_ is None)


@pytest.mark.parametrize(
    ("text", "good"),
    [("1", True), ("500m", True), ("1.5Gi", True), ("2e3", True), ("-1", True), (".5", True), ("1 Gi", False), ("Gi", False), ("1Gb", False), ("", False)],
)  # fmt: skip
def test_quantity_pattern(definitions: dict[str, Any], text: str, good: bool) -> None:
    node = dict(walk(schema_of(definitions["KusciaJob"])))["spec.tasks[].parties[].resources.limits{}"]
    assert (re.search(node["pattern"], text) is not None) is good


@pytest.mark.parametrize(
    ("host", "good"),
    [("", True), ("10.0.0.1", True), ("gateway.bob.example", True), ("root-kuscia-lite-alice", True), ("a b", False), ("http://x", False), ("-x", False)],
)  # fmt: skip
def test_endpoint_host_pattern(definitions: dict[str, Any], host: str, good: bool) -> None:
    node = dict(walk(schema_of(definitions["ClusterDomainRoute"])))["spec.endpoint.host"]
    assert (re.search(node["pattern"], host) is not None) is good


def test_hashes_tell_what_changed_without_loading(definitions: dict[str, Any]) -> None:
    hashes = crds.hashes()
    assert len(set(hashes.values())) == len(CATALOGUE)
    for crd in definitions.values():
        assert crd["metadata"]["annotations"] == {crds.HASH_ANNOTATION: hashes[crd["metadata"]["name"]]}


def test_load_only_what_is_asked() -> None:
    (only,) = crds.load({"domains.kuscia.secretflow"})
    assert only["spec"]["names"]["kind"] == "Domain"
    assert crds.load(()) == []
