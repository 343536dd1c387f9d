"""Requests as nobody would send them, made from the OpenAPI document by schemathesis, and bytes that are no requests.

Whatever comes: no answer of the 5xx kind, no failure inside, and a request that is refused leaves no trace in the store.
The same requests are made in every run.
"""

from __future__ import annotations

import asyncio
import copy
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kusciaapi_kit import Place, served
from kusciaapi_stage import REQUESTS, prepare
from schemathesis import GenerationMode

from coterie.kuscia.api.types.domain import DOMAINS
from coterie.kuscia.kusciaapi.openapi import document
from coterie.kuscia.kusciaapi.operations import ApiOperation
from coterie.kuscia.kusciaapi.settings import Protection
from coterie.kuscia.kusciaapi.table import OPERATIONS

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("kusciaapi-fuzz")]

KNOWN = [
    "alice", "bob", "carol", "job", "one", "table", "disk", "grant", "engine", "serving", "colour", "default-data-source",
    "localfs", "mysql", "Token", "None", "HTTP", "partner", "master", "", "0", "25%", "1Gi", "a" * 300, "../x", "A_b",
]  # fmt: skip
"""What opens doors that no random text opens: names of what there is, and words that are known."""
JSON, PROTOBUF = "application/json", "application/x-protobuf"
_GLANCE = 0.03
"""Seconds for which a stream is listened to: it may last as long as it likes."""


def closed() -> dict[str, Any]:
    """The document with nothing but the fields that there are, and few of each: others are ignored, more takes long."""
    told = copy.deepcopy(document(OPERATIONS))
    for schema in told["components"]["schemas"].values():
        if schema.get("type") == "object":
            schema["additionalProperties"] = False
        for field in schema.get("properties", {}).values():
            if field.get("type") == "array":
                field["maxItems"] = 2
            elif "additionalProperties" in field:
                field["maxProperties"] = 2
    return told


SCHEMA = schemathesis.openapi.from_dict(closed())


def examples(count: int) -> Any:
    return settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


@st.composite
def bodies(draw: Any, operation: ApiOperation, mode: GenerationMode, good: bool) -> Any:
    """Of the form that the document says, or not quite; some texts are known ones, parts are as in a good request."""
    body = draw(SCHEMA[operation.path]["POST"].as_strategy(generation_mode=mode)).body
    return _mixed(draw, REQUESTS[operation.method], _known(draw, body)) if good else _known(draw, body)


def _mixed(draw: Any, good: Any, odd: Any) -> Any:
    """The good one with some of the odd one in it."""
    if isinstance(good, dict) and isinstance(odd, dict):
        strange = {key: _mixed(draw, good.get(key), value) for key, value in odd.items() if not draw(st.integers(0, 2))}
        return {**good, **strange}
    if isinstance(good, list) and isinstance(odd, list):
        return [_mixed(draw, one, other) for one, other in zip(good, odd, strict=False)] + odd[len(good) :]
    return odd


def _known(draw: Any, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _known(draw, each) for key, each in value.items()}
    if isinstance(value, list):
        return [_known(draw, each) for each in value]
    if isinstance(value, str) and draw(st.integers(0, 3)):
        return draw(st.sampled_from(KNOWN))
    return value


@dataclass
class Target:
    runner: asyncio.Runner
    place: Place
    session: aiohttp.ClientSession

    def send(self, path: str, body: bytes, kind: str = JSON, verb: str = "POST") -> None:
        self.runner.run(self._send(path, body, kind, verb))

    async def _send(self, path: str, body: bytes, kind: str, verb: str) -> None:
        before = await self.revision()
        status, answer = 0, b""
        try:
            async with (
                asyncio.timeout(_GLANCE if path in STREAMS else 30),
                self.session.request(verb, path, data=body, headers={"Content-Type": kind}) as response,
            ):
                status = response.status
                answer = await response.read()
        except TimeoutError:
            assert path in STREAMS
            return
        assert status < 500, (status, answer)
        if kind == JSON and status == 200 and path not in STREAMS:
            told = json.loads(answer)
            assert "failed inside" not in told["status"]["message"]
            if told["status"]["code"] == 0:
                return
        if status != 200 or kind == JSON:
            assert await self.revision() == before, (status, answer)

    async def revision(self) -> str:
        return (await self.place.client.list(DOMAINS)).resource_version


STREAMS = {each.path for each in OPERATIONS if each.stream is not None}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    directory = tmp_path_factory.mktemp("fuzz")
    with asyncio.Runner() as runner:
        making = served(OPERATIONS, directory, protection=Protection.NOTLS, namespaces=("alice", "bob", "carol"))
        place = runner.run(making.__aenter__())
        runner.run(prepare(place.world, OPERATIONS))

        async def opened() -> aiohttp.ClientSession:
            return aiohttp.ClientSession(place.url)

        session = runner.run(opened())
        try:
            yield Target(runner, place, session)
        finally:
            runner.run(session.close())
            runner.run(making.__aexit__(None, None, None))


@pytest.fixture(autouse=True)
def no_failure_inside(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    told = [record.getMessage() for record in caplog.get_records("call") if record.levelno >= logging.ERROR]
    assert told == []


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.method)
def test_requests_of_the_right_form_and_of_the_wrong_one(target: Target, operation: ApiOperation) -> None:
    form, other = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
    for mode, good, count in ((form, False, 6), (form, True, 16), (other, False, 4), (other, True, 6)):

        @examples(count)
        @given(bodies(operation, mode, good))
        def attempt(body: Any) -> None:
            given = body if isinstance(body, bytes) else json.dumps(body, default=str).encode("utf-8", "surrogatepass")
            target.send(operation.path, given)

        attempt()
        target.runner.run(prepare(target.place.world, OPERATIONS))


@examples(150)
@given(
    st.sampled_from([each.path for each in OPERATIONS]),
    st.binary(max_size=60),
    st.sampled_from([JSON, PROTOBUF, "text/plain", ""]),
)
def test_bytes_that_are_no_requests(target: Target, path: str, body: bytes, kind: str) -> None:
    target.send(path, body, kind or JSON)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"header":' * 50_000 + b"1" + b"}" * 50_000,
        b'{"job_id": 1e400}',
        b'{"timeout_seconds": "9223372036854775808"}',
        b'{"job_id": "\\ud800"}',
        b'{"header": "\\ud800", "tasks": ["\\ud800"], "data": {"a": "\\ud800"}, "parties": "\\ud800"}',
        b"\xff\xfe{}",
        b'{"job_id":"a","job_id":"b","jobId":"c"}',
        b"null",
        b'"text"',
        b'{"tasks": null, "parties": [null]}',
        b"NaN",
    ],
    ids=lambda body: repr(body[:30]),
)
def test_known_traps(target: Target, body: bytes) -> None:
    for operation in OPERATIONS:
        target.send(operation.path, body)


@pytest.mark.parametrize("verb", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_other_verbs_and_paths(target: Target, verb: str) -> None:
    for path in (
        "/api/v1/job/create",
        "/api/v1/job/",
        "/api/v1/job/create/",
        "//",
        "/api/v1/job/create%00",
        "/healthZ",
    ):
        target.send(path, b"{}", verb=verb)


def test_a_write_would_be_seen(target: Target) -> None:
    """What the other tests rely on: any write to anything changes the revision."""
    before = target.runner.run(target.revision())
    made = target.runner.run(target.place.post("/api/v1/config/create", {"data": [{"key": "k", "value": "v"}]}))
    assert made[1]["status"]["code"] == 0
    assert target.runner.run(target.revision()) != before
