"""Where the bearer token of a request comes from: given, a file that is renewed, or a credential program.

Tokens of service accounts are renewed in place by whoever mounts them, so the file is read again each minute.
A credential program is asked again when its answer expires or when the server answered 401.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol

from coterie.base.clock import SYSTEM_CLOCK, Clock, parse_rfc3339
from coterie.kube.client.kubeconfig import ClusterConnection, ExecCredential
from coterie.kube.client.transport import CredentialsError

_FILE_FRESH_FOR = 60.0
_EXEC_TIMEOUT = 60.0
_EXPIRY_MARGIN = timedelta(seconds=10)


class Credentials(Protocol):
    async def authorization(self) -> str:
        """The value of the Authorization header; empty for none."""

    def refused(self) -> bool:
        """The server answered 401: forget what was cached. True when asking again may give another answer."""


class StaticCredentials:
    def __init__(self, value: str) -> None:
        self._value = value

    async def authorization(self) -> str:
        return self._value

    def refused(self) -> bool:
        return False


class TokenFile:
    def __init__(self, path: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        self._path = path
        self._clock = clock
        self._value = ""
        self._read_at = float("-inf")

    async def authorization(self) -> str:
        if self._clock.monotonic() - self._read_at >= _FILE_FRESH_FOR:
            try:
                token = self._path.read_text().strip()
            except OSError as error:
                raise CredentialsError(f"cannot read token file {self._path}: {error.strerror}") from error
            self._value = f"Bearer {token}"
            self._read_at = self._clock.monotonic()
        return self._value

    def refused(self) -> bool:
        before = self._read_at
        self._read_at = float("-inf")
        return before != float("-inf")


class ExecPlugin:
    """A client.authentication.k8s.io plug-in. Client certificates from a plug-in are not supported, tokens are."""

    def __init__(self, spec: ExecCredential, connection: ClusterConnection, clock: Clock = SYSTEM_CLOCK) -> None:
        self._spec = spec
        self._connection = connection
        self._clock = clock
        self._value = ""
        self._expires: datetime | None = None
        self._asking = asyncio.Lock()

    async def authorization(self) -> str:
        async with self._asking:  # many requests at once ask the program only once
            if not self._value or (self._expires and self._clock.now() >= self._expires - _EXPIRY_MARGIN):
                await self._ask()
            return self._value

    def refused(self) -> bool:
        had = bool(self._value)
        self._value = ""
        return had

    async def _ask(self) -> None:
        name = self._spec.command
        try:
            process = await asyncio.create_subprocess_exec(
                name,
                *self._spec.args,
                env={**os.environ, **dict(self._spec.env), "KUBERNETES_EXEC_INFO": self._info()},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise CredentialsError(f"credential program {name} cannot be started: {error.strerror}") from error
        try:
            async with asyncio.timeout(_EXEC_TIMEOUT):
                output, _ = await process.communicate()
        except TimeoutError as error:
            raise CredentialsError(f"credential program {name} gave no answer within {_EXEC_TIMEOUT:.0f} s") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise CredentialsError(f"credential program {name} failed with exit code {process.returncode}")
        self._value, self._expires = _parse_answer(name, output)

    def _info(self) -> str:
        spec: dict[str, object] = {"interactive": False}
        if self._spec.provide_cluster_info:
            cluster: dict[str, object] = {"server": self._connection.server}
            if self._connection.ca:
                cluster["certificate-authority-data"] = base64.b64encode(self._connection.ca).decode()
            spec["cluster"] = cluster
        return json.dumps({"apiVersion": self._spec.api_version, "kind": "ExecCredential", "spec": spec})


def _parse_answer(name: str, output: bytes) -> tuple[str, datetime | None]:
    try:
        status = json.loads(output)["status"]
        token = status["token"]
        expires = parse_rfc3339(status["expirationTimestamp"]) if status.get("expirationTimestamp") else None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        # The output may hold a secret: neither it nor the decoder's excerpt goes into the message.
        raise CredentialsError(f"credential program {name} did not print an ExecCredential with a token") from error
    return f"Bearer {token}", expires


def credentials_for(connection: ClusterConnection, clock: Clock = SYSTEM_CLOCK) -> Credentials:
    """In kubectl's order: a token, a token file, user and password, a program."""
    if connection.token_file and not connection.token:
        return TokenFile(Path(connection.token_file), clock)
    if connection.token:
        return StaticCredentials(f"Bearer {connection.token}")
    if connection.username:
        pair = base64.b64encode(f"{connection.username}:{connection.password}".encode()).decode()
        return StaticCredentials(f"Basic {pair}")
    if connection.exec:
        return ExecPlugin(connection.exec, connection, clock)
    return StaticCredentials("")
