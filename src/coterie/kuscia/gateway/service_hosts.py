"""The virtual hosts of our own services, for partners and for our own pods. Pure.

They are remembered by what they are made from: of a thousand services one changes at a time. Nobody may change what is
handed out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from coterie.base.secret import SecretValue
from coterie.kuscia.gateway import task_bandwidth
from coterie.kuscia.gateway.addresses import PodNetwork
from coterie.kuscia.gateway.clusters import ENDPOINT_KEY, NEVER_ARRIVED, is_direct, service_name
from coterie.kuscia.gateway.model import DomainService, Route, SnapshotInputs
from coterie.kuscia.gateway.names import APPEND, ORIGIN, PREVIOUS_HOSTS, SESSION, SOURCE, Json, header, literal, seconds
from coterie.kuscia.gateway.snapshot_cache import remembered

ALL: Json = {"prefix": "/"}
_AUTHORIZATION = "authorization"


@dataclass(frozen=True, slots=True)
class ServiceHostContext:
    """What a service's virtual hosts take from their surroundings; with it and the service they are remembered."""

    domain: str
    aliases: tuple[str, ...]
    idle_seconds: float
    pods: PodNetwork | None


def service_host_context(inputs: SnapshotInputs) -> ServiceHostContext:
    return ServiceHostContext(inputs.domain, inputs.aliases, inputs.tuning.idle_stream_seconds, inputs.pods)


def _service_domains(place: ServiceHostContext, service: DomainService) -> list[str]:
    names = dict.fromkeys((place.domain, *place.aliases, *service.aliases))
    return [f"{service.name}.{name}.svc" for name in names]


@remembered
def service_for_partners(place: ServiceHostContext, service: DomainService, decorating: tuple[Route, ...]) -> Json:
    """Headers that a route adds for one source are a route of their own that matches this source."""
    if service.credentials is not None:
        return _with_credentials(place, service, service.credentials, decorating)
    return {
        "name": f"service-{service.name}-external",
        "domains": _service_domains(place, service),
        "routes": _opened_routes(place, service, decorating),
    }


def _opened_routes(place: ServiceHostContext, service: DomainService, decorating: tuple[Route, ...]) -> list[Json]:
    """Routes are chosen before `auth` ran, but nobody gets past it with a false name.

    Without a list every authenticated domain is let in, with an empty one nobody.
    """
    closed = {"match": ALL, **NOT_OPENED}
    if service.access is not None and not service.access:
        return [closed]
    opened = [_one_of(ORIGIN, service.access)] if service.access is not None else []
    counted = sorted(service.access or ()) if service.task else []
    decorated = [
        {
            "match": {**ALL, "headers": [_source_is(route.source), *opened]},
            "request_headers_to_add": [header(key, literal(value)) for key, value in sorted(route.headers)],
            **_counting(service, route.source),
            **_reach(place, service),
        }
        for route in decorating
        if service.opened_to(route.source)
    ]
    if counted:
        by_caller = [
            {
                "match": {**ALL, "headers": [_is(ORIGIN, domain)]},
                **_counting(service, domain),
                **_reach(place, service),
            }
            for domain in counted
        ]
        return [*decorated, *by_caller, closed]
    if not opened:
        return [*decorated, {"match": ALL, **_reach(place, service)}]
    return [*decorated, {"match": {**ALL, "headers": opened}, **_reach(place, service)}, closed]


def _counting(service: DomainService, caller: str) -> Json:
    if not service.task or not service.endpoints:
        return {}
    return {"typed_per_filter_config": task_bandwidth.incoming(service.task, caller)}


def _with_credentials(
    place: ServiceHostContext,
    service: DomainService,
    credentials: tuple[tuple[str, SecretValue], ...],
    decorating: tuple[Route, ...],
) -> Json:
    """Each caller gets its own credential, and only when it speaks for itself."""
    added = {route.source: route.headers for route in decorating}
    routes = []
    for source, credential in credentials:
        others = [pair for pair in sorted(added.get(source, ())) if pair[0].lower() != _AUTHORIZATION]
        headers = [*others, (_AUTHORIZATION, credential.reveal())]
        routes.append(
            {
                "match": {**ALL, "headers": [_source_is(source), _is(ORIGIN, source)]},
                "request_headers_to_add": [header(key, literal(value)) for key, value in headers],
                **_reach(place, service),
            }
        )
    return {
        "name": f"service-{service.name}-external",
        "domains": _service_domains(place, service),
        "routes": [*routes, {"match": ALL, **NOT_OPENED}],
    }


@remembered
def service_for_own(place: ServiceHostContext, service: DomainService) -> Json:
    return {
        "name": f"service-{service.name}-internal",
        "domains": [service.name, *_service_domains(place, service)],
        "routes": [{"match": ALL, **_reach(place, service)}],
    }


def _reach(place: ServiceHostContext, service: DomainService) -> Json:
    if not service.endpoints:
        return refusal(503, f'Service "{service.name}" has no endpoints.')
    if is_direct(service):
        # The cluster goes where this says, and tries again as it should.
        where = str(service.endpoints[0])
        return {"route": {"cluster": service_name(service, place.pods), "timeout": "0s", "host_rewrite_literal": where}}
    action = send_to(place.idle_seconds, service_name(service, place.pods)) | {"auto_host_rewrite": True}
    if len(service.endpoints) > 1:
        action["hash_policy"] = _session(service)
        action["retry_policy"] = NEVER_ARRIVED | {
            "retry_host_predicate": [{"name": "previous", "typed_config": {"@type": PREVIOUS_HOSTS}}],
            "host_selection_retry_max_attempts": 3,
        }
        if service.affinity.cookie:
            return {"route": action, "response_headers_to_add": [_session_cookie(service)]}
    return {"route": action}


def _session(service: DomainService) -> list[Json]:
    policies: list[Json] = [{"header": {"header_name": SESSION}, "terminal": True}]
    if service.affinity.cookie:
        policies.append({"cookie": {"name": service.affinity.cookie}, "terminal": True})
    if service.affinity.client_address:
        policies += [{"connection_properties": {"source_ip": True}}, {"header": {"header_name": SOURCE}}]
    return policies


def _session_cookie(service: DomainService) -> Json:
    """Leads back to the endpoint that answered: the ring has a point for each endpoint under exactly this text.

    A cookie that Envoy makes up itself is the same for all calls of one connection, and a partner's gateway sends the calls
    of all its pods through one: whoever has no cookie yet is sent anywhere instead.
    """
    life = service.affinity.cookie_seconds
    value = f"{service.affinity.cookie}={ENDPOINT_KEY}_0; Max-Age={life}; Path=/; HttpOnly"
    return header("set-cookie", value, APPEND)


def _source_is(domain: str) -> Json:
    return _is(SOURCE, domain)


def _is(name: str, value: str) -> Json:
    return {"name": name, "string_match": {"exact": value}}


def _one_of(name: str, values: frozenset[str]) -> Json:
    if len(values) == 1:
        return _is(name, next(iter(values)))
    return {"name": name, "string_match": {"safe_regex": {"regex": "|".join(map(re.escape, sorted(values)))}}}


def send_to(idle_seconds: float, cluster: str) -> Json:
    return {
        "cluster": cluster,
        "timeout": "0s",
        "idle_timeout": seconds(idle_seconds),
        "retry_policy": NEVER_ARRIVED,
    }


def refusal(status: int, message: str) -> Json:
    return {"direct_response": {"status": status, "body": {"inline_string": message + "\n"}}}


NOT_OPENED = refusal(403, "This service is not opened to this domain.")
