"""Grants, as callers ask for them and are told of them, and as their owner signs them. Pure.

The data mesh and KusciaAPI have the same words for them; only the clocks differ: one counts seconds, the other
nanoseconds.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from coterie.base import signatures
from coterie.base.clock import parse_rfc3339, rfc3339
from coterie.kube.api.meta import Object
from coterie.kuscia.api import grants, labels
from coterie.kuscia.api.types.data import METADATA, DomainDataGrant, DomainDataGrantSpec
from coterie.kuscia.sources.catalogue_entries import InvalidEntry, without_empty

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import rsa

SECOND, NANOSECOND = 1, 10**9
_LATEST = datetime(9999, 12, 31, tzinfo=UTC).timestamp()


def new_name() -> str:
    return f"domaindatagrant-{uuid.uuid4()}"


def spec_of_request(request: Any, unit: int) -> Object:
    """The spec in a request to create or update; empty where it says nothing. `unit`: how many make a second."""
    limit = request.limit
    limits: Object = {
        "expirationTime": _ends(limit.expiration_time, unit),
        "useCount": _count(limit.use_count),
        "flowID": limit.flow_id,
        "components": list(limit.components),
        "initiator": limit.initiator,
        "inputConfig": limit.input_config,
    }
    return {
        "domainDataID": request.domaindata_id,
        "grantDomain": request.grant_domain,
        "limit": {key: value for key, value in limits.items() if value},
        "description": dict(request.description),
    }


def _ends(moment: int, unit: int) -> str | None:
    if not 0 <= moment <= _LATEST * unit:
        raise InvalidEntry("limit.expiration_time", "must be a time from 1970 to 9999")
    return rfc3339(datetime.fromtimestamp(moment // unit, UTC)) if moment else None


def _count(uses: int) -> int:
    if uses < 0:
        raise InvalidEntry("limit.use_count", "must not be negative")
    return uses


def limit_of(
    columns: Sequence[str],
    *,
    uses: int = 0,
    until: datetime | None = None,
    components: Sequence[str] = (),
    metadata_only: bool = False,
) -> Object:
    """The limit of a grant; empty: there is none."""
    limit: Object = {}
    if columns:
        limit["inputConfig"] = grants.columns_limit(columns)
    if uses:
        limit["useCount"] = uses
    if until is not None:
        limit["expirationTime"] = rfc3339(until)
    if components:
        limit["components"] = list(components)
    if metadata_only:
        limit["grantMode"] = [METADATA]
    return limit


def name_for(table: str, partner: str, taken: Collection[str]) -> str:
    """The first of `table-partner`, `table-partner-2`, ... that is free."""
    plain = f"{table}-{partner}"
    return next(name for at in range(1, len(taken) + 2) if (name := plain if at == 1 else f"{plain}-{at}") not in taken)


def completed(spec: Mapping[str, Any]) -> Object:
    """Without signature. BadEntry when something is missing."""
    plain = {key: value for key, value in without_empty(spec).items() if key != "signature"}
    if not plain.get("grantDomain") or plain["grantDomain"] == plain["author"]:
        raise InvalidEntry("grant_domain", "must name another domain")
    _typed(plain)
    return plain


def signed(spec: Mapping[str, Any], key: rsa.RSAPrivateKey) -> Object:
    """With the signature of its author, whose key this must be."""
    signature = signatures.sign(grants.signed_text(_typed(spec)), key)
    return {**spec, "signature": base64.b64encode(signature).decode()}


def signature_good(spec: Mapping[str, Any], key: rsa.RSAPublicKey) -> bool:
    return grants.signature_good(_typed(spec), key)


def _typed(spec: Mapping[str, Any]) -> DomainDataGrantSpec:
    try:
        return msgspec.convert(dict(spec), DomainDataGrantSpec)
    except msgspec.ValidationError as problem:
        raise InvalidEntry("the grant", f"is not complete: {problem}") from problem


def grant(name: str, spec: Mapping[str, Any]) -> Object:
    """A DomainDataGrant to create."""
    return {
        "apiVersion": "kuscia.secretflow/v1alpha1",
        "kind": "DomainDataGrant",
        "metadata": {
            "name": name,
            "labels": {
                labels.KUSCIA_INTERCONN_PROTOCOL_TYPE: "kuscia",
                labels.KUSCIA_DOMAINDATA_ID: spec["domainDataID"],
                labels.KUSCIA_DOMAINDATAGRANT_DOMAIN: spec["grantDomain"],
            },
            "annotations": {labels.KUSCIA_INITIATOR: spec["author"]},
        },
        "spec": dict(spec),
    }


def change(grant: DomainDataGrant, spec: Mapping[str, Any]) -> list[Object]:
    """The patch (of type `json`) to just `spec`, if nobody wrote meanwhile. A merge would keep limits that are gone."""
    return [
        # Not a `test`: where that fails the request counts as wrong, and nobody tries it again.
        {"op": "replace", "path": "/metadata/resourceVersion", "value": grant.metadata.resource_version},
        {"op": "replace", "path": "/spec", "value": dict(spec)},
    ]


def grant_response(grant: DomainDataGrant, unit: int) -> Object:
    spec, limit = grant.spec, grant.limit
    return {
        "domaindatagrant_id": grant.metadata.name,
        "author": spec.author,
        "domaindata_id": spec.domain_data_id,
        "grant_domain": spec.grant_domain,
        "limit": {
            "expiration_time": moment(limit.expiration_time, unit) if limit.expiration_time else 0,
            "use_count": limit.use_count,
            "flow_id": limit.flow_id,
            "components": list(limit.components or ()),
            "initiator": limit.initiator,
            "input_config": limit.input_config,
        },
        "description": spec.description or {},
        "signature": spec.signature,
    }


def moment(text: str, unit: int) -> int:
    return int(parse_rfc3339(text).timestamp()) * unit
