"""Clients of KusciaAPI that nobody here wrote: the stubs of the package `kuscia`, what reflection tells, and curl.

Each makes a good request of every operation that it knows, against the real doors with mutual TLS and the token.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from kusciaapi_kit import Place, served
from kusciaapi_stage import REQUESTS, prepare

from coterie.kuscia.api.types.data import DOMAIN_DATA_GRANTS, DOMAIN_DATA_SOURCES, DOMAIN_DATAS
from coterie.kuscia.api.types.deployment import KUSCIA_DEPLOYMENTS
from coterie.kuscia.api.types.domain import CLUSTER_DOMAIN_ROUTES
from coterie.kuscia.api.types.job import APP_IMAGES, KUSCIA_JOBS
from coterie.kuscia.kusciaapi import messages
from coterie.kuscia.kusciaapi.settings import Protection
from coterie.kuscia.kusciaapi.table import OPERATIONS

pytestmark = pytest.mark.conformance

STUBS = (
    "health", "job", "domain", "domain_route", "domaindata", "domaindatasource", "domaindatagrant", "certificate", "serving",
)  # fmt: skip
NOT_NOW = {
    "RestartJob": 11211,
    "SuspendJob": 11210,
    "ApproveJob": 11206,
    "SetBandwidthLimit": 13901,
    "PlanJob": 11100,
    "ListEvidence": 13920,
    "QueryEvidence": 13920,
    "ProveEvidence": 13921,
    "ExportEvidence": 13922,
    "QueryEvidenceState": 13920,
    "QueryPartnerLog": 13910,
    "ReviewPartnerLog": 13912,
    "DeletePartnerLog": 13912,
    "QueryLog": 13200,
    "QueryPodNode": 13201,
}
"""Well asked, but the job on the stage is new, was begun here, and nothing of it has run."""
METHODS = {each.method for each in OPERATIONS}
BY_SERVICE: dict[str, list[str]] = {}
for _each in OPERATIONS:
    BY_SERVICE.setdefault(_each.service, []).append(_each.method)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with served(OPERATIONS, tmp_path, namespaces=("bob", "carol")) as made:
        yield made


async def afresh(place: Place) -> None:
    for kind, namespace in (
        (KUSCIA_JOBS, "cross-domain"),
        (KUSCIA_DEPLOYMENTS, "cross-domain"),
        (DOMAIN_DATA_GRANTS, "alice"),
        (DOMAIN_DATAS, "alice"),
        (DOMAIN_DATA_SOURCES, "alice"),
        (CLUSTER_DOMAIN_ROUTES, ""),
        (APP_IMAGES, ""),
    ):
        await place.client.delete_collection(kind, namespace)
    (place.paths.data / "table.csv").write_text("id\n1\n")
    await prepare(place.world, OPERATIONS)


Ask = Callable[[str, str, dict[str, Any]], Any]
"""Service, method, request as JSON -> the answer as JSON, of a stream the first piece."""


async def drive(place: Place, methods: dict[str, list[str]], ask: Ask) -> None:
    """Each operation on a fresh stage; all codes are compared at once."""
    codes = {}
    for service, names in methods.items():
        for method in names:
            await afresh(place)
            answer = await ask(service, method, REQUESTS[method])
            codes[method] = answer.get("object", {}).get("job_id") or int(answer.get("status", {}).get("code", 0))
    expected = {method: NOT_NOW.get(method, 0) for names in methods.values() for method in names}
    assert codes == expected | ({"WatchJob": "job"} if "WatchJob" in expected else {})


# The stubs.


@pytest.mark.parametrize("name", STUBS)
async def test_the_stubs_of_kuscia(place: Place, name: str) -> None:
    theirs = importlib.import_module(f"kuscia.proto.api.v1alpha1.kusciaapi.{name}_pb2")
    callers = importlib.import_module(f"kuscia.proto.api.v1alpha1.kusciaapi.{name}_pb2_grpc")
    known = {
        service.name: [each for each in service.methods if each.name in METHODS]
        for service in theirs.DESCRIPTOR.services_by_name.values()
    }
    metadata = (("token", place.token),)
    async with place.channel() as channel:
        stubs = {service: getattr(callers, f"{service}Stub")(channel) for service in known}

        async def ask(service: str, method: str, request: dict[str, Any]) -> Any:
            described = theirs.DESCRIPTOR.services_by_name[service].methods_by_name[method]
            message = json_format.ParseDict(request, message_factory.GetMessageClass(described.input_type)())
            call = getattr(stubs[service], method)(message, metadata=metadata)
            answer = await first(call) if described.server_streaming else await call
            return json_format.MessageToDict(answer, preserving_proto_field_name=True)

        await drive(place, {service: [each.name for each in methods] for service, methods in known.items()}, ask)


async def first(call: Any) -> Any:
    async for piece in call:
        call.cancel()
        return piece


# Reflection.


async def test_a_client_that_knows_nothing_but_what_reflection_tells(place: Place) -> None:
    secure = grpc.ssl_channel_credentials(
        place.paths.ca_certificate.read_bytes(),
        place.paths.key("kusciaapi-client").read_bytes(),
        place.paths.certificate("kusciaapi-client").read_bytes(),
    )
    with grpc.secure_channel(f"127.0.0.1:{place.settings.grpc_port}", secure) as channel:
        database = await asyncio.to_thread(ProtoReflectionDescriptorDatabase, channel)
        pool = descriptor_pool.DescriptorPool(database)
        services = [
            each for each in await asyncio.to_thread(database.get_services) if each.startswith(messages.PACKAGE)
        ]
        assert {each.rpartition(".")[2] for each in services} == set(BY_SERVICE)

        def blocking(service: str, method: str, request: dict[str, Any]) -> Any:
            full = f"{messages.PACKAGE}.{service}"
            described = pool.FindServiceByName(full).methods_by_name[method]
            asked = message_factory.GetMessageClass(described.input_type)
            told = message_factory.GetMessageClass(described.output_type)
            make = channel.unary_stream if described.server_streaming else channel.unary_unary
            call = make(
                f"/{full}/{method}",
                request_serializer=asked.SerializeToString,
                response_deserializer=told.FromString,
            )
            body = json_format.ParseDict(request, asked(), descriptor_pool=pool)
            answer = call(body, metadata=(("token", place.token),), timeout=30)
            if described.server_streaming:
                stream, answer = answer, next(answer)
                stream.cancel()
            return json_format.MessageToDict(answer, preserving_proto_field_name=True, descriptor_pool=pool)

        async def ask(service: str, method: str, request: dict[str, Any]) -> Any:
            return await asyncio.to_thread(blocking, service, method, request)

        await drive(place, BY_SERVICE, ask)


# curl, as the documents of Kuscia have it.

CURL = """\
curl -s -X POST 'https://localhost:{port}{path}' \\
  --header "Token: $(cat ${{CTR_CERTS_ROOT}}/token)" \\
  --header 'Content-Type: application/json' \\
  --cert ${{CTR_CERTS_ROOT}}/{pair}.crt \\
  --key ${{CTR_CERTS_ROOT}}/{pair}.key \\
  --cacert ${{CTR_CERTS_ROOT}}/ca.crt \\
  -d '{body}'
"""
needs_curl = pytest.mark.skipif(not shutil.which("curl"), reason="there is no curl")


async def shell(place: Place, script: str) -> str:
    child = await asyncio.create_subprocess_exec(
        "bash", "-c", script, env={"CTR_CERTS_ROOT": str(place.paths.certs), "PATH": "/usr/bin:/bin"},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, problem = await child.communicate()
    assert child.returncode == 0, problem.decode()
    return out.decode()


@needs_curl
@pytest.mark.parametrize("service", BY_SERVICE)
async def test_curl(place: Place, service: str) -> None:
    paths = {each.method: each.path for each in OPERATIONS}

    async def ask(service: str, method: str, request: dict[str, Any]) -> Any:
        script = CURL.format(
            port=place.settings.http_port, path=paths[method], pair="kusciaapi-server", body=json.dumps(request)
        )
        return json.JSONDecoder().raw_decode(await shell(place, script))[0]

    await drive(place, {service: BY_SERVICE[service]}, ask)


@needs_curl
async def test_curl_without_tls_needs_no_token(tmp_path: Path) -> None:
    async with served(OPERATIONS, tmp_path, protection=Protection.NOTLS) as place:
        told = await shell(place, f"curl -s -X POST http://127.0.0.1:{place.settings.http_port}/healthZ -d '{{}}'")
        assert json.loads(told)["status"] == {"code": 0, "message": "success", "details": []}


@needs_curl
async def test_curl_with_the_wrong_token_gets_an_empty_401(place: Place) -> None:
    told = await shell(
        place,
        f"curl -s -i -X POST https://localhost:{place.settings.http_port}/healthZ -H 'Token: guess' -d '{{}}' "
        "--cert $CTR_CERTS_ROOT/kusciaapi-client.crt --key $CTR_CERTS_ROOT/kusciaapi-client.key --cacert $CTR_CERTS_ROOT/ca.crt",
    )
    head, _, body = told.partition("\r\n\r\n")
    assert head.splitlines()[0].startswith("HTTP/1.1 401") and body == ""


@needs_curl
async def test_the_call_in_the_guide(place: Place) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "api.md").read_text()
    script = re.search(r"```sh\n(.*?)```", guide, re.DOTALL)
    assert script is not None
    await afresh(place)
    text = script[1].replace("curl -X", "curl -s -X").replace("~/.coterie/alice/var/certs", str(place.paths.certs))
    text = text.replace("127.0.1.1:8082", f"127.0.0.1:{place.settings.http_port}").replace("common-customers", "job")
    assert json.loads(await shell(place, text))["data"]["job_id"] == "job"
