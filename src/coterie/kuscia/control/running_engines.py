"""The pod behind an engine's certificate: data mesh and ConfManager serve engines that run, and nobody else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.base import pki
from coterie.http.messages import UserInfo
from coterie.kube.api.errors import NotFound
from coterie.kube.api.types.pods import PODS, Pod
from coterie.kube.client.client import Reader
from coterie.kuscia.identity.engine_certificates import EngineIdentity, engine_named, engine_of

_URIS = "uris"


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
    return pod


# Certificates, as servers hand them on.


def engine_of_pem(pem: bytes) -> EngineIdentity | None:
    try:
        return engine_of(pki.load_certificate(pem))
    except pki.PkiError:
        return None


def user_of_certificate(certificate: Mapping[str, Any]) -> UserInfo:
    """Carries the alternative names of a client's certificate to the handler of an HTTP server."""
    uris = tuple(value for kind, value in certificate.get("subjectAltName") or () if kind == "URI")
    return UserInfo("engine", extra=((_URIS, uris),))


def engine_of_user(user: UserInfo | None) -> EngineIdentity | None:
    return engine_named(dict(user.extra).get(_URIS, ())) if user is not None else None
