"""An account that owns nodes lists its own, and acts as one of them: with the rights of a node, in its own namespace only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from server_kit import MERGE, Answer, Api, Watch, pod, serving

from coterie.base import pki
from coterie.http.messages import Peer, UserInfo
from coterie.kube.apiserver.auth.nodes import OWNER_EXTRA, owner_limit
from coterie.kube.apiserver.auth.tokens import TokenSigner
from coterie.kube.apiserver.server import Settings
from coterie.kuscia.api.labels import KUSCIA_NODE_NAMESPACE
from coterie.kuscia.extensions.apiserver import KUSCIA

ALICE = UserInfo("system:serviceaccount:alice:alice", ("system:serviceaccounts", "system:authenticated"))
V1, RBAC = "/api/v1", "/apis/rbac.authorization.k8s.io/v1"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
OWN, FOREIGN = f"{V1}/namespaces/alice", f"{V1}/namespaces/bob"
LABEL = KUSCIA_NODE_NAMESPACE.replace("/", "%2F")
LIMITED = ((OWNER_EXTRA, ("alice",)),)
STATUS = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
RUNNING = {"status": {"phase": "Running"}}


def node(name: str, domain: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {KUSCIA_NODE_NAMESPACE: domain}}, "spec": spec}


def lease(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"holderIdentity": name}}


def bound(role: str, name: str, subject: dict[str, Any]) -> dict[str, Any]:
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
    return {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    """a1 and a2 of alice, b1 of bob; on each one pod in the domain's namespace, which names a Secret."""
    async with serving(Settings(extensions=[KUSCIA], signer=TokenSigner(pki.new_key()))) as made:
        for name in ("alice", "bob"):
            await made.namespace(name)
            await made.post(f"{V1}/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}})
            account = {"kind": "ServiceAccount", "name": name, "namespace": name}
            await made.post(f"{RBAC}/clusterrolebindings", bound("domain-cluster-res", name, account))
        for name, domain in (("a1", "alice"), ("a2", "alice"), ("b1", "bob")):
            await made.post(f"{V1}/nodes", node(name, domain))
            await made.post(LEASES, lease(name))
            uses = [{"name": "s", "secret": {"secretName": f"of-{name}"}}]
            body = pod(f"on-{name}", nodeName=name, volumes=uses)
            await made.post(f"{V1}/namespaces/{domain}/pods", body)
            await made.post(f"{V1}/namespaces/{domain}/secrets", {"metadata": {"name": f"of-{name}"}})
        # A pod of bob's that names a Secret, bound to a node of alice's.
        uses = [{"name": "s", "secret": {"secretName": "of-b1"}}]
        await made.post(f"{FOREIGN}/pods", pod("lost", nodeName="a2", volumes=uses))
        yield made


async def call(
    api: Api,
    method: str,
    path: str,
    body: Any = None,
    *,
    acting_as: str = "system:node:a2",
    groups: str = "system:nodes",
    **headers: str,
) -> Answer:
    """As alice's account, through authentication; `groups`: separated by a line feed, as the HTTP server joins them."""
    sent = {"content-type": MERGE if method == "PATCH" else "application/json", **headers}
    if acting_as:
        sent["impersonate-user"] = acting_as
    if groups:
        sent["impersonate-group"] = groups
    return await api.call(method, path, body, headers=sent, user=None, peer=Peer(certificate_user=ALICE))


def expected(allowed: bool, answer: Answer) -> bool:
    return (answer.status < 300 or answer.status == 404) if allowed else answer.status == 403


RIGHTS = [
    ("GET", f"{V1}/nodes/a2", None, True, "own-node"),
    ("GET", f"{V1}/nodes/a1", None, True, "another-node-of-its-domain"),
    ("GET", f"{V1}/nodes/b1", None, False, "node-of-another-domain"),
    ("GET", f"{V1}/nodes", None, False, "all-nodes"),
    ("GET", f"{V1}/nodes?labelSelector={LABEL}%3Dalice", None, True, "nodes-of-its-domain"),
    ("GET", f"{V1}/nodes?labelSelector={LABEL}%3Dbob", None, False, "nodes-of-another-domain"),
    ("GET", f"{V1}/nodes?labelSelector={LABEL}", None, False, "nodes-of-all-domains"),
    ("GET", f"{V1}/nodes?labelSelector={LABEL}+in+(alice,bob)", None, False, "nodes-of-two-domains"),
    ("GET", f"{V1}/nodes?labelSelector={LABEL}!%3Dbob", None, False, "nodes-of-all-but-one"),
    ("PATCH", f"{V1}/nodes/a2/status", STATUS, True, "own-status"),
    ("PATCH", f"{V1}/nodes/a1/status", STATUS, False, "status-of-the-first-machine"),
    ("PATCH", f"{V1}/nodes/a2", {"metadata": {"labels": {KUSCIA_NODE_NAMESPACE: "bob"}}}, False, "change-domain"),
    ("POST", f"{V1}/nodes", node("a3", "alice"), False, "make-another-node"),
    ("DELETE", f"{V1}/nodes/a2", None, True, "delete-itself"),
    ("DELETE", f"{V1}/nodes/a1", None, False, "delete-the-first-machine"),
    ("DELETE", f"{V1}/nodes?labelSelector={LABEL}%3Dalice", None, False, "delete-all-of-its-domain"),
    ("PATCH", f"{LEASES}/a2", {"spec": {"leaseDurationSeconds": 40}}, True, "own-lease"),
    ("PATCH", f"{LEASES}/a1", {"spec": {"leaseDurationSeconds": 40}}, False, "lease-of-the-first-machine"),
    ("GET", f"{OWN}/pods", None, True, "pods-of-its-domain"),
    ("GET", f"{V1}/pods", None, False, "pods-of-all-domains"),
    ("GET", f"{V1}/pods?fieldSelector=spec.nodeName%3Da2", None, False, "own-pods-of-all-domains"),
    ("GET", f"{FOREIGN}/pods", None, False, "pods-of-another-domain"),
    ("PATCH", f"{OWN}/pods/on-a2/status", RUNNING, True, "status-of-own-pod"),
    ("PATCH", f"{OWN}/pods/on-a1/status", RUNNING, False, "status-of-a-pod-on-the-first-machine"),
    ("GET", f"{OWN}/secrets/of-a2", None, True, "secret-of-own-pod"),
    ("GET", f"{OWN}/secrets/of-a1", None, False, "secret-of-a-pod-on-the-first-machine"),
    ("GET", f"{OWN}/secrets", None, False, "all-secrets-of-its-domain"),
    ("GET", f"{FOREIGN}/secrets/of-b1", None, False, "secret-of-another-domain"),
    ("GET", f"{OWN}/services", None, True, "services-of-its-domain"),
    ("GET", f"{V1}/services", None, False, "services-of-all-domains"),
    ("GET", f"{OWN}/endpoints", None, True, "endpoints-of-its-domain"),
    ("GET", "/apis/discovery.k8s.io/v1/endpointslices", None, False, "slices-of-all-domains"),
    ("GET", f"{V1}/namespaces/alice", None, True, "its-namespace"),
    ("GET", f"{V1}/namespaces", None, False, "all-namespaces"),
    ("GET", f"{V1}/namespaces/bob", None, False, "another-namespace"),
    ("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": "x"}}, False, "ask-whose-token-it-is"),
    ("GET", "/apis/kuscia.secretflow/v1alpha1/namespaces/alice/domaindatas", None, False, "data-of-its-domain"),
]


@pytest.mark.parametrize(("method", "path", "body", "allowed"), [row[:4] for row in RIGHTS], ids=[r[4] for r in RIGHTS])
async def test_a_node_that_acts_through_its_owner(api: Api, method: str, path: str, body: Any, allowed: bool) -> None:
    answer = await call(api, method, path, body)
    assert expected(allowed, answer), answer


async def test_it_registers_itself_again_for_its_domain_only(api: Api) -> None:
    assert (await call(api, "DELETE", f"{V1}/nodes/a2")).status == 200
    for domain, status in (("bob", 403), ("alice", 201)):
        assert (await call(api, "POST", f"{V1}/nodes", node("a2", domain))).status == status
    bare = {"metadata": {"name": "a9"}}
    assert (await call(api, "POST", f"{V1}/nodes", bare, acting_as="system:node:a9")).status == 403


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        pytest.param("system:node:b1", "system:nodes", id="node-of-another-domain"),
        pytest.param("system:node:a2", "system:masters", id="masters"),
        pytest.param("system:node:a2", "system:nodes\nsystem:masters", id="nodes-and-masters"),
        pytest.param("system:admin", "system:nodes", id="another-user"),
        pytest.param("system:serviceaccount:bob:bob", "", id="another-account"),
        pytest.param("system:node:", "system:nodes", id="no-name"),
    ],
)
async def test_whom_an_owner_may_not_act_as(api: Api, name: str, groups: str) -> None:
    answer = await call(api, "GET", f"{OWN}/pods", acting_as=name, groups=groups)
    assert answer.status == 403, answer


async def test_the_limit_is_not_chosen_by_the_caller(api: Api) -> None:
    answer = await call(api, "GET", f"{FOREIGN}/pods", **{f"impersonate-extra-{OWNER_EXTRA}": "bob"})
    assert answer.status == 403


async def test_bindings_of_nodes_do_not_widen_it(api: Api) -> None:
    """The owner chooses the name, also of a Node that does not exist: a binding for that name is somebody else's."""
    for name, subject in (("by-name", ("User", "system:node:ghost")), ("by-group", ("Group", "system:nodes"))):
        kind, who = subject
        given = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": who}
        await api.post(f"{RBAC}/clusterrolebindings", bound("cluster-admin", name, given))
    for acting_as in ("system:node:ghost", "system:node:a2"):
        for path in (f"{FOREIGN}/secrets/of-b1", f"{OWN}/secrets/of-a1", f"{V1}/nodes"):
            assert (await call(api, "GET", path, acting_as=acting_as)).status == 403
        assert (await call(api, "POST", f"{V1}/nodes", node("x9", "bob"), acting_as=acting_as)).status == 403


async def test_who_may_impersonate_by_a_binding_is_not_limited(api: Api) -> None:
    admin = Peer(certificate_user=UserInfo("root", ("system:masters",)))
    headers = {"impersonate-user": "system:node:a2", "impersonate-group": "system:nodes"}
    answer = await api.call("GET", f"{V1}/nodes", headers=headers, user=None, peer=admin)
    assert answer.status == 200


OWNER_LISTS = [
    (f"{LABEL}%3Dalice", 200),
    (f"{LABEL}%3Dalice,x%3Dy", 200),
    (f"{LABEL}%3Dbob", 403),
    (f"{LABEL}+in+(alice,bob)", 403),
    (LABEL, 403),
    ("", 403),
]


@pytest.mark.parametrize(("selector", "status"), OWNER_LISTS)
async def test_an_owner_lists_its_own_nodes(api: Api, selector: str, status: int) -> None:
    answer = await api.call("GET", f"{V1}/nodes?labelSelector={selector}", user=ALICE)
    assert answer.status == status, answer
    if status == 200 and "x" not in selector:
        assert sorted(answer.names) == ["a1", "a2"]


async def test_an_owner_watches_its_own_nodes_only(api: Api) -> None:
    watch = await api.watch(f"{V1}/nodes?watch=1&resourceVersion=0&labelSelector={LABEL}%3Dalice", user=ALICE)
    await api.patch(f"{V1}/nodes/b1", {"metadata": {"labels": {"z": "1"}}})
    await api.patch(f"{V1}/nodes/a1", {"metadata": {"labels": {"z": "1"}}})
    assert {each["object"]["metadata"]["name"] for each in watch.all} == {"a1", "a2"}


def test_only_nodes_are_limited() -> None:
    extra = ((OWNER_EXTRA, ("alice",)),)
    assert owner_limit(UserInfo("system:node:n", ("system:nodes",), "", extra)) == "alice"
    assert owner_limit(UserInfo("somebody", (), "", extra)) == ""


@pytest.mark.parametrize("acting_as", ["", "system:node:a2"])
async def test_names_that_may_become_anothers_are_not_watched(api: Api, acting_as: str) -> None:
    """Rights are looked at when a watch begins: one for a name that is still free would show whose Node it becomes."""
    groups = "system:nodes" if acting_as else ""
    for path in (f"{V1}/nodes/b9?watch=1", f"{V1}/nodes?watch=1&fieldSelector=metadata.name%3Db9"):
        assert (await call(api, "GET", path, acting_as=acting_as, groups=groups)).status == 403, path
    path = f"{LEASES}?watch=1&fieldSelector=metadata.name%3Db9"
    assert (await call(api, "GET", path, acting_as=acting_as, groups=groups)).status == 403
    assert (await call(api, "GET", f"{V1}/nodes/b9", acting_as=acting_as, groups=groups)).status == 404
    both = f"{V1}/nodes/b1?watch=1&resourceVersion=0&labelSelector={LABEL}%3Dalice"
    watched = await api.raw("GET", both, user=UserInfo("system:node:a2", ("system:nodes",), "", LIMITED))
    assert watched.stream is not None
    assert Watch(watched.stream).all == []
