"""Ways into copies: their logs, commands in them, connections to their ports. A `PodAccess` over the backing cluster's API."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from coterie.base.clock import parse_rfc3339
from coterie.base.container_logs import LogOptions
from coterie.kube.agent.pods import pod_model
from coterie.kube.agent.runk.manager import MirrorManager
from coterie.kube.agent.runtimes.protocol import ContainerState, ContainerUsage, ExecSession, PodState, RuntimeFailure
from coterie.kube.api.errors import ApiError
from coterie.kube.api.meta import Object
from coterie.kube.client import streams
from coterie.kube.client.client import Client
from coterie.kube.client.kubeconfig import ClusterConnection
from coterie.kube.client.streams import STDOUT, Remote
from coterie.kube.client.transport import TransportError


class BackingAccess:
    def __init__(self, client: Client, connection: ClusterConnection, namespace: str) -> None:
        self._client = client
        self._connection = connection
        self._namespace = namespace
        self.manager: MirrorManager | None = None
        """Whose copies these are; set before anybody asks."""

    @property
    def _manager(self) -> MirrorManager:
        assert self.manager is not None, "set when the agent is put together"
        return self.manager

    def pods(self) -> Sequence[PodState]:
        return [found for uid in tuple(self._manager.copies()) if (found := self.pod(uid)) is not None]

    def pod(self, pod_uid: str) -> PodState | None:
        copy, original = self._manager.copies().get(pod_uid), self._manager.original(pod_uid)
        if copy is None or original is None:
            return None
        key = pod_model.key_of(original)
        return PodState(pod_uid, key.namespace, key.name, container_states(copy))

    async def log(self, pod_uid: str, container: str, options: LogOptions) -> AsyncIterator[bytes]:
        if options.stream != "All":
            raise ApiError("the output of a pod in another cluster is one stream; leave `stream` out")
        left = options.limit
        pieces = streams.log_stream(
            self._client,
            self._copy(pod_uid)["metadata"]["name"],
            self._namespace,
            container=container,
            follow=options.follow,
            previous=options.previous,
            timestamps=options.timestamps,
            tail=options.tail,
            since_time=f"{options.since}Z" if options.since else "",
        )
        async for piece in pieces:
            if left is not None:
                piece, left = piece[:left], left - len(piece[:left])
            yield piece
            if left == 0:
                return

    async def exec(
        self, pod_uid: str, container: str, command: Sequence[str], *, stdin: bool, tty: bool, stderr: bool = True
    ) -> ExecSession:
        return await self._session(pod_uid, container, command, stdin=stdin, tty=tty, stderr=stderr, attach=False)

    async def attach(self, pod_uid: str, container: str, *, stdin: bool) -> ExecSession:
        described = pod_model.container_named(self._copy(pod_uid), container) or {}
        return await self._session(
            pod_uid, container, (), stdin=stdin, tty=bool(described.get("tty")), stderr=True, attach=True
        )

    async def _session(
        self,
        pod_uid: str,
        container: str,
        command: Sequence[str],
        *,
        stdin: bool,
        tty: bool,
        stderr: bool,
        attach: bool,
    ) -> ExecSession:
        stack = contextlib.AsyncExitStack()
        try:
            remote = await stack.enter_async_context(
                streams.exec_stream(
                    self._connection,
                    self._copy(pod_uid)["metadata"]["name"],
                    self._namespace,
                    command,
                    container=container,
                    stdin=stdin,
                    stderr=stderr,
                    tty=tty,
                    attach=attach,
                )
            )
        except (ApiError, TransportError) as problem:
            raise RuntimeFailure("BackingCluster", f"the backing cluster does not let it: {problem}") from problem
        return _RemoteSession(remote, stack)

    async def usage(self, pod_uid: str) -> dict[str, ContainerUsage]:
        """Not measured here: the backing cluster's own tools know it."""
        return {}

    async def dial(self, pod_uid: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        address = pod_model.status_in(self._copy(pod_uid)).get("podIP")
        if not address:
            raise RuntimeFailure("BackingCluster", "the pod has no address yet")
        return await asyncio.open_connection(str(address), port)

    def _copy(self, pod_uid: str) -> Object:
        copy = self._manager.copies().get(pod_uid)
        if copy is None:
            raise RuntimeFailure("BackingCluster", "the pod has no copy in the backing cluster")
        return copy


class _RemoteSession:
    """An ExecSession: the two outputs come through one connection and are taken apart."""

    def __init__(self, remote: Remote, stack: contextlib.AsyncExitStack) -> None:
        self._remote = remote
        self._stack = stack
        # One piece each: whoever reads slowly holds up the other side.
        self._stdout: asyncio.Queue[bytes] = asyncio.Queue(1)
        self._stderr: asyncio.Queue[bytes] = asyncio.Queue(1)
        self._resizing: set[asyncio.Future[None]] = set()
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        try:
            while (piece := await self._remote.read()) is not None:
                channel, data = piece
                await (self._stdout if channel == STDOUT else self._stderr).put(data)
        finally:
            await asyncio.gather(self._stdout.put(b""), self._stderr.put(b""))

    async def read_stdout(self) -> bytes:
        return await self._stdout.get()

    async def read_stderr(self) -> bytes:
        return await self._stderr.get()

    async def write_stdin(self, data: bytes) -> None:
        await self._remote.write(data)

    async def close_stdin(self) -> None:
        await self._remote.end_input()

    def resize(self, columns: int, rows: int) -> None:
        sending = asyncio.ensure_future(self._remote.resize(columns, rows))
        self._resizing.add(sending)
        sending.add_done_callback(self._resizing.discard)

    async def wait(self) -> int:
        await self._reading
        return self._remote.exit_code()

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, *self._resizing, return_exceptions=True)
        await self._stack.aclose()


def container_states(copy: Object) -> tuple[ContainerState, ...]:
    status = pod_model.status_in(copy)
    found = []
    for group in ("initContainerStatuses", "containerStatuses"):
        for entry in status.get(group) or ():
            restarts = int(entry.get("restartCount") or 0)
            if last := (entry.get("lastState") or {}).get("terminated"):
                found.append(_state(entry, max(0, restarts - 1), {}, last))
            state = entry.get("state") or {}
            if "running" in state or "terminated" in state:
                found.append(_state(entry, restarts, state.get("running") or {}, state.get("terminated")))
    return tuple(found)


def _state(entry: Object, attempt: int, running: Object, ended: Object | None) -> ContainerState:
    about = ended or {}
    return ContainerState(
        name=entry["name"],
        attempt=attempt,
        image=str(entry.get("image") or ""),
        image_id=str(entry.get("imageID") or ""),
        pid=0,
        started_at=_seconds(about.get("startedAt") or running.get("startedAt")),
        finished_at=(_seconds(about.get("finishedAt")) or 1.0) if ended is not None else 0.0,
        exit_code=int(about.get("exitCode") or 0),
        signal=int(about.get("signal") or 0),
        reason=str(about.get("reason") or ""),
        message=str(about.get("message") or ""),
    )


def _seconds(text: object) -> float:
    try:
        return parse_rfc3339(str(text)).timestamp() if text else 0.0
    except ValueError:
        return 0.0
