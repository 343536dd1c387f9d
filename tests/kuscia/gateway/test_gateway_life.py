"""Real Envoys over time: changed under load, killed, taken over, given nonsense."""

from __future__ import annotations

import asyncio
import os
import pickle
import re
import signal
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import aiohttp
import pytest
from gateway_kit import (
    HOSTS,
    Http2Stream,
    Pair,
    call,
    client_tls,
    echo,
    make_inputs,
    make_settings,
    pair,
    route,
    running,
    token,
)

from coterie.base.log_rotation import Rotation
from coterie.base.secret import SecretValue
from coterie.kuscia.gateway.addresses import Protocol, SocketAddress
from coterie.kuscia.gateway.admin import log_tail
from coterie.kuscia.gateway.envoy import Envoy
from coterie.kuscia.gateway.model import DomainService, Route, SnapshotInputs, TaskBandwidthLimit, TransitGrant
from coterie.kuscia.gateway.snapshot import CLUSTERS_FILE, EnvoyResources, snapshot

MIB = 1 << 20


def with_tokens(inputs: SnapshotInputs, source: str, *tokens: SecretValue) -> tuple[Route, ...]:
    return tuple(replace(each, tokens=tokens) if each.source == source else each for each in inputs.routes)


class Load:
    """Requests that go on all the while, over HTTP/1.1 by four callers."""

    def __init__(self, domains: Pair) -> None:
        self.statuses: list[int] = []
        self._domains = domains
        self._turns = [0] * 4
        self._stop = asyncio.Event()

    async def caller(self, number: int) -> None:
        while not self._stop.is_set():
            self.statuses.append((await self._domains.call("echo.bob.svc", data=b"x"))[0])
            self._turns[number] += 1

    async def turn(self) -> None:
        """Until all requests that are under way now have ended."""
        before = list(self._turns)
        while any(now == then for now, then in zip(self._turns, before, strict=True)):
            await asyncio.sleep(0.001)

    async def __aenter__(self) -> Load:
        self._callers = [asyncio.create_task(self.caller(number)) for number in range(4)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        await asyncio.gather(*self._callers)


async def test_tokens_roll_and_services_come_and_go_without_a_failed_request(tmp_path: Path) -> None:
    async with pair(tmp_path) as domains:
        alice, bob = domains.alice, domains.bob
        link = await domains.http.ws_connect(f"{alice.inside}/ws", headers={"Host": "echo.bob.svc"})
        echo_service = bob.inputs.services[0]
        async with Load(domains) as load:
            for revision in range(2, 12):
                old, new = token("alice", "bob", revision - 1), token("alice", "bob", revision)
                await bob.change(routes=with_tokens(bob.inputs, "alice", old, new))
                await alice.change(routes=with_tokens(alice.inputs, "alice", old, new))
                # What left alice with the old token is not cut off on its way.
                await load.turn()
                await bob.change(routes=with_tokens(bob.inputs, "alice", new))
                more = replace(echo_service, name=f"more-{revision}")
                await bob.change(services=(*bob.inputs.services[:6], more))
                assert (await domains.call(f"more-{revision}.bob.svc"))[0] == 200
        assert len(load.statuses) > 50
        assert set(load.statuses) == {200}
        await link.send_bytes(b"still")
        assert await link.receive_bytes(timeout=5) == b"still"
        await link.close()
        # What went is gone, and an old token is worth nothing.
        assert (await domains.call("more-2.bob.svc"))[0] == 403
        headers = {"Kuscia-Source": "alice", "Kuscia-Token": token("alice", "bob", 10).reveal()}
        assert (await call(domains.http, f"{bob.outside}/", headers=headers, ssl=client_tls("alice")))[0] == 401


async def test_a_killed_envoy_comes_back(tmp_path: Path) -> None:
    async with pair(tmp_path) as domains:
        for domain in (domains.alice, domains.bob):
            before = domain.envoy.pid
            assert before is not None
            os.kill(before, signal.SIGKILL)
            started = time.monotonic()
            while domain.envoy.pid in (None, before) or not await domain.envoy.admin.live():
                assert time.monotonic() - started < 40
                await asyncio.sleep(0.01)
            assert (await domains.call("echo.bob.svc"))[0] == 200
            status = await domain.envoy.status()
            assert (status.live, status.restarts) == (True, 1)


async def test_nonsense_is_refused_and_told_and_the_old_goes_on(tmp_path: Path) -> None:
    async with pair(tmp_path) as domains:
        bob = domains.bob
        bob.envoy.settings = replace(bob.envoy.settings, accept_seconds=0.5)
        good = snapshot(bob.inputs)
        broken = {**good.clusters[0], "connect_timeout": "-1s"}
        applied = await bob.envoy.apply(EnvoyResources({**good.files, CLUSTERS_FILE: (*good.clusters[1:], broken)}))
        assert not applied.accepted
        assert applied.pending == (CLUSTERS_FILE,)
        assert any("positive duration" in reason for reason in applied.reasons)
        assert (await domains.call("echo.bob.svc"))[0] == 200
        assert (await bob.envoy.apply(good)).accepted
        assert (await bob.envoy.status()).last == await bob.envoy.apply(good)


async def test_envoy_outlives_us_and_is_taken_over(tmp_path: Path) -> None:
    async with echo(HOSTS["bob"]) as plain:
        inputs = make_inputs("bob", tmp_path, Protocol.NOTLS, services=(DomainService("echo", (plain,)),))
        settings = make_settings(inputs, tmp_path, stop_seconds=2.0)
        handed_over = pickle.dumps((settings, inputs))
        program = textwrap.dedent(f"""
            import asyncio, pickle
            from coterie.kuscia.gateway.envoy import Envoy
            from coterie.kuscia.gateway.snapshot import snapshot
            async def main():
                settings, inputs = pickle.loads({handed_over!r})
                envoy = Envoy(settings, snapshot(inputs))
                task = asyncio.create_task(envoy.run())
                await envoy.ready.wait()
                print(envoy.pid, flush=True)
                await task
            asyncio.run(main())
        """)
        other = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
        assert other.stdout is not None
        pid = int(await asyncio.wait_for(other.stdout.readline(), 40))
        other.kill()
        await other.wait()
        async with aiohttp.ClientSession() as http:
            assert (await call(http, f"http://{inputs.internal}/", "echo.bob.svc"))[0] == 200
            envoy = Envoy(settings, snapshot(inputs))
            task = asyncio.create_task(envoy.run())
            await asyncio.wait_for(envoy.ready.wait(), 40)
            status = await envoy.status()
            assert (status.pid, status.adopted) == (pid, True)
            changed = replace(inputs, services=(DomainService("other", (plain,)),))
            assert (await envoy.apply(snapshot(changed))).accepted
            assert (await call(http, f"http://{inputs.internal}/", "other.bob.svc"))[0] == 200
            os.kill(pid, signal.SIGKILL)
            async with asyncio.timeout(40):
                while envoy.pid in (None, pid) or not await envoy.admin.live():
                    await asyncio.sleep(0.01)
            assert (await call(http, f"http://{inputs.internal}/", "other.bob.svc"))[0] == 200
            envoy.stop()
            await asyncio.wait_for(task, 10)
        assert not settings.pid_file.exists()


async def test_stopping_lets_open_requests_end(tmp_path: Path) -> None:
    async with echo(HOSTS["bob"]) as plain, aiohttp.ClientSession() as http:
        inputs = make_inputs("bob", tmp_path, Protocol.NOTLS, services=(DomainService("echo", (plain,)),))
        async with running(inputs, root=tmp_path) as (bob,):
            ended = asyncio.Event()

            async def slowly() -> AsyncIterator[bytes]:
                yield b"begin"
                await ended.wait()
                yield b"end"

            request = asyncio.create_task(call(http, f"{bob.inside}/", "echo.bob.svc", data=slowly()))
            while b" 1" not in (await bob.envoy.admin.ask("/stats?filter=internal.downstream_rq_active")).encode():
                await asyncio.sleep(0.01)
            bob.envoy.stop()
            await asyncio.sleep(0.3)
            ended.set()
            status, said, _ = await request
            assert (status, said["size"]) == (200, 8)


async def test_a_task_keeps_to_its_bandwidth(tmp_path: Path) -> None:
    async with pair(tmp_path, Protocol.NOTLS) as domains:
        service = domains.bob.inputs.services[0]
        named = tuple(replace(service, name=name) for name in ("slow-0-spu", "fast-0-spu"))
        await domains.bob.change(services=named)
        await domains.alice.change(limits=(TaskBandwidthLimit("slow", "bob", 1024),))
        took = {}
        for task in ("slow", "fast"):
            started = time.monotonic()
            status, said, _ = await domains.call(f"{task}-0-spu.bob.svc", data=BytesIO(bytes(3 * MIB)))
            took[task] = time.monotonic() - started
            assert (status, said["size"]) == (200, 3 * MIB)
        # The first second's worth passes at once.
        assert took["slow"] > 1.5
        assert took["fast"] < took["slow"]


async def test_only_from_listed_addresses(tmp_path: Path) -> None:
    async with pair(tmp_path) as domains:
        for listed, expected in ((("10.0.0.0/8",), 403), (("10.0.0.0/8", "127.0.0.1"), 200), (("nonsense",), 403)):
            routes = tuple(replace(each, source_addresses=listed) for each in domains.bob.inputs.routes)
            await domains.bob.change(routes=routes)
            assert (await domains.call("echo.bob.svc"))[0] == expected


async def test_before_the_handshake_only_the_handshake_passes(tmp_path: Path) -> None:
    async with pair(tmp_path) as domains:
        await domains.alice.change(routes=with_tokens(domains.alice.inputs, "alice"))
        status, body, _ = await domains.call("echo.bob.svc", data=b"secret")
        assert (status, "no token" in body) == (503, True)
        status, said, _ = await domains.call("kuscia-handshake.bob.svc", "/handshake", data=b"{}")
        assert (status, said["size"]) == (200, 2)
        assert "kuscia-token" not in dict(said["headers"])


@pytest.mark.parametrize("protocol", [Protocol.NOTLS, Protocol.MTLS], ids=str)
async def test_transit_through_a_third_domain(tmp_path: Path, protocol: Protocol) -> None:
    """alice -> joe -> bob hop by hop, as Kuscia does; joe carries alice's calls to bob and to nobody else's services."""
    async with echo(HOSTS["bob"]) as plain, aiohttp.ClientSession() as http:
        alice, joe, bob = (make_inputs(name, tmp_path, protocol) for name in ("alice", "joe", "bob"))
        services = (
            DomainService("echo", (plain,)),
            DomainService("for-alice", (plain,), access=frozenset({"alice"})),
            DomainService("for-joe", (plain,), access=frozenset({"joe"})),
        )
        joe = replace(
            joe,
            transit=(TransitGrant("alice", "bob"),),
            routes=(route("alice", "joe", joe, "joe"), route("joe", "bob", bob, "joe")),
        )
        bob = replace(
            bob,
            services=services,
            routes=(route("joe", "bob", bob, "bob"), Route("alice", "bob", via="joe", hop_by_hop=True)),
        )
        alice = replace(
            alice, routes=(route("alice", "joe", joe, "alice"), Route("alice", "bob", via="joe", hop_by_hop=True))
        )
        async with running(alice, joe, bob, root=tmp_path) as (at_alice, at_joe, at_bob):
            status, said, _ = await call(http, f"{at_alice.inside}/x", "for-alice.bob.svc")
            assert status == 200
            headers = dict(said["headers"])
            assert (headers["kuscia-source"], headers["kuscia-origin-source"]) == ("joe", "alice")
            assert headers["kuscia-host"] == "for-alice.bob.svc"
            assert (await call(http, f"{at_alice.inside}/x", "for-joe.bob.svc"))[0] == 403
            assert (await call(http, f"{at_joe.inside}/x", "for-joe.bob.svc"))[0] == 200
            assert (await call(http, f"{at_joe.inside}/x", "for-alice.bob.svc"))[0] == 403
            await at_bob.change(routes=(route("joe", "bob", bob, "bob"),))
            # Bob no longer believes that joe speaks for alice.
            assert (await call(http, f"{at_alice.inside}/x", "echo.bob.svc"))[0] == 403
            await at_joe.change(transit=())
            status, _, reply = await call(http, f"{at_alice.inside}/x", "echo.bob.svc")
            assert status == 403
            assert reply["kuscia-error-message"].startswith("alice/0/internal => <joe/0/external $cause$ ")


async def test_grpc_over_a_path_prefix_and_a_gone_partner(tmp_path: Path) -> None:
    async with pair(tmp_path) as domains:
        (there, back) = domains.alice.inputs.routes
        prefixed = replace(there, ports=(replace(there.ports[0], path_prefix="/to/bob/"),))
        await domains.alice.change(routes=(prefixed, back))
        status, said, _ = await domains.call("echo.bob.svc", "/x?y=1")
        assert (status, said["path"]) == (200, "/to/bob/x?y=1")
        gone = replace(there, ports=(replace(there.ports[0], port=9),))
        await domains.alice.change(routes=(gone, back))
        stream = await Http2Stream.open(
            domains.alice.inputs.internal, "stream.bob.svc", "/t.T/Bidi", kind="application/grpc"
        )
        stream.send(b"x", end=True)
        await stream.until()
        stream.close()
        assert stream.headers["grpc-status"] == "14"


async def test_a_word_that_came_late_is_heard(tmp_path: Path) -> None:
    """Envoy may need longer than we wait; the same configuration given again is asked about again."""
    async with pair(tmp_path) as domains:
        bob = domains.bob
        patient = bob.envoy.settings
        more = replace(bob.inputs, services=(*bob.inputs.services, replace(bob.inputs.services[0], name="more")))
        bob.envoy.settings = replace(patient, accept_seconds=0.0)
        applied = await bob.envoy.apply(snapshot(more))
        assert (applied.accepted, applied.refused) == (False, False)
        bob.envoy.settings = patient
        assert (await bob.envoy.apply(snapshot(more))).accepted
        assert (await domains.call("more.bob.svc"))[0] == 200


def test_why_envoy_gave_up() -> None:
    log = (
        "2026-01-02T03:04:05.678Z info main: starting\n"
        "2026-01-02T03:04:05.679Z critical assert: assert failure: inotify_fd_ >= 0. Details: Consider more\n"
        "2026-01-02T03:04:05.680Z critical backtrace: Caught Aborted\n"
    )
    assert log_tail(log) == "assert failure: inotify_fd_ >= 0. Details: Consider more"
    assert log_tail("2026-01-02T03:04:05.678Z info main: exiting\n") == ""


async def test_an_address_in_use_is_told(tmp_path: Path) -> None:
    taken = await asyncio.start_server(lambda *_: None, HOSTS["bob"], 0)
    port = taken.sockets[0].getsockname()[1]
    inputs = replace(make_inputs("bob", tmp_path, Protocol.NOTLS), internal=SocketAddress(HOSTS["bob"], port))
    async with running(inputs, root=tmp_path, accept_seconds=0.5) as (bob,):
        status = await bob.envoy.status()
        assert status.last is not None
        assert not status.last.accepted
        assert any("bind" in reason or "in use" in reason for reason in status.last.reasons)
    taken.close()


async def test_logs_are_rotated_and_no_line_is_lost(tmp_path: Path) -> None:
    rules = Rotation(max_bytes=2000, max_files=1000)
    async with echo(HOSTS["bob"]) as plain, aiohttp.ClientSession() as http:
        inputs = make_inputs("bob", tmp_path, Protocol.NOTLS, services=(DomainService("echo", (plain,)),))
        async with running(inputs, root=tmp_path, log_rotation=rules, poll_seconds=0.05, log_level="DEBUG") as (bob,):
            log = bob.envoy.settings.logs / "internal.log"
            wanted = []
            while len(list(log.parent.glob("internal.log.*"))) < 4:
                wanted.append(f"/call-{len(wanted)}-")
                assert (await call(http, f"{bob.inside}{wanted[-1]}", "echo.bob.svc"))[0] == 200
                await asyncio.sleep(0.01)
            levels = await bob.envoy.admin.ask("/logging", post=True)
            assert set(re.findall(r": (\w+)$", levels, re.MULTILINE)) == {"info"}
            bob.envoy.log_at("ERROR")
            while "error" not in (levels := await bob.envoy.admin.ask("/logging", post=True)):
                await asyncio.sleep(0.05)
        files = sorted(log.parent.glob("internal.log*"), key=lambda file: -int(file.suffix[1:].replace("log", "0")))
        written = "".join(file.read_text() for file in files)
        assert [found for found in re.findall(r"/call-\d+-", written)] == wanted


async def test_a_rotation_that_was_cut_short_is_finished(tmp_path: Path) -> None:
    """We died between moving a log aside and telling Envoy."""
    async with echo(HOSTS["bob"]) as plain, aiohttp.ClientSession() as http:
        inputs = make_inputs("bob", tmp_path, Protocol.NOTLS, services=(DomainService("echo", (plain,)),))
        async with running(inputs, root=tmp_path, poll_seconds=0.05) as (bob,):
            log = bob.envoy.settings.logs / "internal.log"
            os.replace(log, log.with_name("internal.log.1"))
            bob.envoy._reopens = True
            async with asyncio.timeout(20):
                while not log.exists():
                    assert (await call(http, f"{bob.inside}/", "echo.bob.svc"))[0] == 200
                    await asyncio.sleep(0.1)
            assert not bob.envoy._reopens
