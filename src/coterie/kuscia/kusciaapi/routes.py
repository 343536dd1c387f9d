"""Routes: the way from one domain to another, as ClusterDomainRoute `<source>-<destination>`.

Where source and destination live in two control planes, each must be told: the source's, to call; the destination's, to
let the caller in. Only the source's needs an address.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from coterie.kube.api.errors import AlreadyExists, NotFound
from coterie.kube.api.meta import Object
from coterie.kube.client.client import retry_on_conflict
from coterie.kuscia.api.domainroutes import route_faults, route_name
from coterie.kuscia.api.types.domain import (
    CLUSTER_DOMAIN_ROUTES,
    DOMAINS,
    KUSCIA_PROTOCOL,
    MTLS,
    NO_AUTHENTICATION,
    RSA_GEN,
    THIRD_DOMAIN,
    TOKEN,
    UID_RSA_GEN,
    ClusterDomainRoute,
    Domain,
    RouteSpec,
)
from coterie.kuscia.kusciaapi.authorization import ApiCaller
from coterie.kuscia.kusciaapi.codes import ApiErrorCode, CallRefused, invalid
from coterie.kuscia.kusciaapi.domains import check_name, known_domain
from coterie.kuscia.kusciaapi.operations import ApiOperation, OnLite, OperationContext

_ROLLING_SECONDS = 86400
"""Where nothing is said of tokens they are renewed once a day."""
_PROTOCOLS = {"": "HTTP", "HTTP": "HTTP", "HTTPS": "HTTP", "GRPC": "GRPC", "GRPCS": "GRPC"}
_LARGEST_PERIOD = (1 << 31) - 1
_NAMES = {
    "authenticationType": "authentication_type",
    "tokenConfig": "token_config",
    "sourcePublicKey": "source_public_key",
    "destinationPublicKey": "destination_public_key",
    "mTLSConfig": "mtls_config",
    "tlsCA": "tls_ca",
    "sourceClientCert": "source_client_cert",
    "sourceClientPrivateKey": "source_client_private_key",
    "transitMethod": "transit_method",
    "domainID": "domain_id",
    "bodyEncryption": "body_encryption",
    "pathPrefix": "path_prefix",
}
"""What the rules call a field, and what callers call it."""
_NAMED = re.compile(r"\b(" + "|".join(_NAMES) + r")\b")


async def create(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    source, destination = _ends(request)
    caller.must_be_one_of(destination, to=f"create a route to {destination}")
    found = [await known_domain(here, name) for name in (source, destination)]
    spec = _spec(request, _protocol(found))
    through = spec.get("transit", {}).get("domain", {}).get("domainID", "")
    if through:
        await known_domain(here, through)
    dials = not found[0].partner and "transit" not in spec and destination != here.domain
    for fault in route_faults(msgspec.convert(spec, RouteSpec), dials=dials):
        raise CallRefused(ApiErrorCode.VALIDATION, _NAMED.sub(lambda word: _NAMES[word[0]], fault))
    name = route_name(source, destination)
    try:
        await here.client.create(CLUSTER_DOMAIN_ROUTES.as_dynamic, {"metadata": {"name": name}, "spec": spec})
    except AlreadyExists as problem:
        if not await retry_on_conflict(lambda: _take_over(here, name, spec)):
            raise CallRefused(
                ApiErrorCode.ROUTE_EXISTS, f'route "{name}" exists already; delete it to make it anew'
            ) from problem
    return {"data": {"name": name}}


async def _take_over(here: OperationContext, name: str, spec: Object) -> bool:
    """Whether the route there is one that the domain controller made for its source, and is now what was asked for.

    Such a route is there as soon as its domain is, and comes back when it is deleted: nobody could ever make another.
    """
    kind = CLUSTER_DOMAIN_ROUTES.as_dynamic
    there = await here.client.get(kind, name)
    meta, before = there["metadata"], there["spec"]
    if (before["source"], before["destination"]) != (spec["source"], spec["destination"]):
        return False
    owners = meta.get("ownerReferences") or []
    kept = [owner for owner in owners if owner["kind"] != DOMAINS.resource.kind]
    if len(kept) == len(owners):
        return False
    await here.client.update(kind, {**there, "metadata": {**meta, "ownerReferences": kept}, "spec": spec})
    return True


async def delete(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    source, destination = _ends(request)
    caller.must_be_one_of(destination, to=f"delete the route {source} -> {destination}")
    route = await _known(here, source, destination)
    try:
        await here.client.delete(CLUSTER_DOMAIN_ROUTES, route.metadata.name, uid=route.metadata.uid)
    except NotFound as problem:
        raise _no_route(source, destination) from problem
    return {}


async def query(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    source, destination = _ends(request)
    caller.must_be_one_of(source, destination, to=f"query the route {source} -> {destination}")
    return {"data": _response(await _known(here, source, destination))}


async def batch_query_status(here: OperationContext, caller: ApiCaller, request: Any) -> Object:
    if not request.route_keys:
        raise invalid("route_keys", "must name at least one route")
    wanted = [_ends(key, f"route_keys[{index}].") for index, key in enumerate(request.route_keys)]
    for source, destination in wanted:
        caller.must_be_one_of(source, destination, to=f"query the route {source} -> {destination}")
    found = {ends: await _known(here, *ends) for ends in dict.fromkeys(wanted)}
    return {"data": {"routes": [_brief(found[ends]) for ends in wanted]}}


async def _known(here: OperationContext, source: str, destination: str) -> ClusterDomainRoute:
    try:
        found = await here.client.get(CLUSTER_DOMAIN_ROUTES, route_name(source, destination))
    except NotFound as problem:
        raise _no_route(source, destination) from problem
    if (found.spec.source, found.spec.destination) != (source, destination):
        # `a-b` to `c` has the name that `a` to `b-c` would have.
        raise _no_route(source, destination)
    return found


# From requests. Pure.


def _ends(request: Any, at: str = "") -> tuple[str, str]:
    check_name(f"{at}source", request.source)
    check_name(f"{at}destination", request.destination)
    return request.source, request.destination


def _protocol(domains: list[Domain]) -> str:
    return next((each.protocol for each in domains if each.partner and each.protocol), KUSCIA_PROTOCOL)


def _spec(request: Any, protocol: str) -> Object:
    if request.authentication_type not in (TOKEN, MTLS, NO_AUTHENTICATION):
        raise invalid("authentication_type", f"must be {TOKEN}, {MTLS} or {NO_AUTHENTICATION}")
    spec: Object = {
        "source": request.source,
        "destination": request.destination,
        "interConnProtocol": protocol,
        "authenticationType": request.authentication_type,
    }
    if request.HasField("endpoint") and (request.endpoint.host or request.endpoint.ports):
        spec["endpoint"] = _endpoint(request.endpoint)
    if request.HasField("transit"):
        spec["transit"] = _transit(request.transit)
    if request.HasField("body_encryption"):
        if request.body_encryption.algorithm not in ("AES", "SM4"):
            raise invalid("body_encryption.algorithm", "must be AES")
        spec["bodyEncryption"] = {"algorithm": request.body_encryption.algorithm}
    if request.HasField("token_config"):
        spec["tokenConfig"] = _token_config(request.token_config)
    elif request.authentication_type == TOKEN or "bodyEncryption" in spec:
        spec["tokenConfig"] = {"tokenGenMethod": RSA_GEN, "rollingUpdatePeriod": _ROLLING_SECONDS}
    if request.HasField("mtls_config"):
        given = request.mtls_config
        spec["mTLSConfig"] = _without_empty(
            tlsCA=given.tls_ca,
            sourceClientPrivateKey=given.source_client_private_key,
            sourceClientCert=given.source_client_cert,
        )
    return spec


def _endpoint(endpoint: Any) -> Object:
    ports: list[Object] = []
    for index, each in enumerate(endpoint.ports):
        at = f"endpoint.ports[{index}]"
        if not 1 <= each.port <= 65535:
            raise invalid(f"{at}.port", "must be between 1 and 65535")
        if each.protocol not in _PROTOCOLS:
            raise invalid(f"{at}.protocol", "must be HTTP, HTTPS, GRPC or GRPCS")
        protocol, tls = _PROTOCOLS[each.protocol], each.isTLS or each.protocol in ("HTTPS", "GRPCS")
        # Few callers name their ports, and all objects do.
        name = each.name or (protocol.lower() if len(endpoint.ports) == 1 else f"{protocol.lower()}-{index}")
        port: Object = {"name": name, "protocol": protocol, "port": each.port, "isTLS": tls}
        ports.append(port | _without_empty(pathPrefix=each.path_prefix))
    return {"host": endpoint.host, "ports": ports}


def _transit(transit: Any) -> Object:
    out: Object = {"transitMethod": transit.transit_method or THIRD_DOMAIN}
    if transit.domain.domain_id:
        check_name("transit.domain.domain_id", transit.domain.domain_id)
        out["domain"] = {"domainID": transit.domain.domain_id}
    return out


def _token_config(config: Any) -> Object:
    if config.token_gen_method not in ("", RSA_GEN, UID_RSA_GEN):
        raise invalid("token_config.token_gen_method", f"must be {RSA_GEN} or {UID_RSA_GEN}")
    if not 0 <= config.rolling_update_period <= _LARGEST_PERIOD:
        raise invalid("token_config.rolling_update_period", "must be seconds, or 0 for tokens that are never renewed")
    out: Object = {
        "tokenGenMethod": config.token_gen_method or RSA_GEN,
        "rollingUpdatePeriod": config.rolling_update_period,
    }
    return out | _without_empty(
        sourcePublicKey=config.source_public_key, destinationPublicKey=config.destination_public_key
    )


def _without_empty(**fields: str) -> Object:
    return {name: value for name, value in fields.items() if value}


# To answers. Pure.


def _response(route: ClusterDomainRoute) -> Object:
    spec = route.spec
    out: Object = {**_brief(route), "authentication_type": spec.authentication_type}
    if spec.endpoint is not None:
        ports = [
            {
                "name": each.name,
                "port": each.port,
                "protocol": each.protocol,
                "isTLS": each.is_tls,
                "path_prefix": each.path_prefix,
            }
            for each in spec.endpoint.ports or ()
        ]
        out["endpoint"] = {"host": spec.endpoint.host, "ports": ports}
    if spec.token_config is not None:
        out["token_config"] = {
            "destination_public_key": spec.token_config.destination_public_key,
            "rolling_update_period": spec.token_config.rolling_update_period,
            "source_public_key": spec.token_config.source_public_key,
            "token_gen_method": spec.token_config.token_gen_method,
        }
    if spec.mtls_config is not None:
        # The private key goes in and never comes out.
        out["mtls_config"] = {
            "tls_ca": spec.mtls_config.tls_ca,
            "source_client_cert": spec.mtls_config.source_client_cert,
        }
    if spec.transit is not None:
        out["transit"] = {"transit_method": spec.transit.method}
        if spec.transit.through:
            out["transit"]["domain"] = {"domain_id": spec.transit.through}
    if spec.body_encryption is not None:
        out["body_encryption"] = {"algorithm": spec.body_encryption.algorithm}
    return out


def _brief(route: ClusterDomainRoute) -> Object:
    return {
        "name": route.metadata.name,
        "source": route.spec.source,
        "destination": route.spec.destination,
        "status": _status(route),
    }


def _status(route: ClusterDomainRoute) -> Object:
    ready = route.ready
    if ready is None:
        return {"status": "Failed", "reason": "NotLookedAtYet"}
    if ready.status == "True":
        return {"status": "Succeeded"}
    return {"status": "Failed", "reason": f"{ready.reason}: {ready.message}" if ready.message else ready.reason}


def _no_route(source: str, destination: str) -> CallRefused:
    return CallRefused(ApiErrorCode.NO_ROUTE, f"there is no route {source} -> {destination}")


OPERATIONS = (
    ApiOperation(
        "DomainRouteService",
        "CreateDomainRoute",
        "/api/v1/route/create",
        ApiErrorCode.CREATE_ROUTE,
        create,
        for_domains=True,
        on_lite=OnLite.FORWARD,
        secret=True,
    ),
    ApiOperation(
        "DomainRouteService",
        "DeleteDomainRoute",
        "/api/v1/route/delete",
        ApiErrorCode.DELETE_ROUTE,
        delete,
        for_domains=True,
        on_lite=OnLite.FORWARD,
    ),
    ApiOperation(
        "DomainRouteService",
        "QueryDomainRoute",
        "/api/v1/route/query",
        ApiErrorCode.QUERY_ROUTE,
        query,
        for_domains=True,
        on_lite=OnLite.FORWARD,
    ),
    ApiOperation(
        "DomainRouteService",
        "BatchQueryDomainRouteStatus",
        "/api/v1/route/status/batchQuery",
        ApiErrorCode.QUERY_ROUTE_STATUS,
        batch_query_status,
        for_domains=True,
        on_lite=OnLite.FORWARD,
    ),
)
