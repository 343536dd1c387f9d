"""Who may join: every refusal, as a table."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from registration_kit import PLANE, an_application, identity, key

from coterie.base import jwt, pki
from coterie.base.secret import SecretValue
from coterie.kuscia.api.types.domain import DOMAINS, Domain
from coterie.kuscia.gateway.registration import certificate_issuing, messages
from coterie.kuscia.gateway.registration.limits import KeyedTokenBuckets, RegistrationRate, RequestReplayCache
from coterie.kuscia.gateway.registration.rules import (
    REGISTERED_WITH,
    AlreadyRegistered,
    Applicant,
    IssueCertificate,
    RegistrationRefused,
    applicant,
    decide,
    to_be_marked,
    token_hash,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_an_honest_applicant_is_read_whole() -> None:
    request, token = an_application("alice", "T" * 32, NOW)
    who = applicant(request, token, NOW)
    assert (who.domain, who.key, who.deploy_token) == ("alice", key("alice").public_key(), SecretValue("T" * 32))
    assert "T" * 32 not in repr((request, who))


def test_kuscias_request_time_of_nanoseconds_within_the_second_is_taken() -> None:
    request, token = an_application("alice", "t", NOW, request_time=123456789)
    assert applicant(request, token, NOW).domain == "alice"


def test_the_body_is_read_back_as_it_was_written_and_a_missing_time_is_zero() -> None:
    request, _ = an_application("alice", "t", NOW)
    assert messages.RegisterRequest.decode(request.encode()) == request
    assert messages.RegisterRequest.decode(b'{"domain_id":"a","csr":"b"}').request_time == 0


def test_the_extension_holds_the_bare_bytes_of_the_token() -> None:
    csr = base64.b64decode(an_application("alice", "tokentokentoken", NOW)[0].csr)
    der = base64.b64decode(b"".join(line for line in csr.splitlines() if not line.startswith(b"-")))
    oid_1_2_3_4, octets = bytes.fromhex("06032a0304"), b"\x04\x0ftokentokentoken"
    assert oid_1_2_3_4 + octets in der


def claims_of(request: messages.RegisterRequest, **changed: Any) -> str:
    at = int(NOW.timestamp())
    claims = {"req_hash": list(request.hash), "iss": "alice", "sub": "alice", "iat": at, "exp": at + 300}
    return jwt.sign({name: value for name, value in {**claims, **changed}.items() if value is not None}, key("alice"))


def honest() -> tuple[messages.RegisterRequest, str]:
    return an_application("alice", "t", NOW)


def with_claims(**changed: Any) -> Callable[[], tuple[messages.RegisterRequest, str]]:
    return lambda: (honest()[0], claims_of(honest()[0], **changed))


def with_csr(make: Callable[[], str]) -> Callable[[], tuple[messages.RegisterRequest, str]]:
    def made() -> tuple[messages.RegisterRequest, str]:
        request = messages.RegisterRequest("alice", make(), 1)
        return request, messages.make_jwt(request, key("alice"), NOW)

    return made


def other_body() -> tuple[messages.RegisterRequest, str]:
    """A JWT that was seen on the wire, with another body."""
    request, token = honest()
    return messages.RegisterRequest(request.domain_id, request.csr, request.request_time + 1), token


def broken_csr() -> str:
    pem = bytearray(base64.b64decode(messages.make_csr("alice", key("alice"), SecretValue("t"))))
    body = bytearray(base64.b64decode(b"".join(line for line in pem.splitlines() if not line.startswith(b"-"))))
    body[-1] ^= 1
    text = base64.encodebytes(bytes(body)).decode()
    return base64.b64encode(
        f"-----BEGIN CERTIFICATE REQUEST-----\n{text}-----END CERTIFICATE REQUEST-----\n".encode()
    ).decode()


@cache
def small_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=1024)


def small() -> tuple[messages.RegisterRequest, str]:
    request = messages.RegisterRequest("alice", messages.make_csr("alice", small_key(), SecretValue("t")), 1)
    return request, messages.make_jwt(request, small_key(), NOW)


def elliptic_csr() -> str:
    made: Any = ec.generate_private_key(ec.SECP256R1())
    return messages.make_csr("alice", made, SecretValue("t"))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        pytest.param(lambda: an_application("alice", "t", NOW, name_in_csr="bob"), "wrong-name", id="csr of another"),
        pytest.param(lambda: an_application("alice", "t", NOW, jwt_by="mallory"), "bad-jwt", id="jwt by another key"),
        pytest.param(lambda: (honest()[0], ""), "bad-jwt", id="no jwt"),
        pytest.param(lambda: (honest()[0], "a.b.c"), "bad-jwt", id="no jwt but dots"),
        pytest.param(other_body, "bad-hash", id="jwt of another request"),
        pytest.param(with_claims(req_hash=None), "unreadable", id="no hash"),
        pytest.param(with_claims(req_hash=[1] * 31), "unreadable", id="short hash"),
        pytest.param(with_claims(req_hash=[256] * 32), "unreadable", id="hash of no bytes"),
        pytest.param(with_claims(req_hash=[True] * 32), "unreadable", id="hash of truths"),
        pytest.param(with_claims(iss="bob"), "bad-jwt", id="issued by another"),
        pytest.param(with_claims(sub=["alice"]), "bad-jwt", id="subject is a list"),
        pytest.param(with_claims(exp=None), "unreadable", id="never expires"),
        pytest.param(with_claims(iat=None), "unreadable", id="from no time"),
        pytest.param(with_claims(exp=1e300), "unreadable", id="expires at no time"),
        pytest.param(with_claims(exp=int(NOW.timestamp()) + 3600), "bad-jwt", id="lives for an hour"),
        pytest.param(with_csr(lambda: "%%%"), "unreadable", id="csr is no base64"),
        pytest.param(with_csr(lambda: "QUJD"), "unreadable", id="csr is no csr"),
        pytest.param(with_csr(broken_csr), "unreadable", id="csr with a broken signature"),
        pytest.param(with_csr(elliptic_csr), "unreadable", id="key is not RSA"),
        pytest.param(small, "weak-key", id="key is too small"),
    ],
)
def test_what_is_not_a_proof_of_the_key_is_refused(
    make: Callable[[], tuple[messages.RegisterRequest, str]], reason: str
) -> None:
    with pytest.raises(RegistrationRefused) as refused:
        applicant(*make(), NOW)
    assert (refused.value.status, refused.value.reason) == (400, reason)


@pytest.mark.parametrize(
    ("skew", "reason"),
    [(-1000, "too-early"), (-299, ""), (0, ""), (300, ""), (599, ""), (601, "too-old")],
    ids=lambda value: str(value),
)
def test_clocks_may_differ_by_five_minutes(skew: int, reason: str) -> None:
    request, token = an_application("alice", "t", NOW)
    try:
        applicant(request, token, NOW + timedelta(seconds=skew))
        found = ""
    except RegistrationRefused as refused:
        found = refused.reason
    assert found == reason


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"domain_id":"a"}', b'{"csr":"a"}', b'{"domain_id":1,"csr":"a"}',
     b'{"domain_id":"a","csr":"b","request_time":"1"}', b'{"domain_id":"a","csr":"b","request_time":true}',
     b"[" * 50000, b" " * 70000 + b"{}"],
    ids=["empty", "list", "nothing", "no csr", "no domain", "domain is a number", "time is a text", "time is a truth",
         "deep", "huge"],
)  # fmt: skip
def test_bodies_that_are_no_request(body: bytes) -> None:
    with pytest.raises(messages.UnreadableMessage):
        messages.RegisterRequest.decode(body)


# May the holder of the key be this domain?


def who(signer: str = "alice", token: str = "fresh", domain: str = "alice") -> Applicant:
    return Applicant(domain, key(signer).public_key(), SecretValue(token), b"", 0.0)


def cert_of(signer: str, at: datetime = NOW, name: str = "alice") -> str:
    made = certificate_issuing.issue(identity(PLANE, at), name, key(signer).public_key(), at)
    return base64.b64encode(pki.certificate_pem(made)).decode()


def a_domain(cert: str = "", name: str = "alice", registered_with: str = "", **spec: Any) -> Domain:
    meta: dict[str, Any] = {"name": name, "uid": "u", "resourceVersion": "1"}
    if registered_with:
        meta["annotations"] = {REGISTERED_WITH: token_hash(registered_with)}
    tokens = [{"token": "spent", "state": "used"}, {"token": "fresh", "state": "unused"}]
    body = {"metadata": meta, "spec": {"cert": cert, **spec}, "status": {"deployTokenStatuses": tokens}}
    return DOMAINS.decode(msgspec.json.encode(body))


@pytest.mark.parametrize(
    ("domain", "applying", "reason"),
    [
        pytest.param(None, who(), "no-domain", id="no such domain"),
        pytest.param(a_domain(role="partner"), who(), "wrong-domain", id="a partner's"),
        pytest.param(a_domain(name=PLANE), who(domain=PLANE), "wrong-domain", id="the control plane itself"),
        pytest.param(a_domain(name="master"), who(domain="master"), "wrong-name", id="reserved name"),
        pytest.param(a_domain(), who(domain="../x"), "wrong-name", id="no name"),
        pytest.param(a_domain(), who(token="guess"), "wrong-token", id="wrong token"),
        pytest.param(a_domain(), who(token="spent"), "used-token", id="used token"),
        pytest.param(a_domain(), who(token=""), "wrong-token", id="no token"),
        pytest.param(a_domain(cert_of("alice")), who("mallory", "spent"), "used-token", id="stolen name, used token"),
        pytest.param(a_domain(cert_of("alice")), who("mallory", ""), "wrong-token", id="stolen certificate, no key"),
        pytest.param(a_domain("no certificate"), who(token="guess"), "wrong-token", id="unreadable certificate"),
        pytest.param(
            a_domain(cert_of("alice"), registered_with="fresh"), who("mallory"), "used-token", id="used, not marked yet"
        ),
    ],
)
def test_who_may_not_be_the_domain(domain: Domain | None, applying: Applicant, reason: str) -> None:
    with pytest.raises(RegistrationRefused) as refused:
        decide(domain, applying, PLANE, NOW)
    assert (refused.value.status, refused.value.reason) == (500, reason)
    if "token" in reason:
        assert "kubectl get domain alice" in str(refused.value)
        assert not {"fresh", "spent", "guess"} & set(str(refused.value).replace("`", " ").split())


def test_an_unused_token_admits_a_new_key_and_says_whether_it_replaces_one() -> None:
    first, again = decide(a_domain(), who(), PLANE, NOW), decide(a_domain(cert_of("bob")), who(), PLANE, NOW)
    assert isinstance(first, IssueCertificate) and first.token is not None and not first.replaces
    assert isinstance(again, IssueCertificate) and again.token is not None and again.replaces


def test_the_same_key_needs_no_token_and_keeps_its_certificate() -> None:
    cert = cert_of("alice")
    verdict = decide(a_domain(cert), who(token="spent"), PLANE, NOW)
    assert verdict == AlreadyRegistered(base64.b64decode(cert).decode())


@pytest.mark.parametrize(
    "cert",
    [cert_of("alice", NOW - timedelta(days=3000)), cert_of("alice", datetime(1970, 1, 2, tzinfo=UTC)),
     cert_of("alice", name="bob")],
    ids=["ends soon", "dated as Kuscia dates them", "of another name"],
)  # fmt: skip
def test_a_certificate_that_is_no_longer_good_is_made_anew_for_the_same_key(cert: str) -> None:
    assert decide(a_domain(cert), who(token=""), PLANE, NOW) == IssueCertificate()


def test_a_token_whose_use_was_not_marked_is_found_and_no_other() -> None:
    found = to_be_marked(a_domain(registered_with="fresh"))
    assert found is not None and found.token == "fresh"
    assert to_be_marked(a_domain(registered_with="spent")) is None
    assert to_be_marked(a_domain()) is None


def test_the_certificate_has_true_dates_and_is_no_authority() -> None:
    master = identity(PLANE, NOW)
    made = certificate_issuing.issue(master, "alice", key("alice").public_key(), NOW)
    assert made.not_valid_before_utc <= NOW < made.not_valid_after_utc
    assert (made.not_valid_after_utc - NOW).days == 3650
    assert pki.subject_of(made) == ("alice", ())
    assert pki.signed_by(made, pki.load_certificate(master.certificate.encode()))
    assert not pki.signed_by(made, pki.self_signed_ca(PLANE, key("mallory"), now=NOW).certificate)


# Limits.


def test_a_bucket_empties_and_fills_again_for_each_name() -> None:
    buckets = KeyedTokenBuckets(RegistrationRate(2, 0.5))
    assert [buckets.take("a", 0.0) for _ in range(3)] == [True, True, False]
    assert buckets.take("b", 0.0)
    assert not buckets.take("a", 1.0)
    assert buckets.take("a", 3.0)


def test_buckets_forget_the_name_that_was_quiet_longest() -> None:
    buckets = KeyedTokenBuckets(RegistrationRate(1, 0), most=2)
    assert [buckets.take(name, 0.0) for name in ("a", "b", "b", "c", "a")] == [True, True, False, True, True]


def test_what_was_seen_is_refused_until_it_is_too_old_anyway() -> None:
    seen = RequestReplayCache(most=2)
    assert seen.add(b"1", 10.0, 0.0)
    assert not seen.add(b"1", 10.0, 5.0)
    assert seen.add(b"2", 100.0, 5.0)
    assert not seen.add(b"3", 100.0, 9.0), "there is no room, and nothing may be forgotten yet"
    assert seen.add(b"3", 100.0, 11.0)
    seen.forget(b"3")
    assert seen.add(b"3", 100.0, 11.0)
