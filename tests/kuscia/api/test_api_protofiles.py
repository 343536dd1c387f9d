"""Our definitions say on the wire what the stubs that engines carry say, and the compiled set is up to date."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
from kuscia.proto.api.v1alpha1 import common_pb2
from kuscia.proto.api.v1alpha1.datamesh import (
    domaindata_pb2,
    domaindatagrant_pb2,
    domaindatasource_pb2,
    flightdm_pb2,
)

from coterie.kuscia.datamesh import messages
from coterie.kuscia.kusciaapi import messages as kusciaapi_messages

THEIRS = {
    found.full_name: found
    for module in (common_pb2, domaindata_pb2, domaindatagrant_pb2, domaindatasource_pb2, flightdm_pb2)
    for found in module.DESCRIPTOR.message_types_by_name.values()
}


def shape(message: Any) -> dict[int, tuple[Any, ...]]:
    return {
        field.number: (
            field.name, field.type, field.is_repeated,
            field.message_type.full_name if field.message_type else field.enum_type.full_name if field.enum_type else "",
        )
        for field in message.fields
    }  # fmt: skip


@pytest.mark.parametrize("name", sorted(THEIRS))
def test_fields_have_the_names_numbers_and_types_of_kuscias_stubs(name: str) -> None:
    ours, theirs = shape(messages.FILES.message(name).DESCRIPTOR), shape(THEIRS[name])
    assert {number: ours.get(number) for number in theirs} == theirs


def test_the_descriptor_set_is_what_the_files_say() -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools compiles the definitions; `make setup` installs it")
    script = runpy.run_path(str(Path(__file__).parents[3] / "scripts" / "compile_protos.py"))
    assert script["DESCRIPTORS"].read_bytes() == script["compiled"](), "stale: run `make protos` and commit the result"


def test_optional_fields_and_choices_tell_whether_they_were_given() -> None:
    pool = kusciaapi_messages.FILES.pool
    choices = [
        (message.full_name, choice)
        for name in ("job", "serving", "domaindatasource", "appimage")
        for message in pool.FindFileByName(
            f"kuscia/proto/api/v1alpha1/kusciaapi/{name}.proto"
        ).message_types_by_name.values()
        for choice in message.oneofs
    ]
    assert choices
    for full_name, choice in choices:
        made = kusciaapi_messages.FILES.message(full_name)
        for field in choice.fields:
            if field.type == field.TYPE_STRING:
                back = made.FromString(made(**{field.name: ""}).SerializeToString())
                assert not made().HasField(field.name) and back.WhichOneof(choice.name) == field.name


def test_each_pool_holds_only_its_own_files() -> None:
    with pytest.raises(KeyError):
        messages.FILES.message("kuscia.proto.api.v1alpha1.kusciaapi.CreateJobRequest")
