"""The API that a lite has for the other machines of its domain: who may call, and what of a call is passed on."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from coterie.base import files, pki, pki_files
from coterie.base.clock import SYSTEM_CLOCK
from coterie.cli.app import CliError
from coterie.cli.nodes import lite_domain
from coterie.http.messages import Request, Response, Sink
from coterie.http.server import HttpServer
from coterie.kube.client.http_transport import tls_context
from coterie.kube.control.child_api_listener import private_socket
from coterie.kuscia.gateway.paths import GatewayPaths
from coterie.kuscia.identity import domain_identity
from coterie.node import cluster_network, config, join_bundle
from coterie.node.join_bundle import Bundle, make_bundle, read_bundle
from coterie.node.parts import registry
from coterie.node.parts.agent_endpoint import AgentTls
from coterie.node.parts.join import joined_settings
from coterie.node.parts.node_api import NodeApi, upstream_headers
from coterie.node.parts.pod_network import cluster_of

ADDRESSES = ("127.0.0.1",)


def lite(tmp_path: Path, **more: Any) -> config.NodeSettings:
    document = {
        "mode": "lite",
        "domainID": "bob",
        "masterEndpoint": "https://10.0.0.1:1080",
        "liteDeployToken": "t",
        "agent": {"nodeName": "bob-1", "address": "127.0.0.1"},
        **more,
    }
    return config.parse(document, tmp_path)


def open_lite(tmp_path: Path) -> config.NodeSettings:
    return lite(tmp_path, apiServer={"host": "127.0.0.1", "port": 0})


class Upstream:
    """In place of the lite's own gateway."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.watch: Sink | None = None
        self.http = HttpServer(self._handle)

    def _handle(self, request: Request) -> Response:
        self.requests.append(request)
        if "watch=" in request.query:
            return Response(200, stream=self)
        return Response(201 if request.method == "POST" else 200, b'{"a":1}', headers=[("Warning", '299 - "w"')])

    def opened(self, sink: Sink) -> None:
        self.watch = sink
        sink.write(b'{"type":"ADDED"}\n')

    def closed(self) -> None:
        self.watch = None


@asynccontextmanager
async def serving(settings: config.NodeSettings) -> AsyncIterator[tuple[Upstream, NodeApi, Bundle]]:
    paths = settings.paths.prepare()
    domain_identity.ensure(paths, "bob", None, SYSTEM_CLOCK.now())
    files.private_directory(paths.pki)
    (paths.pki / "ca.crt").write_bytes(b"control plane")
    assert settings.node_api is not None
    upstream, api = Upstream(), NodeApi(settings, settings.node_api, SYSTEM_CLOCK)
    socket = Path(GatewayPaths.of(paths).node_socket.host)
    files.private_directory(socket.parent)
    await upstream.http.serve(private_socket(socket, 16))
    task = asyncio.ensure_future(api.run())
    try:
        await asyncio.wait_for(api.ready.wait(), 10)
        server = f"https://127.0.0.1:{api.port}"
        yield upstream, api, make_bundle(paths, "bob-2", ADDRESSES, server, SYSTEM_CLOCK, pod_cidr="100.96.16.0/20")
    finally:
        api.stop()
        await task
        await upstream.http.stop()


def session(tls: ssl.SSLContext) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=tls), timeout=aiohttp.ClientTimeout(total=20), skip_auto_headers=["Accept"]
    )


@asynccontextmanager
async def calling(tmp_path: Path) -> AsyncIterator[tuple[Upstream, aiohttp.ClientSession, str]]:
    """With the join file of bob-2."""
    async with serving(open_lite(tmp_path)) as (upstream, _, bundle), session(tls_context(bundle.connection())) as http:
        yield upstream, http, bundle.server


async def test_calls_are_passed_on_as_the_node_of_the_certificate(tmp_path: Path) -> None:
    spoofed = {
        "Impersonate-User": "system:admin",
        "Impersonate-Group": "system:masters",
        "Impersonate-Extra-coterie.io%2Fnode-owner": "carol",
        "Authorization": "Bearer x",
        "Kuscia-Source": "carol",
        "Host": "apiserver.carol.svc",
        "Content-Type": "application/json",
    }
    async with calling(tmp_path) as (upstream, http, server):
        answer = await http.post(f"{server}/api/v1/nodes?dryRun=All", data=b"{}", headers=spoofed)
        assert (answer.status, await answer.read()) == (201, b'{"a":1}')
        assert answer.headers["Warning"] == '299 - "w"'
    (request,) = upstream.requests
    assert (request.method, request.path, request.query, request.body) == ("POST", "/api/v1/nodes", "dryRun=All", b"{}")
    named = {name: value for name, value in request.headers.items() if name not in ("user-agent", "content-length")}
    assert named == {
        "accept": "*/*",
        "accept-encoding": "identity",
        "content-type": "application/json",
        "host": "apiserver.master.svc",
        "impersonate-user": "system:node:bob-2",
        "impersonate-group": "system:nodes",
    }


async def test_a_watch_comes_through_and_ends_with_its_caller(tmp_path: Path) -> None:
    async with calling(tmp_path) as (upstream, http, server):
        async with http.get(f"{server}/api/v1/pods?watch=1") as answer:
            assert await answer.content.readline() == b'{"type":"ADDED"}\n'
            assert upstream.watch is not None
            upstream.watch.write(b'{"type":"BOOKMARK"}\n')
            assert await answer.content.readline() == b'{"type":"BOOKMARK"}\n'
            answer.close()
        async with asyncio.timeout(10):
            while upstream.watch is not None:
                await asyncio.sleep(0.01)


async def test_a_watch_that_breaks_off_is_not_taken_for_complete(tmp_path: Path) -> None:
    async with calling(tmp_path) as (upstream, http, server):
        answer = await http.get(f"{server}/api/v1/pods?watch=1")
        await answer.content.readline()
        assert upstream.watch is not None
        upstream.watch.abort()
        with pytest.raises(aiohttp.ClientError):
            await answer.content.read()
        answer.close()


async def test_a_gateway_that_is_away_is_told_as_such(tmp_path: Path) -> None:
    async with calling(tmp_path) as (upstream, http, server):
        await upstream.http.stop()
        async with http.get(f"{server}/api/v1/nodes/bob-2") as answer:
            assert answer.status == 503 and (await answer.json())["reason"] == "ServiceUnavailable"


async def test_only_certificates_of_join_files_are_accepted(tmp_path: Path) -> None:
    settings = open_lite(tmp_path)
    now = SYSTEM_CLOCK.now()
    async with serving(settings) as (upstream, _, bundle):
        domain = pki.Authority(
            pki.load_certificate(settings.paths.ca_certificate.read_bytes()),
            pki.load_key(settings.paths.ca_key.read_bytes()),
        )
        nodes = join_bundle.nodes_authority(settings.paths, now)
        for authority, user, groups in (
            (domain, "system:node:bob-2", ("system:nodes",)),
            (nodes, "bob-2", ("system:nodes",)),
            (nodes, "system:node:bob-2", ()),
        ):
            key = pki.new_key("ec")
            made = pki.issue_client(authority, user, key.public_key(), groups=groups, now=now)
            given = replace(bundle, certificate=pki.certificate_pem(made), key=pki.key_pem(key))
            async with session(tls_context(given.connection())) as http:
                try:
                    async with http.get(f"{bundle.server}/api/v1/nodes/bob-2") as answer:
                        assert answer.status == 401
                except aiohttp.ClientError:
                    pass  # the handshake failed
        async with session(ssl.create_default_context(cadata=bundle.ca.decode())) as http:
            with pytest.raises(aiohttp.ClientError):
                await http.get(f"{bundle.server}/api/v1/nodes/bob-2")
        assert upstream.requests == []


async def test_the_join_file_of_a_lites_domain(tmp_path: Path) -> None:
    settings = open_lite(tmp_path)
    async with serving(settings) as (_, api, bundle):
        assert cluster_network.load_network(settings.paths)[1] == f"https://127.0.0.1:{api.port}"
        (tmp_path / "file").touch(0o600)
        bundle.write(tmp_path / "file")
    assert read_bundle(tmp_path / "file") == bundle
    assert (bundle.namespace, bundle.domain, bundle.agent_ca) == ("bob", "bob", b"control plane")
    serving_certificate = pki.load_certificate(bundle.serving_certificate)
    key = pki.public_key_of(pki.load_certificate(settings.paths.domain_certificate.read_bytes()))
    ca_key = pki.public_key_of(pki.load_certificate(settings.paths.ca_certificate.read_bytes()))
    assert pki.signed_by_key(serving_certificate, key) or pki.signed_by_key(serving_certificate, ca_key)
    assert pki.serves(serving_certificate)
    client = pki.load_certificate(bundle.certificate)
    assert not pki.signed_by_key(client, key) and not pki.signed_by_key(client, ca_key), "no use at gateways"
    assert not cluster_network.network_file(settings.paths).exists(), "a lite that is stopped accepts no machines"
    tls = AgentTls.of_bundle(bundle, settings.paths.prepare())
    assert tls.ca.read_bytes() == b"control plane", "the agent is called by the master, not by the lite"


def test_a_node_that_joins_a_lite_sees_one_namespace(tmp_path: Path) -> None:
    read = config.parse({"mode": "lite", "domainID": "bob", "join": "/n.join"}, tmp_path)
    assert read.agent is not None and read.only_namespace == ""
    given = Bundle("https://x", "bob-2", b"", b"", b"", b"", b"", namespace="bob", pod_cidr="100.96.16.0/20")
    assert joined_settings(read, read.agent, given).only_namespace == "bob"
    assert joined_settings(read, read.agent, replace(given, namespace="")).only_namespace == ""


def test_a_lite_has_other_nodes_only_if_it_is_configured_so(tmp_path: Path) -> None:
    alone, first = lite(tmp_path), open_lite(tmp_path)
    for settings, between, parts in ((alone, False, False), (first, True, True)):
        assert settings.agent is not None and settings.only_namespace == "bob"
        assert cluster_of(settings, settings.agent).between_machines is between
        assert ("node-api" in [part.name for part in registry.parts_of(settings)]) is parts


def test_headers_that_are_passed_on() -> None:
    request = Request("GET", "/", headers={"accept": "a", "cookie": "c", "x-forwarded-for": "f"})
    assert set(upstream_headers(request, "n")) == {
        "accept", "accept-encoding", "host", "impersonate-user", "impersonate-group",
    }  # fmt: skip


KNOWN = cluster_network.ClusterNetwork("100.96.0.0/14", 20, "100.112.0.0/16", 7, "100.96.0.1")


def a_node(name: str, cidr: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"podCIDR": cidr}}


def test_the_next_range() -> None:
    first = a_node("bob-1", "100.96.0.0/20")
    assert lite_domain.next_range("n", [first], KNOWN) == "100.96.16.0/20"
    assert lite_domain.next_range("n", [first, a_node("bob-2", "100.96.16.0/20")], KNOWN) == "100.96.32.0/20"
    assert lite_domain.next_range("n", [a_node("all", "100.96.0.0/14")], KNOWN) is None


@pytest.mark.parametrize(
    ("cidr", "problem"),
    [("100.96.16.0/20", ""), ("", "(none)"), ("10.0.0.0/20", "10.0.0.0/20"), ("100.96.0.0/20", "is this machine")],
)
def test_a_node_that_exists_is_used_if_its_range_fits(cidr: str, problem: str) -> None:
    if not problem:
        assert lite_domain._checked(a_node("n", cidr), KNOWN)
        return
    with pytest.raises(CliError) as found:
        lite_domain._checked(a_node("n", cidr), KNOWN)
    assert problem in str(found.value)


def test_a_file_of_before_has_no_server(tmp_path: Path) -> None:
    paths = lite(tmp_path).paths
    with pytest.raises(CliError, match="does not accept other machines now"):
        lite_domain.network(paths)
    pki_files.ensure_key(paths.pki / "x.key")
    cluster_network.write_network(paths, KNOWN, "https://127.0.0.1:6443")
    assert lite_domain.network(paths) == (KNOWN, "https://127.0.0.1:6443")
