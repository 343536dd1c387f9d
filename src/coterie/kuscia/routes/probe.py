"""Finds out all that `routecheck` judges: asks the control plane, dials the partner's port, calls through the own
gateway.

Nothing secret is sent to anybody: the partner's port is called without a token, and the question about the token goes
through our own gateway, which adds it as to every call. Where that gateway is, its own files on this machine tell.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

import aiohttp

from coterie.base import pki
from coterie.base.clock import Clock
from coterie.base.paths import DomainPaths
from coterie.base.pki import PkiError
from coterie.http.client_sessions import short_lived_session
from coterie.http.plain_client import HttpFailure, Pool
from coterie.kube.api.errors import NotFound
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.client.client import Client
from coterie.kuscia.api import labels
from coterie.kuscia.api.domain_ownership import is_own, is_partner, master_of
from coterie.kuscia.api.domainroutes import route_name
from coterie.kuscia.api.kuscia_wire import WEAKNESSES, KusciaWireForm, wire_forms
from coterie.kuscia.api.types.domain import (
    BFIA_PROTOCOL,
    CLUSTER_DOMAIN_ROUTES,
    DOMAINS,
    INTEROP_CONFIGS,
    MTLS,
    ClusterDomainRoute,
    Domain,
)
from coterie.kuscia.gateway.handshake.messages import HandshakeFault, ProbeAnswer, decode
from coterie.kuscia.gateway.names import ERROR, HANDSHAKE_SERVICE, HOST, SOURCE
from coterie.kuscia.gateway.settings import MasterEndpoint
from coterie.kuscia.interconn.follower_status import (
    FollowerReport,
    decode_reports,
    left_out_sentences,
    problem_sentences,
)
from coterie.kuscia.routes import model
from coterie.kuscia.routes.facts import Certificate, ControlPlaneLink, RouteCheckFacts, RouteFacts, ServiceCheck
from coterie.kuscia.routes.reachability import HANDSHAKE, REVISION, node_socket

_EVENTS = Kind.dynamic(builtin("events"))
_TIMEOUT = 5.0
_ANSWER_SECONDS = 10.0
_ANSWER = aiohttp.ClientTimeout(total=_ANSWER_SECONDS, sock_connect=_TIMEOUT)
_LARGEST = 64 << 10


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    source: str
    destination: str
    service: str = ""
    endpoint: MasterEndpoint | None = None
    """Where the destination is, when the route does not say: a lite finds its master by its configuration."""
    home: DomainPaths | None = None
    """The source's directory, when its gateway runs on this machine."""
    hint: str = ""
    control_plane: str = ""
    """The domain of the control plane that is asked, where that is known."""


async def gather(client: Client, asked: ProbeRequest, clock: Clock) -> RouteCheckFacts:
    facts = RouteCheckFacts(asked.source, asked.destination, clock.now(), hint=asked.hint)
    domains = {name: await _domain(client, name) for name in (asked.source, asked.destination)}
    facts = replace(facts, known_domains=tuple(name for name, found in domains.items() if found is not None))
    facts = replace(facts, masters=await _masters(client, asked, domains, facts.now))
    route = await _route(client, asked.source, asked.destination)
    if route is None:
        return facts
    facts = replace(facts, route=route_facts(route, facts.now), last_word=await _last_word(client, asked))
    followed = facts.masters.theirs if facts.masters is not None else asked.destination
    reports = await followers_of(client, followed)
    facts = replace(
        facts,
        follower_problems=tuple(problem_sentences(followed, reports)),
        follower_left_out=tuple(left_out_sentences(followed, reports)),
    )
    there = domains[asked.destination]
    pem = model.certificate_of(there) if there is not None else ""
    facts = replace(facts, pins=_pins(pem))
    endpoint = endpoint_of(route) or asked.endpoint
    if endpoint is not None and route.spec.transit is None:
        facts = replace(facts, host=endpoint.host, port=endpoint.port, tls=endpoint.tls)
        changing = KusciaWireForm.CHANGING_CERTIFICATE in wire_forms(route.metadata.annotations)
        # The domain's own certificate is then what the one at the port is checked by.
        authority = model.encoded(pem) if changing else _authority(route)
        facts = await dial(facts, endpoint, authority, clock, asked.home)
    gateway = node_socket(asked.home) if asked.home is not None else None
    return await ask_through(facts, gateway, asked.service)


async def _domain(client: Client, name: str) -> Domain | None:
    try:
        return await client.get(DOMAINS, name)
    except NotFound:
        return None


async def _route(client: Client, source: str, destination: str) -> ClusterDomainRoute | None:
    try:
        return await client.get(CLUSTER_DOMAIN_ROUTES, route_name(source, destination))
    except NotFound:
        return None


async def _masters(
    client: Client, asked: ProbeRequest, domains: Mapping[str, Domain | None], now: datetime
) -> ControlPlaneLink | None:
    """None unless one end is ours, the other a partner's, and one of them is served by a control plane of another name."""
    partner = next((name for name, found in domains.items() if is_partner(found)), "")
    own = next((name for name, found in domains.items() if is_own(found)), "")
    if not partner or not own:
        return None
    theirs = master_of(partner, domains[partner])
    listed = (await client.list(INTEROP_CONFIGS)).items
    followers = [name for each in listed if each.spec.host == theirs for name in each.spec.members or ()]
    ours = asked.control_plane or next(iter(followers), "")
    if theirs == partner and own in (ours, *followers, *(() if ours else (own,))):
        return None
    known = theirs == partner or await _domain(client, theirs) is not None
    there = await _route(client, ours, theirs) if ours else None
    back = await _route(client, theirs, ours) if ours else None
    return ControlPlaneLink(
        ours, theirs, known, *(route_facts(each, now) if each is not None else None for each in (there, back))
    )


async def followers_of(client: Client, host: str) -> dict[str, FollowerReport]:
    """What our control plane says of following this partner, by member."""
    found: dict[str, FollowerReport] = {}
    for config in (await client.list(INTEROP_CONFIGS)).items:
        if config.spec.host == host:
            found |= decode_reports((config.metadata.annotations or {}).get(labels.COTERIE_FOLLOWERS, ""))
    return found


async def _last_word(client: Client, asked: ProbeRequest) -> str:
    about = f"involvedObject.name={route_name(asked.source, asked.destination)},type=Warning"
    found = (await client.list(_EVENTS, asked.source, fields=about)).items
    events = sorted(found, key=lambda each: str(each.get("lastTimestamp") or each.get("eventTime") or ""))
    return str(events[-1].get("message", "")) if events else ""


def route_facts(route: ClusterDomainRoute, now: datetime) -> RouteFacts:
    line = model.line_of(route, now)
    return RouteFacts(
        ready=line.ready,
        reason=line.reason,
        message=line.message,
        via=line.via if line.via != model.TUNNEL else "",
        tunnel=line.via == model.TUNNEL,
        needs_token=route.spec.needs_token,
        of_another_vendor=route.spec.inter_conn_protocol == BFIA_PROTOCOL and route.spec.authentication_type == MTLS,
        revision=line.revision,
        token_age=line.token_age,
        weaknesses=tuple(WEAKNESSES[form] for form in line.kuscia_wire),
    )


def endpoint_of(route: ClusterDomainRoute) -> MasterEndpoint | None:
    endpoint = route.spec.endpoint
    if endpoint is None or not endpoint.host or not endpoint.ports:
        return None
    port = endpoint.ports[0]
    return MasterEndpoint(endpoint.host, port.port, port.is_tls, port.path_prefix)


def _pins(pem: str) -> tuple[str, ...]:
    try:
        return (pki.fingerprint(pki.load_certificate(pem.encode())),) if pem else ()
    except PkiError:
        return ()


def _authority(route: ClusterDomainRoute) -> str:
    """Base64 of PEM, as the route has it; empty when it names none."""
    return route.spec.mtls_config.tls_ca if route.spec.mtls_config is not None else ""


# The partner's port.


async def dial(
    facts: RouteCheckFacts, endpoint: MasterEndpoint, authority: str, clock: Clock, home: DomainPaths | None = None
) -> RouteCheckFacts:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_TIMEOUT):
            found = await loop.getaddrinfo(facts.host, facts.port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError, UnicodeError) as error:
        return replace(facts, name_problem=_why(error))
    facts = replace(facts, addresses=tuple(dict.fromkeys(str(each[4][0]) for each in found)))
    begun = clock.monotonic()
    try:
        async with asyncio.timeout(_TIMEOUT):
            _, writer = await asyncio.open_connection(facts.host, facts.port)
    except (OSError, TimeoutError) as error:
        return replace(facts, tcp_problem=_why(error))
    facts = replace(facts, tcp_problem="", connect_seconds=clock.monotonic() - begun)
    try:
        if facts.tls:
            facts = await _read_certificate(facts, writer, authority)
    finally:
        # Nothing was sent that a goodbye would have to wait for.
        writer.transport.abort()
        with suppress(OSError, TimeoutError):
            await asyncio.wait_for(writer.wait_closed(), _TIMEOUT)
    return facts if facts.tls_problem else await _call(facts, endpoint, clock, home)


async def _read_certificate(facts: RouteCheckFacts, writer: asyncio.StreamWriter, authority: str) -> RouteCheckFacts:
    try:
        async with asyncio.timeout(_TIMEOUT):
            await writer.start_tls(_unverified_tls())
        shown = pki.load_der_certificate(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))
    except (OSError, TimeoutError, PkiError) as error:
        return replace(facts, tls_problem=_why(error))
    signed = None
    if authority:
        try:
            issuer = pki.load_certificate(model.decoded(authority).encode())
            signed = pki.signed_by(shown, issuer) or shown == issuer
        except PkiError:
            signed = False
    subject = pki.subject_of(shown)[0]
    certificate = Certificate(pki.fingerprint(shown), subject, shown.not_valid_before_utc, shown.not_valid_after_utc)
    return replace(facts, shown=certificate, signed=signed)


def _unverified_tls() -> ssl.SSLContext:
    """To see the certificate; it is judged afterwards, and nothing but an empty call is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _as_source(home: DomainPaths | None) -> tuple[ssl.SSLContext, bool]:
    """With the source's certificate, where its key may be read. Showing it gives nothing away."""
    context = _unverified_tls()
    if home is None:
        return context, False
    try:
        context.load_cert_chain(home.domain_certificate, home.domain_key)
    except OSError:  # includes ssl.SSLError
        return context, False
    return context, True


async def _call(
    facts: RouteCheckFacts, endpoint: MasterEndpoint, clock: Clock, home: DomainPaths | None
) -> RouteCheckFacts:
    """Without a token: a gateway refuses that in a way nothing else does."""
    url = f"{model.url_of(endpoint)}/"
    context, showed = _as_source(home)
    facts = replace(facts, showed=showed)
    try:
        async with short_lived_session(timeout=_ANSWER) as session:
            began = clock.now()
            async with session.get(url, ssl=context if facts.tls else True, allow_redirects=False) as answer:
                middle = began + (clock.now() - began) / 2
                error_header = answer.headers.get(ERROR, "")
                return replace(
                    facts,
                    status=answer.status,
                    gateway_error=error_header,
                    skew=skew(answer.headers.get("Date", ""), middle),
                )
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        return replace(facts, http_problem=_why(error))


def skew(date: str, now: datetime) -> float | None:
    """Seconds by which the sender of this header is ahead. The header has whole seconds, cut off."""
    try:
        sent = parsedate_to_datetime(date)
        return (sent - now.replace(microsecond=0)).total_seconds() if sent.tzinfo is not None else None
    except (TypeError, ValueError):
        return None


# Our own gateway.


async def ask_through(facts: RouteCheckFacts, gateway: Path | None, service: str) -> RouteCheckFacts:
    """Does the destination accept our token, and may we call that service?"""
    wanted = ServiceCheck(service, error="its gateway does not run on this machine") if service else None
    if gateway is None or facts.route is None:
        return replace(facts, service=wanted)
    pool = Pool(gateway, keep=0)
    try:
        if facts.route.needs_token:
            facts = await _probe(pool, facts)
        if wanted is None:
            return facts
        status, error, _ = await _send(pool, facts, f"{service}.{facts.destination}.svc", "HEAD", "/", {})
    finally:
        await pool.close()
    return replace(facts, service=ServiceCheck(service, status, error))


async def _probe(pool: Pool, facts: RouteCheckFacts) -> RouteCheckFacts:
    assert facts.route is not None
    host = f"{HANDSHAKE_SERVICE}.{facts.destination}.svc"
    headers = {REVISION: str(facts.route.revision)}
    status, error, body = await _send(pool, facts, host, "GET", HANDSHAKE, headers)
    if status != 200:
        message = f"our own gateway answers {status}: {error}" if status else error
        return replace(facts, probe_problem=message)
    try:
        return replace(facts, probe=decode(body, ProbeAnswer).state)
    except HandshakeFault as fault:
        return replace(facts, probe_problem=f"what {facts.destination} answers is not understood: {fault}")


async def _send(
    pool: Pool, facts: RouteCheckFacts, host: str, method: str, path: str, more: Mapping[str, str]
) -> tuple[int, str, bytes]:
    """(status, what the gateways say is wrong, body); status 0 when there was no answer."""
    headers = {"Host": host, HOST: host, SOURCE: facts.source, **more}
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            answer = await pool.request(method, path, headers)
            with closing(answer):
                body = await answer.read(_LARGEST)
    except (HttpFailure, TimeoutError) as error:
        return 0, f"our own gateway does not answer: {_why(error)}", b""
    error_header = answer.headers.get(ERROR, "")
    if not error_header and answer.status >= 500:
        error_header = body.decode("utf-8", "replace")[:200]
    return answer.status, error_header, body


def _why(error: BaseException) -> str:
    return str(error) or {"TimeoutError": "no answer in time"}.get(type(error).__name__, type(error).__name__)


def home_of(root: Path, domain: str) -> DomainPaths | None:
    """The domain's directory, when it lives on this machine."""
    home = DomainPaths.of(root, domain)
    return home if home.var.is_dir() else None
