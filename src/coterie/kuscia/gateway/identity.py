"""Who calls: the caller's key, the table of keys, and what an authenticated caller may claim and reach. Pure.

    early mutation   x-coterie-peer-key := <certificate fingerprint>|<claimed source>|<token>
                     (the claimed source: Kuscia-Source, or without it x-ptp-source-node-id or x-node-id, BFIA's names)
    auth             the key is one of the claimed source's; else 401
                     that source calls from an allowed address and names no origin it may not speak for; else 403
    routes           the service is opened to the origin; else 403
    access           who carries for others was granted it; else 403 (only on the virtual hosts that bring its rules)

`auth` and `access` are Envoy's RBAC filter, compiled and within Envoy's own threat model (its API-key filter would be a shorter way,
but is marked as not covered by it); no script runs per request. The first looks a caller up instead of trying one rule
after the other. Its table arrives in a file of its own, so that a token rolls without touching a listener (which would
cut every stream). Because the key holds the claimed source, routes may already match on that header before `auth` has run:
a false claim never gets past it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from coterie.base.pki import PkiError, fingerprint, load_certificate
from coterie.kuscia.api.kuscia_wire import KusciaWireForm
from coterie.kuscia.gateway.addresses import Protocol
from coterie.kuscia.gateway.egress import polled
from coterie.kuscia.gateway.matching import by_header, by_sender, then, verdict
from coterie.kuscia.gateway.model import NOOP_TOKEN, Authentication, Route, SnapshotInputs, SnapshotProblem
from coterie.kuscia.gateway.names import (
    EARLY_MUTATION,
    HANDSHAKE_CLUSTER,
    HOST,
    IF_ABSENT,
    IF_PRESENT,
    NODE_ID,
    ORIGIN,
    ORIGINAL_PATH,
    OVERWRITE,
    PEER_FINGERPRINT,
    PEER_KEY,
    PTP_SOURCE_NODE,
    PTP_TARGET_NODE,
    RBAC,
    RBAC_PER_ROUTE,
    SOURCE,
    TOKEN,
    TRACE_BAGGAGE,
    TRANSIT_FLAG,
    Json,
)

_SEPARATOR = "|"
UNAUTHORIZED = "unauthorized"
"""The rule by which `auth` refuses; its name tells that refusal from the others."""
_ANYONE: Json = {"any": True}
_LET_IN = verdict("known", "ALLOW")
_UNKNOWN_CALLER = verdict(UNAUTHORIZED, "DENY")
_NOT_SO = verdict("none", "DENY")


def early_mutation(mutations: list[Json]) -> list[Json]:
    return [{"name": "headers", "typed_config": {"@type": EARLY_MUTATION, "mutations": mutations}}]


def _set(key: str, value: str, action: str = OVERWRITE) -> Json:
    return {"append": {"header": {"key": key, "value": value}, "append_action": action}}


def external_mutations() -> list[Json]:
    """On arrival from outside: forget what only we may say, note the true host, and compose the caller's key."""
    return [
        {"remove": PEER_FINGERPRINT},
        {"remove": TRANSIT_FLAG},
        {"remove": HANDSHAKE_CLUSTER},
        {"remove": ORIGINAL_PATH},
        *({"remove": each} for each in TRACE_BAGGAGE),
        # Of a header sent twice the first is read here; what reads it later must see the same.
        *(
            _set(each, f"%REQ({each})%", IF_PRESENT)
            for each in (SOURCE, ORIGIN, TOKEN, HOST, PTP_SOURCE_NODE, NODE_ID, PTP_TARGET_NODE)
        ),
        # BFIA's names for it, of partners whose gateway is not Kuscia's. As claimed as any other: the key below decides.
        _set(SOURCE, f"%REQ({PTP_SOURCE_NODE}?{NODE_ID})%", IF_ABSENT),
        _set(HOST, "%REQ(:authority)%", IF_ABSENT),
        _set(ORIGIN, f"%REQ({SOURCE})%", IF_ABSENT),
        _set(PEER_KEY, _SEPARATOR.join(("%DOWNSTREAM_PEER_FINGERPRINT_256%", f"%REQ({SOURCE})%", f"%REQ({TOKEN})%"))),
    ]


def internal_mutations(domain: str) -> list[Json]:
    """On arrival from our own pods: they are this domain, whatever they say."""
    forgotten = (SOURCE, TOKEN, HOST, PEER_KEY, PEER_FINGERPRINT, TRANSIT_FLAG, HANDSHAKE_CLUSTER, ORIGINAL_PATH)
    return [*({"remove": each} for each in forgotten), _set(ORIGIN, domain)]


def pins(route: Route) -> tuple[tuple[str, ...], SnapshotProblem | None]:
    """The fingerprints of the partner's certificates."""
    try:
        return tuple(sorted({_pin(pem) for pem in route.certificates})), None
    except PkiError as error:
        return (), SnapshotProblem(about(route), f"the partner's certificate: {error}")


@lru_cache(maxsize=4096)
def _pin(pem: str) -> str:
    """Reading a certificate costs more than all the rest of a route."""
    return fingerprint(load_certificate(pem.encode()))


def about(route: Route) -> str:
    return f"route {route.source}-{route.destination}"


def auth_config(inputs: SnapshotInputs) -> tuple[Json, list[SnapshotProblem]]:
    """The table of keys: each source with its accepted tokens (and certificates), and what it may then claim.

    Everybody else is refused. A relayed source comes with its carrier's key, and the carrier may speak for it.
    """
    carried: dict[str, set[str]] = {}
    for route in inputs.inbound:
        if inputs.relayed(route):
            carried.setdefault(route.via, set()).add(route.source)
    known: dict[str, dict[str, Json]] = {}
    problems: list[SnapshotProblem] = []
    for route in inputs.inbound:
        if inputs.relayed(route):
            continue
        keys, problem = _keys(route, inputs.protocol)
        if inputs.polling is not None and polled(route) and not problem:
            # Fetched by us, by a poll that went to this very partner.
            keys.append(_SEPARATOR.join(("", route.source, inputs.polling.secret.reveal())))
        allowed, unreadable = _claims(route, carried.get(route.source, set()), proxied=inputs.proxied)
        problems += [*([problem] if problem is not None else []), *unreadable]
        if keys:
            known.setdefault(route.source, {}).update(dict.fromkeys(keys, allowed))
    sources = {source: then(by_header(PEER_KEY, keys, _UNKNOWN_CALLER)) for source, keys in known.items()}
    return {"@type": RBAC, "matcher": by_header(SOURCE, sources, _UNKNOWN_CALLER)}, problems


def _keys(route: Route, protocol: Protocol) -> tuple[list[str], SnapshotProblem | None]:
    certificates: tuple[str, ...] = ("",)
    if protocol is Protocol.MTLS:
        certificates, problem = pins(route)
        if problem is not None:
            return [], problem
        if KusciaWireForm.NO_CLIENT_CERTIFICATE in route.kuscia_wire and route.authentication is Authentication.TOKEN:
            certificates = (*certificates, "")
        if not certificates:
            return [], SnapshotProblem(
                about(route), f"protocol MTLS, and no certificate of {route.source} is known that counts today"
            )
    if route.authentication is Authentication.TOKEN:
        tokens = [token.reveal() for token in route.tokens if token]
        if NOOP_TOKEN in tokens:
            return [], SnapshotProblem(about(route), f"{NOOP_TOKEN!r} is no token")
    elif route.authentication is Authentication.MTLS and protocol is not Protocol.MTLS:
        return [], SnapshotProblem(
            about(route), "authenticated by certificate, but this gateway does not ask for certificates"
        )
    else:
        # A partner that knows nothing of Kuscia's tokens sends none.
        tokens = [NOOP_TOKEN, ""] if route.by_certificate else [NOOP_TOKEN]
    return [_SEPARATOR.join((pin, route.source, token)) for pin in certificates for token in tokens], None


def _claims(route: Route, carried: set[str], *, proxied: bool) -> tuple[Json, list[SnapshotProblem]]:
    """A source speaks for itself and for those whose route names it as carrier, from the addresses it may call from."""
    allowed, problems = _LET_IN, []
    if route.source_addresses:
        ranges, wrong = _ranges(route.source_addresses)
        problems = [SnapshotProblem(about(route), f"{each!r} is neither address nor CIDR block") for each in wrong]
        # When none is readable the list allows nobody, rather than everybody.
        allowed = then(by_sender([(ranges, _LET_IN)], _NOT_SO, proxied=proxied))
    return then(by_header(ORIGIN, dict.fromkeys((route.source, *carried), allowed), _NOT_SO)), problems


def access_of_anyone() -> Json:
    """Every authenticated caller."""
    return _allow([_ANYONE])


def access_of_domains(domains: Iterable[str]) -> Json:
    """For traffic that we only carry: the sender itself, not whom it speaks for, must have been granted it."""
    return _allow([_is(SOURCE, domain) for domain in sorted(domains)])


def _allow(principals: list[Json]) -> Json:
    policies = {"opened": {"permissions": [_ANYONE], "principals": principals}} if principals else {}
    return {"@type": RBAC_PER_ROUTE, "rbac": {"rules": {"action": "ALLOW", "policies": policies}}}


def without_secrets(host: Json) -> Json:
    """What has done its work is taken away before a request goes on: services must not see it."""
    return {**host, "request_headers_to_remove": [TOKEN, PEER_KEY, *host.get("request_headers_to_remove", ())]}


def deny_all() -> Json:
    """The listener's own setting: who is not let in by a virtual host stays outside."""
    return {"@type": RBAC, "rules": {"action": "ALLOW", "policies": {}}}


def _is(name: str, value: str) -> Json:
    return {"header": {"name": name, "string_match": {"exact": value}}}


def _ranges(texts: Iterable[str]) -> tuple[list[str], list[str]]:
    good: list[str] = []
    wrong: list[str] = []
    for text in sorted(set(texts)):
        try:
            network: Any = ipaddress.ip_network(text, strict=False)
        except ValueError:
            wrong.append(text)
            continue
        good.append(str(network))
    return good, wrong
