"""The pure decisions of the first controllers, row by row."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.kube.api import quantity, quota
from coterie.kube.api.aggregation import aggregated_rules
from coterie.kube.api.meta import Condition, ObjectMeta, OwnerReference
from coterie.kube.api.resources import Resource
from coterie.kube.api.types.core import ConfigMap, Namespace, NamespaceStatus, ServiceAccount
from coterie.kube.api.types.kind import builtin
from coterie.kube.api.types.rbac import CLUSTER_ROLES, ClusterRole
from coterie.kube.controllers.clusterrole_aggregation.plan import correction
from coterie.kube.controllers.gc.graph import Graph, GraphNode
from coterie.kube.controllers.gc.plan import (
    AwaitDependents,
    DeleteObject,
    KeepOwners,
    Nothing,
    Orphan,
    RemoveFinalizer,
    plan,
)
from coterie.kube.controllers.namespace.plan import Findings, conditions, pause
from coterie.kube.controllers.rootca import plan as rootca
from coterie.kube.controllers.serviceaccount.plan import missing_account

# ---- gc ----


def owner(uid: str, block: bool | None = None) -> OwnerReference:
    return OwnerReference(api_version="v1", kind="ConfigMap", name=f"n-{uid}", uid=uid, block_owner_deletion=block)


def meta(
    *owners: OwnerReference, deleting: bool = False, finalizers: tuple[str, ...] = (), uid: str = "me"
) -> ObjectMeta:
    return ObjectMeta(
        name=f"n-{uid}",
        uid=uid,
        owner_references=owners or None,
        finalizers=finalizers or None,
        deletion_timestamp="t" if deleting else None,
    )


A, B = owner("a"), owner("b")
FG, ORPHAN = ("foregroundDeletion",), ("orphan",)


@pytest.mark.parametrize(
    ("item", "owners", "facts", "wanted"),
    [
        (meta(), {}, {}, Nothing()),
        (meta(A), {"a": "present"}, {}, Nothing()),
        (meta(A), {}, {}, Nothing()),
        (meta(A), {"a": "absent"}, {}, DeleteObject("Background")),
        (meta(A, B), {"a": "absent", "b": "present"}, {}, KeepOwners((B,))),
        (meta(A, B), {"a": "waiting", "b": "present"}, {}, KeepOwners((B,))),
        (meta(A, B), {"a": "absent", "b": "absent"}, {}, DeleteObject("Background")),
        (meta(A), {"a": "waiting"}, {}, DeleteObject("Background")),
        (meta(A), {"a": "waiting"}, {"dependents": 1}, DeleteObject("Foreground")),
        (meta(A), {"a": "waiting"}, {"dependents": 1, "dependents_waiting": True}, DeleteObject("Foreground", unblock=True)),
        (meta(A), {"a": "absent"}, {"dependents": 1}, DeleteObject("Background")),
        (meta(A, finalizers=ORPHAN), {"a": "absent"}, {}, DeleteObject("Orphan")),
        (meta(A, finalizers=FG), {"a": "absent"}, {}, DeleteObject("Foreground")),
        (meta(A, deleting=True, finalizers=("mine",)), {"a": "absent"}, {}, Nothing()),
        (meta(deleting=True, finalizers=FG), {}, {"dependents": 2, "blocking": 1}, AwaitDependents()),
        (meta(deleting=True, finalizers=FG), {}, {"dependents": 2, "blocking": 0}, RemoveFinalizer()),
        (meta(A, deleting=True, finalizers=FG), {"a": "absent"}, {}, RemoveFinalizer()),
        (meta(deleting=True, finalizers=ORPHAN), {}, {"dependents": 2, "blocking": 2}, Orphan()),
        (meta(finalizers=FG), {}, {"blocking": 1}, Nothing()),
    ],
    ids=[
        "no-owner", "present", "unknown-is-present", "absent", "one-left", "waiting-and-one-left", "all-absent", "waiting",
        "waiting-with-dependents", "circle", "absent-with-dependents", "asks-for-orphan", "asks-for-foreground",
        "already-deleted", "foreground-blocked", "foreground-free", "foreground-with-owner", "orphan", "not-deleted",
    ],
)  # fmt: skip
def test_gc_plan(item: ObjectMeta, owners: Any, facts: dict[str, Any], wanted: object) -> None:
    assert plan(item, owners, **facts) == wanted


CM: Resource = builtin("configmaps")


def test_graph_names_whom_a_change_concerns() -> None:
    graph = Graph()
    assert graph.put(GraphNode(CM, meta(owner("o", True), uid="d"))) == {"d"}  # its owner is not known
    assert graph.put(GraphNode(CM, meta(uid="o"))) == set()
    assert graph.put(GraphNode(CM, meta(owner("o", True), uid="d"))) == set()
    assert [n.meta.uid for n in graph.blocking("o")] == ["d"]
    assert graph.put(GraphNode(CM, meta(uid="o", deleting=True, finalizers=FG))) == {"o", "d"}
    assert graph.put(GraphNode(CM, meta(uid="d"))) == {"d", "o"}  # it left its owner, which waits
    assert graph.blocking("o") == [] and list(graph.dependents("o")) == []
    graph.put(GraphNode(CM, meta(owner("o", True), uid="d")))
    assert graph.remove("d") == {"o"}
    graph.put(GraphNode(CM, meta(owner("o"), uid="e")))
    assert graph.remove("o") == {"e"} and graph.remove("o") == set() and len(graph) == 1


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.booleans(), st.sampled_from("abcd"), st.frozensets(st.sampled_from("abcd"), max_size=2)),
        max_size=30,
    )
)
def test_graph_dependents_agree_with_a_full_scan(steps: list[tuple[bool, str, frozenset[str]]]) -> None:
    graph, nodes = Graph(), {}
    for put, uid, owners in steps:
        if put:
            nodes[uid] = meta(*(owner(o) for o in sorted(owners)), uid=uid)
            graph.put(GraphNode(CM, nodes[uid]))
        else:
            nodes.pop(uid, None)
            graph.remove(uid)
    for uid in "abcd":
        wanted = {m.uid for m in nodes.values() if any(o.uid == uid for o in m.owners)}
        assert {n.meta.uid for n in graph.dependents(uid)} == wanted


# ---- namespace ----


@pytest.mark.parametrize(
    ("found", "status", "message"),
    [
        (Findings(), {}, "All content successfully removed"),
        (Findings(remaining={"pods": 2, "jobs.batch": 1}), {"NamespaceContentRemaining"}, "Some resources are remaining: jobs.batch has 1 resource instances, pods has 2 resource instances"),
        (Findings(remaining={"pods": 1}, finalizers={"x/y": 1}), {"NamespaceContentRemaining", "NamespaceFinalizersRemaining"}, "Some content in the namespace has finalizers remaining: x/y in 1 resource instances"),
        (Findings(failures=["pods: no"]), {"NamespaceDeletionContentFailure"}, "Failed to delete all resource types: pods: no"),
        (Findings(undiscovered=["m/v1"]), {"NamespaceDeletionDiscoveryFailure"}, "Discovery failed for some groups: m/v1"),
    ],
    ids=["empty", "remaining", "finalizers", "failures", "undiscovered"],
)  # fmt: skip
def test_namespace_conditions(found: Findings, status: set[str], message: str) -> None:
    now = conditions((Condition(type="Other", status="True"),), found, "now")
    assert {c.type for c in now if c.status == "True"} == {"Other", *status} and len(now) == 6
    assert message in [c.message for c in now]
    assert found.empty is (not status)
    assert conditions(now, found, "later") == now


def test_namespace_pause_is_short_for_pods() -> None:
    assert pause(Findings(remaining={"pods": 1})) < pause(Findings(remaining={"pods": 1, "secrets": 1}))


# ---- serviceaccount, rootca ----

ACTIVE = Namespace(metadata=ObjectMeta(name="n"), status=NamespaceStatus(phase="Active"))
GOING = Namespace(metadata=ObjectMeta(name="n", deletion_timestamp="t"), status=NamespaceStatus(phase="Terminating"))


@pytest.mark.parametrize(
    ("namespace", "account", "created"),
    [(ACTIVE, None, True), (ACTIVE, ServiceAccount(), False), (GOING, None, False), (None, None, False)],
    ids=["missing", "there", "terminating", "gone"],
)
def test_service_account_plan(namespace: Namespace | None, account: ServiceAccount | None, created: bool) -> None:
    missing = missing_account(namespace, account)
    assert (missing is not None) is created
    if missing:
        assert missing.key == ("n", "default")


def config_map(**data: str) -> ConfigMap:
    return ConfigMap(
        metadata=ObjectMeta(name=rootca.NAME, namespace="n"), data={k.replace("_", "."): v for k, v in data.items()}
    )


@pytest.mark.parametrize(
    ("namespace", "found", "wanted"),
    [
        (GOING, None, None),
        (None, None, None),
        (ACTIVE, config_map(ca_crt="CA"), None),
        (ACTIVE, config_map(ca_crt="OLD"), rootca.Patch({"data": {"ca.crt": "CA"}})),
        (ACTIVE, config_map(ca_crt="CA", extra="x"), rootca.Patch({"data": {"extra": None, "ca.crt": "CA"}})),
    ],
    ids=["terminating", "gone", "right", "old", "extra"],
)
def test_root_ca_plan(namespace: Namespace | None, found: ConfigMap | None, wanted: object) -> None:
    assert rootca.plan(namespace, found, "CA") == wanted


def test_root_ca_is_created() -> None:
    action = rootca.plan(ACTIVE, None, "CA")
    assert isinstance(action, rootca.Create) and action.config_map.data == {"ca.crt": "CA"}


# ---- aggregation ----


def role(name: str, rules: list[str] = (), labels: dict[str, str] | None = None, select: Any = None) -> ClusterRole:  # type: ignore[assignment]
    body: dict[str, Any] = {
        "metadata": {"name": name, "labels": labels, "resourceVersion": "7"},
        "rules": [{"verbs": [r]} for r in rules],
    }
    if select is not None:
        body["aggregationRule"] = {"clusterRoleSelectors": select}
    return CLUSTER_ROLES.decode(CLUSTER_ROLES.as_dynamic.encode(body))


ROLES = [role("z", ["get"], {"to": "view"}), role("a", ["list", "get"], {"to": "view"}), role("other", ["*"])]


@pytest.mark.parametrize(
    ("select", "wanted"),
    [
        ([{"matchLabels": {"to": "view"}}], ["list", "get"]),
        ([{"matchLabels": {"to": "none"}}], []),
        (
            [{"matchExpressions": [{"key": "to", "operator": "DoesNotExist"}]}, {"matchLabels": {"to": "view"}}],
            ["*", "list", "get"],
        ),
        ([], []),
        (None, None),
    ],
    ids=["labels", "no-match", "two-selectors", "no-selector", "no-aggregate"],
)
def test_aggregation(select: Any, wanted: list[str] | None) -> None:
    aggregate = role("sum", ["mine"], {"to": "view"}, select)
    rules = aggregated_rules(aggregate, [*ROLES, aggregate])
    assert (None if rules is None else [r["verbs"][0] for r in rules]) == wanted
    assert rules == aggregated_rules(aggregate, [aggregate, *reversed(ROLES)])


def test_aggregation_correction_only_when_wrong() -> None:
    wrong = role("sum", [], None, [{"matchLabels": {"to": "view"}}])
    right = role("sum", ["list", "get"], None, [{"matchLabels": {"to": "view"}}])
    assert correction(right, ROLES) is None and correction(None, ROLES) is None
    assert correction(wrong, ROLES) == {
        "metadata": {"resourceVersion": "7"},
        "rules": [{"verbs": ["list"]}, {"verbs": ["get"]}],
    }


# ---- quota ----


def pod(*requests: dict[str, str], init: Any = (), phase: str = "Running", **spec: Any) -> dict[str, Any]:
    containers = [{"resources": {"requests": r, "limits": r}} for r in requests]
    return {"spec": {"containers": containers, "initContainers": list(init), **spec}, "status": {"phase": phase}}


def sidecar(**requests: str) -> dict[str, Any]:
    return {"restartPolicy": "Always", "resources": {"requests": requests}}


def init(**requests: str) -> dict[str, Any]:
    return {"resources": {"requests": requests}}


@pytest.mark.parametrize(
    ("obj", "cpu"),
    [
        (pod({"cpu": "1"}, {"cpu": "500m"}), "1500m"),
        (pod({"cpu": "1"}, init=[init(cpu="3"), init(cpu="2")]), "3"),
        (pod({"cpu": "1"}, init=[sidecar(cpu="1"), init(cpu="3")]), "4"),
        (pod({"cpu": "3"}, init=[init(cpu="2"), sidecar(cpu="1")]), "4"),
        (pod({"cpu": "1"}, overhead={"cpu": "250m"}), "1250m"),
        (pod({"cpu": "1"}, resources={"requests": {"cpu": "5"}}), "5"),
    ],
    ids=["sum", "init-max", "sidecar-beside-init", "sidecar-beside-main", "overhead", "pod-level"],
)
def test_pod_requests(obj: dict[str, Any], cpu: str) -> None:
    assert str(quota.pod_resources(obj, "requests")["cpu"]) == cpu


@pytest.mark.parametrize(
    ("resource", "obj", "wanted"),
    [
        ("deployments.apps", {}, {"count/deployments.apps": "1"}),
        ("secrets", {}, {"count/secrets": "1", "secrets": "1"}),
        ("pods", pod(phase="Succeeded"), {"count/pods": "1"}),
        (
            "pods",
            pod({"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "2", "hugepages-2Mi": "4Mi"}),
            {
                "count/pods": "1", "pods": "1", "cpu": "1", "requests.cpu": "1", "limits.cpu": "1", "memory": "1Gi",
                "requests.memory": "1Gi", "limits.memory": "1Gi", "requests.nvidia.com/gpu": "2", "limits.nvidia.com/gpu": "2",
                "hugepages-2Mi": "4Mi", "requests.hugepages-2Mi": "4Mi", "limits.hugepages-2Mi": "4Mi",
            },
        ),
        ("services", {"spec": {"type": "NodePort", "ports": [{}, {}]}}, {"count/services": "1", "services": "1", "services.nodeports": "2"}),
        ("services", {"spec": {"type": "LoadBalancer", "ports": [{}]}}, {"count/services": "1", "services": "1", "services.loadbalancers": "1", "services.nodeports": "1"}),
        ("services", {"spec": {"type": "LoadBalancer", "ports": [{}], "allocateLoadBalancerNodePorts": False}}, {"count/services": "1", "services": "1", "services.loadbalancers": "1"}),
        (
            "persistentvolumeclaims",
            {"spec": {"storageClassName": "gold", "resources": {"requests": {"storage": "5Gi"}}}},
            {
                "count/persistentvolumeclaims": "1", "persistentvolumeclaims": "1", "requests.storage": "5Gi",
                "gold.storageclass.storage.k8s.io/requests.storage": "5Gi", "gold.storageclass.storage.k8s.io/persistentvolumeclaims": "1",
            },
        ),
    ],
    ids=["count", "core", "ended", "compute", "nodeport", "loadbalancer", "no-nodeports", "claim"],
)  # fmt: skip
def test_usage_of_one_object(resource: str, obj: dict[str, Any], wanted: dict[str, str]) -> None:
    assert quota.as_json(quota.usage_of(resource, obj)) == dict(sorted(wanted.items()))


@pytest.mark.parametrize(
    ("name", "resource"),
    [
        ("count/jobs.batch", "jobs.batch"), ("pods", "pods"), ("cpu", "pods"), ("requests.nvidia.com/gpu", "pods"), ("secrets", "secrets"),
        ("services.nodeports", "services"), ("requests.storage", "persistentvolumeclaims"),
        ("gold.storageclass.storage.k8s.io/requests.storage", "persistentvolumeclaims"), ("requests.ephemeral-storage", "pods"),
    ],
)  # fmt: skip
def test_tracked_resource(name: str, resource: str) -> None:
    assert quota.tracked_resource(name) == resource


def _selector(operator: str, *values: str) -> dict[str, Any]:
    return {
        "scopeSelector": {
            "matchExpressions": [{"scopeName": "PriorityClass", "operator": operator, "values": list(values)}]
        }
    }


@pytest.mark.parametrize(
    ("spec", "obj", "wanted"),
    [
        ({}, pod(), True),
        ({"scopes": ["BestEffort"]}, pod(), True),
        ({"scopes": ["BestEffort"]}, pod({"cpu": "1"}), False),
        ({"scopes": ["BestEffort"]}, pod({"nvidia.com/gpu": "1"}), True),
        ({"scopes": ["NotBestEffort"]}, pod({"memory": "1"}), True),
        ({"scopes": ["Terminating"]}, pod(activeDeadlineSeconds=0), True),
        ({"scopes": ["Terminating"]}, pod(), False),
        ({"scopes": ["NotTerminating", "BestEffort"]}, pod(), True),
        ({"scopes": ["NotTerminating", "NotBestEffort"]}, pod(), False),
        (_selector("In", "high"), pod(priorityClassName="high"), True),
        (_selector("In", "high"), pod(), False),
        (_selector("NotIn", "high"), pod(priorityClassName="low"), True),
        (_selector("Exists"), pod(), False),
        (_selector("DoesNotExist"), pod(), True),
        ({"scopes": ["CrossNamespacePodAffinity"]}, pod(), False),
        ({"scopes": ["CrossNamespacePodAffinity"]}, pod(affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"namespaces": ["x"]}]}}), True),
        ({"scopes": ["CrossNamespacePodAffinity"]}, pod(affinity={"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"podAffinityTerm": {"namespaceSelector": {}}}]}}), True),
        ({"scopes": ["SomethingNew"]}, pod(), False),
    ],
)  # fmt: skip
def test_scopes(spec: dict[str, Any], obj: dict[str, Any], wanted: bool) -> None:
    assert quota.matches(spec, "pods", obj) is wanted
    assert quota.matches(spec, "secrets", {}) is (not spec)


def test_quota_usage_counts_only_what_the_quota_names() -> None:
    spec = {"hard": {"pods": "5", "requests.cpu": "4", "secrets": "1", "count/jobs.batch": "1"}}
    objects = {"pods": [pod({"cpu": "1", "memory": "1"}), pod({"cpu": "1"}, phase="Failed")], "secrets": [{}, {}]}
    assert quota.as_json(quota.quota_usage(spec, objects)) == {
        "count/jobs.batch": "0",
        "pods": "1",
        "requests.cpu": "1",
        "secrets": "2",
    }


@pytest.mark.parametrize(
    ("used", "more", "broken"),
    [("1", "1", []), ("1", "1001m", ["cpu"]), ("5", "0", []), ("5", "-1", []), ("5", "1m", ["cpu"])],
    ids=["just", "over", "already-over-none-more", "already-over-less", "already-over-more"],
)
def test_exceeded(used: str, more: str, broken: list[str]) -> None:
    q = quantity.parse
    assert quota.exceeded({"cpu": "2"}, {"cpu": q(used)}, {"cpu": q(more), "memory": q("9Gi")}) == broken
