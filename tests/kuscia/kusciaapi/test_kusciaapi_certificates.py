"""CertificateService of KusciaAPI and of ConfManager: what comes, what is refused, and that nobody is fooled by it."""

from __future__ import annotations

import base64
import logging
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import definitions_kit
import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from kuscia.proto.api.v1alpha1.confmanager import certificate_pb2 as confmanager_pb2
from kuscia.proto.api.v1alpha1.confmanager import certificate_pb2_grpc as confmanager_grpc
from kuscia.proto.api.v1alpha1.kusciaapi import certificate_pb2
from kusciaapi_kit import World, domain_caller, here, logged, served

from coterie.base import pki, pki_files
from coterie.base.clock import SYSTEM_CLOCK
from coterie.kube.api.meta import Object
from coterie.kube.api.types.pods import PODS
from coterie.kuscia.api.types.domain import DOMAINS
from coterie.kuscia.extensions import agent_trust
from coterie.kuscia.gateway.registration import certificate_issuing, master_trust
from coterie.kuscia.identity import certificate_requests, domain_identity, engine_certificates
from coterie.kuscia.kusciaapi.certificates import CONFMANAGER_OPERATIONS, OPERATIONS
from coterie.kuscia.kusciaapi.operations import Mode


@pytest.fixture
async def alice(tmp_path: Path) -> AsyncIterator[World]:
    async with here(tmp_path) as world:
        yield world


async def generate(world: World, **request: Any) -> Any:
    return await world.call(OPERATIONS, "GenerateKeyCerts", **{"common_name": "my-engine", **request})


def opened(answer: Any) -> tuple[Any, list[x509.Certificate]]:
    assert (answer.status.code, answer.status.message) == (0, "success")
    chain = [pki.load_certificate(base64.b64decode(each)) for each in answer.cert_chain]
    return pki.load_key(base64.b64decode(answer.key)), chain


def test_messages_are_those_of_the_stubs() -> None:
    assert definitions_kit.differences(certificate_pb2) == []
    assert definitions_kit.differences(confmanager_pb2) == []


# What comes.


async def test_a_key_and_its_chain(alice: World) -> None:
    answer = await generate(
        alice, country="CN", organization="org", organization_unit="unit", locality="city", province="land",
        street_address="street 1",
    )  # fmt: skip
    key, (leaf, parent) = opened(answer)
    assert isinstance(key, rsa.RSAPrivateKey)
    assert key.key_size == 2048
    assert pki.public_key_of(leaf) == key.public_key()
    assert base64.b64decode(answer.cert_chain[1]) == alice.here.paths.ca_certificate.read_bytes()
    assert pki.signed_by(leaf, parent)
    assert leaf.subject.rfc4514_string() == "CN=my-engine,STREET=street 1,ST=land,L=city,OU=unit,O=org,C=CN"
    assert base64.b64decode(answer.key).startswith(b"-----BEGIN RSA PRIVATE KEY-----")
    assert leaf.not_valid_after_utc - datetime.now(UTC) < timedelta(days=1, minutes=1)
    assert leaf.not_valid_after_utc - datetime.now(UTC) > timedelta(hours=23)


async def test_the_newer_form_of_keys(alice: World) -> None:
    answer = await generate(alice, key_type="PKCS#8", duration_sec=3600)
    _, (leaf, _) = opened(answer)
    assert base64.b64decode(answer.key).startswith(b"-----BEGIN PRIVATE KEY-----")
    assert leaf.not_valid_after_utc - datetime.now(UTC) <= timedelta(hours=1)


async def test_confmanager_serves_the_same_under_its_own_names(alice: World) -> None:
    assert [each.path for each in CONFMANAGER_OPERATIONS] == [
        "/api/v1/cm/certificate/generate", "/api/v1/configmanager/certificate/generate",
    ]  # fmt: skip
    for each in CONFMANAGER_OPERATIONS:
        assert each.request.DESCRIPTOR.full_name == "kuscia.proto.api.v1alpha1.confmanager.GenerateKeyCertsRequest"
    answer = await alice.call(CONFMANAGER_OPERATIONS, "GenerateKeyCerts", common_name="engine")
    assert answer.DESCRIPTOR.full_name == "kuscia.proto.api.v1alpha1.confmanager.GenerateKeyCertsResponse"
    _, (leaf, _) = opened(answer)
    assert pki.subject_of(leaf)[0] == "engine"


async def test_two_calls_give_two_keys(alice: World) -> None:
    one, other = await generate(alice), await generate(alice)
    assert one.key != other.key


def registered(world: World, *, ended: bool) -> x509.Certificate:
    """Put a certificate in place that a master issued; Kuscia's end before they begin to be used."""
    key = pki.new_key("rsa")
    assert isinstance(key, rsa.RSAPrivateKey)
    own = pki.self_signed_ca("kuscia-system", key, now=SYSTEM_CLOCK.now())
    master = domain_identity.DomainIdentity("kuscia-system", Path(), Path(), pki.certificate_pem(own.certificate).decode(), key)  # fmt: skip
    now = datetime(1970, 1, 1, 0, 10, tzinfo=UTC) if ended else SYSTEM_CLOCK.now()
    issued = certificate_issuing.issue(master, "alice", world.here.identity.key.public_key(), now)
    domain_identity.store_certificate(world.here.paths, pki.certificate_pem(issued))
    return issued


@pytest.mark.parametrize("ended", [False, True], ids=["of Coterie", "of Kuscia, long ended"])
async def test_on_a_lite_the_parent_is_what_its_master_issued(tmp_path: Path, ended: bool) -> None:
    async with here(tmp_path, mode=Mode.LITE) as lite:
        issued = registered(lite, ended=ended)
        _, (leaf, parent) = opened(await generate(lite))
        assert parent == issued
        assert pki.signed_by(leaf, parent)
        assert not pki.expired(leaf, SYSTEM_CLOCK.now())
        assert pki.signed_by(leaf, pki.load_certificate(lite.here.paths.ca_certificate.read_bytes()))


@pytest.mark.parametrize("mode", Mode)
async def test_every_mode_signs_for_its_operator_only(tmp_path: Path, mode: Mode) -> None:
    async with here(tmp_path, mode=mode) as world:
        opened(await generate(world))
        refused = await world.call(
            OPERATIONS, "GenerateKeyCerts", caller=domain_caller("bob"), common_name="my-engine"
        )  # fmt: skip
        assert refused.status.code == 11102
        assert not refused.key


# What is refused.


BAD: dict[str, tuple[Object, str]] = {
    "no name": ({"common_name": ""}, "common_name: must be given"),
    "a blank name": ({"common_name": "  "}, "common_name: must be given"),
    "a long name": ({"common_name": "x" * 65}, "common_name: must have no more than 64"),
    "a broken name": ({"common_name": "a\x00b"}, "common_name: has a control character"),
    "country": ({"country": "China"}, "country: must have no more than 2"),
    "no country": ({"country": "1"}, "country: must be the two letters"),
    "a long organisation": ({"organization": "x" * 65}, "organization:"),
    "a long street": ({"street_address": "x" * 129}, "street_address:"),
    "a negative time": ({"duration_sec": -1}, "duration_sec: must be between"),
    "a long time": ({"duration_sec": 10 * 366 * 86400}, "duration_sec: must be between"),
    "form of the key": ({"key_type": "PKCS#12"}, "key_type: must be PKCS#1 or PKCS#8"),
    # Names that mean somebody.
    "the domain": ({"common_name": "alice"}, 'common_name: "alice" is the domain itself'),
    "the domain in capitals": ({"common_name": "ALICE"}, "is the domain itself"),
    "the domain with a space": ({"common_name": "alice "}, "common_name: must not begin or end with a space"),
    "another domain": ({"common_name": "bob"}, 'common_name: "bob" is a domain'),
    "another domain in capitals": ({"common_name": "Bob"}, "is a domain; choose another"),
    "the gateway's port": ({"common_name": "alice_ENVOY_EXTERNAL"}, "are the gateway's own"),
    "the data mesh": ({"common_name": "DataMesh"}, "services of the domain are reached"),
    "KusciaAPI": ({"common_name": "kusciaapi"}, "services of the domain are reached"),
    "a service": ({"common_name": "psi.alice.svc"}, "services of the domain are reached"),
    "all services": ({"common_name": "*.svc"}, "services of the domain are reached"),
    "everything": ({"common_name": "*"}, "services of the domain are reached"),
    "a name the operator gave": ({"common_name": "api.example.com"}, "a server of this node is reached"),
    "the same with a dot": ({"common_name": "API.example.com."}, "a server of this node is reached"),
}


@pytest.mark.parametrize(("request_", "sentence"), BAD.values(), ids=BAD.keys())
async def test_refusals_name_the_field(alice: World, request_: Object, sentence: str) -> None:
    await alice.client.create(DOMAINS.as_dynamic, {"metadata": {"name": "bob"}, "spec": {}})
    certs = alice.here.paths.certs
    pki_files.ensure_server(certs, "kusciaapi-server", authority(alice), names=("api.example.com",), now=SYSTEM_CLOCK.now())  # fmt: skip
    refused = await generate(alice, **request_)
    assert refused.status.code == 2000
    assert sentence in refused.status.message
    assert not refused.key
    assert not refused.cert_chain


async def test_a_domain_without_an_authority_says_so(alice: World) -> None:
    alice.here.paths.ca_certificate.unlink()
    refused = await generate(alice)
    assert refused.status.code == 2200
    assert "ca.crt" in refused.status.message


# Whom it fools: nobody.


def authority(world: World) -> pki.Authority:
    return pki.Authority(pki.load_certificate(world.here.paths.ca_certificate.read_bytes()), world.here.identity.key)


async def test_it_signs_nothing_and_is_no_engine(alice: World) -> None:
    uri = "coterie://alice/pod/task-0/uid"
    _, (leaf, _) = opened(await generate(alice, common_name="evil", organization=uri, organization_unit="external"))
    constraints = leaf.extensions.get_extension_for_class(x509.BasicConstraints).value
    usage = leaf.extensions.get_extension_for_class(x509.KeyUsage).value
    assert (constraints.ca, usage.key_cert_sign, usage.crl_sign) == (False, False, False)
    with pytest.raises(x509.ExtensionNotFound):
        leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert engine_certificates.engine_of(leaf) is None
    name = leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    assert [each.value for each in name] == ["evil"]


async def test_the_control_plane_does_not_take_it_for_an_agent(alice: World) -> None:
    _, (leaf, _) = opened(await generate(alice, common_name="10.0.0.7"))
    der, key = leaf.public_bytes(serialization.Encoding.DER), alice.here.identity.key.public_key()
    assert agent_trust.fault(der, key, "10.0.0.7", SYSTEM_CLOCK.now()) == "its certificate is not for 10.0.0.7"


async def test_a_lite_does_not_take_it_for_its_master(alice: World) -> None:
    _, (leaf, _) = opened(await generate(alice))
    key = alice.here.identity.key.public_key()
    assert pki.signed_by_key(leaf, key)
    assert not master_trust.is_certified_by(key, leaf)
    with pytest.raises(master_trust.MasterNotTrusted):
        master_trust.check_shown(leaf, "", key, "")
    engine = engine_certificates.issue_server_pair(
        authority(alice), engine_certificates.EngineIdentity("alice", "task-0", "uid"), ["10.0.0.7"], SYSTEM_CLOCK.now()
    )
    assert not master_trust.is_certified_by(key, pki.load_certificate(engine.certificate))
    port = pki.issue_server(authority(alice), f"alice{certificate_requests.PORT_NAME}", pki.new_key("ec").public_key(), names=(), now=SYSTEM_CLOCK.now())  # fmt: skip
    assert master_trust.is_certified_by(key, port)


def shaken(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> str:
    """Whether two sides agree, without sockets; the client's complaint otherwise."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    ours = client.wrap_bio(to_client, to_server, server_hostname=name)
    for _ in range(10):
        done = 0
        for side in (ours, theirs):
            try:
                side.do_handshake()
                done += 1
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as problem:
                return problem.verify_message
        if done == 2:
            return ""
    return "no end"


async def test_whoever_trusts_the_domain_trusts_it_under_its_own_name_only(alice: World, tmp_path: Path) -> None:
    answer = await generate(alice, common_name="my-engine")
    pair = tmp_path / "pair.pem"
    pair.write_bytes(b"".join(base64.b64decode(each) for each in (answer.key, *answer.cert_chain)))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pair)
    client = ssl.create_default_context(cafile=str(alice.here.paths.ca_certificate))
    assert "Hostname mismatch" in shaken(server, client, "datamesh")
    assert "IP address mismatch" in shaken(server, client, "127.0.0.1")
    client.check_hostname = False
    assert shaken(server, client, "datamesh") == ""


async def test_nothing_of_it_is_logged(alice: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    answer = await generate(alice)
    await generate(alice, key_type="x")
    assert answer.key[:60] not in logged(caplog)
    assert all(each.secret for each in (*OPERATIONS, *CONFMANAGER_OPERATIONS))


# Through the doors.


async def test_confmanager_issues_nothing_to_tasks_of_partners(tmp_path: Path) -> None:
    async with served(OPERATIONS, tmp_path, conf_operations=CONFMANAGER_OPERATIONS) as place:
        pair = await place.engine(tmp_path, "bob")
        credentials = grpc.ssl_channel_credentials(place.paths.ca_certificate.read_bytes(), pair.key, pair.certificate)
        request = confmanager_pb2.GenerateKeyCertsRequest(common_name="engine")
        async with grpc.aio.secure_channel(f"localhost:{place.settings.conf_grpc_port}", credentials) as channel:
            stub = confmanager_grpc.CertificateServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError, match='"bob" began') as refused:
                await stub.GenerateKeyCerts(request)
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        connector = aiohttp.TCPConnector(ssl=place.engine_tls(tmp_path))
        base = f"https://localhost:{place.settings.conf_http_port}"
        async with (
            aiohttp.ClientSession(base, connector=connector) as session,
            session.post(CONFMANAGER_OPERATIONS[0].path, json={"common_name": "engine"}) as answer,
        ):
            assert (answer.status, await answer.read()) == (401, b"")


async def test_each_server_believes_its_own_clients_only(tmp_path: Path) -> None:
    """The operator's certificate is none at ConfManager, and an engine's none at KusciaAPI."""
    async with served(OPERATIONS, tmp_path, conf_operations=CONFMANAGER_OPERATIONS) as place:
        await place.engine(tmp_path)
        for context, port in (
            (place.tls(), place.settings.conf_http_port),
            (place.engine_tls(tmp_path), place.settings.http_port),
        ):
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
                with pytest.raises((aiohttp.ClientError, OSError)):
                    await session.post(f"https://localhost:{port}/healthZ", json={}, headers={"Token": place.token})


async def test_confmanager_serves_engines_that_run(tmp_path: Path) -> None:
    async with served(OPERATIONS, tmp_path, conf_operations=CONFMANAGER_OPERATIONS) as place:
        await place.engine(tmp_path)
        await place.client.patch_status(PODS, "task-0", "alice", {"status": {"phase": "Succeeded"}})
        connector = aiohttp.TCPConnector(ssl=place.engine_tls(tmp_path))
        url = f"https://localhost:{place.settings.conf_http_port}{CONFMANAGER_OPERATIONS[0].path}"
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.post(url, json={"common_name": "engine"}) as answer,
        ):
            assert answer.status == 401


async def test_kuscias_own_client_and_http_get_them_at_confmanager(tmp_path: Path) -> None:
    async with served(OPERATIONS, tmp_path, conf_operations=CONFMANAGER_OPERATIONS) as place:
        pair = await place.engine(tmp_path)
        credentials = grpc.ssl_channel_credentials(place.paths.ca_certificate.read_bytes(), pair.key, pair.certificate)
        async with grpc.aio.secure_channel(f"localhost:{place.settings.conf_grpc_port}", credentials) as channel:
            stub = confmanager_grpc.CertificateServiceStub(channel)
            request = confmanager_pb2.GenerateKeyCertsRequest(common_name="engine", key_type="PKCS#8")
            _, (leaf, _) = opened(await stub.GenerateKeyCerts(request))
            assert pki.subject_of(leaf)[0] == "engine"
        connector = aiohttp.TCPConnector(ssl=place.engine_tls(tmp_path))
        base = f"https://localhost:{place.settings.conf_http_port}"
        async with aiohttp.ClientSession(base, connector=connector) as session:
            for each in CONFMANAGER_OPERATIONS:
                async with session.post(each.path, json={"common_name": "engine"}) as answer:
                    told = await answer.json()
                    assert (answer.status, told["status"]["code"], len(told["cert_chain"])) == (200, 0, 2)
