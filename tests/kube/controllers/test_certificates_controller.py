"""Certificate requests: approved, signed, refused and cleaned up on a real API server; certificates that really authenticate."""

from __future__ import annotations

import asyncio
import base64
import http.client as http_client
import ipaddress
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from workload_world import NODE, World, world

from coterie.base import pki
from coterie.base.certificate_requests import RequestedCertificate, make_request
from coterie.base.clock import SYSTEM_CLOCK, VirtualClock
from coterie.base.paths import DomainPaths
from coterie.http.messages import Peer, Request, UserInfo
from coterie.http.server import HttpServer
from coterie.kube.api.errors import Unauthorized
from coterie.kube.api.meta import Object
from coterie.kube.api.status_response import status_response
from coterie.kube.api.types.kind import Kind, builtin
from coterie.kube.apiserver.auth.authn import Authenticator, user_from_certificate
from coterie.kube.apiserver.server import ApiServer
from coterie.kube.client.client import Client
from coterie.kube.client.in_process_transport import InProcessTransport
from coterie.kube.client.informers import Informers
from coterie.kube.controllers.certificates import controller, plan
from coterie.kube.store.memory import MemoryStore
from coterie.node import api_identity, api_keys_process

CSR = Kind.dynamic(builtin("certificatesigningrequests", "certificates.k8s.io"))
BINDING = Kind.dynamic(builtin("clusterrolebindings", "rbac.authorization.k8s.io"))
API_CLIENT = "kubernetes.io/kube-apiserver-client"
KUBELET = "kubernetes.io/kube-apiserver-client-kubelet"
SERVING = "kubernetes.io/kubelet-serving"
KEY = pki.new_key()
AUTHORITY = pki.self_signed_ca(
    "authority", pki.new_key(), now=datetime(1970, 1, 1, tzinfo=UTC), life=timedelta(days=40000)
)
MAKE = partial(
    controller.make,
    authority=lambda: AUTHORITY,
    reserved_names=("kubernetes.default.svc", "10.0.0.1", "100.112.0.0/16"),
)
NODE_USAGES = ["digital signature", "key encipherment", "client auth"]
NODES = ("system:nodes", "system:authenticated")


def sent(name: str, groups: Sequence[str] = (), names: Sequence[x509.GeneralName] = ()) -> str:
    return base64.b64encode(make_request(KEY, name, groups, names)).decode()


def body(
    name: str, request: str, signer: str = API_CLIENT, usages: Sequence[str] = ("client auth",), **spec: Any
) -> Object:
    return {
        "metadata": {"name": name},
        "spec": {"request": request, "signerName": signer, "usages": list(usages), **spec},
    }


def node_body(name: str, node: str, groups: Sequence[str] = ("system:nodes",), **spec: Any) -> Object:
    return body(name, sent(f"system:node:{node}", groups), KUBELET, **{"usages": NODE_USAGES, **spec})


def node(name: str, *addresses: str) -> Object:
    return {
        "metadata": {"name": name},
        "status": {"addresses": [{"type": "InternalIP", "address": a} for a in addresses]},
    }


async def create(all_: World, obj: Object, user: UserInfo | None = None) -> None:
    """As a user who may create requests; the admin of the world unless named."""
    await (all_.client if user is None else all_.client_for(user)).create(CSR, obj)


async def approve(all_: World, name: str) -> None:
    condition = {"type": "Approved", "status": "True", "reason": "Test"}
    await all_.client.patch(CSR, name, "", {"status": {"conditions": [condition]}}, subresource="approval")


async def bind(all_: World, role: str, user: str) -> None:
    group = "rbac.authorization.k8s.io"
    reference = {"apiGroup": group, "kind": "ClusterRole", "name": role}
    subject = {"apiGroup": group, "kind": "User", "name": user}
    await all_.client.create(
        BINDING, {"metadata": {"name": f"{user}-{role}"}, "roleRef": reference, "subjects": [subject]}
    )


async def status(all_: World, name: str) -> tuple[list[str], str]:
    """(conditions with messages, certificate in PEM) after the controller has worked."""
    await all_.settle(1.0)
    found = (await all_.client.get(CSR, name)).get("status") or {}
    shown = [f"{each['type']}: {each.get('message', '')}" for each in found.get("conditions") or ()]
    return shown, base64.b64decode(found.get("certificate") or "").decode()


# ---- signing ----


async def test_an_approved_user_gets_a_certificate_for_as_long_as_asked():
    async with world(MAKE) as all_:
        await create(all_, body("c", sent("ann", ("dev", "ops")), expirationSeconds=3600))
        assert await status(all_, "c") == ([], "")
        await approve(all_, "c")
        _, signed = await status(all_, "c")
        certificate = pki.load_certificate(signed.encode())
        assert pki.subject_of(certificate) == ("ann", ("dev", "ops"))
        assert pki.signed_by(certificate, AUTHORITY.certificate)
        left = certificate.not_valid_after_utc - all_.clock.now()
        assert timedelta(minutes=59) < left <= timedelta(minutes=60)
        uses = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert list(uses) == [ExtendedKeyUsageOID.CLIENT_AUTH]
        limits = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        assert not limits.ca


@pytest.mark.parametrize(
    ("seconds", "life"),
    [
        (None, timedelta(days=365)),
        (600, timedelta(minutes=10)),
        (10, timedelta(minutes=10)),
        (2**31 - 1, timedelta(days=365)),
    ],
)
def test_the_life_of_a_certificate_has_bounds(seconds: int | None, life: timedelta):
    request = plan.CertificateSigningRequest(
        spec=type(plan.CertificateSigningRequest().spec)(expiration_seconds=seconds)
    )
    assert plan.certificate_life(request, plan.Settings()) == life


async def test_others_signers_and_denied_requests_are_left_alone():
    async with world(MAKE) as all_:
        await create(all_, body("other", sent("ann"), "example.com/mine"))
        await approve(all_, "other")
        await create(all_, body("no", sent("ann")))
        denied = {"status": {"conditions": [{"type": "Denied", "status": "True"}]}}
        await all_.client.patch(CSR, "no", "", denied, subresource="approval")
        assert await status(all_, "other") == (["Approved: "], "")
        assert await status(all_, "no") == (["Denied: "], "")


def _odd(*attributes: Any, key: Any = KEY) -> str:
    built = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(list(attributes)))
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return base64.b64encode(built.sign(key, algorithm).public_bytes(serialization.Encoding.PEM)).decode()


def _cn(name: str) -> Any:
    return x509.NameAttribute(NameOID.COMMON_NAME, name)


WEAK = rsa.generate_private_key(public_exponent=65537, key_size=1024)


@pytest.mark.parametrize(
    ("obj", "why"),
    [
        (body("c", sent("ann"), usages=("client auth", "server auth")), "invalid usage for client certificate: server auth"),
        (body("c", sent("ann"), usages=("client auth", "cert sign")), "invalid usage for client certificate: cert sign"),
        (body("c", sent("ann"), usages=("digital signature",)), "missing required usage for client certificate: client auth"),
        (body("c", sent("")), "subject common name is required"),
        (body("c", _odd(_cn("ann"), _cn("bob"))), "the subject has more than one common name"),
        (body("c", _odd(_cn("ann\nx-remote-user: admin"))), "the subject has control characters or surrounding spaces"),
        (body("c", _odd(_cn("ann"), key=WEAK)), "an RSA key must have 2048 to 8192 bits, not 1024"),
        (node_body("c", "n1", ()), "subject organization is not system:nodes"),
        (node_body("c", "n1", ("system:nodes", "system:masters")), "subject organization is not system:nodes"),
        (body("c", sent("ann", ("system:nodes",)), KUBELET, NODE_USAGES), "subject common name does not begin with system:node:"),
        (node_body("c", "", ), "subject common name does not begin with system:node:"),
        (node_body("c", "n1", usages=["client auth"]), "usages did not match"),
        (body("c", sent("system:node:n1", ("system:nodes",), [x509.DNSName("kubernetes")]), KUBELET, NODE_USAGES), "DNS subjectAltNames are not allowed"),
        (body("c", sent("system:node:n1", ("system:nodes",), [x509.IPAddress(ipaddress.ip_address("10.0.0.1"))]), KUBELET, NODE_USAGES), "IP subjectAltNames are not allowed"),
        (body("c", sent("system:node:n1", ("system:nodes",), [x509.UniformResourceIdentifier("x://y")]), KUBELET, NODE_USAGES), "URI subjectAltNames are not allowed"),
    ],
)  # fmt: skip
async def test_an_approved_request_that_no_signer_signs_fails(obj: Object, why: str):
    async with world(MAKE) as all_:
        await create(all_, obj)
        await approve(all_, "c")
        conditions, signed = await status(all_, "c")
        assert signed == ""
        assert conditions[0].startswith("Approved") and conditions[1].startswith(f"Failed: {why}")


async def test_an_ed25519_key_and_more_words_in_the_subject_are_signed():
    async with world(MAKE) as all_:
        key = ed25519.Ed25519PrivateKey.generate()
        unit = x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "unit")
        await create(all_, body("c", _odd(unit, _cn("ann"), key=key)))
        await approve(all_, "c")
        _, signed = await status(all_, "c")
        assert pki.subject_of(pki.load_certificate(signed.encode())) == ("ann", ())


# ---- nodes ----


async def test_a_node_renews_its_certificate_while_its_node_exists():
    async with world(MAKE) as all_:
        user = UserInfo("system:node:n1", NODES)
        await create(all_, node_body("gone", "n1"), user)
        assert await status(all_, "gone") == ([], "")
        await all_.client.create(NODE, node("n1"))
        await create(all_, node_body("renewal", "n1"), user)
        conditions, signed = await status(all_, "renewal")
        assert conditions == ["Approved: Auto approving self kubelet client certificate after SubjectAccessReview."]
        assert pki.subject_of(pki.load_certificate(signed.encode())) == ("system:node:n1", ("system:nodes",))


async def test_a_new_node_is_approved_only_for_those_with_the_right_and_never_for_a_name_in_use():
    async with world(MAKE) as all_:
        joiner = UserInfo("system:bootstrap:abcdef", ("system:bootstrappers", "system:authenticated"))
        await create(all_, node_body("before", "n1"), joiner)
        assert await status(all_, "before") == ([], "")
        await bind(all_, "system:certificates.k8s.io:certificatesigningrequests:nodeclient", joiner.name)
        await create(all_, node_body("new", "n1"), joiner)
        conditions, signed = await status(all_, "new")
        assert (
            conditions == ["Approved: Auto approving kubelet client certificate after SubjectAccessReview."] and signed
        )
        await all_.client.create(NODE, node("n2"))
        await create(all_, node_body("taken", "n2"), joiner)
        assert await status(all_, "taken") == ([], "")
        # What a node may have, and nothing else, is approved.
        await create(all_, body("user", sent("ann")), joiner)
        await create(all_, node_body("masters", "n3", ("system:nodes", "system:masters")), joiner)
        await create(all_, node_body("usages", "n4", usages=[*NODE_USAGES, "server auth"]), joiner)
        for name in ("user", "masters", "usages"):
            assert await status(all_, name) == ([], "")


def serving_body(node_name: str, *names: str) -> Object:
    alternatives: list[x509.GeneralName] = []
    for name in names:
        try:
            alternatives.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            alternatives.append(x509.DNSName(name))
    usages = ["digital signature", "key encipherment", "server auth"]
    return body("c", sent(f"system:node:{node_name}", ("system:nodes",), alternatives), SERVING, usages)


@pytest.mark.parametrize(
    ("names", "user", "why"),
    [
        (("n1", "10.1.0.1"), "system:node:n1", ""),
        (("n1", "10.1.0.9"), "system:node:n1", "10.1.0.9 is neither the name nor an address of the Node"),
        (("n2",), "system:node:n1", "n2 is neither the name nor an address of the Node"),
        (("10.1.0.2",), "system:node:n1", "10.1.0.2 is neither the name nor an address of the Node"),
        (("10.1.0.3",), "system:node:n1", "10.1.0.3 is an address of another Node too"),
        (("kubernetes.default.svc",), "system:node:n1", "kubernetes.default.svc is not a name of a node"),
        (("KUBERNETES.default.svc.",), "system:node:n1", "is not a name of a node"),
        (("10.0.0.1",), "system:node:n1", "10.0.0.1 is not a name of a node"),
        (("::ffff:10.0.0.1",), "system:node:n1", "is not a name of a node"),
        (("100.112.0.1",), "system:node:n1", "100.112.0.1 is not a name of a node"),
        (("localhost",), "system:node:n1", "localhost is not a name of a node"),
        (("127.0.0.1",), "system:node:n1", "127.0.0.1 is not a name of a node"),
        (("n1",), "system:admin", "only system:node:n1 itself may ask for its server certificate"),
        ((), "system:node:n1", "DNS or IP subjectAltName is required"),
    ],
)  # fmt: skip
async def test_server_certificates_are_for_the_names_of_the_node_alone(names: tuple[str, ...], user: str, why: str):
    async with world(MAKE) as all_:
        claimed = (
            "10.1.0.1",
            "10.1.0.3",
            "100.112.0.1",
            "127.0.0.1",
            "10.0.0.1",
            "kubernetes.default.svc",
            "localhost",
        )
        await all_.client.create(NODE, node("n1", *claimed))
        await all_.client.create(NODE, node("n2", "10.1.0.2", "10.1.0.3"))
        groups = NODES if user.startswith("system:node:") else ("system:masters",)
        await create(all_, serving_body("n1", *names), UserInfo(user, groups))
        assert await status(all_, "c") == ([], "")  # people approve these
        await approve(all_, "c")
        conditions, signed = await status(all_, "c")
        assert bool(signed) is (why == "")
        if why:
            assert why in conditions[1]
        else:
            certificate = pki.load_certificate(signed.encode())
            assert pki.names_of(certificate) == names
            uses = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
            assert list(uses) == [ExtendedKeyUsageOID.SERVER_AUTH]


# ---- cleaning up ----


async def names(all_: World) -> set[str]:
    await all_.settle(1.0)
    return {each["metadata"]["name"] for each in (await all_.client.list(CSR)).items}


async def test_requests_that_are_over_are_deleted():
    async with world(MAKE) as all_:
        for name in ("pending", "issued", "denied", "failed", "foreign"):
            signer = "example.com/mine" if name == "foreign" else API_CLIENT
            usages = ("server auth",) if name == "failed" else ("client auth",)
            await create(all_, body(name, sent("ann"), signer, usages))
            if name in ("issued", "failed", "foreign"):
                await approve(all_, name)
        denied = {"status": {"conditions": [{"type": "Denied", "status": "True"}]}}
        await all_.client.patch(CSR, "denied", "", denied, subresource="approval")
        await all_.settle(2.0)
        await all_.clock.advance(3500)
        assert await names(all_) == {"pending", "issued", "denied", "failed", "foreign"}
        await all_.clock.advance(200)
        assert await names(all_) == {"pending", "foreign"}
        await all_.clock.advance(24 * 3600)
        assert await names(all_) == {"foreign"}  # its signer may still come


def test_an_expired_certificate_ends_its_request():
    now = datetime(2026, 1, 1, tzinfo=UTC)
    kind = plan.CertificateSigningRequest
    approved = {"type": "Approved", "status": "True", "lastUpdateTime": "2026-01-01T00:00:00Z"}
    raw = {"metadata": {"name": "c"}, "spec": {}, "status": {"certificate": "eA==", "conditions": [approved]}}
    request = controller.CERTIFICATE_SIGNING_REQUESTS.decode(orjson.dumps(raw))
    assert isinstance(request, kind)
    assert plan.delete_at(request, now + timedelta(minutes=10), plan.Settings()) == now + timedelta(minutes=10)
    assert plan.delete_at(request, None, plan.Settings()) == now + timedelta(hours=1)


def test_names_of_a_node_without_a_node_are_refused():
    wanted = RequestedCertificate("system:node:n1", ("system:nodes",), ("n1",))
    assert "neither the name" in plan.serving_names_refused(wanted, "system:node:n1", (), (), ())


# ---- authentication ----


def test_a_connection_does_not_outlive_the_certificate():
    clock = VirtualClock()
    until = clock.now().timestamp() + 600
    user = UserInfo("ann", ("system:authenticated",))
    request = Request("GET", "/api", peer=Peer("1.2.3.4", certificate_user=user, certificate_until=until))
    authenticator = Authenticator(clock=clock)
    assert authenticator.authenticate(request) is user
    asyncio.run(clock.advance(601))
    with pytest.raises(Unauthorized):
        authenticator.authenticate(request)


async def test_a_signed_certificate_authenticates_and_a_server_certificate_does_not(tmp_path: Path):
    """The whole way: request, approval, certificate, TLS, user and groups."""
    paths = DomainPaths.of(tmp_path, "alice").prepare()
    api_keys_process.make(paths.pki, ("127.0.0.1",), SYSTEM_CLOCK.now())
    identity = api_identity.ApiIdentity(paths.pki)
    authority = pki.Authority(
        pki.load_certificate((paths.pki / "ca.crt").read_bytes()), pki.load_key((paths.pki / "ca.key").read_bytes())
    )
    store = MemoryStore()
    await store.open()
    server = ApiServer(store)
    await server.start()
    http = HttpServer(server.handle, user_of=user_from_certificate, problem_response=status_response)
    client = Client(InProcessTransport(server.handle, UserInfo("admin", ("system:masters",))))
    informers = Informers(client)
    running = controller.make(client, informers, lambda: authority)
    tasks = [asyncio.create_task(each.run()) for each in (informers, running)]
    try:
        host, port = await http.listen("127.0.0.1", 0, identity.server_tls())
        await client.create(NODE, node("n1", "10.1.0.1"))
        as_node = Client(InProcessTransport(server.handle, UserInfo("system:node:n1", NODES)))
        await as_node.create(CSR, serving_body("n1", "10.1.0.1"))
        await client.create(CSR, body("user", sent("ann", ("dev",))))
        condition = {"type": "Approved", "status": "True"}
        for name in ("user", "c"):
            await client.patch(CSR, name, "", {"status": {"conditions": [condition]}}, subresource="approval")
            signed = await _certificate(client, name)
            (tmp_path / f"{name}.pem").write_bytes(signed + pki.key_pem(KEY))
        answer = await asyncio.to_thread(_who_am_i, identity.ca_file, tmp_path / "user.pem", host, port)
        assert answer["status"]["userInfo"]["username"] == "ann"
        assert answer["status"]["userInfo"]["groups"] == ["dev", "system:authenticated"]
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.to_thread(_who_am_i, identity.ca_file, tmp_path / "c.pem", host, port)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await http.stop(grace=0)
        await server.stop()
        await store.close()


async def _certificate(client: Client, name: str) -> bytes:
    async with asyncio.timeout(20):
        while True:
            found = ((await client.get(CSR, name)).get("status") or {}).get("certificate")
            if found:
                return base64.b64decode(found)
            await asyncio.sleep(0.01)


def _who_am_i(authority: Path, pair: Path, host: str, port: int) -> Any:
    context = ssl.create_default_context(cafile=str(authority))
    context.load_cert_chain(pair)
    data = orjson.dumps({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"})
    connection = http_client.HTTPSConnection(host, port, context=context, timeout=20)
    try:
        path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        connection.request("POST", path, data, {"Content-Type": "application/json"})
        return orjson.loads(connection.getresponse().read())
    finally:
        connection.close()
