"""Signed tokens (JWT, compact form) with RS256 and ES256, and nothing else.

The algorithm is a property of the key, never of the token: a token whose header names another one is refused, so `none`
and the RSA-key-as-HMAC-secret trick have no way in. Signatures are checked before a single claim is believed.

    TokenError
    ├── Malformed        not three parts of base64url JSON
    ├── BadSignature     unknown key, other algorithm, or the signature is wrong
    ├── Expired          `exp` has passed
    ├── NotYetValid      `nbf` has not come
    ├── WrongIssuer      `iss` is another
    └── WrongAudience    none of the wanted audiences is in `aud`
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from coterie.base.clock import SYSTEM_CLOCK, Clock
from coterie.base.lazy_import import lazy_import

if TYPE_CHECKING:
    from coterie.base import signatures
    from coterie.base.pki import PrivateKey, PublicKey
else:
    signatures = lazy_import("coterie.base.signatures")

Claims = dict[str, Any]
_LONGEST = 16 * 1024


class TokenError(Exception):
    """A token that is not accepted. Messages never hold the token."""


class MalformedToken(TokenError):
    pass


class BadSignature(TokenError):
    pass


class ExpiredToken(TokenError):
    pass


class NotYetValid(TokenError):
    pass


class WrongIssuer(TokenError):
    pass


class WrongAudience(TokenError):
    pass


def b64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


_URLSAFE_TO_STANDARD = bytes.maketrans(b"-_", b"+/")


def b64url_decode(text: str) -> bytes:
    """Strict: no padding, no foreign characters, no second spelling of the same bytes."""
    try:
        raw = text.encode("ascii")
        if b"+" in raw or b"/" in raw or b"=" in raw:
            raise MalformedToken("not base64url")
        data = base64.b64decode(raw.translate(_URLSAFE_TO_STANDARD) + b"=" * (-len(raw) % 4), validate=True)
    except ValueError as error:  # includes UnicodeEncodeError and binascii.Error
        raise MalformedToken("not base64url") from error
    if b64url(data) != text:
        raise MalformedToken("not canonical base64url")
    return data


def key_id(key: PublicKey) -> str:
    """The name of a key, as Kubernetes makes it: the hash of its public half."""
    return b64url(hashlib.sha256(signatures.public_der(key)).digest())


def algorithm(key: PrivateKey | PublicKey) -> str:
    """RS256 or ES256."""
    return signatures.algorithm(key)


def sign(claims: Mapping[str, Any], key: PrivateKey, *, kid: str | None = None) -> str:
    header = {"alg": algorithm(key), "kid": key_id(key.public_key()) if kid is None else kid}
    signed = f"{_encode(header)}.{_encode(claims)}".encode()
    return f"{signed.decode()}.{b64url(signatures.sign(signed, key))}"


def verify(
    token: str,
    keys: Mapping[str, PublicKey],
    *,
    issuer: str | None = None,
    audiences: Iterable[str] = (),
    clock: Clock = SYSTEM_CLOCK,
    leeway: float = 0.0,
    early: float = 0.0,
) -> Claims:
    """The claims of a good token. `keys` by their key id; a token must expire, name its issuer and, where asked, one of
    `audiences`. `leeway` seconds are allowed at both ends of its life, `early` ones only at the beginning."""
    if len(token) > _LONGEST:
        raise MalformedToken("the token is too long")
    parts = token.split(".")
    if len(parts) != 3:
        raise MalformedToken("a token has three parts")
    header = _decode(parts[0])
    signature = b64url_decode(parts[2])
    _check_signature(header, f"{parts[0]}.{parts[1]}".encode(), signature, keys)
    claims = _decode(parts[1])
    _check_claims(claims, issuer, audiences, clock.now().timestamp(), leeway, early)
    return claims


def verify_by(token: str, key: PublicKey) -> Claims:
    """The claims of a token that this very key signed, whatever key id it names: for signers who prove a key that came
    beside the token. Who asks judges times and names."""
    if len(token) > _LONGEST:
        raise MalformedToken("the token is too long")
    parts = token.split(".")
    if len(parts) != 3:
        raise MalformedToken("a token has three parts")
    header = _decode(parts[0])
    named = {**header, "kid": ""}
    _check_signature(named, f"{parts[0]}.{parts[1]}".encode(), b64url_decode(parts[2]), {"": key})
    return _decode(parts[1])


def unverified_claims(token: str) -> Claims:
    """What a token says of itself, to choose who shall check it. Believe none of it."""
    parts = token.split(".")
    if len(token) > _LONGEST or len(parts) != 3:
        raise MalformedToken("a token has three parts")
    return _decode(parts[1])


def _check_signature(header: Claims, signed: bytes, signature: bytes, keys: Mapping[str, PublicKey]) -> None:
    if "crit" in header:
        raise BadSignature("the header demands extensions that are not known here")
    kid = header.get("kid")
    key = keys.get(kid) if isinstance(kid, str) else None
    if key is None:
        raise BadSignature("the token is signed with a key that is not known here")
    if header.get("alg") != algorithm(key):
        raise BadSignature("the header names another algorithm than the key's")
    if not signatures.is_valid(signature, signed, key):
        raise BadSignature("the signature is wrong")


def _check_claims(
    claims: Claims, issuer: str | None, audiences: Iterable[str], now: float, leeway: float, early: float
) -> None:
    expires = _number(claims, "exp")
    if expires is None:
        raise MalformedToken("the token never expires")
    if now >= expires + leeway:
        raise ExpiredToken("the token has expired")
    begins = _number(claims, "nbf")
    if begins is not None and now + max(leeway, early) < begins:
        raise NotYetValid("the token is not valid yet")
    if issuer is not None and claims.get("iss") != issuer:
        raise WrongIssuer("the token comes from another issuer")
    wanted = set(audiences)
    if wanted and not wanted & set(audiences_of(claims)):
        raise WrongAudience("the token has another audience")


def audiences_of(claims: Mapping[str, Any]) -> tuple[str, ...]:
    """`aud` is one text or a list of them."""
    audience = claims.get("aud")
    if isinstance(audience, str):
        return (audience,)
    if isinstance(audience, list) and all(isinstance(each, str) for each in audience):
        return tuple(audience)
    return ()


def jwk(key: PublicKey) -> dict[str, str]:
    """The public key as a JSON Web Key, for those who check our tokens themselves."""
    numbers = {name: b64url(number) for name, number in signatures.public_numbers(key).items()}
    kind = {"kty": "RSA"} if "n" in numbers else {"kty": "EC", "crv": "P-256"}
    return {**kind, "use": "sig", "kid": key_id(key), "alg": algorithm(key), **numbers}


def _number(claims: Claims, name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise MalformedToken(f"the claim {name} is not a number")
    return value


def _encode(value: Mapping[str, Any]) -> str:
    return b64url(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())


def _decode(part: str) -> Claims:
    try:
        value = json.loads(b64url_decode(part), parse_constant=_no_constants)
    except (ValueError, RecursionError) as error:
        raise MalformedToken("a part of the token is not JSON") from error
    if not isinstance(value, dict):
        raise MalformedToken("a part of the token is not a JSON object")
    return value


def _no_constants(text: str) -> NoReturn:
    """NaN and Infinity are no JSON, and an `exp` of that kind would never pass."""
    raise ValueError(text)
