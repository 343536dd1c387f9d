"""The two doors of KusciaAPI, with real sockets."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import grpc.aio
import pytest
from cryptography import x509
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from kusciaapi_kit import Place, served

from coterie.kube.api.meta import Object
from coterie.kuscia.api.types.domain import DOMAINS
from coterie.kuscia.kusciaapi import health, messages
from coterie.kuscia.kusciaapi.authorization import ApiCaller
from coterie.kuscia.kusciaapi.codes import ApiErrorCode, CallRefused, invalid
from coterie.kuscia.kusciaapi.operations import ApiOperation, OnLite, OperationContext
from coterie.kuscia.kusciaapi.settings import Protection
from coterie.kuscia.kusciaapi.table import OPERATIONS

EVERY = pytest.mark.parametrize("protection", list(Protection))
QUERY = "/api/v1/domain/query"
WATCH = "/api/v1/job/watch"
LOG = "/api/v1/log/task/query"


class Puppets:
    """Operations that do what a test needs, with the messages of real ones."""

    def __init__(self) -> None:
        self.callers: list[ApiCaller] = []
        self.streams = 0
        self.lines = 1 << 30
        self.operations = (
            *health.OPERATIONS,
            ApiOperation("DomainService", "QueryDomain", QUERY, ApiErrorCode.QUERY_DOMAIN, self.query, for_domains=True, on_lite=OnLite.FORWARD),
            ApiOperation("DomainService", "DeleteDomain", "/api/v1/domain/delete", ApiErrorCode.DELETE_DOMAIN, self.delete),
            ApiOperation("JobService", "WatchJob", WATCH, ApiErrorCode.QUERY_JOB, stream=self.watch, response_name="WatchJobEventResponse", for_domains=True, on_lite=OnLite.FORWARD),
            ApiOperation("LogService", "QueryLog", LOG, ApiErrorCode.QUERY_LOG, stream=self.logs),
        )  # fmt: skip

    async def query(self, here: OperationContext, caller: ApiCaller, request: Any) -> Object:
        self.callers.append(caller)
        if not request.domain_id:
            raise invalid("domain_id", "must be given")
        if request.domain_id == "bug":
            raise KeyError("a mistake of ours")
        return {"data": {"domain_id": request.domain_id, "master_domain_id": here.domain}}

    async def delete(self, here: OperationContext, caller: ApiCaller, request: Any) -> Object:
        return {}

    async def watch(self, here: OperationContext, caller: ApiCaller, request: Any) -> AsyncIterator[Object]:
        self.callers.append(caller)
        if request.timeout_seconds < 0:
            raise invalid("timeout_seconds", "must not be negative")
        self.streams += 1
        try:
            for number in range(self.lines):
                yield {"type": "ADDED", "object": {"job_id": f"job-{number}"}}
                yield {"type": "MODIFIED", "object": {"job_id": f"job-{number}"}}
                await asyncio.sleep(0)
        finally:
            self.streams -= 1

    async def logs(self, here: OperationContext, caller: ApiCaller, request: Any) -> AsyncIterator[Object]:
        yield {"status": {"message": "success"}, "log": "one"}
        raise CallRefused(ApiErrorCode.QUERY_LOG, "the pod is gone")


async def until(question: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not question():
            await asyncio.sleep(0.01)


@EVERY
async def test_operations_answer_over_http_and_grpc(tmp_path: Path, protection: Protection) -> None:
    async with served(Puppets().operations, tmp_path, protection=protection) as place:
        assert await place.post(QUERY, {"domain_id": "bob"}) == (
            200,
            {
                "status": {"code": 0, "message": "success", "details": []},
                "data": {
                    "domain_id": "bob", "role": "", "cert": "", "node_statuses": [], "deploy_token_statuses": [],
                    "annotations": {}, "master_domain_id": "alice",
                },
            },
        )  # fmt: skip
        # Both ways to write names, and fields of a later version.
        assert (await place.post(QUERY, {"domainId": "bob", "later": [1]}))[1]["data"]["domain_id"] == "bob"
        answer = await place.ask("DomainService", "QueryDomain", domain_id="carol")
        assert (answer.status.message, answer.data.domain_id) == ("success", "carol")


async def test_what_is_wrong_is_answered_with_the_codes_of_the_list(tmp_path: Path) -> None:
    async with served(Puppets().operations, tmp_path) as place, place.session() as session:

        async def post(path: str, body: bytes, kind: str = "application/json") -> tuple[int, bytes]:
            async with session.post(path, data=body, headers={"Content-Type": kind}) as answer:
                return answer.status, await answer.read()

        def status_of(body: bytes) -> tuple[int, str]:
            status = json.loads(body)["status"]
            return status["code"], status["message"]

        for body in (b"{", b"[]", b'"x"', b"\xff\xfe", b'{"domain_id": 1}', b"[" * 100_000):
            code, answer = await post(QUERY, body)
            assert (code, status_of(answer)[0]) == (200, 11101)
            assert "QueryDomainRequest" in status_of(answer)[1]
        code, answer = await post(WATCH, b"{")
        assert (code, status_of(answer)[0]) == (200, 11101)
        code, answer = await post(QUERY, b"\x08", "application/x-protobuf")
        assert (code, messages.ErrorResponse.FromString(answer).status.code) == (200, 11101)
        code, answer = await post(QUERY, b"")
        assert (code, status_of(answer)) == (200, (11100, "domain_id: must be given"))
        code, answer = await post(QUERY, b'{"domain_id": "bug"}')
        assert (code, status_of(answer)) == (200, (11101, "KusciaAPI failed inside; its log has the details"))
        assert (await post("/api/v1/nothing", b"{}"))[0] == 404
        async with session.get(QUERY) as refused:
            assert refused.status == 405
        async with session.post(QUERY, data=io.BytesIO(b" " * (33 << 20))) as refused:
            assert refused.status == 413
        async with session.get("/version") as version, session.get("/probe") as probe:
            assert (version.status, probe.status) == (200, 200)
            assert (await version.json())["version"]


async def test_protobuf_is_answered_with_protobuf(tmp_path: Path) -> None:
    async with served(Puppets().operations, tmp_path) as place, place.session() as session:
        asked = messages.message("QueryDomainRequest")(domain_id="bob").SerializeToString()
        async with session.post(QUERY, data=asked, headers={"Content-Type": "application/x-protobuf"}) as answer:
            assert answer.content_type == "application/x-protobuf"
            found = messages.message("QueryDomainResponse").FromString(await answer.read())
        assert found.data.domain_id == "bob"


async def test_health_says_whether_the_objects_can_be_read(tmp_path: Path) -> None:
    async with served(health.OPERATIONS, tmp_path) as place:
        assert (await place.post("/healthZ"))[1]["data"] == {"ready": False}
        alice = {
            "apiVersion": "kuscia.secretflow/v1alpha1",
            "kind": "Domain",
            "metadata": {"name": "alice"},
            "spec": {},
        }
        await place.client.create(DOMAINS.as_dynamic, alice)
        assert (await place.post("/healthZ"))[1]["data"] == {"ready": True}
        assert (await place.ask("HealthService", "healthZ")).data.ready


# Who is let in.


@pytest.mark.parametrize("protection", [Protection.MTLS, Protection.TLS])
@pytest.mark.parametrize("token", ["", "wrong", "\u00fc"])
async def test_who_has_no_token_is_not_let_in(tmp_path: Path, protection: Protection, token: str) -> None:
    puppets = Puppets()
    async with served(puppets.operations, tmp_path, protection=protection) as place:
        async with place.session(token=token) as session:
            for path in (QUERY, WATCH, "/healthZ", "/api/v1/nothing"):
                async with session.post(path, json={"domain_id": "bob"}) as answer:
                    assert (answer.status, await answer.read()) == (401, b"")
        if token.isascii():
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await place.ask("DomainService", "QueryDomain", token=token, domain_id="bob")
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert puppets.callers == []


async def test_without_tls_nobody_is_asked_for_a_token(tmp_path: Path) -> None:
    async with (
        served(Puppets().operations, tmp_path, protection=Protection.NOTLS) as place,
        place.session(token="") as session,
        session.post(QUERY, json={"domain_id": "bob"}) as answer,
    ):
        assert answer.status == 200
        assert (await place.ask("DomainService", "QueryDomain", token="", domain_id="bob")).status.code == 0


async def test_only_mutual_tls_asks_for_a_certificate(tmp_path: Path) -> None:
    for protection, let_in in ((Protection.MTLS, False), (Protection.TLS, True)):
        async with served(Puppets().operations, tmp_path, protection=protection) as place:
            async with place.session(client="") as session:
                try:
                    async with session.post(QUERY, json={"domain_id": "bob"}) as answer:
                        assert answer.status == 200 and let_in
                except aiohttp.ClientError:
                    assert not let_in
            async with place.channel(client="") as channel:
                call = channel.unary_unary(f"/{messages.PACKAGE}.DomainService/QueryDomain")
                try:
                    await call(b"", metadata=(("token", place.token),), timeout=10)
                    assert let_in
                except grpc.aio.AioRpcError as problem:
                    assert not let_in and problem.code() is grpc.StatusCode.UNAVAILABLE


async def test_the_certificate_names_what_callers_look_for(tmp_path: Path) -> None:
    async with served((), tmp_path) as place:
        shown = x509.load_pem_x509_certificate(place.paths.certificate("kusciaapi-server").read_bytes())
        assert shown.subject.rfc4514_string() == "CN=KusciaAPI"
        names = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert set(names.get_values_for_type(x509.DNSName)) == {"kusciaapi", "localhost"}
        assert not place.paths.key("kusciaapi-client").stat().st_mode & 0o077


# gRPC.


async def test_a_generic_client_learns_everything_by_reflection(tmp_path: Path) -> None:
    async with served(Puppets().operations, tmp_path) as place, place.channel() as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)

        async def reflected(**asked: Any) -> Any:
            request = reflection_pb2.ServerReflectionRequest(**asked)
            return await anext(aiter(stub.ServerReflectionInfo(iter([request]))))

        listed = await reflected(list_services="")
        names = {each.name for each in listed.list_services_response.service}
        assert {f"{messages.PACKAGE}.{name}" for name in ("DomainService", "JobService", "HealthService")} <= names
        pool = descriptor_pool.DescriptorPool()
        found = (await reflected(file_containing_symbol=f"{messages.PACKAGE}.DomainService")).file_descriptor_response
        files = [descriptor_pb2.FileDescriptorProto.FromString(each) for each in found.file_descriptor_proto]
        added: set[str] = set()

        async def add(file: Any) -> None:
            for name in file.dependency:
                if name not in added:
                    further = (await reflected(file_by_filename=name)).file_descriptor_response.file_descriptor_proto
                    await add(descriptor_pb2.FileDescriptorProto.FromString(further[0]))
            if file.name not in added:
                added.add(file.name)
                pool.Add(file)  # type: ignore[no-untyped-call]

        for file in files:
            await add(file)
        method = pool.FindServiceByName(f"{messages.PACKAGE}.DomainService").methods_by_name["QueryDomain"]
        request = message_factory.GetMessageClass(method.input_type)(domain_id="bob")
        call = channel.unary_unary(f"/{messages.PACKAGE}.DomainService/QueryDomain")
        data = await call(request.SerializeToString(), metadata=(("token", place.token),))
        assert message_factory.GetMessageClass(method.output_type).FromString(data).data.domain_id == "bob"


async def test_garbage_over_grpc_is_an_argument_that_is_no_message(tmp_path: Path) -> None:
    async with served(Puppets().operations, tmp_path) as place, place.channel() as channel:
        call = channel.unary_unary(f"/{messages.PACKAGE}.DomainService/QueryDomain")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(b"\x08", metadata=(("token", place.token),))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


# Streams.


def objects(text: str) -> list[Any]:
    found, reader = [], json.JSONDecoder()
    while text:
        each, end = reader.raw_decode(text)
        found.append(each)
        text = text[end:]
    return found


async def test_a_stream_is_objects_one_after_the_other(tmp_path: Path) -> None:
    puppets = Puppets()
    puppets.lines = 2
    async with served(puppets.operations, tmp_path) as place, place.session() as session:
        async with session.post(WATCH, json={}) as answer:
            assert (answer.status, answer.content_type) == (200, "application/json")
            assert answer.headers["Transfer-Encoding"] == "chunked"
            assert await answer.text() == (
                '{"object":{"job_id":"job-0"}}{"type":1,"object":{"job_id":"job-0"}}'
                '{"object":{"job_id":"job-1"}}{"type":1,"object":{"job_id":"job-1"}}'
            )
        # What goes wrong is the last piece, be there a field for it or not.
        async with session.post(LOG, json={}) as answer:
            assert objects(await answer.text()) == [
                {"status": {"message": "success"}, "log": "one"},
                {"status": {"code": 13200, "message": "the pod is gone"}},
            ]
        async with session.post(WATCH, json={"timeout_seconds": -1}) as answer:
            assert objects(await answer.text())[0]["status"]["code"] == 11100


async def stream(place: Place, channel: grpc.aio.Channel, **request: Any) -> Any:
    asked = messages.message("WatchJobRequest")(**request).SerializeToString()
    call = channel.unary_stream(f"/{messages.PACKAGE}.JobService/WatchJob")
    return call(asked, metadata=(("token", place.token),))


async def test_a_stream_over_grpc_ends_with_its_reader(tmp_path: Path) -> None:
    puppets = Puppets()
    async with served(puppets.operations, tmp_path) as place, place.channel() as channel:
        watching = await stream(place, channel)
        first = messages.message("WatchJobEventResponse").FromString(await watching.read())
        assert first.object.job_id == "job-0"
        assert puppets.streams == 1
        watching.cancel()
        await until(lambda: puppets.streams == 0)
        refused = await stream(place, channel, timeout_seconds=-1)
        with pytest.raises(grpc.aio.AioRpcError) as told:
            await refused.read()
        assert told.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert told.value.details() == "11100: timeout_seconds: must not be negative"


async def test_a_stream_over_http_ends_with_its_reader_and_waits_for_a_slow_one(tmp_path: Path) -> None:
    puppets = Puppets()
    async with served(puppets.operations, tmp_path) as place:
        async with place.session() as session:
            answer = await session.post(WATCH, json={})
            assert await answer.content.readany()
            assert puppets.streams == 1
            answer.close()
        await until(lambda: puppets.streams == 0)
        assert place.doors is not None
        await until(lambda: place.doors is not None and place.doors.dispatcher.under_way == 0)


async def test_streams_end_when_the_server_stops(tmp_path: Path) -> None:
    puppets = Puppets()
    async with served(puppets.operations, tmp_path) as place:
        session, channel = place.session(), place.channel()
        answer = await session.post(WATCH, json={})
        watching = await stream(place, channel)
        await watching.read()
        assert puppets.streams == 2
        watching.cancel()
    assert puppets.streams == 0
    answer.close()
    await session.close()
    await channel.close()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/v1/config/create", {"data": {"key": "k", "value": "swordfish"}}),
        ("/api/v1/config/update", {"data": "swordfish"}),
        ("/api/v1/route/create", {"endpoint": {"ports": "swordfish"}}),
    ],
)
async def test_a_body_that_cannot_be_read_is_not_quoted_where_it_may_hold_secrets(
    path: str, body: Object, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with served(OPERATIONS, tmp_path, protection=Protection.NOTLS) as place:
        status, answer = await place.post(path, body)
        assert (status, answer["status"]["code"]) == (200, 11101)
        assert "openapi.json" in answer["status"]["message"]
        seen = [json.dumps(answer), *(str(vars(record)) for record in caplog.records)]
        assert any("11101" in each for each in seen[1:])  # it was logged
        assert not [each for each in seen if "swordfish" in each]
