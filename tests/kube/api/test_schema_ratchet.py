"""Faults that an update did not bring in are forgiven, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.kube.api.schema.ratchet import new_faults
from coterie.kube.api.schema.structural import compile_crd
from coterie.kube.api.schema.validate import validate

SHORT = {"type": "string", "maxLength": 2}
ITEM = {"type": "object", "required": ["k", "v"], "properties": {"k": {"type": "string"}, "v": SHORT}}
SCHEMA = compile_crd(
    {
        "type": "object",
        "properties": {
            "a": SHORT,
            "m": {"type": "object", "additionalProperties": SHORT},
            "l": {"type": "array", "items": SHORT},
            "k": {
                "type": "array",
                "items": ITEM,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["k"],
            },
        },
    }
)


@pytest.mark.parametrize(
    ("old", "new", "fields"),
    [
        ({"a": "long"}, {"a": "long"}, []),
        ({"a": "long"}, {"a": "longer"}, ["a"]),
        ({}, {"a": "long"}, ["a"]),
        ({"m": {"x.y[0]": "long", "z": "1"}}, {"m": {"x.y[0]": "long", "z": "2"}}, []),
        ({"m": {"x.y": "long"}}, {"m": {"x.y": "longer"}}, ["m.x.y"]),
        ({"l": ["long"]}, {"l": ["long"], "a": "b"}, []),
        ({"l": ["long"]}, {"l": ["long", "b"]}, ["l[0]"]),
        ({"k": [{"k": "1", "v": "long"}]}, {"k": [{"k": "0", "v": "a"}, {"k": "1", "v": "long"}]}, []),
        ({"k": [{"k": "1", "v": "long"}]}, {"k": [{"k": "2", "v": "long"}]}, ["k[0].v"]),
        ({"k": [{"k": "1"}]}, {"k": [{"k": "1"}], "a": "b"}, []),
        ({"k": [{"k": "1", "v": "a"}]}, {"k": [{"k": "1"}]}, ["k[0].v"]),
    ],
)
def test_faults_that_remain(old: dict[str, Any], new: dict[str, Any], fields: list[str]) -> None:
    found = new_faults(validate(new, SCHEMA), new, old, SCHEMA)
    assert [fault.field for fault in found] == fields
