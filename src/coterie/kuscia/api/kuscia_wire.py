"""Forms of Kuscia's wire that are weaker than ours, and that a route may ask for by its annotation. Pure.

    metadata.annotations["coterie.io/kuscia-wire"]: body-encryption,no-client-certificate

Off by default. Each is for one route, and is named with its weakness in the log, an event of the route and `coterie status`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from coterie.kuscia.api.labels import COTERIE_KUSCIA_WIRE
from coterie.kuscia.api.types.domain import REVERSE_TUNNEL, TOKEN, RouteSpec


class KusciaWireForm(StrEnum):
    BODY_ENCRYPTION = "body-encryption"
    """Bodies in Kuscia's format: AES-128-GCM, one nonce for request and response."""
    NO_CLIENT_CERTIFICATE = "no-client-certificate"
    """The source shows no certificate; its token alone tells who it is."""
    CHANGING_CERTIFICATE = "changing-certificate"
    """The destination's port shows a certificate that its domain's key signed, a new one at each start."""
    REVERSE_TUNNEL = "reverse-tunnel"
    """REVERSE-TUNNEL in Kuscia's frames: the destination fetches calls by polling the source."""


WEAKNESSES: Mapping[KusciaWireForm, str] = {
    KusciaWireForm.BODY_ENCRYPTION: (
        "bodies are encrypted in Kuscia's format, whose responses reuse the nonce of the request: who forwards both learns "
        "the XOR of their contents and can forge others; use TLS as well"
    ),
    KusciaWireForm.NO_CLIENT_CERTIFICATE: (
        "the source need not show a certificate: whoever learns its token can call in its name until the token is renewed"
    ),
    KusciaWireForm.CHANGING_CERTIFICATE: (
        "any certificate that the destination's key has signed is accepted as its gateway's, those of its engines and users too"
    ),
    KusciaWireForm.REVERSE_TUNNEL: (
        "calls travel in frames that the destination fetches, without TLS and token of their own: whoever can answer its polls "
        "in the source's place can call in the source's name; whole bodies up to 16 MiB are held in memory"
    ),
}


def wire_forms(annotations: Mapping[str, str] | None) -> frozenset[KusciaWireForm]:
    """Those that are known; `wire_faults` tells the others."""
    return frozenset(KusciaWireForm(word) for word in _words(annotations) if word in tuple(KusciaWireForm))


def wire_faults(annotations: Mapping[str, str] | None, spec: RouteSpec) -> list[str]:
    """What cannot be as the annotation asks for it."""
    listed = ", ".join(KusciaWireForm)
    faults = [
        f"annotation {COTERIE_KUSCIA_WIRE}: {word[:40]!r} is none of {listed}"
        for word in _words(annotations)
        if word not in tuple(KusciaWireForm)
    ]
    forms = wire_forms(annotations)
    about = f"annotation {COTERIE_KUSCIA_WIRE}"
    if KusciaWireForm.BODY_ENCRYPTION in forms and spec.body_encryption is None:
        faults.append(f"{about}: {KusciaWireForm.BODY_ENCRYPTION} needs bodyEncryption")
    if KusciaWireForm.BODY_ENCRYPTION in forms and spec.transit is not None:
        # Through a third domain Kuscia encrypts its handshakes as well, and who forwards is whom the weakness serves.
        faults.append(f"{about}: {KusciaWireForm.BODY_ENCRYPTION} is for routes that are dialled directly")
    if KusciaWireForm.REVERSE_TUNNEL in forms and (spec.transit is None or spec.transit.method != REVERSE_TUNNEL):
        faults.append(f"{about}: {KusciaWireForm.REVERSE_TUNNEL} needs transit.transitMethod {REVERSE_TUNNEL}")
    if KusciaWireForm.NO_CLIENT_CERTIFICATE in forms and spec.authentication_type != TOKEN:
        # Without token and certificate nothing would tell who calls.
        faults.append(f"{about}: {KusciaWireForm.NO_CLIENT_CERTIFICATE} needs authenticationType {TOKEN}")
    if KusciaWireForm.CHANGING_CERTIFICATE in forms:
        if spec.transit is not None:
            faults.append(f"{about}: {KusciaWireForm.CHANGING_CERTIFICATE} is for routes that are dialled directly")
        if spec.mtls_config is not None and spec.mtls_config.tls_ca:
            faults.append(f"{about}: {KusciaWireForm.CHANGING_CERTIFICATE} is not needed with mTLSConfig.tlsCA")
    return faults


def written(forms: Iterable[KusciaWireForm]) -> str:
    return ",".join(sorted(forms))


def _words(annotations: Mapping[str, str] | None) -> list[str]:
    text = (annotations or {}).get(COTERIE_KUSCIA_WIRE, "")
    return sorted({word.strip() for word in text.split(",")} - {""})
