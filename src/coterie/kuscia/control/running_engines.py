"""The pod behind an engine's certificate: data mesh and ConfManager serve engines that run, and nobody else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.base import pki
from coterie.http.messages import UserInfo
from coterie.kube.api.errors import NotFound
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.client.client import Reader
from coterie.kuscia.identity.engine_certificates import EngineIdentity, engine_named, engine_of, signer_node

_URIS, _NODE = "uris", "signer-node"


class NotAnEngine(Exception):
    """The certificate is of no engine of the domain that runs; the message is a sentence."""


async def running_pod(client: Reader, engine: EngineIdentity | None, domain: str) -> Pod:
    """Raises NotAnEngine, ApiError or TransportError."""
    if engine is None:
        raise NotAnEngine("the certificate names no pod; engines have theirs in kuscia/certs")
    if engine.domain != domain:
        raise NotAnEngine(f'the certificate is of domain "{engine.domain}", not "{domain}"')
    try:
        pod: Pod | None = await client.get(PODS, engine.pod, domain)
    except NotFound:
        pod = None
    if pod is None or pod.metadata.uid != engine.uid or pod.ended:
        raise NotAnEngine(f'pod "{engine.pod}" of the certificate does not run any more')
    if not engine.issued_for(pod.spec.node_name):
        where = f'runs on node "{pod.spec.node_name}"'
        raise NotAnEngine(f'pod "{engine.pod}" of the certificate {where}, and node "{engine.node}" signed it')
    return pod


# Certificates, as servers hand them on.


def engine_of_pem(pem: bytes) -> EngineIdentity | None:
    try:
        return engine_of(pki.load_certificate(pem))
    except pki.PkiError:
        return None


def user_of_certificate(certificate: Mapping[str, Any]) -> UserInfo:
    """Carries the alternative names of a client's certificate, and who signed it, to the handler of an HTTP server."""
    uris = tuple(value for kind, value in certificate.get("subjectAltName") or () if kind == "URI")
    issuer = [pair for part in certificate.get("issuer") or () for pair in part]
    common = next((value for kind, value in reversed(issuer) if kind == "commonName"), "")
    node = signer_node(common, [value for kind, value in issuer if kind == "organizationName"])
    return UserInfo("engine", extra=((_URIS, uris), (_NODE, (node,))))


def engine_of_user(user: UserInfo | None) -> EngineIdentity | None:
    if user is None:
        return None
    extra = dict(user.extra)
    return engine_named(extra.get(_URIS, ()), next(iter(extra.get(_NODE, ())), ""))
