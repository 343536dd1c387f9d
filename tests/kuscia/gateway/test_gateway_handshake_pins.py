"""Whose certificate a caller showed: as Domains say it, as the route says it, as a lite's control plane put it on the route."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache

import pytest

from coterie.base import pki
from coterie.kuscia.api.labels import COTERIE_PARTNER_CERTIFICATE
from coterie.kuscia.api.types.domain import DOMAIN_ROUTES, DomainRoute
from coterie.kuscia.gateway.handshake.pinned_certificates import PinMatch, Pins


@cache
def certificate(name: str) -> str:
    made = pki.self_signed_ca(name, pki.new_key("ec"), now=datetime(2026, 1, 1, tzinfo=UTC))
    return pki.certificate_pem(made.certificate).decode()


def shown(name: str) -> str:
    return pki.fingerprint(pki.load_certificate(certificate(name).encode()))


def a_route(on_route: str = "", of_route: str = "", via: str = "") -> DomainRoute:
    encoded = {name: base64.b64encode(certificate(name).encode()).decode() for name in (on_route, of_route) if name}
    meta: dict[str, object] = {"name": "alice-bob", "namespace": "bob"}
    if on_route:
        meta["annotations"] = {COTERIE_PARTNER_CERTIFICATE: encoded[on_route]}
    spec: dict[str, object] = {"source": "alice", "destination": "bob", "authenticationType": "Token"}
    if of_route:
        spec["mTLSConfig"] = {"sourceClientCert": encoded[of_route]}
    if via:
        spec["transit"] = {"transitMethod": "THIRD-DOMAIN", "domain": {"domainID": via}}
    return DOMAIN_ROUTES.decode(json.dumps({"metadata": meta, "spec": spec}).encode())


def known(*names: str) -> Pins:
    def certificates(domain: str) -> Iterable[str]:
        return (certificate(domain),) if domain in names else ()

    return Pins(certificates)


@pytest.mark.parametrize(
    ("pins", "route", "fingerprint", "expected"),
    [
        (known("alice"), a_route(), "", PinMatch.NOTHING),
        (known("alice"), a_route(), shown("alice"), PinMatch.SOURCE),
        (known("alice"), a_route(), shown("mallory"), PinMatch.UNKNOWN),
        (known(), a_route(), shown("alice"), PinMatch.UNKNOWN),
        (known(), a_route(of_route="alice"), shown("alice"), PinMatch.SOURCE),
        (known(), a_route(on_route="alice"), shown("alice"), PinMatch.SOURCE),
        (known(), a_route(on_route="alice"), shown("mallory"), PinMatch.UNKNOWN),
        (known("joe"), a_route(via="joe"), shown("joe"), PinMatch.CARRIER),
        (known("joe"), a_route(), shown("joe"), PinMatch.UNKNOWN),
    ],
    ids=[
        "none shown",
        "by its Domain",
        "somebody else's",
        "nothing known",
        "by the route's own field",
        "as put on the route",
        "not the one put on the route",
        "the carrier's",
        "carrying nobody",
    ],
)
def test_whose_it_is(pins: Pins, route: DomainRoute, fingerprint: str, expected: PinMatch) -> None:
    assert pins.fits(route, fingerprint) is expected
