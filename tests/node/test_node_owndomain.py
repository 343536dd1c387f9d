"""A control plane's own domain: its identity is there before anything starts, its object has the certificate."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from coterie.base import pki
from coterie.base.clock import SYSTEM_CLOCK
from coterie.http.messages import UserInfo
from coterie.kube.apiserver.server import ApiServer, Settings
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.store import MemoryStore
from coterie.kuscia.api.types.domain import DOMAINS, Domain
from coterie.kuscia.extensions.apiserver import KUSCIA
from coterie.kuscia.identity import domain_identity
from coterie.node import config
from coterie.node.parts.own_domain import ensure_domain, own_domain, prepared

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def encoded(text: bytes) -> str:
    return base64.b64encode(text).decode()


@pytest.fixture(params=[True, False], ids=["with-gateway", "without"])
def gateway(request: pytest.FixtureRequest) -> bool:
    """With a gateway the identity is made in this process, without one in another."""
    return bool(request.param)


def settings_of(root: Path, *, gateway: bool = True, **more: Any) -> config.NodeSettings:
    return config.parse({"mode": "master", "domainID": "alice", "gateway": {"enabled": gateway}, **more}, root)


def make(settings: config.NodeSettings) -> None:
    with prepared(settings, SYSTEM_CLOCK):
        pass


def test_the_identity_is_there_afterwards(tmp_path: Path, gateway: bool) -> None:
    settings = settings_of(tmp_path, gateway=gateway, domainKeyData=encoded(pki.key_pem(KEY)))
    make(settings)
    made = domain_identity.load(settings.paths, "alice")
    assert made.key.public_key() == KEY.public_key()
    assert pki.subject_of(pki.load_certificate(made.certificate.encode()))[0] == "alice"
    assert settings.paths.api_token.read_text() == domain_identity.api_token(made).reveal()
    make(settings)
    assert domain_identity.load(settings.paths, "alice").certificate == made.certificate


def test_without_tls_there_is_no_token(tmp_path: Path, gateway: bool) -> None:
    settings = settings_of(tmp_path, gateway=gateway, protocol="NOTLS")
    make(settings)
    assert settings.paths.domain_key.exists()
    assert not settings.paths.api_token.exists()


@pytest.mark.parametrize(
    ("key", "told"),
    [
        pytest.param(pki.key_pem(OTHER), "domainKeyData is another key than", id="another"),
        pytest.param(pki.key_pem(pki.new_key("ec")), "domainKeyData is not an RSA key", id="EC"),
        pytest.param(b"-----BEGIN PRIVATE KEY-----\nS3CR3T\n", "domainKeyData is not a private key", id="broken"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(tmp_path: Path, gateway: bool, key: bytes, told: str) -> None:
    make(settings_of(tmp_path, gateway=gateway, domainKeyData=encoded(pki.key_pem(KEY))))
    with pytest.raises(config.ConfigError, match=told) as refusal:
        make(settings_of(tmp_path, gateway=gateway, domainKeyData=encoded(key)))
    assert "\n" not in str(refusal.value)
    assert "S3CR3T" not in str(refusal.value)


def test_what_fails_meanwhile_is_what_is_told(tmp_path: Path, gateway: bool) -> None:
    with pytest.raises(ZeroDivisionError), prepared(settings_of(tmp_path, gateway=gateway), SYSTEM_CLOCK):
        raise ZeroDivisionError


# The organisation's own certificate for the public port.


def own_tls(certificate: rsa.RSAPrivateKey, key: rsa.RSAPrivateKey) -> dict[str, Any]:
    made = pki.self_signed_ca("public.example", certificate, now=SYSTEM_CLOCK.now()).certificate
    pair = {"certData": encoded(pki.certificate_pem(made)), "keyData": encoded(pki.key_pem(key))}
    return {"externalTLS": {"enableTLS": True, **pair}}


def test_given_in_the_configuration_it_becomes_private_files(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, domainRoute=own_tls(OTHER, OTHER))
    make(settings)
    tls = settings.gateway.external_tls
    assert tls is not None
    assert pki.load_key(tls.pair.key.read_bytes()).public_key() == OTHER.public_key()
    assert tls.pair.key.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("block", "told"),
    [
        pytest.param(own_tls(OTHER, KEY), "does not belong to", id="other-key"),
        pytest.param(
            {"externalTLS": {"certFile": "none.crt", "keyFile": "none.key"}}, "none.crt: No such file", id="missing"
        ),
    ],
)
def test_a_pair_that_does_not_fit_is_refused_at_once(
    tmp_path: Path, gateway: bool, block: dict[str, Any], told: str
) -> None:
    with pytest.raises(config.ConfigError, match=told):
        make(settings_of(tmp_path, gateway=gateway, domainRoute=block))


# The object.


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    store = MemoryStore()
    await store.open()
    server = ApiServer(store, Settings(extensions=[KUSCIA]), SYSTEM_CLOCK)
    await server.start()
    transport = InProcessTransport(server.handle, UserInfo("tester", ("system:masters",)))
    try:
        yield Client(transport)
    finally:
        await transport.close()
        await server.stop()
        await store.close()


async def test_the_own_domain_is_made_and_left_alone(tmp_path: Path, client: Client) -> None:
    settings = settings_of(tmp_path, domainKeyData=encoded(pki.key_pem(KEY)))
    make(settings)
    job = own_domain(client, settings)
    await job.run()
    assert job.ready.is_set()
    made: Domain = await client.get(DOMAINS, "alice")
    assert base64.b64decode(made.spec.cert) == settings.paths.domain_certificate.read_bytes()
    await own_domain(client, settings).run()
    again = await client.get(DOMAINS, "alice")
    assert again.metadata.resource_version == made.metadata.resource_version


async def test_a_new_certificate_is_put_in_and_the_rest_is_kept(client: Client) -> None:
    plain = DOMAINS.as_dynamic
    spec = {"cert": "b2xk", "resourceQuota": {"podMaxCount": 5}, "interConnProtocols": ["kuscia"]}
    body = {"apiVersion": "kuscia.secretflow/v1alpha1", "kind": "Domain", "metadata": {"name": "alice"}, "spec": spec}
    await client.create(plain, {**body, "metadata": {"name": "alice", "labels": {"mine": "yes"}}})
    await ensure_domain(client, "alice", "bmV3")
    after = await client.get(plain, "alice")
    assert after["spec"] == {**spec, "cert": "bmV3"}
    assert after["metadata"]["labels"]["mine"] == "yes"
