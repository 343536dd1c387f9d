"""What is wrong with a route, step by step, and what to do about it. Pure: `diagnose(facts)`; `probe.py` finds the
facts.

    route ─> name ─> tcp ─> tls ─> certificate ─> gateway ─> clock ─> token ─> masters ─> follower ─> service

Each step needs those before it. When one is wrong, the network steps after it are not looked at, because what they
would say is only its echo; the token and the clock still are where there is something to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from coterie.kuscia.gateway.handshake.messages import TokenState
from coterie.kuscia.routes.facts import CheckOutcome, ControlPlaneLink, Finding, RouteCheckFacts, RouteFacts

CLOCK_WARNING = 60.0
"""Seconds. A request for registration is refused at 300, a handshake at 900."""
CLOCK_LIMIT = 300.0
_ENDS_SOON = timedelta(days=30)
_KUSCIAS_DATES = 1980
"""Kuscia's masters issue certificates that ended in 1970; gateways compare the certificate, not its dates."""


def diagnose(facts: RouteCheckFacts) -> list[Finding]:
    steps = (_route, _network, _clock, _token, _masters, _follower, _service)
    return [finding for step in steps for finding in step(facts)]


def sound(findings: list[Finding]) -> bool:
    return all(each.verdict is not CheckOutcome.WRONG for each in findings)


# The route object.


def _route(facts: RouteCheckFacts) -> Iterator[Finding]:
    route, ends = facts.route, f"{facts.source} {facts.destination}"
    for name in (facts.source, facts.destination):
        if name not in facts.known_domains:
            yield Finding(
                "domain",
                CheckOutcome.WRONG,
                f"this control plane knows no domain {name}",
                f"add it: coterie domain add {name} --partner --cert {name}.crt{facts.hint}",
            )
    if route is None:
        yield Finding(
            "route",
            CheckOutcome.WRONG,
            f"this control plane has no route from {facts.source} to {facts.destination}",
            f"add it: coterie route add {ends} --endpoint https://HOST:1080{facts.hint}",
        )
    elif route.ready:
        yield Finding("route", CheckOutcome.OK, "it exists, and its control plane calls it ready")
    else:
        why = f"{route.reason}: {route.message}" if route.message else route.reason
        yield Finding("route", CheckOutcome.WRONG, f"it is not ready: {why}", _REASONS.get(route.reason, _FOLLOW))
    for weakness in route.weaknesses if route is not None else ():
        advice = "only where the partner runs Kuscia; take it away with `coterie route add` without --kuscia-wire"
        yield Finding("wire", CheckOutcome.WARNING, weakness, advice)


_FOLLOW = "see the steps below"
_REASONS = {
    "RouteInvalid": "correct these fields of the ClusterDomainRoute, or remove the route and add it again",
    "DomainCertificateMissing": "give the domain its certificate: coterie domain add NAME --partner --cert FILE",
    "DomainCertificateInvalid": "give the domain the output of `coterie domain cert` at its own control plane",
    "DomainRouteConflict": "remove the DomainRoute that somebody else made under this name",
    "GatewayNotAlive": "start the node of that domain, then look into its var/logs/coterie.log and var/logs/envoy",
    "TransitRouteMissing": "add that route first",
    "TransitRouteNotReady": "check that route first: coterie route check, with its two ends",
    "HeartBeatTimeout": "the source's gateway does not call any more; check from the source's side",
    "NoDomainHosted": "check it at the control plane of one of the two domains",
}


# The way there.


def _network(facts: RouteCheckFacts) -> Iterator[Finding]:
    route = facts.route
    if route is None or not facts.host:
        if route is not None and route.tunnel:
            yield Finding("name", CheckOutcome.SKIPPED, f"{facts.destination} dials us; nothing is dialled from here")
        elif route is not None and route.via:
            yield Finding(
                "name",
                CheckOutcome.SKIPPED,
                f"it goes through {route.via}",
                f"look at that part too: coterie route check {facts.source} {route.via}{facts.hint}",
            )
        elif route is not None:
            yield Finding("name", CheckOutcome.SKIPPED, f"this side does not dial {facts.destination} by this route")
        return
    for step in (_name, _tcp, _tls, _certificate, _gateway):
        found = step(facts)
        if found is None:
            return
        yield found
        if found.verdict is CheckOutcome.WRONG and step is not _certificate:
            return


def _name(facts: RouteCheckFacts) -> Finding | None:
    if facts.name_problem:
        return Finding(
            "name",
            CheckOutcome.WRONG,
            f"{facts.host} cannot be resolved: {facts.name_problem}",
            "correct the endpoint of the route, or this machine's DNS (/etc/resolv.conf, /etc/hosts)",
        )
    addresses = ", ".join(facts.addresses)
    return Finding(
        "name",
        CheckOutcome.OK,
        f"{facts.host} is {addresses}" if addresses != facts.host else f"{addresses} is an address",
    )


def _tcp(facts: RouteCheckFacts) -> Finding | None:
    if facts.tcp_problem is None:
        return None
    if facts.tcp_problem:
        return Finding(
            "tcp",
            CheckOutcome.WRONG,
            f"nothing answers at {facts.where}: {facts.tcp_problem}",
            f"is the port right, does {facts.destination}'s gateway run (`coterie status` there), "
            "is a firewall between?",
        )
    return Finding("tcp", CheckOutcome.OK, f"{facts.where} answers")


def _tls(facts: RouteCheckFacts) -> Finding | None:
    if not facts.tls:
        return Finding(
            "tls",
            CheckOutcome.WARNING,
            "the route uses plain text: anyone on the network path can read and change everything",
            f"unless both sides want that, set protocol: MTLS at {facts.destination} and https:// in the route",
        )
    if facts.tls_problem:
        plain = "WRONG_VERSION_NUMBER" in facts.tls_problem or "wrong version number" in facts.tls_problem
        return Finding(
            "tls",
            CheckOutcome.WRONG,
            f"{facts.where} does not speak TLS" if plain else f"no TLS with {facts.where}: {facts.tls_problem}",
            f"it is another program's port, or {facts.destination} has protocol: NOTLS; "
            "correct the endpoint or the protocol"
            if plain
            else f"look into var/logs/envoy at {facts.destination}",
        )
    return Finding("tls", CheckOutcome.OK, f"{facts.where} speaks TLS") if facts.shown is not None else None


def _certificate(facts: RouteCheckFacts) -> Finding | None:
    shown = facts.shown
    if not facts.tls or shown is None:
        return Finding("certificate", CheckOutcome.SKIPPED, "none is shown in plain text") if not facts.tls else None
    about = f'"{shown.subject}" {shown.fingerprint[:16]}'
    if facts.signed is False or (facts.signed is None and facts.pins and shown.fingerprint not in facts.pins):
        known = "the route's authority did not sign it" if facts.signed is False else f"we know {facts.pins[0][:16]}"
        return Finding(
            "certificate",
            CheckOutcome.WRONG,
            f"it shows the certificate {about}, which is not that of {facts.destination}: {known}",
            f"ask {facts.destination} for the output of `coterie domain cert` by another way than this one, then: "
            f"coterie domain add {facts.destination} --partner --cert FILE{facts.hint}",
        )
    if facts.signed is None and not facts.pins:
        return Finding(
            "certificate",
            CheckOutcome.WRONG,
            f"it shows the certificate {about}, and no certificate of {facts.destination} is known to compare it with",
            f"coterie domain add {facts.destination} --partner --cert FILE{facts.hint}",
        )
    if shown.ends < facts.now and shown.ends.year > _KUSCIAS_DATES:
        return Finding(
            "certificate",
            CheckOutcome.WRONG,
            f"the certificate {about} ended on {shown.ends:%Y-%m-%d}",
            f"{facts.destination} needs a new one (remove domain.crt and start again), "
            "and its partners then need it too",
        )
    if shown.begins > facts.now:
        return Finding(
            "certificate",
            CheckOutcome.WRONG,
            f"the certificate {about} is good only from {shown.begins:%Y-%m-%d %H:%M} UTC on",
            "a clock is wrong: set both by NTP",
        )
    if facts.now + _ENDS_SOON > shown.ends > facts.now:
        return Finding(
            "certificate",
            CheckOutcome.WARNING,
            f"it shows the right certificate {about}, which ends on {shown.ends:%Y-%m-%d}",
            f"arrange for a new one with {facts.destination}",
        )
    return Finding("certificate", CheckOutcome.OK, f"it shows {about}, as we know it, good until {shown.ends:%Y-%m-%d}")


def _gateway(facts: RouteCheckFacts) -> Finding | None:
    if facts.http_problem and facts.tls and not facts.showed:
        message = f"{facts.where} closes the connection to who shows no certificate, as protocol MTLS does"
        return Finding("gateway", CheckOutcome.SKIPPED, f"{message}; try it on the machine of {facts.source}")
    if facts.http_problem:
        return Finding(
            "gateway",
            CheckOutcome.WRONG,
            f"no HTTP answer from {facts.where}: {facts.http_problem}",
            f"does {facts.destination} know the certificate of {facts.source} (`coterie domain ls` there)? "
            "Its var/logs/envoy says more",
        )
    if not facts.status:
        return None
    if facts.route is not None and facts.route.of_another_vendor:
        message = (
            f"it answers with status {facts.status}; what another vendor's node says to such a call is not known here"
        )
        return Finding("gateway", CheckOutcome.OK, message)
    if facts.status == 401 and facts.gateway_error:
        return Finding("gateway", CheckOutcome.OK, "a gateway answers, and refuses who comes without a token")
    return Finding(
        "gateway",
        CheckOutcome.WRONG,
        f"what answers at {facts.where} is no gateway: status {facts.status} to a call without a token, not 401",
        "correct host, port and path of the endpoint; if a proxy stands in between, let it pass everything on",
    )


# What both sides agreed on.


def _clock(facts: RouteCheckFacts) -> Iterator[Finding]:
    if facts.skew is None:
        return
    size = abs(facts.skew)
    message = f"{facts.destination}'s clock is {size:.0f} s {'ahead of' if facts.skew > 0 else 'behind'} ours"
    if size <= CLOCK_WARNING:
        yield Finding("clock", CheckOutcome.OK, message if size >= 2 else "both clocks agree")
        return
    yield Finding(
        "clock",
        CheckOutcome.WRONG if size > CLOCK_LIMIT else CheckOutcome.WARNING,
        message,
        "set both clocks by NTP: registrations are refused from 5 minutes on, handshakes from 15",
    )


def _token(facts: RouteCheckFacts) -> Iterator[Finding]:
    route = facts.route
    if route is None or not route.needs_token:
        return
    age = f", agreed on {route.token_age:.0f} s ago" if route.token_age is not None else ""
    have = f"revision {route.revision}{age}" if route.revision else "none is agreed on yet"
    if not route.revision and facts.last_word:
        have += f" ({facts.last_word})"
    at_partner = f"at {facts.destination}: coterie route add {facts.source} {facts.destination}"
    if facts.probe is None:
        verdict = CheckOutcome.WRONG if facts.probe_problem else CheckOutcome.SKIPPED
        why = facts.probe_problem or "it can be tried only on the machine of the source's gateway"
        advice = "the steps above say what keeps the gateways apart" if verdict is CheckOutcome.WRONG else ""
        yield Finding("token", verdict, f"{have}; {why}", advice)
        return
    if not route.revision and facts.probe in (
        TokenState.REVISION_INVALID,
        TokenState.TOKEN_NOT_FOUND,
        TokenState.TOKEN_NOT_READY,
    ):
        advice = "wait some seconds; if it stays so, compare the certificates: `coterie domain ls` on both sides"
        yield Finding("token", CheckOutcome.WRONG, f"{facts.destination} knows the route, but {have}", advice)
        return
    known = {
        TokenState.TOKEN_READY: Finding("token", CheckOutcome.OK, f"{facts.destination} accepts it: {have}"),
        TokenState.DOMAIN_INVALID: Finding(
            "token", CheckOutcome.WRONG, f"{facts.destination} says that {facts.source} is no domain", at_partner
        ),
        TokenState.TOKEN_NOT_READY: Finding(
            "token",
            CheckOutcome.WRONG,
            f"{facts.destination} has not loaded it in all its gateways yet: {have}",
            f"wait some seconds; if it stays so, `coterie status` at {facts.destination} shows a gateway that hangs",
        ),
        TokenState.TOKEN_NOT_FOUND: Finding(
            "token",
            CheckOutcome.WRONG,
            f"{facts.destination} knows the route but not this token: {have}",
            "a new one is agreed on within half a minute; "
            "if it is not, remove the route and add it again on both sides",
        ),
        TokenState.NO_AUTHENTICATION: Finding(
            "token",
            CheckOutcome.WRONG,
            f"{facts.destination} has no route from {facts.source}, or knows {facts.source} under another certificate",
            f"{at_partner} --cert {facts.source}.crt",
        ),
    }
    odd = Finding(
        "token",
        CheckOutcome.WRONG,
        f"{facts.destination} answers a question about our token with state {facts.probe}",
        f"look into the log of {facts.destination}'s node",
    )
    yield next((each for state, each in known.items() if state == facts.probe), odd)


def _masters(facts: RouteCheckFacts) -> Iterator[Finding]:
    """Where the ends have control planes of other names, those need routes of their own: calls pass without, jobs do not."""
    link = facts.masters
    if link is None:
        return
    ours = link.ours or "OUR-MASTER"
    if not link.known:
        yield Finding(
            "masters",
            CheckOutcome.WRONG,
            f"this control plane knows no domain {link.theirs}, which serves the partner's domain",
            f"add it: coterie domain add {link.theirs} --partner --cert {link.theirs}.crt{facts.hint}",
        )
        return
    missing = [pair for pair, found in _pairs(link, ours) if found is None]
    for (one, other), found in _pairs(link, ours):
        if found is not None and not found.ready:
            why = f"{found.reason}: {found.message}" if found.message else found.reason
            yield Finding(
                "masters",
                CheckOutcome.WRONG,
                f"the control planes' own route {one} -> {other} is not ready ({why}), so jobs and grants wait",
                f"look at it: coterie route check {one} {other}{facts.hint}",
            )
    if missing:
        named = ", ".join(f"{one} -> {other}" for one, other in missing)
        yield Finding(
            "masters",
            CheckOutcome.WARNING,
            f"calls pass, but jobs and grants do not: the control planes have no route {named}",
            f"add it: coterie route add {ours} {link.theirs} --endpoint https://HOST:1080 --both{facts.hint}",
        )
    elif all(found is not None and found.ready for _, found in _pairs(link, ours)):
        yield Finding("masters", CheckOutcome.OK, f"the control planes {ours} and {link.theirs} reach each other")


def _pairs(link: ControlPlaneLink, ours: str) -> tuple[tuple[tuple[str, str], RouteFacts | None], ...]:
    return (((ours, link.theirs), link.there), ((link.theirs, ours), link.back))


def _follower(facts: RouteCheckFacts) -> Iterator[Finding]:
    """Jobs and grants of a partner come by following its control plane."""
    for problem in facts.follower_problems:
        advice = f"its jobs and grants are not seen meanwhile; it is tried again. Ask {facts.destination}, and see var/logs/coterie.log"
        yield Finding("follower", CheckOutcome.WRONG, problem, advice)
    for sentence in facts.follower_left_out:
        advice = f"the others are followed; ask {facts.destination} about these"
        yield Finding("follower", CheckOutcome.WARNING, sentence, advice)


def _service(facts: RouteCheckFacts) -> Iterator[Finding]:
    asked = facts.service
    if asked is None:
        return
    name = f"{asked.name}.{facts.destination}.svc"
    if not asked.status:
        yield Finding("service", CheckOutcome.SKIPPED, f"{name} was not called: {asked.error}")
        return
    message = f"{name} answers {asked.status}" + (f": {asked.error}" if asked.error else "")
    if asked.status == 403:
        yield Finding(
            "service",
            CheckOutcome.WRONG,
            message,
            f"it does not exist, or is not opened to {facts.source}; at {facts.destination}: coterie kubectl annotate "
            f"service {asked.name} -n {facts.destination} kuscia.secretflow/access-domain={facts.source} --overwrite",
        )
    elif asked.status in (401, 404, 502, 503, 504) and asked.error:
        yield Finding("service", CheckOutcome.WRONG, message, f"is there a ready pod behind it at {facts.destination}?")
    else:
        yield Finding("service", CheckOutcome.OK, message)
