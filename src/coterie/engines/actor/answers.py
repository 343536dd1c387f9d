"""What a function returned, as the answer of the actor protocol. Pure."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, Iterable, Mapping
from typing import Any, NamedTuple

from coterie.engines.actor.code_loader import error_text
from coterie.engines.actor.library.serverless import Invoke, Response

MOST_ANSWER = 32 << 20
"""Bytes of an answer that is not streamed."""
_MOST_LINE = 255 << 10
"""Bytes of params or headers; the dispatcher reads 256 KiB."""
_TEXT = "text/plain; charset=utf-8"
_dumps = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


class Answer(NamedTuple):
    line: bytes
    """JSON, with its newline."""
    body: bytes = b""
    pieces: Iterable[Any] | AsyncIterable[Any] | None = None
    """Of a streamed answer, instead of `body`."""
    failed: bool = False


def answer_of(action: str, next: frozenset[str], result: Any) -> Answer:
    """Raises what the JSON of the user's values raises."""
    if isinstance(result, Response):
        return _response(action, result)
    if isinstance(result, Invoke):
        return _invoke(action, next, result)
    kind = type(result).__name__
    return failure(action, f"TypeError: the function returned {kind}, not a Response or an Invoke")


def raised(action: str, problem: BaseException) -> Answer:
    return failure(action, error_text(problem))


def failure(action: str, error: str, status: int = 500) -> Answer:
    head = {"status": status, "contentType": _TEXT, "error": error}
    return Answer(
        _line({"response": head}), f'action "{action}" failed: {error}\n'.encode("utf-8", "replace"), None, True
    )


def _response(action: str, result: Response) -> Answer:
    kind, payload = result.content_type, result.payload
    body, pieces = b"", None
    if isinstance(payload, str | bytes | bytearray | memoryview) or payload is None:
        body = _bytes(payload or b"")
    elif isinstance(payload, Mapping | list | tuple):
        body = _dumps(payload).encode()
    elif isinstance(payload, int | float):
        body = str(payload).encode()
    elif hasattr(type(payload), "__aiter__") or hasattr(type(payload), "__iter__"):
        pieces = payload
    else:
        return failure(action, f"TypeError: the payload of a Response cannot be {type(payload).__name__}")
    if len(body) > MOST_ANSWER:
        return failure(action, f"ValueError: the answer has {len(body)} bytes, {MOST_ANSWER} are allowed; stream it")
    if kind.startswith("text/") and "charset" not in kind and not isinstance(payload, bytes | bytearray | memoryview):
        kind += "; charset=utf-8"
    head: dict[str, Any] = {"status": result.http_status, "contentType": kind}
    if result.headers:
        head["headers"] = result.headers
    line = _line({"response": head})
    if len(line) > _MOST_LINE:
        return failure(action, f"ValueError: the headers have {len(line)} bytes, {_MOST_LINE} are allowed")
    return Answer(line, body, pieces)


def _invoke(action: str, next: frozenset[str], result: Invoke) -> Answer:
    if result.action not in next:
        allowed = ", ".join(sorted(next)) or "nothing"
        return failure(
            action, f'NotAllowed: "{result.action[:200]}" is not declared in next of "{action}", which has {allowed}'
        )
    kind, body = result.content_type, result.body
    if isinstance(body, Mapping | list):
        kind, data = kind or "application/json", _dumps(body).encode()
    else:
        kind = kind or (
            ("text/plain; charset=utf-8" if isinstance(body, str) else "application/octet-stream") if body else ""
        )
        data = _bytes(body)
    if len(data) > MOST_ANSWER:
        return failure(action, f"ValueError: the body has {len(data)} bytes, {MOST_ANSWER} are allowed")
    head = {"action": result.action, "params": result.params, "path": result.path, "contentType": kind}
    line = _line({"invoke": head})
    if len(line) > _MOST_LINE:
        return failure(action, f"ValueError: the params have {len(line)} bytes, {_MOST_LINE} are allowed; use the body")
    return Answer(line, data)


def piece_bytes(piece: Any) -> bytes:
    """Of a streamed answer."""
    if not isinstance(piece, str | bytes | bytearray | memoryview):
        raise TypeError(f"a streamed answer has texts and bytes, not {type(piece).__name__}")
    return _bytes(piece)


def _bytes(value: str | bytes | bytearray | memoryview) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _line(value: dict[str, Any]) -> bytes:
    return _dumps(value).encode() + b"\n"
