"""The API's keys: made by a process of their own, read by the node."""

from __future__ import annotations

import ssl
import subprocess
import sys

import pytest

from coterie.base import pki
from coterie.base.clock import SYSTEM_CLOCK
from coterie.base.paths import DomainPaths
from coterie.node import api_identity, api_keys_process


def test_keys_are_made_once_and_stay(tmp_path):
    paths = DomainPaths.of(tmp_path, "alice")
    keys = api_identity.ensure(paths, ("127.0.0.1", "api.example"), SYSTEM_CLOCK)
    made = {path.name: path.read_bytes() for path in paths.pki.iterdir()}
    assert {"ca.crt", "ca.key", "apiserver.crt", "admin.crt", "agent-client.crt", "sa.key"} <= made.keys()
    server = pki.load_certificate(made["apiserver.crt"])
    assert {"localhost", "127.0.0.1", "api.example"} <= set(pki.names_of(server))
    assert pki.subject_of(pki.load_certificate(made["admin.crt"])) == ("coterie-admin", ("system:masters",))
    assert pki.key_pem(keys.token_key()) == made["sa.key"]
    assert keys.server_tls().verify_mode is ssl.CERT_OPTIONAL
    api_identity.ensure(paths, ("127.0.0.1", "api.example"), SYSTEM_CLOCK)
    assert {path.name: path.read_bytes() for path in paths.pki.iterdir()} == made


def test_a_new_name_means_a_new_server_certificate(tmp_path):
    paths = DomainPaths.of(tmp_path, "alice")
    api_keys_process.make(paths.pki, ("localhost",), SYSTEM_CLOCK.now())
    authority = (paths.pki / "ca.crt").read_bytes()
    api_identity.ensure(paths, ("new.example",), SYSTEM_CLOCK)
    assert "new.example" in pki.names_of(pki.load_certificate((paths.pki / "apiserver.crt").read_bytes()))
    assert (paths.pki / "ca.crt").read_bytes() == authority


@pytest.mark.parametrize("damaged", ["ca.crt", "ca.key", "sa.key"])
def test_what_cannot_be_made_anew_is_told(tmp_path, damaged):
    paths = DomainPaths.of(tmp_path, "alice")
    api_keys_process.make(paths.pki, ("localhost",), SYSTEM_CLOCK.now())
    (paths.pki / damaged).write_text("rubbish")
    with pytest.raises(api_identity.IdentityError, match=r"not a (certificate|private key) in PEM.*; put them back"):
        api_identity.ensure(paths, (), SYSTEM_CLOCK)


def test_the_front_proxy_has_an_authority_of_its_own(tmp_path):
    paths = DomainPaths.of(tmp_path, "alice")
    keys = api_identity.ensure(paths, (), SYSTEM_CLOCK)
    proxy = pki.load_certificate(keys.pair("front-proxy-client")[0].read_bytes())
    assert pki.subject_of(proxy) == ("front-proxy-client", ())
    assert pki.signed_by(proxy, pki.load_certificate(keys.front_proxy_ca_file.read_bytes()))
    assert not pki.signed_by(proxy, pki.load_certificate(keys.ca_file.read_bytes()))
    told = keys.authentication_info()
    assert told.client_ca != told.request_header_ca
    assert "PRIVATE" not in str(told.config_map())


def test_the_server_names_the_authorities_of_client_certificates(tmp_path):
    paths = DomainPaths.of(tmp_path, "alice")
    keys = api_identity.ensure(paths, (), SYSTEM_CLOCK)
    (request,) = [body for kind, body in _server_flight(keys.server_tls()) if kind == 13]
    authority = pki.load_certificate(keys.ca_file.read_bytes())
    assert request.endswith(authority.subject.public_bytes())


def _server_flight(context: ssl.SSLContext) -> list[tuple[int, bytes]]:
    """(type, body) of the messages that a TLS 1.2 server sends first."""
    client_context = ssl.create_default_context()
    client_context.maximum_version = ssl.TLSVersion.TLSv1_2
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname="localhost")
    server = context.wrap_bio(to_server, to_client, server_side=True)
    for end in (client, server):
        with pytest.raises(ssl.SSLWantReadError):
            end.do_handshake()
    records, handshake = to_client.read(), b""
    while records:
        length = int.from_bytes(records[3:5])
        handshake, records = handshake + records[5 : 5 + length], records[5 + length :]
    messages = []
    while handshake:
        length = int.from_bytes(handshake[1:4])
        messages.append((handshake[0], handshake[4 : 4 + length]))
        handshake = handshake[4 + length :]
    return messages


HEAVY = (
    "cryptography", "aiohttp", "re2", "coterie.kube.agent.agent", "coterie.kube.api.cel", "coterie.kube.apiserver.tables.build",
    "coterie.kube.apiserver.openapi.v3", "coterie.kube.network.dns.server", "coterie.kuscia.gateway.xds",
)  # fmt: skip


def test_a_master_carries_no_weight_it_does_not_use():
    """Idle memory is a promise (docs/benchmarks.md); one import too many breaks it silently."""
    listed = "import sys, coterie.cli.commands.start, coterie.node.parts.control_plane; print(*sys.modules, sep='\\n')"
    loaded = subprocess.run([sys.executable, "-c", listed], capture_output=True, text=True, check=True).stdout.split()
    assert "coterie.kube.apiserver.server" in loaded
    assert [name for name in loaded if name in HEAVY] == []


UNUSED_AT_REST = (
    "aiohttp", "difflib", "google.protobuf", "grpc", "http.client", "multidict", "pyarrow", "urllib.request", "zoneinfo",
    "coterie.kube.api.cel", "coterie.kube.apiserver.openapi.v3", "coterie.kube.apiserver.tables.build", "coterie.kube.client.tls_carrier",
    "coterie.kuscia.controllers.kusciajob.controller", "coterie.kuscia.controllers.kusciatask.controller", "coterie.kube.scheduler.scheduler",
)  # fmt: skip


def test_an_autonomous_node_carries_no_weight_it_does_not_use():
    """`preload` loads what such a node has loaded when it is ready."""
    listed = (
        "import sys; from coterie.node.preload import preload; preload(['autonomy']); print(*sys.modules, sep='\\n')"
    )
    loaded = subprocess.run([sys.executable, "-c", listed], capture_output=True, text=True, check=True).stdout.split()
    assert {
        "coterie.kube.agent.agent",
        "coterie.kuscia.gateway.envoy",
        "coterie.kube.client.http_transport",
        "cryptography",
        "re2",
    } <= set(loaded)
    assert [name for name in loaded if name in UNUSED_AT_REST] == []
