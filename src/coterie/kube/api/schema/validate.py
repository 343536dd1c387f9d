"""Checking a custom object against its schema, with the sentences Kubernetes uses.

The walk is bounded by the object and by the schema: uniqueness is decided by hashing, patterns run in linear time,
and an object that nests deeper than Python recurses is refused, not crashed on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from coterie.kube.api.errors import (
    FieldError,
    invalid,
    not_supported,
    required,
    show_value,
    too_long,
    too_many,
    type_invalid,
)
from coterie.kube.api.schema.formats import NUMBER_RANGES, is_of_format
from coterie.kube.api.schema.node import Schema

_JSON_TYPES: Final[dict[type, str]] = {
    dict: "object",
    list: "array",
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
}
_ANYTHING: Final = Schema()
_REDUCED: Final[dict[tuple[int, tuple[str, ...]], tuple[Schema, Schema]]] = {}
_MOST_REDUCED: Final = 1000
_ROOT: Final = "<nil>"
"""How Kubernetes names the object itself when a fault has no field."""


def validate_update(obj: dict[str, Any], old: dict[str, Any], schema: Schema) -> list[FieldError]:
    """As `validate`, without what is the stored object's own: a write of the status does not check the spec again."""
    kept = [key for key, value in obj.items() if key in schema.properties and value is old.get(key)]
    if not kept or schema.all_of or schema.any_of or schema.one_of or schema.not_ is not None:
        return validate(obj, schema)
    return validate(obj, _without(schema, tuple(kept)))


def _without(schema: Schema, kept: tuple[str, ...]) -> Schema:
    """The schema in which these properties may be anything. Remembered: a kind has few combinations of them, and making one takes
    as long as checking a small object."""
    known = _REDUCED.get((id(schema), kept))
    if known is not None and known[0] is schema:
        return known[1]
    properties = {key: node for key, node in schema.properties.items() if key not in kept}
    made = replace(schema, properties=properties | dict.fromkeys(kept, _ANYTHING))
    if len(_REDUCED) >= _MOST_REDUCED:
        _REDUCED.clear()
    _REDUCED[id(schema), kept] = (schema, made)
    return made


def validate(obj: Any, schema: Schema, path: str = "") -> list[FieldError]:
    """All faults of `obj`; it must have been pruned and defaulted before."""
    errors: list[FieldError] = []
    try:
        _value(obj, schema, path, errors)
    except RecursionError:
        return [invalid(path or _ROOT, "", "is nested too deeply")]
    return errors


def _value(value: Any, schema: Schema, path: str, errors: list[FieldError]) -> None:
    given = type(value)
    wanted = schema.type
    if value is None:
        if not schema.nullable and (wanted or schema.int_or_string):
            _wrong_type(path, wanted or "integer,string", "null", errors)
        return
    if given is dict:
        if wanted == "object" or (not wanted and not schema.int_or_string):
            _object(value, schema, path, errors)
        else:
            _wrong_type(path, wanted or "integer,string", "object", errors)
            return
    elif given is str:
        if wanted == "string" or not wanted:
            _string(value, schema, path, errors)
        elif schema.quantity:
            return
        else:
            _wrong_type(path, wanted, "string", errors)
            return
    elif given is list:
        if wanted == "array" or (not wanted and not schema.int_or_string):
            _array(value, schema, path, errors)
        else:
            _wrong_type(path, wanted or "integer,string", "array", errors)
            return
    elif given is bool:
        if wanted != "boolean" and (wanted or schema.int_or_string):
            _wrong_type(path, wanted or "integer,string", "boolean", errors)
            return
    elif wanted == "number" or (wanted == "integer" and (given is int or value.is_integer())):
        _number(value, schema, path, errors)
    elif wanted or (schema.int_or_string and given is float and not value.is_integer()):
        _wrong_type(path, wanted or "integer,string", _JSON_TYPES[given], errors)
        return
    else:
        _number(value, schema, path, errors)
    if schema.enum is not None and not any(_same(value, allowed) for allowed in schema.enum):
        errors.append(not_supported(path or _ROOT, value, [_enum_text(item) for item in schema.enum]))
    if schema.all_of or schema.any_of or schema.one_of or schema.not_ is not None:
        _combined(value, schema, path, errors)


def _wrong_type(path: str, wanted: str, given: str, errors: list[FieldError]) -> None:
    errors.append(type_invalid(path or _ROOT, given, f'{path} in body must be of type {wanted}: "{given}"'))


def _object(value: dict[str, Any], schema: Schema, path: str, errors: list[FieldError]) -> None:
    prefix = f"{path}." if path else ""
    for key in schema.required:
        if key not in value:
            errors.append(required(prefix + key))
    count = len(value)
    if schema.max_properties is not None and count > schema.max_properties:
        errors.append(too_many(path or _ROOT, count, schema.max_properties))
    if schema.min_properties is not None and count < schema.min_properties:
        errors.append(
            invalid(path or _ROOT, value, f"{path} in body should have at least {schema.min_properties} properties")
        )
    properties, additional = schema.properties, schema.additional
    for key, item in value.items():
        node = properties.get(key) or additional
        if node is not None:
            _value(item, node, prefix + key, errors)
    if schema.embedded_resource:
        _embedded(value, prefix, errors)


def _embedded(value: dict[str, Any], prefix: str, errors: list[FieldError]) -> None:
    for key in ("apiVersion", "kind"):
        if not value.get(key):
            errors.append(required(prefix + key, "must not be empty"))


def _array(value: list[Any], schema: Schema, path: str, errors: list[FieldError]) -> None:
    count = len(value)
    if schema.max_items is not None and count > schema.max_items:
        errors.append(too_many(path or _ROOT, count, schema.max_items))
        # Kubernetes stops here too: a list that is too long is not walked.
        return
    if schema.min_items is not None and count < schema.min_items:
        errors.append(invalid(path or _ROOT, count, f"{path} in body should have at least {schema.min_items} items"))
    node = schema.items
    if node is not None:
        for index, item in enumerate(value):
            _value(item, node, f"{path}[{index}]", errors)
    if schema.list_type == "set":
        _unique(value, path, errors)
    elif schema.list_type == "map":
        _unique_keys(value, schema, path, errors)
    elif schema.unique_items and len(set(map(freeze, value))) < count:
        errors.append(invalid(path or _ROOT, value, f"{path} in body shouldn't contain duplicates"))


def _unique(value: list[Any], path: str, errors: list[FieldError]) -> None:
    seen: set[object] = set()
    for index, item in enumerate(value):
        frozen = freeze(item)
        if frozen in seen:
            errors.append(FieldError(f"{path}[{index}]", "FieldValueDuplicate", f"Duplicate value: {_go_text(item)}"))
        seen.add(frozen)


def _unique_keys(value: list[Any], schema: Schema, path: str, errors: list[FieldError]) -> None:
    seen: set[object] = set()
    for index, item in enumerate(value):
        if type(item) is not dict:
            continue
        keys = {key: item[key] for key in schema.list_keys if key in item}
        frozen = freeze(keys)
        if frozen in seen:
            errors.append(FieldError(f"{path}[{index}]", "FieldValueDuplicate", f"Duplicate value: {_go_text(keys)}"))
        seen.add(frozen)


def _string(value: str, schema: Schema, path: str, errors: list[FieldError]) -> None:
    if schema.max_length is not None and len(value) > schema.max_length:
        errors.append(too_long(path or _ROOT, schema.max_length))
    if schema.min_length is not None and len(value) < schema.min_length:
        errors.append(
            invalid(path or _ROOT, value, f"{path} in body should be at least {schema.min_length} chars long")
        )
    if schema.pattern is not None and not schema.pattern.search(value):
        errors.append(invalid(path or _ROOT, value, f"{path} in body should match '{schema.pattern.pattern}'"))
    if schema.format and not is_of_format(value, schema.format):
        message = f"{path} in body must be of type {schema.format}: {show_value(value)}"
        errors.append(type_invalid(path or _ROOT, value, message))


def _number(value: float, schema: Schema, path: str, errors: list[FieldError]) -> None:
    least, most = schema.minimum, schema.maximum
    if most is not None and (value >= most if schema.exclusive_maximum else value > most):
        message = "less than" if schema.exclusive_maximum else "less than or equal to"
        errors.append(invalid(path or _ROOT, value, f"{path} in body should be {message} {number_text(most)}"))
    if least is not None and (value <= least if schema.exclusive_minimum else value < least):
        message = "greater than" if schema.exclusive_minimum else "greater than or equal to"
        errors.append(invalid(path or _ROOT, value, f"{path} in body should be {message} {number_text(least)}"))
    step = schema.multiple_of
    if step is not None and step > 0 and not _is_multiple(value, step):
        errors.append(invalid(path or _ROOT, value, f"{path} in body should be a multiple of {number_text(step)}"))
    bounds = NUMBER_RANGES.get(schema.format)
    if bounds is not None and not bounds[0] <= value <= bounds[1]:
        errors.append(
            invalid(path or _ROOT, value, f"Checked value must be of type {schema.type} with format {schema.format}")
        )


def _is_multiple(value: float, step: float) -> bool:
    if type(value) is int and type(step) is int:
        return value % step == 0
    try:
        ratio = value / step
    except OverflowError:
        return False
    # `round` of infinity raises; a ratio that large is no multiple anyone can check.
    return abs(ratio) < 2**63 and abs(ratio - round(ratio)) < 1e-9


def _combined(value: Any, schema: Schema, path: str, errors: list[FieldError]) -> None:
    for part in schema.all_of:
        _value(value, part, path, errors)
    if schema.any_of:
        outcomes = [_outcome(value, part, path) for part in schema.any_of]
        if all(outcomes):
            errors.append(invalid(path or _ROOT, "", f'"{path}" must validate at least one schema (anyOf)'))
            errors.extend(_closest(outcomes))
    if schema.one_of:
        outcomes = [_outcome(value, part, path) for part in schema.one_of]
        matched = sum(not outcome for outcome in outcomes)
        if matched != 1:
            found = "Found none valid" if matched == 0 else f"Found {matched} valid alternatives"
            message = f'"{path}" must validate one and only one schema (oneOf). {found}'
            errors.append(invalid(path or _ROOT, "", message))
            if matched == 0:
                errors.extend(_closest(outcomes))
    if schema.not_ is not None and not _outcome(value, schema.not_, path):
        errors.append(invalid(path or _ROOT, "", f'"{path}" must not validate the schema (not)'))


def _closest(outcomes: list[list[FieldError]]) -> list[FieldError]:
    """The faults of the alternative that fits best: they tell the user most."""
    return min(outcomes, key=lambda outcome: len(outcome))


def _outcome(value: Any, schema: Schema, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    _value(value, schema, path, errors)
    return errors


def freeze(value: Any) -> object:
    """A hashable stand-in that is equal when two JSON values are: `1` and `1.0` are one value, `1` and `true` are
    not."""
    if isinstance(value, dict):
        return frozenset((key, freeze(item)) for key, item in value.items())
    if isinstance(value, list):
        return tuple(freeze(item) for item in value)
    if type(value) is bool:
        return (bool, value)
    return value


def _same(left: Any, right: Any) -> bool:
    if type(left) is type(right) and type(left) not in (dict, list):
        return bool(left == right)
    return freeze(left) == freeze(right)


def _enum_text(value: Any) -> str:
    return value if isinstance(value, str) else show_value(value)


def number_text(value: float) -> str:
    """Go prints whole floats without a fraction."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e21 else str(value)


def _go_text(value: Any) -> str:
    """A duplicate as Go prints it; scalars as everywhere, keys of a map list in Go's map notation."""
    if type(value) is dict:
        inner = ", ".join(f'"{key}":{show_value(value[key])}' for key in sorted(value))
        return f"map[string]interface {{}}{{{inner}}}"
    return show_value(value)
