"""Keys with certificates of the domain, for whoever works for it: served by KusciaAPI and, for engines, by ConfManager.

What may be asked for, and why nobody takes it for something else, is `base.askedcerts`.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from coterie.base.lazy_import import lazy_import
from coterie.kube.api.errors import NotFound
from coterie.kube.api.meta import Object
from coterie.kube.api.names import dns_label_faults
from coterie.kuscia.api.types.domain import DOMAINS
from coterie.kuscia.kusciaapi import messages
from coterie.kuscia.kusciaapi.authorization import ApiCaller
from coterie.kuscia.kusciaapi.certificate_input import encoded
from coterie.kuscia.kusciaapi.codes import ApiErrorCode, CallRefused
from coterie.kuscia.kusciaapi.operations import ApiOperation, Mode, OperationContext

if TYPE_CHECKING:
    from coterie.base import pki
    from coterie.kuscia.identity import certificate_requests
else:
    certificate_requests = lazy_import("coterie.kuscia.identity.certificate_requests")
    pki = lazy_import("coterie.base.pki")

DAY = 86400
PKCS1, PKCS8 = "PKCS#1", "PKCS#8"


async def generate(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    subject, life, form = _parse_request(here, request)
    await _check_no_domain(here, subject.common_name)
    return await asyncio.to_thread(_issue, here, subject, life, form)


async def _check_no_domain(here: OperationContext, name: str) -> None:
    """What a master signs for its lites looks just the same. A lite's signature means nothing for other domains."""
    if here.mode is Mode.LITE or dns_label_faults(name.casefold()):
        return
    try:
        await here.client.get(DOMAINS, name.casefold())
    except NotFound:
        return
    raise _bad("common_name", f'"{name}" is a domain; choose another name')


def _issue(here: OperationContext, subject: certificate_requests.Subject, life: timedelta, form: str) -> Object:
    if subject.common_name.strip().rstrip(".").casefold() in _names_of_servers(here):
        raise _bad("common_name", "is a name under which a server of this node is reached; choose another")
    try:
        parent, authority = _issuers(here)
        key, certificate = certificate_requests.issue(authority, subject, life, here.clock.now())
    except (OSError, pki.PkiError) as problem:
        raise CallRefused(
            ApiErrorCode.GENERATE_CERTIFICATE, f"the domain cannot sign certificates: {problem}"
        ) from problem
    chain = [encoded(pki.certificate_pem(each)) for each in (certificate, parent)]
    return {"key": encoded(pki.key_pem(key, pkcs1=form == PKCS1)), "cert_chain": chain}


def _names_of_servers(here: OperationContext) -> set[str]:
    """All that the certificates of this node's own servers are for: operators give them further names."""
    found: set[str] = set()
    for path in here.paths.certs.rglob("*.crt"):
        try:
            certificate = pki.load_certificate(path.read_bytes())
            found |= {name.casefold() for name in (pki.subject_of(certificate)[0], *pki.names_of(certificate))}
        except (OSError, pki.PkiError):
            continue  # nobody shows what cannot be read
    return found


def _issuers(here: OperationContext) -> tuple[Any, pki.Authority]:
    """What is shown as the signer, and what signs. Both are of the domain's one key and name."""
    authority = pki.load_certificate(here.paths.ca_certificate.read_bytes())
    parent = authority
    if here.mode is Mode.LITE:
        parent = pki.load_certificate(here.paths.domain_certificate.read_bytes())
        # Kuscia's masters issue certificates that ended decades ago; nothing good would be left of ours.
        if not pki.expired(parent, here.clock.now()):
            authority = parent
    return parent, pki.Authority(authority, here.identity.key)


# Requests. Pure.


def _parse_request(here: OperationContext, request: Any) -> tuple[certificate_requests.Subject, timedelta, str]:
    subject = certificate_requests.Subject(
        common_name=request.common_name,
        country=request.country,
        organization=request.organization,
        organization_unit=request.organization_unit,
        locality=request.locality,
        province=request.province,
        street_address=request.street_address,
    )
    for field, problem in certificate_requests.faults(subject, here.domain):
        raise _bad(field, problem)
    longest = int(certificate_requests.LONGEST_LIFE.total_seconds())
    if not 0 <= request.duration_sec <= longest:
        raise _bad("duration_sec", f"must be between 1 and {longest} seconds, or 0 for a day")
    if request.key_type not in ("", PKCS1, PKCS8):
        raise _bad("key_type", f"must be {PKCS1} or {PKCS8}")
    return subject, timedelta(seconds=request.duration_sec or DAY), request.key_type or PKCS1


def _bad(field: str, problem: str) -> CallRefused:
    return CallRefused(ApiErrorCode.BAD_CERTIFICATE_REQUEST, f"{field}: {problem}")


OPERATIONS = (
    ApiOperation(
        "CertificateService",
        "GenerateKeyCerts",
        "/api/v1/certificate/generate",
        ApiErrorCode.GENERATE_CERTIFICATE,
        generate,
        secret=True,
    ),
)

CONFMANAGER_OPERATIONS = tuple(
    ApiOperation(
        "CertificateService",
        "GenerateKeyCerts",
        path,
        ApiErrorCode.GENERATE_CERTIFICATE,
        generate,
        secret=True,
        package=messages.CONFMANAGER,
    )
    for path in ("/api/v1/cm/certificate/generate", "/api/v1/configmanager/certificate/generate")
)
"""Of ConfManager's own ports: one method, two paths."""
