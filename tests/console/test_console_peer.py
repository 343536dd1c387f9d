"""Links for one user of the machine."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import NoReturn

import pytest

from coterie.base.clock import VirtualClock
from coterie.base.tasks import TaskOwner
from coterie.console import peer_owner
from coterie.console.server import ConsoleServer
from coterie.console.settings import ConsoleSettings
from coterie.http.messages import Peer, Request
from coterie.kube.client.fake import FakeTransport
from coterie.kube.client.transport import TransportRequest


def unexpected(call: TransportRequest) -> NoReturn:
    raise AssertionError(f"nobody asks for {call.path}")


@pytest.mark.parametrize(("uid", "status"), [(os.getuid(), 200), (os.getuid() + 1, 403)])
async def test_a_link_for_one_user_of_the_machine_is_not_for_another(uid: int, status: int) -> None:
    """The link that a browser is started with is in the list of processes."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as caller,
    ):
        settings = ConsoleSettings("alice", "autonomy", "127.0.0.1", listening.getsockname()[1], Path("/nowhere"))
        async with TaskOwner("console") as owner:
            server = ConsoleServer(settings, FakeTransport(unexpected), VirtualClock(), owner)
            asked = json.dumps({"account": "ops/anna", "token": "t", "uid": uid}).encode()
            answer = await server.handle_control(Request("POST", "/codes", body=asked))
            url, _, code = json.loads(answer.body)["url"].partition("/#login=")
            headers = {"host": url.removeprefix("http://"), "origin": url}
            address, port = caller.getsockname()
            body = json.dumps({"code": code}).encode()
            request = Request("POST", "/login", "", headers, body, Peer(address, port=port))
            assert (await server.handle(request)).status == status
            assert server.sessions.in_use == (status == 200)
            assert (await server.handle(request)).status == 401, "it was used"


def test_ends_of_connections_as_the_kernel_writes_them() -> None:
    four = "   1: 0100007F:C350 0100007F:1F98 01 00000000:00000000 00:00000000 00000000  1000        0 5 1"
    mapped = four.replace("0100007F", "0000000000000000FFFF00000100007F").replace(" 1000 ", " 1001 ")
    six = four.replace("0100007F", "00000000000000000000000001000000").replace(" 1000 ", " 1002 ")
    lines = [four, mapped, six, four.replace(" 01 ", " 06 "), "short"]
    assert list(peer_owner.matching(lines, "127.0.0.1", 50000, 8088)) == [1000, 1001]
    assert list(peer_owner.matching(lines, "::ffff:127.0.0.1", 50000, 8088)) == [1000, 1001]
    assert list(peer_owner.matching(lines, "::1", 50000, 8088)) == [1002]
    assert list(peer_owner.matching(lines, "127.0.0.1", 50000, 8089)) == []
    assert list(peer_owner.matching(lines, "127.0.0.2", 50000, 8088)) == []
