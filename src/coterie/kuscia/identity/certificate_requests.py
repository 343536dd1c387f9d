"""Certificates that somebody asked a domain for, with keys made for them: what they may say, and how long they are good.

    authority of the domain ──issue──> key, certificate

The domain's authority also signs what its engines and its own servers show, so what is asked for must never be taken for
one of those. It signs nothing itself, has no alternative names (an engine is known by them, and so are servers), and its
common name is not one by which anybody here is known: see `name_fault`.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coterie.base import pki
from coterie.base.pki import Authority, PrivateKey

LONGEST_LIFE = timedelta(days=3650)
PORT_NAME = "_ENVOY_EXTERNAL"
"""How the common name ends of what Kuscia's gateways show on their public port: lites believe it of their master."""
_SERVERS = frozenset(
    (
        "apiserver",
        "confmanager",
        "datamesh",
        "diagnose",
        "kubernetes",
        "kusciaapi",
        "localhost",
        "reporter",
        "transport",
    )
)
_COUNTRY_LETTERS = 2


@dataclass(frozen=True, slots=True)
class Subject:
    common_name: str
    country: str = ""
    organization: str = ""
    organization_unit: str = ""
    locality: str = ""
    province: str = ""
    street_address: str = ""


_PARTS = {
    "country": (NameOID.COUNTRY_NAME, _COUNTRY_LETTERS),
    "organization": (NameOID.ORGANIZATION_NAME, 64),
    "organization_unit": (NameOID.ORGANIZATIONAL_UNIT_NAME, 64),
    "locality": (NameOID.LOCALITY_NAME, 128),
    "province": (NameOID.STATE_OR_PROVINCE_NAME, 128),
    "street_address": (NameOID.STREET_ADDRESS, 128),
    "common_name": (NameOID.COMMON_NAME, 64),
}
"""What a subject may have, in the order in which certificates have it, and how long each may be (X.520)."""


def faults(subject: Subject, domain: str) -> list[tuple[str, str]]:
    """(field, what is wrong with it)."""
    out = []
    for name, (_, longest) in _PARTS.items():
        text = getattr(subject, name)
        if len(text) > longest:
            out.append((name, f"must have no more than {longest} characters"))
        elif any(unicodedata.category(letter).startswith("C") for letter in text):
            out.append((name, "has a control character"))
    if subject.country and not (
        len(subject.country) == _COUNTRY_LETTERS and subject.country.isascii() and subject.country.isalpha()
    ):
        out.append(("country", "must be the two letters of a country"))
    if problem := name_fault(subject.common_name, domain):
        out.append(("common_name", problem))
    return out


def name_fault(name: str, domain: str) -> str:
    """Why nobody gets a certificate of this name; empty when somebody may.

    TLS libraries still take a common name for the host's when there are no alternative names.
    """
    normalised = name.strip().rstrip(".").casefold()
    if not normalised:
        return "must be given"
    if name != name.strip():
        return "must not begin or end with a space"
    if normalised == domain.casefold():
        return f'"{domain}" is the domain itself, whose certificate is var/certs/domain.crt; choose another name'
    if normalised.endswith(PORT_NAME.casefold()):
        return f"names that end in {PORT_NAME} are the gateway's own"
    if (
        "*" in normalised
        or normalised == "svc"
        or normalised.endswith((".svc", ".svc.cluster.local"))
        or normalised in _SERVERS
    ):
        return "is a name under which services of the domain are reached; choose another"
    return ""


def issue(
    authority: Authority, subject: Subject, life: timedelta, now: datetime
) -> tuple[PrivateKey, x509.Certificate]:
    """A new RSA key and its certificate, good for both sides of a connection. Takes a tenth of a second or more."""
    key = pki.new_key("rsa")
    name = x509.Name(
        [x509.NameAttribute(kind, text) for part, (kind, _) in _PARTS.items() if (text := getattr(subject, part))]
    )
    builder = pki.leaf(authority, name, key.public_key(), now, min(life, LONGEST_LIFE))
    uses = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH])
    return key, builder.add_extension(uses, critical=False).sign(authority.key, hashes.SHA256())
