"""The examples of functions: their scripts in real actors, calls followed from action to action."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from actor_kit import SECONDS, TOKEN, Client, Reply, RunningActor, actor, call_body

from coterie.kuscia.api.functions.code import code_fault, code_files
from coterie.kuscia.api.functions.types import Action, Trigger

EXAMPLES = Path(__file__).parents[2] / "examples" / "functions"


def actions_of(path: Path) -> dict[str, Action]:
    objects = list(yaml.safe_load_all(path.read_text()))
    actions = [msgspec.convert(each, Action) for each in objects if each["kind"] == "Action"]
    triggers = [msgspec.convert(each, Trigger) for each in objects if each["kind"] == "Trigger"]
    found = {each.metadata.name: each for each in actions}
    assert {each.spec.action for each in triggers} <= found.keys()
    for number, each in enumerate(actions):
        assert set(each.spec.targets) <= {other.metadata.name for other in actions[:number]}, "admission refuses others"
    return found


@contextlib.contextmanager
def chain(folder: Path, path: Path) -> Iterator[dict[str, RunningActor]]:
    with contextlib.ExitStack() as stack:
        running = {}
        for name, each in actions_of(path).items():
            assert code_fault(code_files(each.spec), each.spec) == ""
            targets = ",".join(each.spec.targets)
            running[name] = stack.enter_context(actor(folder / name, each.spec.script, action_next=targets))
        yield running


def follow(
    actors: dict[str, RunningActor], name: str, params: dict[str, Any], body: bytes = b""
) -> tuple[list[str], Reply]:
    """What the dispatcher does with the answers."""
    seen = []
    for hop in range(5):
        seen.append(name)
        answer = actors[name].call(params, body, id=f"{name}-{hop}")
        if "response" in answer.line:
            return seen, answer
        invoke = answer.line["invoke"]
        name, params, body = invoke["action"], invoke["params"], answer.content
    raise AssertionError("a chain without end")


def test_c32_the_calculator(tmp_path: Path) -> None:
    with chain(tmp_path, EXAMPLES / "calculator" / "calculator.yaml") as actors:

        def ask(sign: str, a: str = "2", b: str = "3") -> tuple[list[str], int, str]:
            seen, answer = follow(actors, "calculator", {"sign": sign, "a": a, "b": b})
            return seen, answer.response["status"], answer.content.decode()

        assert ask("+") == (["calculator", "add"], 200, "5")
        assert ask("*") == (["calculator", "multiply"], 200, "6")
        assert ask(">") == (["calculator"], 200, "False")
        assert ask("<") == (["calculator"], 200, "True")
        assert ask("==", "3", "3.0") == (["calculator"], 200, "True")
        assert ask("?") == (["calculator"], 400, "unknown sign ?")
        assert ask("+", "x") == (["calculator"], 400, "a and b must be numbers")


def test_c29_a_chain_with_branches(tmp_path: Path) -> None:
    with chain(tmp_path, EXAMPLES / "branching" / "branching.yaml") as actors:

        def order(value: Any) -> tuple[list[str], int, bytes]:
            seen, answer = follow(actors, "check", {}, json.dumps(value).encode())
            return seen, answer.response["status"], answer.content

        seen, status, body = order({"item": "book", "count": 2})
        assert (seen, status) == (["check", "price", "confirm"], 201)
        assert json.loads(body) == {"order": "confirm-2", "total": 3900, "state": "confirmed"}
        seen, status, body = order({"item": "pen", "count": 500})
        assert (seen, status) == (["check", "price", "ask-a-person"], 202)
        assert order({"item": "car", "count": 1}) == (["check"], 404, b"there is no car")
        assert order({"item": "book", "count": 11})[1] == 409 and order([])[1] == 400


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node.js")
def test_an_actor_in_another_language() -> None:
    assert actions_of(EXAMPLES / "other_language" / "word-count.yaml")["word-count"].spec.image == "word-count:1"
    environment = {
        "PATH": os.environ["PATH"], "COTERIE_ACTION": "word-count", "COTERIE_ACTOR_TOKEN": TOKEN, "COTERIE_ACTOR_PORT": "0",
        "COTERIE_ACTOR_HOST": "127.0.0.1", "COTERIE_ACTION_NEXT": "archive",
    }  # fmt: skip
    words = ["node", str(EXAMPLES / "other_language" / "actor.mjs")]
    with subprocess.Popen(words, env=environment, stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            port = int(process.stderr.readline().split()[-1])
            client = Client(port)
            assert client.ask("GET", "/healthz").status == 200
            answer = client.call({}, b"some longer words")
            assert answer.response == {"status": 200, "contentType": "application/json"}
            assert json.loads(answer.content) == {"words": 3, "longest": "longer"}
            assert client.call({}, b"a " * 2000).line["invoke"]["params"] == {"words": 2000}
            failed = client.call({"fail": 1})
            assert failed.response["error"] == "Error: as asked" and b"as asked" in failed.content
            assert client.ask("POST", "/invoke", b"not JSON\n").status == 400
            assert client.ask("PUT", "/code?version=v2", b"x").status == 501
            client.close()
            client = Client(port)
            assert client.ask("POST", "/invoke", call_body(), token="other").status == 401
            client.close()
            process.terminate()
            assert process.wait(SECONDS) == 0
        finally:
            process.kill()
