"""What becomes of a grant: is it good, and what does the grantee see of it. Pure.

    author's namespace                    namespace of the grantee, or of the control plane that hosts it
    DomainDataGrant  ──────────────────>  DomainDataGrant, with the author's status
    DomainData       ──────────────────>  DomainData, vendor `grant`

A copy is told by the label `owner-references` with the name of what it is a copy of. Data never travels, only what is
known of it; whether a use is allowed is decided where the data lies (`kuscia/api/grants.py`).
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from msgspec.structs import replace

from coterie.base.lazy_import import lazy_import
from coterie.kube.api.meta import Object
from coterie.kube.api.pod_state import parse_time
from coterie.kuscia.api import labels
from coterie.kuscia.api.types.data import READY, UNAVAILABLE, DomainDataGrant, DomainDataGrantStatus
from coterie.kuscia.api.types.domain import Domain

if TYPE_CHECKING:
    from coterie.kuscia.api import domainroutes, grants
else:
    domainroutes = lazy_import("coterie.kuscia.api.domainroutes")
    grants = lazy_import("coterie.kuscia.api.grants")

VENDOR = "grant"
UNSIGNED = "the owner's signature is missing; grant it at the owner's node"


def faults(grant: DomainDataGrant) -> str:
    spec = grant.spec
    if not spec.author or not spec.grant_domain:
        return "author and grantDomain must both be given"
    if spec.author == spec.grant_domain:
        return "a domain needs no grant for its own data"
    if spec.author != grant.metadata.namespace:
        return f"only {spec.author} can grant its data, in its own namespace"
    return ""


def signs(grant: DomainDataGrant, domain: str) -> bool:
    """Whether the control plane of `domain` signs it. Only in its own name: for lites nobody here has the key, and nobody
    else's word counts for their data. A signature that is there is never replaced."""
    return grant.spec.author == domain and not grant.spec.signature


def marks(grant: DomainDataGrant) -> Object | None:
    """Labels and annotations that a grant gets; None when it has them."""
    wanted_labels = {
        labels.KUSCIA_INTERCONN_PROTOCOL_TYPE: "kuscia",
        labels.KUSCIA_DOMAINDATA_ID: grant.spec.domain_data_id,
    }
    wanted_marks = {labels.KUSCIA_INITIATOR: grant.spec.author}
    have_labels, have_marks = grant.metadata.labels or {}, grant.metadata.annotations or {}
    out: Object = {}
    if missing := {key: value for key, value in wanted_labels.items() if key not in have_labels}:
        out["labels"] = missing
    if missing := {key: value for key, value in wanted_marks.items() if key not in have_marks}:
        out["annotations"] = missing
    return out or None


def status(grant: DomainDataGrant, author: Domain | None, data_known: bool, now: datetime) -> DomainDataGrantStatus:
    """Kuscia's words where it has some: consumers match on them."""
    before = grant.status or DomainDataGrantStatus(phase="", message="")
    word = _against(grant, author, data_known, now)
    return replace(before, phase=UNAVAILABLE if word else READY, message=word)


def _against(grant: DomainDataGrant, author: Domain | None, data_known: bool, now: datetime) -> str:
    if fault := faults(grant):
        return fault
    if not data_known:
        return f'there is no DomainData "{grant.spec.domain_data_id}"'
    if not grant.spec.signature:
        return UNSIGNED
    if author is None or not author.spec.cert:
        return "Get Domain cert error"
    try:
        key = domainroutes.parse_public_key(domainroutes.public_key_of_certificate(author.spec.cert))
    except domainroutes.KeyFault:
        return "Get Domain cert error"
    if not grants.signature_good(grant.spec, key):
        return "Verify error"
    ends = parse_time(grant.limit.expiration_time)
    if ends is not None and now >= ends:
        return grants.EXPIRED
    if grant.limit.use_count and len(grant.uses) >= grant.limit.use_count:
        return "UseCount is exhausted"
    return ""


def until_change(grant: DomainDataGrant, now: datetime) -> float | None:
    """Seconds until the grant ends by itself."""
    ends = parse_time(grant.limit.expiration_time)
    return None if ends is None or ends <= now else (ends - now).total_seconds()


def destination(grant: DomainDataGrant, grantee: Domain | None) -> str:
    """The namespace of the copies; empty when the grantee is not known here."""
    if grantee is None:
        return ""
    return grantee.spec.master or grantee.metadata.name if grantee.partner else grantee.metadata.name


def grant_copy(plain: Object, namespace: str, partner: bool) -> Object:
    grant = plain["metadata"]
    return {
        "metadata": {
            "name": grant["name"],
            "namespace": namespace,
            "labels": {
                **(grant.get("labels") or {}),
                labels.KUSCIA_OWNER_REFERENCES: grant["name"],
                labels.KUSCIA_DOMAINDATA_ID: plain["spec"]["domainDataID"],
            },
            "annotations": _partner_marks(plain["spec"]["author"], plain["spec"]["grantDomain"], partner),
        },
        "spec": plain["spec"],
    }


def data_copy(plain: Object, grantee: str, namespace: str, partner: bool) -> Object:
    data = plain["metadata"]
    return {
        "metadata": {
            "name": data["name"],
            "namespace": namespace,
            "labels": {
                **(data.get("labels") or {}),
                labels.KUSCIA_OWNER_REFERENCES: data["name"],
                labels.KUSCIA_DOMAINDATA_VENDOR: VENDOR,
                labels.KUSCIA_DOMAINDATAGRANT_VENDOR: VENDOR,
            },
            "annotations": _partner_marks(plain["spec"]["author"], grantee, partner),
        },
        "spec": {**plain["spec"], "vendor": VENDOR},
    }


def _partner_marks(author: str, grantee: str, partner: bool) -> dict[str, str]:
    marks = {labels.KUSCIA_INITIATOR: author}
    return {**marks, labels.KUSCIA_INTERCONN_KUSCIA_PARTIES: grantee} if partner else marks
