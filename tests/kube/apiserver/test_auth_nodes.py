"""What nodes and the accounts of domains may do: one row for each right, on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from server_kit import MERGE, Api, pod, serving

from coterie import __version__
from coterie.base import pki
from coterie.http.messages import UserInfo
from coterie.kube.api.labels import COTERIE_POD_NAMESPACE
from coterie.kube.api.version_skew import skew_problem
from coterie.kube.apiserver.auth.nodes import named_by, node_of
from coterie.kube.apiserver.auth.tokens import TokenSigner
from coterie.kube.apiserver.server import Settings
from coterie.kuscia.api.labels import KUSCIA_CONFIG_TEMPLATE_VALUE_CM, KUSCIA_NODE_NAMESPACE
from coterie.kuscia.extensions.apiserver import KUSCIA

N1 = UserInfo("system:node:n1", ("system:nodes", "system:authenticated"))
ALICE = UserInfo("system:serviceaccount:alice:alice", ("system:serviceaccounts", "system:authenticated"))
OPERATOR = UserInfo("system:node:wide", ("system:nodes", "system:authenticated"))
SIGNER = TokenSigner(pki.new_key())
V1 = "/api/v1"
OTHER = "/api/v1/namespaces/other"
DEFAULT = f"{V1}/namespaces/default"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


def node(name: str, domain: str = "", **spec: Any) -> dict[str, Any]:
    labels = {"labels": {KUSCIA_NODE_NAMESPACE: domain}} if domain else {}
    return {"metadata": {"name": name, **labels}, "spec": spec}


def volume(name: str, *, node_name: str = "", claim: str = "", namespace: str = "default") -> dict[str, Any]:
    meta: dict[str, Any] = {"name": name}
    if node_name:
        meta["annotations"] = {
            "pv.kubernetes.io/provisioned-by": "coterie.io/local-path",
            "volume.kubernetes.io/selected-node": node_name,
        }
    spec: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "1Mi"},
        "hostPath": {"path": "/d"},
    }
    if claim:
        spec["claimRef"] = {"namespace": namespace, "name": claim, "uid": "u"}
    return {"metadata": meta, "spec": spec}


def lease(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"holderIdentity": name}}


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    """Nodes n1 (of alice), n2 (of bob), one pod on each, one secret and one map for each, and some for nobody."""
    async with serving(Settings(extensions=[KUSCIA], signer=SIGNER)) as made:
        for name in ("alice", "bob"):
            await made.namespace(name)
            binding = {
                "metadata": {"name": name},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": "domain-cluster-res",
                },
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": name}],
            }
            await made.post(f"{RBAC}/clusterrolebindings", binding)
        for account in ("default", "worker"):
            await made.post(f"{DEFAULT}/serviceaccounts", {"metadata": {"name": account}})
        for name, domain in (("n1", "alice"), ("n2", "bob"), ("bare", "")):
            await made.post(f"{V1}/nodes", node(name, domain, taints=[{"key": "k", "effect": "NoSchedule"}]))
            await made.post(LEASES, lease(name))
        await made.post(f"{V1}/persistentvolumes", volume("free"))
        await made.post(f"{V1}/persistentvolumes", volume("of-alice", claim="c", namespace="alice"))
        for name in ("n1", "n2"):
            uses = [
                {"name": "s", "secret": {"secretName": f"secret-{name}"}},
                {"name": "c", "persistentVolumeClaim": {"claimName": f"claim-{name}"}},
            ]
            await made.post(f"{V1}/persistentvolumes", volume(f"made-on-{name}", node_name=name))
            await made.post(f"{V1}/persistentvolumes", volume(f"claimed-{name}", claim=f"claim-{name}"))
            env = [{"name": "E", "valueFrom": {"configMapKeyRef": {"name": f"map-{name}", "key": "k"}}}]
            body = pod(
                f"pod-{name}", nodeName=name, volumes=uses, serviceAccountName="default" if name == "n1" else "worker"
            )
            body["spec"]["containers"][0]["env"] = env
            await made.post(f"{DEFAULT}/pods", body)
        for name in ("n1", "n2", "nobody"):
            await made.post(f"{DEFAULT}/secrets", {"metadata": {"name": f"secret-{name}"}})
            await made.config_map(f"map-{name}")
        yield made


STATUS = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
RUNNING = {"status": {"phase": "Running"}}
RENEW = {"spec": {"renewTime": "2026-01-02T03:04:05.000000Z"}}
EVENT = {"metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "name": "pod-n1", "namespace": "default"}}

NODE_RIGHTS = [
    ("GET", f"{V1}/nodes/n1", None, True, "own-node"),
    ("GET", f"{V1}/nodes/n2", None, True, "another-node"),
    ("GET", f"{V1}/nodes", None, True, "all-nodes"),
    ("GET", f"{V1}/nodes?fieldSelector=metadata.name%3Dn1", None, True, "own-node-by-selector"),
    ("GET", f"{V1}/nodes?fieldSelector=metadata.name%3Dn2", None, True, "another-by-selector"),
    ("POST", f"{V1}/nodes", node("n9"), False, "make-another-node"),
    ("PATCH", f"{V1}/nodes/n1/status", STATUS, True, "own-status"),
    ("PATCH", f"{V1}/nodes/n2/status", STATUS, False, "another-status"),
    ("PATCH", f"{V1}/nodes/n1", {"metadata": {"labels": {"kubernetes.io/os": "linux"}}}, True, "own-labels"),
    ("PATCH", f"{V1}/nodes/n1", {"spec": {"unschedulable": True}}, True, "cordon-itself"),
    ("PATCH", f"{V1}/nodes/n2", {"spec": {"unschedulable": True}}, False, "cordon-another"),
    ("PATCH", f"{V1}/nodes/n1", {"spec": {"taints": None}}, False, "own-taints"),
    ("PATCH", f"{V1}/nodes/n1", {"metadata": {"labels": {KUSCIA_NODE_NAMESPACE: "bob"}}}, False, "own-domain"),
    (
        "PATCH",
        f"{V1}/nodes/n1/status",
        {"metadata": {"labels": {"node-restriction.kubernetes.io/x": "y"}}},
        False,
        "restricted-label",
    ),
    (
        "PATCH",
        f"{V1}/nodes/n1",
        {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "x", "uid": "u"}]}},
        False,
        "own-owner",
    ),
    ("DELETE", f"{V1}/nodes/n1", None, True, "delete-itself"),
    ("DELETE", f"{V1}/nodes/n2", None, False, "delete-another"),
    ("DELETE", f"{V1}/nodes", None, False, "delete-all"),
    ("PATCH", f"{LEASES}/n1", RENEW, True, "own-lease"),
    ("PATCH", f"{LEASES}/n2", RENEW, False, "another-lease"),
    ("POST", LEASES, lease("n9"), False, "make-another-lease"),
    ("GET", LEASES, None, False, "all-leases"),
    ("POST", "/apis/coordination.k8s.io/v1/namespaces/default/leases", lease("n1"), False, "lease-elsewhere"),
    ("GET", f"{V1}/pods", None, True, "read-pods"),
    ("PATCH", f"{DEFAULT}/pods/pod-n1/status", RUNNING, True, "own-pods-status"),
    ("PATCH", f"{DEFAULT}/pods/pod-n2/status", RUNNING, False, "anothers-pods-status"),
    ("PATCH", f"{DEFAULT}/pods/pod-n1/status", {"metadata": {"labels": {"a": "b"}}}, False, "pods-labels"),
    ("PATCH", f"{DEFAULT}/pods/pod-n1", {"metadata": {"labels": {"a": "b"}}}, False, "change-own-pod"),
    ("DELETE", f"{DEFAULT}/pods/pod-n1", None, True, "delete-own-pod"),
    ("DELETE", f"{DEFAULT}/pods/pod-n2", None, False, "delete-anothers-pod"),
    ("POST", f"{DEFAULT}/pods", pod("new", nodeName="n1"), False, "make-a-pod"),
    ("POST", f"{DEFAULT}/pods/pod-n2/eviction", {"metadata": {"name": "pod-n2"}}, False, "evict-anothers-pod"),
    ("GET", f"{DEFAULT}/secrets/secret-n1", None, True, "secret-of-own-pod"),
    ("GET", f"{DEFAULT}/secrets?fieldSelector=metadata.name%3Dsecret-n1", None, True, "by-selector"),
    ("GET", f"{DEFAULT}/secrets/secret-n2", None, False, "secret-of-anothers-pod"),
    ("GET", f"{DEFAULT}/secrets/secret-nobody", None, False, "secret-of-nobody"),
    ("GET", f"{DEFAULT}/secrets", None, False, "all-secrets"),
    ("GET", f"{V1}/secrets", None, False, "all-secrets-everywhere"),
    ("GET", f"{V1}/namespaces/alice/secrets/secret-n1", None, False, "same-name-elsewhere"),
    ("DELETE", f"{DEFAULT}/secrets/secret-n1", None, False, "delete-secret"),
    ("GET", f"{DEFAULT}/configmaps/map-n1", None, True, "map-of-own-pod"),
    ("GET", f"{DEFAULT}/configmaps/map-n2", None, False, "map-of-anothers-pod"),
    ("GET", f"{DEFAULT}/configmaps", None, False, "all-maps"),
    ("GET", f"{V1}/services", None, True, "services"),
    ("GET", f"{V1}/endpoints", None, True, "endpoints"),
    ("GET", f"{V1}/persistentvolumes", None, False, "volumes"),
    ("GET", f"{V1}/persistentvolumes/x", None, True, "volume-that-is-not-there"),
    ("GET", f"{V1}/persistentvolumes/made-on-n1", None, True, "volume-on-this-node"),
    ("GET", f"{V1}/persistentvolumes/made-on-n2", None, False, "volume-on-another-node"),
    ("GET", f"{V1}/persistentvolumes/claimed-n1", None, True, "volume-of-a-claim-of-own-pod"),
    ("GET", f"{V1}/persistentvolumes/claimed-n2", None, False, "volume-of-a-claim-of-anothers-pod"),
    ("GET", f"{V1}/persistentvolumes/free", None, False, "volume-of-nobody"),
    ("PATCH", f"{V1}/persistentvolumes/made-on-n1", {"metadata": {"labels": {"a": "b"}}}, False, "change-a-volume"),
    ("DELETE", f"{V1}/persistentvolumes/made-on-n1", None, False, "delete-a-volume"),
    ("GET", f"{DEFAULT}/persistentvolumeclaims/claim-n1", None, True, "claim-of-own-pod"),
    ("GET", f"{DEFAULT}/persistentvolumeclaims/claim-n2", None, False, "claim-of-anothers-pod"),
    ("GET", f"{DEFAULT}/persistentvolumeclaims", None, False, "all-claims"),
    ("POST", f"{DEFAULT}/events", EVENT, True, "tell-events"),
    ("GET", f"{RBAC}/clusterroles", None, False, "roles"),
]


def expected(allowed: bool, answer: Any) -> bool:
    return (answer.status < 300 or answer.status == 404) if allowed else answer.status == 403


@pytest.mark.parametrize(
    ("method", "path", "body", "allowed"), [row[:4] for row in NODE_RIGHTS], ids=[row[4] for row in NODE_RIGHTS]
)
async def test_a_node(api: Api, method: str, path: str, body: Any, allowed: bool) -> None:
    answer = await api.call(method, path, body, user=N1, headers={"content-type": MERGE} if method == "PATCH" else {})
    assert expected(allowed, answer), answer


async def test_a_node_registers_itself_once_deleted(api: Api) -> None:
    await api.ok("DELETE", f"{V1}/nodes/n1", user=N1)
    await api.ok("DELETE", f"{LEASES}/n1", user=N1)
    await api.post(f"{V1}/nodes", node("n1", "alice", taints=[{"key": "k", "effect": "NoSchedule"}]), user=N1)
    await api.post(LEASES, lease("n1"), user=N1)
    restricted = node("n1")
    restricted["metadata"]["labels"] = {"node-restriction.kubernetes.io/x": "y"}
    await api.ok("DELETE", f"{V1}/nodes/n1", user=N1)
    await api.refused(403, "POST", f"{V1}/nodes", restricted, user=N1)


async def test_a_node_may_not_announce_the_pod_addresses_of_another(api: Api) -> None:
    """Else it would be sent what is for the other's pods."""
    merge = {"content-type": MERGE}
    await api.patch(f"{V1}/nodes/n2", {"spec": {"podCIDR": "10.1.0.0/24"}})
    for cidr in ("10.1.0.0/24", "10.1.0.128/25", "10.0.0.0/8"):
        taken = {"spec": {"podCIDR": cidr}}
        answer = await api.refused(403, "PATCH", f"{V1}/nodes/n1", taken, user=N1, headers=merge)
        assert answer.json["message"].endswith(f'the pod addresses {cidr} are in use by node "n2"')
        await api.refused(403, "PATCH", f"{V1}/nodes/n1", taken, user=ALICE, headers=merge)
    await api.patch(f"{V1}/nodes/n1", {"spec": {"podCIDR": "10.1.1.0/24"}}, user=N1)
    await api.patch(f"{V1}/nodes/n1/status", STATUS, user=N1)
    await api.ok("DELETE", f"{V1}/nodes/n1", user=N1)
    await api.refused(403, "POST", f"{V1}/nodes", node("n1", podCIDR="10.1.0.0/24"), user=N1)
    elsewhere = node("n1", podCIDR="10.1.0.0/24")
    elsewhere["metadata"]["labels"] = {COTERIE_POD_NAMESPACE: "alice"}
    await api.post(f"{V1}/nodes", elsewhere, user=N1)


@pytest.mark.parametrize(
    ("node_version", "plane", "problem"),
    [
        ("v1.4.0", "1.4.9", ""),
        ("v1.3.7", "1.4.0", ""),
        ("v1.5.0", "1.4.0", ""),
        ("v1.2.9", "1.4.0", "upgrade the node to 1.3 or later"),
        ("v1.6.0-rc1", "1.4.0", "upgrade the control plane to 1.5 or later"),
        ("v2.4.0", "1.4.0", "upgrade the control plane to 2.3 or later"),
        ("", "1.4.0", ""),
        ("unknown", "1.4.0", ""),
    ],
)
def test_versions_that_work_together(node_version: str, plane: str, problem: str) -> None:
    found = skew_problem(node_version, plane)
    assert found.endswith(problem) and bool(found) == bool(problem)


@pytest.mark.parametrize("user", [N1, ALICE], ids=["node", "owner"])
async def test_a_node_of_too_different_a_version_is_refused(api: Api, user: UserInfo) -> None:
    major, minor = (int(part) for part in __version__.split(".")[:2])
    status = f"{V1}/nodes/n1/status"

    def of(number: int) -> dict[str, Any]:
        return {"status": {"nodeInfo": {"kubeletVersion": f"v{major}.{number}.0"}}}

    for number in {minor, minor + 1, max(0, minor - 1)}:
        # A field of a later version is no problem either.
        await api.patch(status, {"status": {**of(number)["status"], "ofLaterVersion": 1}}, user=user)
    headers = {"content-type": MERGE}
    answer = await api.refused(403, "PATCH", status, of(minor + 2), user=user, headers=headers)
    assert "one minor version apart at most; upgrade the control plane" in answer.json["message"]
    await api.patch(status, of(minor + 2))
    await api.refused(403, "PATCH", status, STATUS, user=user, headers=headers)
    await api.patch(f"{V1}/nodes/n1", {"metadata": {"labels": {"a": "b"}}}, user=user)


async def test_of_its_taints_a_node_may_change_kuscias_only(api: Api) -> None:
    other, ours = {"key": "k", "effect": "NoSchedule"}, {"key": "kuscia.secretflow/agent", "value": "v1", "effect": "NoSchedule"}  # fmt: skip
    for taints in ([other, ours], [other]):
        await api.patch(f"{V1}/nodes/n1", {"spec": {"taints": taints}}, user=N1)
    for taints in ([ours], [other, {**ours, "value": "v2"}], [other, {**ours, "effect": "NoExecute"}]):
        await api.refused(
            403, "PATCH", f"{V1}/nodes/n1", {"spec": {"taints": taints}}, user=N1, headers={"content-type": MERGE}
        )


async def test_an_object_is_seen_as_soon_as_a_pod_names_it(api: Api) -> None:
    await api.refused(403, "GET", f"{DEFAULT}/secrets/secret-nobody", user=N1)
    await api.post(f"{DEFAULT}/pods", pod("late", imagePullSecrets=[{"name": "secret-nobody"}]))
    await api.refused(403, "GET", f"{DEFAULT}/secrets/secret-nobody", user=N1)
    await api.post(f"{DEFAULT}/pods/late/binding", {"target": {"kind": "Node", "name": "n1"}})
    await api.get(f"{DEFAULT}/secrets/secret-nobody", user=N1)


@pytest.mark.parametrize(
    ("account", "bound", "allowed"),
    [
        pytest.param("default", "pod-n1", True, id="own-pod"),
        pytest.param("default", None, False, id="bound-to-nothing"),
        pytest.param("default", "pod-n2", False, id="anothers-pod"),
        pytest.param("worker", "pod-n1", False, id="account-of-another"),
        pytest.param("worker", "pod-n2", False, id="account-and-pod-of-another"),
    ],
)
async def test_tokens_for_pods(api: Api, account: str, bound: str | None, allowed: bool) -> None:
    spec: dict[str, Any] = {"expirationSeconds": 3600}
    if bound:
        uid = (await api.get(f"{DEFAULT}/pods/{bound}"))["metadata"]["uid"]
        spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": bound, "uid": uid}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    answer = await api.call("POST", f"{DEFAULT}/serviceaccounts/{account}/token", body, user=N1)
    assert expected(allowed, answer), answer


async def test_a_token_bound_to_a_pod_that_was_there_before_is_refused(api: Api) -> None:
    bound = {"apiVersion": "v1", "kind": "Pod", "name": "pod-n1", "uid": "an-old-one"}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"boundObjectRef": bound}}
    await api.refused(403, "POST", f"{DEFAULT}/serviceaccounts/default/token", body, user=N1)


async def test_an_operator_may_give_a_node_more(api: Api) -> None:
    await api.refused(403, "PATCH", f"{V1}/nodes/n2/status", STATUS, user=OPERATOR, headers={"content-type": MERGE})
    binding = {
        "metadata": {"name": "wide"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": OPERATOR.name}],
    }
    await api.post(f"{RBAC}/clusterrolebindings", binding)
    await api.patch(f"{V1}/nodes/n2/status", STATUS, user=OPERATOR)
    await api.patch(f"{V1}/nodes/n2", {"spec": {"taints": None}}, user=OPERATOR)


DOMAIN_RIGHTS = [
    ("GET", f"{V1}/nodes/n1", None, True, "own-node"),
    ("GET", f"{V1}/nodes/n2", None, False, "anothers-node"),
    ("GET", f"{V1}/nodes/bare", None, False, "nobodys-node"),
    ("GET", f"{V1}/nodes/new", None, True, "a-free-name"),
    ("GET", f"{V1}/nodes", None, False, "all-nodes"),
    ("POST", f"{V1}/nodes", node("new", "alice"), True, "bring-a-node"),
    ("POST", f"{V1}/nodes", node("new", "bob"), False, "bring-a-node-for-another"),
    ("POST", f"{V1}/nodes", node("new"), False, "bring-a-node-for-nobody"),
    ("PATCH", f"{V1}/nodes/n1/status", STATUS, True, "own-status"),
    ("PATCH", f"{V1}/nodes/n2/status", STATUS, False, "anothers-status"),
    ("PATCH", f"{V1}/nodes/n1", {"metadata": {"labels": {KUSCIA_NODE_NAMESPACE: "bob"}}}, False, "give-away"),
    ("PATCH", f"{V1}/nodes/n2", {"metadata": {"labels": {KUSCIA_NODE_NAMESPACE: "alice"}}}, False, "take"),
    ("DELETE", f"{V1}/nodes/n1", None, True, "delete-own"),
    ("DELETE", f"{V1}/nodes/n2", None, False, "delete-anothers"),
    ("DELETE", f"{V1}/nodes", None, False, "delete-all"),
    ("PATCH", f"{LEASES}/n1", RENEW, True, "own-lease"),
    ("PATCH", f"{LEASES}/n2", RENEW, False, "anothers-lease"),
    ("POST", LEASES, lease("new"), True, "lease-of-a-new-node"),
    ("POST", LEASES, lease("n2"), False, "lease-of-anothers-node"),
    ("GET", LEASES, None, False, "all-leases"),
    ("POST", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", lease("n1"), False, "lease-elsewhere"),
    ("GET", f"{V1}/nodes/n1/proxy", None, False, "through-the-node"),
    ("GET", f"{V1}/persistentvolumes/made-on-n1", None, True, "volume-on-own-node"),
    ("GET", f"{V1}/persistentvolumes/made-on-n2", None, False, "volume-on-anothers-node"),
    ("GET", f"{V1}/persistentvolumes/of-alice", None, True, "volume-of-own-claim"),
    ("GET", f"{V1}/persistentvolumes/claimed-n1", None, False, "volume-of-anothers-claim"),
    ("GET", f"{V1}/persistentvolumes", None, False, "all-volumes"),
    ("DELETE", f"{V1}/persistentvolumes/made-on-n1", None, False, "delete-a-volume"),
    ("GET", f"{V1}/events", None, False, "all-events"),
    ("POST", f"{DEFAULT}/events", EVENT, False, "events-elsewhere"),
]


@pytest.mark.parametrize(
    ("method", "path", "body", "allowed"), [row[:4] for row in DOMAIN_RIGHTS], ids=[row[4] for row in DOMAIN_RIGHTS]
)
async def test_a_domains_account(api: Api, method: str, path: str, body: Any, allowed: bool) -> None:
    answer = await api.call(
        method, path, body, user=ALICE, headers={"content-type": MERGE} if method == "PATCH" else {}
    )
    assert expected(allowed, answer), answer


async def test_a_name_that_is_taken_is_told_as_such(api: Api) -> None:
    answer = await api.refused(409, "POST", f"{V1}/nodes", node("n2", "alice"), user=ALICE)
    assert answer.reason == "AlreadyExists"


async def test_an_account_without_the_right_brings_no_nodes(api: Api) -> None:
    other = UserInfo("system:serviceaccount:alice:default", ("system:serviceaccounts", "system:authenticated"))
    await api.refused(403, "GET", f"{V1}/nodes/n1", user=other)
    await api.refused(403, "POST", f"{V1}/nodes", node("new", "alice"), user=other)


async def test_what_an_older_version_gave_is_taken_back() -> None:
    async with serving(Settings(extensions=[KUSCIA])) as made:
        rule = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["delete"]}
        await made.patch(f"{RBAC}/clusterroles/domain-cluster-res", {"rules": [rule]})
        group = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes"}
        mine = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "mine"}
        await made.patch(f"{RBAC}/clusterrolebindings/system:node", {"subjects": [group, mine]})
        async with serving(Settings(extensions=[KUSCIA]), store=made.store, clock=made.clock) as later:
            role = await later.get(f"{RBAC}/clusterroles/domain-cluster-res")
            assert role["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["own"]}]
            assert (await later.get(f"{RBAC}/clusterrolebindings/system:node"))["subjects"] == [mine]


@pytest.mark.parametrize(
    ("name", "groups", "expected_node"),
    [
        ("system:node:n1", ("system:nodes",), "n1"),
        ("system:node:n1", (), ""),
        ("n1", ("system:nodes",), ""),
        ("system:node:", ("system:nodes",), ""),
    ],
)
def test_who_is_a_node(name: str, groups: tuple[str, ...], expected_node: str) -> None:
    assert node_of(UserInfo(name, groups)) == expected_node


def test_everything_a_pod_can_name() -> None:
    container = {
        "envFrom": [{"secretRef": {"name": "s1"}}, {"configMapRef": {"name": "c1"}}],
        "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s2"}}}, {"name": "B", "value": "x"}],
    }
    spec = {
        "serviceAccountName": "sa",
        "imagePullSecrets": [{"name": "s3"}],
        "containers": [container],
        "initContainers": [{"envFrom": [{"secretRef": {"name": "s4"}}]}],
        "ephemeralContainers": [{"envFrom": [{"configMapRef": {"name": "c2"}}]}],
        "volumes": [
            {"name": "a", "secret": {"secretName": "s5"}},
            {"name": "b", "configMap": {"name": "c3"}},
            {"name": "c", "persistentVolumeClaim": {"claimName": "p1"}},
            {"name": "d", "projected": {"sources": [{"secret": {"name": "s6"}}, {"configMap": {"name": "c4"}}]}},
            {"name": "e", "csi": {"nodePublishSecretRef": {"name": "s7"}}},
            {"name": "f", "emptyDir": {}},
        ],
    }
    found = {entry for entry in named_by(spec) if entry[1]}
    assert {name for kind, name in found if kind == "secrets"} == {f"s{n}" for n in range(1, 8)}
    assert {name for kind, name in found if kind == "configmaps"} == {f"c{n}" for n in range(1, 5)}
    assert found >= {("persistentvolumeclaims", "p1"), ("serviceaccounts", "sa")}


async def test_a_node_sees_the_sealed_values_of_the_domains_of_its_pods(api: Api) -> None:
    await api.post("/api/v1/namespaces", {"metadata": {"name": "other"}})
    await api.post(f"{OTHER}/configmaps", {"metadata": {"name": "domain-config"}, "data": {"k": "sealed"}})
    body = pod("p")
    await api.post(f"{OTHER}/pods", {**body, "spec": {**body["spec"], "nodeName": "n2"}})
    assert (await api.call("GET", f"{OTHER}/configmaps/domain-config", user=N1)).status == 403
    body = pod("q")
    await api.post(f"{OTHER}/pods", {**body, "spec": {**body["spec"], "nodeName": "n1"}})
    assert (await api.call("GET", f"{OTHER}/configmaps/domain-config", user=N1)).status == 200
    assert (await api.call("GET", f"{OTHER}/configmaps", user=N1)).status == 403


async def test_a_node_reads_the_values_for_the_templates_of_its_pods(api: Api) -> None:
    await api.post(f"{DEFAULT}/configmaps", {"metadata": {"name": "gen-conf"}, "data": {"k": "v"}})
    assert (await api.call("GET", f"{DEFAULT}/configmaps/gen-conf", user=N1)).status == 403
    body = pod("templated")
    body["metadata"]["annotations"] = {KUSCIA_CONFIG_TEMPLATE_VALUE_CM: "gen-conf"}
    await api.post(f"{DEFAULT}/pods", {**body, "spec": {**body["spec"], "nodeName": "n1"}})
    assert (await api.call("GET", f"{DEFAULT}/configmaps/gen-conf", user=N1)).status == 200
