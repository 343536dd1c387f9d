"""The dispatcher's client against real actors: both sides of the protocol."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from actor_kit import TOKEN, RunningActor, actor

from coterie.functions.dispatcher.actor_client import (
    ActorFailed,
    ActorTimeout,
    ActorUnreachable,
    CallHead,
    HttpActorCaller,
)
from coterie.functions.model import ActorAddress

CODE = """
    import os, time
    from serverless import *

    def pieces():
        yield "a"
        time.sleep(0.05)
        yield "b"

    def broken():
        yield "a"
        raise ValueError

    def action(req):
        what = req.param("what")
        if what == "next":
            return Invoke("add", {"n": req.param("n"), "f": 1.5}, "/x", req.bytes())
        if what == "much":
            return Invoke("add", {"x": "y" * 300_000})
        if what == "hang":
            time.sleep(1000)
        if what == "exit":
            os._exit(1)
        if what == "pieces":
            return Response(pieces(), headers={"X-A": "b"})
        if what == "broken":
            return Response(broken())
        if what == "raise":
            raise ValueError("no")
        return Response(req.body() + "!")
"""


def address(running: RunningActor) -> ActorAddress:
    return ActorAddress("pod", "test", "v1", "127.0.0.1", running.port, TOKEN)


def head(**params: Any) -> CallHead:
    deadline = int(time.time() * 1000) + 30_000
    return CallHead(
        id="c", request="r", action="test", path="", params=params, content_type="", headers={"a": "b"}, deadline=deadline,
        attempt=0, traceparent="",
    )  # fmt: skip


async def test_the_dispatcher_and_an_actor_understand_each_other(tmp_path: Path) -> None:
    caller = HttpActorCaller()
    with actor(tmp_path, CODE, action_next="add") as running:
        place = address(running)
        for _ in range(3):
            answer = await caller.invoke(place, head(), "héllo".encode(), 20)
            assert answer.head.response is not None and not answer.streamed
            assert await answer.body(100) == "héllo!".encode()
        answer = await caller.invoke(place, head(what="next", n=3), b"\xff", 20)
        assert answer.head.invoke is not None and answer.head.invoke.params == {"n": 3, "f": 1.5}
        assert await answer.body(100) == b"\xff"
        answer = await caller.invoke(place, head(what="pieces"), b"", 20)
        assert answer.streamed and answer.head.response is not None and answer.head.response.headers == {"X-A": "b"}
        assert b"".join([piece async for piece in answer.pieces()]) == b"ab"
        answer = await caller.invoke(place, head(what="raise"), b"", 20)
        assert answer.head.response is not None and answer.head.response.error == "ValueError: no"
        await answer.body(1000)
        answer = await caller.invoke(place, head(what="much"), b"", 20)
        assert answer.head.response is not None and "are allowed; use the body" in answer.head.response.error
        await answer.body(1000)
        answer = await caller.invoke(place, head(what="broken"), b"", 20)
        with pytest.raises(ActorFailed):
            await answer.body(1000)
        with pytest.raises(ActorTimeout):
            await caller.invoke(place, head(what="hang"), b"", 0.3)
        with pytest.raises(ActorUnreachable, match="calls of this actor are running"):
            await caller.invoke(place, head(), b"", 20)
    with actor(tmp_path, CODE) as running:
        with pytest.raises(ActorFailed):
            await caller.invoke(address(running), head(what="exit"), b"", 20)
        running.ended()
        with pytest.raises(ActorUnreachable):
            await caller.invoke(address(running), head(), b"", 20)
    await caller.close()
