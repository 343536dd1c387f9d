"""A lite has its master carry calls out: whole answers, streams, and what goes wrong on the way."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kusciaapi_kit import Place, domain_caller, served
from test_kusciaapi_doors import LOG, QUERY, WATCH, Puppets, objects, until

from coterie.http.messages import Request, Response
from coterie.http.server import HttpServer
from coterie.kube.control.child_api_listener import private_socket
from coterie.kuscia.kusciaapi.authorization import ApiCaller
from coterie.kuscia.kusciaapi.http_frontend import HttpFrontend
from coterie.kuscia.kusciaapi.master_forwarding import HOST
from coterie.kuscia.kusciaapi.operations import Mode


@asynccontextmanager
async def lite_of_master(tmp_path: Path) -> AsyncIterator[tuple[Puppets, Place]]:
    """The operations of the master, and the doors of its lite; gateways are left out."""
    puppets = Puppets()

    async def recognise(request: Request) -> ApiCaller | None:
        assert request.headers["host"] == HOST
        return domain_caller("lite")

    async with served(puppets.operations, tmp_path / "m", mode=Mode.MASTER, domain="hq") as master:
        assert master.doors is not None
        door = HttpFrontend(master.doors.dispatcher, puppets.operations, recognise)
        socket = tmp_path / "gw.sock"
        await door.server.serve(private_socket(socket))
        try:
            async with served(
                Puppets().operations, tmp_path / "l", mode=Mode.LITE, domain="lite", gateway=str(socket)
            ) as lite:
                yield puppets, lite
        finally:
            await door.server.stop(0.1)


async def test_the_master_answers_for_its_lite(tmp_path: Path) -> None:
    async with lite_of_master(tmp_path) as (master, lite):
        status, answer = await lite.post(QUERY, {"domain_id": "bob"})
        assert (status, answer["data"]["master_domain_id"]) == (200, "hq")
        assert master.callers == [domain_caller("lite")]
        assert (await lite.ask("DomainService", "QueryDomain", domain_id="bob")).data.master_domain_id == "hq"
        assert (await lite.post(QUERY, {}))[1]["status"]["code"] == 11100
        # What is not to be forwarded is done here.
        assert (await lite.post("/healthZ"))[1]["data"] == {"ready": True}


async def test_streams_come_through_and_end_with_their_readers(tmp_path: Path) -> None:
    async with lite_of_master(tmp_path) as (master, lite), lite.session() as session:
        master.lines = 2
        async with session.post(WATCH, json={}) as answer:
            found = objects(await answer.text())
        assert [each["object"]["job_id"] for each in found] == ["job-0", "job-0", "job-1", "job-1"]
        assert [each.get("type", 0) for each in found] == [0, 1, 0, 1]
        async with session.post(WATCH, json={"timeout_seconds": -1}) as answer:
            assert objects(await answer.text())[0]["status"] == {
                "code": 11100, "message": "timeout_seconds: must not be negative", "details": [],
            }  # fmt: skip
        master.lines = 1 << 30
        reading = await session.post(WATCH, json={})
        assert await reading.content.readany()
        assert master.streams == 1
        reading.close()
        await until(lambda: master.streams == 0)


@asynccontextmanager
async def lite_of(tmp_path: Path, answer: Response | None) -> AsyncIterator[Place]:
    """A lite whose gateway answers so; None: nobody is there."""
    server = HttpServer(lambda request: answer or Response())
    socket = tmp_path / "gw.sock"
    await server.serve(private_socket(socket))
    if answer is None:
        await server.stop(0)
    try:
        async with served(Puppets().operations, tmp_path, mode=Mode.LITE, domain="lite", gateway=str(socket)) as lite:
            yield lite
    finally:
        await server.stop(0)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (None, "the master could not be asked: cannot connect"),
        (Response(503, b"no route", "text/plain"), "the master could not be asked: it answers 503: no route"),
        (Response(401, b"", ""), "the master could not be asked: it answers 401: nothing more"),
        (Response(200, b"<html>", "text/html"), "the master could not be asked: its answer cannot be read"),
    ],
    ids=["nobody", "503", "401", "garbage"],
)
async def test_a_master_that_cannot_be_asked(tmp_path: Path, answer: Response | None, sentence: str) -> None:
    async with lite_of(tmp_path, answer) as lite:
        for path in (QUERY, WATCH):
            async with lite.session() as session, session.post(path, json={"domain_id": "bob"}) as told:
                assert told.status == 200
                status = json.loads(await told.read())["status"]
            assert (status["code"], status["message"].startswith(sentence)) == (11103, True)


async def test_logs_are_read_on_the_lite_itself(tmp_path: Path) -> None:
    async with lite_of(tmp_path, None) as lite, lite.session() as session, session.post(LOG, json={}) as answer:
        assert objects(await answer.text())[0]["log"] == "one"
