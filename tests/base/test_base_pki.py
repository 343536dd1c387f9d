"""Certificates say what was asked, hold in a real TLS handshake, and are made anew in time."""

import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta

import pytest

from coterie.base import pki, pki_files
from coterie.base.pki import PkiError

NOW = datetime.now(UTC).replace(microsecond=0)


@pytest.fixture(scope="module")
def authority() -> pki.Authority:
    return pki.self_signed_ca("test", pki.new_key("ec"), now=NOW)


def test_client_certificate_names_user_and_groups(authority):
    made = pki.issue_client(authority, "alice", pki.new_key().public_key(), groups=("dev", "ops"), now=NOW)
    assert pki.subject_of(made) == ("alice", ("dev", "ops"))
    assert pki.signed_by(made, authority.certificate)
    assert not pki.signed_by(authority.certificate, made)


def test_server_certificate_names_hosts_and_addresses(authority):
    names = ("localhost", "*.svc", "127.0.0.1", "::1")
    made = pki.issue_server(authority, "api", pki.new_key().public_key(), names=names, now=NOW)
    assert set(pki.names_of(made)) == set(names)
    assert pki.names_of(authority.certificate) == ()


@pytest.mark.parametrize("kind", ["rsa", "ec"])
def test_keys_survive_pem(kind):
    key = pki.new_key(kind)
    again = pki.load_key(pki.key_pem(key))
    old_form = pki.load_key(pki.key_pem(key, pkcs1=True))
    public = pki.load_public_key(pki.public_pem(key.public_key()))
    assert pki.key_pem(again) == pki.key_pem(old_form) == pki.key_pem(key)
    assert pki.public_pem(public) == pki.public_pem(key.public_key())


def test_rsa_pkcs1_is_named_as_kuscia_names_it():
    assert pki.key_pem(pki.new_key("rsa"), pkcs1=True).startswith(b"-----BEGIN RSA PRIVATE KEY-----")


def test_rubbish_is_refused():
    with pytest.raises(PkiError):
        pki.load_key(b"nonsense")
    with pytest.raises(PkiError):
        pki.load_public_key(b"nonsense")
    with pytest.raises(PkiError):
        pki.load_certificate(b"nonsense")
    with pytest.raises(ValueError):
        pki.new_key("dsa")


@pytest.mark.parametrize(
    ("days", "due", "over"),
    [(0, False, False), (59, False, False), (61, True, False), (91, True, True), (-1, True, True)],
    ids=["fresh", "before-a-third", "last-third", "expired", "not-yet"],
)
def test_renewal_is_due_in_the_last_third(authority, days, due, over):
    made = pki.issue_client(authority, "a", pki.new_key().public_key(), now=NOW, life=timedelta(days=90))
    at = NOW + timedelta(days=days)
    assert pki.renewal_due(made, at) is due
    assert pki.expired(made, at) is over


def test_a_leaf_does_not_outlive_its_authority():
    short = pki.self_signed_ca("short", pki.new_key(), now=NOW, life=timedelta(days=10))
    made = pki.issue_client(short, "a", pki.new_key().public_key(), now=NOW, life=timedelta(days=365))
    assert made.not_valid_after_utc == short.certificate.not_valid_after_utc
    with pytest.raises(PkiError, match="expired"):
        pki.issue_client(short, "a", pki.new_key().public_key(), now=NOW + timedelta(days=11))


def test_fingerprint_is_of_this_certificate(authority):
    assert len(pki.fingerprint(authority.certificate)) == 64
    other = pki.self_signed_ca("test", authority.key, now=NOW)
    assert pki.fingerprint(other.certificate) != pki.fingerprint(authority.certificate)


def test_the_key_is_not_shown(authority):
    assert "key" not in repr(authority)


def test_files_are_made_once_and_kept(tmp_path):
    one = pki_files.ensure_authority(tmp_path / "pki", "c", now=NOW)
    two = pki_files.ensure_authority(tmp_path / "pki", "c", now=NOW)
    assert pki.fingerprint(one.certificate) == pki.fingerprint(two.certificate)
    first = pki_files.ensure_server(tmp_path / "pki", "api", one, names=("a",), now=NOW)
    again = pki_files.ensure_server(tmp_path / "pki", "api", one, names=("a",), now=NOW)
    assert pki.fingerprint(first.certificate) == pki.fingerprint(again.certificate)
    assert first.key_path.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "pki").stat().st_mode & 0o777 == 0o700


def test_files_are_renewed_when_due_or_different(tmp_path):
    authority = pki_files.ensure_authority(tmp_path, "c", now=NOW)

    def server(names=("a",), now=NOW, authority=authority):
        return pki.fingerprint(pki_files.ensure_server(tmp_path, "api", authority, names=names, now=now).certificate)

    first = server()
    assert server(names=("a", "b")) != first
    second = server(names=("a",))
    assert second == server(names=("b",)), "a certificate that covers more is kept"
    third = server(now=NOW + timedelta(days=300))
    assert third != second
    assert server(authority=pki.self_signed_ca("c", pki.new_key(), now=NOW)) != third
    (tmp_path / "api.crt").write_text("damaged")
    assert server()

    def client(**more):
        return pki.fingerprint(pki_files.ensure_client(tmp_path, "u", authority, now=NOW, **more).certificate)

    alice = client(user="alice")
    assert client(user="alice") == alice
    assert client(user="alice", groups=("g",)) != alice


def test_a_damaged_authority_is_an_error_not_a_new_authority(tmp_path):
    pki_files.ensure_authority(tmp_path, "c", now=NOW)
    with pytest.raises(PkiError, match="not valid now"):
        pki_files.ensure_authority(tmp_path, "c", now=NOW + timedelta(days=4000))
    pki.save_key(tmp_path / "ca.key", pki.new_key())
    with pytest.raises(PkiError, match="does not belong"):
        pki_files.ensure_authority(tmp_path, "c", now=NOW)
    (tmp_path / "ca.crt").write_text("damaged")
    with pytest.raises(PkiError):
        pki_files.ensure_authority(tmp_path, "c", now=NOW)


def test_certificates_hold_in_a_real_handshake(tmp_path):
    authority = pki_files.ensure_authority(tmp_path, "c", now=NOW)
    server = pki_files.ensure_server(tmp_path, "api", authority, names=("localhost",), now=NOW)
    client = pki_files.ensure_client(tmp_path, "u", authority, user="alice", groups=("g1",), now=NOW)
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(server.certificate_path, server.key_path)
    server_side.load_verify_locations(tmp_path / "ca.crt")
    server_side.verify_mode = ssl.CERT_REQUIRED
    client_side = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    client_side.verify_flags |= ssl.VERIFY_X509_STRICT
    client_side.load_cert_chain(client.certificate_path, client.key_path)
    left, right = socket.socketpair()
    seen: list[object] = []

    def serve() -> None:
        with server_side.wrap_socket(right, server_side=True) as tls:
            seen.append(tls.getpeercert())
            tls.sendall(b"x")

    thread = threading.Thread(target=serve)
    thread.start()
    with client_side.wrap_socket(left, server_hostname="localhost") as tls:
        assert tls.recv(1) == b"x"
    thread.join()
    assert dict(part[0] for part in seen[0]["subject"]) == {"organizationName": "g1", "commonName": "alice"}
