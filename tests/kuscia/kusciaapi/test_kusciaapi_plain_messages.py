"""Plain objects take the short way between JSON and messages, and nothing of it can be seen from outside."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.kuscia.kusciaapi import messages, plain_messages
from coterie.kuscia.kusciaapi.table import CONF_MANAGER, OPERATIONS

KINDS = sorted(
    {
        kind.DESCRIPTOR.full_name: kind
        for each in (*OPERATIONS, *CONF_MANAGER)
        for kind in (each.request, each.response)
    }.items()
)
ODD = st.sampled_from([None, True, 0, -1, 5.0, 1.5, 1 << 70, "7", "", "x", [], [None], {}, {"a": 1}, "RUNNING"])
PLAIN = {
    FieldDescriptor.TYPE_STRING: st.text(st.characters(codec="utf-8"), max_size=3),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_DOUBLE: st.floats(0, 1),
}


def objects(descriptor: Descriptor, depth: int = 3) -> st.SearchStrategy[dict[str, Any]]:
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for field in descriptor.fields:
        one: st.SearchStrategy[Any] = PLAIN.get(field.type, st.integers(0, 100))
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            one = st.dictionaries(st.text(max_size=2), st.text(max_size=2), max_size=2)
        elif field.message_type is not None:
            if not depth:
                continue
            one = objects(field.message_type, depth - 1)
            one = st.lists(one, max_size=2) if field.is_repeated else one
        elif field.is_repeated:
            one = st.lists(one, max_size=2)
        fields[field.name] = one if depth < 2 else st.one_of(one, one, one, ODD)
    return st.fixed_dictionaries({}, optional={**fields, "jobId": ODD, "unknown": ODD})


def outcome(read: Any) -> tuple[str, Any]:
    try:
        return "", read()
    except (json_format.ParseError, ValueError, TypeError, AttributeError) as error:
        return f"{type(error).__name__}: {error}", None


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_reading_is_that_of_the_library(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))[1]
    asked = data.draw(objects(kind.DESCRIPTOR))
    lenient = data.draw(st.booleans())
    expected = outcome(lambda: json_format.ParseDict(asked, kind(), ignore_unknown_fields=lenient))
    assert outcome(lambda: plain_messages.parse(asked, kind, ignore_unknown_fields=lenient)) == expected
    if expected[1] is not None:
        by_library = json_format.MessageToDict(
            expected[1],
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
            descriptor_pool=messages.FILES.pool,
        )
        assert json.dumps(messages.as_json(expected[1])) == json.dumps(by_library)


@pytest.mark.parametrize("name", ["CreateJobRequest", "CreateJobResponse", "QueryJobResponse"])
def test_what_is_called_most_is_plain(name: str) -> None:
    assert plain_messages.shown(messages.message(name)()) is not None
