"""Signatures of images, as cosign makes them with a key: found in the image's repository, verified with public keys of ours.

    tag `sha256-<digest>.sig`, or a referrer ──> layers: payload (JSON that names the digest) + signature of the payload
    a referrer with a bundle (cosign 3) ───────> DSSE envelope: statement (that names the digest) + signature

A registry is not trusted: what counts is that a key of ours signed the very digest that was pulled. Certificates and
transparency logs (keyless signatures) are not looked at.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from coterie.kube.agent.images.layers import hexadecimal, sha256_of
from coterie.kube.agent.images.model import ImageError
from coterie.kube.agent.images.registry import NotInRegistry, RegistryClient

SIMPLE, DSSE = "simplesigning", "dsse"
_SIGNATURE = "dev.cosignproject.cosign/signature"
_PAYLOAD_TYPE = "application/vnd.dev.cosign.simplesigning.v1+json"
_CLAIM = "cosign container image signature"
_BUNDLE = re.compile(r"application/vnd\.dev\.sigstore\.bundle(\.v0\.[0-9]+)?\+json(;version=0\.[0-9]+)?")
_SIGNATURE_TYPES = ("application/vnd.dev.cosign.artifact.sig.v1+json", _PAYLOAD_TYPE)
_MOST_SIGNATURES = 32
_MOST_PAYLOAD = 64 << 10

PublicKey = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | rsa.RSAPublicKey


@dataclass(frozen=True, slots=True)
class ImageSignature:
    kind: str
    payload: bytes
    signature: bytes
    payload_type: str = ""

    def as_text(self) -> tuple[str, str, str, str]:
        """For the store."""
        payload, signature = base64.b64encode(self.payload).decode(), base64.b64encode(self.signature).decode()
        return self.kind, payload, signature, self.payload_type

    @classmethod
    def of_text(cls, kind: str, payload: str, signature: str, payload_type: str) -> ImageSignature:
        return cls(kind, base64.b64decode(payload), base64.b64decode(signature), payload_type)


# ----- keys


def load_keys(files: Iterable[str]) -> list[PublicKey]:
    """Raises ImageError for a file that is not a public key of a kind that cosign has."""
    found = []
    for name in files:
        try:
            key = load_pem_public_key(Path(name).read_bytes())
        except OSError as problem:
            raise ImageError(f"the key {name} cannot be read: {problem.strerror}") from problem
        except (ValueError, UnsupportedAlgorithm) as problem:
            raise ImageError(f"{name} is not a public key in PEM format") from problem
        if not isinstance(key, ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | rsa.RSAPublicKey):
            raise ImageError(f"{name} is a key of a kind that does not sign images")
        found.append(key)
    return found


def is_signed_by(keys: Iterable[PublicKey], message: bytes, signature: bytes) -> bool:
    return any(_verifies(key, message, signature) for key in keys)


def _verifies(key: PublicKey, message: bytes, signature: bytes) -> bool:
    try:
        if isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
        elif isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(signature, message)
        else:
            key.verify(signature, message, padding.PKCS1v15(), hashes.SHA256())
    except InvalidSignature:
        return False
    return True


# ----- verification


def is_valid(signature: ImageSignature, digests: Collection[str], keys: Iterable[PublicKey]) -> bool:
    """Whether one of the keys signed one of the digests."""
    try:
        claim = json.loads(signature.payload)
        named = _simple_claim(claim) if signature.kind == SIMPLE else _statement(claim)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return False
    message = signature.payload if signature.kind == SIMPLE else _pre_authentication(signature)
    return any(digest in digests for digest in named) and is_signed_by(keys, message, signature.signature)


def is_signed_id(text: str, image_id: str, keys: Iterable[PublicKey]) -> bool:
    """`text`: base64 of a signature of the image's id."""
    try:
        return is_signed_by(keys, image_id.encode(), base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        return False


def _simple_claim(claim: Any) -> list[str]:
    critical = claim["critical"]
    return [critical["image"]["docker-manifest-digest"]] if critical["type"] == _CLAIM else []


def _statement(claim: Any) -> list[str]:
    return [f"sha256:{each['digest']['sha256']}" for each in claim["subject"]]


def _pre_authentication(signature: ImageSignature) -> bytes:
    kind, payload = signature.payload_type.encode(), signature.payload
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


# ----- where they are


def find(client: RegistryClient, repository: str, digest: str) -> list[ImageSignature]:
    """All signatures of a digest that the registry has, verified or not. Raises ImageError when it cannot be asked."""
    found: list[ImageSignature] = []
    readers: Sequence[Callable[[], Iterator[ImageSignature]]] = (
        lambda: _of_manifest(client, repository, f"sha256-{hexadecimal(digest)}.sig"),
        lambda: _of_referrers(client, repository, digest),
    )
    for read in readers:
        try:
            for signature in read():
                found.append(signature)
                if len(found) == _MOST_SIGNATURES:
                    return found
        except NotInRegistry:
            continue
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            continue  # of a form that is not known: no signature
    return found


def _of_manifest(client: RegistryClient, repository: str, reference: str) -> Iterator[ImageSignature]:
    manifest = json.loads(client.manifest(repository, reference))
    for layer in manifest["layers"]:
        kind, text = layer.get("mediaType") or "", (layer.get("annotations") or {}).get(_SIGNATURE)
        if layer["size"] > _MOST_PAYLOAD or not (text or _BUNDLE.fullmatch(kind)):
            continue
        payload = client.small_blob(repository, f"sha256:{hexadecimal(layer['digest'])}")
        if sha256_of(payload) != layer["digest"] or len(payload) > _MOST_PAYLOAD:
            continue
        if text:
            yield ImageSignature(SIMPLE, payload, base64.b64decode(text, validate=True))
        else:
            yield from _of_bundle(json.loads(payload))


def _of_bundle(bundle: Any) -> Iterator[ImageSignature]:
    envelope = bundle.get("dsseEnvelope")
    for each in envelope["signatures"] if envelope else ():
        payload, signature = (base64.b64decode(text, validate=True) for text in (envelope["payload"], each["sig"]))
        yield ImageSignature(DSSE, payload, signature, str(envelope["payloadType"]))


def _of_referrers(client: RegistryClient, repository: str, digest: str) -> Iterator[ImageSignature]:
    try:
        index = json.loads(client.referrers(repository, digest))
    except NotInRegistry:
        # Registries before OCI 1.1: an index under a tag.
        index = json.loads(client.manifest(repository, f"sha256-{hexadecimal(digest)}"))
    known = [
        each["digest"]
        for each in index["manifests"]
        if each.get("artifactType") in _SIGNATURE_TYPES or _BUNDLE.fullmatch(each.get("artifactType") or "")
    ]
    for each in known[:_MOST_SIGNATURES]:
        yield from _of_manifest(client, repository, f"sha256:{hexadecimal(each)}")
