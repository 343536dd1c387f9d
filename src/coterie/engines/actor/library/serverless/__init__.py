"""What the code of an Action sees: the `Request`, and what to return: a `Response`, or an `Invoke` of another action.

    from serverless import Invoke, Request, Response

    def action(req: Request):
        if req.param("sign") == "+":
            return Invoke("add", {"a": int(req.param("a")), "b": int(req.param("b"))})
        return Response("unknown sign", 400)

`action` may be `async`. A Response may have an iterator or an asynchronous iterator as payload: it is sent piece by piece.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from enum import StrEnum
from typing import Any

__all__ = ["ContentType", "Headers", "Invoke", "Request", "Response"]

_PIECE = 1 << 16
_Bytes = bytes


class ContentType(StrEnum):
    MIMEJSON = "application/json"
    MIMEHTML = "text/html"
    MIMEXML = "application/xml"
    MIMEXML2 = "text/xml"
    MIMEPlain = "text/plain"
    MIMEPOSTForm = "application/x-www-form-urlencoded"
    MIMEMultipartPOSTForm = "multipart/form-data"
    MIMEPROTOBUF = "application/x-protobuf"
    MIMEMSGPACK = "application/x-msgpack"
    MIMEMSGPACK2 = "application/msgpack"
    MIMEYAML = "application/x-yaml"
    MIMEBinary = "application/octet-stream"


class Headers(dict[str, str]):
    """Of a request: names in any case."""

    def __init__(self, headers: Mapping[str, str] | None = None) -> None:
        super().__init__({name.lower(): value for name, value in (headers or {}).items()})

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.lower())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and super().__contains__(name.lower())

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name.lower(), default)


class Request:
    """A call. Code that is tested without an actor makes one itself: `Request({"a": "1"}, body="text")`."""

    __slots__ = (
        "_body",
        "_path",
        "action",
        "attempt",
        "content_type",
        "deadline",
        "headers",
        "id",
        "params",
        "request_id",
        "traceparent",
    )

    def __init__(
        self,
        params: Mapping[str, Any] | None = None,
        path: str = "",
        body: str | bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        content_type: str = "",
        id: str = "",
        request_id: str = "",
        action: str = "",
        deadline: float | None = None,
        attempt: int = 0,
        traceparent: str = "",
    ) -> None:
        self.params: dict[str, Any] = dict(params or {})
        """From HTTP: texts, URL-decoded. From another action: whatever JSON has, as that action gave it."""
        self._path = path
        self._body = body.encode() if isinstance(body, str) else body
        self.headers = Headers(headers)
        self.content_type = content_type
        self.id = id
        """The same for each repetition of this call, different for all others: store it with what you do, and do it once."""
        self.request_id = request_id
        """The same for all calls of a chain."""
        self.action = action
        self.deadline = deadline
        """Seconds since 1970, as `time.time()`; after it nobody waits for the answer. None: no limit."""
        self.attempt = attempt
        """0 for the first, 1 for the first repetition."""
        self.traceparent = traceparent

    def param(self, key: str, default: Any = None) -> Any:
        return self.params.get(key, default)

    def path(self) -> str:
        """Of the HTTP trigger, or what the calling action gave."""
        return self._path

    def body(self) -> str:
        """As text. UnicodeDecodeError when it is not UTF-8: use `bytes`."""
        return self._body.decode()

    def bytes(self) -> bytes:
        return self._body

    def json(self) -> Any:
        """ValueError when it is not JSON."""
        return json.loads(self._body)

    async def stream(self) -> AsyncIterator[_Bytes]:
        """The body in pieces."""
        for start in range(0, len(self._body), _PIECE):
            yield self._body[start : start + _PIECE]

    def remaining(self) -> float:
        """Seconds until the deadline, never below 0."""
        return math.inf if self.deadline is None else max(0.0, self.deadline - time.time())

    def __repr__(self) -> str:
        return f"Request(id={self.id!r}, path={self._path!r}, {len(self._body)} bytes, attempt={self.attempt})"


Payload = str | bytes | Mapping[str, Any] | list[Any] | float | Iterable[Any] | AsyncIterable[Any] | None


class Invoke:
    """Another action goes on with this call and answers the caller. `action` must be among the `next` of this one."""

    __slots__ = ("action", "body", "content_type", "params", "path")

    def __init__(
        self,
        action: str,
        params: Mapping[str, Any] | None = None,
        path: str = "",
        body: str | bytes | Mapping[str, Any] | list[Any] = "",
        *,
        content_type: ContentType | str = "",
    ) -> None:
        if not isinstance(action, str) or not action:
            raise TypeError("Invoke: action must be the name of an action")
        if params is not None and not isinstance(params, Mapping):
            raise TypeError(f"Invoke: params must be a dict, not {type(params).__name__}")
        for key in params or ():
            if not isinstance(key, str):
                raise TypeError(f"Invoke: the names of params must be texts, not {type(key).__name__}")
        if not isinstance(path, str):
            raise TypeError(f"Invoke: path must be a text, not {type(path).__name__}")
        if not isinstance(body, str | bytes | bytearray | Mapping | list):
            raise TypeError(f"Invoke: body must be text, bytes, a dict or a list, not {type(body).__name__}")
        self.action = action
        self.params = dict(params or {})
        self.path = path
        self.body = body
        self.content_type = str(content_type)


class Response:
    """The answer to the caller.

    `payload`: text, bytes, a dict or list (sent as JSON), a number, or an (asynchronous) iterator of texts and bytes.
    """

    __slots__ = ("content_type", "headers", "http_status", "payload")

    def __init__(
        self,
        payload: Payload = "",
        http_status: int = 200,
        content_type: ContentType | str = ContentType.MIMEPlain,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        if isinstance(http_status, bool) or not isinstance(http_status, int) or not 200 <= http_status <= 599:
            raise ValueError(f"Response: http_status must be a number from 200 to 599, not {http_status!r}")
        if not isinstance(content_type, str) or not _is_plain(content_type) or not content_type:
            raise ValueError("Response: content_type must be a ContentType or a text such as image/png")
        for name, value in (headers or {}).items():
            if not isinstance(name, str) or not isinstance(value, str) or not _is_plain(name + value) or not name:
                raise ValueError(f"Response: {name!r} and its value cannot be a header")
        self.payload = payload
        self.http_status = http_status
        structured = isinstance(payload, Mapping | list)
        plain = content_type == ContentType.MIMEPlain
        self.content_type = str(ContentType.MIMEJSON if structured and plain else content_type)
        self.headers = dict(headers or {})


def _is_plain(text: str) -> bool:
    return text.isprintable() and text.isascii()
