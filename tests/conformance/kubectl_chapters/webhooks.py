"""Admission webhooks as kubectl's users meet them: columns, denials, warnings, mutations, and a server that is not there."""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from kubectl_steps import Act, Chapter, Command, Scene

from coterie.base import pki

_GROUP = "/apis/admissionregistration.k8s.io/v1"


class _Handler(BaseHTTPRequestHandler):
    """Mutates: a ConfigMap gets the label `seen`. Validates: none with the key `forbidden`."""

    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        request = review["request"]
        response: dict[str, Any] = {"uid": request["uid"], "allowed": True}
        data = (request["object"] or {}).get("data") or {}
        if self.path.startswith("/mutate"):
            patch = [{"op": "add", "path": "/metadata/labels/seen", "value": request["operation"].lower()}]
            response |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
        elif "forbidden" in data:
            response |= {"allowed": False, "status": {"code": 403, "message": "this key is forbidden"}}
        elif "odd" in data:
            response["warnings"] = ["this key is odd"]
        body = json.dumps({**review, "request": None, "response": response}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None: ...


def _serve() -> tuple[int, str]:
    """Its port and CA bundle. Ends with the test process."""
    now = datetime.now(UTC)
    authority = pki.self_signed_ca("hooks", pki.new_key(), now=now)
    key = pki.new_key()
    issued = pki.issue_server(authority, "hooks", key.public_key(), names=("127.0.0.1",), now=now)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "pair.pem"
        file.write_bytes(pki.certificate_pem(issued) + pki.key_pem(key))
        context.load_cert_chain(file)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, name="webhooks", daemon=True).start()
    return server.server_address[1], base64.b64encode(pki.certificate_pem(authority.certificate)).decode()


def _webhook(name: str, client: dict[str, Any], **more: Any) -> dict[str, Any]:
    rules = [
        {"operations": ["CREATE", "UPDATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}
    ]
    return {
        "name": f"{name}.hooks.example",
        "clientConfig": client,
        "rules": rules,
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "objectSelector": {"matchLabels": {"hooked": "yes"}},
        **more,
    }


def _register(scene: Scene) -> None:
    port, bundle = _serve()
    for kind, path in (("mutating", "/mutate"), ("validating", "/validate")):
        client = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": bundle}
        body = {"metadata": {"name": "hooks"}, "webhooks": [_webhook(kind, client)]}
        scene.server.api("POST", f"{_GROUP}/{kind}webhookconfigurations", body)


def _map(name: str, data: str) -> str:
    return f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, labels: {{hooked: 'yes'}}}}\ndata: {data}\n"


_BROKEN = """
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: broken}
webhooks:
- name: broken.hooks.example
  clientConfig: {service: {name: nobody, namespace: default, path: /check}}
  rules: [{operations: ["*"], apiGroups: [""], apiVersions: [v1], resources: [configmaps]}]
  admissionReviewVersions: [v1]
  sideEffects: None
  objectSelector: {matchLabels: {broken: "yes"}}
  matchConditions: [{name: named, expression: "request.name != 'free'"}]
"""

WEBHOOKS = Chapter(
    "webhooks",
    (
        Act("register", _register),
        Command("mutating", "get mutatingwebhookconfigurations hooks", out=(r"^NAME\s+WEBHOOKS\s+AGE", r"^hooks\s+1\s+\d+s")),
        Command("validating", "get validatingwebhookconfiguration/hooks", out=r"^hooks\s+1\s+\d+s"),
        Command("describe", "describe validatingwebhookconfiguration hooks", out=(r"Failure Policy:\s+Fail", r"Timeout Seconds:\s+10")),
        Command("explain", "explain mutatingwebhookconfiguration.webhooks.reinvocationPolicy", out="reinvocationPolicy"),
        Command("create", "apply -f good.yaml", out="configmap/good created"),
        Command("mutated", "get cm good -o json", check=lambda c: c["metadata"]["labels"]["seen"] == "create"),
        Command("change", "patch cm good -p '{\"data\":{\"b\":\"2\"}}'", out="patched"),
        Command("mutated again", "get cm good -o json", check=lambda c: c["metadata"]["labels"]["seen"] == "update"),
        Command("server side", "apply --server-side -f good.yaml --force-conflicts", out="serverside-applied", since="1.18"),
        Command("dry run", "apply -f bad.yaml --dry-run=server", rc=1, err='admission webhook "validating.hooks.example" denied the request: this key is forbidden', since="1.18"),
        Command("denied", "create -f bad.yaml", rc=1, err=r'Error from server: .*admission webhook "validating.hooks.example" denied the request: this key is forbidden'),
        Command("warned", "apply -f odd.yaml", out="configmap/odd created", err="Warning: this key is odd", since="1.19"),
        Command("not there", "apply -f broken.yaml", out="validatingwebhookconfiguration.admissionregistration.k8s.io/broken created"),
        Command("fails", "label cm good broken=yes", rc=1, err='failed calling webhook "broken.hooks.example": failed to call webhook: Post "https://nobody.default.svc:443/check\\?timeout=10s": service "nobody" not found'),
        Command("may fail", "patch validatingwebhookconfiguration broken --type=json -p '[{\"op\":\"replace\",\"path\":\"/webhooks/0/failurePolicy\",\"value\":\"Ignore\"}]'", out="patched"),
        Command("is ignored", "label cm good broken=yes", out="labeled"),
        Command("delete", "delete mutatingwebhookconfiguration,validatingwebhookconfiguration --all", out="deleted"),
        Command("free", "apply -f bad.yaml", out="configmap/bad created"),
    ),
    files={
        "good.yaml": _map("good", "{a: '1'}"),
        "bad.yaml": _map("bad", "{forbidden: x}"),
        "odd.yaml": _map("odd", "{odd: x}"),
        "broken.yaml": _BROKEN,
    },
)  # fmt: skip
