"""exec, attach and logs of real containers."""

from __future__ import annotations

import asyncio
import os
import select
import signal
from collections.abc import Iterator

import pytest
from runp_kit import RunpHarness, log_text

from coterie.kube.agent.runtimes.protocol import ExecSession, RuntimeFailure, Security
from coterie.kube.agent.runtimes.runp.loop import Loop
from coterie.kube.agent.runtimes.runp.streams import OutputStream
from root_kit import require_root


async def read_until(session: ExecSession, wanted: bytes, seconds: float = 10.0) -> bytes:
    got = b""
    async with asyncio.timeout(seconds):
        while wanted not in got:
            data = await session.read_stdout()
            assert data, f"ended with {got!r}"
            got += data
    return got


async def test_exec_joins_the_container(runp):
    await runp.start("sleep 600", env=(("COLOUR", "blue"),), working_dir="/tmp")
    session = await runp.runtime.exec(
        "uid-1",
        "main",
        ["sh", "-c", "echo $COLOUR; pwd; hostname; tr '\\0' '\\n' < /proc/1/cmdline; echo x > /etc/nope"],
        stdin=False,
        tty=False,
    )
    out = (await read_until(session, b"init\n" if runp.powers["namespaces"] else b"blue")).decode().split()
    assert out[0] == "blue"
    if runp.powers["namespaces"]:
        assert out[1:3] == ["/tmp", "pod-uid-1"] and out[-1] == "coterie-init"
    assert await session.wait() != 0
    await session.close()


async def test_exec_with_input(runp):
    await runp.start("sleep 600")
    session = await runp.runtime.exec("uid-1", "main", ["wc", "-c"], stdin=True, tty=False)
    await session.write_stdin(b"x" * 300_000)
    await session.close_stdin()
    assert (await read_until(session, b"\n")).strip() == b"300000"
    assert await session.wait() == 0
    await session.close()


async def test_exec_on_a_terminal(runp):
    await runp.start("sleep 600")
    session = await runp.runtime.exec("uid-1", "main", ["sh"], stdin=True, tty=True)
    session.resize(123, 45)
    await session.write_stdin(b"stty size; test -t 0 && echo is-a-ter''minal; tty\n")
    got = await read_until(session, b"is-a-terminal\r\n")
    assert b"45 123" in got
    await session.write_stdin(b"exit 9\n")
    assert await asyncio.wait_for(session.wait(), 10) == 9
    await session.close()


async def test_ctrl_c_reaches_the_program_on_the_terminal(runp):
    await runp.start("sleep 600")
    session = await runp.runtime.exec("uid-1", "main", ["sh", "-c", "echo rea''dy; sleep 600"], stdin=True, tty=True)
    await read_until(session, b"ready")
    ending = asyncio.ensure_future(session.wait())
    for _ in range(20):
        # A shell that is about to start its next command swallows an interrupt; a person presses the keys again.
        await session.write_stdin(b"\x03")
        done, _ = await asyncio.wait([ending], timeout=0.5)
        if done:
            break
    assert await asyncio.wait_for(ending, 1) == 130
    await session.close()


async def test_exec_of_nothing_says_so(runp):
    await runp.start("sleep 600")
    session = await runp.runtime.exec("uid-1", "main", ["no-such-program"], stdin=False, tty=False)
    assert b'exec: "no-such-program": executable file not found in $PATH' in await session.read_stderr()
    assert await session.wait() == 127
    await runp.runtime.stop_pod("uid-1", 0)
    with pytest.raises(RuntimeFailure, match="not running"):
        await runp.runtime.exec("uid-1", "main", ["true"], stdin=False, tty=False)


async def test_a_dropped_exec_is_killed_and_others_are_not(runp):
    await runp.start("sleep 600")
    session = await runp.runtime.exec("uid-1", "main", ["sh", "-c", "echo $$; sleep 601"], stdin=False, tty=False)
    await read_until(session, b"\n")
    await session.close()
    check = await runp.runtime.exec(
        "uid-1",
        "main",
        ["sh", "-c", "sleep 0.2; grep -l 'sleep[^.]601' /proc/[0-9]*/cmdline || echo gone"],
        stdin=False,
        tty=False,
    )
    if runp.powers["namespaces"]:
        assert b"gone" in await read_until(check, b"\n")
    await check.close()
    assert runp.state().running


async def test_exec_has_the_containers_user(runp):
    require_root("becomes another user")
    await runp.start("sleep 600", security=Security(run_as_user=4321))
    session = await runp.runtime.exec(
        "uid-1", "main", ["sh", "-c", "id -u; grep NoNewPrivs /proc/self/status"], stdin=False, tty=True
    )
    got = await read_until(session, b"NoNewPrivs:\t1")
    assert got.startswith(b"4321")
    await session.close()


async def test_attached_input_ends(runp):
    await runp.start("cat; echo end of input", stdin=True, stdin_once=True)
    session = await runp.runtime.attach("uid-1", "main", stdin=True)
    await session.write_stdin(b"a line\n")
    await session.close_stdin()
    assert b"a line\nend of input\n" in await read_until(session, b"end of input\n")
    assert await asyncio.wait_for(session.wait(), 10) == 0
    await session.close()


async def test_two_attached_see_the_same_and_a_terminal_is_one(runp):
    spec = await runp.start("read line; echo got $line; test -t 1 && echo terminal; exit 4", stdin=True, tty=True)
    one = await runp.runtime.attach("uid-1", "main", stdin=True)
    two = await runp.runtime.attach("uid-1", "main", stdin=False)
    one.resize(100, 50)
    await one.write_stdin(b"hello\n")
    for session in (one, two):
        assert b"got hello" in await read_until(session, b"terminal")
        assert await asyncio.wait_for(session.wait(), 10) == 4
        await session.close()
    assert "got hello" in log_text(spec.log_path)


async def test_a_slow_listener_does_not_hold_the_container_up(runp):
    spec = await runp.start("read go; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo done", stdin=True)
    session = await runp.runtime.attach("uid-1", "main", stdin=True)
    await session.write_stdin(b"go\n")
    assert (await runp.ended()).exit_code == 0
    assert log_text(spec.log_path).endswith("done\n")
    await session.close()


async def test_long_lines_partial_lines_and_bytes_are_kept(runp):
    spec = await runp.start("head -c 40000 /dev/zero | tr '\\0' y; printf '\\nshort\\nno end'")
    await runp.ended()
    lines = spec.log_path.read_text().splitlines()
    assert [line.split(" ", 3)[2] for line in lines] == ["P", "P", "F", "F", "P"]
    assert log_text(spec.log_path) == "y" * 40000 + "\nshort\nno end"


async def test_logs_rotate(tmp_path):
    async with RunpHarness.opened(tmp_path, log_bytes=20_000, log_files=3) as runp:
        # More than three pipes full, so that it cannot be read, and written, in less than three pieces.
        spec = await runp.start("i=0; while [ $i -lt 15000 ]; do echo line number $i; i=$((i+1)); done")
        await runp.ended(seconds=20)
        files = sorted(spec.log_path.parent.glob(f"{spec.log_path.name}*"))
        assert [path.name for path in files] == ["main.0.log", "main.0.log.1", "main.0.log.2"]
        text = "".join(log_text(path) for path in [files[2], files[1], files[0]])
        numbers = [int(line.split()[2]) for line in text.splitlines()]
        assert numbers == list(range(numbers[0], 15000)) and all(path.stat().st_size < 300_000 for path in files)


async def test_ports_are_the_machines(runp):
    await runp.start(
        "",
        image="coterie/python",
        command=(),
        args=(
            "-c",
            "import socket\ns = socket.create_server(('127.0.0.1', 0))\nprint(s.getsockname()[1], flush=True)\nc, _ = s.accept()\nc.sendall(b'hello')",
        ),
    )
    path = runp.state().log_path
    await runp.until(lambda: log_text(path).strip().isdigit())
    reader, writer = await runp.runtime.dial("uid-1", int(log_text(path)))
    assert await reader.read() == b"hello"
    writer.close()
    await writer.wait_closed()
    assert runp.runtime.pod_ip("uid-1") == "127.0.0.1"


@pytest.fixture
def loop() -> Iterator[Loop]:
    """The supervisor's loop takes over signals, which this process wants back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGCHLD, signal.SIGTERM)}
    made = Loop()
    yield made
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)


def test_output_waits_for_what_is_more_urgent(loop):
    calls = []
    pipes = [os.pipe() for _ in range(3)]
    for number, (reading, writing) in enumerate(pipes):
        os.write(writing, b"x")
        loop.watch(reading, select.EPOLLIN, lambda _, number=number: calls.append(number), bulk=number < 2)
    loop.step()
    assert calls == [2, 0, 1]
    for reading, writing in pipes:
        loop.forget(reading)
        os.close(reading)
        os.close(writing)


def test_streams_take_turns(loop, monkeypatch):
    """When the time of a round is over, the next round goes on with the stream that did not have its turn."""
    calls, now = [], [0.0]
    monkeypatch.setattr("coterie.kube.agent.runtimes.runp.loop.time.monotonic", lambda: now[0])
    pipes = [os.pipe() for _ in range(3)]

    def busy(number):
        calls.append(number)
        now[0] += 1.0

    for number, (reading, writing) in enumerate(pipes):
        os.write(writing, b"x")
        loop.watch(reading, select.EPOLLIN, lambda _, number=number: busy(number), bulk=True)
    for _ in range(6):
        loop.step()
    assert calls == [0, 1, 2, 0, 1, 2]
    for reading, writing in pipes:
        loop.forget(reading)
        os.close(reading)
        os.close(writing)


def test_a_stream_that_costs_too_much_has_to_wait(loop, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("coterie.kube.agent.runtimes.runp.streams.time.monotonic", lambda: now[0])
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    fed = []

    class Log:
        def feed(self, data):
            fed.append(data)
            now[0] += 0.1

        def end(self):
            pass

    stream = OutputStream(loop, reading, Log())
    for _ in range(6):
        os.write(writing, b"x")
        if reading in loop._ready:
            loop.step()
    assert len(fed) == 3, "a quarter of a second at once, then it waits"
    now[0] += 10.0
    for _ in range(2):
        loop.step()
    assert len(fed) == 4, "what was written meanwhile"
    stream.finish()
    os.close(writing)
