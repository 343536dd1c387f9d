"""Requests through a gateway, its link and the dispatcher, on loopback."""

from __future__ import annotations

import asyncio
import json

import pytest
from dispatcher_kit import FakeAnswer, config, invoke, respond, stream
from function_gateway_kit import INVOKE_TOKEN, gateway_world

from coterie.functions.dispatcher.actor_client import ActorFailed, CallHead
from coterie.functions.gateway.http_calls import http_response
from coterie.functions.gateway.link_messages import TriggerRoute
from coterie.functions.messages import FunctionResponse
from coterie.http.plain_client import Broken

ROUTES = [
    TriggerRoute(path="/echo", action="echo", key="user"),
    TriggerRoute(path="/post", action="echo", methods=("POST",)),
]
BEARER = f"Bearer {INVOKE_TOKEN}"


async def echo(head: CallHead, body: bytes) -> FakeAnswer:
    about = {"path": head.path, "params": head.params, "body": body.decode(), "headers": head.headers}
    return respond(json.dumps(about), 201, content_type="application/json")


ECHO = {"echo": echo}
ECHO_CONFIG = [config("echo", concurrency=100)]


async def test_c25_status_type_and_body_are_those_of_the_function() -> None:
    async with gateway_world(ECHO, ECHO_CONFIG, ROUTES) as world:
        answer = await world.request("POST", "/echo?a=1", b"hello", Content_Type="text/plain", Cookie="secret=1")
        assert answer.status == 201 and answer.headers["content-type"] == "application/json"
        about = json.loads(answer.body)
        assert (about["path"], about["params"], about["body"]) == ("/echo", {"a": "1"}, "hello")
        assert "cookie" not in about["headers"] and about["headers"]["coterie-method"] == "POST"
        assert answer.headers["coterie-request"]


async def test_c34_parameters_are_decoded() -> None:
    async with gateway_world(ECHO, ECHO_CONFIG, ROUTES) as world:
        answer = await world.request("GET", "/echo?sign=%2B&word=a+b&empty=")
        assert json.loads(answer.body)["params"] == {"sign": "+", "word": "a b", "empty": ""}


async def test_requests_that_are_refused() -> None:
    async with gateway_world(ECHO, ECHO_CONFIG, ROUTES) as world:
        json_type = {"Content_Type": "application/json; charset=utf-8"}
        rows = [
            (await world.request("GET", "/echo?a=1&a=2"), 400, b"more than once"),
            (await world.request("POST", "/echo", b"[1]", **json_type), 400, b"must be an object"),
            (await world.request("POST", "/echo", b"{", **json_type), 400, b"not JSON"),
            (await world.request("POST", "/echo", b'{"a": 1}', **json_type), 201, b'{\\"a\\": 1}'),
            (await world.request("GET", "/none"), 404, b"no trigger"),
            (await world.request("GET", "/post"), 405, b"POST"),
            (await world.request("GET", "/echo", Coterie_Timeout="soon"), 400, b"Coterie-Timeout"),
            (await world.request("GET", "/echo", Coterie_Timeout="-1"), 400, b"Coterie-Timeout"),
            (await world.request("GET", "/echo", Idempotency_Key="x" * 300), 400, b"Idempotency-Key"),
            (await world.request("GET", "/calls/../../etc"), 404, b"no such call"),
            (await world.request("GET", "/calls/00000000-0000"), 404, b"no such call"),
            (await world.request("POST", "/calls/00000000-0000"), 405, b"GET"),
        ]
        for answer, status, words in rows:
            assert answer.status == status and words in answer.body, answer


async def test_actions_by_name_need_a_right() -> None:
    async with gateway_world(ECHO, ECHO_CONFIG) as world:
        assert (await world.request("POST", "/actions/echo")).status == 403
        assert (await world.request("POST", "/actions/echo", Authorization="Bearer wrong")).status == 403
        assert (await world.request("POST", "/actions/echo", Authorization=BEARER)).status == 201
        through_a_proxy = {"Coterie-Invoke-Token": BEARER.split()[1]}
        assert (await world.request("POST", "/actions/echo", **through_a_proxy)).status == 201
        assert (await world.request("POST", "/actions/echo", **{"Coterie-Invoke-Token": ""})).status == 403
        for name in ("none", "..%2Fecho", "a/b", "bob%2Fscore", "Echo", "echo.bob", "", "%00", "x" * 64):
            assert (await world.request("POST", f"/actions/{name}", Authorization=BEARER)).status == 404
    async with gateway_world(ECHO, ECHO_CONFIG, own_network=True) as world:
        assert (await world.request("POST", "/actions/echo")).status == 201


async def test_records_of_topics_need_a_right_and_a_trigger_that_reads_them() -> None:
    async with gateway_world(ECHO, ECHO_CONFIG) as world:
        path, right = "/coterie/topics/orders", {"Authorization": BEARER}
        assert (await world.request("POST", path, b"x")).status == 403
        assert (await world.request("POST", path, b"x", Authorization="Bearer wrong")).status == 403
        refused = await world.request("POST", path, b"x", **right)
        assert (refused.status, refused.body) == (404, b"no Trigger reads the topic 'orders'\n")
        assert not await world.bus.topics() & {"orders": 1}.keys(), "nobody makes topics by writing to them"
        world.records.set_topics({"orders": ["trigger-1"]})
        written = await world.request("POST", path, b"\xff one", Coterie_Key="k", **right)
        assert written.status == 200
        (record,) = world.bus.records("orders")
        place = {"topic": "orders", "partition": record.partition, "offset": record.offset}
        assert (json.loads(written.body), record.key, record.value) == (place, "k", b"\xff one")
        for answer, status in [
            (await world.request("GET", path, **right), 405),
            (await world.request("POST", f"{path}?a=1", b"x", **right), 400),
            (await world.request("POST", path, b"x", Idempotency_Key="i", **right), 400),
            (await world.request("POST", path, b"x", Prefer="respond-async", **right), 400),
            (await world.request("POST", path, b"x", Coterie_Key="k" * 300, **right), 400),
            (await world.request("POST", path, b"x" * ((1 << 20) + 1), **right), 413),
        ]:
            assert answer.status == status, answer
        for name in ("action-results", "partner-calls", "outbox-bob", "echo_TOPIC", "echo_DLQ", "ReturnGateway-g1"):
            assert (await world.request("POST", f"/coterie/topics/{name}", b"{}", **right)).status == 404, name
        for name in ("", "..%2Forders", "a/b", ".hidden", "%00", "x" * 201):
            assert (await world.request("POST", f"/coterie/topics/{name}", b"{}", **right)).status == 404, name
        assert len(world.bus.records("orders")) == 1


async def test_a_record_whose_link_breaks_is_not_promised() -> None:
    async with gateway_world(ECHO, ECHO_CONFIG, link_wait=0.2) as world:
        world.records.set_topics({"orders": ["trigger-1"]})
        published = asyncio.Event()

        async def never(*_: object) -> object:
            published.set()
            return await asyncio.Event().wait()

        world.bus.publish = never  # type: ignore[method-assign, assignment]
        asked = asyncio.ensure_future(world.request("POST", "/coterie/topics/orders", b"x", Authorization=BEARER))
        await published.wait()
        await world.stop_functions()
        answer = await asked
        assert answer.status == 503 and b"not known whether" in answer.body
        assert (await world.request("POST", "/coterie/topics/orders", b"x", Authorization=BEARER)).status == 503


async def test_large_bodies_are_refused_before_they_are_read() -> None:
    async with gateway_world(ECHO, ECHO_CONFIG, ROUTES, max_body=1000) as world:
        port = world.gateways[0][0].http._listeners[0].sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"413"
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"400\r\n" + b"x" * 1024 + b"\r\n")
        assert (await reader.readline()).split()[1] == b"413"
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        )
        assert (await reader.readline()).split()[1] == b"400", "which of both lengths counts is not for us to guess"
        writer.close()
        assert not world.actors.calls


async def test_health() -> None:
    async with gateway_world(ECHO, ECHO_CONFIG, functions=False) as world:
        assert (await world.request("GET", "/cubernetes/healthTest")).body == b"OK"
        assert (await world.request("GET", "/healthz")).status == 200
        metrics = await world.request("GET", "/metrics")
        assert b"coterie_functions_gateway_linked 0" in metrics.body


async def test_without_a_link_503() -> None:
    async with gateway_world(ECHO, ECHO_CONFIG, ROUTES, functions=False, link_wait=0.05) as world:
        answer = await world.request("GET", "/echo")
        assert answer.status == 503 and int(answer.headers["retry-after"]) > 0
        assert (await world.request("GET", "/calls/00000000-0000")).status == 503
        assert (await world.request("POST", "/actions/echo", Authorization=BEARER)).status == 503


async def test_a_gateway_that_does_not_know_its_paths_yet_lets_requests_wait() -> None:
    async with gateway_world(ECHO, ECHO_CONFIG, ROUTES, functions=False) as world:
        early = asyncio.ensure_future(world.request("GET", "/echo"))
        none = asyncio.ensure_future(world.request("GET", "/none"))
        world.routes_known = False
        await world.start_functions()
        for _ in range(100):
            if world.links.connected:
                break
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert not early.done() and not none.done()
        world.links.set_routes(ROUTES)
        assert ((await early).status, (await none).status) == (201, 404)


async def test_a_gateway_without_routes_answers_503_and_not_404() -> None:
    """Linked, but the functions process has not read the Triggers yet: whether there is such a path is not known."""
    async with gateway_world(ECHO, ECHO_CONFIG, ROUTES, functions=False, link_wait=0.05) as world:
        world.routes_known = False
        await world.start_functions()
        for _ in range(1000):
            if world.links.connected:
                break
            await asyncio.sleep(0.01)
        assert world.links.connected
        for path in ("/echo", "/none"):
            answer = await world.request("GET", path)
            assert answer.status == 503 and int(answer.headers["retry-after"]) > 0, answer
        assert (await world.request("GET", "/readyz")).status == 503
        world.links.set_routes(ROUTES)
        await world.linked()
        assert (await world.request("GET", "/echo")).status == 201
        assert (await world.request("GET", "/none")).status == 404
        assert (await world.request("GET", "/readyz")).status == 200


async def test_asynchronous_calls() -> None:
    go = asyncio.Event()

    async def wait(head: CallHead, body: bytes) -> FakeAnswer:
        await go.wait()
        return respond("done")

    async with gateway_world({"wait": wait}, [config("wait")], [TriggerRoute(path="/wait", action="wait")]) as world:
        answer = await world.request("POST", "/wait", Prefer="respond-async")
        assert answer.status == 202
        where = answer.headers["location"]
        assert json.loads(answer.body)["id"] == where.removeprefix("/calls/")
        assert (await world.request("GET", where)).status == 202
        go.set()
        for _ in range(100):
            found = await world.request("GET", where)
            if found.status == 200:
                break
            await asyncio.sleep(0.01)
        assert found.body == b"done"


async def test_an_idempotency_key_runs_once_also_at_another_gateway() -> None:
    go = asyncio.Event()

    async def wait(head: CallHead, body: bytes) -> FakeAnswer:
        await go.wait()
        return respond(f"{head.params} {body!r}")

    routes = [TriggerRoute(path="/wait", action="wait")]
    async with gateway_world({"wait": wait}, [config("wait")], routes, replicas=2) as world:
        requests = [
            asyncio.ensure_future(world.request("POST", "/wait", b"x", number=number, Idempotency_Key="k"))
            for number in (0, 0, 1)
        ]
        await asyncio.sleep(0.1)
        go.set()
        answers = await asyncio.gather(*requests)
        assert [answer.body for answer in answers] == [b"{} b'x'"] * 3 and len(world.actors.calls) == 1
        again = await world.request("POST", "/wait", b"x", number=1, Idempotency_Key="k")
        assert again.body == b"{} b'x'" and len(world.actors.calls) == 1
        other = await world.request("POST", "/wait", b"y", Idempotency_Key="k")
        assert other.body == b"{} b'y'", "the same key with another content is another call"


async def test_504_in_time_and_the_call_goes_on() -> None:
    ended = asyncio.Event()

    async def slow(head: CallHead, body: bytes) -> FakeAnswer:
        assert head.deadline
        await asyncio.sleep(0.4)
        ended.set()
        return respond("late")

    async with gateway_world({"slow": slow}, [config("slow")], [TriggerRoute(path="/slow", action="slow")]) as world:
        answer = await world.request("POST", "/slow", Coterie_Timeout="0.1")
        assert answer.status == 504
        await asyncio.wait_for(ended.wait(), 5)


async def test_c82_many_requests_wait_on_one_listener() -> None:
    async def slow(head: CallHead, body: bytes) -> FakeAnswer:
        await asyncio.sleep(0.01)
        return respond(str(head.params["n"]))

    async with gateway_world(
        {"slow": slow}, [config("slow", concurrency=25)], [TriggerRoute(path="/slow", action="slow")]
    ) as world:
        answers = await asyncio.gather(*[world.request("GET", f"/slow?n={number}") for number in range(100)])
        assert [answer.body for answer in answers] == [str(number).encode() for number in range(100)]
        assert len(world.bus.records("ReturnGateway-g1")) == 100
        assert len(await world.bus.ends("ReturnGateway-g1")) == 1


async def test_a_chain_through_the_gateway() -> None:
    async def first(head: CallHead, body: bytes) -> FakeAnswer:
        return invoke("echo", "passed", n=1)

    configs = [config("first", "echo"), config("echo")]
    async with gateway_world({"first": first, **ECHO}, configs, [TriggerRoute(path="/first", action="first")]) as world:
        answer = await world.request("GET", "/first?x=1")
        about = json.loads(answer.body)
        assert (about["body"], about["params"], about["path"]) == ("passed", {"n": 1}, "/first")


async def test_calls_survive_a_restart_of_the_functions_process() -> None:
    go = asyncio.Event()

    async def wait(head: CallHead, body: bytes) -> FakeAnswer:
        await go.wait()
        return respond("answered")

    routes = [TriggerRoute(path="/wait", action="wait")]
    async with gateway_world({"wait": wait}, [config("wait")], routes) as world:
        accepted = asyncio.ensure_future(world.request("POST", "/wait"))
        while not world.actors.calls:
            await asyncio.sleep(0.01)
        await world.stop_functions()
        await world.linked(wanted=False)
        meanwhile = asyncio.ensure_future(world.request("POST", "/wait"))
        await asyncio.sleep(0.05)
        assert not accepted.done() and not meanwhile.done()
        go.set()
        await world.start_functions()
        assert [answer.body for answer in await asyncio.gather(accepted, meanwhile)] == [b"answered", b"answered"]
        uids = [head.request for _, head in world.actors.calls]
        assert len(uids) == 3 and len(set(uids)) == 2


async def test_a_call_that_was_sent_and_not_accepted_is_sent_again() -> None:
    async with gateway_world(ECHO, ECHO_CONFIG, ROUTES) as world:
        dispatcher = world.dispatcher
        submit = dispatcher.submit
        lost: list[bool] = []

        async def lose(call, *, repeated=True):  # type: ignore[no-untyped-def]
            lost.append(repeated)
            accepted = await submit(call, repeated=repeated)
            if len(lost) == 1:
                world.links._links["g1"]._socket._connection._writer.transport.abort()  # type: ignore[union-attr]
                await asyncio.sleep(3600)
            return accepted

        dispatcher.submit = lose  # type: ignore[method-assign]
        answer = await world.request("POST", "/echo", b"once")
        assert answer.status == 201 and len(world.actors.calls) == 1
        assert lost[:2] == [False, True] or lost == [False]


async def test_a_client_that_leaves_does_not_end_its_call() -> None:
    ended = asyncio.Event()

    async def slow(head: CallHead, body: bytes) -> FakeAnswer:
        await asyncio.sleep(0.2)
        ended.set()
        return respond("")

    async with gateway_world({"slow": slow}, [config("slow")], [TriggerRoute(path="/slow", action="slow")]) as world:
        request = asyncio.ensure_future(world.request("GET", "/slow"))
        while not world.actors.calls:
            await asyncio.sleep(0.01)
        request.cancel()
        await asyncio.wait_for(ended.wait(), 5)


async def test_streams_are_chunked_and_broken_ones_are_cut() -> None:
    async def numbers(head: CallHead, body: bytes) -> FakeAnswer:
        pieces: list[bytes | Exception] = [b"%d," % number for number in range(50)]
        return stream(*pieces, *([ActorFailed("gone")] if "broken" in head.params else []))

    async with gateway_world({"n": numbers}, [config("n")], [TriggerRoute(path="/n", action="n")]) as world:
        answer = await world.request("GET", "/n")
        assert answer.body == b"".join(b"%d," % number for number in range(50))
        assert answer.headers["transfer-encoding"] == "chunked"
        with pytest.raises(Broken):
            await world.request("GET", "/n?broken=1")


async def test_order_by_the_key_of_the_trigger() -> None:
    running: list[str] = []

    async def slow(head: CallHead, body: bytes) -> FakeAnswer:
        running.append(head.params["user"])
        most = running.count(head.params["user"])
        await asyncio.sleep(0.02)
        running.remove(head.params["user"])
        return respond(str(most))

    async with gateway_world(
        {"slow": slow}, [config("slow", concurrency=8)], [TriggerRoute(path="/slow", action="slow", key="user")]
    ) as world:
        answers = await asyncio.gather(*[world.request("GET", f"/slow?user={number % 2}") for number in range(10)])
        assert {answer.body for answer in answers} == {b"1"}


def test_headers_that_code_may_not_set() -> None:
    given = {
        "X-Own": "yes",
        "Set-Cookie": "a=b",
        "Transfer-Encoding": "chunked",
        "Content-Length": "5",
        "X-Split": "a\r\nSet-Cookie: b",
        "Bad Name": "x",
        "Coterie-Request": "forged",
        "X-Long": "x" * 10000,
        "Location": "/elsewhere",
        "cache-control": "max-age=5",
    }
    response = http_response(
        FunctionResponse(request_uid="u", content_type="text/html\r\nX: y", headers=given, payload="p", status_code=302)
    )
    assert response.headers == [
        ("X-Own", "yes"), ("Location", "/elsewhere"), ("Cache-Control", "max-age=5"), ("Coterie-Request", "u"),
    ]  # fmt: skip
    assert response.content_type == "text/plain"
    assert http_response(FunctionResponse(request_uid="u", status_code=204, payload="p")).body == b""


async def test_a_link_needs_its_token() -> None:
    async with gateway_world(ECHO, ECHO_CONFIG, functions=False) as world:
        port = world.gateways[0][1].port
        for token in ("wrong", "", INVOKE_TOKEN):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(
                f"GET /link HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                "Sec-WebSocket-Key: AAAA\r\n\r\n".encode()
            )
            assert (await reader.readline()).split()[1] == b"401"
            writer.close()
        assert not world.gateways[0][0].linked
