"""An admission webhook and a conversion webhook in a pod, behind a Service: the API server calls into the pod network."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import kubectl_runner
import pytest
from e2e_kit import Cluster, Node, container, pod, until

from coterie.base import pki

pytestmark = pytest.mark.xdist_group("e2e-webhooks")

SERVER = r"""
printf '%s' "$PAIR" > /tmp/pair.pem
exec python3 - <<'END'
import base64, json, ssl
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        request = review["request"]
        if review["kind"] == "ConversionReview":
            desired = request["desiredAPIVersion"]
            objects = [{**each, "apiVersion": desired, "spec": {"text": each["spec"]["text"].swapcase()}} for each in request["objects"]]
            response = {"uid": request["uid"], "result": {"status": "Success"}, "convertedObjects": objects}
        elif "forbidden" in (request["object"].get("data") or {}):
            response = {"uid": request["uid"], "allowed": False, "status": {"message": "not this key"}}
        else:
            patch = [{"op": "add", "path": "/metadata/annotations", "value": {"seen": "by-pod"}}]
            response = {"uid": request["uid"], "allowed": True, "patchType": "JSONPatch",
                        "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
        body = json.dumps({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("/tmp/pair.pem")
server = ThreadingHTTPServer(("", 8443), Handler)
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
END
"""


@pytest.fixture(scope="module")
def domain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    agent = {"nodeName": "node-a", "port": 0}
    more = {"apiServer": {"port": 0}, "capacity": {"cpu": 16, "memory": "32Gi"}, "dns": {"enabled": True}}
    node = Node(tmp_path_factory.mktemp("webhooks"), "node-a", {"mode": "autonomy", "agent": agent, **more}).start()
    cluster = Cluster(node, kubectl_runner.chosen()[-1], nodes={"node-a": node})
    try:
        cluster.wait_until_up("node-a")
        yield cluster.in_namespace("hooks")
        assert node.complaints() == []
    finally:
        node.destroy()


def pair(*names: str) -> tuple[str, str]:
    """Certificate with key, and the CA bundle."""
    now = datetime.now(UTC)
    authority = pki.self_signed_ca("hooks", pki.new_key(), now=now)
    key = pki.new_key()
    issued = pki.issue_server(authority, "hooks", key.public_key(), names=names, now=now)
    text = (pki.certificate_pem(issued) + pki.key_pem(key)).decode()
    return text, base64.b64encode(pki.certificate_pem(authority.certificate)).decode()


def versions() -> list[dict[str, Any]]:
    spec = {"type": "object", "properties": {"text": {"type": "string"}}}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}
    return [{"name": name, "served": True, "storage": name == "v1", "schema": schema} for name in ("v1", "v2")]


def _addresses(endpoints: dict[str, Any]) -> list[Any]:
    return [each for subset in endpoints.get("subsets") or () for each in subset.get("addresses") or ()]


def test_webhooks_in_a_pod_are_called_through_their_service(domain: Cluster, tmp_path: Path) -> None:
    text, bundle = pair("hook.hooks.svc")
    probe = {"tcpSocket": {"port": 8443}, "periodSeconds": 1}
    main = container(script=SERVER, env=[{"name": "PAIR", "value": text}], readinessProbe=probe)
    domain.apply(pod("hook", main, labels={"app": "hook"}))
    ports = [{"port": 443, "targetPort": 8443}]
    domain.apply(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "hook"},
            "spec": {"selector": {"app": "hook"}, "ports": ports},
        }
    )
    until("the endpoints of the webhook", lambda: _addresses(domain.json("get endpoints hook")))
    client = {"service": {"namespace": "hooks", "name": "hook", "path": "/x"}, "caBundle": bundle}
    rules = [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]
    webhook = {
        "name": "hook.hooks.example",
        "clientConfig": client,
        "rules": rules,
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "objectSelector": {"matchLabels": {"hooked": "yes"}},
    }
    group = "admissionregistration.k8s.io/v1"
    kind = "MutatingWebhookConfiguration"
    domain.apply({"apiVersion": group, "kind": kind, "metadata": {"name": "hook"}, "webhooks": [webhook]})

    def config_map(name: str, **data: str) -> dict[str, Any]:
        metadata = {"name": name, "labels": {"hooked": "yes"}}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}

    domain.apply(config_map("good"))
    assert domain.json("get configmap good")["metadata"]["annotations"]["seen"] == "by-pod"
    domain.do("create configmap plain")
    (tmp_path / "bad.json").write_text(json.dumps(config_map("bad", forbidden="x")))
    refused = domain.try_("create", "-f", str(tmp_path / "bad.json"))
    assert refused.rc == 1 and 'admission webhook "hook.hooks.example" denied the request: not this key' in refused.err

    names = {"plural": "notes", "kind": "Note"}
    conversion = {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": client}}
    spec = {"group": "hooks.example", "scope": "Namespaced", "names": names, "versions": versions()}
    domain.apply(
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "notes.hooks.example"},
            "spec": {**spec, "conversion": conversion},
        }
    )
    domain.do("wait --for=condition=Established crd/notes.hooks.example --timeout=10s")
    domain.apply({"apiVersion": "hooks.example/v1", "kind": "Note", "metadata": {"name": "n"}, "spec": {"text": "abc"}})
    assert domain.json("get notes.v2.hooks.example n")["spec"] == {"text": "ABC"}
