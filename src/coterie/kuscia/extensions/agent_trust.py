"""Agents of domains that registered here: their certificates are signed by the domain's own key.

The API's authority signs nothing for them, and they hold no credentials of ours. What is known of a domain is the key in
`Domain.spec.cert`, so an agent is believed when that key signed its certificate, for the address at which it was called.
OpenSSL can be told to trust an authority but not a bare key; so it checks that the agent holds the key of the certificate it
shows, and here is checked everything else, before anything is sent.
"""

from __future__ import annotations

import base64
import binascii
import ssl
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from coterie.base.clock import Clock
from coterie.base.lazy_import import lazy_import
from coterie.kube.apiserver.agent_connection import Check
from coterie.kube.apiserver.state.collection import Collection

if TYPE_CHECKING:
    from coterie.base import pki
else:
    # A control plane whose nodes all joined with a file never asks for it.
    pki = lazy_import("coterie.base.pki")

DOMAINS_KEY = "/registry/kuscia.secretflow/domains"
_PARTNER = "partner"


class DomainAgents:
    def __init__(
        self, domains: Callable[[], Collection | None], tls: Callable[[], ssl.SSLContext | None], clock: Clock
    ) -> None:
        """`domains`: None while the definition is not served. `tls`: shows our certificate and looks at none."""
        self._domains = domains
        self._tls = tls
        self._clock = clock

    def tls(self) -> ssl.SSLContext | None:
        return self._tls()

    def check(self, owner: str) -> Check | None:
        """`owner`: the domain. None: nothing is known of such a domain."""
        domains = self._domains()
        entry = domains.get("", owner) if domains is not None and owner else None
        key = key_of(entry.load()) if entry is not None else None
        return partial(self._fault, key) if key is not None else None

    def _fault(self, key: pki.PublicKey, der: bytes, host: str) -> str:
        return fault(der, key, host, self._clock.now())


def key_of(domain: dict[str, Any]) -> pki.PublicKey | None:
    """Of a domain of this control plane. A partner's nodes are not ours to call."""
    spec = domain.get("spec") or {}
    if spec.get("role") == _PARTNER or not spec.get("cert"):
        return None
    try:
        return pki.public_key_of(pki.load_certificate(base64.b64decode("".join(spec["cert"].split()), validate=True)))
    except (binascii.Error, pki.PkiError):
        return None


def fault(der: bytes, key: pki.PublicKey, host: str, now: datetime) -> str:
    """What is wrong with the certificate that an agent at `host` shows; empty when nothing is."""
    try:
        certificate = pki.load_der_certificate(der)
        names, server = pki.names_of(certificate), pki.serves(certificate)
    except pki.PkiError:
        return "it shows no certificate that can be read"
    if not pki.signed_by_key(certificate, key):
        return "its certificate is signed neither by this control plane nor by the key its domain registered"
    if pki.expired(certificate, now):
        return "its certificate is not valid at this time; compare the clocks"
    if host not in names:
        return f"its certificate is not for {host}"
    return "" if server else "its certificate is not one of a server"
