"""Does a certificate that a caller showed belong to whom the caller says it is?"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum, auto
from functools import lru_cache

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.pki import PkiError, fingerprint, load_certificate
from coterie.kube.client.informers import Informers
from coterie.kuscia.api.labels import COTERIE_PARTNER_CERTIFICATE
from coterie.kuscia.api.types.domain import DOMAINS, THIRD_DOMAIN, DomainRoute
from coterie.kuscia.gateway.certificate_validity import out_of_date
from coterie.kuscia.gateway.handshake import crypto

Certificates = Callable[[str], Iterable[str]]
"""From a domain to the certificates (PEM) that it is known to have."""


class PinMatch(Enum):
    NOTHING = auto()
    """None was shown."""
    SOURCE = auto()
    OUT_OF_DATE = auto()
    """It is the source's, and it has ended, or has not begun."""
    CARRIER = auto()
    """It is that of the domain that carries the route: the call came the right way, and that is all."""
    UNKNOWN = auto()


def no_certificates(domain: str) -> Iterable[str]:
    return ()


def domain_certificates(informers: Informers) -> Certificates:
    """The certificates that Domain objects hold. For a control plane: a lite may not read these objects."""
    domains = informers.get(DOMAINS)

    def certificates(domain: str) -> Iterable[str]:
        found = domains.cache.get(domain)
        return crypto.pem_of("".join(found.spec.cert.split())) if found is not None else ()

    return certificates


class Pins:
    def __init__(self, certificates: Certificates = no_certificates, clock: Clock = SYSTEM_CLOCK) -> None:
        self._certificates = certificates
        self._clock = clock

    def fits(self, route: DomainRoute, shown: str) -> PinMatch:
        """`shown`: SHA-256 of the certificate in hex, or nothing."""
        if not shown:
            return PinMatch.NOTHING
        mtls, transit = route.spec.mtls_config, route.spec.transit
        of_route = crypto.pem_of(mtls.source_client_cert) if mtls is not None else ()
        known = (*self._certificates(route.spec.source), *of_route, *_put_on(route))
        if shown in (found := _pins(known)):
            return PinMatch.OUT_OF_DATE if out_of_date(found[shown], self._clock.now()) else PinMatch.SOURCE
        carried = transit is not None and transit.method == THIRD_DOMAIN
        if transit is not None and carried and shown in _pins(self._certificates(transit.through)):
            return PinMatch.CARRIER
        return PinMatch.UNKNOWN


def _put_on(route: DomainRoute) -> Iterable[str]:
    """What the control plane tells a lite, which may not read Domains, of the source of a route to it."""
    return crypto.pem_of((route.metadata.annotations or {}).get(COTERIE_PARTNER_CERTIFICATE, ""))


def _pins(certificates: Iterable[str]) -> dict[str, str]:
    """From each one's fingerprint to itself."""
    return {pin: pem for pem in certificates if (pin := _pin(pem))}


@lru_cache(4096)
def _pin(pem: str) -> str:
    """Nothing for what is no certificate: it fits nobody."""
    try:
        return fingerprint(load_certificate(pem.encode()))
    except PkiError:
        return ""
