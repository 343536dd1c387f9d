"""What may stand inside `allOf`, `anyOf`, `oneOf` and `not` of a structural schema, and keywords that hold anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from coterie.kube.api.errors import FieldError, forbidden_field, invalid, required
from coterie.kube.api.schema.pattern import Pattern, PatternError
from coterie.kube.api.schema.structural import Raw

JUNCTORS: Final = ("allOf", "anyOf", "oneOf")
_NO: Final = "must be empty to be structural"
_UNDEFINED: Final = "must be undefined to be structural"
_FALSE: Final = "must be false to be structural"
_FORBIDDEN_IN_JUNCTOR: Final = {
    "type": _NO,
    "title": _NO,
    "description": _NO,
    "default": _UNDEFINED,
    "nullable": _FALSE,
    "additionalProperties": _UNDEFINED,
    "x-kubernetes-preserve-unknown-fields": _UNDEFINED,
    "x-kubernetes-embedded-resource": _FALSE,
    "x-kubernetes-int-or-string": _FALSE,
    "x-kubernetes-list-type": _UNDEFINED,
    "x-kubernetes-list-map-keys": _NO,
    "x-kubernetes-map-type": _UNDEFINED,
    "x-kubernetes-validations": _NO,
}


def check_junctor(raw: Raw, skeleton: Raw, path: str) -> Iterator[FieldError]:
    """A part may narrow values; what it speaks of must exist outside, where pruning and defaulting can see it."""
    for keyword, message in _FORBIDDEN_IN_JUNCTOR.items():
        if raw.get(keyword):
            yield forbidden_field(f"{path}.{keyword}", message)
    if raw.get("uniqueItems"):
        yield forbidden_field(f"{path}.uniqueItems", "uniqueItems cannot be set to true")
    yield from check_value_keywords(raw, path)
    known = skeleton.get("properties") or {}
    general = skeleton.get("additionalProperties")
    for key, child in (raw.get("properties") or {}).items():
        outside = known.get(key) or (general if type(general) is dict else None)
        if outside is None:
            yield required(_outside(path, f".properties[{key}]"), f"because it is defined in {path}.properties[{key}]")
        else:
            yield from check_junctor(child, outside, f"{path}.properties[{key}]")
    items = raw.get("items")
    if type(items) is dict:
        if type(skeleton.get("items")) is not dict:
            yield required(_outside(path, ".items"), f"because it is defined in {path}.items")
        else:
            yield from check_junctor(items, skeleton["items"], f"{path}.items")
    for junctor in JUNCTORS:
        for index, part in enumerate(raw.get(junctor) or ()):
            yield from check_junctor(part, skeleton, f"{path}.{junctor}[{index}]")
    if raw.get("not"):
        yield from check_junctor(raw["not"], skeleton, f"{path}.not")


def _outside(path: str, ending: str) -> str:
    """The place outside all junctors: `a.anyOf[0].properties[b].not` + `.items` is `a.properties[b].items`."""
    kept = [
        part
        for part in path.split(".")
        if part != "not" and not part.startswith(tuple(f"{junctor}[" for junctor in JUNCTORS))
    ]
    return ".".join(kept) + ending


def check_value_keywords(raw: Raw, path: str) -> Iterator[FieldError]:
    """What is wrong with keywords wherever they stand."""
    for keyword in ("$ref", "definitions", "dependencies", "patternProperties", "additionalItems", "id"):
        if raw.get(keyword):
            yield forbidden_field(f"{path}.{keyword}", f"{keyword} is not supported")
    if type(raw.get("items")) is list:
        yield forbidden_field(f"{path}.items", "items must be a schema object and not an array")
    if raw.get("pattern"):
        try:
            Pattern(raw["pattern"])
        except PatternError as fault:
            yield invalid(f"{path}.pattern", raw["pattern"], f"must be a valid regular expression, but isn't: {fault}")
    for keyword in ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"):
        if (raw.get(keyword) or 0) < 0:
            yield invalid(f"{path}.{keyword}", raw[keyword], "must be greater than or equal to 0")
    step = raw.get("multipleOf")
    if step is not None and step <= 0:
        yield invalid(f"{path}.multipleOf", step, "must be greater than 0")
