"""Tokens: what is accepted, and above all what is not."""

import base64
import hashlib
import hmac
import json
from datetime import UTC, datetime

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.base import jwt, pki
from coterie.base.clock import VirtualClock

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
NOW = int(START.timestamp())
KEYS = {kind: pki.new_key(kind) for kind in ("rsa", "ec")}
PUBLIC = {jwt.key_id(key.public_key()): key.public_key() for key in KEYS.values()}
CLAIMS = {"iss": "us", "sub": "alice", "aud": ["api", "other"], "exp": NOW + 60, "nbf": NOW}


def part(value) -> str:
    return jwt.b64url(value if isinstance(value, bytes) else json.dumps(value).encode())


@pytest.mark.parametrize("kind", ["rsa", "ec"])
def test_a_good_token(kind):
    token = jwt.sign(CLAIMS, KEYS[kind])
    assert jwt.verify(token, PUBLIC, issuer="us", audiences=["api"], clock=VirtualClock(START)) == CLAIMS
    assert jwt.unverified_claims(token) == CLAIMS


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"exp": NOW}, jwt.ExpiredToken),
        ({"exp": None}, jwt.MalformedToken),
        ({"exp": "soon"}, jwt.MalformedToken),
        ({"exp": True}, jwt.MalformedToken),
        ({"nbf": NOW + 1}, jwt.NotYetValid),
        ({"iss": "them"}, jwt.WrongIssuer),
        ({"iss": None}, jwt.WrongIssuer),
        ({"aud": "elsewhere"}, jwt.WrongAudience),
        ({"aud": None}, jwt.WrongAudience),
        ({"aud": [1]}, jwt.WrongAudience),
    ],
    ids=str,
)
def test_claims_that_are_refused(change, error):
    token = jwt.sign({**CLAIMS, **change}, KEYS["ec"])
    with pytest.raises(error):
        jwt.verify(token, PUBLIC, issuer="us", audiences=["api"], clock=VirtualClock(START))


def test_leeway_forgives_slow_clocks():
    token = jwt.sign({**CLAIMS, "nbf": NOW + 5}, KEYS["ec"])
    assert jwt.verify(token, PUBLIC, clock=VirtualClock(START), leeway=10)


def test_one_audience_may_be_plain_text():
    token = jwt.sign({**CLAIMS, "aud": "api"}, KEYS["ec"])
    assert jwt.verify(token, PUBLIC, audiences=["api"], clock=VirtualClock(START))


def forged_none() -> str:
    kid = jwt.key_id(KEYS["rsa"].public_key())
    return f"{part({'alg': 'none', 'kid': kid})}.{part(CLAIMS)}."


def forged_hmac() -> str:
    """The public key, known to everyone, used as an HMAC secret."""
    public = KEYS["rsa"].public_key()
    signed = f"{part({'alg': 'HS256', 'kid': jwt.key_id(public)})}.{part(CLAIMS)}"
    return f"{signed}.{part(hmac.digest(pki.public_pem(public), signed.encode(), hashlib.sha256))}"


def forged_other_key() -> str:
    return jwt.sign(CLAIMS, pki.new_key("ec"), kid=jwt.key_id(KEYS["ec"].public_key()))


def forged_other_algorithm() -> str:
    return jwt.sign(CLAIMS, KEYS["ec"], kid=jwt.key_id(KEYS["rsa"].public_key()))


def forged_claims() -> str:
    head, _, tail = jwt.sign(CLAIMS, KEYS["rsa"]).split(".")
    return f"{head}.{part({**CLAIMS, 'sub': 'root'})}.{tail}"


def forged_empty_signature() -> str:
    return jwt.sign(CLAIMS, KEYS["ec"]).rsplit(".", 1)[0] + "."


def forged_zero_signature() -> str:
    return jwt.sign(CLAIMS, KEYS["ec"]).rsplit(".", 1)[0] + "." + part(bytes(64))


def forged_without_kid() -> str:
    return jwt.sign(CLAIMS, KEYS["ec"], kid="")


def forged_crit() -> str:
    _, body, tail = jwt.sign(CLAIMS, KEYS["ec"]).split(".")
    kid = jwt.key_id(KEYS["ec"].public_key())
    return f"{part({'alg': 'ES256', 'kid': kid, 'crit': ['exp']})}.{body}.{tail}"


@pytest.mark.parametrize("forge", [value for name, value in list(globals().items()) if name.startswith("forged_")])
def test_forgeries(forge):
    with pytest.raises(jwt.BadSignature):
        jwt.verify(forge(), PUBLIC, clock=VirtualClock(START))


@pytest.mark.parametrize(
    "token",
    ["", "a", "a.b", "a.b.c.d", "....", "é.b.c", "e30.e30.e30=", "bnVsbA.e30.e30", "x" * 20_000, "e30.e30.+/+/"],
    ids=range(10),
)
def test_malformed(token):
    with pytest.raises(jwt.TokenError):
        jwt.verify(token, PUBLIC, clock=VirtualClock(START))


def test_an_expiry_that_never_passes_is_no_json():
    kid = jwt.key_id(KEYS["ec"].public_key())
    token = jwt.sign({**CLAIMS, "exp": float("nan")}, KEYS["ec"], kid=kid)
    with pytest.raises(jwt.MalformedToken):
        jwt.verify(token, PUBLIC, clock=VirtualClock(START))


@settings(max_examples=60)
@given(at=st.integers(0, 400), bit=st.integers(0, 7))
def test_any_changed_bit_is_noticed(at, bit):
    token = bytearray(jwt.sign(CLAIMS, KEYS["ec"], kid=jwt.key_id(KEYS["ec"].public_key())).encode())
    at %= len(token)
    token[at] ^= 1 << bit
    with pytest.raises(jwt.TokenError):
        jwt.verify(token.decode("latin-1"), PUBLIC, clock=VirtualClock(START))


@given(st.binary(max_size=64))
def test_base64url_round_trip(data):
    assert jwt.b64url_decode(jwt.b64url(data)) == data
    assert "=" not in jwt.b64url(data)


def test_base64url_has_one_spelling():
    assert jwt.b64url_decode("YQ") == b"a"
    for second in ("YR", "YQ==", "Y Q", "YQ\n"):
        with pytest.raises(jwt.MalformedToken):
            jwt.b64url_decode(second)


def test_jwk_gives_the_same_key():
    told = jwt.jwk(KEYS["rsa"].public_key())
    n = int.from_bytes(base64.urlsafe_b64decode(told["n"] + "=="), "big")
    assert n == KEYS["rsa"].public_key().public_numbers().n
    assert told["alg"] == "RS256" and told["e"] == "AQAB"
    point = jwt.jwk(KEYS["ec"].public_key())
    assert point["crv"] == "P-256" and len(jwt.b64url_decode(point["x"])) == 32


def test_other_curves_are_refused():
    with pytest.raises(ValueError, match="P-256"):
        jwt.sign(CLAIMS, ec.generate_private_key(ec.SECP384R1()))
