"""The few messages of CRI v1 and of containerd's own services that are used here, as dicts, with their field numbers.

    encode("StartContainerRequest", {"container_id": "ab12"}) ──> bytes ──> decode("ContainerStatus", ...) ──> dict

A field is `number:type`. Types: `string`, `bytes`, `int` (every kind of integer, bool and enum), the name of a message; `*`
before the type means repeated, `map` is string to string. Unset fields are absent from a decoded dict; `field` and `text`
read them with the default of proto3. Unknown fields are skipped, so newer daemons may say more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from coterie.base import protobuf_wire as wire

Message = dict[str, Any]

POD_NAMESPACE, CONTAINER_NAMESPACE, NODE_NAMESPACE, TARGET_NAMESPACE = 0, 1, 2, 3
SANDBOX_READY = 0
CREATED, RUNNING, EXITED = 0, 1, 2
RUNTIME_DEFAULT, UNCONFINED = 0, 1
HOST_TO_CONTAINER = 1
COMMIT = 2
"""Of content: write, and that was all."""

_TABLE = """
Empty
Any type_url=1:string value=2:bytes
Timestamp seconds=1:int nanos=2:int

VersionRequest version=1:string
VersionResponse runtime_name=2:string runtime_version=3:string
NamespaceOption network=1:int pid=2:int ipc=3:int target_id=4:string
Int64Value value=1:int
SecurityProfile profile_type=1:int localhost_ref=2:string
LinuxSandboxSecurityContext namespace_options=1:NamespaceOption privileged=6:int seccomp=9:SecurityProfile
LinuxPodSandboxConfig cgroup_parent=1:string security_context=2:LinuxSandboxSecurityContext sysctls=3:map
PodSandboxMetadata name=1:string uid=2:string namespace=3:string attempt=4:int
PodSandboxConfig metadata=1:PodSandboxMetadata hostname=2:string log_directory=3:string labels=6:map annotations=7:map linux=8:LinuxPodSandboxConfig
RunPodSandboxRequest config=1:PodSandboxConfig runtime_handler=2:string
RunPodSandboxResponse pod_sandbox_id=1:string
PodSandboxRequest pod_sandbox_id=1:string
PodSandbox id=1:string metadata=2:PodSandboxMetadata state=3:int created_at=4:int labels=5:map annotations=6:map runtime_handler=7:string
ListPodSandboxResponse items=1:*PodSandbox

ImageSpec image=1:string
ImageRequest image=1:ImageSpec
Image id=1:string repo_tags=2:*string size=4:int
ImageStatusResponse image=1:Image

KeyValue key=1:string value=2:string
Mount container_path=1:string host_path=2:string readonly=3:int propagation=5:int
Device container_path=1:string host_path=2:string permissions=3:string
Resources cpu_period=1:int cpu_quota=2:int cpu_shares=3:int memory_limit_in_bytes=4:int oom_score_adj=5:int unified=9:map memory_swap_limit_in_bytes=10:int
Capability add_capabilities=1:*string drop_capabilities=2:*string
SecurityContext capabilities=1:Capability privileged=2:int namespace_options=3:NamespaceOption run_as_user=5:Int64Value run_as_username=6:string readonly_rootfs=7:int supplemental_groups=8:*int no_new_privs=11:int run_as_group=12:Int64Value masked_paths=13:*string readonly_paths=14:*string seccomp=15:SecurityProfile
LinuxContainerConfig resources=1:Resources security_context=2:SecurityContext
ContainerMetadata name=1:string attempt=2:int
ContainerConfig metadata=1:ContainerMetadata image=2:ImageSpec command=3:*string args=4:*string working_dir=5:string envs=6:*KeyValue mounts=7:*Mount devices=8:*Device labels=9:map annotations=10:map log_path=11:string stdin=12:int stdin_once=13:int tty=14:int linux=15:LinuxContainerConfig
CreateContainerRequest pod_sandbox_id=1:string config=2:ContainerConfig sandbox_config=3:PodSandboxConfig
ContainerRequest container_id=1:string
StopContainerRequest container_id=1:string timeout=2:int
Container id=1:string pod_sandbox_id=2:string metadata=3:ContainerMetadata state=6:int created_at=7:int labels=8:map annotations=9:map
ListContainersResponse containers=1:*Container
ContainerStatus id=1:string metadata=2:ContainerMetadata state=3:int created_at=4:int started_at=5:int finished_at=6:int exit_code=7:int reason=10:string message=11:string labels=12:map annotations=13:map log_path=15:string
ContainerStatusResponse status=1:ContainerStatus info=2:map
UInt64Value value=1:int
CpuUsage usage_core_nano_seconds=2:UInt64Value
MemoryUsage working_set_bytes=2:UInt64Value
ContainerStats cpu=2:CpuUsage memory=3:MemoryUsage
ContainerStatsResponse stats=1:ContainerStats
AttachRequest container_id=1:string stdin=2:int tty=3:int stdout=4:int stderr=5:int
AttachResponse url=1:string

SubscribeRequest filters=1:*string
Envelope namespace=2:string topic=3:string event=4:Any
TaskExit container_id=1:string id=2:string exit_status=4:int

Process container_id=1:string pid=3:int status=4:int exit_status=9:int
TaskRequest container_id=1:string exec_id=2:string
GetTaskResponse process=1:Process
KillRequest container_id=1:string exec_id=2:string signal=3:int all=4:int
ExecProcessRequest container_id=1:string stdin=2:string stdout=3:string stderr=4:string terminal=5:int spec=6:Any exec_id=7:string
ResizePtyRequest container_id=1:string exec_id=2:string width=3:int height=4:int
CloseIORequest container_id=1:string exec_id=2:string stdin=3:int
WaitResponse exit_status=1:int

ContainerdContainer id=1:string spec=5:Any snapshotter=6:string snapshot_key=7:string
GetContainerRequest id=1:string
GetContainerResponse container=1:ContainerdContainer

Descriptor media_type=1:string digest=2:string size=3:int
ContainerdImage name=1:string labels=2:map target=3:Descriptor
CreateImageRequest image=1:ContainerdImage
GetImageRequest name=1:string
DeleteImageRequest name=1:string sync=2:int
ListImagesRequest filters=1:*string
ListImagesResponse images=1:*ContainerdImage
WriteContentRequest action=1:int ref=2:string total=3:int expected=4:string offset=5:int data=6:bytes labels=7:map
WriteContentResponse action=1:int
SnapshotMount type=1:string source=2:string options=4:*string
PrepareSnapshotRequest snapshotter=1:string key=2:string parent=3:string labels=4:map
MountsResponse mounts=1:*SnapshotMount
SnapshotRequest snapshotter=1:string key=2:string
CommitSnapshotRequest snapshotter=1:string name=2:string key=3:string labels=4:map
CreateLeaseRequest id=1:string labels=3:map
DeleteLeaseRequest id=1:string sync=2:int
"""


@cache
def _fields(name: str) -> dict[str, tuple[int, str, bool]]:
    """By field: its number, its type and whether it is repeated."""
    found = {}
    for entry in _lines()[name]:
        field, _, rest = entry.partition("=")
        number, _, kind = rest.partition(":")
        found[field] = (int(number), kind.removeprefix("*"), kind.startswith("*"))
    return found


@cache
def _lines() -> dict[str, list[str]]:
    words = (line.split() for line in _TABLE.splitlines() if line)
    return {line[0]: line[1:] for line in words}


@cache
def _by_number(name: str) -> dict[int, tuple[str, str, bool]]:
    return {number: (field, kind, repeated) for field, (number, kind, repeated) in _fields(name).items()}


def encode(name: str, message: Mapping[str, Any]) -> bytes:
    """Fields in the order of `message`; None, empty and zero values are left out, as proto3 does, but a given message is not."""
    table = _fields(name)
    return b"".join(_encode_field(*table[field], value) for field, value in message.items() if value is not None)


def _encode_field(number: int, kind: str, repeated: bool, value: Any) -> bytes:
    if repeated:
        return b"".join(_encode_one(number, kind, each) for each in value)
    if kind == "map":
        pairs = (wire.bytes_field(1, key.encode()) + wire.bytes_field(2, text.encode()) for key, text in value.items())
        return b"".join(wire.bytes_field(number, pair) for pair in pairs)
    if kind in ("string", "bytes", "int") and not value:
        return b""
    return _encode_one(number, kind, value)


def _encode_one(number: int, kind: str, value: Any) -> bytes:
    if kind == "int":
        return wire.varint_field(number, int(value))
    if kind == "string":
        return wire.bytes_field(number, value.encode())
    return wire.bytes_field(number, value if kind == "bytes" else encode(kind, value))


def decode(name: str, data: bytes | memoryview) -> Message:
    """Raises ProtobufError."""
    table = _by_number(name)
    found: Message = {}
    for number, wire_type, value in wire.fields(memoryview(data)):
        if number not in table:
            continue
        field, kind, repeated = table[number]
        if kind == "map":
            found.setdefault(field, {}).update([_pair(value)])
        elif repeated and kind == "int" and wire_type == wire.LENGTH:
            found.setdefault(field, []).extend(_packed(value))
        elif repeated:
            found.setdefault(field, []).append(_decode_one(kind, value))
        else:
            found[field] = _decode_one(kind, value)
    return found


def _decode_one(kind: str, value: int | memoryview) -> Any:
    if kind == "int":
        return _signed(value)
    if isinstance(value, int):
        raise wire.ProtobufError("a number where a text or a message belongs")
    if kind == "string":
        return bytes(value).decode("utf-8", "replace")
    return bytes(value) if kind == "bytes" else decode(kind, value)


def _signed(value: int | memoryview) -> int:
    if not isinstance(value, int):
        raise wire.ProtobufError("a number is expected")
    return value - (1 << 64) if value >= 1 << 63 else value


def _packed(value: int | memoryview) -> Iterable[int]:
    assert not isinstance(value, int)
    at = 0
    while at < len(value):
        number, at = wire.decode_varint(value, at)
        yield _signed(number)


def _pair(value: int | memoryview) -> tuple[str, str]:
    if isinstance(value, int):
        raise wire.ProtobufError("a number where a pair belongs")
    parts = {number: bytes(part).decode("utf-8", "replace") for number, _, part in wire.fields(value)}
    return parts.get(1, ""), parts.get(2, "")
