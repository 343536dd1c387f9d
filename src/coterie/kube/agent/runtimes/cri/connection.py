"""Calls to containerd on its Unix socket: CRI v1 and containerd's own services, one connection.

grpc is loaded with the first connection: a node whose pods are processes never needs it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.base.lazy_import import lazy_import
from coterie.kube.agent.runtimes.cri.messages import Message, decode, encode
from coterie.kube.agent.runtimes.protocol import RuntimeFailure

if TYPE_CHECKING:
    from grpc import aio
else:
    aio = lazy_import("grpc.aio")

_LOST = "UNAVAILABLE"
NAMESPACE = "k8s.io"
"""Of CRI's containers and images in containerd."""
CALL_SECONDS = 120.0
_RUNTIME, _IMAGES = "/runtime.v1.RuntimeService/", "/runtime.v1.ImageService/"
_SERVICES = "/containerd.services."
_LARGEST_MESSAGE = 16 << 20

_METHODS = {
    "Version": (_RUNTIME, "VersionRequest", "VersionResponse"),
    "RunPodSandbox": (_RUNTIME, "RunPodSandboxRequest", "RunPodSandboxResponse"),
    "StopPodSandbox": (_RUNTIME, "PodSandboxRequest", "Empty"),
    "RemovePodSandbox": (_RUNTIME, "PodSandboxRequest", "Empty"),
    "ListPodSandbox": (_RUNTIME, "Empty", "ListPodSandboxResponse"),
    "CreateContainer": (_RUNTIME, "CreateContainerRequest", "ContainerRequest"),
    "StartContainer": (_RUNTIME, "ContainerRequest", "Empty"),
    "StopContainer": (_RUNTIME, "StopContainerRequest", "Empty"),
    "RemoveContainer": (_RUNTIME, "ContainerRequest", "Empty"),
    "ListContainers": (_RUNTIME, "Empty", "ListContainersResponse"),
    "ContainerStatus": (_RUNTIME, "ContainerRequest", "ContainerStatusResponse"),
    "ContainerStats": (_RUNTIME, "ContainerRequest", "ContainerStatsResponse"),
    "ReopenContainerLog": (_RUNTIME, "ContainerRequest", "Empty"),
    "Attach": (_RUNTIME, "AttachRequest", "AttachResponse"),
    "ImageStatus": (_IMAGES, "ImageRequest", "ImageStatusResponse"),
    "tasks.v1.Tasks/Get": (_SERVICES, "TaskRequest", "GetTaskResponse"),
    "tasks.v1.Tasks/Start": (_SERVICES, "TaskRequest", "Empty"),
    "tasks.v1.Tasks/Wait": (_SERVICES, "TaskRequest", "WaitResponse"),
    "tasks.v1.Tasks/DeleteProcess": (_SERVICES, "TaskRequest", "Empty"),
    "tasks.v1.Tasks/Kill": (_SERVICES, "KillRequest", "Empty"),
    "tasks.v1.Tasks/Exec": (_SERVICES, "ExecProcessRequest", "Empty"),
    "tasks.v1.Tasks/ResizePty": (_SERVICES, "ResizePtyRequest", "Empty"),
    "tasks.v1.Tasks/CloseIO": (_SERVICES, "CloseIORequest", "Empty"),
    "containers.v1.Containers/Get": (_SERVICES, "GetContainerRequest", "GetContainerResponse"),
    "images.v1.Images/Create": (_SERVICES, "CreateImageRequest", "Empty"),
    "images.v1.Images/List": (_SERVICES, "ListImagesRequest", "ListImagesResponse"),
    "images.v1.Images/Delete": (_SERVICES, "DeleteImageRequest", "Empty"),
    "snapshots.v1.Snapshots/Prepare": (_SERVICES, "PrepareSnapshotRequest", "MountsResponse"),
    "snapshots.v1.Snapshots/Mounts": (_SERVICES, "SnapshotRequest", "MountsResponse"),
    "snapshots.v1.Snapshots/Stat": (_SERVICES, "SnapshotRequest", "Empty"),
    "snapshots.v1.Snapshots/Remove": (_SERVICES, "SnapshotRequest", "Empty"),
    "snapshots.v1.Snapshots/Commit": (_SERVICES, "CommitSnapshotRequest", "Empty"),
    "leases.v1.Leases/Create": (_SERVICES, "CreateLeaseRequest", "Empty"),
    "leases.v1.Leases/Delete": (_SERVICES, "DeleteLeaseRequest", "Empty"),
}


class ContainerdCallFailed(RuntimeFailure):
    """containerd refused a call. `code`: gRPC's, such as NOT_FOUND; `lost`: it could not be reached."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__("CreateContainerError", message)
        self.code = code

    @property
    def lost(self) -> bool:
        return self.code in (_LOST, "CANCELLED")

    @property
    def missing(self) -> bool:
        return self.code == "NOT_FOUND"


class ContainerdConnection:
    def __init__(self, socket: Path) -> None:
        self._channel = aio.insecure_channel(
            f"unix:{socket}",
            options=(
                ("grpc.max_receive_message_length", _LARGEST_MESSAGE),
                # Processes of this machine only: no proxy is between them, whatever the environment says.
                ("grpc.enable_http_proxy", 0),
                ("grpc.initial_reconnect_backoff_ms", 50),
                ("grpc.min_reconnect_backoff_ms", 50),
                ("grpc.max_reconnect_backoff_ms", 1000),
            ),
        )
        self._calls: dict[str, Any] = {}
        self._closed = False

    async def call(
        self,
        method: str,
        message: Mapping[str, Any] | None = None,
        *,
        seconds: float | None = CALL_SECONDS,
        lease: str = "",
    ) -> Message:
        """Raises ContainerdCallFailed."""
        known = self._calls.get(method)
        if known is None:
            prefix, asks, answers = _METHODS[method]
            known = self._calls[method] = self._channel.unary_unary(
                prefix + method,
                request_serializer=partial(encode, asks),
                response_deserializer=partial(decode, answers),
            )
        with self._failures():
            answer: Message = await known(message or {}, timeout=seconds, metadata=_metadata(lease))
        return answer

    async def write_content(self, message: Mapping[str, Any], lease: str) -> None:
        """A small blob, written whole. Raises ContainerdCallFailed."""
        write = self._channel.stream_stream(
            f"{_SERVICES}content.v1.Content/Write",
            request_serializer=partial(encode, "WriteContentRequest"),
            response_deserializer=partial(decode, "WriteContentResponse"),
        )
        with self._failures():
            call = write(iter([message]), timeout=CALL_SECONDS, metadata=_metadata(lease))
            try:
                async for _ in call:
                    return
            finally:
                call.cancel()

    async def events(self, *filters: str) -> AsyncIterator[Message]:
        """Envelopes as they are published. Raises ContainerdCallFailed when the stream breaks."""
        subscribe = self._channel.unary_stream(
            f"{_SERVICES}events.v1.Events/Subscribe",
            request_serializer=partial(encode, "SubscribeRequest"),
            response_deserializer=partial(decode, "Envelope"),
        )
        with self._failures():
            call = subscribe({"filters": filters}, metadata=_metadata(""))
            try:
                async for envelope in call:
                    yield envelope
            finally:
                call.cancel()

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """What goes wrong in a call, as ContainerdCallFailed. Calls of a connection that is closed meanwhile are lost: grpc would
        have them look as if their tasks were cancelled."""
        try:
            yield
        except aio.AioRpcError as problem:
            raise ContainerdCallFailed(problem.code().name, problem.details() or problem.code().name) from problem
        except aio.UsageError as problem:
            raise ContainerdCallFailed(_LOST, "the connection to containerd was closed") from problem
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._closed or task is None or task.cancelling():
                raise
            raise ContainerdCallFailed(_LOST, "the connection to containerd was closed") from None

    async def close(self) -> None:
        self._closed = True
        await self._channel.close()


def _metadata(lease: str) -> tuple[tuple[str, str], ...]:
    head = (("containerd-namespace", NAMESPACE),)
    return (*head, ("containerd-lease", lease)) if lease else head
