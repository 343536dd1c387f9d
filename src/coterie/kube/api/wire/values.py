"""Messages whose JSON is not an object: each function makes the JSON value from the decoded fields.

Their fields come with zeros kept and with `bytes` as they are, so that a function can tell "absent" from "zero".
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import orjson

Fields = dict[str, Any]

_EPOCH = datetime(1970, 1, 1)


def _instant(fields: Fields, timespec: str) -> str | None:
    """RFC 3339. The zero time of Go travels as an empty message, which is not the epoch, and is null in JSON."""
    if not fields:
        return None
    moment = _EPOCH + timedelta(seconds=fields.get("seconds", 0), microseconds=fields.get("nanos", 0) // 1000)
    return moment.isoformat(timespec=timespec) + "Z"


def _time(fields: Fields) -> str | None:
    return _instant(fields, "seconds")


def _micro_time(fields: Fields) -> str | None:
    return _instant(fields, "microseconds")


def _quantity(fields: Fields) -> str:
    return fields.get("string") or "0"


def _int_or_string(fields: Fields) -> int | str:
    number: int = fields.get("intVal", 0)
    text: str = fields.get("strVal", "")
    return text if fields.get("type") else number


def _raw_json(fields: Fields) -> Any:
    raw = fields.get("raw", b"")
    return orjson.loads(raw) if raw else None


def _fields_v1(fields: Fields) -> Any:
    raw = fields.get("-", b"")
    return orjson.loads(raw) if raw else {}


def _bare_list(fields: Fields) -> Any:
    return fields.get("items", [])


def _schema_or_array(fields: Fields) -> Any:
    return fields["schema"] if "schema" in fields else fields.get("jSONSchemas", [])


def _schema_or_bool(fields: Fields) -> Any:
    return fields["schema"] if "schema" in fields else fields.get("allows", False)


def _schema_or_strings(fields: Fields) -> Any:
    return fields["schema"] if "schema" in fields else fields.get("property", [])


FINISH: dict[str, Callable[[Fields], Any]] = {
    "api.resource.Quantity": _quantity,
    "apiextensions.v1.JSON": _raw_json,
    "apiextensions.v1.JSONSchemaPropsOrArray": _schema_or_array,
    "apiextensions.v1.JSONSchemaPropsOrBool": _schema_or_bool,
    "apiextensions.v1.JSONSchemaPropsOrStringArray": _schema_or_strings,
    "authentication.v1.ExtraValue": _bare_list,
    "authorization.v1.ExtraValue": _bare_list,
    "certificates.v1.ExtraValue": _bare_list,
    "meta.v1.FieldsV1": _fields_v1,
    "meta.v1.MicroTime": _micro_time,
    "meta.v1.Time": _time,
    "meta.v1.Verbs": _bare_list,
    "runtime.RawExtension": _raw_json,
    "util.intstr.IntOrString": _int_or_string,
}
