"""The node's side: a relay is started, adopted after kill -9 of the node, started again after its own, and ended in order."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from relay_kit import Target, connect, eventually, free_address, read_exactly

from coterie.kube.network.rootless import client
from coterie.kube.network.rootless.client import Relay, RelayError, RelaySettings, read_status


@contextlib.asynccontextmanager
async def running(relay: Relay) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(relay.run())
    ready = asyncio.create_task(relay.ready.wait())
    await asyncio.wait((task, ready), return_when=asyncio.FIRST_COMPLETED)
    ready.cancel()
    try:
        if task.done():
            await task
        yield task
    finally:
        relay.stop()
        await asyncio.gather(task, return_exceptions=True)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def eventually_async(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(eventually, condition)


async def test_start_and_stop_in_order(tmp_path: Path) -> None:
    target, address = Target(tmp_path / "envoy.sock"), free_address()
    relay = Relay(tmp_path / "relay", RelaySettings((address,), str(target.path)), drain=0)
    async with running(relay) as task:
        pid = (await relay.status()).pid
        assert os.getsid(pid) == pid, "it must not die with the node's session"
        assert (tmp_path / "relay" / "relay.sock").stat().st_mode & 0o777 == 0o600
        with connect(address):
            target.accept()[0].close()
        relay.stop()
        await task
        assert not alive(pid)
    assert not (tmp_path / "relay" / "relay.sock").exists()
    target.close()


async def test_cancellation_ends_it_too(tmp_path: Path) -> None:
    relay = Relay(tmp_path, RelaySettings((free_address(),), "/nowhere"))
    async with running(relay) as task:
        pid = (await relay.status()).pid
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await eventually_async(lambda: not alive(pid))


async def test_a_killed_relay_is_started_again_with_its_configuration(tmp_path: Path) -> None:
    target, address = Target(tmp_path / "envoy.sock"), free_address()
    inner_ports: list[int] = []

    async def open_inner() -> socket.socket:
        made = socket.create_server(("127.0.0.1", 0))
        inner_ports.append(made.getsockname()[1])
        return made

    settings = RelaySettings((address,), str(target.path), inner_key="netns-1", gateway="100.96.0.1")
    relay = Relay(tmp_path, settings, open_inner=open_inner, drain=0)
    async with running(relay):
        first = (await relay.status()).pid
        os.kill(first, signal.SIGKILL)
        await eventually_async(lambda: _pid(tmp_path) not in (0, first))
        status = await relay.status()
        await eventually_async(lambda: read_status(tmp_path).listeners == (address,))
        with connect(address):
            (await asyncio.to_thread(target.accept))[0].close()
        assert relay.restarts == 1 and len(inner_ports) == 2
        assert not alive(first) and alive(status.pid)
    target.close()


def _pid(directory: Path) -> int:
    try:
        return read_status(directory).pid
    except (OSError, RelayError):
        return 0


NODE = """
    import asyncio, socket, sys
    from pathlib import Path
    from coterie.kube.network.rootless.client import Relay, RelaySettings

    async def open_inner():
        return socket.create_server(("127.0.0.1", int(sys.argv[4])))

    async def main():
        settings = RelaySettings((sys.argv[2],), sys.argv[3], inner_key="netns-1")
        relay = Relay(Path(sys.argv[1]), settings, open_inner=open_inner, drain=0)
        task = asyncio.create_task(relay.run())
        await relay.ready.wait()
        print("ready", flush=True)
        await task

    asyncio.run(main())
"""


async def test_a_node_that_is_killed_leaves_it_and_the_next_adopts_it(tmp_path: Path) -> None:
    target, address, inner = Target(tmp_path / "envoy.sock"), free_address(), free_address().rpartition(":")[2]
    node = subprocess.Popen(  # noqa: ASYNC220
        (sys.executable, "-c", textwrap.dedent(NODE), str(tmp_path), address, str(target.path), inner),
        stdout=subprocess.PIPE,
    )
    assert node.stdout is not None
    assert await asyncio.to_thread(node.stdout.readline) == b"ready\n"
    pid = read_status(tmp_path).pid
    caller = connect(address)
    server, _, _ = target.accept()
    node.kill()
    node.wait()
    node.stdout.close()
    assert alive(pid)
    with connect(address):
        target.accept()[0].close()

    async def never() -> socket.socket:
        raise AssertionError("the listener inside is there already")

    settings = RelaySettings((address, free_address()), str(target.path), inner_key="netns-1")
    relay = Relay(tmp_path, settings, open_inner=never, drain=0)
    async with running(relay):
        status = await relay.status()
        assert status.pid == pid and status.listeners == settings.listeners and status.inner_key == "netns-1"
        caller.sendall(b"as before")
        assert read_exactly(server, 9) == b"as before"
    await eventually_async(lambda: not alive(pid))
    caller.close()
    server.close()
    target.close()


async def test_another_network_namespace_inside_gets_another_listener(tmp_path: Path) -> None:
    made = 0

    async def open_inner() -> socket.socket:
        nonlocal made
        made += 1
        return socket.create_server(("127.0.0.1", 0))

    relay = Relay(tmp_path, RelaySettings(inner_key="netns-1"), open_inner=open_inner, drain=0)
    async with running(relay):
        await relay.configure(RelaySettings(inner_key="netns-1", egress=True))
        assert made == 1
        await relay.configure(RelaySettings(inner_key="netns-2", egress=True))
        status = await relay.status()
        assert made == 2 and status.inner_key == "netns-2" and status.fields["egress"] == "yes"
        await relay.configure(RelaySettings())
        assert (await relay.status()).inner_key == ""


async def test_a_port_that_is_taken_fails_the_start_in_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match=f"cannot listen on {address}: Address already in use. Another program") as it:
            await Relay(tmp_path, RelaySettings((address,), "/nowhere")).run()
    assert it.value.errno == errno.EADDRINUSE
    assert not (tmp_path / "relay.sock").exists(), "the relay that was started is ended"


async def test_a_port_that_is_taken_later_leaves_things_as_they_are(tmp_path: Path) -> None:
    address = free_address()
    relay = Relay(tmp_path, RelaySettings((address,), "/nowhere"), drain=0)
    async with running(relay):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            other = RelaySettings((f"127.0.0.1:{taken.getsockname()[1]}",), "/nowhere")
            with pytest.raises(OSError, match="in use"):
                await relay.configure(other)
        assert relay.settings.listeners == (address,) == (await relay.status()).listeners


async def test_a_relay_of_another_version_is_replaced_and_keeps_its_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, address = Target(tmp_path / "envoy.sock"), free_address()
    old = Relay(tmp_path, RelaySettings(), drain=0)
    old._start()
    client.exchange(tmp_path, "configure", (("listen", address), ("target", target.path)))
    pid = read_status(tmp_path).pid
    caller = connect(address)
    server, _, _ = target.accept()
    monkeypatch.setattr("coterie.__version__", "0.0.0-other")
    relay = Relay(tmp_path, RelaySettings((address,), str(target.path)), drain=0)
    async with running(relay):
        assert (await relay.status()).pid != pid and alive(pid)
        caller.sendall(b"as before")
        assert read_exactly(server, 9) == b"as before"
        caller.close()
        server.close()
        await asyncio.to_thread(old._reap)
    target.close()


async def test_settings_that_change_while_no_relay_runs_reach_the_next(tmp_path: Path) -> None:
    relay = Relay(tmp_path, RelaySettings((free_address(),), "/nowhere"), drain=0)
    async with running(relay):
        os.kill((await relay.status()).pid, signal.SIGKILL)
        await eventually_async(lambda: relay.restarts == 1)
        settings = RelaySettings((free_address(),), "/elsewhere")
        await relay.configure(settings)
        await eventually_async(lambda: _pid(tmp_path) != 0 and read_status(tmp_path).listeners == settings.listeners)


async def test_a_second_relay_in_one_directory_is_not_started(tmp_path: Path) -> None:
    relay = Relay(tmp_path, RelaySettings(), drain=0)
    async with running(relay):
        with pytest.raises(RelayError, match="did not start"):
            await asyncio.to_thread(Relay(tmp_path, RelaySettings())._start)


async def test_a_directory_with_a_long_path(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["directory-with-a-long-name"] * 6)
    relay = Relay(deep, RelaySettings((free_address(),), "/nowhere"), drain=0)
    async with running(relay):
        assert (await relay.status()).listeners == relay.settings.listeners


async def test_the_relay_is_small(tmp_path: Path) -> None:
    """Beside the interpreter itself it needs little: its own modules, and none of asyncio, json, socket, re."""
    bare = subprocess.run(  # noqa: ASYNC221
        (sys.executable, "-I", "-S", "-c", "print(open('/proc/self/status').read())"), capture_output=True, check=True
    ).stdout.decode()
    relay = Relay(tmp_path, RelaySettings((free_address(),), "/nowhere"), drain=0)
    async with running(relay):
        ours = Path(f"/proc/{(await relay.status()).pid}/status").read_text()  # noqa: ASYNC240
    assert _resident(ours) - _resident(bare) < 2048


def _resident(status: str) -> int:
    return int(status.partition("VmRSS:")[2].split()[0])
