"""YAML of strangers, read event by event.

PyYAML's own composer calls itself for each level of nesting, in C, so a body of brackets ends the process; and an alias
can blow a small text up without bound. Here the events of the parser become plain JSON values on a list of open
collections: depth is counted, anchors are refused, and only what JSON can say comes out.
"""

from __future__ import annotations

import math
from typing import Any, Final

import yaml

_STR: Final = "tag:yaml.org,2002:str"
_MERGE: Final = ("tag:yaml.org,2002:merge", "tag:yaml.org,2002:value")
_SCALARS: Final = frozenset(f"tag:yaml.org,2002:{name}" for name in ("bool", "float", "int", "null"))
_COLLECTIONS: Final = (None, "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_INT64: Final = 2**63
_NO_KEY: Final = object()


class BadYaml(ValueError):
    """The text is no YAML, or not such that it could stand in a request."""


def read(text: str, max_depth: int) -> Any:
    """The one document in a text, as JSON would have it: a date stays text, a key is always text."""
    loader = _Loader(text)
    try:
        return _document(loader, max_depth)
    except (yaml.YAMLError, UnicodeError) as problem:
        raise BadYaml(str(problem)[:300]) from problem
    finally:
        loader.dispose()


class _Loader(yaml.CSafeLoader):
    """The parser, and how it tells a number from a word."""


_Loader.yaml_implicit_resolvers = {
    key: [(tag, regexp) for tag, regexp in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for key, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def _document(loader: _Loader, max_depth: int) -> Any:
    open_: list[tuple[Any, Any]] = []
    """Collections around the current one, each with the key that waits for its value."""
    here: Any = None
    key: Any = _NO_KEY
    found: list[Any] = []
    while loader.check_event():
        event = loader.get_event()
        if isinstance(event, yaml.CollectionEndEvent):
            value = here
            here, key = open_.pop()
        elif isinstance(event, (yaml.CollectionStartEvent, yaml.ScalarEvent, yaml.AliasEvent)):
            if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
                raise BadYaml("anchors and aliases are not accepted")
            if isinstance(event, yaml.CollectionStartEvent):
                if event.tag not in _COLLECTIONS:
                    raise BadYaml(f"the tag {event.tag[:64]} is not accepted")
                if isinstance(here, dict) and key is _NO_KEY:
                    raise BadYaml("only text can be a key")
                if len(open_) >= max_depth:
                    raise BadYaml(f"nested deeper than {max_depth} levels")
                open_.append((here, key))
                here, key = ({} if isinstance(event, yaml.MappingStartEvent) else []), _NO_KEY
                continue
            if isinstance(here, dict) and key is _NO_KEY:
                key = event.value
                continue
            value = _scalar(loader, event)
        else:
            continue
        if here is None:
            found.append(value)
        elif isinstance(here, list):
            here.append(value)
        else:
            here[key] = value
            key = _NO_KEY
    if len(found) > 1:
        raise BadYaml("there is more than one document")
    return found[0] if found else None


def _scalar(loader: _Loader, event: yaml.ScalarEvent) -> Any:
    tag = event.tag
    if tag is None or tag == "!":
        tag = loader.resolve(yaml.ScalarNode, event.value, event.implicit)  # type: ignore[no-untyped-call]
    if tag == _STR or tag in _MERGE:
        return event.value
    if tag not in _SCALARS:
        raise BadYaml(f"the tag {tag[:64]} is not accepted")
    try:
        value = loader.yaml_constructors[tag](loader, yaml.ScalarNode(tag, event.value))
    except (ValueError, KeyError, IndexError) as problem:
        raise BadYaml(f"{event.value[:64]!r} cannot be read as {tag.rpartition(':')[2]}") from problem
    if type(value) is int and not -_INT64 <= value < 2 * _INT64:
        value = float(value) if value.bit_length() < 1024 else math.inf
    if type(value) is float and not math.isfinite(value):
        raise BadYaml(f"{event.value[:64]!r} is no number that JSON knows")
    return value
