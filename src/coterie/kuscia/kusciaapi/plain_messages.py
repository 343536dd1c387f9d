"""Between JSON objects and messages, without protobuf's interpreted JSON code where an object is plain.

An object is plain when its keys are the names of the definitions and its values have just the types of their fields: then the message's
own constructor, in C, takes it. Everything else (other spellings, numbers as text, enumerations, bytes, well-known types, faults) is
left to `json_format`, so what is taken, refused and answered is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import isfinite
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from coterie.kube.api.meta import Object

_WHOLE: Final = frozenset(
    (
        FieldDescriptor.CPPTYPE_INT32,
        FieldDescriptor.CPPTYPE_INT64,
        FieldDescriptor.CPPTYPE_UINT32,
        FieldDescriptor.CPPTYPE_UINT64,
    )
)
_LONG: Final = frozenset((FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64))
_WELL_KNOWN: Final = "google.protobuf."

Check = Callable[[Any], bool]
Show = Callable[[Any], Any]


def parse(given: Object, kind: type[Message], *, ignore_unknown_fields: bool = False) -> Any:
    """As `json_format.ParseDict`, whose errors it raises."""
    if _plain_object(kind.DESCRIPTOR)(given):
        try:
            return kind(**given)
        except (TypeError, ValueError):
            pass  # a number out of range, text that is no Unicode: the library says which
    try:
        return json_format.ParseDict(given, kind(), ignore_unknown_fields=ignore_unknown_fields)
    except (
        SystemError
    ) as error:  # of text that is no Unicode where an object should be: protobuf's C code stumbles over it
        raise json_format.ParseError("it has text that is no Unicode") from error


def shown(of: Message) -> Object | None:
    """As `json_format.MessageToDict` with the names of the definitions and with fields that have no value; None when the message is not plain."""
    try:
        found: Object = _printer(of.DESCRIPTOR)(of)
    except _NotPlain:
        return None
    return found


class _NotPlain(Exception):
    """Left to the library."""


# Reading.


@cache
def _plain_object(descriptor: Descriptor) -> Check:
    checks: dict[str, Check] | None = None

    def check(given: Any) -> bool:
        nonlocal checks
        if checks is None:  # not before: a message may hold others of its kind
            checks = {field.name: _plain_field(field) for field in descriptor.fields}
        if type(given) is not dict:
            return False
        for name, value in given.items():
            known = checks.get(name)
            if known is None or not known(value):
                return False
        return True

    return check


def _plain_field(field: FieldDescriptor) -> Check:
    if field.containing_oneof is not None:
        return _never
    nested = field.message_type
    if nested is not None and nested.GetOptions().map_entry:
        return _plain_texts if _texts_map(nested) else _never
    one = _plain_value(field)
    return (lambda given: type(given) is list and all(map(one, given))) if field.is_repeated else one


def _plain_value(field: FieldDescriptor) -> Check:
    if field.message_type is not None:
        return _never if field.message_type.full_name.startswith(_WELL_KNOWN) else _plain_object(field.message_type)
    if field.type == FieldDescriptor.TYPE_STRING:
        return _is_text
    if field.type == FieldDescriptor.TYPE_BOOL:
        return _is_bool
    return _is_whole if field.cpp_type in _WHOLE else _never


def _never(given: Any) -> bool:
    return False


def _is_text(given: Any) -> bool:
    return type(given) is str


def _is_bool(given: Any) -> bool:
    return type(given) is bool


def _is_whole(given: Any) -> bool:
    return type(given) is int


def _plain_texts(given: Any) -> bool:
    return type(given) is dict and all(type(value) is str for value in given.values())


# Showing.


@cache
def _printer(descriptor: Descriptor) -> Callable[[Message], Object]:
    shows: dict[str, Show] | None = None
    absent: list[tuple[str, Callable[[], Any]]] = []

    def show(of: Message) -> Object:
        nonlocal shows
        if shows is None:
            shows = {field.name: _show_field(field) for field in descriptor.fields}
            absent.extend((field.name, _default(field)) for field in descriptor.fields if _shown_without_value(field))
        out = {field.name: shows[field.name](value) for field, value in of.ListFields()}
        for name, default in absent:
            if name not in out:
                out[name] = default()
        return out

    return show


def _shown_without_value(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated or not field.has_presence)


def _default(field: FieldDescriptor) -> Callable[[], Any]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return dict
    if field.is_repeated:
        return list
    show, value = _show_value(field), field.default_value
    return lambda: show(value)


def _show_field(field: FieldDescriptor) -> Show:
    nested = field.message_type
    if nested is not None and nested.GetOptions().map_entry:
        return dict if _texts_map(nested) else _refuse
    one = _show_value(field)
    return (lambda values: [one(value) for value in values]) if field.is_repeated else one


def _show_value(field: FieldDescriptor) -> Show:
    nested = field.message_type
    if nested is not None:
        return _refuse if nested.full_name.startswith(_WELL_KNOWN) else _printer(nested)
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda number: names[number] if number in names else _refuse(number)
    if field.type == FieldDescriptor.TYPE_BYTES or field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT:
        return _refuse
    if field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE:
        return lambda number: number if isfinite(number) else _refuse(number)
    return str if field.cpp_type in _LONG else _same


def _texts_map(entry: Descriptor) -> bool:
    return all(entry.fields_by_name[name].type == FieldDescriptor.TYPE_STRING for name in ("key", "value"))


def _same(value: Any) -> Any:
    return value


def _refuse(value: Any) -> Any:
    raise _NotPlain
