"""Our definitions say on the wire what the stubs that engines carry say, and a text that is none is refused."""

from __future__ import annotations

from typing import Any

import pytest
from kuscia.proto.api.v1alpha1 import common_pb2
from kuscia.proto.api.v1alpha1.datamesh import (
    domaindata_pb2,
    domaindatagrant_pb2,
    domaindatasource_pb2,
    flightdm_pb2,
)

from coterie.kuscia.api.proto_files import ProtoFiles, ProtoProblem
from coterie.kuscia.datamesh import messages

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


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("message A { B b = 1; }", "there is no B"),
        ("message A { string b = 1;", "ends too early"),
        ("group A {}", "'group' is unknown"),
        ('syntax = "proto2";', "in place of"),
        ("message A {\n  string @ = 1;\n}", "line 2"),
    ],
)
def test_what_is_not_understood_is_refused(text: str, why: str) -> None:
    with pytest.raises(ProtoProblem, match=why):
        ProtoFiles().add("a.proto", text)


def test_optional_fields_tell_whether_they_were_given() -> None:
    files = ProtoFiles()
    files.add(
        "a.proto",
        "message A { optional int32 n = 1; oneof which { string x = 2; string y = 3; } optional bool b = 4; }",
    )
    made = files.message("A")
    assert not made().HasField("n")
    assert made(n=0).HasField("n")
    assert made.FromString(made(n=0, y="").SerializeToString()) == made(n=0, y="")
    assert made(y="").WhichOneof("which") == "y"
