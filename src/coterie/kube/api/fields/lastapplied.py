"""Objects of client-side `kubectl apply` under server-side apply: the annotation that remembers what was applied.

When kubectl applies server side to an object it used to apply client side, the fields that the annotation lists and
that still have those values are its own, only under another manager's name: they are no conflict. And while the
annotation exists it is kept current, so that the user can go back.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from coterie.kube.api.fields.collect import MalformedConfiguration, applied
from coterie.kube.api.fields.diff import difference_of
from coterie.kube.api.fields.fieldset import FieldsV1, difference, without
from coterie.kube.api.fields.layout import FieldLayout

ANNOTATION: Final = "kubectl.kubernetes.io/last-applied-configuration"
KUBECTL: Final = "kubectl"
_ANNOTATIONS_LIMIT: Final = 256 * 1024
_LIKE_KUBECTL: Final = orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE

Object = dict[str, Any]


def fields_applied_before(layout: FieldLayout, live: Object, api_version: str) -> FieldsV1:
    """Fields of the remembered configuration whose values are still the live ones."""
    remembered = _annotations(live).get(ANNOTATION)
    if not remembered or not isinstance(remembered, str):
        return {}
    try:
        config = orjson.loads(remembered)
        if not isinstance(config, dict) or config.get("apiVersion") != api_version:
            return {}
        fields = applied(layout, config)
    except (orjson.JSONDecodeError, MalformedConfiguration):
        return {}  # a client's annotation may say anything; then it allows nothing
    differing, missing = difference_of(layout, config, live)
    return without(difference(fields, differing), missing)


def refresh_annotation(obj: Object, config: Object) -> Object:
    """The object with the annotation, if it has one, telling the configuration just applied."""
    annotations = _annotations(obj)
    if ANNOTATION not in annotations:
        return obj
    try:
        text = orjson.dumps(_without_annotation(config), option=_LIKE_KUBECTL).decode()
    except orjson.JSONEncodeError:
        raise RecursionError from None
    if annotations[ANNOTATION] == text:
        return obj
    renewed = {**annotations, ANNOTATION: text}
    if sum(len(key) + len(str(value)) for key, value in renewed.items()) > _ANNOTATIONS_LIMIT:
        del renewed[ANNOTATION]
    return {**obj, "metadata": {**obj["metadata"], "annotations": renewed}}


def _without_annotation(config: Object) -> Object:
    annotations = _annotations(config)
    if ANNOTATION not in annotations:
        return config
    rest = {key: value for key, value in annotations.items() if key != ANNOTATION}
    return {**config, "metadata": {**config["metadata"], "annotations": rest}}


def _annotations(obj: Object) -> dict[str, Any]:
    found: dict[str, Any] = (obj.get("metadata") or {}).get("annotations") or {}
    return found
