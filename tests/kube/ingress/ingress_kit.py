"""Ingresses, Dns objects, Services and Secrets in short."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from functools import cache
from typing import Any

from coterie.base import pki
from coterie.kube.api.types.core import SECRETS, Secret
from coterie.kube.api.types.ingress import DNSES, INGRESS_CLASSES, INGRESSES, Dns, Ingress, IngressClass
from coterie.kube.api.types.network import ENDPOINTS, SERVICES, Endpoints, Service

CLASS = {"ingressClassName": "coterie"}


def meta(name: str, age: int = 0, **more: Any) -> dict[str, Any]:
    """`age`: the smaller, the older."""
    return {"name": name, "namespace": "alice", "creationTimestamp": f"2026-01-01T00:00:{age:02}Z", **more}


def ingress(name: str, *rules: Any, age: int = 0, annotations: Any = None, **spec: Any) -> Ingress:
    body = {"metadata": meta(name, age, annotations=annotations or {}), "spec": {**CLASS, "rules": list(rules), **spec}}
    return INGRESSES.decode(INGRESSES.as_dynamic.encode(body))


def rule(host: str, *paths: tuple[str, str, str]) -> dict[str, Any]:
    """Paths as (type, path, "service:port")."""
    listed = [{"path": path, "pathType": kind, "backend": backend(to)} for kind, path, to in paths]
    return {"host": host, "http": {"paths": listed}}


def backend(to: str) -> dict[str, Any]:
    name, _, port = to.partition(":")
    return {"service": {"name": name, "port": {"number": int(port)} if port.isdigit() else {"name": port}}}


def dns(name: str, host: str, age: int = 0, **paths: Any) -> Dns:
    listed = {"/" + path: target for path, target in paths.items()}
    body = {"metadata": meta(name, age), "spec": {"host": host, "paths": listed}}
    return DNSES.decode(DNSES.as_dynamic.encode(body))


def service(name: str, **spec: Any) -> Service:
    ports = [{"name": "web", "port": 80}, {"name": "api", "port": 81, "appProtocol": "kubernetes.io/h2c"}]
    body = {"metadata": meta(name, uid=f"uid-{name}"), "spec": {"ports": ports, **spec}}
    return SERVICES.decode(SERVICES.as_dynamic.encode(body))


def endpoints(name: str, *ips: str, waiting: str = "", port: int = 8080) -> Endpoints:
    subset = {
        "addresses": [{"ip": ip} for ip in ips],
        "notReadyAddresses": [{"ip": waiting}] if waiting else [],
        "ports": [{"name": "web", "port": port}, {"name": "api", "port": port + 1}],
    }
    return ENDPOINTS.decode(ENDPOINTS.as_dynamic.encode({"metadata": meta(name), "subsets": [subset]}))


def ingress_class(name: str, controller: str, *, default: bool = False) -> IngressClass:
    annotations = {"ingressclass.kubernetes.io/is-default-class": "true"} if default else {}
    body = {"metadata": {"name": name, "annotations": annotations}, "spec": {"controller": controller}}
    return INGRESS_CLASSES.decode(INGRESS_CLASSES.as_dynamic.encode(body))


@cache
def key_pair(name: str) -> tuple[bytes, bytes]:
    made = pki.self_signed_ca(name, pki.new_key("ec"), now=datetime.now(UTC))
    return pki.certificate_pem(made.certificate), pki.key_pem(made.key)


def secret(name: str, of: str = "one", key_of: str = "") -> Secret:
    chain, key = key_pair(of)[0], key_pair(key_of or of)[1]
    data = {"tls.crt": base64.b64encode(chain).decode(), "tls.key": base64.b64encode(key).decode()}
    return SECRETS.decode(
        SECRETS.as_dynamic.encode({"metadata": meta(name), "type": "kubernetes.io/tls", "data": data})
    )
