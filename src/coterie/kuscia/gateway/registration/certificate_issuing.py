"""The certificate a lite gets. Pure.

It is the lite's face towards every partner, as client and as server, so it is not bound to one of the two uses. It is no
authority: whoever trusts the control plane's certificate must not thereby trust what a lite signs.

Kuscia's masters date such certificates 1970 to 1980, from a time the lite sends; here the control plane's clock counts.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from coterie.base import pki
from coterie.kuscia.identity.domain_identity import DomainIdentity

LIFE = timedelta(days=3650)
_BACKDATE = timedelta(minutes=5)
"""Clocks of two machines differ; a certificate that begins now would be refused by the slower one."""


def issue(master: DomainIdentity, domain: str, key: rsa.RSAPublicKey, now: datetime) -> x509.Certificate:
    """Signed by the key of the control plane's domain."""
    issuer = pki.load_certificate(master.certificate.encode())
    usage = x509.KeyUsage(
        digital_signature=True,
        key_encipherment=True,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, domain)]))
        .issuer_name(issuer.subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATE)
        .not_valid_after(now + LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(master.key.public_key()), critical=False)
    )
    return builder.sign(master.key, hashes.SHA256())
