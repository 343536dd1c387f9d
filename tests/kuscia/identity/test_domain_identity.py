"""A domain is the same domain after every start, its files are private, and no message carries a key."""

from __future__ import annotations

import base64
import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from coterie.base import pki
from coterie.base.paths import DomainPaths
from coterie.base.pki import PkiError
from coterie.base.secret import SecretValue
from coterie.kuscia.identity import domain_identity

NOW = datetime(2026, 1, 2, tzinfo=UTC)
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def pem(key: pki.PrivateKey, *, pkcs1: bool = True) -> SecretValue:
    return SecretValue(pki.key_pem(key, pkcs1=pkcs1))


@pytest.fixture
def paths(tmp_path: Path) -> DomainPaths:
    return DomainPaths.of(tmp_path, "alice").prepare()


def contents(paths: DomainPaths) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in paths.certs.iterdir() if path.is_file()}


def test_made_once_and_kept(paths: DomainPaths) -> None:
    first = domain_identity.ensure(paths, "alice", None, NOW)
    before = contents(paths)
    again = domain_identity.ensure(paths, "alice", None, NOW + timedelta(days=365))
    assert contents(paths) == before
    assert (again.certificate, again.public_key_pem) == (first.certificate, first.public_key_pem)
    assert first.public_key_pem.startswith(b"-----BEGIN RSA PUBLIC KEY-----")
    assert before["domain.key"].startswith(b"-----BEGIN RSA PRIVATE KEY-----")


def test_certificates_are_kuscias(paths: DomainPaths) -> None:
    made = domain_identity.ensure(paths, "alice", pem(KEY), NOW)
    domain, authority = (
        pki.load_certificate(path.read_bytes()) for path in (paths.domain_certificate, paths.ca_certificate)
    )
    assert made.certificate.encode() == paths.domain_certificate.read_bytes()
    for each in (domain, authority):
        assert pki.subject_of(each) == ("alice", ())
        assert pki.public_key_of(each) == KEY.public_key()
        assert pki.signed_by(each, authority)
    assert authority.not_valid_after_utc - NOW > timedelta(days=49 * 365)
    assert paths.ca_key.read_bytes() == paths.domain_key.read_bytes()


@pytest.mark.parametrize("pkcs1", [True, False], ids=["PKCS#1", "PKCS#8"])
def test_a_given_key_is_taken_in_both_forms(paths: DomainPaths, pkcs1: bool) -> None:
    given = pem(KEY, pkcs1=pkcs1)
    assert domain_identity.ensure(paths, "alice", given, NOW).key.public_key() == KEY.public_key()
    assert domain_identity.ensure(paths, "alice", given, NOW).key.public_key() == KEY.public_key()


def test_the_organisations_own_key_and_certificate(paths: DomainPaths) -> None:
    mine = pki.self_signed_ca("alice", KEY, now=NOW, life=timedelta(days=90)).certificate
    pki.save_key(paths.domain_key, KEY)
    pki.save_certificate(paths.domain_certificate, mine)
    made = domain_identity.ensure(paths, "alice", None, NOW)
    assert made.certificate.encode() == pki.certificate_pem(mine)
    assert pki.signed_by(mine, pki.load_certificate(paths.ca_certificate.read_bytes()))


def test_modes(paths: DomainPaths, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "coterie.identity")
    paths.certs.chmod(0o755)
    made = domain_identity.ensure(paths, "alice", pem(KEY), NOW)
    domain_identity.ensure_api_token(paths, made)
    secret = (paths.domain_key, paths.ca_key, paths.api_token)
    assert [path.stat().st_mode & 0o777 for path in secret] == [0o600] * 3
    assert [path.stat().st_mode & 0o777 for path in (paths.domain_certificate, paths.ca_certificate)] == [0o644] * 2
    assert paths.certs.stat().st_mode & 0o777 == 0o700
    assert caplog.messages == []
    for path in secret:
        path.chmod(0o644)
    made = domain_identity.ensure(paths, "alice", None, NOW)
    domain_identity.ensure_api_token(paths, made)
    assert [path.stat().st_mode & 0o777 for path in secret] == [0o600] * 3
    assert caplog.text.count("Others could read a secret file") == 3


@pytest.mark.parametrize(
    ("key", "told"),
    [
        pytest.param(b"nonsense", "domainKeyData is not a private key in PEM", id="no-key"),
        pytest.param(pki.key_pem(pki.new_key("ec")), "domainKeyData is not an RSA key", id="EC"),
        pytest.param(
            pki.key_pem(rsa.generate_private_key(public_exponent=65537, key_size=1024)),
            "domainKeyData is an RSA key of 1024 bits, which is too weak",
            id="weak",
        ),
    ],
)
def test_keys_that_cannot_be_a_domains(paths: DomainPaths, key: bytes, told: str) -> None:
    with pytest.raises(PkiError, match=told) as refusal:
        domain_identity.ensure(paths, "alice", SecretValue(key), NOW)
    assert key.decode().strip() not in str(refusal.value)
    assert contents(paths) == {}


@pytest.mark.parametrize(
    ("broken", "given", "told"),
    [
        pytest.param({}, OTHER, "domainKeyData is another key than", id="other-key-given"),
        pytest.param({"domain.key": None}, None, "domain.key is missing though domain.crt is there", id="key-lost"),
        pytest.param({"domain.key": OTHER}, None, "domain.crt does not belong to domain.key", id="other-key"),
        pytest.param({"domain.crt": "bob"}, None, 'domain.crt is of "bob", not of "alice"', id="other-domain"),
        pytest.param({"domain.crt": b"x"}, None, "domain.crt is not a certificate", id="no-certificate"),
        pytest.param({"ca.key": OTHER}, None, "ca.key is another key than domain.key", id="other-authority"),
        pytest.param({"ca.crt": b"x"}, None, "ca.crt is not a certificate", id="no-authority"),
    ],
)
def test_what_does_not_fit_is_refused_and_left_alone(
    paths: DomainPaths, broken: dict[str, object], given: rsa.RSAPrivateKey | None, told: str
) -> None:
    domain_identity.ensure(paths, "alice", pem(KEY), NOW)
    for name, what in broken.items():
        path = paths.certs / name
        if what is None:
            path.unlink()
        elif isinstance(what, rsa.RSAPrivateKey):
            pki.save_key(path, what)
        elif isinstance(what, str):
            pki.save_certificate(path, pki.self_signed_ca(what, KEY, now=NOW).certificate)
        else:
            assert isinstance(what, bytes)
            path.write_bytes(what)
    before = contents(paths)
    with pytest.raises(PkiError, match=told):
        domain_identity.ensure(paths, "alice", pem(given) if given else None, NOW)
    assert contents(paths) == before


def test_a_lost_key_file_comes_back_from_the_configuration(paths: DomainPaths) -> None:
    before = domain_identity.ensure(paths, "alice", pem(KEY), NOW)
    paths.domain_key.unlink()
    assert domain_identity.ensure(paths, "alice", pem(KEY), NOW).certificate == before.certificate


def test_an_ending_certificate_is_told(paths: DomainPaths, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "coterie.identity")
    domain_identity.ensure(paths, "alice", pem(KEY), NOW)
    domain_identity.ensure(paths, "alice", pem(KEY), NOW + timedelta(days=3640))
    assert "The domain's certificate expires soon" in caplog.text


# What a master issues.

MASTER = pki.self_signed_ca("master-domain", OTHER, now=NOW)


def test_the_masters_certificate_takes_the_place_of_ours(paths: DomainPaths) -> None:
    domain_identity.ensure(paths, "alice", pem(KEY), NOW)
    issued = pki.certificate_pem(pki.issue_client(MASTER, "alice", KEY.public_key(), now=NOW))
    assert domain_identity.store_certificate(paths, issued).certificate.encode() == issued
    after = domain_identity.ensure(paths, "alice", pem(KEY), NOW + timedelta(days=9000))
    assert after.certificate.encode() == issued


@pytest.mark.parametrize(
    ("issued", "told"),
    [
        pytest.param(
            pki.certificate_pem(pki.issue_client(MASTER, "alice", OTHER.public_key(), now=NOW)),
            "does not belong to domain.key",
            id="other-key",
        ),
        pytest.param(
            pki.certificate_pem(pki.issue_client(MASTER, "bob", KEY.public_key(), now=NOW)),
            'is of "bob", not of "alice"',
            id="other-domain",
        ),
        pytest.param(b"nonsense", "not a certificate", id="nonsense"),
    ],
)
def test_a_certificate_that_is_not_ours_is_refused(paths: DomainPaths, issued: bytes, told: str) -> None:
    domain_identity.ensure(paths, "alice", pem(KEY), NOW)
    before = contents(paths)
    with pytest.raises(PkiError, match=told):
        domain_identity.store_certificate(paths, issued)
    assert contents(paths) == before


def test_nothing_to_certify(paths: DomainPaths) -> None:
    with pytest.raises(PkiError, match="has no identity yet"):
        domain_identity.store_certificate(paths, pki.certificate_pem(MASTER.certificate))
    assert contents(paths) == {}


# The token.


def test_the_token_is_derived_as_kuscia_derives_it(paths: DomainPaths) -> None:
    made = domain_identity.ensure(paths, "alice", pem(KEY), NOW)
    signature = KEY.sign(b"alice", padding.PKCS1v15(), hashes.SHA256())
    token = domain_identity.ensure_api_token(paths, made)
    assert token.reveal() == base64.b64encode(signature).decode()[:32] == paths.api_token.read_text()
    paths.api_token.write_text("chosen-by-the-operator\n")
    assert domain_identity.ensure_api_token(paths, made).reveal() == "chosen-by-the-operator"


def test_nothing_prints_the_key(paths: DomainPaths) -> None:
    made = domain_identity.ensure(paths, "alice", pem(KEY), NOW)
    assert "PRIVATE" not in repr(made)
    assert domain_identity.api_token(made).reveal() not in repr(domain_identity.api_token(made))
