"""TLS: our certificate, whom we believe, on both sides of a connection. Pure.

Partners' certificates are pinned as a whole. Trusting a bundle of them and reading the names inside would not do: each
partner could then sign a certificate that carries another's name, and be believed. Their dates are Envoy's to look at,
except where they mean nothing (certificate_validity.py). A route may ask for the one exception: its destination makes a new
certificate at each start (`KusciaWireForm.CHANGING_CERTIFICATE`), and is believed by the domain's key that signed it. Whoever is let in without a look by Envoy is looked at by snapshot_inputs.py.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from coterie.base.pki import trust_anchor
from coterie.kuscia.api.kuscia_wire import KusciaWireForm
from coterie.kuscia.gateway.addresses import KeyPair, Protocol
from coterie.kuscia.gateway.certificate_validity import is_undated
from coterie.kuscia.gateway.egress import polled
from coterie.kuscia.gateway.identity import about, pins
from coterie.kuscia.gateway.model import Route, RoutePort, SnapshotInputs, SnapshotProblem
from coterie.kuscia.gateway.names import DOWNSTREAM_TLS, UPSTREAM_TLS, Json, file_source

OWN = "own"
SHOWN = "shown"
PEERS = "peers"
TUNNELS = "tunnels"
_NOBODY = "00" * 32
_PARAMETERS: Json = {"tls_minimum_protocol_version": "TLSv1_2"}


def secret_file(directory: Path, name: str) -> Path:
    return directory / f"sds-{name}.json"


def secrets(inputs: SnapshotInputs) -> dict[str, Json]:
    """By name; each lies in a file of its own, because Envoy takes exactly one from a file."""
    found: dict[str, Json] = {}
    if inputs.identity is not None:
        found[OWN] = _key_pair(OWN, inputs.identity)
    if inputs.shown is not None:
        found[SHOWN] = _key_pair(SHOWN, inputs.shown)
    for route in inputs.outbound:
        if route.client is not None:
            found[client_secret(route)] = _key_pair(client_secret(route), route.client)
    if inputs.protocol is Protocol.MTLS:
        found[PEERS] = {"name": PEERS, "validation_context": peers_context(inputs)}
    if inputs.identity is not None and inputs.external is not None:
        tunnels = [route for route in inputs.outbound if route.tunnel and not route.via and not polled(route)]
        found[TUNNELS] = {"name": TUNNELS, "validation_context": _pinned(tunnels)}
    return found


def client_secret(route: Route) -> str:
    return f"client-{route.destination}" if route.client is not None else OWN


def _key_pair(name: str, pair: KeyPair) -> Json:
    # The directory is watched: replacing the files by rename is enough for a new certificate to be served.
    return {
        "name": name,
        "tls_certificate": {
            "certificate_chain": {"filename": str(pair.certificate)},
            "private_key": {"filename": str(pair.key)},
            "watched_directory": {"path": str(pair.certificate.parent)},
        },
    }


def peers_context(inputs: SnapshotInputs) -> Json:
    """Certificates that clients may show. With newcomers the pin is checked by the caller's key, one step later.

    They may show any, and are always asked: a connection on which none was asked for, because nobody was known yet, would
    stay without one, and be refused for as long as it lives, after its owner has become known.
    """
    if inputs.newcomers and inputs.identity is not None:
        anybody: Json = {"trusted_ca": {"filename": str(inputs.identity.certificate)}}
        return anybody | {"trust_chain_verification": "ACCEPT_UNTRUSTED"}
    return _pinned(route for route in inputs.inbound if not inputs.relayed(route))


def _pinned(routes: Iterable[Route]) -> Json:
    """The certificates of these routes' partners and no others."""
    listed = [route for route in routes if pins(route)[0]]
    hashes = sorted({each for route in listed for each in pins(route)[0]})
    context: Json = {"verify_certificate_hash": hashes or [_NOBODY]}
    if bundle := "".join(sorted({_ended(pem) for route in listed for pem in route.certificates})):
        context["trusted_ca"] = {"inline_string": bundle}
    return context | _undated(pem for route in listed for pem in route.certificates)


def _undated(certificates: Iterable[str]) -> Json:
    return {"allow_expired_certificate": True} if any(map(is_undated, certificates)) else {}


def _ended(pem: str) -> str:
    return pem if pem.endswith("\n") else pem + "\n"


def downstream(inputs: SnapshotInputs) -> Json | None:
    """The external listener's side; None: plain text was asked for."""
    if inputs.protocol is Protocol.NOTLS:
        return None
    return serving(inputs, OWN if inputs.shown is None else SHOWN)


def serving(inputs: SnapshotInputs, certificate: str = OWN) -> Json:
    """Our side of a connection that a partner's calls come along."""
    common = _own(inputs, certificate) | {"alpn_protocols": ["h2", "http/1.1"]}
    context: Json = {"@type": DOWNSTREAM_TLS, "common_tls_context": common}
    if inputs.protocol is Protocol.MTLS:
        common["validation_context_sds_secret_config"] = _secret(inputs, PEERS)
        context["require_client_certificate"] = not inputs.newcomers
    return {"name": "envoy.transport_sockets.tls", "typed_config": context}


def tunnel_downstream(inputs: SnapshotInputs) -> Json:
    """For those who open a tunnel: they show who they are, whatever the protocol says of others."""
    common = _own(inputs) | {"validation_context_sds_secret_config": _secret(inputs, TUNNELS)}
    context: Json = {"@type": DOWNSTREAM_TLS, "common_tls_context": common, "require_client_certificate": True}
    return {"name": "envoy.transport_sockets.tls", "typed_config": context}


def tunnel_upstream(inputs: SnapshotInputs, back: Route, server_name: str) -> Json | None:
    """For opening one: as the domain itself, since the tunnel is known by that certificate."""
    made, _ = upstream(inputs, replace(back, client=None), RoutePort("tunnel", 0, tls=True))
    if made is not None:
        made["typed_config"]["sni"] = server_name
    return made


def _own(inputs: SnapshotInputs, certificate: str = OWN) -> Json:
    return {"tls_params": _PARAMETERS, "tls_certificate_sds_secret_configs": [_secret(inputs, certificate)]}


def _secret(inputs: SnapshotInputs, name: str) -> Json:
    return {"name": name, "sds_config": file_source(secret_file(inputs.directory, name))}


def upstream(inputs: SnapshotInputs, route: Route, port: RoutePort) -> tuple[Json | None, SnapshotProblem | None]:
    """Our side of a connection to a partner. A partner that nothing vouches for is not called at all."""
    if not port.tls:
        return None, None
    common: Json = {"tls_params": _PARAMETERS}
    if inputs.identity is not None or route.client is not None:
        common["tls_certificate_sds_secret_configs"] = [_secret(inputs, client_secret(route))]
    hashes, problem = pins(route)
    if problem is not None:
        return None, problem
    if hashes and KusciaWireForm.CHANGING_CERTIFICATE in route.kuscia_wire:
        anchors = {trust_anchor(pem) for pem in route.certificates}
        common["validation_context"] = {"trusted_ca": {"inline_string": "".join(sorted(anchors))}}
    elif hashes or route.authority:
        bundle = "".join(_ended(pem) for pem in (*sorted(route.certificates), route.authority) if pem)
        validation: Json = {"trusted_ca": {"inline_string": bundle}}
        if hashes:
            validation |= {"verify_certificate_hash": list(hashes)} | _undated(route.certificates)
        common["validation_context"] = validation
    elif not route.unverified:
        return None, SnapshotProblem(
            about(route), f"TLS, and neither a certificate of {route.destination} nor its authority is known"
        )
    context: Json = {"@type": UPSTREAM_TLS, "common_tls_context": common}
    if route.host and not is_address(route.host):
        context["sni"] = route.host
    return {"name": "envoy.transport_sockets.tls", "typed_config": context}, None


def to_service() -> Json:
    """To a service of our own that speaks TLS: it is ours and on our machine, so its certificate is not looked at."""
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {"@type": UPSTREAM_TLS, "common_tls_context": {"tls_params": _PARAMETERS}},
    }


def is_address(host: str) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.inet_pton(family, host)
    except OSError:
        return False
    return True
