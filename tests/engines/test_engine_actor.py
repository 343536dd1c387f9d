"""The program of an actor, as a process on loopback: its protocol, reload, signals, and code that misbehaves."""

from __future__ import annotations

import json
import os
import signal
import socket
import tarfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from actor_kit import SECONDS, Client, RunningActor, actor, call_body, packed, spawn, until

from coterie.engines.actor import exit_codes

ECHO = """
    import json
    from serverless import *

    def action(req):
        what = {"params": req.params, "path": req.path(), "body": req.body(), "headers": dict(req.headers), "id": req.id,
                "request": req.request_id, "attempt": req.attempt, "left": min(req.remaining(), 100), "type": req.content_type}
        return Response(what)
"""
RETURNS = """
    from serverless import *
    import asyncio, os, sys

    def pieces():
        yield "one "
        yield b"two"

    async def later():
        for each in ("a", "b", "c"):
            await asyncio.sleep(0)
            yield each

    def broken():
        yield "begins"
        raise ValueError("in the middle")

    RESULTS = {
        "text": lambda: Response("héllo"),
        "bytes": lambda: Response(b"\\x00\\xff", content_type="image/png"),
        "json": lambda: Response({"a": [1, 2.5, None]}),
        "html": lambda: Response("<b>", 201, ContentType.MIMEHTML, {"X-More": "yes"}),
        "empty": lambda: Response("", 204),
        "number": lambda: Response(7),
        "pieces": lambda: Response(pieces()),
        "async": lambda: Response(later()),
        "broken": lambda: Response(broken()),
        "next": lambda: Invoke("add", {"a": 1, "b": [True, None]}, "/p", "text"),
        "partner": lambda: Invoke("bob/score", body={"x": 1}),
        "undeclared": lambda: Invoke("other"),
        "nothing": lambda: None,
        "int": lambda: 5,
        "object": lambda: Response(object()),
        "nan": lambda: Response({"a": float("nan")}),
        "set": lambda: Invoke("add", {"a": {1}}),
        "huge": lambda: Response("x" * (33 << 20)),
        "raise": lambda: 1 / 0,
        "exit": lambda: sys.exit(3),
        "interrupt": lambda: (_ for _ in ()).throw(KeyboardInterrupt()),
        "recursion": lambda: deep(0),
        "status": lambda: Response("x", 99),
        "header": lambda: Response("x", headers={"A": "b\\r\\nC: d"}),
        "unprintable": lambda: (_ for _ in ()).throw(Unprintable()),
        "long": lambda: (_ for _ in ()).throw(ValueError("y" * 10_000_000)),
    }

    class Unprintable(Exception):
        def __str__(self):
            raise RuntimeError("no")

    def deep(n):
        return deep(n + 1)

    def action(req):
        return RESULTS[req.param("what")]()
"""


# ----- the protocol


def test_a_call_has_everything_that_was_sent(tmp_path: Path) -> None:
    with actor(tmp_path, ECHO) as running:
        deadline = int(time.time() * 1000) + 50_000
        answer = running.call(
            {"a": "+", "n": 1, "list": [1.5, None]}, "bödy".encode(), path="/p", headers={"X-A": "b"}, deadline=deadline,
            attempt=2, contentType="text/plain",
        )  # fmt: skip
    assert answer.status == 200 and answer.response == {"status": 200, "contentType": "application/json"}
    seen = json.loads(answer.content)
    assert 0 < seen.pop("left") <= 50
    assert seen == {
        "params": {"a": "+", "n": 1, "list": [1.5, None]}, "path": "/p", "body": "bödy", "headers": {"x-a": "b"}, "id": "c1",
        "request": "r1", "attempt": 2, "type": "text/plain",
    }  # fmt: skip


def test_results_and_errors_of_a_function(tmp_path: Path) -> None:
    with actor(tmp_path, RETURNS, action_next="add,bob/score") as running:
        client = running.client()

        def result(what: str) -> tuple[dict[str, Any], bytes]:
            answer = client.call({"what": what})
            assert answer.status == 200
            return answer.line, answer.content

        def error(what: str) -> str:
            line, body = result(what)
            assert line["response"]["status"] == 500
            assert body.decode() == f'action "test" failed: {line["response"]["error"]}\n'
            assert b"Traceback" not in body and b"File" not in body
            found: str = line["response"]["error"]
            return found

        text = {"status": 200, "contentType": "text/plain; charset=utf-8"}
        assert result("text") == ({"response": text}, "héllo".encode())
        assert result("bytes") == ({"response": {"status": 200, "contentType": "image/png"}}, b"\x00\xff")
        assert result("json") == (
            {"response": {"status": 200, "contentType": "application/json"}},
            b'{"a":[1,2.5,null]}',
        )
        html = {"status": 201, "contentType": "text/html; charset=utf-8", "headers": {"X-More": "yes"}}
        assert result("html") == ({"response": html}, b"<b>")
        assert result("empty")[0]["response"]["status"] == 204
        assert result("number")[1] == b"7"
        assert result("pieces") == ({"response": text}, b"one two")
        assert result("async") == ({"response": text}, b"abc")
        params = {"a": 1, "b": [True, None]}
        plain = "text/plain; charset=utf-8"
        assert result("next") == (
            {"invoke": {"action": "add", "params": params, "path": "/p", "contentType": plain}},
            b"text",
        )
        assert result("partner")[0]["invoke"]["contentType"] == "application/json"
        assert error("undeclared") == 'NotAllowed: "other" is not declared in next of "test", which has add, bob/score'
        assert error("nothing") == "TypeError: the function returned NoneType, not a Response or an Invoke"
        assert error("int") == "TypeError: the function returned int, not a Response or an Invoke"
        assert "cannot be object" in error("object")
        assert error("nan").startswith("ValueError")
        assert error("set") == "TypeError: Object of type set is not JSON serializable"
        assert "stream it" in error("huge")
        assert error("raise") == "ZeroDivisionError: division by zero"
        assert error("exit") == "SystemExit: 3"
        assert error("interrupt") == "KeyboardInterrupt"
        assert error("recursion").startswith("RecursionError: maximum recursion depth")
        assert "200 to 599" in error("status") and "cannot be a header" in error("header")
        assert error("unprintable") == "Unprintable: (its message cannot be shown)"
        assert len(error("long")) < 2000
        with pytest.raises(EOFError):
            client.call({"what": "broken"})
        assert running.call({"what": "text"}).status == 200
        running.wait_for("call=c1 ValueError: in the middle")
    assert 'call=c1   File "' in running.output and "engines/actor/runtime" not in running.output
    assert len(running.output) < 1 << 18


def test_a_streamed_answer_comes_as_it_is_made(tmp_path: Path) -> None:
    code = """
        import threading
        from serverless import Response
        GO = threading.Event()
        def pieces():
            yield "first"
            GO.wait(20)
            yield "second"
        def action(req):
            if req.param("go"):
                GO.set()
                return Response("went")
            return Response(pieces())
    """
    with actor(tmp_path, code, action_concurrency="2") as running:
        client = running.client()
        client.send("POST", "/invoke", call_body())
        while client.file.readline().strip():
            pass
        chunks = client.chunks()
        assert b'"status":200' in next(chunks) and next(chunks) == b"first"
        assert running.call({"go": 1}).content == b"went"
        assert list(chunks) == [b"second"]
        assert client.call({"go": 1}).content == b"went"  # the connection goes on


def test_bodies_in_chunks_and_with_expect(tmp_path: Path) -> None:
    with actor(tmp_path, ECHO) as running:
        body = call_body(body=b"x" * 100_000)
        chunks = b"".join(b"%X;ext=1\r\n%b\r\n" % (len(part), part) for part in (body[:10], body[10:]))
        chunked = "Transfer-Encoding: chunked\r\n"
        answer = running.ask("POST", "/invoke", chunks + b"0\r\nTrailer: x\r\n\r\n", more=chunked)
        assert len(json.loads(answer.content)["body"]) == 100_000
        client = running.client()
        client.socket.sendall(
            f"POST /invoke HTTP/1.1\r\nAuthorization: Bearer a token\r\nExpect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        )
        assert client.file.readline() == b"HTTP/1.1 100 Continue\r\n" and client.file.readline() == b"\r\n"
        client.socket.sendall(body)
        assert client.read().status == 200
        client.socket.sendall(b"GET /healthz HTTP/1.1\r\n\r\nGET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert (client.read().status, client.read().headers["connection"], client.file.read()) == (200, "close", b"")


HEAD = "POST /invoke HTTP/1.1\r\nAuthorization: Bearer a token\r\n"
HOSTILE = {
    "garbage": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    "no version": (b"GET /healthz\r\n\r\n", 400),
    "old version": (b"GET /healthz HTTP/1.0\r\n\r\n", 505),
    "a space too much": (b"GET  /healthz HTTP/1.1\r\n\r\n", 400),
    "absolute": (b"GET http://a/healthz HTTP/1.1\r\n\r\n", 400),
    "control character": (b"GET /heal\x01thz HTTP/1.1\r\n\r\n", 400),
    "bare newline": (b"GET /healthz HTTP/1.1\r\nA: b\nC: d\r\n\r\n", 400),
    "folded": (b"GET /healthz HTTP/1.1\r\nA: b\r\n  c\r\n\r\n", 400),
    "space before colon": (b"GET /healthz HTTP/1.1\r\nContent-Length : 5\r\n\r\n", 400),
    "two lengths": (f"{HEAD}Content-Length: 5\r\nContent-Length: 6\r\n\r\n".encode(), 400),
    "length and chunks": (f"{HEAD}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n".encode(), 400),
    "other coding": (f"{HEAD}Transfer-Encoding: gzip, chunked\r\n\r\n".encode(), 501),
    "negative length": (f"{HEAD}Content-Length: -1\r\n\r\n".encode(), 400),
    "length with plus": (f"{HEAD}Content-Length: +1\r\n\r\n".encode(), 400),
    "chunk of words": (f"{HEAD}Transfer-Encoding: chunked\r\n\r\nxyz\r\n".encode(), 400),
    "chunk too long": (f"{HEAD}Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n".encode(), 400),
    "huge chunk": (f"{HEAD}Transfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\n".encode(), 413),
    "endless chunk line": (f"{HEAD}Transfer-Encoding: chunked\r\n\r\n{'0' * 5000}".encode(), 400),
    "100 MB": (f"{HEAD}Content-Length: 100000000\r\n\r\n".encode(), 413),
    "one byte above the limit": (f"{HEAD}Content-Length: {(32 << 20) + 1}\r\n\r\n".encode(), 413),
    "huge head": (b"GET /healthz HTTP/1.1\r\n" + b"A: b\r\n" * 10_000, 431),
    "many headers": (b"GET /healthz HTTP/1.1\r\n" + b"A: b\r\n" * 65 + b"\r\n", 431),
    "long line": (b"GET /healthz HTTP/1.1\r\nA: " + b"b" * 9000 + b"\r\n\r\n", 431),
    "wrong token": (HEAD.replace("a token", "a tokem").encode() + b"Content-Length: 0\r\n\r\n", 401),
    "token with more": (HEAD.replace("a token", "a token ?").encode() + b"Content-Length: 0\r\n\r\n", 401),
    "no token": (b"POST /invoke HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 401),
    "code without token": (b"PUT /code HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 401),
    "elsewhere without token": (b"GET / HTTP/1.1\r\n\r\n", 401),
    "elsewhere": (b"GET / HTTP/1.1\r\nAuthorization: Bearer a token\r\n\r\n", 404),
    "wrong method": (HEAD.replace("POST", "PUT").encode() + b"\r\n", 405),
    "health by POST": (b"POST /healthz HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 405),
    "health with a body": (b"GET /healthz HTTP/1.1\r\nContent-Length: 1\r\n\r\nx", 413),
    "no JSON": (f"{HEAD}Content-Length: 3\r\n\r\nabc".encode(), 400),
    "deep JSON": (f"{HEAD}Content-Length: 100000\r\n\r\n{'[' * 100_000}".encode(), 400),
    "a list": (f"{HEAD}Content-Length: 2\r\n\r\n[]".encode(), 400),
    "params a text": (f'{HEAD}Content-Length: 14\r\n\r\n{{"params":"a"}}'.encode(), 400),
    "deadline true": (f'{HEAD}Content-Length: 17\r\n\r\n{{"deadline":true}}'.encode(), 400),
    "headers of numbers": (f'{HEAD}Content-Length: 19\r\n\r\n{{"headers":{{"a":1}}}}'.encode(), 400),
    "unknown parameter": (b"PUT /code?x=1 HTTP/1.1\r\nAuthorization: Bearer a token\r\n\r\n", 400),
}


def test_hostile_input_gets_an_error_and_harms_nobody(tmp_path: Path) -> None:
    with actor(tmp_path, ECHO) as running:
        for name, (data, status) in HOSTILE.items():
            client = running.client()
            client.socket.sendall(data)
            found = client.read()
            assert (found.status, found.headers["connection"], client.file.read()) == (status, "close", b""), name
            client.close()
        whole = f"{HEAD}Content-Length: 10\r\n\r\n".encode() + b'{"id":"a"}'
        for end in range(len(whole)):
            client = running.client()
            client.socket.sendall(whole[:end])
            client.socket.shutdown(socket.SHUT_WR)
            assert client.file.read() == b"", whole[:end]
            client.close()
        client = running.client()
        for byte in whole:
            client.socket.sendall(bytes([byte]))
        assert client.read().status == 200
        client.close()
        # Connections that say nothing have no effect on those that do.
        silent = [running.client() for _ in range(60)]
        assert running.ask("GET", "/healthz").status == 200 and running.call().status == 200
        for each in silent:
            each.close()
        assert "Traceback" not in running.output


# ----- several calls


def test_sync_calls_run_side_by_side_up_to_concurrency(tmp_path: Path) -> None:
    code = """
        import threading
        from serverless import Response
        BOTH = threading.Barrier(2, timeout=20)
        def action(req):
            print("begin", req.id, end="")
            BOTH.wait()
            print(" end", req.id, flush=True)
            return Response(req.id)
    """
    with actor(tmp_path, code, action_concurrency="2") as running:
        first = running.client()
        first.send("POST", "/invoke", call_body(id="one"))
        second = running.client()
        until(lambda: running.ask("GET", "/healthz").status == 200)
        second.send("POST", "/invoke", call_body(id="two"))
        assert {first.read().content, second.read().content} == {b"one", b"two"}
        running.wait_for("call=one begin one end one\n")
        running.wait_for("call=two begin two end two\n")


def test_a_busy_actor_refuses_more_calls_and_stays_healthy(tmp_path: Path) -> None:
    code = """
        import time
        from serverless import Response
        def action(req):
            print("begun")
            time.sleep(0.5)
            return Response("done")
    """
    with actor(tmp_path, code) as running:
        client = running.client()
        client.send("POST", "/invoke", call_body())
        running.wait_for("begun")
        refused = running.call()
        assert (refused.status, refused.body) == (503, b"all 1 calls of this actor are running\n")
        assert running.ask("GET", "/healthz").status == 200
        assert client.read().content == b"done"


def test_async_functions_share_one_loop(tmp_path: Path) -> None:
    code = """
        import asyncio
        from serverless import Response
        WAITING = []
        async def action(req):
            future = asyncio.get_running_loop().create_future()
            WAITING.append(future)
            print("waits")
            if len(WAITING) == 10:
                for each in WAITING:
                    each.set_result(len(WAITING))
            body = b"".join([piece async for piece in req.stream()])
            return Response(f"{await future} {len(body)}")
    """
    with actor(tmp_path, code, action_concurrency="10") as running:
        clients = [running.client() for _ in range(10)]
        for client in clients:
            client.send("POST", "/invoke", call_body(body=b"x" * 200_000))
        assert {client.read().content for client in clients} == {b"10 200000"}
        assert running.output.count("call=c1 waits\n") == 10


# ----- code


def test_code_is_replaced_in_the_same_process_between_two_calls(tmp_path: Path) -> None:
    old = """
        import os, threading
        from serverless import Response
        from part import NAME
        GO = threading.Event()
        def action(req):
            if req.param("wait"):
                print("waits")
                GO.wait(20)
            elif req.param("go"):
                GO.set()
            return Response(f"{NAME} {os.getpid()}")
    """
    new = "import os\nfrom serverless import *\nfrom part import NAME\ndef f(req):\n    return Invoke('z', {'name': NAME})\n"
    with actor(tmp_path, {"action.py": old, "part.py": "NAME = 'old'"}, action_concurrency="3") as running:
        pid = running.process.pid
        client, other = running.client(), running.client()
        client.send("POST", "/invoke", call_body({"wait": 1}))
        running.wait_for("waits")
        changed = other.ask(
            "PUT", "/code?version=v2&handler=pack.main.f&next=z",
            packed({"pack/__init__.py": "", "pack/main.py": new, "part.py": "NAME = 'new'"}),
        )  # fmt: skip
        assert (changed.status, json.loads(changed.body)) == (200, {"version": "v2"})
        assert other.call().line["invoke"]["params"] == {"name": "new"}
        # What cannot be used changes nothing.
        bad = {
            "def f(:": "pack/main.py:1: SyntaxError: invalid syntax",
            "\nimport absent": "pack/main.py:2: ModuleNotFoundError: No module named 'absent'",
            "x = 1": 'handler "pack.main.f": pack.main has no function "f"',
            "raise SystemExit(1)": "pack/main.py:1: SystemExit: 1",
            "import part": "part.py:1: ZeroDivisionError: division by zero",
        }
        for text, message in bad.items():
            files = {"pack/__init__.py": "", "pack/main.py": text, "part.py": "1/0"}
            refused = other.ask("PUT", "/code?version=v3", packed(files))
            assert (refused.status, refused.body.decode()) == (422, f"{message}\n")
            assert other.call().line["invoke"]["params"] == {"name": "new"}
        back = other.ask(
            "PUT", "/code?version=v1&handler=action.action", packed({"action.py": old, "part.py": "NAME='3'"})
        )
        assert back.status == 200 and other.call({"go": 1}).content == f"3 {pid}".encode()
        assert len(list((tmp_path / "tmp").iterdir())) == 1  # the code in use, and nothing else
        assert running.process.poll() is None
        client.close()


def test_archives_that_are_refused(tmp_path: Path) -> None:
    def member(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, target
        return info

    good = {"action.py": "from serverless import *\ndef action(req): return Response('new')\n"}
    archives = {
        "'link' is neither": packed(good, member("link", tarfile.SYMTYPE, "/etc/passwd")),
        "'hard' is neither": packed(good, member("hard", tarfile.LNKTYPE, "action.py")),
        "'device' is neither": packed(good, member("device", tarfile.CHRTYPE)),
        "outside of the code": packed({**good, "../out.py": ""}),
        "'/abs.py' would be": packed({**good, "/abs.py": ""}),
        "is in the archive twice": packed(good, tarfile.TarInfo("action.py")),
        "neither a .tar.gz nor": b"hello",
        "not complete": packed(good)[:-20],
        "more than 16 MiB": packed({"big": "0" * (18 << 20)}),
        "more than 1000 files": packed(dict.fromkeys(map(str, range(1001)), "")),
        "there is no action.py": packed({"other.py": ""}),
    }
    with actor(tmp_path) as running:
        client = running.client()
        for message, data in archives.items():
            refused = client.ask("PUT", "/code?version=v2", data)
            assert refused.status == 422 and message in refused.body.decode(), (message, refused.body)
            assert client.call({"name": "x"}).content == b"hello x"
        assert not list((tmp_path / "tmp").iterdir()) and not list(tmp_path.rglob("out.py"))
        assert client.ask("PUT", "/code?version=v2", packed(good)).status == 200
        assert client.call().content == b"new"


def test_an_import_that_does_not_end_leaves_the_old_code(tmp_path: Path) -> None:
    endless = packed({"action.py": "import time\nwhile True:\n    time.sleep(0.01)\n"})
    with actor(tmp_path, action_load_timeout="1") as running:
        client = running.client()
        refused = client.ask("PUT", "/code?version=v2", endless)
        assert refused.status == 422 and b"did not end within 1 s; it is at" in refused.body
        assert client.call({"name": "x"}).content == b"hello x"
        again = client.ask("PUT", "/code?version=v3", packed({"action.py": "def action(req): 0"}))
        assert again.status == 422 and b"has to be replaced" in again.body
        assert client.call({"name": "x"}).content == b"hello x"


def test_sigint_reads_the_directory_again_and_calls_go_on(tmp_path: Path) -> None:
    old = """
        import time
        from serverless import Response
        def action(req):
            print("begun")
            time.sleep(0.5 if req.param("slow") else 0)
            return Response("old")
    """
    with actor(tmp_path, old) as running:
        client = running.client()
        client.send("POST", "/invoke", call_body({"slow": 1}))
        running.wait_for("begun")
        (running.code / "action.py").write_text(
            "from serverless import *\ndef action(req): return Response('new one')\n"
        )
        running.signal(signal.SIGINT)
        running.wait_for("the code was replaced: version v1")
        assert client.read().content == b"old" and client.call().content == b"new one"
        (running.code / "action.py").write_text("def action(req)\n")
        running.signal(signal.SIGINT)
        running.wait_for("the code was not replaced: action.py:1: SyntaxError: expected ':'")
        assert client.call().content == b"new one"


def test_code_from_an_archive_in_the_directory(tmp_path: Path) -> None:
    data = packed(
        {
            "lib/names.py": "NAME = 'n'",
            "go.py": "from serverless import *\nfrom lib.names import NAME\ndef f(r): return Response(NAME)\n",
        }
    )
    files: dict[str, str | bytes] = {"archive.000": data[:50], "archive.001": data[50:]}
    with actor(tmp_path, files, action_handler="go.f") as running:
        assert running.call().content == b"n"


# ----- how it ends


def test_sigterm_answers_what_runs_and_takes_no_more(tmp_path: Path) -> None:
    code = """
        import atexit, time
        from serverless import Response
        atexit.register(lambda: print("bye"))
        def action(req):
            print("begun")
            time.sleep(0.5)
            return Response("done")
    """
    with actor(tmp_path, code) as running:
        client, idle = running.client(), running.client()
        assert idle.ask("GET", "/healthz").status == 200
        client.send("POST", "/invoke", call_body())
        running.wait_for("begun")
        running.signal(signal.SIGTERM)
        running.wait_for("no more calls are taken")
        answer = client.read()
        assert answer.content == b"done" and answer.headers["connection"] == "close"
        assert running.ended() == exit_codes.DRAINED
        assert "bye" in running.output and idle.file.read() == b""


@pytest.mark.parametrize(
    ("code", "variables", "status", "message"),
    [
        ("def action(:", {}, exit_codes.BAD_CODE, "action.py:1: SyntaxError"),
        ("1/0", {}, exit_codes.BAD_CODE, "action.py:1: ZeroDivisionError: division by zero"),
        ("import sys; sys.exit(4)", {}, exit_codes.BAD_CODE, "action.py:1: SystemExit: 4"),
        ("raise KeyboardInterrupt", {}, exit_codes.BAD_CODE, "KeyboardInterrupt"),
        ("action = 5", {}, exit_codes.BAD_CODE, 'action has no function "action"'),
        ("", {"action_handler": "absent.f"}, exit_codes.BAD_CODE, "there is no absent.py in the code"),
        ("", {"action_handler": "json.dumps"}, exit_codes.BAD_CODE, "there is no json.py in the code"),
        ("", {"action_handler": "../x.f"}, exit_codes.BAD_CODE, "is not module.function"),
        ("while True: pass", {"action_load_timeout": "1"}, exit_codes.LOAD_TIMEOUT, "did not end within 1 s"),
        ("import os; os._exit(9)", {}, 9, ""),
        ("", {"action_concurrency": "many"}, exit_codes.BAD_ENVIRONMENT, "COTERIE_ACTION_CONCURRENCY must be a number"),
        ("", {"actor_token": ""}, exit_codes.BAD_ENVIRONMENT, "COTERIE_ACTOR_TOKEN is not set"),
        ("", {"actor_port": "1", "actor_host": "203.0.113.1"}, exit_codes.BAD_ENVIRONMENT, "port 1:"),
    ],
)  # fmt: skip
def test_an_actor_that_cannot_start_says_why(
    tmp_path: Path, code: str, variables: dict[str, str], status: int, message: str
) -> None:
    running = spawn(tmp_path, code, **variables)
    assert running.ended() == status
    assert message in running.output
    assert running.process.stdout is not None
    running.process.stdout.close()


def test_a_call_that_does_not_end_ends_the_actor_after_the_others(tmp_path: Path) -> None:
    code = """
        import time
        from serverless import Response
        def action(req):
            time.sleep(float(req.param("seconds")))
            return Response("done")
    """
    with actor(tmp_path, code, action_concurrency="2", action_timeout="30") as running:
        stuck, other = running.client(), running.client()
        stuck.send("POST", "/invoke", call_body({"seconds": 1000}, deadline=int(time.time() * 1000) - 4000))
        other.send("POST", "/invoke", call_body({"seconds": 4.5}))
        running.wait_for("no more calls are taken")
        assert running.ask("GET", "/healthz").status == 503 and running.call().status == 503
        assert other.read().content == b"done"
        assert running.ended() == exit_codes.CALL_STUCK


def test_async_calls_are_cancelled_at_their_deadline(tmp_path: Path) -> None:
    code = """
        import asyncio, time
        from serverless import Response
        async def action(req):
            if req.param("block"):
                time.sleep(1000)
            try:
                await asyncio.sleep(1000)
            finally:
                print("cancelled")
    """
    with actor(tmp_path, code, action_timeout="1") as running:
        answer = running.call()
        assert answer.response["status"] == 504 and b"deadline of the call has passed" in answer.content
        running.wait_for("call=c1 cancelled")
        assert b"cannot be cancelled" in running.call({"block": 1}).content
        assert running.ended() == exit_codes.CALL_STUCK


BAD = """
    import os, sys, signal, subprocess, threading
    from serverless import Response

    def action(req):
        what = req.param("what")
        if what == "fork":
            os.fork()
            return Response("forked")
        if what == "fork and raise":
            os.fork()
            raise ValueError("twice")
        if what == "stdout":
            sys.stdout = open(os.devnull, "w")
            sys.stderr = None
            return Response("replaced")
        if what == "close":
            sys.stdout.close(); sys.stderr.buffer.close(); os.close(0)
            return Response("closed")
        if what == "close 1":
            os.close(1)
        if what == "endless line":
            for _ in range(200):
                sys.stdout.write("x" * 10_000)
        if what == "surrogate":
            print("\\ud800 \\x00")
            sys.stdout.buffer.write(b"\\xff raw\\n")
        if what == "thread":
            threading.Thread(target=lambda: 1 / 0).start()
        if what == "subprocess":
            return Response(subprocess.check_output(["echo", "out"]))
        if what == "token":
            return Response(str(sorted(name for name in os.environ if "TOKEN" in name)))
        if what == "exit":
            os._exit(3)
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "all fds":
            os.closerange(3, 1000)
        return Response("fine")
"""


def test_code_that_misbehaves_is_answered(tmp_path: Path) -> None:
    with actor(tmp_path, BAD) as running:
        client = running.client()

        def call(what: str) -> bytes:
            return client.call({"what": what}).content

        for _ in range(3):
            assert call("fork") == b"forked"
            assert b"ValueError: twice" in call("fork and raise")
        assert call("stdout") == b"replaced" and call("surrogate") == b"fine"
        running.wait_for("raw\n")
        assert "call=c1 \\ud800 \0\n" in running.output and "call=c1 \\xff raw\n" in running.output
        assert call("close") == b"closed" and call("surrogate") == b"fine"
        before = len(running.output)
        assert call("endless line") == b"fine"
        until(lambda: len(running.output) - before > 2_000_000)
        assert max(map(len, running.output.splitlines())) < 9000
        assert call("thread") == b"fine" and call("subprocess") == b"out\n" and call("token") == b"[]"
        assert call("close 1") == b"fine" and call("surrogate") == b"fine"
        memory = next(x for x in Path(f"/proc/{running.process.pid}/status").read_text().splitlines() if "VmHWM" in x)
        assert int(memory.split()[1]) < 60_000


@pytest.mark.parametrize(
    ("what", "statuses"),
    [("exit", {3}), ("kill", {-signal.SIGKILL}), ("all fds", {exit_codes.CALL_STUCK, 1})],  # who notices first
    ids=["exit", "kill", "all fds"],
)
def test_code_that_ends_the_actor(tmp_path: Path, what: str, statuses: set[int]) -> None:
    with actor(tmp_path, BAD) as running:
        client = running.client()
        client.send("POST", "/invoke", call_body({"what": what}))
        assert client.file.read() == b""
        assert running.ended() in statuses


def test_many_clients_and_calls(tmp_path: Path) -> None:
    """Nothing is mixed up between connections, and no thread or descriptor stays."""
    with actor(tmp_path, ECHO, action_concurrency="8") as running:
        failures: list[BaseException] = []

        def work(number: int) -> None:
            try:
                client = Client(running.port)
                for each in range(50):
                    seen = json.loads(client.call({"n": [number, each]}, id=f"{number}-{each}").content)
                    assert (seen["params"]["n"], seen["id"]) == ([number, each], f"{number}-{each}")
                client.close()
            except (OSError, EOFError, ValueError, AssertionError) as problem:
                failures.append(problem)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
        assert not failures
        until(lambda: tasks_of(running) == 1)


def tasks_of(running: RunningActor) -> int:
    return len(os.listdir(f"/proc/{running.process.pid}/task"))
