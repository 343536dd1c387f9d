"""What a hostile neighbour sends to the public port, and keys that change while calls go on."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from gateway_kit import HOSTS, client_tls, echo, identity, make_inputs, pair, pem, route, running, token

from coterie.kuscia.gateway.addresses import KeyPair, Protocol, SocketAddress
from coterie.kuscia.gateway.model import DomainService, Tuning

GOOD = (
    b"Host: echo.bob.svc\r\nKuscia-Source: alice\r\nKuscia-Token: " + token("alice", "bob").reveal().encode() + b"\r\n"
)
SHAPES = {
    "as it should be": (b"GET /x HTTP/1.1\r\n" + GOOD + b"\r\n", b"200"),
    "length and chunks": (
        b"POST /x HTTP/1.1\r\n" + GOOD + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"400",
    ),
    "two lengths": (b"POST /x HTTP/1.1\r\n" + GOOD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx", b"400"),
    "chunks spelt oddly": (b"POST /x HTTP/1.1\r\n" + GOOD + b"Transfer-Encoding: xchunked\r\n\r\n", b"501"),
    "space before the colon": (b"GET /x HTTP/1.1\r\n" + GOOD + b"Kuscia-Host : own.bob.svc\r\n\r\n", b"400"),
    "folded line, part of the one before": (b"GET /x HTTP/1.1\r\n" + GOOD + b"X: a\r\n Kuscia-Host: own.bob.svc\r\n\r\n", b"200"),
    "endless headers": (b"GET /x HTTP/1.1\r\n" + GOOD + b"X: " + b"a" * 100_000 + b"\r\n\r\n", b"431"),
    "many headers": (b"GET /x HTTP/1.1\r\n" + GOOD + b"X: a\r\n" * 200 + b"\r\n", b"431"),
    "not HTTP": (b"\x01\x02 nonsense\r\n\r\n", b"400"),
    "CONNECT": (b"CONNECT own.bob.svc:80 HTTP/1.1\r\n" + GOOD + b"\r\n", b"403 404"),
    "admin by its path": (b"GET /config_dump HTTP/1.1\r\nHost: envoy\r\n\r\n", b"401"),
}  # fmt: skip


@pytest.mark.parametrize(("sent", "expected"), SHAPES.values(), ids=list(SHAPES))
async def test_shapes(tmp_path: Path, sent: bytes, expected: bytes) -> None:
    async with pair(tmp_path, Protocol.NOTLS) as domains:
        where = domains.bob.inputs.external
        assert where is not None
        reader, writer = await asyncio.open_connection(where.host, where.port)
        writer.write(sent)
        line = await asyncio.wait_for(reader.readline(), 5)
        writer.close()
        assert line.split()[1] in expected.split(), line


@pytest.mark.parametrize(
    "said", ["closed.bob.svc", "{there}", "x@{there}", ""], ids=["name", "address", "user", "none"]
)
async def test_where_a_call_goes_is_not_for_its_host_header_to_say(tmp_path: Path, said: str) -> None:
    """The address of a service that alice may not call stands in Host, and an opened one's name beside it."""
    async with pair(tmp_path, Protocol.NOTLS) as domains, echo(HOSTS["carol"]) as other:
        opened = domains.bob.inputs.services[0]
        assert opened.name == "echo"
        # Both in one table, at different addresses.
        await domains.bob.change(services=(opened, DomainService("closed", (other,), access=frozenset({"zed"}))))
        where = domains.bob.inputs.external
        assert where is not None
        reader, writer = await asyncio.open_connection(where.host, where.port)
        rest = GOOD.split(b"\r\n", 1)[1]
        head = f"GET /x HTTP/1.1\r\nHost: {said.format(there=other)}\r\nKuscia-Host: echo.bob.svc\r\n".encode()
        writer.write(head + rest + b"Connection: close\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        line = answer.split(b"\r\n", 1)[0]
        assert b" 400 " in line or (b" 200 " in line and f'"host", "{opened.endpoints[0]}"'.encode() in answer), answer


async def test_a_client_that_never_ends_its_headers_is_let_go(tmp_path: Path) -> None:
    async with pair(tmp_path, Protocol.NOTLS, tuning=Tuning(headers_seconds=0.5)) as domains:
        where = domains.bob.inputs.external
        assert where is not None
        reader, writer = await asyncio.open_connection(where.host, where.port)
        started = time.monotonic()
        writer.write(b"GET /x HTTP/1.1\r\n")
        assert b"408" in await asyncio.wait_for(reader.readline(), 5)
        assert 0.3 < time.monotonic() - started < 3
        writer.close()


@pytest.mark.parametrize("protocol", [Protocol.NOTLS, Protocol.TLS, Protocol.MTLS])
async def test_a_client_that_says_nothing_is_let_go(tmp_path: Path, protocol: Protocol) -> None:
    async with pair(tmp_path, protocol, tuning=Tuning(headers_seconds=0.5)) as domains:
        where = domains.bob.inputs.external
        assert where is not None
        reader, writer = await asyncio.open_connection(where.host, where.port)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.close()


async def test_a_flood_outside_leaves_the_inside_alone(tmp_path: Path) -> None:
    """Partners share a limit of connections. Pods and the node itself have others."""
    async with pair(tmp_path, Protocol.NOTLS, tuning=Tuning(max_connections=64)) as domains:
        bob = domains.bob
        outside, inside = bob.inputs.external, bob.inputs.internal
        assert outside is not None and inside is not None
        flood = [await asyncio.open_connection(outside.host, outside.port) for _ in range(100)]
        refused = 0
        for reader, _ in flood:
            with contextlib.suppress(TimeoutError, ConnectionError):
                refused += await asyncio.wait_for(reader.read(), 0.02) == b""
        assert refused >= 30, "the limit holds outside"
        for _ in range(20):
            reader, writer = await asyncio.open_connection(inside.host, inside.port)
            writer.write(b"GET /x HTTP/1.1\r\nHost: nobody.bob.svc\r\nConnection: close\r\n\r\n")
            assert (await asyncio.wait_for(reader.readline(), 10)).startswith(b"HTTP/1.1 ")
            writer.close()
        for _, writer in flood:
            writer.transport.abort()


async def test_a_client_that_never_ends_its_greeting_is_let_go(tmp_path: Path) -> None:
    async with pair(tmp_path, Protocol.NOTLS, tuning=Tuning(headers_seconds=0.5)) as domains:
        where = domains.bob.inputs.external
        assert where is not None
        reader, writer = await asyncio.open_connection(where.host, where.port)
        writer.write(b"\x16\x03\x01 nonsense\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()


async def test_the_admin_socket_is_private_and_no_port_but_two_is_open(tmp_path: Path) -> None:
    async with pair(tmp_path) as domains:
        bob = domains.bob
        assert bob.settings.socket.stat().st_mode & 0o777 == 0o600
        assert bob.settings.run.stat().st_mode & 0o777 == 0o700
        secrets = [path for path in bob.settings.directory.iterdir() if path.stat().st_mode & 0o077]
        assert secrets == []
        assert listening(bob.envoy.pid) == {bob.inputs.internal.port, bob.inputs.external.port}  # type: ignore[union-attr]


def listening(pid: int | None) -> set[int]:
    """Ports on which a process listens."""
    inodes = set()
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            target = str(handle.readlink())
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[9] in inodes and columns[3] in ("0A", "07"):
                found.add(int(columns[1].rsplit(":", 1)[1], 16))
    return found


async def test_keys_change_while_calls_go_on(tmp_path: Path) -> None:
    """Bob's files are replaced; alice first believes both of his certificates, then only the new one."""
    keys = tmp_path / "keys"
    keys.mkdir()
    mine = KeyPair(keys / "domain.crt", keys / "domain.key")
    shutil.copy(identity("bob").certificate, mine.certificate)
    shutil.copy(identity("bob").key, mine.key)
    async with pair(tmp_path, identity=mine) as domains:
        there, back = domains.alice.inputs.routes
        both = (pem("bob"), pem("joe"))
        await domains.alice.change(routes=(replace(there, certificates=both), replace(back, certificates=both)))
        assert (await domains.call("echo.bob.svc"))[0] == 200
        assert await served(domains.bob.inputs.external) == pem("bob")
        for kind, path in (("key", mine.key), ("crt", mine.certificate)):
            aside = keys / f"new.{kind}"
            shutil.copy(identity("joe").certificate.with_suffix(f".{kind}"), aside)
            aside.replace(path)
        async with asyncio.timeout(5):
            while await served(domains.bob.inputs.external) != pem("joe"):
                await asyncio.sleep(0.02)
        only = (pem("joe"),)
        await domains.alice.change(routes=(replace(there, certificates=only), replace(back, certificates=only)))
        assert (await domains.call("echo.bob.svc"))[0] == 200
        await domains.alice.change(routes=(there, back))
        assert (await domains.call("echo.bob.svc"))[0] == 503


async def served(where: SocketAddress | None) -> str:
    """The certificate a server shows."""
    assert where is not None
    _, writer = await asyncio.open_connection(where.host, where.port, ssl=client_tls("alice"))
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return ssl.DER_cert_to_PEM_cert(shown)


async def test_a_server_that_is_not_the_pinned_one_gets_nothing(tmp_path: Path) -> None:
    """Somebody answers at bob's address with a certificate of his own."""
    async with echo(HOSTS["bob"]) as plain:
        bob = make_inputs("bob", tmp_path, Protocol.TLS, services=(DomainService("echo", (plain,)),))
        impostor = replace(bob, identity=identity("carol"), routes=(route("alice", "bob", bob, "bob"),))
        alice = make_inputs("alice", tmp_path, Protocol.TLS)
        alice = replace(alice, routes=(route("alice", "bob", bob, "alice"),))
        async with running(alice, impostor, root=tmp_path) as (at_alice, at_bob):
            reader, writer = await asyncio.open_connection(alice.internal.host, alice.internal.port)
            writer.write(b"GET /x HTTP/1.1\r\nHost: echo.bob.svc\r\n\r\n")
            assert b"503" in await asyncio.wait_for(reader.readline(), 5)
            writer.close()
            stats = await at_bob.envoy.admin.ask("/stats?filter=http.external.downstream_rq_total")
            assert stats.strip() == "http.external.downstream_rq_total: 0"
            assert (await at_alice.envoy.status()).problems == ()


_CHOICES = (
    b"GET ", b"POST ", b"CONNECT ", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"/x", b"http://echo.bob.svc/", b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", b"\r\n", b"\r\n\r\n",
    b"Host: echo.bob.svc\r\n", b"Host: \r\n", b"Kuscia-Host: closed.bob.svc\r\n", b"Kuscia-Source: alice\r\n", b"Kuscia-Token: x\r\n", b"Kuscia-Origin-Source: bob\r\n",
    b"Content-Length: 5\r\n", b"Content-Length: -1\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: Upgrade\r\nUpgrade: websocket\r\n", b"Expect: 100-continue\r\n",
    b"0\r\n\r\n", b"ffffffff\r\n", b"\0", b"\xff" * 50, b"a" * 3000, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n",
    b"\x00\x00\x12\x04\x00\x00\x00\x00\x00", b"\x00\x00\x04\x08\x00\x00\x00\x00\x00\x7f\xff\xff\xff",
)  # fmt: skip


@pytest.mark.parametrize("protocol", [Protocol.NOTLS, Protocol.MTLS])
async def test_generated_garbage_is_refused_and_others_are_served(tmp_path: Path, protocol: Protocol) -> None:
    """What nobody signed for gets no success, Envoy lives, its memory stays where it was, and a partner is served."""
    seeds = Random(7)
    async with pair(tmp_path, protocol) as domains:
        bob = domains.bob
        where = bob.inputs.external
        assert where is not None and bob.envoy.pid is not None
        pid, before = bob.envoy.pid, _resident(bob.envoy.pid)

        async def throw(data: bytes) -> bytes:
            reader, writer = await asyncio.open_connection(where.host, where.port)
            try:
                writer.write(data)
                writer.write_eof()
                return await asyncio.wait_for(reader.read(65536), 5)
            except OSError:  # closed meanwhile, or silent
                return b""
            finally:
                writer.transport.abort()

        def soup() -> bytes:
            parts = [
                seeds.choice(_CHOICES) if seeds.random() < 0.8 else seeds.randbytes(seeds.randrange(64))
                for _ in range(seeds.randrange(1, 16))
            ]
            return b"".join(parts)

        for _ in range(15):
            answers = await asyncio.gather(*(throw(soup()) for _ in range(20)))
            assert not [each for each in answers if each.startswith((b"HTTP/1.1 2", b"HTTP/1.0 2"))]
            assert (await domains.call("echo.bob.svc"))[0] == 200
        assert bob.envoy.pid == pid, "the same process all the while"
        assert _resident(pid) - before < 64 << 20


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
