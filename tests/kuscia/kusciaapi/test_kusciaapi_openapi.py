"""The OpenAPI document: whole, valid, and true."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor
from kusciaapi_kit import here, operation, served
from kusciaapi_stage import REQUESTS, call, prepare
from openapi_spec_validator import OpenAPIV31SpecValidator

from coterie.kuscia.kusciaapi import messages
from coterie.kuscia.kusciaapi.openapi import EITHER, REQUIRED, document, short, split_camel_case
from coterie.kuscia.kusciaapi.operations import ApiOperation
from coterie.kuscia.kusciaapi.table import OPERATIONS

DOCUMENT = document(OPERATIONS)
SCHEMAS = DOCUMENT["components"]["schemas"]


def test_it_is_an_openapi_document() -> None:
    OpenAPIV31SpecValidator(json.loads(json.dumps(DOCUMENT))).validate()


def test_every_operation_has_its_path() -> None:
    assert {path: set(verbs) for path, verbs in DOCUMENT["paths"].items()} == {
        each.path: {"post"} for each in OPERATIONS
    }
    assert len({each.method for each in OPERATIONS}) == len(OPERATIONS), "operationIds must differ"


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.method)
def test_schemas_have_the_fields_of_the_messages(operation: ApiOperation) -> None:
    told = DOCUMENT["paths"][operation.path]["post"]
    for content, message in (
        (told["requestBody"]["content"], operation.request),
        (told["responses"]["200"]["content"], operation.response),
    ):
        reference = content["application/json"]["schema"]["$ref"]
        compare(SCHEMAS[reference.rpartition("/")[2]], message.DESCRIPTOR, set())
    assert told["responses"]["200"].get("x-stream", False) == (operation.stream is not None)


def compare(schema: dict[str, Any], message: Descriptor, seen: set[str]) -> None:
    if message.full_name in seen or message.full_name == "google.protobuf.Any":
        return
    seen.add(message.full_name)
    assert list(schema["properties"]) == [field.name for field in message.fields]
    for field in message.fields:
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            compare(SCHEMAS[short(field.message_type.full_name)], field.message_type, seen)


def test_names_of_schemas_stand_for_one_message_each() -> None:
    full = {
        name for each in OPERATIONS for message in (each.request, each.response) for name in reached(message.DESCRIPTOR)
    }
    assert len({short(name) for name in full}) == len(full)


def reached(message: Descriptor, seen: set[str] | None = None) -> set[str]:
    seen = set() if seen is None else seen
    if message.full_name not in seen:
        seen.add(message.full_name)
        for field in message.fields:
            if field.message_type is not None:
                reached(field.message_type, seen)
            elif field.enum_type is not None:
                seen.add(field.enum_type.full_name)
    return seen


def test_required_fields_are_fields() -> None:
    for name, fields in REQUIRED.items():
        assert set(fields) <= set(messages.message(name).DESCRIPTOR.fields_by_name), name
        assert SCHEMAS[name]["required"] == list(fields)


INVALID = {11100, 2000}
"""The second is ConfManager's."""
AT_FIRST = {"ServingParty": ("app_image",)}
"""Needed where something is made; the same message may change it, and then it is not."""


async def test_without_a_required_field_a_request_is_refused_and_the_field_named(tmp_path: Path) -> None:
    wrong = []
    async with here(tmp_path, namespaces=("bob", "carol")) as world:
        await prepare(world, OPERATIONS)
        for method, request in asked():
            for field, without in lacking(request, operation(OPERATIONS, method).request.DESCRIPTOR):
                if operation(OPERATIONS, method).stream is not None:
                    status = messages.as_json(await anext(world.pieces(OPERATIONS, method, **without)))["status"]
                else:
                    status = (await call(world, OPERATIONS, method, without)).get("status", {})
                if status.get("code") not in INVALID or field not in status.get("message", ""):
                    wrong.append((method, field, status))
    assert wrong == []


async def test_with_only_the_required_fields_a_request_is_understood(tmp_path: Path) -> None:
    wrong = []
    async with here(tmp_path, namespaces=("bob", "carol")) as world:
        for method, request in asked():
            chosen = operation(OPERATIONS, method)
            if chosen.stream is None:
                await prepare(world, OPERATIONS)
                status = (await call(world, OPERATIONS, method, only(request, chosen.request.DESCRIPTOR)))["status"]
                if status.get("code") in INVALID:
                    wrong.append((method, status))
    assert wrong == []


def asked() -> list[tuple[str, dict[str, Any]]]:
    return [(each.method, REQUESTS[each.method]) for each in OPERATIONS]


def lacking(request: dict[str, Any], message: Descriptor) -> Iterator[tuple[str, dict[str, Any]]]:
    """The request without one of the required fields, for each of them, at any depth."""
    for field in REQUIRED.get(short(message.full_name), ()):
        yield field, {name: value for name, value in request.items() if name != field}
    for name, value in request.items():
        below = message.fields_by_name[name].message_type
        if below is None or below.GetOptions().map_entry:
            continue
        if isinstance(value, dict):
            for field, less in lacking(value, below):
                yield field, {**request, name: less}
        elif value:
            for field, less in lacking(value[0], below):
                yield field, {**request, name: [less, *value[1:]]}


def only(request: dict[str, Any], message: Descriptor) -> dict[str, Any]:
    named = short(message.full_name)
    out = {name: request[name] for name in (*EITHER.get(named, ()), *AT_FIRST.get(named, ())) if name in request}
    for name in REQUIRED.get(short(message.full_name), ()):
        below, value = message.fields_by_name[name].message_type, request[name]
        if below is not None:
            value = only(value, below) if isinstance(value, dict) else [only(each, below) for each in value]
        out[name] = value
    return out


def test_the_token_is_asked_for() -> None:
    assert DOCUMENT["security"] == [{"token": []}]
    assert DOCUMENT["components"]["securitySchemes"]["token"]["name"] == "Token"


@pytest.mark.parametrize(
    ("name", "told"),
    [("BatchQueryDomainData", "Batch query domain data"), ("healthZ", "Health z"), ("QueryLog", "Query log")],
)
def test_names_become_words(name: str, told: str) -> None:
    assert split_camel_case(name) == told


async def test_a_node_serves_it_to_everybody(tmp_path: Path) -> None:
    async with (
        served(OPERATIONS, tmp_path) as place,
        place.session(token="") as session,
        session.get("/openapi.json") as answer,
    ):
        assert answer.status == 200 and await answer.json() == DOCUMENT
