"""A spare actor as a process on loopback: it is claimed once, by whoever has its token, and is then the actor of one action."""

from __future__ import annotations

import hashlib
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from actor_kit import RunningActor, actor, packed

from coterie.engines.actor import exit_codes

CLAIM_TOKEN = "the claim's token"
DIGEST = hashlib.blake2b(CLAIM_TOKEN.encode(), digest_size=32).hexdigest()
SHOW = """
import json, os
from serverless import Response
def action(req):
    mine = {name: value for name, value in os.environ.items() if name.startswith("COTERIE_")}
    start = open("/proc/self/environ").read()
    return Response(json.dumps({"mine": mine, "start": start, "files": sorted(os.listdir(os.environ["COTERIE_ACTOR_CODE"]))}))
"""


@contextmanager
def spare(folder: Path) -> Iterator[RunningActor]:
    with actor(folder, {}, action="", actor_token="", actor_spare=DIGEST) as running:
        yield running


def claim(
    running: RunningActor, content: bytes, *, file: str = "action.py", token: str = CLAIM_TOKEN, **variables: str
) -> tuple[int, str]:
    given = {
        "COTERIE_ACTION": "mine",
        "COTERIE_ACTION_VERSION": "v7",
        "COTERIE_ACTOR_TOKEN": "of the action",
        **variables,
    }
    line = json.dumps({"environment": given, "file": file}).encode()
    reply = running.ask("PUT", "/claim", line + b"\n" + content, token=token)
    return reply.status, reply.body.decode()


def invoke(running: RunningActor, token: str) -> Any:
    body = json.dumps({"id": "c", "request": "r", "action": "mine", "params": {}}).encode() + b"\n"
    return running.ask("POST", "/invoke", body, token=token)


def test_it_is_claimed_once_and_is_then_an_actor_of_the_action(tmp_path: Path) -> None:
    with spare(tmp_path) as running:
        assert running.ask("GET", "/healthz").body == b"spare\n"
        assert invoke(running, "of the action").status == 401
        assert invoke(running, CLAIM_TOKEN).status == 503, "it has no code"
        assert claim(running, SHOW.encode(), token="another")[0] == 401
        assert claim(running, SHOW.encode())[0] == 200
        assert running.ask("GET", "/healthz").body == b"ok\n"
        assert claim(running, b"def action(req): return None")[0] == 401, "the token of the claim is worth nothing now"
        assert claim(running, b"def action(req): return None", token="of the action")[0] == 404
        assert invoke(running, CLAIM_TOKEN).status == 401
        answer = json.loads(invoke(running, "of the action").content)
        mine = answer["mine"]
        assert (mine["COTERIE_ACTION"], mine["COTERIE_ACTION_VERSION"]) == ("mine", "v7")
        assert not {"COTERIE_ACTOR_TOKEN", "COTERIE_ACTOR_SPARE"} & mine.keys()
        assert answer["files"] == ["action.py"]
        assert "of the action" not in answer["start"] and CLAIM_TOKEN not in answer["start"]
        running.signal(signal.SIGTERM)
        assert running.ended() == exit_codes.DRAINED


def test_an_archive_and_new_code_later(tmp_path: Path) -> None:
    def code(text: str) -> bytes:
        return packed({"lib.py": f"TEXT = {text!r}\n", "action.py": "from serverless import Response\nimport lib\ndef action(req):\n    return Response(lib.TEXT)\n"})  # fmt: skip

    with spare(tmp_path) as running:
        assert claim(running, code("one"), file="archive.000")[0] == 200
        assert invoke(running, "of the action").content == b"one"
        assert running.ask("PUT", "/code?version=v8", code("two"), token="of the action").status == 200
        assert invoke(running, "of the action").content == b"two"


def test_code_that_cannot_be_loaded_ends_it_as_any_actor(tmp_path: Path) -> None:
    with spare(tmp_path) as running:
        status, text = claim(running, b"import no_such_module\n")
        assert status == 422 and "no_such_module" in text
        assert running.ended() == exit_codes.BAD_CODE


@pytest.mark.parametrize(
    ("line", "content"),
    [
        (b"not json", b""),
        (b"[]", b""),
        (b'{"environment": {"PATH": "/tmp"}, "file": "action.py"}', b""),
        (b'{"environment": {"COTERIE_ACTION": 1}, "file": "action.py"}', b""),
        (b'{"environment": {}, "file": "../escape"}', b""),
        (b'{"environment": {}}', b""),
    ],
)
def test_what_is_no_claim_is_refused_and_uses_nothing_up(tmp_path: Path, line: bytes, content: bytes) -> None:
    with spare(tmp_path) as running:
        assert running.ask("PUT", "/claim", line + b"\n" + content, token=CLAIM_TOKEN).status == 400
        assert running.ask("GET", "/claim", token=CLAIM_TOKEN).status == 503
        assert claim(running, SHOW.encode())[0] == 200


def test_sigterm_ends_a_spare_and_sigint_does_not(tmp_path: Path) -> None:
    with spare(tmp_path) as running:
        running.signal(signal.SIGINT)
        assert running.ask("GET", "/healthz").status == 200
        running.signal(signal.SIGTERM)
        assert running.ended() == 0
