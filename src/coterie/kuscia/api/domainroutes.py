"""What a route between two domains must say to be usable, and how keys are written in it. Pure.

The schema of the definitions checks shapes; here stand the rules between fields, in sentences that begin with the
field. Controllers put them into conditions; the user's API and the command line ask before they write.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from coterie.base.lazy_import import lazy_import
from coterie.kuscia.api.types.domain import MTLS, REVERSE_TUNNEL, THIRD_DOMAIN, MtlsConfig, RouteSpec

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    from coterie.base import pki
else:
    serialization = lazy_import("cryptography.hazmat.primitives.serialization")
    rsa = lazy_import("cryptography.hazmat.primitives.asymmetric.rsa")
    pki = lazy_import("coterie.base.pki")

_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_IDENTITY_HEADERS = ("kuscia-", "host", ":", "content-length", "transfer-encoding", "connection")
"""Who called, and how long the request is, is said by the gateways alone."""
_KEYS_REMEMBERED = 4096


class KeyFault(Exception):
    """A certificate or key in an object is not what it should be; the message says how."""


def route_name(source: str, destination: str) -> str:
    """Of the copies in the domains' namespaces, and by custom of the ClusterDomainRoute itself."""
    return f"{source}-{destination}"


def network_status_name(source: str, destination: str, port: str) -> str:
    """Under which a gateway reports on a port of a route."""
    return f"{source}-to-{destination}-{port}"


@lru_cache(_KEYS_REMEMBERED)
def public_key_of_certificate(cert: str) -> str:
    """`Domain.spec.cert` (base64 of PEM) -> the public key as routes hold it (base64 of PEM in PKCS#1)."""
    key = _certificate(cert).public_key()
    if not isinstance(key, rsa.RSAPublicKey):
        raise KeyFault("its key is not an RSA key, which the handshake needs")
    return base64.b64encode(pkcs1_pem(key)).decode()


def pkcs1_pem(key: rsa.RSAPublicKey) -> bytes:
    """`-----BEGIN RSA PUBLIC KEY-----`, the form whose hash travels in the handshake."""
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.PKCS1)


@lru_cache(_KEYS_REMEMBERED)
def parse_public_key(text: str) -> rsa.RSAPublicKey:
    """A `tokenConfig` key. Raises KeyFault."""
    try:
        key = pki.load_public_key(_decoded(text))
    except pki.PkiError as error:
        raise KeyFault(str(error)) from error
    if not isinstance(key, rsa.RSAPublicKey):
        raise KeyFault("not an RSA key")
    return key


def route_faults(spec: RouteSpec, *, dials: bool) -> list[str]:
    """What is wrong with a route. `dials`: a gateway of ours has to find the destination by this route's endpoint."""
    return [
        *_end_faults(spec),
        *_endpoint_faults(spec, dials),
        *_transit_faults(spec),
        *_token_faults(spec),
        *_mtls_faults(spec),
        *_access_faults(spec),
    ]


def _end_faults(spec: RouteSpec) -> Iterator[str]:
    if not spec.source:
        yield "source: name the domain that calls"
    if not spec.destination:
        yield "destination: name the domain that is called"
    if spec.source and spec.source == spec.destination:
        yield "destination: must be another domain than the source"


def _endpoint_faults(spec: RouteSpec, dials: bool) -> Iterator[str]:
    endpoint = spec.endpoint
    ports = (endpoint.ports or ()) if endpoint is not None else ()
    if spec.transit is None and dials:
        if endpoint is None or not endpoint.host:
            yield f"endpoint.host: give the address of {spec.destination}'s gateway"
        if not ports:
            yield "endpoint.ports: give at least one port"
    names = [port.name for port in ports]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"endpoint.ports: two ports are named {name!r}"
    for port in ports:
        if port.path_prefix and not port.path_prefix.startswith("/"):
            yield f"endpoint.ports[{port.name}].pathPrefix: must begin with a slash"


def _transit_faults(spec: RouteSpec) -> Iterator[str]:
    transit = spec.transit
    if transit is None:
        return
    if transit.method == THIRD_DOMAIN:
        if not transit.through:
            yield f"transit.domain.domainID: name the domain that forwards, or use {REVERSE_TUNNEL}"
        elif transit.through in (spec.source, spec.destination):
            yield "transit.domain.domainID: must be neither the source nor the destination"
    elif transit.method == REVERSE_TUNNEL:
        if transit.through:
            yield f"transit.domain: no domain forwards with {REVERSE_TUNNEL}; leave it out"
    else:
        yield f"transit.transitMethod: must be {THIRD_DOMAIN} or {REVERSE_TUNNEL}"


def _token_faults(spec: RouteSpec) -> Iterator[str]:
    config = spec.token_config
    if spec.body_encryption is not None and spec.body_encryption.algorithm != "AES":
        # The reference takes SM4 and then sends bodies in clear text.
        yield f"bodyEncryption.algorithm: {spec.body_encryption.algorithm} is not supported; use AES"
    if config is None:
        if spec.needs_token:
            why = "authenticationType is Token" if spec.body_encryption is None else "bodies are encrypted by the token"
            yield f"tokenConfig: is needed because {why}"
        return
    for name, key in (("sourcePublicKey", config.source_public_key), ("destinationPublicKey", config.destination_public_key)):  # fmt: skip
        if not key:
            continue
        try:
            parse_public_key(key)
        except KeyFault as fault:
            yield f"tokenConfig.{name}: {fault}"


def _mtls_faults(spec: RouteSpec) -> Iterator[str]:
    config = spec.mtls_config
    if spec.authentication_type == MTLS and (config is None or not config.source_client_cert):
        yield "mTLSConfig.sourceClientCert: is needed because authenticationType is MTLS"
    if config is not None:
        yield from _certificate_faults(config)


def _certificate_faults(config: MtlsConfig) -> tuple[str, ...]:
    faults: list[str] = []
    certificate: x509.Certificate | None = None
    if config.source_client_cert:
        try:
            certificate = _certificate(config.source_client_cert)
        except KeyFault as fault:
            faults.append(f"mTLSConfig.sourceClientCert: {fault}")
    if config.tls_ca:
        try:
            _certificate(config.tls_ca)
        except KeyFault as fault:
            faults.append(f"mTLSConfig.tlsCA: {fault}")
    if config.source_client_private_key:
        try:
            key = pki.load_key(_decoded(config.source_client_private_key))
            if certificate is not None and key.public_key() != certificate.public_key():
                faults.append("mTLSConfig.sourceClientPrivateKey: does not belong to sourceClientCert")
        except (KeyFault, pki.PkiError) as fault:
            faults.append(f"mTLSConfig.sourceClientPrivateKey: {fault}")
    return tuple(faults)


def _access_faults(spec: RouteSpec) -> Iterator[str]:
    for index, block in enumerate(spec.source_white_ip_list or ()):
        try:
            ipaddress.ip_network(block, strict=False)
        except ValueError:
            yield f"sourceWhiteIPList[{index}]: {block!r} is neither an address nor a CIDR block"
    for name, value in (spec.request_headers_to_add or {}).items():
        if not _HEADER.fullmatch(name):
            yield f"requestHeadersToAdd: {name!r} is no header name"
        elif name.lower().startswith(_IDENTITY_HEADERS):
            yield f"requestHeadersToAdd: {name} is set by the gateways and cannot be added"
        elif any(ord(letter) < 32 and letter != "\t" for letter in value):
            yield f"requestHeadersToAdd: the value of {name} has a line break or another control character"


def _certificate(text: str) -> x509.Certificate:
    try:
        return pki.load_certificate(_decoded(text))
    except pki.PkiError as error:
        raise KeyFault(str(error)) from error


def _decoded(text: str) -> bytes:
    try:
        # People paste base64 with line breaks; anything else that is no base64 is refused.
        return base64.b64decode("".join(text.split()), validate=True)
    except binascii.Error as error:
        raise KeyFault("not base64") from error
