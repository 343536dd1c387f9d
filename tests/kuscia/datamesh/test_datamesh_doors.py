"""Who gets in: TLS, certificates, pods; and the HTTP port."""

from __future__ import annotations

import json
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import grpc.aio
import pyarrow.flight as fl
import pytest
from datamesh_kit import World, reading
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from coterie.base import pki
from coterie.base.clock import SYSTEM_CLOCK
from coterie.kube.api.types.pods import PODS
from coterie.kuscia.datamesh import messages
from coterie.kuscia.identity import engine_certificates
from coterie.kuscia.identity.engine_certificates import EngineIdentity, EnginePair

BASE = "/api/v1/datamesh"


def context(world: World, pair: EnginePair | None, directory: Path) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(world.paths.ca_certificate))
    if pair is not None:
        (directory / "engine.pem").write_bytes(pair.certificate + pair.key)
        made.load_cert_chain(directory / "engine.pem")
    return made


async def post(world: World, pair: EnginePair | None, directory: Path, path: str, **more: Any) -> tuple[int, bytes]:
    url = f"https://localhost:{world.mesh.http_port}{path}"
    async with aiohttp.ClientSession() as session:
        method = more.pop("method", "POST")
        async with session.request(method, url, ssl=context(world, pair, directory), **more) as reply:
            return reply.status, await reply.read()


async def test_http_speaks_json_with_kuscias_names(alice: World, tmp_path: Path) -> None:
    await alice.table("people")
    body = {"domaindata_id": "people", "of_the_future": 1}
    status, data = await post(alice, await alice.engine(), tmp_path, f"{BASE}/domaindata/query", json=body)
    answer = json.loads(data)
    assert status == 200
    assert answer["status"] == {"code": 0, "message": "success", "details": []}
    assert answer["data"]["file_format"] == "CSV"
    assert answer["data"]["columns"][0] == {"name": "id", "type": "int64", "comment": "", "not_nullable": False}


async def test_http_speaks_protobuf_too(alice: World, tmp_path: Path) -> None:
    await alice.table("people")
    body = messages.mesh("QueryDomainDataRequest")(domaindata_id="people").SerializeToString()
    headers = {"Content-Type": "application/x-protobuf"}
    path = f"{BASE}/domaindata/query"
    status, data = await post(alice, await alice.engine(), tmp_path, path, data=body, headers=headers)
    assert (status, messages.mesh("QueryDomainDataResponse").FromString(data).data.author) == (200, "alice")


async def test_a_refusal_is_an_answer(alice: World, tmp_path: Path) -> None:
    await alice.table("people")
    body = {"domaindata_id": "people"}
    status, data = await post(alice, await alice.engine("bob"), tmp_path, f"{BASE}/domaindata/query", json=body)
    assert (status, json.loads(data)["status"]["code"]) == (200, 12201)
    assert "has no grant" in json.loads(data)["status"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/healthZ", "", 200),
        ("GET", "/healthZ", "", 200),
        ("POST", f"{BASE}/domaindata/query", "{", 400),
        ("POST", f"{BASE}/domaindata/query", '{"domaindata_id": 7}', 400),
        ("GET", f"{BASE}/domaindata/query", "", 405),
        ("POST", f"{BASE}/coffee/make", "{}", 404),
    ],
)  # fmt: skip
async def test_http_statuses(alice: World, tmp_path: Path, method: str, path: str, body: str, status: int) -> None:
    assert (await post(alice, await alice.engine(), tmp_path, path, data=body, method=method))[0] == status


async def test_without_a_certificate_nobody_gets_in(alice: World, tmp_path: Path) -> None:
    with pytest.raises((aiohttp.ClientError, OSError)):
        await post(alice, None, tmp_path, "/healthZ")
    with (
        fl.connect(
            f"grpc+tls://localhost:{alice.grpc_port}", tls_root_certs=alice.paths.ca_certificate.read_bytes()
        ) as client,
        pytest.raises(fl.FlightUnavailableError),
    ):
        list(client.do_action(fl.Action("ActionQueryDomainDataRequest", b"")))


async def test_a_certificate_of_another_authority_does_not_get_in(alice: World, tmp_path: Path) -> None:
    """Even when it says all that ours would say."""
    await alice.table("people")
    await alice.engine()
    pod = await alice.client.get(PODS, "task-1-0", "alice")
    engine = EngineIdentity("alice", "task-1-0", pod.metadata.uid, "task-1", "job-1")
    stranger = pki.self_signed_ca("alice", pki.new_key(), now=SYSTEM_CLOCK.now())
    pair = engine_certificates.issue_client_pair(stranger, engine, SYSTEM_CLOCK.now())
    with pytest.raises(fl.FlightUnavailableError):
        await reading(alice, pair, "people")
    with pytest.raises((aiohttp.ClientError, OSError)):
        await post(alice, pair, tmp_path, "/healthZ")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        pytest.param({"domain": "bob"}, 'of domain "bob"', id="of another domain"),
        pytest.param({"pod": "nobody"}, "does not run", id="of a pod that never was"),
        pytest.param({"uid": "another"}, "does not run", id="of an earlier pod of the same name"),
    ],
)
async def test_a_certificate_of_nobody_reads_nothing(
    alice: World, tmp_path: Path, changes: dict[str, str], why: str
) -> None:
    await alice.table("people")
    await alice.engine()
    pod = await alice.client.get(PODS, "task-1-0", "alice")
    pair = alice.issue(replace(EngineIdentity("alice", "task-1-0", pod.metadata.uid), **changes))
    with pytest.raises(fl.FlightUnauthorizedError, match=why):
        await reading(alice, pair, "people")
    status, data = await post(alice, pair, tmp_path, f"{BASE}/domaindata/query", json={"domaindata_id": "people"})
    assert status == 401
    assert why in json.loads(data)["status"]["message"]


def of_node(world: World, node: str, engine: EngineIdentity) -> EnginePair:
    """A certificate as a node that joined makes it."""
    authority = engine_certificates.issue_node_authority(world.authority(), node, SYSTEM_CLOCK.now())
    return engine_certificates.issue_client_pair(authority, engine, SYSTEM_CLOCK.now())


async def test_a_node_that_joined_vouches_for_its_own_pods(alice: World, tmp_path: Path) -> None:
    await alice.table("people")
    await alice.engine(node="node-2")
    pod = await alice.client.get(PODS, "task-1-0", "alice")
    pair = of_node(alice, "node-2", EngineIdentity("alice", "task-1-0", pod.metadata.uid))
    assert (await reading(alice, pair, "people")).num_rows > 0
    status, _ = await post(alice, pair, tmp_path, f"{BASE}/domaindata/query", json={"domaindata_id": "people"})
    assert status == 200


@pytest.mark.parametrize("node", ["node-1", "node-" + "x" * 100, ""], ids=["another-node", "long-name", "no-node"])
async def test_a_node_that_joined_does_not_vouch_for_pods_of_others(alice: World, tmp_path: Path, node: str) -> None:
    await alice.table("people")
    await alice.engine(node=node)
    pod = await alice.client.get(PODS, "task-1-0", "alice")
    signer = "node-2" if len(node) < 64 else node[:64]
    pair = of_node(alice, signer, EngineIdentity("alice", "task-1-0", pod.metadata.uid))
    why = f'node "{signer}" signed it'
    with pytest.raises(fl.FlightUnauthorizedError, match=why):
        await reading(alice, pair, "people")
    status, data = await post(alice, pair, tmp_path, f"{BASE}/domaindata/query", json={"domaindata_id": "people"})
    assert status == 401
    assert why in json.loads(data)["status"]["message"]


async def test_a_node_cannot_take_the_name_of_another(alice: World, tmp_path: Path) -> None:
    """Neither by naming it as issuer of its own signature, nor by an authority that it signs itself."""
    await alice.table("people")
    await alice.engine(node="node-1")
    pod = await alice.client.get(PODS, "task-1-0", "alice")
    engine, now = EngineIdentity("alice", "task-1-0", pod.metadata.uid), SYSTEM_CLOCK.now()
    one, two = (engine_certificates.issue_node_authority(alice.authority(), f"node-{n}", now) for n in (1, 2))
    renamed = engine_certificates.issue_client_pair(pki.Authority(one.certificate, two.key), engine, now)
    below = engine_certificates.issue_node_authority(two, "node-1", now)
    signed = engine_certificates.issue_client_pair(below, engine, now)
    longer = EnginePair(signed.certificate + pki.certificate_pem(two.certificate), signed.key)
    for pair in (renamed, longer):
        with pytest.raises(fl.FlightUnavailableError):
            await reading(alice, pair, "people")
        with pytest.raises((aiohttp.ClientError, OSError)):
            await post(alice, pair, tmp_path, "/healthZ")


async def test_a_certificate_without_a_pod_reads_nothing(alice: World) -> None:
    """The domain's authority signs other things too."""
    await alice.table("people")
    key = pki.new_key()
    certificate = pki.issue_client(alice.authority(), "operator", key.public_key(), now=SYSTEM_CLOCK.now())
    pair = EnginePair(pki.certificate_pem(certificate), pki.key_pem(key))
    with pytest.raises(fl.FlightUnauthorizedError, match="names no pod"):
        await reading(alice, pair, "people")


async def test_a_pod_that_is_gone_is_nobody(alice: World) -> None:
    await alice.table("people")
    pair = await alice.engine()
    await alice.client.delete(PODS, "task-1-0", "alice", grace=0)
    with pytest.raises(fl.FlightUnauthorizedError, match="does not run any more"):
        await reading(alice, pair, "people")


async def test_what_a_certificate_says_of_its_task_is_not_believed(alice: World) -> None:
    """Who began the task stands at the pod."""
    await alice.table("people")
    await alice.engine("bob")
    pod = await alice.client.get(PODS, "task-1-0", "alice")
    pair = alice.issue(EngineIdentity("alice", "task-1-0", pod.metadata.uid, "a-task-of-alice", "a-job-of-alice"))
    with pytest.raises(fl.FlightUnauthorizedError, match='"bob" began the task'):
        await reading(alice, pair, "people")


async def test_reflection_names_the_services(alice: World) -> None:
    async with alice.channel(await alice.engine()) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)

        async def asked() -> Any:
            yield reflection_pb2.ServerReflectionRequest(list_services="")
            yield reflection_pb2.ServerReflectionRequest(file_containing_symbol=f"{messages.DATAMESH}.DomainData")

        answers = [answer async for answer in stub.ServerReflectionInfo(asked())]
    names = {each.name for each in answers[0].list_services_response.service}
    assert {f"{messages.DATAMESH}.DomainDataService", "arrow.flight.protocol.FlightService"} <= names
    assert answers[1].file_descriptor_response.file_descriptor_proto


async def test_nonsense_over_grpc_is_told_so(alice: World) -> None:
    async with alice.channel(await alice.engine()) as channel:
        ask = channel.unary_unary(f"/{messages.DATAMESH}.DomainDataService/QueryDomainData")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(b"\xff\xff\xff")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
