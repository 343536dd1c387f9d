"""Connections to webhooks and aggregated servers: where they go, whom they trust, and what bounds them."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from server_kit import Api
from webhook_server import hang, webhook_server

from coterie.kube.apiserver import outgoing
from coterie.kube.apiserver.outgoing import Outgoing, OutgoingError, OutgoingTimeout

Object = dict[str, Any]
SERVICES = "/api/v1/namespaces/default/services"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"


def callers(api: Api) -> Outgoing:
    return api.server.outgoing


async def post(calls: Outgoing, config: Object, ca: bytes, timeout: float = 5.0) -> bytes:
    return await calls.post(outgoing.destination(config), ca, b'{"request":{}}', timeout=timeout)


async def test_an_answer_comes_back(api: Api) -> None:
    async with webhook_server() as hooks:
        config = hooks.on("/ok", lambda review: {"got": review})
        assert await post(callers(api), config, hooks.ca) == b'{"got":{"request":{}}}'


async def test_chunks_and_answers_that_end_with_the_connection_are_read(api: Api) -> None:
    async with webhook_server() as hooks:
        chunked = {"Content-Length": "", "Transfer-Encoding": "chunked"}
        config = hooks.on("/chunked", lambda _: (200, chunked, b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"))
        assert await post(callers(api), config, hooks.ca) == b"abcde"
        config = hooks.on("/closes", lambda _: (200, {"Content-Length": ""}, b"until the end"))
        assert await post(callers(api), config, hooks.ca) == b"until the end"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((302, {"Location": "https://127.0.0.1/elsewhere"}, b""), "redirects are not followed"),
        ((500, {}, b"broken"), "the server answered 500: broken"),
        ((200, {}, b"x" * (10 << 20)), "larger than"),
        ((200, {"Content-Length": ""}, b"x" * (10 << 20)), "larger than"),
        ((200, {"X-Long": "x" * (1 << 20)}, b""), "header"),
        ((200, {"Content-Length": "10", "Connection": ""}, b"short"), "unexpected EOF"),
        (None, "EOF"),
    ],
)
async def test_what_is_no_answer_is_an_error(api: Api, answer: Any, words: str) -> None:
    async with webhook_server() as hooks:
        config = hooks.on("/bad", lambda _: answer)
        with pytest.raises(OutgoingError, match=words):
            await post(callers(api), config, hooks.ca)


async def test_time_is_bounded(api: Api) -> None:
    async with webhook_server() as hooks:
        with pytest.raises(OutgoingTimeout, match="context deadline exceeded"):
            await post(callers(api), hooks.on("/hangs", hang), hooks.ca, timeout=0.05)


async def test_only_the_bundle_is_trusted_and_only_for_the_name(api: Api) -> None:
    async with webhook_server() as hooks, webhook_server("other.example") as other:
        config = hooks.on("/ok", lambda _: {})
        with pytest.raises(OutgoingError, match="failed to verify certificate"):
            await post(callers(api), config, other.ca)
        with pytest.raises(OutgoingError, match="failed to verify certificate"):
            await post(callers(api), config, b"")
        with pytest.raises(OutgoingError, match="failed to verify certificate"):
            await post(callers(api), other.on("/ok", lambda _: {}), other.ca)
        with pytest.raises(OutgoingError, match="root certificates"):
            await post(callers(api), config, b"no certificate")


async def test_who_does_not_listen_is_told(api: Api) -> None:
    unused = socket.create_server(("127.0.0.1", 0))
    port = unused.getsockname()[1]
    unused.close()
    with pytest.raises(OutgoingError, match=f"dial tcp 127.0.0.1:{port}: connect: connection refused"):
        await post(callers(api), {"url": f"https://127.0.0.1:{port}/"}, b"")


@pytest.mark.parametrize("url", ["http://x.example/", "https:///path", "https://[x/", "nonsense"])
def test_a_url_is_https(url: str) -> None:
    with pytest.raises(OutgoingError):
        outgoing.destination({"url": url})


def test_the_path_of_a_service_begins_with_a_slash() -> None:
    where = outgoing.destination({"service": {"namespace": "ns", "name": "svc", "path": "check"}})
    assert where.url == "https://svc.ns.svc:443/check"


# -- services -----------------------------------------------------------------------------------------------------


async def service(api: Api, addresses: list[str], *, ready: bool = True, port: int = 8443) -> None:
    ports = [{"name": "https", "port": 443, "targetPort": port}]
    await api.ok("POST", SERVICES, {"metadata": {"name": "hook"}, "spec": {"ports": ports}})
    await api.ok(
        "POST",
        SLICES,
        {
            "metadata": {"name": "hook-1", "labels": {"kubernetes.io/service-name": "hook"}},
            "addressType": "IPv4",
            "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
            "endpoints": [{"addresses": [address], "conditions": {"ready": ready}} for address in addresses],
        },
    )


HOOK = {"service": {"namespace": "default", "name": "hook", "path": "/ok"}}


async def test_a_service_is_dialled_at_its_endpoint_under_its_own_name(api: Api) -> None:
    async with webhook_server("hook.default.svc") as hooks:
        hooks.on("/ok", lambda _: {"fine": True})
        dialled = []

        async def dial(address: str, port: int) -> socket.socket:
            dialled.append((address, port))
            if address == "10.1.0.1":
                raise ConnectionRefusedError(111, "refused")
            return await outgoing.dial_machine("127.0.0.1", hooks.port)

        await service(api, ["10.1.0.1", "10.1.0.2"])
        state = api.server.state
        calls = Outgoing(
            state.collection("/registry/core/services"),
            state.collection("/registry/discovery.k8s.io/endpointslices"),
            state.collection("/registry/core/endpoints"),
            dial,
        )
        assert await post(calls, HOOK, hooks.ca) == b'{"fine":true}'
        assert dialled[-1] == ("10.1.0.2", 8443)


async def test_a_service_without_a_way_is_told(api: Api) -> None:
    with pytest.raises(OutgoingError, match='service "hook" not found'):
        await post(callers(api), HOOK, b"")
    await service(api, ["10.1.0.1"], ready=False)
    with pytest.raises(OutgoingError, match='no endpoints available for service "hook"'):
        await post(callers(api), HOOK, b"")
    with pytest.raises(OutgoingError, match='no service port 8443 found for service "hook"'):
        await post(callers(api), {"service": {**HOOK["service"], "port": 8443}}, b"")


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "::1", "0.0.0.0", "::ffff:127.0.0.1", "224.0.0.1"])
def test_a_service_never_leads_to_the_machine_itself(address: str) -> None:
    assert not outgoing.is_remote(address)


def test_a_service_leads_to_pods_and_machines() -> None:
    assert outgoing.is_remote("10.0.0.1") and outgoing.is_remote("192.168.1.1") and outgoing.is_remote("fd00::1")


async def test_a_name_of_the_machine_is_no_way_around_that(api: Api) -> None:
    spec = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": 443}]}
    await api.ok("POST", SERVICES, {"metadata": {"name": "hook"}, "spec": spec})
    with pytest.raises(OutgoingError, match="localhost is an address of the machine itself"):
        await post(callers(api), HOOK, b"")
