"""Where Slurm's commands are executed: on a login node over SSH, or on this machine.

    script, input ──stdin──> ssh ──one connection for each cluster──> sh on the login node ──> output

The constant command on the other side reads the length of the script, the script, and leaves the rest of its standard input to it. So
no word of a user is on a command line, where every user of a login node could read it.

The connection is a child process of the control plane: `ssh -M` with `cat` as its command. When this process ends, however it does,
`cat` sees the end of its input, and the connection ends with it. The private key lies in a private directory only until the login
has succeeded.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import signal
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from coterie.base.log import logger
from coterie.base.secret import SecretValue
from coterie.gpujobs.types import SshLogin

_log = logger("gpujobs.shell")

_BEGIN = b"coterie-output\n"
_READY = b"coterie-ready\n"
_READER = 'IFS= read -r n && script=$(dd bs=1 count="$n" 2>/dev/null) && echo coterie-output && eval "$script"'
_COMMAND = f"exec sh -c '{_READER}'"
_ECHO = "exec cat"
_SESSIONS = 4
"""Commands at one time on one connection; sshd allows ten by default."""
_LOGIN_SECONDS = 20.0
_ENVIRONMENT = {"PATH": f"{os.defpath}:/usr/local/bin:/usr/sbin:/sbin", "LC_ALL": "C"}
_ERROR_LINE = 300
_NOISE = 64 * 1024
"""Bytes that a profile of the user may print before a command's output."""
_SSH_FAILED = 255


class ShellUnreachable(Exception):
    """The command was not executed, or nobody knows whether it was. The message is ssh's last line."""


@dataclass(frozen=True, slots=True)
class ShellResult:
    code: int
    output: bytes = field(repr=False)
    error: str = ""
    """The last line of the standard error."""

    @property
    def text(self) -> str:
        return self.output.decode(errors="replace")


class CommandShell(Protocol):
    async def run(
        self, script: str, input_data: bytes = b"", *, limit: int = 8 * 1024 * 1024, timeout: float = 60.0
    ) -> ShellResult:
        """Raises ShellUnreachable; `limit`: bytes of output after which the rest is dropped."""

    async def close(self) -> None: ...


class LocalShell:
    """On this machine, as the user that the configuration names."""

    def __init__(self, user: str, *, program: Sequence[str] = ("sh",)) -> None:
        self._user = user
        self._program = tuple(program)

    async def run(
        self, script: str, input_data: bytes = b"", *, limit: int = 8 * 1024 * 1024, timeout: float = 60.0
    ) -> ShellResult:
        try:
            account = pwd.getpwnam(self._user)
        except KeyError as error:
            raise ShellUnreachable(f"there is no user {self._user} on this machine") from error
        home = account.pw_dir
        slurm = {name: value for name, value in os.environ.items() if name == "SLURM_CONF"}
        return await _execute(
            (*self._program, "-c", _READER),
            _framed(script) + input_data,
            env={**_ENVIRONMENT, **slurm, "HOME": home},
            cwd=home,
            limit=limit,
            timeout=timeout,
            account=account,
        )

    async def close(self) -> None:
        return None


class SshShell:
    """One connection, opened when it is needed, and again after it has ended."""

    def __init__(
        self,
        login: SshLogin,
        private_key: Callable[[], Awaitable[SecretValue]],
        directory: Path,
        *,
        program: Sequence[str] = ("ssh",),
    ) -> None:
        """`private_key` is read for each login. `directory`: for the socket and, during a login, the key."""
        self._login = login
        self._private_key = private_key
        self._base = directory
        self._program = tuple(program)
        self._home: Path | None = None
        self._master: asyncio.subprocess.Process | None = None
        self._opening = asyncio.Lock()
        self._sessions = asyncio.Semaphore(_SESSIONS)

    async def run(
        self, script: str, input_data: bytes = b"", *, limit: int = 8 * 1024 * 1024, timeout: float = 60.0
    ) -> ShellResult:
        async with self._sessions:
            home = await self._connected()
            # A client that does not find the connection would make one of its own; it must not.
            argv = self._argv("-S", "socket", "-o", "ControlMaster=no", "-o", "ProxyCommand=false")
            done = await _execute(
                (*argv, self._login.host, _COMMAND),
                _framed(script) + input_data,
                env={**_ENVIRONMENT, "HOME": str(home)},
                cwd=str(home),
                limit=limit,
                timeout=timeout,
            )
        if done.code == _SSH_FAILED:
            raise ShellUnreachable(done.error or "the connection ended")
        return done

    async def close(self) -> None:
        async with self._opening:
            await self._end()

    async def _connected(self) -> Path:
        async with self._opening:
            if self._master is not None and self._master.returncode is None and self._home is not None:
                return self._home
            await self._end()
            home = self._home = Path(tempfile.mkdtemp(prefix="slurm-", dir=self._base))
            try:
                await self._open(home)
            except BaseException:
                await self._end()
                raise
            return home

    async def _open(self, home: Path) -> None:
        key = (await self._private_key()).reveal()
        with _private_file(home / "key", key if key.endswith("\n") else key + "\n"):
            keys = "".join(f"cluster {each}\n" for each in self._login.host_keys)
            (home / "known_hosts").write_text(keys)
            argv = self._argv("-M", "-S", "socket", "-i", "key")
            master = self._master = await _started(
                *argv,
                self._login.host,
                _ECHO,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**_ENVIRONMENT, "HOME": str(home)},
                cwd=str(home),
                start_new_session=True,
            )
            assert master.stdin is not None and master.stdout is not None
            master.stdin.write(_READY)
            try:
                async with asyncio.timeout(_LOGIN_SECONDS):
                    while (line := await master.stdout.readline()) != _READY:
                        if not line:
                            raise ShellUnreachable(await _last_error(master))
            except TimeoutError as error:
                raise ShellUnreachable(f"{self._login.host} does not answer") from error
        _log.info("Connected to a Slurm cluster", host=self._login.host, user=self._login.user, pid=master.pid)

    def _argv(self, *more: str) -> tuple[str, ...]:
        """Nothing of the machine's or a user's configuration of ssh counts."""
        options = {
            "BatchMode": "yes",
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": "known_hosts",
            "GlobalKnownHostsFile": "/dev/null",
            "HostKeyAlias": "cluster",
            "UpdateHostKeys": "no",
            "IdentitiesOnly": "yes",
            "IdentityAgent": "none",
            "PreferredAuthentications": "publickey",
            "ForwardAgent": "no",
            "ClearAllForwardings": "yes",
            "ConnectTimeout": "10",
            "ServerAliveInterval": "5",
            "ServerAliveCountMax": "3",
            "LogLevel": "ERROR",
        }
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        login = self._login
        return (*self._program, "-F", "/dev/null", "-T", *words, *more, "-l", login.user, "-p", str(login.port), "--")

    async def _end(self) -> None:
        master, self._master = self._master, None
        if master is not None and master.returncode is None:
            if master.stdin is not None:
                master.stdin.close()
            with contextlib.suppress(ProcessLookupError):
                master.terminate()
            try:
                async with asyncio.timeout(2):
                    await master.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    master.kill()
                await master.wait()
        home, self._home = self._home, None
        if home is not None:
            shutil.rmtree(home, ignore_errors=True)


def clear_directory(directory: Path) -> None:
    """Removes what a process that was killed has left."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for left in directory.glob("slurm-*"):
        shutil.rmtree(left, ignore_errors=True)


@contextlib.contextmanager
def _private_file(path: Path, text: str) -> Iterator[None]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        yield
    finally:
        path.unlink(missing_ok=True)


def _framed(script: str) -> bytes:
    data = script.encode()
    return b"%d\n" % len(data) + data


async def _execute(
    argv: Sequence[str],
    data: bytes,
    *,
    env: dict[str, str],
    cwd: str,
    limit: int,
    timeout: float,
    account: pwd.struct_passwd | None = None,
) -> ShellResult:
    other = account is not None and os.geteuid() == 0
    process = await _started(
        *argv,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=env,
        cwd=cwd,
        start_new_session=True,
        user=account.pw_uid if account is not None and other else None,
        group=account.pw_gid if account is not None and other else None,
        extra_groups=os.getgrouplist(account.pw_name, account.pw_gid) if account is not None and other else None,
    )
    try:
        async with asyncio.timeout(timeout):
            _, output, error = await asyncio.gather(
                _feed(process, data), _read(process, limit + _NOISE), _last_error(process)
            )
            code = await process.wait()
    except TimeoutError as problem:
        raise ShellUnreachable(f"no answer within {timeout:.0f} s") from problem
    finally:
        if process.returncode is None:
            # With all that it started: a child that goes on would hold the pipes, and they are waited for.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    # Whatever a profile of the user prints stands before this line.
    before, begin, rest = output.partition(_BEGIN)
    return ShellResult(code, (rest if begin else before)[:limit], error)


async def _started(*argv: str, **options: Any) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(*argv, **options)
    except OSError as error:
        raise ShellUnreachable(f"{argv[0]} cannot be started: {error.strerror}") from error


async def _feed(process: asyncio.subprocess.Process, data: bytes) -> None:
    """The other side may end without reading everything."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()


async def _read(process: asyncio.subprocess.Process, limit: int) -> bytes:
    assert process.stdout is not None
    kept = bytearray()
    while piece := await process.stdout.read(64 * 1024):
        kept += piece[: max(0, limit - len(kept))]
    return bytes(kept)


async def _last_error(process: asyncio.subprocess.Process) -> str:
    """The last line that is not empty, without what could move a terminal's cursor."""
    assert process.stderr is not None
    tail = b""
    while piece := await process.stderr.read(64 * 1024):
        tail = (tail + piece)[-4096:]
    lines = [line for line in tail.decode(errors="replace").splitlines() if line.strip()]
    return "".join(char for char in lines[-1] if char.isprintable())[:_ERROR_LINE] if lines else ""
