"""Agents whose certificates are signed by their own domain: whom the API server believes before it sends anything."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from server_kit import Api, pod, serving

from coterie.base import pki
from coterie.base.clock import VirtualClock
from coterie.kube.apiserver.server import Settings
from coterie.kuscia.extensions.agent_trust import fault, key_of
from coterie.kuscia.extensions.apiserver import apiserver_extension

NOW = datetime.now(UTC)
DOMAINS = "/apis/kuscia.secretflow/v1alpha1/domains"


@cache
def authority(name: str) -> pki.Authority:
    return pki.self_signed_ca(name, rsa.generate_private_key(public_exponent=65537, key_size=2048), now=NOW)


@cache
def agent_key() -> pki.PrivateKey:
    return pki.new_key("ec")


def serving_certificate(signer: str, host: str = "127.0.0.1", now: datetime = NOW) -> Any:
    return pki.issue_server(authority(signer), "n", agent_key().public_key(), names=("n", host), now=now)


def der(certificate: Any) -> bytes:
    return bytes(certificate.public_bytes(serialization.Encoding.DER))


@pytest.mark.parametrize(
    ("shown", "host", "now", "wrong"),
    [
        pytest.param(lambda: serving_certificate("alice"), "127.0.0.1", NOW, "", id="good"),
        pytest.param(lambda: serving_certificate("alice"), "n", NOW, "", id="by name"),
        pytest.param(lambda: serving_certificate("mallory"), "127.0.0.1", NOW, "signed neither", id="another's key"),
        pytest.param(lambda: serving_certificate("alice"), "10.0.0.1", NOW, "not for 10.0.0.1", id="another address"),
        pytest.param(
            lambda: serving_certificate("alice"), "127.0.0.1", NOW + timedelta(days=400), "not valid", id="expired"
        ),
        pytest.param(
            lambda: pki.issue_client(authority("alice"), "n", agent_key().public_key(), now=NOW),
            "127.0.0.1",
            NOW,
            "not for",
            id="a client's",
        ),
        pytest.param(lambda: authority("alice").certificate, "alice", NOW, "not for alice", id="the domain's own"),
    ],
)
def test_what_is_believed(shown: Any, host: str, now: datetime, wrong: str) -> None:
    key = pki.public_key_of(authority("alice").certificate)
    found = fault(der(shown()), key, host, now)
    assert (wrong in found) if wrong else found == ""


def test_garbage_is_no_certificate() -> None:
    assert "no certificate" in fault(b"", pki.public_key_of(authority("alice").certificate), "h", NOW)


def encoded(name: str) -> str:
    return base64.b64encode(pki.certificate_pem(authority(name).certificate)).decode()


@pytest.mark.parametrize(
    ("spec", "known"),
    [
        ({"cert": encoded("alice")}, True),
        ({"cert": encoded("alice"), "role": "partner"}, False),
        ({}, False),
        ({"cert": "%"}, False),
        ({"cert": "QUJD"}, False),
    ],
    ids=["ours", "a partner's", "none", "no base64", "no certificate"],
)
def test_whose_key_is_known(spec: dict[str, str], known: bool) -> None:
    assert (key_of({"spec": spec}) is not None) is known


# ---- over TLS ----


class TlsAgent:
    """Answers a log to whoever comes, and counts what was sent to it."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self.port = 0
        self.received = b""
        self._server: asyncio.Server | None = None

    async def open(self, certificate: Any) -> None:
        pki.save_certificate(self.where / "agent.crt", certificate)
        pki.save_key(self.where / "agent.key", agent_key())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.where / "agent.crt", self.where / "agent.key")
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.received += await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()


def our_tls() -> ssl.SSLContext:
    """Trusts the control plane's own authority only."""
    return ssl.create_default_context(cadata=pki.certificate_pem(authority("plane").certificate).decode())


def looking_tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    # The certificates are dated by this machine's clock, which TLS looks at, too.
    clock = VirtualClock(datetime.now(UTC))
    settings = Settings(extensions=[apiserver_extension(looking_tls)], agent_tls=our_tls)
    async with serving(settings, clock=clock) as made:
        for name in ("alice", "bob"):
            await made.post("/api/v1/namespaces", {"metadata": {"name": name}})
            await made.post(DOMAINS, {"kind": "Domain", "metadata": {"name": name}, "spec": {"cert": encoded(name)}})
        yield made


async def a_pod(api: Api, namespace: str, port: int) -> str:
    # What the Node says of itself decides nothing: it claims to be alice's whoever it is.
    labels = {"kuscia.secretflow/namespace": "alice"}
    await api.post("/api/v1/nodes", {"metadata": {"name": "n", "labels": labels}})
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
    await api.patch("/api/v1/nodes/n/status", {"status": status})
    pods = f"/api/v1/namespaces/{namespace}/pods"
    await api.post(pods, pod("p"))
    await api.post(f"{pods}/p/binding", {"target": {"name": "n"}})
    return f"{pods}/p/log"


@pytest.mark.parametrize(
    ("signer", "namespace", "believed"),
    [
        ("plane", "alice", True),
        ("alice", "alice", True),
        ("alice", "bob", False),
        ("alice", "default", False),
        ("mallory", "alice", False),
    ],
    ids=["our authority", "the domain's key", "another domain's pod", "no domain's pod", "a stranger"],
)
async def test_whose_agent_gets_the_request(
    api: Api, tmp_path: Path, signer: str, namespace: str, believed: bool
) -> None:
    agent = TlsAgent(tmp_path)
    await agent.open(serving_certificate(signer, now=datetime.now(UTC)))
    try:
        path = await a_pod(api, namespace, agent.port)
        response = await api.raw("GET", path)
        assert (response.status == 200) is believed, response
        if response.stream is not None:
            response.stream.closed()
        if not believed:
            assert response.status == 503 and b"is not shown to be the agent of node n" in response.body
        assert bool(agent.received) is believed
    finally:
        await agent.close()
