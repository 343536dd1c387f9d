"""Objects as JSON, YAML or names, written the way kubectl writes them: keys sorted, texts of several lines readable."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import yaml

from coterie.kube.api.meta import Object


class _Dumper(yaml.CSafeDumper):
    """Never writes anchors: two fields that happen to share a value are still two fields."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    # YAML cannot keep blanks before a line's end in the readable style; such texts stay quoted.
    readable = "\n" in text and not any(line.endswith((" ", "\t")) for line in text.split("\n"))
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if readable else None)


_Dumper.add_representer(str, _text)


def as_json(value: Any) -> str:
    return json.dumps(value, indent=4, sort_keys=True, ensure_ascii=False) + "\n"


def as_yaml(value: Any) -> str:
    text: str = yaml.dump(value, Dumper=_Dumper, default_flow_style=False, allow_unicode=True, width=1 << 16)
    return text


def as_text(value: Any, form: str) -> str:
    return as_json(value) if form == "json" else as_yaml(value)


def without_managed_fields(obj: Object, *, managed: bool = False) -> Object:
    """An object without the bookkeeping of who owns which field, which is long and rarely wanted."""
    meta = obj.get("metadata")
    if managed or not isinstance(meta, dict) or "managedFields" not in meta:
        return obj
    return {**obj, "metadata": {key: value for key, value in meta.items() if key != "managedFields"}}


def as_list(objects: Sequence[Object]) -> Object:
    return {"apiVersion": "v1", "kind": "List", "items": list(objects), "metadata": {"resourceVersion": ""}}


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], wide_from: int = 1 << 16) -> Object:
    """A table of our own in the shape of the server's; columns from `wide_from` on show only with -o wide."""
    return {
        "columnDefinitions": [{"name": name, "priority": int(i >= wide_from)} for i, name in enumerate(columns)],
        "rows": [{"cells": list(row)} for row in rows],
    }
