"""Requests to several API servers: what is sent again, what never is."""

from __future__ import annotations

import pytest

from coterie.kube.client.failover import FailoverTransport
from coterie.kube.client.transport import (
    Disconnected,
    NotSent,
    ResponseTimeout,
    TransportError,
    TransportRequest,
    TransportResponse,
)

READ, WRITE = TransportRequest("GET", "/x"), TransportRequest("POST", "/x")


class Servers:
    """Servers that answer as they are told; what arrived at each."""

    def __init__(self, **answers: int | TransportError) -> None:
        self.answers: dict[str, int | TransportError] = dict(answers)
        self.arrived: list[str] = []

    def transport(self, server: str) -> _One:
        return _One(self, server)


class _One:
    def __init__(self, servers: Servers, name: str) -> None:
        self._servers, self._name = servers, name

    async def send(self, call: TransportRequest) -> TransportResponse:
        self._servers.arrived.append(f"{call.method} {self._name}")
        answer = self._servers.answers[self._name]
        if isinstance(answer, TransportError):
            raise answer
        return TransportResponse(answer)

    async def close(self) -> None:
        pass


async def test_one_server_is_used_while_it_works():
    servers = Servers(a=200, b=200)
    transport = FailoverTransport(["a", "b"], servers.transport)
    for _ in range(3):
        assert (await transport.send(WRITE)).status == 200
    assert servers.arrived == ["POST a"] * 3


@pytest.mark.parametrize("call", [READ, WRITE], ids=["read", "write"])
async def test_what_was_not_sent_goes_to_the_next(call: TransportRequest):
    servers = Servers(a=NotSent("refused"), b=200)
    transport = FailoverTransport(["a", "b"], servers.transport)
    assert (await transport.send(call)).status == 200
    await transport.send(call)
    assert servers.arrived == [f"{call.method} {name}" for name in "abb"]


@pytest.mark.parametrize("problem", [Disconnected("gone"), ResponseTimeout("late")], ids=["gone", "late"])
async def test_a_change_of_unknown_outcome_is_never_sent_twice(problem: TransportError):
    servers = Servers(a=problem, b=200)
    transport = FailoverTransport(["a", "b"], servers.transport)
    with pytest.raises(type(problem)):
        await transport.send(WRITE)
    assert servers.arrived == ["POST a"]
    assert (await transport.send(WRITE)).status == 200
    assert servers.arrived == ["POST a", "POST b"]


async def test_a_question_is_asked_again_whatever_became_of_it():
    servers = Servers(a=Disconnected("gone"), b=200)
    assert (await FailoverTransport(["a", "b"], servers.transport).send(READ)).status == 200


async def test_a_server_that_cannot_serve_is_left():
    servers = Servers(a=503, b=201)
    assert (await FailoverTransport(["a", "b"], servers.transport).send(WRITE)).status == 201
    servers = Servers(a=503, b=503)
    assert (await FailoverTransport(["a", "b"], servers.transport).send(WRITE)).status == 503
    assert servers.arrived == ["POST a", "POST b"]


async def test_when_all_are_gone_the_last_error_is_told():
    servers = Servers(a=NotSent("a refused"), b=NotSent("b refused"))
    transport = FailoverTransport(["a", "b"], servers.transport)
    with pytest.raises(NotSent, match="b refused"):
        await transport.send(WRITE)
    servers.answers["a"] = 200
    assert (await transport.send(WRITE)).status == 200


async def test_new_servers_are_used_when_the_old_one_fails():
    servers = Servers(a=200, c=200)
    transport = FailoverTransport(["a"], servers.transport)
    await transport.send(READ)
    transport.use(["c"])
    await transport.send(READ)
    servers.answers["a"] = NotSent("gone")
    await transport.send(READ)
    assert servers.arrived == ["GET a", "GET a", "GET a", "GET c"]
    transport.use([])
    assert transport.servers == ("c",) and transport.current == "c"
    with pytest.raises(ValueError):
        FailoverTransport([], servers.transport)
