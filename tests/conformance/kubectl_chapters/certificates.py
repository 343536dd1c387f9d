"""Certificates by request: create, approve, deny, use; and acting as somebody else."""

from __future__ import annotations

import base64
import time

import yaml
from kubectl_steps import Act, Chapter, Command, Scene

from coterie.base import pki
from coterie.base.certificate_requests import make_request

_KEY = pki.new_key()
_SECONDS = 30.0


def _request(name: str, user: str, groups: tuple[str, ...], signer: str, *usages: str) -> str:
    spec = {
        "request": base64.b64encode(make_request(_KEY, user, groups)).decode(),
        "signerName": f"kubernetes.io/{signer}",
        "expirationSeconds": 86400,
        "usages": list(usages),
    }
    kind = {"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest"}
    return yaml.safe_dump({**kind, "metadata": {"name": name}, "spec": spec})


def _take_certificate(scene: Scene) -> None:
    """A kubeconfig with what was signed, and nothing of the operator's."""
    path = "/apis/certificates.k8s.io/v1/certificatesigningrequests/cert-ann"
    deadline = time.monotonic() + _SECONDS
    while not (signed := (scene.server.api("GET", path).get("status") or {}).get("certificate")):
        assert time.monotonic() < deadline, "the request was not signed"
        time.sleep(0.05)
    config = yaml.safe_load(scene.kubectl.kubeconfig.read_text())
    key = base64.b64encode(pki.key_pem(_KEY)).decode()
    config["users"][0]["user"] = {"client-certificate-data": signed, "client-key-data": key}
    (scene.kubectl.directory / "ann.kubeconfig").write_text(yaml.safe_dump(config))


CERTIFICATES = Chapter(
    "certificates",
    (
        Command("create", "create -f ann.yaml", out="certificatesigningrequest.certificates.k8s.io/cert-ann created"),
        Command("get", "get csr cert-ann", out=(r"^NAME +AGE +SIGNERNAME +REQUESTOR +REQUESTEDDURATION +CONDITION", r"^cert-ann +\d+s +kubernetes.io/kube-apiserver-client +coterie-admin +24h +Pending")),
        Command("select", "get csr --field-selector=spec.signerName=kubernetes.io/kube-apiserver-client -o name", out=r"/cert-ann$"),
        Command("describe", "describe csr cert-ann", out=(r"^Requesting User: +coterie-admin", r"^Status: +Pending", r"Common Name: +ann")),
        Command("may not approve", "certificate approve cert-ann --as=eve", rc=1, err=r'cannot get resource "certificatesigningrequests"'),
        Command("approve", "certificate approve cert-ann", out="cert-ann approved"),
        Command("wait", "wait csr/cert-ann --for=condition=Approved --timeout=20s", out="condition met"),
        Act("take the certificate", _take_certificate),
        Command("approved", "get csr cert-ann", out=r"Approved,Issued"),
        Command("who am I", "--kubeconfig=ann.kubeconfig auth whoami -o json", check=lambda w: w["status"]["userInfo"]["username"] == "ann" and "dev" in w["status"]["userInfo"]["groups"], since="1.27"),
        Command("no right yet", "--kubeconfig=ann.kubeconfig get pods", rc=1, err=r'User "ann" cannot list resource "pods"'),
        Command("grant the group", "create rolebinding dev --clusterrole=view --group=dev", out="created"),
        Command("a right by the group", "--kubeconfig=ann.kubeconfig get pods", err="No resources found"),
        Command("cannot approve herself", "--kubeconfig=ann.kubeconfig certificate approve cert-ann --force", rc=1, err="forbidden|Forbidden"),
        Command("create another", "create -f bob.yaml", out="created"),
        Command("deny", "certificate deny cert-bob", out="cert-bob denied"),
        Command("denied", "get csr cert-bob", out=r"Denied"),
        Command("denied stays", "certificate approve cert-bob", rc=1, err="mutually exclusive|already"),
        Command("masters", "create -f masters.yaml", rc=1, err="signer with system:masters group is not allowed"),
        Command("wrong usages", "create -f usages.yaml", out="created"),
        Command("approve wrong usages", "certificate approve cert-usages", out="approved"),
        Command("fails", "wait csr/cert-usages --for=condition=Failed --timeout=20s", out="condition met"),
        Command("approver role", "auth can-i approve signers.certificates.k8s.io/kubernetes.io/kube-apiserver-client --as=eve", rc=1, out="no"),
        Command("as uid", "auth whoami -o json --as=eve --as-group=g --as-uid=7", check=lambda w: w["status"]["userInfo"] == {"username": "eve", "uid": "7", "groups": ["g", "system:authenticated"]}, since="1.27"),
        Command("as account", "auth whoami -o json --as=system:serviceaccount:{ns}:default", check=lambda w: "system:serviceaccounts:t-certificates" in w["status"]["userInfo"]["groups"], since="1.27"),
        Command("impersonator", "create clusterrole act-as-eve --verb=impersonate --resource=users --resource-name=eve", out="created"),
        Command("ann may act as eve", "create clusterrolebinding act-as-eve --clusterrole=act-as-eve --user=ann", out="created"),
        Command("acts as eve", "--kubeconfig=ann.kubeconfig auth whoami -o json --as=eve", check=lambda w: w["status"]["userInfo"]["username"] == "eve", since="1.27"),
        Command("not as bob", "--kubeconfig=ann.kubeconfig get pods --as=bob", rc=1, err=r'User "ann" cannot impersonate resource "users"'),
        Command("not with a group", "--kubeconfig=ann.kubeconfig get pods --as=eve --as-group=system:masters", rc=1, err=r'cannot impersonate resource "groups"'),
        Command("not with a uid", "--kubeconfig=ann.kubeconfig get pods --as=eve --as-uid=1", rc=1, err=r'cannot impersonate resource "uids"'),
        Command("clean roles", "delete clusterrole/act-as-eve clusterrolebinding/act-as-eve", out="deleted"),
        Command("clean", "delete csr cert-ann cert-bob cert-usages", out="deleted"),
    ),
    files={
        "ann.yaml": _request("cert-ann", "ann", ("dev",), "kube-apiserver-client", "client auth"),
        "bob.yaml": _request("cert-bob", "bob", (), "kube-apiserver-client", "client auth"),
        "masters.yaml": _request("cert-boss", "boss", ("system:masters",), "kube-apiserver-client", "client auth"),
        "usages.yaml": _request("cert-usages", "ann", (), "kube-apiserver-client", "server auth"),
    },
)  # fmt: skip
