"""Our definitions beside those of the PyPI package `kuscia`: whoever speaks one must understand the other."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from google.protobuf import descriptor_pb2

from coterie.kuscia.kusciaapi import messages


def differences(theirs: ModuleType) -> list[str]:
    """What the stubs of a file know and we say otherwise. Ours may know more."""
    known: Any = _file(theirs.DESCRIPTOR.serialized_pb)
    ours: Any = _file(messages.FILES.pool.FindFileByName(known.name).serialized_pb)
    return [f"{known.name}: {each}" for each in sorted(_facts(known) - _facts(ours))]


def _file(content: bytes) -> Any:
    return descriptor_pb2.FileDescriptorProto.FromString(content)


def _facts(file: Any) -> set[tuple[Any, ...]]:
    out: set[tuple[Any, ...]] = {("package", file.package)}
    for service in file.service:
        for method in service.method:
            streams = method.client_streaming, method.server_streaming
            out.add((service.name, method.name, method.input_type, method.output_type, *streams))
    for message in file.message_type:
        out |= _fields(message, file.package)
    for enum in file.enum_type:
        out |= {(enum.name, value.name, value.number) for value in enum.value}
    return out


def _fields(message: Any, around: str) -> set[tuple[Any, ...]]:
    full = f"{around}.{message.name}"
    out: set[tuple[Any, ...]] = {
        (full, each.name, each.number, each.type, each.label, each.type_name) for each in message.field
    }
    for nested in message.nested_type:
        out |= _fields(nested, full)
    for enum in message.enum_type:
        out |= {(full, enum.name, value.name, value.number) for value in enum.value}
    return out
