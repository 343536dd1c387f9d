"""What users with few rights try at the newer parts of the API: the administrator and the reader of one namespace, its accounts,
a node, the accounts of a lite and of a partner."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from server_kit import MERGE, Api, pod, serving

from coterie.base import pki
from coterie.http.messages import Peer, UserInfo
from coterie.kube.apiserver.auth.tokens import TokenSigner
from coterie.kube.apiserver.server import Settings
from coterie.kuscia.api.labels import KUSCIA_NODE_NAMESPACE
from coterie.kuscia.api.types.domain import Domain
from coterie.kuscia.controllers.domain.objects import accounts
from coterie.kuscia.extensions.apiserver import KUSCIA

RBAC = "/apis/rbac.authorization.k8s.io/v1"
NAMESPACE = "/api/v1/namespaces/alice"
EVERYBODY = "system:authenticated"
USERS = {
    "admin": UserInfo("ann", (EVERYBODY,)),
    "view": UserInfo("vic", (EVERYBODY,)),
    "account": UserInfo("system:serviceaccount:alice:default", ("system:serviceaccounts", EVERYBODY)),
    "node": UserInfo("system:node:a1", ("system:nodes", EVERYBODY)),
    "lite": UserInfo("system:serviceaccount:alice:alice", ("system:serviceaccounts", EVERYBODY)),
    "partner": UserInfo("system:serviceaccount:carol:carol", ("system:serviceaccounts", EVERYBODY)),
}
WEBHOOK = {
    "name": "w.example.com",
    "clientConfig": {"url": "https://127.0.0.1:6443/"},
    "rules": [{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"]}],
    "sideEffects": "None",
    "admissionReviewVersions": ["v1"],
}
REGISTERED = {"group": "x.example.com", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1}
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"

CLUSTER: list[tuple[str, str, Any]] = [
    ("POST", f"{ADMISSION}/validatingwebhookconfigurations", {"metadata": {"name": "x"}, "webhooks": [WEBHOOK]}),
    ("POST", f"{ADMISSION}/mutatingwebhookconfigurations", {"metadata": {"name": "x"}, "webhooks": [WEBHOOK]}),
    ("POST", f"{ADMISSION}/validatingadmissionpolicies", {"metadata": {"name": "x"}, "spec": {}}),
    ("POST", f"{ADMISSION}/mutatingadmissionpolicybindings", {"metadata": {"name": "x"}, "spec": {}}),
    ("POST", "/apis/apiregistration.k8s.io/v1/apiservices", {"metadata": {"name": "v1.x.example.com"}, "spec": REGISTERED}),
    ("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", {"metadata": {"name": "x.y"}}),
    ("POST", "/apis/networking.k8s.io/v1/servicecidrs", {"metadata": {"name": "x"}, "spec": {"cidrs": ["10.0.0.0/8"]}}),
    ("DELETE", "/apis/networking.k8s.io/v1/ipaddresses/100.112.0.1", None),
    ("POST", "/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": "x"}, "handler": "host"}),
    ("PATCH", f"{CSRS}/x/approval", {"status": {}}),
    ("PATCH", f"{CSRS}/x/status", {"status": {}}),
    ("GET", "/api/v1/nodes/b1/proxy/stats/summary", None),
    ("GET", "/api/v1/nodes/a1/proxy/exec/alice/p/c?command=id", None),
    ("GET", "/api/v1/namespaces/bob/pods/p/proxy/", None),
    ("GET", "/api/v1/namespaces/bob/services/https:s:443/proxy/", None),
    ("GET", "/api/v1/namespaces/alice/pods/../../bob/pods/p/proxy/", None),
    ("GET", "/api/v1/namespaces/default/services/https:kubernetes:443/proxy/api/v1/secrets", None),
    ("PATCH", "/api/v1/namespaces/default/services/kubernetes", {"spec": {"selector": {"a": "b"}}}),
    ("POST", f"{NAMESPACE}/endpoints", {"metadata": {"name": "x"}}),
    ("POST", "/apis/discovery.k8s.io/v1/namespaces/alice/endpointslices", {"metadata": {"name": "x"}, "addressType": "IPv4"}),
    ("GET", "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication", None),
]  # fmt: skip


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with serving(Settings(extensions=[KUSCIA], signer=TokenSigner(pki.new_key()))) as made:
        for name in ("alice", "bob", "carol"):
            await made.namespace(name)
            await made.post(f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}})
        for role in ("admin", "view"):
            subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USERS[role].name}
            reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
            body = {"metadata": {"name": role}, "roleRef": reference, "subjects": [subject]}
            await made.post(f"{RBAC}/namespaces/alice/rolebindings", body)
        for name, domain in (("a1", "alice"), ("b1", "bob")):
            await made.post("/api/v1/nodes", {"metadata": {"name": name, "labels": {KUSCIA_NODE_NAMESPACE: domain}}})
            await made.post(f"/api/v1/namespaces/{domain}/pods", pod("p", nodeName=name))
        for name, role in (("alice", ""), ("carol", "partner")):
            definition = {"metadata": {"name": name, "uid": "u"}, "spec": {"role": role}}
            for each in accounts(msgspec.convert(definition, Domain), "control"):
                kind = each.kind.resource
                where = f"namespaces/{each.namespace}/" if each.namespace else ""
                root = f"/apis/{kind.api_version}" if kind.group else "/api/v1"
                await made.post(f"{root}/{where}{kind.plural}", each.object)
        yield made


@pytest.mark.parametrize("who", USERS)
async def test_what_is_for_administrators_of_the_cluster(api: Api, who: str) -> None:
    for method, path, body in CLUSTER:
        headers = {"content-type": MERGE if method == "PATCH" else "application/json"}
        answer = await api.call(method, path, body, headers=headers, user=USERS[who])
        assert answer.status in (403, 404), (who, method, path, answer.status)
        assert answer.status == 403 or ".." in path, (who, method, path)


@pytest.mark.parametrize("who", ["view", "account", "node", "lite", "partner"])
async def test_who_may_only_read_connects_to_no_pod(api: Api, who: str) -> None:
    for sub in ("proxy/", "exec?command=id&stdout=1", "attach?stdout=1", "portforward?ports=80"):
        for method in ("GET", "POST"):
            answer = await api.call(
                method, f"{NAMESPACE}/pods/p/{sub}", headers={"upgrade": "websocket"}, user=USERS[who]
            )
            assert answer.status == 403, (who, method, sub)


ACTED_FOR: list[dict[str, str]] = [
    {"impersonate-user": "root", "impersonate-group": "system:masters"},
    {"impersonate-user": "system:admin"},
    {"impersonate-user": "system:node:b1", "impersonate-group": "system:nodes"},
    {"impersonate-user": "system:node:a1", "impersonate-group": "system:nodes\nsystem:masters"},
    {"impersonate-user": "system:serviceaccount:bob:default"},
    {"impersonate-user": "system:serviceaccount:kube-system:default"},
    {"impersonate-user": "system:serviceaccount:alice:default", "impersonate-group": "system:masters"},
    {"impersonate-user": "system:serviceaccount:alice:default", "impersonate-extra-coterie.io%2fnode-owner": "bob"},
    {"impersonate-user": "system:serviceaccount:alice:default", "impersonate-uid": "u"},
]


@pytest.mark.parametrize("who", USERS)
async def test_whom_nobody_may_act_as(api: Api, who: str) -> None:
    for headers in ACTED_FOR:
        peer = Peer(certificate_user=USERS[who])
        answer = await api.call("GET", NAMESPACE, headers=headers, user=None, peer=peer)
        assert answer.status == 403, (who, headers)
    for alone in ({"impersonate-group": "system:masters"}, {"impersonate-uid": "u"}):
        answer = await api.call("GET", NAMESPACE, headers=alone, user=None, peer=Peer(certificate_user=USERS[who]))
        assert answer.status == 400


async def test_the_same_requests_work_for_those_who_may(api: Api) -> None:
    """There is no agent behind the Node: the request got that far."""
    assert (await api.call("GET", f"{NAMESPACE}/pods/p/proxy/", user=USERS["admin"])).status == 503
    own = {"impersonate-user": "system:node:a1", "impersonate-group": "system:nodes"}
    answer = await api.call("GET", NAMESPACE, headers=own, user=None, peer=Peer(certificate_user=USERS["lite"]))
    assert answer.status == 200
    account = {"impersonate-user": "system:serviceaccount:alice:default"}
    peer = Peer(certificate_user=USERS["admin"])
    answer = await api.call("GET", "/version", headers=account, user=None, peer=peer)
    assert answer.status == 200
