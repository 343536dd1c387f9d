"""One look at a container: does it answer? Each way of asking is a function that returns (well, what was seen)."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable
from typing import Any, TypeVar
from urllib.parse import urlsplit

from coterie.base.clock import Clock
from coterie.base.tasks import retrieve_exception
from coterie.kube.agent.pods import pod_model
from coterie.kube.agent.probes.grpc_health import HealthUnknown, health
from coterie.kube.agent.runtimes.protocol import PodRuntime, RuntimeFailure
from coterie.kube.api.meta import Object

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Verdict = tuple[bool, str]
T = TypeVar("T")

_MAX_OUTPUT = 10 * 1024
_MAX_HEAD = 64 * 1024
_REDIRECTS = 10


class Checker:
    """Asks the containers of one runtime."""

    def __init__(self, runtime: PodRuntime, clock: Clock) -> None:
        self._runtime = runtime
        self._clock = clock

    async def check(self, pod_uid: str, container: Object, handler: Object, timeout: float) -> Verdict:
        """Never raises: a check that cannot be made has failed, and says why."""
        try:
            return await self.within(timeout, self._ask(pod_uid, container, handler))
        except TimeoutError:
            return False, f"no answer within {timeout:g} s"
        except RuntimeFailure as problem:
            return False, problem.message
        except (OSError, EOFError, HealthUnknown, ValueError) as error:
            return False, str(error) or type(error).__name__

    async def within(self, seconds: float, work: Awaitable[T]) -> T:
        """The result of `work`, or TimeoutError; time passes by our clock, so tests decide how."""
        task = asyncio.ensure_future(work)
        # When its caller is cancelled nobody asks how it failed.
        task.add_done_callback(retrieve_exception)
        timer = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait({task, timer}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise TimeoutError
        finally:
            timer.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait([task])

    async def _ask(self, pod_uid: str, container: Object, handler: Object) -> Verdict:
        if "exec" in handler:
            return await self.command(pod_uid, container["name"], handler["exec"].get("command") or [])
        if "httpGet" in handler:
            return await self.http(pod_uid, container, handler["httpGet"])
        if "tcpSocket" in handler:
            _, writer = await self._connect(pod_uid, container, handler["tcpSocket"])
            await _close(writer)
            return True, ""
        if "grpc" in handler:
            return await self._grpc(pod_uid, container, handler["grpc"])
        if "sleep" in handler:
            await self._clock.sleep(float(handler["sleep"].get("seconds") or 0))
            return True, ""
        return False, "missing probe handler"

    async def command(self, pod_uid: str, name: str, command: list[str]) -> Verdict:
        session = await self._runtime.exec(pod_uid, name, command, stdin=False, tty=False)
        try:
            output = b""
            for read in (session.read_stdout, session.read_stderr):
                while data := await read():
                    if len(output) < _MAX_OUTPUT:
                        output += data
            code = await session.wait()
        finally:
            await session.close()
        text = output[:_MAX_OUTPUT].decode("utf-8", "replace").strip()
        return code == 0, text if code == 0 else f"{text or 'no output'} (exit code {code})"

    async def http(self, pod_uid: str, container: Object, action: Object) -> Verdict:
        """Codes from 200 to 399 are well. Redirects to the same host are followed."""
        path = action.get("path") or "/"
        for _ in range(_REDIRECTS):
            status, location = await self._get(pod_uid, container, action, path)
            if not 300 <= status < 400 or not location:
                break
            target = urlsplit(location)
            if target.hostname is not None:
                return True, f"Probe terminated redirects, Response: redirect to {target.hostname}"
            path = target.path + (f"?{target.query}" if target.query else "")
        well = 200 <= status < 400
        return well, "" if well else f"HTTP probe failed with statuscode: {status}"

    async def _get(self, pod_uid: str, container: Object, action: Object, path: str) -> tuple[int, str]:
        reader, writer = await self._connect(pod_uid, container, action)
        try:
            if (action.get("scheme") or "HTTP").upper() == "HTTPS":
                await writer.start_tls(_unverified())
            headers = {"Host": self._host(pod_uid, action), "User-Agent": "coterie-probe", "Accept": "*/*"}
            for header in action.get("httpHeaders") or ():
                headers[header["name"].title()] = header.get("value") or ""
            lines = [f"GET {path if path.startswith('/') else '/' + path} HTTP/1.1", "Connection: close"]
            lines += [f"{name}: {value}" for name, value in headers.items()]
            writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError as error:
            raise ValueError("the answer's head is too long") from error
        finally:
            await _close(writer)
        return _parse_head(head)

    async def _grpc(self, pod_uid: str, container: Object, action: Object) -> Verdict:
        reader, writer = await self._connect(pod_uid, container, action)
        try:
            state = await health(reader, writer, self._host(pod_uid, action), action.get("service") or "")
        finally:
            await _close(writer)
        return state == "SERVING", "" if state == "SERVING" else f"service unhealthy (responded with {state!r})"

    async def _connect(self, pod_uid: str, container: Object, action: Object) -> Streams:
        port = pod_model.port_number(container, action.get("port"))
        if port is None or not 0 < port < 65536:
            raise ValueError(f"the container has no port {action.get('port')!r}")
        if action.get("host"):
            return await asyncio.open_connection(action["host"], port, limit=_MAX_HEAD)
        return await self._runtime.dial(pod_uid, port)

    def _host(self, pod_uid: str, action: Object) -> str:
        return f"{action.get('host') or self._runtime.pod_ip(pod_uid)}:{action.get('port')}"


def _parse_head(head: bytes) -> tuple[int, str]:
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/") or not words[1].isdigit():
        raise ValueError("the answer is not HTTP")
    location = ""
    for line in lines[1:]:
        name, _, value = line.partition(":")
        if name.lower() == "location":
            location = value.strip()
    return int(words[1]), location


def _unverified() -> ssl.SSLContext:
    # A probe asks whether somebody answers, not who: containers have certificates of their own making.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def _close(writer: Any) -> None:
    writer.close()
    with contextlib.suppress(OSError, ssl.SSLError):  # whatever the other side does at the end, the answer is read
        await writer.wait_closed()
