"""Parts of the actor's program on their own: the package `serverless`, settings, HTTP heads, output."""

from __future__ import annotations

import ast
import asyncio
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from actor_kit import SOURCE
from hypothesis import given
from hypothesis import strategies as st

from coterie.engines.actor import http_wire
from coterie.engines.actor.call_output import CURRENT, CallLines, CallStream
from coterie.engines.actor.library.serverless import ContentType, Invoke, Request, Response
from coterie.engines.actor.settings import SettingsError, read_settings

PACKAGE = Path(SOURCE) / "coterie" / "engines" / "actor"


def test_c31_the_package_has_the_documented_calls() -> None:
    request = Request({"a": "1", "n": 2}, "/p", '{"x": 1}', headers={"Content-Type": "a"}, deadline=time.time() + 10)
    assert (request.param("a"), request.param("n"), request.param("b"), request.param("b", 3)) == ("1", 2, None, 3)
    assert (request.path(), request.body(), request.bytes(), request.json()) == (
        "/p",
        '{"x": 1}',
        b'{"x": 1}',
        {"x": 1},
    )
    assert (
        request.headers["content-type"] == request.headers.get("CONTENT-TYPE") == "a"
        and "Content-type" in request.headers
    )
    assert 9 < request.remaining() <= 10 and Request().remaining() == math.inf and Request(deadline=1).remaining() == 0

    async def pieces() -> list[bytes]:
        return [piece async for piece in Request(body=b"x" * 100_000).stream()]

    assert [len(piece) for piece in asyncio.run(pieces())] == [65536, 34464]
    with pytest.raises(UnicodeDecodeError):
        Request(body=b"\xff").body()
    call = Invoke("next")
    assert (call.action, call.params, call.path, call.body) == ("next", {}, "", "")
    call = Invoke("next", {"a": 1}, "/p", "body")
    assert (call.params, call.path, call.body) == ({"a": 1}, "/p", "body")
    answer = Response("text")
    assert (answer.payload, answer.http_status, answer.content_type) == ("text", 200, "text/plain")
    assert Response("x", 400, ContentType.MIMEHTML).content_type == "text/html" == str(ContentType.MIMEHTML)
    assert Response({}).content_type == "application/json" and Response({}, 200, "text/x").content_type == "text/x"
    kinds = {each.name: each.value for each in ContentType}
    assert {"MIMEPlain", "MIMEJSON", "MIMEHTML", "MIMEXML", "MIMEPOSTForm", "MIMEMultipartPOSTForm", "MIMEPROTOBUF",
            "MIMEMSGPACK", "MIMEYAML"} <= kinds.keys()  # fmt: skip


@pytest.mark.parametrize(
    "make",
    [
        lambda: Invoke(""), lambda: Invoke(5), lambda: Invoke("a", [1]), lambda: Invoke("a", {1: 2}), lambda: Invoke("a", path=1),
        lambda: Invoke("a", body=1), lambda: Response("x", "200"), lambda: Response("x", True), lambda: Response("x", 600),
        lambda: Response("x", 200, ""), lambda: Response("x", 200, "a\r\nb"), lambda: Response("x", 200, 5),
        lambda: Response("x", headers={"": "a"}), lambda: Response("x", headers={"a": "ü"}), lambda: Response("x", headers={"a": 1}),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_where_it_is_written(make: object) -> None:
    with pytest.raises((TypeError, ValueError), match=r"Invoke|Response"):
        make()  # type: ignore[operator]


def test_the_program_needs_the_standard_library_only_and_imports_little() -> None:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                top = name.split(".")[0]
                assert top in sys.stdlib_module_names or name.startswith("coterie.engines.actor"), (path, name)
    code = "import sys, coterie.engines.actor.runtime, threading; print(*sys.modules); assert threading.active_count() == 1"
    words = [sys.executable, "-S", "-P", "-c", code]
    found = (
        subprocess.run(words, env={"PYTHONPATH": SOURCE}, stdout=subprocess.PIPE, check=True).stdout.decode().split()
    )
    heavy = {
        "asyncio",
        "ssl",
        "hashlib",
        "inspect",
        "dataclasses",
        "traceback",
        "tarfile",
        "zipfile",
        "tempfile",
        "urllib.parse",
    }
    assert not heavy & set(found), "these take longer to import than the rest together"


@given(st.binary(max_size=300))
def test_any_head_is_read_or_refused(data: bytes) -> None:
    try:
        head = http_wire.parse_head(data)
    except http_wire.WireError as problem:
        assert problem.status in (400, 431, 505)
    else:
        assert head.path.startswith("/")


@given(
    st.dictionaries(
        st.sampled_from(("COTERIE_ACTION_CONCURRENCY", "COTERIE_ACTOR_PORT", "COTERIE_ACTION_TIMEOUT")),
        st.text(max_size=12),
    )
)
def test_any_environment_is_read_or_refused(variables: dict[str, str]) -> None:
    try:
        found = read_settings({"COTERIE_ACTION": "a", "COTERIE_ACTOR_TOKEN": "t", **variables})
    except SettingsError as problem:
        assert str(problem).startswith("COTERIE_")
    else:
        assert 1 <= found.concurrency <= 1000 and 0 <= found.port <= 65535


@given(st.lists(st.text(alphabet="ab\n", max_size=20), max_size=20))
def test_each_line_of_a_call_has_its_id(texts: list[str]) -> None:
    read, write = os.pipe()
    stream = CallStream(write)
    os.close(write)
    lines = CallLines("x")
    mark = CURRENT.set(lines)
    for text in texts:
        stream.write(text)
    stream.finish(lines)
    CURRENT.reset(mark)
    os.close(stream._handle)
    with open(read, newline="") as file:
        seen = file.read()
    whole = "".join(texts)
    expected = whole if whole.endswith("\n") or not whole else whole + "\n"
    assert seen == "".join(f"call=x {line}" for line in expected.splitlines(keepends=True))
