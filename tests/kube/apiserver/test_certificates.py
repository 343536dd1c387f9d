"""CertificateSigningRequests at the API server: what may be asked for, by whom, and who may decide."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID
from server_kit import ADMIN, STRATEGIC, Api

from coterie.base import pki
from coterie.base.certificate_requests import make_request
from coterie.base.clock import VirtualClock
from coterie.http.messages import UserInfo
from coterie.kube.agent.server.endpoint import API_SERVER
from coterie.kube.api.certificate_signers import AGENT_CLIENT_USER
from coterie.kube.api.resources import BUILTIN
from coterie.kube.apiserver.admission.certificates import CertificateAdmission
from coterie.kube.apiserver.admission.chain import AdmissionRequest

PATH = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
API_CLIENT = "kubernetes.io/kube-apiserver-client"
KUBELET = "kubernetes.io/kube-apiserver-client-kubelet"
SERVING = "kubernetes.io/kubelet-serving"
KEY = ec.generate_private_key(ec.SECP256R1())
EVE = UserInfo("eve", ("system:authenticated",), "u1", (("example.com/team", ("red",)),))
NODE = UserInfo("system:node:n1", ("system:nodes", "system:authenticated"))
APPROVED = {"type": "Approved", "status": "True", "reason": "ByTest"}
DENIED = {"type": "Denied", "status": "True"}
CERTIFICATE = base64.b64encode(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").decode()


def pem(name: str = "ann", groups: tuple[str, ...] = (), **more: Any) -> str:
    return base64.b64encode(make_request(KEY, name, groups, **more)).decode()


def csr(name: str = "c", *, request: str | None = None, signer: str = API_CLIENT, **spec: Any) -> dict[str, Any]:
    body = {"request": request or pem(), "signerName": signer, "usages": ["client auth"], **spec}
    return {"metadata": {"name": name}, "spec": body}


async def grant(api: Api, user: str, *rules: dict[str, Any]) -> None:
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    role = f"{user}-{len(str(rules))}"
    await api.post(f"{rbac}/clusterroles", {"metadata": {"name": role}, "rules": list(rules)})
    binding = {
        "metadata": {"name": role},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }
    await api.post(f"{rbac}/clusterrolebindings", binding)


def rule(verbs: str, resources: str, names: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {"apiGroups": ["certificates.k8s.io"], "verbs": verbs.split(), "resources": resources.split()}
    return {**out, "resourceNames": names.split()} if names else out


ASK = rule("create get update patch", "certificatesigningrequests")
DECIDE = rule("get update patch", "certificatesigningrequests/approval certificatesigningrequests/status")


async def test_the_requester_is_written_down_and_cannot_be_forged(api: Api):
    await grant(api, "eve", ASK)
    forged = csr(username="admin", uid="x", groups=["system:masters"], extra={"a": ["b"]})
    forged["status"] = {"conditions": [APPROVED], "certificate": CERTIFICATE}
    made = await api.post(PATH, forged, user=EVE)
    spec = made["spec"]
    assert spec["username"] == "eve" and spec["uid"] == "u1" and spec["groups"] == ["system:authenticated"]
    assert spec["extra"] == {"example.com/team": ["red"]}
    assert made.get("status", {}) == {}
    # Neither can the request be changed later, nor decided through the object itself.
    made["spec"] = {**made["spec"], "username": "admin", "request": pem("bob"), "signerName": KUBELET}
    made["status"] = {"conditions": [APPROVED]}
    changed = await api.put(f"{PATH}/c", made, user=EVE)
    assert changed["spec"] == spec and changed.get("status", {}) == {}
    patched = await api.patch(f"{PATH}/c", {"spec": {"groups": ["system:masters"]}, "status": {"conditions": [APPROVED]}}, user=EVE)  # fmt: skip
    assert patched["spec"] == spec and patched.get("status", {}) == {}


async def test_an_impersonated_requester_is_the_one_acted_for(api: Api):
    made = await api.post(PATH, csr(), user=UserInfo("ann", ("system:masters",)))
    assert made["spec"]["username"] == "ann" and "uid" not in made["spec"]


def _weird(*attributes: tuple[Any, str]) -> str:
    subject = x509.Name([x509.NameAttribute(*each) for each in attributes])
    built = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(KEY, hashes.SHA256())
    return base64.b64encode(built.public_bytes(serialization.Encoding.PEM)).decode()


def _broken_signature() -> str:
    der = bytearray(x509.load_pem_x509_csr(make_request(KEY, "ann")).public_bytes(serialization.Encoding.DER))
    at = der.index(b"ann")
    der[at : at + 3] = b"bob"
    body = base64.encodebytes(bytes(der))
    text = b"-----BEGIN CERTIFICATE REQUEST-----\n" + body + b"-----END CERTIFICATE REQUEST-----\n"
    return base64.b64encode(text).decode()


def _encoded(text: bytes) -> str:
    return base64.b64encode(text).decode()


@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        ({"request": _encoded(b"rubbish")}, "spec.request", "PEM block type must be CERTIFICATE REQUEST"),
        ({"request": ""}, "spec.request", "PEM block type must be"),
        ({"request": CERTIFICATE}, "spec.request", "PEM block type must be CERTIFICATE REQUEST"),
        ({"request": _encoded(b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n")}, "spec.request", "not a certificate request"),
        ({"request": _broken_signature()}, "spec.request", "signature was not made with its key"),
        ({"request": _encoded(make_request(KEY, "a") * 2)}, "spec.request", "nothing after"),
        ({"request": _encoded(b"x" * 70_000 + make_request(KEY, "a"))}, "spec.request", "may not be more than 65536 bytes"),
        ({"request": _encoded(b"-----BEGIN CERTIFICATE REQUEST-----\n" * 1800)}, "spec.request", "PEM block type must be"),
        ({"usages": []}, "spec.usages", "Required value"),
        ({"usages": ["client auth", "client auth"]}, "spec.usages[1]", "Duplicate value"),
        ({"usages": ["to rule"]}, "spec.usages[0]", "Unsupported value"),
        ({"signerName": ""}, "spec.signerName", "Required value"),
        ({"signerName": "kubernetes.io/legacy-unknown"}, "spec.signerName", "the legacy signerName is not allowed via this API version"),
        ({"signerName": "example/x"}, "spec.signerName", "should be a domain with at least two segments separated by dots"),
        ({"signerName": "example.com"}, "spec.signerName", "must be a fully qualified domain and path of the form 'example.com/signer-name'"),
        ({"signerName": "Example.com/x"}, "spec.signerName", 'validating label "Example"'),
        ({"expirationSeconds": 599}, "spec.expirationSeconds", "may not specify a duration less than 600 seconds (10 minutes)"),
    ],
)  # fmt: skip
async def test_what_is_not_a_request_is_refused(api: Api, change: dict[str, Any], field: str, message: str):
    body = csr()
    body["spec"].update(change)
    answer = await api.refused(422, "POST", PATH, body)
    assert [cause["field"] for cause in answer.causes] == [field]
    assert message in answer.message


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (pem("x", ("system:masters",)), "use of kubernetes.io/kube-apiserver-client signer with system:masters group"),
        (pem("x", ("a", "system:masters", "b")), "system:masters"),
        (pem("x", ("system:nodes",)), "system:nodes group"),
        (pem("system:node:n2"), 'for user "system:node:n2" is not allowed'),
        (pem(API_SERVER), "is not allowed"),
        (_weird((NameOID.COMMON_NAME, "ann"), (NameOID.COMMON_NAME, API_SERVER)), "is not allowed"),
    ],
)
async def test_no_user_certificate_for_identities_beyond_rbac(api: Api, request_: str, message: str):
    answer = await api.refused(403, "POST", PATH, csr(request=request_), user=ADMIN)
    assert message in answer.message
    # For a signer of somebody else these are just words.
    await api.post(PATH, csr(request=request_, signer="example.com/mine"))


def test_the_agents_know_the_api_server_by_the_name_that_is_refused():
    assert AGENT_CLIENT_USER == API_SERVER


async def test_a_node_asks_for_itself_only(api: Api):
    usages = ["digital signature", "client auth"]
    await api.post(PATH, csr("own", request=pem("system:node:n1", ("system:nodes",)), signer=KUBELET, usages=usages), user=NODE)  # fmt: skip
    for signer in (KUBELET, SERVING):
        body = csr("other", request=pem("system:node:n2", ("system:nodes",)), signer=signer, usages=usages)
        answer = await api.refused(403, "POST", PATH, body, user=NODE)
        assert "can only create a node CSR with CN=system:node:n1" in answer.message
    answer = await api.refused(403, "POST", PATH, csr("user"), user=NODE)
    assert "may not ask for certificates of kubernetes.io/kube-apiserver-client" in answer.message
    approval = {"status": {"conditions": [APPROVED]}}
    await api.refused(403, "PATCH", f"{PATH}/own/approval", approval, headers={"content-type": STRATEGIC}, user=NODE)


async def test_approval_needs_the_right_to_approve_for_the_signer(api: Api):
    account = UserInfo("system:serviceaccount:default:robot", ("system:serviceaccounts", "system:authenticated"))
    await grant(api, account.name, ASK, DECIDE)
    await api.post(PATH, csr("own"), user=account)
    body = {"status": {"conditions": [APPROVED]}}
    answer = await api.call("PATCH", f"{PATH}/own/approval", body, headers={"content-type": STRATEGIC}, user=account)
    assert answer.status == 403
    assert 'user not permitted to approve requests with signerName "kubernetes.io/kube-apiserver-client"' in answer.message  # fmt: skip
    # The right for another signer, or another verb, is not this right.
    await grant(api, account.name, rule("approve", "signers", KUBELET), rule("sign", "signers", API_CLIENT))
    answer = await api.call("PATCH", f"{PATH}/own/approval", body, headers={"content-type": STRATEGIC}, user=account)
    assert answer.status == 403
    await grant(api, account.name, rule("approve", "signers", "kubernetes.io/* example.com/* more.example.com/*"))
    done = await api.patch(f"{PATH}/own/approval", body, STRATEGIC, user=account)
    (condition,) = done["status"]["conditions"]
    assert condition["lastUpdateTime"] and condition["lastTransitionTime"]


async def test_what_was_decided_stays(api: Api):
    await api.post(PATH, csr())
    approve = {"status": {"conditions": [APPROVED]}}
    await api.patch(f"{PATH}/c/approval", approve)
    for conditions, message in (
        ([], 'updates may not remove a condition of type "Approved"'),
        ([APPROVED, DENIED], "Approved and Denied conditions are mutually exclusive"),
        ([APPROVED, APPROVED], "Duplicate value"),
        ([{**APPROVED, "status": "False"}], "Unsupported value"),
    ):
        answer = await api.call("PATCH", f"{PATH}/c/approval", {"status": {"conditions": conditions}}, headers={"content-type": "application/merge-patch+json"})  # fmt: skip
        assert answer.status == 422 and message in answer.message, answer
    # An approval brings no certificate.
    signed = {"status": {"conditions": [APPROVED], "certificate": CERTIFICATE}}
    kept = await api.patch(f"{PATH}/c/approval", signed)
    assert "certificate" not in kept["status"]


async def test_who_signs_cannot_approve_and_signs_once(api: Api):
    await grant(api, "signer", DECIDE)
    signer = UserInfo("signer", ("system:authenticated",))
    await api.post(PATH, csr(signer="example.com/mine"))
    merge = {"content-type": "application/merge-patch+json"}
    real = base64.b64encode(_some_certificate()).decode()
    set_it = {"status": {"certificate": real}}
    answer = await api.refused(403, "PATCH", f"{PATH}/c/status", set_it, headers=merge, user=signer)
    assert 'user not permitted to sign requests with signerName "example.com/mine"' in answer.message
    answer = await api.refused(403, "PATCH", f"{PATH}/c/status", {"status": {"conditions": [{"type": "Failed", "status": "True"}]}}, headers=merge, user=signer)  # fmt: skip
    await grant(api, "signer", rule("sign", "signers", "example.com/*"))
    answer = await api.refused(422, "PATCH", f"{PATH}/c/status", {"status": {"conditions": [APPROVED]}}, headers=merge, user=signer)  # fmt: skip
    assert 'updates may not add a condition of type "Approved"' in answer.message
    for garbage, message in ((CERTIFICATE, "not a certificate"), (_encoded(b"x"), "at least one CERTIFICATE")):
        answer = await api.refused(422, "PATCH", f"{PATH}/c/status", {"status": {"certificate": garbage}}, headers=merge, user=signer)  # fmt: skip
        assert message in answer.message
    await api.patch(f"{PATH}/c/status", set_it, user=signer)
    answer = await api.refused(422, "PATCH", f"{PATH}/c/status", {"status": {"certificate": ""}}, headers=merge, user=signer)  # fmt: skip
    assert "updates may not modify existing certificate content" in answer.message
    shown = await api.get(PATH, headers={"accept": "application/json;as=Table;v=v1;g=meta.k8s.io"})
    assert shown["rows"][0]["cells"][5] == "Pending,Issued"


def _some_certificate() -> bytes:
    return pki.certificate_pem(pki.self_signed_ca("x", KEY, now=datetime(2026, 1, 1, tzinfo=UTC)).certificate)


async def test_columns_and_selection(api: Api):
    await api.post(PATH, csr("a", expirationSeconds=86400))
    await api.post(PATH, csr("b", signer="example.com/mine"))
    await api.patch(f"{PATH}/b/approval", {"status": {"conditions": [DENIED]}})
    table = await api.get(PATH, headers={"accept": "application/json;as=Table;v=v1;g=meta.k8s.io"})
    assert [column["name"] for column in table["columnDefinitions"]] == [
        "Name", "Age", "SignerName", "Requestor", "RequestedDuration", "Condition",
    ]  # fmt: skip
    cells = {row["cells"][0]: row["cells"][2:] for row in table["rows"]}
    assert cells == {
        "a": [API_CLIENT, "admin", "24h", "Pending"],
        "b": ["example.com/mine", "admin", "<none>", "Denied"],
    }
    chosen = await api.call("GET", PATH, query={"fieldSelector": "spec.signerName=example.com/mine"})
    assert chosen.names == ["b"]
    assert (await api.get(f"{PATH}/a/approval"))["metadata"]["name"] == "a"


async def test_weak_and_strange_keys_are_accepted_as_requests_only(api: Api):
    weak = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    await api.post(PATH, csr(request=_encoded(make_request(weak, "ann"))))


def test_what_others_wrote_into_the_requester_is_dropped():
    """As a policy or a webhook could have done before."""
    obj = csr(username="boss", uid="0", groups=["system:masters"], extra={"a": ["b"]})
    resource = next(each for each in BUILTIN if each.kind == "CertificateSigningRequest")
    plain = UserInfo("eve")
    attempt = AdmissionRequest("create", resource, "", "c", obj, None, plain, False)
    CertificateAdmission(cast(Any, Nobody()), VirtualClock())(attempt)
    assert {key: attempt.obj["spec"].get(key) for key in ("username", "uid", "groups", "extra")} == {
        "username": "eve", "uid": None, "groups": None, "extra": None,
    }  # fmt: skip


class Nobody:
    """An authorizer that allows nothing."""

    def plainly(self, user: UserInfo, attributes: object) -> bool:
        return False
