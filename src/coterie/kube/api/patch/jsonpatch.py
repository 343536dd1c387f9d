"""JSON patch (RFC 6902): a list of operations on paths.

Containers are copied when they are first changed and changed in place after that, so ten thousand operations on one
long list stay cheap and the caller's object stays as it was. `copy` is the one operation that lets a small request
make a huge object; what all copies together add is bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import orjson

from coterie.kube.api.errors import BadRequest, Invalid, RequestEntityTooLarge

MAX_OPERATIONS: Final = 10_000
MAX_COPIED_BYTES: Final = 3 * 1024 * 1024

_ABSENT: Final = object()
_REJECTED: Final = "the server rejected our request due to an error in our request"


class PatchTestFailed(Invalid):
    """A `test` operation found another value."""


def json_patch(current: dict[str, Any], patch: object) -> dict[str, Any]:
    """The patched object. BadRequest when the patch is no JSON patch, Invalid when it does not apply."""
    if not isinstance(patch, list):
        raise BadRequest("error decoding patch: a JSON patch must be a list of operations")
    if len(patch) > MAX_OPERATIONS:
        raise RequestEntityTooLarge(
            "Request entity too large: "
            f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(patch)}"
        )
    document = _Document(current)
    for operation in patch:
        _run(document, operation)
    if not isinstance(document.root, dict):
        raise _refused("the patched document is not an object")
    return document.root


def _refused(why: str) -> Invalid:
    return Invalid(f"{_REJECTED}: {why}")


def _run(document: _Document, operation: object) -> None:
    if not isinstance(operation, dict):
        raise BadRequest("error decoding patch: an operation must be an object")
    name = operation.get("op")
    if not isinstance(name, str) or name not in _OPERATIONS:
        raise BadRequest(f"error decoding patch: Unexpected kind: {_quote_value(name)}")
    run, needs_from, needs_value = _OPERATIONS[name]
    path = _pointer(operation, "path", name)
    source = _pointer(operation, "from", name) if needs_from else []
    if needs_value and "value" not in operation:
        raise BadRequest(f'error decoding patch: operation {name} is missing the member "value"')
    run(document, path, source, operation.get("value"))


def _quote_value(value: object) -> str:
    return value[:80] if isinstance(value, str) else "unknown"


def _pointer(operation: dict[str, Any], member: str, name: str) -> list[str]:
    text = operation.get(member)
    if not isinstance(text, str):
        raise BadRequest(f'error decoding patch: operation {name} is missing the member "{member}"')
    if not text:
        return []
    if text[0] != "/":
        raise BadRequest(f'error decoding patch: the {member} "{text[:256]}" must begin with "/"')
    return [part.replace("~1", "/").replace("~0", "~") for part in text[1:].split("/")]


def _text(path: list[str]) -> str:
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in path)[:256]


class _Document:
    """The object under change; `own` holds the containers that were copied for it (alive, so ids stay theirs)."""

    __slots__ = ("copied", "own", "root")

    def __init__(self, root: Any) -> None:
        self.root = root
        self.own: dict[int, Any] = {}
        self.copied = 0

    def writable(self, container: Any) -> Any:
        if id(container) in self.own:
            return container
        copy = dict(container) if isinstance(container, dict) else list(container)
        self.own[id(copy)] = copy
        return copy

    def parent(self, path: list[str], operation: str) -> Any:
        """The container of a path's last part, copied together with everything above it."""
        if not isinstance(self.root, (dict, list)):
            raise _missing(operation, path)
        here = self.root = self.writable(self.root)
        for part in path[:-1]:
            place: Any = part if isinstance(here, dict) else _index(part, len(here), operation, path)
            child = here.get(place) if isinstance(here, dict) else here[place]
            if not isinstance(child, (dict, list)):
                raise _missing(operation, path)
            below = self.writable(child)
            if below is not child:
                here[place] = below
            here = below
        return here

    def find(self, path: list[str]) -> Any:
        """The value at a path, or _ABSENT."""
        here = self.root
        for part in path:
            if isinstance(here, dict):
                here = here.get(part, _ABSENT)
            elif isinstance(here, list):
                here = here[int(part)] if _is_index(part) and int(part) < len(here) else _ABSENT
            else:
                return _ABSENT
        return here


def _missing(operation: str, path: list[str]) -> Invalid:
    return _refused(f'{operation} operation does not apply: doc is missing path: "{_text(path)}": missing value')


def _is_index(part: str) -> bool:
    return part.isascii() and part.isdigit() and len(part) < 10 and (part == "0" or part[0] != "0")


def _index(part: str, length: int, operation: str, path: list[str]) -> int:
    """An index below `length`."""
    if not _is_index(part):
        raise _refused(f'{operation} operation does not apply: "{_text(path)}": "{part[:80]}" is no list index')
    if int(part) >= length:
        raise _refused(
            f'{operation} operation does not apply: "{_text(path)}": '
            f"Unable to access invalid index: {part}: invalid index referenced"
        )
    return int(part)


def _add(document: _Document, path: list[str], _source: list[str], value: Any, operation: str = "add") -> None:
    if not path:
        document.root = value
        return
    parent = document.parent(path, operation)
    if isinstance(parent, dict):
        parent[path[-1]] = value
    elif path[-1] == "-":
        parent.append(value)
    else:
        parent.insert(_index(path[-1], len(parent) + 1, operation, path), value)


def _remove(document: _Document, path: list[str], _source: list[str], _value: Any, operation: str = "remove") -> None:
    if not path:
        raise _refused(f"{operation} operation does not apply: the whole document cannot be removed")
    parent = document.parent(path, operation)
    if isinstance(parent, list):
        del parent[_index(path[-1], len(parent), operation, path)]
    elif path[-1] in parent:
        del parent[path[-1]]
    else:
        raise _missing(operation, path)


def _replace(document: _Document, path: list[str], _source: list[str], value: Any) -> None:
    if not path:
        document.root = value
        return
    parent = document.parent(path, "replace")
    if isinstance(parent, list):
        parent[_index(path[-1], len(parent), "replace", path)] = value
    elif path[-1] in parent:
        parent[path[-1]] = value
    else:
        raise _missing("replace", path)


def _move(document: _Document, path: list[str], source: list[str], _value: Any) -> None:
    if path == source:
        if document.find(source) is _ABSENT:
            raise _missing("move", source)
        return
    if path[: len(source)] == source:
        raise _refused(f'move operation does not apply: "{_text(source)}" cannot be moved into itself')
    value = document.find(source)
    if value is _ABSENT:
        raise _missing("move", source)
    _remove(document, source, [], None, "move")
    _add(document, path, [], value, "move")


def _copy(document: _Document, path: list[str], source: list[str], _value: Any) -> None:
    value = document.find(source)
    if value is _ABSENT:
        raise _missing("copy", source)
    try:
        encoded = orjson.dumps(value)
    except orjson.JSONEncodeError:
        raise _refused(f'copy operation does not apply: "{_text(source)}" is nested too deep') from None
    document.copied += len(encoded)
    if document.copied > MAX_COPIED_BYTES:
        raise _refused(
            f"Unable to complete the copy, the accumulated size increase of copy is {document.copied}, "
            f"exceeding the limit {MAX_COPIED_BYTES}"
        )
    # A true copy: containers in here may be ours to change in place, and must not then change in two places.
    _add(document, path, [], orjson.loads(encoded), "copy")


def _test(document: _Document, path: list[str], _source: list[str], value: Any) -> None:
    found = document.find(path)
    if found is _ABSENT:
        found = None  # as Kubernetes' library has it: a test for null passes where nothing is
    if not _equal(found, value):
        why = f"testing value {_text(path)} failed: test failed"
        raise PatchTestFailed(f"{_REJECTED}: {why}")


def _equal(left: Any, right: Any) -> bool:
    """Equal as JSON: numbers by value, but true is not 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if left != right:
        return False
    if isinstance(left, dict):
        return all(_equal(value, right[key]) for key, value in left.items())
    if isinstance(left, list):
        return all(map(_equal, left, right))
    return True


_Run = Callable[[_Document, list[str], list[str], Any], None]
_OPERATIONS: Final[dict[str, tuple[_Run, bool, bool]]] = {  # (function, needs from, needs value)
    "add": (_add, False, True),
    "remove": (_remove, False, False),
    "replace": (_replace, False, True),
    "move": (_move, True, False),
    "copy": (_copy, True, False),
    "test": (_test, False, True),
}
