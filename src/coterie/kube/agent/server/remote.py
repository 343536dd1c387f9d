"""exec and attach: a runtime's session on one side, a client's channels on the other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from coterie.kube.agent.runtimes.protocol import ExecSession, RuntimeFailure
from coterie.kube.agent.server.channels import Channels, exit_status, failure_status

Open = Callable[[], Awaitable[ExecSession]]


async def serve(channels: Channels, open_session: Open, *, stdin: bool, stdout: bool, stderr: bool, tty: bool) -> None:
    """Run a session until it ends or the client leaves, then tell how it ended."""
    try:
        session = await open_session()
    except RuntimeFailure as problem:
        await channels.finish(failure_status(problem.message))
        return
    try:
        code = await _relay(channels, session, stdin=stdin, stdout=stdout, stderr=stderr, tty=tty)
    finally:
        await session.close()
    await channels.finish(exit_status(code))


async def _relay(
    channels: Channels, session: ExecSession, *, stdin: bool, stdout: bool, stderr: bool, tty: bool
) -> int:
    feeding = [asyncio.ensure_future(_feed(channels, session))] if stdin else []
    if tty:
        feeding.append(asyncio.ensure_future(_resize(channels, session)))
    outputs = [_copy(session.read_stdout, channels, "stdout" if stdout else "")]
    if not tty:
        outputs.append(_copy(session.read_stderr, channels, "stderr" if stderr else ""))
    try:
        # All output first: the exit code closes the client's streams.
        await asyncio.gather(*outputs)
        return await session.wait()
    finally:
        for task in feeding:
            task.cancel()
        await asyncio.gather(*feeding, return_exceptions=True)


async def _copy(read: Callable[[], Awaitable[bytes]], channels: Channels, name: str) -> None:
    while data := await read():
        if name:
            await channels.write(name, data)


async def _feed(channels: Channels, session: ExecSession) -> None:
    while data := await channels.read_stdin():
        await session.write_stdin(data)
    await session.close_stdin()


async def _resize(channels: Channels, session: ExecSession) -> None:
    while (size := await channels.read_resize()) is not None:
        session.resize(*size)
