"""What tokens need of RSA and elliptic-curve keys: RS256 and ES256 signatures, made and checked, and the keys' public
halves in the forms in which they are named and handed out."""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from coterie.base.pki import PrivateKey, PublicKey

_ES256_HALF = 32


def algorithm(key: PrivateKey | PublicKey) -> str:
    if isinstance(key, (rsa.RSAPrivateKey, rsa.RSAPublicKey)):
        return "RS256"
    if isinstance(key.curve, ec.SECP256R1):
        return "ES256"
    raise ValueError(f"tokens are signed with RSA or P-256, not {key.curve.name}")


def sign(data: bytes, key: PrivateKey) -> bytes:
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(data, padding.PKCS1v15(), hashes.SHA256())
    r, s = decode_dss_signature(key.sign(data, ec.ECDSA(hashes.SHA256())))
    return r.to_bytes(_ES256_HALF, "big") + s.to_bytes(_ES256_HALF, "big")


def is_valid(signature: bytes, data: bytes, key: PublicKey) -> bool:
    """Whether the key's owner signed just this."""
    try:
        if isinstance(key, rsa.RSAPublicKey):
            key.verify(signature, data, padding.PKCS1v15(), hashes.SHA256())
        else:
            if len(signature) != 2 * _ES256_HALF:
                return False
            r = int.from_bytes(signature[:_ES256_HALF], "big")
            s = int.from_bytes(signature[_ES256_HALF:], "big")
            key.verify(encode_dss_signature(r, s), data, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def public_der(key: PublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def public_numbers(key: PublicKey) -> dict[str, bytes]:
    """The numbers of a JSON Web Key by their names there: n and e of RSA, x and y of P-256."""
    if isinstance(key, rsa.RSAPublicKey):
        numbers = key.public_numbers()
        return {"n": _bytes(numbers.n), "e": _bytes(numbers.e)}
    point = key.public_numbers()
    return {"x": point.x.to_bytes(_ES256_HALF, "big"), "y": point.y.to_bytes(_ES256_HALF, "big")}


def _bytes(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8, "big")
